"""The bar and the colours: on terminals only, and never in the way of the report."""

import io

import pytest
from test_report_rows import ROWS

from inbackward.report import Screen
from inbackward.report.screen import BOLD, ERASE_LINE, GREEN, RED, RESET, YELLOW


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _an_ordinary_environment(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def printed(out, kinds, err=None):
    screen = Screen(out, err or io.StringIO())
    for kind in kinds:
        screen.row(ROWS[kind])
    return out.getvalue().splitlines()


def test_a_row():
    (line,) = printed(io.StringIO(), ["known defect"])
    assert line.split() == ["optimizers", "not-equivalent,", "expected", "1", "0.2"]


def test_the_table_lines_up():
    out = io.StringIO()
    screen = Screen(out, io.StringIO())
    screen.table()
    for row in ROWS.values():
        screen.row(row)
    assert len({len(line) for line in out.getvalue().strip().splitlines()}) == 1


@pytest.mark.parametrize(
    ("kind", "colour"),
    [
        ("equivalent", GREEN),
        ("refused", GREEN),
        ("not equivalent", RED),
        ("broken", RED),
        ("stale", RED),
        ("known defect", YELLOW),
        ("unsupported", YELLOW),
        ("not run", YELLOW),
    ],
)
def test_colours_say_whether_the_run_fails(kind, colour):
    (plain,) = printed(io.StringIO(), [kind])
    (coloured,) = printed(Terminal(), [kind])
    assert f" {colour}" in coloured
    assert coloured.replace(colour, "").replace(RESET, "") == plain


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colours_where_they_are_not_wanted(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert "\x1b" not in "".join(printed(Terminal(), ROWS))


def test_an_empty_no_color_means_nothing(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "")
    assert "\x1b" in "".join(printed(Terminal(), ROWS))


def test_the_bar():
    err = Terminal()
    screen = Screen(io.StringIO(), err)
    screen.running(1, 4, "plain")
    assert err.getvalue() == f"{ERASE_LINE}[######..................] 1/4 plain"
    screen.row(ROWS["equivalent"])
    assert err.getvalue().endswith(ERASE_LINE)


def test_no_bar_off_a_terminal():
    err = io.StringIO()
    screen = Screen(Terminal(), err)
    screen.running(1, 4, "plain")
    screen.erase()
    assert err.getvalue() == ""


def test_the_verdict_the_diagnosis_and_the_mend_stand_out_on_a_terminal():
    lines = ["plain: not-equivalent", "  in plain/x", "  It behaves exactly like a loop that", "  mend: read it"]
    out = Terminal()
    Screen(out, io.StringIO()).report(*lines)
    assert out.getvalue().splitlines() == [
        f"{RED}{lines[0]}{RESET}",
        lines[1],
        f"{BOLD}{lines[2]}{RESET}",
        f"{GREEN}{lines[3]}{RESET}",
    ]


def test_a_log_has_no_colours(monkeypatch):
    out = io.StringIO()
    Screen(out, io.StringIO()).report("plain: not-equivalent")
    monkeypatch.setenv("NO_COLOR", "1")
    Screen(terminal := Terminal(), io.StringIO()).report("plain: not-equivalent")
    assert out.getvalue() == terminal.getvalue() == "plain: not-equivalent\n"
