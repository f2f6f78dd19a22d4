"""From a requirement to the outcome of its test, without a traceback of this package's own."""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict, replace
from typing import Any

import pytest

from inbackward import report
from inbackward.judging import Verdict
from inbackward.pytest_support.run import FINDING, RUN, Run
from inbackward.pytest_support.settings import OPTION
from inbackward.pytest_support.source import Wrong, way_in
from inbackward.requirements import CATALOGUE
from inbackward.verification import Result, Suite


def check(item: pytest.Function, given: Any, requirement: str) -> None:
    """Judge one requirement, leave its row for the report, and end the test as the verdict says."""
    __tracebackhide__ = True
    run = item.config.stash[RUN]
    suite = run.suite(given)
    if isinstance(suite, Wrong):
        item.stash[FINDING] = {"problem": suite.message}
        pytest.fail(suite.message, pytrace=False)
    result = _result(run, suite, requirement)
    if item.config.getoption("runxfail"):  # pytest's option: as if nothing had been declared
        result = replace(result, declared="", expected="")
    row = report.row(result)
    if row.scenario:
        row = _with_replay(row, item, run)
    item.stash[FINDING] = {"target": run.label(suite), "row": asdict(row)}
    _conclude(item, row, run.settings.strict)


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


def _conclude(item: pytest.Function, row: report.Row, strict: bool) -> None:
    __tracebackhide__ = True
    text = "\n".join(report.render_failure(row))
    if row.failed or (row.stale and strict):
        pytest.fail(text, pytrace=False)
    if row.stale:
        _warn(item, text)
    elif row.verdict is Verdict.UNSUPPORTED:
        pytest.xfail(f"unsupported: {row.entry['message']}")
    elif row.expected:
        pytest.xfail(f"expected failure: {row.expected} ({row.verdict}: {row.entry['message']})")
    elif row.verdict is Verdict.NOT_RUN:
        pytest.skip(f"not run: {row.entry['message']}")


def _warn(item: pytest.Function, text: str) -> None:
    __tracebackhide__ = True
    try:
        item.warn(pytest.PytestWarning(text))
        return
    except pytest.PytestWarning:  # filterwarnings = error
        pass
    pytest.fail(text, pytrace=False)
