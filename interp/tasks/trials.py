"""Read recorded trials from a table, a row a trial, and say what was read.

:func:`open_trials` reads the file and decides which column is what. Labels and names stay the texts that they are;
trials that were missed are found by the codes that the user names; sessions begin where a participant's label of the
session changes. Each task's reader takes from the table what its episodes hold, and keeps a :class:`TrialsRead`.
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

from interp.support.checks import number, refuse_beyond_machine
from interp.support.errors import InputError, require, require_known
from interp.tasks.table_columns import NONE, Columns, choose_columns, is_measured, spelled
from interp.tasks.table_file import TextTable, read_text_table

_Array = NDArray[Any]

MOST_LABELS = 20
"""How many arms, states or actions there may be where the user does not say."""
_UNIT_QUANTILE = 0.75
"""The share of rewards other than 0 that are at most the unit: one large loss does not move it."""
_SHORTEST_SESSION = 4
"""Trials that sessions must have on average where their labels return: labels that alternate are conditions."""
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
_NINES_BELOW = re.compile(r"-9{2,}")
_TRUE = frozenset(["1", "1.0", "true", "yes", "y", "t", "forced"])
_FALSE = frozenset(["0", "0.0", "false", "no", "n", "f", "free"])
_SHOWN = 8  # labels that a summary counts one by one


@dataclass(frozen=True)
class ReadingOptions:
    """How a table is read where the table itself does not say.

    Attributes:
        missed: the codes of trials that were missed, such as -999 or "timeout"; "none" says that no label is one.
        scale: what rewards are divided by; a usual size of theirs when None.
        lookalikes: whether labels that differ only in spelling, such as L and l, are the "same" or "different".
        most_arms: the most labels that there may be, 20 when None.
        encoding: of the file, such as "latin-1"; found by itself when None.
        decimal: what stands before the fraction of a number, "." or ","; found by itself when None.
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
        """The codes of missed trials as texts."""
        if self.missed is None:
            return ()
        single = isinstance(self.missed, str | int | float)
        given = (self.missed,) if single else tuple(self.missed)
        return tuple(str(code).strip() for code in given)


def split_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], ReadingOptions]:
    """Split a reader's keywords into its columns and its :class:`ReadingOptions`."""
    names = {field.name for field in fields(ReadingOptions)}
    columns = {name: value for name, value in given.items() if name not in names}
    options = {name: value for name, value in given.items() if name in names}
    return columns, ReadingOptions(**options)


@dataclass(frozen=True)
class TrialsRead:
    """What was read from a table of trials.

    Attributes:
        file: its name; ``encoding``: how its bytes were read.
        columns: role -> the columns that were taken for it.
        unused: the other columns.
        participants, sessions, trials: how many there are; ``missed``: how many of the trials count nowhere.
        labels: what labels are of, such as "arm" -> each label -> in how many trials it stands.
        scale: what 1 of a reward is in the table, or None where nothing pays.
        remarks: what the user should look at, a sentence each.
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
        """Which column was taken for what, and which were not used."""
        taken = [
            f"{role.replace('_', ' ')} from {' and '.join(map(repr, names))}"
            for role, names in self.columns.items()
        ]
        unused = f"not used: {', '.join(self.unused)}" if self.unused else "all columns are used"
        return f"Read from {self.file} ({self.encoding}): {', '.join(taken)}; {unused}."

    @property
    def counts_sentence(self) -> str:
        """How many participants, sessions, trials, missed trials and labels there are."""
        counts = [
            _count(self.participants, "participant"),
            _count(self.sessions, "session"),
            _count(self.trials, "trial"),
            f"{self.missed:,} missed",
        ]
        for kind, labels in self.labels.items():
            listed = [f"{label} ({n:,})" for label, n in list(labels.items())[:_SHOWN]]
            if len(labels) > _SHOWN:
                listed.append("...")
            counts.append(f"{_count(len(labels), kind)}: {', '.join(listed)}")
        return f"{'; '.join(counts)}."

    @property
    def sentences(self) -> tuple[str, ...]:
        """All that there is to say, a sentence each."""
        said = [self.columns_sentence, self.counts_sentence]
        if self.scale is not None:
            reward = " and ".join(self.columns.get("reward", ("reward",)))
            said.append(f"A reward of 1 is {self.scale:g} of {reward}.")
        return (*said, *self.remarks)

    def summary(self) -> str:
        """Say what was read, a line a sentence."""
        return "\n".join(self.sentences)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _count(n: int, noun: str) -> str:
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
    """Read a table of trials and decide which column is what.

    Args:
        path: of the table.
        roles: what a row says, beside "participant", "session" and "order".
        named: role -> the column that the user names.
        options: how it is read.
        optional: roles that are only read where the user names a column.
        lists: roles that may have several columns.

    Returns:
        The table, from which a task's reader takes what it needs.
    """
    table = read_text_table(path, options.encoding)
    columns = choose_columns(table, roles, named, optional=optional, lists=lists)
    return TrialTable(table, columns, options)


class TrialTable:
    """A table of trials whose columns are known.

    Attributes:
        remarks: what is said of it beside the counts; readers add to it.
    """

    def __init__(self, table: TextTable, columns: Columns, options: ReadingOptions) -> None:
        require(len(table.cells) > 0, f"{table.file} has a header and no row below it")
        self.table, self.columns, self.options = table, columns, options
        self.remarks: list[str] = []
        self._labels: dict[str, dict[str, int]] = {}
        if table.encoding == "Latin-1":
            self.remarks.append(
                f"{table.file} is not in UTF-8 and was read as Latin-1; if letters are wrong, give encoding=."
            )

    # Cells.

    def texts(self, role: str) -> pd.DataFrame:
        """Return the labels of a role, a column each; NaN where a trial was missed."""
        return pd.DataFrame({name: self._label_cells(name) for name in self.columns.by_role[role]})

    def _label_cells(self, name: str) -> pd.Series:
        cells = _without_written_fractions(self.table.cells[name])
        codes = {_spelling(code) for code in self.options.codes}
        if codes:
            cells = cells.mask(cells.map(lambda text: _spelling(text) in codes))
        return cells

    def numbers(self, role: str) -> pd.DataFrame:
        """Return the numbers of a role, a column each; NaN where nothing is said.

        A code of missed trials is one here, too, if it is a word or is spelled like 99 or -999: other numbers are
        rewards.
        """
        names = self.columns.by_role[role]
        return pd.DataFrame({name: self._number_cells(name) for name in names})

    def _number_cells(self, name: str) -> pd.Series:
        cells = self.table.cells[name]
        codes = {_spelling(code) for code in self.options.codes if _is_code_of_numbers(code)}
        cells = cells.mask(cells.map(lambda text: _spelling(text) in codes))
        values = parse_numbers(self.table, name, cells, self.options.decimal)
        wrong = values.isna() & cells.notna()
        self.refuse(
            wrong,
            name,
            "must be a number",
            "; if that is a missed trial, give missed={0} (--missed {0})",
        )
        self.refuse(np.isinf(values), name, "must be a finite number")
        return values

    def flags(self, role: str) -> pd.Series:
        """Return whether each row says yes; an empty cell says no."""
        name = self.columns.one(role)
        words = self.table.cells[name].str.lower()
        wrong = words.notna() & ~words.isin(_TRUE | _FALSE)
        self.refuse(wrong, name, "must be yes or no, 1 or 0")
        return words.isin(_TRUE)

    def refuse(self, rows: Any, name: str, what: str, remedy: str = "") -> None:
        """Refuse the first of some rows, with its line and what stands in it."""
        for line in self.table.cells.index[np.asarray(rows, bool)][:1]:
            cell = self.table.cells[name][line]
            wrong = f"line {line} of {self.table.file}: {name!r} {what}, got {str(cell)[:40]}"
            raise InputError(wrong + remedy.format(str(cell)[:40]))

    # Labels.

    def code(
        self, kind: str, frames: Sequence[pd.DataFrame], several: bool = True
    ) -> tuple[list[pd.DataFrame], tuple[str, ...]]:
        """Number the labels of one kind.

        Args:
            kind: what the labels are of, such as "arm".
            frames: labels, NaN where there are none.
            several: whether at least two are needed.

        Returns:
            The frames with 0, 1, ... in the place of labels, which are sorted, and the labels.

        Raises:
            InputError: labels that look alike, that look like codes of missed trials, too few, or too many.
        """
        names = [str(name) for frame in frames for name in frame.columns]
        about = f"{' and '.join(names)} of {self.table.file}"
        if self.options.lookalikes == "same":
            merged = _merged_spellings(_labels_in(frames))
            frames = [frame.replace(merged) for frame in frames]
        counts = _label_counts(frames)
        self._refuse_codes(about, kind, counts)
        self._refuse_lookalikes(about, counts)
        self._refuse_many(about, kind, counts)
        labels = sorted(counts, key=_sorting)
        require(
            len(labels) > 1 or not several,
            f"{about} must hold two {kind}s or more, got {labels}",
        )
        numbers = {label: i for i, label in enumerate(labels)}
        self._labels[kind] = {label: counts[label] for label in labels}
        return [frame.apply(lambda cells: cells.map(numbers)) for frame in frames], tuple(labels)

    def _refuse_codes(self, about: str, kind: str, counts: Mapping[str, int]) -> None:
        """Refuse a label that looks like the code of a missed trial, unless the user said that none is."""
        if NONE in self.options.codes:
            return
        label = suspicious_label(counts)
        if label is not None:
            others = [other for other in counts if other != label]
            self.refuse_code(
                f"{about}: is {label!r} (in {counts[label]:,} trials)", label, others, kind
            )

    def refuse_code(self, is_it: str, label: str, others: Sequence[str], kind: str) -> None:
        """Refuse a label that may be the code of a missed trial."""
        beside = ", ".join(others[:6])
        raise InputError(
            f"{is_it} the code of a missed trial, beside {beside}? Give missed={label} (--missed {label}) if it is, "
            f"or missed={NONE} if it is an {kind}"
        )

    def _refuse_lookalikes(self, about: str, labels: Iterable[str]) -> None:
        """Refuse labels that differ only in how they are spelled, unless the user said what they are."""
        if self.options.lookalikes is not None:
            return
        alike = _lookalikes(labels)
        if alike:
            raise InputError(
                f"{about}: {' and '.join(map(repr, alike))} look alike; give lookalikes=same (--lookalikes same) "
                "if they mean the same, or lookalikes=different"
            )

    def _refuse_many(self, about: str, kind: str, counts: Mapping[str, int]) -> None:
        """Refuse more labels than an experiment has, and measured numbers."""
        most = self.options.most_arms
        if most is None:
            measured = is_measured(pd.Series(list(counts), dtype=object))
            require(
                not measured,
                f"{about} holds {len(counts)} different numbers, as measurements do; "
                f"name the column of the {kind}, or give most_arms={len(counts)} (--most-arms {len(counts)})",
            )
        limit = MOST_LABELS if most is None else most
        require(
            len(counts) <= limit,
            f"{about} holds {len(counts)} {kind}s, more than {limit}; "
            f"name the column of the {kind}, or give most_arms={len(counts)} (--most-arms {len(counts)})",
        )
        what = f"{len(self.table.cells):,} trials with {len(counts):,} {kind}s"
        refuse_beyond_machine(what, 160.0 * len(self.table.cells) * len(counts))

    # Rewards.

    def scaled(self, rewards: pd.Series) -> tuple[pd.Series, float]:
        """Divide rewards by their unit.

        Args:
            rewards: of the trials that count, NaN elsewhere.

        Returns:
            The rewards, and what 1 of them is in the table.
        """
        scale = usual_size(rewards) if self.options.scale is None else self.options.scale
        require(number("scale", scale) > 0, f"scale must be above 0, got {scale}")
        return rewards / scale, float(scale)

    def rewards(self, counted: pd.Series) -> pd.Series:
        """Return the sum of the columns of the reward; NaN where any of them says nothing.

        A column of losses that holds no number below 0 is subtracted, which is said.

        Args:
            counted: whether each trial has a choice: the others' rewards are not looked at.
        """
        columns = self.numbers("reward").where(counted, axis=0)
        for name in columns:
            self._refuse_reward_code(str(name), columns[name])
        if columns.shape[1] == 1:
            return columns.iloc[:, 0]
        for name in columns:
            if spelled(str(name)).startswith("loss") and (columns[name].dropna() >= 0).all():
                columns[name] = -columns[name]
                self.remarks.append(
                    f"{name!r} is subtracted from the reward: no number of it is below 0."
                )
        return columns.sum(axis=1, skipna=False)

    def _refuse_reward_code(self, name: str, values: pd.Series) -> None:
        """Refuse a reward spelled like 99 or -999 that is far from the others."""
        if NONE in self.options.codes:
            return
        present = values.dropna()
        codes = [value for value in present.unique() if re.fullmatch("-?9{2,}", f"{value:g}")]
        for value in codes:
            others = present[present != value]
            if len(others) and _is_far(value, others):
                self.refuse_code(
                    f"{name!r} of {self.table.file}: is {value:g}",
                    f"{value:g}",
                    [f"rewards of size {others.abs().max():g} at most"],
                    "ordinary reward",
                )

    # Sessions.

    def sessions(self) -> list[tuple[str, pd.Index]]:
        """Find the sessions of every participant, as they come in the file.

        Returns:
            For each session the participant, and its rows in the order of its trials.
        """
        cells = self.table.cells
        keys = pd.DataFrame({"who": self._participants(), "session": self._session_labels()})
        keys["order"] = self._order_numbers()
        found: list[tuple[str, pd.Index]] = []
        returned = 0
        for who, rows in keys.groupby("who", sort=False):
            parts = self._split(rows)
            returned += len(parts) - rows["session"].nunique()
            found += [(str(who), part.index) for part in parts]
        if returned:
            names = " and ".join(map(repr, self.columns.by_role["session"]))
            self._refuse_alternating(names, len(cells) / len(found))
            self.remarks.append(
                f"A label of {names} returns {returned:,} times after another one; each time is a new session."
            )
        return found

    def _participants(self) -> pd.Series:
        """Return whose trial each row is."""
        cells = self.table.cells
        if "participant" not in self.columns:
            return pd.Series("all", index=cells.index)
        name = self.columns.one("participant")
        self.refuse(cells[name].isna(), name, "must not be empty")
        names = _without_written_fractions(cells[name])
        if self.options.lookalikes == "same":
            names = names.replace(_merged_spellings(names.unique()))
        self._refuse_lookalikes(f"{name} of {self.table.file}", names.unique())
        alone = len(names) > 1 and names.is_unique and "participant" in self.columns.guessed
        require(
            not alone,
            f"{name!r} of {self.table.file} differs in every row, so that each participant would have one trial; "
            f"name another column with participant=, or participant={NONE} where all rows are of one",
        )
        return names

    def _session_labels(self) -> pd.Series:
        """Return the label of the session of each row, from one or more columns."""
        cells = self.table.cells
        names = list(self.columns.by_role.get("session", ()))
        labels = pd.Series("", index=cells.index)
        for name in names:
            self.refuse(cells[name].isna(), name, "must not be empty")
            labels = labels + "\n" + cells[name].astype(str)
        return labels

    def _order_numbers(self) -> pd.Series:
        """Return what trials are ordered by: a column, else the place of the row in the file."""
        cells = self.table.cells
        if "order" not in self.columns:
            return pd.Series(np.arange(len(cells), dtype=float), index=cells.index)
        name = self.columns.one("order")
        self.refuse(cells[name].isna(), name, "must not be empty")
        values = parse_numbers(self.table, name, cells[name], self.options.decimal)
        wrong = ~np.isfinite(values.to_numpy(float))
        self.refuse(wrong, name, "must be a number, by which trials are ordered")
        return values

    def _split(self, rows: pd.DataFrame) -> list[pd.DataFrame]:
        """Split a participant's rows into sessions, each in the order of its trials.

        Where the order never repeats a number, it says which trials follow each other, and a session ends where the
        label changes. Where it begins anew in each session, rows of one label are a session; if a number repeats in
        these, rows that follow each other in the file are.
        """
        if rows["order"].is_unique:
            return _runs(rows.sort_values("order", kind="stable"))
        by_label = [part for _, part in rows.groupby("session", sort=False)]
        for parts in (by_label, _runs(rows)):
            if all(part["order"].is_unique for part in parts):
                return [part.sort_values("order", kind="stable") for part in parts]
        self._refuse_repeated(rows)
        return []

    def _refuse_repeated(self, rows: pd.DataFrame) -> None:
        """Refuse a trial that stands twice in a session."""
        name = self.columns.one("order")
        twice = rows.index[rows.duplicated(["session", "order"])]
        able = [
            column
            for column in self.columns.unused
            if not rows[["session", "order"]]
            .assign(more=self.table.cells[column])
            .duplicated()
            .any()
        ]
        hint = f", such as {able[0]!r}," if able else ""
        what = (
            f"comes a second time in a session; name the column of sessions{hint} with session=, "
            f"or give order={NONE}"
        )
        self.refuse(self.table.cells.index.isin(twice), name, what)

    def _refuse_alternating(self, names: str, mean_length: float) -> None:
        require(
            mean_length >= _SHORTEST_SESSION,
            f"{names} of {self.table.file} changes after {mean_length:.2g} trials on average and returns, as "
            f"conditions do; name the column of sessions with session=, or give session={NONE}",
        )

    # What was read.

    def played(
        self, sessions: Sequence[tuple[str, pd.Index]], counted: pd.Series, needed: str
    ) -> list[tuple[str, pd.Index]]:
        """Leave out the sessions without a trial that counts, with a warning.

        Args:
            sessions: as :meth:`sessions` finds them.
            counted: whether each row is a trial that counts.
            needed: what such a trial has, in words.
        """
        found = [(who, rows) for who, rows in sessions if counted[rows].any()]
        absent = len(sessions) - len(found)
        require(bool(found), f"no row of {self.table.file} has {needed}")
        if absent:
            warnings.warn(
                f"{absent} of {len(sessions)} episodes of {self.table.file} have no trial with {needed}; "
                "they are left out",
                stacklevel=4,
            )
        return found

    def said(
        self,
        sessions: Sequence[tuple[str, pd.Index]],
        counted: pd.Series,
        scale: float | None = None,
    ) -> TrialsRead:
        """Say what was read.

        Args:
            sessions: those that were kept.
            counted: whether each row is a trial that counts.
            scale: what 1 of a reward is in the table.
        """
        rows = np.concatenate([index.to_numpy() for _, index in sessions])
        participants = {who for who, _ in sessions}
        n_missed = int((~counted[rows]).sum())
        remarks = [*self.remarks, *self._unused_remarks()]
        return TrialsRead(
            file=self.table.path.name,
            encoding=self.table.encoding,
            columns=dict(self.columns.by_role),
            unused=self.columns.unused,
            participants=len(participants),
            sessions=len(sessions),
            trials=len(rows),
            missed=n_missed,
            labels=self._labels,
            scale=scale,
            remarks=tuple(dict.fromkeys(remarks)),
        )

    def _unused_remarks(self) -> list[str]:
        """Say of columns that are not used what they look like: the order of trials, or what was on offer."""
        remarks = []
        people = self._participants()
        for name in self.columns.unused:
            counting = _counts_up(self.table.cells[name], people)
            if counting == "up" and "order" not in self.columns:
                remarks.append(
                    f"{name!r} counts up within a participant and is not used: if trials are in its order, "
                    f"give order={name}."
                )
            if counting == "restarts" and "session" not in self.columns:
                remarks.append(
                    f"{name!r} counts up and restarts within a participant and is not used: if a session begins there, "
                    "name the column of sessions with session=."
                )
        return remarks

    def by_session(
        self, sessions: Sequence[tuple[str, pd.Index]], values: pd.Series | pd.DataFrame
    ) -> list[_Array]:
        """Return the values of the rows of each session, ``[trial]`` or ``[trial, column]``."""
        return [values.loc[rows].to_numpy(float) for _, rows in sessions]

    def padded(
        self, sessions: Sequence[tuple[str, pd.Index]], values: pd.Series | pd.DataFrame
    ) -> _Array:
        """Return the values as one array, ``[session, trial]`` or ``[session, trial, column]``, NaN after the end."""
        rows = self.by_session(sessions, values)
        longest = max(len(array) for array in rows)
        whole = np.full((len(rows), longest, *rows[0].shape[1:]), np.nan)
        for row, array in zip(whole, rows, strict=True):
            row[: len(array)] = array
        return whole


def _is_far(value: float, others: pd.Series) -> bool:
    """Whether a reward is five times as large as any other, or the only one below 0."""
    largest = max(others.abs().max(), 1.0)
    return bool(abs(value) >= 5 * largest or value < 0 <= others.min())


def usual_size(rewards: pd.Series) -> float:
    """Return the unit of rewards: three quarters of those other than 0 are at most that large.

    >>> usual_size(pd.Series([0.0, 1.0, 1.0, 0.0])), usual_size(pd.Series([100.0] * 9 + [-1150.0]))
    (1.0, 100.0)
    """
    sizes = rewards.abs()
    sizes = sizes[sizes > 0].dropna()
    if not len(sizes):
        return 1.0
    return float(np.quantile(sizes.to_numpy(float), _UNIT_QUANTILE, method="higher"))


def parse_numbers(
    table: TextTable, name: str, cells: pd.Series, decimal: str | None = None
) -> pd.Series:
    """Read cells as numbers; NaN where a cell is empty, or is none.

    Args:
        table: whose separator may leave the comma free to be a decimal one.
        name: of the column, for the refusal.
        cells: texts.
        decimal: "." or ","; found by itself when None.

    Raises:
        InputError: it cannot be known whether a comma stands before a fraction or between thousands.
    """
    texts = [str(text) for text in cells.dropna().unique()]
    if decimal is None and _has_decimal_commas(table, name, texts):
        decimal = ","
    if decimal == ",":
        values = {text: _as_number(text.replace(",", ".")) for text in texts}
    else:
        values = {text: _as_number(text) for text in texts}
    return cells.map(values).astype(float)


def _has_decimal_commas(table: TextTable, name: str, texts: Sequence[str]) -> bool:
    """Return whether numbers have a comma before their fraction; refuse where it may stand between thousands."""
    commas = [text for text in texts if re.fullmatch(r"[+-]?\d*,\d+", text)]
    if not commas:
        return False
    thousands = all(re.fullmatch(r"[+-]?[1-9]\d{0,2},\d{3}", text) for text in commas)
    points = any("." in text for text in texts)
    require(
        not thousands and not points,
        f"{name!r} of {table.file} holds {commas[0]}: give decimal=, (--decimal ,) if the comma stands before a "
        "fraction; else write numbers without it",
    )
    return True


def _as_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _without_written_fractions(cells: pd.Series) -> pd.Series:
    """Whole numbers that a program wrote as 1.0, 2.0, ... as 1, 2, ...; other texts as they are."""
    texts = cells.dropna().unique()
    if all(re.fullmatch(r"-?\d+\.0+", text) for text in texts):
        return cells.map(lambda text: text.partition(".")[0], na_action="ignore")
    return cells


def _spelling(text: Any) -> str:
    """What two spellings of one label share: the number, or the small letters without blanks."""
    words = " ".join(str(text).casefold().split())
    if not re.search(r"\d", words):
        return words
    value = _as_number(words)
    return words if np.isnan(value) else repr(value)


def _lookalikes(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the first labels that share a spelling."""
    by_spelling: dict[str, list[str]] = {}
    for label in sorted(labels):
        by_spelling.setdefault(_spelling(label), []).append(label)
    for alike in by_spelling.values():
        if len(alike) > 1:
            return tuple(alike)
    return ()


def _merged_spellings(labels: Iterable[str]) -> dict[str, str]:
    """Map each label to the shortest of those that share its spelling."""
    first: dict[str, str] = {}
    for label in sorted(labels, key=lambda text: (len(text), text)):
        first.setdefault(_spelling(label), label)
    return {label: first[_spelling(label)] for label in labels}


def _labels_in(frames: Sequence[pd.DataFrame]) -> list[str]:
    return list(_label_counts(frames))


def _label_counts(frames: Sequence[pd.DataFrame]) -> dict[str, int]:
    """Count in how many cells of the first frame each label of all frames stands."""
    counts: dict[str, int] = {}
    for i, frame in enumerate(frames):
        for name in frame.columns:
            for label, n in frame[name].value_counts(sort=False).items():
                counts[str(label)] = counts.get(str(label), 0) + (int(n) if i == 0 else 0)
    return counts


def _sorting(label: str) -> tuple[bool, float, str]:
    """Sort numbers by size and before words."""
    value = _as_number(label)
    is_word = bool(np.isnan(value))
    return is_word, 0.0 if is_word else value, label


def suspicious_label(counts: Iterable[str]) -> str | None:
    """Return a label that looks like the code of a missed trial, or None.

    A word such as "timeout", or -99, wherever it stands; beside two labels or more also a word among numbers, the one
    number below 0 among counts, and 9, 99, ... beyond the others.

    >>> suspicious_label(["1", "2", "-1"]), suspicious_label(["-1", "1"])
    ('-1', None)
    """
    labels = list(counts)
    plain_codes = [
        label for label in labels if _is_missed_word(label) or _NINES_BELOW.fullmatch(label)
    ]
    if plain_codes:
        return plain_codes[0]
    values = {label: _as_number(label) for label in labels}
    numbers = {label: value for label, value in values.items() if not np.isnan(value)}
    words = [label for label in labels if label not in numbers]
    if 0 < 2 * len(words) <= len(numbers):
        return words[0]
    if len(labels) < 3:
        return None
    return _suspicious_number(numbers)


def _suspicious_number(numbers: Mapping[str, float]) -> str | None:
    """Return the one number below 0 among counts, or 9, 99, ... beyond the others; None where there is none."""
    below = [label for label, value in numbers.items() if value < 0]
    if len(below) == 1 and len(numbers) > 2:
        return below[0]
    ordered = sorted(numbers, key=lambda label: numbers[label])
    if len(ordered) > 1 and re.fullmatch("9+", ordered[-1]):
        gap = numbers[ordered[-1]] - numbers[ordered[-2]]
        return ordered[-1] if gap > 1 else None
    return None


def _is_missed_word(label: str) -> bool:
    return spelled(label) in _MISSED_WORDS or not re.search(r"\w", label)


def _is_code_of_numbers(code: str) -> bool:
    """Whether a code of missed trials is one among rewards, too."""
    return bool(np.isnan(_as_number(code))) or bool(re.fullmatch(r"-?9{2,}(\.0*)?", code))


def _runs(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Split rows where the label of the session changes."""
    labels = rows["session"]
    numbers = (labels != labels.shift()).cumsum()
    return [part for _, part in rows.groupby(numbers, sort=False)]


def _counts_up(cells: pd.Series, people: pd.Series) -> str:
    """Say whether a column counts "up" within each participant, or "restarts" there; "" where it does neither."""
    values = pd.to_numeric(cells, errors="coerce")
    if values.isna().any() or (values % 1 != 0).any() or len(values) < 8:
        return ""
    steps = values.groupby(people).diff().dropna()
    if not len(steps):
        return ""
    ordered = values.groupby(people).apply(
        lambda column: column.sort_values().diff().dropna().eq(1).all()
    )
    if bool(ordered.all()):
        return "up"
    rising = (steps == 1).mean() >= 0.8
    restarts = steps[steps != 1]
    return "restarts" if rising and bool((restarts < 0).all()) else ""
