"""The worker processes that this process hosts: start them, give them a scenario, see what becomes of each.

They are forks, which have the implementation whatever it is. On CUDA, which does not survive a fork, they are spawned,
and what is under test must have an import path.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import IO, Any

import torch

from inbackward.forking import begin, end, forking
from inbackward.ranks.serving import Answer, Serve, answer
from inbackward.scenario import Scenario
from inbackward.training import NotRun

DEADLINE = 60.0  # seconds a scenario may take
# Scenarios of a worker's life: torch's caches keep device meshes, and so their groups' connections and threads.
LIFE = 25
GRACE = 1.0  # seconds for a worker to end by itself, once another has failed

Address = tuple[str, int]


@dataclass(frozen=True)
class _Worker:
    """A worker as its host sees it; ``said`` is a file without a name.

    Into it goes what torch's C++ says (a warning of DDP's, an abort), and where the worker stands when it is asked.
    """

    process: Any
    pipe: Any
    said: IO[bytes]

    def words(self) -> str:
        self.said.seek(0)
        return self.said.read().decode(errors="replace")


class Workers:
    """The workers for some of the ranks.

    Args:
        serve: what a worker does with a scenario.
        device: on which they train.
        deadline: seconds that a scenario may take.
    """

    def __init__(self, serve: Serve[Any], device: torch.device, deadline: float = DEADLINE) -> None:
        self._serve, self._device, self.deadline = serve, device, deadline
        self._workers: dict[int, _Worker] = {}
        self._asked = 0

    def serves(self, ranks: Sequence[int]) -> bool:
        """Whether a live worker, not too old, stands ready for each of these ranks."""
        return self._asked < LIFE and all(
            rank in self._workers and self._workers[rank].process.is_alive() for rank in ranks
        )

    def start(self, ranks: Sequence[int], store: Address | None = None) -> None:
        """Start a worker a rank, in the place of all there are.

        Args:
            store: host and port of the store by which they agree; without one the first of them hosts it.

        Raises:
            NotRun: what is under test cannot be handed to them.
        """
        self.stop()
        self._asked = 0
        import torch.distributed.fsdp
        import torch.distributed.tensor.parallel  # noqa: F401  once here, not once in every worker

        context: Any = get_context("fork" if self._device.type == "cpu" else "spawn")
        sys.stdout.flush()  # or every fork would print what is buffered
        sys.stderr.flush()
        for rank in ranks:
            here, there = context.Pipe()
            said = tempfile.TemporaryFile()  # noqa: SIM115
            written = said.fileno() if self._device.type == "cpu" else -1  # a spawned process does not inherit it
            arguments = (self._serve, self._device, there, rank, store, written)
            process = context.Process(target=_work, args=arguments, name=f"inbackward-rank-{rank}", daemon=True)
            try:
                with forking():
                    process.start()
            except (TypeError, AttributeError) as error:
                mend = "give an implementation that can be imported, module:attribute"
                raise NotRun(f"ranks on {self._device.type} cannot be handed it ({error}); {mend}") from None
            there.close()
            self._workers[rank] = _Worker(process, here, said)
            if store is None:
                store = here.recv()

    def stop(self) -> None:
        """End the workers."""
        for worker in self._workers.values():
            end(worker.process.pid)
        for worker in self._workers.values():
            worker.process.join()
            worker.process.close()
            worker.pipe.close()
            worker.said.close()
        self._workers = {}

    def ask(
        self, ranks: Sequence[int], scenario: Scenario, job: str, given_up: Callable[[], bool] = lambda: False
    ) -> dict[int, Answer]:
        """What became of a scenario on each of these ranks.

        A worker that dies, hangs or raises what is no verdict ends the others too: they wait for it. All are then
        stopped.

        Args:
            job: what no other scenario is called.
            given_up: asked now and then whether ranks elsewhere have failed.
        """
        self._asked += 1
        try:
            for rank in ranks:
                self._workers[rank].pipe.send((scenario, job))
            answers = self._answers(ranks, given_up)
        except BaseException:  # an interrupt: they are in the middle of something
            self.stop()
            raise
        if any(kind != "answered" for kind, _ in answers.values()):
            self.stop()
        return answers

    def _answers(self, ranks: Sequence[int], given_up: Callable[[], bool]) -> dict[int, Answer]:
        waiting: dict[Any, int] = {self._workers[rank].pipe: rank for rank in ranks}
        answers: dict[int, Answer] = {}
        end = time.monotonic() + self.deadline
        failed = False
        while waiting:
            ready: list[Any] = wait(list(waiting), timeout=min(0.2, max(0.0, end - time.monotonic())))
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    answers[rank] = pipe.recv()
                except (EOFError, ConnectionResetError):
                    answers[rank] = "died", (self._exit(rank), self._workers[rank].words())
            if not failed and (any(kind != "answered" for kind, _ in answers.values()) or given_up()):
                failed, end = True, min(end, time.monotonic() + GRACE)
            if time.monotonic() >= end:
                stacks = self._stacks(sorted(waiting.values()))
                for rank in waiting.values():
                    answers[rank] = ("left", "") if failed else ("late", (f"{self.deadline:g} s", stacks[rank]))
                break
        return answers

    def _exit(self, rank: int) -> str:
        process = self._workers[rank].process
        process.join(1.0)
        code = process.exitcode
        return f"killed by {signal.Signals(-code).name}" if code and code < 0 else f"left with status {code}"

    def _stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        """Where these workers stand, as each says it itself."""
        for rank in ranks if self._device.type == "cpu" else ():
            with suppress(ProcessLookupError):
                os.kill(self._workers[rank].process.pid, signal.SIGUSR1)
        time.sleep(0.3)
        return {rank: innermost_last(self._workers[rank].words()) for rank in ranks}


def innermost_last(said: str) -> str:
    """The stack of the thread that was asked, out of what ``faulthandler`` wrote, in the order of a traceback."""
    _, found, stack = said.rpartition("Current thread")
    frames = [line for line in stack.partition("\n\n")[0].splitlines() if line.startswith("  File ")]
    return "\n".join(reversed(frames)) if found else said


def _work(serve: Serve[Any], device: torch.device, pipe: Any, rank: int, store: Address | None, said: int) -> None:
    """A worker's life."""
    begin()
    if said >= 0:
        faulthandler.register(signal.SIGUSR1, file=said, all_threads=True)
        faulthandler.enable(file=said)  # pytest's would write of a crash to the terminal
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)  # what Python writes goes on to where it did
        os.dup2(said, 2)
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count())
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    host, port = store or ("127.0.0.1", 0)
    agreed = TCPStore(host, port, is_master=store is None, wait_for_workers=False)
    if store is None:
        pipe.send((host, agreed.port))
    with redirect_stdout(sys.stderr):  # stdout holds the report; what is under test may print too
        while True:
            try:
                scenario, job = pipe.recv()
            except (EOFError, ConnectionResetError):
                return
            reply: Answer = answer(serve, scenario, PrefixStore(f"inbackward/{job}", agreed), rank, device)
            pipe.send(reply)
