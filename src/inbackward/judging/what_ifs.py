"""Reference runs with one named mistake built in: they prove that a comparison would have seen such a mistake."""

from __future__ import annotations

from dataclasses import dataclass

from torch.optim import Optimizer

from inbackward.training import Intervention, Parameters


@dataclass
class ScaledGradient(Intervention):
    """Every gradient multiplied by ``factor``."""

    factor: float

    def after_backward(self, parameters: Parameters, iteration: int) -> None:
        for parameter in parameters.values():
            if parameter.grad is not None:
                parameter.grad.mul_(self.factor)


@dataclass
class ScaledLearningRate(Intervention):
    """The learning rate of every group multiplied by ``factor`` during the update."""

    factor: float

    def before_step(self, parameters: Parameters, optimizer: Optimizer) -> None:
        self._kept = [group.get("lr") for group in optimizer.param_groups]
        for group, lr in zip(optimizer.param_groups, self._kept):
            if lr is not None:
                group["lr"] = lr * self.factor

    def after_step(self, parameters: Parameters, optimizer: Optimizer) -> None:
        for group, lr in zip(optimizer.param_groups, self._kept):
            if lr is not None:
                group["lr"] = lr


@dataclass
class NotStepped(Intervention):
    """The parameter ``name`` is never updated."""

    name: str

    def after_backward(self, parameters: Parameters, iteration: int) -> None:
        parameters[self.name].grad = None
