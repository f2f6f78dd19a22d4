"""``inbackward requirements``: the catalogue as people see it, without torch."""

import subprocess
import sys

import pytest

from inbackward.requirements import CATALOGUE, FAMILIES, page


def test_every_requirement_by_family(command):
    ran = command("requirements")
    assert ran.status == 0
    headings = [line for line in ran.out.splitlines() if line in FAMILIES]
    assert headings == list(FAMILIES)
    for family, block in zip(FAMILIES, ran.out.split("\n\n")[1:], strict=True):
        entries = [e for e in CATALOGUE.values() if e.family == family]
        lines = block.splitlines()[1:]
        assert len(lines) == len(entries)
        for line, entry in zip(lines, entries):
            assert line.startswith(f"  {entry.id} ")
            assert line.endswith(entry.sentence)
            flags = line.removesuffix(entry.sentence).split()[1:]
            assert flags == ["R"] * entry.may_refuse + ["ranks"] * entry.on_ranks


def test_the_count(command):
    assert command("requirements").out.startswith("67 requirements\n")


@pytest.mark.parametrize("id", CATALOGUE)
def test_one_requirement(command, id):
    ran = command("requirements", id)
    entry = CATALOGUE[id]
    assert ran.status == 0
    assert ran.out.startswith(page(id))
    said = ran.out.removeprefix(page(id))
    assert f"\nfamily {entry.family}\n" in said
    assert ("R: refusing" in said, "ranks:" in said) == (entry.may_refuse, entry.on_ranks)


@pytest.mark.parametrize("arguments", [["requirements"], ["--help"], ["verify", "--help"], ["verify", "--only", "x"]])
def test_torch_is_not_imported(arguments):
    program = (
        "import sys\nfrom inbackward.cli import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
