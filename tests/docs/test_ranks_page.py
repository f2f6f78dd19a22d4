"""``docs/ranks.md``: its example runs, its tables are those of the code, and what it quotes is what is said."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from inbackward import Implementation, verify
from inbackward.judging import Verdict
from inbackward.ranks import pool, torchrun, workers, world
from inbackward.requirements import CATALOGUE, across_ranks, default_arms
from inbackward.scenario.configs import STRATEGIES

TEXT = (Path(__file__).parents[2] / "docs" / "ranks.md").read_text(encoding="utf-8")
PARTS = {part.partition("\n")[0]: part for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)}
PROSE = " ".join(TEXT.split())


def tables(part: str) -> list[dict[str, list[str]]]:
    """Each table of a part: what its first column names, to what the second one names."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", PARTS[part], re.MULTILINE):
        rows = [line.strip("|\n").split("|") for line in table.splitlines()[2:]]
        found.append({row[0].strip(" `"): re.findall(r"`([^`]+)`", row[1]) for row in rows})
    return found


def example() -> dict[str, Any]:
    (block,) = re.findall(r"```python\n(.*?)```", PARTS["A parallelism of your own"], re.DOTALL)
    scope: dict[str, Any] = {}
    exec(compile(block, "docs/ranks.md", "exec"), scope)
    return scope


def test_the_strategies_are_those_there_are() -> None:
    (table,) = tables("Strategies")
    assert list(table) == list(STRATEGIES)


def test_the_family_runs_where_the_table_says() -> None:
    table, _ = tables("Which rows run where")
    built = {id: entry for id, entry in CATALOGUE.items() if entry.family == "ranks"}
    arms = default_arms()
    assert table == {id: list(dict.fromkeys(s.strategy for s in e.scenarios(arms))) for id, e in built.items()}


def test_what_is_run_again_is_what_the_table_says() -> None:
    _, table = tables("Which rows run where")
    assert table == {id: list(names) for id, names in across_ranks.AGAIN.items()}
    assert set(table) == {id for id, entry in CATALOGUE.items() if entry.on_ranks}


@pytest.mark.parametrize("id", across_ranks.AGAIN)
def test_what_is_run_again_exists(id: str) -> None:
    names = {scenario.name.rpartition("-")[0] for scenario in CATALOGUE[id].scenarios(default_arms())}
    assert {name.rstrip("*") for name in across_ranks.AGAIN[id]} <= names


def test_the_rows_that_are_named_as_left_out_are_left_out() -> None:
    named = set(re.findall(r"`([a-z-]+)`", PARTS["Which rows run where"].partition("The rest need not")[2]))
    assert named
    assert named <= {id for id, entry in CATALOGUE.items() if not entry.on_ranks and entry.family != "ranks"}


def test_the_limits_are_those_of_the_code() -> None:
    assert f"the timeout of the group, {world.TIMEOUT.total_seconds():g} s" in PROSE
    assert f"the deadline of a scenario, {workers.DEADLINE:g} s" in PROSE
    assert f"up to {workers.LIFE} scenarios" in PROSE
    assert PROSE.count(f"up to {workers.GRACE:g} s, and new workers") == 2
    assert f"({torchrun.LAST_WORD.total_seconds():g} s at most)" in PROSE


LATE = "late", (f"{workers.DEADLINE:g} s", "")


@pytest.mark.parametrize(
    ("answers", "quoted"),
    [
        ({0: ("left", ""), 1: ("died", ("killed by SIGKILL", ""))}, "rank 1 died: killed by SIGKILL"),
        ({0: ("left", ""), 1: ("died", ("left with status 7", ""))}, "left with status 7"),
        ({0: ("left", ""), 1: ("raised", "OSError: no more files")}, "rank 1 raised"),
        ({0: LATE, 1: LATE}, "ranks 0, 1 did not end within 60 s"),
    ],
)
def test_what_is_quoted_of_a_failure_is_what_is_said(answers: dict[int, Any], quoted: str) -> None:
    assert f"`{quoted}" in PARTS["What happens when a rank fails"]
    with pytest.raises(pool.RanksFailed, match=quoted):
        pool.conclude(answers)


def test_the_example_prints_what_is_written_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    example()
    assert f"It prints `{capsys.readouterr().out.strip()}`." in TEXT


def test_replicas_of_the_example_part_without_its_hooks(capsys: pytest.CaptureFixture[str]) -> None:
    scope = example()

    class NeverAveraged(scope["Averaged"]):  # type: ignore[misc]
        def __init__(self, module: nn.Module, mesh: Any) -> None:
            nn.Module.__init__(self)
            self.module = module

    wrong = Implementation.drop_in(
        scope["OptimizerInBackward"], wrap=lambda model, strategy, mesh: NeverAveraged(model, mesh)
    )
    outcome = verify(wrong, scope["scenario"])
    assert outcome.verdict is Verdict.NOT_EQUIVALENT
    assert outcome.divergence is not None
    assert outcome.divergence.quantity == "replica"
