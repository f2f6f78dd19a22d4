"""The examples of ``docs/pytest.md``, section by section: files are written as shown, commands run as shown."""

import re
import shlex
from pathlib import Path

import pytest

HERE = Path(__file__)
TEXT = (HERE.parents[2] / "docs" / "pytest.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"\n##+ ", TEXT)}
EXAMPLES = [title for title, part in SECTIONS.items() if "```console" in part]
MYPKG = HERE.with_name("mypkg.py").read_text(encoding="utf-8")
OPTIM = re.sub(r"\bRight\b", "MyOptimizer", MYPKG) + "\nMyAdam = torch.optim.Adam\n"


@pytest.mark.parametrize("title", EXAMPLES)
def test_examples(foreign, title):
    foreign.write(mypkg__optim=OPTIM)
    commands = []
    for language, block in re.findall(r"```(\w+)\n(.*?)```", SECTIONS[title], re.DOTALL):
        if language == "console":
            commands += [shlex.split(line.removeprefix("$ pytest")) for line in block.splitlines()]
        else:
            path = foreign.folder / block.split()[1]
            path.parent.mkdir(exist_ok=True)
            path.write_text(block, encoding="utf-8")
    for command in commands:
        # Whatever a command selects, one requirement of it is enough to see that it works.
        done = foreign.pytest(*command, *([] if "[rng]" in command else ["-k", "[closure]"]))
        assert done.returncode == 0, done.stdout + done.stderr
        assert " 1 passed" in done.stdout


def test_there_are_examples_of_every_way_in():
    assert [title[:2] for title in EXAMPLES] == ["1.", "2.", "3.", "A ", "Wi"]


def test_every_option_and_key_is_in_the_table(foreign):
    shown = foreign.pytest("--help").stdout
    named = set(re.findall(r"--optimizer-in-backward[a-z-]*|\boptimizer_in_backward[a-z_]*(?= \()", shown))
    assert len(named) > 15
    table = SECTIONS["Options and ini keys"]
    assert named == set(re.findall(r"`(--optimizer-in-backward[a-z-]*|optimizer_in_backward[a-z_]*)", table))
