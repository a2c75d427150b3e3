"""What experiments give: the labelled array, a finding with its table, and the three pictures of every result.

A result says its finding first and its settings after, its table has the largest effects first, and ``plot()`` draws it
as a heat map (by place and layer, by round and round), a curve (by dose, by size) or intervals (by part, by control).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from interp.checks import checked
from interp.display import Tabled, drawn
from interp.interventions.sites import Site
from interp.statistics import Interval, bootstrap_mean


@dataclass(frozen=True)
class Effects(Tabled):
    """What an experiment gave: one array ``[edit, episode, round, outcome]`` and the same of the unpatched run.

    ``rounds`` are (round edited, round read); ``outcomes`` name the last axis. ``seen`` holds what each edit left at
    the sites that were watched, ``[episode, round edited, ...]``.
    """

    edits: tuple[str, ...]
    rounds: tuple[tuple[int, int], ...]
    outcomes: tuple[str, ...]
    values: Float[Tensor, "edit episode round outcome"]
    unpatched: Float[Tensor, "episode round outcome"]
    seen: tuple[Mapping[Site, Tensor], ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def effects(self) -> Float[Tensor, "edit episode round outcome"]:
        """Edited minus unpatched."""
        return self.values - self.unpatched

    @checked
    def to_frame(self, *, seed: int = 0) -> pd.DataFrame:
        """One row per edit, round and outcome, the largest mean effect first, with its 95 % interval over episodes."""
        mean, low, high = (
            x.reshape(-1) for x in bootstrap_mean(self.effects.double().movedim(1, 0).numpy(force=True), seed=seed)
        )
        names = [(e, *pair, out) for e in self.edits for pair in self.rounds for out in self.outcomes]
        frame = pd.DataFrame(names, columns=["edit", "edited", "read", "outcome"])
        return largest_first(frame.assign(effect=mean, effect_low=low, effect_high=high))

    def plot(self) -> Any:
        """A heat map of the mean size of the effect, by edit and by how many rounds after it the effect is read."""
        sizes = self.effects.abs().sum(-1).mean(1).numpy(force=True)
        lags = [read - edited for edited, read in self.rounds]
        by_lag = pd.DataFrame(sizes, index=list(self.edits), columns=lags).T.groupby(level=0).mean().T
        return heatmap(by_lag, "effect by edit and lag", x="rounds after the edit", y="edit", unit="size")

    @property
    def finding(self) -> str:
        """The largest effect, in a sentence."""
        first = self.to_frame().iloc[0]
        where = f"round {first['read']}" + (
            "" if first["read"] == first["edited"] else f" after round {first['edited']}"
        )
        return f"{first['edit']} moves outcome {first['outcome']} most: by {first['effect']:+.3g} in {where}."


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class Found(Tabled):
    """What a method found: a sentence, a table, and how that is drawn."""

    sentence: str
    table: pd.DataFrame
    picture: Callable[[], Any]
    settings: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.sentence

    def to_frame(self) -> pd.DataFrame:
        """The table."""
        return self.table

    def plot(self) -> Any:
        """The picture, as matplotlib draws it."""
        return self.picture()


def largest_first(frame: pd.DataFrame, by: str = "effect") -> pd.DataFrame:
    """A table with the largest sizes of a column first."""
    return frame.sort_values(by, key=np.abs, ascending=False, kind="stable", ignore_index=True)


def heatmap(table: pd.DataFrame, title: str, *, x: str, y: str, unit: str) -> Any:
    """:func:`interp.figures.heatmaps` of one table."""
    from interp.figures import heatmaps

    return drawn(heatmaps({title: table}, label=unit, xlabel=x, ylabel=y))


def curves(x: ArrayLike, lines: Mapping[str, ArrayLike], *, xlabel: str, ylabel: str) -> Any:
    """:func:`interp.figures.curves` of lines over one axis."""
    from interp.figures import curves as of

    parts = [pd.DataFrame({xlabel: x, "algorithm": name, "mean": y}) for name, y in lines.items()]
    return drawn(of(pd.concat(parts), x=xlabel, ylabel=ylabel))


def intervals(rows: Mapping[str, Interval], *, xlabel: str) -> Any:
    """:func:`interp.figures.intervals` of named intervals."""
    from interp.figures import intervals as of

    return drawn(of(pd.DataFrame([{"name": name, **vars(one)} for name, one in rows.items()]), xlabel=xlabel))
