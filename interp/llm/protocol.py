"""One episode between a language model and the task: a pure state machine, and the trace that its replies are kept in.

:meth:`Session.next` gives the next request (or None when the episode is over) and :meth:`Session.feed` takes the reply
to it: the same replies give the same requests, so resuming is replaying. What a round asks, what its history keeps, and
every line of the file: docs/method/traces.md.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.llm.schemes import Condition, Message, ParsedReply, Turn, json_in, read_answer
from interp.support.checks import checked
from interp.support.errors import InputError, require
from interp.support.files import digest_of, file_to_write


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
        return digest_of(self.messages)

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

    @checked
    def extend(self, advice: NDArray[np.int64], labels: NDArray[np.int64]) -> None:
        """Go on over a longer instance, of which the present one is the beginning."""
        n = len(self.labels)
        require(
            len(labels) > n
            and np.array_equal(advice[:n], self.advice)
            and np.array_equal(labels[:n], self.labels),
            f"an instance of {n} rounds can only be extended by one that begins with the same rounds",
        )
        self.advice, self.labels = advice, labels

    def next(self) -> Request | None:
        """The next request; the same one until it is fed; None when the episode is over."""
        n_rounds = len(self.labels)
        if self._round >= n_rounds or (
            self._turn == "note" and self._round == n_rounds - 1 and not self.last_note
        ):
            return None
        if self._pending is None:
            messages = [
                {"role": "system", "content": self.system_prompt},
                *self.history,
                self._question(),
            ]
            if self._attempts:
                reply, problem = self._attempts[-1]
                # Some servers refuse an assistant message without content.
                messages += [{"role": "assistant", "content": reply}] if reply.strip() else []
                messages.append(self.condition.retry_message(self._turn, problem))
            self._pending = Request(self._round, self._turn, len(self._attempts), tuple(messages))
        return self._pending

    @checked
    def feed(self, text: str | None, finish_reason: str = "stop", problem: str = "") -> ParsedReply:
        """Take the reply to :meth:`next` and move on; returns what was read from it.

        ``problem``: why it was malformed when it was recorded; rules that read more by now do not change what followed.
        """
        require(
            self.next() is not None,
            "the episode is over: nothing was asked that a reply could be fed to",
        )
        self._pending = None
        answer = read_answer(self.condition, self._turn, text, finish_reason)
        answer = ParsedReply(None, problem=problem) if problem else answer
        self.malformed += bool(answer.problem)
        self.embedded += answer.embedded
        if answer.problem and len(self._attempts) < self.max_retries:
            self._attempts.append((text or "", answer.problem))
            return answer
        self._attempts = []
        if self.condition.protocol != "note-only":
            self.history.append(self._question())
            self.history += (
                [{"role": "assistant", "content": text}] if text and text.strip() else []
            )
        if self._turn == "prediction":
            self.predictions.append(
                float(answer.value) if isinstance(answer.value, int) else float("nan")
            )
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
        t = self._round
        return self.condition.question(
            self._turn, self.advice[t].tolist(), self.note, int(self.labels[t])
        )


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
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(
                file_to_write(path), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise _cannot_write(path, error) from error
        with ExitStack() as undo:
            undo.callback(os.close, self._file)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                problem = f"{str(path)!r} is being written by another process; wait for it or choose another folder"
                raise LockedError(problem) from error
            lines, length = read_lines(path)
            try:
                os.ftruncate(self._file, length)  # a line torn by a crash
            except OSError as error:
                raise _cannot_write(path, error) from error
            if not lines:
                self.append(header)
                folder = os.open(path.parent, os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
            elif (longer := _check_header(path, lines, header)) is not None:
                self.append({"extended": longer})
                lines.append({"extended": longer})
            self.header = lines[0] if lines else header
            self.records = lines[1:]
            undo.pop_all()

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line and fsync it; on a full disk nothing of it is left and an InputError says so."""
        data = line_of(record)
        length = os.fstat(self._file).st_size
        try:
            written = 0
            while written < len(data):
                written += os.write(self._file, data[written:])
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, length)
            raise _cannot_write(self.path, error) from error

    def close(self) -> None:
        """Let another process write the trace."""
        os.close(self._file)


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The records of a trace and the length in bytes of its whole lines (a torn last line is left out)."""
    length, records = 0, []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break
        record = json_in(line)
        require(
            isinstance(record, dict) and record.pop(_DIGEST, None) == digest_of(record),
            f"line {number} of the trace {str(path)!r} is damaged; move the file away and run again",
        )
        records.append(record)
        length += len(line)
    return records, length


def line_of(record: Mapping[str, Any]) -> bytes:
    """A record as a line of a trace, with its digest."""
    signed = {**record, _DIGEST: digest_of(record)}
    return json.dumps(signed, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"


def _check_header(
    path: Path, lines: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Refuse to go on with a trace that was begun with other settings, naming the first that differs; the wanted
    instance where it begins with the trace's own and is longer, else None."""
    recorded, wanted = dict(lines[0]), json.loads(json.dumps(wanted))
    if recorded.get("format") != FORMAT:
        raise InputError(
            f"{str(path)!r} is not a trace of this version ({FORMAT}); choose another output folder"
        )
    recorded["instance"] = instance_of(recorded, lines[1:])
    longer = _is_longer(recorded["instance"], wanted["instance"])
    for key in sorted(recorded.keys() | wanted.keys()):
        before: Any = recorded.get(key)
        now: Any = wanted.get(key)
        if key == "made_with" or before == now or (key == "instance" and longer):
            continue
        if key == "instance" and _is_longer(now, before):
            raise InputError(
                f"{str(path)!r} has {len(before['labels'])} rounds, more than the {len(now['labels'])} asked for; ask "
                "for as many or more to resume it, or choose another output folder"
            )
        if isinstance(before, dict) and isinstance(now, dict):
            part = next(
                k for k in sorted(before.keys() | now.keys()) if before.get(k) != now.get(k)
            )
            key, before, now = f"{key}.{part}", before.get(part), now.get(part)
        texts = [
            text if len(text) <= 60 else f"{text[:57]}..."
            for text in map(json.dumps, (before, now))
        ]
        raise InputError(
            f"{str(path)!r} was begun with another {key} ({texts[0]}, now {texts[1]}); "
            "use the same settings to resume it, or choose another output folder"
        )
    return wanted["instance"] if longer else None


def _is_longer(short: Any, long: Any) -> bool:
    n = len(short["labels"])
    if len(long["labels"]) <= n or short.keys() != long.keys():
        return False
    by_round = (
        "advice",
        "labels",
        *(["accuracies"] if isinstance(long["accuracies"][0], list) else []),
    )
    return all(
        short[name] == (long[name][:n] if name in by_round else long[name]) for name in short
    )


def instance_of(
    header: Mapping[str, Any], records: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any]:
    """The instance of a trace: its header's, or the last one that it was extended to."""
    return next(
        (record["extended"] for record in records[::-1] if "extended" in record), header["instance"]
    )


def session_from(header: Mapping[str, Any]) -> Session:
    """The state machine at the start of the episode that a header describes."""
    instance = header["instance"]
    return Session(
        Condition(header["condition"]["framing"], header["condition"]["protocol"]),
        header["prompt"]["text"],
        np.asarray(instance["advice"], dtype=np.int64),
        np.asarray(instance["labels"], dtype=np.int64),
        max_retries=header["settings"]["max_reasks"],
        **header.get("begins", {}),
    )


def replay(
    session: Session, records: Sequence[Mapping[str, Any]], path: Path, rounds: int | None = None
) -> str | None:
    """Feed recorded replies to ``session``, of so many ``rounds`` or of all; gives how the episode ended, as in the
    trace.

    "refused" is where a server refused the next request, None where the episode was cut off.
    """
    end: str | None = None
    for number, record in enumerate(records, 2):
        if len(session.notes) == rounds:
            return end
        if "end" in record:
            end = str(record["end"])
        elif "refused" in record:
            end = "refused"
        elif "extended" in record:
            longer = record["extended"]
            session.extend(
                np.asarray(longer["advice"], np.int64), np.asarray(longer["labels"], np.int64)
            )
            end = None if end == "complete" else end
        else:
            request = session.next()
            if request is None or record.get("messages_sha256") != request.sha256:
                raise InputError(
                    f"line {number} of the trace {str(path)!r} does not follow from the lines before it (the file was "
                    "edited, or made with other prompts or another version); move it away and run again"
                )
            session.feed(
                record.get("reply"),
                record.get("finish_reason") or "stop",
                record.get("problem") or "",
            )
            end = None
    return end


def _cannot_write(path: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot write the trace {str(path)!r}: {error.strerror}; what was recorded is safe: free some space or "
        "choose a folder that can be written, and run the same command again to resume"
    )
