"""What implementations with one optimizer a parameter share: schedules, checkpoints, and what they cannot do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer


class Schedulers:
    """One scheduler an optimizer, stepped, saved and loaded together."""

    def __init__(self, each: list[Any]) -> None:
        self.each = each

    def step(self, *metrics: float) -> None:
        for scheduler in self.each:
            scheduler.step(*metrics)

    def state_dict(self) -> list[Any]:
        return [scheduler.state_dict() for scheduler in self.each]

    def load_state_dict(self, saved: list[Any]) -> None:
        for scheduler, state in zip(self.each, saved, strict=True):
            scheduler.load_state_dict(state)


def schedulers(optimizers: list[Optimizer], make: Callable[[Optimizer], Any]) -> Schedulers:
    return Schedulers([make(optimizer) for optimizer in optimizers])


def state_dict(optimizers: list[Optimizer]) -> list[Any]:
    return [optimizer.state_dict() for optimizer in optimizers]


def load_state_dict(optimizers: list[Optimizer], saved: list[Any]) -> None:
    for optimizer, state in zip(optimizers, saved, strict=True):
        optimizer.load_state_dict(state)


NO_STEP = "the hooks have stepped already: there is no step() over all parameters that a loop could call"
OWN_LAYOUT = "a checkpoint is one state dict a parameter, which a single plain optimizer neither writes nor reads"
SHARED_TENSOR = "a tensor lr is one object in all the optimizers, and the scheduler of each would multiply it"

UNSUPPORTED = {
    "tensor-lr": SHARED_TENSOR,
    "closure": NO_STEP,
    "extra-step-calls": NO_STEP,
    "resume-from-plain": OWN_LAYOUT,
    "resume-into-plain": OWN_LAYOUT,
}
