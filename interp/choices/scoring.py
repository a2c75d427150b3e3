"""How well each family of algorithms predicts choices that it was not fitted to.

Every player's choices are cut into units: participants, episodes, or blocks of trials. A family's parameters and its
link (:mod:`interp.choices.link`) are fitted to three of every four units and scored on the fourth, in turn, so that
every loss is held out. A fit begins on a grid, and a local optimiser goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.choices.fitting import Array, Distributions, refine
from interp.choices.link import HALF_CHI2, FittedLink, Link, fit_link, profile_ends
from interp.choices.offers import among_offered, even_guess, offers_of, slots_of
from interp.choices.optimum import Fit, PlayerFits, contained_points
from interp.core.algorithm import Algorithm, Family, Searched
from interp.stats.intervals import Interval
from interp.support.checks import checked_result
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
_PARTS, _ZOOMS = 4, 4
"""Parts into which the way from the best value to a bound is cut, to find where a profile likelihood interval ends,
and how many times: the part that holds the end is cut again.
"""
_ON_GRID = {1: 41, 2: 13, 3: 5}
"""Number of parameters -> values of each on either side of the best, on a joint grid."""
_FAR = 15.0
"""Nats of all choices by which a family is too far behind the best on the grid for an optimiser to matter."""
_FAR_SHARE = 0.03
"""The same in nats a choice, where that is more."""


@dataclass(frozen=True)
@checked_result
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
        self.first_asked = first_asked
        self.known: Mask = ~np.isnan(counted)
        self.offers = offers_of(episodes, first_asked)
        outcomes = np.where(self.known, counted, 0).astype(np.int64)
        self.choices = slots_of(outcomes, self.offers)
        """Which of the outcomes, or of the slots on offer, was chosen ``[episode, round]``."""
        self.players = np.zeros(len(choices), np.int64) if players is None else players
        self.n_players = int(self.players.max()) + 1
        self._rows = []
        for player in range(self.n_players):
            self._rows.append(np.flatnonzero(self.players == player))
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
        self.masks = np.stack([self.known, *training])
        """The choices that a fit is made to, ``[mask, episode, round]``: all, then those outside each fold."""
        self.n_choices = self.sums(np.ones(self.known.shape))
        """How many these are, ``[player, mask]``."""

    def rows(self, player: int) -> NDArray[np.int64]:
        """Return the episodes of a player."""
        return self._rows[player]

    def check_outcomes(self, n_outcomes: int) -> None:
        """Refuse choices that are none of the outcomes."""
        largest = int(self.choices.max())
        require(
            largest < n_outcomes,
            f"choices must be outcomes 0 to {n_outcomes - 1}, got {largest}",
        )

    def chances(self, p: Array) -> Array:
        """Return the probability of each choice, ``[episode, round]``, of ``p [episode, round, outcome]``."""
        self.check_outcomes(p.shape[-1])
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


@dataclass(frozen=True)
class _PlayerFit:
    """What was fitted to one player.

    Attributes:
        parameters: of all choices.
        nats: the loss of all choices.
        links: of each of the masks.
        p: P(each outcome) of the fit to each of the masks, ``[mask, episode, round, outcome]``.
    """

    parameters: Parameters
    nats: float
    links: Sequence[Link]
    p: Array = field(repr=False)


def _score(data: ChoiceData, family: Family, fit: _PlayerFit, player: int) -> FamilyScore:
    """Score what was fitted to all folds but one on that one."""
    rows = data.rows(player)
    known = data.known[rows]
    q = np.empty_like(fit.p[0])
    prefers = np.zeros(known.shape, np.int64)
    for fold in range(N_FOLDS):
        held_out = data.folds[rows] == fold
        n_training = int(data.n_choices[player, 1 + fold])
        p, link = fit.p[1 + fold], fit.links[1 + fold]
        q[held_out] = link.spread(n_training).probabilities(p)[held_out]
        prefers[held_out] = link.preferred(p)[held_out]
    n_choices = int(data.n_choices[player, 0])
    chances = np.take_along_axis(q, data.choices[rows][..., None], -1)[..., 0]
    losses = np.where(known, -np.log(chances), 0.0)
    whole = fit.links[0].spread(n_choices)
    fitted = whole.probabilities(fit.p[0])
    at_bound = _at_bound(family, fit.parameters)
    return FamilyScore(
        key=family.key,
        name=family.name,
        extends=family.extends,
        memoryless=family.memoryless,
        parameters=fit.parameters,
        link=fit.links[0],
        intervals={},
        at_bound=at_bound,
        nats=fit.nats / n_choices,
        fitted=fitted,
        losses=losses,
        prefers=prefers,
    )


def _at_bound(family: Family, parameters: Parameters) -> tuple[str, ...]:
    """Return the real parameters that lie at an end of their search."""
    names = []
    for searched in family.searched:
        low, high = searched.grid[0], searched.grid[-1]
        value = parameters[searched.name]
        from_bound = min(value - low, high - value)
        if _is_free(searched) and from_bound <= 1e-3 * (high - low):
            names.append(searched.name)
    return tuple(names)


def score_families(
    data: ChoiceData, families: Mapping[str, Family]
) -> dict[str, list[FamilyScore]]:
    """Score families for each player, each at the optimum of its likelihood.

    A family that extends another one also begins at that one's best parameters, so that it never fits worse than what
    it contains. Families that are ``vectorised`` are fitted to all players at once (:mod:`interp.choices.optimum`). The
    others are fitted to one player, by a search from their grid on, where they come near the best one.

    Args:
        data: the choices; of one player unless every family is vectorised.
        families: by key.

    Returns:
        By key, a score for each player.
    """
    scores: dict[str, list[FamilyScore]] = {}
    fits: dict[str, Fit] = {}
    searched = {key: family for key, family in families.items() if not family.vectorised}
    for family in _simplest_first(families):
        if not family.vectorised:
            continue
        solver = PlayerFits(data, family)
        inner = None
        if family.extends in fits:
            inner = families[family.extends], fits[family.extends]
        fits[family.key] = solver.solve(inner)
        scores[family.key] = _scores_of(data, solver, fits[family.key])
    if searched:
        require(data.n_players == 1, "families that are not vectorised are fitted to one player")
        for key, fit in _search_families(data, searched).items():
            scores[key] = [_score(data, families[key], fit, 0)]
    return {key: scores[key] for key in families}


def _simplest_first(families: Mapping[str, Family]) -> list[Family]:
    """Return families, those first that extend no other one."""
    return sorted(families.values(), key=lambda family: bool(family.extends))


def _scores_of(data: ChoiceData, solver: PlayerFits, fit: Fit) -> list[FamilyScore]:
    """Return the score of each player, by the fits of a vectorised family."""
    family = solver.family
    names = [searched.name for searched in family.searched]
    n_masks = len(data.masks)
    rows = np.tile(np.arange(len(data.episodes)), n_masks)
    of_rows = fit.points[data.players].swapaxes(0, 1)
    flat = of_rows.reshape(-1, of_rows.shape[-1])
    p = solver.predict(rows, flat[:, :-1])
    by_mask = p.reshape(n_masks, -1, *p.shape[1:])
    n_outcomes = p.shape[-1]
    even = np.full(n_outcomes, 1 / n_outcomes)
    scores = []
    for player in range(data.n_players):
        points = fit.points[player]
        links = [Link(float(lapse), 1.0, even) for lapse in points[:, -1]]
        parameters = dict(zip(names, points[0, :-1].tolist(), strict=True))
        of_player = _PlayerFit(
            parameters=parameters,
            nats=float(fit.nats[player, 0]),
            links=links,
            p=by_mask[:, data.rows(player)],
        )
        scores.append(_score(data, family, of_player, player))
    return scores


# Families of which one member is computed at a time.


class _Search:
    """The best parameters of a family that were found for one player, for each of the masks."""

    def __init__(self, data: ChoiceData, family: Family) -> None:
        self._data = data
        self.family = family
        self._members = Distributions(family, [data.episodes])
        self.nats = np.full(len(data.masks), np.inf)
        self.parameters: list[Parameters] = [{} for _ in data.masks]

    def predict(self, parameters: Parameters) -> Array:
        """Return P(each choice), ``[episode, round, outcome]``."""
        algorithm = self.family.make(**parameters)
        of_outcomes = np.clip(self._members(algorithm, parameters), 0.0, 1.0)
        p = among_offered(of_outcomes, self._data.offers)
        self._data.check_outcomes(p.shape[-1])
        return p

    def loss(self, parameters: Parameters, mask: int, may_lapse: bool = True) -> float:
        """Return the loss of the choices of a mask, nats a choice."""
        p = self.predict(parameters)
        return self._link(p, mask, may_lapse=may_lapse).nats

    def _link(self, p: Array, mask: int, may_lapse: bool = True) -> FittedLink:
        data = self._data
        return fit_link(
            p, data.choices, data.masks[mask], self.family.tempered, may_lapse=may_lapse
        )

    def try_point(self, parameters: Parameters) -> None:
        """Keep parameters where they fit better than what was found."""
        p = self.predict(parameters)
        for mask in range(len(self.nats)):
            nats = self._link(p, mask).nats
            if nats < self.nats[mask]:
                self.nats[mask] = nats
                self.parameters[mask] = parameters

    def refine(self) -> None:
        """Go on from the best parameters by a local optimiser."""
        if not self.family.searched:
            return
        for mask, start in enumerate(list(self.parameters)):
            loss = partial(self.loss, mask=mask)
            self.try_point(refine(loss, self.family.searched, start)[1])

    def result(self) -> _PlayerFit:
        """Return what was found."""
        p = np.stack([self.predict(parameters) for parameters in self.parameters])
        links = [self._link(p[mask], mask).link for mask in range(len(p))]
        n_choices = int(self._data.n_choices[0, 0])
        nats = float(self.nats[0]) * n_choices
        return _PlayerFit(self.parameters[0], nats, links, p)


def _search_families(data: ChoiceData, families: Mapping[str, Family]) -> dict[str, _PlayerFit]:
    """Fit families to one player, those that are less than :data:`_FAR` nats behind the best one to the optimum."""
    searches = {}
    for key, family in families.items():
        searches[key] = _Search(data, family)
        for point in _grid_points(family):
            searches[key].try_point(point)
    lowest = min(float(search.nats[0]) for search in searches.values())
    far = lowest + max(_FAR / data.n_choices[0, 0], _FAR_SHARE)
    for family in _simplest_first(families):
        search = searches[family.key]
        if family.extends in searches:
            _try_contained(search, searches[family.extends])
        if search.nats[0] <= far:
            search.refine()
    return {key: search.result() for key, search in searches.items()}


def _try_contained(search: _Search, inner: _Search) -> None:
    """Try the members that are, or are near, the best ones of the family that is extended."""
    inner_names = [searched.name for searched in inner.family.searched]
    for point in contained_points(search.family, inner.family):
        for inner_parameters in inner.parameters:
            parameters = {}
            for searched in search.family.searched:
                value = point[searched.name]
                if isinstance(value, int):
                    value = inner_parameters[inner_names[value]]
                low, high = searched.grid[0], searched.grid[-1]
                parameters[searched.name] = min(max(value, low), high)
            search.try_point(parameters)


def _in_run_order(family: Family) -> list[Searched]:
    """Return the parameters, those first that enter the state: its run then serves many values of the others."""
    return sorted(family.searched, key=lambda searched: bool(searched.enters))


def _grid_points(family: Family) -> Iterator[Parameters]:
    searched = _in_run_order(family)
    names = [parameter.name for parameter in searched]
    for values in product(*(parameter.grid for parameter in searched)):
        yield dict(zip(names, values, strict=True))


def score_guess(data: ChoiceData, like: Array) -> list[FamilyScore]:
    """Score, for each player, a guess that is the same in every round: how often each outcome was chosen.

    Args:
        data: the choices.
        like: the shape that a guess has, of ``[episode, round, outcome]``.
    """
    guess = Family(GUESS, "a guess, the same in every round", make=_no_algorithm, memoryless=True)
    even = even_guess(like, data.offers)
    return [_score_fixed(data, guess, even, player) for player in range(data.n_players)]


def score_predictions(data: ChoiceData, key: str, p: Array) -> FamilyScore:
    """Score predictions of one player; only the link is fitted.

    Args:
        data: the choices.
        key: of the score.
        p: ``[episode, round, outcome]``.
    """
    fixed = Family(key, key, make=_no_algorithm)
    return _score_fixed(data, fixed, among_offered(p, data.offers), player=0)


def _score_fixed(data: ChoiceData, family: Family, p: Array, player: int) -> FamilyScore:
    """Score predictions ``[episode, round, outcome]`` of all players for one of them."""
    rows = data.rows(player)
    p, choices = p[rows], data.choices[rows]
    fits = [fit_link(p, choices, mask[rows], tempered=False) for mask in data.masks]
    n_choices = int(data.n_choices[player, 0])
    links = [fit.link for fit in fits]
    of_masks = np.repeat(p[None], len(fits), 0)
    fit = _PlayerFit({}, fits[0].nats * n_choices, links, of_masks)
    return _score(data, family, fit, player)


def _no_algorithm() -> Algorithm:
    raise NotImplementedError("a guess has no algorithm")


# Intervals.


def add_intervals(
    data: ChoiceData, family: Family, scores: Mapping[int, FamilyScore]
) -> dict[int, FamilyScore]:
    """Return the scores of players with 95 % profile likelihood intervals of the real parameters.

    At each value of a parameter the others are fitted anew, within the bounds of their search. Of a family that is not
    vectorised they are those of a joint grid that is finer the closer to the best.

    Args:
        data: the choices.
        family: that was scored.
        scores: by the number of the player.
    """
    if family.vectorised:
        return _add_profiles(data, family, scores)
    return {player: _add_grid_intervals(data, family, score) for player, score in scores.items()}


def _is_free(searched: Searched) -> bool:
    return searched.kind == "real" and len(searched.grid) > 1


def _values_around(searched: Searched, best: float, n_steps: int) -> Array:
    """Return values towards the bounds, closer to each other the closer to the best, ``[side, value]``."""
    steps = np.linspace(0, 1, n_steps) ** 2
    low, *_, high = searched.grid
    return np.array([best + (bound - best) * steps for bound in (low, high)])


def _add_profiles(
    data: ChoiceData, family: Family, scores: Mapping[int, FamilyScore]
) -> dict[int, FamilyScore]:
    solver = PlayerFits(data, family)
    players = np.array(list(scores))
    rows = [[*score.parameters.values(), score.link.lapse] for score in scores.values()]
    points = np.array(rows)
    intervals: dict[int, dict[str, Interval]] = {player: {} for player in scores}
    for place, searched in enumerate(family.searched):
        if not _is_free(searched):
            continue
        best = points[:, place]
        profile = partial(solver.profiles, players, points, place)
        highest = profile(best[:, None]) + HALF_CHI2
        lows = _profile_end(profile, highest, near=best, bound=searched.grid[0])
        highs = _profile_end(profile, highest, near=best, bound=searched.grid[-1])
        for player, estimate, low, high in zip(scores, best, lows, highs, strict=True):
            interval = Interval(float(estimate), float(low), float(high))
            intervals[player][searched.name] = interval
    return {player: replace(scores[player], intervals=intervals[player]) for player in scores}


def _profile_end(
    profile: Callable[[Array], Array], highest: Array, *, near: Array, bound: float
) -> Array:
    """Return the value at which each profile rises above a loss, ``[player]``; the bound where none does.

    Args:
        profile: from values of the parameter to the least loss at each, both ``[player, value]``.
        highest: the loss at which an interval ends, ``[player, 1]``.
        near: a value inside the interval, ``[player]``.
        bound: of the search, on the side of the end that is sought.
    """
    rows = np.arange(len(near))
    far = np.full(len(near), bound)
    shares = np.linspace(0, 1, _PARTS + 1) ** 2  # most ends are near the best value
    for _ in range(_ZOOMS):
        values = near[:, None] + np.outer(far - near, shares)
        is_inside = profile(values[:, 1:]) <= highest
        inside = np.where(is_inside, np.arange(1, _PARTS + 1), 0).max(1)
        outside = np.minimum(inside + 1, _PARTS)
        near, far = values[rows, inside], values[rows, outside]
    return (near + far) / 2


def _add_grid_intervals(data: ChoiceData, family: Family, score: FamilyScore) -> FamilyScore:
    search = _Search(data, family)
    searched = _in_run_order(family)
    n_free = sum(map(_is_free, searched))
    grids = []
    for parameter in searched:
        best = score.parameters[parameter.name]
        is_free = _is_free(parameter)
        around = _values_around(parameter, best, _ON_GRID.get(n_free, 3)) if is_free else [best]
        grids.append(np.unique(around).tolist())
    may_lapse = score.link.lapse > 0
    names = [parameter.name for parameter in searched]
    losses = []
    for values in product(*grids):
        parameters = dict(zip(names, values, strict=True))
        losses.append(search.loss(parameters, mask=0, may_lapse=may_lapse))
    nats = np.reshape(losses, [len(grid) for grid in grids]) * data.n_choices[0, 0]
    intervals = {}
    for axis, (parameter, grid) in enumerate(zip(searched, grids, strict=True)):
        if not _is_free(parameter):
            continue
        other_axes = tuple(i for i in range(len(grids)) if i != axis)
        ends = profile_ends(np.array(grid), nats.min(other_axes), score.link.temperature)
        intervals[parameter.name] = Interval(score.parameters[parameter.name], *ends)
    return replace(score, intervals=intervals)
