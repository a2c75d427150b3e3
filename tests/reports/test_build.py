"""The whole report, built small: what it holds, what it refuses, and that a browser shows it offline."""

import re
import tomllib
from html import unescape
from pathlib import Path

import pytest

import interp
from interp import tasks
from reports.build import write
from reports.parts import overview
from tests.refusals import refuses
from tests.reports.conftest import SMALL, fewer, written

SECTIONS = tomllib.loads(Path(__file__).with_name("sections.toml").read_text())


def titles(html: str) -> list[str]:
    return [unescape(title) for title in re.findall(r"<h2>(.*?)</h2>", html)]


def section(html: str, title: str) -> str:
    """One section's markup."""
    start = html.index(f"<h2>{title}</h2>")
    return html[start : html.index("<h2>", start + 4)]


def rows(html: str, first: str) -> list[list[str]]:
    """The cells of the table rows that begin with ``first``."""
    rows_of_cells = (
        re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)
        for row in re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    )
    return [
        [unescape(cell.strip()) for cell in cells]
        for cells in rows_of_cells
        if cells and cells[0].strip() == first
    ]


def assert_carried_exactly(html: str, *variables: str) -> None:
    """Every place of every variable has the whole effect, every control none."""
    carried = section(html, "Interchange interventions")
    for variable in variables:
        for cells in rows(carried, variable):
            accuracy, score, slope, nothing = cells[3:7]
            assert nothing == "0.000", cells
            if "(control)" in cells[1]:
                assert accuracy.startswith("0.00 [0.00, "), cells
            else:
                assert accuracy.startswith("1.00 ["), cells
                assert accuracy.endswith(", 1.00]"), cells
                assert score == slope == "1.000 [1.000, 1.000]", cells


@pytest.mark.long
def test_report_holds_what_it_promises(pages: dict[str, Path]) -> None:
    """Issue 2: summary, verification, weights, regret, probes, patching, attention, circuit, how to reproduce."""
    html = pages["wma-handwired"].read_text("utf-8")
    assert pages["wma-handwired"].name == "wma-handwired.html"
    assert titles(html) == SECTIONS["wma-handwired"]
    assert html.count('<details class="attention"') == 1
    assert 'class="badge fail">fail' not in html
    assert "interp report wma-handwired --episodes 8 --rounds 10 --seed 0" in html
    assert 6e5 < len(html) < 1.5e6


@pytest.mark.long
def test_qlearning_report(pages: dict[str, Path]) -> None:
    """Issue 3: the table of errors, what is exact at its place."""
    html = pages["qlearning-handwired"].read_text("utf-8")
    assert titles(html) == SECTIONS["qlearning-handwired"]
    assert 'class="badge fail">fail' not in html
    assert 'class="badge fail">differs' not in html
    variables = (
        "table",
        "column",
        "state",
        "next state",
        "current value",
        "next values",
        "maximum",
        "choice",
    )
    assert_carried_exactly(html, *variables, "reward", "next column", "change")


@pytest.mark.long
def test_same_seed_same_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn at random is reproducible to the byte: probes, steering and trained subspaces."""
    fewer(monkeypatch)
    drawn = ("steering", "probes", "interchange")
    pages = [written("qlearning-learned", tmp_path / side, drawn) for side in "ab"]
    first_page, again = (page.read_text("utf-8").replace(str(page.parent), "OUT") for page in pages)
    assert first_page == again
    assert len(titles(first_page)) == len(drawn) + 1


@pytest.mark.long
def test_causal_sections_of_a_handwired_model(pages: dict[str, Path]) -> None:
    """Issue 7: every variable at its own place is exact, controls at 0, the circuit found is the wired path of z."""
    html = pages["wma-handwired"].read_text("utf-8")
    assert_carried_exactly(
        html, "log weights", "votes", "label", "match", "prediction", "next log weights"
    )
    assert "After steering, model and algorithm differ by 0.000;" in section(html, "Steering")
    assert rows(section(html, "Circuits of edges"), "edges")[0][1].startswith("3 of ")


@pytest.mark.long
@pytest.mark.parametrize("name", ["wma-learned-additive", "qlearning-learned"])
def test_learned_model_from_a_checkpoint(name: str, pages: dict[str, Path]) -> None:
    """A checkpoint gets the same report without the check against the algorithm that it was never told to run."""
    page = pages[name]
    html = page.read_text("utf-8")
    assert re.fullmatch(r"tiny-[0-9a-f]{8}\.html", page.name)
    assert titles(html) == SECTIONS[name]
    assert f"interp report {page.parent / name / 'tiny'} --episodes 8" in html
    carried = section(html, "Interchange interventions")
    assert "was not learned: " in carried
    assert "informative" in carried  # so few episodes cannot show a subspace


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("wma-handwird", {}, "did you mean 'wma-handwired'"),
        ("wma-handwired", {"n_episodes": 4}, "at least 5 episodes, got 4"),
        ("wma-handwired", {"n_rounds": 3}, "at least 10 rounds an episode, got 3"),
    ],
)
def test_bad_input(name: str, options: dict[str, int], message: str, tmp_path: Path) -> None:
    """One sentence, before any work, and nothing written."""
    refuses(message, write, name, tmp_path, **{**SMALL, **options})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Said before a minute of work, not after it."""
    (tmp_path / "file").write_text("")
    refuses(r"cannot write .*choose a folder", write, "wma-handwired", tmp_path / "file", **SMALL)


def test_reports_held_against_two_algorithms_are_two_pages_with_every_digit(tmp_path: Path) -> None:
    """The command that a page names would otherwise make another one."""
    model = interp.load("wma-handwired", n_experts=2)
    pages = []
    for gain in (0.123456, 0.5):
        algorithm = tasks.get("experts").algorithm("weighted_majority", gain=gain)
        with tasks.using(algorithm=algorithm):
            report = write(model, tmp_path, parts=[overview.REPRODUCE], source="wma-handwired")
        pages.append(report.path)
        assert f"--hypothesis weighted_majority gain={gain}" in report.path.read_text("utf-8")
    assert pages[0] != pages[1]
