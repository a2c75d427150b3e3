"""A machine, what it is held against, and the words about it that are right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from interp.checks import check_fields
from interp.machine import Machine

Right = Literal["same", "different", "either"]
"""The word that is right; "either" where nobody can say, or where the deviation is as large as thresholds allow."""


@dataclass(frozen=True)
class Specimen:
    """A known machine.

    Attributes:
        key: its name in the gallery, unique in its task, such as "one round late".
        make: builds it.
        right: the right word on each question ("behaviour", "state", "update", "circuit") of a comparison with the
            reference of its task; a question that is left out is not scored. "undecided" and "not applicable" are
            never wrong, and never right.
        algorithm: key of the family that must be named; "" for none of these, None where it is not scored.
        why: what was done to it, and why these words are right.
        held_out: whether it was left out when thresholds were chosen.
    """

    key: str
    task: str
    make: Callable[[], Machine]
    right: Mapping[str, Right]
    why: str
    algorithm: str | None = None
    held_out: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


_WORDS: dict[str, Right] = {"s": "same", "d": "different", "e": "either"}
_QUESTIONS = ("behaviour", "state", "update", "circuit")


def specimen(
    task: str,
    key: str,
    make: Callable[[], Machine],
    words: str,
    why: str,
    algorithm: str | None = None,
    *,
    held_out: bool = False,
) -> Specimen:
    """``words`` on behaviour, state, update and circuit, by their initials; no fourth one where there is no circuit."""
    right = {question: _WORDS[letter] for question, letter in zip(_QUESTIONS, words.split(), strict=False)}
    return Specimen(key, task, make, right, why, algorithm, held_out)
