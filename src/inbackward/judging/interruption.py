"""The reference of a backward that was interrupted: it updates just what the candidate had updated by then."""

from __future__ import annotations

from dataclasses import dataclass

from inbackward.judging.bits import same_bits
from inbackward.scenario import Interrupt, Scenario
from inbackward.training import Intervention, Iteration, Record, Trace


@dataclass
class UpdatedBefore(Intervention):
    """In each iteration named here, only these parameters keep their gradient until the step."""

    updated: dict[int, frozenset[str]]

    def after_backward(self, now: Iteration) -> None:
        if now.iteration in self.updated:
            for name, parameter in now.parameters.items():
                if name not in self.updated[now.iteration]:
                    parameter.grad = None


def interrupted(scenario: Scenario, candidate: Trace) -> list[UpdatedBefore]:
    """What the reference must leave out, read off the candidate's trace; empty where nothing is interrupted."""
    updated = {}
    for iteration, record in enumerate(candidate.records):
        if scenario.at(iteration, Interrupt):
            before = candidate.records[iteration - 1] if iteration else candidate.initial
            updated[iteration] = frozenset(n for n in record.parameters if _updated(n, before, record))
    return [UpdatedBefore(updated)] if updated else []


def _updated(name: str, before: Record, after: Record) -> bool:
    """Its value or its state has changed; an update below the value's resolution shows in the state alone."""
    old, new = before.state.get(name, {}), after.state.get(name, {})
    if not same_bits(after.parameters[name], before.parameters[name]) or old.keys() != new.keys():
        return True
    return any(not same_bits(value, old[key]) for key, value in new.items())
