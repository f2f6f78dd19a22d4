"""What a row of the family *ranks* is about stays in the simpler case that decides whose fault a failure is."""

from __future__ import annotations

import pytest

from inbackward import Implementation, OptimizerInBackward
from inbackward.requirements import CATALOGUE, default_arms
from inbackward.requirements.across_ranks import WITH
from inbackward.scenario import Resume, Scenario, SkipBranch, alone, without
from inbackward.verification import Suite

RANKS = [id for id, entry in CATALOGUE.items() if entry.family == "ranks"]


def subject(scenario: Scenario) -> tuple[object, ...]:
    """The strategy with its options, and what happens that one process has no word in."""
    events = tuple(e for e in scenario.events if isinstance(e, (Resume, SkipBranch)))
    return scenario.parallel, scenario.micro_batches, scenario.model.checkpointing, scenario.token_normalised, events


@pytest.mark.parametrize("id", RANKS)
def test_left_alone_it_keeps_its_subject(id: str) -> None:
    for scenario in CATALOGUE[id].scenarios(default_arms()):
        simple = alone(scenario, frozenset({id, *WITH.get(id, ())}))
        assert subject(simple) == subject(scenario), scenario.label
        assert set(simple.expect) == set(scenario.expect), scenario.label


def test_no_scenario_is_left_where_what_it_is_about_is_not_claimed() -> None:
    """Not a trivial one that would pass in its place."""
    reason = "for a reason"
    for missing, id in (("accumulation", "ranks-accumulation"), ("dcp", "dcp-reshard"), ("unused", "ranks-unused")):
        suite = Suite(Implementation.drop_in(OptimizerInBackward, unsupported={missing: reason}))
        strategies = {s.strategy for s in CATALOGUE[id].scenarios(default_arms())}
        assert not [s for strategy in strategies for s in suite.scenarios(CATALOGUE[id], strategy)], id
        result = suite.run(id, *strategies)
        assert (result.verdict.value, result.message) == ("unsupported", reason)


def test_what_else_meets_in_it_is_only_left_out() -> None:
    suite = Suite(Implementation.drop_in(OptimizerInBackward, unsupported={"global-clip": "for a reason"}))
    left = list(suite.scenarios(CATALOGUE["ranks-accumulation"], "fsdp2"))
    assert left
    assert not any(scenario.clip for scenario in left)


@pytest.mark.parametrize("id", [id for id in RANKS if id in WITH])
def test_what_it_has_of_another_row_goes_where_that_is_not_claimed(id: str) -> None:
    for scenario in CATALOGUE[id].scenarios(default_arms()):
        rest = scenario
        for other in WITH[id]:
            rest = without(rest, other)
        assert subject(rest) != subject(scenario), scenario.label
