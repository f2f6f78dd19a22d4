"""Right updates written in another order of operations than torch's: equal to it up to rounding, in bits never.

And wrong ones on top of them, which no bit comparison is there to catch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from inbackward.faults.right import Right

Group = dict[str, Any]


class ByHand(Right):
    """AdamW as its paper has it, and SGD with momentum, without any of torch's kernels."""

    def update(self, p: Tensor) -> None:
        group = next(g for g in self.param_groups if any(q is p for q in g["params"]))
        with torch.no_grad():
            if "betas" in group:
                self.adamw(p, p.grad, self.state[p], group)
            else:
                self.sgd(p, p.grad, self.state[p], group)

    def lr(self, group: Group) -> float:
        return float(group["lr"])

    def adamw(self, p: Tensor, gradient: Tensor, state: dict[str, Any], group: Group) -> None:
        if not state:
            state.update(step=torch.tensor(0.0), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
        (beta1, beta2), lr = group["betas"], self.lr(group)
        state["step"] += 1
        state["exp_avg"].copy_(beta1 * state["exp_avg"] + (1 - beta1) * gradient)
        state["exp_avg_sq"].copy_(beta2 * state["exp_avg_sq"] + (1 - beta2) * (gradient * gradient))
        mean = state["exp_avg"] / (1 - beta1 ** state["step"].item())
        variance = state["exp_avg_sq"] / (1 - beta2 ** state["step"].item())
        p.copy_(p - lr * (mean / (variance.sqrt() + group["eps"]) + group["weight_decay"] * p))

    def sgd(self, p: Tensor, gradient: Tensor, state: dict[str, Any], group: Group) -> None:
        velocity = state.get("momentum_buffer")
        # gradient + momentum * velocity, in the precision that a fused multiply-add would not lose
        velocity = gradient if velocity is None else (gradient.double() + group["momentum"] * velocity.double()).to(p)
        state["momentum_buffer"] = velocity.clone()
        p.copy_(p - (self.lr(group) * velocity))


class LrFactor(ByHand):
    factor = 1.0

    def lr(self, group: Group) -> float:
        return self.factor * super().lr(group)


class OnePercent(LrFactor):
    factor = 1.01


class TenthOfAThousandth(LrFactor):
    factor = 1.0001


class OneRow(ByHand):
    """The third row of every matrix keeps its value."""

    def update(self, p: Tensor) -> None:
        before = p.detach().clone()
        super().update(p)
        if p.dim() == 2:
            p.detach()[2] = before[2]


class OneElement(ByHand):
    def update(self, p: Tensor) -> None:
        before = p.detach().clone()
        super().update(p)
        if p.dim() == 2:
            p.detach()[2, 3] = before[2, 3]


class WithKernel(Right):
    """The implementation's own choice of a kernel, which the scenario did not ask for."""

    kernel = "fused"

    def __init__(self, params: Any, optimizer_cls: Any, **kwargs: Any) -> None:
        super().__init__(params, optimizer_cls, **{**kwargs, self.kernel: True})


class WithForeach(WithKernel):
    kernel = "foreach"
