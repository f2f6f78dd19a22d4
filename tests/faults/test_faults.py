"""Each requirement fails for the faults of the gallery that name it, and passes for a right implementation."""

from __future__ import annotations

import pytest
from tests.faults.catching import Where, assert_caught, scenario_of
from tests.faults.where import WHERE

from inbackward.faults import GALLERY, Fault
from inbackward.faults.right import AtStep, Right
from inbackward.training import Implementation
from inbackward.verification import Suite

ALONE = [fault for fault in GALLERY if fault.strategy == "single"]
CASES = [(fault, where) for fault in ALONE for where in WHERE[fault.name]]
RIGHT = Suite(Implementation.drop_in(Right))
AT_STEP = Suite(Implementation.drop_in(AtStep))
REFUSED = ("closure", "deepcopy")


@pytest.mark.parametrize(("fault", "where"), [pytest.param(f, w, id=f"{f.name}-{w.scenario}") for f, w in CASES])
def test_fault_is_caught(fault: Fault, where: Where) -> None:
    assert_caught(fault.target, fault.requirement, where)


@pytest.mark.parametrize(("id", "scenario"), sorted({(f.requirement, w.scenario) for f, w in CASES}))
def test_a_right_one_passes_where_a_fault_is_caught(id: str, scenario: str) -> None:
    """A scenario that no implementation can pass proves nothing about those that it fails."""
    outcome = RIGHT.judge(scenario_of(RIGHT, id, scenario))
    if outcome.verdict.fails:  # what cannot be done inside backward, the plain optimizer in other clothes can
        outcome = AT_STEP.judge(scenario_of(AT_STEP, id, scenario))
    assert outcome.verdict.value == ("refused" if id in REFUSED else "equivalent"), outcome.message


def test_the_table_is_of_the_gallery() -> None:
    assert list(WHERE) == [fault.name for fault in ALONE]
