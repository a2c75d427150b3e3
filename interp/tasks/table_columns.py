"""Decide which column of a table has which role, such as "choice" or "reward".

The user may name the column of a role; otherwise the column is found by usual spellings of its
name. Names are compared in lower case without separators, so that ``trialNum``, ``trial_num`` and
``Trial Num`` are equal.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from interp.support.checks import check_type, checked_fields
from interp.support.errors import InputError, require, require_known
from interp.tasks.table_file import TextTable

NONE = "none"
"""Passed in place of a column name if the table has no column for participants, sessions or
order.
"""

_NUMBER_SUFFIX = "(number|num|nr|no|n|index|idx|id|label|name|count|counter)?"
_SPELLINGS: dict[str, tuple[str, ...]] = {
    "participant": (
        f"(subj|subject|participant|ppt|person|sub){_NUMBER_SUFFIX}",
        "(prolific|worker|user|player|animal|rat|mouse|monkey)(id|name)?",
        "pid|sid|id",
    ),
    "session": (
        f"(session|sess|ses){_NUMBER_SUFFIX}",
        f"(block|blk){_NUMBER_SUFFIX}",
        f"run{_NUMBER_SUFFIX}",
    ),
    "order": (
        f"trial{_NUMBER_SUFFIX}",
        f"(trialin|trialwithin|trialof)[a-z]+{_NUMBER_SUFFIX}",
        f"round{_NUMBER_SUFFIX}",
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
"""Role -> regular expressions for its column's name, the most usual spelling first."""
_MAY_HAVE_NO_COLUMN = ("participant", "session", "order")
"""Roles for which the user may pass ``none``: no column has this role."""


@dataclass(frozen=True)
@checked_fields
class Columns:
    """The columns of a table by their roles. The role of a column, such as "choice" or "reward",
    is what its cells mean.

    Attributes:
        by_role: role -> names of its columns, such as ``{"reward": ("gain", "loss")}``; roles
            without a column are absent.
        guessed: roles for which the user named no column, and a column was found by its name.
        unused: names of the columns without a role.
    """

    by_role: Mapping[str, tuple[str, ...]]
    guessed: frozenset[str]
    unused: tuple[str, ...]

    def __contains__(self, role: str) -> bool:
        return role in self.by_role

    def get_first(self, role: str) -> str:
        """Return the name of a role's column, the first if it has several."""
        return self.by_role[role][0]


def choose_columns(
    table: TextTable,
    roles: Sequence[str],
    named: Mapping[str, str | Sequence[str] | None],
    optional: Sequence[str] = (),
    lists: Sequence[str] = (),
) -> Columns:
    """Decide which column of a table has which role (what its cells mean, such as "choice").

    If the user names no column for a role, a column is searched whose name is a usual spelling of
    the role. This does not apply to the roles in ``optional``.

    Args:
        table: the table.
        roles: roles that must have a column, in addition to "participant", such as "choice".
        named: role -> the column or columns that the user named, such as ``{"choice": "resp"}``. If
            a role is not a key, or its value is None, the user named no column for it.
        optional: roles that get a column only if the user names one.
        lists: roles that may have several columns. If the user names none, all columns whose names
            are usual spellings of the role are taken; for "reward", only one column, or a column of
            gains and one of losses.

    Returns:
        The columns of the table by their roles.

    Raises:
        InputError: a named column is missing, occurs twice or has two roles; or a role that must
            have a column has none.
    """
    all_roles = ("participant", *roles, "session", "order", *optional)
    # Checked before any role is guessed, so that errors in named columns come first.
    named_columns = _check_named_columns(table, all_roles, named)
    by_role: dict[str, tuple[str, ...]] = {}
    guessed = set[str]()
    for role in all_roles:
        names = named_columns.get(role, ())
        if names == (NONE,) and role in _MAY_HAVE_NO_COLUMN:
            continue
        if not names and role not in optional:
            takes_all = role in lists and role not in _MAY_HAVE_NO_COLUMN
            # A role with a list of columns also takes columns that the user named for a later role.
            # The conflict is refused below, so that no column is left out of the list silently.
            with_role = by_role if takes_all else {**named_columns, **by_role}
            names = _guess_columns(table, role, takes_all, used=_collect_names(with_role))
            guessed.add(role)
        _check_names(table, role, names, taken=by_role)
        has_one_column = len(names) < 2
        require(has_one_column or role in lists, f"{role} is one column, got {', '.join(names)}")
        if names:
            by_role[role] = names
        elif role not in ("session", "order", *optional):
            _refuse_absent(table, role)
    used = _collect_names(by_role)
    unused = tuple(name for name in table.names if name not in used)
    return Columns(by_role=by_role, guessed=frozenset(guessed & by_role.keys()), unused=unused)


def _check_named_columns(
    table: TextTable,
    all_roles: Sequence[str],
    named: Mapping[str, str | Sequence[str] | None],
) -> dict[str, tuple[str, ...]]:
    """Check the columns that the user named, and return their names by role: an empty tuple for a
    role whose value is None, and ("none",) if the user says that no column has the role.

    Args:
        table: the table.
        all_roles: the roles that a column may have.
        named: role -> the column or columns that the user named.
    """
    named_columns: dict[str, tuple[str, ...]] = {}
    for role, columns in named.items():
        require_known("column", role, all_roles, limit=12)
        names = list_column_names(role, columns)
        is_given = columns is None or bool(names)
        require(is_given, f"{role}= names no column; leave it out to have it found by its name")
        if names != (NONE,):  # "none" says that no column has the role
            _check_names(table, role, names, taken={})
        named_columns[role] = names
    return named_columns


def _collect_names(by_role: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the names of the columns of all roles as one set.

    Args:
        by_role: names of the columns by role.
    """
    return {name for names in by_role.values() for name in names}


def list_column_names(role: str, columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return what the user passed for a role as a tuple of names of columns.

    Args:
        role: the role, for the error message.
        columns: the name of a column, a list of names, or None, which becomes an empty tuple.
    """
    if columns is None:
        return ()
    names = (
        [columns] if isinstance(columns, str) else check_type(role, columns, str | Sequence[str])
    )
    return tuple(name.strip() for name in names)


def normalize_name(name: str) -> str:
    """Return a column's name in lower case without separators, so that spellings can be compared:
    "trialnum" for "Trial_Num".
    """
    return re.sub(r"[\W_]+", "", name.lower())


def is_usual_name(role: str, name: str) -> bool:
    """Return True if a column's name is a usual spelling of a role, as "rewards" is of the role
    "reward".
    """
    normalized = normalize_name(name)
    return any(re.fullmatch(pattern, normalized) for pattern in _SPELLINGS[role])


def _guess_columns(
    table: TextTable, role: str, takes_all: bool, used: Collection[str]
) -> tuple[str, ...]:
    """Find the column of a role, or its columns, among unused columns by usual spellings of its
    name. Return their names; empty if none matches.

    Args:
        table: the table.
        role: the role.
        takes_all: True to return all matching columns, as is always done for "session"; False for
            the one with the most usual spelling. For "reward" it has no effect: if no column
            matches, a column of gains and one of losses are returned together.
        used: names of the columns that have a role already.
    """
    unused_names = [name for name in table.names if name not in used]
    matches: list[str] = []
    for pattern in _SPELLINGS[role]:  # the most usual spelling first
        matches += [name for name in unused_names if re.fullmatch(pattern, normalize_name(name))]
    if role == "reward":  # one column, or a column of gains and one of losses
        return tuple(matches[:1]) or _find_gain_and_loss(unused_names)
    if role == "session" or takes_all:  # a session may be named by several columns together
        return tuple(matches)
    if role in ("choice", "action"):  # "response" may also be the name of reaction times
        plausible = [name for name in matches if not is_measurement_like(table.cells[name])]
        matches = plausible or matches
    return tuple(matches[:1])


def _find_gain_and_loss(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a column of gains and a column of losses; empty if the table lacks one of
    them.

    Args:
        names: names of the columns to search.
    """
    by_spelling = {normalize_name(name): name for name in names}
    for gain, loss in (("gain", "loss"), ("gains", "losses"), ("win", "loss"), ("wins", "losses")):
        if gain in by_spelling and loss in by_spelling:
            return by_spelling[gain], by_spelling[loss]
    return ()


def is_measurement_like(cells: pd.Series | pd.DataFrame) -> bool:
    """Return True if cells look like measurements, such as reaction times, and not like labels.

    This is so if there are at least 5 different values, all of them numbers, and one of these
    conditions holds: some value has a fraction, all values are at least 100, or there are more than
    20 different values.
    """
    # Two columns with the same name, which are refused where they are used.
    if isinstance(cells, pd.DataFrame):
        return False
    labels = cells.dropna().unique()
    numbers = pd.to_numeric(pd.Series(labels), errors="coerce")
    if len(labels) < 5 or numbers.isna().any():
        return False
    have_fractions = bool((numbers % 1 != 0).any())
    are_large = bool(numbers.min() >= 100)
    return have_fractions or are_large or len(labels) > 20


def _check_names(
    table: TextTable, role: str, names: Sequence[str], taken: Mapping[str, tuple[str, ...]]
) -> None:
    """Raise InputError if a role's column is missing in the table, occurs twice in it, or has
    another role already.

    Args:
        table: the table.
        role: the role.
        names: names of the role's columns.
        taken: columns by role, for the roles that were decided before.
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
