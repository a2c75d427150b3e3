"""Read episodes that another program recorded: one ``result.json`` per episode.

``interp llm import`` writes such files. docs/method/traces.md describes their fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.llm.runs import LLMRun
from interp.llm.schemes import Condition
from interp.support.checks import checked, integer
from interp.support.errors import require
from interp.support.files import convert_read_errors, read_json

RECORD = "result.json"


@checked
def import_result(path: str | Path, regime: str | None = None) -> LLMRun:
    """Read the episode in a ``result.json``, and return it as a run.

    Args:
        path: the file.
        regime: regime (distribution that the episode was sampled from) if the file names none;
            "unknown" if None.

    Raises:
        InputError: if a field is missing, or two fields do not fit each other, such as advice and
            outcomes of different numbers of rounds.
    """
    path = Path(path)
    with convert_read_errors(path, "it is no result that can be imported; move it away"):
        result = read_json(path, "meta", "input", "response")
        meta, response = result["meta"], result["response"]
        prompt = str(meta.get("prompt"))
        condition = _find_condition(prompt)
        advice = _read_bits(path, result["input"], "expert_predictions", axes="[round][expert]")
        labels = _read_bits(path, result["input"], "true_labels", axes="[round]")
        predictions = _read_bits(path, response, "predictions", axes="[round]", may_lack=True)
        n_labels = len(labels)
        require(
            len(advice) == n_labels,
            f"{str(path)!r} has advice for {len(advice)} rounds and {n_labels} labels",
        )
        n_rounds = len(predictions)
        require(
            0 < n_rounds <= n_labels,
            f"{str(path)!r}: predictions must be at least one, and no more than labels, got {n_rounds} and {n_labels}",
        )
        notes: list[Any] = [None] * n_rounds
        if condition.has_note:
            notes = response.get("notes") or notes
        model = meta.get("model", "unknown")
        regime = meta.get("regime") or regime or "unknown"
        index = integer(f"idx of {str(path)!r}", meta.get("idx", 0), 0)
        n_calls = n_rounds * (1 + condition.has_note)  # a note takes a second call
        ended = "complete" if n_rounds == n_labels else "unfinished"
        n_missing = np.isnan(predictions).sum()
        return LLMRun(
            model=str(model),
            condition=condition,
            regime=str(regime),
            index=index,
            advice=advice.astype(np.int64),
            labels=labels.astype(np.int64),
            accuracies=None,
            predictions=predictions,
            notes=_list_notes_by_round(path, notes, n_rounds),
            ended=ended,
            calls=n_calls,
            malformed=int(n_missing),
            prompt_tokens=np.full(n_rounds, np.nan),
            total_prompt_tokens=0,
            total_completion_tokens=0,
            wording=f"imported: {prompt}",
            path=path,
        )


def _find_condition(prompt: str) -> Condition:
    """Return the condition (wording of outcomes and kind of notes) that the name of a prompt
    implies, such as "weather-note-hist".
    """
    framing = "weather" if "weather" in prompt else "online"
    if re.search("no[-_]?note", prompt):
        return Condition(framing, "no-note")
    # "hist": the model sees the conversation so far besides its note.
    return Condition(framing, "note" if "hist" in prompt else "note-only")


def _read_bits(
    path: Path, part: Mapping[str, Any], name: str, *, axes: str, may_lack: bool = False
) -> NDArray[np.float64]:
    """Return a field whose values are outcomes 0 or 1, as an array of floats; NaN for null.

    Args:
        path: path of the file, for error messages.
        part: the JSON object that has the field.
        name: name of the field.
        axes: axes of the values, such as "[round][expert]".
        may_lack: whether values may be null.
    """
    require(name in part, f"{str(path)!r} has no {name}; interp llm import writes it")
    try:
        bits = np.array(part[name], np.float64)
    except (TypeError, ValueError):  # words, or rows of several lengths
        bits = np.array(np.nan)  # no axes, so that it is refused below
    # If values may be null, NaN becomes 0 for the check, and so passes it.
    checked_bits = np.nan_to_num(bits) if may_lack else bits
    n_axes = axes.count("[")
    fits = bits.ndim == n_axes and np.isin(checked_bits, (0, 1)).all()
    require(fits, f"{str(path)!r}: {name} must be {axes}, 0 or 1 each")
    return bits


def _list_notes_by_round(path: Path, notes: list[Any], n_rounds: int) -> tuple[str | None, ...]:
    """Return a tuple with the note after each round; None where the file has something other than
    text. If there is one note more than rounds, the first note is left out; it must be empty.

    Args:
        path: path of the file, for error messages.
        notes: the notes in the file.
        n_rounds: number of rounds.
    """
    # Some files begin with the note before the first round, which is empty.
    begins_empty = len(notes) == n_rounds + 1 and not notes[0]
    by_round = notes[1:] if begins_empty else notes
    require(
        len(by_round) == n_rounds,
        f"{str(path)!r} has {len(notes)} notes for {n_rounds} rounds; give one after each round",
    )
    return tuple(note if isinstance(note, str) else None for note in by_round)
