"""Read runs that others made: one folder for each run, with ``result.json`` and, if there is one, ``steps.jsonl``.

Accepted in ``result.json`` (the first name found counts; JSON values):

- advice: ``input.expert_predictions``, ``input.advice``, ``expert_predictions`` or ``advice``, [round][expert], 0
  or 1;
- labels: ``input.true_labels``, ``input.labels``, ``true_labels`` or ``labels``, [round], 0 or 1;
- predictions: ``response.predictions`` or ``predictions``, [round]: 0, 1, or null where missing;
- notes: ``response.notes`` or ``notes``: the note after each round. A list with one more entry than there are rounds,
  the first of them empty, begins with the note before round 0, which is left out; a list of any other length cannot be
  aligned with the rounds, so it is set aside;
- the model: ``meta.model`` or ``model``; which prompt: ``meta.prompt``, ``prompt``, ``meta.scheme`` or ``scheme``,
  in whose name "weather" means the weather framing (else online), "nonote" or "no-note" no note, and "hist" a note
  with retained history (else the note is the only state);
- instance number: ``meta.idx``, ``idx`` or ``index``; regime: ``meta.regime`` or ``regime``, else the argument,
  else stratified, flat or anti-signal (also "antisignal") where the path has that word, else "unknown";
- ``input.accuracies`` or ``accuracies`` [expert], and ``input.eta`` or ``eta``, the learning rate of weighted majority
  on this instance: each where it is given;
- tokens: ``token_usage.prompt_tokens``, ``.completion_tokens`` and ``.n_calls``.

Accepted in ``steps.jsonl``, one object for each call: ``step`` (from 0), ``turn`` ("prediction", "forecast" or
"feedback"), ``raw_response`` (the reply; where given it is read again by our own rules, so that an answer which the
other runner took for 0 is missing here), else ``prediction`` or ``parsed.prediction``; ``note_out``, ``note`` or
``parsed.note``; ``usage``. Which of the two files is believed: :mod:`interp.llm.attempts`.

Labels may be written 0/1 or rainy/sunny. Other fields are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.checks import checked
from interp.errors import InputError, require
from interp.llm.attempts import BITS, Source, choose, read_attempts
from interp.llm.plan import PAPER_REGIMES
from interp.llm.runner import usage_tokens
from interp.llm.runs import LLMRun
from interp.llm.schemes import Condition

RECORD = "result.json"


@dataclass(frozen=True)
class Imported:
    """A run, the source it was read from, and what was set aside: ``(what, why)``."""

    run: LLMRun
    source: str
    set_aside: tuple[tuple[str, str], ...]


@checked
def import_result(path: str | Path, regime: str | None = None) -> Imported:
    """The run that ``path`` (a ``result.json``) and the steps beside it describe.

    Args:
        regime: its regime, where the file does not name it.

    Raises:
        InputError: a field that is needed is missing or malformed; the message names it.
    """
    path = Path(path)
    result = _json(path, path.read_text(encoding="utf-8"))
    advice, labels = _instance(path, result)
    name = str(_first(result, "meta.prompt prompt meta.scheme scheme") or "")
    condition = condition_of(name or str(path.parent))
    record, set_aside = _record(path, result)
    attempts, torn = read_attempts(path.parent / "steps.jsonl", condition)
    choice = choose(record, attempts, len(labels), path)
    set_aside += list(choice.set_aside) + [("steps.jsonl", torn)] * bool(torn)
    source = choice.source
    rounds = source.rounds
    played = np.array([source.predictions[t] for t in range(rounds)])
    usage = [usage_tokens(call.get("usage")) for call in source.calls]
    tokens = np.full(rounds, np.nan)
    for call, (prompt, _, _) in zip(source.calls, usage, strict=True):
        if call["step"] < rounds and prompt:
            tokens[call["step"]] = prompt
    total = _first(result, "token_usage") or {}
    accuracies, eta = _first(result, "input.accuracies accuracies"), _first(result, "input.eta eta")
    run = LLMRun(
        model=str(_first(result, "meta.model model") or "unknown"),
        condition=condition,
        regime=str(_first(result, "meta.regime regime") or regime or _regime_in(path)),
        index=int(_first(result, "meta.idx idx index") or 0),
        advice=advice,
        labels=labels,
        accuracies=None if accuracies is None else _accuracies(path, accuracies, advice.shape[1]),
        predictions=played,
        notes=tuple(source.notes.get(t) if condition.has_note else None for t in range(rounds)),
        ended="complete" if rounds == len(labels) else "unfinished",
        calls=len(source.calls) or int(total.get("n_calls") or rounds * condition.calls_per_round),
        malformed=int(np.isnan(played).sum()),
        prompt_tokens=tokens,
        total_prompt_tokens=sum(prompt for prompt, _, _ in usage) or int(total.get("prompt_tokens") or 0),
        total_completion_tokens=sum(said for _, _, said in usage) or int(total.get("completion_tokens") or 0),
        seconds=float(np.mean([call["elapsed_s"] for call in source.calls if "elapsed_s" in call] or [np.nan])),
        wording=f"imported: {name or 'unknown prompt'}",
        served=(),
        path=path,
        eta=None if eta is None else _eta(path, eta),
    )
    return Imported(run, source.name, tuple(set_aside))


@checked
def condition_of(name: str) -> Condition:
    """Framing and protocol from a prompt's name, such as ``interactive_weather_nonote``."""
    words = name.lower()
    framing = "weather" if "weather" in words else "online"
    if "nonote" in words or "no-note" in words or "no_note" in words:
        return Condition(framing, "no-note")
    return Condition(framing, "note" if "hist" in words else "note-only")


def _regime_in(path: Path) -> str:
    """The last folder name that is one of the paper's regimes."""
    words = re.sub("anti_?signal", "anti-signal", str(path).lower())
    found = re.findall(rf"(?<![a-z])({'|'.join(PAPER_REGIMES)})(?![a-z])", words)
    return found[-1] if found else "unknown"


def _instance(path: Path, result: dict[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    names = "input.expert_predictions input.advice expert_predictions advice"
    advice = _bits(path, "advice", _needed(path, result, "advice", names))
    names = "input.true_labels input.labels true_labels labels"
    labels = _bits(path, "labels", _needed(path, result, "labels", names))
    require(
        advice.ndim == 2 and labels.ndim == 1 and not np.isnan(advice).any() and not np.isnan(labels).any(),
        f"{str(path)!r}: advice must be [round][expert] and labels [round], without nulls",
    )
    require(len(advice) == len(labels), f"{str(path)!r} has advice for {len(advice)} rounds and {len(labels)} labels")
    return advice.astype(np.int64), labels.astype(np.int64)


def _record(path: Path, result: dict[str, Any]) -> tuple[Source, list[tuple[str, str]]]:
    """What ``result.json`` tells of the play; without predictions it is an empty source."""
    said = _first(result, "response.predictions predictions")
    predictions = [] if said is None else _bits(path, "predictions", said).tolist()
    texts = list(_first(result, "response.notes notes") or [])
    aside = []
    if len(texts) == len(predictions) + 1 and not texts[0]:
        texts = texts[1:]
    elif texts and len(texts) != len(predictions):
        why = f"they have {len(texts)} entries for {len(predictions)} rounds and cannot be aligned with them"
        aside, texts = [(f"notes of {RECORD}", why)], []
    notes = {t: text for t, text in enumerate(texts) if isinstance(text, str)}
    return Source(RECORD, dict(enumerate(predictions)), notes), aside


def _accuracies(path: Path, values: Any, n_experts: int) -> NDArray[np.float64]:
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.array([])
    require(
        found.shape == (n_experts,) and bool(((found >= 0) & (found <= 1)).all()),
        f"{str(path)!r}: accuracies must be {n_experts} numbers in [0, 1], one for each expert, got {values!r}",
    )
    return found


def _eta(path: Path, value: Any) -> float:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and np.isfinite(value) and value >= 0
    require(known, f"{str(path)!r}: eta must be a number of 0 or more, got {value!r}")
    return float(value)


def _first(result: dict[str, Any], names: str) -> Any:
    """The first of ``names`` (dots go into objects) that has a value; None where none has."""
    for name in names.split():
        value: Any = result
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            return value
    return None


def _needed(path: Path, result: dict[str, Any], what: str, names: str) -> Any:
    value = _first(result, names)
    require(value is not None, f"{str(path)!r} has no {what}; give it as {' or '.join(names.split())}")
    return value


def _bits(path: Path, what: str, values: Sequence[Any]) -> NDArray[np.float64]:
    try:
        return np.array(
            [[BITS[v] for v in row] if isinstance(row, list) else BITS[row] for row in values], dtype=np.float64
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{str(path)!r}: {what} must be 0/1 or rainy/sunny in equal rows, got {error}") from error


def _json(path: Path, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InputError(f"{str(path)!r} is not JSON: {error}") from error
    require(isinstance(found, dict), f"{str(path)!r} is not a JSON object")
    return found
