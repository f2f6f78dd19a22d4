"""The ready implementations in ``examples/``: each requirement holds or is declared, and no declaration is stale."""

from __future__ import annotations

import inspect

import pytest
from examples import apply_optimizer_in_backward, tutorial_hooks

from inbackward.targets import load
from inbackward.training import as_implementation
from inbackward.verification import Suite, checkable

EXAMPLES = (tutorial_hooks, apply_optimizer_in_backward)
SUITES = {module.__name__: Suite(module.implementation) for module in EXAMPLES}
DECLARED = {"tensor-lr", "closure", "extra-step-calls", "resume-from-plain", "resume-into-plain"}


@pytest.mark.parametrize("name", SUITES)
@pytest.mark.parametrize("id", checkable())
def test_holds_or_is_declared(name: str, id: str) -> None:
    result = SUITES[name].run(id)
    assert result.outcomes
    assert result.verdict.value == ("unsupported" if id in DECLARED else "equivalent"), result.message
    assert not result.failed
    assert not result.holds_after_all
    assert result.found.value != "equivalent" or id not in DECLARED


@pytest.mark.parametrize("module", EXAMPLES, ids=lambda module: module.__name__)
def test_the_docstring_shows_the_commands_that_reach_it(module: object) -> None:
    target = f"{module.__name__}:implementation"
    assert as_implementation(load(target)) is module.implementation
    commands = inspect.getdoc(module)
    assert f"inbackward verify {target}" in commands
    assert f"--optimizer-in-backward {target}" in commands
    assert "pytest --pyargs inbackward.suite" in commands
