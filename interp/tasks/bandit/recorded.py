"""Turn a table of recorded choices into episodes: arms on offer, choices and rewards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from interp.support.errors import InputError, require
from interp.tasks.bandit.episodes import BanditEpisodes
from interp.tasks.table_columns import NONE, normalize_name
from interp.tasks.trials import ReadingOptions, TrialTable, open_trials

_Array = NDArray[Any]

_FEWEST_RISES = 10  # without a fall: a chance of 2^-10 if each change is as likely a fall
_TRIALS_PER_ARM = 5
"""Mean number of trials of a session, per arm, with which some session should have choices of all
arms.
"""


def read_choices(
    path: str | Path,
    columns: Mapping[str, Any],
    sides: Sequence[str],
    options: ReadingOptions,
) -> BanditEpisodes:
    """Read recorded choices from a table, and return them as episodes.

    Args:
        path: the file.
        columns: role -> the column or columns that the user named for it, such as ``{"choice":
            "response", "reward": None}``. The column of a role that is None or missing is found by
            its name.
        sides: for a table whose column of choices has sides, such as "left" and "right", in place
            of arms. Columns of the role "options" then have the arm on each side; ``sides`` has the
            word for each of these columns, in their order. If empty, the words are found
            automatically.
        options: what the user says about the table that the table leaves open, such as the codes of
            missed trials.

    Returns:
        One episode for each session that has at least one trial with choice and reward.
    """
    table = open_trials(
        path,
        ("choice", "reward"),
        columns,
        options,
        optional=("options", "pairs", "forced"),
        lists=("reward", "session", "options"),
    )
    labels = table.read_labels("choice").iloc[:, 0]  # of arms, or of sides, which become arms
    offered = _list_offered_labels(table, labels, sides)
    if offered is not None:
        labels = _read_sides_as_arms(table, labels, offered, sides)
    frames = [labels.to_frame()]
    if offered is not None:
        frames.append(offered)
    # Offers are one frame or none.
    (choice_frame, *offer_frames), arms = table.number_labels("arm", frames)
    chosen = choice_frame.iloc[:, 0]
    has_choice = chosen.notna()
    rewards = table.read_rewards(has_choice)
    _ask_about_rare_choice(table, labels, rewards)
    scaled, scale = table.scale_rewards(rewards)
    counted = has_choice & rewards.notna()
    sessions = table.select_sessions(table.find_sessions(), counted, "choice and reward")
    # Arrays [session, round], NaN where a value is unknown and after a session's end.
    choices_or_nan = table.pad_sessions(sessions, chosen)
    rewards_or_nan = table.pad_sessions(sessions, scaled)
    is_chosen = ~np.isnan(choices_or_nan)
    is_paid = is_chosen & ~np.isnan(rewards_or_nan)
    _remark_totals(table, rewards_or_nan)
    offers = None
    if not offer_frames:
        _remark_separate_arms(table, arms, choices_or_nan)
    else:
        slots = table.pad_sessions(sessions, offer_frames[0])  # [session, round, slot]
        offers = _mark_empty_slots(_fill_unknown(slots, is_chosen, is_paid))
    forced = None
    if "forced" in table.columns:
        is_forced = table.read_flags("forced").astype(float)
        forced = table.pad_sessions(sessions, is_forced) == 1  # False after a session's end
    _remark_offers(table, arms, chosen)
    unpaid = is_chosen & ~is_paid
    n_unpaid = int(unpaid.sum())
    if n_unpaid:
        table.remarks.append(
            f"{n_unpaid:,} trials have a choice and no reward: nothing is learned from them."
        )
    return BanditEpisodes(
        _fill_unknown(choices_or_nan, is_chosen, is_paid).astype(np.int64),
        _fill_unknown(rewards_or_nan, is_paid, is_paid),
        n_arms=len(arms),
        arms=arms,
        scale=scale,
        participants=[who for who, _ in sessions],
        missing=~is_paid,
        offers=offers,
        forced=forced,
        unpaid=unpaid if n_unpaid else None,
        reading=table.make_report(sessions, has_choice, scale),
    )


def _fill_unknown(values: _Array, is_known: _Array, is_paid: _Array) -> _Array:
    """Replace the values of unknown rounds by the value of the first round of their session that
    has a choice and a reward.

    Arrays of episodes may not contain NaN. The new values affect no result, since these rounds are
    marked as missing.

    Args:
        values: one value or several per round, ``[session, round, ...]``.
        is_known: True for rounds whose value is kept, ``[session, round]``.
        is_paid: True for rounds with choice and reward, ``[session, round]``.
    """
    first_paid = is_paid.argmax(1)[:, None]
    # The round from which each round takes its value: itself or, if unknown, the first paid one.
    source_rounds = np.where(is_known, np.arange(is_known.shape[1]), first_paid)
    every_session = np.arange(len(values))[:, None]
    return values[every_session, source_rounds]


def _mark_empty_slots(offers: _Array) -> _Array:
    """Return the index of the arm on offer in each slot, ``[session, round, slot]``; -1 in slots
    that are empty or repeat an arm.

    Args:
        offers: index of the arm in each slot, NaN in empty slots.
    """
    arms = np.nan_to_num(offers, nan=-1).astype(np.int64)
    for slot in range(1, arms.shape[-1]):
        is_repeat = (arms[..., :slot] == arms[..., slot : slot + 1]).any(-1)
        arms[is_repeat, slot] = -1
    return arms


# What was on offer.


def _list_offered_labels(
    table: TrialTable, choices: pd.Series, sides: Sequence[str]
) -> pd.DataFrame | None:
    """Return the labels of the arms on offer in each trial: a table with one row per trial, and one
    column per place (slot) in which an arm was shown. Return None if offers are not recorded.

    A table can record offers in two ways:

    - in several columns, the role "options": each has the label of the arm in one slot;
    - in one column, the role "pairs": its labels, such as "AB", stand for all arms on offer.
      :func:`_list_pair_arms` finds these arms.

    Args:
        table: the table.
        choices: label of the choice in each trial.
        sides: what a choice of each slot is called, in their order, such as "left" and "right";
            empty if the user named none.
    """
    if "options" in table.columns:
        require(
            "pairs" not in table.columns,
            "options and pairs both say what was on offer; give one of them",
        )
        offered = table.read_labels("options")
        names = ", ".join(map(str, offered.columns))
        require(offered.shape[1] > 1, f"options are two columns or more, got {names}")
        return offered
    if "pairs" not in table.columns:
        require(not len(sides), "sides say which of the options a choice means; give options, too")
        return None
    pairs = table.read_labels("pairs").iloc[:, 0]
    column = pairs.name
    arms_of_pairs = {}
    for pair in pairs.dropna().unique():
        arms_of_pairs[pair] = _list_pair_arms(table, pair, choices[pairs == pair], sides)
    different_arms = set(arms_of_pairs.values())
    if len(different_arms) == 1 < len(arms_of_pairs):  # several pairs of the same arms
        (same_arms,) = different_arms
        labels = ", ".join(same_arms)
        raise InputError(
            f"{column!r} of {table.file} says what was on offer, and the choices are {labels} in each of its "
            "pairs: they say a side. Give options=, the columns of what stood there; or sides=, what the choice of "
            "the first and of the second option of a pair is called"
        )
    listed = [f"{pair}: {' or '.join(arms)}" for pair, arms in arms_of_pairs.items()]
    table.remarks.append(f"On offer, by {column!r}: {'; '.join(listed[:8])}.")
    slots = pd.DataFrame.from_dict(arms_of_pairs, orient="index")  # one row per pair
    # From each trial's pair, one row per trial.
    offered = slots.reindex(pairs).set_axis(pairs.index)
    return offered.rename(columns=lambda slot: f"{column} {slot + 1}")


def _list_pair_arms(
    table: TrialTable, pair: str, choices: pd.Series, sides: Sequence[str]
) -> tuple[str, ...]:
    """Find the labels of the arms that the label of a pair stands for. The first of these rules
    that fits is used:

    1. They are the parts of the label, as in "A-B", and every label that is chosen is one of them.
    2. They are the characters of the label, as in "AB" or "12", and every label that is chosen is
    one of them.
    3. They are the labels that are chosen in trials with this pair, if these are 2 to 4 labels.

    If the user named ``sides``, choices are sides and not arms. The first two rules then ignore
    them, and the third never fits.

    Args:
        table: the table, for error messages.
        pair: label of the pair.
        choices: labels of the choices in the trials with this pair.
        sides: what a choice of each slot is called, in their order, such as "left" and "right";
            empty if the user named none.

    Raises:
        InputError: no rule fits.
    """
    chosen = set(choices.dropna().unique())
    parts = tuple(part for part in re.split(r"[^\w.]+|_", pair) if part)
    characters = tuple(pair)
    # All choices must be among the labels, unless choices are sides, such as "left".
    for candidate in (parts, characters):
        if len(candidate) > 1 and (chosen <= set(candidate) or sides):
            return candidate
    labels = tuple(sorted(chosen))
    place = f"{table.columns.get_first('pairs')!r} of {table.file}"
    listed = ", ".join(labels[:6]) or "none"
    require(
        not sides and 2 <= len(labels) <= 4,
        f"{place}: the choices {listed} are no options of {pair!r}; if they say a side, say which stands for which "
        "option in their order with sides=",
    )
    return labels


def _read_sides_as_arms(
    table: TrialTable, choices: pd.Series, offered: pd.DataFrame, sides: Sequence[str]
) -> pd.Series:
    """Return the label of the chosen arm in each trial. A choice that names a side, such as "left",
    is replaced by the arm on that side.

    Args:
        table: the table.
        choices: the choice in each trial: the label of an arm, or the name of a side.
        offered: labels of the arms on offer, one column per side.
        sides: names of the sides in the order of these columns; empty if the user named none.

    Raises:
        InputError: a choice is none of its trial's options, and names no side.
    """
    column = table.columns.get_first("choice")
    is_missing = choices.isna()
    is_option = offered.eq(choices, axis=0).any(axis=1) | is_missing
    names = [str(name) for name in offered.columns]
    slot_of_side = _find_slot_by_side(table, choices, names, sides)
    # If all choices are options of their trials, they are arms and not sides.
    if not sides and is_option.all():
        if slot_of_side:
            table.remarks.append(
                "The choices are read as arms; if they name sides, give sides=, what a choice of each of the options "
                "is called in their order (--sides)."
            )
        return choices
    if slot_of_side is None:
        table.refuse_rows(
            ~is_option,
            column,
            f"is none of the options in {', '.join(names)}; "
            "give sides=, what a choice of each of these columns is called in their order",
        )
        return choices
    meanings = [f"{side} is {names[slot]}" for side, slot in slot_of_side.items()]
    table.remarks.append(f"A choice names a side: {', '.join(meanings)}.")
    slot = choices.map(slot_of_side)  # index of the column of options on the chosen side
    is_side = slot.notna() | is_missing
    table.refuse_rows(
        ~is_side,
        column,
        f"is none of the sides {', '.join(slot_of_side)}",
        remedy="; write it as one of them in the table, or give missed={0} (--missed {0}) if it is the code of a "
        "missed trial",
    )
    chosen_arms = pd.Series(np.nan, index=choices.index, dtype=object)
    for i, name in enumerate(offered.columns):
        chosen_arms = chosen_arms.mask(slot == i, offered[name])
    is_empty = chosen_arms.isna() & ~is_missing
    table.refuse_rows(is_empty, column, "names a side on which no option stands")
    return chosen_arms


def _find_slot_by_side(
    table: TrialTable, choices: pd.Series, names: Sequence[str], sides: Sequence[str]
) -> dict[str, int] | None:
    """Find out which side each choice, such as "left", stands for. A side is given by the index of
    the column that says which arm was on this side.

    If the user named no sides, one of two conditions must hold:

    - every choice names a column by a word of its name (:func:`_find_slots_by_name`): "left" names
      the column "left_arm";
    - the user named the columns, all choices are numbers, and there are as many different numbers
      as columns. The smallest number then stands for the first column.

    Args:
        table: the table with one row per trial.
        choices: the choice in each trial.
        names: names of the columns.
        sides: what a choice of each column is called, in their order; empty if the user named none.

    Returns:
        Choice -> index of the column in ``names``; None if neither condition holds.
    """
    if sides:
        slots = {str(side): i for i, side in enumerate(sides)}
        require(
            len(slots) == len(names),
            f"sides must name each of {', '.join(names)} once, got {', '.join(sides)}",
        )
        return slots
    labels = sorted(choices.dropna().unique())
    by_name = _find_slots_by_name(labels, names)
    if len(by_name) == len(labels):  # every choice names a column
        return by_name
    numbers = pd.to_numeric(pd.Series(labels), errors="coerce")
    # Options columns have the order in which the user named them. Without them, the slots are made
    # from labels of pairs, which are not known to be ordered by side.
    in_order = "options" in table.columns and len(labels) == len(names)
    if in_order and numbers.notna().all():
        by_size = numbers.sort_values().index
        return {labels[i]: slot for slot, i in enumerate(by_size)}
    return None


def _find_slots_by_name(labels: Sequence[str], names: Sequence[str]) -> dict[str, int]:
    """Return a mapping from each label to the index of the column that it names; labels that name
    no column are left out.

    A label names a column if it is a word of the column's name, or the first letter of such a word,
    and no earlier label names this column. Words that all columns' names share are ignored.

    Args:
        labels: the labels.
        names: names of the columns.
    """
    words = [set(re.findall(r"[a-z]+|\d+", name.lower())) for name in names]
    shared = set.intersection(*words)
    by_name: dict[str, int] = {}
    for label in labels:
        for slot, name_words in enumerate(words):
            own_words = name_words - shared
            initials = {word[0] for word in own_words}
            is_free = slot not in by_name.values()  # not named by another label
            if is_free and label.lower() in own_words | initials:
                by_name[label] = slot
                break
    return by_name


def _remark_offers(table: TrialTable, arms: Sequence[str], chosen: pd.Series) -> None:
    """Add remarks for the user to the table, on unused columns that look like arms on offer or like
    marks of forced trials.

    Args:
        table: the table.
        arms: labels of the arms.
        chosen: index of the chosen arm in each trial; NaN if there is no choice.
    """
    columns, remarks = table.columns, table.remarks
    for name in columns.unused:
        if "forced" not in columns and _may_mark_forced(name, table):
            remarks.append(
                f"{name!r} looks like the trials in which a participant could not choose, and is not used: "
                f"if it is, give forced={name} (--forced {name})."
            )
    if "options" in columns or "pairs" in columns:  # the user named what is on offer
        return
    offer_like = [name for name in columns.unused if _may_name_offer(name, table, arms)]
    if len(offer_like) > 1:
        quoted, names = ", ".join(map(repr, offer_like)), " ".join(offer_like)
        remarks.append(
            f"{quoted} look like what was on offer in each trial and are not used: "
            f"if they are, give options={names} (--options {names})."
        )
    for name in columns.unused:
        if name not in offer_like and _may_name_pair(name, table, chosen):
            remarks.append(
                f"{name!r} looks like which arms were on offer and is not used: if it is, give pairs={name} "
                f"(--pairs {name})."
            )


def _may_mark_forced(name: str, table: TrialTable) -> bool:
    """Return True if a column may mark forced trials: it has two labels, and its name or one of the
    labels is a word such as "forced" or "free".

    Args:
        name: name of the column.
        table: the table.
    """
    cells = table.cells[name].dropna()
    labels = set(cells.str.lower())
    is_named = re.fullmatch("(is)?(forced?|free|instructed)(choice|trial)?s?", normalize_name(name))
    has_forced_label = bool(labels & {"forced", "free"})
    return len(labels) == 2 and (has_forced_label or is_named is not None)


def _may_name_offer(name: str, table: TrialTable, arms: Sequence[str]) -> bool:
    """Return True if a column may have the label of an arm on offer in each trial. It must have 2 to
    20 different labels, and one of these conditions must hold:

    - there are more than two arms, and all labels of the column are arms;
    - the column's name has a word such as "left" or "option";
    - the column has at least three labels, and another unused column has the same labels, but in
      every row a different one.

    Args:
        name: name of the column.
        table: the table.
        arms: labels of the arms.
    """
    cells = table.cells
    labels = set(cells[name].dropna())
    if not 2 <= len(labels) <= 20:
        return False
    if len(arms) > 2 and labels <= set(arms):
        return True
    words = re.findall(r"[A-Z]?[a-z]+", name)
    if not _OFFER_WORDS.isdisjoint(word.lower() for word in words):
        return True
    if len(labels) < 3:
        return False
    for candidate in table.columns.unused:
        # Two places never show the same arm in a trial.
        differs = bool((cells[name] != cells[candidate]).all())
        if differs and labels == set(cells[candidate].dropna()):
            return True
    return False


def _may_name_pair(name: str, table: TrialTable, chosen: pd.Series) -> bool:
    """Return True if a column may name the pair of arms on offer in each trial. It must have 2 to 20
    different labels, and one of these conditions must hold:

    - all labels look like 12 or A-B, and the column's name has a part such as "pair" or "stim";
    - in the rows of each label at least two arms are chosen, and not the same ones for all labels.

    Args:
        name: name of the column.
        table: the table.
        chosen: index of the chosen arm in each trial; NaN if there is no choice.
    """
    cells = table.cells[name]
    labels = cells.dropna().unique()
    if not 2 <= len(labels) <= 20:
        return False
    are_pairs = [re.fullmatch(r"([a-z]\W?[a-z]|\d\W?\d)", label.lower()) for label in labels]
    if all(are_pairs) and re.search("pair|type|stim|option|offer|context", normalize_name(name)):
        return True
    arms_by_label = set()
    for _, arms in chosen.dropna().groupby(cells):
        arms_by_label.add(frozenset(arms))
    fewest_arms = min(map(len, arms_by_label), default=0)
    return len(arms_by_label) > 1 and fewest_arms > 1


_OFFER_WORDS = frozenset(
    ["arm", "option", "opt", "stim", "stimulus", "offer", "left", "right", "cue"]
)


def _remark_totals(table: TrialTable, rewards: _Array) -> None:
    """Add a remark for the user to the table if rewards rise at least 10 times from one trial to
    the next and never fall, as running totals do.

    Args:
        table: the table.
        rewards: rewards ``[session, round]``; NaN if unknown.
    """
    changes = np.diff(rewards)
    if (changes > 0).sum() >= _FEWEST_RISES and not (changes < 0).any():
        table.remarks.append(
            "Rewards never fall from trial to trial: if the column holds running totals, give their differences."
        )


def _remark_separate_arms(table: TrialTable, arms: Sequence[str], choices: _Array) -> None:
    """Add a remark for the user to the table if sessions are long enough for choices of all arms,
    and none has them.

    Args:
        table: the table.
        arms: labels of the arms.
        choices: index of the chosen arm, ``[session, round]``; NaN if there is no choice.
    """
    is_chosen = choices[..., None] == np.arange(len(arms))  # [session, round, arm]
    has_all_arms = is_chosen.any(1).all(1)  # [session]
    mean_length = is_chosen.sum() / len(choices)
    if mean_length >= _TRIALS_PER_ARM * len(arms) and not has_all_arms.any():
        table.remarks.append(
            f"No session has choices of all {len(arms)} arms: if not all were on offer, give options= or pairs=; if "
            "participants differ in what they call the same arm, such as 0 and 1 or 1 and 2, write the same labels."
        )


def _ask_about_rare_choice(table: TrialTable, labels: pd.Series, rewards: pd.Series) -> None:
    """Ask the user about a rare choice that always has the same reward, since it may be the code of
    a missed trial.

    If the choice is 0 and the others are 1, 2, ..., the question is an InputError; for any other
    choice it is a remark in the report.

    Args:
        table: the table.
        labels: label of the choice in each trial.
        rewards: reward of each trial.
    """
    counts = labels.value_counts()
    # No question if the user said that there is no code, or what was on offer.
    is_decided = NONE in table.options.codes or "options" in table.columns
    # Label -> number of different rewards.
    n_rewards = rewards.groupby(labels).nunique(dropna=False)
    with_one_reward = n_rewards.index[n_rewards == 1].tolist()
    if is_decided or len(counts) < 3 or len(with_one_reward) != 1:
        return
    (label,) = with_one_reward
    n_trials = counts[label]
    if not 3 <= n_trials < 0.2 * counts.sum():  # one reward means little in 1 or 2 trials
        return
    others = counts.index.drop(label).tolist()
    in_trials = f"(in {n_trials:,} trials, all with one reward)"
    others_count_from_1 = all(re.fullmatch("[1-9]", other_label) for other_label in others)
    if label == "0" and others_count_from_1:
        place = f"{labels.name} of {table.file}"
        table.refuse_possible_code(f"{place}: is '0' {in_trials}", "0", others, "arm")
    table.remarks.append(
        f"{label!r} {in_trials} may be the code of a missed trial: if it is, give missed={label} (--missed {label})."
    )
