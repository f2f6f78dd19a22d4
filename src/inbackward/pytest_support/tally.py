"""The rows of a run, from this process or from workers: report file, summary and exit status."""

from __future__ import annotations

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
        self.written: Path | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        finding: dict[str, Any] | None = getattr(report, "inbackward", None)
        if finding is None:
            return
        if report.when == "call" or not report.passed:  # not what --setup-only runs
            self.selected = True
        if "problem" in finding:
            self.problems[finding["problem"]] = None
        if "row" in finding:
            from inbackward.report import Row

            self.rows.setdefault(finding["target"], {})[report.nodeid] = Row(**finding["row"])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.run.settings.json and self.selected and self.run.leads:
            self._write(self.run.settings.json)
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
            for line in [target, *report.render_remarks(rows), *report.render_summary(rows)]:
                terminalreporter.write_line(line)
        if not self.rows:
            terminalreporter.write_line("No requirement was judged, so this run proves nothing.")
        if self.written:
            terminalreporter.write_line(f"report written to {self.written}")
        for problem in self.problems:
            terminalreporter.write_line(f"ERROR: {problem}", red=True)

    def _compared(self) -> bool:
        """Whether there are numbers behind the verdicts, for every implementation that was judged."""
        compared = [sum(row.counts["tensors_compared"] for row in rows.values()) for rows in self.rows.values()]
        return bool(compared) and all(compared)

    def _write(self, path: Path) -> None:
        """Write the report; what prevents it is a problem of the run."""
        from inbackward.report import report, write_json

        if len(self.rows) > 1:
            names = ", ".join(self.rows)
            self.problems[f"{OPTION}-json holds one implementation, and this run has {names}; select one by -k"] = None
        for target in self.rows if len(self.rows) == 1 else ():
            try:
                write_json(path, report(target, self.run.settings.seed, self._sorted(target)))
                self.written = path
            except OSError as error:
                self.problems[f"{OPTION}-json cannot write {str(path)!r}: {error.strerror}"] = None

    def _sorted(self, target: str) -> list[Row]:
        """The rows of a target in the order of the catalogue, whatever order the tests ran in."""
        from inbackward.requirements import CATALOGUE

        order = list(CATALOGUE)
        return sorted(self.rows[target].values(), key=lambda row: order.index(row.entry["id"]))
