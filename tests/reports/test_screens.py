"""The page on a phone, a tablet and a desk, in both themes, on paper, under a strict server, to a screen reader."""

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

from reports.blocks import Prose
from reports.page import Report, Section, write_index
from tests.reports.browser import STRICT, Browser
from tests.reports.conftest import KINDS, fewer, written

UNFOLD = "document.querySelectorAll('details').forEach((details) => { details.open = true; })"
TINY_TEXT = """(() => { const small = {};
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.getClientRects().length || element.closest('script, style, title')) continue;
    const svg = element.closest('svg'), size = parseFloat(getComputedStyle(element).fontSize);
    const shown = svg ? size * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : size;
    if (shown < 9) small[element.textContent.trim()] = shown;
  } return small; })()"""
OVERFLOW = "document.documentElement.scrollWidth - innerWidth"
OVERLAPS = """(() => { const found = [];
  for (const svg of document.querySelectorAll('figure svg')) {
    const texts = [...svg.querySelectorAll('text')].filter((text) => text.textContent.trim());
    const boxes = texts.map((text) => text.getBoundingClientRect());
    boxes.forEach((a, i) => boxes.slice(0, i).forEach((b, j) => {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 2 && high > 0.4 * Math.min(a.height, b.height)) found.push([i, j].map((k) => texts[k].textContent));
    }));
  } return found; })()"""
UNHINTED = """[...document.querySelectorAll('body *')].filter((box) => {
  const scrolls = ['auto', 'scroll', 'hidden'].includes(getComputedStyle(box).overflowX), seen = box.checkVisibility();
  const hinted = box.closest('.scroll, .view, pre, svg, select, .unseen');
  return seen && scrolls && !hinted && box.clientWidth > 1 && box.scrollWidth > box.clientWidth + 1;
}).map((box) => box.outerHTML.slice(0, 120))"""
"""What scrolls sideways without a shadow (boxes), a line that says so (attention) or being code."""


def violations(browser: Browser) -> list[str]:
    """What axe finds, with the first element of each."""
    problems = Axe().run(browser.page).response["violations"]
    return [f"{problem['id']}: {problem['nodes'][0]['html'][:200]}" for problem in problems]


@pytest.mark.parametrize("width", [360, 1024, 1440])
def test_nothing_sticks_out(browser: Browser, small_page: Path, width: int) -> None:
    """Tables and figures scroll in their boxes: the page is never wider than the window, and no text is tiny."""
    browser.open(small_page, width=width)
    browser.evaluate(UNFOLD)
    assert browser.evaluate(OVERFLOW) <= 0
    assert browser.evaluate(TINY_TEXT) == {}


def test_long_names_of_files_are_broken_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    """A name without a space, in the title, the text and the settings, is broken where the window ends."""
    name = "experiment_2_of_two_armed_reversals_all_participants_and_sessions_as_recorded.csv"
    section = Section("What was read", [Prose(f"Read from {name}.")])
    page = Report(f"Choices in {name}", name, [section], {"file": name}, sentence=name)
    browser.open(page.write(tmp_path / "page.html"), width=390)
    assert browser.evaluate(OVERFLOW) <= 0
    wide = "[...document.querySelectorAll('main *')].filter((one) => one.scrollWidth > innerWidth)"
    assert browser.evaluate(f"{wide}.map((one) => one.tagName)") == []


@pytest.mark.long
def test_a_report_on_a_phone(browser: Browser, pages: dict[str, Path]) -> None:
    """A whole report: no sideways scrolling, nothing tiny, and nothing that axe objects to."""
    browser.open(pages["qlearning-learned"], width=390, dark=True)
    assert browser.evaluate(OVERFLOW) <= 0
    assert browser.evaluate(TINY_TEXT) == {}
    assert violations(browser) == []


def faults(browser: Browser) -> dict[str, object]:
    """What is wrong with the page as it is, by what was looked at; nothing where all is well."""
    problems = {
        "sticks out": max(0, browser.evaluate(OVERFLOW)),
        "overlap": browser.evaluate(OVERLAPS),
    }
    problems |= {
        "scrolls unhinted": browser.evaluate(UNHINTED),
        "tiny": browser.evaluate(TINY_TEXT),
    }
    return {
        what: fault for what, fault in {**problems, "axe": violations(browser)}.items() if fault
    }


@pytest.mark.slow(reason="a page of each kind at three widths in two themes: a minute of one core")
@pytest.mark.parametrize(
    "kind",
    ["wma-handwired", "wma-learned-additive", "qlearning-handwired", "qlearning-learned", "index"],
)
def test_every_kind_of_page(
    browser: Browser,
    pages: dict[str, Path],
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No label over another, no sideways scroll without a hint, nothing that axe objects to."""
    fewer(monkeypatch)
    whole = pages[kind] if kind in KINDS else pages["wma-learned-additive"].with_name("index.html")
    page = written(kind, tmp_path) if KINDS.get(kind) else whole
    for width in (390, 1024, 1440):
        for dark in (False, True):
            browser.open(page, width=width, dark=dark)
            browser.evaluate(
                "document.querySelectorAll('details.section').forEach((fold) => { fold.open = true; })"
            )
            assert faults(browser) == {}, (width, dark)


def test_the_list_shows_one_task(browser: Browser, tmp_path: Path) -> None:
    """What is of others, and sections without one of its own, are out of sight; no script, and by the keyboard."""
    for path, kind, task in (
        ("a", "learned", "search"),
        ("b", "learned", "advice"),
        ("audits/c/c", "audit", "advice"),
    ):
        Report(path[-1], "", [], about={"kind": kind, "task": task}).write(
            tmp_path / f"{path}.html"
        )
    browser.open(write_index(tmp_path))
    seen = "[...document.querySelectorAll('main h2, h3')].filter((e) => e.checkVisibility()).map((e) => e.innerText)"
    assert browser.evaluate(seen) == ["Learned", "a", "b", "Audited", "c"]
    for shown in (["Learned", "b", "Audited", "c"], ["Learned", "a"]):
        browser.page.press("input[name=task]:checked", "ArrowRight")
        assert browser.evaluate(seen) == shown
    assert violations(browser) == []


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing(browser: Browser, small_page: Path, dark: bool) -> None:
    """Every block, every fold open and the attention drawn, in both themes."""
    browser.open(small_page, dark=dark)
    browser.evaluate(UNFOLD)
    browser.wait("document.querySelectorAll('.view canvas[aria-label]').length >= 8")
    assert violations(browser) == []


def test_the_first_screen_holds_the_measures(browser: Browser, small_page: Path) -> None:
    """The sentence, and a row a claim: its number among controls, its word, a link to where it is shown."""
    browser.open(small_page, width=1440, height=900)
    plot, rows = (
        "document.querySelector('figure.intervals table')",
        "[...{}.querySelectorAll('tbody tr')]",
    )
    assert browser.evaluate(f"{plot}.getBoundingClientRect().bottom") < 900
    assert (
        browser.evaluate("document.querySelector('.sentence').innerText") == "It does what it does."
    )
    words = ["yes", "no", "undecided", "not applicable", "yes"]
    badges = browser.evaluate(
        f"{rows.format(plot)}.map((row) => row.querySelector('.badge').innerText)"
    )
    assert badges == words
    track = browser.evaluate(f"{plot}.querySelector('.track').getAttribute('aria-label')")
    assert track == "0.50 [0.40, 0.60] R2; at least 0.3; chance: 0.1"
    evidence = "document.querySelector('figure.intervals details.table')"
    assert browser.evaluate(f"{evidence}.open") is False
    browser.evaluate(f"{evidence}.open = true")
    cells = browser.evaluate(f"{rows.format(evidence)}.map((row) => row.innerText.split('\\t'))")
    assert [row[:2] for row in cells] == [["Claim", "0.50 [0.40, 0.60]"]] * 5
    assert [word in row for word, row in zip(words, cells, strict=True)] == [True] * 5
    browser.page.click("figure.intervals a[href='#weights']")
    assert browser.evaluate("location.hash") == "#weights"


def test_contents_mark_the_section_that_is_read(browser: Browser, small_page: Path) -> None:
    """Beside a wide page; else they are folded into one line that stays in sight and names it; a choice opens it."""
    for width in (1440, 390):
        browser.open(small_page, width=width, height=500)
        marked = "document.querySelector('nav.contents a[aria-current]').hash"
        assert browser.evaluate(marked) == "#what-was-found"
        assert browser.evaluate("document.querySelector('#missing details').open") is False
        if width < 1440:
            assert (
                browser.evaluate("document.querySelector('h1').getBoundingClientRect().top") < 100
            )
            browser.page.click("nav.contents summary")
        browser.page.click("nav.contents a[href='#missing']")
        assert browser.evaluate("document.querySelector('#missing details').open") is True
        browser.evaluate(
            "document.querySelectorAll('details.section').forEach((fold) => { fold.open = true; })"
        )
        # Views that are drawn late move what is below them: scroll until the page stands still.
        named_here = (
            "document.querySelector('nav.contents summary > span').textContent === 'Missing'"
        )
        scroll = "document.getElementById('missing').scrollIntoView()"
        browser.wait(f"({scroll}, {marked} === '#missing' && {named_here})")
        line = "document.querySelector('nav.contents summary').getBoundingClientRect()"
        assert browser.evaluate(f"{line}.top") >= 0
        assert browser.evaluate(f"{line}.right") <= width
        named = browser.page.locator("nav.contents summary > span")
        assert named.text_content() == "Missing"
        assert named.is_visible() == (width < 1440)


def test_a_folded_page_says_what_its_sections_say(browser: Browser, small_page: Path) -> None:
    """Beside each title its words and the first sentence of its first caption; a link into a fold opens it."""
    browser.open(small_page)
    assert browser.evaluate(
        "document.querySelector('#weights summary').innerText.split('\\n')"
    ) == [
        "Weights 2 yes no undecided not applicable",
        "Text.",
    ]
    browser.evaluate("document.querySelector('a[href=\"#table-4\"]').click()")
    assert browser.evaluate("document.getElementById('table-4').checkVisibility()")
    browser.page.click("nav.contents button")
    assert browser.evaluate("document.querySelectorAll('details.section:not([open])').length") == 0


def test_print_opens_every_fold(browser: Browser, small_page: Path) -> None:
    """On paper nothing can be opened or scrolled: folds are open, boxes show all that they hold, no link to click."""
    browser.open(small_page)
    assert (
        browser.evaluate("document.querySelector('details.table table').checkVisibility()") is False
    )
    browser.page.emulate_media(media="print")
    tables = "[...document.querySelectorAll('details.table table')]"
    assert browser.evaluate(f"{tables}.map((table) => table.checkVisibility())") == [True, True]
    assert browser.evaluate(f"{tables}.every((table) => table.getBoundingClientRect().height > 50)")
    assert (
        browser.evaluate(
            "getComputedStyle(document.querySelector('details.table .scroll')).maxHeight"
        )
        == "none"
    )
    assert not browser.evaluate("document.querySelector('.csv').checkVisibility()")


def test_a_strict_server(browser: Browser, small_page: Path) -> None:
    """Under the policy of a careful server the page draws, gives its tables as CSV, and complains of nothing."""
    browser.open(small_page, policy=STRICT)
    browser.wait("document.querySelectorAll('.view canvas').length > 0")
    browser.page.click("nav.contents button")
    with browser.page.expect_download() as download:
        browser.page.click("#table-2 .csv")
    assert download.value.suggested_filename == "table-2.csv"
    assert (
        download.value.path().read_text()
        == "name,score,low,high\na,-1e-09,-0.1,0.1\nb,0.5,0.4,0.6\n"
    )
    assert (
        browser.evaluate("document.querySelector('#table-2 tbody').innerText").split("\n")[0]
        == "a\t0.00 [−0.10, 0.10]"
    )
    assert browser.complaints() == []
