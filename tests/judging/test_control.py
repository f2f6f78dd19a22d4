"""The control arm agrees here, and tells an observer that interferes from a machine that is not deterministic."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

import inbackward.verification
from inbackward import Implementation
from inbackward.faults.right import Right
from inbackward.judging import control
from inbackward.scenario import ModelConfig, Scenario
from inbackward.training.driver import Driver
from inbackward.training.setting import Setting
from inbackward.training.trace import Record
from inbackward.verification import Suite

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_it_agrees_on_this_machine(dtype: str) -> None:
    assert control(dtype, CPU) == ""


def test_it_leaves_the_random_numbers_as_they_were() -> None:
    before = torch.get_rng_state()
    control("float32", CPU)
    assert torch.equal(torch.get_rng_state(), before)


def test_it_catches_an_observer_that_moves_a_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Driver.record

    def disturb(driver: Driver, loss: Tensor | None = None) -> Record:
        found = record(driver, loss)
        for parameter in driver.setting.names:
            parameter.detach().mul_(1 + 2**-20)
        return found

    monkeypatch.setattr(Driver, "record", disturb)
    assert control("float32", CPU).startswith("the observer changed the run: parameter ")


def test_it_catches_an_observer_that_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout takes part in the control run, so a draw on the side changes it."""
    record = Driver.record

    def disturb(driver: Driver, loss: Tensor | None = None) -> Record:
        torch.rand(())
        return record(driver, loss)

    monkeypatch.setattr(Driver, "record", disturb)
    assert control("float32", CPU).startswith("the observer changed the run: parameter ")


def test_it_catches_a_machine_that_is_not_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    loss, calls = Setting.loss, count()

    def drifting(setting: Setting, *args: Any) -> tuple[Tensor, Tensor]:
        reported, scaled = loss(setting, *args)
        return reported, scaled * (1 + next(calls) * 2**-16)

    monkeypatch.setattr(Setting, "loss", drifting)
    said = control("float32", CPU)
    assert said.startswith("this machine is not deterministic: the reference differs from itself at iteration 0, ")


def test_it_says_what_it_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> tuple[Tensor, Tensor]:
        raise RuntimeError("no kernel for this device")

    monkeypatch.setattr(Setting, "loss", fail)
    assert control("float32", CPU) == "the control arm raised RuntimeError: no kernel for this device"


def test_nothing_is_judged_where_it_does_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def distrust(dtype: str, *_: Any) -> str:
        asked.append(dtype)
        return "this machine is not deterministic" if dtype == "float64" else ""

    monkeypatch.setattr(inbackward.verification, "control", distrust)
    monkeypatch.setattr(inbackward.verification, "HELD", set())
    suite = Suite(Implementation.drop_in(Right))
    small = Scenario(model=ModelConfig(layers=1), iterations=1)
    for _ in range(2):
        assert suite.judge(small).verdict.value == "equivalent"
        refused = suite.judge(small.with_(dtype="float64"))
        assert refused.verdict.value == "not-run"
        assert refused.message == "this machine is not deterministic"
        assert refused.compared == refused.existing == 0
    assert asked == ["float32", "float64"], "once a dtype"
