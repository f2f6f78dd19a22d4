"""A failure names a command; it runs the one scenario again on the same implementation, whichever way that came in."""

import shlex

import pytest

FIXTURE = "import pytest, mine\n@pytest.fixture\ndef optimizer_in_backward(): return mine.crashes\n"


def by_option(project):
    return ["--optimizer-in-backward", "mine:crashes"]


def by_ini_key(project):
    project.makeini("[pytest]\noptimizer_in_backward = mine:crashes\n")
    return []


def by_optimizer(project):
    return ["--optimizer-in-backward-optimizer", "theirs:Coupled"]


def by_one_line(project):
    project.makeconftest(FIXTURE)
    project.makepyfile(test_suite="from inbackward.suite import *")
    return []


def by_conftest_and_pyargs(project):
    project.makeconftest(FIXTURE)
    return ["--pyargs", "inbackward.suite"]


def by_plugin_module(project):
    project.makepyfile(provider=FIXTURE)
    project.syspathinsert()
    return ["-p", "provider"]


@pytest.mark.parametrize(
    "way", [by_option, by_ini_key, by_optimizer, by_one_line, by_conftest_and_pyargs, by_plugin_module]
)
def test_the_command_reaches_the_same_implementation(project, way):
    project.makepyfile(
        theirs="""
        import torch
        class Coupled(torch.optim.SGD):
            def __init__(self, params, lr=0.1): super().__init__(params, lr=lr)
            def step(self, closure=None):
                if len(self.param_groups[0]["params"]) == 1: raise ZeroDivisionError("one parameter cannot be coupled")
                return super().step(closure)
        """
    )
    first = project.runpytest(*way(project), "-k", "[closure] or one or gradient-freed")
    command = next(line for line in first.outlines if "replay: pytest" in line).partition("replay: pytest ")[2]
    again = project.runpytest(*shlex.split(command))
    assert again.parseoutcomes()["failed"] == 1
    assert not {"passed", "errors"} & again.parseoutcomes().keys()
    (failure,) = [line for line in again.outlines if "_ test_optimizer_in_backward[" in line]
    assert failure in first.outlines
    again.stdout.fnmatch_lines([f"  replay: pytest {command}", "scenarios: *1*"])


def test_other_tests_are_left_out_of_a_replay(project):
    by_one_line(project)
    project.runpytest("-k", "[closure]")
    result = project.runpytest("--optimizer-in-backward-replay", ".inbackward/closure-at-first-adamw.json")
    result.assert_outcomes(failed=1)


def test_a_mended_implementation_passes_its_replay(project):
    by_one_line(project)
    project.runpytest("-k", "[closure]")
    project.makeconftest(FIXTURE.replace("crashes", "right"))
    result = project.runpytest("--optimizer-in-backward-replay", ".inbackward/closure-at-first-adamw.json")
    result.assert_outcomes(passed=1)


def test_replay_files_lie_under_rootdir_and_git_ignores_them(project, monkeypatch):
    by_ini_key(project)
    monkeypatch.chdir(project.mkdir("below"))
    result = project.runpytest("-k", "[closure]")
    result.stdout.fnmatch_lines(["*--optimizer-in-backward-replay ../.inbackward/closure-at-first-adamw.json *"])
    assert (project.path / ".inbackward" / ".gitignore").read_text(encoding="utf-8") == "*\n"


def test_without_a_place_for_replays_the_failure_is_told_all_the_same(project):
    by_ini_key(project)
    (project.path / ".inbackward").touch()
    result = project.runpytest("-k", "[closure]")
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*replay:*")


def test_the_first_failure_is_shrunk_and_fails_alike_in_a_fresh_process(project):
    first = project.runpytest(*by_option(project), "-k", "[closure]")
    first.stdout.fnmatch_lines(
        [
            "  replay: pytest *closure-at-first-adamw.json *",
            "  shrunk: Scenario(requirement='closure', name='at-first-adamw-shrunk', iterations=1,*",
            "  replay: pytest *closure-at-first-adamw-shrunk.json *",
        ]
    )
    command = first.outlines[first.outlines.index(next(o for o in first.outlines if "-shrunk.json" in o))]
    again = project.runpytest_subprocess(*shlex.split(command.partition("replay: pytest ")[2]))
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["  in closure/at-first-adamw-shrunk, iteration 0 (1 of 1 scenarios fail)"])
    again.stdout.no_fnmatch_line("*shrunk: *")


def test_one_failure_of_all_workers_is_shrunk(project):
    project.makepyfile(
        worse="""
        import mine
        class Worse(mine.Crashes):
            def add_param_group(self, group): raise KeyError("no")
            def load_state_dict(self, state_dict): raise KeyError("no")
        """
    )
    some = "[closure] or [add-param-group] or [model-only] or [weights-only-load] or [rng]"
    result = project.runpytest("-n", "2", "--optimizer-in-backward", "worse:Worse", "-k", some)
    result.assert_outcomes(passed=2, failed=3)
    assert len([line for line in result.outlines if "shrunk: Scenario(" in line]) == 1
