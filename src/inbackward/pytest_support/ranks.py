"""A run of tests on the ranks that ``torchrun`` started: rank 0 judges, the others serve, and all conclude alike."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

import pytest

if TYPE_CHECKING:
    from inbackward.pytest_support.run import Run
    from inbackward.report import Row
    from inbackward.verification import Suite


def started_by_torchrun() -> bool:
    """Whether this process is one of the ranks of a ``torchrun``."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


def join(run: Run, items: list[pytest.Item]) -> None:
    """Meet the other ranks, which must have collected the same items in the same order.

    Raises:
        pytest.UsageError: they have not.
    """
    from inbackward.ranks import Torchrun

    run.torchrun = Torchrun()
    digest = hashlib.sha256("\n".join(item.nodeid for item in items).encode()).hexdigest()
    others = run.torchrun.agree("items", f"{len(items)} {digest}")
    if len(set(others)) > 1:
        counts = ", ".join(f"{text.split()[0]} on rank {rank}" for rank, text in enumerate(others))
        mend = "give all ranks the same arguments, and no random order (-p no:randomly)"
        raise pytest.UsageError(
            f"torchrun's ranks have collected different tests, or in another order: {counts}; {mend}"
        )


def share_row(run: Run, suite: Suite, judge: Callable[[], Row]) -> Row:
    """The row of a requirement, from rank 0; the others serve its scenarios until it comes."""
    __tracebackhide__ = True
    torchrun = run.torchrun
    if torchrun is None:
        return judge()
    if torchrun.rank == 0:
        row = judge()
        torchrun.tell(("row", row))
        return row
    while True:
        kind, what = torchrun.hear()
        if kind == "scenario":
            suite.follow(what)
        elif kind == "row":
            found: Row = what
            return found
        else:
            pytest.fail("rank 0 did not come to a verdict; its own report says why", pytrace=False)


class Quiet:
    """The reporter of a rank that is not 0: what it would print is rank 0's to say, but for tests of other suites.

    Those that fail are named on stderr at the end, since they may fail on this rank only.
    """

    def __init__(self, rank: int, err: TextIO) -> None:
        self._rank, self._err = rank, err
        self._failed: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not hasattr(report, "inbackward"):
            self._failed.append(report)

    def pytest_sessionfinish(self) -> None:
        for report in self._failed:
            print(f"[rank {self._rank}] FAILED {report.nodeid}\n{report.longreprtext}", file=self._err, flush=True)


def silence(config: pytest.Config) -> None:
    """On a rank that is not 0: no terminal reporter."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter._tw._file = open(os.devnull, "w")  # noqa: SIM115  other plugins ask the manager for it
    config.pluginmanager.register(Quiet(int(os.environ["RANK"]), sys.stderr), "inbackward-quiet")
