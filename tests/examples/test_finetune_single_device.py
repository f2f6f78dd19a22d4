"""One line tells the optimizers apart, and no number does: not those of a whole run, nor those of a resumed one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.examples.conftest import EXAMPLES

from inbackward import OptimizerInBackward

KINDS = ("plain", "in-backward")
STEPS = 6


def run(single: Any, out: Path, optimizer: str, *options: str) -> str:
    """The losses of a run, as text."""
    single.main(
        [f"--out={out}", f"--optimizer={optimizer}", f"--steps={STEPS}", "--save-every=3", "--device=cpu", *options]
    )
    return (out / "losses.csv").read_text()


def saved(path: Path) -> Any:
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_the_same_losses(single: Any, tmp_path: Path, micro_batches: int) -> None:
    plain, ours = (run(single, tmp_path / kind, kind, f"--micro-batches={micro_batches}") for kind in KINDS)
    assert plain == ours
    header, *rows = (line.split(",") for line in plain.splitlines())
    assert header == ["step", "loss", "lr", "norm"]
    assert [int(row[0]) for row in rows] == list(range(1, STEPS + 1))
    losses, rates, norms = (torch.tensor([float(row[i]) for row in rows]) for i in (1, 2, 3))
    assert losses[-1] < losses[0]
    assert len(set(rates.tolist())) > STEPS / 2
    assert (norms > 1).any()  # the default --max-norm acts
    a, b = (saved(tmp_path / kind / f"step-{STEPS}.pt") for kind in KINDS)
    torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert sorted(path.name for path in (tmp_path / "plain").iterdir()) == ["losses.csv", "step-3.pt", "step-6.pt"]


class NeverClips(OptimizerInBackward):
    def backward(self, loss: Any, **_: Any) -> Any:
        return super().backward(loss, max_norm=float("inf"))


class KeepsItsRate(OptimizerInBackward):
    def step(self, closure: Any = None) -> None:
        rates = [group["lr"] for group in self.param_groups]
        super().step(closure)
        self.rates = rates

    def backward(self, loss: Any, **options: Any) -> Any:
        for group, rate in zip(self.param_groups, getattr(self, "rates", [])):
            group["lr"] = rate
        return super().backward(loss, **options)


class LosesTheFirst(OptimizerInBackward):
    def backward(self, loss: Any, **options: Any) -> Any:
        self.zero_grad()
        return super().backward(loss, **options)


class ForgetsItsState(OptimizerInBackward):
    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict({**state_dict, "state": {}})


@pytest.mark.parametrize("fault", [NeverClips, KeepsItsRate, LosesTheFirst])
def test_a_fault_is_seen_in_the_losses(single: Any, tmp_path: Path, fault: Any) -> None:
    right = run(single, tmp_path / "right", "plain", "--micro-batches=2")
    single.OPTIMIZERS["plain"] = lambda params, lr: fault(params, torch.optim.AdamW, lr=lr)
    assert run(single, tmp_path / "wrong", "plain", "--micro-batches=2") != right


@pytest.mark.parametrize("after", KINDS)
@pytest.mark.parametrize("before", KINDS)
def test_stopped_and_resumed(
    single: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    whole = run(single, tmp_path / "whole", before)
    out = tmp_path / "stopped"
    with monkeypatch.context() as m:
        m.setattr(single, "loss_of", interrupted(single.loss_of, at=5))
        with pytest.raises(KeyboardInterrupt):
            run(single, out, before)
    assert (out / "losses.csv").read_text().splitlines() == whole.splitlines()[:4]  # as the checkpoint has it
    assert run(single, out, after, f"--resume={out}/step-3.pt") == whole
    torch.testing.assert_close(saved(out / "step-6.pt"), saved(tmp_path / "whole" / "step-6.pt"), rtol=0, atol=0)


def interrupted(loss_of: Any, at: int) -> Any:
    def stops(model: Any, args: Any, step: int, *rest: int) -> Any:
        if step == at:
            raise KeyboardInterrupt
        return loss_of(model, args, step, *rest)

    return stops


def test_control_a_state_that_is_not_loaded_is_seen(single: Any, tmp_path: Path) -> None:
    whole = run(single, tmp_path, "plain")
    single.OPTIMIZERS["plain"] = lambda params, lr: ForgetsItsState(params, torch.optim.AdamW, lr=lr)
    resumed = run(single, tmp_path, "plain", f"--resume={tmp_path}/step-3.pt")
    assert resumed.splitlines()[:5] == whole.splitlines()[:5]  # step 4 has the weights of the checkpoint
    assert resumed.splitlines()[5:] != whole.splitlines()[5:]


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    single: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(single, tmp_path, "plain")
    before = saved(tmp_path / "step-6.pt")

    def full(_: Any, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space"):
        run(single, tmp_path, "in-backward", f"--resume={tmp_path}/step-3.pt")
    torch.testing.assert_close(saved(tmp_path / "step-6.pt"), before, rtol=0, atol=0)


def test_a_text_of_the_users(single: Any, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"aabb" * 50)
    plain, ours = (run(single, tmp_path / kind, kind, f"--text={text}") for kind in KINDS)
    assert plain == ours != run(single, tmp_path / "other", "plain")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--optimizer=inbackward"], "argument --optimizer: invalid choice: 'inbackward'"),
        (["--steps=0"], "argument --steps: 0 is no positive int"),
        (["--steps=ten"], "argument --steps: ten is no positive int"),
        (["--lr=nan"], "argument --lr: nan is no positive float"),
        (["--max-norm=-1"], "argument --max-norm: -1 is no positive float"),
        (["--micro-batches=1.5"], "argument --micro-batches: 1.5 is no positive int"),
        (["--text=nowhere"], "argument --text: nowhere cannot be read: No such file or directory"),
        (["--text=short"], "argument --text: short has 5 bytes; at least 66 are needed"),
        (["--resume=nowhere.pt"], "--resume nowhere.pt: there is no checkpoint; name one that --save-every has left"),
        (["--resume=short"], "--resume short is no checkpoint of this model: "),
        (["--resume=other"], "--resume other is no checkpoint of this model: KeyError: 'model'"),
        (["--out=short"], "--out short: File exists; name a folder that can be written"),
        (["--resume=done", "--steps=6"], "--resume done has done 6 steps already; give --steps above that"),
    ],
)
def test_what_is_wrong_is_one_line(
    single: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, options: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short").write_text("short")
    torch.save({"step": 3}, "other")
    if "--resume=done" in options:
        run(single, tmp_path / "run", "plain")
        (tmp_path / "run" / "step-6.pt").rename("done")
        capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        single.main(["--out=out", "--device=cpu", *options])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f": {said}" in line
    assert not Path("out").exists()


def test_the_command(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "finetune_single_device.py"), "--out", "run", "--steps", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("run/losses.csv: 2,")
    assert len((tmp_path / "run" / "losses.csv").read_text().splitlines()) == 3
