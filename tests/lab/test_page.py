"""docs/results/verdicts.md says what its tables say, and these are of the machines that there are."""

from dataclasses import astuple
from pathlib import Path

import pandas as pd
import pytest

from lab import known, resolution, tables
from lab.known import scores

DOCS = Path(__file__).parents[2] / "docs" / "results"
PAGE = " ".join((DOCS / "verdicts.md").read_text().split())


@pytest.fixture(scope="module")
def machines():
    return pd.read_csv(DOCS / "verdicts" / "machines-quick.csv", keep_default_na=False)


def test_the_table_has_every_known_machine_with_its_right_words(machines):
    """Of the gallery each was compared, and of those that are drawn some; the page counts them and their words."""
    rows = {(row.task, row.key): row for row in machines.itertuples()}
    n_listed = 0
    n_with_draws = 0
    for task in known.TASKS:
        gallery = known.gallery(task)
        n_listed += len(gallery)
        n_with_draws += len(known.gallery(task, tables.DRAWS))
        for key, specimen in gallery.items():
            row = rows[task, key]
            assert row.held_out == specimen.held_out, key
            for question in known.QUESTIONS:
                right = getattr(row, f"{question}_right")
                assert right == specimen.right.get(question, ""), (key, question)
    n_drawn = len(rows) - n_listed
    assert f"The {n_listed} machines and the {n_drawn} drawn ones were compared" in PAGE
    assert f"{n_with_draws - n_listed} more machines" in PAGE


def test_the_page_counts_right_and_undecided_words(machines):
    marks = machines[[f"{question}_mark" for question in scores.SCORED]].to_numpy()
    n_right = (marks == "right").sum()
    n_undecided = (marks == "undecided").sum()
    assert f"{n_right} answers and names were right, {n_undecided} undecided and none wrong" in PAGE


def test_marks_are_what_the_words_deserve(machines):
    for row in machines.to_dict("records"):
        for question in known.QUESTIONS:
            mark = row[f"{question}_mark"]
            right = row[f"{question}_right"]
            if mark:  # roles were not asked of every machine
                assert mark == scores.mark(row[question], right)
            elif question != "circuit":
                assert right in ("", "either")


def test_the_rules_err_as_the_page_says(machines):
    rules = pd.read_csv(DOCS / "verdicts" / "rules-quick.csv")
    pd.testing.assert_frame_equal(scores.rules(machines).round(3), rules, check_dtype=False)
    assert rules["wrong"].sum() == 0
    assert "wrong" not in set(machines["algorithm_mark"])
    assert "No answer and no name was wrong." in PAGE


@pytest.mark.parametrize("size", ["-quick", ""], ids=["quick", "full"])
def test_the_resolution_on_the_page_is_of_the_runs_that_ship(size):
    path = Path(resolution.__file__).with_name(f"resolution{size}.csv")
    rows = []
    for measured in resolution.resolutions(pd.read_csv(path)):
        if measured.half is not None:
            rows.append(astuple(measured))
    table = pd.read_csv(DOCS / "verdicts" / f"resolution{size}.csv").astype(object)
    on_page = table.where(table.notna(), None)
    assert list(on_page.itertuples(index=False, name=None)) == rows


@pytest.mark.parametrize(
    ("question", "ends"),
    [
        ("behaviour", ".586 to .593"),
        ("state", ".997"),
        ("update", ".996 to .997"),
        ("circuit", ".002 to .004"),
    ],
)
def test_seeds_agree_as_the_page_says(question, ends):
    table = pd.read_csv(DOCS / "verdicts" / "stability-quick.csv")
    runs = table[table["question"] == question]
    lowest = f"{runs.value.min():.3f}"[1:]
    highest = f"{runs.value.max():.3f}"[1:]
    assert ends in (lowest, f"{lowest} to {highest}")
    assert ends in PAGE
    assert len(runs) == 8
    assert runs.verdict.nunique() == 1
    assert runs.low.max() < runs.high.min()


@pytest.mark.parametrize(
    ("size", "begins"),
    [
        ("-quick", "At quick size, the intervals contain the true value"),
        ("", "At full size, the intervals contain the true value"),
    ],
    ids=["quick", "full"],
)
def test_intervals_cover_as_the_page_says(size, begins):
    table = pd.read_csv(DOCS / "verdicts" / f"deciding{size}.csv")
    low = table.coverage.min().round(2)
    high = table.coverage.max().round(2)
    n = table["comparisons"].unique().item()
    low_on_page = f"{low:.2f}".replace("0.", ".")
    assert f"{begins} in {low_on_page} to {high:.1f} of {n} comparisons" in PAGE
    assert low >= 0.92
    assert (table["coverage, upper end"] >= 0.95).all()


def test_maps_of_more_episodes_may_score_more_as_the_page_says():
    table = pd.read_csv(DOCS / "verdicts" / "deciding-quick.csv")
    n_few = (table["intervals that contain it"] < 0.6).sum()
    assert f"for {n_few} of the {len(table)} numbers" in PAGE
