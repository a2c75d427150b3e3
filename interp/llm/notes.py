r"""What a note says: its format (paper, appendix F.3, table of note formats).

The paper gives the names of the formats and an example of each, not its rules. Ours, where the first that holds
decides:

1. *Other*: empty.
2. *Round list*: a record of several rounds. That is: entries of 3 or more rounds ("Round2: ...", "R2: ...", "2) ...");
   2 or more whole records ("A=1,B=0,C=0,D=1,label=1" or "1001->1"); or a sequence for 2 or more experts, or of 3 or
   more outcomes ("A:1,0,1 B:0,0,1", "A ✓✗✓"). A note without tallies is one, too, where it refers to 3 or more rounds
   by number ("rounds 1,4,7"), has 2 or more round marks, begins with one, or gives 3 or more labels.
3. *Conditional counter*: tallies split by outcome, or by what the expert said ("sunny 22/39, rainy 18/61").
4. *Counter*: a tally for 2 or more experts, in any of the forms of :mod:`interp.llm.note_counts`.
5. *Other*: a word of vague frequency (often, tends to, ...), or a condition (if, when).
6. *Last-step*: what the experts said, or who of them was right, in one round.
7. *Other*: all else.

The features that decide are returned with the verdict, so that they can be regrouped. The rules read surface form
only: a note called Counter need not count correctly, which is what :func:`~interp.llm.note_counts.read_counts` is for,
nor be used by the model.

This folder's README says how good they are on the labelled notes of ``tests/llm/notes.jsonl``. The same person wrote
notes and rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from interp.llm.note_counts import BAD, GOOD, mentions, tallied, tally_places
from interp.llm.schemes import expert_letters

FORMATS = ("counter", "round list", "conditional counter", "last-step", "other")

# One outcome, or one verdict on it, as notes write them.
_WORD = r"(?:sunny|rainy|sun|rain)\b"
_SIGN = r"[✓✔✗✘×]"
_BIT = r"[01](?![\d/.%])"
_LETTER = r"[SRWCTFYNHMX](?![A-Za-z])"
_MARK = re.compile(r"\b(?:round|rd|day|step|turn|r|t)[ _#=]?(\d+)(?![\d/])", re.IGNORECASE)
_ORDINAL = re.compile(r"\b(?:first|second|third|fourth|fifth) (?:round|day)\b", re.IGNORECASE)
_STAMP = re.compile(
    r"(?:\b(?:after|through|until|till|as of|at|by|up to|in|on|since|last|wrong|right|correct|missed|errors?)|[(,&])"
    r"[^\w;.]*\Z",
    re.IGNORECASE,
)
_NUMBER_LIST = re.compile(
    r"\b(?:rounds?|days?|steps?|rd|r|wrong|right|correct|errors?|missed)\W*(?:(?:in|at|on)\W+)?(?:(?:rounds?|days?)\W+)?\d+"
    r"(?:\s*(?:,|&|and|-)\s*(?:and\s+)?(?:rounds?\s*|days?\s*|r|rd)?\d+(?![\d/.%]))+",
    re.IGNORECASE,
)
_BRACED = re.compile(r"(?<![A-Za-z])[A-Z]\s*[{\[]\s*\d+(?:\s*,\s*\d+)+\s*[}\]]")
_LABEL = re.compile(r"\b(?:true_?|actual_?)?(?:label|truth|outcome|y)\s*(?:is|was|[=:])?\s*[01](?!\d)", re.IGNORECASE)
_LABELS = re.compile(
    rf"\b(?:labels?|truth|true|actual|outcomes?|days|weather|history|y)\b[^\d:=]{{0,12}}[:=]?\s*(?:[01]{{3,}}(?!\d)"
    rf"|(?:{_WORD}|[01SR])(?:[,\s]+(?:{_WORD}|[01SR])(?![\w/.%])){{2,}})",
    re.IGNORECASE,
)
_VAGUE = re.compile(
    r"\b(?:often|rarely|usually|sometimes|frequently|mostly|generally|always|never|occasionally|seldom|typically|tends?|"
    r"half the time|most experts|most of the time|if|when|whenever)\b",
    re.IGNORECASE,
)
_EVERYBODY = r"all|every(?:one|body)|nobody|no ?one|none|no expert|others?|rest|both|majority"
_VERDICT = re.compile(
    rf"(?<!most )(?<!least )(?<!more )(?<!less )(?<!very )(?<![A-Za-z])"
    rf"(?:{GOOD}|{BAD}|got it|had it|called it|on target|agreed|disagreed|matched|ok)(?![A-Za-z])"
)
_SAID = re.compile(rf"\b(?:said|predicted|forecast(?:ed)?|announced)\W+(?:(?:it|the)\b|{_WORD}|[01]\b)", re.IGNORECASE)
_CONDITION = re.compile(
    r"(?P<one>\bsun(?:ny)?\b|\bS(?=[ :=(]{0,2}\d+\s*[/%]))|(?P<zero>\brain(?:y)?\b|\bR(?=[ :=(]{0,2}\d+\s*[/%]))"
    r"|(?:\b(?:label|y|truth|outcome|says?|saying|gives?|predict(?:s|ing)?|forecasts?|on|for|when|if [A-Z]|\| ?[A-Z])"
    r"\s*(?:is|says?|[=:])?\s*|(?<![A-Za-z])[A-Z]\(|(?:\A|(?<=[.;|] ))(?=[01]:))(?P<bit>[01])(?![\d/.%])"
    r"|(?<![\d/.])(?P<arrow>[01])(?:\s*(?:->|→)\s*(?=\d+\s*/)|s\b)",
    re.IGNORECASE,
)
_SAID_AND_RIGHT = re.compile(rf"{_WORD}[\s,:(-]{{1,3}}((?:right|wrong|(?:in)?correct)\b)", re.IGNORECASE)
_COUNT_OF_WORD = re.compile(r"\b(?:(sun)(?:ny)?|rain(?:y)?)\s*\(\d+\)", re.IGNORECASE)
# "A said sunny", "it was sunny": the outcome of one round, not a condition that a tally stands under.
_ONE_ROUND = re.compile(r"\b(?:said|was|actual\w*|today|yesterday|last \w+)\W*\Z", re.IGNORECASE)


@dataclass(frozen=True)
class _NoteFormat:
    """A note's format and the features that decided it.

    Attributes:
        tallied: experts with a tally; ``conditional``: tallies under outcome 0 and under outcome 1, 0 unless both.
        round_marks: rounds referred to by a mark; ``entries``: marks that begin an entry; ``leading_mark``: the note
            begins with one; ``round_numbers``: rounds referred to by number, in lists too.
        records: whole records of one round; ``sequences``: experts (and labels) with a sequence over rounds;
            ``labels``: labels given.
        vague: a word of vague frequency or a condition; ``verdict``: says who was right, or what was said.
    """

    format: str
    tallied: int
    conditional: int
    round_marks: int
    entries: int
    leading_mark: bool
    round_numbers: int
    records: int
    sequences: int
    labels: int
    vague: bool
    verdict: bool
    words: int


def classify(note: str, n_experts: int = 4) -> _NoteFormat:
    """The format of a note, one of :data:`FORMATS`, by the rules above.

    >>> classify("A:45/100, B:94/100, C:69/100, D:77/100").format
    'counter'
    >>> classify("A 3, B 8, C 5, D 6 out of 9").format
    'counter'
    >>> classify("A:1,0,1 B:0,0,1 C:1,1,1 D:0,1,0 label:1,0,1").format
    'round list'
    >>> classify("A correct; B,C,D wrong").format
    'last-step'
    """
    letters = "".join(expert_letters(n_experts))
    marks, entries, leading = _marks(note, letters)
    # "Accuracy: A=.45 B=.94": shares as decimals, which only a word distinguishes from weights.
    shares = re.findall(rf"(?<![A-Za-z])[{letters}]\s*[:=]?\s*[01]?\.\d+", note)
    rates = re.search(r"\b(?:accurac\w*|acc|(?:hit|success|error) rates?)\b", note, re.IGNORECASE)
    # Round numbers in lists such as "rounds 1,4,7", beyond the first of each, which a mark may have counted.
    lists = [*_NUMBER_LIST.finditer(note), *_BRACED.finditer(note)]
    found = _NoteFormat(
        format="",
        tallied=n_experts if len(shares) >= 2 and rates else len(tallied(note, n_experts)),
        conditional=_conditional(note, n_experts),
        round_marks=marks,
        entries=entries,
        leading_mark=leading,
        round_numbers=marks + sum(max(2, len(re.findall(r"\d+", match.group(0)))) for match in lists),
        records=_records(note, letters),
        sequences=_sequences(note, n_experts),
        labels=len(_LABEL.findall(note)),
        vague=bool(_VAGUE.search(note)),
        verdict=_verdict(note, letters),
        words=len(note.split()),
    )
    return replace(found, format=_decide(found, bool(note.strip())))


def _decide(found: _NoteFormat, text: bool) -> str:
    listed = found.round_numbers >= 3 or found.round_marks >= 2 or found.leading_mark or found.labels >= 3
    if not text:
        return "other"
    if found.entries >= 3 or found.records >= 2 or found.sequences >= 2:
        return "round list"
    if found.tallied < 2 and listed and not found.conditional:
        return "round list"
    if found.conditional:
        return "conditional counter"
    if found.tallied >= 2:
        return "counter"
    if found.vague:
        return "other"
    return "last-step" if found.verdict or found.records else "other"


def _marks(note: str, letters: str) -> tuple[int, int, bool]:
    """Round marks; those that begin an entry; whether the note begins with an entry."""
    name = rf"(?:Experts?[ _]?)?[{letters}](?![a-z])"
    content = rf"(?:{name}|{_WORD}|label|y\b|actual|true|[01]{{2,}}|all|none|nobody|every|no\b)"
    begins = re.compile(rf"\s*(?:[:=>|]|[-–]\s*{content}|\(?\s*{content})", re.IGNORECASE)
    marked = [*_MARK.finditer(note), *_ORDINAL.finditer(note)]
    entries = [
        match
        for match in marked
        if not _STAMP.search(note[max(0, match.start() - 12) : match.start()]) and begins.match(note, match.end())
    ]
    numbered = _enumerated(note, letters)
    first = min((match.start() for match in entries), default=len(note))
    leading = bool(entries) and not note[:first].strip(" ([{\"'*-")
    return len(marked) + numbered, len(entries) + numbered, leading


def _enumerated(note: str, letters: str) -> int:
    """How many rounds are numbered without a word: "1) 1010->1 2) ...", "1: B,C. 2: A,B."; 0 for a ranking."""
    content = rf"[{letters}](?![a-z])|[01]{{2,}}|none|all|{_WORD}"
    entry = re.compile(
        rf"(?:\A|(?<=[\s;,|.]))[\[(]?(\d{{1,3}})(?:[\]).:]\s*(?={content})|\s+(?={_WORD}))", re.IGNORECASE
    )
    found = list(entry.finditer(note))
    numbers = [int(match.group(1)) for match in found]
    if len(found) < 2 or numbers != list(range(numbers[0], numbers[0] + len(found))):
        return 0
    ends = [match.start() for match in found[1:]] + [len(note)]
    contents = [note[match.end() : end].strip(" .;,|>") for match, end in zip(found, ends, strict=True)]
    is_ranking = all(re.fullmatch(rf"[{letters}]", text) for text in contents) and len(set(contents)) == len(contents)
    return 0 if is_ranking else len(found)


def _records(note: str, letters: str) -> int:
    """Whole records of one round: what each of 2 or more experts said or was, or all votes as digits and the label."""
    name = rf"(?:Experts?[ _]?)?[{letters}]"
    said = r"(?:\s+(?:said|says|predicted|forecast))?"
    one = rf"{name}{said}(?:\s*[:=(]?\s*(?:{_WORD}|{_SIGN}|{_BIT}|[+-](?!\d))|\s*[:=]\s*{_LETTER})\)?"
    run = re.compile(rf"(?<![A-Za-z]){one}(?:[\s,;|]*(?:and\s+)?{one})+")
    rows = 0
    for match in run.finditer(note):
        names = re.findall(rf"(?<![A-Za-z])(?:Experts?[ _]?)?([{letters}])(?![A-Za-z])", match.group(0))
        rows += max(names.count(letter) for letter in set(names)) if names else 1
    votes = rf"(?<![\d/.])[01](?:[, ]?[01]){{{len(letters) - 1}}}\)?"
    label = r"(?:->|→|=>|/|=|:|,?\s*(?:label|outcome|truth|y)\b\W*)\s*[01](?![\d/])"
    right = rf"{_WORD}\s*\({name}(?:[,\s]+{name})*\)"
    return rows + len(re.findall(rf"{votes}\s*{label}", note)) + len(re.findall(right, note, re.IGNORECASE))


def _sequences(note: str, n_experts: int) -> int:
    """Experts with a sequence over rounds; a sequence of 3 or more labels counts as two."""
    value = (
        rf"(?:(?:{_WORD}|(?:right|wrong|(?:in)?correct)\b(?!\W*\d))(?:\s*\((?!\d+\))\w+\))?|{_SIGN}|{_BIT}|{_LETTER})"
    )
    spread = rf"{value}(?:[,\s]+{value})+"
    dense = rf"(?:[01]{{3,}}(?![\d/.%])|{_SIGN}{{2,}}|[CWRXTFHMSO]{{3,}}(?![a-z]))"
    history = re.compile(rf"\s*(?:seq\w*|history|record)?\s*[:=(\[-]?\s*(?:{dense}|{spread})")
    # "A sunny correct" is what an expert said in one round, and that it was right: one value, not two.
    said = [(one.letters, one.text, len(_SAID_AND_RIGHT.findall(one.text)) == 1) for one in mentions(note, n_experts)]
    found = {letter for letters, text, once in said if not once and history.match(text) for letter in letters}
    return len(found) + 2 * bool(_LABELS.search(note))


def _conditional(note: str, n_experts: int) -> int:
    """Tallies under outcome 0 and under outcome 1; 0 unless there are some under both, or two right after one word."""
    conditions = []
    for match in _CONDITION.finditer(note):
        if not _ONE_ROUND.search(note[max(0, match.start() - 14) : match.start()]):
            outcome = 1 if match["one"] else 0 if match["zero"] else int(match["bit"] or match["arrow"])
            conditions.append((match.start(), outcome))
    under = [0, 0]
    for start in tally_places(note, n_experts):
        before = [outcome for place, outcome in conditions if place < start]
        if before:
            under[before[-1]] += 1
    direct = len(re.findall(r"\b(?:sunny|rainy|sun|rain)[\s:=(-]*\d+\s*(?:/|of)\s*\d+", note, re.IGNORECASE))
    rates = len(re.findall(r"\b[TF][PN]\b", note))  # true and false positives and negatives
    bare = [bool(match[1]) for match in _COUNT_OF_WORD.finditer(note)]  # "rainy(40) sunny(39)"
    direct = max(direct, len(bare) if len(set(bare)) == 2 else 0)
    return sum(under) if all(under) else max(direct, rates) if max(direct, rates) >= 2 else 0


def _verdict(note: str, letters: str) -> bool:
    """Does a sentence say of an expert, or of all or none, that it was right or wrong, or what it said?"""
    subject = re.compile(rf"(?<![A-Za-z])(?:[{letters}](?![A-Za-z])|(?i:{_EVERYBODY})(?![A-Za-z]))")
    for sentence in re.split(r"[.;\n]", note):
        says = _VERDICT.search(sentence.lower()) or _SAID.search(sentence)
        if says and subject.search(sentence) and not re.search(r"\bwho\b", sentence):
            return True
    return False
