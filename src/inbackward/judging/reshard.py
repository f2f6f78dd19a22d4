"""The verdict of a run that goes on over other ranks: each half against the reference's."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from inbackward.judging.compare import Mismatch, compare
from inbackward.judging.together import on_all_ranks
from inbackward.judging.verdict import Divergence, Outcome, Verdict, quote
from inbackward.scenario import Scenario
from inbackward.training import Implementation, NotRun, Trace, World, empty
from inbackward.training.reshard import Halves


def judge_resharding(implementation: Implementation, scenario: Scenario, device: torch.device, world: World) -> Outcome:
    """Bit for bit, or not equivalent: in each half both sides do the same arithmetic on the same number of ranks."""
    folder = tempfile.TemporaryDirectory(prefix="inbackward-") if world.rank == 0 else None
    try:
        place = Path(next(name for name in world.share(folder.name if folder else "") if name))
        return _judge(implementation, scenario, device, world, place)
    finally:
        if folder:
            folder.cleanup()


def _judge(
    implementation: Implementation, scenario: Scenario, device: torch.device, world: World, folder: Path
) -> Outcome:
    mine = Halves(implementation, scenario, device, folder / "checkpoint", by_hand=False)
    theirs = Halves(implementation, scenario, device, folder, by_hand=True)
    saved, loaded = mine.event.saved_by, mine.event.loaded_by
    outcome = Outcome(scenario=scenario, verdict=Verdict.EQUIVALENT)
    for parallel, shift, candidate, reference in (
        (scenario.parallel, 0, lambda: mine.first(saved), lambda: theirs.first("plain")),
        (mine.second_parallel, mine.event.at - 1, lambda: mine.second(loaded), lambda: theirs.second("plain")),
    ):
        takes_part = world.rank < parallel.ranks
        with world.of(0 if parallel.strategy == "single" else parallel.ranks):
            found, blamed = on_all_ranks(world, _caught(candidate) if takes_part else empty)
            expected, not_run = on_all_ranks(world, _caught(reference) if takes_part else empty)
        if not_run:
            raise NotRun(next(w for w in world.share(f"the reference raises: {expected.error}") if w))
        if blamed:
            return _broken(outcome, found, shift) if world.rank in blamed else outcome
        comparison = compare(found, expected)
        outcome = replace(
            outcome,
            compared=outcome.compared + comparison.compared,
            existing=outcome.existing + comparison.existing,
            unobserved=outcome.unobserved + comparison.unobserved,
        )
        if world.any(bool(comparison.mismatches)):
            return _unequal(outcome, comparison.mismatches, shift) if comparison.mismatches else outcome
    return outcome


def _caught(run: Callable[[], Trace]) -> Callable[[], Trace]:
    """``run``, whose exceptions are in the trace; an implementation may raise anything."""

    def caught() -> Trace:
        try:
            return run()
        except (KeyboardInterrupt, NotRun):
            raise
        except BaseException as error:
            text = "".join(traceback.format_exception(error))
            return replace(empty(), error=error.with_traceback(None), traceback=text)

    return caught


def _broken(outcome: Outcome, trace: Trace, shift: int) -> Outcome:
    message = quote(trace.error)
    place = Divergence(iteration=max(shift, 0), quantity="exception", name="", detail=message)
    return replace(outcome, verdict=Verdict.BROKEN, message=message, divergence=place, traceback=trace.traceback)


def _unequal(outcome: Outcome, mismatches: list[Mismatch], shift: int) -> Outcome:
    first = min(mismatches, key=lambda m: m.order)
    what = first.detail or "the bits differ"
    place = Divergence(iteration=first.iteration + shift, quantity=first.quantity, name=first.name, detail=what)
    return replace(outcome, verdict=Verdict.NOT_EQUIVALENT, message=str(place), divergence=place)
