"""What a process comes to hold once is no leak; what it goes on to pile up is one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inbackward import Implementation, OptimizerInBackward
from inbackward.requirements import CATALOGUE
from inbackward.training.leaks import HALF, LAST, find_leak
from inbackward.verification import Suite


class Remembers(OptimizerInBackward):
    """Keeps numbers, and objects that the collector tracks, at some of its steps."""

    steps = 0
    at = range(0)

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        self.__dict__.setdefault("kept", []).extend([float(i)] for i in range(200 if self.steps in self.at else 0))
        self.steps += 1


@pytest.mark.parametrize(
    ("at", "found"), [(range(0), False), (range(HALF + 30, LAST, 1000), False), (range(HALF + 30, 1000, 50), True)]
)
def test_growth_counts_where_it_goes_on(at: range, found: bool) -> None:
    implementation = Implementation.drop_in(type("Mine", (Remembers,), {"at": at}))
    scenario, *_ = Suite(implementation).scenarios(CATALOGUE["no-leak"], "single")
    assert find_leak(implementation, scenario, torch.device("cpu")).startswith("blocks: ") == found
