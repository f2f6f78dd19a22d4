"""The page that explains reports shows a report, and leaves no key or quantity out."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from pages import CURVES, SHOWCASE
from test_report_rows import SCHEMA, VALIDATOR

from inbackward.report import Log
from inbackward.report.terminal import HOW_TO_READ

PAGE = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")


def test_its_report_is_valid():
    (block,) = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)
    VALIDATOR.validate(json.loads(block))


def test_every_name_that_a_sink_is_given_is_there():
    held_out = replace(CURVES, plain=replace(CURVES.plain, held_out=((1, 1.0),)))
    names = {name for _, name, *_ in Log(target="mine:Mine", curves=held_out, gradients=SHOWCASE.gradients).series()}
    assert len(names) == 4
    assert [name for name in names if f"| `{name}` |" not in PAGE] == []


@pytest.mark.parametrize("word", [*SCHEMA["properties"], *SCHEMA["$defs"]["requirement"]["properties"], *HOW_TO_READ])
def test_every_word_is_there(word):
    assert f"`{word}`" in PAGE or f'"{word}"' in PAGE
