"""The summary with its denominator, and the JSON report: the same from one process and from workers."""

import json
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
from tests.without_time import bare

from inbackward.requirements import CATALOGUE

SCHEMA = json.loads(resources.files("inbackward.report").joinpath("report.schema.json").read_text(encoding="utf-8"))
SOME = ("-k", "[closure] or [gradient-freed] or [weights-only-load]")


@pytest.fixture
def written(with_fixture):
    """The report that a run with these arguments writes."""

    def run(name: str, *arguments: str):
        project = with_fixture(name)
        result = project.runpytest("--optimizer-in-backward-json", "report.json", *arguments)
        result.stdout.fnmatch_lines(["report written to *report.json"])
        report = json.loads((project.path / "report.json").read_text(encoding="utf-8"))
        jsonschema.validate(report, SCHEMA)
        return result, report

    return run


def without_time_and_place(report):
    report = {key: value for key, value in report.items() if key != "environment"}
    report["requirements"] = [{k: v for k, v in row.items() if k != "seconds"} for row in report["requirements"]]
    return report


def test_the_summary_prints_the_denominator(with_fixture):
    result = with_fixture("right").runpytest(*SOME)
    result.stdout.fnmatch_lines(
        [
            "*optimizer in backward*",
            "Right",
            "closure: refused: RuntimeError: *",
            f"*{len(CATALOGUE)}*3 selected",
            "*2 equivalent, 0 equivalent-within-noise, 1 refused, 0 unsupported*",
            "scenarios: *34*",
            "tensors: *compared of*that exist; 0 quantities unobserved",
        ]
    )


def test_the_report_holds_the_selected_requirements_in_the_catalogue_s_order(written):
    result, report = written("right", *SOME)
    result.assert_outcomes(passed=3)
    assert report["schema"] == "inbackward.report/1"
    assert report["target"] == "Right"
    assert report["seed"] == 0
    assert [row["id"] for row in report["requirements"]] == ["weights-only-load", "closure", "gradient-freed"]
    summary = report["summary"]
    assert summary["requirements"] == len(CATALOGUE)
    assert summary["not-selected"] == len(CATALOGUE) - 3
    assert (summary["equivalent"], summary["refused"]) == (2, 1)
    assert summary["tensors_compared"] == summary["tensors_existing"] > 0


def test_workers_give_the_report_of_one_process(written):
    _, alone = written("crashes", *SOME, "--optimizer-in-backward-html", "alone.html")
    result, merged = written("crashes", "-n", "2", *SOME, "--optimizer-in-backward-html", "merged.html")
    result.assert_outcomes(passed=2, failed=1)
    assert without_time_and_place(merged) == without_time_and_place(alone)
    page, other = (Path(name).read_text(encoding="utf-8") for name in ("alone.html", "merged.html"))
    assert bare(page) == bare(other)
    assert "No bit of any loss differs, in 100 iterations." in page
    assert alone["summary"]["broken"] == 1
    (broken,) = [row for row in alone["requirements"] if row["verdict"] == "broken"]
    assert (
        broken["replay"]
        == "pytest --optimizer-in-backward-replay .inbackward/closure-at-first-adamw.json test_suite.py"
    )


def test_a_report_holds_one_implementation(project):
    project.makeconftest(
        """
        import pytest, mine
        @pytest.fixture(params=[mine.Right, mine.Ignores])
        def optimizer_in_backward(request): return mine.Implementation.drop_in(request.param)
        """
    )
    project.makepyfile(test_suite="from inbackward.suite import *")
    result = project.runpytest("--optimizer-in-backward-json", "report.json", "-k", "gradient-freed")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["ERROR: --optimizer-in-backward-json holds one implementation, and this run has *"])
    assert not (project.path / "report.json").exists()


def test_a_report_that_cannot_be_written_fails_the_run(with_fixture):
    project = with_fixture("right")
    with (project.path / "conftest.py").open("a", encoding="utf-8") as file:
        file.write("\ndef pytest_runtest_teardown(): __import__('pathlib').Path('report.json').mkdir()\n")
    result = project.runpytest("--optimizer-in-backward-json", "report.json", "-k", "[closure]")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["ERROR: --optimizer-in-backward-json cannot write *report.json*: Is a directory"])


def test_an_ini_key_s_report_counts_from_the_configuration(with_fixture, monkeypatch):
    project = with_fixture("right")
    project.makeini("[pytest]\noptimizer_in_backward_json = report.json\n")
    monkeypatch.chdir(project.mkdir("below"))
    project.runpytest("..", "-k", "[closure]").assert_outcomes(passed=1)
    assert (project.path / "report.json").is_file()


def test_a_public_ci_sees_the_failure_and_junit_xml_holds_the_block(with_fixture, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    project = with_fixture("ignores")
    result = project.runpytest("--junitxml", "junit.xml", "-k", "[closure]", "--color", "yes")
    result.stdout.fnmatch_lines(["::error title=optimizer in backward%3A closure is not-equivalent::iteration 0, *"])
    (failure,) = ElementTree.parse(project.path / "junit.xml").iter("failure")
    assert "known mistakes explains this." in failure.text
    assert "\x1b" not in failure.text
