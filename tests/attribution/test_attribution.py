"""A failing scenario counts against the requirement that owns the cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inbackward.attribution import judge_for_requirement
from inbackward.judging import Outcome, Verdict
from inbackward.scenario import GroupConfig, ModelConfig, Resume, Scenario, ScheduleConfig, SkipBranch

STEP = ScheduleConfig(cls="StepLR", kwargs={"step_size": 1})
TWO = (GroupConfig(match=("@vector",)), GroupConfig())


def judge(
    fails: Callable[[Scenario], bool], verdict: Verdict = Verdict.NOT_EQUIVALENT
) -> Callable[[Scenario], Outcome]:
    def outcome(scenario: Scenario) -> Outcome:
        return Outcome(scenario=scenario, verdict=verdict if fails(scenario) else Verdict.EQUIVALENT, compared=1)

    return outcome


RESUMED = Scenario(requirement="resume", name="mixed", schedule=STEP, groups=TWO, events=(Resume(at=2),))


def test_what_holds_is_judged_once() -> None:
    judged = judge_for_requirement(judge(lambda s: False), RESUMED)
    assert (judged.verdict, judged.scenario) == (Verdict.EQUIVALENT, RESUMED)


@pytest.mark.parametrize("verdict", [Verdict.NOT_EQUIVALENT, Verdict.BROKEN, Verdict.NOT_RUN])
def test_another_requirements_failure_does_not_count(verdict: Verdict) -> None:
    judged = judge_for_requirement(judge(lambda s: s.schedule is not None, verdict), RESUMED)
    assert judged.verdict is Verdict.EQUIVALENT
    assert judged.scenario.events == RESUMED.events
    assert (judged.scenario.schedule, judged.scenario.groups) == (None, ())


def test_the_simpler_case_is_reported_where_it_fails_too() -> None:
    judged = judge_for_requirement(judge(lambda s: bool(s.events)), RESUMED)
    assert judged.verdict is Verdict.NOT_EQUIVALENT
    assert judged.scenario.label == "resume/mixed-alone"
    assert judged.scenario.schedule is None


def test_where_features_meet_the_whole_scenario_counts() -> None:
    judged = judge_for_requirement(judge(lambda s: bool(s.events) and bool(s.groups)), RESUMED)
    assert (judged.verdict, judged.scenario) == (Verdict.NOT_EQUIVALENT, RESUMED)


def test_a_requirement_keeps_the_features_it_needs() -> None:
    scenario = RESUMED.with_(requirement="resume-schedule")
    judged = judge_for_requirement(judge(lambda s: bool(s.events) and s.schedule is not None), scenario)
    assert judged.verdict is Verdict.NOT_EQUIVALENT
    assert judged.scenario.schedule == STEP
    assert judged.scenario.groups == ()


def test_resume_at_zero_is_also_about_a_checkpoint_without_some_state() -> None:
    events = SkipBranch(at=0), SkipBranch(at=1), Resume(at=2)
    scenario = Scenario(requirement="resume-at-zero", model=ModelConfig(branch=True), events=events)
    both = judge_for_requirement(judge(lambda s: len(s.events) == 3), scenario)
    assert both.verdict is Verdict.NOT_EQUIVALENT
    unused = judge_for_requirement(judge(lambda s: bool(s.at(0, SkipBranch))), scenario)
    assert unused.verdict is Verdict.EQUIVALENT, "of a requirement that owns the cause"


def test_plain_owns_no_feature_and_is_blamed_for_none() -> None:
    scenario = RESUMED.with_(requirement="plain")
    assert judge_for_requirement(judge(lambda s: bool(s.events)), scenario).verdict is Verdict.EQUIVALENT
    assert judge_for_requirement(judge(lambda s: True), scenario).verdict is Verdict.NOT_EQUIVALENT
