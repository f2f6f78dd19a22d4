"""Mistakes in when a step is made, and how often."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from inbackward.training import Act, Intervention, Iteration


class SteppedTwice(Intervention):
    """Two steps on the same gradient."""

    def step(self, now: Iteration, act: Act) -> None:
        with _alone(now):
            act()
        act()


class SteppedEachBackward(Intervention):
    """A step after every backward, and not once an iteration."""

    def backward(self, now: Iteration, act: Act) -> None:
        act()
        if not now.last:
            with _alone(now):
                now.update()


class SteppedByForeignBackward(Intervention):
    """A backward that is not to train does train."""

    def foreign_backward(self, now: Iteration, act: Act) -> None:
        act()
        with _alone(now):
            now.update()


@contextmanager
def _alone(now: Iteration) -> Iterator[None]:
    """Within, only the parameters at hand have gradients."""
    mine = set(now.parameters.values())
    others = {p: p.grad for _, group in now.groups() for p in group["params"] if p not in mine}
    for p in others:
        p.grad = None
    yield
    for p, gradient in others.items():
        p.grad = gradient
