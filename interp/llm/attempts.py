"""Which file tells how another runner's episode went: ``result.json``, or an attempt in ``steps.jsonl`` beside it.

The rule, which holds for every episode:

1. The candidates are the record of ``result.json`` and each *attempt* in ``steps.jsonl``. A runner that crashed and
   began again from round 0 wrote both attempts into one file, so a new attempt starts where the step number falls, or
   where a prediction follows the feedback of its own step.
2. A candidate is *consistent* when it has a prediction (usable or not) for each round from 0 to its last one. A torn
   last line of ``steps.jsonl`` is left out; the others stay.
3. The longest consistent candidate is read. Between an attempt and a record of equal length, the attempt is read where
   it is the same play (every usable answer in it is the record's prediction), because its raw replies can be read by
   our own rules; where it is another play, the record is.

Everything else is set aside, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from interp.errors import InputError, require
from interp.llm.schemes import Condition, read_answer

BITS: dict[object, float] = {0: 0.0, 1: 1.0, "0": 0.0, "1": 1.0, "rainy": 0.0, "sunny": 1.0, None: float("nan")}
"""How outcomes are written in other people's files; null is a missing prediction."""


@dataclass(eq=False)
class Source:
    """One telling of an episode: predictions and notes by round, and the calls where they are known."""

    name: str
    predictions: dict[int, float] = field(default_factory=dict)
    notes: dict[int, str] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        """How many rounds were played."""
        return len(self.predictions)

    @property
    def problem(self) -> str:
        """Why it is not consistent; empty where it is."""
        if not self.predictions:
            return "it has no prediction"
        gaps = sorted(set(range(max(self.predictions) + 1)) - set(self.predictions))
        return f"it has no prediction for round {gaps[0]} but has later ones" if gaps else ""

    def same_play(self, other: Source) -> bool:
        """Do the usable predictions that both have agree?"""
        both = self.predictions.keys() & other.predictions.keys()
        pairs = [(self.predictions[t], other.predictions[t]) for t in both]
        return all(mine == theirs for mine, theirs in pairs if not np.isnan(mine) and not np.isnan(theirs))


@dataclass(frozen=True)
class Choice:
    """The source that is read, and every other one with the reason why it is not."""

    source: Source
    set_aside: tuple[tuple[str, str], ...]


def choose(record: Source, attempts: Sequence[Source], n_rounds: int, path: Path) -> Choice:
    """The source to read for the episode in ``path``, by the rule in the module's text.

    Raises:
        InputError: no consistent source.
    """
    everything = (record, *attempts)
    for source in everything:
        source.predictions = {t: said for t, said in source.predictions.items() if t < n_rounds}
    candidates = [source for source in everything if not source.problem]
    if not candidates:
        raise InputError(f"{str(path)!r} has no predictions that can be used: in {record.name}, {record.problem}")
    longest = max(source.rounds for source in candidates)
    best = [source for source in candidates if source.rounds == longest]
    same = [attempt for attempt in best if attempt is not record and attempt.same_play(record)]
    if record not in best:
        chosen, retold = best[-1], False
    else:
        chosen, retold = (same[-1], True) if same else (record, False)
    if retold:
        chosen.notes = record.notes | chosen.notes
    said_more = bool(record.predictions) and not retold
    # A record that the attempt retells, or that says nothing, is not another play.
    others = [one for one in everything if one is not chosen and (one is not record or said_more)]
    return Choice(chosen, tuple((one.name, one.problem or _why_not(one, chosen)) for one in others))


def _why_not(one: Source, chosen: Source) -> str:
    if one.rounds < chosen.rounds:
        part = f"it has {one.rounds} of the {chosen.rounds} rounds of {chosen.name}"
        return part if one.same_play(chosen) else f"{part}, and is another attempt: its predictions differ"
    if one.same_play(chosen):
        return f"it tells the same as {chosen.name}"
    return f"it is another attempt: its predictions differ from those of {chosen.name}"


def read_attempts(path: Path, condition: Condition) -> tuple[list[Source], str]:
    """The attempts in a ``steps.jsonl``, and what was left out of it ("" for nothing); none where there is no file.

    Raises:
        InputError: a line (other than a torn last one) that is not an object with a whole number ``step``.
    """
    if not path.is_file():
        return [], ""
    attempts: list[Source] = []
    last_step, last_was_feedback, torn = -1, False, ""
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            call = json.loads(line)
        except ValueError as error:
            if number == len(lines):  # no line end after it: the writer was stopped
                torn = f"its last line (line {number}) is torn"
                break
            raise InputError(f"line {number} of {str(path)!r} is not JSON: {error}") from error
        require(
            isinstance(call, dict) and isinstance(call.get("step"), int) and call["step"] >= 0,
            f"line {number} of {str(path)!r} has no whole number 'step' of 0 or more",
        )
        feedback = call.get("turn") == "feedback"
        again = call["step"] == last_step and last_was_feedback and not feedback
        if not attempts or call["step"] < last_step or again:
            attempts.append(Source(f"{path.name}, attempt {len(attempts) + 1}"))
        last_step, last_was_feedback = call["step"], feedback
        _add(attempts[-1], call, condition)
    return attempts, torn


def _add(source: Source, call: dict[str, Any], condition: Condition) -> None:
    source.calls.append(call)
    parsed = call.get("parsed")
    parsed = parsed if isinstance(parsed, dict) else {}
    step = call["step"]
    if call.get("turn") == "feedback":
        told = [call.get("note_out"), call.get("note"), parsed.get("note")]
        if texts := [note for note in told if isinstance(note, str)]:
            source.notes[step] = texts[0]
    elif isinstance(call.get("raw_response"), str):
        answer = read_answer(condition, "prediction", call["raw_response"])
        source.predictions[step] = float(answer.value) if isinstance(answer.value, int) else float("nan")
    else:
        said = call.get("prediction", parsed.get("prediction"))
        source.predictions[step] = BITS.get(said, float("nan")) if isinstance(said, (int, str)) else float("nan")
