"""What an iteration costs, compared on one busy machine: ways that take turns, and an interval for their ratio."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from inbackward.measure.loop import PLAIN, Loop, prepare
from inbackward.measure.setup import Setup
from inbackward.training import Implementation, as_implementation

CONFIDENCE = 0.95


def in_turn(
    ways: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 3, wait: Callable[[], object] | None = None
) -> dict[str, list[float]]:
    """Seconds of each way in each round. In a round each is called once, so what slows the machine slows all.

    Args:
        ways: by name, what is timed.
        rounds: how many count.
        warm_up: rounds before those, which do not.
        wait: called before and after each, as ``torch.cuda.synchronize`` must be.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    wait = wait or _nothing
    for turn in range(warm_up + rounds):
        for name, way in ways.items():
            wait()
            start = time.perf_counter()
            way()
            wait()
            if turn >= warm_up:
                seconds[name].append(time.perf_counter() - start)
    return seconds


@dataclass(frozen=True)
class Spread:
    """A median, and what lies around it.

    Attributes:
        low, high: for the seconds of a way the quartiles; for a ratio the ends of its interval.
    """

    median: float
    low: float
    high: float


def quartiles(seconds: Sequence[float]) -> Spread:
    """The median of a way's seconds and the quartiles, of at least two rounds."""
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Spread(median, low, high)


def ratio(base: Sequence[float], other: Sequence[float], confidence: float = CONFIDENCE) -> Spread:
    """The median over rounds of ``other / base``, with an interval that holds the true one at this confidence.

    The interval is that of the sign test: from the k-th smallest to the k-th largest of the ratios, where k is the
    largest for which a fair coin falls outside often enough. It asks nothing of the distribution, and rounds need only
    be independent. Below 6 rounds none has 95 %, and the smallest and the largest are what is left.

    Raises:
        ValueError: there is no round, or not as many of both.
    """
    if not base or len(base) != len(other):
        raise ValueError(f"there are {len(base)} rounds of one way and {len(other)} of the other; give as many of both")
    ratios = sorted(b / a for a, b in zip(base, other))
    n, rank, tail = len(ratios), 0, 0.5 ** len(ratios)
    while rank + 1 <= (n - 1) // 2 and 2 * (tail + math.comb(n, rank + 1) * 0.5**n) <= 1 - confidence:
        rank += 1
        tail += math.comb(n, rank) * 0.5**n
    return Spread(statistics.median(ratios), ratios[rank], ratios[n - 1 - rank])


@dataclass(frozen=True)
class Times:
    """The seconds of each round of both loops, in turn within one process."""

    plain: tuple[float, ...]
    in_backward: tuple[float, ...]

    @property
    def ratio(self) -> Spread:
        """What stepping inside the backward costs: above 1 it is slower."""
        return ratio(self.plain, self.in_backward)


def time_steps(
    build: Callable[[], nn.Module],
    setup: Setup | None = None,
    implementation: Implementation | None = None,
    device: str = "cpu",
    rounds: int = 40,
) -> Times:
    """Time whole iterations (forward, backward, step, ``zero_grad``) of both loops, each on a model of its own.

    Args:
        build: makes the model; see ``observe_memory``, also for the others.
        rounds: iterations of each that count; three come before them.

    Raises:
        Exception: whatever the model, or the implementation, raises.
    """
    from inbackward.optimizer import OptimizerInBackward

    setup = setup or Setup()
    loops = {}
    for name, each in (("plain", PLAIN), ("in_backward", implementation or as_implementation(OptimizerInBackward))):
        model = prepare(build, setup, device)
        setup.shard(model, device)
        loops[name] = Loop(DistributedDataParallel(model) if setup.strategy == "ddp" else model, setup, each)
    try:
        wait = torch.cuda.synchronize if device.startswith("cuda") else None
        seconds = in_turn({name: loop.iterate for name, loop in loops.items()}, rounds, wait=wait)
    finally:
        for loop in loops.values():
            loop.close()
    return Times(**{name: tuple(each) for name, each in seconds.items()})


def _nothing() -> None:
    pass
