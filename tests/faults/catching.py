"""How a wrong implementation must be caught: in which scenario, and what the outcome says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from inbackward.judging.compare import compare
from inbackward.requirements import CATALOGUE
from inbackward.scenario import Scenario
from inbackward.training import Implementation, as_implementation, train_in_backward, train_reference
from inbackward.verification import Suite


@dataclass(frozen=True)
class Where:
    """A scenario of the requirement in question in which a fault shows. One is enough to fail the requirement.

    Attributes:
        scenario: its name.
        message: the outcome's message starts with it; for a divergence that is its iteration, quantity and name.
        first: quantity to the iteration at which it first leaves the reference, over all tensors of the run.
    """

    scenario: str
    message: str
    verdict: str = "not-equivalent"
    first: Mapping[str, int] = field(default_factory=dict)


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


def assert_caught(target: Any, id: str, where: Where) -> None:
    suite = Suite(as_implementation(target))
    scenario = scenario_of(suite, id, where.scenario)
    outcome = suite.judge(scenario)
    assert outcome.verdict.value == where.verdict, outcome.message
    assert outcome.message.startswith(where.message), outcome.message
    if where.first:
        found = first_mismatches(suite.implementation, scenario)
        assert {quantity: found.get(quantity) for quantity in where.first} == dict(where.first)
