"""``zero_grad(set_to_none=False)``: a plain optimizer steps unused parameters on zeros, and an implementation does so
too, or leaves them alone; nothing between."""

from __future__ import annotations

from typing import Any

import pytest
from tests.faults.catching import scenario_of

from inbackward import Implementation
from inbackward.attribution import FREED, judge_for_requirement
from inbackward.faults.right import AtStep, Right
from inbackward.faults.unused import KeepsZeros, ZerosForEverything, ZerosOnce
from inbackward.judging import Outcome, Verdict
from inbackward.requirements import CATALOGUE
from inbackward.verification import Result, Suite


class NoArgument(Right):
    def zero_grad(self) -> None:  # type: ignore[override]
        super().zero_grad()


def judged(target: Any, arm: str) -> Outcome:
    suite = Suite(Implementation.drop_in(target))
    return judge_for_requirement(suite.judge, scenario_of(suite, "unused", f"zeros-{arm}"))


@pytest.mark.parametrize("arm", ["adamw", "sgd"])
@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        (AtStep, Verdict.EQUIVALENT),
        (KeepsZeros, Verdict.EQUIVALENT),
        (Right, Verdict.UNSUPPORTED),
        (ZerosForEverything, Verdict.NOT_EQUIVALENT),
        (ZerosOnce, Verdict.NOT_EQUIVALENT),
    ],
)
def test_zeros_are_met_or_freed(target: Any, verdict: Verdict, arm: str) -> None:
    assert judged(target, arm).verdict is verdict


def test_the_line_says_what_is_done_instead_and_rests_on_numbers() -> None:
    outcome = judged(Right, "sgd")
    assert (outcome.message, outcome.divergence) == (FREED, None)
    assert outcome.scenario.zero_grad == "zeros"
    assert outcome.compared == outcome.existing > 0


def test_a_zero_grad_without_arguments_cannot_be_asked() -> None:
    outcome = judged(NoArgument, "sgd")
    assert (outcome.verdict, outcome.message) == (Verdict.NOT_RUN, "NoArgument.zero_grad() takes no set_to_none")


def result(*verdicts: Verdict, **fields: Any) -> Result:
    scenario = scenario_of(Suite(Implementation.drop_in(Right)), "unused", "zeros-sgd")
    outcomes = tuple(Outcome(scenario=scenario, verdict=verdict, compared=1) for verdict in verdicts)
    return Result(requirement=CATALOGUE["unused"], outcomes=outcomes, **fields)


def test_what_nobody_is_held_to_decides_no_verdict_and_excuses_no_stale_declaration() -> None:
    assert result(Verdict.EQUIVALENT, Verdict.UNSUPPORTED).verdict is Verdict.EQUIVALENT
    assert result(Verdict.NOT_EQUIVALENT, Verdict.UNSUPPORTED).verdict is Verdict.NOT_EQUIVALENT
    assert result(Verdict.UNSUPPORTED).verdict is Verdict.UNSUPPORTED
    assert result(Verdict.EQUIVALENT, Verdict.UNSUPPORTED, declared="never tried").holds_after_all
    assert not result(Verdict.UNSUPPORTED, declared="never tried").holds_after_all
