"""What a note contains: the tallies that it writes down, and whether they are right (paper,
appendix F.3).

A *tally* is the record of an expert over several rounds. The forms of a tally:
docs/method/notes.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.llm.schemes import expert_letters
from interp.support.checks import checked

_GOOD = r"(?:correct(?:ly)?|right(?:ly)?|accurate(?:ly)?|hits?|wins?|won|succe\w+|W|✓|✔)"
_BAD = (
    r"(?:incorrect(?:ly)?|wrong(?:ly)?|inaccurate(?:ly)?|miss(?:ed|es)?|mistakes?|mistaken|errors?|erred"
    r"|fail\w*|losses|L|✗|✘|×)"
)
_NUMBER = r"(?<![\d/.])(\d+|once|twice|thrice|(?:one|two|three|four) times?)"
_BETWEEN = r"\s*[-,/;&|]?\s*(?:and\s+)?"  # "3W-2L": letters for win and loss only as capitals
_FRACTION = re.compile(
    rf"(?i)(?<![\d/.])(\d+)\s*(?:x|times?|{_GOOD}|{_BAD})?\s*(?:/|\b(?:out of|of|for)\b)\s*(?:the\s+)?"
    r"(?:last\s+)?(\d+)(?![\d/])"
)
_TWO_NUMBERS = re.compile(r"\d\D{1,40}\d")
_VERDICT_COUNT = re.compile(
    # Not "wrong: 4, 7", which lists rounds, not "right in rounds 2", and not "predicted 0 correctly".
    rf"(?i)(?<![a-z])(?:{_GOOD}|{_BAD})(?:\s+on)?\s*[:=]?\s*{_NUMBER}\s*(?:x\b|times?)?"
    r"(?!\s*(?:[/.\d]|,\s*\d|and\s+\d|-\s*\d))"
    rf"|(?<!\d,)(?<!\d, )(?<!\dand )(?<!said )(?<!predicted ){_NUMBER}\s*(?:x\b|times?)?\s*"
    rf"(?:{_GOOD}|{_BAD})(?![a-z])"
)
_BARE = re.compile(
    r"\A[\"']?\s*[:=(]?\s*([+-]?\d+)(?![\d/%]|\.\d)(?!\s*[,;]\s*[+-]?\d+(?!\d|\s*(?:round|day)))"
    r"(?!\s*[-–]\s*\d)"
)
_TOTAL = re.compile(
    r"(?i)(?:\b(?:out of|of|in|n\s*=|rounds?\s*[:=]|(?:after|through|round|day|r|t)(?:\s+(?:round|day))?\s*#?))"
    r"\s*(\d+)|\b(\d+)\s+(?:rounds?|days?)\b"
)
_ABOUT_ERRORS = re.compile(rf"(?i)\b(?:{_BAD})\b")
_JUDGED = re.compile(rf"(?i)(?<![a-z])(?:{_GOOD}|({_BAD}))(?![a-z])")
_PAIRS = (
    re.compile(rf"(?i)(?<![\d/.])(\d+)\s*{_GOOD}{_BETWEEN}(\d+)\s*{_BAD}(?![a-z])"),
    re.compile(
        rf"(?i)(?<![a-z]){_GOOD}\s*[:=]?\s*(\d+){_BETWEEN}{_BAD}\s*[:=]?\s*(\d+)(?!\s*[/\d])"
    ),
    re.compile(r"(?i)\b(?:sunny|rainy|sun|rain)\W{1,3}(\d+)\s*[-–|]\s*(\d+)(?![\d-])"),
    re.compile(r"\A\W{0,3}?(\d+)\s*[-–|]\s*(\d+)(?![\d-])"),
    re.compile(r"\A\s*[:=]?\s*\(\s*(\d+)\s*,\s*(\d+)\s*\)"),
)
"""How often right and how often wrong, beside each other."""
_TIMES = {
    "once": 1,
    "one time": 1,
    "twice": 2,
    "two times": 2,
    "thrice": 3,
    "three times": 3,
    "four times": 4,
}


@dataclass(frozen=True)
class _Mention:
    """A group of experts that a note names together, and the text from there to the next name."""

    letters: tuple[str, ...]
    text: str


def _mentions(note: str, n_experts: int = 4) -> list[_Mention]:
    """Return where the note names experts: "Expert_A", "Experts B, C and D", "A".

    >>> [(m.letters, m.text) for m in _mentions("B,C right; A 1/2")]
    [(('B', 'C'), ' right; '), (('A',), ' 1/2')]
    """
    name = f"[{''.join(expert_letters(n_experts))}](?:'s)?(?![A-Za-z'])"
    another = rf"\s*(?:,|&|/|and)\s*(?:and\s+)?(?:Expert[ _]?)?{name}(?![ ]*[:=])"
    names = re.compile(rf"(?<![A-Za-z])(?:Experts?[ _]?)?{name}(?:{another})*")
    matches = list(names.finditer(note))
    ends = [match.start() for match in matches[1:]] + [len(note)]
    named = []
    for match, end in zip(matches, ends, strict=False):
        letters = tuple(expert[0] for expert in re.findall(name, match[0]))
        text = note[match.end() : end]
        named.append(_Mention(letters, text))
    return named


def _has_bare_tallies(note: str, n_experts: int) -> bool:
    """Return whether bare numbers after names are tallies, not votes, bits or ranks."""
    numbers = []
    for mention in _mentions(note, n_experts):
        match = _BARE.match(mention.text)
        if match:
            numbers.append(match[1])
    # "1. B 2. C": the numbers are places, not counts.
    name = f"[{''.join(expert_letters(n_experts))}]"
    is_ranking = re.search(rf"(?<!\d)1[.)]\s*(?:Expert[ _]?)?{name}\b", note)
    is_counted = any(number[0] in "+-" or int(number) >= 2 for number in numbers)
    is_bits = any(re.fullmatch("[01]{3,}", number) for number in numbers)
    return is_counted and not is_bits and not is_ranking


def _shares(text: str) -> list[re.Match[str]]:
    """Return the fractions in a text that are shares (3/5), and not bit strings (0110/1), dates or
    0/0.
    """
    shares = []
    for match in _FRACTION.finditer(text):
        is_number = match[1] == "0" or not match[1].startswith("0")
        if is_number and int(match[1]) <= int(match[2]) > 0:
            shares.append(match)
    return shares


@checked
def read_counts(note: str, n_experts: int = 4) -> dict[str, tuple[int, int]]:
    """Return ``{letter: (times right, out of)}`` for every expert with a readable tally
    (docs/method/notes.md).

    >>> read_counts("B,C,D correct 2/2; A wrong 2/2")
    {'B': (2, 2), 'C': (2, 2), 'D': (2, 2), 'A': (0, 2)}
    >>> read_counts("A: sunny 22/39, rainy 18/61")
    {'A': (40, 100)}
    >>> read_counts("A 3, B 8 of 9 rounds")
    {'A': (3, 9), 'B': (8, 9)}
    """
    counts: dict[str, tuple[int, int]] = {}
    for mention in _mentions(note, n_experts):
        if not _TWO_NUMBERS.search(mention.text):
            continue
        right, total = _read_fractions(mention.text) or _read_pairs(mention.text) or (0, 0)
        for letter in mention.letters:
            if total:
                earlier_right, earlier_total = counts.get(letter, (0, 0))
                counts[letter] = (earlier_right + right, earlier_total + total)
    if len(counts) > 1:
        return counts
    return _bare_counts(note, n_experts) or counts


def _read_fractions(text: str) -> tuple[int, int] | None:
    """Return the sums of the shares in a text, right and out of; None where there are none."""
    right = total = 0
    for share in _shares(text):
        hits, out_of = int(share[1]), int(share[2])
        right += out_of - hits if _is_of_errors(text, share) else hits
        total += out_of
    return (right, total) if total else None


def _is_of_errors(text: str, share: re.Match[str]) -> bool:
    """Return whether a share counts errors, by the verdict within it, the last one before it, or right after it."""
    before = text[max(0, share.start() - 12) : share.start()]
    within = _JUDGED.findall(share[0])
    verdicts = within or _JUDGED.findall(before)[-1:]
    if not verdicts:
        after = _JUDGED.match(text[share.end() :].lstrip())
        verdicts = [after[1]] if after else []
    return bool(verdicts and verdicts[0])


def _read_pairs(text: str) -> tuple[int, int] | None:
    """Return the sums of neighbouring counts of right and wrong, right and out of; None where there
    are none.
    """
    for form in _PAIRS:
        pairs = np.array([match.groups() for match in form.finditer(text)], dtype=object)
        if len(pairs):
            right, wrong = pairs.astype(int).sum(axis=0).tolist()
            return right, right + wrong
    return None


def _bare_counts(note: str, n_experts: int) -> dict[str, tuple[int, int]]:
    """Read counts without a slash, out of the number of rounds that the note gives once: "A 3, B 8 of 9 rounds"."""
    totals = {int(number) for pair in _TOTAL.findall(note) for number in pair if number}
    counts: dict[str, tuple[int, int]] = {}
    if len(totals) != 1:
        return counts
    has_verdicts = _VERDICT_COUNT.search(note) is not None
    if not has_verdicts and not _has_bare_tallies(note, n_experts):
        return counts
    (out_of,) = totals
    for mention in _mentions(note, n_experts):
        hits = _read_bare(note, mention.text, out_of)
        if hits is not None and 0 <= hits <= out_of:
            counts |= dict.fromkeys(mention.letters, (hits, out_of))
    return counts


def _read_bare(note: str, text: str, out_of: int) -> int | None:
    """Return how often an expert was right by the bare number in the text after its name; None
    where there is none.

    Args:
        note: the whole note, which may say that numbers are errors.
        text: after the expert's name.
        out_of: number of rounds.
    """
    bare = _BARE.match(text)
    match = bare or _VERDICT_COUNT.search(text)
    if match is None:
        return None
    number = next(group for group in match.groups() if group is not None).lower()
    hits = _TIMES.get(number, int(number) if number.isdigit() else -1)
    # A bare number may be of errors because the note says so elsewhere.
    is_of_errors = _ABOUT_ERRORS.search(note if bare else match[0])
    return out_of - hits if is_of_errors else hits


def check_counts(
    note: str,
    correct_so_far: NDArray[np.int64],
    n_rounds: int,
    reliability: NDArray[np.float64] | None = None,
) -> dict[str, Any]:
    """Compare the tallies in a note with what happened (docs/method/notes.md).

    Args:
        note: the note after some round.
        correct_so_far: Int[expert], how often each expert was right.
        n_rounds: in how many rounds.
        reliability: Float[expert]; the note's best and worst expert are compared with it, if not
            None.
    """
    letters = expert_letters(len(correct_so_far))
    counts = read_counts(note, len(letters))
    readable = [place for place, letter in enumerate(letters) if letter in counts]
    hits = np.array([counts[letters[place]][0] for place in readable])
    totals = np.array([counts[letters[place]][1] for place in readable])
    errors = np.abs(hits - correct_so_far[readable])
    checks: dict[str, Any] = {
        "readable": len(readable) == len(letters),
        "exact": False,
        "mean_error": float(errors.mean()) if readable else np.nan,
        "best": None,
        "worst": None,
        "most_accurate": None,
        "least_accurate": None,
    }
    if not checks["readable"]:
        return checks
    counts_all_rounds = bool((totals == n_rounds).all())
    checks["exact"] = counts_all_rounds and not errors.any()
    shares = hits / totals
    sides = {("best", "most_accurate"): 1, ("worst", "least_accurate"): -1}
    for (by_count, by_accuracy), sign in sides.items():
        top = np.flatnonzero(sign * shares >= (sign * shares).max() - 1e-12)
        truth = sign * correct_so_far
        if len(top) < len(shares):
            checks[by_count] = bool((truth[top] == truth.max()).all())
        if reliability is not None:
            most_reliable = int((sign * reliability).argmax())
            checks[by_accuracy] = top.tolist() == [most_reliable]
    return checks


def write_counts(correct: Sequence[int], n_rounds: int) -> str:
    """Write the counter note in the paper's most common form: ``A:45/100, B:94/100``."""
    letters = expert_letters(len(correct))
    counts = zip(letters, correct, strict=True)
    return ", ".join(f"{letter}:{int(hits)}/{n_rounds}" for letter, hits in counts)
