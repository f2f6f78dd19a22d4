"""``docs/scenarios.md``: its example loads and holds, and its tables are those of the code."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from inbackward.scenario import EVENTS, EXPECTATIONS, Edit, Freeze, Resume, Scenario, SkipBranch
from inbackward.scenario.configs import SELECTORS
from inbackward.training.drive import _BEFORE

TEXT = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text(encoding="utf-8")
PARTS = {part.partition("\n")[0]: part for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)}


def code(language: str) -> str:
    (block,) = re.findall(rf"```{language}\n(.*?)```", PARTS["A worked example"], re.DOTALL)
    return str(block)


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def rows(part: str) -> list[list[str]]:
    lines = [line for line in PARTS[part].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_the_worked_example_says_what_is_written_above_it() -> None:
    scenario = Scenario.from_json(code("json"))
    assert (scenario.label, scenario.iterations, len(scenario.groups)) == ("lr-schedule/worked-example", 5, 2)
    assert scenario.schedule is not None
    assert scenario.schedule.factors == ((0.0, 0.5, 1.0),)
    assert [(type(event), event.at) for event in scenario.events] == [
        (SkipBranch, 1),
        (Resume, 2),
        (Freeze, 3),
        (Edit, 3),
    ]


def test_the_code_prints_that_the_example_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("worked-example.json").write_text(code("json"), encoding="utf-8")
    exec(compile(code("python"), "docs/scenarios.md", "exec"), {})
    first, _, rest = capsys.readouterr().out.partition("\n")
    compared, existing = re.fullmatch(r"equivalent (\d+) of (\d+) tensors", first).groups()  # type: ignore[union-attr]
    assert 0 < int(compared) == int(existing)
    assert Scenario.from_json(rest).iterations == 8


def test_the_table_has_every_field() -> None:
    assert [name for row in rows("Fields") for name in quoted(row[0])] == [field.name for field in fields(Scenario)]
    (expected,) = (row[1] for row in rows("Fields") if row[0] == "`expect`")
    assert quoted(expected) == list(EXPECTATIONS)
    assert set(SELECTORS) <= set(quoted(PARTS["Fields"]))


def test_the_table_has_every_event_with_its_fields() -> None:
    listed = {kind: quoted(row[1]) for row in rows("Events") for kind in quoted(row[0])}
    assert set(listed) == set(EVENTS)
    for kind, cls in EVENTS.items():
        own = {field.name for field in fields(cls)} - {"at"}
        assert own <= set(listed[kind]), kind


def test_the_order_of_events_is_that_of_the_loop() -> None:
    steps = re.split(r"^\d\. ", PARTS["The order of events inside an iteration"], flags=re.MULTILINE)[1:]
    kinds = [[name for name in quoted(step) if name in EVENTS] for step in steps]
    assert kinds[0] + kinds[1] == ["resume", *(cls.kind for cls in _BEFORE)]
    assert {kind for step in kinds for kind in step} == set(EVENTS)
