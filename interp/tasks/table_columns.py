"""Which column of a table is what: by the name that the user passes, otherwise by its usual
spellings.

A name is compared in small letters without separators, so that ``trialNum``, ``trial_num`` and
``Trial Num`` are one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from interp.support.checks import checked_fields, fit
from interp.support.errors import InputError, require, require_known
from interp.tasks.table_file import TextTable

NONE = "none"
"""What is given for a column that the table does not have: of participants, sessions or order."""

_COUNTED = "(number|num|nr|no|n|index|idx|id|label|name|count|counter)?"
_SPELLINGS: dict[str, tuple[str, ...]] = {
    "participant": (
        f"(subj|subject|participant|ppt|person|sub){_COUNTED}",
        "(prolific|worker|user|player|animal|rat|mouse|monkey)(id|name)?",
        "pid|sid|id",
    ),
    "session": (f"(session|sess|ses){_COUNTED}", f"(block|blk){_COUNTED}", f"run{_COUNTED}"),
    "order": (
        f"trial{_COUNTED}",
        f"(trialin|trialwithin|trialof)[a-z]+{_COUNTED}",
        f"round{_COUNTED}",
    ),
    "choice": (
        "choices?|chosen|chose|choose",
        "(chosen|selected)(arm|option|stim|stimulus|action|bandit)|(arm|option)chosen",
        "action|selection|selected|decision",
        "response|resp",
        "key|keypress|keyresp",
        "arm",
    ),
    "action": ("action", "choices?|chosen", "response|resp", "key|keypress"),
    "reward": ("rewards?|rew", "outcome", "payoff|payout", "feedback", "points?"),
    "outcome": ("outcome", "label", "truth"),
    "state": ("state",),
    "next_state": ("next[^a-z0-9]?state",),
    "advice": (r"(advice|expert|advisor)\d+",),
}
"""How the column of a role is spelled, the most usual spelling first: patterns."""
_FREE = ("participant", "session", "order")
"""Roles of which ``none`` says that no column has them."""
_NEVER_GUESSED = ("forced", "options", "pairs")


@dataclass(frozen=True)
@checked_fields
class Columns:
    """Which column is what.

    Attributes:
        by_role: role -> its columns; a role that no column has is not there.
        guessed: the roles for which the user named no column.
        unused: the other columns.
    """

    by_role: Mapping[str, tuple[str, ...]]
    guessed: frozenset[str]
    unused: tuple[str, ...]

    def __contains__(self, role: str) -> bool:
        return role in self.by_role

    def one(self, role: str) -> str:
        """Return the only column of a role."""
        return self.by_role[role][0]


def choose_columns(
    table: TextTable,
    roles: Sequence[str],
    named: Mapping[str, str | Sequence[str] | None],
    optional: Sequence[str] = (),
    lists: Sequence[str] = (),
) -> Columns:
    """Determine which column of a table is what.

    Args:
        table: the table.
        roles: what a row must have, in addition to its participant.
        named: role -> the columns that the user names; None where they are to be found by their
            names.
        optional: roles that are only read where the user names a column.
        lists: roles that may have several columns; of those that are guessed every column that is
            spelled so.

    Returns:
        The columns of every role.

    Raises:
        InputError: a column that is named is not there, has two roles or stands twice; or a role
            has none.
    """
    known = ("participant", *roles, "session", "order", *optional)
    chosen: dict[str, tuple[str, ...]] = {}
    for role, columns in named.items():
        require_known("column", role, known, limit=12)
        chosen[role] = as_names(columns)
        is_given = columns is None or bool(chosen[role])
        require(is_given, f"{role}= names no column; leave it out to have it found by its name")
        if chosen[role] != (NONE,):  # first, as a column that stands twice is guessed for no role
            _check_names(table, role, chosen[role], {})
    by_role: dict[str, tuple[str, ...]] = {}
    guessed = set[str]()
    for role in known:
        names = chosen.get(role, ())
        if names == (NONE,) and role in _FREE:
            continue
        if not names and role not in optional:
            takes_all = role in lists and role not in _FREE
            used = _flat(by_role) if takes_all else _flat(by_role) | _flat(chosen)
            names = _guess(table, role, takes_all, used)
            guessed.add(role)
        _check_names(table, role, names, by_role)
        is_list = role in lists
        require(is_list or len(names) < 2, f"{role} is one column, got {', '.join(names)}")
        if names:
            by_role[role] = names
        elif role not in ("session", "order", *optional):
            _refuse_absent(table, role)
    used = _flat(by_role)
    unused = tuple(name for name in table.names if name not in used)
    return Columns(by_role, frozenset(guessed & by_role.keys()), unused)


def _flat(by_role: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the columns of all roles."""
    return {name for names in by_role.values() for name in names}


def as_names(columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns that a user names for a role; empty for None."""
    if columns is None:
        return ()
    names = [columns] if isinstance(columns, str) else fit("columns", columns, Sequence[str])
    return tuple(name.strip() for name in names)


def spelled(name: str) -> str:
    """Return a column's name in small letters without separators."""
    return re.sub(r"[\W_]+", "", name.lower())


def _guess(table: TextTable, role: str, takes_all: bool, used: Collection[str]) -> tuple[str, ...]:
    """Find the columns that are spelled like a role and not used yet, the most usual spelling
    first.

    Args:
        table: the table.
        role: the role.
        takes_all: whether the role may have several columns.
        used: columns that have a role.
    """
    free = [name for name in table.names if name not in used]
    matches: list[str] = []
    for pattern in _SPELLINGS[role]:
        matches += [name for name in free if re.fullmatch(pattern, spelled(name))]
    if role == "reward":
        return tuple(matches[:1]) or _gain_and_loss(free)
    if role == "session" or takes_all:
        return tuple(matches)
    if role in ("choice", "action"):
        plausible = [name for name in matches if not is_measured(table.cells[name])]
        matches = plausible or matches
    return tuple(matches[:1])


def _gain_and_loss(names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of gains and of losses, where both are there."""
    by_spelling = {spelled(name): name for name in names}
    for gain, loss in (("gain", "loss"), ("gains", "losses"), ("win", "loss"), ("wins", "losses")):
        if gain in by_spelling and loss in by_spelling:
            return by_spelling[gain], by_spelling[loss]
    return ()


def is_measured(cells: pd.Series | pd.DataFrame) -> bool:
    """Return whether cells are measured numbers, such as times: with fractions, above 100, or more than 20."""
    if isinstance(cells, pd.DataFrame):  # a name that stands twice; refused where it is used
        return False
    labels = cells.dropna().unique()
    numbers = pd.to_numeric(pd.Series(labels), errors="coerce")
    if len(labels) < 5 or numbers.isna().any():
        return False
    fractions = bool((numbers % 1 != 0).any())
    are_large = bool(numbers.min() >= 100)
    return fractions or are_large or len(labels) > 20


def _check_names(
    table: TextTable, role: str, names: Sequence[str], taken: Mapping[str, tuple[str, ...]]
) -> None:
    """Refuse names that the table lacks or has twice, and columns that have a role already.

    Args:
        table: the table.
        role: the role.
        names: its columns.
        taken: columns by role so far.
    """
    listed = ", ".join(table.names)
    require(
        len(set(names)) == len(names),
        f"the columns of {role} must differ, got {', '.join(names)}",
    )
    for name in names:
        require(
            name in table.names,
            f"{table.file} has no column {name!r} ({role}); it has {listed}",
        )
        require(
            table.names.count(name) == 1,
            f"{table.file} has two columns {name!r} ({role}); give them names of their own",
        )
        for first_role, columns in taken.items():
            require(
                name not in columns,
                f"{table.file}: {name!r} cannot be the {role}, too: it is the {first_role} already",
            )


def _refuse_absent(table: TextTable, role: str) -> None:
    listed = ", ".join(table.names)
    remedy = f"Give {role}=NAME, one of {listed}"
    if role == "participant":
        remedy += f"; or {role}={NONE} where all rows are of one"
    raise InputError(f"which column of {table.file} is the {role}? {remedy}")
