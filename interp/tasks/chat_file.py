"""Turn recorded chats into a table with one row per round.

A chat is a list of messages in OpenAI's format, ``{"role": ..., "content": ...}``. The contents
include JSON objects, possibly among other words. The user names keys of these objects as if they
were columns of a table. A sample in a log of Inspect (an evaluation framework) is a chat, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from interp.support.errors import require
from interp.support.foreign import json_in
from interp.support.replies import find_object, text_of
from interp.tasks.table_columns import is_usual_name, list_column_names
from interp.tasks.table_file import TextTable

_ROLES_OF_ENDED_ROUND = ("choice", "action", "next_state")
"""Roles of keys that, beside an outcome or reward, belong to the round that ends."""


@dataclass(frozen=True)
class _ChatRounds:
    """The rounds of one chat.

    Attributes:
        rounds: one mapping {key: value} per round.
        n_repeated: number of answers without a JSON object that were followed by another answer
            in the same round.
        is_unfinished: True if the chat ends with an answer that has no outcome or reward.
    """

    rounds: list[dict[str, str]]
    n_repeated: int
    is_unfinished: bool


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
        without an outcome at the end of a chat. Remarks say so.
    """
    role = "outcome" if "outcome" in roles else "reward"
    end_keys = set(list_column_names(role, named.get(role)))
    require(
        end_keys,
        f"{table.file} holds chats: name the key of the {role} with {role}= (--{role}), after which a round "
        "ends, and the keys of the rest",
    )

    def find_role(key: str) -> str | None:
        return _find_role(key, named, roles)

    is_chat_a_round = not end_keys.isdisjoint(table.names)
    rows: list[dict[str, Any]] = []
    without_round = []
    n_repeated = 0
    n_unfinished = 0
    for line, cells in table.cells.iterrows():
        other_columns = {str(name): cell for name, cell in cells.dropna().items()}
        messages = json_in(str(other_columns.pop("messages", "")))
        chat = messages if isinstance(messages, list) else []
        if is_chat_a_round:
            # The truth ends a round, and the advice comes before it: either may stand beside the messages.
            columns_as_message = {"content": json.dumps(other_columns)}
            chat = [columns_as_message, *chat, columns_as_message]
        place = "" if is_chat_a_round else f"line {line} of {table.file}"
        read = _read_rounds(chat, end_keys, find_role, named.get("note"), place=place)
        conversation = other_columns.get("epoch", "1") if is_chat_a_round else str(line)
        for row in read.rounds:
            rows.append({"conversation": conversation, **other_columns, **row})
        if not is_chat_a_round:
            n_repeated += read.n_repeated
            n_unfinished += read.is_unfinished
        if not read.rounds:
            without_round.append(str(other_columns.get("id", f"line {line}")))
    keys = " or ".join(map(repr, sorted(end_keys)))
    remedy = f"name the key of the {role} with {role}= (--{role})"
    require(rows, f"no message of {table.file} is a JSON object with the key {keys}; {remedy}")
    remarks = table.remarks
    if n_repeated:
        remark = (
            f"Number of answers without a JSON object that another answer follows before {keys}: {n_repeated}. They "
            "are left out as earlier tries at the same round; if they are rounds of their own, add their outcomes."
        )
        remarks = (*remarks, remark)
    if n_unfinished:
        remark = f"Number of chats that end with an answer before {keys}: {n_unfinished}. It is left out."
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
) -> _ChatRounds:
    """Split one chat into rounds, whose fields are merged from the round's JSON objects. If an
    answer has no JSON object, its round has no key of the choice, which counts as missed.

    Args:
        messages: the messages, in OpenAI's format.
        end_keys: keys of the outcome or reward. A message that has one of them ends the round. Its
            other keys belong to the next round, except those of the choice, action or next state.
        find_role: function that returns the role of a key, or None if it has none.
        note_key: key of the note that the player writes after a round; None if there are no notes.
        place: place of the chat, for the error about a round that begins before the outcome of the
            last one, with which it would be merged. After an answer that is a JSON object, a round
            begins if a message has a key of the open round again. After another answer the
            question may be repeated, so that a round begins if a key has another value. "" if the
            whole chat is one round, in which a player may answer several times.
    """
    rounds: list[dict[str, str]] = []
    open_round: dict[str, str] = {}  # fields of the round that has not ended
    is_answered = False
    has_answer = False  # True if its answer is a JSON object
    n_repeated = 0
    # Keys that an earlier round had only beside its outcome, so that they may be the next round's.
    unclear_keys: set[str] = set()
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, Mapping):
            continue
        fields = _read_fields(message.get("content"))
        is_answer = message.get("role") == "assistant"
        written_note = fields.pop(note_key, None) if note_key else None
        is_end = not end_keys.isdisjoint(fields)
        if place and is_answered and not is_end:
            common_keys = open_round.keys() & fields.keys()
            has_new_value = any(open_round[key] != fields[key] for key in common_keys)
            begins_round = bool(common_keys) if has_answer else has_new_value
            require(
                not begins_round,
                f"message {number} in {place} begins a round, but no JSON object after the last answer has the "
                f"outcome, a key in {sorted(end_keys)}: the two rounds would be one; add the object",
            )
        if is_answer and written_note is None:
            n_repeated += is_answered and not has_answer
            is_answered = True
            has_answer = bool(fields)
        elif is_answer and rounds:  # a note on the round that has just ended
            rounds[-1][str(note_key)] = str(written_note)
        if not is_end:
            unclear_keys -= fields.keys()
        ended_keys = {key for key in fields if find_role(key) in _ROLES_OF_ENDED_ROUND}
        # An outcome before any field or answer, such as an example in the instructions, ends no
        # round.
        if is_end and (open_round or is_answered):
            for key in sorted(unclear_keys & fields.keys()):
                require(
                    open_round[key] == fields[key],
                    f"message {number} in {place} has {key!r} beside the outcome, as the message with the outcome "
                    "before it, and no other message has it: it may be of the round that ends or of the next one; "
                    "write it in a message before each answer",
                )
            added_keys = fields.keys() - open_round.keys() - end_keys - ended_keys
            unclear_keys |= {key for key in added_keys if find_role(key) is not None}
            # If a key has two values, the earlier one counts: the later may be the next round's.
            rounds.append({**fields, **open_round})
            open_round = {}
            is_answered = False
            has_answer = False
        # What else the message says belongs to the next round.
        left_out = end_keys | ended_keys if is_end else end_keys
        open_round |= {name: value for name, value in fields.items() if name not in left_out}
    return _ChatRounds(rounds, n_repeated=n_repeated, is_unfinished=is_answered)


def _read_fields(content: Any) -> dict[str, str]:
    """Return the fields of the JSON object in a message's content, with values as strings; empty if
    it has no JSON object.
    """
    body, _, _ = find_object(text_of(content))
    if not isinstance(body, dict):
        return {}
    return {str(name): str(value) for name, value in body.items() if value is not None}
