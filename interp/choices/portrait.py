"""The phase portrait of choices: how much one round changes the log-odds of choosing an arm.

>>> from interp.tasks import bandit
>>> from interp.tasks.bandit.algorithms import perseveration, rescorla_wagner
>>> episodes = bandit.sample(40, 50, 2, "reversal", seed=0)
>>> phase_portrait({"RW": rescorla_wagner(0.5), "repeats": perseveration(0.5, 2.0)}, episodes)
After a choice of arm_1 that paid 1 or 0, its logit moves by: RW +0.98 or -1.13; repeats +1.83 or -0.20.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from interp.choices.fitting import Array, checked_distributions, predictor
from interp.interventions.experiment import Tabulated
from interp.results.palette import CYCLE
from interp.results.style import in_house_style
from interp.support.checks import checked, integer
from interp.support.errors import require
from interp.tasks.bandit import BanditEpisodes

_MOST_LEVELS = 4
"""Most distinct rewards with a line each; more are split at the median into two groups."""
_LEAST_PROBABILITY = 1e-9
"""Probabilities are clipped to this distance from 0 and 1, so that logits are finite."""


@checked
def phase_portrait(
    sources: Mapping[str, Any], episodes: BanditEpisodes, *, arm: int = 0, n_bins: int = 8
) -> Tabulated:
    """Compute and draw how much one round changes the log-odds (logit) of choosing an arm, for
    several algorithms or models.

    For each source, rounds are grouped by the choice and the reward of the round. Each group is
    divided into bins by the logit before the round.

    Args:
        sources: name -> what predicts the choices: an algorithm (such as one fitted to people), a
            model, or a function from episodes to probabilities ``[episode, round, arm]``.
        episodes: the rounds that the sources see; missing rounds are left out.
        arm: index of the arm.
        n_bins: number of bins of the logit for each source, choice and reward, with equally many
            rounds each.

    Returns:
        An object with a sentence, a figure and a table. The table has one row per bin, and these
        columns:

        * source: its name;
        * choice, reward: the choice and the reward of the rounds in the bin;
        * logit: mean of the logit before the round;
        * change: mean change of the logit over the round;
        * spread: standard deviation of the change around a line that is fitted to change and logit
          in the bin;
        * n: number of rounds.
    """
    integer("arm", arm, 0, episodes.n_arms - 1)
    integer("n_bins", n_bins, 1)
    require(sources, "no source to draw; give {name: an algorithm, a machine or a function}")
    require(
        episodes.n_rounds > 1,
        "a round moves the logit of the next one, so episodes need 2 rounds or more",
    )
    names = [f"arm_{i + 1}" for i in range(episodes.n_arms)]
    paid_masks = _reward_masks(episodes)  # name of a reward -> mask of the rounds that paid it
    has_logit = episodes.counted & episodes.offered[..., arm]
    # Arrays of rounds below leave out the last round, after which there is no logit.
    both_have_logit = has_logit[:, :-1] & has_logit[:, 1:]
    rows = []
    for source, subject in sources.items():
        logit = _logits(subject, episodes, arm)
        before = logit[:, :-1]
        change = np.diff(logit, axis=1)
        for choice, name in enumerate(names):
            chose = both_have_logit & (episodes.choices[:, :-1] == choice)
            for reward, was_paid in paid_masks.items():
                use = chose & was_paid[:, :-1]
                for values in _iter_bins(before[use], change[use], n_bins):
                    rows.append({"source": source, "choice": name, "reward": reward, **values})
    require(rows, "no two rounds that follow each other took place, so nothing moves a logit")
    table = pd.DataFrame(rows)
    return Tabulated(
        sentence=_describe_moves(table, names[arm]),
        table=table,
        picture=lambda figures: _draw_portrait(table, names[arm]),
    )


def _reward_masks(episodes: BanditEpisodes) -> dict[str, NDArray[np.bool_]]:
    """Return, for each reward, the rounds in which it was paid: name of the reward, such as "1" or
    "above 0.5" -> ``Bool[episode, round]``.

    If there are more than :data:`_MOST_LEVELS` distinct rewards, they are divided at the median into two
    groups.
    """
    rewards = episodes.rewards
    counted = rewards[episodes.counted]
    levels = np.unique(counted)
    if len(levels) <= _MOST_LEVELS:
        return {f"{level:g}": rewards == level for level in levels}
    middle = float(np.median(counted))
    return {f"to {middle:g}": rewards <= middle, f"above {middle:g}": rewards > middle}


def _logits(subject: Any, episodes: BanditEpisodes, arm: int) -> Array:
    """Return the log-odds that the subject chooses the arm in each round, ``[episode, round]``.

    Args:
        subject: an algorithm, a model, or a function from episodes to probabilities.
        episodes: the rounds that the subject sees.
        arm: index of the arm.
    """
    p = np.array(predictor(subject)(episodes), np.float64)
    # Predictions of missing rounds may be NaN, which `checked_distributions` would refuse. They are
    # not used, so they are replaced. It also refuses predictions of another shape.
    if p.shape[:2] == episodes.counted.shape:
        p[~episodes.counted] = 1 / episodes.n_arms
    p_of_arm = checked_distributions(p, episodes)[..., arm]
    uncertain = np.clip(p_of_arm, _LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
    return special.logit(uncertain)


def _iter_bins(before: Array, change: Array, n_bins: int) -> Iterator[dict[str, Any]]:
    """Sort rounds by their logit into bins with equal numbers of rounds, and yield one row of the
    table per bin.

    Args:
        before: logit before each round, ``[round]``.
        change: change of the logit over each round, ``[round]``.
        n_bins: number of bins.
    """
    order = before.argsort(kind="stable")
    if not len(order):
        return
    for rows in np.array_split(order, min(n_bins, len(order))):  # no bin is empty
        mean_before = before[rows].mean()
        mean_change = change[rows].mean()
        # Least squares: the line from the logit before a round to its change.
        x = before[rows] - mean_before
        y = change[rows] - mean_change
        slope = (x @ y) / (x @ x or 1.0)  # 0 if all logits of the bin are equal
        residual = y - x * slope
        yield {
            "logit": mean_before,
            "change": mean_change,
            "spread": residual.std(),
            "n": len(rows),
        }


def _describe_moves(bins: pd.DataFrame, arm: str) -> str:
    """Return a sentence with the mean change of each source's logit after a choice of the arm, for
    the highest and the lowest reward.

    Args:
        bins: the table of :func:`phase_portrait`, one row per source, choice, reward and bin.
        arm: name of the arm, such as "arm_1".
    """
    of_arm = bins[bins["choice"] == arm]
    # Rewards ascend; the two ends may be the same one.
    rewards = list(dict.fromkeys(of_arm["reward"].iloc[[-1, 0]]))
    sources = []
    for source, source_bins in of_arm.groupby("source", sort=False):
        moves = []
        for reward in rewards:
            paid_bins = source_bins[source_bins["reward"] == reward]
            if len(paid_bins):
                mean_change = np.average(paid_bins["change"], weights=paid_bins["n"])
                moves.append(f"{mean_change:+.2f}")
        sources.append(f"{source} {' or '.join(moves)}")
    paid_words = " or ".join(rewards)
    return (
        f"After a choice of {arm} that paid {paid_words}, its logit moves by: {'; '.join(sources)}."
    )


@in_house_style
def _draw_portrait(bins: pd.DataFrame, arm: str) -> Any:
    """Draw one panel per source: the change of the logit against the logit, one line per choice and
    reward, with the standard deviation as a band.

    Args:
        bins: the table of :func:`phase_portrait`, one row per source, choice, reward and bin.
        arm: name of the arm, such as "arm_1".
    """
    from matplotlib.figure import Figure

    sources = list(dict.fromkeys(bins["source"]))
    n_rows = -(-len(sources) // 2)  # two panels a row, rounded up
    figure = Figure(figsize=(4.5, 3.2 * n_rows))  # narrow enough for the screen of a phone
    panels = figure.subplots(n_rows, min(2, len(sources)), squeeze=False, sharey=True).flat
    lines = dict.fromkeys(zip(bins["choice"], bins["reward"], strict=True))  # distinct, in order
    hues = dict(zip(lines, cycle(CYCLE), strict=False))
    for axes, source in zip(panels, sources, strict=False):
        of_source = bins[bins["source"] == source]
        for (choice, reward), part in of_source.groupby(["choice", "reward"], sort=False):
            hue = hues[choice, reward]
            axes.plot(
                part["logit"],
                part["change"],
                marker="o",
                markersize=3,
                label=f"{choice}, reward {reward}",
                color=hue,
                linestyle="-" if choice == arm else "--",
            )
            low = part["change"] - part["spread"]
            high = part["change"] + part["spread"]
            axes.fill_between(part["logit"], low, high, color=hue, alpha=0.13, linewidth=0)
        axes.axhline(0, color="grey", linewidth=0.7)
        axes.set(title=source, xlabel=f"logit of {arm}")
    figure.axes[0].set(ylabel="its change over the round")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure
