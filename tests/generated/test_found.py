"""What generated scenarios have found, as they were shrunk: each holds for a plain optimizer since it was mended."""

from __future__ import annotations

import pytest
import torch

from inbackward import Scenario
from inbackward.judging import Verdict, judge
from inbackward.scenario import Interrupt, ModelConfig, OptimizerConfig, Resume, ScalerConfig
from inbackward.shrinking import plain_optimizer

SMALL = ModelConfig(layers=1)
SGD = OptimizerConfig(cls="torch.optim:SGD", kwargs={"lr": 1e-6, "momentum": 0.9})

FOUND = {
    # a checkpoint held the model, the optimizer and the schedule, and lost the scaler's scale
    "scaler-in-no-checkpoint": Scenario(
        requirement="grad-scaler",
        model=SMALL,
        autocast="float16",
        scaler=ScalerConfig(init_scale=8.0, growth_interval=1),
        events=(Resume(at=2),),
    ),
    # which parameters an interrupted backward had updated was read off their values; these have none
    "interrupted-with-empty-parameters": Scenario(
        requirement="interrupted-backward", model=ModelConfig(layers=1, odd=True), events=(Interrupt(at=2),)
    ),
    # and an update below the resolution of bf16 changes the state alone
    "interrupted-below-resolution": Scenario(
        requirement="interrupted-backward", model=SMALL, dtype="bfloat16", optimizer=SGD, events=(Interrupt(at=0),)
    ),
}


@pytest.mark.parametrize("scenario", FOUND.values(), ids=FOUND.keys())
def test_a_plain_optimizer_holds(scenario: Scenario) -> None:
    outcome = judge(plain_optimizer(None), scenario, torch.device("cpu"))
    assert outcome.verdict is Verdict.EQUIVALENT, outcome.message
