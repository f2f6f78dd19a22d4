"""A fault: a small wrong implementation, and how the suite must catch it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from tests.shapes.mine import Mine

from inbackward.judging.compare import compare
from inbackward.requirements import CATALOGUE
from inbackward.scenario import Scenario
from inbackward.training import Implementation, as_implementation, train_in_backward, train_reference
from inbackward.verification import Suite


@dataclass(frozen=True)
class Fault:
    """What is wrong (a class called like the package's own, or an ``Implementation``), and what must be found.

    Attributes:
        target: the wrong implementation.
        id: the requirement that must catch it. One caught scenario is enough to fail the requirement.
        scenario: the name of that scenario.
        right: an implementation that passes this scenario, to show that it can be passed.
        message: the outcome's message starts with it; for a divergence that is its iteration, quantity and name.
        first: quantity to the iteration at which it first leaves the reference, over all tensors of the run.
    """

    target: Any
    id: str
    scenario: str
    message: str
    verdict: str = "not-equivalent"
    right: Any = Mine
    first: Mapping[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        name = getattr(self.target, "__name__", "") or self.target.name
        return f"{self.id}-{name}-{self.scenario}"


def scenario_of(suite: Suite, id: str, name: str) -> Scenario:
    """The scenario of a requirement by its name, as the suite's implementation is given it."""
    found = {scenario.name: scenario for scenario in suite.scenarios(CATALOGUE[id])}
    assert name in found, f"{id} has no scenario {name}; it has {', '.join(found)}"
    return found[name]


def first_mismatches(implementation: Implementation, scenario: Scenario) -> dict[str, int]:
    """Quantity to the first iteration at which any of it differs in a bit."""
    device = torch.device("cpu")
    comparison = compare(
        train_in_backward(implementation, scenario, device), train_reference(scenario, device, implementation)
    )
    first: dict[str, int] = {}
    for mismatch in comparison.mismatches:
        first.setdefault(mismatch.quantity, mismatch.iteration)
    return first


def assert_caught(fault: Fault) -> None:
    suite = Suite(as_implementation(fault.target))
    scenario = scenario_of(suite, fault.id, fault.scenario)
    outcome = suite.judge(scenario)
    assert outcome.verdict.value == fault.verdict, outcome.message
    assert outcome.message.startswith(fault.message), outcome.message
    if fault.first:
        found = first_mismatches(suite.implementation, scenario)
        assert {quantity: found.get(quantity) for quantity in fault.first} == dict(fault.first)
