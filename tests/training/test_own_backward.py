"""An implementation with a ``backward`` of its own: what it is told, what it is given, and what it is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from inbackward import Implementation, OptimizerInBackward, Scenario, verify
from inbackward.judging import Verdict
from inbackward.scenario import (
    AccessGradient,
    ClipConfig,
    ForeignBackward,
    ModelConfig,
    NonFinite,
    ScalerConfig,
    SecondBackward,
)
from inbackward.training import Moment

RIGHT = OptimizerInBackward.optimizer_in_backward
SMALL = {"model": ModelConfig(layers=1), "iterations": 3}


def without_arguments(optimizer: OptimizerInBackward, loss: Tensor, moment: Moment) -> Tensor | None:
    return RIGHT.backward(optimizer, loss, moment)


def verdict(implementation: Implementation, **fields: Any) -> Verdict:
    return verify(implementation, Scenario(**SMALL, may_refuse=True, **fields)).verdict


@pytest.mark.parametrize(
    ("event", "takes_none"),
    [
        (AccessGradient(at=1, how="autograd-grad"), Verdict.EQUIVALENT),
        (AccessGradient(at=1, how="read"), Verdict.EQUIVALENT),
        (AccessGradient(at=1, how="inputs"), Verdict.NOT_RUN),
        (SecondBackward(at=1), Verdict.NOT_RUN),
    ],
)
def test_arguments_of_backward(event: Any, takes_none: Verdict) -> None:
    right = Verdict.REFUSED if isinstance(event, SecondBackward) else Verdict.EQUIVALENT
    assert verdict(RIGHT, events=(event,)) is right
    assert verdict(replace(RIGHT, backward=without_arguments), events=(event,)) is takes_none


def test_why_it_cannot_run() -> None:
    outcome = verify(replace(RIGHT, backward=without_arguments), Scenario(**SMALL, events=(SecondBackward(at=1),)))
    assert outcome.message == "the implementation's backward takes no **arguments, and so no retain_graph="


def ignores_inputs(optimizer: OptimizerInBackward, loss: Tensor, moment: Moment, **arguments: Any) -> None:
    loss.backward()


def test_one_that_takes_them_and_ignores_them_is_judged() -> None:
    events = (AccessGradient(at=1, how="inputs"),)
    assert verdict(replace(RIGHT, backward=ignores_inputs), events=events) is Verdict.NOT_EQUIVALENT


@pytest.mark.parametrize("how", ["through", "skipped"])
def test_a_pause(how: str) -> None:
    events = (ForeignBackward(at=1, how=how),)
    assert verdict(RIGHT, events=events) is Verdict.EQUIVALENT
    assert verdict(replace(RIGHT, pause=None), events=events).fails


def lenient(optimizer: OptimizerInBackward, loss: Tensor, moment: Moment) -> Tensor | None:
    return RIGHT.backward(optimizer, loss, replace(moment, error_if_nonfinite=False))


def test_error_if_nonfinite_is_told() -> None:
    fields: dict[str, Any] = {
        "clip": ClipConfig(max_norm=0.1, error_if_nonfinite=True),
        "events": (NonFinite(at=1),),
    }
    assert verdict(RIGHT, **fields) is Verdict.EQUIVALENT
    assert verdict(replace(RIGHT, backward=lenient), **fields) is Verdict.NOT_EQUIVALENT


def forgets_to_update(optimizer: OptimizerInBackward, loss: Tensor, moment: Moment) -> None:
    optimizer.backward(loss, scaler=moment.scaler)
    moment.scaler.step(optimizer)


def test_the_scaler_is_its_own_to_step_and_update() -> None:
    """And the loop does not call ``step()`` again, which step hooks would see."""
    fields: dict[str, Any] = {
        "autocast": "float16",
        "scaler": ScalerConfig(init_scale=8.0, growth_interval=1),
        "step_hooks": True,
        "events": (NonFinite(at=1, value="inf"),),
    }
    assert verdict(RIGHT, **fields) is Verdict.EQUIVALENT
    assert verdict(replace(RIGHT, backward=forgets_to_update), **fields).fails


def test_what_it_says_of_itself_is_a_line_each() -> None:
    reason = "one step\n    a backward, \x1b[1msee\x1b[0m README"
    said = replace(RIGHT, name="Mine\n", unsupported={"closure": reason}, expected_failures={"rng": reason})
    assert said.name == "Mine"
    assert said.unsupported == {"closure": "one step a backward, see README"}
    assert said.expected_failures == {"rng": "one step a backward, see README"}
    with pytest.raises(TypeError, match=r"^Implementation\.unsupported is .*; give \{requirement id: reason\}$"):
        replace(RIGHT, unsupported={"closure": " \n"})


def test_a_pause_must_be_callable() -> None:
    with pytest.raises(TypeError, match=r"^Implementation\.pause is 3; give a function or leave it out$"):
        Implementation(build=torch.optim.SGD, pause=3)  # type: ignore[arg-type]
