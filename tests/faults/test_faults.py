"""Each requirement fails for a wrong implementation and passes for a right one."""

from __future__ import annotations

import pytest
from tests.faults import (
    faults_of_calls,
    faults_of_checkpoint,
    faults_of_hyperparameters,
    faults_of_loop,
    faults_of_memory,
    faults_of_numbers,
    faults_of_parameters,
)
from tests.faults.fault import Fault, assert_caught, scenario_of
from tests.shapes.mine import AtStep, Mine

from inbackward import Implementation
from inbackward.requirements import items
from inbackward.verification import Suite

FAMILIES = (
    faults_of_numbers,
    faults_of_hyperparameters,
    faults_of_parameters,
    faults_of_calls,
    faults_of_loop,
    faults_of_memory,
    faults_of_checkpoint,
)
FAULTS = [fault for family in FAMILIES for fault in family.FAULTS]

RIGHT = {cls.__name__: Suite(Implementation.drop_in(cls)) for cls in (Mine, AtStep)}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.label)
def test_fault_is_caught(fault: Fault) -> None:
    assert_caught(fault)


@pytest.mark.parametrize(("right", "id", "scenario"), sorted({(f.right.__name__, f.id, f.scenario) for f in FAULTS}))
def test_a_right_one_passes_where_a_fault_is_caught(right: str, id: str, scenario: str) -> None:
    outcome = RIGHT[right].judge(scenario_of(RIGHT[right], id, scenario))
    assert outcome.verdict.value == ("refused" if id in ("closure", "deepcopy") else "equivalent"), outcome.message


def test_every_requirement_has_a_fault() -> None:
    assert {fault.id for fault in FAULTS} >= {item.id for item in items(("single",))}
