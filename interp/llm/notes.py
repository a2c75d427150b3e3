"""What a note says: its format, the counts in it, and whom it thinks best and worst (paper, appendix F.3).

Formats (the paper's table of note formats gives the names, not the rules; these rules, first match wins, gave all 12
of its rows when they were tried on the published runs):

1. *Other*: empty.
2. *Round list*: a list of 3 or more round numbers ("rounds 1,4,7"); or 3 or more round marks ("Round2:", "R2:",
   "Day 2:"); or fewer than 2 fractions with 2 marks, or with a mark at the very start; or 5 or more "label=0" records.
3. *Conditional counter*: 2 or more fractions split by outcome ("sunny 22/39, rainy 18/61").
4. *Counter*: 2 or more fractions ("A:45/100, B:94/100").
5. *Other*: a word of vague frequency (often, rarely, ...).
6. *Last-step*: says who was correct, right, wrong or incorrect.
7. *Other*: all else.

The features that decide are returned with the verdict, so that they can be regrouped. The rules read surface form
only: a note called Counter need not count correctly, which is what :func:`read_counts` is for, nor be used by the
model. On 14 notes quoted in the paper and 50 of our own (``tests/llm/notes.jsonl``) they are right on all 14 and on 43:
they miss counts without a slash ("4 of 7"), an outcome named once for several fractions, and bare records.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from interp.llm.schemes import expert_letters

FORMATS = ("counter", "round list", "conditional counter", "last-step", "other")

_FRACTION = re.compile(r"(?<![\d/.])\d+\s*/\s*\d+(?![\d/])")
_CONDITIONAL = re.compile(r"\b(?:sunny|rainy)\b[\s:=(-]*\d+\s*/\s*\d+", re.IGNORECASE)
_MARK = re.compile(r"\b(?:round|day|step|r|t)[ _#]?(\d+)\b(?!\s*/)", re.IGNORECASE)
_LEADING_MARK = re.compile(r"\A\W*(?:round|day|step|r|t)[ _#]?\d+\b(?!\s*/)", re.IGNORECASE)
_NUMBER_LIST = re.compile(
    r"\b(?:rounds?|days?|steps?|r)[ :#]*\d+(?:\s*(?:,|&|and|-)\s*(?:and\s+)?\d+){2,}", re.IGNORECASE
)
_LABEL_RECORD = re.compile(r"\b(?:true_)?label\s*[=:]?\s*[01]\b", re.IGNORECASE)
_FREQUENCY = re.compile(
    r"\b(?:often|rarely|usually|sometimes|frequently|mostly|generally|always|never|occasionally|seldom|typically)\b",
    re.IGNORECASE,
)
_VERDICT = re.compile(r"\b(?:in)?correct(?:ly)?\b|\bwrong(?:ly)?\b|\bright\b", re.IGNORECASE)


@dataclass(frozen=True)
class NoteFormat:
    """A note's format and the features that decided it."""

    format: str
    fractions: int
    conditional_fractions: int
    round_marks: int
    leading_mark: bool
    round_numbers: bool
    label_records: int
    frequency_word: bool
    verdict_word: bool
    words: int

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def classify(note: str) -> NoteFormat:
    """The format of a note, one of :data:`FORMATS`, by the rules above.

    >>> classify("A:45/100, B:94/100, C:69/100, D:77/100").format
    'counter'
    >>> classify("A correct; B,C,D wrong").format
    'last-step'
    """
    fractions = len(_FRACTION.findall(note))
    conditional = len(_CONDITIONAL.findall(note))
    marks = len(_MARK.findall(note))
    leading = bool(_LEADING_MARK.match(note))
    numbers = bool(_NUMBER_LIST.search(note))
    labels = len(_LABEL_RECORD.findall(note))
    vague = bool(_FREQUENCY.search(note))
    verdict = bool(_VERDICT.search(note))
    if not note.strip():
        name = "other"
    elif numbers or marks >= 3 or (fractions < 2 and (marks >= 2 or leading)) or labels >= 5:
        name = "round list"
    elif conditional >= 2:
        name = "conditional counter"
    elif fractions >= 2:
        name = "counter"
    elif vague:
        name = "other"
    elif verdict:
        name = "last-step"
    else:
        name = "other"
    return NoteFormat(name, fractions, conditional, marks, leading, numbers, labels, vague, verdict, len(note.split()))


# ------------------------------------------------------------------------------------------------- counts

# "Expert_A", "Experts B, C and D", "A": one expert or a group, at the start of a clause.
_NAMES = re.compile(
    r"(?<![A-Za-z])(?:Experts?[ _]?)?([A-Z])(?![A-Za-z'])"
    r"((?:\s*(?:,|&|/|and)\s*(?:and\s+)?(?:Expert[ _]?)?[A-Z](?![A-Za-z']))*)"
)
_COUNT = re.compile(r"(?<![\d/.])(\d+)\s*(?:/|of|out of)\s*(\d+)(?![\d/])", re.IGNORECASE)
_NEGATIVE = ("wrong", "wrongly", "incorrect", "incorrectly")


def read_counts(note: str, n_experts: int = 4) -> dict[str, tuple[int, int]]:
    """``{letter: (times right, out of)}`` for every expert whose tally can be read.

    A tally split by outcome is summed; "wrong 2/3" counts as 1 of 3 right; a group ("B,C,D correct 2/2") gives each
    member the tally. Experts without a fraction, and fractions above 1, are left out.

    >>> read_counts("B,C,D correct 2/2; A wrong 2/2")
    {'B': (2, 2), 'C': (2, 2), 'D': (2, 2), 'A': (0, 2)}
    >>> read_counts("A: sunny 22/39, rainy 18/61")
    {'A': (40, 100)}
    """
    letters = expert_letters(n_experts)
    found: dict[str, tuple[int, int]] = {}
    names = [match for match in _NAMES.finditer(note) if match.group(1) in letters]
    ends = [match.start() for match in names[1:]] + [len(note)] * bool(names)
    for match, end in zip(names, ends, strict=True):
        text = note[match.end() : end]
        group = [letter for letter in re.findall(r"[A-Z](?![A-Za-z])", match.group(0)) if letter in letters]
        right = total = 0
        for count in _COUNT.finditer(text):
            hits, out_of = int(count.group(1)), int(count.group(2))
            if hits > out_of or out_of == 0:
                continue
            before, after = text[max(0, count.start() - 12) : count.start()], text[count.end() : count.end() + 12]
            said = _VERDICT.findall(before)[-1:] or _VERDICT.findall(after)[:1]
            wrong = bool(said) and said[0].lower() in _NEGATIVE
            right, total = right + (out_of - hits if wrong else hits), total + out_of
        if total:
            for letter in group:
                earlier = found.get(letter, (0, 0))
                found[letter] = (earlier[0] + right, earlier[1] + total)
    return found


@dataclass(frozen=True)
class CountCheck:
    """A note's tallies against the truth after the same round.

    Attributes:
        readable: every expert has a tally.
        exact: every tally is right.
        mean_error: mean absolute error of the readable counts of right predictions; NaN where none is readable.
        best: True where the note's best expert is one of the truly best so far; None where not readable or all tie.
        worst: the same for the worst.
    """

    readable: bool
    exact: bool
    mean_error: float
    best: bool | None
    worst: bool | None


def check_counts(note: str, correct_so_far: NDArray[np.int64], n_rounds: int) -> CountCheck:
    """Compare the tallies in ``note`` with ``correct_so_far`` Int[expert] after ``n_rounds`` rounds."""
    letters = expert_letters(len(correct_so_far))
    counts = read_counts(note, len(letters))
    errors = [
        abs(counts[letter][0] - true) for letter, true in zip(letters, correct_so_far, strict=True) if letter in counts
    ]
    readable = len(counts) == len(letters)
    exact = readable and not any(errors) and all(counts[letter][1] == n_rounds for letter in letters)
    best = worst = None
    if readable:
        shares = np.array([counts[letter][0] / counts[letter][1] for letter in letters])
        best, worst = _picks(shares, correct_so_far), _picks(-shares, -correct_so_far)
    return CountCheck(readable, exact, float(np.mean(errors)) if errors else float("nan"), best, worst)


def _picks(shares: NDArray[np.float64], truth: NDArray[np.int64]) -> bool | None:
    top = np.flatnonzero(shares >= shares.max() - 1e-12)
    if len(top) == len(shares):
        return None
    return bool(np.isin(top, np.flatnonzero(truth == truth.max())).all())


def write_counts(correct: Sequence[int], n_rounds: int) -> str:
    """The counter note in the paper's most common form: ``A:45/100, B:94/100``."""
    return ", ".join(
        f"{letter}:{int(hits)}/{n_rounds}" for letter, hits in zip(expert_letters(len(correct)), correct, strict=True)
    )
