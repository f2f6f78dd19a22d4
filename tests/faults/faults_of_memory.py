"""Faults of freeing the gradient, and of what is left behind."""

from __future__ import annotations

from typing import Any

from tests.faults.fault import Fault
from tests.shapes.mine import Mine
from torch import Tensor


class FreesAtStep(Mine):
    def free(self, p: Tensor) -> None:
        pass


class KeepsVectors(Mine):
    """Frees what is worth freeing."""

    def free(self, p: Tensor) -> None:
        if p.dim() > 1:
            super().free(p)


class FreesTheOneBefore(Mine):
    """A gradient lives until the next one is there: the last of all survives the backward."""

    def free(self, p: Tensor) -> None:
        before = self.__dict__.pop("before", None)
        if before is not None:
            before.grad = None
        self.before = p


class FillsWithZeros(Mine):
    def free(self, p: Tensor) -> None:
        p.grad.zero_()


class FreesWhatMovedLately(Mine):
    """From the third backward on it keeps the gradients of a branch that was left out."""

    def free(self, p: Tensor) -> None:
        backwards = self.__dict__.setdefault("backwards", {})
        backwards[p] = backwards.get(p, 0) + 1
        if backwards[p] == max(backwards.values()):
            super().free(p)


class Stashes(Mine):
    """``.grad`` is gone, and its memory is not."""

    def free(self, p: Tensor) -> None:
        self.__dict__.setdefault("stash", []).append(p.grad)
        super().free(p)

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        self.__dict__.pop("stash", None)


class StashesClones(Mine):
    """Copies every gradient, frees it, and steps on the copies when the last is there, all inside the backward."""

    def on_gradient(self, p: Tensor) -> None:
        clones = self.__dict__.setdefault("clones", {})
        clones[p] = self.copy(p.grad)
        super().free(p)
        everything = [q for group in self.param_groups for q in group["params"]]
        if len(clones) == len(everything):
            for q in everything:
                q.grad = clones.pop(q).view_as(q)
                super().on_gradient(q)

    def copy(self, gradient: Tensor) -> Tensor:
        return gradient.clone()


class StashesFlat(StashesClones):
    """Of another shape than any gradient."""

    def copy(self, gradient: Tensor) -> Tensor:
        return gradient.flatten() * 1


class FreesByBlocks(Mine):
    """Keeps one block's gradients until all of it are there."""

    def free(self, p: Tensor) -> None:
        block = self.__dict__.setdefault("block", [])
        block.append(p)
        if len(block) == 9:
            self.step()

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for p in self.__dict__.pop("block", []):
            super().free(p)


class Remembers(Mine):
    """The norm of every gradient, for a plot that is drawn at the end."""

    def update(self, p: Tensor) -> None:
        self.__dict__.setdefault("norms", []).append(p.grad.norm())
        super().update(p)


KNOWN: list[Any] = []


class Registered(Mine):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        KNOWN[:] = [self]


class HooksStay(Mine):
    def watch(self, parameters: list[Tensor]) -> None:
        super().watch(parameters)
        self.hooks.pop()


FAULTS = [
    Fault(FreesAtStep, "gradient-freed", "llama-sgd", "iteration 0, gradient "),
    Fault(FreesAtStep, "gradient-freed", "frozen-adamw", "iteration 0, gradient "),
    Fault(KeepsVectors, "gradient-freed", "llama-adamw", "iteration 0, gradient blocks.0.attention_norm.weight"),
    Fault(FreesTheOneBefore, "gradient-freed", "tied-sgd", "iteration 0, gradient embedding.weight"),
    Fault(FillsWithZeros, "gradient-freed", "convolution-sgd", "iteration 0, gradient "),
    Fault(FreesWhatMovedLately, "gradient-freed", "unused-sgd", "iteration 2, gradient branch."),
    Fault(Stashes, "gradient-peak", "deep-sgd", "iteration 0, gradient peak"),
    Fault(StashesClones, "gradient-peak", "deep-adamw", "iteration 1, gradient peak"),
    Fault(StashesFlat, "gradient-peak", "deep-two-groups-sgd", "iteration 1, gradient peak"),
    Fault(FreesByBlocks, "gradient-peak", "deep-two-groups-sgd", "iteration 0, gradient peak"),
    Fault(Remembers, "no-leak", "tiny-sgd", "iteration 0, leak: storages: "),
    Fault(Registered, "no-leak", "tiny-sgd", "iteration 0, leak: the optimizer is alive after close"),
    Fault(HooksStay, "no-leak", "tiny-sgd", "iteration 0, leak: hooks on the parameters: "),
]
