"""Read runs that others made: a ``result.json`` for each run.

Which fields are accepted: docs/method/traces.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.llm.plan import PAPER_REGIMES
from interp.llm.runner import counted
from interp.llm.runs import LLMRun
from interp.llm.schemes import Condition
from interp.support.checks import checked, fitted, integer, number, shown
from interp.support.errors import InputError, require
from interp.support.files import read_json, reading

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
) -> tuple[LLMRun, list[tuple[str, str]]]:
    """Read the run that ``path`` (a ``result.json``) describes.

    Args:
        path: the file.
        regime: its regime, where the file does not name it.

    Returns:
        The run, and what was set aside: ``(what, why)``.
    """
    path = Path(path)
    with reading(path, "it is no result that can be imported; move it away"):
        result = _Result(path, read_json(path))
        return _run_of(result, regime)


def _run_of(result: _Result, regime: str | None) -> tuple[LLMRun, list[tuple[str, str]]]:
    """Return the run that a result describes, and what of it was set aside; ``regime`` is used where it has none."""
    path = result.path
    condition = result.condition()
    advice, labels = result.instance()
    predictions = result.predictions(len(labels))
    n_rounds = len(predictions)
    notes, set_aside = result.notes(n_rounds)
    if not condition.has_note:
        notes = [None] * n_rounds
    n_calls = counted(result.get("n_calls"))
    index = integer(f"idx of {str(path)!r}", result.get("index") or 0, 0)
    regime = result.get("regime") or regime or _regime_of(path)
    wording = result.get("prompt") or "unknown prompt"
    model = result.get("model") or "unknown"
    accuracies = result.accuracies(advice.shape[1])
    is_complete = n_rounds == len(labels)
    n_missing = np.isnan(predictions).sum()
    n_prompt_tokens = counted(result.get("prompt_tokens"))
    n_completion_tokens = counted(result.get("completion_tokens"))
    run = LLMRun(
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
        prompt_tokens=np.full(n_rounds, np.nan),
        total_prompt_tokens=n_prompt_tokens,
        total_completion_tokens=n_completion_tokens,
        wording=f"imported: {wording}",
        path=path,
        eta=result.eta(),
    )
    return run, set_aside


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

    def predictions(self, n_rounds: int) -> NDArray[np.float64]:
        """Return the prediction of each round, NaN where it is missing; those after the last round are left out."""
        predictions = self.bits("predictions")
        require(
            predictions.ndim == 1 and len(predictions) > 0,
            f"{str(self.path)!r}: predictions must be one a round, and at least one",
        )
        return predictions[:n_rounds]

    def notes(self, n_rounds: int) -> tuple[list[str | None], list[tuple[str, str]]]:
        """Return the note after each round, None where there is none, and what was set aside."""
        texts = list(self.get("notes") or [])
        if len(texts) == n_rounds + 1 and not texts[0]:
            texts = texts[1:]
        if texts and len(texts) != n_rounds:
            why = f"they have {len(texts)} entries for {n_rounds} rounds and cannot be aligned with them"
            return [None] * n_rounds, [(f"notes of {RECORD}", why)]
        notes = [text if isinstance(text, str) else None for text in texts]
        return notes or [None] * n_rounds, []


def _as_bits(value: Any) -> Any:
    """Return one outcome, or a row of them, as numbers."""
    return [_BITS[item] for item in value] if isinstance(value, list) else _BITS[value]
