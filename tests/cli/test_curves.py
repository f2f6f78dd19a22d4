"""``inbackward curves``: what it tells and leaves, and that an interruption costs nothing but time."""

import csv
import fcntl
import math
import os
import signal
import subprocess
import sys

import pytest

from inbackward.curves import Curve, Curves

SHORT = "--iterations", "12", "--model", "mine:dropping"


@pytest.fixture
def curves(command):
    def run(*arguments):
        return command("curves", *arguments)

    return run


def rows_of(folder):
    with (folder / "curves.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_equal_curves(curves, project):
    ran = curves(*SHORT, "--log", "tensorboard:logs")
    assert (ran.status, ran.err) == (0, "")
    assert "No bit of any loss differs, in 12 iterations." in ran.out
    rows = rows_of(project / "curves")
    assert [row["iteration"] for row in rows] == [str(i) for i in range(12)]
    assert all(row["plain"] == row["in_backward"] and row["noise_units"] == "0.0" for row in rows)
    assert float(rows[-1]["plain_held_out"]) < float(rows[0]["plain_held_out"])
    assert sorted(p.name for p in (project / "curves").iterdir()) == ["curves.csv", "curves.png", "curves.svg"]
    assert (project / "curves" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "held out" in (project / "curves" / "curves.svg").read_text(encoding="utf-8")
    assert len(list((project / "logs").iterdir())) == 2


def test_curves_that_part(curves, project):
    ran = curves("mine:Hot", *SHORT)
    assert ran.status == 1
    ratios = [float(row["noise_units"]) for row in rows_of(project / "curves")]
    assert ratios[0] == 0
    assert max(ratios) > 8
    assert "the losses differ; 4 more runs of the usual loop, to measure its own noise" in ran.out
    assert f"farthest apart in iteration {len(ratios) - 1}, by " in ran.out


def test_ones_own_text(curves, project):
    (project / "text").write_bytes(b"abcdefg " * 200)
    assert curves(*SHORT, "--text", "text").status == 0
    assert float(rows_of(project / "curves")[-1]["plain"]) < 5


def test_a_loop_that_raises(curves, project):
    ran = curves("mine:Later", *SHORT)
    assert ran.status == 1
    assert "stopped after 3 iterations: ValueError: not today. No bit of any loss differs, in 3 iterations." in ran.out
    rows = rows_of(project / "curves")
    assert [bool(row["in_backward"]) for row in rows] == [True] * 3 + [False] * 9
    assert [row["noise_units"] for row in rows] == ["0.0"] * 3 + [""] * 9
    assert "more runs" not in ran.out


def test_what_a_close_raises_costs_no_curve(curves, project):
    ran = curves("mine:Unclosable", *SHORT)
    assert (ran.status, ran.err) == (0, "")
    assert len(rows_of(project / "curves")) == 12


def test_a_loop_that_raises_at_once(curves):
    ran = curves("mine:Raises", *SHORT)
    assert ran.status == 1
    assert "stopped after 0 iterations: ValueError: not today. No iteration can be compared." in ran.out
    assert "the losses differ" not in ran.out


def test_what_has_no_state_dict_is_told_so(curves):
    ran = curves("mine:frozen", *SHORT)
    assert "it cannot be taken up again if it is interrupted: Inner has no state_dict()" in ran.out
    assert ran.out.count("Inner has no state_dict()") == 1


@pytest.mark.parametrize(("target", "when"), [("mine:Right", 5), ("mine:Right", 22), ("mine:Hot", 40)])
def test_an_interrupted_run_gives_the_same_curves(curves, project, monkeypatch, target, when):
    """In the first loop's turn, in the second's, and while the noise is measured."""
    assert curves(target, *SHORT, "--out", "whole").status in (0, 1)
    calls = []

    def interrupted(*_):
        calls.append(None)
        if len(calls) == when:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("inbackward.report.Screen.running", interrupted)
        assert curves(target, *SHORT, "--out", "parts").status == 130
    assert [p.name for p in (project / "parts").iterdir()] == ["checkpoint.pt"]
    ran = curves(target, *SHORT, "--out", "parts")
    assert "taken up again after " in ran.out
    assert (project / "parts" / "curves.csv").read_bytes() == (project / "whole" / "curves.csv").read_bytes()


def test_a_killed_run_gives_the_same_curves(curves, project):
    arguments = "--iterations", "120", "--model", "mine:dropping"
    process = subprocess.Popen(
        [sys.executable, "-m", "inbackward", "curves", *arguments, "--out", "parts"],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        for line in process.stdout:
            if line.split()[:1] == ["5"]:
                process.send_signal(signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL
    assert not (project / "parts" / "curves.csv").exists()
    assert "taken up again after " in curves(*arguments, "--out", "parts").out
    curves(*arguments, "--out", "whole")
    assert (project / "parts" / "curves.csv").read_bytes() == (project / "whole" / "curves.csv").read_bytes()
    assert not (project / "parts" / "checkpoint.pt").exists()


def test_a_checkpoint_of_another_run_is_refused(curves, project, monkeypatch):
    monkeypatch.setattr("inbackward.report.plots.save_figure", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert curves(*SHORT).status == 130
    ran = curves(*SHORT, "--seed", "1")
    assert ran.status == 2
    assert ran.line == (
        "curves/checkpoint.pt is of a run with another --seed; give another --out, or remove it to begin anew"
    )
    (project / "curves" / "checkpoint.pt").write_text("something else")
    assert curves(*SHORT).line.startswith("curves/checkpoint.pt is no checkpoint of this command (")


def test_a_folder_that_another_run_writes_into_is_refused(curves, project):
    (project / "curves").mkdir()
    other = os.open(project / "curves", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    ran = curves(*SHORT)
    assert ran.status == 2
    assert ran.line == "--out 'curves': another run is writing there; give another folder"
    os.close(other)
    assert curves(*SHORT).status == 0


def test_differences_and_their_units():
    nan, inf = math.nan, math.inf
    both = Curves(
        iterations=6,
        plain=Curve(losses=(1.0, 1.0, nan, nan, 1.0, 1.0)),
        in_backward=Curve(losses=(1.0, 1.5, nan, 1.0, inf)),
        noise=((1.0, 1.1, nan, nan, 1.0, 1.0), (1.0, 1.0, nan, nan, 1.0, 1.0)),
    )
    assert both.differences[:3] == (0.0, 0.5, 0.0)
    assert both.ratios[0] == 0
    assert both.ratios[1] == pytest.approx(5, rel=1e-3)
    assert both.ratios[2:] == (0.0, inf, inf)
    assert not both.within_noise
    assert both.farthest in (3, 4)


def test_a_loss_by_chance_near_its_disturbed_ones_is_no_unit():
    """Four disturbed losses of one iteration may lie close to the reference, where those before do not."""
    plain = (1.0,) * 20
    moved = tuple(1.0 + (1e-9 if i == 15 else 1e-3) for i in range(20))
    off = tuple(1.0 + (2e-3 if i == 15 else 1e-3) for i in range(20))
    both = Curves(iterations=20, plain=Curve(losses=plain), in_backward=Curve(losses=off), noise=(moved,))
    assert both.ratios[15] == pytest.approx(2, rel=1e-3)
    assert both.within_noise


def test_nothing_is_farthest_where_nothing_was_trained():
    assert Curves(iterations=1, plain=Curve(losses=()), in_backward=Curve(losses=())).farthest == -1
