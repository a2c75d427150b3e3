"""What a note says: the tallies that it writes down, whether they are right, and its format (paper, appendix F.3).

The rules read surface form only: a note called Counter need not count correctly, nor be used by the model. A *tally*
says how an expert has done over several rounds. The rules in their order, and the forms of a tally:
docs/method/notes.md.
"""

from __future__ import annotations

import re
from collections import Counter
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
    """A group of experts that a note names together.

    Their names stand from ``begin`` to ``start``, and ``text`` from there to the next name.
    """

    letters: tuple[str, ...]
    text: str
    start: int
    begin: int

    @property
    def end(self) -> int:
        """Where the text ends."""
        return self.start + len(self.text)


def mentions(note: str, n_experts: int = 4) -> list[_Mention]:
    """Return where the note names experts: "Expert_A", "Experts B, C and D", "A".

    >>> [(m.letters, m.text) for m in mentions("B,C right; A 1/2")]
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
        named.append(_Mention(letters, text, start=match.end(), begin=match.start()))
    return named


def _tallied(note: str, n_experts: int = 4) -> set[str]:
    """Return the experts that the note gives a tally, in any form of docs/method/notes.md."""
    forms = (_RE.percent, _RE.verdict_count, *_RE.pairs)
    letters: set[str] = set()
    for mention in mentions(note, n_experts):
        is_tally = any(form.search(mention.text) for form in forms)
        if is_tally or _shares(mention.text):
            letters.update(mention.letters)
    if len(letters) < 2:
        letters.update(letter for letter, _ in _bare_tallies(note, n_experts))
    return letters


def _bare_tallies(note: str, n_experts: int = 4) -> list[tuple[str, int]]:
    """Return ``(letter, place in the note)`` of bare numbers that are tallies, not votes, bits or ranks."""
    tallies = []
    numbers = []
    for mention in mentions(note, n_experts):
        match = _RE.bare.match(mention.text)
        if match:
            numbers.append(match[1])
            tallies += [(letter, mention.start) for letter in mention.letters]
    # "1. B 2. C": the numbers are places, not counts.
    name = f"[{''.join(expert_letters(n_experts))}]"
    is_ranking = re.search(rf"(?<!\d)1[.)]\s*(?:Expert[ _]?)?{name}\b", note)
    is_counted = any(number[0] in "+-" or int(number) >= 2 for number in numbers)
    is_bits = any(re.fullmatch("[01]{3,}", number) for number in numbers)
    if is_ranking or is_bits or not is_counted:
        return []
    return tallies


def _shares(text: str) -> list[re.Match[str]]:
    """Return the fractions in a text that are shares (3/5), and not bit strings (0110/1), dates or nothing (0/0)."""
    shares = []
    for match in _RE.fraction.finditer(text):
        is_number = match[1] == "0" or not match[1].startswith("0")
        if is_number and int(match[1]) <= int(match[2]) > 0:
            shares.append(match)
    return shares


@checked
def read_counts(note: str, n_experts: int = 4) -> dict[str, tuple[int, int]]:
    """Return ``{letter: (times right, out of)}`` for every expert whose tally can be read (docs/method/notes.md).

    >>> read_counts("B,C,D correct 2/2; A wrong 2/2")
    {'B': (2, 2), 'C': (2, 2), 'D': (2, 2), 'A': (0, 2)}
    >>> read_counts("A: sunny 22/39, rainy 18/61")
    {'A': (40, 100)}
    >>> read_counts("A 3, B 8 of 9 rounds")
    {'A': (3, 9), 'B': (8, 9)}
    """
    counts: dict[str, tuple[int, int]] = {}
    for mention in mentions(note, n_experts):
        if not _RE.two_numbers.search(mention.text):
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
    within = _RE.judged.findall(share[0])
    verdicts = within or _RE.judged.findall(before)[-1:]
    if not verdicts:
        after = _RE.judged.match(text[share.end() :].lstrip())
        verdicts = [after[1]] if after else []
    return bool(verdicts and verdicts[0])


def _read_pairs(text: str) -> tuple[int, int] | None:
    """Return the sums of counts of right and wrong beside each other, right and out of; None where there are none."""
    for form in _RE.pairs:
        pairs = np.array([match.groups() for match in form.finditer(text)], dtype=object)
        if len(pairs):
            right, wrong = pairs.astype(int).sum(axis=0).tolist()
            return right, right + wrong
    return None


def _bare_counts(note: str, n_experts: int) -> dict[str, tuple[int, int]]:
    """Read counts without a slash, out of the number of rounds that the note gives once: "A 3, B 8 of 9 rounds"."""
    totals = {int(number) for pair in _RE.total.findall(note) for number in pair if number}
    counts: dict[str, tuple[int, int]] = {}
    if len(totals) != 1 or not _tallied(note, n_experts):
        return counts
    (out_of,) = totals
    for mention in mentions(note, n_experts):
        hits = _read_bare(note, mention.text, out_of)
        if hits is not None and 0 <= hits <= out_of:
            counts |= dict.fromkeys(mention.letters, (hits, out_of))
    return counts


def _read_bare(note: str, text: str, out_of: int) -> int | None:
    """Return how often an expert was right by the bare number in the text after its name; None where there is none."""
    bare = _RE.bare.match(text)
    match = bare or _RE.verdict_count.search(text)
    if match is None:
        return None
    number = next(group for group in match.groups() if group is not None).lower()
    hits = _TIMES.get(number, int(number) if number.isdigit() else -1)
    # A bare number may be of errors because the note says so elsewhere.
    is_of_errors = _RE.about_errors.search(note if bare else match[0])
    return out_of - hits if is_of_errors else hits


def check_counts(
    note: str,
    correct_so_far: NDArray[np.int64],
    n_rounds: int,
    reliability: NDArray[np.float64] | None = None,
) -> dict[str, Any]:
    """Hold the tallies in a note against what happened (docs/method/notes.md).

    Args:
        note: the note after some round.
        correct_so_far: Int[expert], how often each expert was right.
        n_rounds: in how many rounds.
        reliability: Float[expert]; given, the note's best and worst expert are held against it, too.
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


FORMATS = ("counter", "round list", "conditional counter", "last-step", "other")


def classify(note: str, n_experts: int = 4) -> dict[str, Any]:
    """Return the ``format`` of a note, one of :data:`FORMATS`, and the features that decided it.

    The rules, and what each feature counts: docs/method/notes.md.

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
    marks = _marks(note, letters)
    # Round numbers in lists such as "rounds 1,4,7", beyond the first of each, which a mark may have counted.
    lists = [*_RE.number_list.finditer(note), *_RE.braced.finditer(note)]
    n_listed = sum(max(2, len(re.findall(r"\d+", match[0]))) for match in lists)
    # "Accuracy: A=.45 B=.94": shares as decimals, which only a word distinguishes from weights.
    shares = re.findall(rf"(?<![A-Za-z])[{letters}]\s*[:=]?\s*[01]?\.\d+", note)
    rates = re.search(r"\b(?:accurac\w*|acc|(?:hit|success|error) rates?)\b", note, re.IGNORECASE)
    has_rates = len(shares) >= 2 and rates
    n_tallied = n_experts if has_rates else len(_tallied(note, n_experts))
    features = {
        "tallied": n_tallied,
        "conditional": _conditional(note, n_experts),
        **marks,
        "round_numbers": marks["round_marks"] + n_listed,
        "records": _records(note, letters),
        "sequences": _sequences(note, n_experts),
        "labels": len(_RE.label.findall(note)),
        "vague": bool(_RE.vague.search(note)),
        "verdict": _has_verdict(note, letters),
        "words": len(note.split()),
    }
    return {"format": _decide(SimpleNamespace(**features)), **features}


def _decide(found: SimpleNamespace) -> str:
    """Return the format by the features of :func:`classify`: the first rule that holds."""
    if not found.words:
        return "other"
    is_record = found.entries >= 3 or found.records >= 2 or found.sequences >= 2
    is_list = found.round_numbers >= 3 or found.round_marks >= 2 or found.labels >= 3
    if is_record or (_has_no_tallies(found) and (is_list or found.leading_mark)):
        return "round list"
    if found.conditional:
        return "conditional counter"
    if found.tallied >= 2:
        return "counter"
    if found.vague:
        return "other"
    return "last-step" if found.verdict or found.records else "other"


def _has_no_tallies(found: SimpleNamespace) -> bool:
    """Return whether at most one expert has a tally, and none has one for each outcome."""
    return found.tallied < 2 and not found.conditional


def _has_verdict(note: str, letters: str) -> bool:
    """Return whether a sentence says that an expert, or all or none, was right or wrong, or what it said."""
    name = f"[{letters}](?![A-Za-z])"
    subject = re.compile(rf"(?<![A-Za-z])(?:{name}|(?i:{_RE.everybody})(?![A-Za-z]))")
    for sentence in re.split(r"[.;\n]", note):
        verdict = _RE.verdict.search(sentence.lower()) or _RE.said.search(sentence)
        asks_who = re.search(r"\bwho\b", sentence)
        if verdict and subject.search(sentence) and not asks_who:
            return True
    return False


def _sequences(note: str, n_experts: int) -> int:
    """Count the experts with a sequence over rounds; one of 3 or more labels counts as two."""
    letters: set[str] = set()
    for mention in mentions(note, n_experts):
        # "A sunny correct" is what an expert said in one round, and that it was right: one value, not two.
        is_one_value = len(_RE.said_and_right.findall(mention.text)) == 1
        if not is_one_value and _RE.history.match(mention.text):
            letters.update(mention.letters)
    return len(letters) + 2 * bool(_RE.labels.search(note))


def _marks(note: str, letters: str) -> dict[str, Any]:
    """Count the round marks and those that begin an entry; does the note begin with an entry?"""
    name = rf"(?:Experts?[ _]?)?[{letters}](?![a-z])"
    content = rf"(?:{name}|{_RE.word}|label|y\b|actual|true|[01]{{2,}}|all|none|nobody|every|no\b)"
    begins = re.compile(rf"\s*(?:[:=>|]|[-–]\s*{content}|\(?\s*{content})", re.IGNORECASE)
    marked = [*_RE.mark.finditer(note), *_RE.ordinal.finditer(note)]
    entries = []
    for match in marked:
        before = note[max(0, match.start() - 12) : match.start()]
        is_stamp = _RE.stamp.search(before)
        if begins.match(note, match.end()) and not is_stamp:
            entries.append(match.start())
    n_numbered = _enumerated(note, letters)
    first = min(entries, default=len(note))
    is_leading = bool(entries) and not note[:first].strip(" ([{\"'*-")
    return {
        "round_marks": len(marked) + n_numbered,
        "entries": len(entries) + n_numbered,
        "leading_mark": is_leading,
    }


def _enumerated(note: str, letters: str) -> int:
    """Count rounds that are numbered without a word: "1) 1010->1 2) ...", "1: B,C. 2: A,B."; 0 for a ranking."""
    content = rf"[{letters}](?![a-z])|[01]{{2,}}|none|all|{_RE.word}"
    number = rf"(\d{{1,3}})(?:[\]).:]\s*(?={content})|\s+(?={_RE.word}))"
    entry = re.compile(rf"(?:\A|(?<=[\s;,|.]))[\[(]?{number}", re.IGNORECASE)
    matches = list(entry.finditer(note))
    numbers = [int(match[1]) for match in matches]
    if len(numbers) < 2 or set(np.diff(numbers)) != {1}:
        return 0
    ends = [match.start() for match in matches[1:]] + [len(note)]
    contents = set()
    for match, end in zip(matches, ends, strict=True):
        contents.add(note[match.end() : end].strip(" .;,|>"))
    is_ranking = contents <= set(letters) and len(contents) == len(matches)
    return 0 if is_ranking else len(matches)


def _records(note: str, letters: str) -> int:
    """Count whole records of one round: what each of 2 or more experts said or was, or all votes and the label."""
    name = rf"(?:Experts?[ _]?)?[{letters}]"
    verb = r"(?:\s+(?:said|says|predicted|forecast))?"
    value = rf"\s*[:=(]?\s*(?:{_RE.word}|{_RE.sign}|{_RE.bit}|[+-](?!\d))"
    vote = rf"{name}{verb}(?:{value}|\s*[:=]\s*{_RE.letter})\)?"
    run = re.compile(rf"(?<![A-Za-z]){vote}(?:[\s,;|]*(?:and\s+)?{vote})+")
    rows = 0
    for match in run.finditer(note):
        names = re.findall(
            rf"(?<![A-Za-z])(?:Experts?[ _]?)?([{letters}])(?![A-Za-z])", match.group(0)
        )
        rows += max(Counter(names).values(), default=1)
    votes = rf"(?<![\d/.])[01](?:[, ]?[01]){{{len(letters) - 1}}}\)?"
    label = r"(?:->|→|=>|/|=|:|,?\s*(?:label|outcome|truth|y)\b\W*)\s*[01](?![\d/])"
    right = rf"{_RE.word}\s*\({name}(?:[,\s]+{name})*\)"
    rows += len(re.findall(rf"{votes}\s*{label}", note))
    return rows + len(re.findall(right, note, re.IGNORECASE))


def _conditional(note: str, n_experts: int) -> int:
    """Count tallies under outcome 0 and under outcome 1.

    It is 0 unless there are some under both, or two right after one word.
    """
    conditions = {}
    for match in _RE.condition.finditer(note):
        before = note[max(0, match.start() - 14) : match.start()]
        if not _RE.one_round.search(before):
            conditions[match.start()] = _outcome(match)
    # Where the note's tallies stand, of every form.
    forms = (_RE.percent, _RE.verdict_count, *_RE.pairs[:3])
    places = [match.start() for match in _shares(note)]
    places += [match.start() for form in forms for match in form.finditer(note)]
    places += [place for _, place in _bare_tallies(note, n_experts)]
    under: Counter[int] = Counter()
    for place in places:
        earlier = [start for start in conditions if start < place]
        if earlier:
            under[conditions[earlier[-1]]] += 1
    return under.total() if len(under) == 2 else _count_after_words(note)


def _count_after_words(note: str) -> int:
    """Count tallies that stand right after a word for an outcome; 0 where there is only one."""
    after_word = r"\b(?:sunny|rainy|sun|rain)[\s:=(-]*\d+\s*(?:/|of)\s*\d+"
    n_direct = len(re.findall(after_word, note, re.IGNORECASE))
    n_rates = len(re.findall(r"\b[TF][PN]\b", note))  # true and false positives and negatives
    counted = [bool(match[1]) for match in _RE.count_of_word.finditer(note)]
    n_counted = len(counted) if len(set(counted)) == 2 else 0  # "rainy(40) sunny(39)"
    n_tallies = max(n_direct, n_rates, n_counted)
    return n_tallies if n_tallies >= 2 else 0


def _outcome(condition: re.Match[str]) -> int:
    """Return the outcome that a condition names."""
    if condition["one"]:
        return 1
    return 0 if condition["zero"] else int(condition["bit"] or condition["arrow"])
