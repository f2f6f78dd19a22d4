"""What a known mistake is, and in which scenarios one can be made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch

from inbackward.judging.evidence import Evidence
from inbackward.scenario import Edit, Scenario, SecondBackward
from inbackward.training import Intervention

Build = Callable[[], Intervention]


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """One mistake.

    Attributes:
        sentence: goes on after "a loop that ".
        mend: what most likely has to be done.
        page: the requirement whose page says more.
        applies: whether the scenario has what it takes to make the mistake.
        builds: the ways to make it, each a new intervention for every run.
        fitted: the intervention for a number ``k`` that is fitted to the run, in the place of ``builds``; the sentence
            has ``{k}``.
        on: the scenario in which the mistake is made, where that is to leave a part of it out.
        when: ``"any"`` time; at an ``"event"``, which says when; or ``"sometimes"``, never all along.
        still: it is made in what the candidate leaves as it is.
        apart: ranks may make it one by one: it changes none of their collectives.
    """

    id: str
    sentence: str
    mend: str
    page: str
    applies: Callable[[Evidence], bool] = lambda evidence: True
    builds: Callable[[Evidence], Iterable[Build]] = lambda evidence: ()
    fitted: Callable[[float], Intervention] | None = None
    on: Callable[[Scenario], Scenario] = lambda scenario: scenario
    when: str = "any"
    still: bool = False
    apart: bool = True


def does(*builds: Build) -> Callable[[Evidence], Iterable[Build]]:
    return lambda evidence: builds


def at_load(build: Callable[[frozenset[int]], Intervention]) -> Callable[[Evidence], Iterable[Build]]:
    return lambda evidence: (partial(build, evidence.loads()),)


def loads(evidence: Evidence) -> bool:
    return bool(evidence.loads())


def scheduled(evidence: Evidence) -> bool:
    edits = (e for e in evidence.scenario.events if isinstance(e, Edit))
    return evidence.scenario.schedule is not None or any(True for _ in edits)


def several_groups(evidence: Evidence) -> bool:
    return len(set(evidence.groups.values())) > 1


def uses(key: str) -> Callable[[Evidence], bool]:
    """Some group of the run uses it: a hyperparameter that is 0 everywhere changes nothing."""

    def has(evidence: Evidence) -> bool:
        used = evidence.reference.records[evidence.first].hyperparameters or {}
        return any(values.get(key) for values in used.values())

    return has


def accumulates(evidence: Evidence) -> bool:
    scenario = evidence.scenario
    return max(scenario.micro_batches) > 1 or has_event(SecondBackward)(evidence)


def has_event(kind: type) -> Callable[[Evidence], bool]:
    return lambda evidence: any(isinstance(e, kind) for e in evidence.scenario.events)


def clips(evidence: Evidence) -> bool:
    return evidence.scenario.clip is not None


def some_unused(evidence: Evidence) -> bool:
    """A trainable parameter goes without a gradient in some iteration."""
    reference = evidence.reference
    return any(reference.trainable - record.gradients_after_backward for record in reference.records)


def some_frozen(evidence: Evidence) -> bool:
    """A parameter goes without a gradient in some iteration, frozen or not."""
    reference = evidence.reference
    return any(reference.initial.parameters.keys() - r.gradients_after_backward for r in reference.records)


def loses_digits(dtype: torch.dtype) -> Callable[[Evidence], bool]:
    """It has fewer than the run's own."""

    def loses(evidence: Evidence) -> bool:
        own: torch.dtype = getattr(torch, evidence.scenario.dtype)
        return torch.finfo(dtype).eps > torch.finfo(own).eps

    return loses
