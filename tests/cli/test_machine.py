"""What is nobody's mistake: Ctrl-C, a full disk, a reader that has gone, a fault of our own."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from inbackward.report import Screen
from inbackward.verification import Suite

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


def test_interrupted(command, project, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Suite, "judge", interrupt)
    ran = command("verify", "--only", "rng", "--json", "report.json")
    assert (ran.status, ran.err) == (130, "inbackward: interrupted\n")
    assert [p.name for p in project.iterdir()] == ["mine.py"]


def test_interrupted_from_outside(project):
    """A real signal in a real process, sent once training goes on."""
    (project / "waits.py").write_text(
        "import sys, time\nfrom inbackward import OptimizerInBackward\n"
        "class Waits(OptimizerInBackward):\n"
        "    def __init__(self, *args, **kwargs):\n"
        "        print('training', flush=True)\n"
        "        time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "inbackward", "verify", "waits:Waits", "--only", "rng", "--json", "report.json"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr.readline() == "training\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate()[1] == "inbackward: interrupted\n"
    assert process.returncode == 130
    assert not (project / "report.json").exists()


@needs_full
def test_a_disk_that_fills_costs_the_file_not_the_report(command):
    ran = command("verify", "--only", "rng", "--json", FULL)
    assert ran.status == 3
    assert ran.line == "this machine failed: [Errno 28] No space left on device"
    assert "\nrequirements: 67 exist, 1 selected\n" in ran.out


@needs_full
@pytest.mark.parametrize("arguments", [["requirements"], ["requirements", "plain"]], ids=["much", "little"])
def test_a_terminal_that_takes_nothing(project, arguments):
    with FULL.open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "inbackward", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 3
    assert ended.stderr == "inbackward: error: this machine failed: [Errno 28] No space left on device\n"


def test_a_reader_that_has_gone(project):
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "inbackward", "requirements"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_our_own_fault_never_accuses_the_implementation(command, monkeypatch):
    monkeypatch.setattr(Suite, "judge", lambda *_: 1 / 0)
    ran = command("verify", "--only", "rng")
    assert ran.status == 3
    assert "ZeroDivisionError" in ran.err
    assert ran.err.endswith("inbackward: error: the lines above show a fault of inbackward itself; please report it\n")


@pytest.mark.parametrize(("environment", "colour"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_only_where_they_are_wanted(monkeypatch, environment, colour):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    leader, follower = pty.openpty()
    with open(leader, "rb"), open(follower, "w") as terminal:
        assert Screen(terminal, terminal).colour is colour


def test_no_colours_in_files(tmp_path):
    with (tmp_path / "out").open("w") as file:
        screen = Screen(file, file)
        assert not screen.colour
        screen.running(1, 2, "plain")
        screen.erase()
    assert (tmp_path / "out").read_text() == ""
