"""The pictures of ``interp evaluate``: pure functions from its tables (``interp.evaluation.suite``) to figures.

Regret curves beside baselines, quality over the length of an episode, attention paid to experts (paper, figures on the
trained Weighted Majority model); agreement with tables of every discount, reward over time (the Q-learning model).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from interp.files import write_atomic
from reports import figures

MODEL = "model"
SHOWN = ("model", "bayes", "weighted_majority_best", "follow_the_leader", "follow_previous_winners", "oracle")
DRAWN_REGIMES = ("uniform", "stratified", "flat", "anti-signal")


def draw(tables: Mapping[str, pd.DataFrame]) -> dict[str, Figure]:
    """Every picture that the tables allow, by file name."""
    return dict(_experts(tables) if "regimes" in tables else _qlearning(tables))


def save(tables: Mapping[str, pd.DataFrame], folder: str | Path) -> list[Path]:
    """:func:`draw`, as SVG files in ``folder``."""
    return [save_figure(figure, Path(folder) / f"{name}.svg") for name, figure in draw(tables).items()]


def save_figure(figure: Figure, path: Path) -> Path:
    """Write one figure as SVG, atomically."""
    return write_atomic(path, lambda temporary: figure.savefig(temporary, format="svg", bbox_inches="tight"))


def _experts(tables: Mapping[str, pd.DataFrame]) -> Iterator[tuple[str, Figure]]:
    curves = tables["regret_curves"]
    for regime in DRAWN_REGIMES:
        chosen = curves[(curves["regime"] == regime) & curves["key"].isin(SHOWN)]
        if len(chosen):
            frame = chosen.rename(columns={"key": "algorithm", "regret": "mean"})
            yield f"regret-{regime}", figures.curves(frame, ylabel=f"regret, {regime} regime")
    lengths = tables["lengths"].assign(name=lambda frame: frame["key"].str.replace("_", " "))
    lengths = lengths.rename(columns={"key": "algorithm", "estimate": "mean", "stop": "round"})
    apart = lengths[(lengths["metric"] == "divergence") & (lengths["algorithm"] == MODEL)]
    if len(apart):
        label = "KL from the Bayes predictor (nats)"
        yield "length-divergence", figures.curves(apart, ylabel=label, log_x=True)
    yield "length-regret", figures.curves(lengths[lengths["metric"] == "regret"], ylabel="regret", log_x=True)
    attention = tables["attention"]
    for reader in attention["reader"].unique():
        mean = attention[(attention["head"] == "mean") & (attention["reader"] == reader)]
        targets = list(mean["target"].unique())
        grid = mean.pivot(index="layer", columns="target", values="estimate")[targets]
        rows = [f"layer {layer}" for layer in grid.index]
        name = "predict" if reader == "p?" else "update" if reader == "w?" else reader
        yield (
            f"attention-{name}",
            figures.heatmap(grid, rows, targets, label="share of attention", xlabel=f"read from {reader}"),
        )


def _qlearning(tables: Mapping[str, pd.DataFrame]) -> Iterator[tuple[str, Figure]]:
    followed = tables["followed_discount"].rename(columns={"estimate": "mean"}).assign(algorithm=MODEL, name="choices")
    label = "agreement with the table of that discount"
    yield "followed-discount", figures.curves(followed, x="gamma", xlabel="discount", ylabel=label)
    rates = tables["reward_rates"].rename(columns={"key": "algorithm", "estimate": "mean"})
    for regime in rates["regime"].unique():
        frame = rates[rates["regime"] == regime].assign(round=lambda frame: frame["start"])
        yield f"reward-{regime}", figures.curves(frame, xlabel="from round", ylabel=f"reward a round, {regime}")
    if "attention_chain" in tables:
        attention = tables["attention_chain"]
        labels = list(attention["query"].unique())
        for layer, part in attention.groupby("layer"):
            mean = part.groupby(["query", "key"])["attention"].mean().unstack().reindex(index=labels, columns=labels)
            picture = figures.heatmap(mean, labels, labels, label="share of attention, mean over heads")
            yield f"attention-chain-layer-{layer}", picture
