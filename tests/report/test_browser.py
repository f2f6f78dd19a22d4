"""The page in a real browser. Where there is none the tests skip, unless INBACKWARD_TEST_BROWSER names one."""

import os
import shutil

import pytest
from pages import SHOWCASE, everything, page
from playwright.sync_api import sync_playwright

NAMED = "INBACKWARD_TEST_BROWSER"


@pytest.fixture(scope="module")
def browser():
    named = os.environ.get(NAMED)
    known = [named] if named is not None else ["chromium", "chromium-browser", "google-chrome"]
    path = next(filter(None, map(shutil.which, known)), None)
    if path is None and named is None:
        pytest.skip(f"no Chromium or Chrome on the PATH: install one (apt-get install chromium), or name it by {NAMED}")
    assert path, f"{NAMED} names {named!r}, which is not there"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path)
        yield started
        started.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(showcase=SHOWCASE), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def opened(browser, file):
    """Open the page in a window of its own; what went wrong in it, and what it asked for, must be nothing."""
    windows, wrong, asked = [], [], []

    def open_(width=1100, **options):
        window = browser.new_page(viewport={"width": width, "height": 800}, **options)
        window.set_default_timeout(10_000)
        window.on("console", lambda message: wrong.append(message.text))
        window.on("pageerror", lambda error: wrong.append(str(error)))
        window.on("request", lambda request: asked.append(request.url))
        window.goto(file)
        windows.append(window)
        return window

    yield open_
    for window in windows:
        window.close()
    assert wrong == []
    assert asked == [file] * len(windows)


def shown(window):
    """The requirements of the rows that can be seen, from the top."""
    return [id for id in window.locator("#verdicts tbody tr:visible td:first-child .id").all_text_contents()]


def test_the_table_sorts(opened):
    window = opened()
    in_catalogue_order = shown(window)
    head = window.get_by_role("columnheader", name="tensors")
    counts = window.locator("#verdicts tbody td:nth-child(5)")
    head.get_by_role("button").click()
    up = [int(text.replace(",", "")) for text in counts.all_text_contents()]
    assert up == sorted(up)
    assert up[0] < up[-1]
    head.get_by_role("button").click()
    assert [int(text.replace(",", "")) for text in counts.all_text_contents()] == up[::-1]
    assert head.get_attribute("aria-sort") == "descending"
    window.get_by_role("button", name="requirement").click()
    assert shown(window) == sorted(in_catalogue_order)
    assert head.get_attribute("aria-sort") is None
    window.get_by_role("button", name="verdict").click()
    assert shown(window)[0] == "frozen"  # broken is the worst


def test_the_table_filters(opened):
    window = opened()
    everyone = shown(window)
    assert len(everyone) == 67
    window.get_by_label("Filter by verdict").select_option("not-equivalent")
    assert shown(window) == ["plain", "optimizers", "resume"]
    assert window.locator(".tools output").text_content() == "3 of 67 rows"
    window.get_by_label("Filter by family").select_option("checkpoint")
    assert shown(window) == ["resume"]
    window.get_by_label("Filter by text").fill("nothing like it")
    assert shown(window) == []
    window.get_by_label("Filter by text").fill("")
    window.get_by_label("Filter by verdict").select_option("")
    window.get_by_label("Filter by family").select_option("")
    assert shown(window) == everyone


def test_a_failure_opens(opened):
    window = opened()
    block = window.locator("#evidence-plain")
    assert not block.get_by_text("What happened").is_visible()
    block.locator("summary").click()
    assert block.get_by_text("What happened").is_visible()
    assert block.locator(".replay code").first.text_content() == "inbackward replay x mine:Mine"
    window.locator("#verdicts").get_by_role("link", name="resume", exact=True).click()
    assert window.locator("#evidence-resume").get_by_text("state-names").first.is_visible()


def test_a_replay_line_is_copied(opened):
    window = opened(permissions=["clipboard-read", "clipboard-write"])
    window.locator("#evidence-plain summary").click()
    window.locator("#evidence-plain .copy").click()
    window.locator("#evidence-plain .copy", has_text="Copied").wait_for()
    assert window.evaluate("navigator.clipboard.readText()") == "inbackward replay x mine:Mine"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overflows_a_phone(opened, scheme):
    window = opened(width=360, color_scheme=scheme)
    for summary in window.locator("summary").all():
        summary.click()
    assert window.evaluate("document.documentElement.scrollWidth") <= 360
    assert window.locator("svg.figure:visible").count() == 2
    assert window.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 27)"
    )


def test_hostile_text_does_nothing(opened):
    window = opened()
    window.locator("#evidence-frozen summary").click()
    assert window.evaluate("window.hacked") is None
    assert "</script><script>window.hacked = 1</script>" in window.locator("#evidence-frozen pre").first.text_content()
    assert window.evaluate("document.documentElement.scrollWidth") <= 1100


def test_without_scripts_it_is_a_plain_page(opened):
    window = opened(java_script_enabled=False)
    assert window.locator("#verdicts tbody tr:visible").count() == 67
    assert window.locator("button:visible, .tools:visible").count() == 0
    window.locator("#evidence-plain summary").click()
    assert window.locator("#evidence-plain").get_by_text("What happened").is_visible()


def test_paper_has_all_the_evidence(opened):
    window = opened(java_script_enabled=False)
    window.emulate_media(media="print")
    failures = [row for row in everything() if row.verdict.fails or row.stale]
    assert window.get_by_text("What happened").filter(visible=True).count() == len(failures)
