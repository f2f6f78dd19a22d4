"""The rehearsal by which torch.distributed.checkpoint finds out what state an optimizer has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


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
        self._made: list[Tensor] = []

    def hold(self, optimizer: Optimizer) -> None:
        """Make the state: a step on copies of the groups, with the counters then set back to 0."""
        groups = optimizer.param_groups
        optimizer.param_groups = [dict(group) for group in groups]
        try:
            optimizer.step()
        finally:
            optimizer.param_groups = groups
        self._made = list(optimizer.state)
        for entries in optimizer.state.values():
            entries.update({"step": _zero(entries["step"])} if "step" in entries else {})

    def forget(self, optimizer: Optimizer) -> None:
        """Drop what was made, if nothing was loaded in its place."""
        while self._made:
            optimizer.state.pop(self._made.pop(), None)


def _zero(counter: Any) -> Any:
    return counter.zero_() if isinstance(counter, Tensor) else type(counter)()
