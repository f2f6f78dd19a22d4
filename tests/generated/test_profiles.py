"""How many scenarios are generated for a requirement, and what an implementation is given of them."""

from __future__ import annotations

import pytest

from inbackward import Implementation, OptimizerInBackward, Scenario
from inbackward.requirements import CATALOGUE, default_arms
from inbackward.scenario import Resume
from inbackward.scenario.generator import generate
from inbackward.training import as_implementation
from inbackward.verification import COSTLY, PROFILES, Suite, table_arms


def generated(id: str, implementation: Implementation | None = None, **options: object) -> list[Scenario]:
    suite = Suite(implementation or as_implementation(OptimizerInBackward), **options)  # type: ignore[arg-type]
    return [s for s in suite.scenarios(CATALOGUE[id]) if s.name.startswith("generated-")]


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_counts_the_generated_scenarios_of_a_requirement(profile: str) -> None:
    assert len(generated("plain", profile=profile)) == PROFILES[profile]
    assert len(generated(COSTLY[0], profile=profile)) == PROFILES[profile] // 10


def test_a_larger_profile_begins_with_the_smaller_one() -> None:
    quick, ci = generated("resume"), generated("resume", profile="ci")
    assert ci[: len(quick)] == quick
    assert quick == generated("resume")


def test_another_seed_draws_others_and_the_fixed_ones_keep_their_names() -> None:
    suites = [Suite(as_implementation(OptimizerInBackward), seed=seed) for seed in (0, 7)]
    here, there = ([s.name for s in suite.scenarios(CATALOGUE["rng"])] for suite in suites)
    assert here == there
    assert generated("rng")[0].digest != generated("rng", seed=7)[0].digest


def test_both_arms_take_their_turn() -> None:
    assert [s.optimizer.cls for s in generated("plain")] == ["torch.optim:AdamW", "torch.optim:SGD"]


def test_every_optimizer_takes_its_turn_where_they_are_what_it_is_about() -> None:
    names = {s.optimizer.cls for s in generated("optimizers", profile="thorough")}
    assert names == {arm.config.cls for arm in table_arms()}
    assert len(names) > 10


def test_what_is_declared_unsupported_is_left_out() -> None:
    without = Implementation.drop_in(OptimizerInBackward, unsupported={"resume": "not here"})
    drawn = [generate(0, "plain", index, default_arms()) for index in range(PROFILES["ci"])]
    assert any(isinstance(e, Resume) for s in drawn for e in s.events)
    assert not any(isinstance(e, Resume) for s in generated("plain", without, profile="ci") for e in s.events)
