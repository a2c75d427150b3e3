"""Recovery: simulate players with a known algorithm, and find the family of each.

A confusion of families and the error of parameters, for a design (trials, participants, arms), say
how well an answer can be resolved there. :func:`recovery_of_design` takes both from what was found
of recorded choices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from interp.choices.explain import FEWEST_CHOICES, ChoiceExplanation, asked_families
from interp.choices.players import EachParticipant, explain_each, participants_of
from interp.core.algorithm import Algorithm, Family
from interp.results.measure import Result
from interp.results.style import WIDTH, styled
from interp.support.checks import checked, checked_result, integer
from interp.support.errors import require, require_known
from interp.tasks.bandit import REGIMES, BanditEpisodes, sample


@dataclass(frozen=True, repr=False)
@checked_result
class Recovery(Result):
    """What was found of simulated players.

    Attributes:
        truth: the algorithm of each player, at its parameters.
        each: what was found of each.
    """

    truth: tuple[Algorithm, ...]
    each: EachParticipant

    @property
    def sentence(self) -> str:
        """How often the true family is in the set, alone in it and the closest."""
        table = self.to_frame()
        is_closest = table["family"] == table["closest"]
        pairs = zip(self.truth, self.each.found.values(), strict=True)
        in_set = [true.key in explanation.confidence_set for true, explanation in pairs]
        is_named = table["verdict"] == "named"
        n_in_set = sum(in_set)
        n_closest = is_closest.sum()
        n_named = is_named.sum()
        n_wrongly = (is_named & ~is_closest).sum()
        return (
            f"Of {len(table)} simulated players, {n_in_set} have their own family in the set, "
            f"{n_closest} are closest to it; {n_named} are named, {n_wrongly} of them wrongly."
        )

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each player: its family, its parameters (``true_rate``, ...), and what was found of it."""
        rows = []
        for algorithm in self.truth:
            parameters = {f"true_{name}": value for name, value in algorithm.parameters.items()}
            rows.append({"family": algorithm.key, **parameters})
        explained = self.each.to_frame()
        return pd.concat([pd.DataFrame(rows), explained], axis=1)

    def confusion(self) -> pd.DataFrame:
        """Count how many players of each family, a row, are closest to each family, a column."""
        table = self.to_frame()
        counts = pd.crosstab(table["family"], table["closest"])
        families = list(dict.fromkeys(table["family"]))
        others = counts.columns.difference(families)
        return counts.reindex(index=families, columns=[*families, *others], fill_value=0)

    def sets(self) -> pd.DataFrame:
        """Return a row for each family: the share of its players with each family, a column, in
        their set.
        """
        rows = []
        for algorithm, explanation in zip(self.truth, self.each.found.values(), strict=True):
            in_set = {key: float(key in explanation.confidence_set) for key in explanation.scores}
            rows.append({"family": algorithm.key, **in_set})
        return pd.DataFrame(rows).groupby("family", sort=False).mean()

    def errors(self) -> pd.DataFrame:
        """Return how well parameters return, of the players that are closest to their true family.

        Returns:
            A row for each family and parameter: ``n`` players, the ``bias`` and the ``spread`` of fitted about true
            values, and Pearson's ``r`` of both, NaN where fewer than 3 players vary.
        """
        table = self.to_frame()
        is_closest = table["family"] == table["closest"]
        parameters = {algorithm.key: algorithm.parameters for algorithm in self.truth}
        rows = []
        for key, players in table[is_closest].groupby("family", sort=False):
            for name in parameters[str(key)]:
                true = players[f"true_{name}"].astype(float)
                fitted = players[name].astype(float)
                error = fitted - true
                row = {"family": key, "parameter": name, "n": len(players)}
                row |= {"bias": error.mean(), "spread": error.std(ddof=0)}
                is_constant = true.nunique() < 2 or fitted.nunique() < 2
                row["r"] = np.nan
                if len(players) >= 3 and not is_constant:
                    row["r"] = true.corr(fitted)
                rows.append(row)
        return pd.DataFrame(rows, columns=["family", "parameter", "n", "bias", "spread", "r"])

    def _draw(self, figures: Any) -> Any:
        """Draw the confusion of families."""
        return figures.heatmaps(
            {"": self.confusion()},
            label="players",
            xlabel="closest family",
            ylabel="family of the player",
        )

    @styled
    def plot_parameters(self) -> Any:
        """Draw fitted against true values, a panel for each family and parameter; only of players
        that are closest to their true family.
        """
        from matplotlib.figure import Figure

        from interp.results.figures import REFERENCE

        table = self.to_frame()
        closest = table[table["family"] == table["closest"]]
        drawn = self.errors()
        pairs = zip(drawn["family"], drawn["parameter"], strict=True)
        n_rows = math.ceil(len(drawn) / 3)
        figure = Figure(figsize=(WIDTH, 3 * n_rows))
        for place, (family, name) in enumerate(pairs, 1):
            players = closest[closest["family"] == family]
            axes = figure.add_subplot(n_rows, 3, place)
            axes.plot(players[f"true_{name}"], players[name], "o", markersize=4)
            axes.axline((0, 0), slope=1, **REFERENCE)
            axes.set(title=family, xlabel=f"true {name}", ylabel="fitted")
        return figure


@checked
def recovery(
    players: Sequence[Family | Algorithm],
    *,
    n_players: int = 10,
    within: Mapping[str, tuple[float, float]] | None = None,
    families: Sequence[Family] | None = None,
    seed: int = 0,
    **played: Any,
) -> Recovery:
    """Run simulated players among arms, and find the family of each.

    Args:
        players: families, with ``n_players`` drawn from each; and algorithms, each of them one
            player as it is, such as ``one.algorithm`` of those that :func:`explain_each` found.
        n_players: of each family.
        within: bounds by the name of a parameter; by default those of the family's search. Values
            are drawn evenly between the points of the search, or between the bounds.
        families: those that are fitted; all of the task's when None.
        seed: of what is drawn, of the players and of the bootstraps.
        played: ``n_episodes``, ``n_rounds``, ``n_arms`` and ``regime`` of each player, as
            :func:`interp.tasks.bandit.sample` takes them; 2 episodes of 100 rounds of "reversal".

    Example::

        learners = bandit.TASK.rivals()["rescorla_wagner"]
        habit = choice_kernel(rate=0.3, inverse_temperature=3)
        found = recovery([learners, habit], within={"rate": (0.1, 0.9)})
        found.confusion(), found.errors(), found.plot(), found.plot_parameters()
    """
    require(
        bool(players), "no player to simulate; give families, or algorithms at their parameters"
    )
    bounds = dict(within or {})
    drawn = [player for player in players if isinstance(player, Family)]
    names = {searched.name for family in drawn for searched in family.searched}
    for name in bounds:
        require_known("parameter that is drawn", name, names)
    n_drawn = integer("n_players", n_players, 1)
    rng = np.random.default_rng(seed)
    truth = []
    for player in players:
        if isinstance(player, Algorithm):
            truth.append(player)
        else:
            truth += [_draw_member(player, bounds, rng) for _ in range(n_drawn)]
    design: dict[str, Any] = {"n_episodes": 2, "n_rounds": 100, "regime": "reversal", **played}
    seeds = rng.integers(2**31, size=len(truth)).tolist()
    batches = []
    for player_seed, algorithm in zip(seeds, truth, strict=True):
        batches.append(sample(**design, seed=player_seed, player=algorithm))
    episodes = _joined_players(batches)
    explained = explain_each(episodes, episodes.choices, families=families, seed=seed)
    return Recovery(tuple(truth), explained)


def _draw_member(
    family: Family, bounds: Mapping[str, tuple[float, float]], rng: np.random.Generator
) -> Algorithm:
    """Draw parameters of a family, evenly between the points of its search or within bounds."""
    values = {}
    for searched in family.searched:
        position = rng.uniform(0, len(searched.grid) - 1)
        steps = np.arange(len(searched.grid))
        value = float(np.interp(position, steps, searched.grid))
        if searched.name in bounds:
            value = float(rng.uniform(*bounds[searched.name]))
        if searched.kind == "choice":
            value = float(rng.choice(searched.grid))
        values[searched.name] = value
    return family.make(**values)


def _joined_players(batches: Sequence[BanditEpisodes]) -> BanditEpisodes:
    """Join the episodes of several players, each a separate participant."""
    arrays: dict[str, Any] = {}
    for name in batches[0].round_arrays:
        arrays[name] = np.concatenate([getattr(batch, name) for batch in batches])
    names = np.repeat([f"{i:04}" for i in range(len(batches))], [len(batch) for batch in batches])
    return replace(batches[0], **arrays, participants=names)


@checked
def recovery_of_design(
    explanation: ChoiceExplanation,
    episodes: BanditEpisodes,
    families: Sequence[Family] | None = None,
    *,
    n_players: int = 8,
    seed: int = 0,
) -> Recovery:
    """Measure how well families and parameters return in the design of recorded choices.

    Players of every family in the set (of the closest where there is one alone), and of the best
    family of each other kind, play as many trials as a participant did, and at least as many as a
    fit needs, at the fitted parameters.
    What the recorded arms would have paid is unknown: arms pay as in the recorded regime, or as in
    "reversal" if there is none.

    Args:
        explanation: what was found of the recorded choices.
        episodes: the recorded choices.
        families: those that are fitted; all of the task's when None.
        n_players: of each family.
        seed: of the players and of the bootstraps.
    """
    chosen_families = asked_families(episodes, families)
    simulated = [key for key in explanation.confidence_set if key in chosen_families]
    for key in explanation.scores:
        if key in chosen_families and len(simulated) < 4 and key not in simulated:
            simulated.append(key)
    players = []
    for key in simulated:
        algorithm = chosen_families[key].make(**explanation.scores[key].parameters)
        players += [algorithm] * integer("n_players", n_players, 1)
    people, _ = participants_of(episodes)
    rounds_an_episode = episodes.counted.sum(1)
    rounds_each = max(1, round(float(rounds_an_episode.mean())))
    fewest_episodes = math.ceil(FEWEST_CHOICES / rounds_each)
    episodes_each = max(fewest_episodes, round(len(episodes) / len(people)))
    regime = episodes.regime if episodes.regime in REGIMES else "reversal"
    return recovery(
        players,
        families=list(chosen_families.values()),
        seed=seed,
        n_episodes=episodes_each,
        n_rounds=rounds_each,
        n_arms=episodes.n_arms,
        regime=regime,
    )
