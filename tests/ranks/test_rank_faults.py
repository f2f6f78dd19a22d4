"""Each requirement of the family *ranks* fails for a wrong implementation, at the right place, and for that alone."""

from __future__ import annotations

from contextlib import closing

import pytest
from tests.ranks.conftest import SuiteOf
from tests.ranks.where import WHERE

from inbackward import OptimizerInBackward
from inbackward.faults import GALLERY, Fault
from inbackward.faults.across import ByBucket
from inbackward.requirements import CATALOGUE
from inbackward.scenario import Scenario
from inbackward.training import as_implementation
from inbackward.verification import Suite

FAULTS = [fault for fault in GALLERY if fault.strategy != "single"]
ARMS = ("adamw", "sgd")


def scenario_of(suite: Suite, id: str, strategy: str, name: str) -> Scenario:
    """The scenario of a requirement under a strategy by its name, as the suite's implementation is given it."""
    found = {scenario.name: scenario for scenario in suite.scenarios(CATALOGUE[id], strategy)}
    assert name in found, f"{id} under {strategy} has no scenario {name}; it has {', '.join(found)}"
    return found[name]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_caught(fault: Fault) -> None:
    where = WHERE[fault.name]
    with closing(Suite(as_implementation(fault.target))) as suite:
        outcome = suite.judge(scenario_of(suite, fault.requirement, fault.strategy, where.scenario))
        assert outcome.verdict.value == ("broken" if where.quantity == "exception" else "not-equivalent")
        found = outcome.divergence
        assert found is not None
        assert (found.iteration, found.quantity, found.rank) == (where.iteration, where.quantity, where.rank)
        assert outcome.message.startswith(f"rank {where.rank}: "), outcome.message
        if len(where.ranks) > 1:
            assert outcome.message.endswith(f"(so on ranks {', '.join(map(str, where.ranks))})"), outcome.message
        if where.passes:
            passed = suite.judge(scenario_of(suite, fault.requirement, fault.strategy, where.passes))
            assert passed.verdict.value == "equivalent", passed.message


@pytest.mark.parametrize(
    ("id", "strategy", "scenario"), sorted({(f.requirement, f.strategy, WHERE[f.name].scenario) for f in FAULTS})
)
def test_the_canonical_class_passes_where_a_fault_is_caught(
    suite_of: SuiteOf, id: str, strategy: str, scenario: str
) -> None:
    suite = suite_of(OptimizerInBackward)
    outcome = suite.judge(scenario_of(suite, id, strategy, scenario))
    reordered = id == "token-normalised-loss"
    assert outcome.verdict.value == ("equivalent-within-noise" if reordered else "equivalent"), outcome.message
    assert outcome.compared == outcome.existing > 0


def test_the_table_is_of_the_gallery() -> None:
    assert list(WHERE) == [fault.name for fault in FAULTS]


class DividesAfter(ByBucket):
    """The mean of the sum, which at three ranks is rounded otherwise than the sum of thirds."""

    def before(self, bucket):
        pass

    def after(self, bucket):
        bucket.buffer().div_(self.size)


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize(("ranks", "verdict"), [(2, "equivalent"), (3, "equivalent-within-noise")])
def test_dividing_after_the_sum_is_rounding_at_three_ranks(suite_of, arm: str, ranks: int, verdict: str) -> None:
    suite = suite_of(DividesAfter, ranks)
    outcome = suite.judge(scenario_of(suite, "ddp", "ddp", f"llama-{arm}"))
    assert outcome.verdict.value == verdict, outcome.message
    assert (outcome.noise_ratio > 0) is (ranks == 3)
    assert outcome.compared == outcome.existing > 0


@pytest.mark.parametrize("arm", ARMS)
def test_multiplying_before_the_sum_is_bitwise_at_three_ranks(suite_of, arm: str) -> None:
    suite = suite_of(ByBucket, 3)
    outcome = suite.judge(scenario_of(suite, "ddp", "ddp", f"llama-{arm}"))
    assert outcome.verdict.value == "equivalent", outcome.message
