"""``docs/gpu.md``: its commands are ones that the command line takes, and its script is Python."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from inbackward.cli import command_line
from inbackward.cli.inputs import selected, strategies
from inbackward.pytest_support.settings import _OPTIONS, OPTION

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\|[^|]*\| `(.*?)` \|", TEXT, re.MULTILINE)
OURS = [command for command in COMMANDS if command.startswith("inbackward")]


@pytest.mark.parametrize("command", OURS)
def test_a_command_is_taken_and_selects_something(command: str) -> None:
    given = command_line().parse_args(shlex.split(command)[1:])
    assert given.device == "cuda"
    assert selected(given.only, given.skip, strategies(given.strategy))
    if given.target:
        module, attribute = given.target.split(":")
        assert f"\n{attribute} = " in (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")


def test_the_options_of_pytest_exist() -> None:
    (command,) = set(COMMANDS) - set(OURS)
    used = re.findall(rf"{OPTION}-([a-z-]+)", command)
    assert used
    assert set(used) <= set(_OPTIONS)


def test_the_script_is_python() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    compile(block, "docs/gpu.md", "exec")
