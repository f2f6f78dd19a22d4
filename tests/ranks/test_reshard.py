"""A checkpoint that goes on over other ranks: what gets lost on the way is found in what was loaded, on its rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
import torch.distributed as dist

from inbackward import OptimizerInBackward
from inbackward.requirements import CATALOGUE, default_arms
from inbackward.scenario import Scenario
from inbackward.training import as_implementation
from inbackward.verification import Suite

SCENARIOS = {s.name: s for s in CATALOGUE["dcp-reshard"].scenarios(default_arms())}


class LosesMoments(OptimizerInBackward):
    """Loads a checkpoint, and begins its moments anew."""

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        self.lose()

    def lose(self) -> None:
        for entries in self.state.values():
            for key in ("exp_avg", "momentum_buffer"):
                if key in entries:
                    entries[key].zero_()


class LosesThemOnRank2(LosesMoments):
    """Only where there was no rank before, as a cache by rank would."""

    def lose(self) -> None:
        if dist.is_initialized() and dist.get_rank() == 2:
            super().lose()


class CountsFromZero(OptimizerInBackward):
    """Loads everything but how often it has stepped."""

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        for entries in self.state.values():
            entries["step"] = torch.zeros_like(entries["step"])


class KnowsItsShapes(OptimizerInBackward):
    """Takes only a checkpoint of shards as large as its own."""

    def load_state_dict(self, state_dict: Any) -> None:
        if dist.is_initialized() and dist.get_world_size() != 2:
            raise ValueError("the checkpoint is of 2 ranks")
        super().load_state_dict(state_dict)


@pytest.fixture
def judged() -> Iterator[Any]:
    suites: list[Suite] = []

    def judge(cls: type, scenario: Scenario) -> Any:
        suites.append(Suite(as_implementation(cls)))
        return suites[-1].judge(scenario)

    yield judge
    for suite in suites:
        suite.close()


@pytest.mark.parametrize(
    ("cls", "name", "quantity", "entry"),
    [
        (LosesMoments, "to-3-adamw", "state", ".exp_avg"),
        (LosesMoments, "to-1-adamw", "state", ".exp_avg"),
        (LosesMoments, "unsharded-sgd", "state", ".momentum_buffer"),
        (LosesMoments, "from-plain-to-3-adamw", "state", ".exp_avg"),
        (LosesMoments, "async-to-3-adamw", "state", ".exp_avg"),
        (CountsFromZero, "to-4-adamw", "state", ".step"),
    ],
)
def test_what_is_lost_shows_in_what_was_loaded(judged: Any, cls: type, name: str, quantity: str, entry: str) -> None:
    outcome = judged(cls, SCENARIOS[name])
    assert outcome.verdict.value == "not-equivalent", outcome.message
    assert outcome.divergence.iteration == 1, "the last before the checkpoint"
    assert outcome.divergence.quantity == quantity
    assert outcome.divergence.name.endswith(entry)
    assert 0 < outcome.compared <= outcome.existing


def test_the_rank_is_named(judged: Any) -> None:
    outcome = judged(LosesThemOnRank2, SCENARIOS["to-3-adamw"])
    assert outcome.verdict.value == "not-equivalent"
    assert outcome.divergence.rank == 2
    assert outcome.message.startswith("rank 2: iteration 1, state ")


def test_where_the_loss_does_not_come_about_it_is_right(judged: Any) -> None:
    assert judged(LosesThemOnRank2, SCENARIOS["to-1-adamw"]).verdict.value == "equivalent"
    assert judged(LosesMoments, SCENARIOS["into-plain-at-3-adamw"]).verdict.value == "equivalent"


def test_a_refusal_is_none_that_is_allowed(judged: Any) -> None:
    outcome = judged(KnowsItsShapes, SCENARIOS["to-3-adamw"])
    assert outcome.verdict.value == "broken"
    assert "ValueError: the checkpoint is of 2 ranks" in outcome.message
    assert "KnowsItsShapes" not in outcome.message
    assert "load_state_dict" in outcome.traceback


@pytest.mark.parametrize("name", ["to-1-sgd", "to-4-adamw", "unsharded-adamw", "two-groups-to-3-sgd"])
def test_a_right_one_goes_on(name: str) -> None:
    with closing(Suite(as_implementation(OptimizerInBackward))) as suite:
        outcome = suite.judge(SCENARIOS[name])
    assert outcome.verdict.value == "equivalent", outcome.message
    assert outcome.compared == outcome.existing > 0
