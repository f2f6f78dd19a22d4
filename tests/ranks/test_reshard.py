"""A checkpoint that goes on over other ranks: what gets lost on the way is found in what was loaded, on its rank."""

from __future__ import annotations

import pytest
from tests.ranks.conftest import SuiteOf

from inbackward import OptimizerInBackward
from inbackward.faults.ranks import CountsFromZero, KnowsItsShapes, LosesMoments, LosesThemOnRank2
from inbackward.requirements import CATALOGUE, default_arms

SCENARIOS = {s.name: s for s in CATALOGUE["dcp-reshard"].scenarios(default_arms())}


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
def test_what_is_lost_shows_in_what_was_loaded(
    suite_of: SuiteOf, cls: type, name: str, quantity: str, entry: str
) -> None:
    outcome = suite_of(cls).judge(SCENARIOS[name])
    assert outcome.verdict.value == "not-equivalent", outcome.message
    assert outcome.divergence.iteration == 1, "the last before the checkpoint"
    assert outcome.divergence.quantity == quantity
    assert outcome.divergence.name.endswith(entry)
    assert 0 < outcome.compared <= outcome.existing


def test_the_rank_is_named(suite_of: SuiteOf) -> None:
    outcome = suite_of(LosesThemOnRank2).judge(SCENARIOS["to-3-adamw"])
    assert outcome.verdict.value == "not-equivalent"
    assert outcome.divergence.rank == 2
    assert outcome.message.startswith("rank 2: iteration 1, state ")


def test_where_the_loss_does_not_come_about_it_is_right(suite_of: SuiteOf) -> None:
    assert suite_of(LosesThemOnRank2).judge(SCENARIOS["to-1-adamw"]).verdict.value == "equivalent"
    assert suite_of(LosesMoments).judge(SCENARIOS["into-plain-at-3-adamw"]).verdict.value == "equivalent"


def test_a_refusal_is_none_that_is_allowed(suite_of: SuiteOf) -> None:
    outcome = suite_of(KnowsItsShapes).judge(SCENARIOS["to-3-adamw"])
    assert outcome.verdict.value == "broken"
    assert "ValueError: the checkpoint is of 2 ranks" in outcome.message
    assert "KnowsItsShapes" not in outcome.message
    assert "load_state_dict" in outcome.traceback


@pytest.mark.parametrize("name", ["to-1-sgd", "to-4-adamw", "unsharded-adamw", "two-groups-to-3-sgd"])
def test_a_right_one_goes_on(suite_of: SuiteOf, name: str) -> None:
    outcome = suite_of(OptimizerInBackward).judge(SCENARIOS[name])
    assert outcome.verdict.value == "equivalent", outcome.message
    assert outcome.compared == outcome.existing > 0
