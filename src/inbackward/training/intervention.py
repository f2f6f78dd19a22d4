"""What may be done to a reference run: nothing, a rounding-sized disturbance, or one named mistake."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import nn
from torch.optim import Optimizer

Parameters = Mapping[str, nn.Parameter]


class Intervention:
    """Does nothing. Subclasses override what they disturb; the reference loop calls each once an iteration.

    They are given the parameters by name, not the model: a sharded model's own may be others at times.
    """

    loss_factor = 1.0
    """On the loss, and taken back out of the gradients, where they are scaled or added up after the backward."""

    def before_forward(self, parameters: Parameters, iteration: int) -> None:
        """Before the forward; what it does to parameters is for the forward and backward only."""

    def after_backward(self, parameters: Parameters, iteration: int) -> None:
        """The gradients are final: undo ``before_forward``, or change the gradients."""

    def before_step(self, parameters: Parameters, optimizer: Optimizer) -> None:
        """Right before ``step()``."""

    def after_step(self, parameters: Parameters, optimizer: Optimizer) -> None:
        """Right after ``step()``: undo ``before_step``."""


class Together(Intervention):
    """Several interventions in one run, each in its turn."""

    def __init__(self, *parts: Intervention) -> None:
        self._parts = parts
        self.loss_factor = math.prod(part.loss_factor for part in parts)

    def before_forward(self, parameters: Parameters, iteration: int) -> None:
        for part in self._parts:
            part.before_forward(parameters, iteration)

    def after_backward(self, parameters: Parameters, iteration: int) -> None:
        for part in self._parts:
            part.after_backward(parameters, iteration)

    def before_step(self, parameters: Parameters, optimizer: Optimizer) -> None:
        for part in self._parts:
            part.before_step(parameters, optimizer)

    def after_step(self, parameters: Parameters, optimizer: Optimizer) -> None:
        for part in self._parts:
            part.after_step(parameters, optimizer)
