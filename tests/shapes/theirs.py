"""Optimizers with a flag ``gradient_release=True`` of their own, and a preparation of the model, as a library of
optimizers ships them. The integration is contract §2's, to the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from inbackward import Implementation


class Releasing(Optimizer):
    """``step(param=p)`` updates one parameter; with ``gradient_release`` a bare ``step()`` finds nothing to do."""

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        super().__init__(params, defaults)
        self.release = defaults["gradient_release"]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, param: Tensor | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and (p is param or not self.release):
                    self.update(p, p.grad, self.state[p], group)
        return loss

    def update(self, p: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        raise NotImplementedError


class AdamW(Releasing):
    def __init__(
        self,
        params: Any,
        lr: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-6,
        weight_decay: float = 0.1,
        gradient_release: bool = False,
    ) -> None:
        named = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**named, "gradient_release": gradient_release})

    def update(self, p: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
        beta1, beta2 = group["betas"]
        state["step"] += 1
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (state["exp_avg_sq"] / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.addcdiv_(state["exp_avg"], root, value=-float(group["lr"]) / (1 - beta1 ** state["step"]))


class SGD(Releasing):
    def __init__(
        self,
        params: Any,
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0,
        gradient_release: bool = False,
    ) -> None:
        named = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, {**named, "gradient_release": gradient_release})

    def update(self, p: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        gradient = gradient.add(p, alpha=group["weight_decay"])
        if "momentum_buffer" in state:
            gradient = state["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
        state["momentum_buffer"] = gradient
        p.add_(gradient, alpha=-float(group["lr"]))


HOOKS = "_release_hooks"


def prepare(model: nn.Module, optimizer: Releasing) -> None:
    def release(p: Tensor) -> None:
        optimizer.step(param=p)
        p.grad = None

    hooks = [p.register_post_accumulate_grad_hook(release) for p in model.parameters() if p.requires_grad]
    setattr(model, HOOKS, hooks)


def remove(model: nn.Module) -> None:
    for hook in getattr(model, HOOKS):
        hook.remove()


def build(model: nn.Module, groups: Any, cls: Any, kw: dict[str, Any]) -> Releasing:
    o = cls(groups, **kw, gradient_release=True)
    prepare(model, o)
    return o


implementation = Implementation(build=build, optimizers=[AdamW, SGD], close=lambda o, model: remove(model))
