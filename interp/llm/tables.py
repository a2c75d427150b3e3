"""The analyses of a set of runs as CSV files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from interp.checks import checked, require_columns
from interp.errors import require
from interp.files import write_csv, write_json
from interp.llm.note_counts import check_counts
from interp.llm.notes import FORMATS, classify
from interp.llm.runs import LLMRun
from interp.llm.schemes import LONGEST_NOTE, MAX_NOTE_WORDS
from interp.llm.scores import LLMScores, Predictor, score

_GROUP = ["model", "condition", "regime"]


@checked
def write_tables(
    runs: Sequence[LLMRun],
    folder: str | Path,
    others: Mapping[str, Predictor] | None = None,
    seed: int = 0,
    more: Mapping[str, pd.DataFrame] | None = None,
) -> tuple[LLMScores, list[Path]]:
    """Score ``runs`` and write ``final.csv``, ``curves.csv``, ``provenance.json`` and the tables of :func:`write_notes`
    into ``folder``; empty tables are left out.

    Args:
        more: further tables by name, such as those of ``circuits.compare.players``.

    Returns:
        the scores and the files written.
    """
    scores, notes = score(runs, others, seed), note_table(runs)
    tables = {"final": scores.final, "curves": scores.curves, **(more or {})}
    written = _write(tables, folder) + write_notes(notes, folder)
    return scores, [*written, write_json(Path(folder) / "provenance.json", scores.settings)]


@checked
def write_notes(notes: NoteTable, folder: str | Path) -> list[Path]:
    """Write ``notes.csv`` (every note), ``note_formats.csv`` (the paper's table), ``note_formats_by_round.csv``,
    ``note_rounds.csv`` (words, prompt tokens and exact counts over the rounds) and ``note_summary.csv``.
    """
    tables = {
        "notes": notes.to_frame(),
        "note_formats": notes.formats(),
        "note_formats_by_round": notes.formats_by_round(),
        "note_rounds": notes.over_rounds(),
        "note_summary": notes.final(),
    }
    return _write(tables, folder)


def _write(tables: Mapping[str, pd.DataFrame], folder: str | Path) -> list[Path]:
    full = {name: table for name, table in tables.items() if len(table)}
    return [write_csv(Path(folder) / f"{name}.csv", table) for name, table in full.items()]


@checked
def readable(final: pd.DataFrame) -> pd.DataFrame:
    """The final table for a terminal: one row per group, both treatments of missing predictions side by side."""
    require_columns("final", final, *_GROUP, "missing", "mean", "std", "low", "high", "n", "runs", "accuracy")
    shown = final[final["missing"] != "skipped"].copy()
    skipped = final[final["missing"] == "skipped"].set_index(_GROUP)["mean"]
    keys = shown[_GROUP].apply(tuple, axis=1)
    names = [f"{m}, {c}" if c else m for m, c in zip(shown["model"], shown["condition"], strict=True)]
    return pd.DataFrame(
        {
            "regime": shown["regime"],
            "predictor": names,
            "runs": [f"{n:.0f}/{runs:.0f}" for n, runs in zip(shown["n"], shown["runs"], strict=True)],
            "regret": [f"{m:.2f} ± {s:.2f}" for m, s in zip(shown["mean"], shown["std"], strict=True)],
            "95 %": [f"{low:.2f} to {high:.2f}" for low, high in zip(shown["low"], shown["high"], strict=True)],
            "left out": [f"{skipped[key]:.2f}" if key in skipped.index else "" for key in keys],
            "accuracy": [f"{a:.3f}" for a in shown["accuracy"]],
            "missing": ["" if pd.isna(m) else f"{m:.0f}" for m in shown["missing_predictions"]],
        }
    ).sort_values("regime", kind="stable")


@dataclass(frozen=True)
class NoteTable:
    """Every note of a set of runs.

    Attributes:
        notes: one row per run and round: the note, its format, words, characters, ``readable`` (every expert has a
            tally), ``exact``, ``mean_error`` of the counts, ``best`` / ``worst``: does the note's top / bottom expert
            have the most / fewest right predictions so far; ``most_accurate`` / ``least_accurate``: is it the expert
            with the highest / lowest :attr:`LLMRun.reliability` (in the anti-signal regime the lowest is the
            adversary); prompt tokens of the round. Rounds from 1. Empty where no run has notes.
    """

    notes: pd.DataFrame

    def to_frame(self) -> pd.DataFrame:
        """One row for each note."""
        return self.notes

    def formats(self) -> pd.DataFrame:
        """How many runs had each format after their last round: the paper's table."""
        if self.notes.empty:
            return pd.DataFrame(columns=[*_GROUP, *FORMATS])
        return self._counted(self._last, _GROUP).reset_index()

    def formats_by_round(self) -> pd.DataFrame:
        """Per group and round: the share of the runs that got there with each format, and how many those are."""
        if self.notes.empty:
            return pd.DataFrame(columns=[*_GROUP, "round", "runs", *FORMATS])
        counts = self._counted(self.notes, [*_GROUP, "round"])
        runs = counts.sum(axis=1)
        shares = counts.div(runs, axis=0)
        shares.insert(0, "runs", runs)
        return shares.reset_index()

    def formats_over_rounds(self) -> pd.DataFrame:
        """:meth:`formats_by_round` at the moments the paper tells of: after the first round, after the sixth (its step
        5), and after the last that each group has."""
        by_round = self.formats_by_round()
        last = by_round.groupby(_GROUP)["round"].transform("max") if len(by_round) else by_round["round"]
        return by_round[by_round["round"].isin((1, 6)) | (by_round["round"] == last)].reset_index(drop=True)

    def final(self) -> pd.DataFrame:
        """Per group, at the last round: words, notes over the limit, and of readable notes how many count right and
        name the right expert."""
        measures = ("exact", "mean_error", "best", "worst", "most_accurate", "least_accurate")
        rows: list[dict[str, Any]] = []
        for names, group in self._last.groupby(_GROUP, sort=False):
            readable = group[group["readable"].astype(bool)]
            row: dict[str, Any] = dict(zip(_GROUP, names, strict=True))
            row |= {"n": len(group), "words": group["words"].mean()}
            row |= {"over_word_limit": int((group["words"] > MAX_NOTE_WORDS).sum()), "readable": len(readable)}
            rows.append(row | {key: readable[key].astype(float).mean() for key in measures})
        return pd.DataFrame(rows)

    def over_rounds(self) -> pd.DataFrame:
        """Per group and round: mean words, mean prompt tokens, share of exact counts among readable notes."""
        if self.notes.empty:
            return pd.DataFrame(columns=[*_GROUP, "round", "words", "prompt_tokens", "exact"])
        table = self.notes.assign(exact=self.notes["exact"].where(self.notes["readable"].astype(bool)).astype(float))
        return table.groupby([*_GROUP, "round"])[["words", "prompt_tokens", "exact"]].mean().reset_index()

    @property
    def _last(self) -> pd.DataFrame:
        return self.notes[self.notes["round"] == self.notes["last_round"]]

    def _counted(self, notes: pd.DataFrame, by: list[str]) -> pd.DataFrame:
        counts = notes.groupby([*by, "format"]).size().unstack(fill_value=0)
        return counts.reindex(columns=list(FORMATS), fill_value=0)


@checked
def note_table(runs: Sequence[LLMRun]) -> NoteTable:
    """Analyse every note in ``runs``."""
    require(bool(runs), "no runs to analyse")
    rows = [row for run in runs if run.condition.has_note for row in _rows(run)]
    return NoteTable(pd.DataFrame(rows, columns=None if rows else [*_GROUP, "round", "last_round", "format", "words"]))


def _rows(run: LLMRun) -> list[dict[str, object]]:
    correct = (run.advice == run.labels[:, None]).cumsum(axis=0)
    rows: list[dict[str, object]] = []
    for t, note in enumerate(run.notes):
        if note is None:
            continue
        whole, note = note, note[:LONGEST_NOTE]  # an imported note may be longer
        rows.append(
            {
                **dict(zip(_GROUP, run.group, strict=True)),
                "index": run.index,
                "round": t + 1,
                "last_round": run.rounds,
                **vars(classify(note, run.advice.shape[1])),
                "note": whole,
                "chars": len(whole),
                **vars(check_counts(note, correct[t], t + 1, run.reliability)),
                "prompt_tokens": run.prompt_tokens[t],
            }
        )
    return rows
