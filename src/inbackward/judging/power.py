"""Whether a comparison within noise could have failed at all (design §4.3)."""

from __future__ import annotations

import math
from collections.abc import Callable

from inbackward.judging.compare import compare
from inbackward.judging.noise import LIMIT, UNINFORMATIVE, Floor
from inbackward.judging.what_ifs import NotStepped, ScaledGradient, ScaledLearningRate
from inbackward.scenario import Scenario
from inbackward.training import Intervention, Trace


def missing_power(scenario: Scenario, floor: Floor, rerun: Callable[[Intervention], Trace]) -> str:
    """Why the scenario proves nothing, or ``""``: each of three small mistakes must exceed the limit.

    A gradient scaled by 1.01 is excused where scaling it by 2, which rounds nothing, changes no bit of the run: then
    the optimizer is provably blind to it (sign methods).
    """
    shares = {
        name: share
        for (quantity, name), share in floor.shares().items()
        if quantity == "parameter" and name in floor.reference.trainable
    }
    informative = {name: share for name, share in shares.items() if share <= UNINFORMATIVE}
    if not informative:
        return "rounding alone moves every parameter by more than 1 % of its update"
    dtypes = {name: str(floor.reference.initial.parameters[name].dtype).removeprefix("torch.") for name in shares}
    blind = {dtypes[name] for name, share in shares.items() if share < math.inf} - {
        dtypes[name] for name in informative
    }
    if blind:  # what float32 norms show says nothing of bfloat16 matrices beside them
        return f"rounding alone moves every {min(blind)} parameter by more than 1 % of its update"
    if score(floor, rerun(ScaledGradient(1.01))) <= LIMIT and not _blind_to_scale(floor, rerun):
        return "a gradient scaled by 1.01 would not have been seen"
    if score(floor, rerun(ScaledLearningRate(1.01))) <= LIMIT:
        return "a learning rate 1 % too large would not have been seen"
    weakest = max(informative, key=lambda name: informative[name])
    if score(floor, rerun(NotStepped(weakest))) <= LIMIT:
        return f"{weakest} never updated would not have been seen"
    return ""


def score(floor: Floor, trace: Trace) -> float:
    """The worst noise ratio of a run against the reference, over everything that rounding could touch."""
    numeric = [m for m in compare(trace, floor.reference).mismatches if m.candidate is not None]
    return max((floor.ratio(m) for m in numeric), default=0.0)


def _blind_to_scale(floor: Floor, rerun: Callable[[Intervention], Trace]) -> bool:
    return not compare(rerun(ScaledGradient(2.0)), floor.reference).mismatches
