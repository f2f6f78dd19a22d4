"""Where the command prints: the report on stdout, requirement by requirement, and a bar on a terminal's stderr.

Off a terminal there is no bar: the rows, flushed as they come, are the progress that a CI log shows.
"""

from __future__ import annotations

import os
from typing import TextIO

from inbackward.judging import Verdict
from inbackward.report.report import Row

GREEN, YELLOW, RED = "\x1b[32m", "\x1b[33m", "\x1b[31m"
BOLD, DIM = "\x1b[1m", "\x1b[2m"
RESET, ERASE_LINE = "\x1b[0m", "\r\x1b[2K"
BAR = 24


class Screen:
    """The two streams of a run.

    Args:
        out: takes the report; coloured only where it is a terminal and ``NO_COLOR`` is not set.
        err: takes the bar, only where it is a terminal.
    """

    def __init__(self, out: TextIO, err: TextIO) -> None:
        dumb = os.environ.get("TERM") == "dumb"
        self.out, self.err = out, err
        self.colour = out.isatty() and not dumb and not os.environ.get("NO_COLOR")
        self.live = err.isatty() and not dumb

    def print(self, *lines: str) -> None:
        print(*lines, sep="\n", file=self.out, flush=True)

    def report(self, *lines: str) -> None:
        """Blocks about requirements: the verdict, the diagnosis and the mend stand out, the evidence steps back."""
        self.print(*(_painted(line) for line in lines) if self.colour else lines)

    def table(self) -> None:
        """The head of the table whose rows follow."""
        self.print("", f"{'requirement':<31}{'verdict':<35}{'scenarios':>9}{'seconds':>9}")

    def row(self, row: Row) -> None:
        """One requirement that is done."""
        self.erase()
        verdict = str(row.verdict)
        if row.stale or row.expected:
            verdict += ", stale" if row.stale else ", expected"
        cell = f"{verdict:<35}"
        if self.colour:
            cell = f"{_colour(row)}{cell}{RESET}"
        self.print(f"{row.label:<31}{cell}{row.entry['scenarios']:>9}{row.entry['seconds']:>9.1f}")

    def running(self, done: int, total: int, label: str) -> None:
        """Draw the bar: ``label`` is being judged, ``done`` of ``total`` are finished."""
        if self.live:
            filled = BAR * done // total
            bar = "#" * filled + "." * (BAR - filled)
            print(f"{ERASE_LINE}[{bar}] {done}/{total} {label}", end="", file=self.err, flush=True)

    def erase(self) -> None:
        """Take the bar away."""
        if self.live:
            print(ERASE_LINE, end="", file=self.err, flush=True)


def _painted(line: str) -> str:
    colour = next((colour for start, colour in _PAINT.items() if line.startswith(start)), "")
    if not line.startswith(" ") and line.endswith((": not-equivalent", ": broken")):
        colour = RED
    return f"{colour}{line}{RESET}" if colour else line


_PAINT = {
    "  It behaves": BOLD,
    "  It is consistent": BOLD,
    "  None of the": BOLD,
    "  mend:": GREEN,
    "  evidence:": DIM,
    "            ": DIM,
    "  replay:": DIM,
}


def _colour(row: Row) -> str:
    if row.failed or row.stale:
        return RED
    return GREEN if row.verdict in (Verdict.EQUIVALENT, Verdict.WITHIN_NOISE, Verdict.REFUSED) else YELLOW
