"""Turn recorded chats into a table with one row per round.

A chat is a list of messages in OpenAI's format, ``{"role": ..., "content": ...}``. The contents
include JSON objects, possibly among other words. The user names keys of these objects as if they
were columns of a table. A sample in a log of Inspect (an evaluation framework) is a chat, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
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
    without_round = []
    unused_answers: list[str] = []
    for line, cells in table.cells.iterrows():
        other_columns = {str(name): cell for name, cell in cells.dropna().items()}
        messages = json_in(str(other_columns.pop("messages", "")))
        chat = messages if isinstance(messages, list) else []
        if is_chat_a_round:
            # The truth ends a round, and the advice comes before it: either may stand beside the messages.
            columns_as_message = {"content": json.dumps(other_columns)}
            chat = [columns_as_message, *chat, columns_as_message]
        place = "" if is_chat_a_round else f"line {line} of {table.file}"
        rounds, unused = _read_rounds(chat, end_keys, find_role, named.get("note"), place=place)
        conversation = other_columns.get("epoch", "1") if is_chat_a_round else str(line)
        for row in rounds:
            rows.append({"conversation": conversation, **other_columns, **row})
        if place:
            unused_answers += unused
        if not rounds:
            without_round.append(str(other_columns.get("id", f"line {line}")))
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
    return replace(table, cells=pd.DataFrame(rows, dtype=object), remarks=remarks)


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


def _read_rounds(
    messages: Sequence[Any],
    end_keys: Set[str],
    find_role: Callable[[str], str | None],
    note_key: str | None,
    *,
    place: str,
) -> tuple[list[dict[str, str]], list[str]]:
    """Split one chat into rounds, whose fields are merged from the round's JSON objects. If an
    answer has no JSON object, its round has no key of the choice, which counts as missed.

    Args:
        messages: the messages, in OpenAI's format.
        end_keys: keys of the outcome or reward. A message that has one of them ends the round. Its
            other fields are those of the next round, and of the ended round if it lacks them. The
            choice, the action and the next state are always those of the ended round.
        find_role: function that returns the role of a key, or None if it has none.
        note_key: key of the note that the player writes after a round; None if there are no notes.
        place: where the chat is, such as "line 3 of FILE", for an error message. The error is that a
            second round begins before the first has an outcome: after an answer that is a JSON
            object, a message repeats a key; after another answer, it has a key with another value.
            "" if the whole chat is one round: then keys may be repeated.

    Returns:
        One mapping {key: value} per round; and the places of answers in no round, which are those
        without a JSON object that another answer follows, and an answer without an outcome at the
        end.
    """
    rounds: list[dict[str, str]] = []
    unused_answers: list[str] = []
    open_round: dict[str, str] = {}  # fields of the round that has not ended
    answer = ""  # place of its last answer, if it is answered
    has_answer = False  # True if its answer is a JSON object
    # Keys that an earlier round had only beside its outcome, so that they may be the next round's.
    unclear_keys: set[str] = set()
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, Mapping):
            continue
        fields = _read_fields(message.get("content"))
        is_answer = message.get("role") == "assistant"
        message_place = f"message {number} in {place}"
        written_note = fields.pop(note_key, None) if note_key else None
        is_end = not end_keys.isdisjoint(fields)
        repeated_keys = {key for key in fields if key in open_round}
        changed_keys = {key for key in repeated_keys if open_round[key] != fields[key]}
        if place and answer and not is_end:
            begins_round = repeated_keys if has_answer else changed_keys
            require(
                not begins_round,
                f"{message_place} begins a round, but no JSON object after the last answer has the "
                f"outcome, a key in {sorted(end_keys)}: the two rounds would be one; add the object",
            )
        if is_answer and written_note is None:
            if answer and not has_answer:
                unused_answers.append(answer)
            answer = message_place
            has_answer = bool(fields)
        elif is_answer and rounds:  # a note on the round that has just ended
            rounds[-1][str(note_key)] = str(written_note)
        # An outcome before any field or answer, such as an example in the instructions, ends no
        # round.
        if is_end and (open_round or answer):
            unclear_changes = sorted(unclear_keys & changed_keys)
            require(
                not unclear_changes,
                f"{message_place} has {unclear_changes} beside the outcome, as the last message with an outcome, and "
                "no message between them has it: is it of the round that ends or of the next one? Write it in a "
                "message before each answer",
            )
            added_keys = [key for key in fields if key not in open_round]
            unclear_keys |= {key for key in added_keys if find_role(key) in _ROLES_OF_QUESTION}
            # If a key has two values, the earlier one counts: the later may be the next round's.
            rounds.append({**fields, **open_round})
            open_round = {}
            answer = ""
        # What else the message says belongs to the next round.
        for key, value in fields.items():
            if is_end and find_role(key) in _ROLES_OF_ENDED_ROUND:
                continue
            open_round[key] = value
        if not is_end:
            unclear_keys -= fields.keys()
    if answer:
        unused_answers.append(answer)
    return rounds, unused_answers


def _read_fields(content: Any) -> dict[str, str]:
    """Return the fields of the JSON object in a message's content, with values as strings; empty if
    it has no JSON object.
    """
    body, _, _ = find_object(text_of(content))
    if not isinstance(body, dict):
        return {}
    return {str(name): str(value) for name, value in body.items() if value is not None}
