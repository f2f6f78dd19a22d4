"""Ranks as forks of this process, kept for one scenario after the other.

A fork has the implementation whatever it is. On CUDA, which does not survive a fork, ranks are spawned, and what is
under test must have an import path.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import tempfile
import time
import warnings
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import IO, Any, Generic, TypeVar

import torch

from inbackward.ranks.serving import Answer, Serve, answer
from inbackward.scenario import Scenario
from inbackward.training import NotRun

T = TypeVar("T")

DEADLINE = 60.0  # seconds a scenario may take
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class RanksFailed(Exception):
    """Ranks died, hung or could not answer; the message names them, ``stacks`` says where they stood."""

    def __init__(self, message: str, stacks: str = "") -> None:
        super().__init__(message)
        self.stacks = stacks


@dataclass(frozen=True)
class _Rank:
    """A worker as its parent sees it; ``said`` is a file without a name.

    Into it goes what torch's C++ says (a warning of DDP's, an abort), and where the worker stands when it is asked.
    """

    process: Any
    pipe: Any
    said: IO[bytes]


class Pool(Generic[T]):
    """Worker processes, started at the first scenario and replaced after one that broke them.

    Args:
        serve: what every rank does with a scenario; runs in the workers, each with its own ``World``.
        device: on which the ranks train.
        deadline: seconds that a scenario may take.
    """

    def __init__(self, serve: Serve[T], device: torch.device, deadline: float = DEADLINE) -> None:
        self._serve, self._device, self._deadline = serve, device, deadline
        self._ranks: list[_Rank] = []
        self._jobs = 0

    def run(self, scenario: Scenario) -> list[T]:
        """What every rank answered, by rank.

        Raises:
            RanksFailed: a rank died, did not answer in time, or raised what is no verdict.
            NotRun: what is under test cannot be handed to ranks on this device.
        """
        size = scenario.parallel.ranks
        if len(self._ranks) < size or not all(rank.process.is_alive() for rank in self._ranks):
            self.close()
            self._start(size)
        self._jobs += 1
        try:
            for rank in self._ranks[:size]:
                rank.pipe.send((scenario, self._jobs))
            return self._answers(size)
        except BaseException:  # an interrupt too: the ranks are in the middle of something
            self.close()
            raise

    def close(self) -> None:
        """End the workers; the next scenario starts new ones."""
        for rank in self._ranks:
            rank.process.kill()
        for rank in self._ranks:
            rank.process.join()
            rank.process.close()
            rank.pipe.close()
            rank.said.close()
        self._ranks = []

    def _start(self, size: int) -> None:
        context: Any = get_context("fork" if self._device.type == "cpu" else "spawn")
        sys.stdout.flush()  # or every fork would print what is buffered
        sys.stderr.flush()
        port = 0
        for number in range(size):
            here, there = context.Pipe()
            said = tempfile.TemporaryFile()  # noqa: SIM115
            arguments = (
                self._serve,
                self._device,
                there,
                number,
                port,
                said.fileno() if self._device.type == "cpu" else -1,
            )
            process = context.Process(target=_work, args=arguments, name=f"inbackward-rank-{number}", daemon=True)
            try:
                with warnings.catch_warnings():  # Python 3.12 and later warn of any fork; _work makes this one safe
                    warnings.simplefilter("ignore", DeprecationWarning)
                    process.start()
            except (TypeError, AttributeError) as error:
                mend = "give an implementation that can be imported, module:attribute"
                raise NotRun(f"ranks on {self._device.type} cannot be handed it ({error}); {mend}") from None
            there.close()
            self._ranks.append(_Rank(process, here, said))
            if number == 0:
                if not here.poll(self._deadline):
                    raise RanksFailed(f"rank 0 did not start within {self._deadline:g} s")
                port = here.recv()

    def _answers(self, size: int) -> list[T]:
        waiting: dict[Any, int] = {rank.pipe: number for number, rank in enumerate(self._ranks[:size])}
        answers: dict[int, T] = {}
        end = time.monotonic() + self._deadline
        while waiting:
            ready: list[Any] = wait(list(waiting), timeout=max(0.0, end - time.monotonic()))
            if not ready:
                late = sorted(waiting.values())
                raise RanksFailed(f"{named(late)} did not end within {self._deadline:g} s", self._stacks(late))
            for pipe in ready:
                number = waiting.pop(pipe)
                try:
                    kind, what = pipe.recv()
                except (EOFError, ConnectionResetError):
                    why = f"{named([number])} died: {self._exit(number)}"
                    raise RanksFailed(why, self._words(number)) from None
                if kind == "raised":
                    raise RanksFailed(f"{named([number])} raised {what.splitlines()[-1]}", what)
                answers[number] = what
        return [answers[number] for number in range(size)]

    def _exit(self, number: int) -> str:
        process = self._ranks[number].process
        process.join(1.0)
        code = process.exitcode
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"left with status {code}"

    def _stacks(self, numbers: list[int]) -> str:
        """Where these ranks stand, as each says it itself."""
        for number in numbers if self._device.type == "cpu" else ():
            with suppress(ProcessLookupError):
                os.kill(self._ranks[number].process.pid, signal.SIGUSR1)
        time.sleep(0.3)
        return "\n".join(f"rank {number}:\n{self._words(number)}" for number in numbers)

    def _words(self, number: int) -> str:
        file = self._ranks[number].said
        file.seek(0)
        return file.read().decode(errors="replace")


def named(ranks: list[int]) -> str:
    """``rank 1``, ``ranks 0, 1``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _work(serve: Serve[Any], device: torch.device, pipe: Any, rank: int, port: int, said: int) -> None:
    """A rank's life: one thread first of all, since a second one of OpenMP would hang after its parent used two."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the ranks
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # and so does its death, by whatever signal
    if said >= 0:  # a spawned process does not inherit it
        faulthandler.register(signal.SIGUSR1, file=said, all_threads=True)
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)  # what Python writes goes on to where it did
        os.dup2(said, 2)
    if device.type == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    store = TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    if rank == 0:
        pipe.send(store.port)
    with redirect_stdout(sys.stderr):  # stdout holds the report; what is under test may print too
        while True:
            try:
                scenario, job = pipe.recv()
            except (EOFError, ConnectionResetError):
                return
            reply: Answer = answer(serve, scenario, PrefixStore(f"job{job}", store), rank, device)
            pipe.send(reply)
