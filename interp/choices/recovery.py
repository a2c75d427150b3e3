"""Recovery tests: simulate players with known algorithms, and test whether the fits find these
algorithms.

The confusion matrix of families and the errors of parameters show how well an experiment of this
design (numbers of trials, participants and arms) can identify algorithms.
:func:`recovery_of_design` takes the design and the players' parameters from recorded choices and
their explanation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from interp.choices.explain import FEWEST_CHOICES, ChoiceExplanation, select_families
from interp.choices.players import EachParticipant, explain_each, participants_of
from interp.core.algorithm import Algorithm, Family
from interp.results.measure import Result
from interp.support.checks import checked, checked_result, integer
from interp.support.errors import require, require_known
from interp.tasks.bandit import REGIMES, BanditEpisodes, sample


@dataclass(frozen=True, repr=False)
@checked_result
class Recovery(Result):
    """Simulated players of known algorithms, and what the fits found for them.

    Attributes:
        truth: the algorithm of each player, with its parameters.
        each: the families that explain each player's choices.
    """

    truth: tuple[Algorithm, ...]
    each: EachParticipant

    @property
    def sentence(self) -> str:
        """A sentence with five numbers of simulated players:

        * all of them;
        * those with the true family in the confidence set (families that may predict best);
        * those with the true family as the closest (lowest loss);
        * those for whom one family alone is named;
        * those for whom the named family is wrong.
        """
        table = self.to_frame()
        is_closest = table["family"] == table["closest"]
        pairs = zip(self.truth, self.each.found.values(), strict=True)
        in_set = [truth.key in explanation.confidence_set for truth, explanation in pairs]
        is_named = table["verdict"] == "named"
        n_in_set = sum(in_set)
        n_closest = is_closest.sum()
        n_named = is_named.sum()
        # The named family is always the closest, so it is the true one where that is the closest.
        n_wrongly = (is_named & ~is_closest).sum()
        return (
            f"Of {len(table)} simulated players, {n_in_set} have their own family in the set, "
            f"{n_closest} are closest to it; {n_named} are named, {n_wrongly} of them wrongly."
        )

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per player.

        The columns are family (key of the true one), the true parameters, such as true_rate, and
        those of :meth:`~interp.choices.players.EachParticipant.to_frame`, which describe the fits.
        """
        rows = []
        for algorithm in self.truth:
            parameters = {f"true_{name}": value for name, value in algorithm.parameters.items()}
            rows.append({"family": algorithm.key, **parameters})
        explained = self.each.to_frame()
        return pd.concat([pd.DataFrame(rows), explained], axis=1)

    def confusion(self) -> pd.DataFrame:
        """Return the confusion matrix of families as a table. Its entry in row i and column j is
        the number of players of family i for whom the fits find j as the closest family (lowest
        cross-validated loss).
        """
        table = self.to_frame()
        counts = pd.crosstab(table["family"], table["closest"])
        families = list(dict.fromkeys(table["family"]))
        # Families that are closest for some player, but that no player has.
        only_fitted = counts.columns.difference(families)
        return counts.reindex(index=families, columns=[*families, *only_fitted], fill_value=0)

    def sets(self) -> pd.DataFrame:
        """Return a table of shares. Its entry in row i and column j is the share of the players of
        family i that have the family j in their confidence set.

        The confidence set of a player contains the families that its choices cannot distinguish
        from the best one.
        """
        table = self.to_frame()
        # The column "set" is a text such as "a, b"; it becomes a column of 0 and 1 per family.
        in_set = (
            table["set"].str.get_dummies(", ").reindex(columns=list(self.each.names), fill_value=0)
        )
        return in_set.groupby(table["family"], sort=False).mean()

    def errors(self) -> pd.DataFrame:
        """Compare fitted with true parameters, for the players for whom the closest family (lowest
        cross-validated loss) is the true one.

        Returns:
            One row per family and parameter, with the columns:

            * family, parameter, and n (number of players);
            * bias and spread: mean and standard deviation of fitted minus true values;
            * r: Pearson correlation of fitted and true values; NaN if there are fewer than 3
              players or all values are equal.
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
                with np.errstate(invalid="ignore"):  # the correlation of constants is 0 / 0
                    row["r"] = true.corr(fitted, min_periods=3)
                rows.append(row)
        return pd.DataFrame(rows, columns=["family", "parameter", "n", "bias", "spread", "r"])

    def _draw(self, figures: Any) -> Any:
        """Draw the table :meth:`confusion` as a heat map: the number of players by their true
        family (rows) and by the family that the fits found as the closest (columns).

        Args:
            figures: the module :mod:`interp.results.figures`, which has the plotting functions.

        Returns:
            The matplotlib figure.
        """
        return figures.heatmaps(
            {"": self.confusion()},
            label="players",
            xlabel="closest family",
            ylabel="family of the player",
        )


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
    """Simulate players of the bandit task with known algorithms, and find the families that explain
    each player's choices. The result shows how often the fits find the true family and the true
    parameters.

    Args:
        players: families and algorithms. ``n_players`` players with random parameters are drawn
            from each family. An algorithm is one player, such as ``explanation.algorithm`` of an
            explanation that :func:`explain_each` found.
        n_players: number of players per family.
        within: name of a parameter -> (low, high). It affects how the parameter is drawn for a
            player of a family:

            - a parameter of the kind "choice" is always one of the values of its grid, each with
              equal probability;
            - any other parameter that is named here is uniform between low and high;
            - the others are drawn between the ends of their grid: each interval between
              neighbouring grid values has equal probability, and the value is uniform in it.
        families: the candidate families of the fits; by default all of the task's.
        seed: seed of the parameters, the players and the bootstraps.
        played: ``n_episodes``, ``n_rounds``, ``n_arms`` and ``regime`` of each player, as for
            :func:`interp.tasks.bandit.sample`; by default 2 episodes of 100 rounds of "reversal".

    Returns:
        The players' true algorithms, and what the fits found for each player. Its methods compare
        them, such as :meth:`Recovery.confusion` and :meth:`Recovery.errors`.

    Example::

        learners = bandit.TASK.rivals()["rescorla_wagner"]
        habit = choice_kernel(rate=0.3, inverse_temperature=3)
        found = recovery([learners, habit], within={"rate": (0.1, 0.9)})
        found.confusion(), found.errors(), found.plot()
    """
    require(players, "no player to simulate; give families, or algorithms at their parameters")
    bounds = dict(within or {})
    drawn_families = [player for player in players if isinstance(player, Family)]
    drawn_names = {searched.name for family in drawn_families for searched in family.searched}
    for name in bounds:
        require_known("parameter that is drawn", name, drawn_names)
    players_a_family = integer("n_players", n_players, 1)
    rng = np.random.default_rng(seed)
    truth = []
    for player in players:
        if isinstance(player, Algorithm):
            truth.append(player)
        else:
            truth += [_draw_member(player, bounds, rng) for _ in range(players_a_family)]
    design: dict[str, Any] = {"n_episodes": 2, "n_rounds": 100, "regime": "reversal", **played}
    seeds = rng.integers(2**31, size=len(truth)).tolist()
    seeded = zip(seeds, truth, strict=True)
    batches = [sample(**design, seed=player_seed, player=player) for player_seed, player in seeded]
    episodes = _join_players(batches)
    explained = explain_each(episodes, episodes.choices, families=families, seed=seed)
    return Recovery(tuple(truth), explained)


def _draw_member(
    family: Family, bounds: Mapping[str, tuple[float, float]], rng: np.random.Generator
) -> Algorithm:
    """Return an algorithm of a family with random parameters.

    How a parameter is drawn:

    - a parameter of the kind "choice" is one of the values of its grid, each with equal
      probability;
    - any other parameter in ``bounds`` is uniform between its bounds;
    - the others are uniform in an interval between neighbouring grid values, and each such interval
      has equal probability.

    Args:
        family: the family, which has the grid of each parameter.
        bounds: name of a parameter -> (low, high).
        rng: the random generator.
    """
    values = {}
    for searched in family.searched:
        name, grid = searched.name, searched.grid
        # Each interval between neighbouring grid values has equal probability, unless one of the two
        # rules below replaces the value.
        position = rng.uniform(0, len(grid) - 1)  # in grid steps
        value = float(np.interp(position, np.arange(len(grid)), grid))
        if name in bounds:
            value = rng.uniform(*bounds[name])
        if searched.kind == "choice":
            value = rng.choice(grid)
        values[name] = float(value)
    return family.make(**values)


def _join_players(batches: Sequence[BanditEpisodes]) -> BanditEpisodes:
    """Join the episodes of several players into one set of episodes, in which each player is a
    participant.

    Args:
        batches: the episodes of each player.
    """
    arrays: dict[str, Any] = {}
    for name in batches[0].round_arrays:
        arrays[name] = np.concatenate([getattr(batch, name) for batch in batches])
    names = [f"{i:04}" for i in range(len(batches))]  # zeros in front keep the order of players
    n_episodes = [len(batch) for batch in batches]
    participants = np.repeat(names, n_episodes)
    return replace(batches[0], **arrays, participants=participants)


@checked
def recovery_of_design(
    explanation: ChoiceExplanation,
    episodes: BanditEpisodes,
    families: Sequence[Family] | None = None,
    *,
    n_players: int = 8,
    seed: int = 0,
) -> Recovery:
    """Test how well fits would find the true families and parameters of simulated players, in an
    experiment with the design of recorded choices.

    Players are simulated from every family in the confidence set (the families that may explain the
    recorded choices), with its fitted parameters. A constant guess is left out. If fewer than four
    families remain, those with the next lowest losses are added. Each player plays about as many
    trials as a participant did, but at least as many as a fit needs. Rewards are simulated, too,
    because a record has no rewards of the arms that were not chosen. They follow the regime that
    the episodes name, or "reversal" if this regime cannot be simulated or none is named.

    Args:
        explanation: the explanation of the recorded choices.
        episodes: the recorded choices.
        families: the candidate families of the fits; by default all of the task's.
        n_players: number of players per simulated family.
        seed: seed of the players and of the bootstraps.

    Returns:
        The simulated players' algorithms, and what the fits found for each player.
    """
    chosen_families = select_families(episodes, families)
    # The constant guess may be in the set, but it has no algorithm that can be simulated.
    simulated_keys = [key for key in explanation.confidence_set if key in chosen_families]
    for key in explanation.scores:  # the lowest loss first
        if key in chosen_families and len(simulated_keys) < 4 and key not in simulated_keys:
            simulated_keys.append(key)
    players = []
    for key in simulated_keys:
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
