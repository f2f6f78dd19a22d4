"""From a scenario to its verdict: run both loops, compare, and where they differ measure the noise."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from inbackward.judging.aftermath import moved_beside
from inbackward.judging.as_plain import as_plain, may_not_survive
from inbackward.judging.bits import max_abs, max_ulp, needed_rtol
from inbackward.judging.compare import Comparison, Mismatch, compare, same_model_and_state, tensors
from inbackward.judging.expectations import nothing_moves, unmet
from inbackward.judging.interruption import interrupted
from inbackward.judging.noise import LIMIT, RUNS, Floor, Rounding
from inbackward.judging.power import missing_power
from inbackward.judging.replicas import disagreement
from inbackward.judging.reshard import judge_resharding
from inbackward.judging.together import on_all_ranks
from inbackward.judging.verdict import Divergence, Outcome, Verdict, quote
from inbackward.scenario import Scenario, SecondBackward, without
from inbackward.training import (
    ALONE,
    Implementation,
    Intervention,
    NotRun,
    Together,
    Trace,
    World,
    find_leak,
    optimizer_class,
    train_in_backward,
    train_reference,
)
from inbackward.training.remembering import reference_run
from inbackward.training.reshard import resharding

REFUSALS = (ValueError, TypeError, RuntimeError, NotImplementedError)


def judge(implementation: Implementation, scenario: Scenario, device: torch.device, world: World = ALONE) -> Outcome:
    """The outcome of one scenario, on this rank of ``world``.

    Only what the implementation does is judged: a reference that cannot run here makes the scenario ``not-run``.
    """
    started = time.perf_counter()
    try:
        outcome = _judge(implementation, scenario, device, world)
        if may_not_survive(scenario) and world.any(outcome.verdict.fails):
            outcome = as_plain(outcome, implementation, scenario, device, world)
    except NotRun as reason:
        outcome = Outcome(scenario=scenario, verdict=Verdict.NOT_RUN, message=str(reason))
    return outcome.timed(time.perf_counter() - started)


def _judge(implementation: Implementation, scenario: Scenario, device: torch.device, world: World) -> Outcome:
    if resharding(scenario):
        return judge_resharding(implementation, scenario, device, world)
    if "ranks-agree" in scenario.expect and world.size == 1:
        raise NotRun("one rank has no other to agree with")
    candidate, blamed = on_all_ranks(world, lambda: train_in_backward(implementation, scenario, device))
    left_out = interrupted(scenario, candidate)

    def run(*more: Intervention, flavour: dict[str, Any] | None = None) -> Trace:
        """The reference, always with what an interrupted backward left out."""
        return together(*more, flavour=flavour)[0]

    def together(*more: Intervention, flavour: dict[str, Any] | None = None) -> tuple[Trace, frozenset[int]]:
        parts = Together(*left_out, *more)
        if not (left_out or more or flavour):
            return on_all_ranks(world, lambda: reference_run(scenario, device, implementation))
        return on_all_ranks(world, lambda: train_reference(scenario, device, implementation, flavour, parts))

    reference, blamed_too = together()
    if blamed or blamed_too:
        if world.rank in blamed | blamed_too:
            return _judge_errors(implementation, scenario, device, candidate, reference)
        return Outcome(scenario=scenario, verdict=Verdict.EQUIVALENT)  # it fell with the others

    idle = world.share(nothing_moves(scenario, reference))
    if all(idle):
        raise NotRun(idle[0])

    comparison = compare(candidate, reference)
    apart = disagreement(world, candidate)
    outcome = Outcome(
        scenario=scenario,
        verdict=Verdict.EQUIVALENT,
        compared=comparison.compared,
        existing=comparison.existing,
        unobserved=comparison.unobserved,
    )
    mine = apart.get(world.rank)
    if apart and "ranks-agree" in scenario.expect:
        return _flawed(outcome, mine) if mine else outcome
    flaw = unmet(scenario, candidate, reference) or _leak(implementation, scenario, device) or mine
    if not world.any(bool(comparison.mismatches)):
        return _flawed(outcome, flaw) if flaw else outcome
    if not world.any(bool(flaw)):
        for name, flavour in _other_flavours(scenario, implementation):
            other = run(flavour=flavour)
            if not world.any(other.error is not None or bool(compare(candidate, other).mismatches)):
                return replace(outcome, flavour=name)
    floor = Floor(reference, _disturbed(run, world))
    return _judge_noise(outcome, implementation, device, comparison, floor, flaw, run, world)


def _flawed(outcome: Outcome, flaw: Divergence) -> Outcome:
    return replace(outcome, verdict=Verdict.NOT_EQUIVALENT, divergence=flaw, message=str(flaw))


def _leak(implementation: Implementation, scenario: Scenario, device: torch.device) -> Divergence | None:
    found = find_leak(implementation, scenario, device) if "no-leak" in scenario.expect else ""
    return Divergence(iteration=0, quantity="leak", name="", detail=found) if found else None


def _judge_noise(
    outcome: Outcome,
    implementation: Implementation,
    device: torch.device,
    comparison: Comparison,
    floor: Floor,
    flaw: Divergence | None,
    run: Callable[[Intervention], Trace],
    world: World,
) -> Outcome:
    """Not bitwise: is it rounding, and would a mistake have shown?"""
    scenario = outcome.scenario
    ratios = {id(m): floor.ratio(m) for m in comparison.mismatches}
    beyond = [m for m in comparison.mismatches if not ratios[id(m)] <= LIMIT]
    outcome = replace(outcome, uninformative=len(floor.uninformative()))
    wrong = world.any(bool(beyond or flaw))
    if beyond:
        first = min(beyond, key=lambda m: (*m.order, -ratios[id(m)]))
        divergence = _divergence(first, ratios[id(first)])
        return replace(
            outcome,
            verdict=Verdict.NOT_EQUIVALENT,
            divergence=divergence,
            message=str(divergence),
            noise_ratio=max(ratios.values()),
        )
    if flaw:
        return _flawed(outcome, flaw)
    outcome = replace(outcome, noise_ratio=max(ratios.values(), default=0.0))
    within = Verdict.WITHIN_NOISE if ratios else Verdict.EQUIVALENT
    if wrong:  # another rank says what
        return replace(outcome, verdict=within)
    powerless = missing_power(floor, run, world) or _twin(implementation, scenario, device, world)
    if powerless:
        return replace(outcome, verdict=Verdict.NOT_RUN, message=f"no power: {powerless}")
    return replace(outcome, verdict=within)


def _disturbed(run: Callable[[Intervention], Trace], world: World) -> list[Trace]:
    traces = [run(Rounding(seed)) for seed in range(RUNS)]
    for failed in world.share(next((quote(t.error) for t in traces if t.error is not None), "")):
        if failed:
            raise NotRun(f"the reference failed under a disturbance of one rounding: {failed}")
    return traces


def _twin(implementation: Implementation, scenario: Scenario, device: torch.device, world: World) -> str:
    """bf16 and fp16 see too little; the same run in fp32 must hold as well. Returns why it does not, or ``""``."""
    low = {scenario.dtype, *(dtype for _, dtype in scenario.model.mixed)} & {"bfloat16", "float16"}
    if not low:
        return ""
    twin = scenario.with_(dtype="float32", model=replace(scenario.model, mixed=()))
    outcome = judge(implementation, twin, device, world)
    found = "" if outcome.verdict.holds else f"its float32 twin is {outcome.verdict}: {outcome.message}"
    return next((why for why in world.share(found) if why), "")


def _divergence(mismatch: Mismatch, ratio: float) -> Divergence:
    place = Divergence(
        iteration=mismatch.iteration, quantity=mismatch.quantity, name=mismatch.name, detail=mismatch.detail
    )
    if mismatch.candidate is None or mismatch.reference is None:
        return place
    pair = mismatch.candidate, mismatch.reference
    return replace(
        place, noise_ratio=ratio, max_abs=max_abs(*pair), max_ulp=max_ulp(*pair), needed_rtol=needed_rtol(*pair)
    )


def _judge_errors(
    implementation: Implementation, scenario: Scenario, device: torch.device, candidate: Trace, reference: Trace
) -> Outcome:
    """One side raised: the reference's own exception, a refusal, or a crash."""
    mine, theirs = candidate.error, reference.error
    counts = compare(candidate, reference)
    outcome = Outcome(
        scenario=scenario,
        verdict=Verdict.EQUIVALENT,
        compared=counts.compared,
        existing=counts.existing if mine else _count(reference),
        unobserved=counts.unobserved,
        message=quote(mine),
    )
    if theirs is not None and type(mine) is type(theirs):
        alike = quote(mine) == quote(theirs)
        message = f"both raise {quote(mine)}" + ("" if alike else f" (in the reference, {quote(theirs)})")
        if counts.compared or _raises_for_its_requirement(implementation, scenario, device):
            return replace(outcome, message=message)
        return replace(outcome, verdict=Verdict.NOT_RUN, message=f"{message}; nothing was compared")
    done = len(candidate.records)
    if mine is None:
        message = f"the reference raises {quote(theirs)}; the implementation trains on"
        place = Divergence(iteration=len(reference.records), quantity="exception", name="", detail=message)
        return replace(outcome, verdict=Verdict.NOT_EQUIVALENT, message=message, divergence=place)

    flaw = _no_refusal(implementation, scenario, device, candidate, reference)
    if not flaw:
        return replace(outcome, verdict=Verdict.REFUSED)
    if theirs is not None:
        flaw = f"{flaw}; the reference raises {quote(theirs)}"
    place = Divergence(iteration=done, quantity="exception", name="", detail=flaw)
    return replace(outcome, verdict=Verdict.BROKEN, message=flaw, divergence=place, traceback=candidate.traceback)


def _raises_for_its_requirement(implementation: Implementation, scenario: Scenario, device: torch.device) -> bool:
    """Whether the reference trains where the requirement's own feature is left out: to raise is then the answer."""
    rest = without(scenario, scenario.requirement)
    return rest.digest != scenario.digest and train_reference(rest, device, implementation).error is None


def _no_refusal(
    implementation: Implementation, scenario: Scenario, device: torch.device, candidate: Trace, reference: Trace
) -> str:
    """Why an exception is no refusal, or ``""``: a clear one, allowed, before any number changed (contract §3)."""
    error, done = candidate.error, len(candidate.records)
    quoted = quote(error)
    if not scenario.may_refuse:
        return quoted
    if not isinstance(error, (*REFUSALS, *implementation.refusals)) or not quoted.partition(": ")[2]:
        return quoted
    if candidate.aftermath is None:
        return f"{quoted}, and what it left cannot be read"
    if done > len(reference.records) or compare(candidate, reference).mismatches:
        return f"{quoted}, but only after numbers had changed"
    allowed = [reference.records[done - 1] if done else reference.initial]
    if scenario.at(done, SecondBackward):  # raised in the second backward: exactly one reference iteration on
        once = scenario.with_(events=tuple(e for e in scenario.events if not isinstance(e, SecondBackward)))
        allowed += train_reference(once, device, implementation).records[done : done + 1]
    if not any(same_model_and_state(candidate.aftermath, r, with_state=candidate.optimizer_built) for r in allowed):
        return f"{quoted}, but only after numbers had changed"
    beside = moved_beside(scenario, done, candidate.aftermath, reference)
    return f"{quoted}, but only after {beside}" if beside else ""


def _count(trace: Trace) -> int:
    return sum(1 for record in trace.records for _ in tensors(record))


def _other_flavours(scenario: Scenario, implementation: Implementation) -> Iterator[tuple[str, dict[str, Any]]]:
    """The other kernels that compute the same update: foreach, fused, and neither."""
    cls = optimizer_class(scenario.optimizer.cls, implementation)
    try:
        accepted = inspect.signature(cls).parameters
    except (TypeError, ValueError):
        return
    flags = [flag for flag in ("foreach", "fused") if flag in accepted]
    if flags:
        yield "for-loop", dict.fromkeys(flags, False)
    for flag in flags:
        yield flag, {**dict.fromkeys(flags, False), flag: True}
