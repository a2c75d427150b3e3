"""Edits of a note: what an intervention writes into the text that carries a player's state from round to round.

:func:`edited` gives every edit that applies to a note, and every control: another text that says the same. A note may
be in any form, so an edit is kept only where the edited text, read again by :func:`~interp.llm.agents.evidence_in`,
says what the edit means, and a control only where it says what the note said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from interp.checks import checked
from interp.llm.agents import Evidence, evidence_in
from interp.llm.note_counts import mentions, read_counts, write_counts
from interp.llm.schemes import expert_letters

EDITS = {
    "swap two players": "the names of the expert with most and the one with fewest right predictions change places",
    "permute names": "every expert gets the name of the next one, the last that of the first",
    "edit one count": "the expert with fewest right predictions gets one more than the best has, or every round",
    "delete the best": "what the note says of the expert with most right predictions is taken out",
    "counts that never happened": "a new note: right and wrong predictions of every expert change places",
    "an earlier note": "the player's own note of half as many rounds",
}
CONTROLS = {
    "the same note": "asked once more, with another seed",
    "paraphrase": "the same counts in other words",
    "reorder": "the same parts in the opposite order",
    "an irrelevant sentence": "one more sentence, about nothing that is asked",
}
_IRRELEVANT = "The office moves to another building next month."


def same_state(one: Evidence, other: Evidence) -> bool:
    """Do two notes say the same: of counts, or where there are none, of who was right last?"""
    alike = np.array_equal(one.correct, other.correct)
    return bool(alike and (one.correct.any() or np.array_equal(one.last, other.last)))


@checked
def says_anything(note: str, n_experts: int) -> bool:
    """Does a note tell the experts apart, by counts or by who was right last?"""
    said = evidence_in(note, n_experts)
    return bool(np.ptp(said.correct) or (said.last.any() and not said.last.all()))


@checked
def edited(note: str, n_experts: int, earlier: str | None = None) -> dict[str, str]:
    """Every edit and every control that applies to ``note``, by its name in :data:`EDITS` or :data:`CONTROLS`.

    Args:
        earlier: the note that the player wrote after half as many rounds.

    >>> edited("A:5/9, B:3/9, C:8/9, D:2/9", 4)["swap two players"]
    'A:5/9, B:3/9, D:8/9, C:2/9'
    """
    said, letters = evidence_in(note, n_experts), expert_letters(n_experts)
    order = said.correct if said.correct.any() else said.last.astype(np.int64)
    best, worst = int(order.argmax()), int(order.argmin())
    raised = order.copy()
    raised[worst] = min(order[best] + 1, said.rounds)
    swapped = {letters[best]: letters[worst], letters[worst]: letters[best]}
    around = dict(zip(letters, letters[1:] + letters[:1], strict=True))
    without = order.copy()
    without[best] = 0
    # The text, and what every expert's count has to be in it.
    wanted = {
        "swap two players": (renamed(note, swapped, n_experts), _moved(order, swapped, letters)),
        "permute names": (renamed(note, around, n_experts), _moved(order, around, letters)),
        "edit one count": (_recounted(note, letters[worst], int(raised[worst]), n_experts), raised),
        "delete the best": (_without(note, letters[best], n_experts), without),
    }
    changed = {name: pair for name, pair in wanted.items() if not np.array_equal(pair[1], order)}
    found = {name: text for name, (text, counts) in changed.items() if _says(text, counts, n_experts)}
    if said.correct.any():
        found["counts that never happened"] = write_counts((said.rounds - said.correct).tolist(), said.rounds)
    if earlier is not None and says_anything(earlier, n_experts):
        found["an earlier note"] = earlier
    controls = {"the same note": note, "an irrelevant sentence": f"{note.rstrip().removesuffix('.')}. {_IRRELEVANT}"}
    controls |= {"paraphrase": _in_words(said, letters)} if len(read_counts(note, n_experts)) == n_experts else {}
    tried = controls | {"reorder": _reordered(note, said, n_experts)}
    return found | {name: text for name, text in tried.items() if same_state(evidence_in(text, n_experts), said)}


def _says(text: str, counts: np.ndarray, n_experts: int) -> bool:
    said = evidence_in(text, n_experts)
    return np.array_equal(said.correct if said.correct.any() else said.last, counts)


def _moved(counts: np.ndarray, names: Mapping[str, str], letters: tuple[str, ...]) -> np.ndarray:
    moved = counts.copy()
    for old, new in names.items():
        moved[letters.index(new)] = counts[letters.index(old)]
    return moved


@checked
def renamed(note: str, names: Mapping[str, str], n_experts: int) -> str:
    """``note`` with the letters of experts replaced, all at once.

    >>> renamed("Expert_A and B right; C wrong", {"A": "C", "C": "A"}, 4)
    'Expert_C and B right; A wrong'
    """
    parts, end = [], 0
    for mention in mentions(note, n_experts):
        named = re.sub(
            r"(?<![A-Za-z])[A-Z](?![A-Za-z])", lambda m: names.get(m[0], m[0]), note[mention.begin : mention.start]
        )
        parts += [note[end : mention.begin], named]
        end = mention.start
    return "".join([*parts, note[end:]])


def _recounted(note: str, letter: str, count: int, n_experts: int) -> str:
    """The first number after the first mention of an expert alone, replaced."""
    for mention in mentions(note, n_experts):
        if mention.letters == (letter,):
            end = mention.start + len(mention.text)
            return note[: mention.start] + re.sub(r"\d+", str(count), mention.text, count=1) + note[end:]
    return note


def _without(note: str, letter: str, n_experts: int) -> str:
    """Every mention of an expert taken out: its name, and where it is named alone what follows up to a separator."""
    for mention in reversed(mentions(note, n_experts)):
        if mention.letters == (letter,):
            rest = re.sub(r"\A[^,;.\n]*[,;.\n]?\s*", "", mention.text)
            note = note[: mention.begin] + rest + note[mention.start + len(mention.text) :]
        elif letter in mention.letters:
            named = re.sub(rf"{letter}(?![A-Za-z])\s*(?:,|&|/|and\b)?\s*", "", note[mention.begin : mention.start])
            note = note[: mention.begin] + re.sub(r"\s*(?:,|&|/|\band)\s*\Z", "", named) + note[mention.start :]
    return note


def _in_words(said: Evidence, letters: tuple[str, ...]) -> str:
    counted = zip(letters, said.correct.tolist(), strict=True)
    return "; ".join(f"Expert {letter} was right {count} times out of {said.rounds}" for letter, count in counted)


def _reordered(note: str, said: Evidence, n_experts: int) -> str:
    """The parts between separators in the opposite order, by the first separator that leaves what is said alone."""
    for separator, between in ((r"[;\n]\s*", "; "), (r"[;,\n]\s*", ", "), (r"\s+(?=Round)", " ")):
        parts = [part for part in re.split(separator, note.strip().removesuffix(".")) if part]
        text = between.join(reversed(parts))
        if len(parts) > 1 and same_state(evidence_in(text, n_experts), said):
            return text
    return ""
