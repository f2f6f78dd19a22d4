"""``inbackward replay``: the same verdict and numbers again, and one line for whatever is no scenario."""

import json
import os
import shlex
import subprocess
import sys
import sysconfig

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inbackward.judging import Verdict
from inbackward.scenario import (
    Edit,
    GroupConfig,
    ModelConfig,
    OptimizerConfig,
    Resume,
    Scenario,
    ScheduleConfig,
    StepClosure,
)

SMALL = ModelConfig(layers=1)


@pytest.fixture
def saved(project):
    """Write a scenario into the project and give its path."""

    def save(**fields):
        path = project / "scenario.json"
        path.write_text(Scenario(**{"model": SMALL, **fields}).to_json())
        return path

    return save


@pytest.mark.parametrize(("target", "id"), [("mine:frozen", "lr-schedule"), ("mine:Crash", "weights-only-load")])
def test_the_same_in_a_fresh_process(command, project, target, id):
    command("verify", target, "--only", id, "--model", "mine:small", "--seed", "3", "--json", "report.json")
    entry = json.loads((project / "report.json").read_text())["requirements"][0]
    program, *arguments = shlex.split(entry["replay"])
    assert program == "inbackward"
    ended = subprocess.run(
        [os.path.join(sysconfig.get_path("scripts"), "inbackward"), *arguments],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    lines = [line.strip() for line in ended.stdout.splitlines()]
    assert lines[0].startswith(f"{entry['divergence']['scenario']}, {target}, torch ")
    assert lines[1] == f"verdict: {entry['verdict']}"
    assert entry["message"] in lines
    numbers = {
        "iteration": entry["divergence"]["iteration"],
        "noise ratio here": entry["divergence"]["noise_ratio"],
        "largest difference": entry["divergence"]["max_abs"],
        "units in the last place": entry["divergence"]["max_ulp"],
        "relative tolerance needed": entry["divergence"]["needed_rtol"],
    }
    for name, value in numbers.items():
        assert value is None or f"{name:<28}{value!r}" in lines


def test_a_crash_shows_its_traceback(command, saved):
    ran = command("replay", saved(events=(Resume(at=1),)), "mine:Crash")
    assert ran.status == 1
    assert "verdict: broken" in ran.out
    assert ran.out.rstrip().endswith("KeyError: 'momentum_buffer'")
    assert "Traceback (most recent call last):" in ran.out


@pytest.mark.parametrize(
    ("fields", "target", "status", "verdict"),
    [
        ({}, "inbackward:OptimizerInBackward", 0, Verdict.EQUIVALENT),
        ({"events": (StepClosure(at=0),), "may_refuse": True}, "inbackward:OptimizerInBackward", 0, Verdict.REFUSED),
        ({"expect": ("gradients-freed",)}, "mine:keeps", 1, Verdict.NOT_EQUIVALENT),
        ({"expect": ("gradients-freed",), "requirement": "gradient-freed"}, "mine:tracked", 0, Verdict.NOT_EQUIVALENT),
        ({"events": (Resume(at=1),)}, "mine:frozen", 3, Verdict.NOT_RUN),
    ],
)
def test_exit_status(command, saved, fields, target, status, verdict):
    ran = command("replay", saved(**fields), target)
    assert (ran.status, ran.err) == (status, "")
    assert f"\nverdict: {verdict}\n" in ran.out


def test_the_count_of_tensors(command, saved):
    out = command("replay", saved()).out
    assert "tensors compared            200 of 200\n" in out
    assert "worst noise ratio           0.0; 8 is the limit\n" in out


def test_names_that_a_terminal_cannot_show(command, saved):
    assert command("replay", saved(name="\ud800 né")).status == 0


def test_an_unknown_requirement_is_one_line(command, saved):
    ran = command("replay", saved(requirement="lr-shedule"))
    assert ran.status == 2
    assert ran.line.endswith("names no requirement 'lr-shedule'; did you mean 'lr-schedule'?")


BOTH_RAISE = {
    "an unknown keyword": {"optimizer": OptimizerConfig(kwargs={"lrr": 1})},
    "an lr that is no number": {"optimizer": OptimizerConfig(kwargs={"lr": "high"})},
    "a class that is none": {"optimizer": OptimizerConfig(cls="math:pi", kwargs={})},
    "a class that is nowhere": {"optimizer": OptimizerConfig(cls="nowhere:X", kwargs={})},
    "a schedule's unknown keyword": {"schedule": ScheduleConfig(cls="StepLR", kwargs={"size": 1})},
    "an edit to nonsense": {"events": (Edit(at=0, value=("a",)),)},
    "an edit in place of a number": {"events": (Edit(at=0, value=1.0, in_place=True),)},
    "betas that are one number": {"groups": (GroupConfig(options={"betas": 0.9}),)},
    "everything frozen": {"frozen": ("*",)},
}


@pytest.mark.parametrize("fields", BOTH_RAISE.values(), ids=BOTH_RAISE)
def test_a_run_that_cannot_be_trained_proves_nothing(command, saved, fields):
    ran = command("replay", saved(**fields))
    assert (ran.status, ran.err) == (3, "")
    assert "tensors compared            0 of 0\n" in ran.out
    assert "Traceback" not in ran.out


def test_a_run_that_both_loops_end_alike_holds_as_far_as_it_went(command, saved):
    too_short = ScheduleConfig(cls="OneCycleLR", kwargs={"max_lr": 1.0, "total_steps": 2})
    ran = command("replay", saved(schedule=too_short))
    assert (ran.status, ran.err) == (0, "")
    assert "  both raise ValueError: Tried to step 3 times." in ran.out
    assert "tensors compared            100 of " in ran.out


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"factory": "nowhere:model"}, "scenario.json: the model 'nowhere:model' does not import: ModuleNotFoundError"),
        (
            {"factory": "mine:raising"},
            "scenario.json: the model mine:raising cannot be built: RuntimeError: no weights",
        ),
        ({"factory": "mine"}, "scenario.json: model.factory is 'mine'; write it as module:attribute"),
        ({"layers": 0}, "scenario.json: model.layers is 0; it must be at least 1"),
        ({"layer": 1}, "scenario.json: scenario.model has no field 'layer'; its fields are kind, layers, "),
        ({"kind": "gpt"}, "scenario.json: model.kind is 'gpt'; choose one of llama, convolution"),
        (3, "scenario.json: scenario.model is 3; it must be an object"),
    ],
)
def test_a_model_that_cannot_be_built(command, project, model, said):
    (project / "scenario.json").write_text(json.dumps({"schema": "inbackward.scenario/1", "model": model}))
    ran = command("replay", "scenario.json")
    assert ran.status == 2
    assert ran.line.startswith(said)


GARBAGE = {
    "empty": b"",
    "no JSON": b"{",
    "not UTF-8": b'{"schema": "\xff"}',
    "UTF-16": '{"schema": 1}'.encode("utf-16"),
    "nothing": b"null",
    "a list": b"[]",
    "a number": b"1e999",
    "no schema": b"{}",
    "another schema": b'{"schema": "inbackward.scenario/2"}',
    "an unknown field": b'{"schema": "inbackward.scenario/1", "lr": 0.1}',
    "not a number": b'{"schema": "inbackward.scenario/1", "loss_scale": NaN}',
    "infinity": b'{"schema": "inbackward.scenario/1", "loss_scale": -Infinity}',
    "too large a number": b'{"schema": "inbackward.scenario/1", "loss_scale": 1e999}',
    "too many digits": b'{"schema": "inbackward.scenario/1", "seed": ' + b"9" * 5000 + b"}",
    "a negative seed": b'{"schema": "inbackward.scenario/1", "seed": -1}',
    "a seed that is true": b'{"schema": "inbackward.scenario/1", "seed": true}',
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"schema":' * 100_000,
    "deep schedules": b'{"schema":"inbackward.scenario/1","schedule":'
    + b'{"cls":"ChainedScheduler","parts":[' * 20_000,
    "an unknown event": b'{"schema": "inbackward.scenario/1", "events": [{"kind": "explode", "at": 0}]}',
    "an event without a time": b'{"schema": "inbackward.scenario/1", "events": [{"kind": "resume"}]}',
    "an event too late": b'{"schema": "inbackward.scenario/1", "events": [{"kind": "resume", "at": 99}]}',
    "an edit of the parameters": b'{"schema": "inbackward.scenario/1", '
    b'"events": [{"kind": "edit", "at": 0, "name": "params"}]}',
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_one_line(command, project, content):
    (project / "garbage.json").write_bytes(content)
    ran = command("replay", "garbage.json")
    assert (ran.status, ran.out) == (2, "")
    assert ran.line.startswith("garbage.json: ")


@settings(max_examples=100, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(lambda t: json.dumps([t]).encode()))
def test_any_bytes_are_one_line(command, project, content):
    (project / "garbage.json").write_bytes(content)
    ran = command("replay", "garbage.json")
    assert (ran.status, ran.out) == (2, "")
    assert ran.line.startswith("garbage.json: ")


def test_shrinking_ends_in_a_run_that_a_person_can_read_and_replay(command, saved, project):
    fields = {"groups": (GroupConfig(match=("@vector",)), GroupConfig()), "dtype": "float64", "frozen": ("@first",)}
    step = ScheduleConfig(cls="StepLR", kwargs={"step_size": 1, "gamma": 0.5})
    path = saved(requirement="lr-schedule", name="mixed", schedule=step, **fields)
    result = command("replay", "--shrink", str(path), "mine:frozen")
    assert result.status == 1
    *_, shrunk, replay = result.out.splitlines()
    assert shrunk.startswith("shrunk: Scenario(requirement='lr-schedule', name='mixed-shrunk'")
    assert "schedule=ScheduleConfig(" in shrunk
    assert not any(f"{field}=" in shrunk for field in fields)
    again = command(*shlex.split(replay.removeprefix("replay: inbackward ")))
    assert again.status == 1


def test_as_a_module(project):
    ended = subprocess.run(
        [sys.executable, "-m", "inbackward", "replay", "gone.json"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("inbackward: error: cannot read 'gone.json'")
