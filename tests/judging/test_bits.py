"""Equality and distance of single tensors, against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from inbackward.judging.bits import max_abs, max_ulp, needed_rtol, rms, same_bits, same_specials

NAN, INF = float("nan"), float("inf")


def bits(pattern: int, dtype: torch.dtype, integers: torch.dtype) -> torch.Tensor:
    """One float of the given bits."""
    return torch.tensor([pattern], dtype=torch.int64).to(integers).view(dtype)


def test_equal_bits_are_equal() -> None:
    x = torch.tensor([1.0, -2.5, 0.0, INF])
    assert same_bits(x, x.clone())
    assert same_bits(torch.tensor([1, 2]), torch.tensor([1, 2]))
    assert same_bits(torch.zeros(0, 3), torch.zeros(0, 3))
    assert same_bits(torch.arange(6.0).reshape(2, 3).t(), torch.arange(6.0).reshape(2, 3).t().contiguous())


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.tensor([1.0]), torch.tensor([1.0 + 2**-23])),
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64)),
        (torch.tensor([1.0]), torch.tensor([[1.0]])),
        (torch.tensor([1]), torch.tensor([2])),
        (torch.tensor([NAN, 1.0]), torch.tensor([NAN, 1.0 + 2**-23])),
        (torch.tensor([NAN]), torch.tensor([INF])),
        (torch.tensor([INF]), torch.tensor([-INF])),
    ],
)
def test_another_bit_shape_or_dtype_is_not_equal(a: torch.Tensor, b: torch.Tensor) -> None:
    assert not same_bits(a, b)
    assert not same_bits(b, a)


@pytest.mark.parametrize(
    ("dtype", "integers", "one", "other"),
    [
        (torch.float32, torch.int32, 0x7FC00000, -0x3FFFFF),  # a quiet NaN, and 0xFFC00001
        (torch.bfloat16, torch.int16, 0x7FC0, -0x3F),
        (torch.float16, torch.int16, 0x7E00, -0x1FF),
        (torch.float64, torch.int64, 0x7FF8000000000000, -0x7FFFFFFFFFFFF),
    ],
)
def test_nan_equals_nan_whatever_its_payload(dtype: torch.dtype, integers: torch.dtype, one: int, other: int) -> None:
    a, b = bits(one, dtype, integers), bits(other, dtype, integers)
    assert a.isnan().all()
    assert b.isnan().all()
    assert not torch.equal(a.view(integers), b.view(integers))
    assert same_bits(a, b)


def test_specials_are_compared_by_place_and_sign() -> None:
    x = torch.tensor([1.0, NAN, INF, -INF])
    assert same_specials(x, torch.tensor([7.0, NAN, INF, -INF]))
    assert not same_specials(x, torch.tensor([1.0, NAN, INF, INF]))
    assert not same_specials(x, torch.tensor([1.0, INF, NAN, -INF]))
    assert not same_specials(x, torch.tensor([NAN, NAN, INF, -INF]))
    assert not same_specials(x, torch.tensor([1.0, NAN, INF]))
    assert same_specials(torch.tensor([1, 2]), torch.tensor([3, 4]))


@pytest.mark.parametrize(
    ("a", "b", "dtype", "ulp"),
    [
        (1.0, 1.0 + 2**-23, torch.float32, 1),
        (1.0, 1.0 - 2**-24, torch.float32, 1),  # below a power of two the steps are half as wide
        (1.0, 2.0, torch.float32, 2**23),
        (1.0, 2.0, torch.float64, 2**52),
        (1.0, 2.0, torch.bfloat16, 2**7),
        (1.0, 2.0, torch.float16, 2**10),
        (0.0, -0.0, torch.float32, 0),
        (0.0, 2**-149, torch.float32, 1),  # the smallest subnormal number
        (-(2**-149), 2**-149, torch.float32, 2),
        (0.0, 2**-24, torch.float16, 1),
        (-(2**-24), 2**-24, torch.float16, 2),
        (0.0, 2**-126, torch.float32, 2**23),  # the smallest normal number: all the subnormal ones lie between
        (65504.0, 65472.0, torch.float16, 1),
    ],
)
def test_max_ulp(a: float, b: float, dtype: torch.dtype, ulp: int) -> None:
    x, y = torch.tensor([a, 5.0], dtype=dtype), torch.tensor([b, 5.0], dtype=dtype)
    assert max_ulp(x, y) == ulp
    assert max_ulp(y, x) == ulp


def test_ulp_and_abs_leave_out_what_is_not_finite() -> None:
    x, y = torch.tensor([NAN, INF, 1.0]), torch.tensor([1.0, 2.0, 1.0 + 2**-22])
    assert max_ulp(x, y) == 2
    assert max_abs(x, y) == 2**-22
    assert max_ulp(torch.tensor([NAN]), torch.tensor([1.0])) == 0
    assert max_abs(torch.tensor([NAN]), torch.tensor([1.0])) == 0


def test_there_is_no_ulp_between_dtypes_or_integers_or_nothing() -> None:
    assert max_ulp(torch.tensor([1]), torch.tensor([2])) is None
    assert max_ulp(torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64)) is None
    assert max_ulp(torch.zeros(0), torch.zeros(0)) is None


def test_needed_rtol_is_the_one_that_lets_allclose_pass() -> None:
    reference = torch.tensor([4.0, 100.0, -8.0], dtype=torch.float64)
    candidate = torch.tensor([4.0, 101.0, -8.02], dtype=torch.float64)
    rtol = needed_rtol(candidate, reference)
    assert rtol == pytest.approx(0.01)
    assert torch.allclose(candidate, reference, rtol=rtol * (1 + 1e-9), atol=0)
    assert not torch.allclose(candidate, reference, rtol=rtol * (1 - 1e-6), atol=0)
    assert needed_rtol(reference, reference) == 0
    assert needed_rtol(torch.tensor([1e-9]), torch.tensor([0.0])) == math.inf


def test_rms() -> None:
    assert rms(torch.tensor([3.0, 4.0])) == pytest.approx(math.sqrt(12.5))
    assert rms(torch.zeros(0)) == 0
