"""Learning curves of several runs side by side: what one changed setting costs, with its spread over seeds.

Runs are grouped by the settings in which they differ, the seed apart. A row is one evaluation of one run on its own
held-out episodes. NOT evidence of what a setting could reach with more steps or another learning rate: curves end where
the runs ended, and settings were not tuned one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from interp.errors import require
from interp.library import SHIPPED
from interp.training.card import load_run

LEARNING_FILE = "learning.csv"
"""Beside a shipped checkpoint: the curves of the runs that its settings were compared with."""


def learning_curves(folders: Sequence[str | Path]) -> pd.DataFrame:
    """Every evaluation of several runs of one task.

    Args:
        folders: runs, finished or not, such as output/training/NAME.

    Returns:
        tidy: ``setting`` (what tells the groups apart, such as "latent_update=add"; where runs differ in several
        settings, those in which one is unlike most), ``seed``, ``step``, ``minutes``, and the evaluation's columns:
        ``excess`` above the floor, ``accuracy`` or ``agreement``, ...

    Raises:
        InputError: no run in a folder, no evaluation yet, or runs of two tasks.
    """
    require(len(folders) > 0, "no run was given; give folders of runs, such as output/training/NAME")
    runs = [load_run(folder, Path(folder).name) for folder in folders]
    tasks = sorted({run.config.task for run in runs})
    require(len(tasks) == 1, f"runs of one task can be compared, got {' and '.join(tasks)}")
    settings = [run.config.to_dict() for run in runs]
    differing = [name for name in settings[0] if name != "seed" and any(s[name] != settings[0][name] for s in settings)]
    usual = {name: Counter(said(name, s[name]) for s in settings).most_common(1)[0][0] for name in differing}
    parts = []
    for folder, run, given in zip(folders, runs, settings, strict=True):
        require("excess" in run.metrics, f"the run in {str(folder)!r} was not evaluated yet; train it for longer")
        seen = run.metrics.dropna(subset=["excess"])
        label = _label(given, differing, usual if len(differing) > 1 else {})
        parts.append(
            seen.drop(columns=["stage", "loss", "seconds"]).assign(
                setting=label, seed=run.config.seed, minutes=seen["seconds"] / 60
            )
        )
    frame = pd.concat(parts, ignore_index=True)
    return frame[["setting", "seed", "step", "minutes", *frame.columns.drop(["setting", "seed", "step", "minutes"])]]


def over_seeds(curves: pd.DataFrame, column: str = "excess") -> pd.DataFrame:
    """Mean, lowest and highest of ``column`` over the seeds of a setting at each step that all its seeds reached.

    >>> frame = pd.DataFrame({"setting": "a", "seed": [0, 1], "step": 50, "excess": [0.25, 0.75]})
    >>> over_seeds(frame).to_dict("records")
    [{'setting': 'a', 'step': 50, 'mean': 0.5, 'low': 0.25, 'high': 0.75, 'n_seeds': 2}]
    """
    grouped = curves.groupby(["setting", "step"], sort=False)[column]
    found = grouped.agg(["mean", "min", "max", "size"]).reset_index()
    found = found.rename(columns={"min": "low", "max": "high", "size": "n_seeds"})
    n_seeds = curves.groupby("setting")["seed"].nunique()
    return found[found["n_seeds"] == found["setting"].map(n_seeds)].reset_index(drop=True)


def shipped_curves(source: str) -> pd.DataFrame | None:
    """The curves beside a checkpoint, by its name or path; None where there are none."""
    for folder in (SHIPPED / source, Path(source)):
        if (folder / LEARNING_FILE).is_file():
            return pd.read_csv(folder / LEARNING_FILE)
    return None


def said(name: str, value: Any) -> str:
    """A setting as a label says it; of a curriculum, the rounds of its stages.

    >>> said("stages", [{"n_rounds": 2, "steps": 9}, {"n_rounds": 4, "steps": 9}]), said("start", "")
    ('stages=2, 4 rounds', 'start=none')
    """
    if name == "stages":
        return f"stages={', '.join(str(stage['n_rounds']) for stage in value)} rounds"
    return f"{name}={'none' if value == '' else value}"


def _label(settings: dict[str, Any], differing: Sequence[str], usual: dict[str, str]) -> str:
    """What a run's settings are, but for those that are as ``usual``."""
    labels = [said(name, settings[name]) for name in differing]
    unlike = [label for name, label in zip(differing, labels, strict=True) if label != usual.get(name)]
    return ", ".join(unlike) or ("as most" if differing else "all alike")
