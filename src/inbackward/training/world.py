"""The ranks that judge a scenario together, as one of them sees the others.

Each rank runs the same code over its own part of the tensors. Wherever the next step depends on what was found, the
ranks must take the same one, or the collectives of one would pair with another's: there they ``share`` what they found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 15.0  # seconds that a collective waits for a peer before it raises


class World:
    """One process, alone: there is nobody to agree with. ``ranks.world`` has the one of many."""

    rank = 0
    size = 1

    def share(self, value: T) -> list[T]:
        """What every rank gave, by rank: all wait for each other here. ``value`` is small and picklable."""
        return [value]

    def settle(self, error: BaseException | None) -> frozenset[int]:
        """End a run, given this rank's error; returns the ranks whose errors ended it, the same on every rank.

        A rank that raised wakes those that wait for it in a collective, whose errors then say only that it left; if any
        did, the process group is replaced.
        """
        return frozenset() if error is None else frozenset({0})

    @contextmanager
    def of(self, ranks: int) -> Iterator[None]:
        """Within, only the first so many ranks have a process group; with 0, none has one."""
        yield

    def any(self, flag: bool) -> bool:
        """Whether it is so on any rank."""
        return any(self.share(flag))


ALONE = World()
