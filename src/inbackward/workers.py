"""Requirements judged side by side, in order, by forks of this process.

A fork has the implementation whatever it is (a closure, a class of a notebook), and an implementation that kills its
process costs one requirement instead of the run. Results are plain rows, the same however many workers there are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stdout
from multiprocessing import get_context
from typing import TypeVar

from inbackward.forking import begin, end, forking
from inbackward.report import Row, Showcase, died, row
from inbackward.requirements import Item
from inbackward.scenario import Scenario
from inbackward.shrinking import shrink_for_report
from inbackward.verification import Suite

A = TypeVar("A")
B = TypeVar("B")

DIED = "the process that judged it died: it was killed, crashed, or was left by os._exit"


def workers_for(suite: Suite) -> int:
    """How many workers suit this machine: one a core where forking is safe, and none elsewhere."""
    return cores() if suite.device.type == "cpu" else 0


def cores() -> int:
    """Those that forks may use, and none where forking is not safe."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 0


def judge_all(suite: Suite, items: Sequence[Item], workers: int) -> Generator[Row, None, None]:
    """The rows of the items, in their order, each as soon as it and those before it are done.

    What needs ranks is led from this process, which trains nothing itself; the workers go on beside it. Without workers
    everything happens in this process. Closing the iterator ends the workers.
    """
    alone = [item for item in items if item.strategies == ("single",)]
    if not workers or not alone:
        yield from (_judge(suite, item) for item in items)
        return
    with ended(_pool(suite, min(workers, len(alone)))) as pool:
        futures = _submit(pool, alone)
        for item in items:
            if item not in futures:
                yield _judge(suite, item)
                continue
            try:
                yield futures[item].result()
            except BrokenProcessPool:  # somebody's worker died, and the pool with it; whose, each finds out alone
                yield _judge_alone(suite, item)


def shrink_apart(suite: Suite, scenario: Scenario, workers: int) -> Scenario | None:
    """``shrink_for_report`` in a fork, since a failure may take its process along; then ``None``."""
    if not workers:
        return _shrink(suite, scenario)
    with _pool(suite, 1) as pool:
        try:
            return submitted(pool, _shrink_here, scenario).result()
        except BrokenProcessPool:
            return None


def showcase_apart(suite: Suite, workers: int) -> Showcase:
    """``Showcase.of`` in a fork, since the implementation may take its process along."""
    if not workers:
        return _showcase(suite)
    with _pool(suite, 1) as pool:
        try:
            return submitted(pool, _showcase_here, None).result()
        except BrokenProcessPool:
            return Showcase(why_not=f"{DIED.replace('judged', 'trained for')}")


def _showcase(suite: Suite) -> Showcase:
    with redirect_stdout(sys.stderr):
        return Showcase.of(suite)


def _shrink(suite: Suite, scenario: Scenario) -> Scenario | None:
    with redirect_stdout(sys.stderr):
        return shrink_for_report(suite, scenario)


def _judge(suite: Suite, item: Item) -> Row:
    with redirect_stdout(sys.stderr):  # stdout holds the report; what is under test may print too
        return row(suite.run(item.id, *item.strategies))


def _judge_alone(suite: Suite, item: Item) -> Row:
    with _pool(suite, 1) as pool:
        try:
            return _submit(pool, [item])[item].result()
        except BrokenProcessPool:
            return died(item, DIED, suite.implementation.unsupported.get(item.id, ""))


def _pool(suite: Suite, workers: int) -> ProcessPoolExecutor:
    sys.stdout.flush()  # or every fork would print what is buffered
    return ProcessPoolExecutor(workers, get_context("fork"), _begin, (suite,))


@contextmanager
def ended(pool: ProcessPoolExecutor) -> Iterator[ProcessPoolExecutor]:
    """Its workers end with the block, whatever they are at."""
    try:
        yield pool
    finally:
        for pid in list(pool._processes or {}):
            end(pid)
        pool.shutdown(cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, items: Sequence[Item]) -> dict[Item, Future[Row]]:
    return {item: submitted(pool, _judge_here, item) for item in items}


def submitted(pool: ProcessPoolExecutor, work: Callable[[A], B], argument: A) -> Future[B]:
    """Have a fork do the work, which it finds by its name."""
    with forking():
        return pool.submit(work, argument)


_suite: Suite


def _begin(suite: Suite) -> None:
    global _suite
    begin()
    _suite = suite


def _judge_here(item: Item) -> Row:
    return _judge(_suite, item)


def _showcase_here(_: None) -> Showcase:
    return _showcase(_suite)


def _shrink_here(scenario: Scenario) -> Scenario | None:
    return _shrink(_suite, scenario)
