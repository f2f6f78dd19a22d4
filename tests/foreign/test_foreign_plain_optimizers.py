"""The author of a plain optimizer learns whether it can be stepped one parameter at a time."""

from pathlib import Path

import pytest

MYPKG = Path(__file__).with_name("mypkg.py").read_text(encoding="utf-8")
CHECKED = ("-k", "[rng]")


def by_option(project, name):
    return ["--optimizer-in-backward-optimizer", f"mypkg:{name}"]


def by_fixture(project, name):
    project.write(
        conftest=f"""
import pytest
from inbackward import Implementation
from mypkg import {name}

@pytest.fixture
def optimizer_in_backward():
    return Implementation.of_optimizer({name}, lr=0.02)
""",
        test_mine="from inbackward.suite import *",
    )
    return []


@pytest.mark.parametrize("way", [by_option, by_fixture])
def test_one_that_steps_each_parameter_for_itself_passes(foreign, way):
    foreign.write(mypkg=MYPKG)
    done = foreign.pytest(*way(foreign, "Separable"), *CHECKED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 1 passed, " in done.stdout


@pytest.mark.parametrize("way", [by_option, by_fixture])
def test_one_that_couples_its_parameters_fails(foreign, way):
    foreign.write(mypkg=MYPKG)
    done = foreign.pytest(*way(foreign, "Coupled"), *CHECKED)
    assert done.returncode == 1, done.stdout + done.stderr
    assert " 1 failed, " in done.stdout
    said = " ".join(done.stdout.split())
    assert "Coupled cannot step inside backward(), as its parameters depend on each other" in said
