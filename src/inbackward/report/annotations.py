"""What a public CI shows beside the change: one ``::error`` line for every requirement that fails the run.

GitHub reads workflow commands from a job's output; a line of its own each, escaped by its rules.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from inbackward.report.report import Row

_DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = {**_DATA, ":": "%3A", ",": "%2C"}


def render_annotations(rows: Iterable[Row]) -> list[str]:
    """A line for every row that fails; none where ``GITHUB_ACTIONS`` is not ``true``."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return []
    return [_annotation(row) for row in rows if row.failed or row.stale]


def _annotation(row: Row) -> str:
    title = f"optimizer in backward: {row.label} is {row.verdict}" + (", its declaration is stale" if row.stale else "")
    behaves = [finding["sentence"] for finding in row.entry.get("diagnosis", [])[:1]]
    parts = [row.entry["message"], *behaves, *([f"mend: {row.mend}"] if row.mend else [])]
    return f"::error title={_escaped(title, _PROPERTY)}::{_escaped(chr(10).join(parts), _DATA)}"


def _escaped(text: str, escapes: dict[str, str]) -> str:
    return "".join(escapes.get(character, character) for character in text)
