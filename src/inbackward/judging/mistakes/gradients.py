"""Mistakes in what reaches the optimizer: the gradient, its clipping, its reduction."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from inbackward.training import Act, Intervention, Iteration


@dataclass
class ScaledGradient(Intervention):
    """Every gradient multiplied by ``factor``."""

    factor: float

    def after_backward(self, now: Iteration) -> None:
        for _, parameter in now.gradients():
            parameter.grad.mul_(self.factor)  # type: ignore[union-attr]


class SummedGradient(Intervention):
    """The sum over ranks in the place of their mean."""

    def after_backward(self, now: Iteration) -> None:
        ScaledGradient(now.ranks).after_backward(now)


class OwnGradient(Intervention):
    """Every rank keeps the gradient of its own data."""

    reduces = False


@dataclass
class LateGradient(Intervention):
    """The gradient of the iteration before; at first zeros, or none."""

    zeros: bool
    _kept: dict[str, Tensor] = field(default_factory=dict)

    def after_backward(self, now: Iteration) -> None:
        for name, parameter in now.gradients():
            gradient = parameter.grad
            assert gradient is not None
            nothing = torch.zeros_like(gradient) if self.zeros else None
            parameter.grad = self._kept.get(name, nothing)
            self._kept[name] = gradient.clone()


@dataclass
class RoundedGradient(Intervention):
    """Every gradient through a smaller dtype."""

    dtype: torch.dtype

    def after_backward(self, now: Iteration) -> None:
        for _, parameter in now.gradients():
            parameter.grad.copy_(parameter.grad.to(self.dtype))  # type: ignore[union-attr]


@dataclass
class NotStepped(Intervention):
    """The parameter ``name`` is never updated; without one, none is."""

    name: str = ""

    def after_backward(self, now: Iteration) -> None:
        for name, parameter in now.gradients():
            if self.name in ("", name):
                parameter.grad = None


class ZeroSkipped(Intervention):
    """A gradient of zeros is taken for none."""

    def after_backward(self, now: Iteration) -> None:
        for _, parameter in now.gradients():
            if parameter.numel() and not parameter.grad.any():  # type: ignore[union-attr]
                parameter.grad = None


class UnusedAsZeros(Intervention):
    """A parameter that no gradient reached is stepped on zeros."""

    def after_backward(self, now: Iteration) -> None:
        for parameter in now.parameters.values():
            if parameter.grad is None and parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)


@dataclass
class NonFiniteSkipped(Intervention):
    """A gradient that is not finite is taken for none; with ``all`` those of all others too."""

    all: bool

    def after_backward(self, now: Iteration) -> None:
        spoiled = [p for _, p in now.gradients() if not p.grad.isfinite().all()]  # type: ignore[union-attr]
        for parameter in now.parameters.values() if self.all and spoiled else spoiled:
            parameter.grad = None


@dataclass
class NonFiniteReplaced(Intervention):
    """NaN becomes 0, and with ``infinite`` so do infinities: in the gradient, or after the update in the parameter."""

    in_gradient: bool
    infinite: bool

    def after_backward(self, now: Iteration) -> None:
        for _, parameter in now.gradients() if self.in_gradient else ():
            self._replace(parameter.grad)

    def step(self, now: Iteration, act: Act) -> None:
        act()
        for parameter in now.parameters.values() if not self.in_gradient else ():
            self._replace(parameter.detach())

    def _replace(self, x: Tensor | None) -> None:
        assert x is not None
        other = 0.0 if self.infinite else None
        x.nan_to_num_(nan=0.0, posinf=other, neginf=other)


class LastMicroBatch(Intervention):
    """What earlier micro-batches left is thrown away."""

    def backward(self, now: Iteration, act: Act) -> None:
        for _, parameter in now.gradients():
            parameter.grad = None
        act()


@dataclass
class FirstMicroBatch(Intervention):
    """What later micro-batches add is thrown away."""

    _kept: dict[str, Tensor] = field(default_factory=dict)

    def backward(self, now: Iteration, act: Act) -> None:
        act()
        for name, parameter in now.gradients():
            assert parameter.grad is not None
            self._kept.setdefault(name, parameter.grad.clone())

    def after_backward(self, now: Iteration) -> None:
        for name, parameter in now.gradients():
            parameter.grad = self._kept.get(name)
        self._kept = {}


@dataclass
class DividedAgain(Intervention):
    """Divided by the number of micro-batches once more, or multiplied by it."""

    multiplied: bool = False
    _count: int = 0

    def backward(self, now: Iteration, act: Act) -> None:
        self._count += 1
        act()

    def after_backward(self, now: Iteration) -> None:
        for _, parameter in now.gradients():
            assert parameter.grad is not None
            parameter.grad.mul_(self._count) if self.multiplied else parameter.grad.div_(self._count)
        self._count = 0


class NotClipped(Intervention):
    """No gradient is clipped."""

    def clip(self, now: Iteration, act: Act) -> None:
        """Nothing."""


@dataclass
class ClippedApart(Intervention):
    """The norm is that of each parameter, or of each group, and not of all gradients together."""

    max_norm: float
    by_group: bool = False

    def clip(self, now: Iteration, act: Act) -> None:
        if now.scaler:
            for optimizer in now.optimizers:
                now.scaler.unscale_(optimizer)
        parts = [group["params"] for _, group in now.groups()]
        for part in parts if self.by_group else [[p] for p in now.parameters.values()]:
            nn.utils.clip_grad_norm_(part, self.max_norm)


@dataclass
class ScaleKept(Intervention):
    """The scaler's factor stays in the gradient; with ``blind`` nobody looks for an overflow either."""

    blind: bool

    def step(self, now: Iteration, act: Act) -> None:
        scaler = now.scaler
        if scaler is None:
            act()
        elif not self.blind:
            ScaledGradient(scaler.get_scale()).after_backward(now)
            act()
        else:
            scaled = {p: p.grad for _, p in now.gradients()}
            for parameter in scaled:
                parameter.grad = torch.zeros_like(parameter)
            for optimizer in now.optimizers:
                scaler.unscale_(optimizer)  # finds no overflow in zeros
            for parameter, gradient in scaled.items():
                parameter.grad = gradient
            for optimizer in now.optimizers:
                optimizer.step()
