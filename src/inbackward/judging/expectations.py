"""What a scenario may expect beside equality with the reference."""

from __future__ import annotations

from inbackward.judging.bits import same_bits
from inbackward.judging.verdict import Divergence
from inbackward.scenario import Scenario
from inbackward.training import Trace

PEAK_FACTOR = 2


def unmet(scenario: Scenario, candidate: Trace, reference: Trace) -> Divergence | None:
    """The first expectation of the scenario that the candidate does not meet."""
    for expectation in (e for e in scenario.expect if e in _CHECKS):  # in their order: a set's differs by process
        flaw = _CHECKS[expectation](candidate, reference)
        if flaw is not None:
            return flaw
    return None


def nothing_moves(scenario: Scenario, reference: Trace) -> str:
    """Why a run shows nothing, or ``""``: an optimizer that is not torch's may leave all parameters alone at first."""
    last = len(reference.records) - 1
    trained = _had_gradient(reference)
    idle = trained and not any(_moves(reference, name, last) for name in trained)
    if not idle or "moved" not in scenario.expect or scenario.optimizer.of_torch:
        return ""
    name = scenario.optimizer.cls.rpartition(":")[2]
    return f"{name} moves no parameter in {last + 1} iterations of the usual loop, so that nothing is shown"


def _had_gradient(trace: Trace) -> set[str]:
    return set().union(*(r.gradients_after_backward for r in trace.records)) & trace.trainable


def _moves(trace: Trace, name: str, last: int) -> bool:
    return not same_bits(trace.records[last].parameters[name], trace.initial.parameters[name])


def _moved(candidate: Trace, reference: Trace) -> Divergence | None:
    """Every trainable parameter that a gradient moved in the reference has moved.

    A bias before a batch norm has a gradient of rounding size only, and a small lr leaves it where it is.
    """
    last = len(candidate.records) - 1
    had_gradient = _had_gradient(reference)
    moving = {name for name in had_gradient if _moves(reference, name, last)}
    if had_gradient and not moving:
        detail = "nothing moves in the reference either: something has changed torch itself"
        return Divergence(iteration=last, quantity="parameter", name="", detail=detail)
    for name in sorted(moving):
        if not _moves(candidate, name, last):
            return Divergence(iteration=last, quantity="parameter", name=name, detail="has a gradient, never moved")
    return None


def _gradients_freed(candidate: Trace, reference: Trace) -> Divergence | None:
    """When ``backward()`` returns no gradient exists, and every update has been made."""
    for iteration, record in enumerate(candidate.records):
        if not record.by_candidate:
            continue  # a resume handed over to the plain optimizer
        for name in sorted(record.gradients_after_backward):
            detail = f"is alive when backward() returns, one of {len(record.gradients_after_backward)}"
            return Divergence(iteration=iteration, quantity="gradient", name=name, detail=detail)
        for name in sorted(record.updated_late):  # its gradient lived on under another name
            detail = f"was updated after backward() had returned, one of {len(record.updated_late)}"
            return Divergence(iteration=iteration, quantity="gradient", name=name, detail=detail)
    return None


def _weights_only(candidate: Trace, reference: Trace) -> Divergence | None:
    """Every state dict passes ``torch.load(weights_only=True)`` and holds no parameter and no module."""
    for saved in candidate.saved:
        detail = saved.refused or next(iter(saved.foreign), "")
        if detail:
            return Divergence(iteration=saved.iteration, quantity="state-dict", name="", detail=detail)
    return None


def _gradient_peak(candidate: Trace, reference: Trace) -> Divergence | None:
    """At no moment do more bytes of gradients live than twice the largest gradient has."""
    largest = max(reference.initial.parameters[n].nbytes for n in reference.trainable)
    for iteration, record in enumerate(candidate.records):
        peak = (record.gradient_peak or 0) if record.by_candidate else 0
        if peak > PEAK_FACTOR * largest:
            detail = f"{peak} bytes of gradients alive at once; at most {PEAK_FACTOR} x {largest} are allowed"
            return Divergence(iteration=iteration, quantity="gradient", name="peak", detail=detail)
    return None


# Checked on traces; "no-leak" needs runs of its own (training.leaks).
_CHECKS = {
    "moved": _moved,
    "gradients-freed": _gradients_freed,
    "gradient-peak": _gradient_peak,
    "weights-only": _weights_only,
}
