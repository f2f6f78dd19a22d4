"""Each of the mistakes that a comparison within noise must be able to see, hidden from it in turn."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from inbackward import Implementation
from inbackward.faults.right import Right
from inbackward.judging.mistakes.gradients import NotStepped, ScaledGradient
from inbackward.judging.mistakes.hyperparameters import ScaledLearningRate
from inbackward.judging.noise import LIMIT, RUNS, Floor, Rounding
from inbackward.judging.power import missing_power, score
from inbackward.scenario import ModelConfig, OptimizerConfig, Scenario
from inbackward.training import Intervention, Trace, train_reference
from inbackward.verification import Suite

CPU = torch.device("cpu")
SCENARIO = Scenario(model=ModelConfig(layers=1), iterations=3)
Rerun = Callable[[Intervention], Trace]


def rerun(intervention: Intervention) -> Trace:
    return train_reference(SCENARIO, CPU, intervention=intervention)


@cache
def floor() -> Floor:
    return Floor(train_reference(SCENARIO, CPU), [rerun(Rounding(seed)) for seed in range(RUNS)])


def hiding(*hidden: Callable[[Any], bool]) -> Rerun:
    """Reference runs in which some mistakes do nothing."""
    return lambda what_if: floor().reference if any(hides(what_if) for hides in hidden) else rerun(what_if)


def scaled_by(factor: float) -> Callable[[Any], bool]:
    return lambda what_if: isinstance(what_if, ScaledGradient) and what_if.factor == factor


def is_a(kind: type) -> Callable[[Any], bool]:
    return lambda what_if: isinstance(what_if, kind)


def test_an_ordinary_run_has_power() -> None:
    assert missing_power(floor(), rerun) == ""
    assert floor().uninformative() == set()


@pytest.mark.parametrize("mistake", [ScaledGradient(1.01), ScaledLearningRate(1.01), ScaledLearningRate(1.0001)])
def test_small_mistakes_score_far_beyond_the_limit(mistake: Intervention) -> None:
    assert score(floor(), rerun(mistake)) > 10 * LIMIT


def test_rounding_itself_scores_within_the_limit() -> None:
    assert 0 < score(floor(), rerun(Rounding(RUNS + 1))) < LIMIT
    assert score(floor(), floor().reference) == 0


def test_a_gradient_off_by_a_hundredth_must_be_seen() -> None:
    assert missing_power(floor(), hiding(scaled_by(1.01))) == ("a gradient scaled by 1.01 would not have been seen")


def test_unless_the_optimizer_is_blind_to_it() -> None:
    assert missing_power(floor(), hiding(is_a(ScaledGradient))) == ""


def test_a_learning_rate_off_by_a_hundredth_must_be_seen() -> None:
    assert missing_power(floor(), hiding(is_a(ScaledLearningRate))) == (
        "a learning rate 1 % too large would not have been seen"
    )


def test_a_parameter_that_is_never_updated_must_be_seen() -> None:
    said = missing_power(floor(), hiding(is_a(NotStepped)))
    shares = {name: share for (quantity, name), share in floor().shares().items() if quantity == "parameter"}
    assert said == f"{max(shares, key=lambda name: shares[name])} never updated would not have been seen"


def test_where_rounding_moves_everything_nothing_can_be_seen() -> None:
    loud = Floor(floor().reference, [rerun(ScaledGradient(-1.0))])
    assert missing_power(loud, rerun) == "rounding alone moves every parameter by more than 1 % of its update"


def test_the_same_mistake_twice_is_the_same_run() -> None:
    first, second = (rerun(NotStepped("head.weight")) for _ in range(2))
    assert score(Floor(first, []), second) == 0


class SignSGD(Optimizer):
    """Without state, and the same for every positive multiple of a gradient."""

    def __init__(self, params: Any, lr: float = 0.01, weight_decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(p.grad.sign(), alpha=-group["lr"])


class SignByHand(Right):
    factor = 1.0

    def update(self, p: Tensor) -> None:
        group = next(g for g in self.param_groups if any(q is p for q in g["params"]))
        lr = group["lr"] * self.factor
        p.detach().sub_(lr * (p.grad.sign() + group["weight_decay"] * p.detach()))


class SignOnePercentHigh(SignByHand):
    factor = 1.01


def test_a_sign_method_is_excused_from_scaled_gradients_and_from_nothing_else() -> None:
    scenario = SCENARIO.with_(optimizer=OptimizerConfig(cls=f"{__name__}:SignSGD", kwargs={}))
    right, wrong = (
        Suite(Implementation.drop_in(cls, optimizers=[SignSGD])).judge(scenario)
        for cls in (SignByHand, SignOnePercentHigh)
    )
    assert right.verdict.value == "equivalent-within-noise", right.message
    assert wrong.verdict.value == "not-equivalent"
