"""Say what trial numbers suggest about a table: absent trials, practice trials, repeated trials."""

from __future__ import annotations

import pandas as pd

_FEWEST_UNIT_STEPS = 0.1
"""Smallest share of steps by the smallest step in a count of trials; times, such as milliseconds,
have fewer.
"""


def list_number_remarks(name: str, numbers: pd.Series) -> list[str]:
    """Return remarks for the user on the numbers of trials; none if they do not count trials.

    Args:
        name: name of the column with the numbers.
        numbers: the numbers, in the order in which trials are read. The index has three levels: the
            session (a number), the participant, and the place of the row, such as "line 3".
    """
    if (numbers % 1 != 0).any():  # true for NaN, too
        return []
    steps = numbers.groupby(level=0).diff()  # NaN in a session's first trial
    falls = numbers[steps <= 0]
    if len(falls):
        return [
            f"{name!r} does not rise in {len(falls):,} rows, such as {_find_place(falls)}: trials are read in the "
            "order of rows, each as a trial of its own; delete what is in the table twice, and sort rows by time."
        ]
    remarks = []
    if numbers.min() < 0:
        practice = numbers[numbers <= 0]
        remarks.append(
            f"{name!r} is 0 or less in {len(practice):,} rows, such as {_find_place(practice)}, as in practice trials: "
            "they count as ordinary trials; to leave them out, delete their rows."
        )
    return remarks + _list_gap_remarks(name, numbers, steps)


def _list_gap_remarks(name: str, numbers: pd.Series, steps: pd.Series) -> list[str]:
    """Return a remark on numbers that are absent within sessions or before their first trial, if
    there are any.

    Args:
        name: name of the column with the numbers.
        numbers: the numbers, as in :func:`list_number_remarks`.
        steps: difference from the session's previous number; NaN in its first trial.
    """
    unit = steps.min()
    first = numbers[steps.isna()]
    usual_first = first.mode()[0]
    if (first == usual_first).mean() > 0.5:  # a session that begins later has a gap before it
        steps = steps.fillna(numbers - usual_first + unit)
    previous = numbers - steps
    has_no_zero = (previous < 0) & (numbers > 0)  # as from practice trial -1 to trial 1
    after_gap = numbers[(steps > unit) & ~has_no_zero]
    if after_gap.empty or (steps == unit).mean() < _FEWEST_UNIT_STEPS:
        return []
    number_before = previous[after_gap.index[0]]
    n_participants = after_gap.index.unique(level=1).size
    return [
        f"{name!r} leaves out numbers in {len(after_gap):,} places, in {n_participants} participants, such as after "
        f"{number_before:g}, before {_find_place(after_gap)}: the trials on both sides count as successive. Add the "
        "rows of trials that were played; a row with empty cells is a missed trial, in which nothing is learned."
    ]


def _find_place(numbers: pd.Series) -> str:
    """Return the place of the first of some numbers in the file."""
    return str(numbers.index[0][-1])
