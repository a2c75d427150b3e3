"""Import rounds that another program recorded, as results for `interp llm score`, `notes` and
`report`.

The input file is a table with one row per round, chats as JSON lines, or a log of Inspect. The user
names the columns, or the keys of the JSON objects in the messages (docs/method/traces.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from interp.llm.schemes import Condition
from interp.support.checks import checked, checked_result
from interp.support.errors import require
from interp.support.files import json_values, write_json

if TYPE_CHECKING:
    from interp.tasks.trials import TrialsRead


@dataclass(frozen=True)
@checked_result
class Imported:
    """The result of importing recorded rounds.

    Attributes:
        reading: report on which column was used for what, and how many rounds were read.
        files: the written ``result.json`` files, one per episode.
        missing: number of rounds without a readable answer.
    """

    reading: TrialsRead
    files: tuple[Path, ...]
    missing: int

    @property
    def sentence(self) -> str:
        """A sentence with the number of imported episodes, and of rounds that could not be read."""
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
    """Read rounds of expert advice that another program recorded, and write each episode as a
    ``result.json``, which ``interp llm score`` reads.

    Args:
        path: a table with one row per round, chats as JSON lines, or a log of Inspect (.json or
            .eval).
        folder: where the episodes go, each in a folder of its own; it must hold no episodes of the
            same model yet.
        advice: names of the columns with the advice, one for each expert; by default advice_1,
            expert_1, ...
        outcome: name of the column with the outcome of a round.
        choice: name of the column with the player's prediction.
        note: name of the column with the note that the player writes after a round, if there are
            notes.
        participant: name of the column with the player; in chats, each conversation is a player.
        session: names of the columns that define sessions; each session becomes an episode.
        order: name of the column that orders the rounds.
        missed: codes of missing answers, such as timeout; the word none if there are no such codes.
            In Python this is a list, such as ``["timeout"]`` or ``["none"]``.
        encoding: text encoding of the file, such as latin-1; detected by default.
        model: name of the language model in the results; by default the name of the file.
        condition: how outcomes were worded and what the player saw of earlier rounds, such as
            weather-note-only; by default online-no-note, or online-note-only if there are notes.
            :class:`~interp.llm.schemes.Condition` explains these names.
    """
    from interp.llm.importer import RECORD
    from interp.llm.plan import folder_of
    from interp.tasks.experts.episodes import code_rounds
    from interp.tasks.trials import ReadingOptions, open_trials

    played = Condition.parse(condition or ("online-note-only" if note else "online-no-note"))
    columns = {
        "advice": advice,
        "outcome": outcome,
        "choice": choice,
        "note": note,
        "participant": participant,
        "session": session,
        "order": order,
    }
    table = open_trials(
        path,
        ("advice", "outcome", "choice"),
        columns,
        ReadingOptions(missed=missed, encoding=encoding),
        optional=("note",),
        lists=("advice", "session"),
    )
    text_table = table.text_table
    rounds = code_rounds(table)
    outcomes = {label: outcome for outcome, label in enumerate(rounds.labels)}  # label -> 0 or 1
    # The only column of "choice"; an answer that is no label becomes NaN.
    answers = table.read_labels("choice").iloc[:, 0].map(outcomes)
    reading = table.make_report(rounds.sessions, rounds.counted)
    # The importer finds the condition in the prompt's name.
    prompt = f"{played.name}-hist" if played.protocol == "note" else played.name
    name = model or text_table.path.name.partition(".")[0]
    place = Path(folder) / folder_of(name)
    require(
        not any(place.glob(f"*/{RECORD}")),
        f"{str(place)!r} holds episodes of an earlier import, which would be mixed with these; remove it, or choose "
        "another folder (--out) or model name (--model)",
    )
    files = []
    n_missing = 0
    for index, (_, session_rows) in enumerate(rounds.sessions):
        rows = session_rows[rounds.counted[session_rows]]
        advice_of_rounds = rounds.advice.loc[rows].astype(int).values
        instance = {
            "expert_predictions": advice_of_rounds.tolist(),
            "true_labels": rounds.truth[rows].astype(int).tolist(),
        }
        predictions = json_values(answers[rows].tolist())
        n_missing += predictions.count(None)
        response = {"predictions": predictions}
        if note:
            notes = text_table.cells[note][rows]
            response["notes"] = notes.fillna("").tolist()
        meta = {"model": name, "prompt": prompt, "idx": index}
        result = {"meta": meta, "input": instance, "response": response}
        files.append(write_json(place / f"{index:04d}" / RECORD, result))
    return Imported(reading, tuple(files), missing=n_missing)
