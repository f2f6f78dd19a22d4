"""What is drawn: the same everywhere, of every kind, legal, with what the requirement is about and nothing it bans."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Any

import pytest
import torch
from benchmarks.ten_thousand import FAULTS, LEAST_SHARE, TOTAL, drawn, restricted, shares, targets

from inbackward import Scenario
from inbackward.judging import Verdict, judge
from inbackward.requirements import CATALOGUE, arms_of, default_arms, items
from inbackward.scenario import Edit, Observe, without
from inbackward.scenario.generator import generate
from inbackward.scenario.space import drawable
from inbackward.scenario.space.rules import COMPANIONS, MAY_REFUSE
from inbackward.shrinking import plain_optimizer

CPU = torch.device("cpu")
ARMS = default_arms()
SINGLE = [item.id for item in items(("single",))]


@cache
def whole_draw() -> list[Scenario]:
    return list(drawn(0, TOTAL))


@pytest.mark.parametrize("id", SINGLE)
def test_every_requirement_has_a_part_of_the_space(id: str) -> None:
    assert drawable(id)
    scenario = generate(0, id, 3, ARMS)
    assert scenario.requirement == id
    assert scenario.name == f"generated-3-{ARMS[3 % len(ARMS)].name}"
    assert scenario.may_refuse == CATALOGUE[id].may_refuse
    assert Scenario.from_json(scenario.to_json()) == scenario


def test_ten_thousand_are_all_different_and_have_every_kind_of_event_often_enough() -> None:
    scenarios = whole_draw()
    assert len({scenario.digest for scenario in scenarios}) == TOTAL
    rare = {kind: share for kind, share in shares(scenarios).items() if share < LEAST_SHARE}
    assert not rare


def test_another_process_draws_the_same() -> None:
    code = "from benchmarks.ten_thousand import drawn; print(*(s.digest for s in drawn(0, 300)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ".", "PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [scenario.digest for scenario in drawn(0, 300)]


def test_seeds_ids_and_indexes_draw_different_runs() -> None:
    keys = [(seed, id, index) for seed in (0, 7) for id in ("plain", "resume") for index in (0, 2)]
    assert len({generate(seed, id, index, ARMS).digest for seed, id, index in keys}) == len(keys)


def test_what_the_requirement_is_about_is_always_there() -> None:
    """Where there is anything to take out: `plain` and `gradient-freed` are about every run."""
    owned = {id for id in SINGLE for s in whole_draw()[:500] if without(s, id) != s}
    assert len(owned) > 40
    for id in owned:
        for index in range(30):
            scenario = generate(1, id, index, ARMS)
            assert without(scenario, id) != scenario, scenario.label


@pytest.mark.parametrize("owner", MAY_REFUSE)
def test_what_may_be_refused_stays_with_its_requirement(owner: str) -> None:
    homes = {owner, *(id for id, companions in COMPANIONS.items() if owner in companions)}
    assert all(CATALOGUE[id].may_refuse for id in homes)
    for scenario in whole_draw()[:2000]:
        assert scenario.requirement in homes or without(scenario, owner) == scenario


def test_a_plain_optimizer_holds_in_what_is_drawn() -> None:
    """The space is legal: it has nothing that nobody could pass. But a plain optimizer keeps gradients, and reading
    its dictionary for torch.distributed.checkpoint changes it."""
    for scenario in drawn(0, 80):
        read = tuple(e for e in scenario.events if not (isinstance(e, Observe) and "dcp" in e.what))
        outcome = judge(plain_optimizer(None), scenario.with_(expect=(), events=read), CPU)
        assert outcome.verdict is Verdict.EQUIVALENT, f"{scenario.label}: {outcome.message}"


@pytest.mark.parametrize(("name", "start"), [("ours", 0), ("ours", 80), ("ours", 160), ("tutorial", 240)])
def test_a_right_implementation_is_not_accused(name: str, start: int) -> None:
    implementation = targets()[name]
    for scenario in drawn(start, 80):
        outcome = judge(implementation, restricted(scenario, implementation), CPU)
        assert not outcome.verdict.fails, f"{scenario.label}: {outcome.message}"
        assert name != "ours" or outcome.verdict in (Verdict.EQUIVALENT, Verdict.REFUSED)


@pytest.mark.parametrize(
    ("name", "id"),
    [("SkipsZeroGradients", "gradient-scale"), ("ThawsFresh", "freeze-later"), ("ReadsMomentumOnce", "lr-schedule")],
)
def test_a_subtle_fault_is_caught(name: str, id: str) -> None:
    """In few of the scenarios, and our class, which differs from it in a few lines, holds there."""
    assert name in FAULTS
    for index in range(40):
        run = restricted(generate(0, id, index, ARMS), targets()[name])
        if judge(targets()[name], run, CPU).verdict is Verdict.NOT_EQUIVALENT:
            assert judge(targets()["ours"], run, CPU).verdict is Verdict.EQUIVALENT
            return
    pytest.fail(f"{name} was not caught")


class ThreeBetas(torch.optim.SGD):
    def __init__(self, params: Any, betas: tuple[float, float, float] = (0.9, 0.95, 0.99)) -> None:
        super().__init__(params, lr=0.1)
        for group in self.param_groups:
            group.setdefault("betas", betas)
        self.defaults["betas"] = betas


def test_as_many_betas_are_drawn_as_a_class_has() -> None:
    arms, ids = arms_of([(ThreeBetas, {})]), ("param-groups", "weight-decay-schedule")
    scenarios = [generate(0, id, index, arms) for id in ids for index in range(40)]
    scenarios += [scenario for id in ids for scenario in CATALOGUE[id].scenarios(arms)]
    betas = [g.options["betas"] for s in scenarios for g in s.groups if "betas" in g.options]
    edits = [e.value for s in scenarios for e in s.events if isinstance(e, Edit) and e.name == "betas"]
    assert {len(found) for found in betas} == {len(found) for found in edits} == {3}
