"""Equality of bits, and how far apart two tensors are when they are not equal."""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Same shape, dtype and bits; two NaNs count as equal whatever their payload. ``-0.0`` is not ``0.0``."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    if torch.equal(as_integers(a), as_integers(b)):
        return True
    differ = as_integers(a) != as_integers(b)
    return bool((a.isnan() & b.isnan() | ~differ).all())


def as_integers(x: Tensor) -> Tensor:
    """The bits of a floating-point tensor as signed integers of the same width, sharing memory where possible."""
    return x.contiguous().view(_INTEGERS[x.element_size()])


def same_specials(a: Tensor, b: Tensor) -> bool:
    """NaN and infinities stand at the same places, infinities with the same sign; integers have none."""
    if a.shape != b.shape:
        return False
    finite = a.isfinite()
    if not torch.equal(finite, b.isfinite()):
        return False
    specials_a, specials_b = a[~finite].double(), b[~finite].double()
    return torch.equal(specials_a.nan_to_num(nan=0.0), specials_b.nan_to_num(nan=0.0))


def max_abs(a: Tensor, b: Tensor) -> float:
    """Largest absolute difference over the elements finite in both; 0 where there are none."""
    difference = _finite_difference(a, b).abs()
    return difference.max().item() if difference.numel() else 0.0


def needed_rtol(a: Tensor, b: Tensor) -> float:
    """The relative tolerance that ``torch.allclose(a, b, atol=0)`` would have needed; infinite where ``b`` is 0."""
    difference = _finite_difference(a, b).abs()
    scale = b.double()[_both_finite(a, b)].abs()
    apart = difference > 0
    return (difference[apart] / scale[apart]).max().item() if apart.any() else 0.0


def max_ulp(a: Tensor, b: Tensor) -> int | None:
    """Largest distance in units in the last place of ``b``'s dtype; ``None`` for integers or differing dtypes."""
    if a.dtype != b.dtype or not b.is_floating_point() or not b.numel():
        return None
    both = _both_finite(a, b)
    steps = [_ordered(x[both]) for x in (a, b)]
    if not steps[0].numel():
        return 0
    return int((steps[0].double() - steps[1].double()).abs().max().item())


def rms(x: Tensor) -> float:
    """Root mean square in float64; 0 for no elements."""
    return x.double().pow(2).mean().sqrt().item() if x.numel() else 0.0


def _ordered(x: Tensor) -> Tensor:
    """Integers in the order of the floats: neighbours differ by one, and both zeros are 0."""
    bits = as_integers(x).to(torch.int64)
    lowest = torch.iinfo(_INTEGERS[x.element_size()]).min
    return torch.where(bits < 0, lowest - bits, bits)


def _both_finite(a: Tensor, b: Tensor) -> Tensor:
    return a.isfinite() & b.isfinite()


def _finite_difference(a: Tensor, b: Tensor) -> Tensor:
    both = _both_finite(a, b)
    return a.double()[both] - b.double()[both]
