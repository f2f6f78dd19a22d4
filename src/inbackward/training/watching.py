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
    counted once, whatever views exist. And so do copies in NumPy's arrays (``OutsideTorch``). Copies are looked for
    from the second iteration on: in the first an optimizer makes its state, and may not show it.

    Attributes:
        largest: the largest single gradient seen, in bytes.
        total: the sum of all parameters' gradients, in bytes.
        state: gives the tensors of the optimizer's state now.

    Args:
        copies: whether copies count: not where the backward makes other tensors, by recomputing activations.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], copies: bool = True) -> None:
        self.largest = 0
        self.total = 0
        self.state: Callable[[], Iterable[Tensor]] = tuple
        self._copies = copies
        self._iteration = -1
        self._frozen = False
        self._live: list[tuple[StorageWeakRef, int]] = []
        self._seen: list[tuple[int, int]] = []
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
        self._seen.clear()
        self._iteration += 1

    @property
    def peak(self) -> int:
        """The largest sum of live bytes seen at an accumulation, since the last ``reset``.

        Of the memory outside torch what is still there when this is read counts for nothing: a table that came with a
        module imported in the backward is no copy of a gradient.
        """
        lasting = self._outside.lasting() if any(outside > 0 for _, outside in self._seen) else 0
        return max((inside + max(outside - lasting, 0) for inside, outside in self._seen), default=0)

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
        copied, outside = self._copied()
        self._seen.append((sum(size for _, size in self._live) + copied, outside))

    def _copied(self) -> tuple[int, int]:
        """Bytes made since the iteration's first gradient that are neither gradients followed nor state.

        Returns:
            Those of tensors, and those outside torch.
        """
        if not self._copies or self._iteration < 1:
            return 0, 0
        if not self._frozen:  # what is frozen is not listed any more, which makes every later list short
            gc.freeze()
            self._frozen = True
            self._outside.begin(self.largest)
            return 0, 0
        known = {ref.cdata for ref, _ in self._live} | {_storage(t) for t in self.state()}
        made = {_storage(t): t.untyped_storage().nbytes() for t in _tensors(gc.get_objects())}
        return sum(size for storage, size in made.items() if storage not in known), self._outside.grown()


class OutsideTorch:
    """NumPy's arrays of at least a quarter of the largest gradient, which may hold copies and are no tensor's memory.

    ``tracemalloc`` knows them, in a domain of NumPy's own, and has to trace from before what they may take the place
    of. Python's own memory cannot be told apart: modules that are imported, and code that is compiled, take large
    blocks of it. To list what is known takes long, so that is done anew only when there is more of anything by half a
    gradient, and by an eighth of what was found.
    """

    def __init__(self) -> None:
        self._started = False
        self._gradient = self._before = self._traced = self._grown = 0

    def trace(self) -> None:
        """Trace from now on what is allocated."""
        if not tracemalloc.is_tracing():
            tracemalloc.start()
            self._started = True

    def begin(self, gradient: int) -> None:
        """Count from here, where the largest ``gradient`` has so many bytes."""
        self._gradient = gradient
        self._before = self._bytes()
        self._traced = tracemalloc.get_traced_memory()[0]
        self._grown = 0

    def grown(self) -> int:
        """Bytes that there are more now."""
        traced, _ = tracemalloc.get_traced_memory()
        if abs(traced - self._traced) >= max(self._gradient // 2, abs(self._grown) // 8):
            self._traced, self._grown = traced, self._bytes() - self._before
        return self._grown

    def lasting(self) -> int:
        """Bytes that there are more now, or 0."""
        return max(self._bytes() - self._before, 0)

    def _bytes(self) -> int:
        arrays, least = numpy.lib.tracemalloc_domain, self._gradient // 4
        traces = tracemalloc.take_snapshot().traces  # a ``DomainFilter`` takes three times as long
        return sum(trace.size for trace in traces if trace.domain == arrays and trace.size >= least)

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
