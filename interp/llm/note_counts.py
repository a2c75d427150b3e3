"""The tallies that a note writes down for each expert, and whether they are right.

A *tally* says how an expert has done over several rounds. It is written in one of these forms, next to the expert's
name: a fraction ("3/5", "3 of 5", "right 3 times out of 5"); right and wrong beside each other ("3 right 2 wrong",
"3W-2L", "3-2"); a percentage; a count with its verdict ("wrong twice", "5 hits"); or a bare number ("A 3, B 8"). A
bare 0 or 1 is what an expert said or whether it was right in one round, not a tally, so bare numbers count only where
one of them is 2 or more or has a sign.

:func:`read_counts` gives the numbers where a note tells both how often an expert was right and out of how many.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interp.checks import checked
from interp.llm.schemes import expert_letters

GOOD = r"(?:correct(?:ly)?|right(?:ly)?|accurate(?:ly)?|hits?|wins?|won|succe\w+|W|✓|✔)"
BAD = (
    r"(?:incorrect(?:ly)?|wrong(?:ly)?|inaccurate(?:ly)?|miss(?:ed|es)?|mistakes?|mistaken|errors?|erred|fail\w*|losses"
    r"|L|✗|✘|×)"
)
_TIMES = {"once": 1, "one time": 1, "twice": 2, "two times": 2, "thrice": 3, "three times": 3, "four times": 4}
_NUMBER = r"(?<![\d/.])(\d+|once|twice|thrice|(?:one|two|three|four) times?)"

_FRACTION = re.compile(
    rf"(?<![\d/.])(\d+)\s*(?:x|times?|{GOOD}|{BAD})?\s*(?:/|\b(?:out of|of|for)\b)"
    r"\s*(?:the\s+)?(?:last\s+)?(\d+)(?![\d/])",
    re.IGNORECASE,
)
# Letters for win and loss only as capitals right after the number: "3W-2L".
_BETWEEN = r"\s*[-,/;&|]?\s*(?:and\s+)?"
_PAIRS = (
    re.compile(rf"(?<![\d/.])(\d+)\s*{GOOD}{_BETWEEN}(\d+)\s*{BAD}(?![a-z])", re.IGNORECASE),
    re.compile(rf"(?<![a-z]){GOOD}\s*[:=]?\s*(\d+){_BETWEEN}{BAD}\s*[:=]?\s*(\d+)(?!\s*[/\d])", re.IGNORECASE),
    re.compile(r"\b(?:sunny|rainy|sun|rain)\W{1,3}(\d+)\s*[-–|]\s*(\d+)(?![\d-])", re.IGNORECASE),
    re.compile(r"\A\W{0,3}?(\d+)\s*[-–|]\s*(\d+)(?![\d-])"),
    re.compile(r"\A\s*[:=]?\s*\(\s*(\d+)\s*,\s*(\d+)\s*\)"),
)
_TWO_NUMBERS = re.compile(r"\d\D{1,40}\d")  # what every fraction and pair holds: asked first, it is cheap
_PERCENT = re.compile(r"(?<![\d.])\d+(?:\.\d+)?\s*%")
# Not "wrong: 4, 7", which lists rounds, not "right in rounds 2", and not "predicted 0 correctly".
_VERDICT_COUNT = re.compile(
    rf"(?<![a-z])(?:{GOOD}|{BAD})(?:\s+on)?\s*[:=]?\s*{_NUMBER}\s*(?:x\b|times?)?(?!\s*(?:[/.\d]|,\s*\d|and\s+\d|-\s*\d))"
    rf"|(?<!\d,)(?<!\d, )(?<!\dand )(?<!said )(?<!predicted ){_NUMBER}\s*(?:x\b|times?)?\s*(?:{GOOD}|{BAD})(?![a-z])",
    re.IGNORECASE,
)
_BARE = re.compile(
    r"\A[\"']?\s*[:=(]?\s*([+-]?\d+)(?![\d/%]|\.\d)(?!\s*[,;]\s*[+-]?\d+(?!\d|\s*(?:round|day)))(?!\s*[-–]\s*\d)"
)
_TOTAL = re.compile(
    r"(?:\b(?:out of|of|in|n\s*=|rounds?\s*[:=]|(?:after|through|round|day|r|t)(?:\s+(?:round|day))?\s*#?))\s*(\d+)"
    r"|\b(\d+)\s+(?:rounds?|days?)\b",
    re.IGNORECASE,
)
_ABOUT_ERRORS = re.compile(rf"\b(?:{BAD})\b", re.IGNORECASE)
_VERDICT = re.compile(rf"(?<![a-z])(?:{GOOD}|({BAD}))(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True)
class _Mention:
    """A group of experts that a note names together, where their names stand (``begin`` to ``start``), and the text
    from there to the next name."""

    letters: tuple[str, ...]
    text: str
    start: int
    begin: int


def mentions(note: str, n_experts: int = 4) -> list[_Mention]:
    """Where the note names experts: "Expert_A", "Experts B, C and D", "A".

    >>> [(m.letters, m.text) for m in mentions("B,C right; A 1/2")]
    [(('B', 'C'), ' right; '), (('A',), ' 1/2')]
    """
    one = f"[{''.join(expert_letters(n_experts))}](?:'s)?(?![A-Za-z'])"
    named = re.compile(
        rf"(?<![A-Za-z])(?:Experts?[ _]?)?{one}(?:\s*(?:,|&|/|and)\s*(?:and\s+)?(?:Expert[ _]?)?{one}(?![ ]*[:=]))*"
    )
    found = list(named.finditer(note))
    ends = [match.start() for match in found[1:]] + [len(note)]
    return [
        _Mention(
            tuple(name[0] for name in re.findall(one, match.group(0))),
            note[match.end() : end],
            match.end(),
            match.start(),
        )
        for match, end in zip(found, ends, strict=False)
    ]


def tallied(note: str, n_experts: int = 4) -> set[str]:
    """The experts that the note gives a tally, in any of the forms of the module's text."""
    forms = (_PERCENT, _VERDICT_COUNT, *_PAIRS)
    found = [
        mention
        for mention in mentions(note, n_experts)
        if any(map(_is_share, _FRACTION.finditer(mention.text))) or any(form.search(mention.text) for form in forms)
    ]
    letters = {letter for mention in found for letter in mention.letters}
    return letters if len(letters) >= 2 else letters | {letter for letter, _ in _bare_tallies(note, n_experts)}


def _bare_tallies(note: str, n_experts: int = 4) -> list[tuple[str, int]]:
    """``(letter, place in the note)`` of bare numbers that are tallies; empty where they are votes, bits or ranks."""
    bare = [(m, match.group(1)) for m in mentions(note, n_experts) if (match := _BARE.match(m.text))]
    # "1. B 2. C": the numbers are places, not counts.
    ranking = re.search(rf"(?<!\d)1[.)]\s*(?:Expert[ _]?)?[{''.join(expert_letters(n_experts))}]\b", note)
    counted = any(text[0] in "+-" or int(text) >= 2 for _, text in bare) and ranking is None
    bits = any(len(text) >= 3 and set(text) <= {"0", "1"} for _, text in bare)
    if not counted or bits:
        return []
    return [(letter, mention.start) for mention, _ in bare for letter in mention.letters]


def tally_places(note: str, n_experts: int = 4) -> list[int]:
    """Where the note's tallies stand, of every form."""
    places = [match.start() for match in _FRACTION.finditer(note) if _is_share(match)]
    for pattern in (_PERCENT, _VERDICT_COUNT, *_PAIRS[:3]):
        places += [match.start() for match in pattern.finditer(note)]
    return places + [place for _, place in _bare_tallies(note, n_experts)]


def _is_share(match: re.Match[str]) -> bool:
    """Is a match of :data:`_FRACTION` a share (3/5), and not a bit string (0110/1), a date or nothing (0/0)?"""
    hits, out_of = match.group(1), int(match.group(2))
    return int(hits) <= out_of > 0 and not (len(hits) > 1 and hits.startswith("0"))


@checked
def read_counts(note: str, n_experts: int = 4) -> dict[str, tuple[int, int]]:
    """``{letter: (times right, out of)}`` for every expert whose tally can be read.

    A tally split by outcome is summed; "wrong 2/3" counts as 1 of 3 right; a group ("B,C,D correct 2/2") gives each
    member the tally. Bare counts are read where the note says how many rounds there were. Experts without a tally,
    percentages alone, and fractions above 1 are left out.

    >>> read_counts("B,C,D correct 2/2; A wrong 2/2")
    {'B': (2, 2), 'C': (2, 2), 'D': (2, 2), 'A': (0, 2)}
    >>> read_counts("A: sunny 22/39, rainy 18/61")
    {'A': (40, 100)}
    >>> read_counts("A 3, B 8 of 9 rounds")
    {'A': (3, 9), 'B': (8, 9)}
    """
    found: dict[str, tuple[int, int]] = {}
    said = mentions(note, n_experts)
    for mention in said:
        if not _TWO_NUMBERS.search(mention.text):
            continue
        right, total = _fractions(mention.text)
        if not total:
            found_in = ([match.groups() for match in form.finditer(mention.text)] for form in _PAIRS)
            pairs = [(int(hits), int(misses)) for hits, misses in next(filter(None, found_in), [])]
            right, total = sum(hits for hits, _ in pairs), sum(map(sum, pairs))
        for letter in mention.letters if total else ():
            earlier = found.get(letter, (0, 0))
            found[letter] = (earlier[0] + right, earlier[1] + total)
    return found if len(found) > 1 else _bare_counts(note, said, n_experts) or found


def _fractions(text: str) -> tuple[int, int]:
    right = total = 0
    for count in _FRACTION.finditer(text):
        if not _is_share(count):
            continue
        hits, out_of = int(count.group(1)), int(count.group(2))
        before, after = text[max(0, count.start() - 12) : count.start()], text[count.end() :].lstrip()
        verdicts = _VERDICT.findall(count.group(0)) or _VERDICT.findall(before)[-1:]
        if not verdicts and (verdict := _VERDICT.match(after)):
            verdicts = [verdict.group(1)]
        wrong = bool(verdicts and verdicts[0])
        right, total = right + (out_of - hits if wrong else hits), total + out_of
    return right, total


def _bare_counts(note: str, said: Sequence[_Mention], n_experts: int) -> dict[str, tuple[int, int]]:
    """Counts without a slash, with the number of rounds that the note gives once: "A 3, B 8 of 9 rounds"."""
    totals = {int(number) for pair in _TOTAL.findall(note) for number in pair if number}
    found: dict[str, tuple[int, int]] = {}
    for mention in said if len(totals) == 1 else ():
        match = _BARE.match(mention.text) or _VERDICT_COUNT.search(mention.text)
        if match is None or not tallied(note, n_experts):
            continue
        text = next(group for group in match.groups() if group is not None).lower()
        hits, out_of = _TIMES.get(text, int(text) if text.isdigit() else -1), max(totals)
        if not 0 <= hits <= out_of:
            continue
        # A bare number may be of errors because the note says so elsewhere.
        wrong = _ABOUT_ERRORS.search(note if match.re is _BARE else match.group(0))
        found |= dict.fromkeys(mention.letters, (out_of - hits if wrong else hits, out_of))
    return found


@dataclass(frozen=True)
class _CountCheck:
    """A note's tallies against the truth after the same round.

    Attributes:
        readable, exact: every expert has a tally; every tally is right.
        mean_error: mean absolute error of the readable counts of right predictions; NaN where none is readable.
        best, worst: whether the note's best (worst) expert is one of the truly best (worst) so far; None where not
            readable or all tie.
        most_accurate, least_accurate: whether it alone is the most (least) reliable one; None where not readable.
    """

    readable: bool
    exact: bool
    mean_error: float
    best: bool | None = None
    worst: bool | None = None
    most_accurate: bool | None = None
    least_accurate: bool | None = None


def check_counts(
    note: str, correct_so_far: NDArray[np.int64], n_rounds: int, reliability: NDArray[np.float64] | None = None
) -> _CountCheck:
    """Compare the tallies in ``note`` with ``correct_so_far`` Int[expert] after ``n_rounds`` rounds, and where
    ``reliability`` Float[expert] is given with that."""
    letters = expert_letters(len(correct_so_far))
    counts = read_counts(note, len(letters))
    errors = [
        abs(counts[letter][0] - true) for letter, true in zip(letters, correct_so_far, strict=True) if letter in counts
    ]
    error = float(np.mean(errors)) if errors else float("nan")
    if len(counts) < len(letters):
        return _CountCheck(False, False, error)
    exact = not any(errors) and all(counts[letter][1] == n_rounds for letter in letters)
    shares = np.array([counts[letter][0] / counts[letter][1] for letter in letters])
    picked = [_picks(sign * shares, sign * correct_so_far) for sign in (1, -1)]
    if reliability is not None:
        tops = [(_top(sign * shares), (sign * reliability).argmax()) for sign in (1, -1)]
        picked += [top == [int(skilled)] for top, skilled in tops]
    return _CountCheck(True, exact, error, *picked)


def _top(shares: NDArray[np.float64]) -> list[int]:
    return [int(i) for i in np.flatnonzero(shares >= shares.max() - 1e-12)]


def _picks(shares: NDArray[np.float64], truth: NDArray[np.int64]) -> bool | None:
    top = _top(shares)
    return None if len(top) == len(shares) else bool((truth[top] == truth.max()).all())


def write_counts(correct: Sequence[int], n_rounds: int) -> str:
    """The counter note in the paper's most common form: ``A:45/100, B:94/100``."""
    return ", ".join(
        f"{letter}:{int(hits)}/{n_rounds}" for letter, hits in zip(expert_letters(len(correct)), correct, strict=True)
    )
