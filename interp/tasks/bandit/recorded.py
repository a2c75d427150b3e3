"""Turn a table of recorded choices into episodes: what was on offer, what was chosen, and what it paid."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from interp.support.errors import require
from interp.tasks.bandit.episodes import BanditEpisodes
from interp.tasks.table_columns import NONE
from interp.tasks.trials import ReadingOptions, TrialTable, open_trials

_Array = NDArray[Any]


def read_choices(
    path: str | Path,
    columns: Mapping[str, Any],
    sides: Sequence[str],
    options: ReadingOptions,
) -> BanditEpisodes:
    """Read recorded choices.

    Args:
        path: of the table.
        columns: role -> the column that the user names.
        sides: what a choice of each of the ``options`` columns is called, in their order; found by itself if empty.
        options: how the table is read.

    Returns:
        An episode for each session with a trial that counts.
    """
    table = open_trials(
        path,
        ("choice", "reward"),
        columns,
        options,
        optional=("options", "pairs", "forced"),
        lists=("reward", "session", "options"),
    )
    labels = table.texts("choice").iloc[:, 0]
    offered = _offered_labels(table, labels, sides)
    if offered is not None:
        labels = _labels_of_sides(table, labels, offered, sides)
    frames = [labels.to_frame()]
    if offered is not None:
        frames.append(offered)
    (choices, *offers), arms = table.code("arm", frames)
    chosen = choices.iloc[:, 0]
    rewards = table.rewards(chosen.notna())
    _refuse_zero_code(table, labels, rewards)
    _, scale = table.scaled(rewards)
    paid = chosen.notna() & rewards.notna()
    sessions = table.played(table.sessions(), paid, "choice and reward")
    arrays = _Rounds(table.padded(sessions, chosen), table.padded(sessions, rewards / scale))
    if offers:
        arrays.set_offers(table.padded(sessions, offers[0]))
    if "forced" in table.columns:
        is_forced = table.flags("forced").astype(float)
        arrays.forced = np.nan_to_num(table.padded(sessions, is_forced)) > 0
    _remark_offers(table, arms)
    if arrays.unpaid.any():
        table.remarks.append(
            f"{int(arrays.unpaid.sum()):,} trials have a choice and no reward: nothing is learned from them."
        )
    participants = [who for who, _ in sessions]
    unpaid = arrays.unpaid if arrays.unpaid.any() else None
    return BanditEpisodes(
        arrays.choices,
        arrays.rewards,
        n_arms=len(arms),
        arms=arms,
        scale=scale,
        participants=participants,
        missing=arrays.missing,
        offers=arrays.offers,
        forced=arrays.forced,
        unpaid=unpaid,
        reading=table.said(sessions, chosen.notna(), scale),
    )


class _Rounds:
    """Arrays ``[session, round]`` of a table, whose missing rounds hold what the first paid round of the session has.

    Attributes:
        missing: where nothing can be learned: there is no choice, or no reward.
        unpaid: where there is a choice and no reward.
    """

    offers: _Array | None = None
    forced: _Array | None = None

    def __init__(self, choices: _Array, rewards: _Array) -> None:
        known = ~np.isnan(choices)
        paid = known & ~np.isnan(rewards)
        self.missing, self.unpaid = ~paid, known & ~paid
        first = paid.argmax(1)[:, None]
        rounds = np.arange(choices.shape[1])
        self._filled = np.where(known, rounds, first)
        self._sessions = np.arange(len(choices))[:, None]
        self.choices = choices[self._sessions, self._filled].astype(np.int64)
        self.rewards = rewards[self._sessions, np.where(paid, rounds, first)]

    def set_offers(self, offers: _Array) -> None:
        """Keep the arms on offer in each slot, -1 where a slot is empty or repeats an arm."""
        filled = offers[self._sessions, self._filled]
        arms = np.where(np.isnan(filled), -1, filled).astype(np.int64)
        for slot in range(1, arms.shape[-1]):
            repeats = (arms[..., :slot] == arms[..., slot : slot + 1]).any(-1)
            arms[..., slot] = np.where(repeats, -1, arms[..., slot])
        self.offers = arms


# What was on offer.


def _offered_labels(
    table: TrialTable, choices: pd.Series, sides: Sequence[str]
) -> pd.DataFrame | None:
    """Return the labels on offer in each trial, a column each; None where the table does not say."""
    if "options" in table.columns:
        require(
            "pairs" not in table.columns,
            "options and pairs both say what was on offer; give one of them",
        )
        offered = table.texts("options")
        require(
            offered.shape[1] > 1,
            f"options are two columns or more, got {', '.join(map(str, offered.columns))}",
        )
        return offered
    if "pairs" not in table.columns:
        require(not len(sides), "sides say which of the options a choice means; give options, too")
        return None
    pairs = table.texts("pairs").iloc[:, 0]
    members = {
        pair: _members(table, pair, choices[pairs == pair], sides)
        for pair in pairs.dropna().unique()
    }
    most = max(len(labels) for labels in members.values())
    slots = {f"{pairs.name} {i + 1}": pairs.map(_slot(members, i)) for i in range(most)}
    listed = "; ".join(
        f"{pair}: {' or '.join(labels)}" for pair, labels in list(members.items())[:8]
    )
    table.remarks.append(f"On offer, by {pairs.name!r}: {listed}.")
    return pd.DataFrame(slots)


def _slot(members: Mapping[str, tuple[str, ...]], slot: int) -> dict[str, str]:
    return {pair: labels[slot] for pair, labels in members.items() if slot < len(labels)}


def _members(
    table: TrialTable, pair: str, choices: pd.Series, sides: Sequence[str]
) -> tuple[str, ...]:
    """Return the options of a pair: its parts (A-B), its letters or digits (AB, 12), else what was chosen in it."""
    chosen = set(choices.dropna().unique())
    parts = tuple(part for part in re.split(r"[^\w.]+|_", pair) if part)
    for candidate in (parts, tuple(pair)):
        if len(candidate) > 1 and (chosen <= set(candidate) or sides):
            return candidate
    labels = tuple(sorted(chosen))
    column = table.columns.one("pairs")
    require(
        not sides and 2 <= len(labels) <= 4,
        f"{column!r} of {table.table.file}: the choices {', '.join(labels[:6]) or 'none'} are no options of {pair!r}; "
        "if they say a side, say which stands for which option in their order with sides=",
    )
    return labels


def _labels_of_sides(
    table: TrialTable, choices: pd.Series, offered: pd.DataFrame, sides: Sequence[str]
) -> pd.Series:
    """Return which option each choice means: the choice itself, or the option on the side that it names.

    Raises:
        InputError: a choice is no option of its trial and names no side.
    """
    among = offered.eq(choices, axis=0).any(axis=1)
    known = choices.notna()
    if not sides and bool(among[known].all()):
        return choices
    names = [str(name) for name in offered.columns]
    slots = _slot_by_side(table, choices, names, sides)
    if slots is None:
        table.refuse(
            known & ~among,
            table.columns.one("choice"),
            f"is none of the options in {', '.join(names)}; "
            "give sides=, what a choice of each of these columns is called in their order",
        )
        return choices
    said = ", ".join(f"{side} is {names[slot]}" for side, slot in slots.items())
    table.remarks.append(f"A choice names a side: {said}.")
    slot = choices.map(slots)
    table.refuse(
        known & slot.isna(), table.columns.one("choice"), f"is none of the sides {', '.join(slots)}"
    )
    meant = pd.Series(np.nan, index=choices.index, dtype=object)
    for i, name in enumerate(offered.columns):
        meant = meant.mask(slot == i, offered[name])
    empty = known & meant.isna()
    table.refuse(empty, table.columns.one("choice"), "names a side on which no option stands")
    return meant


def _slot_by_side(
    table: TrialTable, choices: pd.Series, names: Sequence[str], sides: Sequence[str]
) -> dict[str, int] | None:
    """Return which column of options each label of a choice names; None where that cannot be known.

    A label that stands in a column's name, or begins a word that sets the name apart, means that column; as many
    numbers as there are columns mean them in order.
    """
    if sides:
        require(
            len(set(sides)) == len(names),
            f"sides must name each of {', '.join(names)} once, got {', '.join(sides)}",
        )
        return {str(side): i for i, side in enumerate(sides)}
    labels = sorted(choices.dropna().unique())
    by_name = _slots_by_name(labels, names)
    if len(by_name) == len(labels):
        return by_name
    numbers = pd.to_numeric(pd.Series(labels), errors="coerce")
    in_order = "options" in table.columns and len(labels) == len(names)
    if in_order and numbers.notna().all():
        places = numbers.sort_values().index
        return {labels[place]: slot for slot, place in enumerate(places)}
    return None


def _slots_by_name(labels: Sequence[str], names: Sequence[str]) -> dict[str, int]:
    """Return the column that each label names, by a word that sets the column's name apart or its first letter."""
    words = [set(re.findall(r"[a-z]+|\d+", name.lower())) for name in names]
    shared = set.intersection(*words)
    by_name: dict[str, int] = {}
    for label in labels:
        text = label.lower()
        for slot, own_words in enumerate(words):
            apart = own_words - shared
            initials = {word[0] for word in apart}
            if text in apart | initials and slot not in by_name.values():
                by_name[label] = slot
                break
    return by_name


def _remark_offers(table: TrialTable, arms: Sequence[str]) -> None:
    """Say which unused columns look like what was on offer in each trial."""
    if "options" in table.columns or "pairs" in table.columns:
        return
    looks = [name for name in table.columns.unused if _looks_offered(name, table, arms)]
    if len(looks) > 1:
        listed = ", ".join(map(repr, looks))
        table.remarks.append(
            f"{listed} look like what was on offer in each trial and are not used: "
            f"if they are, give options={' '.join(looks)} (--options {' '.join(looks)})."
        )


def _looks_offered(name: str, table: TrialTable, arms: Sequence[str]) -> bool:
    """Whether a column holds arms, or is called like one side of an offer."""
    labels = set(table.table.cells[name].dropna().unique())
    if len(labels) < 2 or len(labels) > 20:
        return False
    if labels <= set(arms) and len(arms) > 2:
        return True
    words = set(re.findall(r"[a-z]+", name.lower()))
    return bool(
        words & {"arm", "option", "opt", "stim", "stimulus", "offer", "left", "right", "cue"}
    )


def _refuse_zero_code(table: TrialTable, labels: pd.Series, rewards: pd.Series) -> None:
    """Refuse a choice 0 beside 1, 2, ... that is rare and always pays the same: it may be a missed trial."""
    if NONE in table.options.codes or "options" in table.columns:
        return
    others = [str(label) for label in labels.dropna().unique() if label != "0"]
    zeros = labels == "0"
    n_zeros = int(zeros.sum())
    counts_from_1 = len(others) > 1 and all(re.fullmatch("[1-9]", label) for label in others)
    rare = 3 <= n_zeros < 0.2 * labels.notna().sum()
    paid_alike = rewards[zeros].nunique(dropna=False) == 1
    if counts_from_1 and rare and paid_alike and rewards[~zeros].nunique() > 1:
        is_it = f"{labels.name} of {table.table.file}: is '0' (in {n_zeros:,} trials, all with one reward)"
        table.refuse_code(is_it, "0", others, "arm")
