"""The statistics of timings on given numbers; no clock is judged."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.measure import models

from inbackward.measure import Setup, Spread, in_turn, quartiles, ratio, time_steps


def test_the_ways_take_turns_and_the_first_rounds_do_not_count() -> None:
    calls: list[str] = []
    ways = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    seconds = in_turn(ways, rounds=4, warm_up=2, wait=lambda: calls.append("wait"))
    assert calls == ["wait", "a", "wait", "wait", "b", "wait"] * 6
    assert {name: len(each) for name, each in seconds.items()} == {"a": 4, "b": 4}


def test_quartiles() -> None:
    assert quartiles([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0)


def test_the_ratio_is_that_of_the_same_round() -> None:
    """A machine that is slow for some rounds slows both: the ratio does not move."""
    slow = [1.0, 10.0, 1.0, 10.0, 1.0, 10.0, 1.0, 10.0]
    assert ratio(slow, [1.5 * s for s in slow]) == Spread(1.5, 1.5, 1.5)


@pytest.mark.parametrize(("rounds", "left_out"), [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (20, 5), (40, 13), (100, 39)])
def test_the_interval_is_that_of_the_sign_test(rounds: int, left_out: int) -> None:
    """Of tables for the median, 95 %: how many of the smallest and of the largest values lie outside of it."""
    spread = ratio([1.0] * rounds, [float(i) for i in range(rounds)])
    assert spread == Spread((rounds - 1) / 2, left_out, rounds - 1 - left_out)


@pytest.mark.parametrize("rounds", [7, 9, 12])
def test_the_interval_holds_the_median_as_often_as_it_says(rounds: int) -> None:
    """Over all ways in which rounds may fall on either side of the true median, each as likely: none is left out."""
    held = 0
    for sides in itertools.product((-1, 1), repeat=rounds):
        spread = ratio([1.0] * rounds, [1 + side * (1 + i) / 100 for i, side in enumerate(sides)])
        held += spread.low < 1 < spread.high
    assert 0.95 <= held / 2**rounds < 0.999


@pytest.mark.parametrize(("base", "other"), [([], []), ([1.0], [1.0, 2.0])])
def test_rounds_that_do_not_pair(base: list[float], other: list[float]) -> None:
    with pytest.raises(ValueError, match=r"there are \d rounds of one way and \d of the other; give as many of both"):
        ratio(base, other)


def test_both_loops_are_timed_round_by_round() -> None:
    setup = Setup(dtype=torch.float32, sequence_length=4, micro_batches=2)
    times = time_steps(models.llama, setup, rounds=3)
    assert len(times.plain) == len(times.in_backward) == 3
    assert min(*times.plain, *times.in_backward) > 0
    assert times.ratio == ratio(times.plain, times.in_backward)
