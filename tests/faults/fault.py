"""A fault: a small wrong implementation, and how the suite must catch it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from inbackward.judging import Outcome
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
        message: the outcome's message starts with it; for a divergence that is its iteration, quantity and name.
        first: quantity to the iteration at which it first leaves the reference, over all tensors of the run.
    """

    target: Any
    id: str
    scenario: str
    message: str
    verdict: str = "not-equivalent"
    first: Mapping[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        name = getattr(self.target, "__name__", "") or self.target.name
        return f"{self.id}-{name}-{self.scenario}"


def scenario_of(target: Any, id: str, name: str) -> Scenario:
    """The scenario of a requirement by its name, as this target is given it."""
    found = {scenario.name: scenario for scenario in Suite(as_implementation(target)).scenarios(CATALOGUE[id])}
    assert name in found, f"{id} has no scenario {name}; it has {', '.join(found)}"
    return found[name]


def judged(target: Any, id: str, name: str) -> Outcome:
    return Suite(as_implementation(target)).judge(scenario_of(target, id, name))


def first_mismatches(target: Any, scenario: Scenario) -> dict[str, int]:
    """Quantity to the first iteration at which any of it differs in a bit."""
    implementation: Implementation = as_implementation(target)
    device = torch.device("cpu")
    comparison = compare(
        train_in_backward(implementation, scenario, device), train_reference(scenario, device, implementation)
    )
    first: dict[str, int] = {}
    for mismatch in comparison.mismatches:
        first.setdefault(mismatch.quantity, mismatch.iteration)
    return first


def assert_caught(fault: Fault) -> None:
    scenario = scenario_of(fault.target, fault.id, fault.scenario)
    outcome = Suite(as_implementation(fault.target)).judge(scenario)
    assert outcome.verdict.value == fault.verdict, outcome.message
    assert outcome.message.startswith(fault.message), outcome.message
    if fault.first:
        found = first_mismatches(fault.target, scenario)
        assert {quantity: found.get(quantity) for quantity in fault.first} == dict(fault.first)
