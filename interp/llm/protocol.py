"""One episode between a language model and the task: a pure state machine, and the trace that
stores its replies.

:meth:`Session.next` gives the next request (or None when the episode is over) and
:meth:`Session.feed` takes the reply to it: the same replies give the same requests, so resuming is
replaying. The requests of a round, its history, and
every line of the file: docs/method/traces.md.
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
    """A call to make: ``attempt`` 0 is the first, higher numbers re-ask a malformed answer."""

    round: int
    turn: Turn
    attempt: int
    messages: tuple[Message, ...]

    @property
    def sha256(self) -> str:
        """Digest of the messages: what a recorded call is compared by when a run is resumed."""
        return digest_of(self.messages)

    def seed(self, instance: str) -> int:
        """Return a sampling seed that depends on the instance, round, turn and attempt alone (31 bits)."""
        text = f"{instance}/{self.round}/{self.turn}/{self.attempt}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


@dataclass
@checked_result
class Session:
    """One episode in progress.

    ``advice`` is Int[round, expert], ``labels`` Int[round]; a malformed answer is asked again
    ``max_retries`` times. ``note`` and ``history`` are what earlier rounds carry into the next one.
    After the last reply, ``predictions`` holds one entry per finished round (NaN where missing) and
    ``notes`` the note after each round (None under ``no-note``).
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
    _attempts: list[tuple[str, str]] = field(default_factory=list)
    _pending: Request | None = None

    def __post_init__(self) -> None:
        require(
            self.advice.ndim == 2 and self.labels.shape == self.advice.shape[:1],
            f"an LLM episode needs advice [round, expert] and labels [round], got {self.advice.shape} and "
            f"{self.labels.shape}",
        )
        require(self.max_retries >= 0, f"max_retries must be 0 or more, got {self.max_retries}")

    @property
    def _is_over(self) -> bool:
        return self._round >= len(self.labels)

    def next(self) -> Request | None:
        """Return the next request; the same one until it is fed; None when the episode is over."""
        if self._is_over:
            return None
        if self._pending is None:
            system = {"role": "system", "content": self.system_prompt}
            messages = [system, *self.history, self._question()]
            if self._attempts:
                reply, problem = self._attempts[-1]
                messages += _answered(reply)
                messages.append(self.condition.retry_message(self._turn, problem))
            self._pending = Request(
                self._round, self._turn, attempt=len(self._attempts), messages=tuple(messages)
            )
        return self._pending

    @checked
    def feed(self, text: str | None, finish_reason: str = "stop", problem: str = "") -> ParsedReply:
        """Take the reply to :meth:`next` and move on; return what was read from it.

        Args:
            text: the reply.
            finish_reason: why it ended, in the server's words.
            problem: why it was malformed when it was recorded; rules that read more by now do not change what followed.
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
        if answer.problem and len(self._attempts) < self.max_retries:
            self._attempts.append((text or "", answer.problem))
            return answer
        self._attempts = []
        if self.condition.protocol != "note-only":
            self.history += [self._question(), *_answered(text)]
        if self._turn == "prediction":
            value = answer.value if isinstance(answer.value, int) else float("nan")
            self.predictions.append(float(value))
            self._turn = "note"
            if self.condition.has_note:
                return answer
            self.history.append(self._question())
        elif isinstance(answer.value, str):
            self.note = answer.value
        self.notes.append(self.note if self.condition.has_note else None)
        self._turn = "prediction"
        self._round += 1
        return answer

    def _question(self) -> Message:
        advice = self.advice[self._round].tolist()
        label = int(self.labels[self._round])
        return self.condition.question(self._turn, advice, self.note, label)


def _answered(text: str | None) -> list[Message]:
    """Return the message of a reply; none for an empty one, which some servers refuse."""
    return [{"role": "assistant", "content": text}] if text and text.strip() else []


FORMAT = "interp-llm-trace/2"
_DIGEST = "sha256"


class LockedError(InputError):
    """Another process is writing the trace."""


class TraceFile:
    """An open trace, locked against a second process; for :func:`contextlib.closing`.

    The ``.jsonl`` file is made, with its folders, where it does not exist; one that exists must have the same
    ``header``.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]):
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(file_to_write(path), flags, 0o644)
        with ExitStack() as undo:
            undo.callback(self.close)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise LockedError(
                    f"{str(path)!r} is being written by another process; wait for it or choose another folder"
                ) from error
            lines, length = read_lines(path)
            with self._writing():
                os.ftruncate(self._file, length)  # a line torn by a crash
            if not lines:
                self.append(header)
                lines = [dict(header)]
            else:
                _require_same(path, lines[0], header)
            self.header, *self.records = lines
            undo.pop_all()

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line and fsync it; on a full disk the line is removed and an InputError is
        raised.
        """
        data = line_of(record)
        length = os.fstat(self._file).st_size
        with self._writing(), ExitStack() as undo:
            undo.callback(os.ftruncate, self._file, length)
            while data:
                n_written = os.write(self._file, data)
                data = data[n_written:]
            os.fsync(self._file)
            undo.pop_all()

    def close(self) -> None:
        """Close the file, so that another process can write the trace."""
        os.close(self._file)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Refuse in a sentence what the system refuses."""
        try:
            yield
        except OSError as error:
            raise InputError(
                f"cannot write the trace {str(self.path)!r}: {error.strerror}; what was recorded is safe: free some "
                "space or choose a folder that can be written, and run the same command again to resume"
            ) from error


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the records of a trace and the length in bytes of its whole lines (a torn last line is left out)."""
    records = []
    length = 0
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break
        record = json_in(line)
        is_whole = isinstance(record, dict) and record.pop(_DIGEST, None) == digest_of(record)
        require(
            is_whole,
            f"line {number} of the trace {str(path)!r} is damaged; move the file away and run again",
        )
        records.append(record)
        length += len(line)
    return records, length


def line_of(record: Mapping[str, Any]) -> bytes:
    """Return a record as a line of a trace, with its digest."""
    signed = {**record, _DIGEST: digest_of(record)}
    return json.dumps(signed, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"


def _require_same(path: Path, header: Mapping[str, Any], wanted_header: Mapping[str, Any]) -> None:
    """Refuse to go on with a trace that was begun with other settings; the first that differs is named.

    Args:
        path: of the trace.
        header: of the trace.
        wanted_header: of the run that would go on with it.
    """
    if header.get("format") != FORMAT:
        raise InputError(
            f"{str(path)!r} is not a trace of this version ({FORMAT}); choose another output folder"
        )
    recorded = _flat(header)
    wanted = _flat(json.loads(json.dumps(wanted_header)))
    n_rounds, n_wanted = len(recorded["instance.labels"]), len(wanted["instance.labels"])
    require(
        n_rounds == n_wanted,
        f"{str(path)!r} has {n_rounds} rounds, and {n_wanted} were asked for; ask for as many to resume it, or choose "
        "another output folder",
    )
    for key in sorted(recorded.keys() | wanted.keys()):
        values = recorded.get(key), wanted.get(key)
        before, now = (textwrap.shorten(json.dumps(value), 60) for value in values)
        require(
            values[0] == values[1] or key.startswith("made_with."),
            f"{str(path)!r} was begun with another {key} ({before}, now {now}); "
            "use the same settings to resume it, or choose another output folder",
        )


def _flat(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a header by name, those within an object as ``settings.temperature``."""
    fields: dict[str, Any] = {}
    for name, value in header.items():
        if isinstance(value, dict):
            fields.update({f"{name}.{part}": within for part, within in value.items()})
        else:
            fields[name] = value
    return fields


def session_from(header: Mapping[str, Any]) -> Session:
    """Return the state machine at the start of the episode that a header describes."""
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
    """Call a session with recorded replies.

    Args:
        session: at its start.
        records: the lines of the trace after its header.
        path: of the trace, for the refusal.
        rounds: how many rounds are replayed; all when None.

    Returns:
        How the episode ended, as in the trace. "refused" is where a server refused the next
        request, None where the episode was cut off.
    """
    end: str | None = None
    for number, record in enumerate(records, 2):
        if len(session.notes) == rounds:
            return end
        if "end" in record:
            end = str(record["end"])
        elif "refused" in record:
            end = "refused"
        else:
            request = session.next()
            follows = request is not None and record.get("messages_sha256") == request.sha256
            require(
                follows,
                f"line {number} of the trace {str(path)!r} does not follow from the lines before it (the file was "
                "edited, or made with other prompts or another version); move it away and run again",
            )
            finish_reason = record.get("finish_reason") or "stop"
            session.feed(record.get("reply"), finish_reason, record.get("problem") or "")
            end = None
    return end
