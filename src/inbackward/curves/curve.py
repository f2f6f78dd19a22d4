"""What a long run of both loops left: plain numbers, and how far they are apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from inbackward.judging.noise import LIMIT, worst_ratio


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One loop's.

    Attributes:
        losses: the unscaled training loss of every iteration that ended.
        held_out: ``(iterations done, loss)`` on text that it does not train on.
        stopped: the exception that ended the run early, in a line, or ``""``.
    """

    losses: tuple[float, ...]
    held_out: tuple[tuple[int, float], ...] = ()
    stopped: str = ""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Both loops', and the reference's own under rounding-sized disturbance.

    Attributes:
        iterations: that were asked for.
        noise: losses of the disturbed references; none where the curves are the same bit for bit, and need no excuse.
    """

    iterations: int
    plain: Curve
    in_backward: Curve
    noise: tuple[tuple[float, ...], ...] = ()

    @cached_property
    def differences(self) -> tuple[float, ...]:
        """In-backward minus plain, at every iteration that both reached; 0 where both are NaN."""
        pairs = zip(self.plain.losses, self.in_backward.losses)
        return tuple(0.0 if _same(a, b) else b - a for a, b in pairs)

    @property
    def same(self) -> bool:
        """Whether no bit of any loss differs, over the whole run."""
        return not any(self.differences) and len(self.plain.losses) == len(self.in_backward.losses)

    @cached_property
    def ratios(self) -> tuple[float, ...]:
        """The differences over the reference's own noise (design §4.2): up to 8 is rounding; none if not measured."""
        if not self.noise:
            return tuple(0.0 for _ in self.differences) if self.same else ()
        return tuple(
            _ratio(self.in_backward.losses[i], self.plain.losses[i], [run[i] for run in self.noise if i < len(run)])
            for i in range(len(self.differences))
        )

    @property
    def within_noise(self) -> bool:
        """Whether every difference is as small as rounding; not where that was not measured."""
        return bool(self.ratios) and all(ratio <= LIMIT for ratio in self.ratios)

    @property
    def farthest(self) -> int:
        """The iteration in which the losses are farthest apart; ``-1`` where no iteration can be compared."""
        apart = [math.inf if d != d else abs(d) for d in self.differences]
        return max(range(len(apart)), key=apart.__getitem__, default=-1)


def _same(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


def _ratio(candidate: float, reference: float, disturbed: list[float]) -> float:
    if _same(candidate, reference):
        return 0.0
    if not (math.isfinite(candidate) and math.isfinite(reference)):
        return math.inf
    # A loss is computed in float32, and has its eps.
    return worst_ratio(torch.tensor(candidate), torch.tensor(reference), [torch.tensor(d) for d in disturbed])
