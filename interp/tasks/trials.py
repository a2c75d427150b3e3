"""Read recorded trials from a table with one row per trial, and report how they were read.

:func:`open_trials` reads the file and decides which column has which role. Labels and names stay
text. Missed trials are recognised by codes that the user names. A new session begins where the
participant's session label changes. Each task's reader turns the table into episodes, and attaches
a :class:`TrialsRead` to them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from interp.support.checks import check_number, checked_result, refuse_beyond_machine
from interp.support.errors import InputError, require, require_known
from interp.tasks.chat_file import open_chats
from interp.tasks.table_columns import (
    NONE,
    Columns,
    choose_columns,
    is_measurement_like,
    is_usual_name,
    normalize_name,
)
from interp.tasks.table_file import TextTable, read_text_table
from interp.tasks.trial_numbers import list_number_remarks

_Array = NDArray[Any]

MOST_LABELS = 20
"""Largest number of arms, states or actions unless the user allows more."""
_UNIT_QUANTILE = 0.75
"""Quantile of the non-zero rewards that is the unit of rewards; a single large loss does not affect
it.
"""
_SHORTEST_SESSION = 4
"""Smallest mean number of trials per session if labels recur; labels that alternate faster are
conditions. Where order numbers recur, no session may be shorter; it would be a row that is in the
table twice.
"""
_MISSED_WORDS = frozenset(
    [
        "miss",
        "missed",
        "missing",
        "timeout",
        "timedout",
        "toolate",
        "tooslow",
        "late",
        "noresponse",
        "noresp",
        "noanswer",
        "nochoice",
        "none",
        "null",
        "undefined",
        "na",
        "nan",
        "omission",
        "omitted",
        "omit",
        "skip",
        "skipped",
        "invalid",
    ]
)
_NEGATIVE_NINES = re.compile("-9{2,}")
_NINES = re.compile("-?9{2,}")
_YES_WORDS = frozenset(["1", "1.0", "true", "yes", "y", "t", "forced"])
_NO_WORDS = frozenset(["0", "0.0", "false", "no", "n", "f", "free"])
_TRUTH_VALUES = {"true": 1.0, "false": 0.0}
_LEAST_RISES = 0.8
"""Smallest share of steps by 1 in a column that counts trials; other steps are gaps or repeats."""
_FEWEST_DIFFERENT_ROWS = 20
"""With this many different rows, there is an even number of each by chance in one table of a
million.
"""
_MOST_COPIES = 0.02
"""Largest share of rows that are named as copies; with more, equal rows are no surprise."""
_MOST_LABELS_SHOWN = 8
"""Number of labels that a summary counts one by one."""


@dataclass(frozen=True)
class ReadingOptions:
    """What the user says about a table of trials that the table itself leaves open, such as the
    code of a missed trial.

    Attributes:
        missed: one code or several codes that stand for a missed trial, such as -999 or "timeout";
            "none" if there are no such codes; None if the user did not say.
        scale: number to divide rewards by; when None, a typical size of the rewards.
        lookalikes: "same" if labels that differ only in spelling, such as L and l, are one label;
            "different" if they are two; when None, such labels are refused.
        most_arms: largest number of different labels, such as arms or states, that is accepted; 20
            when None.
        encoding: encoding of the file, such as "latin-1"; detected when None.
        decimal: decimal separator, "." or ","; detected when None.
    """

    missed: Any = None
    scale: float | None = None
    lookalikes: str | None = None
    most_arms: int | None = None
    encoding: str | None = None
    decimal: str | None = None

    def __post_init__(self) -> None:
        if self.lookalikes is not None:
            require_known("answer to lookalikes", self.lookalikes, ["same", "different"])
        if self.decimal is not None:
            require_known("decimal", self.decimal, [".", ","])

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of missed trials that the user named, as texts; empty if there are none."""
        missed = self.missed
        if missed is None:
            return ()
        codes = (missed,) if isinstance(missed, str | int | float) else missed
        return tuple(str(code).strip() for code in codes)


def split_options(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], ReadingOptions]:
    """Split the keyword arguments of a task's reader into names of columns and
    :class:`ReadingOptions`.

    Args:
        keywords: all keyword arguments of the reader, such as
            ``{"choice": "resp", "missed": -999}``.

    Returns:
        The arguments that name columns, such as ``{"choice": "resp"}``; and all other arguments as
        options.
    """
    columns = dict(keywords)
    names = [field.name for field in fields(ReadingOptions)]
    options = {name: columns.pop(name) for name in names if name in columns}
    return columns, ReadingOptions(**options)


@dataclass(frozen=True)
@checked_result
class TrialsRead:
    """Report on how a table of trials was read.

    Attributes:
        file: name of the file.
        encoding: encoding of the file.
        columns: role -> names of its columns, such as ``{"choice": ("resp",)}``.
        unused: names of the columns without a role.
        participants, sessions, trials: numbers of participants, sessions and trials.
        missed: number of missed trials; they are among ``trials``.
        labels: kind of label -> {label: how often it occurs in these trials}, such as
            ``{"arm": {"left": 40, "right": 60}}``; for arms, choices are counted.
        scale: number by which rewards were divided; None if there are no rewards.
        remarks: sentences about what the user should check.
    """

    file: str
    encoding: str
    columns: Mapping[str, tuple[str, ...]]
    unused: tuple[str, ...]
    participants: int
    sessions: int
    trials: int
    missed: int
    labels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    scale: float | None = None
    remarks: tuple[str, ...] = ()

    @property
    def columns_sentence(self) -> str:
        """A sentence that says which column has which role, and which are unused."""
        phrases = []
        for role, names in self.columns.items():
            quoted = " and ".join(map(repr, names))
            phrases.append(f"{role.replace('_', ' ')} from {quoted}")
        listed = ", ".join(phrases)
        unused = f"not used: {', '.join(self.unused)}" if self.unused else "all columns are used"
        return f"Read from {self.file} ({self.encoding}): {listed}; {unused}."

    @property
    def counts_sentence(self) -> str:
        """A sentence with the numbers of participants, sessions, trials and missed trials, and with
        the number of trials of each label.
        """
        people = _format_count(self.participants, "participant")
        sessions = _format_count(self.sessions, "session")
        counts = [people, sessions, _format_count(self.trials, "trial"), f"{self.missed:,} missed"]
        for kind, labels in self.labels.items():
            listed = [f"{label} ({n:,})" for label, n in labels.items()]
            if len(listed) > _MOST_LABELS_SHOWN:
                listed[_MOST_LABELS_SHOWN:] = ["..."]
            n_labels = _format_count(len(labels), kind)
            counts.append(f"{n_labels}: {', '.join(listed)}")
        return f"{'; '.join(counts)}."

    @property
    def sentences(self) -> tuple[str, ...]:
        """The whole report, one sentence per entry."""
        sentences = [self.columns_sentence, self.counts_sentence]
        if self.scale is not None:
            reward = " and ".join(self.columns.get("reward", ("reward",)))
            sentences.append(f"A reward of 1 is {self.scale:g} of {reward}.")
        return (*sentences, *self.remarks)

    def summary(self) -> str:
        """Return the whole report as text, one sentence per line."""
        return "\n".join(self.sentences)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a mapping {name of the field: value}."""
        return dict(vars(self))


def _format_count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def open_trials(
    path: str | Path,
    roles: Sequence[str],
    named: Mapping[str, Any],
    options: ReadingOptions,
    *,
    optional: Sequence[str] = (),
    lists: Sequence[str] = (),
) -> TrialTable:
    """Read a table of trials and decide which column has which role, such as "choice".

    Args:
        path: the file.
        roles: roles of the task's columns, besides "participant", "session" and "order".
        named: role -> the column or columns that the user named, such as ``{"choice": "resp"}``;
            columns of roles that are absent or None are found by their names.
        options: the user's answers to questions that the table leaves open, such as which code
            stands for a missed trial.
        optional: roles that have a column only if the user names one.
        lists: roles that may have several columns.

    Returns:
        The table with the roles of its columns, from which a task's reader makes episodes.
    """
    table = read_text_table(path, options.encoding)
    if "messages" in table.names:  # a table with one chat per row
        table = open_chats(table, named, roles)
        # Each chat is a participant of its own, unless the user says who took part.
        named = {**named, "participant": named.get("participant") or "conversation"}
    columns = choose_columns(table, roles, named, optional=optional, lists=lists)
    return TrialTable(table, columns, options)


class TrialTable:
    """A table of trials in which the role of each column, such as "choice", is known. A task's reader
    makes episodes from it.

    The role of a column says what its cells mean. For example, if the column "resp" has the role
    "choice", ``read_labels("choice")`` returns the cells of "resp".

    Attributes:
        cells: data frame of the cells, every cell a text; NaN if it is empty.
        file: path of the file in quotes, for error messages.
        remarks: sentences about what the user should check; readers may add more.

    Args:
        table: the table, every cell a text.
        columns: for each role the names of its columns. Its mapping ``by_role`` is, for example,
            ``{"choice": ("resp",), "reward": ("gain", "loss")}``.
        options: the user's answers to questions that the table leaves open, such as which code
            stands for a missed trial: ``ReadingOptions(missed=-999)``.
    """

    def __init__(self, table: TextTable, columns: Columns, options: ReadingOptions) -> None:
        require(len(table.cells) > 0, f"{table.file} has a header and no row below it")
        self.text_table, self.columns, self.options = table, columns, options
        self.cells, self.file = table.cells, table.file
        self.remarks = list(table.remarks)
        # Kind of label -> its labels, and the cells in which the report counts them.
        self._labels_and_cells: dict[str, tuple[list[str], pd.DataFrame]] = {}

    # Cells.

    def read_labels(self, role: str) -> pd.DataFrame:
        """Return the labels in a role's columns, as a data frame with the same columns and one row
        per trial. Codes of missed trials that the user named (``missed`` of
        :class:`ReadingOptions`) become NaN.
        """
        labels = {}
        for name in self.columns.by_role[role]:
            cells = _strip_written_fractions(self.cells[name])
            labels[name] = _mask_codes(cells, self.options.codes)
        return pd.DataFrame(labels)

    def read_numbers(self, role: str) -> pd.DataFrame:
        """Return the numbers in a role's columns, as a data frame with the same columns and one row
        per trial. Empty cells become NaN.

        The user may have named codes of missed trials (``missed`` of :class:`ReadingOptions`). A
        code that is a word, such as "timeout", or a number of two or more nines, such as 99 or
        -999, becomes NaN. A code that is any other number, such as 0, is left as it is, since it
        may be an ordinary reward. (:meth:`read_labels` replaces such codes in labels.)
        """
        return pd.DataFrame({name: self._parse_column(name) for name in self.columns.by_role[role]})

    def _parse_column(self, name: str) -> pd.Series:
        """Return the numbers in the column called ``name``, NaN for empty cells and codes of missed
        trials; refuse other texts.
        """
        # A code such as "0" may be of another column, and be an ordinary number in this one.
        codes = [code for code in self.options.codes if _is_code_of_numbers(code)]
        cells = _mask_codes(self.cells[name], codes)  # NaN in place of codes
        values = parse_numbers(self.file, name, cells, self.options.decimal)
        self.refuse_rows(
            values.isna() & cells.notna(),
            name,
            "must be a number",
            remedy="; write a number, or give missed={0} (--missed {0}) if it is the code of a missed trial",
        )
        self.refuse_rows(np.isinf(values), name, "must be a finite number")
        return values

    def read_flags(self, role: str) -> pd.Series:
        """Read the yes/no column of a role, such as "forced" (True for trials in which the
        participant could not choose). Return one boolean per row, False for empty cells.

        The cells "forced" (True) and "free" (False) mean the same in every column. If the name of
        the column begins with "free" or "is free", and it has no such cells, the result is
        reversed: "no" or 0 becomes True, and "yes" or 1 becomes False.
        """
        name = self.columns.get_first(role)
        words = self.cells[name].str.lower()
        wrong = words.notna() & ~words.isin(_YES_WORDS | _NO_WORDS)
        self.refuse_rows(wrong, name, "must be yes or no, 1 or 0")
        # "yes" in a column called "free" means that the trial is not forced.
        has_words = words.isin(["forced", "free"]).any()
        if re.match("(is)?free", normalize_name(name)) and not has_words:
            self.remarks.append(
                f"{name!r} says where a choice was free: the other trials are forced."
            )
            return words.isin(_NO_WORDS)
        return words.isin(_YES_WORDS)

    def refuse_rows(self, rows: Any, name: str, what: str, remedy: str = "") -> None:
        """Raise InputError about the first wrong row, if there is one; the message has the row's
        place in the file and its cell.

        Args:
            rows: one boolean per row, True if the row is wrong.
            name: name of the column.
            what: requirement on the cell, such as "must be a number".
            remedy: end of the message, what the user can do; {0} is replaced by the cell.
        """
        wrong_places = self.cells.index[np.asarray(rows, bool)]
        for place in wrong_places[:1]:
            cell = str(self.cells[name][place])[:40]
            raise InputError(
                f"{place} of {self.file}: {name!r} {what}, got {cell}{remedy.format(cell)}"
            )

    # Labels.

    def number_labels(
        self, kind: str, frames: Sequence[pd.DataFrame]
    ) -> tuple[list[pd.DataFrame], tuple[str, ...]]:
        """Encode the labels of one kind as the numbers 0, 1, ..., in sorted order.

        Args:
            kind: what the labels stand for, such as "arm".
            frames: data frames of labels, NaN in cells without a label.

        Returns:
            The frames with numbers in place of labels; and the labels, in which index i is the
            label of number i.

        Raises:
            InputError: labels differ only in spelling, and the option ``lookalikes`` is not set; or
                a label looks like the code of a missed trial, and the option ``missed`` is not
                "none"; or labels look like measurements, and ``most_arms`` is not set; or there are
                fewer than two labels, or more than the options allow.
        """
        names = [str(name) for frame in frames for name in frame.columns]
        place = f"{' and '.join(names)} of {self.file}"
        if self.options.lookalikes == "same":
            spelling = _merge_spellings(_count_in_first_frame(frames))
            frames = [frame.replace(spelling) for frame in frames]
        counts = _count_in_first_frame(frames)
        code = suspicious_label(counts)  # a label that looks like the code of a missed trial
        # With missed="none" the user says that no label is such a code.
        if code is not None and NONE not in self.options.codes:
            question = f"{place}: is {code!r} (in {counts[code]:,} trials)"
            self.refuse_possible_code(question, code, list(counts), kind)
        self._refuse_lookalikes(place, counts)
        self._refuse_many(place, kind, counts)
        labels = sorted(counts, key=_order_label)
        require(
            len(labels) > 1,
            f"{place} must hold two {kind}s or more, got {str(labels)[:80]}; name another column",
        )
        number_of_label = {label: i for i, label in enumerate(labels)}
        # For the report, which counts the trials with each label. The first frame has choices or
        # states. The others, with offers or next states, would count the same trials again.
        self._labels_and_cells[kind] = labels, frames[0]
        coded = [frame.apply(lambda cells: cells.map(number_of_label)) for frame in frames]
        return coded, tuple(labels)

    def refuse_possible_code(
        self, question: str, label: str, labels: Sequence[str], kind: str
    ) -> None:
        """Raise InputError: it asks the user whether a label is the code of a missed trial.

        Args:
            question: beginning of the question, such as "'reward': is -999"; "the code of a missed
                trial" follows.
            label: the label, as the user can pass it as ``missed``.
            labels: the column's labels; the message lists the first six others.
            kind: what the label is if it is no code, such as "arm".
        """
        others = [name for name in labels if name != label]
        others_shown = ", ".join(others[:6])
        raise InputError(
            f"{question} the code of a missed trial, beside {others_shown}? Give missed={label} (--missed {label}) "
            f"if it is, or missed={NONE} if it is an {kind} and there is no such code"
        )

    def _refuse_lookalikes(self, place: str, labels: Iterable[str]) -> None:
        """Raise InputError if labels differ only in spelling, such as L and l, and the option
        ``lookalikes`` is not set.

        Args:
            place: columns and file of the labels, for the error message.
            labels: the labels.
        """
        if self.options.lookalikes is not None:
            return
        for similar in _group_by_spelling(labels):
            require(
                len(similar) == 1,
                f"{place}: {' and '.join(map(repr, similar))} look alike; give lookalikes=same (--lookalikes same) "
                "if they mean the same, or lookalikes=different",
            )

    def _refuse_many(self, place: str, kind: str, counts: Mapping[str, int]) -> None:
        """Raise InputError if there are more labels than the option ``most_arms`` allows or, without
        this option, more than 20, or if they look like measurements.

        Args:
            place: columns and file of the labels, for the error message.
            kind: what the labels stand for, such as "arm".
            counts: number of trials with each label.
        """
        n_labels, n_trials = len(counts), len(self.cells)
        chosen_limit = self.options.most_arms
        # A user who sets a limit has seen the labels, and means them.
        is_measurement = chosen_limit is None and is_measurement_like(
            pd.Series(list(counts), dtype=object)
        )
        limit = MOST_LABELS if chosen_limit is None else chosen_limit
        remedy = (
            f"name the column of the {kind}, or give most_arms={n_labels} (--most-arms {n_labels})"
        )
        require(
            not is_measurement,
            f"{place} holds {n_labels} different numbers, as measurements do; {remedy}",
        )
        require(n_labels <= limit, f"{place} holds {n_labels} {kind}s, more than {limit}; {remedy}")
        what = f"{n_trials:,} trials with {n_labels:,} {kind}s"
        # Bytes of the arrays that readers and fits make with an axis of labels.
        refuse_beyond_machine(what, 160.0 * n_trials * n_labels)

    # Rewards.

    def scale_rewards(self, rewards: pd.Series) -> tuple[pd.Series, float]:
        """Divide rewards by the option ``scale``. If this option is None, divide them by their
        typical size (:func:`usual_size`).

        Args:
            rewards: rewards of the trials that count, NaN for other trials.

        Returns:
            The divided rewards, and the number by which they were divided.
        """
        scale = self.options.scale
        if scale is None:
            scale = usual_size(rewards)
        require(check_number("scale", scale) > 0, f"scale must be above 0, got {scale}")
        return rewards / scale, float(scale)

    def read_rewards(self, counted: pd.Series) -> pd.Series:
        """Return the reward of each row: the sum of the reward columns, NaN if any of them is
        empty.

        If there are several columns, a column is subtracted if its name begins with "loss" and it
        has no negative number; a remark says so.

        Args:
            counted: one boolean per row, True if the row has a choice; rewards of other rows are
                NaN.
        """
        columns = self.read_numbers("reward").where(counted, axis=0)
        # A code such as -999 stands for a missed trial. With missed="none" the user says that no
        # number is such a code, so that -999 is a reward.
        may_have_codes = NONE not in self.options.codes
        for name in columns:
            if may_have_codes:
                self._refuse_reward_code(str(name), columns[name])
        if columns.shape[1] == 1:
            return columns.iloc[:, 0]
        for name, values in columns.items():
            # Losses with a sign are negative rewards already.
            has_no_sign = bool((values.dropna() >= 0).all())
            if has_no_sign and normalize_name(str(name)).startswith("loss"):
                columns[name] = -values
                self.remarks.append(
                    f"{name!r} is subtracted from the reward: no number of it is below 0."
                )
        return columns.sum(axis=1, skipna=False)

    def _refuse_reward_code(self, name: str, values: pd.Series) -> None:
        """Raise InputError if one of the rewards consists of two or more nines, such as 99 or
        -999, and is far from all other rewards: the only negative one, or at least five times as
        large as any other. It may be the code of a missed trial.

        Args:
            name: name of the column.
            values: the rewards, NaN for empty cells.
        """
        present = values.dropna()
        for value in present.unique():
            others = present[present != value]
            # Only numbers such as 99 and -999 are usual codes.
            if others.empty or not _NINES.fullmatch(f"{value:g}"):
                continue
            largest = others.abs().max()
            is_only_loss = value < 0 <= others.min()
            if is_only_loss or abs(value) >= 5 * max(largest, 1.0):
                question = f"{name!r} of {self.file}: is {value:g}"
                sizes = [f"rewards of size {largest:g} at most"]
                self.refuse_possible_code(
                    question, f"{value:g}", labels=sizes, kind="ordinary reward"
                )

    # Sessions.

    def find_sessions(self) -> list[tuple[str, pd.Index]]:
        """Split the rows into sessions. A session is a series of trials of one participant, which
        becomes an episode: learning starts anew at its beginning.

        Returns:
            A list of pairs, one per session: the participant, and the index of the session's rows
            in the order of trials.
        """
        participants = self._read_participants()
        labels = self._read_session_labels()
        keys = pd.DataFrame({"who": participants, "session": labels, "order": self._read_order()})
        sessions: list[tuple[str, pd.Index]] = []
        n_returned = 0  # how often a label comes back after another one
        for who, rows in keys.groupby("who", sort=False):
            parts = self._split_sessions(rows)
            n_labels = rows["session"].nunique()
            n_returned += len(parts) - n_labels  # each return of a label begins a new session
            sessions += [(str(who), part.index) for part in parts]
        names = " and ".join(map(repr, self.columns.by_role.get("session", ())))
        mean_length = len(keys) / len(sessions)
        are_short = mean_length < _SHORTEST_SESSION
        remedy = f"name the column of sessions with session=, or give session={NONE}"
        if are_short and len(sessions) > participants.nunique():
            self.remarks.append(
                f"Sessions by {names} have {mean_length:.2g} trials on average, and learning begins anew in each: if "
                f"that is not meant, {remedy}."
            )
        if n_returned:
            require(
                not are_short,
                f"{names} of {self.file} changes after {mean_length:.2g} trials on average and returns, as "
                f"conditions do; {remedy}",
            )
            self.remarks.append(
                f"A label of {names} returns {n_returned:,} times after another one; each time is a new session."
            )
        return sessions

    def _read_participants(self) -> pd.Series:
        """Return the name of each row's participant; "all" if no column names participants."""
        columns = self.columns
        if "participant" not in columns:
            return pd.Series("all", index=self.cells.index)
        name = columns.get_first("participant")
        names = _strip_written_fractions(self._read_filled(name))  # 1.0 becomes 1
        if self.options.lookalikes == "same":
            names = names.replace(_merge_spellings(names.unique()))
        different = names.unique()
        self._refuse_lookalikes(f"{name} of {self.file}", different)
        is_guessed = "participant" in columns.guessed
        are_all_different = 1 < len(names) == len(different)
        require(
            not (is_guessed and are_all_different),
            f"{name!r} of {self.file} differs in every row, so that each participant would have one trial; "
            f"name another column with participant=, or participant={NONE} where all rows are of one",
        )
        return names

    def _read_session_labels(self) -> pd.Series:
        """Return the session label of each row, joined from all session columns."""
        labels = pd.Series("", index=self.cells.index)
        for name in self.columns.by_role.get("session", ()):
            labels = labels + "\n" + self._read_filled(name).astype(str)
        return labels

    def _read_order(self) -> pd.Series:
        """Return the number by which each row is ordered: that in the order column or, without such
        a column, the index of the row in the file.
        """
        if "order" not in self.columns:
            return pd.Series(np.arange(len(self.cells), dtype=float), index=self.cells.index)
        name = self.columns.get_first("order")
        cells = self._read_filled(name)
        values = parse_numbers(self.file, name, cells, self.options.decimal)
        remedy = f"; or give order={NONE} if the rows are in order"
        # Every row must have an order number: texts and empty cells are NaN here.
        self.refuse_rows(
            ~np.isfinite(values),
            name,
            "must be a number, by which trials are ordered",
            remedy=remedy,
        )
        return values

    def _read_filled(self, name: str) -> pd.Series:
        """Return the cells of the column called ``name``; refuse an empty cell."""
        cells = self.cells[name]
        remedy = "; fill the cell, or delete the row if it is no trial"
        self.refuse_rows(cells.isna(), name, "must not be empty", remedy=remedy)
        return cells

    def _split_sessions(self, rows: pd.DataFrame) -> list[pd.DataFrame]:
        """Split a participant's rows into sessions, and sort each session by the order of trials.

        If no order number repeats, rows are sorted by these numbers, and a session ends where the
        session label changes. If order numbers restart in each session, all rows with one label
        form a session. If numbers repeat even within a label, consecutive rows with the same label
        form a session. If such a session would have fewer than four rows, raise InputError.

        Args:
            rows: the rows, with columns "session" (label) and "order" (number).
        """
        if rows["order"].is_unique:
            return _split_runs(rows.sort_values("order", kind="stable"))
        by_label = [part for _, part in rows.groupby("session", sort=False)]
        by_run = _split_runs(rows)  # runs of consecutive rows with the same label
        # A run of one to three rows is no session: it may be a row that is in the table twice.
        if min(map(len, by_run)) < _SHORTEST_SESSION:
            by_run = by_label
        for parts in (by_label, by_run):
            if all(part["order"].is_unique for part in parts):
                return [part.sort_values("order", kind="stable") for part in parts]
        self._refuse_repeats(rows)  # raises, since an order number repeats within a label
        return []

    def _refuse_repeats(self, rows: pd.DataFrame) -> None:
        """Raise InputError about the first row whose order number occurs for a second time in a
        session.

        Args:
            rows: a participant's rows, with columns "session" (label) and "order" (number).
        """
        trial_keys = ["session", "order"]
        hint = ""
        # The hint names the first unused column with which no rows are equal. It may be the column
        # of sessions, unless it has a value of its own for nearly every trial, as reaction times
        # have. From the last column to the first, so that the first one's hint remains.
        for column in reversed(self.columns.unused):
            labels = self.cells.loc[rows.index, column]
            tells_apart = not rows[trial_keys].assign(more=labels).duplicated().any()
            are_long = len(rows) >= _SHORTEST_SESSION * labels.nunique()
            if tells_apart and are_long and not is_measurement_like(labels):
                hint = f", such as {column!r},"
        repeated = rows.index[rows.duplicated(trial_keys)]
        self.refuse_rows(
            self.cells.index.isin(repeated),
            self.columns.get_first("order"),
            f"comes a second time in a session; name the column of sessions{hint} with session=, or give order={NONE}; "
            "if the trial is in the table twice, delete one of its rows",
        )

    # What was read.

    def select_sessions(
        self, sessions: Sequence[tuple[str, pd.Index]], counted: pd.Series, needed: str
    ) -> list[tuple[str, pd.Index]]:
        """Return the sessions in which at least one trial counts; emit a warning with the number of
        other sessions, if there are any.

        Args:
            sessions: (participant, index of the rows) of each session.
            counted: one boolean per row, True if the row's trial counts.
            needed: what a trial needs to count, such as "a choice", in words for the warning.
        """
        played = [(who, rows) for who, rows in sessions if counted[rows].any()]
        require(
            played,
            f"no row of {self.file} has {needed}; write 0 where an empty cell means 0",
        )
        n_absent = len(sessions) - len(played)
        if n_absent:
            warnings.warn(
                f"{n_absent} of {len(sessions)} episodes of {self.file} have no trial with {needed}; "
                "they are left out",
                stacklevel=4,
            )
        return played

    def make_report(
        self,
        sessions: Sequence[tuple[str, pd.Index]],
        counted: pd.Series,
        scale: float | None = None,
    ) -> TrialsRead:
        """Make the report on how the table was read.

        Args:
            sessions: (participant, index of the rows) of each session that is used.
            counted: one boolean per row, True if the row's trial is complete. The other trials are
                reported as missed.
            scale: number by which rewards were divided; None if there are no rewards.
        """
        rows = np.concatenate([index.to_numpy() for _, index in sessions])
        participants = {who for who, _ in sessions}
        columns = self.columns
        if "order" not in columns:  # otherwise copies of a row repeat an order number
            self._remark_copies()
        labels = {
            kind: _count_labels(kind_labels, cells.loc[rows])
            for kind, (kind_labels, cells) in self._labels_and_cells.items()
        }
        remarks = dict.fromkeys(  # each one once
            [*self.remarks, *self._list_number_remarks(sessions), *self._list_unused_remarks()]
        )
        table = self.text_table
        n_missed = int((~counted[rows]).sum())  # of the rows of sessions that are used
        return TrialsRead(
            file=table.path.name,
            encoding=table.encoding,
            columns=columns.by_role,
            unused=columns.unused,
            participants=len(participants),
            sessions=len(sessions),
            trials=len(rows),
            missed=n_missed,
            labels=labels,
            scale=scale,
            remarks=tuple(remarks),
        )

    def _remark_copies(self) -> None:
        """Add a remark for the user if every row occurs 2, 4, ... times, as in a table that was
        appended to itself; or if a few rows are copies, in a table whose rows differ otherwise.
        """
        n_of_row = self.cells.value_counts(dropna=False)  # how often each different row occurs
        are_in_pairs = len(n_of_row) >= _FEWEST_DIFFERENT_ROWS and (n_of_row % 2 == 0).all()
        copies = self.cells.index[self.cells.duplicated()]
        if are_in_pairs or 0 < len(copies) <= _MOST_COPIES * len(self.cells):
            places = ", ".join(copies[:5])
            self.remarks.append(
                f"{len(copies)} rows are equal to an earlier one, such as {places}: each counts as a trial of its "
                "own; delete what is in the table twice."
            )

    def _list_number_remarks(self, sessions: Sequence[tuple[str, pd.Index]]) -> list[str]:
        """Return remarks for the user on the numbers of trials, in the order column or, without such
        a column, in the first unused column with a usual name of trial numbers.

        Args:
            sessions: (participant, index of the rows) of each session.
        """
        columns = self.columns
        names = columns.by_role.get("order", ())
        names += tuple(name for name in columns.unused if is_usual_name("order", name))
        if not names:
            return []
        numbers = pd.to_numeric(self.cells[names[0]], errors="coerce")  # NaN for other texts
        keys = [(session, who) for session, (who, _) in enumerate(sessions)]
        by_session = pd.concat([numbers[rows] for _, rows in sessions], keys=keys)
        return list_number_remarks(names[0], by_session)

    def _list_unused_remarks(self) -> list[str]:
        """Return remarks for the user on unused columns that look like the order of trials or like
        session labels.
        """
        remarks = []
        people = self._read_participants()
        columns = self.columns
        for name in columns.unused:
            cells = self.cells[name]
            counting = _describe_counting(cells, people)
            # Columns with a usual name of trial numbers are checked by their numbers.
            if counting == "up" and "order" not in columns and not is_usual_name("order", name):
                remarks.append(
                    f"{name!r} counts up within a participant and is not used: if trials are in its order, "
                    f"give order={name}."
                )
            mean_run = _measure_mean_run(cells, people)
            if mean_run >= _SHORTEST_SESSION and "session" not in columns:
                remarks.append(
                    f"{name!r} stays the same for {mean_run:.3g} trials and is not used: if learning begins anew "
                    f"where it changes, give session={name}."
                )
            if counting == "restarts" and "session" not in columns:
                remarks.append(
                    f"{name!r} counts up and restarts within a participant and is not used: if a session begins there, "
                    "name the column of sessions with session=."
                )
        return remarks

    def split_by_session(
        self, sessions: Sequence[tuple[str, pd.Index]], values: pd.Series | pd.DataFrame
    ) -> list[_Array]:
        """Split values by session, in the order of the session's trials.

        Args:
            sessions: (participant, index of the rows) of each session.
            values: one value per row of the table, or several columns.

        Returns:
            One array ``[trial]`` or ``[trial, column]`` per session.
        """
        return [values.loc[rows].to_numpy(float) for _, rows in sessions]

    def pad_sessions(
        self, sessions: Sequence[tuple[str, pd.Index]], values: pd.Series | pd.DataFrame
    ) -> _Array:
        """Arrange values by session in one array, with NaN after the end of a shorter session.

        Args:
            sessions: (participant, index of the rows) of each session.
            values: one value per row of the table, or several columns.

        Returns:
            An array ``[session, trial]`` or ``[session, trial, column]``.
        """
        parts = self.split_by_session(sessions, values)
        longest = max(map(len, parts))
        padded = np.full((len(parts), longest, *parts[0].shape[1:]), np.nan)
        for padded_part, part in zip(padded, parts, strict=True):
            padded_part[: len(part)] = part
        return padded


def _mask_codes(cells: pd.Series, codes: Iterable[str]) -> pd.Series:
    """Return cells with NaN in place of codes of missed trials, in any spelling (case, spaces, 99.0
    for 99).
    """
    spellings = {_normalize_spelling(code) for code in codes}
    if not spellings:
        return cells
    return cells.mask(cells.map(_normalize_spelling).isin(spellings))


def usual_size(rewards: pd.Series) -> float:
    """Return a typical size of rewards: the 75 % quantile of the absolute values of all rewards
    that are not 0; 1 if all rewards are 0.

    >>> usual_size(pd.Series([0.0, 1.0, 1.0, 0.0])), usual_size(pd.Series([100.0] * 9 + [-1150.0]))
    (1.0, 100.0)
    """
    sizes = rewards.abs()
    positive_sizes = sizes[sizes > 0]
    if positive_sizes.empty:
        return 1.0
    return float(positive_sizes.quantile(_UNIT_QUANTILE, interpolation="higher"))


def parse_numbers(file: str, name: str, cells: pd.Series, decimal: str | None) -> pd.Series:
    """Parse the cells of a column as numbers. Cells that are empty, or are no numbers, become NaN;
    so do numbers with a separator of thousands.

    Args:
        file: the file, for the error message.
        name: name of the column, for the error message.
        cells: the texts of the column.
        decimal: decimal separator, "." or ","; detected when None.

    Raises:
        InputError: it is unclear whether commas separate decimals or thousands.
    """
    texts = list(cells.dropna().unique())
    if decimal is None and _has_decimal_commas(file, name, texts):
        decimal = ","
    thousands = "." if decimal == "," else ","
    # A separator of thousands is replaced by a letter, so that the text is no number and becomes
    # NaN. A decimal comma is replaced by a point.
    values = {text: _parse_number(text.replace(thousands, "x").replace(",", ".")) for text in texts}
    return cells.map(values).astype(float)


def _has_decimal_commas(file: str, name: str, texts: Sequence[str]) -> bool:
    """Return True if the texts of a column have commas as decimal separators; refuse texts whose
    commas or points may separate thousands.

    Args:
        file: the file, for the error message.
        name: name of the column, for the error message.
        texts: the different texts in the column.
    """
    with_comma = [text for text in texts if re.fullmatch(r"[+-]?\d*,\d+", text)]
    with_point = [text for text in texts if "." in text]
    marked = with_comma or with_point
    if not marked:
        return False
    mark = "," if with_comma else "."
    # 1,234 and 1.234 may be a thousand; 0,123 and 1,23 are not.
    is_unclear = all(re.fullmatch(r"[+-]?[1-9]\d{0,2}[,.]\d{3}", text) for text in marked)
    if with_comma:
        is_unclear = is_unclear or bool(with_point)
    elif len(with_point) == len(texts):  # all have three decimals; a number below 1000 would not
        is_unclear = False
    require(
        not is_unclear,
        f"{name!r} of {file} holds {marked[0]}: give decimal={mark} (--decimal {mark}) if {mark!r} stands before a "
        "fraction; else write numbers without it",
    )
    return bool(with_comma)


def _parse_number(text: str) -> float:
    """Return the number that a text is: 1 for "true", 0 for "false"; NaN for any other text."""
    try:
        return float(text)
    except ValueError:
        return _TRUTH_VALUES.get(text.lower(), float("nan"))


def _strip_written_fractions(cells: pd.Series) -> pd.Series:
    """If all cells are whole numbers written as 1.0, 2.0, ..., return them as 1, 2, ...; otherwise
    return the cells unchanged.
    """
    if cells.dropna().str.fullmatch(r"-?\d+\.0+").all():
        return cells.str.partition(".")[0]
    return cells


def _normalize_spelling(text: Any) -> str:
    """Return a normal form of a label, which is equal for labels that differ only in spelling: its
    number, or the text in lower case with single spaces.
    """
    words = " ".join(str(text).casefold().split())
    if not re.search(r"\d", words):
        return words
    value = _parse_number(words)
    return words if np.isnan(value) else repr(value)


def _group_by_spelling(labels: Iterable[str]) -> list[list[str]]:
    """Return groups of labels that differ at most in spelling (:func:`_normalize_spelling`), each
    sorted.
    """
    by_spelling: dict[str, list[str]] = {}
    for label in sorted(labels):
        by_spelling.setdefault(_normalize_spelling(label), []).append(label)
    return list(by_spelling.values())


def _merge_spellings(labels: Iterable[str]) -> dict[str, str]:
    """Return a mapping from every label in ``labels`` to the shortest of the labels that differ
    from it at most in spelling.
    """
    shortest: dict[str, str] = {}
    for similar in _group_by_spelling(labels):
        shortest |= dict.fromkeys(similar, min(similar, key=len))
    return shortest


def _count_in_first_frame(frames: Sequence[pd.DataFrame]) -> dict[str, int]:
    """Return {label: number of cells of the first frame with this label}, for all labels that occur
    in any of the frames.
    """
    in_any_frame = pd.concat([frame.stack() for frame in frames]).value_counts(sort=False)
    return _count_labels(in_any_frame.index, frames[0])


def _count_labels(labels: Iterable[str], cells: pd.DataFrame) -> dict[str, int]:
    """Return {label: number of cells with this label}; the number is 0 if no cell has it."""
    counts = cells.stack().value_counts()
    return {label: int(counts.get(label, 0)) for label in labels}


def _order_label(label: str) -> tuple[bool, float, str]:
    """Return the key by which ``label`` is sorted among labels: numbers come before words and are
    sorted by size.
    """
    value = _parse_number(label)
    is_word = bool(np.isnan(value))
    return is_word, 0.0 if is_word else value, label


def suspicious_label(counts: Mapping[str, int]) -> str | None:
    """Return a label that looks like the code of a missed trial; None if no label does.

    These labels look like codes:

    - words such as "timeout", numbers such as -99, and labels without a letter or digit, such as --;
    - words, if there are at least twice as many numbers among the labels; and numbers, if there are
      at least twice as many words;
    - among at least three labels, a number that does not fit into the sequence of the other labels.

    Args:
        counts: number of trials with each label of a column.

    >>> suspicious_label({"1": 40, "2": 35, "-1": 5}), suspicious_label({"-1": 40, "1": 40})
    ('-1', None)
    >>> suspicious_label({"left": 40, "right": 35, "0": 5})
    '0'
    """
    for label in counts:
        is_word = normalize_name(label) in _MISSED_WORDS
        has_no_character = not re.search(r"\w", label)  # neither a letter nor a digit, as in "--"
        if is_word or has_no_character or _NEGATIVE_NINES.fullmatch(label):
            return label
    values = {label: _parse_number(label) for label in counts}
    numbers = {label: value for label, value in values.items() if not np.isnan(value)}
    words = [label for label in counts if label not in numbers]
    # The odd ones out: few words among many numbers, or few numbers among many words.
    for few, many in ((words, list(numbers)), (list(numbers), words)):
        if 0 < 2 * len(few) <= len(many):
            return few[0]
    if len(counts) < 3 or len(numbers) < 2:
        return None
    return _find_suspicious_number(numbers, counts)


def _find_suspicious_number(numbers: Mapping[str, float], counts: Mapping[str, int]) -> str | None:
    """Return the label of a number that does not fit into the sequence of the other numbers; None
    if all fit. Tables often contain such a number as a code for "no choice was made".

    Such a number is the only negative number, the only number with a fraction, or the rarer of -1
    and 0 if the numbers are -1, 0 and 1. It may also be the largest number if that consists of
    nines or is above 10 and more than ten times the second largest, or 0 if all other numbers are
    above 10.

    Args:
        numbers: the number of each label; at least two labels.
        counts: number of trials with each label.
    """
    ordered = sorted(numbers, key=numbers.__getitem__)
    values = [numbers[label] for label in ordered]
    if values == [-1, 0, 1]:  # two arms and a code: the arms are 0 and 1, or -1 and 1
        return min(ordered[:2], key=counts.__getitem__)
    negative = [label for label in ordered if numbers[label] < 0]
    with_fraction = [label for label in ordered if numbers[label] % 1]
    for unusual in (negative, with_fraction):
        if len(unusual) == 1 and len(ordered) > 2:  # of two numbers, either may be the unusual one
            return unusual[0]
    second, largest = values[-2:]
    # Nines such as 99 may simply follow 98.
    is_nines = largest - second > 1 and re.fullmatch("9+", ordered[-1])
    if is_nines or largest > 10 * max(second, 1):
        return ordered[-1]
    smallest, next_one = values[:2]
    return ordered[0] if smallest == 0 and next_one > 10 else None


def _is_code_of_numbers(code: str) -> bool:
    """Return True if a code of missed trials is applied not only to labels but also to columns of
    numbers: if it is a word, or a number of two or more nines, such as 99 or -999.
    """
    is_word = np.isnan(_parse_number(code))
    return bool(is_word or _NINES.fullmatch(code.partition(".")[0]))


def _split_runs(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Split rows, in their order, wherever the value in the column "session" changes; return a list
    of data frames.
    """
    labels = rows["session"]
    numbers = (labels != labels.shift()).cumsum()
    return [part for _, part in rows.groupby(numbers, sort=False)]


def _measure_mean_run(cells: pd.Series, people: pd.Series) -> float:
    """Return the mean number of consecutive trials of a participant for which a column keeps its
    value.

    Return 0 if the value never changes within a participant.

    Args:
        cells: the column.
        people: the participant of each row.
    """
    labels = cells.fillna("")
    previous = labels.groupby(people).shift()
    is_first = previous.isna()  # the first row of a participant
    starts_run = labels != previous
    if starts_run.sum() == is_first.sum():  # one run per participant
        return 0.0
    return float(len(labels) / starts_run.sum())


def _describe_counting(cells: pd.Series, people: pd.Series) -> str:
    """Return how a column counts trials within participants: "up" (1, 2, 3, ...), "restarts" (such
    a count that begins anew several times) or "" (neither).

    Args:
        cells: the column.
        people: the participant of each row.
    """
    values = pd.to_numeric(cells, errors="coerce")
    changes = values.groupby(people).diff().dropna()
    if len(values) < 8 or values.isna().any() or changes.empty:  # too few rows to tell, or no count
        return ""
    # A table that is not in the order of trials shows a count only when it is sorted.
    changes_if_sorted = values.sort_values().groupby(people).diff().dropna()
    if (changes_if_sorted == 1).mean() >= _LEAST_RISES:
        return "up"
    # A count rises by 1, and falls where it begins anew.
    restarts = changes[changes != 1]
    are_few = len(restarts) <= 0.2 * len(changes)
    return "restarts" if are_few and (restarts < 0).all() else ""
