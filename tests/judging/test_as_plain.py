"""A class that does not survive its own checkpoint: whoever steps it inside backward is held to what it does itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inbackward import Implementation, OptimizerInBackward
from inbackward.judging import Outcome, Verdict
from inbackward.scenario import ModelConfig, Observe, OptimizerConfig, Resume, Scenario
from inbackward.scenario.configs import class_path
from inbackward.verification import Suite


class Warms(torch.optim.SGD):
    """Counts in an attribute, which no state dict has, and slows down by it."""

    def __init__(self, params: Any, lr: float = 0.1, momentum: float = 0.9) -> None:
        super().__init__(params, lr, momentum)
        self.calls = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.calls += 1
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            p.grad.div_(self.calls)
        super().step()


class CannotLoad(Warms):
    """And refuses what it has saved."""

    def load_state_dict(self, state_dict: Any) -> None:
        raise KeyError("calls")


class SavesItself(Warms):
    """And saves what only it can read."""

    def state_dict(self) -> Any:
        return {**super().state_dict(), "parameter": self.param_groups[0]["params"][0]}

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "parameter"})


class LosesState(OptimizerInBackward):
    """The mistake that is to be found."""

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict({**state_dict, "state": {}})


class ZeroedByReading(OptimizerInBackward):
    """Another one: its state is gone when somebody looks."""

    def state_dict(self) -> Any:
        saved = super().state_dict()
        for entries in self.state.values():
            entries["momentum_buffer"] = torch.zeros_like(entries["momentum_buffer"])
        return saved


class WrongBefore(OptimizerInBackward):
    """Wrong from the first iteration on."""

    def _apply(self, parameters: Any) -> None:
        for p in parameters:
            p.grad.mul_(1.01)
        super()._apply(parameters)


KEPT: list[Any] = []


class Leaks(OptimizerInBackward):
    """Keeps every parameter it has ever updated, and more."""

    def _apply(self, parameters: Any) -> None:
        KEPT.extend(object() for _ in range(500))
        super()._apply(parameters)


class Remembers(OptimizerInBackward):
    """Goes on as if uninterrupted, which is more than the class does."""

    def state_dict(self) -> Any:
        return {**super().state_dict(), "calls": self._inner.calls}

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "calls"})
        self._inner.calls = state_dict["calls"]


class AllAtStep:
    """The plain optimizer itself."""

    def __new__(cls, params: Any, optimizer_cls: Any, **kwargs: Any) -> Any:
        return optimizer_cls(params, **kwargs)


class HasAName(Warms):
    """Keeps state that belongs to no parameter, for which torch.distributed.checkpoint has no name."""

    def step(self, closure: Any = None) -> None:
        super().step()
        self.state["calls"] = torch.ones(1)  # type: ignore[index]


def judged(cls: Any, optimizer: Any, route: str = "memory", **fields: Any) -> Outcome:
    fields.setdefault("events", (Resume(at=2, route=route),))
    optimizer_config = OptimizerConfig(cls=class_path(optimizer), kwargs={})
    scenario = Scenario(model=ModelConfig(layers=1), optimizer=optimizer_config, iterations=4, **fields)
    implementation = Implementation.drop_in(cls, optimizers=[optimizer])
    return Suite(implementation).judge(scenario)


@pytest.mark.parametrize("route", ["memory", "file", "dcp", "process"])
def test_what_the_plain_optimizer_loses_is_nobodys(route: str) -> None:
    outcome = judged(OptimizerInBackward, Warms, route)
    assert outcome.verdict is Verdict.UNSUPPORTED
    assert outcome.divergence is None
    who = "Warms by itself, by its own state dict," if route == "dcp" else "Warms by itself"
    what = "does not go on as if it had not been saved, loaded or read"
    assert outcome.message == f"{who} {what} (iteration 2, parameter embedding.weight), nor does this"


@pytest.mark.parametrize("route", ["memory", "file", "dcp", "process"])
def test_what_it_refuses_is_refused(route: str) -> None:
    outcome = judged(OptimizerInBackward, CannotLoad, route)
    assert outcome.verdict is Verdict.UNSUPPORTED
    assert "(it raises KeyError: 'calls')" in outcome.message


def test_what_it_saves_is_saved() -> None:
    outcome = judged(OptimizerInBackward, SavesItself, expect=("weights-only",))
    assert outcome.verdict is Verdict.UNSUPPORTED


def test_what_cannot_be_read_is_read_by_nobody() -> None:
    read = (Observe(at=1, what=("dcp",)),)
    outcome = judged(OptimizerInBackward, HasAName, events=read)
    assert outcome.verdict is Verdict.UNSUPPORTED
    assert "(it raises KeyError: 'calls')" in outcome.message
    assert judged(OptimizerInBackward, Warms, events=read).verdict is Verdict.EQUIVALENT
    assert judged(ZeroedByReading, Warms, events=read).verdict is Verdict.NOT_EQUIVALENT


def test_to_come_further_than_the_plain_optimizer_is_no_failure() -> None:
    """The step that is a rehearsal makes the name, which stays with the plain optimizer alone."""
    read = Observe(at=0, what=("dcp",)), Observe(at=1, what=("dcp",))
    outcome = judged(OptimizerInBackward, HasAName, events=read)
    assert outcome.verdict is Verdict.UNSUPPORTED
    assert outcome.compared > 0
    assert judged(WrongBefore, HasAName, events=read).verdict is Verdict.BROKEN


@pytest.mark.parametrize("route", ["memory", "dcp"])
def test_to_lose_more_is_a_failure(route: str) -> None:
    outcome = judged(LosesState, Warms, route)
    assert outcome.verdict is Verdict.NOT_EQUIVALENT
    assert outcome.divergence is not None
    assert outcome.divergence.iteration == 2


def test_to_fail_in_something_else_too_is_a_failure() -> None:
    assert judged(AllAtStep, Warms, expect=()).verdict is Verdict.UNSUPPORTED
    outcome = judged(AllAtStep, Warms, expect=("gradients-freed",))
    assert outcome.verdict is Verdict.NOT_EQUIVALENT
    assert judged(AllAtStep, CannotLoad, expect=()).verdict is Verdict.UNSUPPORTED
    assert judged(AllAtStep, CannotLoad, expect=("gradients-freed",)).verdict.fails
    assert judged(Leaks, Warms, expect=("no-leak",)).verdict is Verdict.NOT_EQUIVALENT


def test_to_go_on_as_if_uninterrupted_is_right_still() -> None:
    assert judged(Remembers, Warms).verdict is Verdict.EQUIVALENT


def test_what_survives_is_held_to_it() -> None:
    assert judged(OptimizerInBackward, torch.optim.AdamW).verdict is Verdict.EQUIVALENT
    assert judged(LosesState, torch.optim.AdamW).verdict is Verdict.NOT_EQUIVALENT


class Copy(torch.optim.AdamW):
    """A class of somebody's that survives."""


def test_so_is_one_of_anothers_that_survives() -> None:
    assert judged(OptimizerInBackward, Copy).verdict is Verdict.EQUIVALENT
    assert judged(LosesState, Copy).verdict is Verdict.NOT_EQUIVALENT


class StartsLate(torch.optim.SGD):
    """Does nothing in its first iterations, as one that estimates something does."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        for group in self.param_groups:
            group["calls"] = 0

    def step(self, closure: Any = None) -> None:
        if self.param_groups[0]["calls"] >= 3:
            super().step()
        for group in self.param_groups:
            group["calls"] += 1


def test_what_moves_nothing_shows_nothing() -> None:
    outcome = judged(OptimizerInBackward, StartsLate, events=(), expect=("moved",))
    assert outcome.verdict is Verdict.EQUIVALENT
    config = OptimizerConfig(cls=class_path(StartsLate), kwargs={})
    scenario = Scenario(model=ModelConfig(layers=1), optimizer=config, iterations=3, expect=("moved",))
    outcome = Suite(Implementation.drop_in(OptimizerInBackward, optimizers=[StartsLate])).judge(scenario)
    assert outcome.verdict is Verdict.NOT_RUN
    assert outcome.message == (
        "StartsLate moves no parameter in 3 iterations of the usual loop, so that nothing is shown"
    )
