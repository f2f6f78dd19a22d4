"""Clipping gradients that do not all exist at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype, _has_foreach_support


@dataclass(frozen=True)
class Clipping:
    """What a training loop asks for: one of `max_norm`, `max_norm_per_parameter` and `clip_value`, or nothing.

    What needs all gradients at once, the total norm, is put together from the norm of each; in the order and by the
    kernels of `torch.nn.utils.clip_grad_norm_`, which rounds otherwise else.

    Raises:
        ValueError: more than one of them is given.
    """

    max_norm: float | None = None
    norm_type: float = 2.0
    error_if_nonfinite: bool = False
    max_norm_per_parameter: float | None = None
    clip_value: float | None = None

    def __post_init__(self) -> None:
        names = ("max_norm", "max_norm_per_parameter", "clip_value")
        given = [f"{name}={getattr(self, name)}" for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"backward() was given {' and '.join(given)}: choose one way to clip")

    def all_at_once(self, parameters: Sequence[Tensor]) -> Tensor | None:
        """Clip gradients that all exist; returns their total norm where that was asked for."""
        if self.max_norm is None:
            self.each(parameters)
            return None
        return clip_grad_norm_(parameters, self.max_norm, self.norm_type, self.error_if_nonfinite)

    def each(self, parameters: Sequence[Tensor]) -> None:
        """Clip what needs no other gradient to be known."""
        if self.clip_value is not None:
            clip_grad_value_(parameters, self.clip_value)
        if self.max_norm_per_parameter is not None:
            for p in parameters:
                clip_grad_norm_(p, self.max_norm_per_parameter, self.norm_type, self.error_if_nonfinite)

    @torch.no_grad()
    def norms(self, parameters: Sequence[Tensor]) -> dict[Tensor, Tensor]:
        """The norm of each parameter's gradient."""
        found: dict[Tensor, Tensor] = {}
        for group in _alike(parameters):
            gradients = [p.grad for p in group if p.grad is not None]
            norms: Sequence[Tensor]
            if _has_foreach_support(gradients, group[0].device):
                norms = torch._foreach_norm(gradients, self.norm_type)
            else:
                norms = [torch.linalg.vector_norm(gradient, self.norm_type) for gradient in gradients]
            found.update(zip(group, norms, strict=True))
        return found

    @torch.no_grad()
    def total(self, norms: Mapping[Tensor, Tensor], parameters: Sequence[Tensor]) -> Tensor:
        """The norm over all parameters, of which those without a norm had no gradient.

        Raises:
            RuntimeError: it is infinite or NaN, where `error_if_nonfinite` asks for that.
        """
        order = [norms[p] for group in _alike([p for p in parameters if p in norms]) for p in group]
        if not order:
            return torch.tensor(0.0)
        first = next(norms[p] for p in parameters if p in norms)
        total: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(first.device) for norm in order]), self.norm_type)
        if self.error_if_nonfinite and torch.logical_or(total.isnan(), total.isinf()):
            raise RuntimeError(
                f"the total norm of order {self.norm_type} of the gradients is non-finite, so they cannot be clipped "
                "and nothing was updated: look for what made it so, or set error_if_nonfinite=False"
            )
        return total

    @torch.no_grad()
    def scale(self, parameters: Sequence[Tensor], total: Tensor) -> None:
        """Scale the gradients, which all exist, as `clip_grad_norm_` would, once it knows the total norm."""
        assert self.max_norm is not None
        coefficient = torch.clamp(self.max_norm / (total + 1e-6), max=1.0)
        for group in _alike(parameters):
            gradients = [p.grad for p in group if p.grad is not None]
            factor = coefficient.to(gradients[0].device)
            if _has_foreach_support(gradients, gradients[0].device):
                torch._foreach_mul_(gradients, factor)
            else:
                for gradient in gradients:
                    gradient.mul_(factor)


def _alike(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    """The parameters by device and dtype, in torch's own order of these."""
    if not parameters:
        return []
    groups = _group_tensors_by_device_and_dtype([list(parameters)], with_indices=True)
    return [[parameters[i] for i in indices] for _, indices in groups.values()]
