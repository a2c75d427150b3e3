"""Pictures of ``interp evaluate``: functions that draw the tables of ``interp.evaluation.suite``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from interp.evaluation.plan import MODEL, notes
from interp.results import figures
from interp.support.checks import checked
from interp.support.files import write_figure

SHOWN = (
    "model",
    "bayes",
    "weighted_majority_best",
    "follow_the_leader",
    "follow_previous_winners",
    "oracle",
)
_DRAWN_REGIMES = ("uniform", "stratified", "flat", "anti-signal")

_Pictures = Iterator[tuple[str, Figure]]  # figures, each with the name of its file


@checked
def draw(tables: Mapping[str, pd.DataFrame]) -> dict[str, Figure]:
    """Draw all pictures of an evaluation.

    Args:
        tables: name of a table, such as "regret_curves" -> table, as an evaluation returns them.

    Returns:
        Name of a file without suffix, such as "regret-uniform" -> its figure.
    """
    missing = notes(tables)
    drawn: dict[str, Figure] = {}
    for key, draw_table in _PICTURES.items():
        if key in tables and key not in missing:
            drawn.update(draw_table(tables[key]))
    return drawn


@checked
def save(tables: Mapping[str, pd.DataFrame], folder: str | Path) -> list[Path]:
    """Draw all pictures of an evaluation, and write them as SVG files.

    Args:
        tables: name of a table, such as "regret_curves" -> table, as an evaluation returns them.
        folder: the folder to write into.

    Returns:
        The paths of the files.
    """
    paths = []
    for name, figure in draw(tables).items():
        paths.append(write_figure(Path(folder) / f"{name}.svg", figure, bbox_inches="tight"))
    return paths


def _draw_curves(table: pd.DataFrame, **how: Any) -> Figure:
    """Draw the curves of a table: one per value of its column "key", with the height in its column
    "estimate" or "regret".

    Args:
        table: one row per point of a curve.
        **how: options of :func:`interp.results.figures.curves`.
    """
    frame = table.rename(columns={"key": "algorithm", "estimate": "mean", "regret": "mean"})
    return figures.curves(frame, **how)


def _draw_regret(table: pd.DataFrame) -> _Pictures:
    is_shown = table["regime"].isin(_DRAWN_REGIMES) & table["key"].isin(SHOWN)
    for regime, curves in table[is_shown].groupby("regime", sort=False):
        yield f"regret-{regime}", _draw_curves(curves, ylabel=f"regret, {regime} regime")


def _draw_lengths(table: pd.DataFrame) -> _Pictures:
    lengths = table.assign(name=table["key"].str.replace("_", " "), round=table["stop"])
    regret = lengths[lengths["metric"] == "regret"]
    yield "length-regret", _draw_curves(regret, ylabel="regret", log_x=True)


def _draw_discount(table: pd.DataFrame) -> _Pictures:
    curve = table.assign(algorithm=MODEL, name="choices")
    label = "share of choices that agree with the Q-table of this discount"
    yield "followed-discount", _draw_curves(curve, x="gamma", xlabel="discount", ylabel=label)


def _draw_rewards(table: pd.DataFrame) -> _Pictures:
    """Yield a picture of the reward per round for each regime, over the rounds of the episodes."""
    rewards = table.assign(round=table["start"])
    for regime, curves in rewards.groupby("regime", sort=False):
        label = f"reward a round, {regime}"
        yield f"reward-{regime}", _draw_curves(curves, xlabel="from round", ylabel=label)


_PICTURES: dict[str, Callable[[pd.DataFrame], _Pictures]] = {
    "regret_curves": _draw_regret,
    "lengths": _draw_lengths,
    "followed_discount": _draw_discount,
    "reward_rates": _draw_rewards,
}
"""Functions that draw the pictures of an evaluation's tables, by the name of the table."""
