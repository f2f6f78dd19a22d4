"""The pool by itself: whatever becomes of a rank is told, the next scenario works, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from inbackward import Scenario
from inbackward.ranks import Pool, RanksFailed, workers
from inbackward.scenario import ParallelConfig
from inbackward.training import NotRun

CPU = torch.device("cpu")


def sleeps_for_ever():
    time.sleep(3600)


def waits_for_the_others():
    dist.all_reduce(torch.ones(1))


DEEDS = {
    "answer": lambda: None,
    "raise": lambda: sys.exit("no verdict"),
    "leave": lambda: os._exit(7),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "abort": os.abort,
    "hang": sleeps_for_ever,
    "wait": waits_for_the_others,
    "fork": lambda: os.fork() or sleeps_for_ever(),
    "interrupt": lambda: (os.kill(os.getppid(), signal.SIGINT), sleeps_for_ever()),
}


def open_files():
    """Every descriptor of this process with what the kernel calls it."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # by which they were listed
            found.add((link.name, os.readlink(link)))
    return found


def serve(scenario, world):
    """Do what the scenario's name says of this rank; answer with this process, its port and its open files.

    All look at their files before any answers: one that has answered ends its connections to those that have not.
    """
    deeds = scenario.name.split("-")
    DEEDS[deeds[world.rank % len(deeds)]]()
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == world.size
    files = open_files()
    world.share(None)
    return os.getpid(), world._port, files


def scenario(name, ranks=2):
    return Scenario(name=name, parallel=ParallelConfig(strategy="ddp", ranks=ranks))


def is_gone(pid):
    """Gone, or a zombie that waits for its new parent; it may take a moment."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.05)
    return False


def nobody_listens(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture
def pool(tmp_path, monkeypatch):
    """A pool with a short deadline; its workers, their port and their files are gone at the end."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pool = Pool(serve, CPU, deadline=3.0)
    yield pool
    pool.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("deeds", "message", "evidence"),
    [
        ("raise-answer", "rank 0 raised SystemExit: no verdict", "Traceback"),
        ("wait-raise", "rank 1 raised SystemExit: no verdict", "Traceback"),
        ("raise", "ranks 0, 1 raised SystemExit: no verdict", "Traceback"),
        ("wait-leave", "rank 1 died: left with status 7", ""),
        ("leave-wait", "rank 0 died: left with status 7", ""),
        ("wait-kill", "rank 1 died: killed by SIGKILL", ""),
        ("wait-abort", "rank 1 died: killed by SIGABRT", "in serve"),
        ("hang", "ranks 0, 1 did not end within 3 s", "rank 1:\n"),
        ("hang-wait", "ranks 0, 1 did not end within 3 s", "in waits_for_the_others"),
    ],
)
def test_what_becomes_of_a_rank_is_told(pool, deeds, message, evidence):
    before = pool.run(scenario("answer"))
    with pytest.raises(RanksFailed) as failed:
        pool.run(scenario(deeds))
    assert str(failed.value) == message
    assert evidence in failed.value.evidence
    for deed, function in (("hang", "in sleeps_for_ever"), ("raise", "in serve")):
        if deed in deeds:
            assert failed.value.evidence.count(function) >= (2 if deeds == "hang" else 1)
    assert all(is_gone(pid) for pid, _, _ in before)
    assert all(nobody_listens(port) for _, port, _ in before)
    after = pool.run(scenario("answer"))
    assert not {pid for pid, _, _ in after} & {pid for pid, _, _ in before}


def test_ranks_stay_from_one_scenario_to_the_next(pool):
    first, second = pool.run(scenario("answer")), pool.run(scenario("answer"))
    assert [pid for pid, _, _ in first] == [pid for pid, _, _ in second]
    assert not nobody_listens(first[0][1])
    pool.close()
    assert all(is_gone(pid) for pid, _, _ in first)
    assert nobody_listens(first[0][1])


def test_sizes_after_each_other(pool):
    for size in (2, 4, 1, 3, 2):
        assert len({pid for pid, _, _ in pool.run(scenario("answer", size))}) == size


def test_workers_are_replaced_after_their_life(pool, monkeypatch):
    monkeypatch.setattr(workers, "LIFE", 3)
    before = open_files()  # what earlier tests have left to the collector closes at any time
    answers = [pool.run(scenario("answer")) for _ in range(7)]
    lives = [pids for pids in dict.fromkeys(tuple(pid for pid, _, _ in a) for a in answers)]
    assert len(lives) == 3
    assert all(is_gone(pid) for life in lives[:-1] for pid in life)
    own = [[len(files - before) for _, _, files in a] for a in answers]
    assert own[0] == own[3] == own[6]
    pool.close()
    assert not open_files() - before


def test_ctrl_c_leaves_no_process(pool):
    before = pool.run(scenario("answer"))
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # the runner of these tests may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            pool.run(scenario("hang-interrupt"))
    finally:
        signal.signal(signal.SIGINT, handler)
    assert all(is_gone(pid) for pid, _, _ in before)
    assert len(pool.run(scenario("answer"))) == 2


PARENT = """
import torch
from tests.ranks.test_pool import Pool, scenario, serve
pool = Pool(serve, torch.device("cpu"))
print(*[pid for pid, _, _ in pool.run(scenario("answer"))], flush=True)
pool.run(scenario(DEEDS))
"""


@pytest.mark.parametrize("deeds", ["hang", "hang-wait"])
def test_a_parent_that_is_killed_takes_its_ranks_along(deeds):
    program = textwrap.dedent(PARENT).replace("DEEDS", repr(deeds))
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pids = list(map(int, parent.stdout.readline().split()))
        assert len(pids) == 2
        parent.kill()
    assert all(is_gone(pid) for pid in pids)


def test_a_process_group_of_the_user_s_is_not_touched(pool):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(NotRun) as reason:
            pool.run(scenario("answer"))
        assert str(reason.value) == (
            "this process has a default process group already, and scenarios need their own; "
            "call torch.distributed.destroy_process_group() before, at the end of the fixture that made it"
        )
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 1
    finally:
        dist.destroy_process_group()
    assert len(pool.run(scenario("answer"))) == 2


def test_what_a_rank_has_forked_ends_with_it():
    with closing(Pool(serve, CPU)) as pool:
        (pid, *_), _ = pool.run(scenario("fork-answer"))
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert len(children) == 1
    assert is_gone(int(children[0]))
