"""Whose fault a failing scenario is: it counts against the requirement it was drawn for only if it owns the cause.

Scenarios use the features of several requirements at once, since mistakes hide where features meet. An implementation
that ignores schedulers must still not be told that its checkpoints are wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from inbackward.judging import Outcome, Verdict
from inbackward.requirements.across_ranks import WITH
from inbackward.scenario import Scenario, alone, without
from inbackward.scenario.space.rules import NEEDS

# What every class that frees gradients does, and nothing else is let through: docs/decisions/0008-zeros.md.
FREED = "gradients are freed whatever zero_grad() is told: an unused parameter is left alone, never stepped on zeros"


def judge_for_requirement(judge: Callable[[Scenario], Outcome], scenario: Scenario) -> Outcome:
    """The outcome that counts for ``scenario.requirement``.

    Where the scenario fails, it is judged again with every other requirement's features left out. If that fails too, it
    is the simpler case and is the one to report. If it holds, the whole scenario counts only where it would hold
    without this requirement's feature: where the features meet. Else another requirement owns the failure, whose own
    scenarios show it, and the simpler case counts. Before all that: who is told to zero gradients may free them.
    """
    outcome = judge(scenario)
    if not _differs(outcome) or outcome.hung:
        return outcome
    if scenario.zero_grad == "zeros":
        freed = judge(scenario.with_(zero_grad="told-zeros"))
        if freed.verdict.holds:
            return replace(freed, scenario=scenario, verdict=Verdict.UNSUPPORTED, message=FREED)
    id = scenario.requirement
    own = frozenset({id, *NEEDS.get(id, ()), *WITH.get(id, ())})
    simple = alone(scenario, own).with_(name=f"{scenario.name}-alone")
    if simple.digest == scenario.digest:
        return outcome
    counted = judge(simple)
    if _differs(counted):
        return counted
    rest = without(scenario, scenario.requirement)
    meets = rest.digest != scenario.digest and not _differs(judge(rest))
    return outcome if meets else counted


def _differs(outcome: Outcome) -> bool:
    """It failed, or it differed in a comparison that had no power to say by how much."""
    return outcome.verdict.fails or (outcome.verdict is Verdict.NOT_RUN and outcome.compared > 0)
