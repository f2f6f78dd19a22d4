"""Faults in which hyperparameters an update uses: of which group, and of which moment."""

from __future__ import annotations

from typing import Any

from tests.faults.fault import Fault
from tests.shapes.mine import Mine
from torch import Tensor

Group = dict[str, Any]


class LooksAtTheFirstGroup(Mine):
    keys: tuple[str, ...] = ("lr",)

    def narrowed(self, group: Group, p: Tensor) -> Group:
        first = self.param_groups[0]
        return {**super().narrowed(group, p), **{k: first[k] for k in self.keys if k in first}}


class EpsOfTheFirstGroup(LooksAtTheFirstGroup):
    keys = ("eps",)


class EmptyGroupsEndIt(Mine):
    """Stops to look for the group of a parameter at the first empty one."""

    def update(self, p: Tensor) -> None:
        groups = [any(q is p for q in g["params"]) for g in self.param_groups]
        if all(g["params"] for g in self.param_groups[: groups.index(True)]):
            super().update(p)


class Frozen(Mine):
    """Group entries as they were at construction, whatever a scheduler or a hand did later."""

    keys: tuple[str, ...] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept = [{k: self.value(g[k]) for k in self.keys if k in g} for g in self.param_groups]

    def value(self, x: Any) -> Any:
        return x

    def narrowed(self, group: Group, p: Tensor) -> Group:
        i = next(i for i, g in enumerate(self.param_groups) if g is group)
        return {**super().narrowed(group, p), **self.kept[i]}


class LrFrozen(Frozen):
    keys = ("lr",)


class MomentumFrozen(Frozen):
    """The lr follows; what else a scheduler cycles does not."""

    keys = ("momentum", "betas")


class DecayFrozen(Frozen):
    keys = ("weight_decay",)


class BetasFrozen(Frozen):
    keys = ("betas",)


class LrOneIterationLate(Frozen):
    keys = ("lr",)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.kept = [{"lr": g["lr"]} for g in self.param_groups]


class LrNeverRises(Frozen):
    """Copies the lr when it falls: right under every decay, wrong after a warm-up."""

    keys = ("lr",)

    def narrowed(self, group: Group, p: Tensor) -> Group:
        for kept, g in zip(self.kept, self.param_groups, strict=True):
            kept["lr"] = min(kept["lr"], g["lr"])
        return super().narrowed(group, p)


class WarmUpIgnored(Frozen):
    """A factor below 1 at the first iteration is taken for a scheduler that has not begun."""

    keys = ("lr",)

    def narrowed(self, group: Group, p: Tensor) -> Group:
        if self.state.get(p):
            return {**group, "params": [p]}
        return super().narrowed(group, p)


class OnlyTheLastGroupFollows(Frozen):
    keys = ("lr",)

    def narrowed(self, group: Group, p: Tensor) -> Group:
        self.kept[-1].clear()
        return super().narrowed(group, p)


class ZeroLrIsNone(Frozen):
    """``group["lr"] or default``."""

    def narrowed(self, group: Group, p: Tensor) -> Group:
        return {**super().narrowed(group, p), "lr": group["lr"] or self.defaults["lr"]}


class TensorLrCloned(Frozen):
    """A tensor lr is copied at construction: its later values, written in place, are never seen."""

    keys = ("lr",)

    def value(self, x: Any) -> Any:
        return x.clone() if isinstance(x, Tensor) else x


class TensorLrMadeFloat(Mine):
    """The groups hold a number from the start, so that ``group["lr"].fill_(x)`` fails."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for group in self.param_groups:
            group["lr"] = float(group["lr"])


FAULTS = [
    Fault(LooksAtTheFirstGroup, "param-groups", "own-lr-adamw", "iteration 0, parameter "),
    Fault(LooksAtTheFirstGroup, "param-groups", "out-of-order-sgd", "iteration 0, parameter "),
    Fault(EpsOfTheFirstGroup, "param-groups", "own-eps-adamw", "iteration 0, parameter "),
    Fault(EmptyGroupsEndIt, "param-groups", "empty-group-sgd", "iteration 0, parameter "),
    Fault(
        LrFrozen, "lr-schedule", "step-sgd", "iteration 1, parameter ", first={"parameter": 1, "state": 2, "loss": 2}
    ),
    Fault(LrFrozen, "lr-schedule", "step-adamw", "iteration 1, parameter ", first={"parameter": 1, "loss": 2}),
    Fault(LrFrozen, "lr-schedule", "warm-up-from-0-sgd", "iteration 0, parameter ", first={"parameter": 0, "loss": 1}),
    Fault(LrFrozen, "lr-schedule", "warm-up-from-0-adamw", "iteration 0, parameter ", first={"loss": 1}),
    Fault(LrFrozen, "lr-schedule", "step-every-2-adamw", "iteration 2, parameter "),
    Fault(LrFrozen, "lr-schedule", "one-group-by-hand-sgd", "iteration 1, parameter "),
    Fault(MomentumFrozen, "lr-schedule", "one-cycle-sgd", "iteration 1, parameter ", first={"state": 1}),
    Fault(MomentumFrozen, "lr-schedule", "cyclic-adamw", "iteration 1, parameter "),
    Fault(LrOneIterationLate, "lr-schedule", "step-sgd", "iteration 1, parameter "),
    Fault(LrNeverRises, "lr-schedule", "linear-adamw", "iteration 1, parameter "),
    Fault(WarmUpIgnored, "lr-schedule", "starts-below-1-sgd", "iteration 0, parameter ", first={"parameter": 0}),
    Fault(OnlyTheLastGroupFollows, "lr-schedule", "two-groups-step-adamw", "iteration 1, parameter "),
    Fault(ZeroLrIsNone, "lr-schedule", "zero-for-an-iteration-sgd", "iteration 1, parameter "),
    Fault(DecayFrozen, "weight-decay-schedule", "weight-decay-adamw", "iteration 1, parameter ", first={"loss": 2}),
    Fault(DecayFrozen, "weight-decay-schedule", "weight-decay-of-one-group-sgd", "iteration 2, parameter "),
    Fault(BetasFrozen, "weight-decay-schedule", "betas-adamw", "iteration 1, parameter ", first={"state": 1}),
    Fault(MomentumFrozen, "weight-decay-schedule", "momentum-and-back-sgd", "iteration 1, parameter "),
    Fault(TensorLrCloned, "tensor-lr", "in-place-sgd", "iteration 1, parameter ", first={"parameter": 1, "loss": 2}),
    Fault(TensorLrCloned, "tensor-lr", "schedule-adamw", "iteration 1, parameter "),
    Fault(TensorLrMadeFloat, "tensor-lr", "in-place-adamw", "AttributeError: 'float' object", verdict="broken"),
]
