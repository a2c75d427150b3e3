"""Read runs that others made: one folder for each run, with ``result.json`` and, if there is one, ``steps.jsonl``.

Which fields are accepted, and which file is believed: docs/method/traces.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.llm.plan import PAPER_REGIMES
from interp.llm.runner import counted, tokens_of
from interp.llm.runs import LLMRun
from interp.llm.schemes import Condition, read_answer
from interp.support.checks import checked, fitted, integer, number, shown
from interp.support.errors import InputError, require
from interp.support.files import read_json, reading
from interp.support.foreign import loaded

RECORD = "result.json"
_NAMES = {
    "advice": "input.expert_predictions input.advice expert_predictions advice",
    "labels": "input.true_labels input.labels true_labels labels",
    "predictions": "response.predictions predictions",
    "notes": "response.notes notes",
    "model": "meta.model model",
    "prompt": "meta.prompt prompt meta.scheme scheme",
    "index": "meta.idx idx index",
    "regime": "meta.regime regime",
    "accuracies": "input.accuracies accuracies",
    "eta": "input.eta eta",
    "n_calls": "token_usage.n_calls",
    "prompt_tokens": "token_usage.prompt_tokens",
    "completion_tokens": "token_usage.completion_tokens",
}
"""The names of each field; the first that has a value counts, and dots go into objects."""

_BITS: dict[object, float] = {
    0: 0.0,
    1: 1.0,
    "0": 0.0,
    "1": 1.0,
    "rainy": 0.0,
    "sunny": 1.0,
    None: float("nan"),
}
"""How outcomes are written in other people's files; null is a missing prediction."""


@checked
def import_result(
    path: str | Path, regime: str | None = None
) -> tuple[LLMRun, str, list[tuple[str, str]]]:
    """Read the run that ``path`` (a ``result.json``) and the steps beside it describe.

    Args:
        path: the file.
        regime: its regime, where the file does not name it.

    Returns:
        The run, the source it was read from, and what was set aside: ``(what, why)``.
    """
    path = Path(path)
    with reading(path, "it is no result that can be imported; move it away"):
        result = _Result(path, read_json(path))
        _, labels = result.instance()
        record, set_aside = result.record()
        attempts, torn = _read_attempts(path.parent / "steps.jsonl", result.condition())
        source, others = _choose([record, *attempts], len(labels), path)
        set_aside += others
        if torn:
            set_aside.append(("steps.jsonl", torn))
        return _run_of(result, source, regime), source.name, set_aside


def _run_of(result: _Result, source: _Source, regime: str | None) -> LLMRun:
    """Return the run that a result describes, as one source tells it; ``regime`` is used where the file has none."""
    path = result.path
    condition = result.condition()
    advice, labels = result.instance()
    n_rounds = len(source.predictions)
    predictions = np.array([source.predictions[t] for t in range(n_rounds)])
    notes: list[str | None] = [None] * n_rounds
    if condition.has_note:
        notes = [source.notes.get(t) for t in range(n_rounds)]
    usage = tokens_of(source.calls, "step", n_rounds)
    n_calls = len(source.calls) or counted(result.get("n_calls"))
    n_prompt_tokens = usage.prompt or counted(result.get("prompt_tokens"))
    n_completion_tokens = usage.completion or counted(result.get("completion_tokens"))
    index = integer(f"idx of {str(path)!r}", result.get("index") or 0, 0)
    regime = result.get("regime") or regime or _regime_of(path)
    wording = result.get("prompt") or "unknown prompt"
    model = result.get("model") or "unknown"
    accuracies = result.accuracies(advice.shape[1])
    is_complete = n_rounds == len(labels)
    n_missing = np.isnan(predictions).sum()
    return LLMRun(
        model=str(model),
        condition=condition,
        regime=str(regime),
        index=index,
        advice=advice,
        labels=labels,
        accuracies=accuracies,
        predictions=predictions,
        notes=tuple(notes),
        ended="complete" if is_complete else "unfinished",
        calls=n_calls or n_rounds * (1 + condition.has_note),
        malformed=int(n_missing),
        prompt_tokens=usage.by_round,
        total_prompt_tokens=n_prompt_tokens,
        total_completion_tokens=n_completion_tokens,
        wording=f"imported: {wording}",
        path=path,
        eta=result.eta(),
    )


def _regime_of(path: Path) -> str:
    """Return the regime that the path names last, or "unknown"."""
    words = re.sub("anti_?signal", "anti-signal", str(path).lower())
    names = re.findall(rf"(?<![a-z])({'|'.join(PAPER_REGIMES)})(?![a-z])", words)
    return names[-1] if names else "unknown"


@dataclass(frozen=True)
class _Result:
    """What ``result.json`` holds."""

    path: Path
    fields: dict[str, Any]

    def get(self, what: str) -> Any:
        """Return the value of a field under the first of :data:`_NAMES` that has one; None where none has."""
        for name in _NAMES[what].split():
            value: Any = self.fields
            for part in name.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                return value
        return None

    def bits(self, what: str) -> NDArray[np.float64]:
        """Return a field of outcomes, which has to be there."""
        values = self.get(what)
        names = " or ".join(_NAMES[what].split())
        require(values is not None, f"{str(self.path)!r} has no {what}; give it as {names}")
        try:
            return np.array([_as_bits(value) for value in values], dtype=np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{str(self.path)!r}: {what} must be 0/1 or rainy/sunny in equal rows, got {error}"
            ) from error

    def instance(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return advice Int[round, expert] and labels Int[round]."""
        advice = self.bits("advice")
        labels = self.bits("labels")
        has_nulls = np.isnan(advice).any() or np.isnan(labels).any()
        require(
            (advice.ndim, labels.ndim) == (2, 1) and not has_nulls,
            f"{str(self.path)!r}: advice must be [round][expert] and labels [round], without nulls",
        )
        n_rounds, n_labels = len(advice), len(labels)
        require(
            n_rounds == n_labels,
            f"{str(self.path)!r} has advice for {n_rounds} rounds and {n_labels} labels",
        )
        return advice.astype(np.int64), labels.astype(np.int64)

    def condition(self) -> Condition:
        """Return the condition that the prompt's name tells, or else the folder's."""
        words = str(self.get("prompt") or self.path.parent).lower()
        framing = "weather" if "weather" in words else "online"
        if re.search("no[-_]?note", words):
            return Condition(framing, "no-note")
        return Condition(framing, "note" if "hist" in words else "note-only")

    def accuracies(self, n_experts: int) -> NDArray[np.float64] | None:
        """Return the accuracies of the experts, where they are given."""
        known = self.get("accuracies")
        if known is None:
            return None
        shares = fitted(list[float], known)
        is_fit = isinstance(shares, list) and len(shares) == n_experts
        is_fit = is_fit and all(0 <= share <= 1 for share in shares)
        require(
            is_fit,
            f"{str(self.path)!r}: accuracies must be {n_experts} numbers in [0, 1], one each, got {shown(known)}",
        )
        return np.asarray(shares, dtype=np.float64)

    def eta(self) -> float | None:
        """Return the learning rate of weighted majority, where it is given."""
        eta = self.get("eta")
        return None if eta is None else float(number(f"eta of {str(self.path)!r}", eta, 0))

    def record(self) -> tuple[_Source, list[tuple[str, str]]]:
        """Return what the file tells of the play, and what was set aside; without predictions it tells nothing."""
        predictions = np.zeros(0)
        if self.get("predictions") is not None:
            predictions = self.bits("predictions")
        require(predictions.ndim == 1, f"{str(self.path)!r}: predictions must be one a round")
        n_rounds = len(predictions)
        texts = list(self.get("notes") or [])
        set_aside = []
        if len(texts) == n_rounds + 1 and not texts[0]:
            texts = texts[1:]
        elif texts and len(texts) != n_rounds:
            why = f"they have {len(texts)} entries for {n_rounds} rounds and cannot be aligned with them"
            set_aside.append((f"notes of {RECORD}", why))
            texts = []
        notes = {t: text for t, text in enumerate(texts) if isinstance(text, str)}
        return _Source(RECORD, dict(enumerate(predictions.tolist())), notes), set_aside


def _as_bits(value: Any) -> Any:
    """Return one outcome, or a row of them, as numbers."""
    return [_BITS[item] for item in value] if isinstance(value, list) else _BITS[value]


@dataclass(eq=False)
class _Source:
    """One telling of an episode: predictions and notes by round, and the calls where they are known."""

    name: str
    predictions: dict[int, float] = field(default_factory=dict)
    notes: dict[int, str] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)

    @property
    def problem(self) -> str:
        """Why it is not consistent; empty where it is."""
        if not self.predictions:
            return "it has no prediction"
        gaps = set(range(max(self.predictions))) - self.predictions.keys()
        return f"it has no prediction for round {min(gaps)} but has later ones" if gaps else ""

    def cut(self, n_rounds: int) -> None:
        """Leave out what is told of later rounds than there are."""
        self.predictions = {t: bit for t, bit in self.predictions.items() if t < n_rounds}

    def same_play(self, other: _Source) -> bool:
        """Return whether the usable predictions that both have agree."""
        shared = self.predictions.keys() & other.predictions.keys()
        differences = [self.predictions[t] - other.predictions[t] for t in shared]
        return not np.nan_to_num(differences).any()

    def add(self, call: dict[str, Any], condition: Condition) -> None:
        """Add a line of ``steps.jsonl``."""
        step = call["step"]
        parsed = call["parsed"] if isinstance(call.get("parsed"), dict) else {}
        self.calls.append(call)
        if call.get("turn") != "feedback":
            self.predictions[step] = _prediction_of(call, parsed, condition)
            return
        note = _note_of(call, parsed)
        if note is not None:
            self.notes[step] = note

    def why_not(self, chosen: _Source) -> str:
        """Return why another source was chosen."""
        n_rounds, longest = len(self.predictions), len(chosen.predictions)
        is_same = self.same_play(chosen)
        if self.problem:
            return self.problem
        if n_rounds < longest:
            why = f"it has {n_rounds} of the {longest} rounds of {chosen.name}"
            return why if is_same else f"{why}, and is another attempt: its predictions differ"
        if is_same:
            return f"it tells the same as {chosen.name}"
        return f"it is another attempt: its predictions differ from those of {chosen.name}"


def _choose(
    sources: Sequence[_Source], n_rounds: int, path: Path
) -> tuple[_Source, list[tuple[str, str]]]:
    """Choose the source to read (docs/method/traces.md).

    Args:
        sources: the record of ``result.json``, then the attempts.
        n_rounds: of the instance; later rounds are left out.
        path: for the refusal.

    Returns:
        The source, and the name of every other one with the reason why it is not read.
    """
    for source in sources:
        source.cut(n_rounds)
    record = sources[0]
    candidates = [source for source in sources if not source.problem]
    if not candidates:
        raise InputError(
            f"{str(path)!r} has no predictions that can be used: in {record.name}, {record.problem}"
        )
    longest = max(len(source.predictions) for source in candidates)
    best = [source for source in candidates if len(source.predictions) == longest]
    if record in best:
        # An attempt that retells the record is read in its place, for it holds the replies.
        best = [source for source in best if source.same_play(record)]
    chosen = best[-1]
    is_retold = record in best and chosen is not record
    if is_retold:
        chosen.notes = record.notes | chosen.notes
    set_aside = []
    for source in sources:
        is_record = source is record and (is_retold or not record.predictions)
        if source is not chosen and not is_record:
            set_aside.append((source.name, source.why_not(chosen)))
    return chosen, set_aside


def _read_attempts(path: Path, condition: Condition) -> tuple[list[_Source], str]:
    """Return the attempts in a ``steps.jsonl``, and what was left out of it ("" for nothing)."""
    attempts: list[_Source] = []
    if not path.is_file():
        return attempts, ""
    last_step, was_feedback = -1, False
    lines = path.read_text(encoding="utf-8").split("\n")
    for nth, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            call = loaded(line)
        except ValueError as error:
            if nth == len(lines):  # no line end after it: the writer was stopped
                return attempts, f"its last line (line {nth}) is torn"
            raise InputError(f"line {nth} of {str(path)!r} is not JSON: {error}") from error
        step = call.get("step") if isinstance(call, dict) else None
        if not isinstance(step, int) or step < 0:
            raise InputError(f"line {nth} of {str(path)!r} has no whole number 'step' of 0 or more")
        is_feedback = call.get("turn") == "feedback"
        # A step's prediction comes before its feedback.
        if not attempts or (step, is_feedback) < (last_step, was_feedback):
            attempts.append(_Source(f"{path.name}, attempt {len(attempts) + 1}"))
        last_step, was_feedback = step, is_feedback
        attempts[-1].add(call, condition)
    return attempts, ""


def _note_of(call: dict[str, Any], parsed: dict[str, Any]) -> str | None:
    """Return the note that a call wrote."""
    for note in (call.get("note_out"), call.get("note"), parsed.get("note")):
        if isinstance(note, str):
            return note
    return None


def _prediction_of(call: dict[str, Any], parsed: dict[str, Any], condition: Condition) -> float:
    """Return what a call predicted; a reply, where given, is read by our own rules. NaN where it cannot be read."""
    prediction: Any = call.get("prediction", parsed.get("prediction"))
    reply = call.get("raw_response")
    if isinstance(reply, str):
        prediction = read_answer(condition, "prediction", reply).value
    is_word = isinstance(prediction, int | str)
    return _BITS.get(prediction, float("nan")) if is_word else float("nan")
