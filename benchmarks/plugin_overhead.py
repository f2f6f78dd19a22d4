"""What having the package installed costs an unrelated project: ``pytest --collect-only`` with and without the plugin.

Run ``python benchmarks/plugin_overhead.py [PAIRS]`` in an environment that has the package. The two runs alternate, so
that whatever else the machine does meets both; medians are printed, and what the plugin adds.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL_MS = 50
TESTS = "def test_one(): pass\ndef test_two(): pass\n"


def collect(folder: Path, *arguments: str) -> float:
    """Milliseconds that one collection takes, from the shell's side."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    started = time.perf_counter()
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - started) * 1000


def main(pairs: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_unrelated.py").write_text(TESTS, encoding="utf-8")
        collect(folder), collect(folder, "-p", "no:inbackward")  # the first runs write compiled files
        with_plugin, without = [], []
        for _ in range(pairs):
            with_plugin.append(collect(folder))
            without.append(collect(folder, "-p", "no:inbackward"))
    added = statistics.median(a - b for a, b in zip(with_plugin, without))
    print(f"with the plugin    {statistics.median(with_plugin):7.1f} ms, median of {pairs}")
    print(f"-p no:inbackward   {statistics.median(without):7.1f} ms")
    print(f"the plugin adds    {added:7.1f} ms, median of the pairs (goal: at most {GOAL_MS})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
