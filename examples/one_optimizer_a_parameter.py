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


EVERY_BACKWARD = "every backward() is an update; what is decided after it, or by several of them, comes too late"
NO_STEP = "the hooks have stepped already: there is no step() over all parameters that a loop could call or hook"
NO_WAY_BACK = "nothing takes the hooks off again: they step, and keep the optimizers, as long as the parameters live"
OWN_LAYOUT = "a checkpoint is one state dict a parameter, in a list, which no single plain optimizer writes or reads"

UNSUPPORTED = {
    "tensor-lr": "a tensor lr is one object in all the optimizers, and the scheduler of each would multiply it",
    "accumulation": EVERY_BACKWARD,
    "global-clip": EVERY_BACKWARD,
    "grad-scaler": EVERY_BACKWARD,
    "foreign-backward": EVERY_BACKWARD,
    "two-backwards": "under autocast some parameters are stepped twice before autograd notices a changed weight",
    "stale-read": "a parameter is new as soon as its gradient is final, also for what reads it later in that backward",
    "checkpointed-activations": "a weight shared by reentrant segments is stepped once a segment, as its hook runs",
    "closure": NO_STEP,
    "extra-step-calls": NO_STEP,
    "step-hooks": NO_STEP,
    "re-created": NO_WAY_BACK,
    "model-only": NO_WAY_BACK,
    "no-leak": NO_WAY_BACK,
    "deepcopy": "a copied parameter has no hooks, and the copied optimizers wait for them",
    "unfreeze-later": "a hook is put on what is trainable when the optimizers are made, and on nothing later",
    "add-param-group": "an optimizer a parameter has no add_param_group(): make one more, with its hook",
    "duplicate-params": "a parameter given twice is hooked in silence, where a plain optimizer warns or refuses",
    "resume-from-plain": OWN_LAYOUT,
    "resume-into-plain": OWN_LAYOUT,
    "mismatched-checkpoint": OWN_LAYOUT,
    "dcp": OWN_LAYOUT,
}
