"""Making the optimizer that is to be wrapped, or saying why it cannot be."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from inbackward.optimizer.coupling import try_out
from inbackward.optimizer.partial_step import Way
from inbackward.optimizer.wrapper import OptimizerWrapper


def check_torch(version: str) -> None:
    if tuple(int(part) for part in version.split(".")[:2]) < (2, 6):
        raise RuntimeError(f"inbackward needs torch 2.6 or newer, found {version}: pip install 'torch>=2.6'")


def build(params: ParamsT, optimizer_cls: Callable[..., Optimizer], kwargs: dict[str, Any]) -> tuple[Optimizer, Way]:
    """The wrapped optimizer, and the way in which it is to be stepped; or why it cannot step inside backward."""
    if not callable(optimizer_cls):
        raise TypeError(f"optimizer_cls must be an optimizer class such as torch.optim.AdamW, got {optimizer_cls!r}")
    if isinstance(params, torch.nn.Module):
        raise TypeError(f"params must be parameters or groups, got a {type(params).__name__}: pass its parameters()")
    inner = optimizer_cls(params, **kwargs)
    if isinstance(inner, OptimizerWrapper):
        inner.close()
    if isinstance(inner, OptimizerWrapper) or not isinstance(inner, Optimizer):
        raise TypeError(
            "optimizer_cls must build a plain torch.optim.Optimizer, "
            f"but {getattr(optimizer_cls, '__name__', optimizer_cls)} built a {type(inner).__name__}"
        )
    for name, argument in inspect.signature(inner.step).parameters.items():
        if argument.default is argument.empty and not str(argument).startswith("*"):
            raise ValueError(
                f"{type(inner).__name__} cannot step inside backward(), as its step needs the argument {name!r}: "
                "use it as a plain optimizer"
            )
    if any(options.get("differentiable") for options in (inner.defaults, *inner.param_groups)):
        raise ValueError(
            f"{type(inner).__name__}(differentiable=True) cannot step inside backward(), as autograd would have to "
            "record the step within its own run: leave differentiable=False"
        )
    why, way = try_out(optimizer_cls, kwargs, inner)
    if why:
        raise ValueError(
            f"{type(inner).__name__} cannot step inside backward(), as its parameters depend on each other: tried on "
            f"three small ones, it {why}; use it as a plain optimizer"
        )
    return inner, way
