"""``inbackward verify``: exit statuses, selection, the files it leaves, and what it prints."""

import json
import shlex
import subprocess
import sys
from contextlib import closing
from importlib.resources import files

import jsonschema
import pytest
from tests.without_time import bare

from inbackward import targets
from inbackward.report.showcase import describe_losses
from inbackward.requirements import CATALOGUE
from inbackward.scenario import Scenario
from inbackward.training import as_implementation
from inbackward.verification import PROFILES, Suite
from inbackward.workers import showcase_apart

SCHEMA = json.loads(files("inbackward.report").joinpath("report.schema.json").read_text())
# A failure is explained by eight more runs of each scenario: on two small matrices that takes no time.
QUICKLY = "--model", "mine:small"


def report_of(path):
    """The report in a file, valid by the schema that ships."""

    def refuse(constant):
        raise AssertionError(f"{constant} in a report")

    document = json.loads(path.read_text(), parse_constant=refuse)
    jsonschema.validate(document, SCHEMA, cls=jsonschema.Draft202012Validator)
    return document


@pytest.mark.parametrize(
    ("target", "id", "status", "verdict"),
    [
        ("inbackward:OptimizerInBackward", "rng", 0, "equivalent"),
        ("inbackward:OptimizerInBackward", "closure", 0, "refused"),
        ("mine:declared", "gradient-freed", 0, "unsupported"),
        ("mine:tracked", "gradient-freed", 0, "not-equivalent"),
        ("mine:keeps", "gradient-freed", 1, "not-equivalent"),
        ("mine:Hot", "tensor-lr", 1, "not-equivalent"),
        ("mine:Crash", "weights-only-load", 1, "broken"),
        ("mine:stale", "rng", 1, "unsupported"),
        ("mine:no_longer", "rng", 1, "equivalent"),
        ("mine:frozen", "weights-only-load", 3, "not-run"),
    ],
)
def test_exit_status_and_report(command, project, target, id, status, verdict):
    ran = command("verify", target, "--only", id, *QUICKLY, "--json", "report.json")
    document = report_of(project / "report.json")
    assert (ran.status, ran.err) == (status, "")
    assert document["target"] == target
    assert [(r["id"], r["verdict"], r["by_strategy"]) for r in document["requirements"]] == [
        (id, verdict, {"single": verdict})
    ]
    assert f"{id:<31}{verdict}" in ran.out


def test_what_fails_is_named_and_saved(command, project):
    ran = command("verify", "mine:frozen", "--only", "rng,lr-schedule", *QUICKLY, "--json", "report.json")
    rng, failed = sorted(report_of(project / "report.json")["requirements"], key=lambda r: r["verdict"])
    assert (rng["id"], failed["id"]) == ("rng", "lr-schedule")
    assert "divergence" not in rng
    where = failed["divergence"]
    assert where["scenario"] == "lr-schedule/warm-up-from-0-adamw"
    assert (where["iteration"], where["quantity"]) == (0, "parameter")
    assert where["noise_ratio"] > 1000
    assert failed["replay"] == "inbackward replay .inbackward/lr-schedule-warm-up-from-0-adamw.json mine:frozen"
    assert failed["replay"] in ran.out
    assert failed["message"] in ran.out
    assert sorted(p.name for p in (project / ".inbackward").iterdir()) == [
        ".gitignore",
        "lr-schedule-warm-up-from-0-adamw-shrunk.json",
        "lr-schedule-warm-up-from-0-adamw.json",
    ]


def test_the_first_failure_is_shrunk_and_fails_alike_in_a_fresh_process(command, project):
    ran = command("verify", "mine:Crash", "--only", "resume-at-zero,weights-only-load", "--json", "report.json")
    entries = report_of(project / "report.json")["requirements"]
    first = entries[0]["id"]
    assert {entry["verdict"] for entry in entries} == {"broken"}
    assert ran.out.count(f"  shrunk: Scenario(requirement={first!r}, ") == ran.out.count("shrunk: ") == 1
    assert not any("shrunk" in entry["replay"] for entry in entries)  # that would depend on the order of the tests
    (line,) = [line for line in ran.out.splitlines() if "-shrunk.json" in line]
    program, *arguments = shlex.split(line.removeprefix("  replay: "))
    shrunk = Scenario.load(project / arguments[1])
    (event,) = shrunk.events
    assert (event.kind, event.at, shrunk.model.layers) == ("resume", shrunk.iterations - 1, 1)
    ended = subprocess.run(
        [sys.executable, "-m", program, *arguments], cwd=project, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.startswith(f"{first}/")
    assert "verdict: broken\n" in ended.stdout
    assert ended.stdout.rstrip().endswith("KeyError: 'momentum_buffer'")


def test_a_known_defect_is_not_shrunk(command):
    assert "shrunk" not in command("verify", "mine:tracked", "--only", "gradient-freed").out


def test_a_passing_run_leaves_nothing(command, project):
    command("verify", "--only", "rng")
    assert [p.name for p in project.iterdir()] == ["mine.py"]


def test_a_report_cannot_be_written_without_a_replay_folder_either(command, project):
    (project / ".inbackward").write_text("in the way")
    ran = command("verify", "mine:keeps", "--only", "gradient-freed", "--json", "report.json")
    assert ran.status == 1
    assert "replay" not in report_of(project / "report.json")["requirements"][0]
    assert "replay" not in ran.out


def test_the_summary_counts_what_was_selected(command, project):
    command("verify", "--only", "closure", "--only", "rng, frozen", "--skip", "frozen", "--json", "report.json")
    document = report_of(project / "report.json")
    summary = document["summary"]
    assert [r["id"] for r in document["requirements"]] == [id for id in CATALOGUE if id in ("closure", "rng")]
    assert (summary["requirements"], summary["not-selected"]) == (len(CATALOGUE), len(CATALOGUE) - 2)
    assert (summary["equivalent"], summary["refused"], summary["not-equivalent"]) == (1, 1, 0)
    assert summary["scenarios"] == sum(r["scenarios"] for r in document["requirements"])
    assert summary["tensors_compared"] == summary["tensors_existing"] > 0


def test_two_runs_differ_in_seconds_and_environment_only(command, project):
    arguments = "--only", "gradient-scale,closure,lr-schedule", "--seed", "7"
    for name in ("first", "second"):
        files = "--json", f"{name}.json", "--html", f"{name}.html"
        command("verify", "mine:frozen", *arguments, *QUICKLY, *files)
    first, second = (report_of(project / name) for name in ("first.json", "second.json"))
    for document in (first, second):
        assert document["seed"] == 7
        del document["environment"]
        for entry in document["requirements"]:
            del entry["seconds"]
    assert first == second
    one, other = ((project / name).read_text(encoding="utf-8") for name in ("first.html", "second.html"))
    assert bare(one) == bare(other)
    assert "No bit of any loss differs, in 100 iterations." in one


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("mine:Leaves", "the process that trained for it died"),
        ("mine:Raises", "the implementation raises ValueError: not today"),
        ("mine:Later", "The implementation stopped after 3 iterations: ValueError: not today"),
    ],
)
def test_a_page_without_curves_says_why(project, target, why):
    with closing(Suite(as_implementation(targets.load(target, search=[project])))) as suite:
        showcase = showcase_apart(suite, workers=1)
    assert (describe_losses(showcase.curves) if showcase.curves else showcase.why_not).startswith(why)


def test_another_seed_is_another_run(command, project):
    for seed in (0, 1):
        command("verify", "mine:frozen", "--only", "lr-schedule", *QUICKLY, "--seed", seed, "--json", f"{seed}.json")
    zero, one = (report_of(project / f"{seed}.json")["requirements"][0]["divergence"] for seed in (0, 1))
    assert zero["max_abs"] != one["max_abs"]


def test_fail_fast_counts_what_it_did_not_reach(command, project):
    ran = command(
        "verify", "mine:keeps", "--only", "gradient-freed,tied-weights", "--fail-fast", "--json", "report.json"
    )
    document = report_of(project / "report.json")
    assert ran.status == 1
    assert document["summary"]["not-run"] == 1
    failed, unreached = document["requirements"]
    assert [failed["id"], unreached["id"]] == ["gradient-freed", "tied-weights"]
    assert (failed["verdict"], unreached["verdict"]) == ("not-equivalent", "not-run")
    assert unreached["message"] == "--fail-fast ended the run at gradient-freed"


def test_fail_fast_is_not_set_off_by_a_known_defect(command, project):
    ran = command(
        "verify", "mine:tracked", "--only", "gradient-freed,tied-weights", "--fail-fast", "--json", "report.json"
    )
    assert ran.status == 0
    assert report_of(project / "report.json")["summary"]["not-run"] == 0


def test_list_unsupported_is_ready_to_use(command, project):
    ran = command("verify", "mine:keeps", "--only", "rng,gradient-freed", "--list-unsupported")
    assert ran.status == 1
    literal = ran.out[ran.out.index("unsupported={") :]
    (project / "adopted.py").write_text(
        f"import dataclasses, mine\ntarget = dataclasses.replace(mine.keeps, {literal})"
    )
    ran = command("verify", "adopted:target", "--only", "rng,gradient-freed", "--list-unsupported")
    assert ran.status == 0
    assert ran.out.endswith(literal)  # what is declared rightly stays declared


def test_list_unsupported_of_nothing(command):
    assert command("verify", "--only", "rng", "--list-unsupported").out.endswith("unsupported={\n}\n")


def test_a_plain_optimizer_that_couples_its_parameters(command):
    ran = command("verify", "--optimizer", "mine:Coupled", "--only", "plain")
    assert ran.status == 2
    assert ran.err == (
        "inbackward: error: --optimizer mine:Coupled: Coupled cannot step inside backward(), as its parameters depend "
        "on each other: tried on three small ones, it updates them otherwise one after the other than all at once; "
        "use it as a plain optimizer\n"
    )


def test_one_that_does_so_only_later(command, project):
    ran = command("verify", "--optimizer", "mine:CoupledAtLast", "--only", "plain", "--json", "report.json")
    document = report_of(project / "report.json")
    assert ran.status == 1
    assert document["target"] == "inbackward:OptimizerInBackward over mine:CoupledAtLast"
    assert document["requirements"][0]["divergence"]["iteration"] == 3
    replay = document["requirements"][0]["replay"]
    assert replay == "inbackward replay .inbackward/plain-long-coupledatlast.json --optimizer mine:CoupledAtLast"
    assert command(*replay.split()[1:]).status == 1


def test_a_plain_optimizer_that_does_not(command):
    assert command("verify", "--optimizer", "torch.optim:Adagrad", "--only", "plain").status == 0


def test_ones_own_model(command, project):
    command("verify", "--only", "rng", "--json", "default.json")
    ran = command("verify", "--only", "rng", "--model", "mine:small", "--json", "own.json")
    assert ran.status == 0
    compared = [report_of(project / f"{n}.json")["summary"]["tensors_compared"] for n in ("default", "own")]
    assert compared[0] > compared[1] > 0


def test_what_is_under_test_may_print(project):
    arguments = [sys.executable, "-m", "inbackward", "verify", "mine:Talks", "--only", "closure"]
    ran = subprocess.run(arguments, cwd=project, capture_output=True, text=True, check=False)
    assert ran.returncode == 0
    assert "hello" not in ran.stdout
    assert "hello from the implementation" in ran.stderr


def test_the_profiles_are_those_of_the_suite(command):
    assert "{" + ",".join(PROFILES) + "}" in command("verify", "--help").out


@pytest.mark.parametrize("name", ["verify", "replay", "requirements", "curves"])
def test_help_has_an_example(command, name):
    ran = command(name, "--help")
    assert ran.status == 0
    assert f"example:\n  inbackward {name} " in ran.out
