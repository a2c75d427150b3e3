"""Scripted agents: known behaviour that speaks the protocol, as baselines and as test doubles of a model.

An agent is a function from messages to a reply. It sees what a model would see and nothing else: under ``note-only``
all it knows of earlier rounds is what its own note says. So a Follow-the-Leader agent whose note is a counter
proves that the note carries the state, and one whose note tells of the last round alone cannot follow any leader.

The four in :data:`PLAYERS` are the default that needs no model: ``interp llm run --agent counter``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.checks import checked
from interp.errors import require_known
from interp.llm.note_counts import read_counts, write_counts
from interp.llm.schemes import Message, expert_letters, read_message

Counts = NDArray[np.int64]
# A round in the notes of the agent "full-history".
_LISTED = re.compile(r"Round\d+: ((?:[A-Z]=[01],)+)label=([01])")
_VOTE = re.compile(r"([A-Z])=([01])")


@dataclass(frozen=True)
class Evidence:
    """What an agent knows before it answers: right predictions per expert, rounds seen, who was right last."""

    correct: Counts
    rounds: int
    last: NDArray[np.bool_]


@dataclass(frozen=True)
class ScriptedAgent:
    """A decision rule and a way to write notes.

    Args:
        rule: ``(evidence, votes Int[expert]) -> 0 or 1``.
        write: ``(note, evidence after the round, votes, label) -> new note``.
    """

    rule: Callable[[Evidence, Counts], int]
    write: Callable[[str, Evidence, Counts, int], str]

    def __call__(self, messages: Sequence[Message]) -> str:
        told = [read_message(message) for message in messages if message["role"] == "user"]
        rounds = [body for body in told if body["turn_type"] != "retry"]
        body = rounds[-1]
        note = str(body.get("note", ""))
        votes = _votes(body)
        if body["turn_type"] == "feedback":
            label = _label(body)
            before = evidence(rounds[:-1], note, len(votes))
            right = votes == label
            after = Evidence(before.correct + right, before.rounds + 1, right)
            return json.dumps({"note": self.write(note, after, votes, label)})
        said = self.rule(evidence(rounds[:-1], note, len(votes)), votes)
        return json.dumps({"prediction": ("rainy", "sunny")[said] if body["turn_type"] == "forecast" else said})


def evidence(rounds: Sequence[dict[str, Any]], note: str, n_experts: int) -> Evidence:
    """From the retained conversation where there is one, else from the note."""
    seen: list[NDArray[np.bool_]] = []
    votes = np.array([], dtype=np.int64)
    for body in rounds:
        votes = _votes(body) if "Expert_A" in body else votes  # without a note, feedback does not repeat the advice
        if body["turn_type"] == "feedback":
            seen.append(votes == _label(body))
    if seen:
        return Evidence(np.sum(seen, axis=0), len(seen), seen[-1])
    return evidence_in(note, n_experts)


@checked
def evidence_in(note: str, n_experts: int) -> Evidence:
    """What a note tells: tallies, rounds that it lists after them, and who was right last (``A correct; B wrong``)."""
    letters = expert_letters(n_experts)
    begin = first.start() if (first := _LISTED.search(note)) else len(note)
    counts = read_counts(note[:begin], n_experts)
    correct = np.array([counts.get(letter, (0, 0))[0] for letter in letters])
    rounds = max((total for _, total in counts.values()), default=0)
    if listed := _LISTED.findall(note):
        # Who is not in a record was not right in it.
        said = [(dict(_VOTE.findall(record)), label) for record, label in listed]
        right = np.array([[votes.get(name) == label for name in letters] for votes, label in said])
        return Evidence(correct + right.sum(axis=0), rounds + len(right), right[-1])
    winners = re.search(r"([A-Z](?:,[A-Z])*) correct", note)
    last = np.array([winners is not None and letter in winners.group(1) for letter in letters])
    return Evidence(correct, rounds, last)


def _votes(body: dict[str, Any]) -> Counts:
    return np.array([_bit(value) for key, value in body.items() if key.startswith("Expert_")], dtype=np.int64)


def _label(body: dict[str, Any]) -> int:
    return _bit(body["actual_weather"] if "actual_weather" in body else body["true_label"])


def _bit(word: object) -> int:
    return {"rainy": 0, "sunny": 1, 0: 0, 1: 1}[word]


def follow_the_leader(seen: Evidence, votes: Counts) -> int:
    """The advice of the expert with most right predictions; ties to the first."""
    return int(votes[int(np.argmax(seen.correct))])


@checked
def weighted_majority(eta: float) -> Callable[[Evidence, Counts], int]:
    """Vote with weights ``exp(-eta * losses)``; a tied vote says 1 (tolerance 1e-12)."""

    def rule(seen: Evidence, votes: Counts) -> int:
        weights = np.exp(eta * (seen.correct - seen.correct.max(initial=0)))
        return int(weights @ votes / weights.sum() >= 0.5 - 1e-12)

    return rule


def majority(seen: Evidence, votes: Counts) -> int:
    """Unweighted vote; a tie says 1."""
    return int(2 * votes.sum() >= len(votes))


def follow_previous_winners(seen: Evidence, votes: Counts) -> int:
    """Majority of those who were right last; no winner or a tie: majority of all."""
    winners = votes[seen.last]
    tied = 2 * winners.sum() == len(winners)  # also where nobody was right
    return majority(seen, votes if tied else winners)


def _counter_note(note: str, seen: Evidence, votes: Counts, label: int) -> str:
    """How often each expert was right, and of how many rounds, in the prompt's own form."""
    return write_counts(seen.correct.tolist(), seen.rounds)


def _random_choice(seen: Evidence, votes: Counts) -> int:
    """A coin that falls the same way whenever the same is seen, so that runs can be repeated."""
    text = f"{seen.correct.tolist()} {seen.rounds} {votes.tolist()}"
    return hashlib.sha256(text.encode()).digest()[0] % 2


def _last_step_note(note: str, seen: Evidence, votes: Counts, label: int) -> str:
    """Who was right and who was wrong in the last round, and nothing of earlier ones."""
    letters = np.array(expert_letters(len(votes)))
    right = votes == label
    said = [f"{','.join(letters[who])} {what}" for who, what in ((right, "correct"), (~right, "wrong")) if who.any()]
    return "; ".join(said)


def _full_history_note(note: str, seen: Evidence, votes: Counts, label: int) -> str:
    """One more round in the list."""
    letters = np.array(expert_letters(len(votes)))
    listed = ",".join(f"{letter}={vote}" for letter, vote in zip(letters, votes, strict=True))
    wrong = ",".join(letters[votes != label]) or "none"
    return f"{note} Round{note.count('Round') + 1}: {listed},label={label}; {wrong} wrong.".strip()


AGENTS: dict[str, ScriptedAgent] = {
    "counter": ScriptedAgent(follow_the_leader, _counter_note),
    "last-step": ScriptedAgent(follow_previous_winners, _last_step_note),
    "full-history": ScriptedAgent(weighted_majority(0.3), _full_history_note),
    "random": ScriptedAgent(_random_choice, _counter_note),
    "follow-the-leader": ScriptedAgent(follow_the_leader, _counter_note),
    "weighted-majority": ScriptedAgent(weighted_majority(0.3), _counter_note),
    "majority": ScriptedAgent(majority, _counter_note),
}
PLAYERS = {
    "counter": "follows the leader; its note counts",
    "last-step": "follows the last round's winners; its note tells of that round alone",
    "full-history": "weighted majority; its note lists every round",
    "random": "tosses a coin; its note counts and is not used",
}


@checked
def scripted(name: str) -> ScriptedAgent:
    """The agent called ``name``."""
    require_known("scripted agent", name, AGENTS)
    return AGENTS[name]
