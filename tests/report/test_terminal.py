"""What people read: which lines, how many, how wide, and every quantity explained."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from pages import HOSTILE, everything
from test_report_rows import EXACT, ROWS, WHERE, failing, outcome, result

from inbackward import judging, verification
from inbackward.judging import Diagnosis, Finding, Verdict
from inbackward.judging.compare import QUANTITIES
from inbackward.report import (
    render_details,
    render_failure,
    render_outcome,
    render_remarks,
    render_summary,
    render_unsupported,
    row,
)
from inbackward.report.failure import LINES
from inbackward.report.text import HOW_TO_READ, WIDTH
from inbackward.requirements import CATALOGUE

LONG = "x" * 30 + " and so on" * 80
FROZEN = Finding(
    what_if="lr-frozen",
    noise_ratio=0.0,
    sentence="behaves exactly like a loop that never sees the scheduler",
    mend="read group['lr'] when the update is made, and never a copy of it",
    page="lr-schedule",
)
LATE = replace(
    FROZEN, what_if="lr-late", sentence="behaves exactly like a loop that uses the lr of the iteration before"
)
CLOSE = replace(
    FROZEN, noise_ratio=1.5, sentence="is consistent with a loop that never sees the scheduler (within 1.5)"
)
EVIDENCE = (
    "first beyond rounding in iteration 1: every tensor that is updated",
    "it begins in the update itself: the state that the gradient went into agrees",
)
TRACEBACK = "Traceback (most recent call last):\n" + "\n".join(f"  line {i}\n    ^^^^~~" for i in range(20))


def diagnosed(*findings, evidence=EVIDENCE, divergence=WHERE):
    told = Diagnosis(findings=findings, evidence=evidence, known=0 if divergence is EXACT else 70)
    return row(result(replace(failing(divergence), diagnosis=told)), "inbackward replay x mine:Mine")


BLOCKS = {
    "exactly": diagnosed(FROZEN),
    "not told apart": diagnosed(FROZEN, LATE),
    "many not told apart": diagnosed(FROZEN, LATE, LATE, LATE, LATE),
    "within noise": diagnosed(CLOSE),
    "unexplained": diagnosed(),
    "no number": diagnosed(evidence=("no number is wrong",), divergence=EXACT),
    "undiagnosed": ROWS["not equivalent"],
    "not replayable": ROWS["not replayable"],
    "known defect": ROWS["known defect"],
    "crash": row(
        result(
            outcome(
                Verdict.BROKEN, divergence=EXACT, message="KeyError: 'x'", traceback=f"{TRACEBACK}\nKeyError: 'x'\n"
            )
        ),
        "inbackward replay x",
    ),
    "shrunk": replace(
        diagnosed(FROZEN), shrunk="Scenario(" + "iterations=1, " * 90 + ")", replay_shrunk="inbackward replay y"
    ),
    "everything long": replace(
        diagnosed(*[replace(FROZEN, sentence=LONG, mend=LONG)] * 9, evidence=(LONG,) * 4),
        shrunk=LONG,
        replay_shrunk="inbackward replay y",
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_failure_reads_as_the_snapshot_has_it(name):
    """After a change of wording: ``INBACKWARD_SNAPSHOTS=write pytest tests/report``, and read what git shows."""
    lines = render_failure(BLOCKS[name])
    text = "\n".join(lines) + "\n"
    path = Path(__file__).parent / "snapshots" / f"{name.replace(' ', '-')}.txt"
    if os.environ.get("INBACKWARD_SNAPSHOTS") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert len(lines) <= LINES
    assert all(len(line) <= WIDTH for line in lines)


@pytest.mark.parametrize("kind", ["equivalent", "within noise", "refused", "not run", "unsupported", "unreached"])
def test_what_does_not_fail_has_no_block(kind):
    assert render_failure(ROWS[kind]) == []


def test_a_known_defect_says_that_it_is_known():
    assert render_failure(ROWS["known defect"])[0] == "optimizers: not-equivalent, as expected (bug 12)"


@pytest.mark.parametrize(
    ("fields", "field"), [({"declared": "why"}, "unsupported"), ({"expected": "why"}, "expected_failures")]
)
def test_a_stale_declaration_says_what_to_remove(fields, field):
    stale = row(result(outcome(Verdict.EQUIVALENT), id="observer", **fields))
    first, second = render_failure(stale)
    assert first == f"observer: declared in Implementation.{field}, but every one of its 1 scenarios holds"
    assert second.startswith(f"  remove 'observer' from {field}: ")


def test_remarks_quote_who_refused_or_declared():
    assert render_remarks(list(ROWS.values())) == [
        "closure: refused: RuntimeError: no",
        "unused: not-run: no power: too small",
        "tensor-lr: unsupported: a number only",
        "resume-at-zero: 1 of 2 scenarios unsupported: freed",
        "weights-only-load: not-run: --fail-fast ended the run at plain",
    ]


def test_scenarios_left_out_of_a_row_that_holds():
    missing = replace(outcome(Verdict.NOT_RUN, message="needs a GPU"), compared=0)
    some = row(result(outcome(Verdict.EQUIVALENT), missing))
    assert render_remarks([some]) == ["plain: 1 of 2 scenarios not run: needs a GPU"]


def test_a_scenario_that_nobody_is_held_to_has_a_line():
    assert render_remarks([ROWS["one unsupported"]]) == ["resume-at-zero: 1 of 2 scenarios unsupported: freed"]


def test_a_row_that_holds_on_nothing():
    nothing = replace(outcome(Verdict.EQUIVALENT, message="both raise ValueError: no"), compared=0)
    assert render_remarks([row(result(nothing))]) == [
        "plain: equivalent, but nothing was compared: both raise ValueError: no"
    ]


def test_the_denominator():
    assert render_summary(list(ROWS.values())) == [
        f"requirements: {len(CATALOGUE)} exist, 12 selected",
        "verdicts:     2 equivalent, 1 equivalent-within-noise, 1 refused, 2 unsupported, 1 expected-failures,",
        "              2 not-equivalent, 1 broken, 2 not-run",
        "scenarios:    13, 1 of them not run",
        "tensors:      130 compared of 156 that exist; 13 quantities unobserved",
    ]


@pytest.mark.parametrize("rows", [[], [ROWS["unreached"]]], ids=["no row", "no tensor"])
def test_a_run_that_compared_nothing_says_so(rows):
    assert render_summary(rows)[-1] == "Nothing was compared, so this run proves nothing and fails."


def test_every_quantity_is_explained():
    files = *Path(judging.__path__[0]).glob("*.py"), Path(verification.__file__)
    source = "".join(path.read_text() for path in files)
    assert set(HOW_TO_READ) == {*QUANTITIES, *re.findall(r'quantity="([^"]+)"', source)}


def test_lines_fit_a_terminal():
    long = outcome(Verdict.BROKEN, divergence=EXACT, message=LONG, traceback=f"{LONG}\nKeyError: {LONG}")
    refused = row(result(outcome(Verdict.REFUSED, message=LONG), id="closure"))
    lines = render_details([row(result(long)), refused])
    assert all(len(line) <= WIDTH for line in lines)
    assert sum(line.endswith(" ...") for line in lines) == 4


def test_a_replay_line_is_never_cut():
    command = "inbackward replay " + "x" * 300
    assert render_failure(row(result(failing()), command))[-1] == f"  replay: {command}"


def test_the_literal_of_what_failed_can_be_evaluated():
    awkward = row(result(outcome(Verdict.BROKEN, divergence=EXACT, message="KeyError: 'it\\'s {x}'"), id="rng"))
    literal = "\n".join(render_unsupported([*ROWS.values(), awkward])).removeprefix("unsupported=")
    assert eval(literal) == {
        "plain": str(failing().divergence),
        "resume": str(EXACT),
        "frozen": str(failing().divergence),
        "tensor-lr": "a number only",
        "rng": "KeyError: 'it\\'s {x}'",
    }


def test_a_terminal_is_told_nothing_that_it_would_obey():
    hostile = everything()
    said = outcome(Verdict.BROKEN, divergence=EXACT, message=HOSTILE, traceback=f"Traceback\n{HOSTILE}")
    for lines in (render_details(hostile), render_outcome(said, "mine:Mine")):
        assert any("quotes" in line for line in lines)
        assert [line for line in lines if not line.isprintable() and "replay: " not in line] == []


def test_a_scenario_shows_all_its_numbers():
    lines = render_outcome(failing(), "mine:Mine")
    assert lines[1:] == [
        "verdict: not-equivalent",
        "  Iterations of the loop give the reference's numbers.",
        "  iteration 1, parameter head.weight: off by up to 0.5, inf times the noise floor",
        "  worst noise ratio           0.0; 8 is the limit",
        "  iteration                   1",
        "  noise ratio here            inf",
        "  largest difference          0.5",
        "  units in the last place     12",
        "  relative tolerance needed   inf",
        "  tensors compared            10 of 12",
        "  quantities unobserved       1",
        "  uninformative tensors       0",
        "  This iteration's update used another gradient, hyperparameter or state than the reference's.",
    ]


def test_a_kernel_flavour_is_named():
    assert "  kernel flavour that matched foreach" in render_outcome(
        outcome(Verdict.EQUIVALENT, flavour="foreach"), "m:M"
    )
