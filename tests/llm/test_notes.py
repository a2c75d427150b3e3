"""Counts read from notes against counts written into them, and against what happened."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.llm.notes import check_counts, read_counts, write_counts
from tests.cases import cases

FORMS = json.loads(Path(__file__).with_name("forms.json").read_text("utf-8"))
"""Notes, with the counts that are read in them."""


def test_a_note_of_any_length_is_read_in_no_time() -> None:
    """No rule goes back over a long note again and again: 8,000 characters of each kind in well under a second."""
    for piece in cases(__file__, "pieces of long notes"):
        start = time.process_time()
        note = piece * (8_000 // len(piece))
        read_counts(note)
        assert time.process_time() - start < 1, piece


@settings(max_examples=30)
@given(st.lists(st.integers(0, 60), min_size=2, max_size=8))
def test_what_the_counter_writes_is_read_back(correct: list[int]) -> None:
    rounds = 60
    note = write_counts(correct, rounds)
    counts = read_counts(note, len(correct))
    assert [counts[letter] for letter in sorted(counts)] == [(hits, rounds) for hits in correct]


@pytest.mark.parametrize("row", FORMS, ids=lambda row: row["note"])
def test_counts_in_other_forms(row: dict[str, Any]) -> None:
    assert read_counts(row["note"]) == {
        letter: tuple(counted) for letter, counted in row["counts"].items()
    }


def test_counts_are_checked_against_the_truth() -> None:
    truth = np.array([45, 94, 69, 77])
    right = check_counts("A:45/100, B:94/100, C:69/100, D:77/100", truth, 100)
    assert right["readable"]
    assert right["exact"]
    assert right["mean_error"] == 0
    assert right["best"]
    assert right["worst"]
    off = check_counts("A:45/100, B:60/100, C:69/100, D:77/100", truth, 100)
    assert off["readable"]
    assert not off["exact"]
    assert off["mean_error"] == 34 / 4
    assert off["best"] is False
    assert off["worst"]
    assert not check_counts("A:45/99, B:94/99, C:69/99, D:77/99", truth, 100)["exact"], (
        "wrong number of rounds"
    )
    part = check_counts("B:94/100", truth, 100)
    assert not part["readable"]
    assert part["best"] is None
    assert part["mean_error"] == 0
    assert check_counts("A:1/2, B:1/2, C:1/2, D:1/2", np.array([1, 2, 1, 1]), 2)["best"] is None, (
        "a tie names nobody"
    )
