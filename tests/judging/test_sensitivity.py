"""A relative error of 1e-5 in anything that an update depends on shows in some run of the quick profile."""

from __future__ import annotations

import pytest
import torch

from inbackward.judging.mistakes.gradients import ScaledGradient
from inbackward.judging.mistakes.hyperparameters import Scaled
from inbackward.judging.noise import LIMIT, RUNS, Floor, Rounding
from inbackward.judging.power import score
from inbackward.requirements import CATALOGUE, default_arms
from inbackward.training import Intervention, train_reference

CPU = torch.device("cpu")
ERROR = 1e-5


@pytest.mark.parametrize(
    ("id", "name", "mistake"),
    [
        ("plain", "one-layer-adamw", ScaledGradient(1 + ERROR)),
        ("plain", "long-adamw", Scaled("lr", 1 + ERROR)),
        ("plain", "one-layer-sgd", ScaledGradient(1 + ERROR)),
        ("plain", "one-layer-sgd", Scaled("lr", 1 + ERROR)),
        ("plain", "long-sgd", Scaled("momentum", 1 + ERROR)),
        ("optimizers", "large-eps-adamw", Scaled("eps", 1 + ERROR)),
        ("optimizers", "large-decay-adamw", Scaled("weight_decay", 1 + ERROR)),
        ("optimizers", "large-eps-radam", Scaled("eps", 1 + ERROR)),
        ("dtype", "float64-adamw", Scaled("eps", 1 + ERROR)),
        ("dtype", "float64-adamw", Scaled("weight_decay", 1 + ERROR)),
    ],
)
def test_a_hundred_thousandth_is_caught(id: str, name: str, mistake: Intervention) -> None:
    scenario = next(s for s in CATALOGUE[id].scenarios(default_arms()) if s.name == name)
    reference = train_reference(scenario, CPU)
    floor = Floor(reference, [train_reference(scenario, CPU, intervention=Rounding(seed)) for seed in range(RUNS)])
    assert score(floor, train_reference(scenario, CPU, intervention=mistake)) > LIMIT
