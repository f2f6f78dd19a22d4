"""The report of a self-check: a line a fault, a line a declaration, and what the suite got wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from inbackward.report.report import environment
from inbackward.requirements import CATALOGUE
from inbackward.selfcheck import Check

SCHEMA = "inbackward.selfcheck/1"
WIDTH = 118
SHOWN = {"escaped": "NOT CAUGHT", "accused": "ACCUSED", "stale": "DECLARED WITHOUT NEED"}


def render_header(faults: int, exist: int, right: int, ids: int) -> list[str]:
    """What is run, and on what."""
    here = environment()
    return [
        f"inbackward {here['inbackward']}: self-check; torch {here['torch']}, cpu",
        f"{faults} of {exist} faults; {right} right implementations, {ids} of {len(CATALOGUE)} requirements each",
        "",
        f"{'found':<22}{'seconds':>7}  fault, or right implementation",
    ]


def render_check(check: Check) -> list[str]:
    """One line; none for a requirement that a right implementation holds to."""
    if check.found == "held":
        return []
    found = SHOWN.get(check.found, check.found)
    if check.found == "caught" and check.plain and check.requirement != "plain":
        found += ", by plain too"
    under = "" if check.strategy == "single" else f"@{check.strategy}"
    where = f" {check.scenario}," if check.found != "declared" and check.scenario else ""
    line = f"{found:<22}{check.seconds:>7.1f}  {check.requirement}{under}: {check.name}:{where} {check.message}"
    return [line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."]


def render_summary(checks: Sequence[Check]) -> list[str]:
    """Everything that was run, by what became of it."""
    faults = Counter(check.found for check in checks if check.of_fault)
    right = Counter(check.found for check in checks if not check.of_fault)
    alone = sum(check.found == "caught" and not check.plain for check in checks)
    kinds = len({check.name for check in checks if not check.of_fault})
    return [
        f"faults:  {faults.total()} run: {faults['caught']} caught, {alone} of them not by plain; "
        f"{faults['escaped']} NOT CAUGHT, {faults['not-run']} not run",
        f"right:   {kinds} implementations, {right.total()} checks: {right['held']} held, "
        f"{right['declared']} declared, {right['accused']} ACCUSED, {right['stale']} declared without need, "
        f"{right['not-run']} not run",
    ]


def document(checks: Sequence[Check]) -> dict[str, Any]:
    """The checks as plain data."""
    return {"schema": SCHEMA, "environment": environment(), "checks": [asdict(check) for check in checks]}
