"""A piece of work in a fork beside this process."""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing import active_children

import pytest

from inbackward.forking import beside

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="there is one core, or no safe fork"
)


def test_it_is_done_elsewhere() -> None:
    with beside(os.getpid) as pid:
        there = pid()
    assert there != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(there, 0)


def test_what_fails_or_dies_there_is_done_here() -> None:
    def fail() -> None:
        raise LookupError(f"in {os.getpid()}")

    def die() -> int:
        if os.getpid() != me:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    me = os.getpid()
    with pytest.raises(LookupError, match=str(me)), beside(fail) as result:
        result()
    with beside(die) as result:
        assert result() == me


def test_nothing_is_left_where_nobody_waits() -> None:
    others = {*active_children()}  # in no order that stays
    with beside(lambda: signal.pause()):
        assert len({*active_children()} - others) == 1
    assert not {*active_children()} - others
