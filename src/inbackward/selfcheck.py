"""Is the suite alive here? Every fault of the gallery must be caught, and no right implementation accused.

A suite that passes everything is silent, and so is one that looks at nothing. This runs both kinds of implementation,
of which it is known what must be found, on the machine at hand.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, redirect_stdout
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

from inbackward.attribution import judge_for_requirement
from inbackward.faults import Fault
from inbackward.forking import begin
from inbackward.judging import Outcome, Verdict
from inbackward.requirements import CATALOGUE
from inbackward.requirements.across_ranks import AGAIN_UNDER
from inbackward.training import Implementation, as_implementation
from inbackward.training.remembering import remember_references
from inbackward.verification import Suite
from inbackward.workers import cores, ended, submitted

RANKS = 2


@dataclass(frozen=True, kw_only=True)
class Check:
    """What came of one fault, or of one right implementation under one requirement.

    Attributes:
        of_fault: or of a right implementation.
        name: of either.
        requirement: the id that the fault names, or that the right implementation is held to.
        strategy: under which it was run.
        found: ``caught`` or ``escaped`` of a fault; ``held``, ``declared``, ``accused`` or ``stale`` of a right
            implementation; ``not-run`` of either.
        scenario: in which it was found, ``""`` where nothing was.
        message: the first divergence, the declaration, or why nothing ran.
        plain: of a fault, whether ``plain`` catches it too.
        seconds: wall-clock time.
    """

    of_fault: bool
    name: str
    requirement: str
    strategy: str
    found: str
    scenario: str = ""
    message: str = ""
    plain: bool = False
    seconds: float = 0.0

    @property
    def wrong(self) -> bool:
        """The suite is not to be trusted here."""
        return self.found in ("escaped", "accused", "stale")


Job = Callable[[], Check]


def check_all(
    faults: Sequence[Fault], right: Sequence[Implementation], ids: Sequence[str], workers: int | None = None
) -> Generator[Check, None, None]:
    """A check a fault, then one a requirement and right implementation: in this order, each as soon as it is there.

    What needs ranks is led from this process, which judges nothing else where forks can; those go on beside it.

    Args:
        ids: the requirements on one process to which the right implementations are held.
        workers: processes; as many as there are cores, if not given.
    """
    across: list[Job] = [partial(check_fault, fault) for fault in faults if fault.strategy != "single"]
    jobs: list[Job] = [partial(check_fault, fault) for fault in faults if fault.strategy == "single"]
    jobs += [partial(check_right, implementation, id) for id in ids for implementation in right]
    workers = cores() if workers is None else workers
    if not workers:
        yield from (_quietly(job) for job in [*across, *jobs])
        return
    _JOBS[:] = jobs  # forks have them, whatever they hold
    sys.stdout.flush()  # or every fork would print what is buffered
    with ended(ProcessPoolExecutor(workers, get_context("fork"), _begin)) as pool:
        futures = [submitted(pool, _do, index) for index in range(len(jobs))]
        yield from (_quietly(job) for job in across)
        yield from (future.result() for future in futures)


_JOBS: list[Job] = []


def _begin() -> None:
    begin()
    remember_references()  # most checks in a row are of the same scenarios


def _do(index: int) -> Check:
    return _quietly(_JOBS[index])


def _quietly(job: Job) -> Check:
    with redirect_stdout(sys.stderr):  # stdout holds the report
        return job()


def check_fault(fault: Fault) -> Check:
    """Whether the requirement that a fault names has a scenario that fails for it, and whether ``plain`` has."""
    started = time.perf_counter()
    with closing(Suite(as_implementation(fault.target), world_size=RANKS)) as suite:
        outcome, ran = _first_failing(suite, fault.requirement, fault.strategy)
        plain = _plain_catches(fault, suite) if fault.requirement != "plain" else None
    fails = outcome is not None and outcome.verdict.fails
    common: dict[str, Any] = {
        "of_fault": True,
        "name": fault.name,
        "requirement": fault.requirement,
        "strategy": fault.strategy,
        "plain": fails if plain is None else plain,
        "seconds": time.perf_counter() - started,
    }
    if outcome is None:
        return Check(found="not-run", message="it has no scenario under this strategy", **common)
    found = "caught" if fails else "escaped" if ran else "not-run"
    message = outcome.message or f"all its scenarios are {outcome.verdict}"
    return Check(found=found, scenario=outcome.scenario.name, message=message, **common)


_CAUGHT_BY_PLAIN: dict[tuple[Any, str], bool] = {}  # one mistake may be entered for several requirements


def _plain_catches(fault: Fault, suite: Suite) -> bool:
    """By the suite at hand, whose ranks stand already."""
    if fault.strategy not in ("single", *AGAIN_UNDER):
        return False
    key = fault.target, fault.strategy
    if key not in _CAUGHT_BY_PLAIN:
        outcome, _ = _first_failing(suite, "plain", fault.strategy)
        _CAUGHT_BY_PLAIN[key] = outcome is not None and outcome.verdict.fails
    return _CAUGHT_BY_PLAIN[key]


def _first_failing(suite: Suite, id: str, strategy: str) -> tuple[Outcome | None, bool]:
    """The first outcome that fails, or the last one; and whether any scenario ran."""
    outcome, ran = None, False
    for scenario in suite.scenarios(CATALOGUE[id], strategy):
        outcome = judge_for_requirement(suite.judge, scenario)
        ran = ran or outcome.verdict is not Verdict.NOT_RUN
        if outcome.verdict.fails:
            break
    return outcome, ran


def check_right(implementation: Implementation, id: str) -> Check:
    """Whether a right implementation holds to a requirement, or declares with reason that it does not."""
    with closing(Suite(implementation)) as suite:
        result = suite.run(id)
    found = "declared" if result.declared else "held"
    if result.holds_after_all:
        found = "stale"
    elif result.failed:
        found = "accused"
    elif not result.ran_any and not result.declared:
        found = "not-run"
    return Check(
        of_fault=False,
        name=implementation.name,
        requirement=id,
        strategy="single",
        found=found,
        scenario=result.worst.scenario.name if result.worst else "",
        message=result.message,
        seconds=result.seconds,
    )
