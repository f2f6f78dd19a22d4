"""What a refusal may leave changed beside parameters, buffers and state: nothing that the next iteration would meet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inbackward.judging.bits import same_bits
from inbackward.scenario import Edit, Scenario
from inbackward.training import Record, Trace

Hyperparameters = Mapping[str, Mapping[str, Any]]


def moved_beside(scenario: Scenario, done: int, aftermath: Record, reference: Trace) -> str:
    """What an exception in iteration ``done`` came too late for, or ``""``.

    The generators must stand where the last completed iteration left them, unless the forward itself may draw. The
    hyperparameters must be those that this iteration uses or the last one used, unless one is edited in it (which of
    its events came before the exception is not known here), or a schedule moved them and the reference raises as well.
    """
    last = reference.records[done - 1] if done else reference.initial
    draws = scenario.model.dropout or scenario.model.factory
    if not draws and not _same_generators(aftermath, last):
        return "random numbers were drawn"
    unknown = scenario.at(done, Edit) or (scenario.schedule is not None and done == len(reference.records))
    allowed = [record.hyperparameters or {} for record in (last, *reference.records[done : done + 1])]
    if not unknown and not any(_agree(aftermath.hyperparameters or {}, each) for each in allowed):
        return "hyperparameters had changed"
    return ""


def _same_generators(a: Record, b: Record) -> bool:
    if a.rng is None or b.rng is None:
        return True  # raised before there was an optimizer
    return same_bits(a.rng, b.rng) and a.other_rng == b.other_rng


def _agree(shown: Hyperparameters, expected: Hyperparameters) -> bool:
    """As far as both sides show any."""
    both = ((values, expected[name]) for name, values in shown.items() if name in expected)
    return all(value == theirs[key] for values, theirs in both for key, value in values.items() if key in theirs)
