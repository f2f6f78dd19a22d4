"""Copies of gradients count as gradients; what is no copy does not."""

from __future__ import annotations

import gc
import importlib
import sys
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from tests.faults.catching import scenario_of
from torch import Tensor

from inbackward import Implementation, OptimizerInBackward
from inbackward.faults.memory import StashesClones, StashesNumPy
from inbackward.faults.right import Right
from inbackward.judging import Verdict
from inbackward.scenario import Copy, ModelConfig, Scenario
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


class Late:
    """Counts iterations, for what is not needed before the second one."""

    iterations = 0

    def step(self, *args: Any) -> Any:
        self.iterations += 1
        return super().step(*args)  # type: ignore[misc]


class ImportsLate(Late, OptimizerInBackward):
    """Imports a module in its second backward."""

    def _apply(self, parameters: list[Tensor]) -> None:
        if self.iterations == 1:
            importlib.import_module("large_module")
        super()._apply(parameters)


class CompilesLate(Late, OptimizerInBackward):
    """Compiles in its second backward what it takes of each shape of a gradient."""

    compiled: Any = None

    def _apply(self, parameters: list[Tensor]) -> None:
        if self.iterations == 1:
            self.compiled = self.compiled or torch.compile(lambda tensor: tensor.mul(1.0).norm(), backend="eager")
            for parameter in parameters:
                self.compiled(parameter.grad)
        super()._apply(parameters)


class StashesBehindTables(Late, StashesNumPy):
    """Has a table of its own from the first backward on, and imports another with a module in the second."""

    def copy(self, gradient: Tensor) -> Any:
        if self.iterations == 0:
            self.table = numpy.zeros(100_000)
        else:
            importlib.import_module("large_module")
        return super().copy(gradient)


class LetsGo(Late, Right):
    """Lets go of a large NumPy array when its second backward is over, and of a small one that was made in it."""

    def on_gradient(self, p: Any) -> None:
        if self.iterations == 0:
            self.large = numpy.zeros(100_000)
        else:
            self.small = numpy.zeros(3_000)
        super().on_gradient(p)

    def step(self, *args: Any) -> Any:
        if self.iterations == 1:
            del self.large, self.small
        return super().step(*args)


class Logs(OptimizerInBackward):
    """Gathers a histogram and a text of every gradient in the backward, and lets go of them at ``step()``."""

    def _apply(self, parameters: list[Tensor]) -> None:
        self.histograms: list[Any] = getattr(self, "histograms", [])
        self.text: bytearray = getattr(self, "text", bytearray())
        for parameter in parameters:
            assert parameter.grad is not None
            self.histograms.append(numpy.histogram(parameter.grad.numpy(), 64))
            self.text += "".join(traceback.format_stack()).encode()
        super()._apply(parameters)

    def step(self, *args: Any) -> Any:
        assert sum(counts.nbytes + edges.nbytes for counts, edges in self.histograms) > 2 * 32768
        assert len(self.text) > 2 * 32768
        del self.histograms, self.text
        return super().step(*args)


class KeepsItsHooks(OptimizerInBackward):
    """Its step hooks cannot be taken off."""

    def register_step_post_hook(self, hook: Any) -> Any:
        handle = super().register_step_post_hook(hook)
        handle.remove = self.refuse  # type: ignore[method-assign]
        return handle

    def refuse(self) -> None:
        raise RuntimeError("a hook stays")


@pytest.fixture
def large_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module with code, a table in NumPy's memory, and twenty times as much in Python's as all gradients have."""
    lines = ["import numpy", "TABLE = numpy.zeros(20_000)", "BYTES = bytes(10_000_000)"]
    lines += ["def large(x):", *(f"    x += {n}.5" for n in range(2000))]
    (tmp_path / "large_module.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("large_module", None)


@pytest.mark.usefixtures("large_module")
def test_what_comes_late_with_a_module_is_no_copy() -> None:
    suite = Suite(Implementation.drop_in(ImportsLate))
    assert suite.judge(scenario_of(suite, "gradient-peak", "deep-sgd")).verdict is Verdict.EQUIVALENT
    assert "large_module" in sys.modules


@pytest.mark.usefixtures("large_module")
def test_a_stash_is_seen_behind_tables_and_what_comes_with_a_module() -> None:
    suite = Suite(Implementation.drop_in(StashesBehindTables))
    outcome = suite.judge(scenario_of(suite, "gradient-peak", "deep-sgd"))
    assert outcome.message.startswith("iteration 1, gradient peak: "), outcome.message


@pytest.mark.parametrize("cls", [CompilesLate, Logs, LetsGo])
def test_what_else_is_made_in_a_backward_is_no_copy(cls: type[Any]) -> None:
    suite = Suite(Implementation.drop_in(cls))
    assert suite.judge(scenario_of(suite, "gradient-peak", "deep-sgd")).verdict is Verdict.EQUIVALENT


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


DEEP = Scenario(model=ModelConfig(layers=12), iterations=2, expect=("gradient-peak",))


@pytest.mark.parametrize("tracing", [False, True])
@pytest.mark.parametrize(
    ("cls", "scenario"),
    [
        (StashesClones, DEEP),
        (KeepsItsHooks, DEEP.with_(step_hooks=True)),
        (OptimizerInBackward, DEEP.with_(events=(Copy(at=1, how="deepcopy"),))),
    ],
    ids=["a fault", "what raises at the end", "a copy goes on"],
)
def test_the_garbage_collector_and_tracemalloc_are_left_as_found(
    tracing: bool, cls: type[Any], scenario: Scenario
) -> None:
    before = gc.get_freeze_count()
    suite = Suite(Implementation.drop_in(cls))
    if tracing:
        tracemalloc.start()
    try:
        suite.judge(scenario)
        assert gc.get_freeze_count() == before
        assert tracemalloc.is_tracing() is tracing
    finally:
        tracemalloc.stop()
