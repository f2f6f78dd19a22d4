"""A project that has the package installed, and nothing to do with it, is left as it was."""

import json

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_number(number): assert number != 1

def test_optimizer(): pass

@pytest.fixture
def requirement_id(): return "mine"

def test_fixture(requirement_id): assert requirement_id == "mine"
"""
LOADED = """
import json, sys, pytest

@pytest.hookimpl(trylast=True)  # later, Hypothesis' own plugin imports hypothesis for its summary
def pytest_collection_finish():
    names = {name.partition(".")[0] for name in sys.modules}
    print("LOADED", json.dumps(sorted(names & {"torch", "hypothesis", "numpy", "inbackward"})))
"""


def test_the_wheel_is_what_runs_there(foreign):
    done = foreign.python("-c", "import inbackward; print(inbackward.__file__)")
    assert done.stdout.startswith(str(foreign.folder / ".venv"))


def test_the_plugin_is_registered_once_and_from_the_wheel(foreign):
    done = foreign.pytest("--trace-config", "--collect-only")
    registered = [
        line for line in done.stdout.splitlines() if line.startswith("PLUGIN registered: <module 'inbackward")
    ]
    assert len(registered) == 1
    assert str(foreign.folder / ".venv") in registered[0]


def test_its_own_tests_run_as_without_the_plugin(foreign):
    foreign.write(tests__test_own=TESTS, test_more="def test_more(): pass")
    arguments = ("-v", "-p", "no:randomly", "-W", "error", "--strict-markers")
    runs = [foreign.pytest(*arguments), foreign.pytest(*arguments, "-p", "no:inbackward")]
    results = [[line for line in run.stdout.splitlines() if "::" in line] for run in runs]
    assert len(results[0]) == 6 + 1  # and the short summary of the one that fails
    assert results[0] == results[1]
    assert [run.returncode for run in runs] == [1, 1]
    assert "inbackward:" not in runs[0].stdout
    assert "optimizer in backward" not in runs[0].stdout


def test_collecting_it_loads_no_torch_numpy_or_hypothesis(foreign):
    foreign.write(conftest=LOADED, test_own=TESTS)
    done = foreign.pytest("--collect-only", "-s", "-p", "no:randomly")  # which imports numpy itself
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("LOADED")]
    assert json.loads(line.partition(" ")[2]) == ["inbackward"]


def test_importing_the_package_loads_no_torch_pytest_or_hypothesis(foreign):
    code = (
        "import sys, inbackward; print([m for m in ('torch', 'pytest', '_pytest', 'hypothesis') if m in sys.modules])"
    )
    assert foreign.python("-c", code).stdout.strip() == "[]"


def test_no_tests_is_still_no_tests(foreign):
    assert foreign.pytest().returncode == 5
