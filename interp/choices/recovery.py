"""Recovery: simulate players with a known algorithm, and find the family of each.

A confusion of families and the error of parameters, for a design (trials, participants, arms), say
how well an answer can be resolved there. :func:`recovery_of_design` takes both from what was found
of recorded choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from interp.choices.explain import ChoiceExplanation
from interp.choices.players import EachParticipant, explain_each, participants_of
from interp.core.algorithm import Algorithm, Family
from interp.results.measure import Result, listed
from interp.results.palette import CYCLE, INK, LIGHT_TEXT
from interp.results.style import WIDTH, styled
from interp.support.checks import checked, integer
from interp.support.errors import require, require_known
from interp.tasks.bandit import REGIMES, BanditEpisodes, sample


@dataclass(frozen=True, repr=False)
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
        """How often the true family is in the set, alone in it and the closest, and how well
        parameters return.
        """
        table = self.to_frame()
        is_closest = table["family"] == table["closest"]
        in_set = self._in_set()
        is_named = table["verdict"] == "named"
        n_in_set = int(in_set.sum())
        n_closest = int(is_closest.sum())
        n_named = int(is_named.sum())
        n_wrongly = int((is_named & ~is_closest).sum())
        sentence = (
            f"Of {len(table)} simulated players, {n_in_set} have their own family in the set, "
            f"{n_closest} are closest to it; {n_named} are named, {n_wrongly} of them wrongly."
        )
        returned = []
        for row in self.correlations().itertuples():
            returned.append(f"{row.r:.2f} ({row.family} {row.parameter})")
        if returned:
            sentence += f" True and fitted parameters correlate by {listed(returned)}."
        return sentence

    def _in_set(self) -> pd.Series[bool]:
        explained = self.each.found.values()
        pairs = zip(self.truth, explained, strict=True)
        return pd.Series([true.key in explanation.confidence_set for true, explanation in pairs])

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

    def correlations(self) -> pd.DataFrame:
        """Return how well parameters return, of the players that are closest to their true family.

        Returns:
            A row for each family and parameter: ``n`` players, Pearson's ``r`` of true and fitted values, and
            ``off``, their mean distance. ``r`` is NaN where fewer than 3 players vary.
        """
        table = self.to_frame()
        is_closest = table["family"] == table["closest"]
        parameters = {algorithm.key: list(algorithm.parameters) for algorithm in self.truth}
        rows = []
        for key, players in table[is_closest].groupby("family", sort=False):
            for name in parameters[str(key)]:
                true = players[f"true_{name}"].astype(float)
                fitted = players[name].astype(float)
                is_constant = true.nunique() < 2 or fitted.nunique() < 2
                if len(players) < 3 or is_constant:
                    continue
                row = {"family": key, "parameter": name, "n": len(players)}
                off = (fitted - true).abs().mean()
                rows.append({**row, "r": true.corr(fitted), "off": off})
        return pd.DataFrame(rows, columns=["family", "parameter", "n", "r", "off"])

    def errors(self) -> pd.DataFrame:
        """Return a row for each family and parameter: ``bias`` and ``spread`` of the fitted about the true values."""
        table = self.to_frame()
        rows = []
        for algorithm_key, players in table[table["family"] == table["closest"]].groupby("family"):
            names = next(true for true in self.truth if true.key == algorithm_key).parameters
            for name in names:
                true = players[f"true_{name}"].astype(float)
                error = players[name].astype(float) - true
                row = {"family": algorithm_key, "parameter": name, "n": len(players)}
                rows.append({**row, "bias": error.mean(), "spread": error.std(ddof=0)})
        return pd.DataFrame(rows, columns=["family", "parameter", "n", "bias", "spread"])

    @styled
    def _draw(self, figures: Any) -> Any:
        """Draw the confusion of families, and fitted against true values of each parameter, coloured by family."""
        from matplotlib.figure import Figure

        names = list(dict.fromkeys(self.correlations()["parameter"]))
        n_rows = 1 + -(-len(names) // 3)
        figure = Figure(figsize=(WIDTH, 3.6 * n_rows))
        grid = figure.add_gridspec(n_rows, 3)
        self._draw_confusion(figures, figure.add_subplot(grid[0, :]))
        table = self.to_frame()
        closest = table[table["family"] == table["closest"]]
        for number, name in enumerate(names):
            axes = figure.add_subplot(grid[1 + number // 3, number % 3])
            _draw_parameter(axes, closest, name)
            axes.axline((0, 0), slope=1, **figures.REFERENCE)
            axes.set(xlabel=f"true {name.replace('_', ' ')}")
            axes.set(ylabel="fitted" if number % 3 == 0 else "")
            axes.legend(fontsize=7)
        return figure

    def _draw_confusion(self, figures: Any, axes: Any) -> None:
        from matplotlib.colors import Normalize

        counts = self.confusion()
        numbers = counts.to_numpy()
        highest = int(numbers.max())
        figures.painted(axes, numbers.astype(float), Normalize(0, highest))
        for (row, column), n in np.ndenumerate(numbers):
            hue = LIGHT_TEXT if 2 * n > highest else INK
            axes.annotate(str(n), (column, row), ha="center", va="center", color=hue)
        columns = [str(key).replace("_", "\n") for key in counts.columns]
        rows = [str(key).replace("_", " ") for key in counts.index]
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.set(xlabel="closest family", ylabel="family of the player")


def _draw_parameter(axes: Any, players: pd.DataFrame, name: str) -> None:
    for hue, (key, part) in zip(CYCLE * 2, players.groupby("family", sort=False), strict=False):
        true = part.get(f"true_{name}")
        if true is not None and true.notna().any():
            label = str(key).replace("_", " ")
            axes.plot(true, part[name], "o", markersize=4, color=hue, label=label)


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
        found.confusion(), found.correlations(), found.plot()
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
    family of each other kind, play as many trials as a participant did, at the fitted parameters.
    What the recorded arms would have paid is unknown: arms pay as in the recorded regime, or as in
    "reversal" if there is none.

    Args:
        explanation: what was found of the recorded choices.
        episodes: the recorded choices.
        families: those that are fitted; all of the task's when None.
        n_players: of each family.
        seed: of the players and of the bootstraps.
    """
    from interp.choices.explain import asked_families

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
    episodes_each = max(1, round(len(episodes) / len(people)))
    rounds_an_episode = episodes.counted.sum(1)
    rounds_each = max(1, round(float(rounds_an_episode.mean())))
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
