"""Read runs that others made: one folder for each run, with ``result.json`` and, if there is one, ``steps.jsonl``.

Accepted in ``result.json`` (the first name found counts; JSON values):

- advice: ``input.expert_predictions``, ``input.advice``, ``expert_predictions`` or ``advice``, [round][expert], 0
  or 1;
- labels: ``input.true_labels``, ``input.labels``, ``true_labels`` or ``labels``, [round], 0 or 1;
- predictions: ``response.predictions`` or ``predictions``, [round]: 0, 1, or null where missing;
- notes: ``response.notes`` or ``notes``, [round], texts;
- the model: ``meta.model`` or ``model``; which prompt: ``meta.prompt``, ``prompt``, ``meta.scheme`` or ``scheme``,
  in whose name "weather" means the weather framing (else online), "nonote" or "no-note" no note, and "hist" a note
  with retained history (else the note is the only state);
- instance number: ``meta.idx``, ``idx`` or ``index``; regime: ``meta.regime`` or ``regime``, else the argument,
  else stratified, flat or anti-signal (also "antisignal") where the path has that word, else "unknown";
  ``accuracies`` [expert];
- tokens: ``token_usage.prompt_tokens`` and ``.completion_tokens``.

Accepted in ``steps.jsonl``, one object for each call: ``step`` (from 0), ``turn`` ("prediction", "forecast" or
"feedback"), ``raw_response`` (the reply; where given it is read again by our own rules, so that an answer which the
other runner took for 0 is missing here), else ``prediction`` or ``parsed.prediction``; ``note_out``, ``note`` or
``parsed.note``; ``usage``.

Labels may be written 0/1 or rainy/sunny. Other fields are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.errors import InputError, require
from interp.llm.plan import PAPER_REGIMES
from interp.llm.runner import usage_tokens
from interp.llm.runs import LLMRun
from interp.llm.schemes import Condition, read_answer

_BITS: dict[object, float] = {0: 0.0, 1: 1.0, "0": 0.0, "1": 1.0, "rainy": 0.0, "sunny": 1.0, None: float("nan")}


def import_result(path: str | Path, regime: str | None = None) -> LLMRun:
    """The run that ``path`` (a ``result.json``) describes.

    Args:
        regime: its regime, where the file does not name it.

    Raises:
        InputError: a field that is needed is missing or malformed; the message names it.
    """
    path = Path(path)
    result = _json(path, path.read_text(encoding="utf-8"))
    advice = _bits(
        path,
        "advice",
        _first(path, result, "advice", "input.expert_predictions input.advice expert_predictions advice"),
    )
    labels = _bits(path, "labels", _first(path, result, "labels", "input.true_labels input.labels true_labels labels"))
    require(
        advice.ndim == 2 and labels.ndim == 1 and not np.isnan(advice).any() and not np.isnan(labels).any(),
        f"{str(path)!r}: advice must be [round][expert] and labels [round], without nulls",
    )
    name = str(_first(path, result, "prompt", "meta.prompt prompt meta.scheme scheme", default=""))
    condition = condition_of(name or str(path.parent))
    predictions, notes, calls = _steps(path.parent / "steps.jsonl", condition)
    if not predictions:
        said = _first(path, result, "predictions", "response.predictions predictions")
        predictions = dict(enumerate(_bits(path, "predictions", said).tolist()))
        texts = _first(path, result, "notes", "response.notes notes", default=[])
        notes = dict(enumerate(texts))
    rounds = min(max(predictions) + 1, len(labels))
    played = np.array([predictions.get(t, np.nan) for t in range(rounds)])
    usage = [(call.get("step", 0), usage_tokens(call.get("usage"))) for call in calls]
    tokens = np.full(rounds, np.nan)
    for step, (prompt, _, _) in usage:
        if step < rounds and prompt:
            tokens[step] = prompt
    total = _first(path, result, "token_usage", "token_usage", default={}) or {}
    accuracies = _first(path, result, "accuracies", "input.accuracies accuracies", default=None)
    return LLMRun(
        model=str(_first(path, result, "model", "meta.model model", default="unknown")),
        condition=condition,
        regime=str(_first(path, result, "regime", "meta.regime regime", default=None) or regime or _regime_in(path)),
        index=int(_first(path, result, "index", "meta.idx idx index", default=0)),
        advice=advice.astype(np.int64),
        labels=labels.astype(np.int64),
        accuracies=None if accuracies is None else np.asarray(accuracies, dtype=np.float64),
        predictions=played,
        notes=tuple(notes.get(t) if condition.has_note else None for t in range(rounds)),
        ended="complete" if rounds == len(labels) else "unfinished",
        calls=len(calls) or int(total.get("n_calls") or rounds * condition.calls_per_round),
        malformed=int(np.isnan(played).sum()),
        prompt_tokens=tokens,
        total_prompt_tokens=int(total.get("prompt_tokens") or sum(prompt for _, (prompt, _, _) in usage)),
        total_completion_tokens=int(total.get("completion_tokens") or sum(said for _, (_, _, said) in usage)),
        seconds=float(np.mean([call["elapsed_s"] for call in calls if "elapsed_s" in call] or [np.nan])),
        wording=f"imported: {name or 'unknown prompt'}",
        served=(),
        path=path,
    )


def condition_of(name: str) -> Condition:
    """Framing and protocol from a prompt's name, such as ``interactive_weather_nonote``."""
    words = name.lower()
    framing = "weather" if "weather" in words else "online"
    if "nonote" in words or "no-note" in words or "no_note" in words:
        return Condition(framing, "no-note")
    return Condition(framing, "note" if "hist" in words else "note-only")


def _regime_in(path: Path) -> str:
    words = str(path).lower().replace("antisignal", "anti-signal")
    found = [name for name in PAPER_REGIMES if re.search(rf"(?<![a-z]){name}(?![a-z])", words)]
    return found[0] if found else "unknown"


def _steps(path: Path, condition: Condition) -> tuple[dict[int, float], dict[int, str], list[dict[str, Any]]]:
    """Predictions and notes by round, and the calls."""
    predictions: dict[int, float] = {}
    notes: dict[int, str] = {}
    calls: list[dict[str, Any]] = []
    if not path.is_file():
        return predictions, notes, calls
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        call = _json(path, line, f"line {number} of ")
        require(isinstance(call.get("step"), int), f"line {number} of {str(path)!r} has no whole number 'step'")
        calls.append(call)
        parsed = call.get("parsed") or {}
        if call.get("turn") == "feedback":
            note = next(
                (n for n in (call.get("note_out"), call.get("note"), parsed.get("note")) if isinstance(n, str)), None
            )
            if note is not None:
                notes[call["step"]] = note
        elif isinstance(call.get("raw_response"), str):
            answer = read_answer(condition, "prediction", call["raw_response"])
            predictions[call["step"]] = float(answer.value) if isinstance(answer.value, int) else float("nan")
        else:
            said = call.get("prediction", parsed.get("prediction"))
            predictions[call["step"]] = _BITS.get(said, float("nan")) if isinstance(said, (int, str)) else float("nan")
    return predictions, notes, calls


def _first(path: Path, result: dict[str, Any], what: str, names: str, **default: Any) -> Any:
    for name in names.split():
        value: Any = result
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            return value
    if "default" in default:
        return default["default"]
    raise InputError(f"{str(path)!r} has no {what}; give it as {' or '.join(names.split())}")


def _bits(path: Path, what: str, values: Sequence[Any]) -> NDArray[np.float64]:
    try:
        return np.array(
            [[_BITS[v] for v in row] if isinstance(row, list) else _BITS[row] for row in values], dtype=np.float64
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{str(path)!r}: {what} must be 0/1 or rainy/sunny in equal rows, got {error}") from error


def _json(path: Path, text: str, where: str = "") -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InputError(f"{where}{str(path)!r} is not JSON: {error}") from error
    require(isinstance(found, dict), f"{where}{str(path)!r} is not a JSON object")
    return found
