"""``torchrun ... -m pytest``: rank 0 judges, the others serve, and a fault on one rank costs a verdict, not the run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launched import ended

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forks")

IMPLEMENTATIONS = """
import os, time
import torch
import torch.distributed as dist
from inbackward import OptimizerInBackward


def on_rank_1():
    return dist.is_initialized() and dist.get_rank() == 1


class Right(OptimizerInBackward):
    pass


class Raises(OptimizerInBackward):
    def step(self, closure=None):
        if on_rank_1():
            raise OSError("out of luck")
        super().step(closure)


class Exits(OptimizerInBackward):
    def step(self, closure=None):
        if on_rank_1():
            os._exit(9)
        super().step(closure)


class Deadlocks(OptimizerInBackward):
    def step(self, closure=None):
        if on_rank_1():
            dist.recv(torch.zeros(1), src=0)
        super().step(closure)


class Diverges(OptimizerInBackward):
    def step(self, closure=None):
        super().step(closure)
        if on_rank_1():
            with torch.no_grad():
                self.param_groups[0]["params"][0].mul_(1.001)
"""

FIXTURE = """
import os
import pytest
import mine


@pytest.fixture(scope="session")
def optimizer_in_backward():
    return getattr(mine, os.environ["WHICH"])
"""

# Tests of the project's own, with a process group of its own, on every rank.
OWN = """
import os
import pytest
import torch
import torch.distributed as dist


@pytest.fixture
def group():
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()


def test_sum(group):
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == int(os.environ["WORLD_SIZE"])


def test_on_rank_1_only():
    assert os.environ["RANK"] != os.environ.get("FAILS_ON")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(IMPLEMENTATIONS, encoding="utf-8")
    (tmp_path / "conftest.py").write_text("", encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return tmp_path


def torchrun(project: Path, *arguments: str, launch: tuple[str, ...] = ("--standalone",), **environment: str):
    """Start it: two ranks on this node."""
    command = [sys.executable, "-m", "torch.distributed.run", *launch, "--nproc-per-node", "2", "-m", "pytest"]
    return start(project, command, *arguments, **environment)


def start(project: Path, command: list[str], *arguments: str, **environment: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), str(project)])
    return subprocess.Popen(
        [*command, "-q", "-p", "no:randomly", "-p", "no:cacheprovider", *arguments],
        cwd=project,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def statuses(err: str) -> set[str]:
    """The exit status of every rank that torchrun saw fail."""
    return set(re.findall(r"exitcode\s*: (-?\d+)", err))


def test_a_right_one_beside_tests_of_the_projects_own(project: Path) -> None:
    (project / "test_own.py").write_text(OWN, encoding="utf-8")
    target = ("--optimizer-in-backward", "mine:Right", "--optimizer-in-backward-json", "report.json")
    chosen = "test_sum or test_on_rank or [fsdp2] or [rng] or [hsdp]"
    status, out, err = ended(torchrun(project, *target, "test_own.py", "-k", chosen))
    assert status == 0, out + err
    assert out.count("requirements: 67 exist") == 1, "rank 0 alone prints"
    assert re.search(r"^4 passed, 1 skipped", out, re.M), out
    assert "hsdp: not-run: hsdp needs 4 ranks, and torchrun started 2" in out
    assert (project / "report.json").is_file()


FAULTS = {
    "Raises": ("rank 1: OSError: out of luck", "broken"),
    "Exits": ("rank 1 died: left with status 9", "broken"),
    "Deadlocks": (r"RuntimeError: .*Timed out", "broken"),
    "Diverges": (r"rank 1: iteration 0, parameter embedding\.weight: off by", "not-equivalent"),
}
EACH = f"""
from datetime import timedelta

import pytest
from inbackward.ranks import world

import mine

world.TIMEOUT = timedelta(seconds=6)  # of a collective, which one of them waits for


@pytest.fixture(scope="session", params={list(FAULTS)})
def optimizer_in_backward(request):
    return getattr(mine, request.param)
"""


def test_a_fault_on_one_rank(project: Path) -> None:
    """All of them in one run, whose start costs more than they do."""
    (project / "conftest.py").write_text(EACH, encoding="utf-8")
    (project / "test_suite.py").write_text("from inbackward.suite import *\n", encoding="utf-8")
    status, out, err = ended(torchrun(project, "-k", "cpu-offload or zero-size or rng"))
    assert status == 1, out + err
    for which, (says, verdict) in FAULTS.items():
        _, _, told = out.partition(f" test_optimizer_in_backward[{which}-cpu-offload] _")
        told = told.partition("\n____")[0]
        assert f"\ncpu-offload: {verdict}\n" in told, which
        assert re.search(says, " ".join(told.split())), out  # lines are wrapped
    assert re.search(r"^4 failed, 8 passed", out, re.M), out  # what comes after is unharmed
    assert out.count("requirements: 67 exist") == len(FAULTS)
    assert statuses(err) == {"1"}, err


def test_the_report_is_that_of_a_pool(project: Path) -> None:
    (project / "conftest.py").write_text(FIXTURE, encoding="utf-8")
    chosen = ("--pyargs", "inbackward.suite", "-k", "[token-normalised-loss] or [rng]")
    here = (*chosen, "--optimizer-in-backward-json")
    status, out, err = ended(torchrun(project, *here, "torchrun.json", WHICH="Diverges"))
    assert status == 1, out + err
    pytest_alone = start(project, [sys.executable, "-m", "pytest"], *here, "pool.json", WHICH="Diverges")
    assert ended(pytest_alone)[0] == 1
    reports = [json.loads((project / name).read_text(encoding="utf-8")) for name in ("torchrun.json", "pool.json")]
    for report in reports:
        report.pop("environment")
        for entry in report["requirements"]:
            entry.pop("seconds")
    assert reports[0] == reports[1]
    assert {entry["verdict"] for entry in reports[0]["requirements"]} == {"equivalent", "not-equivalent"}


def test_two_nodes_and_a_plugin_module(project: Path) -> None:
    (project / "given.py").write_text(FIXTURE, encoding="utf-8")
    launch = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-id", "two", "--rdzv-endpoint")
    from torch.distributed import TCPStore  # a free port

    port = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).port
    arguments = ("-p", "given", "--pyargs", "inbackward.suite", "-k", "[hsdp] or [rng]")
    nodes = [torchrun(project, *arguments, launch=(*launch, f"127.0.0.1:{port}"), WHICH="Right") for _ in range(2)]
    ends = [ended(node) for node in nodes]
    assert [status for status, _, _ in ends] == [0, 0], ends
    said = "".join(out for _, out, _ in ends)
    assert said.count("requirements: 67 exist") == 1
    assert re.search(r"^2 passed", said, re.M), said


def test_a_failure_of_the_projects_own_on_one_rank_is_named(project: Path) -> None:
    (project / "test_own.py").write_text(OWN, encoding="utf-8")
    status, _, err = ended(torchrun(project, "test_own.py", FAILS_ON="1"))
    assert status == 1
    assert "[rank 1] FAILED test_own.py::test_on_rank_1_only" in err


def test_other_orders_on_other_ranks_are_refused(project: Path) -> None:
    (project / "conftest.py").write_text(
        FIXTURE + "\n\ndef pytest_collection_modifyitems(items):\n    items.sort(key=lambda i: i.name, "
        'reverse=os.environ["RANK"] == "1")\n',
        encoding="utf-8",
    )
    status, out, err = ended(
        torchrun(project, "--pyargs", "inbackward.suite", "-k", "[rng] or [frozen]", WHICH="Right")
    )
    assert status == 1
    assert "ranks have collected different tests, or in another order" in out + err
