"""How many bytes of gradients live at once, and what stays behind: measured on storages and objects, never guessed."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef


class GradientWatch:
    """Follows every gradient's storage from the moment it is accumulated until nobody holds it any more.

    Its hooks are registered before the implementation's, so they see each gradient first; a gradient that is stashed
    away after ``.grad = None`` still counts, since its storage lives. So does a copy of one: any tensor that was made
    since the iteration's first gradient and that Python still holds, but for the optimizer's state. Storages are
    counted once, whatever views exist. And so do copies that have left torch (``OutsideTorch``). Copies are looked for
    from the second iteration on: in the first an optimizer makes its state, and may not show it.

    Attributes:
        peak: the largest sum of live bytes seen at an accumulation, since the last ``reset``.
        largest: the largest single gradient seen, in bytes.
        total: the sum of all parameters' gradients, in bytes.
        state: gives the tensors of the optimizer's state now.

    Args:
        copies: whether copies count: not where the backward makes other tensors, by recomputing activations.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], copies: bool = True) -> None:
        self.peak = 0
        self.largest = 0
        self.total = 0
        self.state: Callable[[], Iterable[Tensor]] = tuple
        self._copies = copies
        self._iteration = -1
        self._frozen = False
        self._live: list[tuple[StorageWeakRef, int]] = []
        self._outside = OutsideTorch()
        for parameter in parameters:
            if parameter.requires_grad:
                self.total += parameter.numel() * parameter.element_size()
                parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]

    def reset(self) -> None:
        """Begin a new iteration."""
        self._unfreeze()
        if self._copies:
            self._outside.trace()
        self.peak = 0
        self._iteration += 1

    def end(self) -> None:
        """Leave the garbage collector and ``tracemalloc`` as they were found."""
        self._unfreeze()
        self._outside.end()

    def _unfreeze(self) -> None:
        if self._frozen:
            gc.unfreeze()
        self._frozen = False

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
        self.peak = max(self.peak, sum(size for _, size in self._live) + self._copied())

    def _copied(self) -> int:
        """Bytes made since the iteration's first gradient that are neither gradients followed nor state."""
        if not self._copies or self._iteration < 1:
            return 0
        if not self._frozen:  # what is frozen is not listed any more, which makes every later list short
            gc.freeze()
            self._frozen = True
            self._outside.begin(self.largest)
            return 0
        known = {ref.cdata for ref, _ in self._live} | {_storage(t) for t in self.state()}
        made = {_storage(t): t.untyped_storage().nbytes() for t in _tensors(gc.get_objects())}
        tensors = sum(size for storage, size in made.items() if storage not in known)
        return tensors + self._outside.grown()


class OutsideTorch:
    """Memory that may hold numbers and is no tensor's: NumPy's arrays, and large blocks of Python's (bytes, lists).

    ``tracemalloc`` knows them, and has to trace from before what they may take the place of. To list what it knows
    takes long, so that is done anew only when there is more by half a gradient, and by an eighth.
    """

    def __init__(self) -> None:
        self._started = False
        self._gradient = self._before = self._traced_before = self._traced = self._grown = 0

    def trace(self) -> None:
        """Trace from now on what is allocated."""
        if not tracemalloc.is_tracing():
            tracemalloc.start()
            self._started = True

    def begin(self, gradient: int) -> None:
        """Count from here: of Python's own memory blocks of at least a quarter of a ``gradient`` of so many bytes."""
        self._gradient = gradient
        self._before = self._bytes()
        self._traced_before = self._traced = tracemalloc.get_traced_memory()[0]
        self._grown = 0

    def grown(self) -> int:
        """Bytes that there are more now."""
        traced, _ = tracemalloc.get_traced_memory()
        if abs(traced - self._traced) >= max(self._gradient // 2, abs(self._traced - self._traced_before) // 8):
            self._traced, self._grown = traced, self._bytes() - self._before
        return self._grown

    def _bytes(self) -> int:
        block = self._gradient // 4
        traces = tracemalloc.take_snapshot().traces
        return sum(t.size for t in traces if t.size >= block or t.domain == numpy.lib.tracemalloc_domain)

    def end(self) -> None:
        if self._started:
            tracemalloc.stop()
        self._started = False


def _storage(tensor: Tensor) -> int:
    """What ``StorageWeakRef.cdata`` is of its storage."""
    return int(tensor.untyped_storage()._cdata)


def _tensors(objects: Iterable[object]) -> Iterator[Tensor]:
    for item in objects:
        if type(item) in (Tensor, nn.Parameter):  # a compiler's fake tensors have no storage
            assert isinstance(item, Tensor)
            if not item.is_sparse:
                yield item


@dataclass(frozen=True)
class Census:
    """What a process holds: hooks on the parameters, live storages and their bytes, objects the collector tracks.

    ``blocks`` are Python's own of any object up to 512 bytes, 0 where an interpreter does not count them.
    """

    hooks: int
    storages: int
    bytes: int
    objects: int
    blocks: int


def census(parameters: Iterable[nn.Parameter]) -> Census:
    """Count after a full collection. The first census of a process fills caches of classes, which are objects too."""
    gc.collect()
    blocks = sys.getallocatedblocks()
    objects = gc.get_objects()
    storages: dict[int, int] = {}
    for item in _tensors(objects):
        storage = item.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    hooks = sum(count_hooks(p) for p in parameters)
    return Census(hooks, len(storages), sum(storages.values()), len(objects), blocks)


def count_hooks(parameter: nn.Parameter) -> int:
    """Tensor hooks and post-accumulate hooks on one parameter."""
    return len(parameter._backward_hooks or ()) + len(getattr(parameter, "_post_accumulate_grad_hooks", None) or ())
