"""The control arm across ranks: once a session, on all ranks or on none, and what fails it is not judged."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch.distributed as dist

from inbackward import OptimizerInBackward, verification
from inbackward.requirements import CATALOGUE
from inbackward.scenario import Scenario
from inbackward.training import as_implementation
from inbackward.verification import Suite

CANONICAL = as_implementation(OptimizerInBackward)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """The ranks that ran a control arm in a session that has run none yet."""
    monkeypatch.setattr(verification, "HELD", set())
    real, file = verification.control, tmp_path / "runs"
    file.touch()

    def noted(*arguments: Any) -> str:
        with file.open("a") as lines:
            lines.write(f"{dist.get_rank()}\n")
        return real(*arguments)

    monkeypatch.setattr(verification, "control", noted)
    return lambda: sorted(file.read_text().split())


def scenario_of(suite: Suite) -> Scenario:
    return next(suite.scenarios(CATALOGUE["ddp"], "ddp"))


def test_it_is_run_once_for_all_suites(runs):
    for _ in range(2):
        with closing(Suite(CANONICAL)) as suite:
            assert suite.judge(scenario_of(suite)).verdict.value == "equivalent"
            assert suite.judge(scenario_of(suite)).verdict.value == "equivalent"
        assert runs() == ["0", "1"]
    with closing(Suite(CANONICAL, world_size=3)) as suite:
        assert suite.judge(scenario_of(suite)).verdict.value == "equivalent"
    assert runs() == ["0", "0", "1", "1", "2"]


def test_all_ranks_run_it_where_one_does_not_know_of_it(runs):
    def build(*arguments: Any) -> Any:
        if dist.get_rank() == 1:  # as a worker that was started later
            suite._control.clear()
        return CANONICAL.build(*arguments)

    with closing(Suite(replace(CANONICAL, build=build))) as suite:
        for _ in range(2):
            assert suite.judge(scenario_of(suite)).verdict.value == "equivalent"
    assert runs() == ["0", "0", "1", "1"]


def test_what_fails_it_is_not_judged_and_asked_again(runs, monkeypatch):
    monkeypatch.setattr(
        verification,
        "control",
        lambda dtype, device, parallel, world: next(r for r in world.share(f"not on rank {world.rank}") if "1" in r),
    )
    for _ in range(2):
        with closing(Suite(CANONICAL)) as suite:
            outcome = suite.judge(scenario_of(suite))
            assert (outcome.verdict.value, outcome.message) == ("not-run", "not on rank 1")
    assert not verification.HELD
