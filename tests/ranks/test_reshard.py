"""A checkpoint that goes on over other ranks: what gets lost on the way is found in what was loaded, on its rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from inbackward import OptimizerInBackward
from inbackward.faults.ranks import CountsFromZero, KnowsItsShapes, LosesMoments, LosesThemOnRank2
from inbackward.requirements import CATALOGUE, default_arms
from inbackward.scenario import Scenario
from inbackward.training import as_implementation
from inbackward.verification import Suite

SCENARIOS = {s.name: s for s in CATALOGUE["dcp-reshard"].scenarios(default_arms())}


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
