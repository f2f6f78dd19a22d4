"""Whether a comparison within noise could have failed at all (design §4.3)."""

from __future__ import annotations

import math
from collections.abc import Callable

from inbackward.judging.compare import compare
from inbackward.judging.mistakes.gradients import NotStepped, ScaledGradient
from inbackward.judging.mistakes.hyperparameters import ScaledLearningRate
from inbackward.judging.noise import LIMIT, UNINFORMATIVE, Floor
from inbackward.training import ALONE, Intervention, Trace, World


def missing_power(floor: Floor, rerun: Callable[[Intervention], Trace], world: World = ALONE) -> str:
    """Why the scenario proves nothing, or ``""``: each of three small mistakes must exceed the limit.

    A mistake that shows on one rank shows. A gradient scaled by 1.01 is excused where scaling it by 2, which rounds
    nothing, changes no bit of the run: then the optimizer is provably blind to it (sign methods).
    """
    shares = {
        name: share
        for (quantity, name), share in floor.shares().items()
        if quantity == "parameter" and name in floor.reference.trainable
    }
    shares, dtypes = _on_all_ranks(floor, shares, world)
    informative = {name: share for name, share in shares.items() if share <= UNINFORMATIVE}
    if not informative:
        return "rounding alone moves every parameter by more than 1 % of its update"
    blind = {dtypes[name] for name, share in shares.items() if share < math.inf} - {
        dtypes[name] for name in informative
    }
    if blind:  # what float32 norms show says nothing of bfloat16 matrices beside them
        return f"rounding alone moves every {min(blind)} parameter by more than 1 % of its update"

    def seen(mistake: Intervention) -> bool:
        return world.any(score(floor, rerun(mistake)) > LIMIT)

    if not seen(ScaledGradient(1.01)) and not _blind_to_scale(floor, rerun, world):
        return "a gradient scaled by 1.01 would not have been seen"
    if not seen(ScaledLearningRate(1.01)):
        return "a learning rate 1 % too large would not have been seen"
    weakest = max(informative, key=lambda name: informative[name])
    if not seen(NotStepped(weakest)):
        return f"{weakest} never updated would not have been seen"
    return ""


def score(floor: Floor, trace: Trace) -> float:
    """The worst noise ratio of a run against the reference, over everything that rounding could touch."""
    numeric = [m for m in compare(trace, floor.reference).mismatches if m.candidate is not None]
    return max((floor.ratio(m) for m in numeric), default=0.0)


def _blind_to_scale(floor: Floor, rerun: Callable[[Intervention], Trace], world: World) -> bool:
    return not world.any(bool(compare(rerun(ScaledGradient(2.0)), floor.reference).mismatches))


def _on_all_ranks(floor: Floor, shares: dict[str, float], world: World) -> tuple[dict[str, float], dict[str, str]]:
    """Of every parameter the largest share of rounding on any rank that moves it, and its dtype."""
    together: dict[str, float] = {}
    for there in world.share(shares):
        for name, share in there.items():
            together[name] = max(share, together.get(name, 0.0))
    parameters = floor.reference.initial.parameters
    return together, {name: str(parameters[name].dtype).removeprefix("torch.") for name in together}
