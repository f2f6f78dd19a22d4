"""What a wrong implementation behaves like: named where that is shown, and nothing claimed where it is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.judging.by_hand import ByHand, OneElement, OnePercent, OneRow
from torch import Tensor

from inbackward import diagnose
from inbackward.faults.right import AtStep, Right
from inbackward.judging import Diagnosis
from inbackward.judging.what_ifs import MISTAKES
from inbackward.requirements import CATALOGUE
from inbackward.scenario import GroupConfig, ModelConfig, Resume, Scenario, ScheduleConfig

SMALL = Scenario(model=ModelConfig(layers=1), iterations=3)
SCHEDULED = SMALL.with_(schedule=ScheduleConfig(cls="StepLR", kwargs={"step_size": 1, "gamma": 0.5}))
RESUMED = SCHEDULED.with_(iterations=4, events=(Resume(at=2),))
GROUPED = SMALL.with_(groups=(GroupConfig(match=("@vector",), options={"lr": 0.03}), GroupConfig()))


class Changed(Right):
    """Changes the group that an update sees, or the gradient."""

    def narrowed(self, group: dict[str, Any], p: Tensor) -> dict[str, Any]:
        self.times = self.__dict__.setdefault("times", {})
        self.times[p] = self.times.get(p, -1) + 1
        return {**super().narrowed(group, p), **self.change(group, p, self.times[p])}

    def change(self, group: dict[str, Any], p: Tensor, time: int) -> dict[str, Any]:
        return {}


class Hot(Changed):
    def change(self, group: dict[str, Any], p: Tensor, time: int) -> dict[str, Any]:
        return {"lr": group["lr"] * 1.01}


class HotVectors(Changed):
    def change(self, group: dict[str, Any], p: Tensor, time: int) -> dict[str, Any]:
        return {"lr": group["lr"] * 1.5} if p.dim() == 1 else {}


class HotOnce(Changed):
    def change(self, group: dict[str, Any], p: Tensor, time: int) -> dict[str, Any]:
        return {"lr": group["lr"] * 1.5} if time == 1 else {}


class Unscheduled(Changed):
    def change(self, group: dict[str, Any], p: Tensor, time: int) -> dict[str, Any]:
        return {"lr": self.defaults["lr"]}


class UnscheduledAndForgetful(Unscheduled):
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "state": {}})


class HalfAndFlipped(Changed):
    """Two mistakes in one iteration."""

    def change(self, group: dict[str, Any], p: Tensor, time: int) -> dict[str, Any]:
        p.grad.neg_()
        return {"weight_decay": 0.0}


class Noisy(Right):
    """None of the known mistakes."""

    def update(self, p: Tensor) -> None:
        p.grad.add_(torch.linspace(-1, 1, p.numel()).view_as(p) * 1e-3)
        super().update(p)


class FirstGroup(Changed):
    def change(self, group: dict[str, Any], p: Tensor, time: int) -> dict[str, Any]:
        return {"lr": self.param_groups[0]["lr"]}


def diagnosed(cls: Any, scenario: Scenario) -> Diagnosis:
    found = diagnose(cls, scenario)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("cls", "scenario", "what_if", "sentence"),
    [
        (Hot, SMALL, "lr-scaled", "has 1.01 times the learning rate"),
        (HotVectors, SMALL, "lr-scaled", "has 1.5 times the learning rate, in all vectors"),
        (HotOnce, SMALL, "lr-scaled", "has 1.5 times the learning rate, in iteration 1 only"),
        (Unscheduled, SCHEDULED, "lr-frozen", "never sees the scheduler: its learning rate stays that of construction"),
        (FirstGroup, GROUPED, "lr-of-first-group", "uses the learning rate of the first group for all"),
        (
            UnscheduledAndForgetful,
            RESUMED,
            "lr-frozen+state-lost-at-load",
            "never sees the scheduler: its learning rate stays that of construction, and loses all its state at a load",
        ),
        (
            HalfAndFlipped,
            SMALL,
            "sign-flipped+weight-decay-dropped",
            "steps on the gradient with the other sign, and applies no weight decay",
        ),
    ],
)
def test_a_known_mistake_is_named_first(cls: Any, scenario: Scenario, what_if: str, sentence: str) -> None:
    first = diagnosed(cls, scenario).findings[0]
    assert (first.what_if, first.noise_ratio) == (what_if, 0.0)
    assert first.sentence == f"behaves exactly like a loop that {sentence}"


def test_what_agrees_up_to_rounding_is_not_called_exact() -> None:
    first = diagnosed(OnePercent, SMALL).findings[0]
    assert first.what_if == "lr-scaled"
    assert 0 < first.noise_ratio < 8
    assert first.sentence.startswith("is consistent with a loop that has about 1.01 times the learning rate (it is ")


def test_mistakes_that_cannot_be_told_apart_are_all_named() -> None:
    two = GROUPED.with_(
        groups=(GroupConfig(match=("@vector",), options={"lr": 0.03}), GroupConfig(options={"lr": 0.01}))
    )
    names = [finding.what_if for finding in diagnosed(FirstGroup, two).findings]
    assert names == ["lr-of-first-group", "hyperparameters-of-first-group"]


@pytest.mark.parametrize(
    ("cls", "evidence"),
    [
        (Noisy, "it begins in the gradient, or in how it enters the state: all of the state deviates with it"),
        (OneRow, "it begins in the update itself: the state that the gradient went into agrees"),
        (OneElement, "it begins in the update itself: the state that the gradient went into agrees"),
    ],
)
def test_where_no_known_mistake_explains_it_the_evidence_stands_alone(cls: Any, evidence: str) -> None:
    found = diagnosed(cls, SMALL)
    assert found.findings == ()
    assert found.known == len(MISTAKES)
    assert evidence in found.evidence


def test_the_same_factor_in_all_tensors_is_told() -> None:
    assert any(
        line.startswith("there update = 1.01 x the reference's update") for line in diagnosed(Hot, SMALL).evidence
    )


def test_there_is_nothing_to_diagnose_in_a_run_that_holds() -> None:
    for right in (AtStep, ByHand):
        with pytest.raises(ValueError, match="there is nothing to diagnose: plain/default is equivalent"):
            diagnose(right, SMALL)


def test_every_mistake_has_a_name_of_its_own_and_a_page() -> None:
    assert len({what_if.id for what_if in MISTAKES}) == len(MISTAKES)
    assert {what_if.page for what_if in MISTAKES} <= set(CATALOGUE)
