"""What a rank needs to judge together with others: a store to agree through, and a process group for each scenario."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from inbackward.ranks.connections import open_sockets, shut_down_since
from inbackward.training import PATIENCE, World
from inbackward.wording import named

T = TypeVar("T")

# It lies below the pool's deadline, since a rank that waits in gloo cannot be woken otherwise (design §6).
TIMEOUT = timedelta(seconds=PATIENCE)

# How gloo, and the store, say that a peer has left: the error of a rank that did nothing wrong itself.
PEER_LEFT = ("closed by peer", "reset by peer", "Broken pipe", "Connection refused", "aborted", "Connection was likely")


def at_fault(errors: Mapping[int, str]) -> dict[int, str]:
    """Of the errors by rank those that are not about a peer that left; all of them, if there are no others."""
    own = {rank: text for rank, text in errors.items() if not any(sign in text for sign in PEER_LEFT)}
    return own or dict(errors)


class StoreWorld(World):
    """The ranks of one scenario.

    What they ``share`` goes through the store, never through the group under test: it works when that one is broken.
    """

    def __init__(self, store: Any, rank: int, size: int, device: torch.device) -> None:
        """``store`` is a ``PrefixStore`` over a ``TCPStore``, in which nobody else uses the same keys."""
        self.rank, self.size = rank, size
        self._store, self._device = store, device
        self._port: int = store.underlying_store.port
        self._shared = self._groups = 0
        self._members = size
        self._open()

    def share(self, value: T) -> list[T]:
        self._shared += 1
        self._store.set(f"{self._shared}/{self.rank}", pickle.dumps(value))
        return [pickle.loads(self._store.get(f"{self._shared}/{rank}")) for rank in range(self.size)]

    def settle(self, error: BaseException | None) -> frozenset[int]:
        if error is not None:
            self.leave()
        errors = self.share("" if error is None else named(error))
        failed = {rank: text for rank, text in enumerate(errors) if text}
        if failed:
            self.leave()
            self._open()
        return frozenset(at_fault(failed))

    @contextmanager
    def of(self, ranks: int) -> Iterator[None]:
        before = self._members
        self._become(ranks)
        try:
            yield
        finally:
            self._become(before)

    def _become(self, members: int) -> None:
        if members != self._members:
            self.leave()
            self._members = members
            self._open()

    def leave(self) -> None:
        """Give the group up; peers that wait in a collective of it get an error."""
        if dist.is_initialized():
            with suppress(Exception):
                dist.distributed_c10d._abort_process_group()
            with suppress(Exception):
                dist.destroy_process_group()
            shut_down_since(self._sockets_before, self._port)

    def _open(self) -> None:
        self._groups += 1
        if self.rank < self._members:
            self._init()
        self.share(None)  # or one that is ready early could leave while others still connect

    def _init(self) -> None:
        self._sockets_before = open_sockets()
        dist.init_process_group(
            "gloo" if self._device.type == "cpu" else "nccl",
            store=PrefixStore(f"group{self._groups}", self._store),
            rank=self.rank,
            world_size=self._members,
            timeout=TIMEOUT,
        )
