"""How well each family of algorithms predicts choices that it was not fitted to.

Every player's choices are cut into units: participants, episodes, or blocks of trials. A family's
parameters and its link (:mod:`interp.choices.link`) are fitted to three of every four units and
scored on the fourth, in turn, so that every loss is out of sample. A fit begins on a grid. Where
there is one player, a local optimiser goes on from there (:func:`score_families`); many players
share one fine grid (:func:`score_players`), in which each has its best point.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from interp.choices.fitting import Array, Distributions, refine
from interp.choices.link import HALF_CHI2, Link, fit_link, profile_ends
from interp.choices.offers import among_offered, even_guess, offers_of, slots_of
from interp.core.algorithm import Algorithm, Family, Searched
from interp.stats.intervals import Interval
from interp.support.errors import require

Mask = NDArray[np.bool_]
Parameters = Mapping[str, float]

N_FOLDS = 4
"""Folds of units; each is scored by what was fitted to the others."""
FEWEST_UNITS = 8
"""Fewest participants, or else episodes, that are units; of fewer, blocks of trials are."""
BLOCKS = 100
"""How many blocks the trials are cut into: as long as they can be, and as many as a bootstrap needs."""
GUESS = "constant"
"""Key of a guess that is the same in every round."""
_LAPSES = (0.0, 0.05, 0.15, 0.35)
"""Lapse rates that are tried at every point of a grid of many players."""
_FINE = {0: 1, 1: 21, 2: 21, 3: 9}
"""Number of parameters -> values of each on a grid of many players."""
_PROFILED = {1: 41, 2: 13, 3: 5}
"""Number of parameters -> values of each on either side of the best, for a profile likelihood interval."""
_FAR = 15.0
"""Nats of all choices by which a family is too far behind the best on the grid for an optimiser to matter."""
_FAR_SHARE = 0.03
"""The same in nats a choice, where that is more."""
_ROUNDED = 1e-12


@dataclass(frozen=True)
class FamilyScore:
    """A family, fitted to the choices of one player, and what it loses on those that it was not
    fitted to.

    Attributes:
        extends: key of the family that it extends; empty where it extends none.
        parameters: fitted to all choices.
        link: fitted to all choices, at these parameters.
        intervals: 95 % profile likelihood intervals of its real parameters, where they were
            computed.
        at_bound: the parameters that lie at an end of the search.
        nats: its loss on the choices that it was fitted to, a choice.
        fitted: P(each choice) by what was fitted to all choices, ``[episode, round, outcome]``.
        losses: out-of-sample loss of each choice ``[episode, round]``, 0 where there is none.
        prefers: the likeliest outcome, out of sample, ``[episode, round]``; -1 where several are.
    """

    key: str
    name: str
    extends: str
    memoryless: bool
    parameters: Parameters
    link: Link
    intervals: Mapping[str, Interval]
    at_bound: tuple[str, ...]
    nats: float
    fitted: Array = field(repr=False)
    losses: Array = field(repr=False)
    prefers: NDArray[np.int64] = field(repr=False)


class ChoiceData:
    """Choices, the episodes in which they were made, and the units that are fitted, scored and
    resampled whole.

    Args:
        episodes: what the players saw.
        choices: the outcome chosen ``[episode, round]``, counted from 0; NaN where there is none.
        first_asked: the first round with a scored prediction.
        players: the number of the player of each episode, ``[episode]``; None where all are scored
            as one.
    """

    def __init__(
        self,
        episodes: Any,
        choices: Array,
        first_asked: int = 0,
        players: NDArray[np.int64] | None = None,
    ) -> None:
        counted = choices[:, first_asked:]
        self.episodes = episodes
        self.known: Mask = ~np.isnan(counted)
        self.offers = offers_of(episodes, first_asked)
        outcomes = np.where(self.known, counted, 0).astype(np.int64)
        self.choices = slots_of(outcomes, self.offers)
        """Which of the outcomes, or of the slots on offer, was chosen ``[episode, round]``."""
        self.players = np.zeros(len(choices), np.int64) if players is None else players
        self.n_players = int(self.players.max()) + 1
        self.units = np.zeros(self.known.shape, np.int64)
        for player in range(self.n_players):
            rows = self.rows(player)
            names = None if episodes.participants is None else episodes.participants[rows]
            self.units[rows] = number_units(self.known[rows], names)
        self.folds = self.units % N_FOLDS
        """The fold in which each choice is held out, ``[episode, round]``."""
        cells = self.players[:, None] * N_FOLDS + self.folds
        self._cells = cells[self.known]
        training = [self.known & (self.folds != fold) for fold in range(N_FOLDS)]
        self.masks = (self.known, *training)
        """The choices that a fit is made to: all of them, then for each fold those of the other ones."""
        self.n_choices = self.sums(np.ones(self.known.shape))
        """How many these are, ``[player, mask]``."""

    def rows(self, player: int) -> NDArray[np.int64]:
        """Return the episodes of a player."""
        return np.flatnonzero(self.players == player)

    def chances(self, p: Array) -> Array:
        """Return the probability of each choice, ``[episode, round]``, of ``p [episode, round, outcome]``."""
        return np.take_along_axis(p, self.choices[..., None], -1)[..., 0]

    def nats(self, q: Array) -> Array:
        """Return the loss of each choice, ``[episode, round]``; 0 where there is none."""
        losses = -np.log(self.chances(q))
        return np.where(self.known, losses, 0.0)

    def sums(self, values: Array) -> Array:
        """Add up ``values [episode, round]`` for each player over each of :attr:`masks`, ``[player,
        mask]``.
        """
        n_cells = self.n_players * N_FOLDS
        by_cell = np.bincount(self._cells, values[self.known], minlength=n_cells)
        totals = by_cell.reshape(self.n_players, N_FOLDS)
        whole = totals.sum(1, keepdims=True)
        return np.concatenate([whole, whole - totals], 1)


def number_units(known: Mask, participants: Any) -> NDArray[np.int64]:
    """Return the number of the unit of each choice, ``[episode, round]``.

    Args:
        known: where there is a choice, ``[episode, round]``.
        participants: the name of each episode's participant, or None.

    Returns:
        The number of the participant where there are at least :data:`FEWEST_UNITS`; of the episode
        where there are as many of these; otherwise of a block of trials, of which there are at most
        :data:`BLOCKS`.
    """
    n_episodes, n_rounds = known.shape
    if participants is not None:
        names, of_episode = np.unique(participants, return_inverse=True)
        if len(names) >= FEWEST_UNITS:
            return np.repeat(of_episode[:, None], n_rounds, 1)
    episode = np.arange(n_episodes)[:, None]
    if n_episodes >= FEWEST_UNITS:
        return np.repeat(episode, n_rounds, 1)
    trials_a_block = max(1, int(known.sum()) // BLOCKS)
    blocks_an_episode = -(-n_rounds // trials_a_block)
    return episode * blocks_an_episode + np.arange(n_rounds) // trials_a_block


class _Predictor:
    """What the members of a family predict of the choices, by their parameters."""

    def __init__(self, data: ChoiceData, family: Family) -> None:
        self._members = Distributions(family, [data.episodes])
        self._family = family
        self._largest_choice = int(data.choices.max())
        self._offers = data.offers

    def __call__(self, parameters: Parameters) -> Array:
        algorithm = self._family.make(**parameters)
        of_outcomes = np.clip(self._members(algorithm, parameters), 0.0, 1.0)
        p = among_offered(of_outcomes, self._offers)
        n_outcomes = p.shape[-1]
        require(
            self._largest_choice < n_outcomes,
            f"choices must be outcomes 0 to {n_outcomes - 1}, got {self._largest_choice}",
        )
        return p


class _Links(NamedTuple):
    """Fitted links of each player and each of the masks of the data.

    Attributes:
        nats: the loss a choice, ``[player, mask]``.
        links: an array of :class:`Link`, of the same shape.
    """

    nats: Array
    links: NDArray[np.object_]


class _Best:
    """The best parameters that were found, of each player and each of the masks of the data."""

    def __init__(self, data: ChoiceData, n_outcomes: int) -> None:
        shape = (data.n_players, len(data.masks))
        self.nats = np.full(shape, np.inf)
        self.links = np.empty(shape, object)
        predicted_shape = (len(data.masks), *data.known.shape, n_outcomes)
        self.p = np.full(predicted_shape, 1 / n_outcomes)
        self._points = np.zeros(shape, np.int64)
        self._parameters: list[Parameters] = []
        self._players = data.players

    def keep(self, parameters: Parameters, p: Array, fits: _Links) -> None:
        """Keep parameters for the players and masks that they fit better than the earlier ones.

        Args:
            parameters: by name.
            p: what they predict, ``[episode, round, outcome]``.
            fits: their links.
        """
        better = fits.nats < self.nats
        self.nats = np.where(better, fits.nats, self.nats)
        self.links[better] = fits.links[better]
        self._points[better] = len(self._parameters)
        self._parameters.append(parameters)
        for mask in np.flatnonzero(better.any(0)):
            rows = better[self._players, mask]
            self.p[mask, rows] = p[rows]

    def parameters(self, player: int, mask: int = 0) -> Parameters:
        """Return the best parameters of a player.

        Args:
            player: its number.
            mask: of the choices that were fitted; all by default.
        """
        return self._parameters[self._points[player, mask]]


def _fit_links(data: ChoiceData, p: Array, tempered: bool) -> _Links:
    """Fit the link of each player to each of the masks.

    Args:
        data: the choices.
        p: predictions ``[episode, round, outcome]``.
        tempered: whether these have a temperature.
    """
    if data.n_players > 1 and tempered:
        return _fit_lapses(data, p)
    nats = np.zeros((data.n_players, len(data.masks)))
    links = np.empty(nats.shape, object)
    for player in range(data.n_players):
        rows = data.rows(player)
        for number, mask in enumerate(data.masks):
            fit = fit_link(p[rows], data.choices[rows], mask[rows], tempered)
            nats[player, number] = fit.nats
            links[player, number] = fit.link
    return _Links(nats, links)


def _fit_lapses(data: ChoiceData, p: Array) -> _Links:
    """Find the best lapse rate of :data:`_LAPSES` for each player and mask, where the family has a
    temperature.
    """
    n_outcomes = p.shape[-1]
    even = np.full(n_outcomes, 1 / n_outcomes)
    links = np.empty(len(_LAPSES), object)
    totals = []
    chances = data.chances(p)
    for number, lapse in enumerate(_LAPSES):
        links[number] = Link(lapse, 1.0, even)
        with_lapse = lapse / n_outcomes + (1 - lapse) * chances
        nats = data.sums(-np.log(np.maximum(with_lapse, _ROUNDED)))
        totals.append(nats + (HALF_CHI2 if lapse else 0.0))
    by_lapse = np.stack(totals)
    nats_a_choice = by_lapse.min(0) / np.maximum(data.n_choices, 1)
    return _Links(nats_a_choice, links[by_lapse.argmin(0)])


def _in_run_order(family: Family) -> list[Searched]:
    """Return the parameters, those first that enter the state: one run of the state then serves
    many values of the rest.
    """
    return sorted(family.searched, key=lambda searched: bool(searched.enters))


def _grid_points(searched: Sequence[Searched], grids: Sequence[Any]) -> Iterator[Parameters]:
    names = [parameter.name for parameter in searched]
    for values in product(*grids):
        yield dict(zip(names, values, strict=True))


def fine_grid(searched: Searched, n_values: int) -> Sequence[float]:
    """Return ``n_values`` of a real parameter, as many between any two of the family's grid."""
    if searched.kind == "choice" or len(searched.grid) == 1:
        return searched.grid
    positions = np.linspace(0, len(searched.grid) - 1, n_values)
    points = np.arange(len(searched.grid))
    values: list[float] = np.interp(positions, points, searched.grid).tolist()
    return values


def _at_bound(family: Family, parameters: Parameters) -> tuple[str, ...]:
    """Return the real parameters that lie at an end of their search."""
    names = []
    for searched in family.searched:
        low, high = searched.grid[0], searched.grid[-1]
        near = 1e-3 * (high - low)
        value = parameters[searched.name]
        is_free = searched.kind == "real" and low < high
        if is_free and (value <= low + near or value >= high - near):
            names.append(searched.name)
    return tuple(names)


def _score(
    data: ChoiceData, family: Family, best: _Best, player: int, intervals: Mapping[str, Interval]
) -> FamilyScore:
    """Score what was fitted to all folds but one on that one.

    Args:
        data: the choices.
        family: the family.
        best: the fits.
        player: its number.
        intervals: of the parameters.
    """
    rows = data.rows(player)
    known = data.known[rows]
    q = np.empty_like(best.p[0, rows])
    prefers = np.zeros(known.shape, np.int64)
    for fold in range(N_FOLDS):
        held_out = data.folds[rows] == fold
        n_training = int(data.n_choices[player, 1 + fold])
        p = best.p[1 + fold, rows]
        link = best.links[player, 1 + fold]
        q[held_out] = link.spread(n_training).probabilities(p)[held_out]
        prefers[held_out] = link.preferred(p)[held_out]
    whole = best.links[player, 0]
    p_whole = best.p[0, rows]
    chances = np.take_along_axis(q, data.choices[rows][..., None], -1)[..., 0]
    parameters = best.parameters(player)
    n_choices = int(data.n_choices[player, 0])
    fitted = whole.spread(n_choices).probabilities(p_whole)
    losses = np.where(known, -np.log(chances), 0.0)
    at_bound = _at_bound(family, parameters)
    nats = float(best.nats[player, 0])
    return FamilyScore(
        key=family.key,
        name=family.name,
        extends=family.extends,
        memoryless=family.memoryless,
        parameters=parameters,
        link=whole,
        intervals=intervals,
        at_bound=at_bound,
        nats=nats,
        fitted=fitted,
        losses=losses,
        prefers=prefers,
    )


def score_players(data: ChoiceData, family: Family) -> list[FamilyScore]:
    """Score a family for each player, on one fine grid that all players share.

    Args:
        data: the choices of several players.
        family: with at most 3 parameters.

    Returns:
        A score for each player, with profile likelihood intervals.
    """
    searched = _in_run_order(family)
    require(
        len(searched) in _FINE,
        f"{family.name} has {len(searched)} parameters; participants are fitted by at most 3",
    )
    grids = [fine_grid(parameter, _FINE[len(searched)]) for parameter in searched]
    predict = _Predictor(data, family)
    best = None
    of_points = []
    for parameters in _grid_points(searched, grids):
        p = predict(parameters)
        if best is None:
            best = _Best(data, p.shape[-1])
        fits = _fit_links(data, p, family.tempered)
        best.keep(parameters, p, fits)
        of_points.append(fits.nats[:, 0])
    assert best is not None, "a grid has a point"
    totals = np.array(of_points).T * data.n_choices[:, :1]
    nats = totals.reshape(data.n_players, *(len(grid) for grid in grids))
    scores = []
    for player in range(data.n_players):
        temperature = best.links[player][0].temperature
        intervals = _grid_intervals(searched, grids, nats[player], temperature)
        scores.append(_score(data, family, best, player, intervals))
    return scores


def _grid_intervals(
    searched: Sequence[Searched], grids: Sequence[Sequence[float]], nats: Array, temperature: float
) -> dict[str, Interval]:
    """Return the 95 % profile likelihood interval of each real parameter.

    Args:
        searched: the parameters, one an axis of ``nats``.
        grids: their values.
        nats: the loss of all choices at every point.
        temperature: of the link.
    """
    intervals = {}
    for axis, (parameter, grid) in enumerate(zip(searched, grids, strict=True)):
        if parameter.kind == "choice" or len(grid) == 1:
            continue
        other_axes = tuple(i for i in range(len(grids)) if i != axis)
        profile = nats.min(other_axes)
        best = float(grid[profile.argmin()])
        low, high = profile_ends(np.array(grid), profile, temperature)
        intervals[parameter.name] = Interval(best, min(low, best), max(high, best))
    return intervals


def score_families(data: ChoiceData, families: Mapping[str, Family]) -> list[FamilyScore]:
    """Score families for one player, each at the optimum of its likelihood.

    A family begins at the best points of its grid, and where it extends another one at that one's best parameters, so
    that it never fits worse than what it contains. A local optimiser goes on from there for the families that are less
    than :data:`_FAR` nats behind the best one.

    Args:
        data: the choices of one player.
        families: by key.
    """
    fits = {}
    for family in families.values():
        fits[family.key] = _fit_grid(data, family)
    lowest = min(float(fit.nats[0, 0]) for fit in fits.values())
    far = lowest + max(_FAR / data.n_choices[0, 0], _FAR_SHARE)
    for family in sorted(families.values(), key=lambda family: bool(family.extends)):
        fit = fits[family.key]
        predict = _Predictor(data, family)
        if family.extends in fits:
            inner = families[family.extends]
            points = _contained_points(family, inner, fits[inner.key], len(data.masks))
            for point in points:
                _try(data, family, predict, fit, point)
        if fit.nats[0, 0] <= far:
            for mask in range(len(data.masks)):
                start = fit.parameters(0, mask)
                _try(data, family, predict, fit, _refine(data, family, predict, start, mask))
    return [_score(data, family, fits[family.key], 0, {}) for family in families.values()]


def _fit_grid(data: ChoiceData, family: Family) -> _Best:
    """Fit a family to each of the masks, on the grid that it defines."""
    searched = _in_run_order(family)
    predict = _Predictor(data, family)
    best = None
    for parameters in _grid_points(searched, [parameter.grid for parameter in searched]):
        p = predict(parameters)
        if best is None:
            best = _Best(data, p.shape[-1])
        best.keep(parameters, p, _fit_links(data, p, family.tempered))
    assert best is not None, "a grid has a point"
    return best


def _try(
    data: ChoiceData, family: Family, predict: _Predictor, best: _Best, parameters: Parameters
) -> None:
    """Keep parameters where they are better than what was found."""
    p = predict(parameters)
    best.keep(parameters, p, _fit_links(data, p, family.tempered))


def _contained_points(family: Family, inner: Family, best: _Best, n_masks: int) -> list[Parameters]:
    """Return the members of a family that are, or are near, the best ones of the family that it
    extends.

    Parameters of the same name have the same value. The rest are those of the grid; where the inner
    family has one parameter of another name, such as one learning rate in place of two, they may
    all have its value.

    Args:
        family: the larger one.
        inner: the family that it extends.
        best: what was found of the inner one.
        n_masks: how many fits were made.
    """
    names = [searched.name for searched in family.searched]
    inner_names = [searched.name for searched in inner.searched]
    free = [searched for searched in family.searched if searched.name not in inner_names]
    renamed = [name for name in inner_names if name not in names]
    points = []
    for mask in range(n_masks):
        inner_values = best.parameters(0, mask)
        shared = {name: inner_values[name] for name in inner_names if name in names}
        for values in _grid_points(free, [searched.grid for searched in free]):
            points.append({**shared, **values})
        if len(renamed) == 1:
            same = {searched.name: inner_values[renamed[0]] for searched in free}
            points.append({**shared, **same})
    return [_within_bounds(family, point) for point in points]


def _within_bounds(family: Family, point: Parameters) -> Parameters:
    clipped = {}
    for searched in family.searched:
        low, high = searched.grid[0], searched.grid[-1]
        clipped[searched.name] = min(max(point[searched.name], low), high)
    return clipped


def _refine(
    data: ChoiceData, family: Family, predict: _Predictor, start: Parameters, mask: int
) -> Parameters:
    def loss(parameters: Parameters) -> float:
        p = predict(parameters)
        return fit_link(p, data.choices, data.masks[mask], family.tempered).nats

    if not family.searched:
        return start
    return refine(loss, family.searched, start, is_smooth=family.tempered)[1]


def score_guess(data: ChoiceData, like: Array) -> list[FamilyScore]:
    """Score, for each player, a guess that is the same in every round: how often each outcome was chosen.

    Args:
        data: the choices.
        like: predictions of the shape that a guess has, ``[episode, round, outcome]``.
    """
    algorithmless = Family(
        GUESS, "a guess, the same in every round", make=_no_algorithm, memoryless=True
    )
    even = even_guess(like, data.offers)
    best = _Best(data, like.shape[-1])
    best.keep({}, even, _fit_links(data, even, tempered=False))
    return [_score(data, algorithmless, best, player, {}) for player in range(data.n_players)]


def score_predictions(data: ChoiceData, key: str, p: Array) -> FamilyScore:
    """Score predictions of one player; only the link is fitted.

    Args:
        data: the choices.
        key: of the score.
        p: ``[episode, round, outcome]``.
    """
    fixed = Family(key, key, make=_no_algorithm)
    of_slots = among_offered(p, data.offers)
    best = _Best(data, of_slots.shape[-1])
    best.keep({}, of_slots, _fit_links(data, of_slots, tempered=False))
    return _score(data, fixed, best, 0, {})


def _no_algorithm() -> Algorithm:
    raise NotImplementedError("a guess has no algorithm")


def profile_intervals(data: ChoiceData, family: Family, score: FamilyScore) -> dict[str, Interval]:
    """Return 95 % profile likelihood intervals of the real parameters of one player, within the bounds of the search.

    At each value the other parameters are fitted anew, on a joint grid that is finer the closer to the best. Where the
    fit has no lapse, the profile has none either.
    """
    predict = _Predictor(data, family)
    searched = _in_run_order(family)
    free = [
        parameter for parameter in searched if parameter.kind == "real" and len(parameter.grid) > 1
    ]
    n_steps = _PROFILED.get(len(free), 3)
    steps = np.linspace(0, 1, n_steps) ** 2
    grids = []
    for parameter in searched:
        best = score.parameters[parameter.name]
        grid = [best]
        if parameter in free:
            below = best + (parameter.grid[0] - best) * steps
            above = best + (parameter.grid[-1] - best) * steps
            grid = np.unique([*below, *above]).tolist()
        grids.append(grid)
    may_lapse = score.link.lapse > 0
    losses = []
    for parameters in _grid_points(searched, grids):
        p = predict(parameters)
        fit = fit_link(p, data.choices, data.known, family.tempered, may_lapse=may_lapse)
        losses.append(fit.nats * data.known.sum())
    nats = np.reshape(losses, [len(grid) for grid in grids])
    return _grid_intervals(searched, grids, nats, score.link.temperature)
