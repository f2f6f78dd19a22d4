"""Each requirement of the family *ranks* fails for a wrong implementation, at the right place, and for that alone."""

from __future__ import annotations

from contextlib import closing

import pytest
from tests.ranks import faults_by_bucket, faults_of_ranks
from tests.ranks.fault import RankFault, scenario_of

from inbackward import OptimizerInBackward
from inbackward.requirements import CATALOGUE
from inbackward.verification import Suite

FAULTS = [*faults_of_ranks.FAULTS, *faults_by_bucket.FAULTS]
ARMS = ("adamw", "sgd")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.label)
def test_fault_is_caught(fault: RankFault) -> None:
    with closing(Suite(fault.target)) as suite:
        outcome = suite.judge(scenario_of(suite, fault.id, fault.strategy, fault.scenario))
        assert outcome.verdict.value == "not-equivalent", outcome.message
        found = outcome.divergence
        assert found is not None
        assert (found.iteration, found.quantity, found.rank) == (fault.iteration, fault.quantity, fault.ranks[0])
        where = f"rank {fault.ranks[0]}: iteration {fault.iteration}, {fault.quantity} "
        assert outcome.message.startswith(where), outcome.message
        if len(fault.ranks) > 1:
            assert outcome.message.endswith(f"(so on ranks {', '.join(map(str, fault.ranks))})"), outcome.message
        if fault.passes:
            passed = suite.judge(scenario_of(suite, fault.id, fault.strategy, fault.passes))
            assert passed.verdict.value == "equivalent", passed.message


@pytest.mark.parametrize(("id", "strategy", "scenario"), sorted({(f.id, f.strategy, f.scenario) for f in FAULTS}))
def test_the_canonical_class_passes_where_a_fault_is_caught(suite_of, id: str, strategy: str, scenario: str) -> None:
    suite = suite_of(OptimizerInBackward)
    outcome = suite.judge(scenario_of(suite, id, strategy, scenario))
    reordered = id == "token-normalised-loss"
    assert outcome.verdict.value == ("equivalent-within-noise" if reordered else "equivalent"), outcome.message
    assert outcome.compared == outcome.existing > 0


def test_every_requirement_across_ranks_has_a_fault() -> None:
    across = {id for id in CATALOGUE if CATALOGUE[id].family == "ranks"}
    assert {fault.id for fault in FAULTS} >= across - {"dcp-reshard"}  # test_reshard.py has its own


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize(("ranks", "verdict"), [(2, "equivalent"), (3, "equivalent-within-noise")])
def test_dividing_after_the_sum_is_rounding_at_three_ranks(suite_of, arm: str, ranks: int, verdict: str) -> None:
    suite = suite_of(faults_by_bucket.DIVIDED_AFTER, ranks)
    outcome = suite.judge(scenario_of(suite, "ddp", "ddp", f"llama-{arm}"))
    assert outcome.verdict.value == verdict, outcome.message
    assert (outcome.noise_ratio > 0) is (ranks == 3)
    assert outcome.compared == outcome.existing > 0


@pytest.mark.parametrize("arm", ARMS)
def test_multiplying_before_the_sum_is_bitwise_at_three_ranks(suite_of, arm: str) -> None:
    suite = suite_of(faults_by_bucket.BY_BUCKET, 3)
    outcome = suite.judge(scenario_of(suite, "ddp", "ddp", f"llama-{arm}"))
    assert outcome.verdict.value == "equivalent", outcome.message
