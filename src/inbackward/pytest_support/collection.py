"""Which items of the suite a run has, with which parameters, and when they belong to a run by no path of its own."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import pytest

from inbackward.pytest_support.settings import FIXTURE, SUITE, Settings
from inbackward.pytest_support.source import MEND, Named, Wrong, providers

_Test = TypeVar("_Test", bound=Callable[..., None])
_MARK = "_inbackward_suite"


def suite_test(function: _Test) -> _Test:
    """Mark the suite's test: pytest collects it whatever ``python_functions`` says, and the plugin knows it again."""
    function.__dict__.update({"__test__": True, _MARK: True})
    return function


def is_suite_test(function: object) -> bool:
    """Whether ``function`` is the suite's test."""
    return bool(getattr(function, "__dict__", {}).get(_MARK))


def suite_items(items: list[pytest.Item]) -> list[pytest.Function]:
    """Those of ``items`` that belong to the suite."""
    return [item for item in items if isinstance(item, pytest.Function) and is_suite_test(item.function)]


def parametrize(metafunc: pytest.Metafunc, named: Named | None, fixture: str, ids: list[str]) -> None:
    """Give the suite's test its parameters.

    Args:
        named: what an option or ini key names, if one does. It arrives as a parameter: a fixture of this package would
            hide, or be hidden by, the user's.
        fixture: where the user's fixture is, or ``""``.
        ids: of the requirements, with the strategy where it is a repetition.
    """
    given: Named | Wrong | None = named
    if fixture and named:
        given = Wrong(f"{named.settings.named_by} and the {fixture} both give what to check; drop one of them")
    elif not fixture and not named:
        given = Wrong(f"there is nothing to check: {MEND}")
    if given is None:
        metafunc.parametrize("requirement_id", ids)
    else:
        metafunc.parametrize(f"{FIXTURE},requirement_id", [(given, id) for id in ids], ids=ids)


def suite_is_wanted(config: pytest.Config, settings: Settings) -> bool:
    """Whether the suite belongs to this run though nothing that was collected brought it in.

    What the configuration names is like ``testpaths``: paths on the command line take its place. What the command line
    itself names is always wanted.
    """
    if settings.asked or settings.replay:
        return True
    named = settings.named_by or providers(config)
    return bool(named) and config.args_source is not config.ArgsSource.ARGS


def collect_suite(session: pytest.Session) -> list[pytest.Item]:
    """The suite's items, collected from the module itself, wherever it is installed.

    Their node ids begin with the module's name, so that ``pytest --pyargs`` takes them: pytest has no usable node id
    for a file outside ``rootdir``. Nor is ``session.genitems`` used: under ``--lf`` it skips files without failures,
    and never finds a file outside ``rootdir`` among those with some. ``--lf`` still selects among the items.
    """
    path = Path(str(import_module(SUITE).__file__))
    module: pytest.Module = pytest.Module.from_parent(session, path=path, nodeid=SUITE)
    items = [item for item in module.collect() if isinstance(item, pytest.Item)]
    for item in items:
        item.ihook.pytest_itemcollected(item=item)
    report = pytest.CollectReport(module.nodeid, "passed", None, list(items))
    session.config.hook.pytest_collectreport(report=report)
    return items
