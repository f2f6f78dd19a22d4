"""The ready implementations in ``examples/``: each requirement holds or is declared, and no declaration is stale."""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module

import pytest

from inbackward.requirements import checkable
from inbackward.targets import load
from inbackward.training import Implementation
from inbackward.verification import Suite

EXAMPLES = ("examples.tutorial_hooks", "examples.apply_optimizer_in_backward")
DECLARED = {"tensor-lr", "closure", "extra-step-calls", "resume-from-plain", "resume-into-plain"}

# torch.distributed.optim compiles with torch.jit.script as it is imported, which newer Pythons warn of.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


@cache
def suite(module: str) -> Suite:
    return Suite(load(f"{module}:implementation"))


@pytest.mark.parametrize("module", EXAMPLES)
@pytest.mark.parametrize("id", checkable())
def test_holds_or_is_declared(module: str, id: str) -> None:
    result = suite(module).run(id)
    assert result.outcomes
    assert result.verdict.value == ("unsupported" if id in DECLARED else "equivalent"), result.message
    assert not result.failed
    assert not result.holds_after_all
    assert result.found.value != "equivalent" or id not in DECLARED


@pytest.mark.parametrize("module", EXAMPLES)
def test_the_docstring_shows_the_commands_that_reach_it(module: str) -> None:
    target = f"{module}:implementation"
    assert isinstance(load(target), Implementation)
    commands = inspect.getdoc(import_module(module))
    assert commands is not None
    assert f"inbackward verify {target}\n" in commands
    assert "pytest --pyargs inbackward.suite -k optimizer_in_backward \\\n" in commands
    assert f"--optimizer-in-backward {target}\n" in commands
