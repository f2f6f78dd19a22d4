"""The ready implementations in ``examples/``: each requirement holds or is declared, and no declaration is stale."""

from __future__ import annotations

import inspect
from contextlib import closing
from functools import cache
from importlib import import_module

import pytest

from inbackward.requirements import CATALOGUE, items
from inbackward.targets import load
from inbackward.training import Implementation
from inbackward.verification import Suite

EXAMPLES = ("examples.tutorial_hooks", "examples.apply_optimizer_in_backward")
SLOW = {"compiled-model", "resume-fresh-process"}  # seconds each: for the first example only
SINGLE = [item.id for item in items(("single",))]

# torch.distributed.optim compiles with torch.jit.script as it is imported, which newer Pythons warn of.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


@cache
def suite(module: str) -> Suite:
    return Suite(load(f"{module}:implementation"))


@pytest.mark.parametrize("id", SINGLE)
def test_holds_or_is_declared(id: str, references_are_remembered: None) -> None:
    for module in EXAMPLES[:1] if id in SLOW else EXAMPLES:
        examined = suite(module)
        result = examined.run(id)
        assert result.outcomes
        if id in examined.implementation.unsupported:
            assert result.verdict.value == "unsupported", module
            assert not result.holds_after_all, f"{module}: the declaration is stale"
        else:  # a second backward through one graph meets parameters that have moved, which autograd refuses
            expected = "refused" if id == "two-backwards" else "equivalent"
            assert result.verdict.value == expected, f"{module}: {result.message}"


@pytest.mark.parametrize("module", EXAMPLES)
def test_holds_or_is_declared_across_ranks(module: str) -> None:
    """What cannot run on this machine says why, and is no pass."""
    examined = suite(module)
    with closing(examined):
        for item in items(("ddp", "fsdp2", "tensor-parallel")):
            if CATALOGUE[item.id].family != "ranks":
                continue
            result = examined.run(item.id, *item.strategies)
            by_torch = "torch.Stream" in result.message  # what takes DDP with a GPU only
            expected = {"unsupported"} if result.declared else {"not-run"} if by_torch else {"equivalent"}
            if item.id == "token-normalised-loss":
                expected.add("equivalent-within-noise")
            assert result.verdict.value in expected, f"{item.id}: {result.message}"
            assert not result.holds_after_all, f"{item.id}: the declaration is stale"


@pytest.mark.parametrize("module", EXAMPLES)
def test_the_docstring_shows_the_commands_that_reach_it(module: str) -> None:
    target = f"{module}:implementation"
    assert isinstance(load(target), Implementation)
    commands = inspect.getdoc(import_module(module))
    assert commands is not None
    assert f"inbackward verify {target}\n" in commands
    assert "pytest --pyargs inbackward.suite -k optimizer_in_backward \\\n" in commands
    assert f"--optimizer-in-backward {target}\n" in commands
