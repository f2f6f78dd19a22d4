"""What a test has started and waits for, with a deadline of its own."""

from __future__ import annotations

import subprocess

DEADLINE = 240  # seconds: several times what any takes on a busy machine


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its exit status and what it printed. Past the deadline it is asked to end, as torchrun then ends its ranks."""
    try:
        out, err = process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, err = process.communicate(timeout=60)
        raise AssertionError(f"not over after {DEADLINE} s\n{out[-2000:]}\n{err[-4000:]}") from None
    return process.returncode, out, err
