"""Reading optimizers of the shapes that implementations come in, without creating or changing anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from inbackward.training.parallel import local
from inbackward.training.trace import State


def optimizers_in(shape: Any) -> list[Any] | None:
    """The optimizers inside one of the known shapes, or ``None`` for any other object."""
    if _is_optimizer(shape):
        return [shape]
    values = list(shape.values()) if isinstance(shape, Mapping) else shape if isinstance(shape, (list, tuple)) else []
    return list(values) if values and all(_is_optimizer(v) for v in values) else None


def read_state(shape: Any, names: Mapping[nn.Parameter, str]) -> tuple[State, tuple[str, ...]]:
    """Copies of the state by parameter name, and the entries that are neither tensors nor numbers."""
    raw: dict[str, Mapping[str, Any]] = {}
    optimizers = optimizers_in(shape)
    if optimizers is not None:
        for optimizer in optimizers:
            for parameter, entries in optimizer.state.items():
                if parameter in names:
                    raw[names[parameter]] = entries
    elif isinstance(shape, Mapping):
        raw = {str(name): entries for name, entries in shape.items()}
    state: State = {}
    unread: list[str] = []
    for name, entries in raw.items():
        copies = {}
        for key, value in entries.items():
            if isinstance(value, Tensor):
                part = local(value.detach())
                copies[str(key)] = part.to_dense() if part.is_sparse else part.clone()
            elif isinstance(value, (bool, int, float)):
                copies[str(key)] = torch.tensor(float(value), dtype=torch.float64)
            elif value is not None:
                unread.append(f"{name}.{key}")
        if copies:
            state[name] = copies
    return state, tuple(unread)


def state_tensors(shape: Any) -> list[Tensor]:
    """The tensors of all state that can be seen, themselves and not copies."""
    optimizers = optimizers_in(shape)
    states = [o.state for o in optimizers] if optimizers is not None else [shape] if isinstance(shape, Mapping) else []
    entries = (
        value for state in states for each in state.values() if isinstance(each, Mapping) for value in each.values()
    )
    return [value for value in entries if isinstance(value, Tensor)]


def read_hyperparameters(shape: Any, names: Mapping[nn.Parameter, str]) -> dict[str, dict[str, Any]] | None:
    """The hyperparameters of every parameter as its group shows them now, or ``None`` where no group can be seen."""
    optimizers = optimizers_in(shape)
    if optimizers is None:
        return None
    seen: dict[str, dict[str, Any]] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            values = {k: _number(group[k]) for k in optimizer.defaults if k in group and not _is_switch(group[k])}
            for parameter in group["params"]:
                if parameter in names:
                    seen[names[parameter]] = values
    return seen


def set_hyperparameter(
    shape: Any, parameters: Iterable[nn.Parameter], name: str, value: Any, in_place: bool = False
) -> bool:
    """Set ``name`` in every group that holds one of ``parameters``; whether there was any."""
    wanted = set(parameters)
    found = False
    for optimizer in optimizers_in(shape) or []:
        for group in optimizer.param_groups:
            if not wanted.isdisjoint(group["params"]):
                write_hyperparameter(group, name, value, in_place)
                found = True
    return found


def write_hyperparameter(group: dict[str, Any], name: str, value: Any, in_place: bool) -> None:
    """``group[name] = value``, or fill the tensor that is there."""
    if in_place:
        group[name].fill_(value)
    else:
        group[name] = value


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, Optimizer)


def _is_switch(value: Any) -> bool:
    """A flag, or one left open: what it does shows in the numbers, and ``gradient_release=True`` must be allowed."""
    return value is None or isinstance(value, bool)


def _number(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else tuple(value.flatten().tolist())
    return tuple(_number(v) for v in value) if isinstance(value, (list, tuple)) else value
