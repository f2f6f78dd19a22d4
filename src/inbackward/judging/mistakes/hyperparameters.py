"""Mistakes in which hyperparameters an update uses: of which group, of which moment, and whether at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from inbackward.training import Act, Intervention, Iteration

Group = dict[str, Any]
Values = Mapping[str, Any]


class OtherHyperparameters(Intervention):
    """During the update the groups have other values than they show, for the parameters at hand alone."""

    def values(self, now: Iteration, number: int, group: Group) -> Values:
        """What is different in a group, which has this number in its optimizer."""
        raise NotImplementedError

    def step(self, now: Iteration, act: Act) -> None:
        with _used(now, self.values):
            act()


@dataclass
class Scaled(OtherHyperparameters):
    """One of them multiplied by ``factor``."""

    key: str
    factor: float

    def values(self, now: Iteration, number: int, group: Group) -> Values:
        return {self.key: group[self.key] * self.factor} if group.get(self.key) is not None else {}


class ScaledLearningRate(Scaled):
    """The learning rate of every group multiplied by ``factor`` during the update."""

    def __init__(self, factor: float) -> None:
        super().__init__("lr", factor)


@dataclass
class OfAnotherGroup(OtherHyperparameters):
    """Every group uses the values of the first group, or of the last; those of ``keys``, or all."""

    number: int
    keys: tuple[str, ...] = ()

    def values(self, now: Iteration, number: int, group: Group) -> Values:
        optimizer = next(o for o in now.optimizers if any(g is group for g in o.param_groups))
        other = optimizer.param_groups[self.number]
        return {k: other[k] for k in self.keys or optimizer.defaults if k in other and k in group}


class OfTheDefaults(OtherHyperparameters):
    """What a group sets for itself is dropped."""

    def values(self, now: Iteration, number: int, group: Group) -> Values:
        optimizer = next(o for o in now.optimizers if any(g is group for g in o.param_groups))
        return {k: v for k, v in optimizer.defaults.items() if k in group}


class ZeroIsNone(OtherHyperparameters):
    """A value of 0 is taken for one that was not given."""

    def values(self, now: Iteration, number: int, group: Group) -> Values:
        defaults = now.optimizers[0].defaults
        zero = {k for k, v in group.items() if isinstance(v, (int, float)) and not isinstance(v, bool) and v == 0}
        return {k: defaults[k] for k in zero if k in defaults}


class FlagsOff(OtherHyperparameters):
    """``amsgrad``, ``nesterov``, ``maximize`` and the like are dropped."""

    def values(self, now: Iteration, number: int, group: Group) -> Values:
        kernels = ("foreach", "fused", "capturable", "differentiable")
        return {k: False for k, v in group.items() if v is True and k not in kernels}


@dataclass
class Frozen(OtherHyperparameters):
    """The values of construction, whatever a schedule or a hand does later: those of ``keys``, or all but ``but``.

    With ``since`` those of that iteration, from it on.
    """

    keys: tuple[str, ...] = ()
    but: tuple[str, ...] = ()
    since: int | None = None
    _kept: list[Group] = field(default_factory=list)

    def built(self, now: Iteration) -> None:
        self._kept = [_copied(group) for _, group in now.groups()]

    def begin(self, now: Iteration) -> None:
        groups = [group for _, group in now.groups()]
        self._kept += [_copied(group) for group in groups[len(self._kept) :]]  # added since
        if now.iteration == self.since:
            self._kept = [_copied(group) for group in groups]

    def values(self, now: Iteration, number: int, group: Group) -> Values:
        if self.since is not None and now.iteration < self.since:
            return {}
        place = next(i for i, (_, g) in enumerate(now.groups()) if g is group)
        kept, defaults = self._kept[place], now.optimizers[0].defaults
        return {k: kept[k] for k in self.keys or defaults if k in kept and k not in self.but}


@dataclass
class Late(Frozen):
    """The values of the iteration before; at first those of construction."""

    def step(self, now: Iteration, act: Act) -> None:
        super().step(now, act)
        self._kept = [_copied(group) for _, group in now.groups()]


@dataclass
class LostAtLoad(Frozen):
    """At some iterations the groups themselves get back the values of construction."""

    at: frozenset[int] = frozenset()

    def begin(self, now: Iteration) -> None:
        super().begin(now)
        for kept, (_, group) in zip(self._kept, now.groups()):
            if now.iteration in self.at:
                group.update({k: v for k, v in kept.items() if k in (self.keys or group) and k != "initial_lr"})

    def values(self, now: Iteration, number: int, group: Group) -> Values:
        return {}


@dataclass
class OtherDecay(Intervention):
    """Weight decay as a factor on the parameter after the update, before it, or as part of the gradient."""

    how: str

    def step(self, now: Iteration, act: Act) -> None:
        for parameter, group in _members(now) if self.how != "after" else ():
            if parameter.grad is None:
                continue
            if self.how == "gradient":
                parameter.grad.add_(parameter.detach(), alpha=float(group["weight_decay"]))
            else:
                _decay(parameter, group)
        updated = [(p, g) for p, g in _members(now) if p.grad is not None]
        with _used(now, lambda now, number, group: {"weight_decay": 0.0}):
            act()
        for parameter, group in updated if self.how == "after" else ():
            _decay(parameter, group)


@dataclass
class UnusedDecayed(Intervention):
    """Weight decay also where no gradient came: of trainable parameters, or of frozen ones."""

    frozen: bool

    def step(self, now: Iteration, act: Act) -> None:
        unused = [(p, g) for p, g in _members(now) if p.grad is None and p.requires_grad != self.frozen]
        act()
        for parameter, group in unused:
            _decay(parameter, group)


def _decay(parameter: Tensor, group: Group) -> None:
    parameter.detach().mul_(1 - float(group["lr"]) * float(group["weight_decay"]))


def _members(now: Iteration) -> Iterator[tuple[Tensor, Group]]:
    mine = set(now.parameters.values())
    for _, group in now.groups():
        yield from ((p, group) for p in group["params"] if p in mine)


@contextmanager
def _used(now: Iteration, values: Callable[[Iteration, int, Group], Values]) -> Iterator[None]:
    """Within, the parameters at hand are in groups with other values; where a group has others, it is split."""
    mine, kept = set(now.parameters.values()), [optimizer.param_groups for optimizer in now.optimizers]
    changed: list[tuple[Group, Values]] = []
    for optimizer, groups in zip(now.optimizers, kept):
        split: list[Group] = []
        for number, group in enumerate(groups):
            other = values(now, number, group)
            rest = [p for p in group["params"] if p not in mine]
            if rest and other:
                split += [{**group, "params": [p for p in group["params"] if p in mine], **other}]
                split += [{**group, "params": rest}]
            else:
                split.append(group)
                changed.append((group, other))
        optimizer.param_groups = split
    before = [(group, {k: group[k] for k in other}) for group, other in changed]
    try:
        for group, other in changed:  # in place, since some optimizers keep counters of their own in their groups
            group.update(other)
        yield
    finally:
        for group, old in before:
            group.update(old)
        for optimizer, groups in zip(now.optimizers, kept):
            optimizer.param_groups = groups


def _copied(group: Group) -> Group:
    return {k: v.detach().clone() if isinstance(v, torch.Tensor) else v for k, v in group.items() if k != "params"}
