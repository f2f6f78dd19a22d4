"""Faults of freeing the gradient, and of what is left behind."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from inbackward.faults.fault import fault
from inbackward.faults.right import Right


@fault("gradient-freed")
class FreesAtStep(Right):
    """Leaves the gradients to ``zero_grad()``."""

    def free(self, p: Any) -> None:
        pass


@fault("gradient-freed", subtle=True)
class KeepsVectors(Right):
    """Frees the gradients of matrices, which are worth it."""

    def free(self, p: Any) -> None:
        if p.dim() > 1:
            super().free(p)


@fault("gradient-freed", subtle=True)
class FreesTheOneBefore(Right):
    """Frees a gradient when the next one is there: the last of all survives the backward."""

    def free(self, p: Any) -> None:
        before = self.__dict__.pop("before", None)
        if before is not None:
            before.grad = None
        self.before = p


@fault("gradient-access", name="read-as-zeros")
@fault("gradient-freed")
class FillsWithZeros(Right):
    """Fills gradients with zeros, as if there had been none, and frees no memory."""

    def free(self, p: Any) -> None:
        p.grad.zero_()


@fault("gradient-freed", subtle=True)
class FreesWhatMovedLately(Right):
    """From the third backward on keeps the gradients of a branch that was left out."""

    def free(self, p: Any) -> None:
        backwards = self.__dict__.setdefault("backwards", {})
        backwards[p] = backwards.get(p, 0) + 1
        if backwards[p] == max(backwards.values()):
            super().free(p)


@fault("gradient-peak")
class Stashes(Right):
    """Takes ``.grad`` away, and keeps its memory until ``step()``."""

    def free(self, p: Any) -> None:
        self.__dict__.setdefault("stash", []).append(p.grad)
        super().free(p)

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        self.__dict__.pop("stash", None)


@fault("gradient-peak")
class StashesClones(Right):
    """Copies every gradient, frees it, and steps on the copies when the last is there, all inside the backward."""

    def on_gradient(self, p: Any) -> None:
        clones = self.__dict__.setdefault("clones", {})
        clones[p] = self.copy(p.grad)
        super().free(p)
        everything = [q for group in self.param_groups for q in group["params"]]
        if len(clones) == len(everything):
            for q in everything:
                q.grad = self.restored(clones.pop(q)).view_as(q)
                super().on_gradient(q)

    def copy(self, gradient: Tensor) -> Any:
        return gradient.clone()

    def restored(self, copy: Any) -> Tensor:
        return copy  # type: ignore[no-any-return]


@fault("gradient-peak", subtle=True)
class StashesFlat(StashesClones):
    """Copies every gradient into another shape than any has, and steps on the copies when the last is there."""

    def copy(self, gradient: Tensor) -> Any:
        return gradient.flatten() * 1


@fault("gradient-peak", name="stashes-numpy", subtle=True)
class StashesNumPy(StashesClones):
    """Keeps every gradient as a NumPy array, and steps on the copies when the last is there."""

    def copy(self, gradient: Tensor) -> Any:
        return gradient.numpy(force=True).copy()

    def restored(self, copy: Any) -> Tensor:
        return torch.from_numpy(copy)


@fault("gradient-peak", subtle=True)
class FreesByBlocks(Right):
    """Keeps one block's gradients until all of it are there."""

    def free(self, p: Any) -> None:
        block = self.__dict__.setdefault("block", [])
        block.append(p)
        if len(block) == 9:
            self.step()

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for p in self.__dict__.pop("block", []):
            super().free(p)


@fault("no-leak", subtle=True, reports=(38,))
class Remembers(Right):
    """Keeps the norm of every gradient, for a plot that is drawn at the end."""

    def update(self, p: Any) -> None:
        self.__dict__.setdefault("norms", []).append(p.grad.norm())
        super().update(p)


KNOWN: list[Any] = []


@fault("no-leak")
class Registered(Right):
    """Enters itself in a list, in which it outlives its user's last reference."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        KNOWN[:] = [self]


@fault("no-leak", subtle=True)
class HooksStay(Right):
    """Takes all hooks off at its end but one."""

    def watch(self, parameters: list[Tensor]) -> None:
        super().watch(parameters)
        self.hooks.pop()


@fault("no-leak", subtle=True)
class LogsEveryNorm(Right):
    """Keeps the norm of every gradient for a plot, as plain numbers, and never lets go of one."""

    def on_gradient(self, p: Any) -> None:
        self.__dict__.setdefault("norms", []).append(p.grad.norm().item())
        super().on_gradient(p)


@fault("no-leak", subtle=True)
class HooksAgainAtLoad(Right):
    """Registers its hooks once more when it loads, and forgets those that were there."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        known = len(self.hooks)
        for group in self.param_groups:
            self.watch(group["params"])
        del self.hooks[known:]
