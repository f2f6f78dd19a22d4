"""What a backward has ready for the update, and how it is told that it has ended."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

Use = Callable[[list[Tensor]], None]


class Ready:
    """The parameters of one backward whose gradients are final and not used yet.

    They are used together, since one call of a kernel for many parameters costs little more than for one; but never
    more of them than `limit` bytes of gradients and one, as what waits takes memory.

    Under ``fully_shard`` the gradients of a layer lie in one storage, and a few of them that wait would keep all of it:
    so what waits is used when the last of them comes.

    What a CUDA stream computed is used on that stream, where no synchronisation is needed, so each has its own; and no
    lock is needed to take a gradient, as all of a stream come on one thread.

    Args:
        use: what is done with the gradients, with `lock` held.
        limit: bytes of gradients at which they are used.
        lock: autograd has one thread a device.
        task: the backward's number, -1 outside of any.
        nested: whether the backward runs within another one, which alone knows when a gradient is final.
    """

    def __init__(
        self, use: Use, limit: int, lock: AbstractContextManager[Any], task: int, nested: bool = False
    ) -> None:
        self.task = task
        self.nested = nested
        self._use = use
        self._limit = limit
        self._lock = lock
        self._buckets: dict[Any, _Bucket] = {}
        self._of_storages: dict[int, int] = {}  # bytes of gradients that have come of one, by its address

    def add(self, p: Tensor) -> None:
        """Take `p`, and use what waits once that is enough."""
        stream = torch.cuda.current_stream(p.device) if p.is_cuda else None
        bucket = self._buckets.get(stream)
        if bucket is None:
            bucket = self._buckets[stream] = _Bucket()
        bucket.parameters[id(p)] = p
        bucket.bytes += p.nbytes
        complete = type(p) is not Parameter and self._completes_a_storage(p)  # a plain one has its own
        if complete or bucket.bytes >= self._limit:
            del self._buckets[stream]
            self._use_up(bucket)

    def _completes_a_storage(self, p: Tensor) -> bool:
        gradient: Tensor | None = getattr(p.grad, "_local_tensor", None)
        if gradient is None:
            return False
        storage = gradient.untyped_storage()
        come = self._of_storages.pop(storage._cdata, 0) + gradient.nbytes
        if come < storage.nbytes():
            self._of_storages[storage._cdata] = come
        return gradient.nbytes < come == storage.nbytes()

    def flush(self) -> None:
        """Use all that waits."""
        while self._buckets:
            self._use_up(self._buckets.popitem()[1])

    def _use_up(self, bucket: _Bucket) -> None:
        """But for gradients that somebody has removed while they waited."""
        if alive := [p for p in bucket.parameters.values() if p.grad is not None]:
            with self._lock:
                self._use(alive)


class _Bucket:
    """Each parameter once, by its id: a tensor's hash takes longer than all the rest that is done for a gradient."""

    def __init__(self) -> None:
        self.parameters: dict[int, Tensor] = {}
        self.bytes = 0


class AtEnd:
    """Calls `end(failed)` once a backward is over, whether it reached its end or raised.

    Autograd calls what is queued at the end of a backward that succeeds, and drops it unused where one fails.
    """

    _end: Callable[[bool], None] | None = None

    def __init__(self, end: Callable[[bool], None]) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(self)
        self._end = end

    def __call__(self) -> None:
        self._finish(failed=False)

    def __del__(self) -> None:
        self._finish(failed=True)

    def _finish(self, failed: bool) -> None:
        end, self._end = self._end, None
        if end is not None:
            end(failed)
