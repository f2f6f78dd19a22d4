"""Copies of gradients count as gradients; what is no copy does not."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.faults.catching import scenario_of
from torch import Tensor

from inbackward import Implementation, OptimizerInBackward
from inbackward.faults.memory import StashesClones
from inbackward.faults.right import Right
from inbackward.judging import Verdict
from inbackward.scenario import ModelConfig, Scenario
from inbackward.verification import Suite


class StateAnew(torch.optim.Optimizer):
    """Its momentum is another tensor after each step, as hand-written optimizers have it."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    momentum = 0.9 * self.state[p].get("momentum", 0.0) + self.kept(p.grad)
                    self.state[p]["momentum"] = momentum
                    p.sub_(torch.as_tensor(momentum), alpha=group["lr"])

    def kept(self, gradient: Tensor) -> Any:
        return gradient


class StateInNumPy(StateAnew):
    """Its momentum is a NumPy array, another one after each step."""

    def kept(self, gradient: Tensor) -> Any:
        return gradient.numpy()


class Opaque:
    """Shows neither groups nor state, and makes its state in the first backward."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._optimizer = Right(*args, **kwargs)


def test_state_is_no_copy_of_a_gradient() -> None:
    anew = Suite(Implementation.of_optimizer(StateAnew))
    assert anew.judge(scenario_of(anew, "gradient-peak", "deep-stateanew")).verdict is Verdict.EQUIVALENT
    in_numpy = Suite(Implementation.of_optimizer(StateInNumPy))
    assert in_numpy.judge(scenario_of(in_numpy, "gradient-peak", "deep-stateinnumpy")).verdict is Verdict.EQUIVALENT
    opaque = Suite(Implementation.drop_in(Opaque))
    assert opaque.judge(scenario_of(opaque, "gradient-peak", "deep-adamw")).verdict is Verdict.EQUIVALENT


def test_recomputed_activations_are_no_copies_either() -> None:
    model = ModelConfig(layers=12, checkpointing="non-reentrant")
    scenario = Scenario(model=model, iterations=2, expect=("gradient-peak",))
    suite = Suite(Implementation.drop_in(OptimizerInBackward))
    assert suite.judge(scenario).verdict is Verdict.EQUIVALENT


@pytest.mark.parametrize("tracing", [False, True])
def test_the_garbage_collector_and_tracemalloc_are_left_as_found(tracing: bool) -> None:
    before = gc.get_freeze_count()
    suite = Suite(Implementation.drop_in(StashesClones))
    if tracing:
        tracemalloc.start()
    try:
        suite.judge(scenario_of(suite, "gradient-peak", "deep-sgd"))
        assert gc.get_freeze_count() == before
        assert tracemalloc.is_tracing() is tracing
    finally:
        tracemalloc.stop()
