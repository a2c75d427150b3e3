"""Fit a family of algorithms to predicted distributions: find the parameters with the least
divergence.

All points of a grid are tried first. Real parameters are then optimised between grid points,
measured in grid steps, so that a finer part of the grid is also searched more finely. The fit finds
a local optimum near the best grid point; a better one may exist elsewhere. :func:`divergence`
defines the divergence for each kind of prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special
from torch import Tensor

from interp import tasks
from interp.core.algorithm import (
    NEXT,
    Algorithm,
    Episodes,
    Family,
    Predicted,
    Searched,
    Values,
    counted_rounds,
)
from interp.core.machine import Machine
from interp.model.layout import RoundLayout
from interp.model.rollout import rollout
from interp.support.errors import InputError, require

Array = NDArray[np.float64]
Predict = Callable[[Any], Array]
"""Function from episodes to the distribution over outcomes in every round, ``[episode, round, outcome]``.

If the task predicts a real number, the last axis holds its mean, or its mean and log variance, as
``RoundLayout.distribution`` returns them."""
_STEPS_PER_PARAMETER, _STARTS = 30, 2
"""Most evaluations of L-BFGS-B per real parameter; number of points from which a search begins."""
_EXACT = {"ftol": 1e-10, "gtol": 1e-7, "eps": 1e-7}
"""Tolerances and difference step of L-BFGS-B."""
_LARGEST_NUMBER = 1e2  # predicted real numbers, and log variances, are clipped to this magnitude
_ROUNDING = 1e-14  # a smaller divergence is rounding, and becomes 0


def predictor(subject: Machine | Algorithm | Predict) -> Predict:
    """Return a function from episodes to predicted distributions, ``[episode, round, outcome]``.

    Args:
        subject: a model, which is rolled out; an :class:`Algorithm`, which is run; or such a
            function, which is returned unchanged.
    """
    if isinstance(subject, Algorithm):
        algorithm = subject

        def run_algorithm(episodes: Any) -> Array:
            values = algorithm.run(episodes)
            return np.asarray(algorithm.distribution(values), np.float64)

        return run_algorithm
    if isinstance(subject, Machine):
        machine = subject

        def run_machine(episodes: Any) -> Array:
            run = rollout(machine, episodes)
            return distributions(run.layout, run.predictions)

        return run_machine
    if callable(subject):
        return subject
    raise InputError(
        f"expected a model, an Algorithm or a function of episodes, got {type(subject).__name__}"
    )


def make_distributions(predictions: ArrayLike, kind: Predicted = "classes") -> Array:
    """Turn any predictions into valid ones. An untrained copy of a handwired model may output
    numbers that are no probabilities, or not finite.

    NaN becomes 0. Probabilities are clipped to [0, 1], and each distribution is scaled to sum to 1;
    a distribution of zeros becomes uniform. Predicted real numbers are clipped to [-100, 100].

    Args:
        predictions: ``[..., outcome]``.
        kind: "classes" for probabilities; "mean" or "normal" for predicted real numbers.
    """
    finite = np.nan_to_num(np.asarray(predictions, np.float64))
    if kind != "classes":
        return np.clip(finite, -_LARGEST_NUMBER, _LARGEST_NUMBER)
    # The tiny number makes a distribution of zeros uniform.
    positive = np.clip(finite, 0.0, 1.0) + np.finfo(float).tiny
    return positive / positive.sum(-1, keepdims=True)


def distributions(layout: RoundLayout, predictions: Tensor) -> Array:
    """Return a model's predictions as distributions over outcomes, ``[episode, round, outcome]``,
    in float64.

    Args:
        layout: the model's token layout, which defines how outputs of the model become
            distributions.
        predictions: output of the model, ``[episode, round, ...]``.
    """
    p = layout.distribution(predictions.double())
    is_half_precision = predictions.element_size() < 4
    if is_half_precision and layout.kind == "classes":
        p = p / p.sum(-1, keepdim=True)  # in half precision they sum to 1 only to about two digits
    return p.numpy(force=True)


def divergence_by_round(p: Array, q: Array, kind: Predicted) -> Array:
    """Return how far apart two predictions are in every round, ``[episode, round]``; 0 if they are
    equal.

    For "classes" this is the Jensen-Shannon divergence and for "normal" the mean of the
    Kullback-Leibler divergences in the two directions, both in nats. For "mean" it is the squared
    difference of the means, divided by the variance of ``q`` over all episodes and rounds.

    Args:
        p, q: the two predictions, ``[episode, round, outcome]``. The last axis has the
            probabilities of classes, one mean, or the mean and log variance of a normal
            distribution.
        kind: what is predicted: "classes", "mean" or "normal".
    """
    # Every round becomes an episode, because `divergence` averages over the rounds of an episode.
    one_round_each = (-1, 1, p.shape[-1])  # [episode and round, 1, outcome]
    nats = divergence(p.reshape(one_round_each), q.reshape(one_round_each), kind)
    nats = nats.reshape(p.shape[:2])
    if kind == "mean":
        variance = float(np.var(q))
        return nats / max(variance, np.finfo(float).tiny)
    return nats


def divergence(p: Array, q: Array, kind: Predicted = "classes") -> Array:
    """Return the divergence between two predictions, averaged over rounds, ``[episode]``.

    For distributions over classes it is the Jensen-Shannon divergence in nats.

    Args:
        p, q: the two predictions, ``[episode, round, outcome]``. The last axis has the
            probabilities of classes, one mean, or the mean and log variance of a normal
            distribution.
        kind: what is predicted: "classes", "mean" or "normal".

    >>> certain, even = np.array([[[1.0, 0.0]]]), np.array([[[0.5, 0.5]]])
    >>> divergence(certain, certain), divergence(certain, 1 - certain).round(4), divergence(certain, even).round(4)
    (array([0.]), array([0.6931]), array([0.2158]))

    For predicted means it is the squared difference. For normal distributions it is the mean of the
    Kullback-Leibler divergences in the two directions, in nats.

    >>> narrow, wide = np.array([[[2.0, 0.0]]]), np.array([[[5.0, np.log(4.0)]]])
    >>> divergence(narrow[..., :1], wide[..., :1], "mean"), divergence(narrow, wide, "normal")
    (array([9.]), array([3.375]))
    """
    if kind == "mean":
        squares = np.square(p - q).sum(-1)
        return squares.mean(1)
    if kind == "normal":
        by_episode = _normal_divergence(p, q).mean(1)
    else:
        entropies = (special.entr(p) + special.entr(q)) / 2
        divergences = (special.entr((p + q) / 2) - entropies).sum(-1)  # [episode, round]
        by_episode = divergences.mean(1)
    # Equal predictions give 0 exactly, not what rounding makes of it.
    return np.where(by_episode < _ROUNDING, 0.0, by_episode)


def _normal_divergence(p: Array, q: Array) -> Array:
    """Return the mean of KL(p, q) and KL(q, p) between normal distributions.

    With means m, variances v and u the difference of the log variances, it is ``sinh(u / 2)^2 +
    (m_p - m_q)^2 (1 / v_p + 1 / v_q) / 4``.

    Args:
        p, q: mean and log variance of each distribution, ``[..., 2]``.
    """
    squared_distance = np.square(p[..., 0] - q[..., 0])
    sinh_half = np.sinh((p[..., 1] - q[..., 1]) / 2)
    precision_of_p = np.exp(-p[..., 1])
    precision_sum = precision_of_p + np.exp(-q[..., 1])
    return np.square(sinh_half) + squared_distance * precision_sum / 4


def select_scored_rounds(distributions: Array, episodes: Episodes) -> Array:
    """Return the predictions of the rounds that are scored, ``[episode, scored round, outcome]``:
    those from the task's first scored round on.

    Args:
        distributions: predictions of all rounds, ``[episode, round, outcome]``.
        episodes: the episodes that they belong to.
    """
    task = tasks.of(episodes)
    first = task.data.first_asked
    require(
        episodes.n_rounds > first,
        f"{task.name} asks for no prediction before round {first + 1}, and these episodes have "
        f"{episodes.n_rounds}; give them more rounds",
    )
    return distributions[:, first:]


def checked_distributions(predictions: Any, episodes: Episodes) -> Array:
    """Check predictions, and return those of scored rounds as distributions that sum to 1.

    Predictions of real numbers must be finite and are not scaled.

    Args:
        predictions: ``[episode, round, outcome]``.
        episodes: the episodes that they belong to.

    Raises:
        InputError: if predictions have another shape, or are not probabilities.
    """
    p = np.asarray(predictions, np.float64)
    first_axes = (len(episodes), episodes.n_rounds)
    kind = tasks.of(episodes).kind
    has_shape = p.ndim == 3 and p.shape[:2] == first_axes
    require(
        has_shape,
        f"predictions must be [episode, round, outcome] with {first_axes} first, got shape {p.shape}",
    )
    if kind != "classes":
        n_numbers = 1 if kind == "mean" else 2  # a mean, or a mean and a log variance
        are_finite = bool(np.isfinite(p).all())
        has_numbers = p.shape[-1] == n_numbers and are_finite
        require(
            has_numbers,
            f"predictions of the kind {kind!r} must be {n_numbers} finite numbers a round, got shape {p.shape}",
        )
        return select_scored_rounds(p, episodes)
    total = p.sum(-1, keepdims=True)
    error_of_sum = np.abs(total - 1)
    # The tolerances are for predictions that were computed, or written, with few digits.
    are_probabilities = np.isfinite(p) & (p >= -1e-6) & (error_of_sum < 1e-3)
    worst_sum = total.flat[error_of_sum.argmax()]
    require(
        are_probabilities.all(),
        "predictions must be probabilities that sum to 1, got one of "
        f"{p.min():.4g} and a sum of {worst_sum:.6g}",
    )
    return select_scored_rounds(np.asarray(np.clip(p, 0.0, None) / total), episodes)


def affects_prediction_only(algorithm: Algorithm, searched: Searched) -> bool:
    """Return True if a parameter affects only the prediction, and not the state that the algorithm
    carries to the next round.

    Args:
        algorithm: the algorithm.
        searched: the parameter.
    """
    if not searched.used_by:  # such a parameter may enter every equation
        return False
    next_states = {NEXT + key for key in algorithm.state}
    return next_states.isdisjoint(algorithm.downstream(searched.used_by))


def read_out(family: Family, algorithm: Algorithm) -> Family | None:
    """Return a family in which only the parameters of the readout are free: those that affect the
    prediction but not the carried state.

    Args:
        family: the family.
        algorithm: a member of the family; the other parameters are fixed to its values.

    Returns:
        The restricted family. None if no parameter affects only the prediction, or if ``algorithm``
        lacks one of the other parameters.
    """
    free: list[Searched] = []
    fixed: list[Searched] = []
    for searched in family.searched:
        if affects_prediction_only(algorithm, searched):
            free.append(searched)
        else:
            fixed.append(searched)
    fixed_names = {searched.name for searched in fixed}
    if not free or not fixed_names <= set(algorithm.parameters):
        return None
    values = {name: algorithm.parameters[name] for name in fixed_names}
    return replace(family, make=partial(family.make, **values), searched=tuple(free))


class OnDemand(dict[str, NDArray[Any]]):
    """A dictionary from the key of each variable of an algorithm to its values. The values of a
    variable are computed from its equation when they are first read.

    Args:
        algorithm: the algorithm.
        values: key of each input and state variable -> its values, from which all other variables
            are computed.
    """

    def __init__(self, algorithm: Algorithm, values: Values) -> None:
        super().__init__(values)
        self._algorithm = algorithm

    def __missing__(self, key: str) -> NDArray[Any]:
        equation = self._algorithm.variable(key).equation  # which reads its parents from self
        assert equation is not None, f"{key!r} is an input or a state variable: it was given"
        self[key] = np.asarray(equation(self))
        return self[key]


class Distributions:
    """A function that is called with members of a family of algorithms, one after the other, and
    returns the predictions of each on the same episodes.

    The predictions are ``[episode, scored round, outcome]``, with the episodes of all batches
    joined. A call reuses the values of the last call that do not depend on changed parameters.

    Args:
        family: the family.
        batches: batches of episodes, whose inputs must have equal shapes in all batches.
    """

    def __init__(self, family: Family, batches: Sequence[Any]) -> None:
        self.family = family
        self.batches = batches
        self._last_parameters: dict[str, float] = {}
        self._values: dict[str, NDArray[Any]] = {}

    def __call__(self, algorithm: Algorithm, parameters: Mapping[str, float]) -> Array:
        """Return the predictions of a member of the family, ``[episode, scored round, outcome]``.

        Args:
            algorithm: the member.
            parameters: the parameters that it was made with, by name.
        """
        last = self._last_parameters
        changed = [
            searched
            for searched in self.family.searched
            if last.get(searched.name) != parameters[searched.name]
        ]
        # `used_by`: keys of the variables whose equations have the parameter.
        changed_variables = [key for searched in changed for key in searched.used_by]
        stale = algorithm.downstream(changed_variables)
        # An empty `used_by` means that the parameter may enter every equation.
        enters_all = any(not searched.used_by for searched in changed)
        next_states = {NEXT + key for key in algorithm.state}
        # A stale next state changes the states of all later rounds, so the rounds are run again.
        if not self._values or enters_all or stale & next_states:
            self._values = dict(run_batches(algorithm, self.batches))
        else:
            self._values = {key: value for key, value in self._values.items() if key not in stale}
        values = OnDemand(algorithm, self._values)
        p = np.asarray(algorithm.distribution(values), np.float64)
        self._last_parameters = dict(parameters)
        self._values = dict(values)  # with the variables that were computed on demand
        # Predictions of all batches, joined. Any batch can say which rounds are scored: those from the
        # task's first scored round on.
        return select_scored_rounds(p, self.batches[0])


def run_batches(algorithm: Algorithm, batches: Sequence[Any]) -> OnDemand:
    """Run an algorithm on all episodes of several batches together.

    Args:
        algorithm: the algorithm.
        batches: batches of episodes, whose inputs must have equal shapes in all batches.

    Returns:
        Key of a variable -> its values, ``[episode, round, ...]``, with the episodes of all batches
        joined. Inputs and states are computed; other variables are computed when they are read.
    """
    start = _join_batches([algorithm.start(batch) for batch in batches])
    inputs = _join_batches([algorithm.read(batch) for batch in batches])
    counted = np.concatenate([counted_rounds(batch) for batch in batches])
    missing = None if counted.all() else ~counted
    n_episodes, n_rounds = counted.shape
    state = algorithm.unroll(start, inputs, n_episodes, n_rounds, missing=missing)
    return OnDemand(algorithm, {**state, **inputs})


def _join_batches(batches: Sequence[Values]) -> dict[str, NDArray[Any]]:
    """Concatenate the arrays of several batches along the axis of episodes.

    Args:
        batches: for each batch, key of a variable -> array ``[episode, ...]``.

    Returns:
        Key of a variable -> array with the episodes of all batches.
    """
    return {key: np.concatenate([values[key] for values in batches]) for key in batches[0]}


def fit(
    family: Family, batches: Sequence[Any], predictions: Sequence[Array]
) -> tuple[float, dict[str, float]]:
    """Find the member of a family whose predictions have the least divergence from given
    predictions.

    Args:
        family: the family whose parameters are searched.
        batches: batches of episodes; every batch has the same weight, whatever its size.
        predictions: for each batch, the predictions to fit, ``[episode, scored round, outcome]``.

    Returns:
        The least divergence (:func:`divergence`, averaged over batches), and the parameters of the
        member that has it, {name: value}.
    """
    kind = tasks.of(batches[0]).kind
    groups = _group_by_shape(family, batches)
    predict_groups = []  # one function per group of batches
    targets = []  # per group: [episode, scored round, outcome]
    weights = []  # per group: [episode]; those of each batch sum to 1 / number of batches
    for group in groups:
        predict_groups.append(Distributions(family, [batches[i] for i in group]))
        targets.append(np.concatenate([predictions[i] for i in group]))
        mean_weights = [np.full(len(predictions[i]), 1 / len(predictions[i])) for i in group]
        weights.append(np.concatenate(mean_weights) / len(batches))

    def loss(parameters: Mapping[str, float]) -> float:
        """Return the divergence between the predictions of a member of the family and the
        predictions to fit, averaged over batches.

        Args:
            parameters: the member's parameters by name.
        """
        algorithm = family.make(**parameters)
        total = 0.0
        for predict, target, weight in zip(predict_groups, targets, weights, strict=True):
            nats = divergence(target, predict(algorithm, parameters), kind)
            total += float(nats @ weight)
        return total

    return search(put_memory_parameters_first(family), loss)


def put_memory_parameters_first(family: Family) -> list[Searched]:
    """Return a family's parameters in an order that makes a search over their grids faster. First
    come those that may enter every equation, and so the update of the memory (their ``used_by`` is
    empty); then the others.

    In nested loops over the grids, the first parameters change least often. A new value of a
    parameter that may enter every equation always needs a new run of the algorithm. After a change
    of another parameter, the states of the last run can often be reused.

    Args:
        family: the family, which stays unchanged.
    """
    # An empty `used_by` means that the parameter may affect every variable.
    return sorted(family.searched, key=lambda parameter: bool(parameter.used_by))


def list_grid_points(searched: Sequence[Searched]) -> list[tuple[float, ...]]:
    """Return all combinations of the grid values of some parameters, as tuples with one value per
    parameter. The value of the last parameter changes fastest.

    Args:
        searched: the parameters with their grids.
    """
    return list(product(*(parameter.grid for parameter in searched)))


def _group_by_shape(family: Family, batches: Sequence[Any]) -> list[list[int]]:
    """Group batches whose inputs have the same shapes, so that each group can be computed as one
    batch.

    Args:
        family: the family, whose algorithms read the inputs.
        batches: batches of episodes.

    Returns:
        For each group, the indices of its batches.
    """
    # Inputs do not depend on the parameters, so any member of the family will do.
    algorithm = family.make(**{searched.name: searched.grid[0] for searched in family.searched})
    groups: dict[Any, list[int]] = {}
    for number, batch in enumerate(batches):
        shapes = tuple((key, value.shape[1:]) for key, value in algorithm.read(batch).items())
        groups.setdefault(shapes, []).append(number)
    return list(groups.values())


Loss = Callable[[Mapping[str, float]], float]


def search(searched: Sequence[Searched], loss: Loss) -> tuple[float, dict[str, float]]:
    """Find the parameters with the least loss: on a grid first, then between its points.

    Args:
        searched: the parameters with their grids.
        loss: function that takes {name of a parameter: value} and returns the loss.

    Returns:
        The least loss found, and name of a parameter -> its value there.
    """
    points = list_grid_points(searched)
    grid_losses = {point: loss(name_values(searched, point)) for point in points}
    # The best grid point for each combination of the categorical parameters, the lowest loss first.
    leaders = _best_per_choice(searched, grid_losses)
    # Pairs (loss, point), so that `min` returns the pair with the lowest loss.
    candidates = [(grid_losses[point], point) for point in leaders[:_STARTS]]
    lowest_on_grid, _ = candidates[0]
    if lowest_on_grid > 0:  # no point can be better than 0
        candidates += [_refine_point(loss, searched, point) for point in leaders[:_STARTS]]
        _, best = min(candidates)
        candidates += _retry_choices(loss, searched, leaders[_STARTS:], best=best)
    lowest, best = min(candidates)
    return lowest, name_values(searched, best)


_Point = tuple[float, ...]


def _best_per_choice(
    searched: Sequence[Searched], grid_losses: Mapping[_Point, float]
) -> list[_Point]:
    """Return the best grid point for each combination of the categorical parameters (those of kind
    "choice"), as a list. The point with the lowest loss is first.

    Args:
        searched: the parameters.
        grid_losses: loss at each grid point, which is a tuple with the value of each parameter.
    """
    best: dict[_Point, _Point] = {}
    for point in sorted(grid_losses, key=grid_losses.__getitem__):
        values = zip(point, searched, strict=True)
        choices = tuple(value for value, parameter in values if parameter.kind == "choice")
        best.setdefault(choices, point)
    return list(best.values())


def _retry_choices(
    loss: Loss, searched: Sequence[Searched], leaders: Sequence[_Point], *, best: _Point
) -> list[tuple[float, _Point]]:
    """Combine other values of the categorical parameters with the numerical parameters of the best
    point so far, and minimise the loss from the best few of these combinations.

    On a coarse grid, the right value of a categorical parameter can have a high loss, because the
    best numerical parameters lie between grid points.

    Args:
        loss: function from parameters by name to the loss.
        searched: the parameters.
        leaders: grid points that have the other values of the categorical parameters.
        best: the best point so far.

    Returns:
        Loss and point of each of the refined candidates.
    """
    points = []
    for leader in leaders:
        point = []
        for leader_value, best_value, parameter in zip(leader, best, searched, strict=True):
            point.append(leader_value if parameter.kind == "choice" else best_value)
        points.append(tuple(point))
    points.sort(key=lambda point: loss(name_values(searched, point)))
    return [_refine_point(loss, searched, point) for point in points[:_STARTS]]


def name_values(searched: Sequence[Searched], point: Iterable[Any]) -> dict[str, Any]:
    """Return the values of some parameters by name, as ``Family.make`` takes them.

    Args:
        searched: the parameters.
        point: the value of each of them, in the same order.
    """
    return {parameter.name: value for parameter, value in zip(searched, point, strict=True)}


def _refine_point(loss: Loss, searched: Sequence[Searched], point: _Point) -> tuple[float, _Point]:
    """Find a local minimum of the loss near a point of the grid.

    Args:
        loss: function that takes {name of a parameter: value} and returns the loss.
        searched: the parameters with their grids.
        point: value of each parameter, in the same order.

    Returns:
        A pair: the least loss found, and the point that has it.
    """
    lowest, parameters = minimise_locally(loss, searched, name_values(searched, point))
    return lowest, tuple(parameters[parameter.name] for parameter in searched)


def minimise_locally(
    loss: Loss, searched: Sequence[Searched], start: Mapping[str, float]
) -> tuple[float, dict[str, float]]:
    """Find a local minimum of the loss near a starting point. Parameters of the kind "choice", and
    those with a single grid value, are not changed.

    Nelder-Mead runs first, because it gets past kinks, such as those of a parameter that counts
    rounds. L-BFGS-B then refines the result.

    Both vary the index of a value in its parameter's grid, not the value itself. Between two
    indices, the value is interpolated: index 1.5 stands for the mean of ``grid[1]`` and
    ``grid[2]``.

    Args:
        loss: function that takes {name of a parameter: value} and returns the loss.
        searched: the parameters with their grids.
        start: name of a parameter -> the value to begin at.

    Returns:
        The least loss found, and name of a parameter -> its value there.
    """
    from scipy import optimize  # a quarter of a second: only where it is used

    free = [parameter for parameter in searched if parameter.is_free]
    if not free:
        return loss(start), dict(start)
    grids = {parameter.name: np.array(parameter.grid) for parameter in free}
    # A parameter is measured in grid steps: 1.5 lies midway between grid values 1 and 2.
    places = {name: np.arange(len(grid)) for name, grid in grids.items()}  # 0, 1, 2, ...
    at_start = np.array([np.interp(start[name], grids[name], places[name]) for name in grids])
    last = np.array([len(grid) - 1.0 for grid in grids.values()])

    def parameters_at(steps: Array) -> dict[str, float]:
        values = dict(start)
        for name, step in zip(grids, steps, strict=True):
            values[name] = float(np.interp(step, places[name], grids[name]))
        return values

    def loss_at(steps: Array) -> float:
        return loss(parameters_at(steps))

    bounds = [(0, end) for end in last]
    # The initial simplex of Nelder-Mead: the start, and for each parameter a point that is half a
    # grid step away from it. The search ends when the simplex is small, however much the loss still
    # differs between its corners, since L-BFGS-B follows.
    corners = np.tile(at_start, (len(free) + 1, 1))  # [corner, parameter]; the first is the start
    half_steps = np.where(at_start + 0.5 <= last, 0.5, -0.5)
    corners[1:] += np.diag(half_steps)
    rough = optimize.minimize(
        loss_at,
        at_start,
        method="Nelder-Mead",
        bounds=bounds,
        options={"initial_simplex": corners, "xatol": 0.1, "fatol": np.inf},
    )
    lowest = float(rough.fun)
    scale = abs(lowest) or 1.0  # so that the tolerances are relative to the loss
    n_evaluations = _STEPS_PER_PARAMETER * len(free)
    exact = optimize.minimize(
        lambda steps: loss_at(steps) / scale,
        rough.x,
        method="L-BFGS-B",
        bounds=bounds,
        options={**_EXACT, "maxfun": n_evaluations},
    )
    if float(exact.fun) * scale < lowest:
        return float(exact.fun) * scale, parameters_at(exact.x)
    return lowest, parameters_at(rough.x)


def task_of(sets: Mapping[str, tuple[Any, Any]]) -> str:
    """Return the key of the task that all episodes belong to. Refuse episodes of several tasks.

    Args:
        sets: name -> (episodes to fit on, episodes to score on).

    Raises:
        InputError: if ``sets`` is empty, or the episodes belong to several tasks.
    """
    require(
        sets,
        "no set of episodes to explain; give {name: (episodes to fit on, episodes to score on)}",
    )
    keys = {tasks.of(batch).key for pair in sets.values() for batch in pair}
    require(len(keys) == 1, f"the sets must be of one task, got {', '.join(sorted(keys))}")
    return keys.pop()
