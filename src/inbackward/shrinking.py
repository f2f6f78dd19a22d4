"""From a scenario that fails to one that fails likewise and that a person can read."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any

from torch import nn

from inbackward.judging import Outcome
from inbackward.scenario import Scenario
from inbackward.scenario.simplifying import ending_after, simplifications, simplified
from inbackward.training import Implementation, as_implementation
from inbackward.training.implementation import ParameterGroups
from inbackward.verification import COSTLY, Suite

EXAMPLES = 500  # of which most are the same few scenarios, judged once
CANDIDATES = 60  # different ones that are judged: a limit in seconds would give another scenario on another day


def shrink(implementation: Any, scenario: Scenario, device: str = "cpu") -> Scenario:
    """A scenario with as little as possible of what ``scenario`` has, in which ``implementation`` fails likewise.

    One piece after the other is left out, where the failure stays without it; of those that are left, Hypothesis takes
    several at once and puts them back (``simpler_than``). A
    simpler scenario counts only where a plain optimizer is equivalent to itself: taking out pieces may leave a run that
    nobody could pass. The same arguments give the same scenario; after ``CANDIDATES`` the best so far is it.

    Args:
        implementation: as for ``verify``.

    Returns:
        The shrunk scenario, named after ``scenario``; or ``scenario`` itself where nothing can go.

    Raises:
        ValueError: ``implementation`` does not fail in ``scenario``.
    """
    from hypothesis import HealthCheck, find, settings  # late: it takes half a second, and most suites never fail
    from hypothesis.errors import NoSuchExample

    from inbackward.scenario.strategies import simpler_than

    with ExitStack() as stack:
        tested = stack.enter_context(closing(Suite(as_implementation(implementation), device=device)))
        plain = stack.enter_context(closing(Suite(plain_optimizer(tested.implementation.optimizers), device=device)))
        first = tested.judge(scenario)
        if not first.verdict.fails:
            raise ValueError(f"there is nothing to shrink: {scenario.label} is {first.verdict}")
        can_be_met = _met_by_plain(plain, scenario)
        known: dict[str, bool] = {}

        def fails_likewise(simpler: Scenario) -> bool:
            if simpler.digest not in known and len(known) < CANDIDATES:
                known[simpler.digest] = _alike(tested.judge(simpler), first) and can_be_met(simpler)
            return known.get(simpler.digest, False)

        at = first.divergence.iteration if first.divergence else scenario.iterations
        shorter = simplified(scenario, ending_after(max(at, 0) + 1))
        start = one_by_one(shorter if fails_likewise(shorter) else scenario, fails_likewise)
        try:
            found = find(
                simpler_than(start),
                fails_likewise,
                settings=settings(
                    max_examples=EXAMPLES, database=None, deadline=None, suppress_health_check=list(HealthCheck)
                ),
                random=random.Random(scenario.digest),
            )
        except NoSuchExample:
            found = start
    return scenario if found == scenario else found.with_(name=f"{scenario.name}-shrunk")


def is_quick(scenario: Scenario) -> bool:
    """Whether a report can wait until a failure in it is shrunk: not where each judgement takes seconds, or ranks."""
    return scenario.strategy == "single" and scenario.requirement not in COSTLY


def one_by_one(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """``scenario`` without any piece that can be left out alone."""
    before = None
    while before != scenario:
        before = scenario
        for step in simplifications(scenario):
            simpler = simplified(scenario, step)
            if simpler != scenario and fails(simpler):
                scenario = simpler
    return scenario


def shrink_for_report(suite: Suite, scenario: Scenario) -> Scenario | None:
    """``shrink`` for a failure that is about to be reported.

    Returns:
        ``None`` where it fails no longer, as it may where the implementation depends on what ran before.
    """
    try:
        return shrink(suite.implementation, scenario, suite.device.type)
    except ValueError:
        return None


def _alike(a: Outcome, b: Outcome) -> bool:
    """The same verdict for the same quantity, or for the same exception; elsewhere perhaps."""
    return _kind(a) == _kind(b)


def _kind(outcome: Outcome) -> tuple[str, ...]:
    what = outcome.divergence.quantity if outcome.divergence else ""
    return outcome.verdict.value, what, outcome.message.partition(":")[0] if what == "exception" else ""


def _met_by_plain(plain: Suite, scenario: Scenario) -> Callable[[Scenario], bool]:
    """Whether a plain optimizer holds in a scenario; where it does not even in the first one, none is asked."""

    def met(simpler: Scenario) -> bool:
        return plain.judge(simpler.with_(expect=())).verdict.holds  # it may keep gradients

    return met if met(scenario) else lambda simpler: True


def plain_optimizer(optimizers: Sequence[Any] | None) -> Implementation:
    """The reference as an implementation: a plain optimizer, stepped when the loop calls ``step()``."""
    return Implementation(build=_plain, close=lambda handle, model: None, optimizers=optimizers, name="plain")


def _plain(model: nn.Module, groups: ParameterGroups, optimizer_cls: Any, kwargs: dict[str, Any]) -> Any:
    names = {p: n for n, p in model.named_parameters()}
    if groups.named:
        return optimizer_cls([{**g, "params": [(names[p], p) for p in g["params"]]} for g in groups], **kwargs)
    return optimizer_cls(groups, **kwargs)
