"""Two optimizers over disjoint parameters, called together as a training loop would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inbackward.training.shapes import optimizers_in


class Pair:
    """Stands where a handle stands: what is called on it is called on each, where it has that method."""

    def __init__(self, handles: list[Any]) -> None:
        self.handles = handles

    def step(self) -> None:
        self._each("step")

    def zero_grad(self, **kwargs: Any) -> None:
        self._each("zero_grad", **kwargs)

    def train(self) -> None:
        self._each("train")

    def close(self) -> None:
        self._each("close")

    def shape(self, read: Callable[[Any], Any]) -> Any:
        """The optimizers of both as one list, or both dictionaries of tensors as one; else nothing is to be seen."""
        shapes = [read(handle) for handle in self.handles]
        optimizers = [optimizers_in(shape) for shape in shapes]
        if all(o is not None for o in optimizers):
            return [optimizer for found in optimizers for optimizer in found or ()]
        if all(isinstance(shape, dict) for shape in shapes):
            return {name: entries for shape in shapes for name, entries in shape.items()}
        return None

    def _each(self, method: str, **kwargs: Any) -> None:
        for handle in self.handles:
            call = getattr(handle, method, None)
            if callable(call):
                call(**kwargs)
