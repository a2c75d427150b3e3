"""The page: what it holds, what it refuses, and that the same report gives the same bytes."""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from interp.results import figures
from interp.results.measure import Control, Measure
from interp.stats.intervals import Interval
from reports.attention import AttentionView, library_script
from reports.blocks import Code, Figure, Measures, Prose, Summary, Table, cell, format_number
from reports.page import Report, Section
from tests.refusals import refuses

LABELS = ("<w>", "e_1", "p?")


def view(title: str = "Layer 1") -> AttentionView:
    pattern = np.tril(np.full((1, 1, 2, 3, 3), 1 / 3))
    return AttentionView([pattern], LABELS, [("1.1", "1.2")], title)


def small_report(*views: AttentionView) -> Report:
    frame = pd.DataFrame({"max_error": [1e-15, 0.25], "exact": [True, False]})
    claim = Measure(
        "held", "It holds the votes", Interval(1, 1, 1), 0.5, controls={"chance": Control(0.1)}
    )
    line = figures.trajectories(np.eye(3), np.eye(3), ["a", "b", "c"], ylabel="weight")
    summary = [Measures([claim]), Summary({"n": 4}), Prose("One & two.\n\nThree **four**.")]
    errors = [Table(frame, "All of them."), Table(frame, collapsed=True), *views]
    weights = [Figure(line, "Weights over rounds", "A caption."), Figure(line, "Again")]
    sections = [
        Section("Summary", summary),
        Section("Errors", errors),
        Section("Weights", weights),
        Section("Reproduce", [Code("print('<script>')", "Python")]),
    ]
    settings = {"seed": 0, "versions": {"python": "3.11"}, "n_experts": 4}
    return Report("A <b>model</b>", "What `it` does.", sections, settings)


@cache
def page(n_views: int = 0) -> str:
    """A page with so many views of attention."""
    return small_report(*(view(f"Layer {i + 1}") for i in range(n_views))).html()


@pytest.mark.long
def test_same_report_same_bytes() -> None:
    """A page can be compared byte by byte: no dates, no random ids."""
    assert small_report(view()).html() == page(1)


def test_text_is_escaped_and_marked_up() -> None:
    """A title, a paragraph or code is text; only backticks and ** are markup."""
    html = page()
    assert "A &lt;b&gt;model&lt;/b&gt;" in html
    assert "print(&#39;&lt;script&gt;&#39;)" in html
    assert "One &amp; two.</p>" in html
    assert "<strong>four</strong>" in html
    assert "What <code>it</code> does." in html


def test_contents_link_to_every_section() -> None:
    """Every entry in the table of contents has its target."""
    html = page()
    for target in re.findall(r'href="#([^"]+)"', html[html.index("<nav") : html.index("</nav>")]):
        assert f'id="{target}"' in html


def test_ids_are_unique() -> None:
    """Figures drawn twice, and two views, share no id."""
    ids = re.findall(r'\bid="([^"]+)"', page(2))
    assert len(ids) == len(set(ids))


def test_library_once_and_only_when_needed() -> None:
    """circuitsvis' script is inlined once however many views there are, and not at all without one."""
    with_views, without = page(2), page()
    assert with_views.count('id="circuitsvis"') == 1
    assert 'id="circuitsvis"' not in without
    assert "Apache License 2.0" in with_views
    assert "Alan Cooney" in with_views
    assert "sourceMappingURL" not in with_views
    assert len(without) < 200_000
    assert len(with_views) < 700_000


def test_policy_names_exactly_the_scripts_of_the_page() -> None:
    """The content security policy forbids every request, and every script but those inlined, by hash."""
    html = page(1)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html).group(1)  # type: ignore[union-attr]
    scripts = [library_script(), *re.findall(r"<script>(.*?)</script>", html, flags=re.DOTALL)]
    digests = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    ]
    assert len(scripts) == 3
    allowed = " ".join(f"&#39;sha256-{digest}&#39;" for digest in digests)
    assert f"script-src {allowed};" in policy
    assert "default-src &#39;none&#39;" in policy
    assert "unsafe-eval" not in policy
    assert "http" not in policy


def test_nothing_is_loaded_from_elsewhere() -> None:
    """No element of the page points to another file or host."""
    html = page(1)
    assert not re.findall(r'(?:src|href|action)="(?!#|data:)[^"]*"', html)
    assert "@import" not in html
    assert "url(http" not in html


def test_two_sections_of_one_name_are_refused() -> None:
    """Otherwise their anchors would collide silently."""
    refuses(
        "two sections are both called 'regret'",
        Report("t", "l", [Section("Regret", []), Section("regret", [])]).html,
    )


def test_write_is_atomic_and_says_where(tmp_path: Path) -> None:
    """The path comes back; a folder that cannot be written is one sentence and leaves nothing."""
    written = small_report().write(tmp_path / "sub" / "page.html")
    assert written.read_text("utf-8") == page()
    assert [path.name for path in written.parent.iterdir()] == ["page.html"]
    (tmp_path / "file").write_text("")
    refuses("cannot write", small_report().write, tmp_path / "file" / "page.html")


def test_cells_read_as_a_reader_wants() -> None:
    """Absence is a dash, truth is a word, numbers have four digits, a format wins."""
    assert [cell(x) for x in (None, float("nan"), True, "a", (1, 2))] == [
        "–",
        "–",
        "yes",
        "a",
        "1, 2",
    ]
    assert cell(0.123456, ".1%") == "12.3%"
    assert cell(np.float32(0.5)) == "0.5"
    assert [format_number(x) for x in (1e-3, 999_999.0, 1e6, 2.5e-10, -4)] == [
        "0.001",
        "999,999",
        "1.0e6",
        "2.5e−10",
        "−4",
    ]


def test_format_for_a_column_that_is_not_there() -> None:
    """A misspelt column would otherwise silently keep the default format."""
    refuses(
        "unknown column 'eror'; did you mean 'error'",
        Table,
        pd.DataFrame({"error": [1.0]}),
        formats={"eror": ".2f"},
    )
