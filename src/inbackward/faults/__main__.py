"""``python -m inbackward.faults > docs/faults.md``: the gallery as a page."""

from __future__ import annotations

from collections.abc import Iterator

from inbackward.faults import GALLERY, RIGHT
from inbackward.faults.reports import REPORTS, WITHOUT_FAULT
from inbackward.requirements import CATALOGUE


def page() -> str:
    """The page, in Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    mistakes = len({fault.target for fault in GALLERY})
    yield from (
        "# The faults",
        "",
        "<!-- python -m inbackward.faults > docs/faults.md -->",
        "",
        f"{len(GALLERY)} faults, of {mistakes} mistakes: one that several requirements must find is a fault for each.",
        "*Subtle* ones show in one group, parameter, row, iteration, dtype, rank or moment only. The numbers are those",
        "of the reports at the end. What is done with all of them: [Self-check](selfcheck.md).",
    )
    for id in CATALOGUE:
        yield from ("", f"## {id}", "", "| fault | what is wrong | kind | under | reports |", "|---|---|---|---|---|")
        for fault in (fault for fault in GALLERY if fault.requirement == id):
            kind = "subtle" if fault.subtle else "gross"
            reports = ", ".join(map(str, fault.reports))
            yield f"| `{fault.name}` | {fault.sentence} | {kind} | {fault.strategy} | {reports} |"
    yield from ("", "## Right implementations", "", "| how it steps | what it declares |", "|---|---|")
    for right in RIGHT:
        yield f"| {right.name} | {', '.join(f'`{id}`' for id in right.unsupported)} |"
    yield from ("", "## Reports", "", "| | where | what happened | faults |", "|---|---|---|---|")
    for number, (where, what) in REPORTS.items():
        named = ", ".join(f"`{fault.name}`" for fault in GALLERY if number in fault.reports)
        yield f"| {number} | {where} | {what} | {named or WITHOUT_FAULT[number]} |"


if __name__ == "__main__":
    print(page(), end="")
