"""What a note says: the tallies that it writes down, whether they are right, and its format (paper, appendix F.3).

The rules read surface form only: a note called Counter need not count correctly, nor be used by the model. A *tally*
says how an expert has done over several rounds. The rules in their order, and the forms of a tally:
docs/method/notes.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.llm.schemes import expert_letters, patterns
from interp.support.checks import checked

_RE = patterns(Path(__file__).with_suffix(".toml"))
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
    found, made = list(named.finditer(note)), []
    for match, end in zip(
        found, [match.start() for match in found[1:]] + [len(note)], strict=False
    ):
        letters = tuple(name[0] for name in re.findall(one, match.group(0)))
        made.append(_Mention(letters, note[match.end() : end], match.end(), match.start()))
    return made


def _tallied(note: str, n_experts: int = 4) -> set[str]:
    """The experts that the note gives a tally, in any form of docs/method/notes.md."""
    forms = (_RE.percent, _RE.verdict_count, *_RE.pairs)
    found = [
        mention
        for mention in mentions(note, n_experts)
        if any(map(_is_share, _RE.fraction.finditer(mention.text)))
        or any(form.search(mention.text) for form in forms)
    ]
    letters = {letter for mention in found for letter in mention.letters}
    return (
        letters
        if len(letters) >= 2
        else letters | {letter for letter, _ in _bare_tallies(note, n_experts)}
    )


def _bare_tallies(note: str, n_experts: int = 4) -> list[tuple[str, int]]:
    """``(letter, place in the note)`` of bare numbers that are tallies; empty where they are votes, bits or ranks."""
    bare = [
        (m, match.group(1)) for m in mentions(note, n_experts) if (match := _RE.bare.match(m.text))
    ]
    # "1. B 2. C": the numbers are places, not counts.
    ranking = re.search(
        rf"(?<!\d)1[.)]\s*(?:Expert[ _]?)?[{''.join(expert_letters(n_experts))}]\b", note
    )
    counted = any(text[0] in "+-" or int(text) >= 2 for _, text in bare) and ranking is None
    if not counted or any(len(text) >= 3 and set(text) <= {"0", "1"} for _, text in bare):
        return []
    return [(letter, mention.start) for mention, _ in bare for letter in mention.letters]


def _is_share(match: re.Match[str]) -> bool:
    """Is a match of the pattern ``fraction`` a share (3/5), and not a bit string (0110/1), a date or nothing (0/0)?"""
    hits, out_of = match.group(1), int(match.group(2))
    return int(hits) <= out_of > 0 and not (len(hits) > 1 and hits.startswith("0"))


@checked
def read_counts(note: str, n_experts: int = 4) -> dict[str, tuple[int, int]]:
    """``{letter: (times right, out of)}`` for every expert whose tally can be read (which can: docs/method/notes.md).

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
        if not _RE.two_numbers.search(mention.text):
            continue
        right, total = _fractions(mention.text)
        if not total:
            found_in = (
                [match.groups() for match in form.finditer(mention.text)] for form in _RE.pairs
            )
            pairs = [(int(hits), int(misses)) for hits, misses in next(filter(None, found_in), [])]
            right, total = sum(hits for hits, _ in pairs), sum(map(sum, pairs))
        for letter in mention.letters if total else ():
            earlier = found.get(letter, (0, 0))
            found[letter] = (earlier[0] + right, earlier[1] + total)
    return found if len(found) > 1 else _bare_counts(note, said, n_experts) or found


def _fractions(text: str) -> tuple[int, int]:
    right = total = 0
    for count in _RE.fraction.finditer(text):
        if not _is_share(count):
            continue
        hits, out_of = int(count.group(1)), int(count.group(2))
        before, after = (
            text[max(0, count.start() - 12) : count.start()],
            text[count.end() :].lstrip(),
        )
        verdicts = _RE.judged.findall(count.group(0)) or _RE.judged.findall(before)[-1:]
        if not verdicts and (verdict := _RE.judged.match(after)):
            verdicts = [verdict.group(1)]
        right, total = right + (out_of - hits if verdicts and verdicts[0] else hits), total + out_of
    return right, total


def _bare_counts(note: str, said: Sequence[_Mention], n_experts: int) -> dict[str, tuple[int, int]]:
    """Counts without a slash, with the number of rounds that the note gives once: "A 3, B 8 of 9 rounds"."""
    totals = {int(number) for pair in _RE.total.findall(note) for number in pair if number}
    found: dict[str, tuple[int, int]] = {}
    for mention in said if len(totals) == 1 else ():
        match = _RE.bare.match(mention.text) or _RE.verdict_count.search(mention.text)
        if match is None or not _tallied(note, n_experts):
            continue
        text = next(group for group in match.groups() if group is not None).lower()
        hits, out_of = _TIMES.get(text, int(text) if text.isdigit() else -1), max(totals)
        if not 0 <= hits <= out_of:
            continue
        # A bare number may be of errors because the note says so elsewhere.
        wrong = _RE.about_errors.search(note if match.re is _RE.bare else match.group(0))
        found |= dict.fromkeys(mention.letters, (out_of - hits if wrong else hits, out_of))
    return found


def check_counts(
    note: str,
    correct_so_far: NDArray[np.int64],
    n_rounds: int,
    reliability: NDArray[np.float64] | None = None,
) -> dict[str, Any]:
    """The tallies in ``note`` beside ``correct_so_far`` Int[expert] after ``n_rounds`` rounds (docs/method/notes.md).

    With ``reliability`` Float[expert], also whether the note's best and worst expert are the most and least reliable.
    """
    letters = expert_letters(len(correct_so_far))
    counts = read_counts(note, len(letters))
    errors = [
        abs(counts[letter][0] - true)
        for letter, true in zip(letters, correct_so_far, strict=True)
        if letter in counts
    ]
    error = float(np.mean(errors)) if errors else float("nan")
    named = ("best", "worst", "most_accurate", "least_accurate")
    if len(counts) < len(letters):
        return {"readable": False, "exact": False, "mean_error": error, **dict.fromkeys(named)}
    exact = not any(errors) and all(counts[letter][1] == n_rounds for letter in letters)
    shares = np.array([counts[letter][0] / counts[letter][1] for letter in letters])
    picked: list[bool | None] = []
    tops = [
        (sign, np.flatnonzero(sign * shares >= (sign * shares).max() - 1e-12)) for sign in (1, -1)
    ]
    for sign, top in tops:
        truth = sign * correct_so_far
        picked.append(None if len(top) == len(shares) else bool((truth[top] == truth.max()).all()))
    if reliability is not None:
        picked += [top.tolist() == [int((sign * reliability).argmax())] for sign, top in tops]
    picked += [None] * (len(named) - len(picked))
    return {
        "readable": True,
        "exact": exact,
        "mean_error": error,
        **dict(zip(named, picked, strict=True)),
    }


def write_counts(correct: Sequence[int], n_rounds: int) -> str:
    """The counter note in the paper's most common form: ``A:45/100, B:94/100``."""
    return ", ".join(
        f"{letter}:{int(hits)}/{n_rounds}"
        for letter, hits in zip(expert_letters(len(correct)), correct, strict=True)
    )


FORMATS = ("counter", "round list", "conditional counter", "last-step", "other")


def classify(note: str, n_experts: int = 4) -> dict[str, Any]:
    """The ``format`` of a note, one of :data:`FORMATS`, and the features that decided it (docs/method/notes.md).

    >>> classify("A:45/100, B:94/100, C:69/100, D:77/100")["format"]
    'counter'
    >>> classify("A 3, B 8, C 5, D 6 out of 9")["format"]
    'counter'
    >>> classify("A:1,0,1 B:0,0,1 C:1,1,1 D:0,1,0 label:1,0,1")["format"]
    'round list'
    >>> classify("A correct; B,C,D wrong")["format"]
    'last-step'
    """
    letters = "".join(expert_letters(n_experts))
    marks, entries, leading = _marks(note, letters)
    # "Accuracy: A=.45 B=.94": shares as decimals, which only a word distinguishes from weights.
    shares = re.findall(rf"(?<![A-Za-z])[{letters}]\s*[:=]?\s*[01]?\.\d+", note)
    rates = re.search(r"\b(?:accurac\w*|acc|(?:hit|success|error) rates?)\b", note, re.IGNORECASE)
    # Round numbers in lists such as "rounds 1,4,7", beyond the first of each, which a mark may have counted.
    lists = [*_RE.number_list.finditer(note), *_RE.braced.finditer(note)]
    # Does a sentence say of an expert, or of all or none, that it was right or wrong, or what it said?
    subject = re.compile(
        rf"(?<![A-Za-z])(?:[{letters}](?![A-Za-z])|(?i:{_RE.everybody})(?![A-Za-z]))"
    )
    verdict = any(
        (_RE.verdict.search(sentence.lower()) or _RE.said.search(sentence))
        and subject.search(sentence)
        and not re.search(r"\bwho\b", sentence)
        for sentence in re.split(r"[.;\n]", note)
    )
    # "A sunny correct" is what an expert said in one round, and that it was right: one value, not two.
    said = [
        (one, len(_RE.said_and_right.findall(one.text)) == 1) for one in mentions(note, n_experts)
    ]
    series = {
        letter
        for one, once in said
        if not once and _RE.history.match(one.text)
        for letter in one.letters
    }
    found = SimpleNamespace(
        tallied=n_experts if len(shares) >= 2 and rates else len(_tallied(note, n_experts)),
        conditional=_conditional(note, n_experts),
        round_marks=marks,
        entries=entries,
        leading_mark=leading,
        round_numbers=marks
        + sum(max(2, len(re.findall(r"\d+", match.group(0)))) for match in lists),
        records=_records(note, letters),
        sequences=len(series) + 2 * bool(_RE.labels.search(note)),
        labels=len(_RE.label.findall(note)),
        vague=bool(_RE.vague.search(note)),
        verdict=verdict,
        words=len(note.split()),
    )
    listed = (
        found.round_numbers >= 3
        or found.round_marks >= 2
        or found.leading_mark
        or found.labels >= 3
    )
    decided = "last-step" if found.verdict or found.records else "other"
    recorded = found.entries >= 3 or found.records >= 2 or found.sequences >= 2
    if not note.strip():
        decided = "other"
    elif recorded or (found.tallied < 2 and listed and not found.conditional):
        decided = "round list"
    elif found.conditional:
        decided = "conditional counter"
    elif found.tallied >= 2:
        decided = "counter"
    elif found.vague:
        decided = "other"
    return {"format": decided, **vars(found)}


def _marks(note: str, letters: str) -> tuple[int, int, bool]:
    """Round marks; those that begin an entry; whether the note begins with an entry."""
    name = rf"(?:Experts?[ _]?)?[{letters}](?![a-z])"
    content = rf"(?:{name}|{_RE.word}|label|y\b|actual|true|[01]{{2,}}|all|none|nobody|every|no\b)"
    begins = re.compile(rf"\s*(?:[:=>|]|[-–]\s*{content}|\(?\s*{content})", re.IGNORECASE)
    marked = [*_RE.mark.finditer(note), *_RE.ordinal.finditer(note)]
    entries = [
        match
        for match in marked
        if not _RE.stamp.search(note[max(0, match.start() - 12) : match.start()])
        and begins.match(note, match.end())
    ]
    numbered = _enumerated(note, letters)
    first = min((match.start() for match in entries), default=len(note))
    return (
        len(marked) + numbered,
        len(entries) + numbered,
        bool(entries) and not note[:first].strip(" ([{\"'*-"),
    )


def _enumerated(note: str, letters: str) -> int:
    """How many rounds are numbered without a word: "1) 1010->1 2) ...", "1: B,C. 2: A,B."; 0 for a ranking."""
    content = rf"[{letters}](?![a-z])|[01]{{2,}}|none|all|{_RE.word}"
    entry = re.compile(
        rf"(?:\A|(?<=[\s;,|.]))[\[(]?(\d{{1,3}})(?:[\]).:]\s*(?={content})|\s+(?={_RE.word}))",
        re.IGNORECASE,
    )
    found = list(entry.finditer(note))
    numbers = [int(match.group(1)) for match in found]
    if len(found) < 2 or numbers != list(range(numbers[0], numbers[0] + len(found))):
        return 0
    ends = [match.start() for match in found[1:]] + [len(note)]
    contents = [
        note[match.end() : end].strip(" .;,|>") for match, end in zip(found, ends, strict=True)
    ]
    is_ranking = all(re.fullmatch(rf"[{letters}]", text) for text in contents) and len(
        set(contents)
    ) == len(contents)
    return 0 if is_ranking else len(found)


def _records(note: str, letters: str) -> int:
    """Whole records of one round: what each of 2 or more experts said or was, or all votes as digits and the label."""
    name = rf"(?:Experts?[ _]?)?[{letters}]"
    said = r"(?:\s+(?:said|says|predicted|forecast))?"
    one = rf"{name}{said}(?:\s*[:=(]?\s*(?:{_RE.word}|{_RE.sign}|{_RE.bit}|[+-](?!\d))|\s*[:=]\s*{_RE.letter})\)?"
    run = re.compile(rf"(?<![A-Za-z]){one}(?:[\s,;|]*(?:and\s+)?{one})+")
    rows = 0
    for match in run.finditer(note):
        names = re.findall(
            rf"(?<![A-Za-z])(?:Experts?[ _]?)?([{letters}])(?![A-Za-z])", match.group(0)
        )
        rows += max(names.count(letter) for letter in set(names)) if names else 1
    votes = rf"(?<![\d/.])[01](?:[, ]?[01]){{{len(letters) - 1}}}\)?"
    label = r"(?:->|→|=>|/|=|:|,?\s*(?:label|outcome|truth|y)\b\W*)\s*[01](?![\d/])"
    right = rf"{_RE.word}\s*\({name}(?:[,\s]+{name})*\)"
    return (
        rows
        + len(re.findall(rf"{votes}\s*{label}", note))
        + len(re.findall(right, note, re.IGNORECASE))
    )


def _conditional(note: str, n_experts: int) -> int:
    """Tallies under outcome 0 and under outcome 1; 0 unless there are some under both, or two right after one word."""
    conditions = []
    for match in _RE.condition.finditer(note):
        if not _RE.one_round.search(note[max(0, match.start() - 14) : match.start()]):
            outcome = (
                1 if match["one"] else 0 if match["zero"] else int(match["bit"] or match["arrow"])
            )
            conditions.append((match.start(), outcome))
    # Where the note's tallies stand, of every form.
    places = [match.start() for match in _RE.fraction.finditer(note) if _is_share(match)]
    others = (_RE.percent, _RE.verdict_count, *_RE.pairs[:3])
    places += [match.start() for form in others for match in form.finditer(note)]
    under = [0, 0]
    for start in places + [place for _, place in _bare_tallies(note, n_experts)]:
        before = [outcome for place, outcome in conditions if place < start]
        if before:
            under[before[-1]] += 1
    direct = len(
        re.findall(r"\b(?:sunny|rainy|sun|rain)[\s:=(-]*\d+\s*(?:/|of)\s*\d+", note, re.IGNORECASE)
    )
    rates = len(re.findall(r"\b[TF][PN]\b", note))  # true and false positives and negatives
    bare = [bool(match[1]) for match in _RE.count_of_word.finditer(note)]  # "rainy(40) sunny(39)"
    direct = max(direct, len(bare) if len(set(bare)) == 2 else 0)
    return sum(under) if all(under) else max(direct, rates) if max(direct, rates) >= 2 else 0
