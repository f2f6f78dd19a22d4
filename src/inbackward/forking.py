"""Forks of this process, which have what is under test whatever it is: how they begin, and that they end with it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

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


def end(pid: int) -> None:
    """Kill a fork, and whatever it has forked."""
    for kill in (os.killpg, os.kill):  # the group is not there yet where it has just been started
        with suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
