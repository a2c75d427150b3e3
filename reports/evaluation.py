"""The pictures of ``interp evaluate``: pure functions from its tables (``interp.evaluation.suite``) to figures.

A table that no function here draws is written as numbers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from interp import figures
from interp.checks import checked
from interp.evaluation.plan import MODEL, notes
from interp.files import write_figure

SHOWN = ("model", "bayes", "weighted_majority_best", "follow_the_leader", "follow_previous_winners", "oracle")
_DRAWN_REGIMES = ("uniform", "stratified", "flat", "anti-signal")

_Pictures = Iterator[tuple[str, Figure]]
"""Figures, each with the name of its file."""


@checked
def draw(tables: Mapping[str, pd.DataFrame]) -> dict[str, Figure]:
    """Every picture of the tables, by file name."""
    drawn = (pictures(tables[key]) for key, pictures in _PICTURES.items() if key in tables and key not in notes(tables))
    return {name: figure for pictures in drawn for name, figure in pictures}


@checked
def save(tables: Mapping[str, pd.DataFrame], folder: str | Path) -> list[Path]:
    """:func:`draw`, as SVG files in ``folder``."""
    drawn = draw(tables).items()
    return [write_figure(Path(folder) / f"{name}.svg", figure, bbox_inches="tight") for name, figure in drawn]


def _regret(curves: pd.DataFrame) -> _Pictures:
    for regime in _DRAWN_REGIMES:
        part = curves[(curves["regime"] == regime) & curves["key"].isin(SHOWN)]
        if len(part):
            frame = part.rename(columns={"key": "algorithm", "regret": "mean"})
            yield f"regret-{regime}", figures.curves(frame, ylabel=f"regret, {regime} regime")


def _lengths(table: pd.DataFrame) -> _Pictures:
    lengths = table.assign(name=table["key"].str.replace("_", " "))
    lengths = lengths.rename(columns={"key": "algorithm", "estimate": "mean", "stop": "round"})
    apart = lengths[(lengths["metric"] == "divergence") & (lengths["algorithm"] == MODEL)]
    if len(apart):
        label = "KL from the Bayes predictor (nats)"
        yield "length-divergence", figures.curves(apart, ylabel=label, log_x=True)
    yield "length-regret", figures.curves(lengths[lengths["metric"] == "regret"], ylabel="regret", log_x=True)


def _attention(attention: pd.DataFrame) -> _Pictures:
    for reader in attention["reader"].unique():
        mean = attention[(attention["head"] == "mean") & (attention["reader"] == reader)]
        targets = list(mean["target"].unique())
        grid = mean.pivot(index="layer", columns="target", values="estimate")[targets]
        rows = [f"layer {layer}" for layer in grid.index]
        name = {"p?": "predict", "w?": "update"}.get(reader, reader)
        grid = grid.set_axis(rows, axis="index")
        picture = figures.heatmaps({"": grid}, label="share of attention", xlabel=f"read from {reader}")
        yield f"attention-{name}", picture


def _discount(followed: pd.DataFrame) -> _Pictures:
    frame = followed.rename(columns={"estimate": "mean"}).assign(algorithm=MODEL, name="choices")
    label = "agreement with the table of that discount"
    yield "followed-discount", figures.curves(frame, x="gamma", xlabel="discount", ylabel=label)


def _rewards(table: pd.DataFrame) -> _Pictures:
    rates = table.rename(columns={"key": "algorithm", "estimate": "mean"})
    for regime in rates["regime"].unique():
        frame = rates[rates["regime"] == regime].assign(round=lambda frame: frame["start"])
        yield f"reward-{regime}", figures.curves(frame, xlabel="from round", ylabel=f"reward a round, {regime}")


def _attention_chain(attention: pd.DataFrame) -> _Pictures:
    labels = list(attention["query"].unique())
    for layer, part in attention.groupby("layer"):
        mean = part.groupby(["query", "key"])["attention"].mean().unstack().reindex(index=labels, columns=labels)
        picture = figures.heatmaps({"": mean}, label="share of attention, mean over heads")
        yield f"attention-chain-layer-{layer}", picture


_PICTURES: dict[str, Callable[[pd.DataFrame], _Pictures]] = {
    "regret_curves": _regret,
    "lengths": _lengths,
    "attention": _attention,
    "followed_discount": _discount,
    "reward_rates": _rewards,
    "attention_chain": _attention_chain,
}
"""What draws a table, by the table's name."""
