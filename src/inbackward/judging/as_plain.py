"""Whether a run fails only where the plain optimizer, saved, loaded and read in the same way, does the same.

The reference is never interrupted, and torch's own optimizers go on from a checkpoint as if they had not been either.
Others need not: one keeps a counter that is in no state dict, or state that a checkpoint cannot take. Nobody who steps
such a class inside backward can be held to more.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from inbackward.judging.compare import compare
from inbackward.judging.expectations import unmet
from inbackward.judging.together import on_all_ranks
from inbackward.judging.verdict import Outcome, Verdict, quote
from inbackward.scenario import Event, Observe, Resume, Scenario
from inbackward.training import Implementation, Trace, World, optimizer_class, train_in_backward, train_plain
from inbackward.training.remembering import reference_run
from inbackward.training.reshard import resharding


def may_not_survive(scenario: Scenario) -> bool:
    """Whether the scenario saves, loads or reads an optimizer of which it is not known that it goes on as before."""
    touched = any(isinstance(event, Resume | Observe) for event in scenario.events) and not resharding(scenario)
    return touched and not scenario.optimizer.of_torch and "no-leak" not in scenario.expect


def as_plain(
    outcome: Outcome, implementation: Implementation, scenario: Scenario, device: torch.device, world: World
) -> Outcome:
    """The outcome of a run that fails; ``unsupported`` where the plain optimizer fails by the same numbers.

    It may do so by the scenario's own route, or in the place of ``torch.distributed.checkpoint`` by its own state dict:
    the step by which the former looks for state counts in an attribute, and no implementation has to.
    """
    candidate, blamed = on_all_ranks(world, lambda: train_in_backward(implementation, scenario, device))
    reference, _ = on_all_ranks(world, lambda: reference_run(scenario, device, implementation))
    others = scenario.with_(expect=tuple(e for e in scenario.expect if e != "weights-only"))  # that is compared below
    flawed = bool(candidate.records) and unmet(others, candidate, reference) is not None
    by_itself = f"{optimizer_class(scenario.optimizer.cls, implementation).__name__} by itself"
    for saved in dict.fromkeys((scenario, _by_state_dict(scenario))):
        who = by_itself if saved == scenario else f"{by_itself}, by its own state dict,"
        plain, blamed_too = on_all_ranks(world, lambda saved=saved: train_plain(implementation, saved, device))  # type: ignore[misc]
        found = world.share(_difference(plain, reference) or next(iter(_unsafe(plain)), ""))
        why = next((difference for difference in found if difference), "")
        alike = blamed == blamed_too and (_is_as(plain, candidate) or _goes_further(candidate, plain, reference))
        alike = alike and not flawed
        if why and not world.any(not alike):
            message = f"{who} does not go on as if it had not been saved, loaded or read ({why}), nor does this"
            return replace(outcome, verdict=Verdict.UNSUPPORTED, message=message, divergence=None, traceback="")
    return outcome


def _is_as(plain: Trace, candidate: Trace) -> bool:
    """Whether a candidate goes as the plain run, and saves what that saves."""
    return not _difference(candidate, plain) and _unsafe(candidate) == _unsafe(plain)


def _goes_further(candidate: Trace, plain: Trace, reference: Trace) -> bool:
    """Whether a candidate raises what the plain run raises, and is the uninterrupted run for as long or longer."""
    same = candidate.error is not None and _raised(candidate) == _raised(plain)
    return same and len(candidate.records) >= len(plain.records) and not compare(candidate, reference).mismatches


def _raised(trace: Trace) -> str:
    """What it raised, in this process or in another."""
    return quote(trace.error).removeprefix("RuntimeError: in the process that resumes: ")


def _by_state_dict(scenario: Scenario) -> Scenario:
    def instead(event: Event) -> Event:
        return replace(event, route="memory") if isinstance(event, Resume) and event.route == "dcp" else event

    return scenario.with_(events=tuple(map(instead, scenario.events)))


def _difference(one: Trace, other: Trace) -> str:
    """The first thing in which two runs differ, or ``""``."""
    found = compare(one, other).mismatches
    if found:
        first = min(found, key=lambda mismatch: mismatch.order)
        return f"iteration {first.iteration}, {first.quantity} {first.name}"
    if _raised(one) != _raised(other):
        return f"it raises {_raised(one)}" if one.error else f"it does not raise {_raised(other)}"
    return "" if len(one.records) == len(other.records) else "it ends after another iteration"


def _unsafe(trace: Trace) -> list[str]:
    """What was found in its state dicts that does not belong there."""
    return [found for saved in trace.saved for found in (saved.refused, *saved.foreign) if found]
