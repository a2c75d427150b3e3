"""docs/results/verdicts.md says what its tables say, and these are of the machines that there are."""

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
    marks = [mark for one in scores.SCORED for mark in machines[f"{one}_mark"]]
    right, undecided = marks.count("right"), marks.count("undecided")
    kept = {(task, key): one for task in known.TASKS for key, one in known.gallery(task).items()}
    drawn = sum(len(known.gallery(task, tables.DRAWS)) for task in known.TASKS) - len(kept)
    assert (
        f"The {len(kept)} machines and the {len(rows) - len(kept)} drawn ones were compared" in PAGE
    )
    assert f"{drawn} more machines" in PAGE
    assert f"{right} answers and names were right, {undecided} undecided and none wrong" in PAGE
    for at, one in kept.items():
        assert rows[at].held_out == one.held_out, at
        for question in known.QUESTIONS:
            assert getattr(rows[at], f"{question}_right") == one.right.get(question, ""), (
                at,
                question,
            )


def test_marks_are_what_the_words_deserve(machines):
    for row in machines.to_dict("records"):
        for question in known.QUESTIONS:
            if row[f"{question}_mark"]:  # roles were not asked of every machine
                assert row[f"{question}_mark"] == scores.mark(
                    row[question], row[f"{question}_right"]
                )
            elif question != "circuit":
                assert row[f"{question}_right"] in ("", "either")


def test_the_rules_err_as_the_page_says(machines):
    told = pd.read_csv(DOCS / "verdicts" / "rules-quick.csv")
    pd.testing.assert_frame_equal(scores.rules(machines).round(3), told, check_dtype=False)
    assert told["wrong"].sum() == 0 and not (machines["algorithm_mark"] == "wrong").any()
    assert "No answer and no name was wrong." in PAGE


@pytest.mark.parametrize("size", ["-quick", ""])
def test_the_resolution_on_the_page_is_of_the_runs_that_ship(size):
    found = resolution.resolutions(
        pd.read_csv(Path(resolution.__file__).with_name(f"resolution{size}.csv"))
    )
    told = pd.read_csv(DOCS / "verdicts" / f"resolution{size}.csv")
    rows = [(r.deviation, r.question, r.half, r.most, r.runs) for r in found if r.half is not None]
    assert (
        list(told.astype(object).where(told.notna(), None).itertuples(index=False, name=None))
        == rows
    )


def test_seeds_agree_as_the_page_says():
    told = pd.read_csv(DOCS / "verdicts" / "stability-quick.csv")
    said = {
        "behaviour": ".586 to .593",
        "state": ".997",
        "update": ".996 to .997",
        "circuit": ".002 to .004",
    }
    for question, of_one in told.groupby("question"):
        ends = [f"{end:.3f}"[1:] for end in (of_one.value.min(), of_one.value.max())]
        assert " to ".join(dict.fromkeys(ends)) == said[question] and said[question] in PAGE
        assert len(of_one) == 8 and of_one.verdict.nunique() == 1
        assert of_one.low.max() < of_one.high.min()


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ("-quick", "At quick size, the intervals contain this value"),
        ("", "At full size, the intervals contain the value"),
    ],
)
def test_intervals_cover_as_the_page_says(size, said):
    told = pd.read_csv(DOCS / "verdicts" / f"deciding{size}.csv")
    low, high, n = (
        told.coverage.min().round(2),
        told.coverage.max().round(2),
        told.n.unique().item(),
    )
    assert f"{said} in {low:.2f}".replace("0.", ".") + f" to {high:.1f} of {n} comparisons" in PAGE
    assert low >= 0.92 and (told.high >= 0.95).all()


def test_maps_of_more_episodes_may_score_more_as_the_page_says():
    told = pd.read_csv(DOCS / "verdicts" / "deciding-quick.csv")
    few = told[told.of_large < 0.6]
    assert f"for {len(few)} of the {len(told)} numbers" in PAGE
