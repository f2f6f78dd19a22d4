"""Faults of several instances, of copies of one, and of what is copied or compiled around it."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from inbackward.faults.fault import fault
from inbackward.faults.parameters import KnowsTheModel
from inbackward.faults.right import AtStep, Right, Watching

KEPT: Any = WeakTensorKeyDictionary()


@fault("re-created")
class StateStaysWithTheParameter(Right):
    """Keeps state beside the parameter, where a new instance finds that of the old one."""

    def update(self, p: Any) -> None:
        if p in KEPT and not self.state.get(p):
            self.state[p].update(KEPT[p])
        super().update(p)
        KEPT[p] = self.state[p]


@fault("two-optimizers", subtle=True)
class OnePlaceForAll(Right):
    """Notes which first parameter has been updated for all instances, and of two optimizers one leaves its own out."""

    done: ClassVar[list[bool]] = []

    def update(self, p: Any) -> None:
        first = p is self.param_groups[0]["params"][0]
        if not (first and self.done):
            super().update(p)
        if first:
            self.done[:] = [True]

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.done.clear()


@fault("step-hooks", subtle=True)
class DropsPostHooks(Right):
    """Forgets, at its first ``step()``, the hooks that were to be called after it."""

    def step(self, closure: Any = None) -> Any:
        self._optimizer_step_post_hooks.clear()
        return Watching.step(self, closure)  # torch may have given Right.step its hooks already, and calls them twice


@fault("compiled-model", subtle=True)
class CompiledVectorsRounded(KnowsTheModel):
    """Rounds the gradients of vectors to bfloat16 where a layer is compiled."""

    def __init__(self, model: nn.Module, *args: Any) -> None:
        super().__init__(model, *args)
        self.compiled = any(module._compiled_call_impl for module in model.modules())

    def update(self, p: Any) -> None:
        if self.compiled and p.dim() == 1:
            p.grad.copy_(p.grad.bfloat16())
        super().update(p)


class CountersNotCopied(dict[str, Any]):
    """Its deep copy holds the same counters."""

    def __deepcopy__(self, memo: Any) -> dict[str, Any]:
        for entries in self["state"].values():
            for value in entries.values():
                if isinstance(value, Tensor) and value.dim() == 0:
                    memo[id(value)] = value
        return copy.deepcopy(dict(self), memo)


@fault("snapshot-independent", subtle=True)
class SnapshotCountsOn(Right):
    """Gives out a state dict whose deep copy shares the counters."""

    def state_dict(self) -> dict[str, Any]:
        return CountersNotCopied(super().state_dict())


@fault("dcp", subtle=True)
class LoadsIntoEmptyOnly(AtStep):
    """Loads state where there is none yet, and torch makes some before it loads."""

    def state_dict(self) -> dict[str, Any]:
        return copy.deepcopy(super().state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        own = dict(self.state)
        super().load_state_dict(state_dict)
        self.state.update(own)


COUNTS: dict[int, dict[int, Tensor]] = {}


@fault("resume-fresh-process", subtle=True)
class CountersInARegistry(Right):
    """Keeps the counters of what it saves in this process; elsewhere they begin at zero."""

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        COUNTS[id(self)] = {i: entries["step"].clone() for i, entries in saved["state"].items() if "step" in entries}
        state = {i: {k: v for k, v in entries.items() if k != "step"} for i, entries in saved["state"].items()}
        return {**saved, "state": state, "ticket": id(self)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        counts = COUNTS.pop(state_dict["ticket"], None)
        state = {i: dict(entries) for i, entries in state_dict["state"].items()}
        for i, entries in state.items():
            if "exp_avg" in entries:
                entries["step"] = counts[i] if counts else torch.tensor(0.0)
        super().load_state_dict({**state_dict, "state": state})
