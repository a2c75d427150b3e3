"""Turn recorded chats into a table with one row per round.

A chat is a list of messages in OpenAI's format, ``{"role": ..., "content": ...}``. The contents
include JSON objects, possibly among other words. The user names keys of these objects as if they
were columns of a table. A sample in a log of Inspect (an evaluation framework) is a chat, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import pandas as pd

from interp.support.errors import require
from interp.support.foreign import json_in
from interp.support.replies import find_object, text_of
from interp.tasks.table_columns import list_column_names
from interp.tasks.table_file import TextTable


def open_chats(table: TextTable, named: Mapping[str, Any], role: str) -> TextTable:
    """Convert a table of chats to a table with one row per round.

    A chat is a list of messages, which contain JSON objects. The new table has a column for each
    key of these objects, and a copy of each other column of ``table``. There are two kinds of
    chats:

    - The outcome (or reward) is a key of the objects. Each message with this key ends a round, and
      the new column "conversation" has the chat's line number in the file.
    - The outcome (or reward) is a column of ``table``, such as "target" in a log of the framework
      Inspect. Each chat is one round, and "conversation" has the value of the column "epoch" (1 if
      there is none).

    Args:
        table: the chats, one per row, with the messages in the column "messages".
        named: role of a column -> the key or keys of JSON objects that the user named for it, such
            as ``{"advice": ["expert_1", "expert_2"], "outcome": "answer"}``.
        role: "outcome" or "reward": the role in ``named`` whose keys end a round.

    Returns:
        The new table, every cell a text. Chats without a round are left out, and a remark says so.
    """
    end_keys = set(list_column_names(role, named.get(role)))
    require(
        end_keys,
        f"{table.file} holds chats: name the key of the {role} with {role}= (--{role}), after which a round "
        "ends, and the keys of the rest",
    )
    next_state_keys = {*list_column_names("next_state", named.get("next_state")), "next_state"}
    is_chat_a_round = not end_keys.isdisjoint(table.names)
    rows: list[dict[str, Any]] = []
    without_round = []
    for line, cells in table.cells.iterrows():
        other_columns = {str(name): cell for name, cell in cells.dropna().items()}
        messages = json_in(str(other_columns.pop("messages", "")))
        chat = messages if isinstance(messages, list) else []
        if is_chat_a_round:
            # The truth ends a round, and the advice comes before it: either may stand beside the messages.
            columns_as_message = {"content": json.dumps(other_columns)}
            chat = [columns_as_message, *chat, columns_as_message]
        place = "" if is_chat_a_round else f"line {line} of {table.file}"
        rounds = _read_rounds(chat, end_keys, next_state_keys, named.get("note"), place=place)
        conversation = other_columns.get("epoch", "1") if is_chat_a_round else str(line)
        for row in rounds:
            rows.append({"conversation": conversation, **other_columns, **row})
        if not rounds:
            without_round.append(str(other_columns.get("id", f"line {line}")))
    keys = " or ".join(map(repr, sorted(end_keys)))
    remedy = f"name the key of the {role} with {role}= (--{role})"
    require(rows, f"no message of {table.file} is a JSON object with the key {keys}; {remedy}")
    remarks = table.remarks
    if without_round:
        names = ", ".join(without_round[:5])
        share = f"{len(without_round)} of {len(table.cells)} chats"
        remark = f"{share} hold no round that ends with {keys}, and are left out: {names}."
        remarks = (*remarks, remark)
    return replace(table, cells=pd.DataFrame(rows, dtype=object), remarks=remarks)


def _read_rounds(
    messages: Sequence[Any],
    end_keys: Set[str],
    next_state_keys: Set[str],
    note_key: str | None,
    *,
    place: str,
) -> list[dict[str, str]]:
    """Split one chat into rounds. Return a list with one mapping {key: value} per round, which
    merges the fields of the round's JSON objects. If an answer has no JSON object, its round has no
    key of the choice, which counts as missed.

    Args:
        messages: the messages, in OpenAI's format.
        end_keys: keys of the outcome or reward. A message that has one of them ends the round. Its
            other fields are those of the next round, and of the ended round if it lacks them.
        next_state_keys: keys of the next state. If they are in a message that ends a round, they
            belong to this round alone.
        note_key: key of the note that the player writes after a round; None if there are no notes.
        place: where the chat is, such as "line 3 of FILE", for an error message. The error is that a
            message after an answer repeats a key, so that a second round begins before the first
            has an outcome. "" if the whole chat is one round: then keys may be repeated.
    """
    rounds: list[dict[str, str]] = []
    open_round: dict[str, str] = {}  # fields of the round that has not ended
    is_answered = False
    has_answer = False  # True if its answer is a JSON object
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, Mapping):
            continue
        fields = _read_fields(message.get("content"))
        is_answer = message.get("role") == "assistant"
        written_note = fields.pop(note_key, None) if note_key else None
        is_end = not end_keys.isdisjoint(fields)
        if place and has_answer and not is_end:
            require(
                open_round.keys().isdisjoint(fields),
                f"message {number} in {place} begins a round, but no JSON object after the last answer has the "
                f"outcome, a key in {sorted(end_keys)}: the two rounds would be one; add the object",
            )
        if is_answer and written_note is None:
            is_answered = True
            has_answer = bool(fields)
        elif is_answer and rounds:  # a note on the round that has just ended
            rounds[-1][str(note_key)] = str(written_note)
        # An outcome before any field or answer, such as an example in the instructions, ends no
        # round.
        if is_end and (open_round or is_answered):
            # If a key has two values, the earlier one counts: the later may be the next round's.
            rounds.append({**fields, **open_round})
            open_round = {}
            is_answered = False
            has_answer = False
        # What else the message says belongs to the next round.
        left_out = end_keys | next_state_keys if is_end else end_keys
        open_round |= {name: value for name, value in fields.items() if name not in left_out}
    return rounds


def _read_fields(content: Any) -> dict[str, str]:
    """Return the fields of the JSON object in a message's content, with values as strings; empty if
    it has no JSON object.
    """
    body, _, _ = find_object(text_of(content))
    if not isinstance(body, dict):
        return {}
    return {str(name): str(value) for name, value in body.items() if value is not None}
