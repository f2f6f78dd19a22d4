"""Every storage that lives, by what it is for: followed from the operation that makes it until nobody holds it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inbackward.measure.memory import CATEGORIES


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, the storages of all tensors that operations return are counted, each once.

    Bytes of real tensors and of fake ones, which have none: a fake tensor's storage has a size, and dies like another.
    A storage is an activation until ``tag`` says what else it is. What ``UntypedStorage.resize_`` frees counts no more
    (``fully_shard`` empties gathered parameters that way, and fills them again). Memory that a kernel takes and gives
    back within itself is not seen, nor what a process-wide cache keeps.

    Attributes:
        bytes: the live bytes of each category now.
        changed: called after each change of ``bytes``.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = dict.fromkeys(CATEGORIES, 0)
        self.changed: Callable[[], None] = _nothing
        self._known: dict[int, tuple[int, str]] = {}  # by the address of what holds the bytes, which is one's own

    def tag(self, tensors: Iterable[Tensor], category: str) -> None:
        """Say what the storages of ``tensors`` are for; those not known yet are followed from now on."""
        for part in _parts(tensors):
            self._follow(part.untyped_storage(), category)

    def tag_rest(self, category: str) -> None:
        """Say what all those are for that count as activations now."""
        for key, (size, known) in list(self._known.items()):
            if known == "activation":
                self._set(key, size, category)

    def __enter__(self) -> LiveStorages:
        self._resize = torch.UntypedStorage.resize_

        def resize_(storage: Any, size: int) -> Any:
            result = self._resize(storage, size)
            if storage._cdata in self._known:
                self._set(storage._cdata, storage.nbytes(), self._known[storage._cdata][1])
            return result

        torch.UntypedStorage.resize_ = resize_  # type: ignore[assignment,method-assign]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(t is not FakeTensor and hasattr(t, "__tensor_flatten__") for t in types):
            return NotImplemented  # a DTensor: what it does with the tensors inside comes here again
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # more than half of all calls
        result = func(*args, **(kwargs or {}))
        for part in _parts((result,) if isinstance(result, Tensor) else tree_leaves(result)):
            self._follow(part.untyped_storage(), None)
        return result

    def _follow(self, storage: torch.UntypedStorage, category: str | None) -> None:
        key = storage._cdata
        known = self._known.get(key)
        if known is None:
            weakref.finalize(storage, self._gone, key).atexit = False
        size, category = storage.nbytes(), category or (known[1] if known else "activation")
        if known != (size, category):
            self._set(key, size, category)

    def _set(self, key: int, size: int, category: str) -> None:
        before, was = self._known.get(key, (0, category))
        self._known[key] = size, category
        self.bytes[was] -= before
        self.bytes[category] += size
        self.changed()

    def _gone(self, key: int) -> None:
        size, category = self._known.pop(key)
        self.bytes[category] -= size
        self.changed()


def _parts(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors with storages of their own that lie in ``values``: the part of a DTensor that lies on this rank."""
    for value in values:
        value = getattr(value, "_local_tensor", value)
        if not isinstance(value, Tensor) or value.is_meta:
            continue
        if value.layout is torch.strided:
            yield value
        elif value.layout is torch.sparse_coo:
            yield from (value._indices(), value._values())


def _nothing() -> None:
    pass
