"""Where the implementation comes from: fixtures of every scope, plugin modules, options; and what the header says."""

import pytest

CLOSURE = ("-k", "[closure]")
FIXTURE = "import pytest, mine\n@pytest.fixture\ndef optimizer_in_backward(): return mine.{}\n"


@pytest.mark.parametrize("scope", ["function", "class", "module", "package", "session"])
def test_any_fixture_scope(with_fixture, scope):
    with_fixture("right", scope).runpytest("-k", "[closure] or [gradient-freed]").assert_outcomes(passed=2)


def test_a_fixture_with_parameters_gives_a_test_for_each(project):
    project.makeconftest(
        """
        import pytest, mine
        @pytest.fixture(params=[mine.Right, mine.Crashes], ids=["right", "crashes"])
        def optimizer_in_backward(request): return mine.Implementation.drop_in(request.param)
        """
    )
    project.makepyfile(test_suite="from inbackward.suite import *")
    result = project.runpytest("-k", "closure", "-v")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines_random(
        ["*[[]right-closure] PASSED*", "*[[]crashes-closure] FAILED*", "Right", "Crashes"]
    )
    for command in [line for line in result.outlines if "replay: pytest" in line]:
        again = project.runpytest(*command.partition("pytest ")[2].replace("'", "").split())
        again.assert_outcomes(failed=1)


def test_the_nearest_fixture_counts_and_the_header_tells_which(with_fixture):
    project = with_fixture("crashes")
    near = project.mkdir("near")
    near.joinpath("conftest.py").write_text(FIXTURE.format("right"), encoding="utf-8")
    near.joinpath("test_near.py").write_text("from inbackward.suite import *", encoding="utf-8")
    result = project.runpytest("near", *CLOSURE)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["inbackward: fixture optimizer_in_backward of near/conftest.py"])


def test_a_fixture_that_pytest_meets_while_it_collects_is_in_the_header_too(project):
    deep = project.mkdir("deep")
    deep.joinpath("conftest.py").write_text(FIXTURE.format("right"), encoding="utf-8")
    deep.joinpath("test_deep.py").write_text("from inbackward.suite import *", encoding="utf-8")
    project.syspathinsert()
    result = project.runpytest(*CLOSURE)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["inbackward: fixture optimizer_in_backward of deep/conftest.py", "inbackward: torch *"]
    )


def test_a_fixture_in_the_test_file_itself(project):
    project.makepyfile(test_suite=FIXTURE.format("right") + "from inbackward.suite import *")
    result = project.runpytest(*CLOSURE)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["inbackward: fixture optimizer_in_backward of test_suite.py"])


def test_the_conftest_s_fixture_serves_the_module_named_by_pyargs(with_fixture):
    result = with_fixture("right").runpytest("--pyargs", "inbackward.suite", *CLOSURE)
    result.assert_outcomes(passed=1)


def test_a_plugin_module(project):
    project.makepyfile(provider=FIXTURE.format("crashes"))
    project.syspathinsert()
    result = project.runpytest("-p", "provider", *CLOSURE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["inbackward: fixture optimizer_in_backward of provider.py", "*-p provider --pyargs inbackward.suite"]
    )


@pytest.mark.parametrize(
    ("ini", "arguments", "source"),
    [
        ("", ("--optimizer-in-backward", "mine:right"), "mine:right (--optimizer-in-backward)"),
        ("optimizer_in_backward = mine:Right", (), "mine:Right (ini key optimizer_in_backward)"),
        (
            "optimizer_in_backward = mine:crashes",
            ("--optimizer-in-backward=mine:right",),
            "mine:right (--optimizer-in-backward)",
        ),
        (
            "",
            ("--optimizer-in-backward-optimizer", "torch.optim:Adam"),
            "inbackward:OptimizerInBackward over torch.optim:Adam (--optimizer-in-backward-optimizer)",
        ),
        (
            "optimizer_in_backward_optimizer = torch.optim:Adam",
            (),
            "inbackward:OptimizerInBackward over torch.optim:Adam (ini key optimizer_in_backward_optimizer)",
        ),
    ],
    ids=["option", "ini-key", "option-over-ini-key", "optimizer-option", "optimizer-ini-key"],
)
def test_names(project, ini, arguments, source):
    project.makeini(f"[pytest]\n{ini}\n")
    result = project.runpytest(*arguments, *CLOSURE)
    result.assert_outcomes(passed=1)
    lines = [line for line in result.outlines if line.startswith("inbackward:")]
    assert lines[0] == f"inbackward: {source}"
    assert lines[1].startswith("inbackward: torch ")
    assert lines[1].endswith(", device cpu, strategies all, ranks 2, seed 0, profile quick")
    assert source.partition(" (")[0] in result.outlines


def test_a_target_is_found_from_rootdir_and_from_the_current_directory(project, monkeypatch):
    inner = project.mkdir("inner")
    inner.joinpath("here.py").write_text("from mine import right", encoding="utf-8")
    project.makeini("[pytest]\n")
    monkeypatch.chdir(inner)
    project.runpytest("--optimizer-in-backward", "here:right", *CLOSURE).assert_outcomes(passed=1)


def test_every_setting_has_an_ini_key(project):
    project.makeini(
        """
        [pytest]
        optimizer_in_backward = mine:right
        optimizer_in_backward_profile = ci
        optimizer_in_backward_seed = 7
        optimizer_in_backward_device = cpu
        optimizer_in_backward_strategy = single
        optimizer_in_backward_world_size = 2
        optimizer_in_backward_json = report.json
        optimizer_in_backward_strict = true
        """
    )
    result = project.runpytest("--strict-config", "--strict-markers", "-W", "error", "-p", "no:cacheprovider", *CLOSURE)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*seed 7, profile ci", "scenarios: *24*"])
    assert (project.path / "report.json").is_file()
