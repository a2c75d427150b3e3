"""The analyses of a set of runs as CSV files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from interp.checks import checked
from interp.errors import InputError
from interp.files import write_json, write_text
from interp.llm.behaviour import behaviour
from interp.llm.note_table import NoteTable, note_table
from interp.llm.runs import LLMRun
from interp.llm.scores import LLMScores, Predictor, score


@checked
def write_tables(
    runs: Sequence[LLMRun], folder: str | Path, others: Mapping[str, Predictor] | None = None, seed: int = 0
) -> tuple[LLMScores, list[Path]]:
    """Score ``runs`` and write ``final.csv``, ``curves.csv``, ``behaviour.csv``, ``agreement.csv``, ``provenance.json``
    and the tables of :func:`write_notes` into ``folder``; empty tables are left out.

    Returns:
        the scores and the files written.

    Raises:
        InputError: no runs, runs that do not belong together, or a folder that cannot be written.
    """
    scores, acts, notes = score(runs, others, seed), behaviour(runs, seed), note_table(runs)
    agreement = [one.agreement.assign(model=one.model, condition=one.condition, regime=one.regime) for one in acts]
    tables = {
        "final": scores.final,
        "curves": scores.curves,
        "behaviour": pd.concat([one.to_frame() for one in acts]) if acts else pd.DataFrame(),
        "agreement": pd.concat(agreement) if acts else pd.DataFrame(),
    }
    written = _write(tables, folder) + write_notes(notes, folder)
    return scores, [*written, write_json(Path(folder) / "provenance.json", scores.settings)]


@checked
def write_notes(notes: NoteTable, folder: str | Path) -> list[Path]:
    """Write ``notes.csv`` (every note), ``note_formats.csv`` (the paper's table), ``note_formats_by_round.csv``,
    ``note_rounds.csv`` (words, prompt tokens and exact counts over the rounds) and ``note_summary.csv``.

    Raises:
        InputError: a folder that cannot be written.
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
    folder = Path(folder)
    if folder.is_file():
        raise InputError(f"{str(folder)!r} is a file; choose a folder")
    return [
        write_text(folder / f"{name}.csv", table.to_csv(index=False)) for name, table in tables.items() if len(table)
    ]


@checked
def readable(final: pd.DataFrame) -> pd.DataFrame:
    """The final table for a terminal: one row per group, both treatments of missing predictions side by side."""
    shown = final[final["missing"] != "skipped"].copy()
    skipped = final[final["missing"] == "skipped"].set_index(["model", "condition", "regime"])["mean"]
    keys = shown[["model", "condition", "regime"]].apply(tuple, axis=1)
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
