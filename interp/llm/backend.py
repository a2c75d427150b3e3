"""Backends: what answers a request in an episode, which is a server, a scripted agent or a model in
this process.

They share the interface :class:`Backend`. There are four errors, each with another consequence for
the run:

* :class:`ContextOverflowError`: the episode ends;
* :class:`RefusedError`: the episode is skipped;
* :class:`UnavailableError`: the run stops and can be resumed later;
* ``InputError``: the run stops until the user changes something.

A scripted agent follows a known decision rule. It gets the same messages as a language model and
answers in the same format.
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
from interp.support.errors import InputError, convert_errors, require, require_known


class UnavailableError(RuntimeError):
    """Raised if a request got no answer in any attempt; the run stops and can be resumed later."""


class ContextOverflowError(RuntimeError):
    """Raised if a conversation is longer than the model's context."""


class RefusedError(RuntimeError):
    """Raised if the server refuses a request and would refuse it again; it may answer other
    requests.
    """


@dataclass(frozen=True)
@checked_result
class Reply:
    """A model's reply.

    Attributes:
        text: the text of the reply.
        finish_reason: why the reply ended, in the server's words; "length" means that it was cut
            off at the token limit.
        model: name of the model that the server reports.
        system_fingerprint: the server's identifier of its configuration.
        usage: numbers of tokens as the server reports them, such as ``{"prompt_tokens": 12}``.
        seconds: duration of the call.
        more: all further fields of the server's answer, such as reasoning and ids.
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
    """The interface of a player, which answers the requests of every round of an episode: a server,
    a scripted agent or a local model.

    Attributes:
        address: where the answers come from; recorded with every call.
        concurrency: number of episodes that are played at the same time.
    """

    address: str
    """Where the answers come from; recorded with every call."""
    concurrency: int

    async def start(self, condition: Condition) -> None:
        """Prepare for requests, and check what can be checked without playing an episode.

        It is called once, before the first request.

        Args:
            condition: wording of outcomes and kind of notes of the first episode.
        """
        return

    async def ask(
        self, messages: Sequence[Message], condition: Condition, turn: Turn, seed: int
    ) -> Reply:
        """Return the reply to a conversation.

        Args:
            messages: the conversation so far.
            condition: wording of outcomes (0/1 or rainy/sunny), and whether the model writes notes.
            turn: which answer the last message asks for: "prediction" or "note".
            seed: seed for sampling; ignored by a backend that does not sample.

        Raises:
            UnavailableError: if no attempt was answered.
            ContextOverflowError: if the conversation does not fit into the model's context.
            RefusedError: if the request is refused.
            InputError: if the user must change something.
        """

    def holds_key(self, text: str) -> bool:
        """Return whether a secret key occurs in ``text``, which is about to be written to a file."""
        return False

    async def close(self) -> None:
        """Close connections; called once after the last request."""
        return


class AgentBackend(Backend):
    """A backend that answers with a scripted agent, without a server. The recorded episodes have
    the same format as a language model's.

    Args:
        name: name of the agent, which is recorded as the name of the model.
        agent: function from the conversation so far to the text of the answer.
    """

    def __init__(self, name: str, agent: Callable[[Sequence[Message]], str]):
        self.name = name
        self.agent = agent
        self.address = f"scripted agent {name}"
        self.concurrency = 1

    async def ask(
        self, messages: Sequence[Message], condition: Condition, turn: Turn, seed: int
    ) -> Reply:
        """Return the scripted agent's answer to a conversation.

        Args:
            messages: the conversation so far.
            condition, turn, seed: not used; see :meth:`Backend.ask`.
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
    """Settings that can change a model's answers. A run can be resumed only with the same settings.

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
        """Largest number of tokens of an answer: ``max_tokens``, or "max_completion_tokens" in
        ``extra_body``; None if there is no limit.
        """
        longest = self.max_tokens or self.extra_body.get("max_completion_tokens")
        return longest if isinstance(longest, int) else None

    def __post_init__(self) -> None:
        """Refuse an empty name, numbers out of range, and unknown words."""
        require(self.model.strip(), "model must name a model on the server, got an empty name")
        _check_ranges(
            self, temperature=(0, 2), top_p=(0, 1), max_tokens=(1, 10**6), max_reasks=(0, 20)
        )
        require_known("response format", self.response_format, RESPONSE_FORMATS)
        # "" leaves thinking on, and is a key of the table of ways to turn it off.
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
    """How a server is reached: address, key and limits. It may change when a run is resumed.

    Args:
        base_url: such as ``http://127.0.0.1:8000/v1``; without user, password or query.
        key_env: name of the environment variable that holds the API key. None takes the provider's
            usual variable for OpenAI and DeepSeek, such as OPENAI_API_KEY, and no key for a server
            on this machine. For any other address :meth:`key` then raises an error, so that a key
            never goes to the wrong host.
        concurrency: number of episodes that are played at the same time, each with one open
            request.
        requests_per_minute: maximum number of requests per minute, over all episodes and counting
            repeated requests; None for no limit.
        timeout: time limit of one request in seconds.
        max_retries: maximum number of times that a request is repeated after a temporary error of
            the server.
    """

    base_url: str
    key_env: str | None = None
    concurrency: int = 4
    requests_per_minute: float | None = None
    timeout: float = 120.0
    max_retries: int = 8

    def __post_init__(self) -> None:
        """Refuse an address that is none or may hold secrets, and numbers out of range."""
        with convert_errors("base_url is not an address: {error}", of=ValueError):
            parts = urlsplit(self.base_url)
            parts.port  # noqa: B018  (reading it checks it)
        # The error message shows only the scheme: the rest of the address may hold a secret.
        shown = parts.scheme or self.base_url
        require(
            parts.scheme in ("http", "https") and parts.hostname,
            f"base_url must be an address such as http://127.0.0.1:8000/v1, got {shown!r}",
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
        """The host name or IP address of the server."""
        return urlsplit(self.base_url).hostname or ""

    @property
    def is_local(self) -> bool:
        """Whether the server runs on this machine, so that no proxy is used and no key is needed."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def key(self) -> str:
        """Return the API key of the server, read from an environment variable: the one that
        ``key_env`` names, or that of a known provider. Return "" if the server runs on this machine
        and ``key_env`` is not set.

        Raises:
            InputError: if no variable is known for this address, or the variable is not set.
        """
        variable = self.key_env or _PROVIDER_KEYS.get(self.host)
        if variable is None and self.is_local:
            return ""
        if variable is None:
            raise InputError(
                f"no key was given for {self.host}; put its key into an environment variable and name that with "
                "key_env (--key-env), for a server without keys any word will do; keys of other providers are not sent "
                "to it"
            )
        key = os.environ.get(variable, "").strip()
        require(
            key,
            f"the environment variable {variable} is not set; put the key for {self.base_url} there",
        )
        return key


_Counts = NDArray[np.int64]
# One round as it is written in the notes of the agent "full-history".
_LISTED_ROUND = re.compile(r"Round\d+: ((?:[A-Z]=[01],)+)label=([01])")


@dataclass(frozen=True)
@checked_result
class Evidence:
    """What an agent knows about the experts before it answers.

    Attributes:
        correct: number of right predictions of each expert so far, Int[expert].
        rounds: number of rounds so far.
        right_last: which experts were right in the last round, Bool[expert].
    """

    correct: _Counts
    rounds: int
    right_last: NDArray[np.bool_]

    def add(self, is_right: NDArray[np.bool_]) -> Evidence:
        """Return the evidence after one more round.

        Args:
            is_right: which experts were right in that round, Bool[expert].
        """
        return Evidence(self.correct + is_right, self.rounds + 1, right_last=is_right)


@dataclass(frozen=True)
@checked_fields
class ScriptedAgent:
    """An agent with a known decision rule and a known way to write notes.

    Attributes:
        rule: function ``(evidence, votes)`` -> prediction, 0 or 1. The evidence is about earlier
            rounds; the votes are the experts' advice in this round, Int[expert].
        write: function ``(last note, evidence after the round, votes, outcome of the round)`` ->
            the new note.
    """

    rule: Callable[[Evidence, _Counts], int]
    write: Callable[[str, Evidence, _Counts, int], str]

    def __call__(self, messages: Sequence[Message]) -> str:
        """Return the agent's reply to a conversation, as JSON text.

        Args:
            messages: the conversation; its last message of the user is the request.
        """
        bodies = [read_message(message) for message in messages if message["role"] == "user"]
        # A message that asks again for an answer only repeats the request before it.
        *earlier, request = [body for body in bodies if body["turn_type"] != "retry"]
        votes = _read_votes(request)
        last_note = str(request.get("note", ""))
        evidence = _read_evidence(earlier, len(votes))
        # A conversation may begin with this round. What happened before is then only in the note.
        if not evidence.rounds:
            evidence = evidence_in(last_note, len(votes))
        # Feedback reveals the outcome of the round and asks for a note. Other requests ask for a
        # prediction.
        if request["turn_type"] == "feedback":
            label = _read_label(request)
            new_note = self.write(last_note, evidence.add(votes == label), votes, label)
            return json.dumps({"note": new_note})
        outcome = self.rule(evidence, votes)
        # A "forecast" is worded as weather.
        words = ("rainy", "sunny") if request["turn_type"] == "forecast" else (0, 1)
        return json.dumps({"prediction": words[outcome]})


def _read_evidence(bodies: Sequence[dict[str, Any]], n_experts: int) -> Evidence:
    """Return what a conversation shows about the experts, as an :class:`Evidence`: how often each
    expert was right, and which experts were right in the last round.

    Args:
        bodies: the JSON objects of the user messages so far.
        n_experts: number of experts.
    """
    votes = np.zeros(n_experts, np.int64)
    evidence = Evidence(votes, 0, right_last=votes > 0)  # before the first round, all are 0
    for body in bodies:
        # Feedback, which has the outcome, may lack the advice. Then an earlier message has it.
        if "Expert_A" in body:
            votes = _read_votes(body)
        if body["turn_type"] == "feedback":
            evidence = evidence.add(votes == _read_label(body))
    return evidence


@checked
def evidence_in(note: str, n_experts: int) -> Evidence:
    """Return what a note shows about the experts, as an :class:`Evidence`.

    A note may have tallies (such as "A:45/100"), and single rounds listed after them; right
    predictions in listed rounds are added to the tallies. Which experts were right in the last
    round is read from the last listed round. If no round is listed, it is read from text such as "A
    correct; B wrong".

    Args:
        note: text of the note.
        n_experts: number of experts.
    """
    letters = expert_letters(n_experts)
    before_listed_rounds = _LISTED_ROUND.split(note, maxsplit=1)[0]
    counts = read_counts(before_listed_rounds, n_experts)  # letter -> (right, rounds)
    correct = np.array([counts.get(letter, (0, 0))[0] for letter in letters])
    rounds = max((total for _, total in counts.values()), default=0)
    winners = re.search(r"([A-Z](?:,[A-Z])*) correct", note)  # such as "A,C correct"
    names = winners[1] if winners else ""
    evidence = Evidence(
        correct, rounds, right_last=np.array([letter in names for letter in letters])
    )
    # Rounds are listed as "Round2: A=1,B=0,label=1".
    for listed_votes, label in _LISTED_ROUND.findall(note):
        votes = dict(re.findall(r"([A-Z])=([01])", listed_votes))
        # An expert without a vote in a listed round was not right in it.
        evidence = evidence.add(np.array([votes.get(letter) == label for letter in letters]))
    return evidence


_OUTCOMES = {"rainy": 0, "sunny": 1, 0: 0, 1: 1}
"""Value in a message -> outcome."""


def _read_votes(body: dict[str, Any]) -> _Counts:
    votes = [_OUTCOMES[value] for key, value in body.items() if key.startswith("Expert_")]
    return np.array(votes, dtype=np.int64)


def _read_label(body: dict[str, Any]) -> int:
    return _OUTCOMES[body["actual_weather"] if "actual_weather" in body else body["true_label"]]


def _follow_the_leader(evidence: Evidence, votes: _Counts) -> int:
    """Return the vote of the expert with the most right predictions so far; of several such
    experts, the first.

    Args:
        evidence: what the agent knows about the experts.
        votes: advice of the round, Int[expert].
    """
    return int(votes[evidence.correct.argmax()])


def _weighted_majority(evidence: Evidence, votes: _Counts) -> int:
    """Return the outcome, 0 or 1, with the larger total weight of votes; a tie (tolerance 1e-12)
    gives 1.

    Args:
        evidence: what the agent knows about the experts. An expert with n wrong predictions so far has
            the weight ``exp(-.3 * n)``.
        votes: advice of the round, Int[expert].
    """
    # An expert with n wrong predictions has been right in all other rounds. So differences in right
    # predictions give the same weights up to a factor, which cancels. Weights are relative to the
    # best expert's, so that they do not overflow.
    weights = np.exp(0.3 * (evidence.correct - evidence.correct.max(initial=0)))
    return int(np.average(votes, weights=weights) >= 0.5 - 1e-12)


def _majority(evidence: Evidence, votes: _Counts) -> int:
    """Return the outcome, 0 or 1, that most experts vote for; a tie gives 1.

    Args:
        evidence: what the agent knows about the experts; not used.
        votes: advice of the round, Int[expert].
    """
    return int(2 * votes.sum() >= len(votes))


def _follow_previous_winners(evidence: Evidence, votes: _Counts) -> int:
    """Return the majority vote of the experts who were right in the last round.

    If there are none, or if their votes are tied, return the majority vote of all experts.

    Args:
        evidence: what the agent knows about the experts.
        votes: advice of the round, Int[expert].
    """
    votes_of_winners = votes[evidence.right_last]
    is_tied = 2 * votes_of_winners.sum() == len(votes_of_winners)  # also without a winner
    return _majority(evidence, votes if is_tied else votes_of_winners)


def _draw_choice(evidence: Evidence, votes: _Counts) -> int:
    """Return a pseudo-random outcome, 0 or 1. It is computed from a hash of the arguments, so that
    the same run can be repeated.

    Args:
        evidence: what the agent knows about the experts.
        votes: advice of the round, Int[expert].
    """
    text = f"{evidence.correct.tolist()} {evidence.rounds} {votes.tolist()}"
    return hashlib.sha256(text.encode()).digest()[0] % 2


def _write_counter_note(note: str, evidence: Evidence, votes: _Counts, label: int) -> str:
    """Return a note with each expert's number of right predictions out of all rounds, such as
    "A:45/100, B:94/100".

    Args:
        note: the last note; not used.
        evidence: the evidence after the round.
        votes, label: advice and outcome of the round; not used.
    """
    return write_counts(evidence.correct.tolist(), evidence.rounds)


def _write_last_step_note(note: str, evidence: Evidence, votes: _Counts, label: int) -> str:
    """Return a note about the last round only, such as "A,C correct; B wrong".

    Args:
        note: the last note; not used.
        evidence: the evidence after the round; not used.
        votes: advice of the round, Int[expert].
        label: outcome of the round.
    """
    letters = np.array(expert_letters(len(votes)))
    right = ",".join(letters[votes == label])
    wrong = ",".join(letters[votes != label])
    parts = {"correct": right, "wrong": wrong}
    return "; ".join(f"{names} {verdict}" for verdict, names in parts.items() if names)


def _write_full_history_note(note: str, evidence: Evidence, votes: _Counts, label: int) -> str:
    """Return the last note with one more round appended, such as "Round2: A=1,B=0,label=1; B
    wrong."

    Args:
        note: the last note.
        evidence: the evidence after the round; not used.
        votes: advice of the round, Int[expert].
        label: outcome of the round.
    """
    letters = np.array(expert_letters(len(votes)))
    listed = ",".join(f"{letter}={vote}" for letter, vote in zip(letters, votes, strict=True))
    wrong = ",".join(letters[votes != label]) or "none"
    number = note.count("Round") + 1
    return f"{note} Round{number}: {listed},label={label}; {wrong} wrong.".strip()


AGENTS: dict[str, ScriptedAgent] = {
    "counter": ScriptedAgent(_follow_the_leader, _write_counter_note),
    "last-step": ScriptedAgent(_follow_previous_winners, _write_last_step_note),
    "full-history": ScriptedAgent(_weighted_majority, _write_full_history_note),
    "random": ScriptedAgent(_draw_choice, _write_counter_note),
    "follow-the-leader": ScriptedAgent(_follow_the_leader, _write_counter_note),
    "weighted-majority": ScriptedAgent(_weighted_majority, _write_counter_note),
    "majority": ScriptedAgent(_majority, _write_counter_note),
}
PLAYERS = {
    "counter": "follows the leader; its note counts",
    "last-step": "follows the last round's winners; its note tells of that round alone",
    "full-history": "weighted majority; its note lists every round",
    "random": "tosses a coin; its note counts and is not used",
}
