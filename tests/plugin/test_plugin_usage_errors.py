"""What cannot be meant is one line with the mend and pytest's status for misuse, with workers as well."""

import json
import sys

import pytest

CLOSURE = ("-k", "[closure]")
TARGET = "--optimizer-in-backward"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([TARGET, "mine"], "--optimizer-in-backward is 'mine'; write it as module:attribute*"),
        ([TARGET, "mien:right"], "--optimizer-in-backward 'mien:right' does not import: ModuleNotFoundError: *'mien'*"),
        ([TARGET, "mine:rihgt"], "--optimizer-in-backward 'mine:rihgt': *did you mean 'right'[?]"),
        ([TARGET, "torch.optim:Adam"], "Adam takes no (params, optimizer_cls, [*][*]kwargs); return Implementation*"),
        ([TARGET, "mine:typo"], "Implementation.unsupported names no requirement 'closuer'; did you mean 'closure'[?]"),
        ([f"{TARGET}-optimizer", "mine:Right"], "the reference optimizer mine:Right cannot be built with {}: *"),
        (
            [f"{TARGET}-optimizer", "mine:__name__"],
            "--optimizer-in-backward-optimizer 'mine:__name__' is 'mine'; name *",
        ),
        (
            [TARGET, "mine:right", f"{TARGET}-optimizer", "torch.optim:Adam"],
            "*both name what to check; drop one of them",
        ),
        ([TARGET, "mine:right", f"{TARGET}-seed", "x"], "--optimizer-in-backward-seed is 'x'; give a whole number"),
        ([TARGET, "mine:right", f"{TARGET}-seed", "-1"], "seed is -1; it must be in *"),
        ([TARGET, "mine:right", f"{TARGET}-profile", "slow"], "profile is 'slow'; choose one of quick, ci, thorough"),
        ([TARGET, "mine:right", f"{TARGET}-device", "tpu"], "device is 'tpu'; choose cpu or cuda"),
        (
            [TARGET, "mine:right", f"{TARGET}-strategy", "single,dpp"],
            "*names no strategy 'dpp'; choose *",
        ),
        ([TARGET, "mine:right", f"{TARGET}-world-size", "0"], "*-world-size is 0; give 1 or more"),
        (
            [TARGET, "mine:right", f"{TARGET}-json", "no/report.json"],
            "*-json: the folder * does not exist; make it first",
        ),
        ([TARGET, "mine:right", f"{TARGET}-json", "."], "*-json: * is a folder; name a file"),
        ([TARGET, "mine:right", f"{TARGET}-html", "."], "*-html: * is a folder; name a file"),
        ([TARGET, "mine:right", f"{TARGET}-replay", "no.json"], "cannot read '*no.json': No such file or directory"),
        ([TARGET, "mine:right", f"{TARGET}-replay", "mine.py"], "*mine.py: not a JSON document: *"),
        ([TARGET, "mine:right", f"{TARGET}-replay", "odd.json"], "*odd.json names no requirement 'closuer'; did you *"),
        (
            [TARGET, "mine:right", f"{TARGET}-replay", "model.json"],
            "*model.json: the model 'no:net' does not import: *",
        ),
        ([f"{TARGET}-replay", "plain.json"], "there is nothing to check: give --optimizer-in-backward *"),
        (["--pyargs", "inbackward.suite"], "there is nothing to check: give --optimizer-in-backward MODULE:ATTRIBUTE*"),
    ],
)
def test_a_wrong_command_line(project, arguments, line):
    files = {"odd": {"requirement": "closuer"}, "plain": {}, "model": {"model": {"factory": "no:net"}}}
    for name, fields in files.items():
        text = json.dumps({"schema": "inbackward.scenario/1", **fields})
        (project.path / f"{name}.json").write_text(text, encoding="utf-8")
    result = project.runpytest(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {line}"])
    assert "Traceback" not in result.stderr.str() + result.stdout.str()


def test_a_file_that_may_not_be_written(project, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)  # file modes do not stop everyone who runs tests
    result = project.runpytest(TARGET, "mine:right", f"{TARGET}-html", "report.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {TARGET}-html: *report.html may not be written; name another file"])


def test_a_missing_extra(project, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    result = project.runpytest(TARGET, "mine:right", f"{TARGET}-html", "report.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    wanted = f"{TARGET}-html needs jinja2, which is not installed; run pip install 'inbackward[[]plots]'"
    result.stderr.fnmatch_lines([f"ERROR: {wanted}"])


@pytest.mark.parametrize("by", ["option", "ini key"])
def test_a_fixture_and_a_name_for_the_same(with_fixture, by):
    project = with_fixture("right")
    project.makeini("[pytest]\n" + ("optimizer_in_backward = mine:right" if by == "ini key" else ""))
    result = project.runpytest(*([TARGET, "mine:right"] if by == "option" else []))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    named = TARGET if by == "option" else "ini key optimizer_in_backward"
    wanted = f"ERROR: {named} and the fixture optimizer_in_backward of conftest.py both give what to check; drop one*"
    result.stderr.fnmatch_lines([wanted])


def test_a_contradiction_does_not_disturb_a_run_without_the_suite(with_fixture):
    project = with_fixture("right")
    project.makeini("[pytest]\noptimizer_in_backward = mine:right")
    project.runpytest("-k", "one").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("returned", "line"),
    [
        ("typo", "Implementation.unsupported names no requirement 'closuer'; did you mean 'closure'[?]"),
        ("Implementation", "Implementation takes no (params, optimizer_cls, [*][*]kwargs); return *"),
        ("__name__", "'mine' is no implementation of an optimizer in backward; return *"),
        ("OptimizerInBackward.__mro__[2]", "Optimizer takes no (params, optimizer_cls, [*][*]kwargs); return *"),
    ],
)
def test_a_fixture_that_returns_what_cannot_be_checked(with_fixture, returned, line):
    result = with_fixture(returned).runpytest("-k", "closure or one")
    result.assert_outcomes(failed=1, passed=1)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines([line, f"ERROR: {line}"])
    assert "def test_optimizer_in_backward" not in result.stdout.str()


def test_a_fixture_that_raises_is_the_user_s_own_error(with_fixture):
    result = with_fixture("nothing_of_that_name").runpytest(*CLOSURE)
    result.assert_outcomes(errors=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["conftest.py:3: AttributeError"])


def test_workers_report_it_too(project):
    """xdist takes no usage error from a worker: there the tests tell, and the controller has the status."""
    result = project.runpytest("-n", "1", TARGET, "mine:typo", *CLOSURE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["ERROR: Implementation.unsupported names no requirement 'closuer'; did you *"])
