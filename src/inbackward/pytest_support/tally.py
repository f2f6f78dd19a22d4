"""The rows of a run, from this process or from workers: report file, summary and exit status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from inbackward.pytest_support.run import Run
from inbackward.pytest_support.settings import OPTION

if TYPE_CHECKING:
    from inbackward.report import Row


class Tally:
    """Collects what the suite's tests found, where the run is reported: in the only process, or in xdist's controller.

    One path serves both, since every finding travels on its test's report.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.selected = False
        self.rows: dict[str, dict[str, Row]] = {}
        self.problems: dict[str, None] = {}
        self.showcase: dict[str, Any] = {}
        self.written: list[Path] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        finding: dict[str, Any] | None = getattr(report, "inbackward", None)
        if finding is None:
            return
        if report.when == "call" or not report.passed:  # not what --setup-only runs
            self.selected = True
        if "problem" in finding:
            self.problems[finding["problem"]] = None
        self.showcase = finding.get("showcase", self.showcase)
        if "row" in finding:
            from inbackward.report import Row

            self.rows.setdefault(finding["target"], {})[report.nodeid] = Row(**finding["row"])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        settings = self.run.settings
        if self.selected and self.run.leads and settings.json:
            from inbackward.report import report, write_json

            json = settings.json
            self._write("json", json, lambda target, rows: write_json(json, report(target, settings.seed, rows)))
        if self.selected and self.run.leads and settings.html:
            from inbackward.report import Showcase, write_html

            html, showcase = settings.html, Showcase(why_not="no test of this run could train for them")
            if self.showcase:
                showcase = Showcase.from_plain(self.showcase)

            def write(target: str, rows: list[Row]) -> None:
                same = [replace(row, shrunk="", replay_shrunk="") for row in rows]  # whichever failed first has one
                write_html(html, target, settings.seed, same, showcase)

            self._write("html", html, write)
        if self.problems:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
        elif self.selected and not self._compared() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.selected:
            return
        from inbackward import report

        terminalreporter.section("optimizer in backward")
        for target in self.rows:
            rows = self._sorted(target)
            for line in [
                target,
                *report.render_remarks(rows),
                *report.render_summary(rows),
                *report.render_annotations(rows),
            ]:
                terminalreporter.write_line(line)
        if not self.rows:
            terminalreporter.write_line("No requirement was judged, so this run proves nothing.")
        for path in self.written:
            terminalreporter.write_line(f"report written to {path}")
        for problem in self.problems:
            terminalreporter.write_line(f"ERROR: {problem}", red=True)

    def _compared(self) -> bool:
        """Whether there are numbers behind the verdicts, for every implementation that was judged."""
        compared = [sum(row.counts["tensors_compared"] for row in rows.values()) for rows in self.rows.values()]
        return bool(compared) and all(compared)

    def _write(self, name: str, path: Path, write: Callable[[str, list[Row]], None]) -> None:
        """Write one report; what prevents it is a problem of the run."""
        if len(self.rows) > 1:
            names = ", ".join(self.rows)
            line = f"{OPTION}-{name} holds one implementation, and this run has {names}; select one by -k"
            self.problems[line] = None
        for target in self.rows if len(self.rows) == 1 else ():
            try:
                write(target, self._sorted(target))
                self.written.append(path)
            except OSError as error:
                self.problems[f"{OPTION}-{name} cannot write {str(path)!r}: {error.strerror}"] = None

    def _sorted(self, target: str) -> list[Row]:
        """The rows of a target in the order of the catalogue, whatever order the tests ran in."""
        from inbackward.requirements import CATALOGUE

        order = list(CATALOGUE)
        return sorted(self.rows[target].values(), key=lambda row: order.index(row.entry["id"]))
