"""From a requirement to the outcome of its test, without a traceback of this package's own."""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from inbackward import report
from inbackward.judging import Verdict
from inbackward.pytest_support.ranks import share_row
from inbackward.pytest_support.run import FINDING, RUN, Run
from inbackward.pytest_support.settings import OPTION
from inbackward.pytest_support.source import Wrong, way_in
from inbackward.requirements import CATALOGUE
from inbackward.scenario import Scenario
from inbackward.scenario.plain_data import terse
from inbackward.shrinking import is_quick, shrink_for_report
from inbackward.verification import Result, Suite

FOLDER = ".inbackward"


def check(item: pytest.Function, given: Any, label: str) -> None:
    """Judge one requirement, leave its row for the report, and end the test as the verdict says."""
    __tracebackhide__ = True
    run = item.config.stash[RUN]
    suite = run.suite(given)
    if isinstance(suite, Wrong):
        item.stash[FINDING] = {"problem": suite.message}
        pytest.fail(suite.message, pytrace=False)
    row = share_row(run, suite, lambda: _row(item, run, suite, label))
    item.stash[FINDING] = {"target": run.label(suite), "row": asdict(row)}
    if run.settings.html is not None and run.leads and _is_first(item, "showcase"):
        item.stash[FINDING]["showcase"] = report.Showcase.of(suite).plain()
    _conclude(item, row, run.settings.strict)


def _row(item: pytest.Function, run: Run, suite: Suite, label: str) -> report.Row:
    result = _result(run, suite, label)
    if item.config.getoption("runxfail"):  # pytest's option: as if nothing had been declared
        result = replace(result, declared="", expected="")
    row = report.row(result)
    if row.scenario:
        row = _with_replay(row, item, run)
    if row.failed and row.scenario and run.settings.replay is None:
        row = _with_shrunk(row, item, run, suite)
    return row


def _result(run: Run, suite: Suite, label: str) -> Result:
    about = run.items[label]
    if run.scenario is None:
        return suite.run(about.id, *about.strategies)
    outcome = suite.explained(suite.judge(run.scenario))
    return Result(
        requirement=CATALOGUE[about.id], outcomes=(outcome,), strategies=about.strategies, seconds=outcome.seconds
    )


def _with_replay(row: report.Row, item: pytest.Function, run: Run) -> report.Row:
    """The row with the command that runs its decisive scenario again, where that could be saved."""
    file = run.settings.replay or report.save_replay(item.config.rootpath / FOLDER, row)
    if file is None:
        return row
    return replace(row, entry={**row.entry, "replay": _command(file, item, run)})


def _command(file: Path, item: pytest.Function, run: Run) -> str:
    file_shown = os.path.relpath(file, item.config.invocation_params.dir)
    return shlex.join(["pytest", f"{OPTION}-replay", file_shown, *way_in(item, run.settings)])


def _with_shrunk(row: report.Row, item: pytest.Function, run: Run, suite: Suite) -> report.Row:
    """The row, the run's first with a simpler scenario that fails likewise, and its command where it could be saved."""
    scenario = Scenario.from_json(row.scenario)
    shrunk = shrink_for_report(suite, scenario) if is_quick(scenario) and _is_first(item, "shrinks") else None
    if shrunk is None:
        return row
    file = report.save_scenario(item.config.rootpath / FOLDER, shrunk.label, shrunk.to_json())
    command = _command(file, item, run) if file else ""
    return replace(row, shrunk=terse(shrunk), replay_shrunk=command)


def _is_first(item: pytest.Function, what: str) -> bool:
    """Whether this is the first of the run to ask for ``what``, workers of xdist included; it takes seconds.

    The folder in which each worker has its temporary folders is theirs together, and one only can make a file there.
    """
    request = item.funcargs["request"]
    assert isinstance(request, pytest.FixtureRequest)
    if not item.config.pluginmanager.has_plugin("tmpdir"):
        return False
    own: Path = request.getfixturevalue("tmp_path_factory").getbasetemp()
    shared = own.parent if hasattr(item.config, "workerinput") else own
    try:
        (shared / f"inbackward-{what}").touch(exist_ok=False)
    except OSError:
        return False
    return True


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
