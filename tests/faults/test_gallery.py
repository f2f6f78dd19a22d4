"""What the gallery covers, and what it says of itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from inbackward.faults import GALLERY, RIGHT
from inbackward.faults.__main__ import page
from inbackward.faults.reports import REPORTS, WITHOUT_FAULT
from inbackward.requirements import CATALOGUE
from inbackward.scenario.configs import STRATEGIES

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("id", CATALOGUE)
def test_each_requirement_has_a_gross_fault_and_a_subtle_one(id: str) -> None:
    assert {fault.subtle for fault in GALLERY if fault.requirement == id} == {True, False}


@pytest.mark.parametrize("number", REPORTS)
def test_each_report_has_a_fault_or_a_reason_why_not(number: int | str) -> None:
    assert any(number in fault.reports for fault in GALLERY) != (number in WITHOUT_FAULT)


def test_names_and_sentences() -> None:
    names = [fault.name for fault in GALLERY]
    assert len(set(names)) == len(names)
    assert not set(names) & set(CATALOGUE), "selfcheck --only takes either"
    for fault in GALLERY:
        assert fault.sentence.endswith("."), fault.name
        assert not fault.sentence.endswith(".."), fault.name
        assert fault.requirement in CATALOGUE
        assert fault.strategy in STRATEGIES
        assert set(fault.reports) <= set(REPORTS)
        assert all(base.__doc__ != fault.target.__doc__ for base in fault.target.__bases__), fault.name


def test_each_requirement_is_held_by_a_right_implementation() -> None:
    alone = {id for id, entry in CATALOGUE.items() if entry.family != "ranks"}
    assert not alone & set.intersection(*(set(right.unsupported) for right in RIGHT))
    assert len({right.name for right in RIGHT}) == len(RIGHT) >= 5


def test_the_page_is_current() -> None:
    assert (DOCS / "faults.md").read_text() == page(), "python -m inbackward.faults > docs/faults.md"


def test_the_room_needs_neither_pytest_nor_hypothesis() -> None:
    code = "import sys, inbackward.faults; print({'pytest', 'hypothesis', '_pytest'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
