"""Faults of the update itself: gross ones, and ones that show in one parameter, one row, one iteration, one dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.faults.fault import Fault
from tests.shapes.mine import Mine
from torch import Tensor
from torch.optim import Optimizer

Group = dict[str, Any]


class WrongSign(Mine):
    def update(self, p: Tensor) -> None:
        p.grad.neg_()
        super().update(p)


class LrOnePercentHigh(Mine):
    def narrowed(self, group: Group, p: Tensor) -> Group:
        return {**super().narrowed(group, p), "lr": group["lr"] * 1.01}


class DecayTwice(Mine):
    def narrowed(self, group: Group, p: Tensor) -> Group:
        return {**super().narrowed(group, p), "weight_decay": group["weight_decay"] * 2}


class OneGradientLate(Mine):
    def update(self, p: Tensor) -> None:
        last = self.__dict__.setdefault("last", {})
        last[p], p.grad = p.grad, last.get(p, torch.zeros_like(p))
        super().update(p)


class OneParameterForgotten(Mine):
    """The first vector's hook is made and never called."""

    def update(self, p: Tensor) -> None:
        if p is not next(q for group in self.param_groups for q in group["params"] if q.dim() == 1):
            super().update(p)


class OneRowForgotten(Mine):
    """The last row of every matrix but square ones stays as it was, as an off-by-one in a chunked kernel leaves it."""

    def update(self, p: Tensor) -> None:
        before = p.detach().clone()
        super().update(p)
        if p.dim() == 2 and p.shape[0] > p.shape[1]:
            p.detach()[-1] = before[-1]


class EveryThirdTwice(Mine):
    """A step made up for in the third iteration, which needed none."""

    def update(self, p: Tensor) -> None:
        count = self.__dict__.setdefault("count", {})
        count[p] = count.get(p, 0) + 1
        super().update(p)
        if count[p] == 3:
            super().update(p)


class StateInBfloat16(Mine):
    def update(self, p: Tensor) -> None:
        super().update(p)
        for value in self.state[p].values():
            if isinstance(value, Tensor) and value.shape == p.shape:
                value.copy_(value.bfloat16())


class CountsInBfloat16(Mine):
    """Right for 256 iterations; then the bias correction stands still."""

    def update(self, p: Tensor) -> None:
        super().update(p)
        for name, value in self.state[p].items():
            if name == "step":
                self.state[p][name] = value.bfloat16()


class FlagDropped(Mine):
    """Builds the inner optimizer with the options that it has heard of."""

    def __init__(self, params: Any, optimizer_cls: Callable[..., Optimizer], **kwargs: Any) -> None:
        heard_of = ("lr", "betas", "eps", "weight_decay", "momentum", "foreach", "fused")
        super().__init__(params, optimizer_cls, **{k: v for k, v in kwargs.items() if k in heard_of})


class LossScaleRemoved(Mine):
    """Divides every gradient by the largest power of ten in it, so that scaled losses train alike."""

    def update(self, p: Tensor) -> None:
        p.grad.div_(10 ** p.grad.abs().max().log10().floor().clamp(min=-30))
        super().update(p)


class TinyGradientsFlushed(Mine):
    def update(self, p: Tensor) -> None:
        p.grad.masked_fill_(p.grad.abs() < 1e-7, 0.0)
        super().update(p)


class LargeGradientsClipped(Mine):
    """Clips each gradient's own norm to 10, which an unscaled loss never reaches."""

    def update(self, p: Tensor) -> None:
        p.grad.mul_((10 / (p.grad.norm() + 1e-6)).clamp(max=1.0)) if p.grad.norm() > 10 else None
        super().update(p)


class ZeroGradientSkipped(Mine):
    """A gradient of zeros is taken for none: no decay, no momentum, no count."""

    def update(self, p: Tensor) -> None:
        if p.grad.any():
            super().update(p)


class WrongSignInBfloat16(WrongSign):
    def update(self, p: Tensor) -> None:
        super().update(p) if p.dtype == torch.bfloat16 else Mine.update(self, p)


class DoubleThroughSingle(Mine):
    """Only in float64, only on the gradient: it goes through a float32 buffer."""

    def update(self, p: Tensor) -> None:
        if p.dtype == torch.float64:
            p.grad = p.grad.float().double()
        super().update(p)


class OneDtypeOnly(Mine):
    """Steps the parameters of the first one's dtype, as a fused buffer does."""

    def update(self, p: Tensor) -> None:
        if p.dtype == self.param_groups[0]["params"][0].dtype:
            super().update(p)


class GradientInBfloat16(Mine):
    """The gradient stays in the dtype of the autocast forward."""

    def update(self, p: Tensor) -> None:
        p.grad = p.grad.bfloat16().to(p.dtype)
        super().update(p)


class MatrixProduct(Mine):
    """Multiplies by the identity, as one that preconditions does by another matrix: autocast rounds products."""

    def update(self, p: Tensor) -> None:
        if p.dim() == 2:
            p.grad = (torch.eye(p.shape[0]) @ p.grad).float()
        super().update(p)


class NonFiniteSkipped(Mine):
    """No update where the gradient is not finite, as under a scaler that is not there."""

    def update(self, p: Tensor) -> None:
        if p.grad.isfinite().all():
            super().update(p)


class NaNReplaced(Mine):
    def update(self, p: Tensor) -> None:
        super().update(p)
        p.detach().nan_to_num_(nan=0.0)


FAULTS = [
    Fault(WrongSign, "plain", "llama-sgd", "iteration 0, parameter ", first={"parameter": 0, "state": 0, "loss": 1}),
    Fault(WrongSign, "plain", "convolution-adamw", "iteration 0, parameter "),
    Fault(LrOnePercentHigh, "plain", "one-layer-sgd", "iteration 0, parameter ", first={"state": 1, "loss": 1}),
    Fault(LrOnePercentHigh, "plain", "one-layer-adamw", "iteration 0, parameter "),
    Fault(DecayTwice, "plain", "three-layers-adamw", "iteration 0, parameter "),
    Fault(OneGradientLate, "plain", "one-layer-adamw", "iteration 0, parameter ", first={"state": 0, "loss": 1}),
    Fault(OneParameterForgotten, "plain", "all-biases-sgd", "iteration 0, parameter blocks.0.attention_norm.weight"),
    Fault(OneRowForgotten, "plain", "one-layer-sgd", "iteration 0, parameter ", first={"loss": 1}),
    Fault(EveryThirdTwice, "plain", "long-sgd", "iteration 2, parameter ", first={"parameter": 2, "loss": 3}),
    Fault(StateInBfloat16, "plain", "one-layer-adamw", "iteration 0, state ", first={"parameter": 1}),
    Fault(
        CountsInBfloat16,
        "plain",
        "one-layer-adamw",
        "iteration 0, state embedding.weight.step: 1.0; the reference has 1.0, and counts in torch.float32: "
        "torch.bfloat16 ends at 256",
    ),
    Fault(FlagDropped, "optimizers", "amsgrad-adam", "iteration 0, state-names "),
    Fault(FlagDropped, "optimizers", "nesterov-sgd", "iteration 0, parameter "),
    Fault(FlagDropped, "optimizers", "centered-rmsprop", "iteration 0, parameter "),
    Fault(FlagDropped, "optimizers", "maximize-adamax", "iteration 0, parameter "),
    Fault(LossScaleRemoved, "gradient-scale", "times-1000-adamw", "iteration 0, parameter "),
    Fault(TinyGradientsFlushed, "gradient-scale", "times-0.001-sgd", "iteration 0, "),
    Fault(LargeGradientsClipped, "gradient-scale", "times-1000-sgd", "iteration 0, parameter "),
    Fault(ZeroGradientSkipped, "gradient-scale", "times-0-adamw", "iteration 0, parameter "),
    Fault(WrongSignInBfloat16, "dtype", "bfloat16-adamw", "iteration 0, parameter "),
    Fault(DoubleThroughSingle, "dtype", "float64-sgd", "iteration 0, parameter "),
    Fault(OneDtypeOnly, "dtype", "bfloat16-with-float32-norms-sgd", "iteration 0, parameter "),
    Fault(NaNReplaced, "dtype", "float16-adamw", "iteration 0, parameter "),
    Fault(NaNReplaced, "non-finite", "nan-in-one-sgd", "iteration 1, parameter ", first={"parameter": 1, "loss": 2}),
    Fault(NonFiniteSkipped, "non-finite", "inf-in-every-other-adamw", "iteration 1, parameter "),
    Fault(MatrixProduct, "autocast", "backward-inside-sgd", "iteration 0, parameter "),
    Fault(GradientInBfloat16, "autocast", "all-biases-sgd", "iteration 0, parameter "),
]
