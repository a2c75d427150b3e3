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


@checked
def import_result(
    path: str | Path, regime: str | None = None
) -> tuple[LLMRun, str, list[tuple[str, str]]]:
    """The run that ``path`` (a ``result.json``) and the steps beside it describe, the source it was read from, and
    what was set aside: ``(what, why)``.

    Args:
        regime: its regime, where the file does not name it.
    """
    path = Path(path)
    with reading(path, "it is no result that can be imported; move it away"):
        result = read_json(path)
        advice = _bits(
            path,
            "advice",
            result,
            "input.expert_predictions input.advice expert_predictions advice",
        )
        labels = _bits(path, "labels", result, "input.true_labels input.labels true_labels labels")
        require(
            advice.ndim == 2
            and labels.ndim == 1
            and not np.isnan(advice).any()
            and not np.isnan(labels).any(),
            f"{str(path)!r}: advice must be [round][expert] and labels [round], without nulls",
        )
        n_rounds, n_experts = advice.shape
        require(
            n_rounds == len(labels),
            f"{str(path)!r} has advice for {n_rounds} rounds and {len(labels)} labels",
        )
        name = str(_first(result, "meta.prompt prompt meta.scheme scheme") or "")
        words = (name or str(path.parent)).lower()
        protocol = (
            "no-note"
            if re.search("no[-_]?note", words)
            else "note"
            if "hist" in words
            else "note-only"
        )
        condition = Condition("weather" if "weather" in words else "online", protocol)
        regimes = re.findall(
            rf"(?<![a-z])({'|'.join(PAPER_REGIMES)})(?![a-z])",
            re.sub("anti_?signal", "anti-signal", str(path).lower()),
        )
        record, set_aside = _record(path, result)
        attempts, torn = _read_attempts(path.parent / "steps.jsonl", condition)
        source, others = _choose(record, attempts, n_rounds, path)
        set_aside += others + [("steps.jsonl", torn)] * bool(torn)
        rounds = len(source.predictions)
        played = np.array([source.predictions[t] for t in range(rounds)])
        index = integer(f"idx of {str(path)!r}", _first(result, "meta.idx idx index") or 0, 0)
        by_round, prompt_tokens, completion_tokens = tokens_of(source.calls, "step", rounds)
        said = _first(result, "token_usage")
        total = said if isinstance(said, dict) else {}
        eta, known = _first(result, "input.eta eta"), _first(result, "input.accuracies accuracies")
        eta = None if eta is None else float(number(f"eta of {str(path)!r}", eta, 0))
        shares = fitted(list[float] | None, known)
        fits = known is None or (
            isinstance(shares, list) and [0 <= one <= 1 for one in shares] == [True] * n_experts
        )
        require(
            fits,
            f"{str(path)!r}: accuracies must be {n_experts} numbers in [0, 1], one each, got {shown(known)}",
        )
        run = LLMRun(
            model=str(_first(result, "meta.model model") or "unknown"),
            condition=condition,
            regime=str(_first(result, "meta.regime regime") or regime or ["unknown", *regimes][-1]),
            index=index,
            advice=advice.astype(np.int64),
            labels=labels.astype(np.int64),
            accuracies=None if known is None else np.asarray(shares, dtype=np.float64),
            predictions=played,
            notes=tuple(source.notes.get(t) if condition.has_note else None for t in range(rounds)),
            ended="complete" if rounds == n_rounds else "unfinished",
            calls=len(source.calls)
            or counted(total.get("n_calls"))
            or rounds * (1 + condition.has_note),
            malformed=int(np.isnan(played).sum()),
            prompt_tokens=by_round,
            total_prompt_tokens=prompt_tokens or counted(total.get("prompt_tokens")),
            total_completion_tokens=completion_tokens or counted(total.get("completion_tokens")),
            seconds=float(
                np.mean(
                    [call["elapsed_s"] for call in source.calls if "elapsed_s" in call] or [np.nan]
                )
            ),
            wording=f"imported: {name or 'unknown prompt'}",
            served=(),
            path=path,
            eta=eta,
        )
        return run, source.name, set_aside


def _record(path: Path, result: dict[str, Any]) -> tuple[_Source, list[tuple[str, str]]]:
    """What ``result.json`` tells of the play; without predictions it is an empty source."""
    names = "response.predictions predictions"
    predictions = (
        [] if _first(result, names) is None else _bits(path, "predictions", result, names).tolist()
    )
    require(
        not any(isinstance(one, list) for one in predictions),
        f"{str(path)!r}: predictions must be one a round",
    )
    texts = list(_first(result, "response.notes notes") or [])
    aside = []
    if len(texts) == len(predictions) + 1 and not texts[0]:
        texts = texts[1:]
    elif texts and len(texts) != len(predictions):
        why = f"they have {len(texts)} entries for {len(predictions)} rounds and cannot be aligned with them"
        aside, texts = [(f"notes of {RECORD}", why)], []
    notes = {t: text for t, text in enumerate(texts) if isinstance(text, str)}
    return _Source(RECORD, dict(enumerate(predictions)), notes), aside


def _first(result: dict[str, Any], names: str) -> Any:
    """The first of ``names`` (dots go into objects) that has a value; None where none has."""
    for name in names.split():
        value: Any = result
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            return value
    return None


def _bits(path: Path, what: str, result: dict[str, Any], names: str) -> NDArray[np.float64]:
    values = _first(result, names)
    require(
        values is not None, f"{str(path)!r} has no {what}; give it as {' or '.join(names.split())}"
    )
    try:
        return np.array(
            [[_BITS[v] for v in row] if isinstance(row, list) else _BITS[row] for row in values],
            dtype=np.float64,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{str(path)!r}: {what} must be 0/1 or rainy/sunny in equal rows, got {error}"
        ) from error


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
        gaps = sorted(set(range(max(self.predictions) + 1)) - set(self.predictions))
        return f"it has no prediction for round {gaps[0]} but has later ones" if gaps else ""

    def same_play(self, other: _Source) -> bool:
        """Do the usable predictions that both have agree?"""
        both = self.predictions.keys() & other.predictions.keys()
        pairs = [(self.predictions[t], other.predictions[t]) for t in both]
        return all(
            mine == theirs for mine, theirs in pairs if not np.isnan(mine) and not np.isnan(theirs)
        )


def _choose(
    record: _Source, attempts: Sequence[_Source], n_rounds: int, path: Path
) -> tuple[_Source, list[tuple[str, str]]]:
    """The source to read (docs/method/traces.md), and every other one with the reason why it is not."""
    everything = (record, *attempts)
    for source in everything:
        source.predictions = {t: said for t, said in source.predictions.items() if t < n_rounds}
    candidates = [source for source in everything if not source.problem]
    if not candidates:
        raise InputError(
            f"{str(path)!r} has no predictions that can be used: in {record.name}, {record.problem}"
        )
    longest = max(len(source.predictions) for source in candidates)
    best = [source for source in candidates if len(source.predictions) == longest]
    retelling = [attempt for attempt in best if attempt is not record and attempt.same_play(record)]
    retold = record in best and bool(retelling)
    chosen = retelling[-1] if retold else record if record in best else best[-1]
    if retold:
        chosen.notes = record.notes | chosen.notes
    # A record that the attempt retells, or that says nothing, is not another play.
    others = [one for one in attempts if one is not chosen]
    others = [record] * (chosen is not record and bool(record.predictions) and not retold) + others
    reasons = []
    for one in others:
        n, same = len(one.predictions), one.same_play(chosen)
        if n < longest:
            why = f"it has {n} of the {longest} rounds of {chosen.name}"
            why += "" if same else ", and is another attempt: its predictions differ"
        elif same:
            why = f"it tells the same as {chosen.name}"
        else:
            why = f"it is another attempt: its predictions differ from those of {chosen.name}"
        reasons.append((one.name, one.problem or why))
    return chosen, reasons


def _read_attempts(path: Path, condition: Condition) -> tuple[list[_Source], str]:
    """The attempts in a ``steps.jsonl``, and what was left out of it ("" for nothing); none where there is no file."""
    if not path.is_file():
        return [], ""
    attempts: list[_Source] = []
    last_step, last_was_feedback, torn = -1, False, ""
    lines = path.read_text(encoding="utf-8").split("\n")
    for nth, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            call = loaded(line)
        except ValueError as error:
            if nth == len(lines):  # no line end after it: the writer was stopped
                torn = f"its last line (line {nth}) is torn"
                break
            raise InputError(f"line {nth} of {str(path)!r} is not JSON: {error}") from error
        require(
            isinstance(call, dict) and isinstance(call.get("step"), int) and call["step"] >= 0,
            f"line {nth} of {str(path)!r} has no whole number 'step' of 0 or more",
        )
        step, feedback = call["step"], call.get("turn") == "feedback"
        if (
            not attempts
            or step < last_step
            or (step == last_step and last_was_feedback and not feedback)
        ):
            attempts.append(_Source(f"{path.name}, attempt {len(attempts) + 1}"))
        last_step, last_was_feedback, source = step, feedback, attempts[-1]
        source.calls.append(call)
        parsed = call["parsed"] if isinstance(call.get("parsed"), dict) else {}
        said: Any = call.get("prediction", parsed.get("prediction"))
        if feedback:
            told = [call.get("note_out"), call.get("note"), parsed.get("note")]
            texts = [note for note in told if isinstance(note, str)]
            source.notes |= {step: texts[0]} if texts else {}
            continue
        if isinstance(call.get("raw_response"), str):
            said = read_answer(condition, "prediction", call["raw_response"]).value
        source.predictions[step] = (
            _BITS.get(said, float("nan")) if isinstance(said, int | str) else float("nan")
        )
    return attempts, torn
