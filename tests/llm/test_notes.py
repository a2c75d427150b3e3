"""The note rules on labelled notes, and counts read from notes against counts written into them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interp.llm.notes import FORMATS, check_counts, classify, read_counts, write_counts

LABELLED = pd.read_json(Path(__file__).with_name("notes.jsonl"), lines=True, dtype=False)


def test_the_labelled_set_covers_every_format() -> None:
    counts = LABELLED.groupby(["source", "format"]).size()
    assert (counts["ours"] == 10).all() and set(counts["ours"].index) == set(FORMATS)
    assert counts["paper"].sum() == 14


def test_the_rules_are_right_on_the_papers_notes_and_on_most_of_ours() -> None:
    """All 14 quoted by the paper; of 50 more, labelled by meaning before the rules saw them, the 43 that the module's
    text claims. The rules are not tuned on this set: a change that moves a cell must say so here."""
    found = LABELLED.assign(found=[classify(note).format for note in LABELLED["note"]])
    right = (found["found"] == found["format"]).groupby(found["source"]).sum()
    assert right["paper"] == 14 and right["ours"] == 43
    confusion = pd.crosstab(found["format"], found["found"]).reindex(index=FORMATS, columns=FORMATS, fill_value=0)
    assert np.array_equal(
        confusion,
        [
            [15, 0, 0, 1, 1],  # counter: "4 of 7" (last-step), "A 3, B 8 ... out of 9 rounds" (other)
            [0, 12, 0, 0, 1],  # round list: "1) 1010->1 2) ..."
            [3, 0, 8, 0, 0],  # conditional counter: the outcome named once for several fractions
            [0, 0, 0, 12, 1],  # last-step: says who said what, not who was right
            [0, 0, 0, 0, 10],
        ],
    ), confusion


def test_features_come_with_the_verdict() -> None:
    found = classify("Round 1: A 1/1, B often wrong")
    assert (found.fractions, found.round_marks, found.leading_mark, found.frequency_word) == (1, 1, True, True)


@given(st.lists(st.integers(0, 60), min_size=2, max_size=8))
def test_what_the_counter_writes_is_read_back(correct: list[int]) -> None:
    rounds = 60
    note = write_counts(correct, rounds)
    counts = read_counts(note, len(correct))
    assert [counts[letter] for letter in sorted(counts)] == [(hits, rounds) for hits in correct]
    assert classify(note).format == "counter"


@pytest.mark.parametrize(
    ("note", "counts"),
    [
        ("A 1/4; B 3/4", {"A": (1, 4), "B": (3, 4)}),
        ("Expert_A: 3 of 5, Expert B: 5 out of 5", {"A": (3, 5), "B": (5, 5)}),
        ("B,C and D correct 2/2; A wrong 2/2", {"A": (0, 2), "B": (2, 2), "C": (2, 2), "D": (2, 2)}),
        ("A: sunny 22/39, rainy 18/61; B: sunny 1/2, rainy 0/1", {"A": (40, 100), "B": (1, 3)}),
        ("accuracy A 50% (5/10)", {"A": (5, 10)}),
        ("A 3/2, B 0/0, C on 12/05/2024", {}),
        ("A correct; B wrong", {}),
        ("Z 1/2", {}),
        ("", {}),
    ],
)
def test_counts_in_other_forms(note: str, counts: dict[str, tuple[int, int]]) -> None:
    assert read_counts(note) == counts


def test_counts_are_checked_against_the_truth() -> None:
    truth = np.array([45, 94, 69, 77])
    right = check_counts("A:45/100, B:94/100, C:69/100, D:77/100", truth, 100)
    assert right.readable and right.exact and right.mean_error == 0 and right.best and right.worst
    off = check_counts("A:45/100, B:60/100, C:69/100, D:77/100", truth, 100)
    assert off.readable and not off.exact and off.mean_error == 34 / 4 and off.best is False and off.worst
    assert not check_counts("A:45/99, B:94/99, C:69/99, D:77/99", truth, 100).exact, "wrong number of rounds"
    part = check_counts("B:94/100", truth, 100)
    assert not part.readable and part.best is None and part.mean_error == 0
    assert check_counts("A:1/2, B:1/2, C:1/2, D:1/2", np.array([1, 2, 1, 1]), 2).best is None, "a tie names nobody"


def test_json_lines_are_one_note_each() -> None:
    lines = Path(__file__).with_name("notes.jsonl").read_text(encoding="utf-8").splitlines()
    assert all(set(json.loads(line)) == {"note", "format", "source"} for line in lines)
