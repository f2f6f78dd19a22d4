"""Processes that have nothing of this one's memory, and where forks are safe are quick to begin.

``python -m inbackward.training.new_process`` is the helper that makes them quick: it has imported what takes seconds,
but nothing of the user's, and forks for each errand that it is sent, for as long as the process that started it is
there. As ``... new_process alone`` it does the first errand itself.

An errand is a folder and the surroundings of the process that asks. It goes through a pipe: the environment may hold
secrets, and is never on the disk.
"""

from __future__ import annotations

import atexit
import importlib
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from inbackward.forking import begin, end, forking

DEADLINE = 120.0  # seconds

_helper: subprocess.Popen[bytes] | None = None


def run(folder: Path, *, forks: bool) -> tuple[int, str]:
    """Do ``another_process.main(folder)`` in a new process: its exit status, and the last line of its stderr.

    Args:
        forks: whether they are safe, on a system that has them.

    Raises:
        RuntimeError: it did not end within the deadline.
    """
    errand = pickle.dumps((folder, _path(), os.getcwd(), dict(os.environ)))
    warm = forks and sys.platform == "linux"
    process = _warm(folder) if warm else _start(folder, "alone")
    try:
        status = _ask(process, errand) if warm else _outcome(process, errand)
    except BaseException as error:  # an interrupt, too: it is in the middle of something
        _end(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise RuntimeError(f"the process that resumes did not end within {DEADLINE:g} s") from None
        raise
    said = (folder / "said").read_text(errors="replace")
    return status, (said.strip().splitlines() or ["no word"])[-1]


def _path() -> list[str]:
    return [entry for entry in sys.path if isinstance(entry, str)]  # an import passes over all others


def _warm(folder: Path) -> subprocess.Popen[bytes]:
    """This process's helper, in place of one that died, or that is of the process which this one is a fork of."""
    global _helper
    if _helper is None or _helper.poll() is not None:  # it is 0 of what is no child of this process
        _helper = _start(folder)
        assert _helper.stdin
        os.register_at_fork(after_in_child=_helper.stdin.close)  # it is open in nothing but this process
        atexit.register(_end, _helper)
    return _helper


def _start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with open(folder / "said", "ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", __name__, *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in _path())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,  # Ctrl-C is for the process that started it
        )


def _ask(process: subprocess.Popen[bytes], errand: bytes) -> int:
    """What becomes of a fork of the helper's, or of the helper itself."""
    assert process.stdin
    assert process.stdout
    with suppress(BrokenPipeError), open(process.stdin.fileno(), "wb", closefd=False) as pipe:  # it may be dead by now
        pipe.write(errand)
    if not wait([process.stdout.fileno()], DEADLINE):
        raise subprocess.TimeoutExpired(process.args, DEADLINE)
    return int(process.stdout.readline() or process.wait())


def _outcome(process: subprocess.Popen[bytes], errand: bytes) -> int:
    process.communicate(errand, timeout=DEADLINE)
    return process.returncode


def _end(process: subprocess.Popen[bytes]) -> None:
    with process:  # which closes its pipes, and waits for it
        process.kill()


def _serve() -> None:
    """A helper's life, which ends with the process that has the other end of its stdin."""
    import torch._dynamo  # noqa: F401  any optimizer does, once it is built

    import inbackward.training.another_process  # noqa: F401

    errands = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115  as long as this process
    while errands.peek(1):
        fork = get_context("fork").Process(target=_fork, args=pickle.load(errands))
        with forking():
            fork.start()
        assert fork.pid  # it was started
        if fork.sentinel not in wait([fork.sentinel, sys.stdin.fileno()]):
            return end(fork.pid)
        fork.join()
        print(fork.exitcode, flush=True)


def _fork(folder: Path, *surroundings: Any) -> None:
    begin()
    with open(folder / "said", "ab") as said, open(os.devnull, "r+b") as nowhere:
        for file, number in (nowhere, 0), (nowhere, 1), (said, 2):  # the helper's are its line to the process that asks
            os.dup2(file.fileno(), number)
    _work(folder, *surroundings)


def _work(folder: Path, path: list[str], here: str, environment: dict[str, str]) -> None:
    """Do ``another_process.main`` with the surroundings of the process that asked."""
    os.chdir(here)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    importlib.invalidate_caches()
    from inbackward.training.another_process import main

    main(folder)


if __name__ == "__main__":
    _work(*pickle.load(sys.stdin.buffer)) if sys.argv[1:] else _serve()
