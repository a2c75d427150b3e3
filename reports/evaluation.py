"""The pictures of ``interp evaluate``: pure functions from its tables (``interp.evaluation.suite``) to figures."""

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
    """Every picture of the tables, by file name."""
    drawn = (
        pictures(tables[key])
        for key, pictures in _PICTURES.items()
        if key in tables and key not in notes(tables)
    )
    return {name: figure for pictures in drawn for name, figure in pictures}


@checked
def save(tables: Mapping[str, pd.DataFrame], folder: str | Path) -> list[Path]:
    """:func:`draw`, as SVG files in ``folder``."""
    drawn = draw(tables).items()
    return [
        write_figure(Path(folder) / f"{name}.svg", figure, bbox_inches="tight")
        for name, figure in drawn
    ]


def _curves(table: pd.DataFrame, name: str, ylabel: str, by: str = "", **how: Any) -> _Pictures:
    """A picture of named curves, or one for each value of the column ``by``, which fills ``name`` and ``ylabel``."""
    frame = table.rename(columns={"key": "algorithm", "estimate": "mean", "regret": "mean"})
    for of, part in frame.groupby(by, sort=False) if by else [("", frame)]:
        yield name.format(of), figures.curves(part, ylabel=ylabel.format(of), **how)


def _lengths(table: pd.DataFrame) -> _Pictures:
    lengths = table.assign(name=table["key"].str.replace("_", " "), round=table["stop"])
    apart, behind = (lengths[lengths["metric"] == metric] for metric in ("divergence", "regret"))
    apart = apart[apart["key"] == MODEL]
    if len(apart):
        yield from _curves(
            apart, "length-divergence", "KL from the Bayes predictor (nats)", log_x=True
        )
    yield from _curves(behind, "length-regret", "regret", log_x=True)


def _attention(attention: pd.DataFrame) -> _Pictures:
    for reader in attention["reader"].unique():
        mean = attention[(attention["head"] == "mean") & (attention["reader"] == reader)]
        grid = mean.pivot(index="layer", columns="target", values="estimate")[
            list(mean["target"].unique())
        ]
        grid = grid.rename(index="layer {}".format)
        of = {"p?": "predict", "w?": "update"}.get(reader, reader)
        yield (
            f"attention-{of}",
            figures.heatmaps({"": grid}, label="share of attention", xlabel=f"read from {reader}"),
        )


def _attention_chain(attention: pd.DataFrame) -> _Pictures:
    labels = list(attention["query"].unique())
    for layer, of in attention.groupby("layer"):
        of = (
            of.groupby(["query", "key"])["attention"]
            .mean()
            .unstack()
            .reindex(index=labels, columns=labels)
        )
        yield (
            f"attention-chain-layer-{layer}",
            figures.heatmaps({"": of}, label="share of attention, mean over heads"),
        )


_PICTURES: dict[str, Callable[[pd.DataFrame], _Pictures]] = {
    "regret_curves": lambda table: _curves(
        table[table["regime"].isin(_DRAWN_REGIMES) & table["key"].isin(SHOWN)],
        "regret-{}",
        "regret, {} regime",
        by="regime",
    ),
    "lengths": _lengths,
    "attention": _attention,
    "followed_discount": lambda table: _curves(
        table.assign(algorithm=MODEL, name="choices"),
        "followed-discount",
        "agreement with the table of that discount",
        x="gamma",
        xlabel="discount",
    ),
    "reward_rates": lambda table: _curves(
        table.assign(round=table["start"]),
        "reward-{}",
        "reward a round, {}",
        by="regime",
        xlabel="from round",
    ),
    "attention_chain": _attention_chain,
}
