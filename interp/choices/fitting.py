"""Fit a family of algorithms to predicted distributions: the parameters of least divergence.

A grid first, then a search between its points for real parameters, in units of grid steps, so that a grid says how
finely each stretch of a parameter is searched. A fit finds a local best near the best grid point, never a proof that no
better one exists. The divergence of each kind of prediction: :func:`divergence`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
"""Episodes to the predicted distribution over outcomes, ``[episode, round, outcome]``; of every round.

Of a real number: its mean, or mean and log variance, along the last axis, as ``RoundLayout.distribution`` has it."""
_STEPS_PER_PARAMETER, _STARTS = 30, 2
"""Evaluations of L-BFGS-B for each real parameter; how many choices, and then of the others, are refined."""
_EXACT = {"ftol": 1e-10, "gtol": 1e-7, "eps": 1e-7}
"""Where L-BFGS-B ends."""
_LARGE = 1e2  # the bounds of real numbers that an untrained copy is taken to predict; log variances among them
_ROUNDING = 1e-14  # a divergence below this is rounding, and counts as 0


def predictor(subject: Machine | Algorithm | Predict) -> Predict:
    """Return what predicts for a subject: a model's rollout, an :class:`Algorithm`'s run, or the function itself."""
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


def probable(predictions: ArrayLike, kind: Predicted = "classes") -> Array:
    """Return predictions as probabilities: an untrained copy of a handwired model may give other
    numbers.

    They are even where none is left. Real numbers are cut to within :data:`_LARGE`.
    """
    finite = np.nan_to_num(np.asarray(predictions, np.float64))
    if kind != "classes":
        return np.clip(finite, -_LARGE, _LARGE)
    positive = np.clip(finite, 0.0, 1.0) + np.finfo(float).tiny
    return np.asarray(positive / positive.sum(-1, keepdims=True))


def distributions(layout: RoundLayout, predictions: Tensor) -> Array:
    """Return predictions ``[episode, round, ...]`` as distributions over outcomes, in double precision."""
    p = layout.distribution(predictions.double())
    is_half_precision = predictions.element_size() < 4
    if is_half_precision and layout.kind == "classes":
        p = p / p.sum(-1, keepdim=True)  # its numbers sum to 1 to two digits
    return np.asarray(p.numpy(force=True))


def by_round(p: Array, q: Array, kind: Predicted) -> Array:
    """Return the divergence in every round, ``[episode, round]``; of means in units of the variance
    of ``q``.

    Args:
        p, q: distributions ``[episode, round, outcome]``.
        kind: what is predicted.
    """
    one_round_each = (-1, 1, p.shape[-1])
    nats = divergence(p.reshape(one_round_each), q.reshape(one_round_each), kind)
    nats = nats.reshape(p.shape[:2])
    if kind == "mean":
        variance = float(np.var(q))
        return nats / max(variance, np.finfo(float).tiny)
    return nats


def divergence(p: Array, q: Array, kind: Predicted = "classes") -> Array:
    """Return the Jensen-Shannon divergence, mean over rounds, in nats, ``[episode]``.

    Args:
        p: distributions ``[episode, round, outcome]``.
        q: distributions of the same shape.
        kind: what they predict; of real numbers another divergence is returned, below.

    >>> certain, even = np.array([[[1.0, 0.0]]]), np.array([[[0.5, 0.5]]])
    >>> divergence(certain, certain), divergence(certain, 1 - certain).round(4), divergence(certain, even).round(4)
    (array([0.]), array([0.6931]), array([0.2158]))

    Of the means of real numbers it is the squared difference; of normals the mean of both Kullback-Leibler divergences.

    >>> narrow, wide = np.array([[[2.0, 0.0]]]), np.array([[[5.0, np.log(4.0)]]])
    >>> divergence(narrow[..., :1], wide[..., :1], "mean"), divergence(narrow, wide, "normal")
    (array([9.]), array([3.375]))
    """
    if kind == "mean":
        squares = np.square(p - q).sum(-1)
        return np.asarray(squares.mean(1))
    if kind == "normal":
        by_episode = _normal_divergence(p, q).mean(1)
    else:
        entropies = (special.entr(p) + special.entr(q)) / 2
        divergences = (special.entr((p + q) / 2) - entropies).sum(-1)
        by_episode = divergences.mean(1)
    return np.asarray(np.where(by_episode < _ROUNDING, 0.0, by_episode))


def _normal_divergence(p: Array, q: Array) -> Array:
    """Return the mean of both Kullback-Leibler divergences of normals, by mean and log variance."""
    squared_distance = np.square(p[..., 0] - q[..., 0])
    width = np.sinh((p[..., 1] - q[..., 1]) / 2)
    precision_of_p = np.exp(-p[..., 1])
    precisions = precision_of_p + np.exp(-q[..., 1])
    return np.asarray(np.square(width) + squared_distance * precisions / 4)


def asked_rounds(distributions: Array, episodes: Episodes) -> Array:
    """Return the rounds with a scored prediction, of ``[episode, round, outcome]``."""
    task = tasks.of(episodes)
    first = task.data.first_asked
    require(
        episodes.n_rounds > first,
        f"{task.name} asks for no prediction before round {first + 1}, and these episodes have "
        f"{episodes.n_rounds}; give them more rounds",
    )
    return distributions[:, first:]


def checked_distributions(predictions: Any, episodes: Episodes) -> Array:
    """Return predictions of :func:`asked_rounds` as distributions that sum to 1; of real numbers finite ones.

    Raises:
        InputError: another shape than ``[episode, round, outcome]``, or no probabilities.
    """
    p = np.asarray(predictions, np.float64)
    wanted = (len(episodes), episodes.n_rounds)
    kind = tasks.of(episodes).kind
    has_shape = p.ndim == 3 and p.shape[:2] == wanted
    require(
        has_shape,
        f"predictions must be [episode, round, outcome] with {wanted} first, got shape {p.shape}",
    )
    if kind != "classes":
        numbers = 1 if kind == "mean" else 2
        are_finite = bool(np.isfinite(p).all())
        has_numbers = p.shape[-1] == numbers and are_finite
        require(
            has_numbers,
            f"predictions of the kind {kind!r} must be {numbers} finite numbers a round, got shape {p.shape}",
        )
        return asked_rounds(p, episodes)
    total = p.sum(-1, keepdims=True)
    off = np.abs(total - 1)
    are_probabilities = np.isfinite(p) & (p >= -1e-6) & (off < 1e-3)
    worst_sum = total.flat[off.argmax()]
    require(
        bool(are_probabilities.all()),
        "predictions must be probabilities that sum to 1, got one of "
        f"{p.min():.4g} and a sum of {worst_sum:.6g}",
    )
    return asked_rounds(np.asarray(np.clip(p, 0.0, None) / total), episodes)


def enters_prediction_alone(algorithm: Algorithm, searched: Searched) -> bool:
    """Return whether nothing that is carried depends on a parameter: it is one of the read-out."""
    if not searched.enters:
        return False
    written = {NEXT + key for key in algorithm.state}
    return written.isdisjoint(algorithm.downstream(searched.enters))


def read_out(family: Family, algorithm: Algorithm) -> Family | None:
    """Return the family with what it carries fixed as in ``algorithm``: only the read-out of a prediction is free.

    None where the family searches no such parameter, or names one that the algorithm lacks.
    """
    free: list[Searched] = []
    fixed: list[Searched] = []
    for searched in family.searched:
        if enters_prediction_alone(algorithm, searched):
            free.append(searched)
        else:
            fixed.append(searched)
    fixed_names = {searched.name for searched in fixed}
    if not free or not fixed_names <= set(algorithm.parameters):
        return None
    values = {name: algorithm.parameters[name] for name in fixed_names}
    return replace(family, make=partial(family.make, **values), searched=tuple(free))


class OnDemand(dict[str, NDArray[Any]]):
    """Values of an algorithm's variables, each computed when it is first read."""

    def __init__(self, algorithm: Algorithm, values: Values) -> None:
        super().__init__(values)
        self._algorithm = algorithm

    def __missing__(self, key: str) -> NDArray[Any]:
        equation = self._algorithm.variable(key).equation
        assert equation is not None, f"{key!r} is an input or a state variable: it was given"
        self[key] = np.asarray(equation(self))
        return self[key]


class Distributions:
    """What members of a family predict on batches, ``[episode, scored round, outcome]``, one after
    the other.

    What the last call computed is reused where parameters do not enter it. Batches of the same
    shapes run as one.
    """

    def __init__(self, family: Family, batches: Sequence[Any]) -> None:
        self.family = family
        self.batches = batches
        self._parameters: dict[str, float] = {}
        self._values: dict[str, NDArray[Any]] = {}

    def __call__(self, algorithm: Algorithm, parameters: Mapping[str, float]) -> Array:
        """Return what a member predicts.

        Args:
            algorithm: the member.
            parameters: what it was made with, by the name of each parameter that the family searches.
        """
        changed = []
        for searched in self.family.searched:
            if self._parameters.get(searched.name) != parameters[searched.name]:
                changed.append(searched)
        entered = [key for searched in changed for key in searched.enters]
        stale = algorithm.downstream(entered)
        enters_all = any(not searched.enters for searched in changed)
        written = {NEXT + key for key in algorithm.state}
        if not self._values or enters_all or stale & written:
            self._values = self._run(algorithm)
        else:
            self._values = {key: value for key, value in self._values.items() if key not in stale}
        values = OnDemand(algorithm, self._values)
        p = np.asarray(algorithm.distribution(values), np.float64)
        self._parameters = dict(parameters)
        self._values = dict(values)
        return asked_rounds(p, self.batches[0])

    def _run(self, algorithm: Algorithm) -> dict[str, NDArray[Any]]:
        """Return the inputs and the state of every round, of all batches."""
        start = _joined([algorithm.start(batch) for batch in self.batches])
        inputs = _joined([algorithm.read(batch) for batch in self.batches])
        counted = np.concatenate([counted_rounds(batch) for batch in self.batches])
        missing = None if counted.all() else ~counted
        n_episodes, n_rounds = counted.shape
        state = algorithm.unrolled(start, inputs, n_episodes, n_rounds, missing=missing)
        return {**state, **inputs}


def _joined(batches: Sequence[Values]) -> dict[str, NDArray[Any]]:
    """Join the values of several batches along their episodes."""
    return {key: np.concatenate([values[key] for values in batches]) for key in batches[0]}


def fit(
    family: Family, batches: Sequence[Any], predictions: Sequence[Array]
) -> tuple[float, dict[str, float]]:
    """Find the member of a family with the least divergence of its predictions.

    Args:
        family: its parameters are searched.
        batches: of episodes; each counts the same, whatever its size.
        predictions: of each batch ``[episode, scored round, outcome]``.

    Returns:
        The divergence in nats a round, and the parameters.
    """
    kind = tasks.of(batches[0]).kind
    groups = _of_same_shapes(family, batches)
    members, expected, weights = [], [], []
    for group in groups:
        members.append(Distributions(family, [batches[i] for i in group]))
        expected.append(np.concatenate([predictions[i] for i in group]))
        of_batches = [np.full(len(predictions[i]), 1 / len(predictions[i])) for i in group]
        weights.append(np.concatenate(of_batches) / len(batches))

    def loss(parameters: Mapping[str, float]) -> float:
        algorithm = family.make(**parameters)
        total = 0.0
        for member, wanted, weight in zip(members, expected, weights, strict=True):
            nats = divergence(wanted, member(algorithm, parameters), kind)
            total += float(nats @ weight)
        return total

    # Parameters of the state change slowest, so that its run serves many values of the others.
    return search(sorted(family.searched, key=lambda parameter: bool(parameter.enters)), loss)


def _of_same_shapes(family: Family, batches: Sequence[Any]) -> list[list[int]]:
    """Return the numbers of the batches with inputs of the same shapes, which run as one."""
    algorithm = family.make(**{searched.name: searched.grid[0] for searched in family.searched})
    groups: dict[Any, list[int]] = {}
    for number, batch in enumerate(batches):
        shapes = tuple((key, value.shape[1:]) for key, value in algorithm.read(batch).items())
        groups.setdefault(shapes, []).append(number)
    return list(groups.values())


Loss = Callable[[Mapping[str, float]], float]


def search(searched: Sequence[Searched], loss: Loss) -> tuple[float, dict[str, float]]:
    """Find the parameters of least loss: on the grid first, then between its points.

    Args:
        searched: the parameters, and where to look for them.
        loss: of parameters by name.

    Returns:
        The least loss that was found, and its parameters.
    """
    grid_losses = {}
    for point in product(*(parameter.grid for parameter in searched)):
        grid_losses[point] = loss(_named(searched, point))
    leaders = _best_per_choice(searched, grid_losses)
    candidates = [(grid_losses[point], point) for point in leaders[:_STARTS]]
    if candidates[0][0] > 0:
        for point in leaders[:_STARTS]:
            candidates.append(_refined_point(loss, searched, point))
        candidates += _retried_choices(loss, searched, leaders[_STARTS:], best=min(candidates)[1])
    lowest, best = min(candidates)
    return lowest, _named(searched, best)


_Point = tuple[float, ...]


def _best_per_choice(
    searched: Sequence[Searched], grid_losses: Mapping[_Point, float]
) -> list[_Point]:
    """Return the best grid point of each value of the parameters that are choices, the best first."""
    best: dict[_Point, _Point] = {}
    for point in sorted(grid_losses, key=grid_losses.__getitem__):
        values = zip(point, searched, strict=True)
        choices = tuple(value for value, parameter in values if parameter.kind == "choice")
        best.setdefault(choices, point)
    return list(best.values())


def _retried_choices(
    loss: Loss, searched: Sequence[Searched], leaders: Sequence[_Point], *, best: _Point
) -> list[tuple[float, _Point]]:
    """Find the best parameters with other choices; real parameters begin at the best ones so far.

    A choice that is right can look bad between two points of a coarse grid.
    """
    points = []
    for leader in leaders:
        point = []
        for choice, value, parameter in zip(leader, best, searched, strict=True):
            point.append(choice if parameter.kind == "choice" else value)
        points.append(tuple(point))
    points.sort(key=lambda point: loss(_named(searched, point)))
    return [_refined_point(loss, searched, point) for point in points[:_STARTS]]


def _named(searched: Sequence[Searched], point: Sequence[float]) -> dict[str, float]:
    return {parameter.name: value for parameter, value in zip(searched, point, strict=True)}


def _refined_point(loss: Loss, searched: Sequence[Searched], point: _Point) -> tuple[float, _Point]:
    lowest, parameters = refine(loss, searched, _named(searched, point))
    return lowest, tuple(parameters[parameter.name] for parameter in searched)


def refine(
    loss: Loss, searched: Sequence[Searched], start: Mapping[str, float]
) -> tuple[float, dict[str, float]]:
    """Find the least loss from a point on, by a local optimiser; parameters that are choices stay
    as they are.

    Nelder-Mead goes first, which leaves kinks, such as every whole number of rounds that count, then L-BFGS-B.

    Args:
        loss: of parameters by name.
        searched: the parameters; the steps are those of their grids.
        start: the parameters to begin at.

    Returns:
        The least loss that was found, and its parameters.
    """
    from scipy import optimize  # a quarter of a second: only where it is used

    free = [
        parameter for parameter in searched if parameter.kind == "real" and len(parameter.grid) > 1
    ]
    if not free:
        return loss(start), dict(start)
    grids = {parameter.name: np.array(parameter.grid) for parameter in free}
    steps_at_start = []
    for name, grid in grids.items():
        steps_at_start.append(np.interp(start[name], grid, np.arange(len(grid))))
    at_start = np.array(steps_at_start)
    last = np.array([len(grid) - 1.0 for grid in grids.values()])

    def at(steps: Array) -> dict[str, float]:
        values = {}
        for (name, grid), step in zip(grids.items(), steps, strict=True):
            values[name] = float(np.interp(step, np.arange(len(grid)), grid))
        return {**start, **values}

    def loss_at(steps: Array) -> float:
        return loss(at(steps))

    bounds = [(0, end) for end in last]
    corners = np.tile(at_start, (len(free) + 1, 1))
    half_steps = np.where(at_start + 0.5 <= last, 0.5, -0.5)
    corners[1:] += np.diag(half_steps)
    rough = optimize.minimize(
        loss_at,
        at_start,
        method="Nelder-Mead",
        bounds=bounds,
        options={"initial_simplex": corners, "xatol": 0.1, "fatol": np.inf},
    )
    near = rough.x
    lowest = float(rough.fun)
    scale = abs(lowest) or 1.0
    n_evaluations = _STEPS_PER_PARAMETER * len(free)
    exact = optimize.minimize(
        lambda steps: loss_at(steps) / scale,
        near,
        method="L-BFGS-B",
        bounds=bounds,
        options={**_EXACT, "maxfun": n_evaluations},
    )
    if float(exact.fun) * scale < lowest:
        return float(exact.fun) * scale, at(exact.x)
    return lowest, at(near)


def task_of(sets: Mapping[str, tuple[Any, Any]]) -> str:
    """Return the key of the task of all episodes.

    Raises:
        InputError: no set, or sets of several tasks.
    """
    require(
        bool(sets),
        "no set of episodes to explain; give {name: (episodes to fit on, episodes to score on)}",
    )
    keys = {tasks.of(batch).key for pair in sets.values() for batch in pair}
    require(len(keys) == 1, f"the sets must be of one task, got {', '.join(sorted(keys))}")
    return keys.pop()
