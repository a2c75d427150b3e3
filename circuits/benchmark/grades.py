"""What a run of the benchmark found: one row for each score, and how methods compare over subjects and seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from circuits.benchmark.method import METHODS
from circuits.benchmark.questions import QUESTIONS
from interp.checks import checked
from interp.display import Tabled
from interp.errors import InputError, require, require_known
from interp.files import json_values, write_atomic, write_json
from interp.kinds import shown
from interp.statistics import Interval, bootstrap_mean, mean_interval

_FORMAT = 1
"""Version of the JSON."""
COLUMNS: dict[str, type] = {
    **dict.fromkeys(("subject", "machine", "form", "variant"), str),
    "seed": int,
    **dict.fromkeys(("question", "method", "score"), str),
    **dict.fromkeys(("value", "cpu_s"), float),
}
"""The columns of the table and of every row of the JSON, in order, with their types; a value that does not exist is
null in the JSON."""


@dataclass(frozen=True)
class Result(Tabled):
    """Scores of methods.

    Attributes:
        rows: one for each subject, seed, question, method and score, with the columns :data:`COLUMNS`.
        refusals: what methods refused: subject, seed, question, method, and the sentence.
    """

    rows: tuple[Mapping[str, Any], ...]
    refusals: tuple[Mapping[str, Any], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """The tidy table."""
        return pd.DataFrame(list(self.rows), columns=list(COLUMNS))

    def _scored(self, question: str, score: str) -> pd.DataFrame:
        """The rows of one score of one question."""
        frame = self.to_frame()
        return frame[(frame["question"] == question) & (frame["score"] == score)]

    @staticmethod
    @checked
    def headline(question: str) -> str:
        """The score that methods of a question are ordered by, where none is given."""
        require_known("question", question, QUESTIONS)
        return QUESTIONS[question].headline

    @checked
    def summary(self, question: str, score: str = "", by: Sequence[str] = ()) -> pd.DataFrame:
        """Mean of a score for each method, best first, with its 95 % interval and CPU seconds.

        Variants and seeds of one form of a machine are alike, so the interval resamples forms: it says how much the
        choice of machines matters. ``by`` names further columns to tell apart, such as "variant".
        """
        for name in by:
            require_known("column", name, COLUMNS)
        score = score or self.headline(question)
        frame = self._scored(question, score)
        frame = frame[frame["value"].notna()]
        require(len(frame) > 0, f"no method has a score {score!r} of question {question!r} in this result")
        rows = []
        for keys, group in frame.groupby([*by, "method"], sort=False):
            forms = group.groupby(["machine", "form"])["value"].mean().to_numpy()
            mean, low, high = map(float, bootstrap_mean(forms))
            bounds = {"mean": mean, "low": low, "high": high, "subjects": group["subject"].nunique()}
            named: dict[str, Any] = dict(zip([*by, "method"], keys, strict=True))
            rows.append({**named, **bounds, "cpu_s": group["cpu_s"].mean()})
        table = pd.DataFrame(rows)
        return table.sort_values([*by, "mean"], ascending=[True] * len(by) + [False], kind="stable", ignore_index=True)

    @checked
    def difference(self, question: str, one: str, other: str, score: str = "") -> Interval:
        """How much better one method does than another on the same subjects and seeds; forms are resampled."""
        score = score or self.headline(question)
        wide = self._scored(question, score).pivot_table("value", ["machine", "form", "subject", "seed"], "method")
        require({one, other} <= set(wide), f"{one!r} and {other!r} must both have a score {score!r} of {question!r}")
        apart = (wide[one] - wide[other]).dropna().groupby(["machine", "form"]).mean().to_numpy()
        require(len(apart) > 0, f"{one!r} and {other!r} share no subject")
        return mean_interval(apart)

    @checked
    def table(
        self, question: str, scores: Sequence[str] = (), middle: Literal["mean", "median"] = "mean"
    ) -> pd.DataFrame:
        """Methods in rows, scores in columns: over forms, of means over variants and seeds.

        ``middle`` is "mean", or "median", which a few values without bounds (faithfulness) do not move.
        """
        first, frame = self.headline(question), self.to_frame()
        frame = frame[frame["question"] == question]
        for score in scores:
            require_known(f"score of {question!r}", score, list(frame["score"].unique()))
        require(len(frame) > 0, f"this result has no row of question {question!r}")
        forms = frame.pivot_table("value", ["method", "machine", "form"], "score", sort=False)
        wide = forms.groupby("method").agg(middle)
        wide = wide[list(scores)] if scores else wide
        return wide.sort_values(first if first in wide else wide.columns[0], ascending=False, kind="stable")

    @checked
    def agreement(self, question: str, one: str, other: str) -> float:
        """Rank correlation (Spearman) of two scores over methods, without the oracle and chance: do they rank alike?

        Of a method's scores the median over forms counts.
        """
        table = self.table(question, middle="median").drop(index=["oracle", "random"], errors="ignore")
        for score in (one, other):
            require_known(f"score of {question!r}", score, list(table.columns))
        return float(table[one].corr(table[other], method="spearman")) if len(table) > 2 else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """JSON values; numbers that do not exist are None."""
        return {
            "format": _FORMAT,
            "rows": json_values(list(self.rows)),
            "refusals": json_values(list(self.refusals)),
            "methods": {f"{question}/{key}": m.name for (question, key), m in METHODS.items()},
            "settings": json_values(dict(self.settings)),
        }

    @classmethod
    @checked
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """The result that JSON values hold."""
        require(
            values.get("format") == _FORMAT, f"this reads format {_FORMAT} of a benchmark, got {values.get('format')!r}"
        )
        rows = []
        lists = [values.get(name) for name in ("rows", "refusals")]
        held = all(isinstance(one, list | tuple) for one in lists) and isinstance(values.get("settings"), Mapping)
        require(held, "a result of a benchmark holds rows, refusals and settings")
        for i, row in enumerate(values["rows"]):
            fits = isinstance(row, Mapping) and set(row) == set(COLUMNS)
            require(fits, f"row {i} must have the columns {', '.join(COLUMNS)}, got {shown(row)}")
            known = {key: np.nan if row[key] is None and kind is float else row[key] for key, kind in COLUMNS.items()}
            for key, kind in COLUMNS.items():
                fits = isinstance(known[key], (int, float) if kind is float else kind)
                require(fits, f"{key!r} of row {i} must be of type {kind.__name__}, got {row[key]!r}")
            rows.append(known)
        return cls(tuple(rows), tuple(values["refusals"]), dict(values["settings"]))

    @checked
    def save(self, folder: str | Path) -> list[Path]:
        """Write ``benchmark.json``, the tidy table as ``scores.csv``, and each question's table as ``QUESTION.csv``."""
        folder = Path(folder)
        tables = {"scores": self.to_frame()}
        for question in dict.fromkeys(row["question"] for row in self.rows):
            tables[question] = self.table(question).reset_index()
        paths = [write_json(folder / "benchmark.json", self.to_dict())]
        for name, frame in tables.items():
            paths.append(write_atomic(folder / f"{name}.csv", lambda path, f=frame: f.to_csv(path, index=False)))  # type: ignore[misc]
        return paths

    @classmethod
    @checked
    def load(cls, path: str | Path) -> Result:
        """A saved result: its ``benchmark.json``, or the folder that holds it."""
        path = Path(path)
        path = path / "benchmark.json" if path.is_dir() else path
        try:
            return cls.from_dict(json.loads(path.read_text()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{str(path)!r} is no result of a benchmark: {error}; give the folder of a run") from error
