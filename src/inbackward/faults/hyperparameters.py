"""Faults in which hyperparameters an update uses: of which group, and of which moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from inbackward import Implementation
from inbackward.faults.fault import fault
from inbackward.faults.right import Carried, Right

Group = dict[str, Any]


@fault("param-groups", what_if="lr-of-first-group")
class LooksAtTheFirstGroup(Right):
    """Uses the first group's lr for all."""

    keys: tuple[str, ...] = ("lr",)

    def narrowed(self, group: Group, p: Tensor) -> Group:
        first = self.param_groups[0]
        return {**super().narrowed(group, p), **{k: first[k] for k in self.keys if k in first}}


@fault("param-groups", subtle=True)
class EpsOfTheFirstGroup(LooksAtTheFirstGroup):
    """Uses the first group's eps for all."""

    keys = ("eps",)


@fault("param-groups", subtle=True, what_if="weight-decay-of-first-group")
class DecayOfTheFirstGroup(LooksAtTheFirstGroup):
    """Uses the first group's weight decay for all."""

    keys = ("weight_decay",)


@fault("param-groups", subtle=True)
class EmptyGroupsEndIt(Right):
    """Stops to look for the group of a parameter at the first empty one."""

    def update(self, p: Any) -> None:
        groups = [any(q is p for q in g["params"]) for g in self.param_groups]
        if all(g["params"] for g in self.param_groups[: groups.index(True)]):
            super().update(p)


@fault("param-groups", reports=(2,))
class TakesNoDicts(Right):
    """Puts what it is given into a dict, and groups are not hashable."""

    def __init__(self, params: Any, optimizer_cls: Callable[..., Optimizer], **kwargs: Any) -> None:
        super().__init__(dict.fromkeys(params), optimizer_cls, **kwargs)


@fault("lr-schedule", reports=(1, 24), name="optimizers-of-their-own", what_if="lr-frozen")
class OptimizersOfTheirOwn(Right):
    """Builds one optimizer a parameter, and what is done to the outer groups later reaches none of them."""

    optimizer_in_backward = Carried(
        lambda cls: Implementation.drop_in(cls, state=lambda o, model: o.each),
    )

    def __init__(self, params: Any, optimizer_cls: Callable[..., Optimizer], **kwargs: Any) -> None:
        super().__init__(params, optimizer_cls, **kwargs)
        self.each = {p: optimizer_cls([{**g, "params": [p]}]) for g in self.param_groups for p in g["params"]}

    def update(self, p: Any) -> None:
        self.each[p].step()


class Frozen(Right):
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


@fault("lr-schedule", reports=(1,), what_if="lr-frozen")
class LrFrozen(Frozen):
    """Steps with the lr of the constructor for ever."""

    keys = ("lr",)


@fault("weight-decay-schedule", name="momentum-frozen-by-hand", what_if="only-lr-followed")
@fault("lr-schedule", subtle=True, reports=(2,), what_if="only-lr-followed")
class MomentumFrozen(Frozen):
    """Lets the lr follow a scheduler, and what else it cycles not."""

    keys = ("momentum", "betas")


@fault("weight-decay-schedule", what_if="only-lr-followed")
class DecayFrozen(Frozen):
    """Steps with the weight decay of the constructor for ever."""

    keys = ("weight_decay",)


@fault("weight-decay-schedule", subtle=True, what_if="only-lr-followed")
class BetasFrozen(Frozen):
    """Steps with the betas of the constructor for ever."""

    keys = ("betas",)


@fault("weight-decay-schedule", subtle=True)
class DecayOfTheLastGroupFrozen(Frozen):
    """Lets the weight decay follow an edit in the first group, and in no other."""

    keys = ("weight_decay",)

    def narrowed(self, group: Group, p: Tensor) -> Group:
        self.kept[0].clear()
        return super().narrowed(group, p)


@fault("lr-schedule", subtle=True, what_if="lr-late")
class LrOneIterationLate(Frozen):
    """Steps with the lr of the iteration before."""

    keys = ("lr",)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.kept = [{"lr": g["lr"]} for g in self.param_groups]


@fault("lr-schedule", subtle=True)
class LrNeverRises(Frozen):
    """Copies the lr when it falls: right under every decay, wrong after a warm-up."""

    keys = ("lr",)

    def narrowed(self, group: Group, p: Tensor) -> Group:
        for kept, g in zip(self.kept, self.param_groups, strict=True):
            kept["lr"] = min(kept["lr"], g["lr"])
        return super().narrowed(group, p)


@fault("lr-schedule", subtle=True, reports=(19,))
class WarmUpIgnored(Frozen):
    """A factor below 1 at the first iteration is taken for a scheduler that has not begun."""

    keys = ("lr",)

    def narrowed(self, group: Group, p: Tensor) -> Group:
        if self.state.get(p):
            return {**group, "params": [p]}
        return super().narrowed(group, p)


@fault("lr-schedule", subtle=True)
class OnlyTheLastGroupFollows(Frozen):
    """Lets the lr follow a scheduler in the last group, and in no other."""

    keys = ("lr",)

    def narrowed(self, group: Group, p: Tensor) -> Group:
        self.kept[-1].clear()
        return super().narrowed(group, p)


@fault("lr-schedule", subtle=True)
class ZeroLrIsNone(Frozen):
    """Reads the lr as ``group["lr"] or default``, and zero is none."""

    def narrowed(self, group: Group, p: Tensor) -> Group:
        return {**super().narrowed(group, p), "lr": group["lr"] or self.defaults["lr"]}


@fault("lr-schedule", reports=(18,))
class AdvancesOnEveryHook(Right):
    """Counts the hooks, not the iterations, for the lr: it halves with every parameter once a schedule has begun."""

    def narrowed(self, group: Group, p: Tensor) -> Group:
        scheduled = "initial_lr" in group
        self.hooked = self.__dict__.get("hooked", 0) + scheduled
        return {**super().narrowed(group, p), "lr": group["lr"] * 0.5 ** (self.hooked - 1 if scheduled else 0)}


@fault("tensor-lr")
class TensorLrCloned(Frozen):
    """Copies a tensor lr at construction: its later values, written in place, are never seen."""

    keys = ("lr",)

    def value(self, x: Any) -> Any:
        return x.clone() if isinstance(x, Tensor) else x

    def narrowed(self, group: Group, p: Tensor) -> Group:
        return super().narrowed(group, p) if isinstance(group["lr"], Tensor) else Right.narrowed(self, group, p)


@fault("tensor-lr")
class TensorLrMadeFloat(Right):
    """Holds a number in the groups from the start, so that ``group["lr"].fill_(x)`` fails."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for group in self.param_groups:
            group["lr"] = float(group["lr"])


@fault("tensor-lr", subtle=True)
class LastTensorLrCloned(TensorLrCloned):
    """Copies at construction a tensor lr of the last group: its later values, written in place, are never seen."""

    def narrowed(self, group: Group, p: Tensor) -> Group:
        return super().narrowed(group, p) if group is self.param_groups[-1] else Right.narrowed(self, group, p)
