"""Score how well each family of algorithms predicts held-out choices.

Every player's choices are divided into independent units: participants, episodes or blocks of
trials. Units are assigned to four folds. A family's parameters and its link
(:mod:`interp.choices.link`) are fitted to three folds and scored on the fourth, for each fold in
turn. A fit tries a grid first; a local optimiser then improves the best point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.choices.fitting import (
    Array,
    Distributions,
    list_grid_points,
    minimise_locally,
    name_values,
    put_memory_parameters_first,
)
from interp.choices.link import HALF_CHI2, FittedLink, Link, fit_link, interpolate_profile_ends
from interp.choices.offers import guess_uniformly, offers_of, restrict_to_offers, slots_of
from interp.choices.optimum import ALL_CHOICES, Fit, PlayerFits, contained_points
from interp.core.algorithm import Algorithm, Family, Searched
from interp.stats.intervals import Interval
from interp.support.checks import checked_result
from interp.support.errors import require

Mask = NDArray[np.bool_]
Parameters = Mapping[str, float]

N_FOLDS = 4
"""Number of folds; each is scored with the parameters that were fitted to the others."""
FEWEST_UNITS = 8
"""Fewest participants, or else episodes, that serve as units; with fewer, blocks of trials do."""
BLOCKS = 100
"""Number of blocks that the trials are divided into: as many as a bootstrap needs."""
GUESS = "constant"
"""Key of the constant guess: the same probabilities in every round."""
_N_PARTS, _N_ZOOMS = 4, 3
"""The search for an interval's end divides a range into this many parts, and the part with the end
again, this many times.
"""
_LEAST_RISE = 1e-12
"""Keeps the division finite where the profile does not rise between two values."""
_N_VALUES_A_SIDE = {1: 41, 2: 13, 3: 5}
"""Number of free parameters -> number of grid values of each on either side of the best value."""
_FAR_IN_NATS = 15.0
"""A family is not refined if its loss on the grid exceeds the best by this many nats in total."""
_FAR_PER_CHOICE = 0.03
"""The same limit in nats per choice; the larger of the two limits applies."""


@dataclass(frozen=True)
@checked_result
class FamilyScore:
    """A family of algorithms, fitted to the choices of one player, with its loss on held-out
    choices.

    Attributes:
        key: key of the family.
        name: name of the family.
        memoryless: whether its predictions do not depend on earlier rounds.
        parameters: name of a parameter -> its value, fitted to all choices.
        link: temperature and lapse rate of the choices, fitted to all choices.
        intervals: name of a real parameter -> its 95 % profile likelihood interval; empty if they
            were not computed.
        at_bound: names of the parameters that lie at an end of the searched range.
        nats: loss (minus the log of the probability) per choice, on the choices that the parameters
            were fitted to. A lapse rate above 0 adds a penalty of 1.92 nats to the sum.
        fitted: probability of each outcome in the player's episodes, with the parameters fitted to
            all choices, ``[episode, round, outcome]``.
        losses: held-out loss of each choice in nats, with parameters that were fitted to the other
            folds, ``[episode, round]``; 0 where no choice was made.
        prefers: index of the outcome that the held-out prediction makes likeliest, ``[episode,
            round]``; -1 if several are equally likely.
    """

    key: str
    name: str
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
    """Choices with their episodes, divided into independent units (participants, episodes or blocks
    of trials) and into four folds of whole units.

    Args:
        episodes: episodes of one task, such as :class:`~interp.tasks.bandit.BanditEpisodes`, with
            what the players saw.
        choices: index of the chosen outcome, ``[episode, round]``; NaN where no choice was made.
        first_asked: index of the first scored round.
        players: index of the player of each episode, ``[episode]``; None if all episodes belong to
            one player.
    """

    def __init__(
        self,
        episodes: Any,
        choices: Array,
        first_asked: int = 0,
        players: NDArray[np.int64] | None = None,
    ) -> None:
        """Assign each choice to a unit and a fold, and list the choices of each mask (set of
        choices to fit to). Only scored rounds are stored: index 0 is the round ``first_asked``.
        """
        scored_choices = choices[:, first_asked:]
        self.episodes = episodes
        self.first_asked = first_asked
        self.known: Mask = ~np.isnan(scored_choices)
        self.offers = offers_of(episodes, first_asked)
        outcomes = np.where(self.known, scored_choices, 0).astype(np.int64)
        self.choices = slots_of(outcomes, self.offers)
        """Index of the chosen outcome, or of its slot if offers vary, ``[episode, round]``."""
        self.players = np.zeros(len(choices), np.int64) if players is None else players
        self.n_players = int(self.players.max()) + 1
        self._rows_of_players = []
        self.units = np.zeros(self.known.shape, np.int64)
        """Index of the unit (a participant, an episode or a block of trials) of each choice,
        ``[episode, round]``; every player's units are numbered from 0. All choices of a unit are in
        the same fold."""
        for player in range(self.n_players):
            rows = np.flatnonzero(self.players == player)
            self._rows_of_players.append(rows)
            names = None if episodes.participants is None else episodes.participants[rows]
            self.units[rows] = number_units(self.known[rows], names)
        self.folds = self.units % N_FOLDS
        """Index of the fold in which each choice is held out, ``[episode, round]``."""
        # `sum_by_mask` first sums over cells. A cell is a fold of a player; cells are numbered
        # player by player.
        cells = self.players[:, None] * N_FOLDS + self.folds
        self._cell_of_choice = cells[self.known]
        training = [self.known & (self.folds != fold) for fold in range(N_FOLDS)]
        self.masks = np.stack([self.known, *training])
        """Choices to fit to, ``[mask, episode, round]``: the mask :data:`ALL_CHOICES` is all of
        them, mask 1 + i omits fold i."""
        self.n_choices = self.sum_by_mask(np.ones(self.known.shape))
        """Number of choices in each mask, ``[player, mask]``."""

    def rows(self, player: int) -> NDArray[np.int64]:
        """Return the indices of the episodes of a player, given the player's index."""
        return self._rows_of_players[player]

    def offers_in(self, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return which options the rounds of some episodes offered.

        Args:
            rows: indices of the episodes, ``[row]``.

        Returns:
            Index of the option in each slot (position in the list of offered options), ``[row,
            round, slot]``; negative in empty slots. None if all options are offered.
        """
        return None if self.offers is None else self.offers[rows]

    def check_outcomes(self, n_outcomes: int) -> None:
        """Refuse choices that are not among ``n_outcomes`` outcomes."""
        largest = int(self.choices.max())
        require(
            largest < n_outcomes,
            f"choices must be outcomes 0 to {n_outcomes - 1}, got {largest}",
        )

    def select_chosen(self, values: Array, rows: Any = slice(None)) -> Array:
        """Return the value of the choice in each round, such as its probability, ``[row, round]``;
        the value of outcome 0 where no choice was made. A row is a copy of an episode.

        Args:
            values: a value for every possible choice, ``[row, round, outcome]``.
            rows: index of the episode of each row, ``[row]``; by default all episodes.
        """
        return np.take_along_axis(values, self.choices[rows][..., None], -1)[..., 0]

    def sum_by_mask(self, values: Array) -> Array:
        """Add up values over each player's choices: over all of them (mask 0), and over all but
        those of fold i (mask 1 + i). The folds are four parts of the choices.

        Args:
            values: one value per choice, ``[episode, round]``.

        Returns:
            The sums, ``[player, mask]``.
        """
        n_cells = self.n_players * N_FOLDS
        by_cell = np.bincount(self._cell_of_choice, values[self.known], minlength=n_cells)
        by_fold = by_cell.reshape(self.n_players, N_FOLDS)
        total = by_fold.sum(1, keepdims=True)  # [player, 1]
        return np.concatenate([total, total - by_fold], 1)


def number_units(known: Mask, participants: Any) -> NDArray[np.int64]:
    """Return the index of the independent unit that each choice belongs to, ``[episode, round]``; 0
    where no choice was made.

    Units are participants if there are at least :data:`FEWEST_UNITS` participants. Otherwise they
    are episodes if there are at least :data:`FEWEST_UNITS` episodes. Otherwise they are blocks of
    consecutive trials, about :data:`BLOCKS` in all. Only units with a choice are numbered, so that
    rounds without a choice, such as padding, do not move the folds.

    Args:
        known: True where a choice was made, ``[episode, round]``.
        participants: name of each episode's participant, ``[episode]``; None if there are none.
    """
    n_episodes, n_rounds = known.shape
    episode_index = np.arange(n_episodes)[:, None]
    trials_a_block = max(1, int(known.sum()) // BLOCKS)
    # Blocks of trials unless there are enough episodes, and episodes unless there are enough
    # participants. A block lies within an episode.
    units = episode_index * n_rounds + np.arange(n_rounds) // trials_a_block
    if n_episodes >= FEWEST_UNITS:
        units = np.repeat(episode_index, n_rounds, 1)
    if participants is not None:
        names, participant_of_episode = np.unique(participants, return_inverse=True)
        if len(names) >= FEWEST_UNITS:
            units = np.repeat(participant_of_episode[:, None], n_rounds, 1)
    numbers = np.zeros_like(known, np.int64)
    _, numbers[known] = np.unique(units[known], return_inverse=True)
    return numbers


@dataclass(frozen=True)
class _PlayerFit:
    """A family, fitted to one player.

    A mask is a set of choices to fit to: mask 0 is all choices, each further mask leaves out one
    fold.

    Attributes:
        parameters: parameters fitted to all choices, by name.
        nats: loss of all choices, in nats per choice.
        links: link (temperature and lapse rate) fitted to each mask.
        p: probability of each outcome with the parameters fitted to each mask, ``[mask, episode,
            round, outcome]``.
    """

    parameters: Parameters
    nats: float
    links: Sequence[Link]
    p: Array = field(repr=False)


def _score_player(data: ChoiceData, family: Family, fit: _PlayerFit, player: int) -> FamilyScore:
    """Score a player's choices by cross-validation: those of each fold with the parameters that
    were fitted to the other folds.

    Args:
        data: the choices of all players.
        family: the family.
        fit: the family's fit to the player.
        player: index of the player.

    Returns:
        The score, with the held-out loss of each choice and the parameters fitted to all choices.
    """
    rows = data.rows(player)
    known = data.known[rows]
    offers = data.offers_in(rows)
    # Held-out predictions, [episode, round, outcome]; the first axis of `fit.p` is the mask.
    q = np.empty_like(fit.p[0])
    prefers = np.zeros(known.shape, np.int64)
    for fold in range(N_FOLDS):
        held_out = data.folds[rows] == fold  # [episode, round]
        training_mask = 1 + fold  # the mask that leaves out this fold
        n_training = int(data.n_choices[player, training_mask])
        p, link = fit.p[training_mask], fit.links[training_mask]
        # A choice that the other folds make impossible still has a finite loss.
        with_lapse = link.raise_lapse(n_training)
        q[held_out] = with_lapse.probabilities(p, offers)[held_out]
        # Index of the likeliest outcome; -1 where several are likeliest.
        prefers[held_out] = link.find_likeliest(p)[held_out]
    n_choices = int(data.n_choices[player, ALL_CHOICES])
    losses = np.where(known, -np.log(data.select_chosen(q, rows)), 0.0)
    link_to_all = fit.links[ALL_CHOICES].raise_lapse(n_choices)
    fitted = link_to_all.probabilities(fit.p[ALL_CHOICES], offers)
    at_bound = _list_at_bound(family, fit.parameters)
    return FamilyScore(
        key=family.key,
        name=family.name,
        memoryless=family.memoryless,
        parameters=fit.parameters,
        link=fit.links[ALL_CHOICES],
        intervals={},
        at_bound=at_bound,
        nats=fit.nats,
        fitted=fitted,
        losses=losses,
        prefers=prefers,
    )


def _list_at_bound(family: Family, parameters: Parameters) -> tuple[str, ...]:
    """Return the names of the real parameters whose fitted value lies at an end of the searched
    range.

    Args:
        family: the family, with the grid of each parameter.
        parameters: the fitted values, by name.
    """
    names = []
    for searched in family.searched:
        low, high = searched.bounds
        value = parameters[searched.name]
        distance = min(value - low, high - value)
        if searched.is_free and distance <= 1e-3 * (high - low):  # up to the precision of a fit
            names.append(searched.name)
    return tuple(names)


def score_families(
    data: ChoiceData, families: Mapping[str, Family]
) -> dict[str, list[FamilyScore]]:
    """Fit families to each player's choices by maximum likelihood, and measure their loss on
    held-out choices by cross-validation over four folds.

    Every fit starts from the best points of a grid of parameters. A family that extends a simpler
    family also starts from the fitted parameters of the simpler family, with the best grid values
    of the additional parameters (:func:`interp.choices.optimum.contained_points`). Only steps that
    lower the loss are taken, so the fit to all choices is never worse than its best start.

    Families with ``vectorised=True`` are fitted to all players at once
    (:mod:`interp.choices.optimum`). Other families can be fitted only to a single player. To save
    time, some of these are left at their best start, if its loss is far above the lowest loss on
    the grids. Far means more than 15 nats, or .03 nats per choice if this is more.

    Args:
        data: the choices; of one player unless every family is vectorised.
        families: key -> family.

    Returns:
        Key of a family -> list with one :class:`FamilyScore` per player, which has the fitted
        parameters and the held-out loss of each choice.
    """
    scores: dict[str, list[FamilyScore]] = {}
    fits: dict[str, Fit] = {}
    one_by_one = {key: family for key, family in families.items() if not family.vectorised}
    for family in _simplest_first(families):
        if not family.vectorised:
            continue
        solver = PlayerFits(data, family)
        inner = None  # (simpler family, its fit), from which this one starts
        if family.extends in fits:
            inner = families[family.extends], fits[family.extends]
        fits[family.key] = solver.solve(inner)
        scores[family.key] = _score_players(data, solver, fits[family.key])
    if one_by_one:
        require(data.n_players == 1, "families that are not vectorised are fitted to one player")
        for key, fit in _search_families(data, one_by_one).items():
            scores[key] = [_score_player(data, families[key], fit, player=0)]
    return {key: scores[key] for key in families}


def _simplest_first(families: Mapping[str, Family]) -> list[Family]:
    """Return a list of the families: first those that extend no other family, then the rest. In this
    order, the fit of a family can start from that of the family that it extends.
    """
    return sorted(families.values(), key=lambda family: bool(family.extends))


def _score_players(data: ChoiceData, solver: PlayerFits, fit: Fit) -> list[FamilyScore]:
    """Score a family that was fitted to all players at once, by cross-validation.

    Args:
        data: the choices of all players.
        solver: computes the family's predictions.
        fit: the family's fits to all players.

    Returns:
        A list with each player's score.
    """
    family = solver.family
    every_episode = np.arange(len(data.episodes))
    predictions = []
    for mask in range(len(data.masks)):  # a mask is a set of choices that was fitted to
        points_of_mask = fit.points[data.players, mask]  # [episode, parameter + lapse rate]
        predictions.append(solver.predict(every_episode, points_of_mask[:, :-1]))
    p_by_mask = np.stack(predictions)  # [mask, episode, round, outcome]
    n_outcomes = p_by_mask.shape[-1]
    # Of the links: where the family predicts all outcomes equally, the player chooses them equally.
    even = np.full(n_outcomes, 1 / n_outcomes)
    scores = []
    for player in range(data.n_players):
        points = fit.points[player]  # [mask, parameter + lapse rate]
        # A vectorised family has the temperature among its parameters, so the link's is 1.
        lapses = points[:, -1].tolist()
        links = [Link(lapse=lapse, temperature=1.0, tied=even) for lapse in lapses]
        parameters = name_values(family.searched, points[ALL_CHOICES, :-1].tolist())
        nats = fit.nats[player, ALL_CHOICES] / data.n_choices[player, ALL_CHOICES]
        player_fit = _PlayerFit(
            parameters=parameters,
            nats=float(nats),
            links=links,
            p=p_by_mask[:, data.rows(player)],
        )
        scores.append(_score_player(data, family, player_fit, player))
    return scores


# Families that are not vectorised: one member is computed at a time.


class _Search:
    """Search for the best parameters of a family for one player, for each mask (set of choices to
    fit to).

    Args:
        data: the player's choices, with the masks: all choices, and all but one fold.
        family: a family that is not vectorised.

    Attributes:
        nats: least loss found for each mask, in nats per choice.
        parameters: the parameters with that loss, for each mask.
    """

    def __init__(self, data: ChoiceData, family: Family) -> None:
        self._data = data
        self.family = family
        self._predict_member = Distributions(family, [data.episodes])
        self.nats = np.full(len(data.masks), np.inf)
        self.parameters: list[Parameters] = [{} for _ in data.masks]

    def predict(self, parameters: Parameters) -> Array:
        """Return the probability of each choice, ``[episode, round, outcome]``, under the family's
        algorithm with the given ``parameters``.
        """
        algorithm = self.family.make(**parameters)
        # Rounding can take a prediction out of [0, 1].
        by_outcome = np.clip(self._predict_member(algorithm, parameters), 0.0, 1.0)
        p = restrict_to_offers(by_outcome, self._data.offers)
        self._data.check_outcomes(p.shape[-1])
        return p

    def loss(self, parameters: Parameters, mask: int, may_lapse: bool = True) -> float:
        """Return the loss in nats per choice, with the temperature and lapse rate fitted to the
        same choices.

        Args:
            parameters: the family's parameters, by name.
            mask: index of the set of choices to fit to: :data:`ALL_CHOICES`, or 1 + i to leave out
                fold i.
            may_lapse: whether lapse rates above 0 are tried.
        """
        p = self.predict(parameters)
        return self._fit_link(p, mask, may_lapse=may_lapse).nats

    def _fit_link(self, p: Array, mask: int, may_lapse: bool = True) -> FittedLink:
        """Fit a temperature and a lapse rate with which the predictions ``p`` explain the choices
        of the mask. Lapse rates above 0 are tried only if ``may_lapse`` is True.
        """
        data = self._data
        return fit_link(
            p,
            data.choices,
            data.masks[mask],
            self.family.tempered,
            offers=data.offers,
            may_lapse=may_lapse,
        )

    def try_point(self, parameters: Parameters) -> None:
        """Store parameters for every set of choices (all, or all but one fold) on which they fit
        better than the best so far.
        """
        p = self.predict(parameters)
        for mask in range(len(self.nats)):
            nats = self._fit_link(p, mask).nats
            if nats < self.nats[mask]:
                self.nats[mask] = nats
                self.parameters[mask] = parameters

    def refine(self) -> None:
        """Improve the best parameters for each set of choices (all, or all but one fold) with a
        local optimiser.
        """
        if not self.family.searched:
            return
        starts = list(self.parameters)  # a copy: a refined point may replace those of other masks
        for mask, start in enumerate(starts):
            loss = partial(self.loss, mask=mask)
            _, refined = minimise_locally(loss, self.family.searched, start)
            self.try_point(refined)

    def result(self) -> _PlayerFit:
        """Return the best fit found, with temperature, lapse rate and predictions for each mask
        (set of choices to fit to).
        """
        predictions = [self.predict(parameters) for parameters in self.parameters]
        p = np.stack(predictions)  # [mask, episode, round, outcome]
        links = [self._fit_link(p[mask], mask).link for mask in range(len(p))]
        nats = float(self.nats[ALL_CHOICES])
        return _PlayerFit(parameters=self.parameters[ALL_CHOICES], nats=nats, links=links, p=p)


def _search_families(data: ChoiceData, families: Mapping[str, Family]) -> dict[str, _PlayerFit]:
    """Fit families to one player, one algorithm at a time: first on each family's grid of
    parameters, then by an optimiser.

    The optimiser is left out for families whose loss on the grid is far above the lowest loss of
    all families (:data:`_FAR_IN_NATS`, :data:`_FAR_PER_CHOICE`).

    Args:
        data: the player's choices.
        families: key -> family.

    Returns:
        Key of a family -> its fit.
    """
    searches = {}
    for key, family in families.items():
        searches[key] = _Search(data, family)
        searched = put_memory_parameters_first(family)  # the grid's last parameter changes fastest
        for point in list_grid_points(searched):
            searches[key].try_point(name_values(searched, point))
    # The lowest loss of all families on the grid.
    lowest = min(search.nats[ALL_CHOICES] for search in searches.values())
    n_choices = data.n_choices[0, ALL_CHOICES]  # of the only player, whose index is 0
    # In nats per choice, as the losses are. Only a family beyond both limits is not refined.
    highest_refined = lowest + max(_FAR_IN_NATS / n_choices, _FAR_PER_CHOICE)
    for family in _simplest_first(families):
        search = searches[family.key]
        if family.extends in searches:
            # Then the family fits at least about as well as the simpler one that it extends.
            _try_contained(search, searches[family.extends])
        if search.nats[ALL_CHOICES] <= highest_refined:
            search.refine()
    return {key: search.result() for key, search in searches.items()}


def _try_contained(search: _Search, inner: _Search) -> None:
    """Try parameters of a family with which it equals, or nearly equals, a simpler family with its
    best parameters (:func:`~interp.choices.optimum.contained_points`).

    Args:
        search: the search of the family, which stores parameters that fit better than before.
        inner: the search of the simpler family.
    """
    for point in contained_points(search.family, inner.family):
        for inner_parameters in inner.parameters:
            parameters = {}
            for searched in search.family.searched:
                value = point[searched.name]
                if isinstance(value, str):  # the name of a parameter of the simpler family
                    value = inner_parameters[value]
                low, high = searched.bounds
                parameters[searched.name] = min(max(value, low), high)
            search.try_point(parameters)


def score_guess(data: ChoiceData, n_outcomes: int) -> list[FamilyScore]:
    """Score a constant guess for each player: the frequency of each outcome among the player's
    choices, the same in every round.

    Args:
        data: the choices of all players.
        n_outcomes: number of outcomes, or of slots if rounds offer different options.

    Returns:
        One score per player.
    """
    guess = Family(GUESS, "a guess, the same in every round", make=_no_algorithm, memoryless=True)
    # Uniform predictions are ties, so that the fitted link has the frequencies of the outcomes.
    even = guess_uniformly((*data.known.shape, n_outcomes), data.offers)
    return [_score_fixed(data, guess, even, player) for player in range(data.n_players)]


def score_predictions(data: ChoiceData, key: str, p: Array) -> FamilyScore:
    """Score fixed predictions of one player's choices, such as those of a network. Only temperature
    and lapse rate, which map predictions to choices, are fitted.

    Args:
        data: the player's choices.
        key: key of the returned score.
        p: probability of each outcome, ``[episode, round, outcome]``.

    Returns:
        The score, with the held-out loss of every choice.
    """
    fixed = Family(key, key, make=_no_algorithm)
    return _score_fixed(data, fixed, restrict_to_offers(p, data.offers), player=0)


def _score_fixed(data: ChoiceData, family: Family, p: Array, player: int) -> FamilyScore:
    """Score fixed predictions of one player's choices. They have no parameters; only the link
    (temperature and lapse rate) is fitted, by cross-validation.

    Args:
        data: the choices of all players.
        family: a family without parameters; the score gets its key and name.
        p: predicted distributions for all players, ``[episode, round, outcome]``.
        player: index of the player.
    """
    rows = data.rows(player)
    player_p, choices = p[rows], data.choices[rows]
    fit_link_to = partial(fit_link, player_p, choices, tempered=False, offers=data.offers_in(rows))
    link_fits = [fit_link_to(mask[rows]) for mask in data.masks]
    links = [link_fit.link for link_fit in link_fits]
    # Without parameters, the predictions are the same for all masks.
    p_by_mask = np.repeat(player_p[None], len(link_fits), 0)
    nats = link_fits[ALL_CHOICES].nats
    player_fit = _PlayerFit(parameters={}, nats=nats, links=links, p=p_by_mask)
    return _score_player(data, family, player_fit, player)


def _no_algorithm() -> Algorithm:
    raise NotImplementedError("a guess has no algorithm")


# Intervals.


def add_intervals(
    data: ChoiceData, family: Family, scores: Mapping[int, FamilyScore]
) -> dict[int, FamilyScore]:
    """Add a 95 % profile likelihood interval of each real-valued parameter of a family to players'
    scores.

    A profile is the least loss at each value of one parameter. If ``family.vectorised`` is True, an
    optimiser refits the other parameters at each value. Otherwise, the other real-valued parameters
    are searched on a grid that is finer near their best values, and the rest stay at theirs.

    Args:
        data: the choices of all players.
        family: the family that was scored.
        scores: index of a player -> the player's score.

    Returns:
        Index of a player -> the score with intervals.
    """
    if family.vectorised:
        return _add_profiles(data, family, scores)
    return {player: _add_grid_intervals(data, family, score) for player, score in scores.items()}


def _values_around(searched: Searched, best: float, n_steps: int) -> Array:
    """Return values of a parameter at which its loss is computed for an interval, ``[2, n_steps]``.
    They run from the best value to the lower bound, and from the best value to the upper bound.

    The values are closer together near the best value.

    Args:
        searched: the parameter with its bounds.
        best: the best value.
        n_steps: number of values on each side.
    """
    shares = np.linspace(0, 1, n_steps) ** 2  # of the way to the bound; squares are dense near 0
    return np.array([best + (bound - best) * shares for bound in searched.bounds])


def _add_profiles(
    data: ChoiceData, family: Family, scores: Mapping[int, FamilyScore]
) -> dict[int, FamilyScore]:
    """Return the players' scores with 95 % profile likelihood intervals. The ends of the intervals
    of all players and parameters are searched together.

    Args:
        data: the choices of all players.
        family: a vectorised family.
        scores: index of a player -> the player's score.
    """
    free = [index for index, searched in enumerate(family.searched) if searched.is_free]
    # (player, index of a parameter, 0 for its lower bound and 1 for its upper one)
    sought_ends = list(product(scores, free, (0, 1)))
    if not sought_ends:
        return dict(scores)
    best = []
    bounds = []
    for player, index, side in sought_ends:
        score = scores[player]
        best.append([*score.parameters.values(), score.link.lapse])
        bounds.append(family.searched[index].bounds[side])
    points = np.array(best)  # [end, parameter + lapse rate]
    players, indices, _ = np.transpose(sought_ends)
    profile = partial(PlayerFits(data, family).profiles, players, points, indices)
    best_values = points[np.arange(len(points)), indices]  # of the parameter of each end
    ends = _find_profile_ends(profile, best=best_values, bounds=np.array(bounds))
    low_high_pairs = ends.reshape(-1, 2)
    with_intervals = dict(scores)
    # The two ends of an interval follow each other: every second one begins an interval.
    intervals = zip(sought_ends[::2], low_high_pairs.tolist(), strict=True)
    for (player, index, _), (low, high) in intervals:
        name = family.searched[index].name
        score = with_intervals[player]
        interval = Interval(score.parameters[name], low, high)
        with_intervals[player] = replace(score, intervals={**score.intervals, name: interval})
    return with_intervals


def _find_profile_ends(profile: Callable[[Array], Array], *, best: Array, bounds: Array) -> Array:
    """Search for one end of each of several 95 % profile likelihood intervals.

    The end is the parameter value at which the profile (the least loss at each value of the
    parameter) is :data:`HALF_CHI2` above its minimum. If the profile does not rise that far before
    the bound, the end is the bound.

    Args:
        profile: function from values of the parameter to the least loss at each, both ``[profile,
            value]``.
        best: the value of the parameter at the minimum, ``[profile]``.
        bounds: lower or upper bound of the parameter, ``[profile]``: the one in whose direction the
            end is searched.

    Returns:
        The ends, ``[profile]``.
    """
    rows = np.arange(len(best))
    shares = np.linspace(0, 1, _N_PARTS + 1) ** 2  # denser near the best value, as most ends are
    minimum = profile(best[:, None])
    # The end lies between `near` (inside the interval) and `far` (outside it, or the bound). Each
    # zoom computes the profile between them, and keeps the part of this range that has the end.
    near, far = best, bounds
    near_root = np.zeros(len(best))  # the root of the rise: 0 at the best value, 1 at the end
    for _ in range(_N_ZOOMS):
        values = near[:, None] + np.outer(far - near, shares)  # [profile, value]
        rise = profile(values[:, 1:]) - minimum
        far_roots = np.sqrt(np.maximum(rise, 0) / HALF_CHI2)
        roots = np.column_stack([near_root, far_roots])
        last_inside = np.where(roots <= 1, np.arange(_N_PARTS + 1), 0).max(1)
        first_outside = np.minimum(last_inside + 1, _N_PARTS)
        near, far = values[rows, last_inside], values[rows, first_outside]
        near_root, far_root = roots[rows, last_inside], roots[rows, first_outside]
    # Near its minimum the loss rises like a square, so the root of the rise is nearly a straight
    # line, which can be interpolated.
    step = (1 - near_root) / (far_root - near_root + _LEAST_RISE)
    return near + (far - near) * step


def _add_grid_intervals(data: ChoiceData, family: Family, score: FamilyScore) -> FamilyScore:
    """Return the score of the only player with 95 % profile likelihood intervals, from the losses on
    a joint grid of all parameters.

    Args:
        data: the player's choices.
        family: a family that is not vectorised.
        score: the player's score.
    """
    search = _Search(data, family)
    searched = put_memory_parameters_first(family)  # in `product`, the last one changes fastest
    n_free = sum(parameter.is_free for parameter in searched)
    grids = []
    for parameter in searched:
        best = score.parameters[parameter.name]
        n_a_side = _N_VALUES_A_SIDE.get(n_free, 3)  # few, since the joint grid has their product
        values = _values_around(parameter, best, n_a_side) if parameter.is_free else [best]
        grids.append(np.unique(values).tolist())
    # If no lapse rate was worth its penalty at the best parameters, none is tried at the others.
    may_lapse = score.link.lapse > 0
    losses = []
    for point in product(*grids):
        parameters = name_values(searched, point)
        losses.append(search.loss(parameters, mask=ALL_CHOICES, may_lapse=may_lapse))
    grid_shape = [len(grid) for grid in grids]  # one axis per parameter
    n_choices = data.n_choices[0, ALL_CHOICES]  # of the only player, whose index is 0
    nats = np.reshape(losses, grid_shape) * n_choices  # `losses` are per choice
    intervals = {}
    for axis, (parameter, grid) in enumerate(zip(searched, grids, strict=True)):
        if not parameter.is_free:
            continue
        other_axes = tuple(i for i in range(len(grids)) if i != axis)
        profile = nats.min(other_axes)  # least loss at each value of this parameter
        # The limit that ends an interval is another one at temperature 0.
        ends = interpolate_profile_ends(np.array(grid), profile, score.link.temperature)
        intervals[parameter.name] = Interval(score.parameters[parameter.name], *ends)
    return replace(score, intervals=intervals)
