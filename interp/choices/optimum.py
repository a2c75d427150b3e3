"""Fit a family of algorithms to many players at once, each player by maximum likelihood.

A *problem* is one fit: a player, the subset of its choices to fit to, and bounds of the parameters.
All problems are solved in parallel by Fisher scoring. This is Newton's method with the expected
information, which is never indefinite, in place of the matrix of second derivatives::

    information = sum over choices of sum_k dq_k dq_k^T / q_k        step = -(information + damping)^-1 gradient

Here q is the probability of each outcome and dq its gradient with respect to the parameters, from
finite differences. Only steps that lower the loss are taken, and a parameter at a bound does not
move beyond it. So a fit never ends worse than its start. It finds a local optimum near the start; a
better one may exist elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.choices.fitting import (
    Array,
    OnDemand,
    affects_prediction_only,
    list_grid_points,
    name_values,
)
from interp.choices.link import HALF_CHI2
from interp.choices.offers import guess_uniformly, restrict_to_offers
from interp.core.algorithm import Algorithm, Family, Values, missing_rounds
from interp.support.checks import checked_result

ALL_CHOICES = 0
"""Index of the mask (set of choices to fit to) with all choices. The mask 1 + i omits fold i."""
LAPSES = (0.0, 0.05, 0.15, 0.35)
"""Lapse rates (shares of uniform guesses) that are tried at every point of the grid."""

Rows = NDArray[np.int64]

_FIRST_DAMPING, _DAMPING_FACTOR = 1e-3, 10.0
"""First damping, as a share of the information's diagonal; factor by which a step changes it."""
_MOST_STEPS, _FEW_STEPS = 25, 5
"""Most steps of a fit to all choices, and of a fit to folds, which begins near its optimum."""
_STARTS = 4
"""Most starting points of a fit to all choices, each with another value of the first parameter."""
_SMALL_GAIN = 1e-4
"""A fit ends when a step lowers the loss of all choices by fewer nats, or is expected to."""
_DIFFERENCE = 1e-6
"""Step of a finite difference, as a share of the distance between a parameter's bounds."""
_TINY = 1e-12
"""Least probability of a choice, and least number on the diagonal of a matrix to invert."""
_SMALL_LAPSES = (0.01, 0.05)
"""Lapse rates that are tried at the best parameters for lapse rate 0."""
_ROUNDS_AT_ONCE = 200_000
"""Most rounds (over all episodes) that are computed at once; more only take more memory."""


class RowPredictor:
    """Predictions of a family of algorithms with different parameters for each row. A row is a copy
    of an episode, so that one episode can be predicted with many parameters at once.

    Args:
        data: the choices with their episodes.
        family: a family with ``vectorised=True``: its algorithms accept arrays of parameters.

    Attributes:
        low, high: least and largest value of each parameter, ``[parameter]``, in the order in which
            the family lists its parameters (``family.searched``).
    """

    def __init__(self, data: Any, family: Family) -> None:
        self.family = family
        self._data = data
        bounds = np.array([searched.bounds for searched in family.searched], np.float64)
        self.low, self.high = bounds.reshape(-1, 2).T  # reshaped: without parameters it is empty
        example = self._make_member(self.low)  # all members read the same inputs
        self._start = example.start(data.episodes)
        self._inputs = example.read(data.episodes)
        self._missing = missing_rounds(data.episodes)

    def __call__(self, rows: Rows, values: Array) -> Array:
        """Return the probability of each outcome, ``[row, round, outcome]``; of each offered option
        if not all outcomes are offered. A row is a copy of an episode.

        Args:
            rows: index of the episode that each row copies, ``[row]``.
            values: parameters of each row, ``[row, parameter]``, in the order of the family's
                parameters (``family.searched``).
        """
        parameters = values.T  # [parameter, row]: one value per row, as the states of a round have
        states = self._run_states(self._make_member(parameters), rows)
        # [parameter, row, 1]: the last axis is broadcast over the rounds of a prediction.
        return self._read_out(self._make_member(parameters[..., None]), rows, states)

    def predict_grid(self, rows: Rows) -> Iterator[tuple[Array, Array]]:
        """Yield the points of the family's grid of parameters one by one, each with the predictions
        that it gives for all rows. A row is a copy of an episode.

        Points that differ only in parameters of the prediction have the same carried states, so
        these are computed only once.

        Args:
            rows: index of the episode that each row copies, ``[row]``.

        Yields:
            A pair: the values of the parameters, ``[parameter]``; and the probability of each
            outcome, ``[row, round, outcome]``, or of each offered option if not all are offered.
        """
        example = self._make_member(self.low)
        is_read_out = [affects_prediction_only(example, s) for s in self.family.searched]
        grids = [searched.grid for searched in self.family.searched]
        # Two grids with the same axes; in each, the parameters of the other one have a single value,
        # which has no effect.
        state_grids = []
        read_out_grids = []
        for grid, is_of_read_out in zip(grids, is_read_out, strict=True):
            state_grids.append(grid[:1] if is_of_read_out else grid)
            read_out_grids.append(grid if is_of_read_out else (np.nan,))
        for state_point in product(*state_grids):
            states = self._run_states(self._make_member(np.array(state_point)), rows)
            for read_out_point in product(*read_out_grids):
                point = np.where(is_read_out, read_out_point, state_point)
                yield point, self._read_out(self._make_member(point), rows, states)

    def _make_member(self, values: Array) -> Algorithm:
        """Return the family's algorithm with these parameters.

        Args:
            values: values of the family's parameters: ``[parameter]``; or ``[parameter, row]`` or
                ``[parameter, row, 1]`` if they differ between rows.
        """
        return self.family.make(**name_values(self.family.searched, values))

    def _run_states(self, algorithm: Algorithm, rows: Rows) -> Values:
        """Return the algorithm's inputs, and its states before every round, by key, ``[row, round,
        ...]``. A row is a copy of an episode.

        Args:
            algorithm: the algorithm, with one value per row of each parameter.
            rows: index of the episode of each row, ``[row]``.
        """
        inputs = {key: array[rows] for key, array in self._inputs.items()}
        start = {key: array[rows] for key, array in self._start.items()}
        missing = None if self._missing is None else self._missing[rows]
        n_rounds = self._data.episodes.n_rounds
        states = algorithm.unroll(
            start, inputs, n_episodes=len(rows), n_rounds=n_rounds, missing=missing
        )
        return {**inputs, **states}

    def _read_out(self, algorithm: Algorithm, rows: Rows, states: Values) -> Array:
        """Return the predictions of scored rounds from inputs and states, ``[row, round, outcome]``;
        of each offered option if not all outcomes are offered. A row is a copy of an episode.
        """
        p = np.asarray(algorithm.distribution(OnDemand(algorithm, states)), np.float64)
        predicted = np.clip(p[:, self._data.first_asked :], 0.0, 1.0)
        return restrict_to_offers(predicted, self._data.offers_in(rows))


@dataclass(frozen=True)
@checked_result
class Problems:
    """Many fits of one family of algorithms, which are solved in parallel.

    A problem is one fit of the family's parameters to choices of one player: to all choices (mask
    0), or to all but those of fold i (mask 1 + i). A point is a value for every parameter and, at
    the end, for the lapse rate (share of uniform guesses).

    Attributes:
        data: the choices with their episodes, :class:`~interp.choices.scoring.ChoiceData`.
        predict: computes the family's predictions.
        players: index of the player of each problem, ``[problem]``.
        masks: number of the mask of each problem (choices to fit to), ``[problem]``.
        low, high: bounds of each problem's parameters and, in the last column, of its lapse rate,
            ``[problem, parameter + 1]``. A parameter with equal bounds is fixed.
    """

    data: Any
    predict: RowPredictor
    players: Rows
    masks: Rows
    low: Array
    high: Array

    def _list_rows(self, chosen: Rows) -> tuple[Rows, Rows, NDArray[np.bool_]]:
        """Return the rows (copies of episodes) on which some fits ("problems") are computed. Each
        problem needs all episodes of its player.

        Args:
            chosen: indices of the problems.

        Returns:
            The index of each row's episode, ``[row]``; the position in ``chosen`` of each row's
            problem, ``[row]``; and which choices count, ``[row, round]``.
        """
        rows_by_problem = [self.data.rows(player) for player in self.players[chosen]]
        rows = np.concatenate(rows_by_problem)
        n_rows = [len(part) for part in rows_by_problem]
        problem_of_row = np.repeat(np.arange(len(chosen)), n_rows)
        mask_of_row = self.masks[chosen][problem_of_row]
        return rows, problem_of_row, self.data.masks[mask_of_row, rows]

    def nats(self, chosen: Rows, points: Array) -> Array:
        """Compute the loss of several problems, each at one point. A problem is a fit of the
        family's parameters to choices of one player.

        Args:
            chosen: indices of the problems, ``[problem]``.
            points: values of the parameters and, in the last column, of the lapse rate (share of
                uniform guesses) for each of these problems, ``[problem, parameter + 1]``.

        Returns:
            Minus the log of the probability of the choices to fit to, summed over these choices, in
            nats, ``[problem]``.
        """
        rows, problem_of_row, is_fitted = self._list_rows(chosen)
        p = self.predict(rows, points[problem_of_row, :-1])
        guess = guess_uniformly(p.shape, self.data.offers_in(rows))
        lapse = points[problem_of_row, -1:, None]  # [row, 1, 1]
        q = _mix_with_guess(p, lapse, guess)
        losses = -np.log(self.data.select_chosen(q, rows))
        return _sum_by_problem(losses * is_fitted, problem_of_row)

    def derivatives(self, chosen: Rows, points: Array) -> tuple[Array, Array, Array]:
        """Compute loss, gradient and expected (Fisher) information of several problems, each at one
        point. A problem is a fit of the family's parameters to choices of one player.

        To save memory, at most about 200,000 rounds are computed at once.

        Args:
            chosen: indices of the problems, ``[problem]``.
            points: values of the parameters and, in the last column, of the lapse rate (share of
                uniform guesses) for each of these problems, ``[problem, parameter + 1]``.

        Returns:
            The loss (sum over choices, in nats), ``[problem]``; its gradient, ``[problem, parameter
            + 1]``; and the information, ``[problem, parameter + 1, parameter + 1]``.
        """
        # A problem predicts its player's rounds at the point, and at one more point per parameter.
        n_points = points.shape[1]
        rounds_a_problem = self.data.known.size / self.data.n_players * n_points
        n_at_once = max(1, int(_ROUNDS_AT_ONCE / rounds_a_problem))
        parts = []
        for first in range(0, len(chosen), n_at_once):
            part = slice(first, first + n_at_once)
            parts.append(self._derivatives_at_once(chosen[part], points[part]))
        nats, gradient, information = map(np.concatenate, zip(*parts, strict=True))
        return nats, gradient, information

    def _derivatives_at_once(self, chosen: Rows, points: Array) -> tuple[Array, Array, Array]:
        """Return loss, gradient and expected information of some fits ("problems"), all of them
        computed at once.

        Args:
            chosen: indices of the problems.
            points: parameters and, last, the lapse rate (share of guesses) of each, ``[problem,
                parameter + 1]``.

        Returns:
            The same arrays as :meth:`derivatives`.
        """
        # For each row: the episode it copies, its problem, and which rounds are fitted to.
        rows, problem_of_row, is_fitted = self._list_rows(chosen)
        # `slopes` has the derivatives dq / d parameter, of the probability q after mixing with
        # guesses: one array [row, round, outcome] for each parameter.
        p, slopes = self._differentiate(rows, problem_of_row, points)
        guess = guess_uniformly(p.shape, self.data.offers_in(rows))
        slope_of_lapse = guess - p  # q = lapse * guess + (1 - lapse) * p
        slopes.append(slope_of_lapse)
        lapse = points[problem_of_row, -1:, None]  # [row, 1, 1]
        q = _mix_with_guess(p, lapse, guess)  # [row, round, outcome]
        chosen_q = self.data.select_chosen(q, rows)
        n_slopes = len(slopes)
        gradient = np.zeros((len(chosen), n_slopes))
        information = np.zeros((len(chosen), n_slopes, n_slopes))
        for i, slope in enumerate(slopes):
            slope_of_log_q = self.data.select_chosen(slope, rows) / chosen_q  # [row, round]
            gradient[:, i] = _sum_by_problem(-slope_of_log_q * is_fitted, problem_of_row)
            # Fisher information of a choice: sum over outcomes of dq/d_i * dq/d_j / q.
            scaled = slope * is_fitted[..., None] / q
            for j in range(i, n_slopes):
                products = np.einsum("rtk,rtk->rt", scaled, slopes[j])  # summed over outcomes
                information[:, i, j] = _sum_by_problem(products, problem_of_row)
                information[:, j, i] = information[:, i, j]
        nats = _sum_by_problem(-np.log(chosen_q) * is_fitted, problem_of_row)
        return nats, gradient, information

    def _differentiate(
        self, rows: Rows, problem_of_row: Rows, points: Array
    ) -> tuple[Array, list[Array]]:
        """Return the family's probabilities, and the derivatives of the probabilities after mixing
        with uniform guesses.

        Args:
            rows: index of the episode of each row, ``[row]``.
            problem_of_row: position of the problem of each row, ``[row]``.
            points: parameters and, last, the lapse rate (share of guesses) of each problem,
                ``[problem, parameter + 1]``.

        Returns:
            The probabilities, and a list with the derivative for each parameter, but not for the
            lapse rate; each array is ``[row, round, outcome]``.
        """
        steps = self._difference_steps(points)
        n_parameters = steps.shape[1]
        # The point itself, then one point per parameter, with a step of this parameter.
        points_to_predict = [points[:, :-1]]
        for parameter in range(n_parameters):
            moved_points = points[:, :-1].copy()
            moved_points[:, parameter] += steps[:, parameter]
            points_to_predict.append(moved_points)
        n_points = len(points_to_predict)
        row_values = np.concatenate(
            [parameters[problem_of_row] for parameters in points_to_predict]
        )
        p_at_points = self.predict(np.tile(rows, n_points), row_values)
        p, *p_after_steps = np.split(p_at_points, n_points)  # each [row, round, outcome]
        share_without_guess = 1 - points[problem_of_row, -1:, None]  # 1 - lapse rate, [row, 1, 1]
        slopes = []
        for parameter, p_after_step in enumerate(p_after_steps):
            step = steps[problem_of_row, parameter, None, None]
            change = share_without_guess * (p_after_step - p)
            slopes.append(change / np.where(step == 0, 1.0, step))  # 0 for a fixed parameter
        return p, slopes

    def _difference_steps(self, points: Array) -> Array:
        """Return the step of each finite difference, ``[problem, parameter]``. Next to a
        parameter's upper bound the step is negative; 0 if its grid has a single value.

        Args:
            points: parameters and, last, the lapse rate of each problem, ``[problem, parameter +
                1]``.
        """
        sizes = _DIFFERENCE * (self.predict.high - self.predict.low)
        is_beyond = points[:, :-1] + sizes > self.predict.high
        return np.where(is_beyond, -sizes, sizes)


def _mix_with_guess(chances: Array, lapse: Any, guess: Array) -> Array:
    """Mix the probabilities of choices with uniform guesses, and return the mixture in the shape of
    ``chances``.

    Args:
        chances: probabilities without guesses.
        lapse: share of guesses.
        guess: probabilities of a guess.
    """
    mixed = lapse * guess + (1 - lapse) * chances
    return np.maximum(mixed, _TINY)  # so that its log is finite


def _sum_by_problem(values: Array, problem_of_row: Rows) -> Array:
    """Sum values over the rows (copies of episodes) and rounds of each problem (fit), and return
    the sums, ``[problem]``.

    Args:
        values: the values to add, ``[row, round]``.
        problem_of_row: index of the problem of each row, ``[row]``; ascending from 0.
    """
    return np.bincount(problem_of_row, values.sum(1)).astype(np.float64)


def minimise(
    problems: Problems, starts: Array, most_steps: int = _MOST_STEPS
) -> tuple[Array, Array]:
    """Minimise the loss of each problem (the fit of a family to one player's choices) by damped
    Newton steps. The damping is adapted for each problem (Levenberg and Marquardt).

    Args:
        problems: the problems to solve.
        starts: starting point of each problem, within its bounds: values of the parameters and, in
            the last column, of the lapse rate (share of uniform guesses), ``[problem, parameter +
            1]``.
        most_steps: maximum number of steps.

    Returns:
        The best points found, in the shape of ``starts``, and their losses, ``[problem]``.
    """
    active = np.arange(len(starts))
    points = starts.copy()
    nats, gradient, information = problems.derivatives(active, points)
    damping = np.full(len(starts), _FIRST_DAMPING)
    for _ in range(most_steps):
        # Arrays of this step have one entry per active problem, those from before the loop one per
        # problem.
        low, high = problems.low[active], problems.high[active]
        step = _newton_step(
            gradient[active],
            information[active],
            points[active],
            bounds=(low, high),
            damping=damping[active],
        )
        moved_points = np.clip(points[active] + step, low, high)
        new_nats, new_gradient, new_information = problems.derivatives(active, moved_points)
        gain = nats[active] - new_nats
        is_lower = gain > 0
        improved = active[is_lower]  # only these problems take the step
        points[improved], nats[improved] = moved_points[is_lower], new_nats[is_lower]
        gradient[improved] = new_gradient[is_lower]
        information[improved] = new_information[is_lower]
        damping[active] *= np.where(is_lower, 1 / _DAMPING_FACTOR, _DAMPING_FACTOR)
        # A problem is done once its steps gain nearly nothing. For a step that was refused, what
        # counts is what it promised: to first order, minus its product with the gradient.
        expected_gain = -(gradient[active] * step).sum(1)
        is_done = np.where(is_lower, gain, expected_gain) < _SMALL_GAIN
        active = active[~is_done]
        if not len(active):
            break
    return points, nats


def _newton_step(
    gradient: Array,
    information: Array,
    points: Array,
    *,
    bounds: tuple[Array, Array],
    damping: Array,
) -> Array:
    """Return a damped Newton step, ``[problem, parameter + 1]``. A parameter at a bound does not
    move if the step would take it beyond the bound.

    Args:
        gradient: gradient of the loss, ``[problem, parameter + 1]``.
        information: expected information, ``[problem, parameter + 1, parameter + 1]``.
        points: parameters and, last, the lapse rate, ``[problem, parameter + 1]``.
        bounds: least and largest values, each in the shape of ``points``.
        damping: share of the information's diagonal that is added to the diagonal, ``[problem]``.
    """
    low, high = bounds
    # The step goes against the gradient: at a lower bound, a positive gradient would lead below it.
    is_stopped_low = (points <= low) & (gradient >= 0)
    is_stopped_high = (points >= high) & (gradient <= 0)
    is_free = ~(is_stopped_low | is_stopped_high)
    both_free = is_free[:, :, None] & is_free[:, None, :]
    diagonal = np.einsum("nii->ni", information)  # [problem, parameter + 1]
    # `_TINY` keeps the matrix invertible if the information about a parameter is 0.
    damping_term = (damping[:, None] + _TINY) * diagonal + _TINY
    # The row and the column of a parameter at a bound become those of the identity, so that its step
    # is 0.
    matrix = np.where(both_free, information, 0.0)
    diagonal_of_matrix = np.einsum("nii->ni", matrix)  # a view: adding to it changes the matrix
    diagonal_of_matrix += np.where(is_free, damping_term, 1.0)
    downhill = np.where(is_free, -gradient, 0.0)
    return np.linalg.solve(matrix, downhill[..., None])[..., 0]


@dataclass(frozen=True)
@checked_result
class Fit:
    """The best parameters of a family for every player and mask.

    A mask is the set of the player's choices that the parameters were fitted to. Mask 0 contains
    all choices, mask 1 + i all but those of fold i.

    Attributes:
        points: values of the parameters and, at the end, of the lapse rate (share of uniform
            guesses), ``[player, mask, parameter + 1]``.
        nats: loss of the mask's choices (minus the log of their probability), summed, in nats,
            ``[player, mask]``. A lapse rate above 0 adds a penalty of 1.92 nats.
    """

    points: Array
    nats: Array

    def take_better(self, other: Fit) -> Fit:
        """Combine two fits: for every player and mask (set of choices to fit to), take the
        parameters with the lower loss. If the losses are equal, take those of ``self``.

        Args:
            other: the other fit, with the same players and masks.
        """
        is_better = other.nats < self.nats
        points = np.where(is_better[..., None], other.points, self.points)
        return Fit(points, np.minimum(self.nats, other.nats))


class PlayerFits:
    """The fits of one family of algorithms to all players, which :meth:`solve` computes.

    The loss is minus the log of the probability of the choices, in nats. A lapse rate (share of
    uniform guesses) above 0 adds a penalty of 1.92 nats (:data:`HALF_CHI2`). So it is used only if
    it lowers the loss by more than this.

    A fit takes these steps:

    1. The loss is computed at all points of a grid, with lapse rate 0 and with lapse rates above 0.
    2. Fisher scoring (damped Newton steps) starts from the best grid points with lapse rate 0.
    3. It also starts from the best known point with a lapse rate above 0, unless even its loss
       without the penalty is no lower than the result of step 2.
    4. Of the results of steps 2 and 3, the one with the lower loss, including the penalty, is taken.

    Args:
        data: the choices with their episodes, :class:`~interp.choices.scoring.ChoiceData`.
        family: a family with ``vectorised=True``: its algorithms accept arrays of parameters.
    """

    def __init__(self, data: Any, family: Family) -> None:
        self._data = data
        self.family = family
        self.predict = RowPredictor(data, family)

    def solve(self, inner: tuple[Family, Fit] | None = None) -> Fit:
        """Fit the family to every player and mask (all choices, or all but one fold).

        Args:
            inner: a simpler family, which this one contains as a special case, and its fit. On all
                choices (mask 0) the result is never worse than this fit.

        Returns:
            The best parameters, and their losses on the choices that they were fitted to (not on
            the fold that is left out), for every player and mask.
        """
        starts, with_lapse = self._fit_grid()
        if inner is not None:
            contained = self._fit_from_simpler(*inner)
            starts.append(_restrict_to_lapse(contained, is_lapse=False))
            with_lapse = with_lapse.take_better(_restrict_to_lapse(contained, is_lapse=True))
        n_masks = len(self._data.masks)
        masks = np.arange(n_masks)
        # For all choices the improved starts, for the other masks only the best start.
        whole = self._minimise_whole(starts)
        # The best point on all choices is a good start for the masks that omit a fold.
        # Axes are [player, mask, parameter + 1].
        points_of_whole = np.repeat(whole.points[:, :1], n_masks, 1)
        near_whole = whole.take_better(self._evaluate(points_of_whole, masks))
        omits_fold = np.broadcast_to(masks != ALL_CHOICES, near_whole.nats.shape)
        without_lapse = self._minimise(
            near_whole, omits_fold, most_lapse=0.0, most_steps=_FEW_STEPS
        )
        # `with_lapse` has starts of the grid and of the simpler family so far. The best points
        # without a lapse rate are starts, too, once they are given a small one.
        for lapse in _SMALL_LAPSES:
            points = without_lapse.points.copy()
            points[..., -1] = lapse
            with_lapse = with_lapse.take_better(self._evaluate(points, masks))
        # The losses with a lapse rate include the penalty. A search can lower them further, so they
        # are compared without it: the search is left out where even that loss is not lower.
        may_save = with_lapse.nats < without_lapse.nats + HALF_CHI2
        if not may_save.any():
            return without_lapse
        return without_lapse.take_better(self._minimise(with_lapse, may_save, most_lapse=1.0))

    def _fit_grid(self) -> tuple[list[Fit], Fit]:
        """Compute the loss at every point of the family's grid of parameters, for every player and
        mask (set of choices to fit to).

        Returns:
            The best points with lapse rate 0, one fit for each value of the first parameter; and
            the best points with a lapse rate above 0.
        """
        data = self._data
        shape = (data.n_players, len(data.masks))
        n_parameters = len(self.family.searched)
        no_fit = Fit(np.zeros((*shape, n_parameters + 1)), np.full(shape, np.inf))
        # (value of the first parameter,) -> best fit with this value
        without_lapse: dict[tuple[float, ...], Fit] = {}
        with_lapse = no_fit
        rows = np.arange(len(data.episodes))
        for point, p in self.predict.predict_grid(rows):
            data.check_outcomes(n_outcomes=p.shape[-1])
            chances = data.select_chosen(p)
            guess = data.select_chosen(guess_uniformly(p.shape, data.offers))
            for lapse in LAPSES:
                q = _mix_with_guess(chances, lapse, guess)
                points = np.broadcast_to([*point, lapse], no_fit.points.shape)
                fit = Fit(points, data.sum_by_mask(-np.log(q)) + _lapse_penalty(lapse))
                if lapse:
                    with_lapse = with_lapse.take_better(fit)
                else:
                    first_value = tuple(point[:1])  # () for a family without parameters
                    best = without_lapse.get(first_value, no_fit)
                    without_lapse[first_value] = best.take_better(fit)
        return list(without_lapse.values()), with_lapse

    def _fit_from_simpler(self, inner: Family, fit: Fit) -> Fit:
        """Return starting points with which this family equals, or nearly equals, a simpler family
        with its fitted parameters.

        :func:`contained_points` lists the candidates. For each player the one with the lowest loss
        on all choices (mask 0) is returned. The losses of other masks are set to infinity.

        Args:
            inner: the simpler family, which this one extends.
            fit: the fit of ``inner`` to all players.
        """
        n_players, n_masks = fit.nats.shape
        inner_points = fit.points[:, ALL_CHOICES]  # [player, inner parameter + 1]
        point = np.zeros((n_players, len(self.family.searched) + 1))
        whole = np.array([ALL_CHOICES])  # only fits to all choices are computed
        best = Fit(point[:, None], np.full((n_players, 1), np.inf))  # [player, 1, parameter + 1]
        point[:, -1] = inner_points[:, -1]  # the lapse rate
        inner_names = [searched.name for searched in inner.searched]
        # Each pass fills `point` anew; `take_better` copies the points that it takes.
        for options in contained_points(self.family, inner):
            for column, searched in enumerate(self.family.searched):
                value = options[searched.name]
                if isinstance(value, str):  # the name of a parameter of the simpler family
                    point[:, column] = inner_points[:, inner_names.index(value)]
                else:
                    point[:, column] = value
            point[:, :-1] = point[:, :-1].clip(self.predict.low, self.predict.high)
            best = best.take_better(self._evaluate(point[:, None], masks=whole))
        # Masks that omit a fold get an infinite loss, so that their other starts are taken.
        nats = np.full((n_players, n_masks), np.inf)
        nats[:, :1] = best.nats
        return Fit(np.repeat(best.points, n_masks, 1), nats)

    def _make_problems(self, players: Rows, masks: Rows, most_lapse: float) -> Problems:
        """Return a set of fits ("problems") to solve, with the bounds of the family.

        Args:
            players: index of the player of each problem.
            masks: index of the set of choices that each problem is fitted to: 0 is all, 1 + i all
                but fold i.
            most_lapse: upper bound of the lapse rate (share of uniform guesses).
        """
        low = np.tile([*self.predict.low, 0.0], (len(players), 1))
        high = np.tile([*self.predict.high, most_lapse], (len(players), 1))
        return Problems(
            data=self._data,
            predict=self.predict,
            players=players,
            masks=masks,
            low=low,
            high=high,
        )

    def _evaluate(self, points: Array, masks: Rows) -> Fit:
        """Compute the loss at several points of the parameters per player, and return points and
        losses.

        Args:
            points: parameters and, last, the lapse rate (share of uniform guesses), ``[player,
                point, parameter + 1]``.
            masks: for each point, the index of the set of choices that the loss is summed over: 0
                is all, 1 + i all but fold i.
        """
        n_players, n_points = points.shape[:2]
        players = np.repeat(np.arange(n_players), n_points)
        problems = self._make_problems(players, np.tile(masks, n_players), most_lapse=1.0)
        flat_points = points.reshape(-1, points.shape[-1])  # [problem, parameter + 1]
        flat_nats = problems.nats(np.arange(len(flat_points)), flat_points)
        nats = flat_nats.reshape(n_players, n_points)
        return Fit(points, nats + _lapse_penalty(points[..., -1]))

    def _minimise_whole(self, starts: list[Fit]) -> Fit:
        """Improve the best few starting points on all choices, and return the best result. For masks
        that leave out a fold, only select the best starting point.

        Args:
            starts: starting points with lapse rate 0.
        """
        best = reduce(Fit.take_better, starts)
        players = np.arange(self._data.n_players)
        nats = [start.nats[:, ALL_CHOICES] for start in starts]  # [start, player]
        leaders = np.argsort(nats, axis=0)[:_STARTS]  # indices of starts, [leader, player]
        candidates = np.stack([start.points[:, ALL_CHOICES] for start in starts])
        points = candidates[leaders, players]  # [leader, player, parameter + 1]
        flat_points = points.reshape(-1, points.shape[-1])  # [problem, parameter + 1]
        flat_players = np.tile(players, len(leaders))
        masks = np.full_like(flat_players, ALL_CHOICES)
        problems = self._make_problems(flat_players, masks, most_lapse=0.0)
        flat_solutions, flat_losses = minimise(problems, flat_points)
        losses = flat_losses.reshape(leaders.shape)
        solutions = flat_solutions.reshape(points.shape)
        best.points[:, ALL_CHOICES] = solutions[losses.argmin(0), players]
        best.nats[:, ALL_CHOICES] = losses.min(0)
        return best

    def _minimise(
        self,
        starts: Fit,
        chosen: NDArray[np.bool_],
        *,
        most_lapse: float,
        most_steps: int = _MOST_STEPS,
    ) -> Fit:
        """Lower the loss of the chosen fits by Newton steps from their points, and return all fits;
        the other ones are unchanged.

        Args:
            starts: the fits with their points, at which the steps begin.
            chosen: which fits to improve, ``[player, mask]``; a mask is a set of choices to fit to.
            most_lapse: upper bound of the lapse rate (share of uniform guesses).
            most_steps: maximum number of steps.
        """
        players, chosen_masks = np.nonzero(chosen)
        problems = self._make_problems(players, chosen_masks, most_lapse)
        points, nats = starts.points.copy(), starts.nats.copy()
        solved, losses = minimise(problems, points[chosen], most_steps)
        points[chosen] = solved
        nats[chosen] = losses + _lapse_penalty(solved[:, -1])
        return Fit(points, nats)

    def profiles(self, players: Rows, points: Array, fixed: Rows, values: Array) -> Array:
        """Compute profile likelihoods. A profile fixes one parameter of a player's fit at each of
        several values, refits all other parameters, and has the least loss at each value.

        The other parameters are refitted with lapse rate 0. If the player's best point has a lapse
        rate above 0, they are also refitted with a lapse rate, which adds a penalty of 1.92 nats.
        The smaller loss is returned.

        Args:
            players: index of the player of each profile, ``[profile]``.
            points: best point of each profile's player: values of the parameters and, at the end,
                of the lapse rate (share of uniform guesses), ``[profile, parameter + 1]``.
            fixed: index of the fixed parameter of each profile, in the order of
                ``family.searched``, ``[profile]``.
            values: values at which each profile fixes its parameter, ``[profile, value]``.

        Returns:
            The least loss, in nats summed over all choices of the player, ``[profile, value]``.
        """
        # One problem for each value of each profile.
        n_values = values.shape[1]
        starts = np.repeat(points, n_values, 0)  # [problem, parameter + 1]
        fixed_of_problem = np.repeat(fixed, n_values)
        problem_players = np.repeat(players, n_values)
        starts[np.arange(len(starts)), fixed_of_problem] = values.ravel()
        has_lapse = starts[:, -1] > 0
        starts_with_lapse = starts[has_lapse]
        starts[:, -1] = 0
        nats = self._solve_with_fixed(problem_players, starts, fixed_of_problem, most_lapse=0.0)
        if len(starts_with_lapse):
            nats_with_lapse = self._solve_with_fixed(
                problem_players[has_lapse],
                starts_with_lapse,
                fixed_of_problem[has_lapse],
                most_lapse=1.0,
            )
            nats[has_lapse] = np.minimum(nats[has_lapse], nats_with_lapse + HALF_CHI2)
        return nats.reshape(values.shape)

    def _solve_with_fixed(
        self, players: Rows, starts: Array, fixed: Rows, *, most_lapse: float
    ) -> Array:
        """Return the least loss on all choices with one parameter fixed at its starting value,
        ``[problem]``.

        Args:
            players: index of the player of each problem (fit).
            starts: starting points, parameters and, last, the lapse rate, ``[problem, parameter +
                1]``.
            fixed: index of the fixed parameter of each problem.
            most_lapse: upper bound of the lapse rate (share of uniform guesses).
        """
        whole = np.full_like(players, ALL_CHOICES)
        problems = self._make_problems(players, whole, most_lapse)
        fixed_entries = np.arange(len(starts)), fixed  # one parameter of each problem
        problems.low[fixed_entries] = problems.high[fixed_entries] = starts[fixed_entries]
        _, losses = minimise(problems, starts)
        return losses


def _lapse_penalty(lapse: Any) -> Array:
    """Return the penalty for each lapse rate (share of uniform guesses), in nats of all choices:
    :data:`HALF_CHI2` if it is above 0, otherwise 0.
    """
    return np.where(np.asarray(lapse) > 0, HALF_CHI2, 0.0)


def _restrict_to_lapse(fit: Fit, *, is_lapse: bool) -> Fit:
    """Return a fit restricted to points with a lapse rate above 0 (``is_lapse=True``), or to those
    with lapse rate 0 (``is_lapse=False``). All other points get an infinite loss.
    """
    has_lapse = fit.points[..., -1] > 0
    nats = np.where(has_lapse == is_lapse, fit.nats, np.inf)
    return Fit(fit.points, nats)


def contained_points(family: Family, inner: Family) -> list[dict[str, float | str]]:
    """List points (values of all parameters) at which a family of algorithms may equal a simpler
    family that it extends. A fit of the family also starts from the best of these points.

    For example, let the simpler family have the parameter rate, and the family the parameters rate
    and decay, with 0 and .1 in the grid of decay. The points are ``{"rate": "rate", "decay": 0.0}``
    and ``{"rate": "rate", "decay": 0.1}``. The text "rate" as a value stands for the fitted rate of
    the simpler family.

    Args:
        family: the family.
        inner: the simpler family.

    Returns:
        One mapping per point: name of each parameter of ``family`` -> its value, a number or a text.
        A text is the name of a parameter of ``inner``, and stands for the fitted value of this
        parameter.

        * Parameters that both families have take the fitted value.
        * Parameters that only ``family`` has take values of their grids. There is one point for
          each combination of these values.
        * If ``inner`` has exactly one parameter that ``family`` lacks, there is one more point. In
          it, all parameters that only ``family`` has take the fitted value of the lacking one.
    """
    names = [searched.name for searched in family.searched]
    inner_names = [searched.name for searched in inner.searched]
    shared: dict[str, float | str] = {name: name for name in inner_names if name in names}
    additional = [searched for searched in family.searched if searched.name not in inner_names]
    lacked = [name for name in inner_names if name not in names]
    points = [shared | name_values(additional, values) for values in list_grid_points(additional)]
    if len(lacked) == 1:  # such as one learning rate, which this family splits into two
        points.append(shared | {searched.name: lacked[0] for searched in additional})
    return points
