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
from inbackward.scenario import Observe, Resume, Scenario
from inbackward.training import Implementation, Trace, World, optimizer_class, train_in_backward, train_plain
from inbackward.training.remembering import reference_run
from inbackward.training.reshard import resharding


def may_not_survive(scenario: Scenario) -> bool:
    """Whether the scenario saves, loads or reads an optimizer of which it is not known that it goes on as before."""
    saves = any(isinstance(event, Resume | Observe) for event in scenario.events) and not resharding(scenario)
    return saves and not scenario.optimizer.of_torch


def as_plain(
    outcome: Outcome, implementation: Implementation, scenario: Scenario, device: torch.device, world: World
) -> Outcome:
    """The outcome of a run that fails; ``unsupported`` where the plain optimizer fails by the same numbers.

    It may do so by the scenario's own route, or by its own state dict: the step by which
    ``torch.distributed.checkpoint`` looks for state counts in an attribute, and no implementation has to.
    """
    candidate, blamed = on_all_ranks(world, lambda: train_in_backward(implementation, scenario, device))
    reference, _ = on_all_ranks(world, lambda: reference_run(scenario, device, implementation))
    for saved in dict.fromkeys((scenario, _in_memory(scenario))):
        plain, blamed_too = on_all_ranks(world, lambda saved=saved: train_plain(implementation, saved, device))  # type: ignore[misc]
        found = world.share(_difference(plain, reference) or next(iter(_unsafe(plain)), ""))
        why = next((difference for difference in found if difference), "")
        alike = blamed == blamed_too and (
            _is_as(plain, candidate, scenario) or _goes_further(candidate, plain, reference)
        )
        if why and not world.any(not alike):
            cls = optimizer_class(scenario.optimizer.cls, implementation).__name__
            message = (
                f"{cls} by itself does not go on as if it had not been saved, loaded or read ({why}), nor does this"
            )
            return replace(outcome, verdict=Verdict.UNSUPPORTED, message=message, divergence=None, traceback="")
    return outcome


def _is_as(plain: Trace, candidate: Trace, scenario: Scenario) -> bool:
    """Whether a candidate goes as the plain run, and meets what the scenario expects of all but its state dicts."""
    if _difference(candidate, plain) or _unsafe(candidate) != _unsafe(plain):
        return False
    others = scenario.with_(expect=tuple(e for e in scenario.expect if e != "weights-only"))
    return candidate.error is not None or not unmet(others, candidate, plain)


def _goes_further(candidate: Trace, plain: Trace, reference: Trace) -> bool:
    """Whether a candidate raises what the plain run raises, and is the uninterrupted run for as long or longer."""
    same = candidate.error is not None and quote(candidate.error) == quote(plain.error)
    return same and len(candidate.records) >= len(plain.records) and not compare(candidate, reference).mismatches


def _in_memory(scenario: Scenario) -> Scenario:
    events = (replace(e, route="memory") if isinstance(e, Resume) else e for e in scenario.events)
    return scenario.with_(events=tuple(events))


def _difference(one: Trace, other: Trace) -> str:
    """The first thing in which two runs differ, or ``""``."""
    found = compare(one, other).mismatches
    if found:
        first = min(found, key=lambda mismatch: mismatch.order)
        return f"iteration {first.iteration}, {first.quantity} {first.name}"
    if quote(one.error) != quote(other.error):
        return f"it raises {quote(one.error)}" if one.error else f"it does not raise {quote(other.error)}"
    return "" if len(one.records) == len(other.records) else "it ends after another iteration"


def _unsafe(trace: Trace) -> list[str]:
    """What was found in its state dicts that does not belong there."""
    return [found for saved in trace.saved for found in (saved.refused, *saved.foreign) if found]
