"""Where the choices of a drawn scenario come from: the space is written once, and two sources can walk through it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Choices(Protocol):
    """A source of choices. The first option, the lowest number and "no" are the simplest ones, for who simplifies."""

    def integer(self, low: int, high: int) -> int:
        """One of ``low`` … ``high``, both included."""

    def one_of(self, options: Sequence[T]) -> T:
        """One of ``options``, of which there is at least one."""

    def chance(self, share: float) -> bool:
        """Yes in this share of the draws."""


class Seeded:
    """Choices that depend on ``key`` alone: the same on every machine, Python and process.

    Only ``random()`` is asked, the one method whose numbers Python promises never to change for a seed; a text as the
    seed is hashed by SHA-512, not by ``hash()``, which differs from process to process.
    """

    def __init__(self, key: str) -> None:
        self._random = random.Random(key)

    def integer(self, low: int, high: int) -> int:
        return low + int(self._random.random() * (high - low + 1))

    def one_of(self, options: Sequence[T]) -> T:
        return options[self.integer(0, len(options) - 1)]

    def chance(self, share: float) -> bool:
        return self._random.random() < share
