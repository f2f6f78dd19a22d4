"""From a requirement to the outcome of its test, without a traceback of this package's own."""

from __future__ import annotations

import os
import shlex
import warnings
from dataclasses import asdict, replace
from typing import Any

import pytest

from inbackward import report
from inbackward.judging import Verdict
from inbackward.pytest_support.run import FINDING, RUN, Run
from inbackward.pytest_support.settings import OPTION
from inbackward.pytest_support.source import way_in
from inbackward.requirements import CATALOGUE
from inbackward.verification import Result, Suite


def check(item: pytest.Function, given: Any, requirement: str) -> None:
    """Judge one requirement, leave its row for the report, and end the test as the verdict says."""
    __tracebackhide__ = True
    run = item.config.stash[RUN]
    suite, problem = _suite(run, given)
    if suite is None:
        item.stash[FINDING] = {"problem": problem}
        pytest.fail(problem, pytrace=False)
    result = _result(run, suite, requirement)
    if item.config.getoption("runxfail"):  # pytest's option: as if nothing had been declared
        result = replace(result, declared="", expected="")
    row = report.row(result)
    if row.scenario:
        row = _with_replay(row, item, run)
    item.stash[FINDING] = {"target": run.label(suite), "row": asdict(row)}
    _conclude(row, run.settings.strict)


def _suite(run: Run, given: Any) -> tuple[Suite | None, str]:
    try:
        return run.suite(given), ""
    except (TypeError, ValueError) as error:
        return None, " ".join(str(error).split())


def _result(run: Run, suite: Suite, requirement: str) -> Result:
    if run.scenario is None:
        return suite.run(requirement)
    outcome = suite.judge(run.scenario)
    return Result(requirement=CATALOGUE[requirement], outcomes=(outcome,), seconds=outcome.seconds)


def _with_replay(row: report.Row, item: pytest.Function, run: Run) -> report.Row:
    """The row with the command that runs its decisive scenario again, where that could be saved."""
    file = run.settings.replay or report.save_replay(item.config.rootpath / ".inbackward", row)
    if file is None:
        return row
    file_shown = os.path.relpath(file, item.config.invocation_params.dir)
    arguments = way_in(item, run.settings, row.entry["id"])
    command = shlex.join(["pytest", f"{OPTION}-replay", file_shown, *arguments])
    return replace(row, entry={**row.entry, "replay": command})


def _conclude(row: report.Row, strict: bool) -> None:
    __tracebackhide__ = True
    text = "\n".join(report.render_failure(row))
    if row.failed or (row.stale and strict):
        pytest.fail(text, pytrace=False)
    if row.stale:
        warnings.warn(pytest.PytestWarning(text), stacklevel=1)
    elif row.verdict is Verdict.UNSUPPORTED:
        pytest.xfail(f"unsupported: {row.entry['message']}")
    elif row.expected:
        pytest.xfail(f"expected failure: {row.expected} ({row.verdict}: {row.entry['message']})")
    elif row.verdict is Verdict.NOT_RUN:
        pytest.skip(f"not run: {row.entry['message']}")
