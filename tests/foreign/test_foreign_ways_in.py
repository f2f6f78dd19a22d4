"""The ways in, from an installed wheel: each lets a right implementation pass and finds what is wrong with another."""

import re
from pathlib import Path

import pytest

MYPKG = Path(__file__).with_name("mypkg.py").read_text(encoding="utf-8")
FIXTURE = """
import pytest
from mypkg.optim import {name}

@pytest.fixture(scope="session")
def optimizer_in_backward():
    return {name}
"""
CHECKED = ("-k", "[frozen] or [lr-schedule]")


def by_option(project, name):
    return ["--pyargs", "inbackward.suite", "--optimizer-in-backward", f"mypkg.optim:{name}"]


def by_ini_key(project, name):
    (project.folder / "pytest.ini").write_text(f"[pytest]\noptimizer_in_backward = mypkg.optim:{name}\n")
    return []


def by_one_line(project, name):
    project.write(tests__conftest=FIXTURE.format(name=name), tests__test_mine="from inbackward.suite import *")
    return []


def by_plugin_module(project, name):
    project.write(mypkg__checked=FIXTURE.format(name=name))
    return ["-p", "mypkg.checked"]


@pytest.fixture(params=[by_option, by_ini_key, by_one_line, by_plugin_module])
def way(request):
    return request.param


def test_a_right_implementation_passes(foreign, way):
    foreign.write(mypkg__optim=MYPKG)
    done = foreign.pytest(*way(foreign, "right"), *CHECKED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 2 passed, " in done.stdout
    assert "2 equivalent, 0 equivalent-within-noise" in done.stdout


def test_a_wrong_one_fails_where_it_goes_wrong(foreign, way):
    foreign.write(mypkg__optim=MYPKG)
    done = foreign.pytest(*way(foreign, "keeps_its_lr"), *CHECKED)
    assert done.returncode == 1, done.stdout + done.stderr
    assert " 1 failed, 1 passed, " in done.stdout
    assert "1 equivalent, 0 equivalent-within-noise" in done.stdout
    failure = done.stdout.partition("\nlr-schedule: not-equivalent\n")[2].splitlines()
    assert failure[1].startswith("  in lr-schedule/warm-up-from-0-sgd")
    assert re.match(r"  iteration 1, parameter [a-z0-9_.]+\.weight: off by up to 0\.\d+, ", failure[2])
    assert ".venv" not in "\n".join(failure[:12])


def test_with_workers_warnings_as_errors_and_everything_strict(foreign):
    foreign.write(mypkg__optim=MYPKG)
    by_ini_key(foreign, "Right")
    strict = ("-n", "2", "-W", "error", "--strict-markers", "--strict-config", "-p", "no:cacheprovider")
    selected = ("-k", "[gradient-freed] or [closure]")
    done = foreign.pytest(*strict, "--import-mode=importlib", "-o", "python_functions=check_*", *selected)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert "Right" in done.stdout


def test_the_suite_s_file_can_be_named(foreign):
    """It lies in a virtual environment, which pytest does not look into by itself."""
    foreign.write(mypkg__optim=MYPKG)
    by_ini_key(foreign, "right")
    (file,) = foreign.folder.glob(".venv/**/inbackward/suite.py")
    done = foreign.pytest(f"{file.relative_to(foreign.folder)}::test_optimizer_in_backward[closure]")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
