"""Players one by one, and side by side: parameters by participant, and the phase portrait of choices.

    >>> from interp.tasks import bandit
    >>> played = bandit.sample(3, 60, 2, "reversal", seed=0)
    >>> found = by_participant(bandit.TASK.rivals()["rescorla_wagner"], played, played.choices)
    >>> list(found)[:6], len(found)
    (['participant', 'rounds', 'nats', 'rate', 'rate_low', 'rate_high'], 3)
    >>> from interp.tasks.bandit.algorithms import perseveration, rescorla_wagner
    >>> episodes = bandit.sample(40, 50, 2, "reversal", seed=0)
    >>> phase_portrait({"RW": rescorla_wagner(0.5), "repeats": perseveration(0.5, 2.0)}, episodes)
    After a choice of arm_1 that paid 1 or 0, its logit moves by: RW +0.98 or -1.13; repeats +1.83 or -0.20.

How each is fitted and read: ``docs/method/choices.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from interp import tasks
from interp.choices.explain import ChoicePart, explain_choices
from interp.choices.fitting import Distributions, checked_distributions, predictor
from interp.choices.link import profile_ends
from interp.core.algorithm import Algorithm, Family
from interp.interventions.experiment import Tabulated
from interp.results.measure import Result, listed
from interp.results.palette import CYCLE, INK, LIGHT_TEXT
from interp.results.style import WIDTH, styled
from interp.stats.intervals import mean_interval
from interp.support.checks import array_of, checked, integer
from interp.support.errors import require, require_known
from interp.tasks.bandit import BanditEpisodes, sample

_VALUES = {1: 201, 2: 31, 3: 13}  # number of parameters -> values of each


@checked
def by_participant(family: Family, episodes: Any, choices: Any) -> pd.DataFrame:
    """A row for each participant, or for each episode where none are known: parameters with their intervals.

    Args:
        family: with 1 to 3 parameters that are real.
        choices: the outcome chosen ``[episode, round]``, counted from 0; NaN where there is none.
    """
    chosen, wanted = (
        array_of("choices", choices).astype(np.float64),
        (len(episodes), episodes.n_rounds),
    )
    require(
        chosen.shape == wanted,
        f"choices must be [episode, round] = {wanted}, got shape {chosen.shape}",
    )
    searched = sorted(family.searched, key=lambda one: bool(one.enters))
    require(
        len(searched) in _VALUES,
        f"{family.name} has {len(searched)} parameters; participants are fitted by 1 to 3",
    )
    first = tasks.of(episodes).data.first_asked
    known = (~np.isnan(chosen) & episodes.scored)[:, first:]
    asked = np.where(known, chosen[:, first:], 0).astype(np.int64)[..., None]
    whose = np.arange(len(episodes)) if episodes.participants is None else episodes.participants
    people, rows = np.unique(whose, return_inverse=True)
    grids = [np.array(one.grid) for one in searched]
    for i, (one, grid) in enumerate(zip(searched, grids, strict=True)):
        if (
            one.kind == "real" and len(grid) > 1
        ):  # as many values between any two of the family's own
            grids[i] = np.interp(
                np.linspace(0, len(grid) - 1, _VALUES[len(searched)]), np.arange(len(grid)), grid
            )
    members, lost = Distributions(family, [episodes]), []
    for point in product(*grids):
        parameters = {one.name: float(value) for one, value in zip(searched, point, strict=True)}
        p = np.take_along_axis(members(family.make(**parameters), parameters), asked, -1)[..., 0]
        lost.append(np.bincount(rows, weights=(-np.log(np.maximum(p, 1e-12)) * known).sum(1)))
    nats = np.moveaxis(np.reshape(lost, (*map(len, grids), len(people))), -1, 0)
    counts = np.bincount(rows, weights=known.sum(1)).astype(int)
    least = nats.reshape(len(people), -1).min(1) / counts
    frame = pd.DataFrame({"participant": people, "rounds": counts, "nats": least})
    for axis, (one, grid) in enumerate(zip(searched, grids, strict=True)):
        profile = nats.min(tuple(i + 1 for i in range(len(grids)) if i != axis))
        frame[one.name] = grid[profile.argmin(1)]
        frame[[f"{one.name}_low", f"{one.name}_high"]] = np.array(
            [profile_ends(grid, each) for each in profile]
        )
    return frame


@dataclass(frozen=True, repr=False)
class _EachParticipant(Result):
    """Every participant by itself, fitted and scored on stretches of its own episodes where these are few.

    ``found`` says by name which family explains its choices; ``seed`` is of the bootstrap over participants.
    """

    found: Mapping[str, ChoicePart]
    seed: int = field(default=0)

    @property
    def sentence(self) -> str:
        """How many participants are closest to each family, and of how many it is the name."""
        near = Counter(one.closest for one in self.found.values())
        named = Counter(one.closest for one in self.found.values() if one.family)
        each = [f"{key} for {n} (named for {named[key]})" for key, n in near.most_common()]
        return f"The closest family is {listed(each)} of {len(self.found)} participants."

    def to_frame(self) -> pd.DataFrame:
        """A row for each participant: closest family, word, nats beside the floor, parameters with their intervals."""
        rows = []
        for name, one in self.found.items():
            row: dict[str, Any] = {
                "participant": name,
                "closest": one.closest,
                "verdict": one.measure.verdict,
            }
            row |= {
                "nats": one.nats.estimate,
                "floor_nats": one.floor_nats.estimate,
                **one.over_floor.columns("saved"),
            }
            for key, value in one.parameters.items():
                row |= one.intervals[key].columns(key) if key in one.intervals else {key: value}
            rows.append(row)
        return pd.DataFrame(rows)

    def pooled(self) -> pd.DataFrame:
        """A row for each family and parameter: its mean over the participants closest to it, and their spread.

        The spread is the standard deviation over participants, which holds the error of each one's estimate, too.
        """
        rows = []
        for key in dict.fromkeys(one.closest for one in self.found.values()):
            members = [one for one in self.found.values() if one.closest == key]
            for name in members[0].parameters:
                values = np.array(
                    [one.parameters[name] for one in members if name in one.parameters]
                )
                row: dict[str, Any] = {
                    "family": key,
                    "participants": len(members),
                    "parameter": name,
                }
                rows.append(
                    row
                    | mean_interval(values, seed=self.seed).columns("mean")
                    | {"spread": values.std()}
                )
        return pd.DataFrame(rows)

    def _draw(self, figures: Any) -> Any:
        table = self.to_frame()
        names = table["participant"].astype(str) + ", " + table["closest"]
        drawn = pd.DataFrame({"name": names, "estimate": table["saved"]})
        drawn = drawn.assign(low=table["saved_low"], high=table["saved_high"])
        return figures.intervals(
            drawn, xlabel="nats a round saved beside the best guess without a memory"
        )


@checked
def explain_each(
    episodes: Any, choices: Any, *, families: Sequence[Family] | None = None, seed: int = 0
) -> _EachParticipant:
    """Which family explains the choices of each participant, as :func:`~interp.choices.explain.explain_choices` says.

    Args:
        episodes: what they saw, with ``participants``.
        choices: the outcome chosen ``[episode, round]``, counted from 0; NaN where there is none.
        families: those that are asked; all of the task's when None.
        seed: of the bootstraps.
    """
    require(
        episodes.participants is not None,
        "the episodes name no participants; give participants, one an episode",
    )
    chosen, whose = array_of("choices", choices), np.asarray(episodes.participants)
    require(
        len(chosen) == len(episodes),
        f"choices must be of {len(episodes)} episodes, got {len(chosen)}",
    )
    found = {}
    for name in np.unique(whose):
        rows = np.flatnonzero(whose == name)
        found[str(name)] = explain_choices(
            episodes.select(rows), chosen[rows], families=families, seed=seed
        )
    return _EachParticipant(found, seed)


@dataclass(frozen=True, repr=False)
class _Recovery(Result):
    """What was found of simulated players, ``each``, beside their algorithms at their parameters, ``truth``."""

    truth: tuple[Algorithm, ...]
    each: _EachParticipant

    @property
    def sentence(self) -> str:
        """How many players are closest to their own family, how many are named, and how well parameters come back."""
        table = self.to_frame()
        own, named = table["family"] == table["closest"], table["verdict"] == "yes"
        told = f"Of {len(table)} simulated players, {own.sum()} are closest to their own family; "
        told += f"{named.sum()} are named, {(named & ~own).sum()} of them wrongly"
        worth = [
            f"{row.r:.2f} ({row.family} {row.parameter})"
            for row in self.correlations().itertuples()
        ]
        return told + (
            f". True and fitted parameters correlate by {listed(worth)}." if worth else "."
        )

    def to_frame(self) -> pd.DataFrame:
        """A row for each player: its ``family``, its parameters (``true_rate``, ...), and what was found of it."""
        truth = [
            {"family": one.key, **{f"true_{k}": v for k, v in one.parameters.items()}}
            for one in self.truth
        ]
        return pd.concat([pd.DataFrame(truth), self.each.to_frame()], axis=1)

    def confusion(self) -> pd.DataFrame:
        """How many players of each family, a row, are closest to each family, a column."""
        table = self.to_frame()
        counts = pd.crosstab(table["family"], table["closest"])
        rows = list(dict.fromkeys(table["family"]))
        return counts.reindex(
            index=rows, columns=[*rows, *counts.columns.difference(rows)], fill_value=0
        )

    def correlations(self) -> pd.DataFrame:
        """A row for each family and parameter: ``n`` players that are closest to their own, and Pearson's ``r``.

        ``off`` is the mean distance of the fitted from the true value. Left out where fewer than 3 players vary.
        """
        rows, table = [], self.to_frame()
        for key, own in table[table["family"] == table["closest"]].groupby("family", sort=False):
            for name in next(one for one in self.truth if one.key == key).parameters:
                true, fitted = own[f"true_{name}"].astype(float), own[name].astype(float)
                if len(own) > 2 and min(true.nunique(), fitted.nunique()) > 1:
                    about = {"r": true.corr(fitted), "off": (fitted - true).abs().mean()}
                    rows.append({"family": key, "parameter": name, "n": len(own), **about})
        return pd.DataFrame(rows, columns=["family", "parameter", "n", "r", "off"])

    @styled
    def _draw(self, figures: Any) -> Any:
        """The confusion of families, and the fitted on the true values of each parameter, coloured by family."""
        from matplotlib.colors import Normalize
        from matplotlib.figure import Figure

        table, counts = self.to_frame(), self.confusion()
        own = table[table["family"] == table["closest"]]
        names = list(dict.fromkeys(self.correlations()["parameter"]))
        figure = Figure(figsize=(WIDTH, 3.6 * (1 + -(-len(names) // 3))))
        grid = figure.add_gridspec(1 + -(-len(names) // 3), 3)
        matrix = figure.add_subplot(grid[0, :])
        most = int(counts.to_numpy().max())
        figures.painted(matrix, counts.to_numpy(float), Normalize(0, most))
        for (i, j), n in np.ndenumerate(counts.to_numpy()):
            matrix.annotate(
                str(n), (j, i), ha="center", va="center", color=LIGHT_TEXT if 2 * n > most else INK
            )
        matrix.set_xticks(
            range(counts.shape[1]), [str(key).replace("_", "\n") for key in counts.columns]
        )
        matrix.set_yticks(range(len(counts)), [str(key).replace("_", " ") for key in counts.index])
        matrix.set(xlabel="closest family", ylabel="family of the player")
        for at, name in enumerate(names):
            axes = figure.add_subplot(grid[1 + at // 3, at % 3])
            for hue, (key, part) in zip(CYCLE * 2, own.groupby("family", sort=False), strict=False):
                true, label = part.get(f"true_{name}"), str(key).replace("_", " ")
                if true is not None and true.notna().any():
                    axes.plot(true, part[name], "o", markersize=4, color=hue, label=label)
            axes.axline((0, 0), slope=1, **figures.REFERENCE)
            axes.set(
                xlabel=f"true {name.replace('_', ' ')}", ylabel="fitted" if at % 3 == 0 else ""
            )
            axes.legend(fontsize=7)
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
) -> _Recovery:
    """Simulate players among arms, and ask of each which family it is: do families and parameters come back?

    Args:
        players: families, of each of which ``n_players`` are drawn; and algorithms, a player each as it is, such as
            ``one.algorithm`` of those that :func:`explain_each` found.
        within: bounds of what is drawn by the name of a parameter; those of the family's search where it is not named.
            Values are drawn evenly between the points of the search, or between the bounds.
        families: those that are fitted; all of the task's when None.
        seed: of what is drawn, of the players and of the bootstraps.
        played: ``n_episodes``, ``n_rounds``, ``n_arms`` and ``regime`` of each player, as
            :func:`interp.tasks.bandit.sample` takes them; 2 episodes of 100 rounds of "reversal".

    Example::

        learners, habit = bandit.TASK.rivals()["rescorla_wagner"], choice_kernel(rate=0.3, inverse_temperature=3)
        found = recovery([learners, habit], within={"rate": (0.1, 0.9)})
        found.confusion(), found.correlations(), found.plot()
    """
    rng, truth, bounds = np.random.default_rng(seed), list[Algorithm](), dict(within or {})
    require(
        bool(players), "no player to simulate; give families, or algorithms at their parameters"
    )
    drawn = [one for one in players if isinstance(one, Family)]
    for name in bounds:
        require_known(
            "parameter that is drawn", name, {s.name for one in drawn for s in one.searched}
        )
    for one in players:
        if isinstance(one, Algorithm):
            truth.append(one)
            continue
        for _ in range(integer("n_players", n_players, 1)):
            values = {}
            for s in one.searched:
                between = np.interp(rng.uniform(0, len(s.grid) - 1), np.arange(len(s.grid)), s.grid)
                real = rng.uniform(*bounds[s.name]) if s.name in bounds else between
                values[s.name] = float(real if s.kind == "real" else rng.choice(s.grid))
            truth.append(one.make(**values))
    how: dict[str, Any] = {"n_episodes": 2, "n_rounds": 100, "regime": "reversal", **played}
    seeds = rng.integers(2**31, size=len(truth)).tolist()
    games = [sample(**how, seed=own, player=one) for own, one in zip(seeds, truth, strict=True)]
    arrays = games[0].round_arrays
    whole: dict[str, Any] = {
        name: np.concatenate([getattr(one, name) for one in games]) for name in arrays
    }
    whose = np.repeat([f"{i:04}" for i in range(len(truth))], [len(one) for one in games])
    episodes = replace(games[0], **whole, participants=whose)
    return _Recovery(
        tuple(truth), explain_each(episodes, episodes.choices, families=families, seed=seed)
    )


_LEVELS, _CERTAIN = (
    4,
    1e-9,
)  # rewards that are told apart; where there are more, those above the median from the others


def _moved(bins: pd.DataFrame, arm: str) -> str:
    """What each source makes of a choice of the arm that paid most, and least."""
    own, told = bins[bins["choice"] == arm], []
    ends = list(dict.fromkeys((own["reward"].iloc[-1], own["reward"].iloc[0])))
    for source, part in own.groupby("source", sort=False):
        moved = [
            np.average(one["change"], weights=one["n"])
            for end in ends
            if len(one := part[part["reward"] == end])
        ]
        told.append(f"{source} {' or '.join(f'{change:+.2f}' for change in moved)}")
    return f"After a choice of {arm} that paid {' or '.join(ends)}, its logit moves by: {'; '.join(told)}."


@styled
def _portrait(bins: pd.DataFrame, arm: str) -> Any:
    """A panel for each source, a line for each choice and reward, its spread as a band."""
    from matplotlib.figure import Figure

    sources = list(dict.fromkeys(bins["source"]))
    figure = Figure(figsize=(4.5, 3.2 * -(-len(sources) // 2)))  # whole on a phone
    panels = figure.subplots(
        -(-len(sources) // 2), min(2, len(sources)), squeeze=False, sharey=True
    ).flat
    hues = dict(
        zip(
            dict.fromkeys(zip(bins["choice"], bins["reward"], strict=True)),
            cycle(CYCLE),
            strict=False,
        )
    )
    for axes, source in zip(panels, sources, strict=False):
        for key, part in bins[bins["source"] == source].groupby(["choice", "reward"], sort=False):
            look: dict[str, Any] = {"color": hues[key], "linestyle": "-" if key[0] == arm else "--"}
            label = f"{key[0]}, reward {key[1]}"
            axes.plot(part["logit"], part["change"], marker="o", markersize=3, label=label, **look)
            low, high = part["change"] - part["spread"], part["change"] + part["spread"]
            axes.fill_between(part["logit"], low, high, color=hues[key], alpha=0.13, linewidth=0)
        axes.axhline(0, color="grey", linewidth=0.7)
        axes.set(title=source, xlabel=f"logit of {arm}")
    figure.axes[0].set(ylabel="its change over the round")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


@checked
def phase_portrait(
    sources: Mapping[str, Any], episodes: BanditEpisodes, *, arm: int = 0, n_bins: int = 8
) -> Tabulated:
    """The phase portrait of several sources, side by side: how a round moves the logit of an arm.

    The table has a row for each source, choice, reward and bin: the mean ``logit`` before the round, its mean
    ``change``, the ``spread`` of the change (its standard deviation about a line in the logit), and ``n`` rounds.

    Args:
        sources: by name, an algorithm (such as a family at what was fitted to people), a machine, or a function of
            episodes to the chances of each arm ``[episode, round, arm]``.
        episodes: whose rounds move the logit; missing ones count nowhere.
        arm: whose logit it is, counted from 0.
        n_bins: of equally many rounds, for each source, choice and reward.
    """
    integer("arm", arm, 0, episodes.n_arms - 1), integer("n_bins", n_bins, 1)
    require(bool(sources), "no source to draw; give {name: an algorithm, a machine or a function}")
    require(
        episodes.n_rounds > 1,
        "a round moves the logit of the next one, so episodes need 2 rounds or more",
    )
    names = [f"arm_{i + 1}" for i in range(episodes.n_arms)]
    paid: NDArray[Any] = episodes.rewards
    levels = np.unique(paid[episodes.counted])
    words = [f"{level:g}" for level in levels]
    if len(levels) > _LEVELS:
        middle = float(np.median(paid[episodes.counted]))
        paid, levels, words = (
            (paid > middle) * 1.0,
            np.array([0.0, 1.0]),
            [f"to {middle:g}", f"above {middle:g}"],
        )
    present = (
        episodes.counted & episodes.offered[..., arm]
    )  # an arm has a logit where it is on offer
    counted, rows = present[:, :-1] & present[:, 1:], []
    for source, subject in sources.items():
        given = np.array(predictor(subject)(episodes), np.float64)
        if given.shape[:2] == episodes.counted.shape:
            given[~episodes.counted] = 1 / episodes.n_arms  # nothing is predicted there
        logit = special.logit(
            np.clip(checked_distributions(given, episodes)[..., arm], _CERTAIN, 1 - _CERTAIN)
        )
        for choice, (level, word) in product(range(len(names)), zip(levels, words, strict=True)):
            use = counted & (episodes.choices[:, :-1] == choice) & (paid[:, :-1] == level)
            before, moved = logit[:, :-1][use], np.diff(logit, axis=1)[use]
            bins = np.array_split(before.argsort(kind="stable"), min(n_bins, len(before)) or 1)
            for x, y in ((before[one], moved[one]) for one in bins if len(one)):
                apart = x - x.mean()
                left = y - y.mean() - apart * (apart @ y) / (apart @ apart or 1.0)
                row = {"source": source, "choice": names[choice], "reward": word, "logit": x.mean()}
                rows.append(row | {"change": y.mean(), "spread": left.std(), "n": len(x)})
    require(bool(rows), "no two rounds that follow each other took place, so nothing moves a logit")
    table, label = pd.DataFrame(rows), names[arm]
    return Tabulated(
        sentence=_moved(table, label), table=table, picture=lambda figures: _portrait(table, label)
    )
