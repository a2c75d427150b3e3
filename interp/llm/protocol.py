"""The course of an episode with a language model: a state machine, and the trace file of replies.

:meth:`Session.next` returns the next request (None if the episode is over), and
:meth:`Session.feed` takes the reply to it. The same replies always give the same requests, so an
interrupted episode is resumed by replaying its trace. docs/method/traces.md describes the requests
of a round and every line of the file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.llm.schemes import Condition, Message, ParsedReply, Turn, read_answer
from interp.support.checks import checked, checked_fields, checked_result
from interp.support.errors import InputError, require
from interp.support.files import digest_of, file_to_write
from interp.support.foreign import json_in


@dataclass(frozen=True)
@checked_fields
class Request:
    """A request to the language model: the conversation to send, and which answer it asks for.

    Attributes:
        round: index of the round.
        turn: which answer is requested: "prediction" of the round's outcome, or "note", a text that
            the model writes to itself after the round.
        attempt: 0 for the first request; higher numbers repeat it after a malformed answer.
        messages: the conversation to send.
    """

    round: int
    turn: Turn
    attempt: int
    messages: tuple[Message, ...]

    @property
    def sha256(self) -> str:
        """Digest of the messages, which identifies a recorded call when a run is resumed."""
        return digest_of(self.messages)

    def seed(self, instance: str) -> int:
        """Return a sampling seed of 31 bits. It depends only on ``instance`` (name of the episode)
        and on the request's round, turn and attempt.
        """
        text = f"{instance}/{self.round}/{self.turn}/{self.attempt}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


@dataclass
@checked_result
class Session:
    """One episode of expert advice that a language model plays: a state machine that turns replies
    into the next request.

    Attributes:
        condition: wording of outcomes, and whether the model sees the conversation so far, a note
            that it wrote to itself, or both.
        system_prompt: the system prompt.
        advice: advice of each expert in each round, Int[round, expert].
        labels: outcome of each round, Int[round].
        max_retries: number of times that a request is repeated after a malformed answer.
        note: the current note, which the next round's messages contain.
        history: messages and answers so far; empty if the protocol shows the model only its note.
        predictions: prediction of each round so far; NaN if missing.
        notes: note after each round so far; None in conditions without notes.
        malformed: number of malformed answers.
        embedded: number of answers with further words around the JSON object.
    """

    condition: Condition
    system_prompt: str
    advice: NDArray[np.int64]
    labels: NDArray[np.int64]
    max_retries: int = 2
    note: str = ""
    history: list[Message] = field(default_factory=list)
    predictions: list[float] = field(default_factory=list)
    notes: list[str | None] = field(default_factory=list)
    malformed: int = 0
    embedded: int = 0
    _round: int = 0
    _turn: Turn = "prediction"
    _malformed_replies: list[tuple[str, str]] = field(default_factory=list)
    """Replies to this turn that could not be read, each with its problem."""
    _pending: Request | None = None

    def __post_init__(self) -> None:
        """Refuse advice and labels of wrong shapes, and a negative number of retries."""
        require(
            self.advice.ndim == 2 and self.labels.shape == self.advice.shape[:1],
            f"an LLM episode needs advice [round, expert] and labels [round], got {self.advice.shape} and "
            f"{self.labels.shape}",
        )
        require(self.max_retries >= 0, f"max_retries must be 0 or more, got {self.max_retries}")

    def next(self) -> Request | None:
        """Return the next request; None if the episode is over. The same request is returned until
        :meth:`feed` gets the reply to it.
        """
        if self._round >= len(self.labels):
            return None
        if self._pending is None:
            system = {"role": "system", "content": self.system_prompt}
            messages = [system, *self.history, self._make_question()]
            # After a malformed reply, the request also has this reply, and a message that says what
            # was wrong with it.
            if self._malformed_replies:
                reply, problem = self._malformed_replies[-1]
                messages += _list_answer(reply)
                messages.append(self.condition.retry_message(self._turn, problem))
            self._pending = Request(
                self._round,
                self._turn,
                attempt=len(self._malformed_replies),
                messages=tuple(messages),
            )
        return self._pending

    @checked
    def feed(self, text: str | None, finish_reason: str = "stop", problem: str = "") -> ParsedReply:
        """Take the reply to the request of :meth:`next`, and move on to the next request.

        Args:
            text: the reply.
            finish_reason: why the reply ended, in the server's words.
            problem: why a recorded reply counted as malformed when it was recorded. It then counts
                as malformed again, so that the next request is the recorded one. "" for a new
                reply, and for a recorded one that was not malformed.

        Returns:
            What was read from the reply: the prediction or note, or why it could not be read.
        """
        require(
            self.next() is not None,
            "the episode is over: nothing was asked that a reply could be fed to",
        )
        self._pending = None
        answer = read_answer(self.condition, self._turn, text, finish_reason)
        if problem:
            answer = ParsedReply(None, problem=problem)
        self.malformed += bool(answer.problem)
        self.embedded += answer.embedded
        # A malformed answer is asked for again; after too many of them, it counts as missing.
        if answer.problem and len(self._malformed_replies) < self.max_retries:
            self._malformed_replies.append((text or "", answer.problem))
            return answer
        self._malformed_replies = []
        if self.condition.protocol != "note-only":  # then the model sees the earlier messages
            self.history += [self._make_question(), *_list_answer(text)]
        if self._turn == "prediction":
            value = answer.value if isinstance(answer.value, int) else float("nan")
            self.predictions.append(float(value))
            self._turn = "note"
            if self.condition.has_note:
                return answer
            # Without notes, no request reveals the outcome. The message of the turn "note" does, so it
            # joins the conversation, which the model sees in every condition without notes.
            self.history.append(self._make_question())
        elif isinstance(answer.value, str):
            self.note = answer.value
        self.notes.append(self.note if self.condition.has_note else None)
        self._turn = "prediction"
        self._round += 1
        return answer

    def _make_question(self) -> Message:
        """Return the user message of the current round and turn."""
        advice = self.advice[self._round].tolist()
        label = int(self.labels[self._round])
        return self.condition.question(self._turn, advice, self.note, label)


def _list_answer(text: str | None) -> list[Message]:
    """Return a list with a reply as a message of the conversation; an empty list for an empty
    reply, because some servers refuse empty messages.
    """
    return [{"role": "assistant", "content": text}] if text and text.strip() else []


FORMAT = "interp-llm-trace/2"
_DIGEST_KEY = "sha256"


class LockedError(InputError):
    """Raised if another process is writing the trace file of the episode."""


class TraceFile:
    """An open trace file (.jsonl), which records one episode call by call. It is locked against
    other processes; use it with :func:`contextlib.closing`.

    The file and its folders are created if they do not exist. An existing file must have the same
    header.

    Args:
        path: the path of the file.
        header: the settings of the episode, which are the first line of the file.

    Attributes:
        path: the path of the file.
        header: the first line.
        records: the further lines that were in the file when it was opened.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]):
        """Open and lock the file, drop an incomplete last line, and write or check the header."""
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with self._convert_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(file_to_write(path), flags, 0o644)
        with ExitStack() as undo:
            undo.callback(self.close)  # if anything below fails
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise LockedError(
                    f"{str(path)!r} is being written by another process; wait for it or choose another folder"
                ) from error
            lines, length = read_lines(path)
            with self._convert_errors():
                os.ftruncate(self._file, length)  # without a last line that a crash left incomplete
            if not lines:
                self.append(header)
                lines = [dict(header)]
            else:
                _require_same_settings(path, lines[0], header)
            self.header, *self.records = lines
            undo.pop_all()  # all went well: the file stays open

    def append(self, record: Mapping[str, Any]) -> None:
        """Write a record as one line, and sync it to disk. On a full disk, the incomplete line is
        removed and an InputError is raised.
        """
        data = line_of(record)
        length = os.fstat(self._file).st_size
        with self._convert_errors(), ExitStack() as undo:
            # If anything below fails, the file is cut back to its length before.
            undo.callback(os.ftruncate, self._file, length)
            while data:  # one write may write only a part
                n_written = os.write(self._file, data)
                data = data[n_written:]
            os.fsync(self._file)
            undo.pop_all()  # all went well: nothing is undone

    def close(self) -> None:
        """Close the file, so that another process can write the trace."""
        os.close(self._file)

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Context manager: turn errors of the operating system into an InputError."""
        try:
            yield
        except OSError as error:
            raise InputError(
                f"cannot write the trace {str(self.path)!r}: {error.strerror}; what was recorded is safe: free some "
                "space or choose a folder that can be written, and run the same command again to resume"
            ) from error


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Read a trace, the record of an episode. An incomplete last line is left out.

    Returns:
        The records of the complete lines, and the length of these lines in bytes.

    Raises:
        InputError: if a line is damaged.
    """
    records = []
    length = 0
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):  # the last line, cut off by a crash
            break
        record = json_in(line)
        # Every record has a digest of its other fields.
        is_whole = isinstance(record, dict) and record.pop(_DIGEST_KEY, None) == digest_of(record)
        require(
            is_whole,
            f"line {number} of the trace {str(path)!r} is damaged; move the file away and run again",
        )
        records.append(record)
        length += len(line)
    return records, length


def line_of(record: Mapping[str, Any]) -> bytes:
    """Return a record as a line of a trace file: JSON in bytes with a line break, and a digest of
    the content as a further field.
    """
    signed = {**record, _DIGEST_KEY: digest_of(record)}
    return json.dumps(signed, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"


def _require_same_settings(
    path: Path, header: Mapping[str, Any], wanted_header: Mapping[str, Any]
) -> None:
    """Refuse to resume a trace that was begun with other settings. The error names the first
    setting that differs.

    Args:
        path: path of the trace.
        header: header of the trace.
        wanted_header: header of the run that would resume it.
    """
    if header.get("format") != FORMAT:
        raise InputError(
            f"{str(path)!r} is not a trace of this version ({FORMAT}); choose another output folder"
        )
    recorded = _flatten_header(header)
    as_on_disk = json.loads(json.dumps(wanted_header))  # tuples become lists
    wanted = _flatten_header(as_on_disk)
    n_rounds, n_wanted = len(recorded["instance.labels"]), len(wanted["instance.labels"])
    require(
        n_rounds == n_wanted,
        f"{str(path)!r} has {n_rounds} rounds, and {n_wanted} were asked for; ask for as many to resume it, or choose "
        "another output folder",
    )
    for key in sorted(recorded.keys() | wanted.keys()):
        old_value, new_value = recorded.get(key), wanted.get(key)
        before = textwrap.shorten(json.dumps(old_value), 60)
        now = textwrap.shorten(json.dumps(new_value), 60)
        require(
            old_value == new_value or key.startswith("made_with."),  # versions may differ
            f"{str(path)!r} was begun with another {key} ({before}, now {now}); "
            "use the same settings to resume it, or choose another output folder",
        )


def _flatten_header(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a header without nesting: ``{"settings.temperature": 0, ...}``."""
    fields: dict[str, Any] = {}
    for name, value in header.items():
        if isinstance(value, dict):
            fields.update({f"{name}.{part}": within for part, within in value.items()})
        else:
            fields[name] = value
    return fields


def session_from(header: Mapping[str, Any]) -> Session:
    """Return the state machine of the episode that the first line of a trace (its header)
    describes, before the first round.
    """
    instance = header["instance"]
    condition = Condition(header["condition"]["framing"], header["condition"]["protocol"])
    return Session(
        condition,
        header["prompt"]["text"],
        advice=np.asarray(instance["advice"], np.int64),
        labels=np.asarray(instance["labels"], np.int64),
        max_retries=header["settings"]["max_reasks"],
    )


def replay(
    session: Session, records: Sequence[Mapping[str, Any]], path: Path, rounds: int | None = None
) -> str | None:
    """Feed the recorded replies of an episode to a session, the state machine of the episode. The
    session then is where the recording ends.

    Args:
        session: the session at its start.
        records: the lines of the trace file after its header.
        path: path of the trace file, for error messages.
        rounds: number of rounds to replay; all if None.

    Returns:
        How the episode ended: "complete", "overflow" (the model's context was full), "refused" (a
        server refused the next request), or None (it was interrupted).
    """
    end: str | None = None
    for number, record in enumerate(records, 2):  # line 1 is the header
        if len(session.notes) == rounds:  # one note per finished round
            return end
        if "end" in record:
            end = str(record["end"])
        elif "refused" in record:
            end = "refused"
        else:
            # The recorded reply must be to the request that the session makes now.
            request = session.next()
            follows = request is not None and record.get("messages_sha256") == request.sha256
            require(
                follows,
                f"line {number} of the trace {str(path)!r} does not follow from the lines before it (the file was "
                "edited, or made with other prompts or another version); move it away and run again",
            )
            feed_record(session, record)
            end = None
    return end


def feed_record(session: Session, record: Mapping[str, Any]) -> None:
    """Feed a recorded reply to a session, which then moves on to its next request.

    Args:
        session: the session of an episode.
        record: one line of a trace as a dictionary; "reply" is the text of the reply.
    """
    finish_reason = record.get("finish_reason") or "stop"
    session.feed(record.get("reply"), finish_reason, record.get("problem") or "")
