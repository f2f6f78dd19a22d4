"""``docs/memory.md``: its example runs, its picture is there, and what it names exists; its figures: tests/measure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inbackward import cli
from inbackward.measure.memory import CATEGORIES

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "memory.md").read_text(encoding="utf-8")


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(compile(block, "docs/memory.md", "exec"), {})
    *_, observed, simulated = capsys.readouterr().out.split()
    assert observed == simulated


def test_the_picture_is_there_and_small() -> None:
    (name,) = re.findall(r"!\[[^]]+\]\(([^)]+)\)", TEXT)
    assert (DOCS / name).read_bytes().startswith(b"\x89PNG")
    assert (DOCS / name).stat().st_size < 200_000


def test_every_command_can_be_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []

    def memory(arguments: object) -> int:
        parsed.append(arguments)
        return 0

    monkeypatch.setattr(cli, "memory", memory)
    lines = re.findall(r"^inbackward (memory .*)$|`(--model [^`]+)`|`inbackward (memory [^`]+)`", TEXT, re.MULTILINE)
    assert len(lines) >= 5
    for line in lines:
        given = "".join(line)
        assert cli.main(["memory", *given.removeprefix("memory").split()]) == 0
    assert len(parsed) == len(lines)


def test_the_categories_are_those_there_are() -> None:
    rows = re.findall(r"^\| (\w+)[^|]* \|", TEXT.partition("## What is counted")[2], re.MULTILINE)
    assert [row.rstrip("s") for row in rows if row != "category"] == list(CATEGORIES)
