"""When the suite is collected, and that nothing else of a run is touched by it."""

import pytest

from inbackward.requirements import items

SUITE = [f"test_optimizer_in_backward[{item.label}]" for item in items(None)]
OTHERS = ["test_one", "test_two"]
ASK = ("--optimizer-in-backward", "mine:right")
INI = "[pytest]\noptimizer_in_backward = mine:right\n"
PLAIN = ("-p", "no:randomly")


def test_a_project_that_names_nothing_has_its_own_tests_only(names):
    assert names(*PLAIN) == OTHERS


def test_the_option_alone_brings_the_suite_in_after_the_others(names):
    assert names(*PLAIN, *ASK) == OTHERS + SUITE


def test_the_module_named_by_pyargs_is_not_collected_twice(names):
    assert names(*PLAIN, *ASK, "--pyargs", "inbackward.suite") == SUITE


def test_one_requirement_can_be_named_by_pyargs(names):
    assert names(*ASK, "--pyargs", "inbackward.suite::test_optimizer_in_backward[closure]") == [
        "test_optimizer_in_backward[closure]"
    ]


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        ("optimizer_in_backward", SUITE),
        ("[resume]", ["test_optimizer_in_backward[resume]"]),
        ("resume", [name for name in SUITE if "resume" in name]),
        ("one", ["test_one"]),
        ("not optimizer_in_backward", OTHERS),
    ],
)
def test_k_selects_among_all(project, names, expression, selected):
    project.makeini(INI)
    assert names(*PLAIN, "-k", expression) == selected


def test_the_ini_key_works_like_testpaths(project, names):
    project.makeini(INI)
    assert names(*PLAIN) == OTHERS + SUITE
    assert names(*PLAIN, "test_others.py") == OTHERS
    assert names(*PLAIN, ".") == OTHERS
    assert names("test_others.py::test_two") == ["test_two"]


def test_testpaths_and_the_ini_key_go_together(project, names):
    project.makeini(f"{INI}testpaths = some\n")
    project.mkdir("some").joinpath("test_some.py").write_text("def test_some(): pass", encoding="utf-8")
    assert names(*PLAIN) == ["test_some", *SUITE]


def test_what_the_command_line_asks_for_comes_with_paths_too(names):
    assert names(*PLAIN, *ASK, "test_others.py") == OTHERS + SUITE
    assert names(*PLAIN, "=".join(ASK), "test_others.py") == OTHERS + SUITE


def test_an_option_from_addopts_is_configuration(project, names):
    project.makeini(f"[pytest]\naddopts = {' '.join(ASK)}\n")
    assert names(*PLAIN, "test_others.py") == OTHERS
    assert names(*PLAIN) == OTHERS + SUITE


def test_a_file_with_the_one_line_is_enough(project, names):
    project.makepyfile(test_suite="from inbackward.suite import *")
    assert names(*PLAIN, *ASK) == OTHERS + SUITE


def test_a_fixture_alone_brings_nothing_in(with_fixture, names):
    with_fixture("right").path.joinpath("test_suite.py").unlink()
    assert names(*PLAIN) == OTHERS


def test_a_plugin_module_brings_the_suite_in(project, names):
    provider = "import pytest\n@pytest.fixture\ndef optimizer_in_backward(): pass\n"
    project.makepyfile(provider=provider)
    project.syspathinsert()
    assert names(*PLAIN, "-p", "provider") == OTHERS + SUITE
    assert names(*PLAIN, "-p", "provider", "test_others.py") == OTHERS


@pytest.mark.parametrize("mode", ["append", "importlib"])
def test_import_modes(project, names, mode):
    project.makeini(INI)
    assert names(*PLAIN, f"--import-mode={mode}") == OTHERS + SUITE


@pytest.mark.parametrize("one_line", [True, False])
def test_odd_names_of_files_and_functions(project, names, one_line):
    project.makeini(f"{INI}python_files = check_*.py\npython_functions = check_*\n")
    project.makepyfile(check_mine="from inbackward.suite import *\n" * one_line + "def check_this(): pass")
    assert sorted(names(*PLAIN)) == sorted(["check_this", *SUITE])
    assert names(*PLAIN, "--pyargs", "inbackward.suite") == SUITE


def test_every_file_of_the_package_may_look_like_a_test(project, names):
    project.makeini(f"{INI}python_files = *.py\n")
    assert [name for name in names(*PLAIN) if name not in OTHERS] == SUITE


def test_the_count_of_collected_tests_is_right(project):
    project.makeini(INI)
    result = project.runpytest("--collect-only", "-k", "closure")
    total = len(SUITE + OTHERS)
    result.stdout.fnmatch_lines([f"*1/{total} tests collected ({total - 1} deselected)*"])


def test_deselect_reaches_the_suite(project, names):
    project.makeini(INI)
    listed = project.runpytest("--collect-only", "-q", "-k", "[closure]").outlines
    (nodeid,) = [line for line in listed if "::" in line]
    assert set(SUITE) - set(names("--deselect", nodeid)) == {"test_optimizer_in_backward[closure]"}


def test_last_failed_runs_what_failed_here_and_elsewhere(project):
    project.makeini("[pytest]\noptimizer_in_backward = mine:crashes\n")
    project.makepyfile(test_bad="def test_bad(): assert 0")
    project.runpytest("-k", "bad or one or closure").assert_outcomes(failed=2, passed=1, deselected=len(SUITE))
    project.runpytest("--lf").assert_outcomes(failed=2, deselected=len(SUITE) - 1)
    project.path.joinpath("test_bad.py").write_text("def test_bad(): pass", encoding="utf-8")
    project.runpytest("--lf").assert_outcomes(failed=1, passed=1, deselected=len(SUITE) - 1)
    project.runpytest("--lf").assert_outcomes(failed=1, deselected=len(SUITE) + 2)


def test_other_plugins_see_the_suite_s_items(project):
    project.makeini(INI)
    project.makeconftest(
        """
        def pytest_collection_modifyitems(items): items[:] = [i for i in items if "[closure]" in i.name]
        def pytest_itemcollected(item): item.user_properties.append(("seen", 1))
        def pytest_runtest_logreport(report): assert report.user_properties == [("seen", 1)]
        """
    )
    project.runpytest().assert_outcomes(passed=1)
