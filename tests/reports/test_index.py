"""A folder of reports: no report overwrites another model's, and one page lists them all."""

import base64
import io
import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from PIL import Image

import interp
from interp.model.checkpoints import save_checkpoint
from interp.results.measure import Measure
from interp.stats.intervals import Interval
from interp.tasks.experts.layout import ExpertRound
from reports.blocks import Figure, Prose
from reports.build import write
from reports.page import INDEX, Report, Section, write_index, write_with_index
from reports.part import Part
from reports.parts import overview
from tests.reports.conftest import SMALL, tiny

SAID = [Measure(str(n), "A claim", Interval(n, n, n), 0.5, needs_control=False) for n in (1, 0, 0)]
ONE = Part(
    "one",
    "One",
    lambda context: None,
    lambda made, context: Section("One", [Prose("A.")]),
    summary=lambda *_: SAID,
)
SLOW = Part(
    "slow", "Slow", lambda context: 1 / 0, lambda made, context: Section("Slow", []), slow=True
)


def pages(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.html")}


def test_two_folders_of_one_name_give_two_pages(tmp_path: Path) -> None:
    """Checkpoints are told apart by their weights, wherever they lie; the same weights give the same page."""
    model = tiny(ExpertRound(2))
    save_checkpoint(model, tmp_path / "a" / "model")
    with torch.no_grad():
        model.pos_embed.W_pos += 1
    save_checkpoint(model, tmp_path / "b" / "model")
    for run in ("a", "b", "a"):
        write(str(tmp_path / run / "model"), tmp_path / "out", **SMALL, parts=(ONE,))
    assert len(pages(tmp_path / "out") - {INDEX}) == 2
    assert all(
        re.fullmatch(r"model-[0-9a-f]{8}\.html|index\.html", name)
        for name in pages(tmp_path / "out")
    )


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "wma-handwired.html"),
        ({"arguments": {"n_experts": 2}}, "wma-handwired-experts-2.html"),
        ({"regime": "flat"}, "wma-handwired-flat.html"),
        ({"arguments": {"log_gamma": 0.5}}, "wma-handwired-[0-9a-f]{8}.html"),
    ],
)
def test_what_a_model_was_given_is_in_the_name(
    given: dict[str, Any], name: str, tmp_path: Path
) -> None:
    """A report at another size, in another regime, or of a circuit built otherwise does not overwrite the plain one."""
    model = interp.load("wma-handwired", **given.get("arguments", {}))
    written = write(
        model, tmp_path, n_episodes=5, n_rounds=10, parts=(ONE,), source="wma-handwired", **given
    )
    assert re.fullmatch(name, written.path.name)


def test_a_quick_report_leaves_slow_parts_out_and_says_so(tmp_path: Path) -> None:
    """And it has a page of its own, beside the full one."""
    parts = (overview.part(), ONE, SLOW)
    written = write("wma-handwired", tmp_path, n_episodes=5, n_rounds=10, parts=parts, quick=True)
    assert written.path.name == "wma-handwired-quick.html"
    assert not written.failures
    assert "fewer episodes and rounds, and without “Slow”" in written.path.read_text("utf-8")


def test_the_index_lists_what_lies_there(tmp_path: Path) -> None:
    """Every report with how its claims came out, comparisons among them; a page links back to the list."""
    write("wma-handwired", tmp_path, **SMALL, parts=(overview.part(), ONE))
    comparison = tmp_path / "comparisons" / "one-against-another" / "comparison.html"
    write_with_index(
        Report("One against another", "Same?", [], about={"kind": "comparison", "words": "4 yes"}),
        comparison,
    )
    for kind, place in (
        ("audit", "audits/one/one.html"),
        ("llm", "llm/llm.html"),
        ("learned", "a.html"),
        ("learned", "b.html"),
        ("comparison", "comparisons/a/comparison.html"),
        ("comparison", "comparisons/b/comparison.html"),
    ):
        Report("Named alike", "", [], about={"kind": kind}).write(tmp_path / place)
    drawn, axes = plt.subplots()
    axes.set_title("costs $5, \ud800$")
    Report("Drawn", "", [], about={"kind": "llm"}, hero=[Figure(drawn, "A", "A.")]).write(
        tmp_path / "drawn.html"
    )
    elsewhere = Report("Alone", "Same?", [], about={"kind": "comparison"})
    assert write_with_index(elsewhere, tmp_path / "far" / "x" / "y" / "comparison.html")
    assert not (tmp_path / "far" / INDEX).exists()
    (tmp_path / "foreign.html").write_text("<title>Not a report</title>")
    html = write_index(tmp_path).read_text("utf-8")
    for link, title, verdicts in (
        ("wma-handwired.html", "Weighted Majority, wired by hand", "1 yes, 2 no"),
        ("comparisons/one-against-another/comparison.html", "One against another", "4 yes"),
    ):
        assert f'<a href="{link}">{title}</a>' in html or f'<a href="{link}">wma-handwired' in html
        assert verdicts in html
    assert "Not a report" not in html
    assert "Wired by hand" in html
    assert "Compared" in html
    listed = re.findall(r'<h3><a href="(.*?)">(.*?)</a>', html)
    assert len({title for _, title in listed}) == len(listed) == 9, "no two entries have one title"
    pictures = re.findall(
        r'<img src="data:image/png;base64,([\w+/=]+)" alt="" loading="lazy">\n*<div>\n*<h3>(.*?)</h3>',
        html,
    )
    assert [title for _, title in pictures] == ['<a href="drawn.html">Drawn</a>'], (
        "a page's first figure is its picture"
    )
    assert Image.open(io.BytesIO(base64.b64decode(pictures[0][0]))).width == 260
    assert {"audits/one/one.html", "llm/llm.html"} <= {where for where, _ in listed}
    assert '<a href="../../index.html">All reports</a>' in comparison.read_text("utf-8")
    assert '<a href="index.html">All reports</a>' in (tmp_path / "wma-handwired.html").read_text(
        "utf-8"
    )
