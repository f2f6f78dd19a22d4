"""How many bytes of gradients live at once, and what stays behind: measured on storages and objects, never guessed."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef


class GradientWatch:
    """Follows every gradient's storage from the moment it is accumulated until nobody holds it any more.

    Its hooks are registered before the implementation's, so they see each gradient first; a gradient that is stashed
    away after ``.grad = None`` still counts, since its storage lives. Storages are counted once, whatever views exist.

    Attributes:
        peak: the largest sum of live bytes seen at an accumulation, since the last ``reset``.
        largest: the largest single gradient seen, in bytes.
        total: the sum of all parameters' gradients, in bytes.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.peak = 0
        self.largest = 0
        self.total = 0
        self._live: list[tuple[StorageWeakRef, int]] = []
        for parameter in parameters:
            if parameter.requires_grad:
                self.total += parameter.numel() * parameter.element_size()
                parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]

    def reset(self) -> None:
        """Begin a new iteration."""
        self.peak = 0

    def _accumulated(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        storage = gradient.untyped_storage()
        self._live = [(ref, size) for ref, size in self._live if not ref.expired()]  # type: ignore[no-untyped-call]
        mine = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        if all(ref != mine for ref, _ in self._live):
            self._live.append((mine, storage.nbytes()))
        self.largest = max(self.largest, storage.nbytes())
        self.peak = max(self.peak, sum(size for _, size in self._live))


@dataclass(frozen=True)
class Census:
    """What a process holds: hooks on the parameters, live storages and their bytes, objects the collector tracks."""

    hooks: int
    storages: int
    bytes: int
    objects: int


def census(parameters: Iterable[nn.Parameter]) -> Census:
    """Count after a full collection. The first census of a process fills caches of classes, which are objects too."""
    gc.collect()
    objects = gc.get_objects()
    storages: dict[int, int] = {}
    for item in objects:
        if type(item) in (Tensor, nn.Parameter) and not item.is_sparse:  # a compiler's fake tensors have no storage
            storage = item.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    hooks = sum(count_hooks(p) for p in parameters)
    return Census(hooks, len(storages), sum(storages.values()), len(objects))


def count_hooks(parameter: nn.Parameter) -> int:
    """Tensor hooks and post-accumulate hooks on one parameter."""
    return len(parameter._backward_hooks or ()) + len(getattr(parameter, "_post_accumulate_grad_hooks", None) or ())
