"""The reference of a backward that was interrupted: it updates just what the candidate had updated by then."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from inbackward.judging.bits import same_bits
from inbackward.scenario import Interrupt, Scenario
from inbackward.training import Intervention, Trace


@dataclass
class UpdatedBefore(Intervention):
    """In each iteration named here, only these parameters keep their gradient until the step."""

    updated: dict[int, frozenset[str]]

    def after_backward(self, model: nn.Module, iteration: int) -> None:
        if iteration in self.updated:
            for name, parameter in model.named_parameters():
                if name not in self.updated[iteration]:
                    parameter.grad = None


def interrupted(scenario: Scenario, candidate: Trace) -> UpdatedBefore | None:
    """What the reference must leave out, read off the candidate's trace; ``None`` where nothing is interrupted."""
    updated = {}
    for iteration, record in enumerate(candidate.records):
        if scenario.at(iteration, Interrupt):
            before = candidate.records[iteration - 1] if iteration else candidate.initial
            moved = (n for n, p in record.parameters.items() if not same_bits(p, before.parameters[n]))
            updated[iteration] = frozenset(moved)
    return UpdatedBefore(updated) if updated else None
