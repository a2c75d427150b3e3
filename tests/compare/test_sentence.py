"""The sentence that a comparison opens with: it says what the verdicts say, and nothing that they do not."""

from __future__ import annotations

import pytest

from circuits.compare.sentence import in_a_sentence

QUESTIONS = ("behaviour", "state", "update", "circuit")


def said(*words: str, notes: tuple[str, ...] = ("", "", "", ""), predicts: str = "") -> str:
    return in_a_sentence("a", "b", dict(zip(QUESTIONS, zip(words, notes, strict=True), strict=True)), predicts)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("same", "same", "same", "same"),
            "a holds the same state, updates its state in the same way, predicts the same and has heads of the same "
            "roles as b.",
        ),
        (
            ("different", "same", "same", "different"),
            "a holds the same state and updates its state in the same way as b, but predicts otherwise and has heads "
            "of other roles.",
        ),
        (
            ("different", "different", "different", "different"),
            "Unlike b, a predicts otherwise, holds another state, updates its state otherwise and has heads of other "
            "roles.",
        ),
        (
            ("undecided", "undecided", "different", "not applicable"),
            "Unlike b, a updates its state otherwise. Undecided: behaviour and state. Not applicable: roles.",
        ),
        (
            ("undecided", "undecided", "undecided", "undecided"),
            "Undecided of a beside b: behaviour, state, update and roles.",
        ),
    ],
)
def test_every_verdict_is_said_once_and_as_it_is(words: tuple[str, ...], sentence: str) -> None:
    assert said(*words) == sentence


def test_a_condition_of_same_is_said_with_it_and_what_differs_is_named() -> None:
    """A "same" that holds only with help is never said without it."""
    notes = ("once its read-out is fitted: 0.9", "if b is also given the round number", "", "heads by use 0.2")
    sentence = said("same", "same", "different", "different", notes=notes)
    assert "predicts the same (once its read-out is fitted)" in sentence
    assert "holds the same state (if b is also given the round number)" in sentence and "by use" not in sentence
    assert "predicts otherwise (like the Bayes predictor)" in said(
        "different", *("same",) * 3, predicts="like the Bayes predictor"
    )
    assert "Bayes" not in said("same", *("different",) * 3, predicts="like the Bayes predictor")
