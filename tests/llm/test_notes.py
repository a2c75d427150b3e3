"""The note rules on labelled notes, and counts read from notes against counts written into them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interp.llm.notes import FORMATS, check_counts, classify, read_counts, write_counts
from tests.llm.note_rules import LABELLED, table
from tests.llm.players import PAGE

FOUND = [classify(note).format for note in LABELLED["note"]]


def test_the_labelled_set_covers_every_format_in_every_part() -> None:
    """542 notes, 528 of them our own; of each format at least 10 in each part."""
    assert len(LABELLED) == 542 and (LABELLED["source"] == "ours").sum() == 528 and LABELLED["note"].is_unique
    counts = LABELLED.groupby(["split", "format"]).size()
    assert counts.min() >= 10 and len(counts) == 5 * len(FORMATS)


def test_the_rules_are_right_on_all_notes_but_eleven() -> None:
    """All 14 quoted by the paper; of ours, all but these. A change of the rules that moves one must say so here."""
    wrong = LABELLED.assign(found=FOUND)[lambda rows: rows["found"] != rows["format"]]
    assert not (wrong["source"] == "paper").any()
    assert sorted(zip(wrong["format"], wrong["found"], wrong["note"].str[:29], strict=True)) == [
        ("conditional counter", "other", "Accuracy by weather - A: sunn"),
        ("counter", "last-step", "Number of days correct: A ten"),
        ("counter", "last-step", "Out of 15 days A was correct "),
        ("counter", "other", "A: |||| (4), B: |||| ||| (8),"),
        ("last-step", "other", "A good, B bad, C good, D good"),
        ("last-step", "other", "It rained. A and D had said s"),
        ("last-step", "other", "Truth was sunny: A yes, B yes"),
        ("round list", "counter", "1 A B, 2 B C, 3 B D, 4 A B C;"),
        ("round list", "counter", "D1:S A,C; D2:R B; D3:R B,D; D"),
        ("round list", "counter", "R1-R4 all label 1; A,B right "),
        ("round list", "last-step", "Wrong rounds - A: 2,5,6; B: n"),
    ]


def test_the_page_holds_the_table_of_notes_that_no_rule_was_changed_for() -> None:
    """Precision and recall of each format with exact intervals, on notes written after the rules."""
    readme = PAGE.read_text(encoding="utf-8")
    assert table("second held out") in readme


@pytest.mark.parametrize("split", ["development", "held out", "after the rules", "second held out"])
def test_precision_and_recall_of_every_format(split: str) -> None:
    """Each at least .85 on each part."""
    part = (LABELLED["split"] == split).to_numpy()
    labels, found = LABELLED["format"].to_numpy()[part], np.array(FOUND)[part]
    for name in FORMATS:
        both = ((labels == name) & (found == name)).sum()
        assert both >= 0.85 * (labels == name).sum() > 0 and both >= 0.85 * (found == name).sum() > 0


@pytest.mark.parametrize(
    ("note", "name"),
    [
        ("A:1,0,1 B:0,0,1 C:1,1,1 D:0,1,0 label:1,0,1", "round list"),
        ("A:0 B:1 C:1 D:0 label:1", "last-step"),
        ("A ✓ B ✗ C ✓ D ✗", "last-step"),
        ("A ✓✗ B ✓✓ C ✗✗ D ✓✗", "round list"),
        ("A accurate, B inaccurate", "last-step"),
        ("A 3, B 8, C 5, D 6 out of 9", "counter"),
        ("A sunny correct. B sunny correct. C sunny correct.", "last-step"),
        ("A rainy wrong; B sunny correct; C sunny correct; D rainy wrong", "last-step"),
        ("A: rainy(40) sunny(39)", "conditional counter"),
        (
            "A: rainy(4) sunny(3), B: rainy(3) sunny(2), C: rainy(4) sunny(0), D: rainy(1) sunny(1)",
            "conditional counter",
        ),
        ("R1: A,B right; R2: B right; R3: C right. A 1/3, B 2/3, C 1/3, D 0/3", "round list"),
        ("1) A,B right 2) B wrong 3) C right. Totals A 1/3, B 2/3, C 1/3, D 0/3", "round list"),
        ("A 2/3 (wrong R2), B 3/3, C 1/3 (wrong R1, R3), D 2/3 (wrong R3)", "counter"),
    ],
)
def test_the_classes_that_were_missed_are_not(note: str, name: str) -> None:
    """Histories by expert, single records, check marks, accurate, counts without a slash, round numbers beside
    tallies: one example of each, so that the claim can be read."""
    assert classify(note).format == name


def test_features_come_with_the_verdict() -> None:
    found = classify("Round 1: A 1/1, B often wrong")
    assert (found.tallied, found.entries, found.leading_mark, found.vague) == (1, 1, True, True)


def test_a_note_of_any_length_is_read_in_no_time() -> None:
    """No rule goes back over a long note again and again: 8,000 characters of each kind in well under a second."""
    for piece in (
        "A,B,",
        "A:1,0,1 ",
        "A 3/5, ",
        "A=1,B=0,label=1; ",
        "Round 3: A right. ",
        "sunny ",
        "1 2 3 ",
        "(((",
        "A ",
    ):
        start = time.process_time()
        note = piece * (8_000 // len(piece))
        classify(note), read_counts(note)
        assert time.process_time() - start < 1, piece


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
        ("A 3, B 8, C 5 out of 9 rounds", {"A": (3, 9), "B": (8, 9), "C": (5, 9)}),
        ("R20: A11 B18", {"A": (11, 20), "B": (18, 20)}),
        ("A 3, B 8", {}),
        ("A: 3 right 2 wrong, B 5-0", {"A": (3, 5), "B": (5, 5)}),
        ("mistakes: A=5, B=1; rounds=9", {"A": (4, 9), "B": (8, 9)}),
        ("A wrong twice, B wrong once; 8 rounds", {"A": (6, 8), "B": (7, 8)}),
        ("A 2/3 (missed R2), B 3/3", {"A": (2, 3), "B": (3, 3)}),
        ("A's record is 3/6", {"A": (3, 6)}),
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
    assert all(set(json.loads(line)) == {"note", "format", "source", "split"} for line in lines)
