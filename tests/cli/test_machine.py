"""What is nobody's mistake: Ctrl-C, a full disk, a reader that has gone, a fault of our own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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


# Whoever runs these tests may ignore SIGINT, as a shell's background jobs do.
INTERRUPTIBLE = (
    "import runpy, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "runpy.run_module('inbackward', run_name='__main__')"
)


@pytest.mark.parametrize("ids", ["rng", "rng,frozen"], ids=["here", "by workers"])
def test_ctrl_c(project, ids):
    """A real signal to every process of the terminal, sent once training goes on."""
    (project / "waits.py").write_text(
        "import sys, time\nfrom inbackward import OptimizerInBackward\n"
        "class Waits(OptimizerInBackward):\n"
        "    def __init__(self, *args, **kwargs):\n"
        "        sys.stdout.write('training\\n')\n"
        "        time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "verify", "waits:Waits", "--only", ids, "--json", "report.json"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stderr.readline() == "training\n"
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=50)[1]
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert said.replace("training\n", "") == "inbackward: interrupted\n"
    assert process.returncode == 130
    assert {p.name for p in project.iterdir()} - {"__pycache__"} == {"mine.py", "waits.py"}


@needs_full
def test_a_disk_that_fills_costs_the_file_not_the_report(command):
    ran = command("verify", "--only", "rng", "--json", FULL)
    assert ran.status == 3
    assert ran.line == "this machine failed: [Errno 28] No space left on device: '/dev/full'"
    assert "\nrequirements: 67 exist, 1 selected\n" in ran.out


@needs_full
@pytest.mark.parametrize(
    ("line", "file", "said"),
    [
        ("memory --model mine:small --json full", "full", "\nsaved: "),
        ("selfcheck --only wrong-sign --json full", "full", "\nfaults:  1 run: 1 caught, "),
        ("curves --iterations 3 --model mine:small --out .", "curves.csv", "\nNo bit of any loss differs, in 3 "),
    ],
    ids=["memory", "selfcheck", "curves"],
)
def test_a_disk_that_fills_does_not_cost_what_was_found(command, project, line, file, said):
    (project / file).symlink_to(FULL)
    ran = command(*line.split())
    assert ran.status == 3
    assert ran.line == f"this machine failed: [Errno 28] No space left on device: '{file}'"
    assert said in ran.out


@needs_full
def test_a_disk_that_fills_is_no_fault_of_ours_in_a_checkpoint(command, project):
    (project / "curves").mkdir()
    (project / "curves" / ".checkpoint.pt.tmp").symlink_to(FULL)
    ran = command("curves", "--iterations", "3", "--model", "mine:small")
    assert ran.status == 3
    assert ran.line == "this machine failed: [Errno 28] No space left on device"
    assert list((project / "curves").iterdir()) == []


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


def test_streams_that_are_closed(project):
    """``>&- 2>&-``: Python then has no ``sys.stdout`` at all, and the next file to be opened takes its number."""
    command = f"{sys.executable} -m inbackward verify mine:keeps --only gradient-freed --json report.json >&- 2>&-"
    ended = subprocess.run(["sh", "-c", command], check=False)
    assert ended.returncode == 1
    assert '"not-equivalent": 1' in (project / "report.json").read_text()
