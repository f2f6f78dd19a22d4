"""What a long run of both loops left: plain numbers, and how far they are apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from inbackward.judging.noise import LIMIT

WINDOW = 10  # iterations
EPSILON = 2.0**-23  # of float32, in which a loss is computed


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

    @cached_property
    def ratios(self) -> tuple[float, ...]:
        """The differences over the reference's own noise: up to 8 is rounding. None where it was not measured.

        As design §4.2 has it, but over the disturbed losses of the last ``WINDOW`` iterations: a loss is one number,
        and of hundreds some would be far from the reference where all four disturbed ones happen to be near it.
        """
        if not self.noise:
            return () if any(self.differences) else self.differences
        return tuple(self._ratio(iteration) for iteration in range(len(self.differences)))

    def _ratio(self, iteration: int) -> float:
        apart = abs(self.differences[iteration])
        if apart == 0:
            return 0.0
        near = range(max(0, iteration - WINDOW + 1), iteration + 1)
        moved = [abs(run[i] - self.plain.losses[i]) for run in self.noise for i in near if i < len(run)]
        finite = [distance for distance in moved if math.isfinite(distance)]
        floor = max(finite, default=0.0) + EPSILON * abs(self.plain.losses[iteration])
        ratio = apart / floor if floor else math.inf
        return ratio if math.isfinite(ratio) else math.inf

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
