"""The phase portrait of choices: by how much a round moves the log-odds of an arm, against what they were.

The logit of an arm is ``log p / (1 - p)``, by a family at its fitted parameters, a machine, or anything that predicts
choices. Its change over a round is averaged in bins of the logit, apart for each choice and reward::

    >>> from interp.tasks import bandit
    >>> from interp.tasks.bandit.algorithms import perseveration, rescorla_wagner
    >>> episodes = bandit.sample(40, 50, 2, "reversal", seed=0)
    >>> found = phase_portrait({"RW": rescorla_wagner(0.5), "repeats": perseveration(0.5, 2.0)}, episodes)
    >>> found
    After a choice of arm_1 that paid 1 or 0, its logit moves by: RW +0.98 or -1.13; repeats +1.83 or -0.20.

The spread in a bin says how much else than the logit decides: an algorithm whose whole state is the logit has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from circuits.compare.fitting import checked_distributions, predictor
from interp.checks import checked, integer
from interp.errors import require
from interp.measure import Found
from interp.palette import CYCLE
from interp.style import WIDTH, styled
from interp.tasks.bandit import BanditEpisodes

_LEVELS, _CERTAIN = 4, 1e-9
"""Rewards that are told apart; where there are more, those above the median from the others."""


@dataclass(frozen=True)
class PhasePortrait(Found):
    """How a round moves the logit of an arm.

    Attributes:
        arm: the arm whose logit it is.
        bins: a row for each source, choice, reward and bin: the mean ``logit`` before the round, its mean ``change``,
            the ``spread`` of the change (its standard deviation about a line in the logit), and ``n`` rounds.
    """

    arm: str
    bins: pd.DataFrame = field(repr=False)

    @property
    def sentence(self) -> str:
        """What each source makes of a choice of the arm that paid most, and least."""
        own, told = self.bins[self.bins["choice"] == self.arm], []
        ends = list(dict.fromkeys((own["reward"].iloc[-1], own["reward"].iloc[0])))
        for source, part in own.groupby("source", sort=False):
            moved = [
                np.average(one["change"], weights=one["n"]) for end in ends if len(one := part[part["reward"] == end])
            ]
            told.append(f"{source} {' or '.join(f'{change:+.2f}' for change in moved)}")
        paid = " or ".join(f"{end}" for end in ends)
        return f"After a choice of {self.arm} that paid {paid}, its logit moves by: {'; '.join(told)}."

    def to_frame(self) -> pd.DataFrame:
        """The bins."""
        return self.bins

    def _draw(self, figures: Any) -> Any:
        return _drawn(self.bins, self.arm)


@styled
def _drawn(bins: pd.DataFrame, arm: str) -> Any:
    """A panel for each source, a line for each choice and reward, its spread as a band."""
    from matplotlib.figure import Figure

    sources = list(dict.fromkeys(bins["source"]))
    figure = Figure(figsize=(WIDTH, 3.2 * -(-len(sources) // 3)))
    panels = figure.subplots(-(-len(sources) // 3), min(3, len(sources)), squeeze=False, sharey=True).flat
    hues = dict(zip(dict.fromkeys(zip(bins["choice"], bins["reward"], strict=True)), CYCLE * 4, strict=False))
    for axes, source in zip(panels, sources, strict=False):
        for key, part in bins[bins["source"] == source].groupby(["choice", "reward"], sort=False):
            look: dict[str, Any] = {"color": hues[key], "linestyle": "-" if key[0] == arm else "--"}
            axes.plot(
                part["logit"], part["change"], marker="o", markersize=3, label=f"{key[0]}, reward {key[1]}", **look
            )
            low, high = part["change"] - part["spread"], part["change"] + part["spread"]
            axes.fill_between(part["logit"], low, high, color=hues[key], alpha=0.13, linewidth=0)
        axes.axhline(0, color="grey", linewidth=0.7)
        axes.set(title=source, xlabel=f"logit of {arm}")
    figure.axes[0].set(ylabel="its change over the round")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


@checked
def phase_portrait(
    sources: Mapping[str, Any], episodes: BanditEpisodes, *, arm: int = 0, n_bins: int = 8
) -> PhasePortrait:
    """The phase portrait of several sources, side by side.

    Args:
        sources: by name, an algorithm (such as a family at what was fitted to people), a machine, or a function of
            episodes to the chances of each arm ``[episode, round, arm]``.
        episodes: whose rounds move the logit; missing ones count nowhere.
        arm: whose logit it is, counted from 0.
        n_bins: of equally many rounds, for each source, choice and reward.
    """
    integer("arm", arm, 0, episodes.n_arms - 1), integer("n_bins", n_bins, 1)
    require(bool(sources), "no source to draw; give {name: an algorithm, a machine or a function}")
    require(episodes.n_rounds > 1, "a round moves the logit of the next one, so episodes need 2 rounds or more")
    names = [f"arm_{i + 1}" for i in range(episodes.n_arms)]
    paid: NDArray[Any] = episodes.rewards
    levels = np.unique(paid[episodes.counted])
    words = [f"{level:g}" for level in levels]
    if len(levels) > _LEVELS:
        middle = float(np.median(paid[episodes.counted]))
        paid, levels, words = (paid > middle) * 1.0, np.array([0.0, 1.0]), [f"to {middle:g}", f"above {middle:g}"]
    counted, rows = episodes.counted[:, :-1] & episodes.counted[:, 1:], []
    for source, subject in sources.items():
        p = checked_distributions(predictor(subject)(episodes), episodes)[..., arm]
        logit = special.logit(np.clip(p, _CERTAIN, 1 - _CERTAIN))
        change = np.diff(logit, axis=1)
        for choice, (level, word) in (
            (choice, one) for choice in range(len(names)) for one in zip(levels, words, strict=True)
        ):
            use = counted & (episodes.choices[:, :-1] == choice) & (paid[:, :-1] == level)
            before, moved = logit[:, :-1][use], change[use]
            bins = np.array_split(before.argsort(kind="stable"), min(n_bins, len(before)) or 1)
            for x, y in ((before[one], moved[one]) for one in bins if len(one)):
                apart = x - x.mean()
                left = y - y.mean() - apart * (apart @ y) / (apart @ apart or 1.0)
                row = {"source": source, "choice": names[choice], "reward": word, "logit": x.mean()}
                rows.append(row | {"change": y.mean(), "spread": left.std(), "n": len(x)})
    require(bool(rows), "no two rounds that follow each other took place, so nothing moves a logit")
    return PhasePortrait(names[arm], pd.DataFrame(rows))
