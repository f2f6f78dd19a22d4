"""What the loading half in another process sees, what its end costs, and that nothing of it is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from inbackward import Implementation, OptimizerInBackward, Scenario
from inbackward.forking import begin, beside, forking
from inbackward.scenario import ModelConfig, Resume
from inbackward.training import NotRun, another_process, new_process, train_in_backward, train_reference
from inbackward.training.trace import Trace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the helper")

SCENARIO = Scenario(
    requirement="resume-fresh-process",
    model=ModelConfig(layers=1),
    iterations=2,
    events=(Resume(at=1, route="process"),),
)
CPU = torch.device("cpu")

# Only the half in the other process loads.
THEIRS = """
import os, signal, sys, time
from inbackward import OptimizerInBackward

loads = 0

def tell(file):
    with open(file, "w") as told:
        print(os.getpid(), os.getppid(), file=told)

class Theirs(OptimizerInBackward):
    def load_state_dict(self, state_dict):
        exec(os.environ.get("AT_LOAD", ""), globals())
        super().load_state_dict(state_dict)
"""

ASKER = """
from test_another_process import CPU, SCENARIO, Implementation, train_in_backward
from theirs_elsewhere import Theirs

trace = train_in_backward(Implementation.drop_in(Theirs), SCENARIO, CPU)
assert trace.error is None, trace.error
"""

AtLoad = Callable[[str], Trace]


@pytest.fixture
def implementation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Implementation]:
    (tmp_path / "theirs_elsewhere.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(tmp_path)
    import theirs_elsewhere  # type: ignore[import-not-found]

    yield Implementation.drop_in(theirs_elsewhere.Theirs)
    del sys.modules["theirs_elsewhere"]


@pytest.fixture
def at_load(implementation: Implementation, monkeypatch: pytest.MonkeyPatch) -> AtLoad:
    """A run in which that code is executed as the other process loads."""

    def run(code: str) -> Trace:
        monkeypatch.setenv("AT_LOAD", code)
        return train_in_backward(implementation, SCENARIO, CPU)

    return run


def without_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(folder: Path, *, forks: bool) -> Any:
        assert forks
        return new_process.run(folder, forks=False)

    monkeypatch.setattr(another_process, "run", run)


@pytest.fixture(params=["fork", "start"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "start":
        without_forks(monkeypatch)


def helper() -> int:
    assert new_process._helper
    return new_process._helper.pid


def end_helper() -> None:
    """The next run starts another."""
    if new_process._helper:
        new_process._end(new_process._helper)


def within_a_minute(holds: Callable[[], bool]) -> bool:
    for _ in range(600):
        if holds():
            return True
        time.sleep(0.1)
    return False


def gone(pid: int) -> bool:
    """It has ended; who took it over may not have asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_helper_forks_for_every_run(at_load: AtLoad, tmp_path: Path) -> None:
    for name in "ab":
        assert at_load(f"tell({str(tmp_path / name)!r})").error is None
    (pid, parent), (other, same) = ((tmp_path / name).read_text().split() for name in "ab")
    assert pid != other
    assert int(parent) == int(same) == helper()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise LookupError('told')", "LookupError: told"),
        ("print('first', 'last', sep=os.linesep, file=sys.stderr); os._exit(7)", "last"),
        ("os._exit(7)", "no word"),
        ("os._exit(3)", "no word"),
        ("sys.exit(3)", "no word"),
        ("sys.exit('enough')", "enough"),
        ("os._exit(0)", "it left with status 0 before the end of the training"),
        ("sys.exit()", "it left with status 0 before the end of the training"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "no word"),
        ("os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)", "no word"),
    ],
)
def test_its_end_costs_the_one_run(at_load: AtLoad, code: str, said: str) -> None:
    error = at_load(code).error
    assert isinstance(error, RuntimeError)
    assert str(error) == f"in the process that resumes: {said}"
    assert at_load("").error is None


def test_a_hang_costs_the_one_run(at_load: AtLoad, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert at_load("").error is None  # the helper stands
    with monkeypatch.context() as soon:
        soon.setattr(new_process, "DEADLINE", 2.0)
        error = at_load(f"tell({str(tmp_path / 'told')!r}); signal.pause()").error
    assert str(error) == "the process that resumes did not end within 2 s"
    pid = int((tmp_path / "told").read_text().split()[0])
    assert within_a_minute(lambda: gone(pid))
    assert at_load("").error is None


def test_what_it_prints_and_reads_disturbs_nobody(at_load: AtLoad, implementation: Implementation) -> None:
    noisy = at_load("print('7'); os.write(1, b'7' * 100_000); assert sys.stdin.read() == ''; os.system('cat')")
    assert noisy.error is None
    reference = train_reference(SCENARIO, CPU, implementation)
    assert [record.loss for record in noisy.records] == [record.loss for record in reference.records]


def test_nothing_is_carried_from_one_run_to_the_next(at_load: AtLoad) -> None:
    sys.modules["theirs_elsewhere"].loads = 5  # type: ignore[attr-defined]  in the memory of who saves
    once = "loads += 1; assert loads == 1, loads; sys.path.append('x'); os.environ['X'] = 'x'; os.chdir('/')"
    for _ in range(2):
        assert at_load(once).error is None
    clean = f"assert sys.path == {sys.path!r}; assert 'X' not in os.environ; assert os.getcwd() == {os.getcwd()!r}"
    assert at_load(clean).error is None


def test_it_is_where_the_saving_half_is_by_now(
    at_load: AtLoad, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert at_load("").error is None  # the helper stands
    there = tmp_path / "there"
    there.mkdir()
    (there / "made_later.py").write_text("")
    monkeypatch.chdir(there)
    monkeypatch.syspath_prepend(there)
    monkeypatch.setenv("SET_LATER", "yes")
    monkeypatch.delenv("PYTHONPATH", raising=False)  # the helper has one
    code = f"import made_later; assert os.environ['SET_LATER'] == 'yes'; assert os.getcwd() == {str(there)!r}"
    assert at_load(f"{code}; assert 'PYTHONPATH' not in os.environ").error is None


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise LookupError('imported')", "LookupError: imported"),
        (r"raise LookupError('\u03c0 \ud800\non two lines')", "LookupError: π \\ud800 on two lines"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_the_users_code_is_imported_for_every_run(at_load: AtLoad, tmp_path: Path, code: str, said: str) -> None:
    assert at_load("").error is None
    (tmp_path / "theirs_elsewhere.py").write_text(code)
    with pytest.raises(NotRun) as reason:
        at_load("")
    mend = "define it in a module that can be imported by name"
    assert str(reason.value) == f"another process cannot import the implementation ({said}); {mend}"


@pytest.mark.parametrize("status", [0, 3])
def test_to_leave_as_it_is_imported_is_no_excuse(at_load: AtLoad, tmp_path: Path, status: int) -> None:
    (tmp_path / "theirs_elsewhere.py").write_text(f"import os; os._exit({status})")
    assert str(at_load("").error).startswith("in the process that resumes: ")


@pytest.mark.usefixtures("either_way")
def test_the_environment_is_never_on_the_disk(at_load: AtLoad, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("A_SECRET", "of" + "x" * 100_000)  # more than a pipe holds
    files = f"files = [*__import__('pathlib').Path({str(tmp_path)!r}).glob('inbackward-*/*')]"
    nowhere = "secret = os.environ['A_SECRET'].encode(); assert not any(secret in file.read_bytes() for file in files)"
    assert at_load(f"{files}; assert 'task' in [file.name for file in files]; {nowhere}").error is None


@pytest.mark.usefixtures("either_way")
def test_what_is_no_text_on_the_path_is_passed_over(at_load: AtLoad, monkeypatch: pytest.MonkeyPatch) -> None:
    path = [*sys.path]
    monkeypatch.setattr(sys, "path", [Path("/odd"), *path])
    end_helper()
    assert at_load(f"assert sys.path == {path!r}").error is None


@pytest.mark.usefixtures("either_way")
def test_a_python_that_does_not_begin_costs_the_one_run(at_load: AtLoad, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as once:
        end_helper()
        once.setattr(sys, "executable", shutil.which("false"))
        once.setenv("LARGE", "x" * 100_000)  # more than a pipe holds
        assert str(at_load("").error) == "in the process that resumes: no word"
    assert at_load("").error is None


def test_what_has_no_importable_name_is_not_run() -> None:
    class Local(OptimizerInBackward):
        pass

    with pytest.raises(NotRun, match=r"cannot be pickled for another process .*; define it in a module"):
        train_in_backward(Implementation.drop_in(Local), SCENARIO, CPU)


def test_a_fork_has_a_helper_of_its_own(at_load: AtLoad) -> None:
    assert at_load("").error is None
    mine = helper()
    other, one = (f"assert (os.getppid() == {mine}) is {same}" for same in (False, True))
    with beside(lambda: (os.getpid(), repr(at_load(other).error))) as result:
        assert at_load(one).error is None  # at the same time
        pid, error = result()
    assert pid != os.getpid()  # or the work was done once more here
    assert error == "None"
    assert at_load(one).error is None


def told(file: Path) -> tuple[int, int]:
    """The fork and the helper, once they are there."""
    assert within_a_minute(lambda: file.exists() and file.read_text().endswith("\n"))
    pid, parent = map(int, file.read_text().split())
    return pid, parent


@pytest.mark.usefixtures("implementation")
def test_no_process_outlives_who_asked(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    at_load = f"tell({str(tmp_path / 'told')!r})"
    asker = [sys.executable, "-W", "error", "-c", ASKER]
    done = subprocess.run(
        asker, env={**os.environ, "PYTHONPATH": path, "AT_LOAD": at_load}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert all(within_a_minute(lambda pid=pid: gone(pid)) for pid in told(tmp_path / "told"))


@pytest.mark.parametrize("waits", [False, True])
def test_nor_one_that_was_killed(at_load: AtLoad, tmp_path: Path, waits: bool) -> None:
    def ask() -> None:
        begin()  # on one thread: a second one of OpenMP would hang in a fork
        at_load(f"tell({str(tmp_path / 'told')!r})" + ("; time.sleep(60)" if waits else ""))
        os.fork()  # a process of its own, which outlives it and knows nothing of the helper
        (tmp_path / "forked").touch()
        time.sleep(60)

    asker = get_context("fork").Process(target=ask)
    with forking():
        asker.start()
    assert asker.pid
    pid, parent = told(tmp_path / "told")
    try:
        assert waits or within_a_minute((tmp_path / "forked").exists)
        assert not gone(parent)
        asker.kill()
        assert within_a_minute(lambda: gone(pid) and gone(parent))
    finally:
        os.killpg(asker.pid, signal.SIGKILL)
        asker.join()


def test_without_forks_it_is_the_same(at_load: AtLoad, monkeypatch: pytest.MonkeyPatch) -> None:
    without_forks(monkeypatch)
    ours = f"assert os.getppid() == {os.getpid()}; os.write(1, b'7' * 100_000)"
    assert at_load(ours).error is None
    error = at_load(f"{ours}; print('first', 'last', sep=os.linesep, file=sys.stderr); os._exit(7)").error
    assert str(error) == "in the process that resumes: last"
    monkeypatch.setattr(new_process, "DEADLINE", 0.5)
    assert str(at_load("").error) == "the process that resumes did not end within 0.5 s"
