"""Turn rounds that anybody recorded into results that `interp llm score`, `notes` and `report`
read.

A file holds a table with a row a round, or chats as JSON lines (``{"messages": [{"role": ...,
"content": ...}]}``) with JSON objects in the messages. The user names the columns, or the keys of
these objects: docs/method/traces.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from interp.llm.schemes import Condition, find_object, json_in, text_of
from interp.support.checks import checked
from interp.support.errors import require
from interp.support.files import write_json

if TYPE_CHECKING:
    from interp.tasks.table_file import TextTable
    from interp.tasks.trials import TrialsRead


@dataclass(frozen=True)
class Imported:
    """What was imported.

    Attributes:
        reading: which columns were taken for what, and how much was read.
        files: a ``result.json`` for each episode.
        missing: how many of the rounds have no answer that can be read.
    """

    reading: TrialsRead
    files: tuple[Path, ...]
    missing: int

    @property
    def sentence(self) -> str:
        """How many episodes were written, and what could not be read."""
        return f"{len(self.files)} episodes imported; {self.missing} rounds have no answer that is one of the labels"


@checked
def import_rounds(
    path: str | Path,
    folder: str | Path,
    advice: list[str] | None = None,
    outcome: str | None = None,
    choice: str | None = None,
    note: str | None = None,
    participant: str | None = None,
    session: list[str] | None = None,
    order: str | None = None,
    missed: list[str] | None = None,
    encoding: str | None = None,
    model: str = "",
    condition: str = "",
) -> Imported:
    """Write the episodes in a table, or in chats, as results of another runner below a folder.

    Args:
        path: the table, or the chats.
        folder: where the episodes go, each in a folder of its own.
        advice: columns with the advice of each expert; by default advice_1, expert_1, ...
        outcome: column with the outcome.
        choice: column with the prediction.
        note: column with the note after each round, if there are notes.
        participant: column with the player; in chats, each conversation is a player.
        session: columns that define sessions; each session is an episode.
        order: column that orders the rounds.
        missed: codes of missing answers, such as timeout; none if there are no such codes.
        encoding: text encoding of the file, such as latin-1; detected by default.
        model: name of the player; by default from the file.
        condition: condition of framing and note, such as weather-note-only; by default without
            notes, or note-only if there are notes.
    """
    from interp.llm.importer import RECORD
    from interp.llm.plan import folder_of
    from interp.tasks.table_columns import choose_columns
    from interp.tasks.table_file import read_text_table
    from interp.tasks.trials import ReadingOptions, TrialTable

    played = Condition.parse(condition or ("online-note-only" if note else "online-no-note"))
    text_table = read_text_table(path, encoding)
    if "messages" in text_table.names:
        require(
            outcome is not None,
            f"{text_table.file} holds chats: name the key of the truth with outcome= (--outcome), after which a round "
            "ends, and those of advice and choice",
        )
        participant = participant or "conversation"
        text_table = _open_chats(text_table, str(outcome), note)
    named = {
        "advice": advice,
        "outcome": outcome,
        "choice": choice,
        "note": note,
        "participant": participant,
        "session": session,
        "order": order,
    }
    columns = choose_columns(
        text_table,
        ("advice", "outcome", "choice"),
        named,
        optional=("note",),
        lists=("advice", "session"),
    )
    table = TrialTable(text_table, columns, ReadingOptions(missed=missed))
    frames, labels = table.code("label", [table.texts("advice"), table.texts("outcome")])
    require(
        len(labels) == 2,
        f"advice and outcome in {text_table.file} must have two labels together, got {', '.join(labels)}",
    )
    votes, truth = frames[0], frames[1].iloc[:, 0]
    bits = {label: bit for bit, label in enumerate(labels)}
    answers = table.texts("choice").iloc[:, 0].map(bits)
    is_whole = votes.notna().all(axis=1) & truth.notna()
    sessions = table.played(table.sessions(), is_whole, "advice and outcome")
    reading = table.said(sessions, is_whole)
    name = model or text_table.path.name.partition(".")[0]
    files = []
    n_missing = 0
    for index, (_, lines) in enumerate(sessions):
        rows = lines[is_whole[lines]]
        instance = {
            "expert_predictions": votes.loc[rows].astype(int).values.tolist(),
            "true_labels": truth[rows].astype(int).tolist(),
        }
        response: dict[str, Any] = {"predictions": _bits_or_none(answers[rows].tolist())}
        n_missing += response["predictions"].count(None)
        if note:
            response["notes"] = text_table.cells[note][rows].fillna("").tolist()
        meta = {"model": name, "prompt": _prompt_name(played), "idx": index}
        result = {"meta": meta, "input": instance, "response": response}
        place = Path(folder) / folder_of(name) / f"{index:04d}" / RECORD
        files.append(write_json(place, result))
    return Imported(reading, tuple(files), missing=n_missing)


def _bits_or_none(answers: Sequence[float]) -> list[int | None]:
    """Return answers as outcomes, None where there is none."""
    return [None if np.isnan(bit) else int(bit) for bit in answers]


def _prompt_name(condition: Condition) -> str:
    """Return a name of a prompt that the importer reads as this condition."""
    return f"{condition.name}-hist" if condition.protocol == "note" else condition.name


def _open_chats(table: TextTable, outcome: str, note: str | None) -> TextTable:
    """Return chats as a table with a row a round, and a column for each key of their JSON objects.

    Args:
        table: a chat per row.
        outcome: key of the truth.
        note: key of the note; None where there is none.
    """
    import pandas as pd

    rows = []
    for line, cell in table.cells["messages"].items():
        messages = json_in(str(cell))
        for row in _rounds_in(messages if isinstance(messages, list) else [], outcome, note):
            rows.append({"conversation": str(line), **row})
    require(
        bool(rows),
        f"no message of {table.file} is a JSON object with the key {outcome!r}; name the key of the truth with "
        "outcome= (--outcome)",
    )
    cells = pd.DataFrame(rows, dtype=object)
    return replace(table, cells=cells)


def _rounds_in(messages: Sequence[Any], outcome: str, note: str | None) -> list[dict[str, str]]:
    """Return the rounds of one conversation: what its JSON objects say up to the truth of each.

    Args:
        messages: in OpenAI's form.
        outcome: the key of the truth, which ends a round.
        note: the key of the note, which the player writes after it.
    """
    rounds: list[dict[str, str]] = []
    row: dict[str, str] = {}
    for message in messages:
        fields = _fields_of(message)
        is_answer = isinstance(message, Mapping) and message.get("role") == "assistant"
        written = fields.pop(note, None) if note else None
        if is_answer and written is not None and rounds:
            rounds[-1][str(note)] = written
        if outcome in fields and row:
            rounds.append({**fields, **row})
            row = {}
        row |= {name: value for name, value in fields.items() if name != outcome}
    return rounds


def _fields_of(message: Any) -> dict[str, str]:
    """Return the JSON object in a message as texts; empty where there is none."""
    content = message.get("content") if isinstance(message, Mapping) else None
    body, _, _ = find_object(text_of(content))
    if not isinstance(body, dict):
        return {}
    return {str(name): str(value) for name, value in body.items() if value is not None}
