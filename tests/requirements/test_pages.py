"""Every requirement has a page, and what a page says is what the catalogue and the suite say."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from inbackward.cli import main
from inbackward.requirements import CATALOGUE, default_arms, page

IDS = list(CATALOGUE)
CHECKED = [id for id in IDS if CATALOGUE[id].build]
SECTIONS = [
    "What must hold",
    "Why it breaks in practice",
    "What a report looks like",
    "How it is usually mended",
    "Settled here",
]

# The public threads whose facts each page must tell. What has no number is named by its project.
REPORTS = {
    "plain": ("torchtune#2145", "Q-GaLore#13", "sd-scripts#1834"),
    "param-groups": ("torchtune PR 2719",),
    "lr-schedule": (
        "torchtune PR 2719",
        "GaLore#62",
        "APOLLO#14",
        "transformers#30371",
        "transformers#31707",
        "transformers#34559",
        "ao#959",
    ),
    "gradient-scale": ("torchtune PR 2733",),
    "tied-weights": ("pytorch#87397",),
    "frozen": ("ao#1209", "torchtitan"),
    "unfreeze-later": ("Reproduced on CPU",),
    "add-param-group": ("Reproduced on CPU",),
    "duplicate-params": ("torchtune PR 2719",),
    "cast-or-move": ("Reproduced on CPU",),
    "accumulation": ("pytorch#124523", "GaLore#78", "Q-GaLore#13", "verl#1295", "GaLore#62", "APOLLO#14"),
    "global-clip": ("torchtune#1934", "torchtitan#990", "kohya", "OneTrainer"),
    "grad-scaler": ("accelerate#3462",),
    "two-backwards": ("Reproduced on CPU",),
    "extra-step-calls": ("torchtune's DPO recipe",),
    "foreign-backward": ("Reproduced on CPU",),
    "stale-read": ("Reproduced on CPU",),
    "checkpointed-activations": ("pytorch#81296",),
    "compiled-model": ("pytorch#118435", "pytorch#112446", "pytorch#139742"),
    "two-optimizers": ("torchtitan PR 705", "torchtitan PR 793"),
    "deepcopy": ("Reproduced on CPU",),
    "observer": ("pytorch#164929",),
    "gradient-peak": ("PyTorch's own memory test",),
    "no-leak": ("optimi#5",),
    "resume": ("GaLore#35", "torchtune PR 527", "sd-scripts#1344", "torchtune#2360", "optimi's source"),
    "resume-schedule": ("NVIDIA/apex#766", "FBGEMM#3597"),
    "resume-from-plain": ("torchtune PR 2719",),
    "resume-into-plain": ("torchtune PR 2719",),
    "resume-at-zero": ("pytorch#164929",),
    "snapshot-independent": ("pytorch#196083",),
    "weights-only-load": ("ms-swift#10161",),
    "dcp": ("torchtune PR 2719", "torchtune#2360"),
    "ddp": ("musubi-tuner#679", "pytorch#95403", "pytorch#111834"),
    "fsdp2": ("torchrec#4268", "Reproduced on CPU"),
    "cpu-offload": ("torchtune#2825", "pytorch PR 180666"),
    "rank-agreement": ("musubi-tuner#679", "Reproduced on CPU"),
    "ranks-accumulation": ("DeepSpeed#7985",),
    "token-normalised-loss": ("torchtune PR 2733",),
}
NUMBERED = re.compile(r"[\w/-]+#\d+|\w+ PR \d+")


def sections(id: str) -> dict[str, str]:
    """Title to text, in the page's order; the part before the first title is called ``""``."""
    parts = re.split(r"^## (.*)\n", page(id), flags=re.MULTILINE)
    return dict(zip(["", *parts[1::2]], parts[0::2]))


def reports(id: str) -> list[str]:
    return re.findall(r"```text\n(.*?)```", sections(id)["What a report looks like"], re.DOTALL)


@pytest.mark.parametrize("id", IDS)
def test_the_fixed_sections_in_order(id: str) -> None:
    found = list(sections(id))[1:]
    assert found == SECTIONS[: len(found)]
    assert len(found) >= 4
    assert all(text.strip() for text in sections(id).values())


@pytest.mark.parametrize("id", IDS)
def test_the_page_begins_with_the_catalogues_sentence(id: str) -> None:
    assert sections(id)[""].split("\n") == [f"# {id}", "", CATALOGUE[id].sentence, "", ""]


@pytest.mark.parametrize("id", IDS)
def test_the_page_is_short_and_names_nobodys_machine(id: str) -> None:
    lines = page(id).splitlines()
    assert 25 <= len(lines) <= 50
    for number, line in enumerate(lines):
        assert len(line) <= 120 or number == 2  # the sentence is one line, as in the catalogue
        assert not re.search(r"(^|[\s\"'(=])(/|~/|[A-Z]:\\)\w", line), line
        assert line.isprintable()


@pytest.mark.parametrize("id", IDS)
def test_every_assigned_report_is_told_and_no_other(id: str) -> None:
    told = " ".join(sections(id)["Why it breaks in practice"].split())
    assert [case for case in REPORTS.get(id, ("No public report",)) if case not in told] == []
    numbered = {case for case in REPORTS.get(id, ()) if NUMBERED.fullmatch(case)}
    assert set(NUMBERED.findall(page(id))) == numbered


@pytest.mark.parametrize("id", CHECKED)
def test_a_report_of_a_failure_is_shown(id: str) -> None:
    (block,) = reports(id)
    head, sentence, where = block.splitlines()[:3]
    assert head in (f"{id}: not-equivalent", f"{id}: broken")
    assert CATALOGUE[id].sentence.startswith(sentence.strip().removesuffix(" ..."))
    assert where.startswith(f"  in {id}/")
    assert f"replay: inbackward replay .inbackward/{id}-" in block


@pytest.mark.parametrize("id", CHECKED)
def test_every_scenario_that_is_named_exists(id: str) -> None:
    arms = default_arms()
    runs = {scenario.name for scenario in CATALOGUE[id].scenarios(arms)}
    names = runs | {name.removesuffix(f"-{arm.name}") for name in runs for arm in arms}
    paragraphs = sections(id)["What must hold"].split("\n\n")
    (listed,) = (text for text in paragraphs if text.startswith("Scenarios: "))
    sentence = re.split(r"\.\s", listed, maxsplit=1)[0]
    cited = set(re.findall(r"`([a-z0-9.-]+)`", sentence))
    others = {*CATALOGUE, "close", "del", "of-", "-and-back", "-of-one-group", "weight-decay"}  # words, not names
    assert cited & names
    assert cited - names - others == set()
    (failed,) = re.findall(rf"^  in {id}/([\w.-]+)", reports(id)[0], re.MULTILINE)
    assert failed in runs


@pytest.mark.parametrize("id", IDS)
def test_whether_refusing_counts_is_said(id: str) -> None:
    said = " ".join(sections(id)["What must hold"].split())
    assert ("Refusing counts (R)" in said) == CATALOGUE[id].may_refuse
    assert ("efusing does not count" in said) != CATALOGUE[id].may_refuse


@pytest.mark.parametrize("id", IDS)
def test_the_command_prints_the_page(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["requirements", id]) == 0
    assert capsys.readouterr().out.startswith(page(id))


def test_pages_ship_with_the_package_and_belong_to_ids() -> None:
    shipped = {file.name.removesuffix(".md") for file in (files("inbackward.requirements") / "pages").iterdir()}
    assert shipped == set(IDS)


def test_the_documentation_shows_the_same_pages() -> None:
    folder = Path(__file__).parents[2] / "docs" / "requirements"
    assert {path.stem: path.read_text(encoding="utf-8") for path in folder.iterdir()} == {id: page(id) for id in IDS}


def test_an_unknown_id_is_refused() -> None:
    with pytest.raises(ValueError, match=r"page\(\) names no requirement 'lr-shedule'; did you mean 'lr-schedule'\?"):
        page("lr-shedule")
