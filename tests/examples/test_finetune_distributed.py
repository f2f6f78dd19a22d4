"""The same on two ranks of torchrun, by DDP and by FSDP2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.examples.conftest import EXAMPLES
from tests.launched import ended
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

KINDS = ("plain", "in-backward")


def torchrun(folder: Path, script: Path, *arguments: str) -> tuple[int, str]:
    """The exit status, and what was printed to stderr."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    process = subprocess.Popen(
        [*command, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    status, _, err = ended(process)
    return status, err


def several(folder: Path, *runs: dict[str, Any]) -> tuple[int, str]:
    return torchrun(folder, Path(__file__).with_name("several_runs.py"), str(EXAMPLES), json.dumps(runs))


def run(out: str, optimizer: str, parallel: str, *options: str, fault: str | None = None) -> dict[str, Any]:
    always = ["--steps=4", "--save-every=2", "--device=cpu"]
    return {
        "argv": [f"--out={out}", f"--optimizer={optimizer}", f"--parallel={parallel}", *always, *options],
        "fault": fault,
    }


def rows(folder: Path) -> list[str]:
    return (folder / "losses.csv").read_text().splitlines()


def content(checkpoint: Path) -> Any:
    """A checkpoint, put together from what the ranks have written."""
    file = checkpoint.with_suffix(".pt")
    dcp_to_torch_save(checkpoint, file)
    return torch.load(file, weights_only=True)


def assert_same(a: Any, b: Any) -> None:
    for one in (a, b):
        one["groups"] = one["optimizer"].pop("param_groups")  # which hold names
    assert (a.pop("groups"), a.pop("scheduler")) == (b.pop("groups"), b.pop("scheduler"))
    torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_the_same_losses_and_resumed_by_the_other(tmp_path: Path) -> None:
    runs = []
    for parallel in ("ddp", "fsdp2"):
        where = tmp_path / parallel
        runs += [run(f"{where}/{kind}", kind, parallel) for kind in KINDS]
        runs += [run(f"{where}/{kind}-accumulating", kind, parallel, "--micro-batches=2") for kind in KINDS]
        runs += [run(f"{where}/{a}-{b}", b, parallel, f"--resume={where}/{a}/step-2") for a in KINDS for b in KINDS]
        runs += [run(f"{where}/fault", "plain", parallel, f"--resume={where}/plain/step-2", fault="not-loaded")]
    runs += [run("moved", "plain", "fsdp2", "--resume=ddp/plain/step-2")]
    status, err = several(tmp_path, *runs)
    assert status == 0, err[-4000:]
    for parallel in ("ddp", "fsdp2"):
        where = tmp_path / parallel
        losses = {folder.name: rows(folder) for folder in where.iterdir()}
        assert [row.split(",")[0] for row in losses["plain"]] == ["step", "1", "2", "3", "4"]
        assert losses["plain"] == losses["in-backward"]
        assert losses["plain-accumulating"] == losses["in-backward-accumulating"] != losses["plain"]
        resumed = [f"{a}-{b}" for a in KINDS for b in KINDS]
        assert {name: losses[name][1:] for name in resumed} == dict.fromkeys(resumed, losses["plain"][3:])
        assert losses["fault"][1:] != losses["plain"][3:]
        for name in ("in-backward", *resumed):
            assert_same(*(content(where / folder / "step-4") for folder in ("plain", name)))
    for moved, stayed in zip(rows(tmp_path / "moved")[1:], rows(tmp_path / "ddp" / "plain")[3:], strict=True):
        # Norms of shards are summed in another order.
        assert list(map(float, moved.split(","))) == pytest.approx(list(map(float, stayed.split(","))), rel=1e-5)


def test_an_optimizer_that_was_not_told_of_ddp_says_so(tmp_path: Path) -> None:
    status, err = several(tmp_path, run("not-told", "in-backward", "ddp", fault="not-told"))
    assert status == 1
    assert "for a model in DistributedDataParallel, call register_ddp(model)" in err


def test_the_command(tmp_path: Path) -> None:
    status, err = torchrun(tmp_path, EXAMPLES / "finetune_distributed.py", "--out=run", "--steps=1", "--device=cpu")
    assert status == 0, err[-4000:]
    assert len((tmp_path / "run" / "losses.csv").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--parallel=fsdp3"], "argument --parallel: invalid choice: 'fsdp3'"),
        (["--optimizer=inbackward"], "argument --optimizer: invalid choice: 'inbackward'"),
        (["--resume=nowhere"], "--resume nowhere: there is no checkpoint; name one that --save-every has left"),
        (["--resume=unfinished"], "--resume unfinished: there is no checkpoint; name one that --save-every has left"),
        ([], "there are no ranks; start it by torchrun --nproc-per-node 2"),
    ],
)
def test_what_is_wrong_is_one_line(
    recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, options: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    Path("unfinished").mkdir()
    Path("unfinished", "__0_0.distcp").write_bytes(b"")
    for rank, lines in (("0", 1), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(SystemExit) as ended:
            recipe("finetune_distributed").main(["--out=out", "--device=cpu", *options])
        assert ended.value.code == 2
        printed = capsys.readouterr().err.splitlines()
        assert len(printed) == lines
        assert all(f": {said}" in line for line in printed)
