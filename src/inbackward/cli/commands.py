"""What each subcommand does: read, call the suite, print, and say with which status to exit."""

from __future__ import annotations

import argparse
import shlex
import sys
from contextlib import closing, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from inbackward.cli.errors import FAILED, NOTHING_PROVED, OK, WrongInput, wrong_input
from inbackward.cli.inputs import prepare, require_id, require_model, require_writable, selected, strategies, under_test
from inbackward.extras import require_extra

if TYPE_CHECKING:
    from inbackward.report import Row, Screen, Showcase, Sink
    from inbackward.requirements import Item
    from inbackward.scenario import Scenario
    from inbackward.training import Implementation
    from inbackward.verification import Suite

REPLAYS = Path(".inbackward")


def verify(arguments: argparse.Namespace) -> int:
    """Judge the selected requirements, print them as they are done, and report."""
    under = strategies(arguments.strategy)
    items = selected(arguments.only, arguments.skip, under)
    implementation, target, again = under_test(arguments)
    suite = prepare(
        implementation,
        arguments,
        profile=arguments.profile,
        seed=arguments.seed,
        model=arguments.model,
        world_size=arguments.world_size,
    )
    from inbackward import report as r
    from inbackward.workers import showcase_apart, workers_for

    for option, path in (("--json", arguments.json), ("--html", arguments.html)):
        if path is not None:
            require_writable(option, path)
    if arguments.html is not None:
        with wrong_input():
            require_extra("plots", "--html")
    with wrong_input():
        sinks = [r.Sink.of(text) for text in arguments.log]
    screen = r.Screen(sys.stdout, sys.stderr)
    screen.print(*r.render_header(target, suite, len({item.id for item in items}), under))
    showcase = None
    try:
        with closing(suite):
            rows = _with_one_shrunk(_judge(suite, items, again, screen, arguments.fail_fast), suite, again, screen)
            if arguments.html is not None or sinks:
                screen.running(len(rows), len(rows), "training for the pictures")
                showcase = showcase_apart(suite, workers_for(suite))
    finally:
        screen.erase()
    try:
        _leave(arguments, target, rows, showcase, sinks)
    finally:  # a full disk must not cost the report on the terminal
        screen.report("", *r.render_details(rows))
        screen.print(*r.render_summary(rows), *r.render_annotations(rows))
        if arguments.list_unsupported:
            screen.print("", *r.render_unsupported(rows))
    if any(row.failed or row.stale for row in rows):
        return FAILED
    return OK if any(row.counts["tensors_compared"] for row in rows) else NOTHING_PROVED


def _leave(
    arguments: argparse.Namespace, target: str, rows: list[Row], showcase: Showcase | None, sinks: list[Sink]
) -> None:
    """Write the files that were asked for, and hand the curves to the sinks."""
    from inbackward import report as r

    if arguments.json is not None:
        r.write_json(arguments.json, r.report(target, arguments.seed, rows))
    if showcase is None:
        return
    if arguments.html is not None:
        r.write_html(arguments.html, target, arguments.seed, rows, showcase)
    for sink in sinks:
        sink.write(r.Log(target=target, rows=rows, curves=showcase.curves, gradients=showcase.gradients))


def replay(arguments: argparse.Namespace) -> int:
    """Judge one scenario from a file and print all its numbers."""
    from inbackward.scenario import Scenario

    try:
        with wrong_input():
            scenario = Scenario.load(arguments.file)
    except OSError as error:
        mend = f"name a file that a failing run saved in {REPLAYS}/"
        raise WrongInput(f"cannot read {arguments.file!r}: {error.strerror}; {mend}") from error
    require_id(scenario.requirement, arguments.file)
    implementation, target, again = under_test(arguments)
    suite = prepare(implementation, arguments)
    require_model(scenario.model, f"{arguments.file}: the model")
    from inbackward.judging import Verdict
    from inbackward.report import Screen, render_outcome

    with redirect_stdout(sys.stderr), closing(suite):
        outcome = suite.explained(suite.judge(scenario))
    Screen(sys.stdout, sys.stderr).report(*render_outcome(outcome, target))
    if arguments.shrink and outcome.verdict.fails:
        _shrink(implementation, scenario, arguments.device, again)
    id = scenario.requirement
    declared = implementation.unsupported.get(id) or implementation.expected_failures.get(id)
    if declared:
        print(f"declared beforehand: {declared}")
    if outcome.verdict.fails:
        return OK if declared else FAILED
    return OK if outcome.compared or outcome.verdict is Verdict.REFUSED else NOTHING_PROVED


def _shrink(implementation: Implementation, scenario: Scenario, device: str, again: list[str]) -> None:
    """Find a simpler scenario that fails likewise, save it, and print it with the line that replays it."""
    from inbackward.shrinking import shrink

    with redirect_stdout(sys.stderr):
        shrunk = shrink(implementation, scenario, device)
    short, command = _told(shrunk, again)
    print("shrunk:", short)
    if command:
        print("replay:", command)


def _told(scenario: Scenario, again: list[str]) -> tuple[str, str]:
    """A scenario in short, and the command that runs it from the file it is saved in; ``""`` where it cannot be."""
    from inbackward.report import save_scenario
    from inbackward.scenario.plain_data import terse

    path = save_scenario(REPLAYS, scenario.label, scenario.to_json())
    return terse(scenario), _command(path, again) if path else ""


def _command(path: Path, again: list[str]) -> str:
    return shlex.join(["inbackward", "replay", str(path), *again])


def requirements(arguments: argparse.Namespace) -> int:
    """Print the catalogue by family, or one entry of it."""
    from inbackward.requirements import CATALOGUE, FAMILIES, page

    if arguments.id is not None:
        require_id(arguments.id, "the command line")
        entry = CATALOGUE[arguments.id]
        print(page(entry.id))
        print(f"family {entry.family}")
        if entry.may_refuse:
            print("R: refusing, before any number changes, is as good as equality")
        if entry.on_ranks:
            print("ranks: run again under strategies")
        return OK
    print(f"{len(CATALOGUE)} requirements")
    print("R: may be refused; ranks: run again under strategies")
    for family in FAMILIES:
        print(f"\n{family}")
        for entry in (e for e in CATALOGUE.values() if e.family == family):
            flags = " ".join(["R"] * entry.may_refuse + ["ranks"] * entry.on_ranks)
            print(f"  {entry.id:<31}{flags:<9}{entry.sentence}")
    return OK


def _judge(suite: Suite, items: list[Item], again: list[str], screen: Screen, fail_fast: bool) -> list[Row]:
    """Requirement after requirement: print its row, and save what failed for a replay."""
    from inbackward import report as r
    from inbackward.workers import judge_all, workers_for

    rows: list[Row] = []
    screen.table()
    screen.running(0, len(items), items[0].key)
    with closing(judge_all(suite, items, workers_for(suite))) as judged:
        for row in judged:
            path = r.save_replay(REPLAYS, row) if row.scenario else None
            if path:
                row = replace(row, entry={**row.entry, "replay": _command(path, again)})
            rows.append(row)
            screen.row(row)
            if row.failed and fail_fast:
                reason = f"--fail-fast ended the run at {row.label}"
                return rows + [r.unreached(item, reason) for item in items[len(rows) :]]
            if len(rows) < len(items):
                screen.running(len(rows), len(items), items[len(rows)].key)
    return rows


def _with_one_shrunk(rows: list[Row], suite: Suite, again: list[str], screen: Screen) -> list[Row]:
    """The rows, the first that failed with a simpler scenario that fails likewise: one is read, and takes seconds."""
    from inbackward.scenario import Scenario
    from inbackward.shrinking import is_quick
    from inbackward.workers import shrink_apart, workers_for

    for index, row in enumerate(rows):
        if row.failed and row.scenario and is_quick(scenario := Scenario.from_json(row.scenario)):
            screen.running(len(rows), len(rows), f"shrinking {row.entry['id']}")
            shrunk = shrink_apart(suite, scenario, workers_for(suite))
            if shrunk is not None:
                short, command = _told(shrunk, again)
                rows[index] = replace(row, shrunk=short, replay_shrunk=command)
            break
    return rows
