"""All ranks of a scenario as workers of this process, kept for one scenario after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

from inbackward.ranks.serving import Answer, Serve
from inbackward.ranks.workers import DEADLINE, Workers
from inbackward.ranks.world import at_fault
from inbackward.scenario import Scenario
from inbackward.training import NotRun

T = TypeVar("T")


class RanksFailed(Exception):
    """Ranks died, hung or could not answer; the message names them, ``evidence`` is a traceback or their stacks."""

    def __init__(self, message: str, evidence: str = "") -> None:
        super().__init__(message)
        self.evidence = evidence


class Pool(Generic[T]):
    """Workers that are started at the first scenario and replaced after one that broke them.

    Args:
        serve: what every rank does with a scenario; runs in the workers, each with its own ``World``.
        device: on which the ranks train.
        deadline: seconds that a scenario may take.
    """

    def __init__(self, serve: Serve[T], device: torch.device, deadline: float = DEADLINE) -> None:
        self._workers = Workers(serve, device, deadline)
        self._jobs = 0

    def run(self, scenario: Scenario) -> list[T]:
        """What every rank answered, by rank.

        Raises:
            RanksFailed: a rank died, did not answer in time, or raised what is no verdict.
            NotRun: this process has a process group already, which workers would inherit; or what is under test cannot
                be handed to them.
        """
        require_no_group()
        ranks = range(scenario.ranks)
        if not self._workers.serves(ranks):
            self._workers.start(ranks)
        self._jobs += 1
        return conclude(self._workers.ask(ranks, scenario, str(self._jobs)))

    def close(self) -> None:
        """End the workers; the next scenario starts new ones."""
        self._workers.stop()


def require_no_group() -> None:
    """Refuse to run beside a default process group of the user's, which is theirs to end.

    Raises:
        NotRun: there is one.
    """
    if dist.is_initialized():
        mend = "call torch.distributed.destroy_process_group() before, at the end of the fixture that made it"
        raise NotRun(f"this process has a default process group already, and scenarios need their own; {mend}")


def conclude(answers: Mapping[int, Answer]) -> list[Any]:
    """The answers by rank, where every rank gave one.

    Raises:
        RanksFailed: some did not; the message names them.
        NotRun: a rank could not begin.
    """
    by_kind: dict[str, dict[int, Any]] = {}
    for rank in sorted(answers):
        kind, what = answers[rank]
        by_kind.setdefault(kind, {})[rank] = what
    if "not-run" in by_kind:
        raise NotRun(next(iter(by_kind["not-run"].values())))
    if died := by_kind.get("died"):
        words = "; ".join(f"rank {rank} died: {how}" for rank, (how, _) in died.items())
        raise RanksFailed(words, "\n".join(said for _, said in died.values()))
    if raised := by_kind.get("raised"):
        guilty = at_fault({rank: text.splitlines()[-1] for rank, text in raised.items()})
        rank, said = next(iter(guilty.items()))
        raise RanksFailed(f"{_named(guilty)} raised {said}", raised[rank])
    if late := by_kind.get("late"):
        limit = next(iter(late.values()))[0]
        stacks = "\n".join(f"rank {rank}:\n{stack}" for rank, (_, stack) in late.items())
        raise RanksFailed(f"{_named(late)} did not end within {limit}", stacks)
    assert by_kind.keys() == {"answered"}, by_kind.keys()
    return list(by_kind["answered"].values())


def _named(ranks: Mapping[int, Any]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
