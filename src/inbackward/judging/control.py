"""The control arm: the reference against itself, watched and unwatched. It must agree bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor

from inbackward.judging.bits import same_bits
from inbackward.judging.compare import compare
from inbackward.judging.together import on_all_ranks
from inbackward.scenario import ModelConfig, ParallelConfig, Scenario, ScheduleConfig, fit
from inbackward.training import ALONE, Trace, World, empty, train_reference, train_unwatched

SINGLE = ParallelConfig()


def control_scenario(dtype: str, parallel: ParallelConfig = SINGLE) -> Scenario:
    """A run in which everything random or ordered takes part: dropout, ties, a schedule, momentum."""
    return Scenario(
        requirement="control",
        model=fit(ModelConfig(dropout=0.1, tied=True, bias=True), parallel),
        schedule=ScheduleConfig(cls="StepLR", kwargs={"step_size": 1, "gamma": 0.5}),
        dtype=dtype,
        parallel=parallel,
    )


def control(dtype: str, device: torch.device, parallel: ParallelConfig = SINGLE, world: World = ALONE) -> str:
    """Why no comparison can be trusted on this machine in this dtype under this strategy, or ``""``.

    The reference is run twice under the observer, which must agree with itself, and once without, which must end at the
    same parameters.
    """
    scenario = control_scenario(dtype, parallel)
    if world.rank < parallel.ranks:
        found = _control(scenario, device, world)
    else:
        found = ""
        for _ in range(2):
            on_all_ranks(world, empty)
    return next((why for why in world.share(found) if why), "")


def _control(scenario: Scenario, device: torch.device, world: World) -> str:
    first, second = (on_all_ranks(world, lambda: train_reference(scenario, device))[0] for _ in range(2))
    for trace in (first, second):
        if trace.error is not None:
            return f"the control arm raised {type(trace.error).__name__}: {trace.error}"
    return _differs(first, second, train_unwatched(scenario, device))


def _differs(first: Trace, second: Trace, unwatched: dict[str, Tensor]) -> str:
    mismatches = compare(second, first).mismatches
    if mismatches:
        where = mismatches[0]
        return (
            f"this machine is not deterministic: the reference differs from itself at iteration {where.iteration}, "
            f"{where.quantity} {where.name}"
        )
    for name, value in first.records[-1].parameters.items():
        if not same_bits(value, unwatched[name]):
            return f"the observer changed the run: parameter {name} ends elsewhere without it"
    return ""
