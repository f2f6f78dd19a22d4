"""What a public CI is told: one line for each requirement that fails the run, and nothing anywhere else."""

from dataclasses import replace

from test_report_rows import ROWS

from inbackward.report import render_annotations


def test_a_line_for_each_that_fails_the_run(monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    lines = render_annotations(ROWS.values())
    assert [line.split(" is ")[0].rpartition(" ")[2] for line in lines] == ["plain", "resume", "frozen", "observer"]
    assert lines[0] == (
        "::error title=optimizer in backward%3A plain is not-equivalent::"
        "iteration 1, parameter head.weight: off by up to 0.5, inf times the noise floor"
    )


def test_nothing_can_end_the_line_or_the_title(monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    failing = ROWS["not equivalent"]
    finding = {"what_if": "x", "noise_ratio": 0.0, "sentence": "behaves like 1 % of a loop"}
    entry = {**failing.entry, "message": "two\r\nlines: 100 %, done", "diagnosis": [finding]}
    (line,) = render_annotations([replace(failing, entry=entry, mend="read it")])
    assert line.endswith("::two%0D%0Alines: 100 %25, done%0Abehaves like 1 %25 of a loop%0Amend: read it")
    assert line.isprintable()


def test_none_outside_of_it(monkeypatch):
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    assert render_annotations(ROWS.values()) == []
