"""What answers as the model of an episode: a server, a scripted agent or a model in this process,
all by one interface.

The runner uses only :class:`Backend`. Every failure is one of four errors, by its meaning for
the run: the episode is over (:class:`ContextOverflowError`), the episode is skipped
(:class:`RefusedError`), the answer may come later (:class:`UnavailableError`), or the run cannot go
on until the user changes something (``InputError``). A scripted agent is known behaviour that
speaks the protocol and sees what a model would see.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from interp.llm.notes import read_counts, write_counts
from interp.llm.schemes import (
    RESPONSE_FORMATS,
    Condition,
    Message,
    Turn,
    expert_letters,
    read_message,
)
from interp.support.checks import checked, checked_fields, checked_result
from interp.support.errors import InputError, require, require_known, theirs


class UnavailableError(RuntimeError):
    """No answer came in any attempt; the run can be resumed."""


class ContextOverflowError(RuntimeError):
    """The conversation no longer fits into the model's context."""


class RefusedError(RuntimeError):
    """The server refuses this very request, and will refuse it again; other requests may be answered."""


@dataclass(frozen=True)
@checked_result
class Reply:
    """The model's reply; ``usage`` is the server's record, ``more`` holds all further fields
    (reasoning, ids).
    """

    text: str
    finish_reason: str = "stop"
    model: str = ""
    system_fingerprint: str | None = None
    usage: dict[str, Any] | None = None
    seconds: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class Backend(Protocol):
    """Anything that answers."""

    address: str
    """Where the answers come from; recorded with every call."""
    concurrency: int

    async def start(self, condition: Condition) -> None:
        """Find out what can be found out without an episode; called once before the first request."""
        return

    async def ask(
        self, messages: Sequence[Message], condition: Condition, turn: Turn, seed: int
    ) -> Reply:
        """Return the reply to a conversation.

        Args:
            messages: the conversation so far.
            condition: how outcomes are written.
            turn: which answer the last message requests.
            seed: of the draws, where the player draws.

        Raises:
            UnavailableError, ContextOverflowError, RefusedError: see there.
            InputError: the user must change something.
        """

    def holds_key(self, text: str) -> bool:
        """Return whether a secret is in ``text``, which is about to be written."""
        return False

    async def close(self) -> None:
        """Close what is open; called once after the last request."""
        return


class AgentBackend(Backend):
    """A scripted agent (:mod:`interp.llm.backend`): no server, no waiting, the same traces."""

    def __init__(self, name: str, agent: Callable[[Sequence[Message]], str]):
        self.name = name
        self.agent = agent
        self.address = f"scripted agent {name}"
        self.concurrency = 1

    async def ask(
        self, messages: Sequence[Message], condition: Condition, turn: Turn, seed: int
    ) -> Reply:
        """Return the scripted agent's answer.

        Args:
            messages, condition, turn, seed: as in :meth:`Backend.ask`; only the messages are used.
        """
        await asyncio.sleep(0)  # so that an interrupt is noticed between two calls
        return Reply(self.agent(messages), model=self.name)


THINKING_OFF: dict[str, dict[str, Any]] = {
    "": {},
    "deepseek": {"thinking": {"type": "disabled"}},
    "chat-template": {"chat_template_kwargs": {"enable_thinking": False}},
}


@dataclass(frozen=True)
@checked_fields
class Settings:
    """What can change an answer. A run is resumed with the same settings only.

    Args:
        model: the model's name on the server.
        temperature: sampling temperature; None leaves it out of the request.
        top_p: probability of nucleus sampling (top-p); by default it is not sent to the server.
        max_tokens: the longest answer; None leaves it out.
        response_format: format of answers that the server must enforce: none (as in the paper),
            json_object, json_schema or grammar (llama.cpp).
        thinking_off: how a request turns thinking off: deepseek, or chat-template (Qwen-3 on
            vLLM, llama.cpp).
        extra_body: more request fields, such as ``{"top_k": 20}``.
        send_seed: send the server a seed that depends on instance, round, turn and attempt.
        max_reasks: number of times that a request is repeated after a malformed answer, before
            the answer counts as missing.
    """

    model: str
    temperature: float | None = 0.0
    top_p: float | None = None
    max_tokens: int | None = 2048
    response_format: str = "none"
    thinking_off: str = ""
    extra_body: dict[str, Any] = field(default_factory=dict)
    send_seed: bool = True
    max_reasks: int = 2

    @property
    def longest_answer(self) -> int | None:
        """Largest number of tokens of an answer, under either name; None where no limit is set."""
        longest = self.max_tokens or self.extra_body.get("max_completion_tokens")
        return longest if isinstance(longest, int) else None

    def __post_init__(self) -> None:
        require(
            bool(self.model.strip()), "model must name a model on the server, got an empty name"
        )
        _check_ranges(
            self, temperature=(0, 2), top_p=(0, 1), max_tokens=(1, 10**6), max_reasks=(0, 20)
        )
        require_known("response format", self.response_format, RESPONSE_FORMATS)
        if self.thinking_off:
            require_known(
                "way to turn thinking off",
                self.thinking_off,
                [name for name in THINKING_OFF if name],
            )


def _check_ranges(settings: Settings | Connection, **ranges: tuple[int, int]) -> None:
    for name, (low, high) in ranges.items():
        value = getattr(settings, name)
        require(
            value is None or low <= value <= high, f"{name} must be in [{low}, {high}], got {value}"
        )


# The environment variable that each provider's own documents name, for its own address only.
_PROVIDER_KEYS = {"api.openai.com": "OPENAI_API_KEY", "api.deepseek.com": "DEEPSEEK_API_KEY"}


@dataclass(frozen=True)
@checked_fields
class Connection:
    """How the server is reached; may differ when a run is resumed.

    Args:
        base_url: such as ``http://127.0.0.1:8000/v1``; without user, password or query.
        key_env: environment variable with the API key of the server. None means the provider's own variable at the
            addresses in :data:`_PROVIDER_KEYS`, and no key at a server on this machine; any other address needs it, so
            that a key never goes to a host it was not given for.
        concurrency: number of episodes that are played at the same time, each with one open request.
        requests_per_minute: largest number of requests per minute, over all episodes and with
            retries; no limit by default.
        timeout: time limit of one request in seconds.
        max_retries: number of further attempts of a request after a temporary error of the server.
    """

    base_url: str
    key_env: str | None = None
    concurrency: int = 4
    requests_per_minute: float | None = None
    timeout: float = 120.0
    max_retries: int = 8

    def __post_init__(self) -> None:
        with theirs("base_url is not an address: {error}", of=ValueError):
            parts = urlsplit(self.base_url)
            parts.port  # noqa: B018  (reading it checks it)
        wrong = parts.scheme or self.base_url
        require(
            parts.scheme in ("http", "https") and bool(parts.hostname),
            f"base_url must be an address such as http://127.0.0.1:8000/v1, got {wrong!r}",
        )
        require(
            not (parts.username or parts.password or parts.query or parts.fragment),
            "base_url must not hold a user, password, query or fragment: they could be secrets and would be "
            "recorded; put the key into an environment variable and name it with key_env",
        )
        _check_ranges(self, concurrency=(1, 1000), max_retries=(0, 50))
        rate = self.requests_per_minute
        require(rate is None or rate > 0, f"requests_per_minute must be > 0, got {rate}")
        require(self.timeout > 0, f"timeout must be > 0 seconds, got {self.timeout}")

    @property
    def host(self) -> str:
        """The name or number of the server."""
        return urlsplit(self.base_url).hostname or ""

    @property
    def is_local(self) -> bool:
        """True if the server is on this machine: no proxy stands between, and no key is needed."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def key(self) -> str:
        """Return the key for this address; "" where none is needed."""
        name = self.key_env or _PROVIDER_KEYS.get(self.host)
        if name is None and self.is_local:
            return ""
        if name is None:
            raise InputError(
                f"no key was given for {self.host}; put its key into an environment variable and name that with "
                "key_env (--key-env), for a server without keys any word will do; keys of other providers are not sent "
                "to it"
            )
        key = os.environ.get(name, "").strip()
        require(
            bool(key),
            f"the environment variable {name} is not set; put the key for {self.base_url} there",
        )
        return key


_Counts = NDArray[np.int64]
# A round in the notes of the agent "full-history".
_LISTED = re.compile(r"Round\d+: ((?:[A-Z]=[01],)+)label=([01])")


@dataclass(frozen=True)
@checked_result
class Evidence:
    """What an agent knows before it answers: right predictions per expert, rounds seen, who was right last."""

    correct: _Counts
    rounds: int
    last: NDArray[np.bool_]

    def add(self, is_right: NDArray[np.bool_]) -> Evidence:
        """Return the evidence after one more round, in which these experts were right."""
        return Evidence(self.correct + is_right, self.rounds + 1, last=is_right)


@dataclass(frozen=True)
@checked_fields
class ScriptedAgent:
    """A decision rule, ``(evidence, votes Int[expert]) -> 0 or 1``, and a way to write notes.

    ``write`` is ``(note, evidence after the round, votes, label) -> new note``.
    """

    rule: Callable[[Evidence, _Counts], int]
    write: Callable[[str, Evidence, _Counts, int], str]

    def __call__(self, messages: Sequence[Message]) -> str:
        bodies = [read_message(message) for message in messages if message["role"] == "user"]
        *earlier, body = [body for body in bodies if body["turn_type"] != "retry"]
        votes = _votes(body)
        note = str(body.get("note", ""))
        evidence = _evidence_of(earlier, len(votes))
        if not evidence.rounds:  # the conversation says more than the note, where there is one
            evidence = evidence_in(note, len(votes))
        if body["turn_type"] == "feedback":
            label = _label(body)
            return json.dumps(
                {"note": self.write(note, evidence.add(votes == label), votes, label)}
            )
        outcome = self.rule(evidence, votes)
        words = ("rainy", "sunny") if body["turn_type"] == "forecast" else (0, 1)
        return json.dumps({"prediction": words[outcome]})


def _no_evidence(n_experts: int) -> Evidence:
    return Evidence(np.zeros(n_experts, np.int64), 0, last=np.zeros(n_experts, bool))


def _evidence_of(bodies: Sequence[dict[str, Any]], n_experts: int) -> Evidence:
    """Return what the rounds of a conversation tell of the experts."""
    evidence = _no_evidence(n_experts)
    votes = evidence.correct
    for body in bodies:
        if "Expert_A" in body:  # without a note, feedback does not repeat the advice
            votes = _votes(body)
        if body["turn_type"] == "feedback":
            evidence = evidence.add(votes == _label(body))
    return evidence


@checked
def evidence_in(note: str, n_experts: int) -> Evidence:
    """Return what a note tells: tallies, rounds that it lists after them, and who was right last.

    The last winners are read from "A correct; B wrong", where no rounds are listed.
    """
    letters = expert_letters(n_experts)
    counts = read_counts(_LISTED.split(note, maxsplit=1)[0], n_experts)
    correct = np.array([counts.get(letter, (0, 0))[0] for letter in letters])
    rounds = max((total for _, total in counts.values()), default=0)
    winners = re.search(r"([A-Z](?:,[A-Z])*) correct", note)
    names = winners[1] if winners else ""
    evidence = Evidence(correct, rounds, last=np.array([letter in names for letter in letters]))
    for record, label in _LISTED.findall(note):
        votes = dict(re.findall(r"([A-Z])=([01])", record))
        # Who is not in a record was not right in it.
        evidence = evidence.add(np.array([votes.get(letter) == label for letter in letters]))
    return evidence


_BITS = {"rainy": 0, "sunny": 1, 0: 0, 1: 1}


def _votes(body: dict[str, Any]) -> _Counts:
    votes = [_BITS[value] for key, value in body.items() if key.startswith("Expert_")]
    return np.array(votes, dtype=np.int64)


def _label(body: dict[str, Any]) -> int:
    return _BITS[body["actual_weather"] if "actual_weather" in body else body["true_label"]]


def _follow_the_leader(seen: Evidence, votes: _Counts) -> int:
    """Return the advice of the expert with most right predictions; ties go to the first."""
    return int(votes[seen.correct.argmax()])


def _weighted_majority(seen: Evidence, votes: _Counts) -> int:
    """Return the vote with weights ``exp(-.3 * losses)``; a tie is 1 (tolerance 1e-12)."""
    weights = np.exp(0.3 * (seen.correct - seen.correct.max(initial=0)))
    return int(np.average(votes, weights=weights) >= 0.5 - 1e-12)


def _majority(seen: Evidence, votes: _Counts) -> int:
    """Return the vote without weights; a tie is 1."""
    return int(2 * votes.sum() >= len(votes))


def _follow_previous_winners(seen: Evidence, votes: _Counts) -> int:
    """Return the majority of those who were right in the last round; without winners, or in a tie,
    that of all experts.
    """
    winners = votes[seen.last]
    is_tied = 2 * winners.sum() == len(winners)
    return _majority(seen, votes if is_tied else winners)


def _random_choice(seen: Evidence, votes: _Counts) -> int:
    """Draw a coin that falls the same way whenever the same is seen, so that runs can be
    repeated.
    """
    text = f"{seen.correct.tolist()} {seen.rounds} {votes.tolist()}"
    return hashlib.sha256(text.encode()).digest()[0] % 2


def _counter_note(note: str, seen: Evidence, votes: _Counts, label: int) -> str:
    """Write how often each expert was right, and in how many rounds, in the form of the prompt.

    Args:
        note: the last note; not used.
        seen: counts so far.
        votes, label: of the round; not used.
    """
    return write_counts(seen.correct.tolist(), seen.rounds)


def _last_step_note(note: str, seen: Evidence, votes: _Counts, label: int) -> str:
    """Write who was right and who was wrong in the last round only.

    Args:
        note: the last note; not used.
        seen: counts so far; not used.
        votes: of the round, Int[expert].
        label: of the round.
    """
    letters = np.array(expert_letters(len(votes)))
    right = ",".join(letters[votes == label])
    wrong = ",".join(letters[votes != label])
    parts = {"correct": right, "wrong": wrong}
    return "; ".join(f"{names} {verdict}" for verdict, names in parts.items() if names)


def _full_history_note(note: str, seen: Evidence, votes: _Counts, label: int) -> str:
    """Add one more round to the list in the note.

    Args:
        note: the last note.
        seen: counts so far; not used.
        votes: of the round, Int[expert].
        label: of the round.
    """
    letters = np.array(expert_letters(len(votes)))
    listed = ",".join(f"{letter}={vote}" for letter, vote in zip(letters, votes, strict=True))
    wrong = ",".join(letters[votes != label]) or "none"
    number = note.count("Round") + 1
    return f"{note} Round{number}: {listed},label={label}; {wrong} wrong.".strip()


AGENTS: dict[str, ScriptedAgent] = {
    "counter": ScriptedAgent(_follow_the_leader, _counter_note),
    "last-step": ScriptedAgent(_follow_previous_winners, _last_step_note),
    "full-history": ScriptedAgent(_weighted_majority, _full_history_note),
    "random": ScriptedAgent(_random_choice, _counter_note),
    "follow-the-leader": ScriptedAgent(_follow_the_leader, _counter_note),
    "weighted-majority": ScriptedAgent(_weighted_majority, _counter_note),
    "majority": ScriptedAgent(_majority, _counter_note),
}
PLAYERS = {
    "counter": "follows the leader; its note counts",
    "last-step": "follows the last round's winners; its note tells of that round alone",
    "full-history": "weighted majority; its note lists every round",
    "random": "tosses a coin; its note counts and is not used",
}
