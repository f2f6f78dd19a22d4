"""What TensorBoard and Weights & Biases are given, read back from their files."""

import json
import struct
from dataclasses import replace

import pytest
import wandb
from pages import CURVES, SHOWCASE
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_report_rows import ROWS
from wandb.proto.wandb_internal_pb2 import Record

from inbackward.curves import Curve
from inbackward.report import Log, Sink

SOME = [ROWS["equivalent"], ROWS["broken"]]
HELD_OUT = replace(CURVES.plain, held_out=((50, 3.5), (100, 2.5)))
LOG = Log(
    target="mine:Mine", rows=SOME, curves=replace(CURVES, plain=HELD_OUT), gradients=SHOWCASE.gradients
)  # in-backward has no held-out loss, and plain no difference


def test_tensorboard(tmp_path):
    Sink.of(f"tensorboard:{tmp_path}/logs").write(LOG)
    runs = {}
    for name in ("plain", "in-backward"):
        runs[name] = EventAccumulator(str(tmp_path / "logs" / name))
        runs[name].Reload()

    def scalars(run, tag):
        return [(event.step, round(event.value, 6)) for event in runs[run].Scalars(tag)]

    assert scalars("plain", "loss") == [(i, round(loss, 6)) for i, loss in enumerate(CURVES.plain.losses)]
    assert scalars("in-backward", "loss") == [(i, round(loss, 6)) for i, loss in enumerate(CURVES.in_backward.losses)]
    assert scalars("plain", "held-out loss") == [(49, 3.5), (99, 2.5)]
    assert scalars("in-backward", "difference in noise units")[0] == (0, 0.0)
    assert scalars("plain", "gradient bytes") == [(0, 0), (1_000_000, 1024), (1_500_000, 4096), (2_000_000, 4096)]
    assert scalars("in-backward", "summary/broken") == [(0, 1.0)]
    (text,) = runs["in-backward"].Tensors("verdicts/text_summary")
    assert "| frozen | broken | single | iteration 1, parameter head.weight" in text.tensor_proto.string_val[0].decode()
    assert "verdicts/text_summary" not in runs["plain"].Tags()["tensors"]


BLOCK, HEAD = 32_768, 7  # of LevelDB's log format: https://github.com/google/leveldb/blob/main/doc/log_format.md


def records_of(content):
    """The records of a ``.wandb`` file: after seven bytes of its own, LevelDB's log format."""
    assert content[:4] == b":W&B"
    at, parts = 7, b""
    while at + HEAD <= len(content):
        left = BLOCK - at % BLOCK
        if left < HEAD:
            at += left
            continue
        size, kind = struct.unpack("<4xHB", content[at : at + HEAD])
        parts += content[at + HEAD : at + HEAD + size]
        at += HEAD + size
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def wandb_records(folder):
    """By run name: the history as ``{key: [values]}``, and the summary."""
    wandb.teardown()  # which ends the process that writes
    runs = {}
    for path in folder.glob("wandb/offline-run-*/*.wandb"):
        history, summary, name = {}, {}, ""
        for record in records_of(path.read_bytes()):
            name = record.run.display_name or name
            for item in record.history.item:
                history.setdefault(item.key or "/".join(item.nested_key), []).append(json.loads(item.value_json))
            for item in record.summary.update:
                summary[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        runs[name] = history, summary
    return runs


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """W&B reads its environment once, and keeps a process that serves it."""
    for name, value in {"MODE": "offline", "DIR": tmp_path, "DATA_DIR": tmp_path, "CACHE_DIR": tmp_path}.items():
        monkeypatch.setenv(f"WANDB_{name}", str(value))
    wandb.teardown()
    yield
    wandb.teardown()


@pytest.mark.usefixtures("offline")
def test_wandb(tmp_path):
    Sink.of("wandb:in-backward").write(LOG)
    runs = wandb_records(tmp_path)
    assert set(runs) == {"plain", "in-backward"}
    (plain, _), (in_backward, summary) = runs["plain"], runs["in-backward"]
    assert plain["loss"] == list(CURVES.plain.losses)
    assert in_backward["loss"] == list(CURVES.in_backward.losses)
    assert plain["iteration"] == list(range(100))
    assert plain["held-out loss"] == [3.5, 2.5]
    assert plain["gradient bytes"] == [0, 1024, 4096, 4096]
    assert in_backward["difference in noise units"][0] == 0
    assert summary["summary/broken"] == 1
    assert "verdicts/_type" in in_backward
    assert "verdicts/_type" not in plain


@pytest.mark.usefixtures("offline")
def test_curves_of_nothing_are_no_runs(tmp_path):
    """Where there are verdicts only, W&B has one run; a loop that stopped at once has an empty curve."""
    Sink.of("wandb:in-backward").write(Log(target="mine:Mine", rows=SOME))
    assert set(wandb_records(tmp_path)) == {"in-backward"}
    stopped = replace(CURVES, in_backward=Curve(losses=(), stopped="KeyError: 'x'"), noise=())
    Sink.of(f"tensorboard:{tmp_path}").write(Log(target="mine:Mine", curves=stopped))
    assert (tmp_path / "plain").is_dir()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tensorbord:x", "--log is 'tensorbord:x'; give tensorboard:DIR or wandb:PROJECT"),
        ("tensorboard:", "--log is 'tensorboard:'; give tensorboard:DIR or wandb:PROJECT"),
        ("wandb", "--log is 'wandb'; give tensorboard:DIR or wandb:PROJECT"),
        ("tensorboard:file/below", "--log cannot write into 'file/below': Not a directory; name a folder that may be"),
        ("tensorboard:file", "--log cannot write into 'file': File exists; name a folder that may be written"),
        ("wandb:my/team", "--log wandb: no project can be called 'my/team'; leave out /"),
        ("wandb:mine", "--log wandb: nobody is logged in; run 'wandb login', or set WANDB_MODE=offline"),
    ],
)
def test_a_sink_that_cannot_be_used(tmp_path, monkeypatch, text, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    wandb.teardown()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="--log") as caught:
        Sink.of(text)
    assert str(caught.value).startswith(said)
