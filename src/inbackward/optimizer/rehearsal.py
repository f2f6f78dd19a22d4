"""The rehearsal by which torch.distributed.checkpoint finds out what state an optimizer has."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Number
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from inbackward.optimizer.partial_step import PartialStep, Way


def is_rehearsal(optimizer: Optimizer, parameters: Iterable[Tensor]) -> bool:
    """Whether this `step()` asks for state only: there is none yet, every lr is 0, and so is every gradient.

    `torch.distributed.checkpoint.state_dict` does so to an optimizer without state before it saves or loads.
    """
    if optimizer.state or any(float(group.get("lr", 1.0)) != 0.0 for group in optimizer.param_groups):
        return False
    return not any(bool(p.grad.count_nonzero()) for p in parameters if p.grad is not None)


class Rehearsal:
    """State that was made to be looked at: a checkpoint may fill it, training must not start from it.

    The plain optimizer keeps it, `step` = 1 included, so that reading its checkpoint dictionary before the first
    iteration changes the run (pytorch#164929). Here it is gone at the first update.
    """

    def __init__(self) -> None:
        self._made: list[tuple[dict[Any, Any], Any]] = []

    def hold(self, optimizer: Optimizer, way: Way, parameters: Iterable[Tensor]) -> None:
        """Make the state, and what a first step adds to a group: by a step on copies, with the counters then set to 0.

        Each parameter by itself, as it takes a copy: some optimizers move at an lr of 0 (MADGRAD, by a rounding).
        """
        alone, groups = PartialStep(optimizer, way), optimizer.param_groups
        optimizer.param_groups = [{name: _apart(value) for name, value in group.items()} for group in groups]
        try:
            for p in parameters:
                before = p.detach().clone()
                alone.step([p])
                with torch.no_grad():
                    p.copy_(before)
        finally:
            optimizer.param_groups = groups
        for i, name, value in alone.written_to_groups():
            if name not in groups[i]:
                groups[i][name] = _zero(value)
                self._made.append((groups[i], name))
        for p, entries in optimizer.state.items():
            if isinstance(entries, dict) and "step" in entries:
                entries["step"] = _zero(entries["step"])
            self._made.append((optimizer.state, p))

    def forget(self) -> None:
        """Drop what was made, if nothing was loaded in its place."""
        while self._made:
            entries, name = self._made.pop()
            entries.pop(name, None)


def _apart(value: Any) -> Any:
    """Containers, in which a step may note something (RAdam of older days), but not the parameters in one."""
    if type(value) in (list, tuple):
        return type(value)(map(_apart, value))
    return {key: _apart(item) for key, item in value.items()} if type(value) is dict else value


def _zero(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.zero_()
    return type(value)() if isinstance(value, Number) else value
