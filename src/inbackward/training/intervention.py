"""What may be done to a reference run: nothing, a rounding-sized disturbance, or one named mistake."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

Parameters = Mapping[str, nn.Parameter]
Act = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """An iteration of the reference loop, as an intervention sees it.

    Attributes:
        iteration: counted from 0.
        parameters: by name, not the model: a sharded model's own may be others at times.
        optimizers: the plain optimizer, or the two of a split run.
        update: ``step()`` with all that interventions do to it, then ``zero_grad()``.
        last: no other backward of the iteration comes after this one.
        scaler: the ``torch.amp.GradScaler`` in use, or ``None``.
        ranks: how many processes train.
    """

    iteration: int
    parameters: Parameters
    optimizers: tuple[Optimizer, ...]
    update: Act
    last: bool = True
    scaler: Any = None
    ranks: int = 1

    def groups(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Every parameter group, with its number in its optimizer."""
        for optimizer in self.optimizers:
            yield from enumerate(optimizer.param_groups)

    def gradients(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Every parameter that has a gradient now, by name."""
        return ((name, p) for name, p in self.parameters.items() if p.grad is not None)

    def state(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The state of every parameter that has any, by name."""
        for name, parameter in self.parameters.items():
            for optimizer in self.optimizers:
                if parameter in optimizer.state:
                    yield name, optimizer.state[parameter]


class Intervention:
    """Does nothing. Subclasses override what they disturb; the reference loop calls each once an iteration."""

    loss_factor = 1.0
    """On the loss, and taken back out of the gradients, where they are scaled or added up after the backward."""

    reduces = True
    """Whether gradients are reduced over ranks."""

    def built(self, now: Iteration) -> None:
        """The optimizers are new, and no schedule has touched them."""

    def begin(self, now: Iteration) -> None:
        """Before anything else of an iteration but its events."""

    def before_forward(self, now: Iteration) -> None:
        """Before the forward; what it does to parameters is for the forward and backward only."""

    def backward(self, now: Iteration, act: Act) -> None:
        """Every call of ``backward()``: ``act`` is it."""
        act()

    def after_backward(self, now: Iteration) -> None:
        """The gradients are final: undo ``before_forward``, or change the gradients."""

    def clip(self, now: Iteration, act: Act) -> None:
        """Clipping, where the scenario clips: ``act`` is it."""
        act()

    def step(self, now: Iteration, act: Act) -> None:
        """The update: ``act`` is ``step()``."""
        act()

    def foreign_backward(self, now: Iteration, act: Act) -> None:
        """A backward that is not to train: ``act`` is it."""
        act()


class Together(Intervention):
    """Several interventions in one run, each in its turn; the first of them is the innermost."""

    def __init__(self, *parts: Intervention) -> None:
        self._parts = parts
        self.loss_factor = math.prod(part.loss_factor for part in parts)
        self.reduces = all(part.reduces for part in parts)

    def built(self, now: Iteration) -> None:
        for part in self._parts:
            part.built(now)

    def begin(self, now: Iteration) -> None:
        for part in self._parts:
            part.begin(now)

    def before_forward(self, now: Iteration) -> None:
        for part in self._parts:
            part.before_forward(now)

    def backward(self, now: Iteration, act: Act) -> None:
        self._around("backward", now, act)

    def after_backward(self, now: Iteration) -> None:
        for part in self._parts:
            part.after_backward(now)

    def clip(self, now: Iteration, act: Act) -> None:
        self._around("clip", now, act)

    def step(self, now: Iteration, act: Act) -> None:
        self._around("step", now, act)

    def foreign_backward(self, now: Iteration, act: Act) -> None:
        self._around("foreign_backward", now, act)

    def _around(self, hook: str, now: Iteration, act: Act) -> None:
        for part in self._parts:
            act = _within(getattr(part, hook), now, act)
        act()


def _within(hook: Callable[[Iteration, Act], None], now: Iteration, act: Act) -> Act:
    return lambda: hook(now, act)
