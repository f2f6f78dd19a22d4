"""One run on all ranks, and one outcome out of what they found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from inbackward.judging.compare import QUANTITIES
from inbackward.judging.verdict import Divergence, Outcome, worst
from inbackward.training import NotRun, Trace, World, empty


def on_all_ranks(world: World, train: Callable[[], Trace]) -> tuple[Trace, frozenset[int]]:
    """A run on all ranks, which leave it together, and the ranks whose error ended it.

    Raises:
        NotRun: on every rank, if it was raised on any.
    """
    trace, reason = empty(), ""
    try:
        trace = train()
    except NotRun as error:
        trace.error, reason = error, str(error)
    blamed = world.settle(trace.error)
    if blamed and (reasons := [r for r in world.share(reason) if r]):
        raise NotRun(reasons[0])
    return trace, blamed


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    """The worst verdict, with the earliest divergence among the ranks that found it, and the sum of all counts."""
    verdict = worst(o.verdict for o in outcomes)
    found = [rank for rank, outcome in enumerate(outcomes) if outcome.verdict is verdict]
    first = min(found, key=lambda rank: _order(outcomes[rank].divergence))
    decisive = outcomes[first]
    divergence = decisive.divergence and replace(decisive.divergence, rank=first)
    message = decisive.message
    if message and verdict.fails:
        others = f" (so on ranks {', '.join(map(str, found))})" if len(found) > 1 else ""
        message = f"rank {first}: {message}{others}"
    return replace(
        decisive,
        message=message,
        divergence=divergence,
        noise_ratio=max(o.noise_ratio for o in outcomes),
        compared=sum(o.compared for o in outcomes),
        existing=sum(o.existing for o in outcomes),
        unobserved=sum(o.unobserved for o in outcomes),
        uninformative=sum(o.uninformative for o in outcomes),
        seconds=max(o.seconds for o in outcomes),
    )


def _order(divergence: Divergence | None) -> tuple[int, int]:
    if divergence is None:
        return 1 << 30, 0
    known = divergence.quantity in QUANTITIES
    return divergence.iteration, QUANTITIES.index(divergence.quantity) if known else len(QUANTITIES)
