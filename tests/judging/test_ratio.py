"""The ratio of a deviation to the noise floor, on tensors small enough to do it in one's head."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from inbackward.judging.noise import LIMIT, ROW_ALLOWANCE, epsilon, worst_ratio

EPS = 2.0**-23


def test_nothing_over_nothing_is_nothing() -> None:
    zero = torch.zeros(3)
    assert worst_ratio(zero, zero, [zero]) == 0
    assert worst_ratio(torch.ones(2, 2), torch.ones(2, 2), [torch.ones(2, 2)]) == 0
    assert worst_ratio(torch.zeros(0, 3), torch.zeros(0, 3), [torch.zeros(0, 3)]) == 0


def test_something_over_nothing_is_infinite() -> None:
    zero = torch.zeros(3)
    assert worst_ratio(torch.tensor([0.0, 0.0, 1e-30]), zero, [zero]) == math.inf
    assert worst_ratio(torch.tensor([0.0, 0.0, 1e-30]), zero, []) == math.inf


def test_the_floor_is_the_largest_of_the_runs_and_one_epsilon() -> None:
    reference = torch.ones(4, dtype=torch.float64)
    runs = [reference + 1e-6, reference + 3e-6, reference - 2e-6]
    floor = 3e-6 + torch.finfo(torch.float64).eps
    assert worst_ratio(reference + 6e-6, reference, runs) == pytest.approx(6e-6 / floor)
    assert worst_ratio(torch.ones(4) + 3 * EPS, torch.ones(4), []) == pytest.approx(3)


def test_the_largest_element_counts_where_the_mean_hides_it() -> None:
    reference = torch.zeros(10_000, dtype=torch.float64)
    run = torch.full_like(reference, 1e-6)
    one_off = reference.clone()
    one_off[17] = 2e-5
    assert one_off.pow(2).mean().sqrt() < 1e-6
    assert worst_ratio(one_off, reference, [run]) == pytest.approx(20)


def test_a_row_has_a_floor_of_its_own_and_an_allowance() -> None:
    reference = torch.zeros(4, 8, dtype=torch.float64)
    run = torch.full_like(reference, 1e-3)
    run[2] = 1e-9  # a quiet row beside loud ones
    candidate = reference.clone()
    candidate[2] = 1e-6
    assert worst_ratio(candidate, reference, [run]) == pytest.approx(1000 / ROW_ALLOWANCE)
    assert worst_ratio(candidate[2], reference[2], [run[2]]) == pytest.approx(1000)


def test_a_vector_has_no_rows() -> None:
    reference, run = torch.zeros(4, dtype=torch.float64), torch.tensor([1e-3, 1e-3, 1e-9, 1e-3], dtype=torch.float64)
    candidate = torch.tensor([0, 0, 1e-6, 0], dtype=torch.float64)
    assert worst_ratio(candidate, reference, [run]) < 1


def test_special_values_are_left_to_the_exact_comparison() -> None:
    reference = torch.tensor([1.0, float("nan"), float("inf")])
    assert worst_ratio(reference.clone(), reference, [reference.clone()]) == 0
    assert worst_ratio(torch.tensor([1.0 + EPS, float("nan"), float("inf")]), reference, []) < LIMIT


def test_scalars_and_other_shapes() -> None:
    scalar = torch.tensor(2.0)
    assert worst_ratio(scalar + 4 * EPS, scalar, []) == pytest.approx(2)
    assert worst_ratio(torch.ones(2), torch.ones(2), [torch.ones(3)]) == 0


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (torch.zeros(1), 2.0**-23),
        (torch.zeros(1, dtype=torch.float64), 2.0**-52),
        (torch.zeros(1, dtype=torch.bfloat16), 2.0**-7),
        (torch.zeros(1, dtype=torch.float16), 2.0**-10),
        (torch.zeros(1, dtype=torch.int64), 0.0),
    ],
)
def test_epsilon(x: Tensor, expected: float) -> None:
    assert epsilon(x) == expected
