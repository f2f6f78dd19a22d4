"""For every fault of the gallery that is a known mistake: whether the report of its failure names that one first.

    python benchmarks/detection.py [--only NAME,...] [--write]

Runs each against the requirement that it names, as ``inbackward selfcheck`` does. ``--write`` puts the table into
docs/detection.md. Faults that share code with their what-if prove nothing of the naming; they are counted apart.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

from inbackward.faults import GALLERY, Fault
from inbackward.report.files import write_text
from inbackward.training import as_implementation
from inbackward.verification import Suite

PAGE = Path(__file__).parents[1] / "docs" / "detection.md"
BEGIN, END = "<!-- detection: begin -->\n", "<!-- detection: end -->"
FIRST, AMONG, ANOTHER, NONE = "first", "among those that tie", "no: {}", "none named"


def named(fault: Fault) -> str:
    """Which mistake the report of its failure names: this one first, or among others, or another one."""
    with closing(Suite(as_implementation(fault.target))) as suite:
        result = suite.run(fault.requirement, fault.strategy)
    diagnosis = result.numbers.diagnosis if result.numbers else None
    names = [finding.what_if for finding in diagnosis.findings] if diagnosis else []
    if not names:
        return NONE
    if fault.what_if in names:
        return FIRST if names[0] == fault.what_if else AMONG
    return ANOTHER.format(names[0])


def table(found: dict[Fault, str]) -> str:
    """The figures, then a row a fault."""
    lines = []
    for words, apart in (("share no code with their what-if", False), ("share code with it", True)):
        counted = [said for fault, said in found.items() if fault.shares_code is apart]
        first = sum(said == FIRST for said in counted)
        percent = f", {100 * first / len(counted):.0f} %" if counted else ""
        lines.append(f"Of {len(counted)} faults that {words}, the cause is named first in {first}{percent}.\n")
    lines += ["| fault | requirement | strategy | what-if | named |", "|---|---|---|---|---|"]
    for fault, said in sorted(found.items(), key=lambda item: (item[0].shares_code, item[0].name)):
        shares = " (shares code)" if fault.shares_code else ""
        lines.append(f"| {fault.name} | {fault.requirement} | {fault.strategy} | {fault.what_if}{shares} | {said} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of faults, by commas")
    parser.add_argument("--write", action="store_true", help="put the table into docs/detection.md")
    options = parser.parse_args()
    only = set(options.only.split(",")) - {""}
    if only and options.write:
        parser.error("--write takes the whole gallery, without --only")
    found: dict[Fault, str] = {}
    for fault in GALLERY:
        if fault.what_if and (not only or fault.name in only):
            found[fault] = named(fault)
            print(f"{fault.name:<40}{fault.what_if:<32}{found[fault]}", flush=True)
    print("", table(found), sep="\n")
    if options.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        write_text(PAGE, before + BEGIN + "\n" + table(found) + "\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
