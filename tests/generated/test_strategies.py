"""Hypothesis draws from the same space, and its scenarios shrink to few features."""

from __future__ import annotations

import random
import subprocess
import sys

import torch
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from inbackward import OptimizerInBackward, Scenario
from inbackward.judging import judge
from inbackward.requirements import default_arms, items
from inbackward.scenario import ModelConfig, Resume, without
from inbackward.scenario.strategies import scenarios
from inbackward.training import as_implementation
from inbackward.verification import COSTLY

ARMS = default_arms()
OURS = as_implementation(OptimizerInBackward)
QUICK = settings(
    max_examples=40, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)
# `--hypothesis-profile thorough` is told by its number of examples; it goes on for hours, with a database.
HOURS = settings.default if settings.default and settings.default.max_examples > 1000 else QUICK
ids = st.sampled_from([item.id for item in items(("single",)) if item.id not in COSTLY])


@given(ids.flatmap(lambda id: scenarios(id, ARMS)))
@QUICK
def test_a_drawn_scenario_reads_back_as_itself(scenario: Scenario) -> None:
    assert Scenario.from_json(scenario.to_json()) == scenario


@given(ids.flatmap(lambda id: scenarios(id, ARMS)))
@HOURS
def test_our_class_holds_in_any_scenario(scenario: Scenario) -> None:
    for id in OURS.unsupported:
        scenario = without(scenario, id)
    outcome = judge(OURS, scenario, torch.device("cpu"))
    assert outcome.verdict.holds, f"{outcome.message}\n{scenario.to_json()}"


def test_a_found_scenario_has_little_more_than_what_was_looked_for() -> None:
    found = find(
        scenarios("resume", ARMS),
        lambda scenario: sum(isinstance(e, Resume) for e in scenario.events) == 2,
        settings=settings(QUICK, max_examples=1000),
        random=random.Random(0),
    )
    assert [e.kind for e in found.events] == ["resume", "resume"]
    assert found.groups == ()
    assert found.schedule is None
    assert found.model == ModelConfig(layers=1, dim=16, heads=1, kv_heads=1, hidden=16)


def test_scenarios_can_be_drawn_without_torch_or_hypothesis() -> None:
    code = (
        "import sys, inbackward.scenario.generator, inbackward.scenario.simplifying\n"
        "print(sorted({'torch', 'hypothesis', 'pytest', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
