"""``inbackward selfcheck``: is the suite alive on this machine?"""

from __future__ import annotations

import argparse
import difflib
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from inbackward.cli.errors import FAILED, NOTHING_PROVED, OK, WrongInput
from inbackward.cli.inputs import require_writable, strategies

if TYPE_CHECKING:
    from inbackward.faults import Fault


def selfcheck(arguments: argparse.Namespace) -> int:
    """Run the faults and the right implementations, and print what became of each."""
    under = strategies(arguments.strategy) if arguments.strategy else None
    names = [name.strip() for text in arguments.only or () for name in text.split(",")]
    if arguments.json is not None:
        require_writable("--json", arguments.json)
    from inbackward import report as r
    from inbackward.faults import GALLERY, RIGHT
    from inbackward.report import checks
    from inbackward.requirements import items
    from inbackward.selfcheck import check_all

    _require_known(names, [fault.name for fault in GALLERY])
    faults = [f for f in GALLERY if (under is None or f.strategy in under) and _chosen(f, names)]
    ids = [item.id for item in items(("single",)) if under is None or "single" in under]
    if names:
        wanted = {*names, *(fault.requirement for fault in faults)}
        ids = [id for id in ids if id in wanted]
    if not faults:
        raise WrongInput("--only and --strategy leave no fault to run; name fewer strategies, or other faults")
    screen = r.Screen(sys.stdout, sys.stderr)
    screen.print(*checks.render_header(len(faults), len(GALLERY), len(RIGHT), len(ids)))
    done = []
    total = len(faults) + len(RIGHT) * len(ids)
    screen.running(0, total, "the faults")
    try:
        with closing(check_all(faults, RIGHT, ids)) as found:
            for check in found:
                screen.erase()
                for line in checks.render_check(check):
                    screen.print(line)
                done.append(check)
                screen.running(len(done), total, check.name)
    finally:
        screen.erase()
    screen.print("", *checks.render_summary(done))
    if arguments.json is not None:
        r.write_json(arguments.json, checks.document(done))
    if any(check.wrong for check in done):
        return FAILED
    return OK if any(check.found in ("caught", "held") for check in done) else NOTHING_PROVED


def _chosen(fault: Fault, names: list[str]) -> bool:
    return not names or fault.name in names or fault.requirement in names


def _require_known(names: list[str], faults: list[str]) -> None:
    from inbackward.requirements import CATALOGUE

    known = [*faults, *CATALOGUE]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "docs/faults.md lists them"
            raise WrongInput(f"--only names no fault and no requirement {name!r}; {hint}")
