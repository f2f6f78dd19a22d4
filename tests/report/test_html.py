"""The page as text: it loads nothing, tells everything, and is the same for the same run."""

import re
from dataclasses import replace
from importlib.resources import files

import pytest
from pages import CURVES, HOSTILE, SHOWCASE, everything, page
from test_report_rows import ROWS
from tests.without_time import bare

from inbackward.curves import Curve, Curves
from inbackward.measure import Times
from inbackward.report import Showcase
from inbackward.report.html import answer
from inbackward.report.plots import VARIABLES
from inbackward.requirements import CATALOGUE
from inbackward.wording import one_line, printable

PAGE = page(showcase=SHOWCASE)
CSS = files("inbackward.report").joinpath("page", "report.css").read_text(encoding="utf-8")


def test_it_loads_nothing_from_anywhere():
    assert not re.findall(r"https?:|//[a-z]|@import|url\((?!#)|<link|<iframe", PAGE)
    assert "default-src 'none'" in PAGE
    assert re.findall(r"<script[^>]*>", PAGE) == ["<script>"]


def test_what_a_message_holds_is_text():
    assert "<img" not in PAGE
    assert PAGE.count("{{ 7 * 7 }}") >= 7
    PAGE.encode("utf-8")


def test_what_a_terminal_or_a_browser_would_obey_is_written_out():
    assert printable("\x1b[1;31mred\x1b[0m\x1b]8;;x\x07 \x00\ud800\u202e\n\tπ") == "red \\x00\\ud800\\u202e\n\tπ"
    assert printable(HOSTILE).isprintable()
    assert printable("a\x0bb\x85c\u2028d\u2029e") == "a\\x0bb\\x85c\\u2028d\\u2029e"
    assert one_line("a\x0bb\x85c\u2028d\u2029e") == "a b c d e"


@pytest.mark.parametrize("space", [" ", "\xa0", "\u2003", "\u202f", "\u3000"])
def test_the_spaces_of_every_script_are_spaces(space):
    assert printable(f"12{space}MiB") == f"12{space}MiB"


def test_every_requirement_is_told_with_its_denominator():
    for id in CATALOGUE:
        assert f'data-key="{id}"' in PAGE
    some = page([ROWS["equivalent"], ROWS["broken"]])
    assert "2 of 67 requirements selected" in some
    assert "65 requirements were not selected" in some


def test_a_failure_has_its_evidence():
    text = page([ROWS["not equivalent"]])
    for part in ("head.weight", "inbackward replay x mine:Mine", "12", "How to read it", "1 of 2 scenarios fail"):
        assert part in text
    crash = page([replace(ROWS["broken"], traceback="Traceback\n  KeyError: 'x'")])
    assert "KeyError: &#39;x&#39;" in crash
    assert "How to read it" not in crash
    found = [{"what_if": "lr-frozen", "noise_ratio": 0.0, "sentence": "behaves like a loop without a scheduler"}]
    told = replace(ROWS["broken"], entry={**ROWS["broken"].entry, "diagnosis": found})
    text = page([replace(told, evidence=["the ratio is 10"], mend="share the groups.", page="lr-schedule")])
    assert "It behaves like a loop without a scheduler" in text
    assert "<li>the ratio is 10</li>" in text
    assert "<p>share the groups.</p>" in text
    assert "More by <code>inbackward requirements lr-schedule</code>" in text
    assert "None of the 40 known mistakes explains this." in page([replace(ROWS["broken"], known=40)])
    assert "What failed" not in page([ROWS["equivalent"]])


def test_a_declaration_that_is_no_longer_true_is_a_failure_too():
    assert "(never tried), but every one of its 1 scenarios holds: remove it" in page([ROWS["stale"]])


@pytest.mark.parametrize(
    ("kinds", "tone", "sentence"),
    [
        (["equivalent"], "good", "The usual loop's numbers: 1 requirement holds (1 bit for bit)."),
        (
            ["equivalent", "within noise", "refused", "not run", "known defect"],
            "good",
            "The usual loop's numbers: 3 requirements hold (1 bit for bit, 1 within noise, 1 refused with a reason); "
            "1 known defect; 1 could not run.",
        ),
        (["equivalent", "broken"], "bad", "Not the usual loop's numbers: 1 of 2 requirements fails."),
        (
            ["not equivalent", "broken", "unsupported"],
            "bad",
            "Not the usual loop's numbers: 2 of 3 requirements fail; 1 is declared unsupported.",
        ),
        (
            ["equivalent", "stale"],
            "bad",
            "1 requirement holds (1 bit for bit), but a declaration hides nothing any more; 1 is declared unsupported; "
            "1 declaration is no longer true.",
        ),
        (["unreached"], "none", "Nothing was compared, so this run proves nothing; 1 could not run."),
        ([], "none", "Nothing was compared, so this run proves nothing."),
    ],
)
def test_the_answer_in_one_sentence(kinds, tone, sentence):
    said = answer([ROWS[kind] for kind in kinds])
    assert (said["tone"], said["sentence"]) == (tone, sentence)


def test_identical_runs_give_identical_pages_but_for_seconds_and_environment():
    rows = [replace(row, entry={**row.entry, "seconds": 9.25}) for row in everything()]
    slower = page(rows, showcase=replace(SHOWCASE, times=Times(plain=(1.0,) * 8, in_backward=(9.0,) * 8)))
    assert slower != PAGE
    assert bare(slower) == bare(PAGE)


def test_curves_are_there_or_the_reason_is():
    assert PAGE.count("<svg") == 4  # two, for wide screens, and for phones
    assert "farthest apart in iteration 99, by 0.0099" in PAGE
    assert "There are no curves: it has no build" in page(showcase=Showcase(why_not="it has no build"))


def test_memory_and_time_are_there_or_the_reason_is():
    assert "the usual loop holds 4.0 KiB of gradients, the implementation 1.0 KiB: 25%." in PAGE
    assert "takes 1.10 times as long as the usual loop&#39;s (95 % interval 1.10 to 1.10, from 8 iterations" in PAGE
    less = page(showcase=Showcase(curves=CURVES, optimizer="SGD", why_not_measured="KeyError: 'x'"))
    assert "Memory and time could not be measured: KeyError: &#39;x&#39;" in less


def test_equal_curves_say_so():
    same = Curves(iterations=100, plain=CURVES.plain, in_backward=CURVES.plain)
    assert "No bit of any loss differs, in 100 iterations." in page(showcase=Showcase(curves=same, optimizer="SGD"))


def test_a_curve_that_ends_says_why():
    short = Curve(losses=CURVES.plain.losses[:3], stopped="KeyError: 'x'")
    ended = Curves(iterations=100, plain=CURVES.plain, in_backward=short)
    text = page(showcase=Showcase(curves=ended, optimizer="SGD"))
    assert "The implementation stopped after 3 iterations: KeyError: &#39;x&#39;" in text


@pytest.mark.parametrize(("loss", "name"), [(float("nan"), "nan"), (float("inf"), "inf")])
def test_a_loss_that_no_curve_shows_is_told(loss, name):
    gone = Curve(losses=(*CURVES.plain.losses[:60], *[loss] * 40))
    parted = Curves(iterations=100, plain=CURVES.plain, in_backward=gone, noise=CURVES.noise)
    text = page(showcase=Showcase(curves=parted, optimizer="SGD"))
    assert f"In iteration 60 the loss is {name}; in the usual loop it is 3.2. The curves cannot show 40 of 100" in text


def test_a_showcase_travels_as_plain_data():
    for showcase in (SHOWCASE, Showcase(why_not="no")):
        assert Showcase.from_plain(showcase.plain()) == showcase


def _luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_read(scheme):
    """WCAG 2.1: 4.5 for text (1.4.3), 3 for lines of a figure (1.4.11)."""
    light, dark = CSS.partition("@media (prefers-color-scheme: dark)")[::2]
    colours = dict(
        re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", light if scheme == "light" else dark.partition("* {")[0])
    )

    def contrast(a, b):
        high, low = sorted((_luminance(colours[a]), _luminance(colours[b])), reverse=True)
        return (high + 0.05) / (low + 0.05)

    verdicts = [name for name in colours if f"{name}-bg" in colours]
    assert len(verdicts) == 7
    texts = [(name, f"{name}-bg") for name in verdicts] + [(name, "paper") for name in verdicts]
    texts += [(ink, paper) for ink in ("ink", "ink-2", "link") for paper in ("paper", "raised")]
    lines = [(re.fullmatch(r"var\(--(.*)\)", v)[1], "paper") for v in VARIABLES.values() if "line" not in v]
    assert {pair: contrast(*pair) for pair in texts if contrast(*pair) < 4.5} == {}
    assert {pair: contrast(*pair) for pair in lines if contrast(*pair) < 3} == {}
