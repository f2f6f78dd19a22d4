"""``docs/implementation.md``: its code runs against the re-created shapes, and its tables are those of the class."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.shapes import hooked, lomo, theirs

from inbackward import Implementation, Scenario, verify
from inbackward.faults.right import Right
from inbackward.judging.judge import REFUSALS
from inbackward.requirements import CATALOGUE
from inbackward.training import Moment
from inbackward.verification import Suite

TEXT = (Path(__file__).parents[2] / "docs" / "implementation.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)

# What the examples' authors have, beside what the example shows.
THEIRS: dict[str, Any] = {
    "Implementation": Implementation,
    "torch": torch,
    "Mine": Right,
    "register_hooks": hooked.register_hooks,
    "Wrapper": hooked.Wrapper,
    "Lomo": lomo.Lomo,
    "theirs": theirs,
    "prepare": theirs.prepare,
    "remove": theirs.remove,
}


def shown(block: str) -> Implementation:
    scope = dict(THEIRS)
    exec(compile(block, "docs/implementation.md", "exec"), scope)
    implementation = scope["implementation"]
    assert isinstance(implementation, Implementation)
    return implementation


def test_there_is_code_for_every_shape() -> None:
    assert len(BLOCKS) == 7


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_code_makes_an_implementation_that_passes(block: str) -> None:
    suite = Suite(shown(block))
    for id, name in (("plain", "one-layer-"), ("lr-schedule", "step-")):
        outcomes = [suite.judge(s) for s in CATALOGUE[id].scenarios(suite.arms) if s.name.startswith(name)]
        assert {outcome.verdict.value for outcome in outcomes} == {"equivalent"}
        assert all(outcome.compared for outcome in outcomes)


def test_what_is_declared_is_not_stale_and_does_not_fail_the_run() -> None:
    suite = Suite(shown(BLOCKS[-1]))
    for id in ("foreign-backward", "two-backwards"):
        result = suite.run(id)
        assert result.found.fails
        assert not result.failed
        assert not result.holds_after_all


def test_the_table_has_every_field_in_order() -> None:
    table = re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)
    assert table == [field.name for field in fields(Implementation)]


def test_the_moment_is_described_whole() -> None:
    (sentence,) = re.findall(r"`moment` is frozen: (.*?)\. With", TEXT, re.DOTALL)
    assert [name for name in re.findall(r"`(\w+)`", sentence) if name != "None"] == [f.name for f in fields(Moment)]


def test_the_exceptions_that_refuse_are_those_of_the_judge() -> None:
    (listed,) = re.findall(r"beside ([\w, ]+) \|", TEXT)
    assert listed.split(", ") == [error.__name__ for error in REFUSALS]


def test_hidden_state_is_counted_as_unobserved() -> None:
    hidden = Implementation.drop_in(Right, state=lambda handle, model: {})
    outcome, shown = (verify(implementation, Scenario()) for implementation in (hidden, Right))
    assert (outcome.verdict.value, shown.verdict.value) == ("equivalent", "equivalent")
    assert outcome.unobserved > shown.unobserved == 0
    assert outcome.compared < outcome.existing == shown.compared
