"""The page that explains reports shows a report, and leaves no key or quantity out."""

import json
import re
from pathlib import Path

import pytest
from test_report_rows import SCHEMA, VALIDATOR

from inbackward.report.terminal import HOW_TO_READ

PAGE = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")


def test_its_report_is_valid():
    (block,) = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)
    VALIDATOR.validate(json.loads(block))


@pytest.mark.parametrize("word", [*SCHEMA["properties"], *SCHEMA["$defs"]["requirement"]["properties"], *HOW_TO_READ])
def test_every_word_is_there(word):
    assert f"`{word}`" in PAGE or f'"{word}"' in PAGE
