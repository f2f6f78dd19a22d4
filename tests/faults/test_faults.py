"""Each requirement fails for a wrong implementation and passes for a right one."""

from __future__ import annotations

import pytest
from tests.faults import numbers
from tests.faults.fault import Fault, assert_caught, judged
from tests.shapes.mine import Mine

from inbackward.verification import checkable

FAULTS = [*numbers.FAULTS]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.label)
def test_fault_is_caught(fault: Fault) -> None:
    assert_caught(fault)


@pytest.mark.parametrize(("id", "scenario"), sorted({(fault.id, fault.scenario) for fault in FAULTS}))
def test_the_right_base_passes_where_its_faults_are_caught(id: str, scenario: str) -> None:
    outcome = judged(Mine, id, scenario)
    assert outcome.verdict.value == ("refused" if id == "closure" else "equivalent"), outcome.message


def test_every_requirement_has_a_fault() -> None:
    assert {fault.id for fault in FAULTS} >= set(checkable())
