"""A fault across ranks: a small wrong implementation, and what the suite must say of it."""

from __future__ import annotations

from dataclasses import dataclass

from inbackward.requirements import CATALOGUE
from inbackward.scenario import Scenario
from inbackward.training import Implementation
from inbackward.verification import Suite


@dataclass(frozen=True)
class RankFault:
    """What is wrong, the requirement that must catch it, and where.

    Attributes:
        scenario: the name of the scenario that catches it.
        ranks: those on which it is first so.
        passes: another scenario of the requirement, in which the same implementation is right.
    """

    target: Implementation
    id: str
    strategy: str
    scenario: str
    iteration: int
    quantity: str
    ranks: tuple[int, ...]
    passes: str = ""

    @property
    def label(self) -> str:
        return f"{self.id}-{self.target.name.replace(' ', '_')}-{self.scenario}"


def scenario_of(suite: Suite, id: str, strategy: str, name: str) -> Scenario:
    """The scenario of a requirement under a strategy by its name, as the suite's implementation is given it."""
    found = {scenario.name: scenario for scenario in suite.scenarios(CATALOGUE[id], strategy)}
    assert name in found, f"{id} under {strategy} has no scenario {name}; it has {', '.join(found)}"
    return found[name]
