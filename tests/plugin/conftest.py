"""A small project that uses the plugin. The requirement ``closure`` stands for all: it is judged in a moment."""

import hypothesis  # noqa: F401
import pytest

from inbackward import OptimizerInBackward
from inbackward.training import as_implementation
from inbackward.verification import Suite

MINE = """
from inbackward import Implementation, OptimizerInBackward

class Right(OptimizerInBackward):
    pass

class Ignores(OptimizerInBackward):
    def step(self, closure=None):
        super().step()

class Crashes(OptimizerInBackward):
    def step(self, closure=None):
        if closure is not None:
            raise KeyError("no such closure")
        super().step()

right = Implementation.drop_in(Right)
ignores = Implementation.drop_in(Ignores)
crashes = Implementation.drop_in(Crashes)
unsupported = Implementation.drop_in(Ignores, unsupported={"closure": "closures are not for us"})
stale = Implementation.drop_in(Right, unsupported={"closure": "closures are not for us"})
expected = Implementation.drop_in(Ignores, expected_failures={"closure": "issue 12"})
stale_expected = Implementation.drop_in(Right, expected_failures={"closure": "issue 12"})
typo = Implementation.drop_in(Right, unsupported={"closuer": "closures are not for us"})
stepless = Implementation(build=lambda model, groups, cls, kwargs: object(), state=lambda handle, model: {})
"""

OTHERS = """
def test_one(): pass
def test_two(): pass
"""


@pytest.fixture(scope="session", autouse=True)
def everything_is_imported():
    """pytester forgets what an inner run was first to import, and torch bears no second import of a part of it."""
    Suite(as_implementation(OptimizerInBackward)).run("closure")


@pytest.fixture
def project(pytester):
    """Its implementations are in ``mine.py``, its own two tests in ``test_others.py``."""
    pytester.makepyfile(mine=MINE, test_others=OTHERS)
    return pytester


@pytest.fixture
def with_fixture(project):
    """Make the project's fixture return ``mine.NAME``, and its test file hold the one line."""

    def make(name: str, scope: str = "session"):
        project.makeconftest(
            f"import pytest, mine\n@pytest.fixture(scope={scope!r})\ndef optimizer_in_backward(): return mine.{name}\n"
        )
        project.makepyfile(test_suite="from inbackward.suite import *")
        return project

    return make


@pytest.fixture
def names(project):
    """The names of the tests that a run of pytest with these arguments selects, in order."""

    def collect(*arguments: str) -> list[str]:
        result = project.runpytest("--collect-only", "-q", *arguments)
        assert result.ret in (0, 5)
        return [line.partition("::")[2] for line in result.outlines if "::" in line]

    return collect
