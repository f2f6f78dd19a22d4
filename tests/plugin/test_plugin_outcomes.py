"""From verdicts to the outcomes of tests, and what a failure says."""

import pytest

CLOSURE = ("-k", "[closure]")


@pytest.mark.parametrize(
    ("name", "outcome", "reason"),
    [
        ("right", "passed", ""),
        ("ignores", "failed", "closure: not-equivalent"),
        ("crashes", "failed", "closure: broken"),
        ("unsupported", "xfailed", "unsupported: closures are not for us"),
        ("expected", "xfailed", "expected failure: issue 12 (not-equivalent: iteration 0, loss*"),
        ("stepless", "skipped", "not run: object has no step(); a closure needs it"),
        ("stale", "failed", "*remove 'closure' from unsupported*"),
        ("stale_expected", "failed", "*remove 'closure' from expected_failures*"),
    ],
)
def test_outcome(with_fixture, name, outcome, reason):
    result = with_fixture(name).runpytest("-rA", *CLOSURE)
    result.assert_outcomes(**{outcome: 1})
    assert result.ret == (outcome in ("failed", "skipped"))  # skipped: nothing was compared
    result.stdout.fnmatch_lines([f"*{reason}*"])


@pytest.mark.parametrize("name", ["ignores", "crashes", "stale"])
def test_a_failure_is_the_report_and_no_traceback(with_fixture, name):
    project = with_fixture(name)
    result = project.runpytest("--tb=long", *CLOSURE)
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert "pytest_support" not in text
    assert "def test_optimizer_in_backward" not in text
    assert (
        len(text.partition("FAILURES")[2].partition("optimizer in backward =")[0].splitlines()) < 20
    )  # four of them tell the shrunk scenario


def test_a_crash_quotes_the_user_s_own_exception_and_line(with_fixture):
    result = with_fixture("crashes").runpytest(*CLOSURE)
    result.stdout.fnmatch_lines(
        ["closure: broken", "*KeyError: 'no such closure'*", '*raise KeyError("no such closure")']
    )


@pytest.mark.parametrize("name", ["stale", "stale_expected"])
def test_a_stale_declaration_can_be_a_warning(with_fixture, name):
    project = with_fixture(name)
    arguments = ("-o", "optimizer_in_backward_strict=false", *CLOSURE)
    result = project.runpytest(*arguments, "-W", "default")
    assert result.ret == 0
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*PytestWarning: closure: declared in Implementation.*"])
    result = project.runpytest(*arguments, "-W", "error")
    result.assert_outcomes(failed=1)
    assert "def test_optimizer_in_backward" not in result.stdout.str()


@pytest.mark.parametrize(("name", "outcome"), [("unsupported", "failed"), ("expected", "failed"), ("stale", "passed")])
def test_runxfail_ignores_declarations(with_fixture, name, outcome):
    with_fixture(name).runpytest("--runxfail", *CLOSURE).assert_outcomes(**{outcome: 1})


@pytest.mark.parametrize("name", ["stepless", "fails_to_build"])
def test_a_run_in_which_nothing_was_compared_fails(with_fixture, name):
    project = with_fixture(name)
    with (project.path / "mine.py").open("a", encoding="utf-8") as file:
        file.write("\ndef build(*_): raise LookupError('not today')\n")
        file.write("fails_to_build = Implementation(build=build, expected_failures={'closure': 'issue 13'})\n")
    result = project.runpytest("-k", "closure or one")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*Nothing was compared*"])


def test_tests_that_are_skipped_by_the_user_leave_nothing_compared(with_fixture):
    project = with_fixture("right")
    with (project.path / "conftest.py").open("a", encoding="utf-8") as file:
        file.write("\ndef pytest_runtest_setup(item): pytest.skip('not here')\n")
    result = project.runpytest(*CLOSURE)
    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*No requirement was judged*"])


@pytest.mark.parametrize("option", ["--collect-only", "--setup-only", "--setup-plan"])
def test_looking_is_not_running(with_fixture, option):
    assert with_fixture("right").runpytest(option, *CLOSURE).ret == 0


def test_a_run_without_the_suite_says_and_changes_nothing(with_fixture):
    result = with_fixture("ignores").runpytest("-k", "one")
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*requirements*")
