"""The pytest plugin: it wires options and hooks, and imports torch only once a test of the suite runs.

What it adds to a run is described in ``docs/pytest.md``.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

from inbackward.pytest_support.collection import (
    collect_suite,
    is_suite_test,
    parametrize,
    suite_is_wanted,
    suite_items,
)
from inbackward.pytest_support.ranks import join, silence, started_by_torchrun
from inbackward.pytest_support.run import FINDING, RUN, Run
from inbackward.pytest_support.settings import FIXTURE, add_options
from inbackward.pytest_support.source import Named, Wrong, fixture_in_use
from inbackward.pytest_support.tally import Tally


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RUN] = run = Run(config)
    if not _in_worker(config):
        config.pluginmanager.register(Tally(run), "inbackward-tally")


@pytest.hookimpl(tryfirst=True)  # before the header is printed
def pytest_sessionstart(session: pytest.Session) -> None:
    if started_by_torchrun() and os.environ["RANK"] != "0":
        silence(session.config)


def pytest_report_header(config: pytest.Config) -> list[str]:
    return config.stash[RUN].header(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if is_suite_test(metafunc.function):
        run = metafunc.config.stash[RUN]
        run.fixture = fixture_in_use(metafunc)
        parametrize(metafunc, run.named, run.fixture, list(run.items))


@pytest.hookimpl(tryfirst=True)  # before -k, -m and --deselect choose
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    run = config.stash[RUN]
    if suite_is_wanted(config, run.settings) and not suite_items(items):
        items.extend(collect_suite(session))
    if run.scenario:
        chosen = suite_items(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


def pytest_collection_finish(session: pytest.Session) -> None:
    """Find out now, and once, that what to check cannot be had. A worker cannot say so: there each test does."""
    chosen = suite_items(session.items)
    if not chosen or _in_worker(session.config) or session.config.option.collectonly:
        return
    run = session.config.stash[RUN]
    if started_by_torchrun():
        join(run, session.items)
    for given in (item.callspec.params.get(FIXTURE) for item in chosen):
        if isinstance(given, (Named, Wrong)) and isinstance(suite := run.suite(given), Wrong):
            raise pytest.UsageError(suite.message)


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """The header for a fixture that pytest met only while it collected."""
    run = config.stash[RUN]
    quiet = config.option.verbose < 0 or config.getoption("no_header")
    told = run.named or run.fixture == run.shown or quiet
    return run.describe(run.fixture) if suite_items(items) and not told else []


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, None]:
    torchrun = item.config.stash[RUN].torchrun if suite_items([item]) else None
    if torchrun is not None:
        torchrun.begin()
    yield
    if torchrun is not None and torchrun.rank == 0:
        torchrun.tell(("end", None))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if RUN in config.stash:
        config.stash[RUN].close()
        torchrun = config.stash[RUN].torchrun
        if torchrun is not None:
            torchrun.finish()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Send what a test of the suite found along with its report, which xdist carries to the controller."""
    outcome = yield
    if suite_items([item]):
        outcome.get_result().inbackward = item.stash.get(FINDING, {})


def _in_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")
