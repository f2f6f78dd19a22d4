"""The command, pytest and the library across ranks: what is asked of them, and what they say."""

from __future__ import annotations

import json
import multiprocessing
import shlex
import sys
from contextlib import closing

import hypothesis  # noqa: F401  as everything below
import pytest
from tests.ranks import targets

import inbackward
from inbackward.cli import main
from inbackward.requirements import CATALOGUE
from inbackward.verification import Suite

HOOKS = "tests.ranks.targets:hooks"


@pytest.fixture(scope="module", autouse=True)
def everything_is_imported(suite_of):
    """pytester forgets what an inner run was first to import, and torch bears no second import of a part of it."""
    suite = suite_of(targets.hooks)
    suite.judge(next(suite.scenarios(CATALOGUE["fsdp2"], "fsdp2")))
    suite.close()


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run ``inbackward`` in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments):
        try:
            status = main(list(arguments))
        except SystemExit as ended:  # argparse leaves this way
            status = ended.code
        return status, *capsys.readouterr()

    return run


def report(path):
    """A report, but for what may differ between two runs."""
    document = json.loads(path.read_text())
    del document["environment"]
    for entry in document["requirements"]:
        del entry["seconds"]
    return document


def test_the_report_names_strategy_and_rank_alike_each_time_and_replays(command, tmp_path):
    ask = ("verify", HOOKS, "--strategy", "ddp", "--only", "ddp,plain", "--json")
    status, out, err = command(*ask, "one.json")
    assert (status, err) == (1, "")
    assert "strategies ddp; 2 ranks" in out
    document = report(tmp_path / "one.json")
    assert [(r["id"], r["verdict"], r["by_strategy"]) for r in document["requirements"]] == [
        ("plain", "not-equivalent", {"ddp": "not-equivalent"}),
        ("ddp", "not-equivalent", {"ddp": "not-equivalent"}),
    ]
    for entry in document["requirements"]:
        where = entry["divergence"]
        assert (where["strategy"], where["rank"], where["iteration"]) == ("ddp", 0, 0)
        assert entry["message"].startswith("rank 0: iteration 0, parameter ")
        assert entry["message"].endswith("(so on ranks 0, 1)")

    command(*ask, "two.json")
    assert report(tmp_path / "two.json") == document

    replayed, out, err = command(*shlex.split(document["requirements"][0]["replay"])[1:])
    assert (replayed, err) == (1, "")
    assert document["requirements"][0]["message"] in out


def test_what_fails_can_be_declared_by_strategy(command):
    ask = ("--strategy", "ddp,fsdp2", "--only", "plain")
    status, out, _ = command("verify", HOOKS, *ask, "--list-unsupported")
    assert status == 1
    listed = out.partition("unsupported={")[2]
    assert "'plain@ddp': 'rank 0: iteration 0, parameter " in listed
    assert "plain@fsdp2" not in listed
    status, out, _ = command("verify", "tests.ranks.targets:declared", *ask, "--list-unsupported")
    assert status == 0
    assert "'plain@ddp': 'hooks fire before the gradients are averaged'" in out.partition("unsupported={")[2]


def test_a_mesh_of_two_dimensions_has_four_ranks_and_says_so(command, tmp_path):
    status, out, _ = command("verify", HOOKS, "--strategy", "hsdp", "--only", "hsdp", "--json", "report.json")
    assert status == 0
    assert "strategies hsdp; 2 ranks, 4 for hsdp" in out
    assert report(tmp_path / "report.json")["requirements"][0]["by_strategy"] == {"hsdp": "equivalent"}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("verify --strategy ddpp", "--strategy names no strategy 'ddpp'; did you mean 'ddp'?"),
        ("verify --strategy hsdp --only plain", "--only names 'plain', which --strategy hsdp does not run; ask for"),
        ("verify --strategy ddp --only fsdp2", "--only names 'fsdp2', which --strategy ddp does not run; ask for one"),
        ("verify --strategy ddp --only plain@ddp", "--only names 'plain@ddp'; give the id alone, and strategies by"),
        ("verify --strategy ddp --world-size 0", "argument --world-size: 0 is below 1"),
        (
            "verify tests.ranks.targets:typo",
            "Implementation.unsupported names no strategy 'dpp' in 'plain@dpp'; did you mean 'ddp'?",
        ),
    ],
)
def test_wrong_input_is_one_line(command, arguments, line):
    status, out, err = command(*arguments.split())
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith(f"inbackward: error: {line}")


def asked(target, *strategies):
    return (
        "--optimizer-in-backward",
        f"tests.ranks.targets:{target}",
        *(("--optimizer-in-backward-strategy", ",".join(strategies)) if strategies else ()),
    )


def test_pytest_collects_a_row_under_the_strategies_asked_for(pytester):
    pytester.makepyfile("def test_other(): pass")

    def names(*arguments):
        lines = pytester.runpytest("--collect-only", "-q", *arguments).outlines
        return {line.partition("[")[2].rstrip("]") for line in lines if "test_optimizer_in_backward[" in line}

    assert {"plain", "ddp", "hsdp", "rank-agreement"} < names(*asked("hooks"))
    found = names(*asked("hooks", "fsdp2"))
    assert {"plain-fsdp2", "resume-fsdp2", "fsdp2", "rank-agreement"} & found == {
        "plain-fsdp2",
        "resume-fsdp2",
        "fsdp2",
    }
    assert not {"plain", "plain-ddp", "ddp"} & found
    both = names(*asked("hooks", "single", "ddp"))
    assert {"plain", "plain-ddp", "ddp", "rank-agreement"} < both


@pytest.mark.parametrize(
    ("target", "item", "outcome", "line"),
    [
        ("hooks", "plain-ddp", "failed", "*rank 0: iteration 0, parameter *"),
        ("hooks", "plain-fsdp2", "passed", ""),
        ("declared", "plain-ddp", "xfailed", "*unsupported: hooks fire before the gradients are averaged*"),
        ("tracked", "ddp", "xfailed", "*expected failure: issue 12 (not-equivalent: rank 0: iteration 0, *"),
        ("stale", "plain-fsdp2", "failed", "*remove 'plain@fsdp2' from unsupported*"),
    ],
)
def test_pytest_outcome(pytester, target, item, outcome, line):
    others = children()
    pytester.makepyfile("def test_other(): pass")
    result = pytester.runpytest("-rA", *asked(target, item.rpartition("-")[2]), "-k", f"[{item}]")
    result.assert_outcomes(**{outcome: 1})
    assert result.ret == (outcome == "failed")
    result.stdout.fnmatch_lines([f"*{line}*"])
    assert not children() - others


def test_pytest_refuses_an_unknown_strategy_of_a_declaration(pytester):
    pytester.makepyfile("def test_other(): pass")
    result = pytester.runpytest(*asked("typo"))
    text = result.stdout.str() + result.stderr.str()
    assert result.ret != 0
    assert "names no strategy 'dpp' in 'plain@dpp'; did you mean 'ddp'?" in text


def test_the_library_leaves_no_rank_behind():
    others = children()
    scenario = next(Suite(targets.hooks).scenarios(CATALOGUE["ddp"], "ddp"))
    outcome = inbackward.verify(targets.hooks, scenario)
    assert outcome.verdict.value == "not-equivalent"
    assert outcome.message.startswith("rank 0: iteration 0, parameter ")
    assert not children() - others


def test_a_model_of_the_users_is_spread_but_for_tensor_parallelism() -> None:
    suite = Suite(inbackward.Implementation.drop_in(inbackward.OptimizerInBackward), model="somewhere:Net")

    def factories(id: str, strategy: str) -> set[str]:
        return {scenario.model.factory for scenario in suite.scenarios(CATALOGUE[id], strategy)}

    assert "somewhere:Net" in factories("plain", "ddp")
    assert "somewhere:Net" in factories("fsdp2", "fsdp2")
    assert factories("tensor-parallel", "tensor-parallel") == {""}


def children():
    """The processes that this one has, those of this run's own suite among them."""
    return {process.pid for process in multiprocessing.active_children()}


def test_one_rank_alone_agrees_with_nobody() -> None:
    with closing(Suite(inbackward.Implementation.drop_in(inbackward.OptimizerInBackward), world_size=1)) as suite:
        result = suite.run("rank-agreement", "tensor-parallel")
    assert (result.verdict.value, result.message) == ("not-run", "one rank has no other to agree with")
