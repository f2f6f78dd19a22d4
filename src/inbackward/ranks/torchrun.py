"""The ranks that ``torchrun`` started: rank 0 leads, the others follow, each with one worker of its own.

They agree through torchrun's own store, never through a process group. Every rank hosts a worker process for the
scenarios, so that one that exits, crashes or hangs costs a verdict and not the run.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Generic, TypeVar

import torch
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from inbackward.ranks.pool import conclude, require_no_group
from inbackward.ranks.serving import Answer, Serve
from inbackward.ranks.workers import DEADLINE, Workers
from inbackward.scenario import Scenario
from inbackward.training import NotRun

T = TypeVar("T")

PATIENCE = timedelta(hours=24)  # of a follower: rank 0 may be busy with what needs one process
LAST_WORD = timedelta(seconds=60)  # of rank 0, which has only its summary left to write


class Torchrun:
    """What the ranks tell each other during a run of tests: message after message, from rank 0 to all."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        # Where the agent hosts no store, rank 0 does, as env:// has it.
        hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        store = TCPStore(
            *self.address,
            is_master=self.rank == 0 and not hosted,
            wait_for_workers=False,
            multi_tenant=True,
            timeout=timedelta(seconds=DEADLINE),
        )
        self.store: Any = PrefixStore("inbackward", store)
        self._item = self._messages = 0

    def begin(self) -> None:
        """The next item. Messages belong to one, so that a rank which missed some is in step again at the next."""
        self._item, self._messages = self._item + 1, 0

    @property
    def now(self) -> str:
        """What names this moment on all ranks, and no other."""
        return f"{self._item}.{self._messages}"

    def agree(self, what: str, value: str) -> list[str]:
        """The value of every rank, by rank; all wait for each other."""
        self.store.set(f"{what}/{self.rank}", value)
        return [self.store.get(f"{what}/{rank}").decode() for rank in range(self.size)]

    def tell(self, message: Any) -> None:
        """From rank 0 to all others."""
        self._messages += 1
        self.store.set(f"message/{self.now}", pickle.dumps(message))

    def hear(self) -> Any:
        """The next message of rank 0."""
        self._messages += 1
        key = f"message/{self.now}"
        self.store.wait([key], PATIENCE)
        return pickle.loads(self.store.get(key))

    def finish(self) -> None:
        """Rank 0 says its last word; the others wait for it, as the agent ends all once one leaves with a failure.

        From here on all leave at their own pace and with their own status, though the first brings the agent's SIGTERM.
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with suppress(Exception):  # rank 0 has left, and a store of its own with it: that is a last word too
            if self.rank == 0:
                self.store.set("finished", "")
            else:
                self.store.wait(["finished"], LAST_WORD)


class TorchrunPool(Generic[T]):
    """``Pool`` over torchrun's ranks: ``run`` on rank 0, ``follow`` on the others."""

    def __init__(self, torchrun: Torchrun, serve: Serve[T], device: torch.device, deadline: float = DEADLINE) -> None:
        self._torchrun = torchrun
        self._workers = Workers(serve, device, deadline)

    def run(self, scenario: Scenario) -> list[T]:
        """What every rank answered, by rank; called on rank 0.

        Raises:
            RanksFailed: a rank died, did not answer in time, or raised what is no verdict.
            NotRun: there are too few ranks, or one of them has a process group already.
        """
        size = scenario.ranks
        if size > self._torchrun.size:
            raise NotRun(f"{scenario.strategy} needs {size} ranks, and torchrun started {self._torchrun.size}")
        require_no_group()
        self._torchrun.tell(("scenario", scenario))
        mine = self._serve(scenario)
        store = self._torchrun.store
        answers = {0: mine}
        for rank in range(1, size):
            try:
                answers[rank] = pickle.loads(store.get(f"answer/{self._torchrun.now}/{rank}"))
            except RuntimeError:  # the store's own, after its timeout
                answers[rank] = "late", (f"{DEADLINE:g} s", "")
        return conclude(answers)

    def follow(self, scenario: Scenario) -> None:
        """Serve a scenario that rank 0 runs."""
        if self._torchrun.rank < scenario.ranks:
            answer = self._serve(scenario)
            self._torchrun.store.set(f"answer/{self._torchrun.now}/{self._torchrun.rank}", pickle.dumps(answer))

    def close(self) -> None:
        """End this rank's worker."""
        self._workers.stop()

    def _serve(self, scenario: Scenario) -> Answer:
        rank, now = self._torchrun.rank, self._torchrun.now
        failed = f"failed/{now}"
        try:
            require_no_group()
            if not self._workers.serves([rank]):
                self._workers.start([rank], self._torchrun.address)
            found = self._workers.ask([rank], scenario, now, self._elsewhere(failed))[rank]
        except NotRun as reason:
            found = "not-run", str(reason)
        if found[0] != "answered":
            self._torchrun.store.set(failed, "")
        return found

    def _elsewhere(self, failed: str) -> Callable[[], bool]:
        return lambda: bool(self._torchrun.store.check([failed]))
