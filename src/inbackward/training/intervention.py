"""What may be done to a reference run: nothing, a rounding-sized disturbance, or one named mistake."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer


class Intervention:
    """Does nothing. Subclasses override what they disturb; the reference loop calls each once an iteration."""

    def before_forward(self, model: nn.Module, iteration: int) -> None:
        """Before the forward; what it does to parameters is for the forward and backward only."""

    def after_backward(self, model: nn.Module, iteration: int) -> None:
        """The gradients are final: undo ``before_forward``, or change the gradients."""

    def before_step(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Right before ``step()``."""

    def after_step(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Right after ``step()``: undo ``before_step``."""


class Together(Intervention):
    """Several interventions in one run, each in its turn."""

    def __init__(self, *parts: Intervention) -> None:
        self._parts = parts

    def before_forward(self, model: nn.Module, iteration: int) -> None:
        for part in self._parts:
            part.before_forward(model, iteration)

    def after_backward(self, model: nn.Module, iteration: int) -> None:
        for part in self._parts:
            part.after_backward(model, iteration)

    def before_step(self, model: nn.Module, optimizer: Optimizer) -> None:
        for part in self._parts:
            part.before_step(model, optimizer)

    def after_step(self, model: nn.Module, optimizer: Optimizer) -> None:
        for part in self._parts:
            part.after_step(model, optimizer)
