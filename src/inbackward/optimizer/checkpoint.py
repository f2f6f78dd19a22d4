"""Whether a checkpoint fits an optimizer; torch itself finds out some iterations later, or never."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from inbackward.optimizer.own_values import is_of_torch


def check_fits(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """Raise, before anything changes, where `state_dict` cannot be meant for `optimizer`.

    An optimizer class with a `load_state_dict` of its own knows its own layout and is left to judge. Shapes are known
    only for torch's own optimizers: all their state has the parameter's shape, or broadcasts to it (a step counter,
    Adafactor's rows and columns); state of another class may have any shape.

    Raises:
        ValueError: other groups, other numbers of parameters, or state of a wrong shape; the message says where.
    """
    if type(optimizer).load_state_dict is not Optimizer.load_state_dict:
        return
    if _one_a_parameter(state_dict.get("per_param", state_dict)):
        raise ValueError(
            "this holds one state dict a parameter, as torchtune saves them: "
            "put them together as docs/migrating.md shows"
        )
    if missing := [key for key in ("state", "param_groups") if key not in state_dict]:
        raise ValueError(
            f"this is no optimizer state dict, as it lacks {missing[0]!r} and has {sorted(map(str, state_dict))[:5]}: "
            "pass what optimizer.state_dict() returned"
        )
    groups, saved_groups = optimizer.param_groups, state_dict["param_groups"]
    if len(groups) != len(saved_groups):
        raise ValueError(
            f"the checkpoint has {len(saved_groups)} parameter groups and the optimizer {len(groups)}: "
            "build the optimizer with the groups it was saved with"
        )
    parameters: dict[Any, Tensor] = {}
    for i, (group, saved) in enumerate(zip(groups, saved_groups, strict=True)):
        if len(group["params"]) != len(saved["params"]):
            raise ValueError(
                f"group {i} has {len(saved['params'])} parameters in the checkpoint and {len(group['params'])} in the "
                "optimizer: build the optimizer with the parameters it was saved with"
            )
        parameters.update(zip(saved["params"], group["params"], strict=True))
    for key, entries in state_dict["state"].items():
        if key not in parameters:
            if isinstance(key, int):
                raise ValueError(f"the checkpoint has state for parameter {key}, which is in none of its groups")
        elif is_of_torch(optimizer):
            _check_shapes(key, parameters[key], entries)


def _one_a_parameter(found: Any) -> bool:
    each = list(found.values()) if isinstance(found, dict) else []
    return bool(each) and all(isinstance(one, dict) and {"state", "param_groups"} <= one.keys() for one in each)


def _check_shapes(key: Any, p: Tensor, entries: dict[str, Any]) -> None:
    for name, value in entries.items():
        if isinstance(value, Tensor) and not _broadcasts(value.shape, p.shape):
            raise ValueError(
                f"the checkpoint's {name!r} of parameter {key} has shape {tuple(value.shape)} and the parameter "
                f"{tuple(p.shape)}: it was saved for another model, or with the parameters in another order"
            )


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))
