"""A failure becomes one that a person can read, and that a fresh process sees again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.ten_thousand import ReadsMomentumOnce, ThawsFresh

from inbackward import OptimizerInBackward, Scenario, shrinking, verify
from inbackward.judging import Outcome, Verdict, judge
from inbackward.scenario import (
    Cast,
    DataConfig,
    Edit,
    Event,
    Freeze,
    GroupConfig,
    ModelConfig,
    Observe,
    OptimizerConfig,
    ParallelConfig,
    Resume,
    ScheduleConfig,
    Snapshot,
    Unfreeze,
)
from inbackward.scenario.simplifying import simplifications, simplified
from inbackward.shrinking import is_quick, plain_optimizer, shrink, shrink_for_report
from inbackward.training import as_implementation
from inbackward.verification import Suite

EVEN = ("@even",)
BUSY: dict[str, Any] = {
    "iterations": 5,
    "model": ModelConfig(bias=True, tied=True, branch=True, dropout=0.2),
    "data": DataConfig(batch=3, length=8),
    "groups": (GroupConfig(match=("@vector",), options={"eps": 0.05}), GroupConfig(reverse=True)),
    "schedule": ScheduleConfig(cls="StepLR", kwargs={"step_size": 1, "gamma": 0.5}),
    "seed": 77,
}


def busy(*events: Event) -> Scenario:
    return Scenario(requirement="freeze-later", name="busy", **BUSY, events=events)


THAWED = busy(
    Observe(at=0, what=("state",)),
    Freeze(at=1, match=EVEN),
    Snapshot(at=1),
    Resume(at=2),
    Unfreeze(at=3, match=EVEN),
    Edit(at=4, value=0.003),
)


@pytest.fixture(scope="module")
def shrunk() -> Scenario:
    return shrink(ThawsFresh, THAWED)


def test_it_keeps_what_the_failure_needs_and_nothing_else(shrunk: Scenario) -> None:
    assert shrunk.name == "busy-shrunk"
    assert shrunk.requirement == THAWED.requirement
    assert [e.kind for e in shrunk.events] == ["freeze", "unfreeze"]
    plainest = Scenario(
        requirement=shrunk.requirement, name=shrunk.name, events=shrunk.events, model=ModelConfig(layers=1)
    )
    assert shrunk == plainest.with_(optimizer=shrunk.optimizer, iterations=shrunk.iterations)
    assert shrunk.optimizer.kwargs == {"lr": 0.01}
    assert shrunk.iterations == 4
    first, now = verify(ThawsFresh, THAWED), verify(ThawsFresh, shrunk)
    assert now.verdict is first.verdict is Verdict.NOT_EQUIVALENT
    assert now.divergence is not None
    assert first.divergence is not None
    assert now.divergence.quantity == first.divergence.quantity
    assert verify(OptimizerInBackward, shrunk).verdict is Verdict.EQUIVALENT


def test_every_step_further_would_lose_the_failure_or_the_sense(shrunk: Scenario) -> None:
    for step in simplifications(shrunk):
        simpler = simplified(shrunk, step)
        if simpler != shrunk:
            met_by_plain = judge(plain_optimizer(None), simpler, torch.device("cpu")).verdict.holds
            assert not (met_by_plain and verify(ThawsFresh, simpler).verdict.fails)


def test_a_fresh_process_fails_alike(shrunk: Scenario, tmp_path: Path) -> None:
    file = tmp_path / "scenario.json"
    file.write_text(shrunk.to_json(), encoding="utf-8")
    assert len(json.loads(shrunk.to_json())["events"]) == 2
    done = subprocess.run(
        [sys.executable, "-m", "inbackward", "replay", str(file), "benchmarks.ten_thousand:ThawsFresh"],
        env={"PYTHONPATH": ".", "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert verify(ThawsFresh, shrunk).message in " ".join(done.stdout.split())


def test_iterations_that_the_failure_does_not_need_go() -> None:
    frozen = Scenario(iterations=7, model=ModelConfig(layers=1), events=(Edit(at=1, name="betas", value=(0.5, 0.6)),))
    assert shrink(ReadsMomentumOnce, frozen).iterations == 2


def test_the_same_arguments_give_the_same_scenario() -> None:
    edited = Edit(at=1, name="betas", value=(0.5, 0.6))
    scenario = Scenario(model=ModelConfig(layers=1), events=(Edit(at=0, value=0.02), edited, Edit(at=2, value=0.02)))
    once, again = (shrink(ReadsMomentumOnce, scenario) for _ in range(2))
    assert once == again
    assert once.events == (edited,)


def test_the_number_of_judgements_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrinking, "CANDIDATES", 4)
    judged: list[str] = []
    judge_one = Suite.judge

    def counted(suite: Suite, scenario: Scenario) -> Outcome:
        judged.append(scenario.digest)
        return judge_one(suite, scenario)

    monkeypatch.setattr(Suite, "judge", counted)
    found = shrink(ThawsFresh, THAWED)
    assert len(set(judged) - {THAWED.digest}) <= 4
    monkeypatch.setattr(Suite, "judge", judge_one)
    assert verify(ThawsFresh, found).verdict.fails


def test_a_report_asks_for_no_shrinking_that_takes_minutes_or_finds_nothing() -> None:
    assert is_quick(THAWED)
    assert not is_quick(THAWED.with_(requirement="no-leak"))
    assert not is_quick(Scenario(parallel=ParallelConfig(strategy="ddp", ranks=2)))
    assert shrink_for_report(Suite(as_implementation(OptimizerInBackward)), THAWED) is None


def test_a_run_that_nobody_could_pass_is_no_simplification() -> None:
    """Loading gives the momentum the dtype of its parameter, which it had not in the run that was never interrupted."""
    sgd = OptimizerConfig(cls="torch.optim:SGD", kwargs={"lr": 0.1, "momentum": 0.9})
    scenario = Scenario(model=ModelConfig(layers=1), optimizer=sgd, events=(Cast(at=1), Resume(at=2)))
    assert judge(plain_optimizer(None), scenario, torch.device("cpu")).verdict is Verdict.NOT_EQUIVALENT


def test_what_holds_cannot_be_shrunk() -> None:
    with pytest.raises(ValueError, match=r"^there is nothing to shrink: freeze-later/busy is equivalent$"):
        shrink(OptimizerInBackward, THAWED)


def test_shrinking_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    edited = Edit(at=1, name="betas", value=(0.5, 0.6))
    shrink(ReadsMomentumOnce, Scenario(iterations=2, model=ModelConfig(layers=1), events=(edited,)))
    assert list(tmp_path.iterdir()) == []
