"""Turn recorded chats into a table with one row per round.

A chat is a list of messages in OpenAI's format, ``{"role": ..., "content": ...}``. The contents
include JSON objects, possibly among other words. The user names keys of these objects as if they
were columns of a table. A sample in a log of Inspect (an evaluation framework) is a chat, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pandas as pd

from interp.support.errors import require
from interp.support.foreign import json_in
from interp.support.replies import find_object, text_of
from interp.tasks.table_columns import is_usual_name, list_column_names
from interp.tasks.table_file import TextTable

_ROLES_OF_QUESTION = ("advice", "state", "options", "pairs", "forced")
"""Roles of keys that, beside an outcome or reward, may belong to the next round."""
_ROLES_OF_ENDED_ROUND = ("outcome", "reward", "choice", "action", "next_state")
"""Roles of keys that, beside an outcome or reward, belong to the round that ends."""


def open_chats(table: TextTable, named: Mapping[str, Any], roles: Sequence[str]) -> TextTable:
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
        roles: roles of the task's columns. They include "outcome" or else "reward", the role whose
            keys end a round.

    Returns:
        The new table, every cell a text. Chats without a round are left out, and so are answers
        without an outcome. Remarks say so.
    """
    role = "outcome" if "outcome" in roles else "reward"
    end_keys = set(list_column_names(role, named.get(role)))
    require(
        end_keys,
        f"{table.file} holds chats: name the key of the {role} with {role}= (--{role}), after which a round "
        "ends, and the keys of the rest",
    )
    find_role = partial(_find_role, named=named, roles=roles)
    is_chat_a_round = not end_keys.isdisjoint(table.names)
    rows: list[dict[str, Any]] = []
    places: list[str] = []
    without_round = []
    unused_answers: list[str] = []
    for place, cells in table.cells.iterrows():
        other_columns = {str(name): cell for name, cell in cells.dropna().items()}
        chat = _read_messages(other_columns.pop("messages", ""))
        conversation = str(place).partition(" ")[2]
        if is_chat_a_round:
            conversation = other_columns.get("epoch", "1")
            has_outcome = not end_keys.isdisjoint(other_columns)
            rounds = [_merge_fields(chat, end_keys)] if has_outcome else []
        else:
            reader = _RoundReader(end_keys, find_role, note_key=named.get("note"))
            for number, message in enumerate(chat, start=1):
                reader.read_message(message, f"message {number} in {place} of {table.file}")
            rounds = reader.rounds
            unused_answers += reader.unused_answers
            if reader.answer:  # without an outcome at the end
                unused_answers.append(reader.answer)
        for number, row in enumerate(rounds, start=1):
            places.append(f"round {number} in {place}")
            rows.append({"conversation": conversation, **other_columns, **row})
        if not rounds:
            without_round.append(str(other_columns.get("id", place)))
    keys = " or ".join(map(repr, sorted(end_keys)))
    remedy = f"name the key of the {role} with {role}= (--{role})"
    require(rows, f"no message of {table.file} is a JSON object with the key {keys}; {remedy}")
    remarks = table.remarks
    if unused_answers:
        remark = (
            f"{unused_answers[0]} is an answer without an outcome: another answer, or the end of the chat, comes "
            f"before {keys}. Number of such answers, which are left out: {len(unused_answers)}."
        )
        remarks = (*remarks, remark)
    if without_round:
        names = ", ".join(without_round[:5])
        share = f"{len(without_round)} of {len(table.cells)} chats"
        remark = f"{share} hold no round that ends with {keys}, and are left out: {names}."
        remarks = (*remarks, remark)
    return replace(
        table,
        cells=pd.DataFrame(rows, index=pd.Index(places, dtype=object), dtype=object),
        remarks=remarks,
    )


def _find_role(key: str, named: Mapping[str, Any], roles: Sequence[str]) -> str | None:
    """Return the role of a key in the objects of a chat, such as "choice"; None if it has no role.

    Args:
        key: the key.
        named: role -> the key or keys that the user named for it.
        roles: roles of the task's columns. Keys of those that the user did not name are recognised
            by their usual spellings.
    """
    for role, keys in named.items():
        if key in list_column_names(role, keys):
            return role
    for role in roles:
        if named.get(role) is None and is_usual_name(role, key):
            return role
    return None


def _read_messages(cell: str) -> list[Mapping[str, Any]]:
    """Return the messages in a cell with a chat, empty ones in place of what is no message; an empty
    list if the cell has no chat.
    """
    chat = json_in(cell)
    if not isinstance(chat, list):
        return []
    return [message if isinstance(message, Mapping) else {} for message in chat]


def _merge_fields(messages: Sequence[Mapping[str, Any]], end_keys: Set[str]) -> dict[str, str]:
    """Merge the fields of all messages of a chat; the last value of a key counts.

    Args:
        messages: the messages, in OpenAI's format.
        end_keys: keys of the outcome or reward, which are left out: the chat's own column has it.
    """
    merged: dict[str, str] = {}
    for message in messages:
        merged |= _read_fields(message.get("content"))
    for key in end_keys:
        merged.pop(key, None)
    return merged


@dataclass
class _RoundReader:
    """Splits the messages of one chat into rounds; the fields of a round are merged from its JSON
    objects. If an answer has no JSON object, its round has no key of the choice, which counts as
    missed.

    Attributes:
        end_keys: keys of the outcome or reward. A message that has one of them ends the round. Its
            other fields are those of the next round, and of the ended round if it lacks them. The
            choice, the action and the next state are always those of the ended round.
        find_role: function that returns the role of a key, or None if it has none.
        note_key: key of the note that the player writes after a round; None if there are no notes.
        rounds: one mapping {key: value} per round that has ended.
        unused_answers: places of answers without a JSON object that another answer follows.
        open_fields: fields of the round that has not ended.
        answer: place of the last answer in that round; "" if there is none.
        answer_has_object: True if that answer is a JSON object.
        unclear_keys: keys that an earlier round had only beside its outcome, so that they may be
            the next round's.
    """

    end_keys: Set[str]
    find_role: Callable[[str], str | None]
    note_key: Any
    rounds: list[dict[str, str]] = field(default_factory=list)
    unused_answers: list[str] = field(default_factory=list)
    open_fields: dict[str, str] = field(default_factory=dict)
    answer: str = ""
    answer_has_object: bool = False
    unclear_keys: set[str] = field(default_factory=set)

    def read_message(self, message: Mapping[str, Any], place: str) -> None:
        """Add what a message says to the open round, and end the round if it has the outcome.

        Args:
            message: the message, in OpenAI's format.
            place: where the message is, for error messages.
        """
        fields = _read_fields(message.get("content"))
        note = fields.pop(self.note_key, None)
        is_end = not self.end_keys.isdisjoint(fields)
        if self.answer and not is_end:
            self._refuse_merged_rounds(fields, place)
        if message.get("role") == "assistant":
            self._add_answer(fields, note, place)
        if is_end:
            self._end_round(fields, place)
        else:
            self.open_fields |= fields
            self.unclear_keys -= fields.keys()

    def _find_changed_keys(self, fields: Mapping[str, str]) -> list[str]:
        """Return the keys to which ``fields`` give another value than the open round has."""
        get_open = self.open_fields.get
        return [key for key, value in fields.items() if get_open(key, value) != value]

    def _refuse_merged_rounds(self, fields: Mapping[str, str], place: str) -> None:
        """Raise InputError if a message begins a round before the open round has an outcome: after an
        answer that is a JSON object, it repeats a key; after another answer, it changes a value.

        Args:
            fields: fields of the message.
            place: where the message is.
        """
        begins_round = bool(self._find_changed_keys(fields))
        if self.answer_has_object:
            begins_round = not self.open_fields.keys().isdisjoint(fields)
        require(
            not begins_round,
            f"{place} begins a round, but no JSON object after the last answer has the outcome, a key in "
            f"{sorted(self.end_keys)}: the two rounds would be one; add the object",
        )

    def _add_answer(self, fields: Mapping[str, str], note: str | None, place: str) -> None:
        """Store an answer of the player, or the note on the round that has just ended.

        Args:
            fields: fields of the answer, without the note.
            note: the note; None if the message has none.
            place: where the message is.
        """
        if note is None:
            if self.answer and not self.answer_has_object:
                self.unused_answers.append(self.answer)
            self.answer = place
            self.answer_has_object = bool(fields)
        elif self.rounds:
            self.rounds[-1][self.note_key] = note

    def _end_round(self, fields: Mapping[str, str], place: str) -> None:
        """End the open round by a message with an outcome, and begin the next round.

        Args:
            fields: fields of the message.
            place: where the message is.
        """
        find_role = self.find_role
        # An outcome before any field or answer, such as an example in the instructions, ends no
        # round.
        if self.open_fields or self.answer:
            changed_keys = self._find_changed_keys(fields)
            unclear_changes = sorted(self.unclear_keys.intersection(changed_keys))
            require(
                not unclear_changes,
                f"{place} has {unclear_changes} beside the outcome, as the last message with an outcome, and no "
                "message between them has it: is it of the round that ends or of the next one? Write it in a message "
                "before each answer",
            )
            added_keys = fields.keys() - self.open_fields.keys()
            self.unclear_keys |= {key for key in added_keys if find_role(key) in _ROLES_OF_QUESTION}
            # If a key has two values, the earlier one counts: the later may be the next round's.
            self.rounds.append({**fields, **self.open_fields})
        self.answer = ""
        self.open_fields = {
            key: value
            for key, value in fields.items()
            if find_role(key) not in _ROLES_OF_ENDED_ROUND
        }


def _read_fields(content: Any) -> dict[str, str]:
    """Return the fields of the JSON object in a message's content, with values as strings; empty if
    it has no JSON object.
    """
    body, _, _ = find_object(text_of(content))
    if not isinstance(body, dict):
        return {}
    fields = {}
    for name, value in body.items():
        if value is not None:
            fields[str(name)] = str(value)
    return fields
