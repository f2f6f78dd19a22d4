"""Ranks cost seconds to warm up: a module keeps those of an implementation until its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inbackward.training import as_implementation
from inbackward.verification import Suite

SuiteOf = Callable[..., Suite]


@pytest.fixture(scope="module")
def suite_of() -> Iterator[SuiteOf]:
    """``(implementation, ranks=2)`` to its suite, with the same ranks whenever it is asked for."""
    suites: dict[tuple[int, int], Suite] = {}

    def get(target: Any, ranks: int = 2) -> Suite:
        key = id(target), ranks
        if key not in suites:
            suites[key] = Suite(as_implementation(target), world_size=ranks)
        return suites[key]

    yield get
    for suite in suites.values():
        suite.close()
