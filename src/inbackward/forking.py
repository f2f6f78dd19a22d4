"""Forks of this process, which have what is under test whatever it is: how they begin, and that they end with it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe, get_context
from typing import TypeVar

import torch

T = TypeVar("T")

PR_SET_PDEATHSIG = 1  # linux/prctl.h


@contextmanager
def forking() -> Iterator[None]:
    """Around what forks: Python 3.12 and later warn of any fork, and ``begin`` makes these safe."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def begin() -> None:
    """The first act of a fork: one thread, since a second one of OpenMP would hang after its parent used two.

    The parent ends it: by itself, since Ctrl-C is not for the fork to hear, and by its death, by whatever signal. What
    it forks in its turn is of its process group, by which ``end`` finds that too.
    """
    os.setpgrp()
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def beside(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Begin a piece of work in a fork, where there is a core for it, and give what waits for its result.

    What fails there is done once more here, so that it raises as it would have.
    """
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        yield work
        return
    here, there = Pipe(duplex=False)

    def do() -> None:
        begin()
        with suppress(BaseException):
            there.send(work())

    def result() -> T:
        try:
            found: T = here.recv()
            return found
        except EOFError:
            return work()

    fork = get_context("fork").Process(target=do)
    with forking():
        fork.start()
    there.close()
    try:
        yield result
    finally:
        here.close()
        assert fork.pid  # it was started
        end(fork.pid)
        fork.join()
        fork.close()


def end(pid: int) -> None:
    """Kill a fork, and whatever it has forked."""
    for kill in (os.killpg, os.kill):  # the group is not there yet where it has just been started
        with suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
