"""From a result to a row, and from rows to a report: nothing that JSON does not have, nothing that does not add up."""

import json
from importlib.resources import files

import jsonschema
import pytest

from inbackward.judging import Divergence, Outcome, Verdict
from inbackward.report import Row, report, row, summary, unreached
from inbackward.requirements import CATALOGUE, Item
from inbackward.scenario import Scenario
from inbackward.verification import Result

SCHEMA = json.loads(files("inbackward.report").joinpath("report.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
SCENARIO = Scenario(requirement="plain", name="llama-adamw")
WHERE = Divergence(
    iteration=1,
    quantity="parameter",
    name="head.weight",
    noise_ratio=float("inf"),
    max_abs=0.5,
    max_ulp=12,
    needed_rtol=float("inf"),
)
EXACT = Divergence(iteration=0, quantity="state-names", name="x.step", detail="missing; the reference has it")


def outcome(verdict, **fields):
    return Outcome(scenario=SCENARIO, verdict=verdict, compared=10, existing=12, unobserved=1, **fields)


def failing(divergence=WHERE, verdict=Verdict.NOT_EQUIVALENT):
    return outcome(verdict, divergence=divergence, message=str(divergence))


def result(*outcomes, id="plain", **fields):
    return Result(requirement=CATALOGUE[id], outcomes=outcomes, seconds=0.25, **fields)


ROWS = {
    "equivalent": row(result(outcome(Verdict.EQUIVALENT), id="rng")),
    "within noise": row(result(outcome(Verdict.WITHIN_NOISE, noise_ratio=2.0), id="dtype")),
    "refused": row(result(outcome(Verdict.REFUSED, message="RuntimeError: no"), id="closure")),
    "not equivalent": row(result(failing(), outcome(Verdict.EQUIVALENT)), "inbackward replay x mine:Mine"),
    "not replayable": row(result(failing(EXACT), id="resume")),
    "broken": row(result(failing(verdict=Verdict.BROKEN), id="frozen")),
    "not run": row(result(outcome(Verdict.NOT_RUN, message="no power: too small"), id="unused")),
    "unsupported": row(result(failing(), id="tensor-lr", declared="a number only")),
    "known defect": row(result(failing(), id="optimizers", expected="bug 12")),
    "one unsupported": row(
        result(outcome(Verdict.EQUIVALENT), outcome(Verdict.UNSUPPORTED, message="freed"), id="resume-at-zero")
    ),
    "stale": row(result(outcome(Verdict.EQUIVALENT), id="observer", declared="never tried")),
    "unreached": unreached(Item("weights-only-load", ("single",)), "--fail-fast ended the run at plain"),
}


def test_a_report_of_every_kind_of_row_is_valid():
    document = json.loads(json.dumps(report("mine:Mine", 7, list(ROWS.values())), allow_nan=False))
    VALIDATOR.validate(document)
    order = list(CATALOGUE)
    assert [r["id"] for r in document["requirements"]] == sorted(
        (r.entry["id"] for r in ROWS.values()), key=order.index
    )


def test_infinity_is_a_word():
    divergence = ROWS["not equivalent"].entry["divergence"]
    assert (divergence["noise_ratio"], divergence["needed_rtol"]) == ("inf", "inf")
    assert (divergence["max_abs"], divergence["max_ulp"]) == (0.5, 12)


def test_only_what_fails_has_a_divergence():
    having = {kind for kind, r in ROWS.items() if "divergence" in r.entry}
    assert having == {"not equivalent", "not replayable", "broken", "known defect"}
    assert {kind for kind, r in ROWS.items() if r.scenario} == having
    assert {kind for kind, r in ROWS.items() if "replay" in r.entry} == {"not equivalent"}


def test_which_rows_fail_the_run():
    assert {kind for kind, r in ROWS.items() if r.failed} == {"not equivalent", "not replayable", "broken"}
    assert {kind for kind, r in ROWS.items() if r.stale} == {"stale"}


def test_every_requirement_is_counted_once():
    counts = summary(ROWS.values())
    verdicts = {k: n for k, n in counts.items() if k in {v.value for v in Verdict} | {"expected-failures"}}
    assert counts["requirements"] == len(CATALOGUE) == counts["not-selected"] + sum(verdicts.values())
    assert verdicts == {
        "equivalent": 2,
        "equivalent-within-noise": 1,
        "refused": 1,
        "unsupported": 2,
        "expected-failures": 1,
        "not-equivalent": 2,
        "broken": 1,
        "not-run": 2,
    }
    assert (counts["scenarios"], counts["tensors_compared"], counts["tensors_existing"]) == (13, 130, 156)
    assert counts["unobserved"] == 13


def test_scenarios_that_nobody_is_held_to_are_told_under_whatever_strategy():
    alone, spread = outcome(Verdict.EQUIVALENT), outcome(Verdict.UNSUPPORTED, message="freed")
    rows = [row(result(alone)), row(result(alone, spread))]
    for order in (rows, rows[::-1]):
        (entry,) = report("mine:Mine", 0, order)["requirements"]
        assert [left["reason"] for left in entry["scenarios_unsupported"]] == ["freed"]


def test_a_replay_starts_from_the_decisive_scenario():
    worst = outcome(Verdict.BROKEN, divergence=EXACT, message="x", traceback="Traceback")
    found = row(result(failing(), worst, failing()))
    assert found.entry["verdict"] == "broken"
    assert found.entry["divergence"]["quantity"] == "state-names"
    assert found.traceback == "Traceback"
    assert Scenario.from_json(found.scenario) == SCENARIO


def test_a_row_is_plain_data():
    for each in ROWS.values():
        assert Row(**json.loads(json.dumps(vars(each)))) == each


def damage(change):
    document = json.loads(json.dumps(report("mine:Mine", 7, list(ROWS.values()))))
    change(document)
    return document


BROKEN = {
    "another schema": lambda d: d.update(schema="inbackward.report/2"),
    "no target": lambda d: d.update(target=""),
    "a new key": lambda d: d.update(notes="fine"),
    "no summary": lambda d: d.pop("summary"),
    "a count that is missing": lambda d: d["summary"].pop("not-selected"),
    "a count of something new": lambda d: d["summary"].update(skipped=0),
    "a negative count": lambda d: d["summary"].update(broken=-1),
    "no torch": lambda d: d["environment"].pop("torch"),
    "an unknown verdict": lambda d: d["requirements"][0].update(verdict="passed"),
    "an unknown verdict of a strategy": lambda d: d["requirements"][0]["by_strategy"].update(single="passed"),
    "no strategy": lambda d: d["requirements"][0].update(by_strategy={}),
    "a requirement's new key": lambda d: d["requirements"][0].update(note="fine"),
    "an id with a capital": lambda d: d["requirements"][0].update(id="Plain"),
    "a failure without its place": lambda d: d["requirements"][0].pop("divergence"),
    "a place without a failure": lambda d: d["requirements"][0].update(verdict="equivalent"),
    "no iteration": lambda d: d["requirements"][0]["divergence"].pop("iteration"),
    "a divergence's new key": lambda d: d["requirements"][0]["divergence"].update(note="fine"),
    "another word for infinity": lambda d: d["requirements"][0]["divergence"].update(noise_ratio="Infinity"),
    "an empty replay": lambda d: d["requirements"][0].update(replay=""),
    "a scenario not run, without a reason": lambda d: d["requirements"][0].update(
        scenarios_not_run=[{"scenario": "x"}]
    ),
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_a_broken_report_is_refused(change):
    document = damage(lambda _: None)
    assert document["requirements"][0]["id"] == "plain"
    assert VALIDATOR.is_valid(document)
    assert not VALIDATOR.is_valid(damage(change))


def test_a_diagnosis_has_its_place():
    finding = {"what_if": "lr-frozen", "noise_ratio": 0.0, "sentence": "behaves like a loop without a scheduler"}
    assert VALIDATOR.is_valid(damage(lambda d: d["requirements"][0].update(diagnosis=[finding])))


def test_it_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
