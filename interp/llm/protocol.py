"""One episode between a language model and the task, as a pure state machine.

:meth:`Session.next` gives the next request (or None when the episode is over) and :meth:`Session.feed` takes the reply
to it. No clock, network, file or random number is involved: the same replies give the same requests. The runner
drives it with a server, resuming drives it with recorded replies, scripted agents drive it in tests, a dry run
drives it to count tokens.

Round t (paper, appendix F.3): *ask* for a prediction; then reveal the outcome, which under ``note`` and ``note-only``
is a second request, answered by the note that the next round starts with.

Malformed answers are asked again at most ``max_retries`` times: the request is repeated with the malformed answer and
one retry message at its end. The retained history keeps none of that, only the first request and the answer that was
accepted in the end. When every attempt failed, the prediction is *missing* (NaN, never 0), or the note stays as it
was; the history then keeps the last malformed answer, because a conversation must alternate.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from interp.checks import checked
from interp.errors import require
from interp.llm import schemes
from interp.llm.schemes import Agent, Answer, Condition, Message, Turn, read_answer


@dataclass(frozen=True)
class Request:
    """The next call: ``attempt`` 0 is the first, higher numbers re-ask a malformed answer."""

    round: int
    turn: Turn
    attempt: int
    messages: tuple[Message, ...]

    @property
    def sha256(self) -> str:
        """Digest of the messages: what a recorded call is compared by when a run is resumed."""
        return hashlib.sha256(json.dumps(self.messages, sort_keys=True).encode()).hexdigest()

    def seed(self, instance: str) -> int:
        """A sampling seed that depends on the instance, round, turn and attempt alone (31 bits)."""
        text = f"{instance}/{self.round}/{self.turn}/{self.attempt}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


@dataclass
class Session:
    """One episode in progress.

    ``advice`` is Int[round, expert], ``labels`` Int[round]; a malformed answer is asked again ``max_retries`` times.
    ``note`` and ``history`` are what earlier rounds carry into the next one; given, the episode begins from them.
    Without ``last_note`` it ends with the last prediction, for no round follows that could read the note.
    After the last reply, ``predictions`` holds one entry per finished round (NaN where missing) and ``notes`` the note
    after each round (None under ``no-note``).
    """

    condition: Condition
    system_prompt: str
    advice: NDArray[np.int64]
    labels: NDArray[np.int64]
    max_retries: int = 2
    note: str = ""
    history: list[Message] = field(default_factory=list)
    last_note: bool = True
    predictions: list[float] = field(default_factory=list)
    notes: list[str | None] = field(default_factory=list)
    malformed: int = 0
    embedded: int = 0
    _round: int = 0
    _turn: Turn = "prediction"
    _attempts: list[tuple[str, str]] = field(default_factory=list)
    _pending: Request | None = None

    def __post_init__(self) -> None:
        require(
            self.advice.ndim == 2 and self.labels.shape == self.advice.shape[:1],
            f"an LLM episode needs advice [round, expert] and labels [round], got {self.advice.shape} and "
            f"{self.labels.shape}",
        )
        self.history = list(self.history)
        require(self.max_retries >= 0, f"max_retries must be 0 or more, got {self.max_retries}")

    @property
    def n_rounds(self) -> int:
        """How many rounds the episode has."""
        return len(self.labels)

    @checked
    def extend(self, advice: NDArray[np.int64], labels: NDArray[np.int64]) -> None:
        """Go on over a longer instance, of which the present one is the beginning."""
        n = self.n_rounds
        require(
            len(labels) > n and np.array_equal(advice[:n], self.advice) and np.array_equal(labels[:n], self.labels),
            f"an instance of {n} rounds can only be extended by one that begins with the same rounds",
        )
        self.advice, self.labels = advice, labels

    def next(self) -> Request | None:
        """The next request; the same one until it is fed; None when the episode is over."""
        over = self._turn == "note" and self._round == self.n_rounds - 1 and not self.last_note
        if self._round >= self.n_rounds or over:
            return None
        if self._pending is None:
            messages = [{"role": "system", "content": self.system_prompt}, *self.history, self._question()]
            if self._attempts:
                reply, problem = self._attempts[-1]
                # Some servers refuse an assistant message without content.
                messages += [{"role": "assistant", "content": reply}] if reply.strip() else []
                messages.append(schemes.retry_message(self.condition, self._turn, problem))
            self._pending = Request(self._round, self._turn, len(self._attempts), tuple(messages))
        return self._pending

    @checked
    def feed(self, text: str | None, finish_reason: str = "stop", problem: str = "") -> Answer:
        """Take the reply to :meth:`next` and move on; returns what was read from it.

        ``problem``: why it was malformed when it was recorded; rules that read more by now do not change what followed.
        """
        require(self.next() is not None, "the episode is over: nothing was asked that a reply could be fed to")
        self._pending = None
        answer = read_answer(self.condition, self._turn, text, finish_reason)
        answer = Answer(None, problem=problem) if problem else answer
        self.malformed += not answer.ok
        self.embedded += answer.embedded
        if not answer.ok and len(self._attempts) < self.max_retries:
            self._attempts.append((text or "", answer.problem))
            return answer
        self._accept(text or "", answer)
        return answer

    def _question(self) -> Message:
        votes = self.advice[self._round].tolist()
        if self._turn == "prediction":
            return schemes.prediction_message(self.condition, votes, self.note)
        return schemes.feedback_message(self.condition, votes, self.note, int(self.labels[self._round]))

    def _accept(self, text: str, answer: Answer) -> None:
        if self.condition.keeps_history:
            self.history.append(self._question())
            self.history += [{"role": "assistant", "content": text}] if text.strip() else []
        self._attempts = []
        if self._turn == "prediction":
            self.predictions.append(float(answer.value) if isinstance(answer.value, int) else float("nan"))
            if self.condition.has_note:
                self._turn = "note"
                return
            votes = self.advice[self._round].tolist()
            self.history.append(schemes.feedback_message(self.condition, votes, "", int(self.labels[self._round])))
            self.notes.append(None)
        else:
            if isinstance(answer.value, str):
                self.note = answer.value
            self.notes.append(self.note)
        self._turn = "prediction"
        self._round += 1


def play(session: Session, agent: Agent) -> Session:
    """Run a session to its end with ``agent``, without any server."""
    while (request := session.next()) is not None:
        session.feed(agent(request.messages))
    return session
