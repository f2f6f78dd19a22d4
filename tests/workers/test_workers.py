"""Requirements side by side: the same rows as one after the other, and a death costs one of them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from inbackward import Implementation, OptimizerInBackward, Scenario
from inbackward.report import Row
from inbackward.requirements import Item
from inbackward.scenario import ModelConfig, StepClosure
from inbackward.verification import Suite
from inbackward.workers import DIED, judge_all, shrink_apart

IDS = ["rng", "closure", "resume-at-zero", "frozen"]
ITEMS = [Item(id, ("single",)) for id in IDS]


class LeavesAtClosure(OptimizerInBackward):
    """Ends the whole process when it is given a closure, which no other requirement does."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if closure is not None:
            os._exit(7)
        super().step()


class IgnoresClosure(OptimizerInBackward):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()


CLOSURE = Scenario(
    requirement="closure", model=ModelConfig(layers=1, dropout=0.1), may_refuse=True, events=(StepClosure(at=1),)
)


def plain(row: Row) -> Row:
    return replace(row, entry={**row.entry, "seconds": 0.0})


def test_rows_are_the_same_and_in_order_whatever_the_number_of_workers() -> None:
    suite = Suite(Implementation.drop_in(OptimizerInBackward))
    alone = [plain(row) for row in judge_all(suite, ITEMS, 0)]
    assert [row.entry["id"] for row in alone] == IDS
    assert alone == [plain(row) for row in judge_all(suite, ITEMS, 2)]


@pytest.mark.parametrize("declared", [False, True])
def test_a_worker_that_dies_costs_one_requirement(declared: bool) -> None:
    unsupported = {"closure": "it leaves"} if declared else {}
    suite = Suite(Implementation.drop_in(LeavesAtClosure, unsupported=unsupported))
    rows = {row.entry["id"]: row for row in judge_all(suite, ITEMS, 2)}
    assert [rows[id].entry["verdict"] for id in IDS if id != "closure"] == ["equivalent"] * 3
    died = rows["closure"]
    assert died.entry["verdict"] == ("unsupported" if declared else "broken")
    assert died.failed is not declared
    assert died.entry["message"] == ("it leaves" if declared else DIED)


def test_closing_the_rows_ends_the_workers() -> None:
    import multiprocessing

    others = {process.pid for process in multiprocessing.active_children()}  # ranks of this run's own suite

    def workers() -> set[int | None]:
        return {process.pid for process in multiprocessing.active_children()} - others

    rows = judge_all(Suite(Implementation.drop_in(OptimizerInBackward)), ITEMS, 2)
    next(rows)
    assert workers()
    rows.close()
    assert not workers()


def test_one_requirement_too_is_judged_in_a_worker() -> None:
    (row,) = judge_all(Suite(Implementation.drop_in(LeavesAtClosure)), [Item("closure", ("single",))], 1)
    assert row.entry["message"] == DIED


def test_a_failure_shrinks_alike_in_a_worker_and_without() -> None:
    suite = Suite(Implementation.drop_in(IgnoresClosure))
    shrunk = shrink_apart(suite, CLOSURE, 0)
    assert shrunk is not None
    assert shrunk.model == ModelConfig(layers=1)
    assert shrunk == shrink_apart(suite, CLOSURE, 2)


def test_a_worker_that_dies_shrinks_nothing() -> None:
    assert shrink_apart(Suite(Implementation.drop_in(LeavesAtClosure)), CLOSURE, 2) is None
