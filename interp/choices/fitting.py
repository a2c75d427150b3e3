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
_LARGE = 1e2  # the bounds of real numbers that an untrained copy is taken to predict; log variances among them
_ROUNDING = 1e-14  # a divergence below this is rounding, and counts as 0


def predictor(subject: Machine | Algorithm | Predict) -> Predict:
    """What predicts for a subject: a model by its rollout, an :class:`Algorithm` by its run, a function as it is."""
    if isinstance(subject, Algorithm):
        return lambda episodes: np.asarray(subject.distribution(subject.run(episodes)), np.float64)
    if isinstance(subject, Machine):
        return lambda episodes: distributions(
            (run := rollout(subject, episodes)).layout, run.predictions
        )
    if callable(subject):
        return subject
    raise InputError(
        f"expected a model, an Algorithm or a function of episodes, got {type(subject).__name__}"
    )


def probable(predictions: ArrayLike, kind: Predicted = "classes") -> Array:
    """Predictions as probabilities: an untrained copy of a handwired model may give others. Even where none is left.

    Of real numbers what is within :data:`_LARGE`.
    """
    given = np.nan_to_num(np.asarray(predictions, np.float64))
    if kind != "classes":
        return np.clip(given, -_LARGE, _LARGE)
    kept = np.clip(given, 0.0, 1.0) + np.finfo(float).tiny
    return np.asarray(kept / kept.sum(-1, keepdims=True))


def distributions(layout: RoundLayout, predictions: Tensor) -> Array:
    """Predictions ``[episode, round, ...]`` as distributions over outcomes, in double precision."""
    found = layout.distribution(predictions.double())
    if predictions.element_size() < 4 and layout.kind == "classes":
        found = found / found.sum(
            -1, keepdim=True
        )  # a sum of numbers in half precision is 1 to two digits
    return np.asarray(found.numpy(force=True))


def by_round(p: Array, q: Array, kind: Predicted) -> Array:
    """The divergence in every round, ``[episode, round]``; of predicted means in units of the variance of ``q``."""
    nats = divergence(p.reshape(-1, 1, p.shape[-1]), q.reshape(-1, 1, q.shape[-1]), kind).reshape(
        p.shape[:2]
    )
    return nats / max(float(np.var(q)), np.finfo(float).tiny) if kind == "mean" else nats


def divergence(p: Array, q: Array, kind: Predicted = "classes") -> Array:
    """Jensen-Shannon divergence of distributions ``[episode, round, outcome]``, mean over rounds, in nats, [episode].

    >>> certain, even = np.array([[[1.0, 0.0]]]), np.array([[[0.5, 0.5]]])
    >>> divergence(certain, certain), divergence(certain, 1 - certain).round(4), divergence(certain, even).round(4)
    (array([0.]), array([0.6931]), array([0.2158]))

    Of the means of real numbers it is the squared difference; of normals the mean of both Kullback-Leibler divergences.

    >>> narrow, wide = np.array([[[2.0, 0.0]]]), np.array([[[5.0, np.log(4.0)]]])
    >>> divergence(narrow[..., :1], wide[..., :1], "mean"), divergence(narrow, wide, "normal")
    (array([9.]), array([3.375]))
    """
    if kind == "mean":
        return np.asarray(np.square(p - q).sum(-1).mean(1))
    if kind == "normal":
        missed, wider = np.square(p[..., 0] - q[..., 0]), np.sinh((p[..., 1] - q[..., 1]) / 2)
        nats = (np.square(wider) + missed * (np.exp(-p[..., 1]) + np.exp(-q[..., 1])) / 4).mean(1)
        return np.asarray(np.where(nats < _ROUNDING, 0.0, nats))
    nats = (special.entr((p + q) / 2) - (special.entr(p) + special.entr(q)) / 2).sum(-1).mean(1)
    return np.asarray(np.where(nats < _ROUNDING, 0.0, nats))


def asked_rounds(distributions: Array, episodes: Episodes) -> Array:
    """The rounds whose prediction the task asks for (``Task.data.first_asked``), of ``[episode, round, outcome]``."""
    task = tasks.of(episodes)
    require(
        episodes.n_rounds > task.data.first_asked,
        f"{task.name} asks for no prediction before round {task.data.first_asked + 1}, and these episodes have "
        f"{episodes.n_rounds}; give them more rounds",
    )
    return distributions[:, task.data.first_asked :]


def checked_distributions(predictions: Any, episodes: Episodes) -> Array:
    """Predictions as distributions that sum to 1, of :func:`asked_rounds`; of real numbers finite ones."""
    given = np.asarray(predictions, np.float64)
    wanted, kind = (len(episodes), episodes.n_rounds), tasks.of(episodes).kind
    require(
        given.ndim == 3 and given.shape[:2] == wanted,
        f"predictions must be [episode, round, outcome] with {wanted} first, got shape {given.shape}",
    )
    if kind != "classes":
        numbers = 1 if kind == "mean" else 2
        require(
            given.shape[-1] == numbers and bool(np.isfinite(given).all()),
            f"predictions of the kind {kind!r} must be {numbers} finite numbers a round, got shape {given.shape}",
        )
        return asked_rounds(given, episodes)
    total = given.sum(-1, keepdims=True)
    require(
        bool(
            np.isfinite(given).all() and (given >= -1e-6).all() and (np.abs(total - 1) < 1e-3).all()
        ),
        "predictions must be probabilities that sum to 1, got one of "
        f"{given.min():.4g} and a sum of {total.flat[np.abs(total - 1).argmax()]:.6g}",
    )
    return asked_rounds(np.asarray(np.clip(given, 0.0, None) / total), episodes)


def read_out(family: Family, algorithm: Algorithm) -> Family | None:
    """The family with what it carries fixed as in ``algorithm``: only how a prediction is read from the state is free.

    None where the family searches no such parameter, or names one that the algorithm has not got.
    """
    state = {NEXT + key for key in algorithm.state}
    free = [s for s in family.searched if s.enters and not algorithm.downstream(s.enters) & state]
    fixed = [s.name for s in family.searched if s not in free]
    if not free or not set(fixed) <= set(algorithm.parameters):
        return None
    make = partial(family.make, **{name: algorithm.parameters[name] for name in fixed})
    return replace(family, make=make, searched=tuple(free))


class OnDemand(dict[str, NDArray[Any]]):
    """Values of an algorithm's variables, each computed when it is first read."""

    def __init__(self, algorithm: Algorithm, given: Values) -> None:
        super().__init__(given)
        self._algorithm = algorithm

    def __missing__(self, key: str) -> NDArray[Any]:
        equation = self._algorithm.variable(key).equation
        assert equation is not None, f"{key!r} is an input or a state variable: it was given"
        self[key] = np.asarray(equation(self))
        return self[key]


class Distributions:
    """What members of a family predict on given batches, ``[episode, asked round, outcome]``, one after the other.

    What the last call computed is kept where parameters do not enter it; batches of the same shapes are run as one.
    """

    def __init__(self, family: Family, batches: Sequence[Any]) -> None:
        self.family, self.batches = family, batches
        self._parameters: dict[str, float] = {}
        self._values: dict[str, NDArray[Any]] = {}

    def __call__(self, algorithm: Algorithm, parameters: Mapping[str, float]) -> Array:
        changed = [
            s for s in self.family.searched if self._parameters.get(s.name) != parameters[s.name]
        ]
        stale = algorithm.downstream(key for s in changed for key in s.enters)
        runs = not self._values or not all(s.enters for s in changed)
        if runs or stale & {NEXT + key for key in algorithm.state}:
            start, inputs = (
                {key: np.concatenate([batch[key] for batch in values]) for key in values[0]}
                for values in (
                    [of(batch) for batch in self.batches]
                    for of in (algorithm.start, algorithm.read)
                )
            )
            size = sum(map(len, self.batches)), self.batches[0].n_rounds
            missing = ~np.concatenate([counted_rounds(batch) for batch in self.batches])
            unrolled = algorithm.unrolled(
                start, inputs, *size, missing=missing if missing.any() else None
            )
            self._values = {**unrolled, **inputs}
        else:
            self._values = {key: value for key, value in self._values.items() if key not in stale}
        values = OnDemand(algorithm, self._values)
        predicted = np.asarray(algorithm.distribution(values), np.float64)
        self._parameters, self._values = dict(parameters), dict(values)
        return asked_rounds(predicted, self.batches[0])


def fit(
    family: Family, batches: Sequence[Any], predictions: Sequence[Array]
) -> tuple[float, dict[str, float]]:
    """The least divergence of a family's members from predictions, nats a round, and the parameters that have it.

    Predictions are ``[episode, asked round, outcome]`` of each batch; batches count alike.
    """
    first, kind = (
        family.make(**{s.name: s.grid[0] for s in family.searched}),
        tasks.of(batches[0]).kind,
    )
    alike: dict[Any, list[int]] = {}
    for i, batch in enumerate(batches):
        alike.setdefault(
            tuple((key, value.shape[1:]) for key, value in first.read(batch).items()), []
        ).append(i)
    members = []
    for group in alike.values():
        weights = np.concatenate(
            [np.full(len(predictions[i]), 1 / len(predictions[i])) for i in group]
        ) / len(batches)
        expected = np.concatenate([predictions[i] for i in group])
        members.append((Distributions(family, [batches[i] for i in group]), expected, weights))

    def loss(parameters: Mapping[str, float]) -> float:
        algorithm = family.make(**parameters)
        return float(
            sum(
                divergence(p, of(algorithm, parameters), kind) @ weights
                for of, p, weights in members
            )
        )

    # Parameters of the state change slowest, so that its run serves many values of the others.
    return search(sorted(family.searched, key=lambda parameter: bool(parameter.enters)), loss)


def search(
    searched: Sequence[Searched], loss: Callable[[Mapping[str, float]], float]
) -> tuple[float, dict[str, float]]:
    """The least loss that was found, and the parameters that have it: the grid, then between its points."""
    tried = {
        point: loss(_named(searched, point)) for point in product(*(one.grid for one in searched))
    }
    # The best grid point of each value of the choices; real parameters are refined from the best few of these.
    leaders: dict[tuple[float, ...], tuple[float, ...]] = {}
    for point in sorted(tried, key=tried.__getitem__):
        leaders.setdefault(
            tuple(x for x, s in zip(point, searched, strict=True) if s.kind == "choice"), point
        )
    found = [(tried[point], point) for point in list(leaders.values())[:_STARTS]]
    if found[0][0] > 0:

        def at(point: tuple[float, ...]) -> float:
            return loss(_named(searched, point))

        found += [_refined(at, searched, point) for _, point in found]
        # A choice that is right can look bad between two points of a coarse grid: the others start from what was found.
        best = min(found)[1]
        others = [
            tuple(
                choice if s.kind == "choice" else x
                for choice, x, s in zip(leader, best, searched, strict=True)
            )
            for leader in list(leaders.values())[_STARTS:]
        ]
        found += [_refined(at, searched, point) for point in sorted(others, key=at)[:_STARTS]]
    least, best = min(found)
    return least, _named(searched, best)


def _named(searched: Sequence[Searched], point: Sequence[float]) -> dict[str, float]:
    return {parameter.name: value for parameter, value in zip(searched, point, strict=True)}


def _refined(
    loss: Callable[[tuple[float, ...]], float],
    searched: Sequence[Searched],
    point: tuple[float, ...],
) -> tuple[float, tuple[float, ...]]:
    """The least loss that is found from a grid point, and where; what must be chosen stays as it is.

    Nelder-Mead leaves kinks, such as every whole number of rounds that count; what is smooth L-BFGS-B ends sooner.
    """
    from scipy import optimize  # a quarter of a second: only where it is used

    grids = {i: s.grid for i, s in enumerate(searched) if s.kind == "real" and len(s.grid) > 1}
    if not grids:
        return loss(point), point
    start = np.array([np.interp(point[i], grid, np.arange(len(grid))) for i, grid in grids.items()])
    last = np.array([len(grid) - 1 for grid in grids.values()], float)

    def at(steps: Array) -> tuple[float, ...]:
        placed = list(point)
        for (i, grid), step in zip(grids.items(), steps, strict=True):
            placed[i] = float(np.interp(step, np.arange(len(grid)), grid))
        return tuple(placed)

    corners = np.tile(start, (len(grids) + 1, 1))
    corners[1:] += np.diag(np.where(start + 0.5 <= last, 0.5, -0.5))
    bounds, rough = (
        [(0, end) for end in last],
        {"initial_simplex": corners, "xatol": 0.1, "fatol": np.inf},
    )
    near = optimize.minimize(
        lambda x: loss(at(x)), start, method="Nelder-Mead", bounds=bounds, options=rough
    )
    scale = abs(float(near.fun)) or 1.0
    exact = {"ftol": 1e-10, "gtol": 1e-7, "eps": 1e-7, "maxfun": _STEPS_PER_PARAMETER * len(grids)}
    end = optimize.minimize(
        lambda x: loss(at(x)) / scale, near.x, method="L-BFGS-B", bounds=bounds, options=exact
    )
    return min((float(near.fun), at(near.x)), (float(end.fun) * scale, at(end.x)))


def task_of(sets: Mapping[str, tuple[Any, Any]]) -> str:
    """Key of the task of all episodes."""
    require(
        bool(sets),
        "no set of episodes to explain; give {name: (episodes to fit on, episodes to score on)}",
    )
    keys = {tasks.of(batch).key for pair in sets.values() for batch in pair}
    require(len(keys) == 1, f"the sets must be of one task, got {', '.join(sorted(keys))}")
    return keys.pop()
