"""Exceptions on either side: the reference's own, a refusal, or a crash."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import pytest
from torch import Tensor

from inbackward import Implementation
from inbackward.faults.calls import RaisesKeyError, RefusesWithoutAWord
from inbackward.faults.right import Right
from inbackward.judging import Outcome, Verdict, worst
from inbackward.scenario import Edit, GroupConfig, ModelConfig, OptimizerConfig, Scenario, StepClosure
from inbackward.verification import Suite
from inbackward.wording import named

SMALL = ModelConfig(layers=1)
CLOSURE = Scenario(model=SMALL, events=(StepClosure(at=1),), may_refuse=True)
IMPOSSIBLE = Scenario(model=SMALL, optimizer=OptimizerConfig(kwargs={"lr": -1.0}))


def judged(cls: Any, scenario: Scenario, **fields: Any) -> Outcome:
    return Suite(Implementation.drop_in(cls, **fields)).judge(scenario)


def test_a_refusal_is_good_where_it_is_allowed() -> None:
    outcome = judged(Right, CLOSURE)
    assert outcome.verdict is Verdict.REFUSED
    assert outcome.message == "RuntimeError: step() takes no closure: the update is done inside backward()"
    assert outcome.divergence is None
    assert 0 < outcome.compared == outcome.existing, "the iterations before it were compared"


def test_the_same_exception_is_a_crash_where_it_is_not() -> None:
    outcome = judged(Right, CLOSURE.with_(may_refuse=False))
    assert outcome.verdict is Verdict.BROKEN
    assert outcome.divergence is not None
    assert outcome.divergence.iteration == 1
    assert "RuntimeError" in outcome.traceback


def test_only_some_classes_refuse_and_an_implementation_may_name_more() -> None:
    assert judged(RaisesKeyError, CLOSURE).verdict is Verdict.BROKEN
    assert judged(RaisesKeyError, CLOSURE, refusals=(KeyError,)).verdict is Verdict.REFUSED


def test_a_refusal_says_why() -> None:
    assert judged(RefusesWithoutAWord, CLOSURE).verdict is Verdict.BROKEN


def test_the_references_own_exception_is_to_be_raised() -> None:
    twice = (GroupConfig(), GroupConfig(again=True))
    outcome = judged(Right, Scenario(requirement="duplicate-params", model=SMALL, groups=twice))
    assert outcome.verdict is Verdict.EQUIVALENT
    assert outcome.message == "both raise ValueError: some parameters appear in more than one parameter group"
    assert outcome.compared == outcome.existing == 0


@pytest.mark.parametrize("id", ["plain", "duplicate-params"])
def test_to_raise_alike_at_once_proves_nothing_where_the_requirement_is_not_the_cause(id: str) -> None:
    twice = (GroupConfig(twice=True),)
    outcome = judged(Right, IMPOSSIBLE.with_(requirement=id, groups=twice, may_refuse=True))
    assert outcome.verdict is Verdict.NOT_RUN
    assert outcome.message == "both raise ValueError: Invalid learning rate: -1.0; nothing was compared"


def test_to_raise_alike_later_holds_as_far_as_it_went() -> None:
    betas = (Edit(at=1, name="betas", value=(0.5,)),)
    outcome = judged(Right, Scenario(model=SMALL, events=betas))
    assert outcome.verdict is Verdict.EQUIVALENT
    assert outcome.message.startswith("both raise ValueError: ")
    assert outcome.compared > 0


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class RaisesWordless(Right):
    def step(self, closure: Any = None) -> None:
        raise Wordless


class Exits(Exception):
    def __str__(self) -> str:
        sys.exit(0)


class RaisesExits(Right):
    def step(self, closure: Any = None) -> None:
        raise Exits


class RaisesInColour(Right):
    def step(self, closure: Any = None) -> None:
        raise ValueError("\x1b[31mred\x1b[0m and\na bell \x07")


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (RaisesWordless, "Wordless: its message cannot be had: RuntimeError"),
        (RaisesExits, "Exits: its message cannot be had: SystemExit"),
        (RaisesInColour, "ValueError: red and a bell \\x07"),
    ],
)
@pytest.mark.parametrize("may_refuse", [True, False])
def test_whatever_a_message_holds_it_is_a_line(cls: Any, message: str, may_refuse: bool) -> None:
    outcome = judged(cls, Scenario(model=SMALL, may_refuse=may_refuse))
    assert outcome.verdict is Verdict.BROKEN
    assert outcome.message.startswith(message)


def test_an_interrupt_is_heard_in_a_message_too() -> None:
    class Interrupts(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        named(Interrupts())


class Unclosable(Right):
    def close(self) -> None:
        raise ValueError("it is stuck")


class HalfBuilt(Right):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


@pytest.mark.parametrize("may_refuse", [True, False])
def test_a_close_that_raises_is_the_implementations_own(may_refuse: bool) -> None:
    outcome = judged(Unclosable, Scenario(model=SMALL, may_refuse=may_refuse))
    assert outcome.verdict is Verdict.BROKEN
    assert outcome.message.startswith("ValueError: it is stuck")
    assert "in close" in outcome.traceback


@pytest.mark.parametrize("may_refuse", [True, False])
def test_what_raises_wherever_it_is_touched_is_broken_by_the_first(may_refuse: bool) -> None:
    outcome = judged(HalfBuilt, Scenario(model=SMALL, may_refuse=may_refuse))
    assert outcome.verdict is Verdict.BROKEN
    assert outcome.message.startswith("AttributeError: 'HalfBuilt' object has no attribute ")


class TakesAnyLr(Right):
    def __init__(self, params: Any, optimizer_cls: Any, **kwargs: Any) -> None:
        super().__init__(params, optimizer_cls, **{**kwargs, "lr": abs(kwargs["lr"])})


class RaisesAnother(Right):
    def __init__(self, params: Any, optimizer_cls: Any, **kwargs: Any) -> None:
        assert kwargs["lr"] > 0, "lr"
        super().__init__(params, optimizer_cls, **kwargs)


def test_to_train_on_where_the_reference_raises_is_not_equivalent() -> None:
    outcome = judged(TakesAnyLr, IMPOSSIBLE)
    assert outcome.verdict is Verdict.NOT_EQUIVALENT
    assert outcome.message.startswith("the reference raises ValueError: Invalid learning rate: -1.0; the ")
    assert outcome.divergence is not None
    assert outcome.divergence.quantity == "exception"


def test_to_raise_another_class_is_broken() -> None:
    outcome = judged(RaisesAnother, IMPOSSIBLE)
    assert outcome.verdict is Verdict.BROKEN
    assert "ValueError" in outcome.message
    assert "AssertionError" in outcome.message


class FailsInTheThird(Right):
    def update(self, p: Tensor) -> None:
        super().update(p)
        if self.state[p]["step"] == 3 and p.dim() == 1:
            raise ValueError("third update")


def test_a_crash_says_in_which_iteration() -> None:
    outcome = judged(FailsInTheThird, Scenario(model=SMALL, may_refuse=True))
    assert outcome.verdict is Verdict.BROKEN, "numbers had changed in the third iteration"
    assert outcome.message == "ValueError: third update, but only after numbers had changed"
    assert outcome.divergence is not None
    assert outcome.divergence.iteration == 2


class Interrupted(Right):
    def update(self, p: Tensor) -> None:
        raise KeyboardInterrupt


def test_the_users_own_interrupt_ends_the_run() -> None:
    with pytest.raises(KeyboardInterrupt):
        judged(Interrupted, Scenario(model=SMALL))


class Opaque:
    """Shows neither state nor groups."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._optimizer = Right(*args, **kwargs)

    def step(self) -> None:
        self._optimizer.step()

    def zero_grad(self) -> None:
        self._optimizer.zero_grad()


def test_what_a_handle_hides_is_counted_and_never_equal() -> None:
    shown, hidden = judged(Right, Scenario(model=SMALL)), judged(Opaque, Scenario(model=SMALL))
    assert shown.verdict is hidden.verdict is Verdict.EQUIVALENT
    assert shown.existing == hidden.existing == shown.compared
    parameters, entries, iterations = 12, 3, 4
    assert hidden.compared == hidden.existing - iterations * parameters * entries
    assert hidden.unobserved >= iterations * parameters * entries, "state, and hyperparameters on top"
    assert shown.unobserved == 0


def test_the_worst_verdict_is_the_requirements() -> None:
    order = ["equivalent", "equivalent-within-noise", "refused", "unsupported", "not-run", "not-equivalent", "broken"]
    for better, worse in pairwise(order):
        assert worst([Verdict(better), Verdict(worse), Verdict(better)]) is Verdict(worse)
