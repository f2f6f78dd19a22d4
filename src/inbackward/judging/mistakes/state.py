"""Mistakes in the optimizer's memory: lost at a load, rounded, shared, or another parameter's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from inbackward.training import Act, Intervention, Iteration

SQUARES = (
    "exp_avg_sq",
    "square_avg",
    "sum",
    "acc_delta",
    "exp_inf",
    "max_exp_avg_sq",
    "row_var",
    "col_var",
    "variance",
)


def _moments(entries: dict[str, Any]) -> dict[str, Tensor]:
    return {k: v for k, v in entries.items() if isinstance(v, Tensor) and v.dim() and v.is_floating_point()}


@dataclass
class Lost(Intervention):
    """At some iterations a part of the state begins anew.

    Args:
        what: ``moments``, ``first-moments``, ``second-moments``, ``step``, ``maximum`` or ``everything``.
    """

    at: frozenset[int]
    what: str

    def begin(self, now: Iteration) -> None:
        if now.iteration not in self.at:
            return
        for name, entries in list(now.state()):
            if self.what == "everything":
                for optimizer in now.optimizers:
                    optimizer.state.pop(now.parameters[name], None)
            elif self.what == "step":
                entries.update({k: v * 0 for k, v in entries.items() if k == "step"})
            elif self.what == "maximum":
                if "max_exp_avg_sq" in entries:
                    entries["max_exp_avg_sq"].copy_(entries["exp_avg_sq"])
            else:
                for key, value in _moments(entries).items():
                    if self.what == "moments" or (key in SQUARES) is (self.what == "second-moments"):
                        value.zero_()


@dataclass
class CountersLost(Intervention):
    """At some iterations the numbers that an optimizer keeps in its groups, beside hyperparameters, begin anew."""

    at: frozenset[int]
    _kept: list[dict[str, Any]] = field(default_factory=list)

    def built(self, now: Iteration) -> None:
        self._kept = [_counters(now, group) for _, group in now.groups()]

    def begin(self, now: Iteration) -> None:
        if now.iteration in self.at:
            for kept, (_, group) in zip(self._kept, now.groups()):
                group.update(kept)


def _counters(now: Iteration, group: dict[str, Any]) -> dict[str, Any]:
    numbers = {k: v for k, v in group.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
    return {k: v for k, v in numbers.items() if k not in now.optimizers[0].defaults or k in ("k", "step")}


@dataclass
class RoundedState(Intervention):
    """State through a smaller dtype: after every update, or at some iterations alone."""

    dtype: torch.dtype
    at: frozenset[int] | None = None

    def begin(self, now: Iteration) -> None:
        if self.at is not None and now.iteration in self.at:
            self._round(now)

    def step(self, now: Iteration, act: Act) -> None:
        act()
        if self.at is None:
            self._round(now)

    def _round(self, now: Iteration) -> None:
        for _, entries in now.state():
            for value in _moments(entries).values():
                value.copy_(value.to(self.dtype))


@dataclass
class RoundedParameter(Intervention):
    """Parameters through a smaller dtype after every update."""

    dtype: torch.dtype

    def step(self, now: Iteration, act: Act) -> None:
        updated = [p.detach() for _, p in now.gradients()]
        act()
        for parameter in updated:
            parameter.copy_(parameter.to(self.dtype))


@dataclass
class Exchanged(Intervention):
    """At some iterations parameters of the same shape get each other's state, in an order of their own."""

    at: frozenset[int]
    order: Callable[[list[str]], Iterable[str]]

    def begin(self, now: Iteration) -> None:
        if now.iteration not in self.at:
            return
        alike: dict[Any, list[str]] = defaultdict(list)
        state = dict(now.state())
        for name in state:
            alike[now.parameters[name].shape].append(name)
        for names in alike.values():
            for name, other in zip(names, self.order(names)):
                for optimizer in now.optimizers:
                    if now.parameters[name] in optimizer.state:
                        optimizer.state[now.parameters[name]] = state[other]


class UnusedForgotten(Intervention):
    """What no gradient reached loses its state."""

    def step(self, now: Iteration, act: Act) -> None:
        for name, _ in list(now.state()):
            if now.parameters[name].grad is None:
                for optimizer in now.optimizers:
                    optimizer.state.pop(now.parameters[name], None)
        act()


class OneCounter(Intervention):
    """One counter for all parameters: it also runs for those that no gradient reached."""

    def step(self, now: Iteration, act: Act) -> None:
        unused = [entries for name, entries in now.state() if now.parameters[name].grad is None and "step" in entries]
        act()
        for entries in unused:
            entries["step"] = entries["step"] + 1


@dataclass
class CountedUpdates(Intervention):
    """One counter for all parameters, which every update of any of them moves on, in this order."""

    order: tuple[str, ...]
    _count: int = 0

    def step(self, now: Iteration, act: Act) -> None:
        kept = {name: p.grad for name, p in now.gradients()}
        for name in kept:
            now.parameters[name].grad = None
        for name in sorted(kept, key=self.order.index):
            p = now.parameters[name]
            p.grad = kept[name]
            for optimizer in now.optimizers:
                entries = optimizer.state.get(p) or {}
                if "step" in entries:
                    entries["step"] = entries["step"] * 0 + self._count
            act()
            for optimizer in now.optimizers:
                entries = optimizer.state.get(p) or {}
                if "step" in entries:
                    entries["step"] = entries["step"] * 0 + self._count + 1
            p.grad = None
            self._count += 1
        for name, gradient in kept.items():
            now.parameters[name].grad = gradient


@dataclass
class KeptState(Intervention):
    """A new optimizer goes on with the state of the one before."""

    _before: dict[str, Any] = field(default_factory=dict)

    def step(self, now: Iteration, act: Act) -> None:
        act()
        self._before = dict(now.state())

    def built(self, now: Iteration) -> None:
        for optimizer in now.optimizers:
            held = {p for group in optimizer.param_groups for p in group["params"]}
            for name, entries in self._before.items():
                if now.parameters[name] in held:
                    optimizer.state[now.parameters[name]] = entries
