"""Optimizers that average their iterates want to be told whether they train: the loops tell them, as a user would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from inbackward import Implementation, Scenario, verify
from inbackward.scenario import OptimizerConfig, Resume
from inbackward.scenario.configs import class_path


class Averaging(torch.optim.SGD):
    """Counts in its groups, and steps only where it was told that it trains, as schedule-free optimizers do."""

    def train(self) -> None:
        for group in self.param_groups:
            group["training"] = True

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            if not group.get("training"):
                raise RuntimeError("it was not told to train()")
            group["k"] = group.get("k", 0) + 1
        super().step()


class Untold:
    """Hides `train()` from the loop."""

    def __init__(self, params: Any, optimizer_cls: Callable[..., Any], **kwargs: Any) -> None:
        self.inner = optimizer_cls(params, **kwargs)

    def step(self) -> None:
        self.inner.step()

    def zero_grad(self) -> None:
        self.inner.zero_grad()


ARM = OptimizerConfig(cls=class_path(Averaging), kwargs={"lr": 0.1, "momentum": 0.9})


@pytest.mark.parametrize("events", [(), (Resume(at=2, route="memory"),)], ids=["through", "resumed"])
def test_both_loops_tell_it(events: Any) -> None:
    scenario = Scenario(optimizer=ARM, events=events)
    outcome = verify(Implementation.of_optimizer(Averaging, lr=0.1, momentum=0.9), scenario)
    assert (outcome.verdict.value, outcome.message) == ("equivalent", "")
    assert outcome.compared == outcome.existing > 0


def test_one_that_passes_nothing_on_is_broken() -> None:
    one = Implementation.drop_in(Untold, optimizers=[Averaging], state=lambda handle, model: handle.inner)
    outcome = verify(one, Scenario(optimizer=ARM))
    assert (outcome.verdict.value, outcome.message) == ("broken", "RuntimeError: it was not told to train()")
