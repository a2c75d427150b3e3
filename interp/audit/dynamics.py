r"""Find the fixed points of a model's state, with the inputs of one round repeated.

The *speed* of a state :math:`h` is :math:`|F(h) - h|`, where F runs one round with fixed inputs. It
is measured in units of the typical distance between the states of different episodes. From many
visited states, Levenberg-Marquardt steps minimise the speed (Sussillo and Barak, 2013, Neural
Computation 25). A minimum is a *fixed* point if its speed is 0 up to rounding, and a *slow* point
if its speed is small. The eigenvalues of the Jacobian of F describe what happens near a point.
Along an eigenvector, nearby states return to the point if the eigenvalue's modulus is below 1, and
leave the point if it is above 1. At 1 they stay where they are, as on a line or a ring of fixed
points.

Fixed points are NOT evidence that episodes reach them: a model may have fixed points far from its
visited states. ``nearest`` is the distance to the nearest visited state.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from interp.audit.trial import Array, Budget, Trial
from interp.core.algorithm import Episodes
from interp.core.machine import Machine
from interp.interventions.experiment import Edit, Experiment, Tabulated, batches
from interp.interventions.sites import Place, carried_mask
from interp.model.run import Rollout, select_rounds
from interp.support.checks import checked, checked_result, integer
from interp.support.errors import require

_MAX_FIXED_SPEED = 1e-6  # largest speed of a fixed point
_MAX_SLOW_SPEED = 0.05  # largest speed of a slow point
_CLUSTER_RADIUS = 0.01  # points within this distance of each other count as one
_MODULUS_TOLERANCE = 0.01  # a modulus within this distance of 1 counts as 1
_TOLERANCES = {"xtol": 1e-12, "ftol": 1e-12, "gtol": 1e-12, "max_nfev": 200}
_AXIS_LABELS = {"label": "modulus", "xlabel": "eigenvalue", "ylabel": "point"}
_MAX_DIMENSIONS = 512  # of a state: a Jacobian takes twice as many runs of the round


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
@checked_result
class FixedPoints(Tabulated):
    """Fixed and slow points of a model: states that a round with fixed inputs does not change, or
    hardly changes.

    The search begins at many states (starts). The table has one row per point, and points that more
    starts reached come first. Its columns are:

    - ``kind``: "fixed" or "slow";
    - ``speed``: distance by which the round moves the state, in units of ``unit``;
    - ``share``: share of the starts that reached this point, among those that reached any;
    - ``leaving``, ``marginal``: how many eigenvalues of the round's Jacobian have a modulus above
      1, and a modulus of 1 (within .01);
    - ``modulus``: the largest modulus of an eigenvalue;
    - ``turn``: angle of the eigenvalue with the largest modulus, in radians per round;
    - ``nearest``: distance to the nearest state that the model visits in the episodes, in units of
      ``unit``.

    Attributes:
        points: the states, flattened and without padding, ``[point, number]``.
        eigenvalues: eigenvalues of the round's Jacobian at each point, ``[point, number]``, one per
            dimension of the state; the one with the largest modulus is first.
        unit: typical distance between states of different episodes.
    """

    points: Float[np.ndarray, "point number"]
    eigenvalues: Complex[np.ndarray, "point number"]
    unit: float


@checked
def fixed_points(
    model: Machine,
    episodes: Episodes,
    round: int | None = None,
    *,
    episode: int = 0,
    starts: int = 32,
    seed: int = 0,
) -> FixedPoints:
    """Find states that a round with fixed inputs does not change (fixed points), or hardly changes
    (slow points).

    Args:
        model: the model.
        episodes: episodes without missing rounds. The search starts from states that the model
            visits in them.
        round: index of the round that provides the fixed inputs; by default the middle one.
        episode: index of the episode from which these inputs come.
        starts: number of visited states from which the search starts.
        seed: seed for the choice of these states.

    Returns:
        The points: a table with one row per point; their states; and, at each point, the
        eigenvalues of the round's Jacobian. The round counts as a function from the state before it
        to the state after it.

    Raises:
        InputError: the state grows with every round, or has more than 512 dimensions.
    """
    integer("starts", starts, 1)
    # Of the budget, only the seed matters: the episodes are there already.
    trial = Trial(model.eval(), episodes, replace(Budget.quick(), seed=seed))
    n_episodes, n_rounds = trial.shape
    (source_round,) = select_rounds(n_rounds // 2 if round is None else round, n_rounds)
    require(0 <= episode < n_episodes, f"episode is 0 to {n_episodes - 1}, got {episode}")
    for channel in model.channels:
        require(
            not channel.grows,
            f"{model.name!r} has no fixed points: its channel {channel.name!r} grows with every round",
        )
    n_numbers = int(carried_mask(model).sum())
    require(
        n_numbers <= _MAX_DIMENSIONS,
        f"fixed points take states of up to {_MAX_DIMENSIONS} numbers, got {n_numbers}",
    )
    round_map = _RoundMap.of(trial, source_round, episode)
    # [state, number]: the states after all rounds
    visited = round_map.flatten(trial.run.latents[:, 1:].flatten(0, 1))
    rng = np.random.default_rng(seed)
    start_rows = rng.choice(len(visited), min(starts, len(visited)), replace=False)
    points = _search_points(round_map, visited[start_rows])
    eigenvalues = _compute_eigenvalues(round_map, points.points)
    table = _tabulate(points, eigenvalues, visited)
    sentence = _describe(table, f"{model.name}, with the inputs of round {source_round} held")
    moduli = {sentence: pd.DataFrame(np.abs(eigenvalues))}
    return FixedPoints(
        sentence=sentence,
        table=table,
        picture=lambda figures: figures.heatmaps(moduli, **_AXIS_LABELS),
        points=points.points * round_map.unit,
        eigenvalues=eigenvalues,
        unit=round_map.unit,
    )


@dataclass(frozen=True, eq=False)
class _RoundMap:
    """The map F from states to states that one round computes, with the inputs of one episode.

    A *point* is a state, flattened and divided by ``unit``.

    Attributes:
        model: the model, in float64 if it can be copied.
        run: a rollout of that round only.
        is_carried: Bool[number], the entries of the flattened state that carry information.
        template: a state that provides the other entries.
        unit: typical distance between states of different episodes.
        delta: step of finite differences, in the state's own units.
    """

    model: Machine
    run: Rollout
    is_carried: Tensor
    template: Float[Tensor, "row width"]
    unit: float
    delta: float

    @classmethod
    def of(cls, trial: Trial, round: int, episode: int) -> _RoundMap:
        """Return the map from the state before a round to the state after it, with the inputs that
        the round has in one episode.

        Args:
            trial: the model with its run.
            round: index of the round that provides the repeated inputs.
            episode: index of the episode from which these inputs come.
        """
        model = trial.model
        run = trial.run
        # A slice and a list, so that both axes are kept, with length 1.
        rows = slice(episode, episode + 1)
        fed = run.fed.map_tensors(lambda part: part[rows][:, [round]])
        # Finite differences are more precise in float64. A model that cannot be copied is used as
        # it is.
        with suppress(Exception):
            model = copy.deepcopy(trial.model).to(torch.float64)
            fed = model.prepare(fed)
        # A run of one round has two states, before and after it. Edits replace the first, and
        # nothing reads the second.
        latents = run.latents[rows][:, [round, round]].to(model.dtype)
        predictions = run.predictions[rows][:, [round]].to(model.dtype)
        unit = _measure_spread(run.latents[:, 1:])
        # About the cube root of the rounding error, the best step of central differences.
        relative_step = 1e-5 if model.dtype == torch.float64 else 1e-3
        # Any state of the run: only entries that are not carried, such as padding, are read from it.
        template = run.latents[0, 1].to(model.dtype)
        run_of_round = replace(run, predictions=predictions, latents=latents, fed=fed)
        return cls(
            model=model,
            run=run_of_round,
            is_carried=carried_mask(trial.model).flatten(),
            template=template,
            unit=unit,
            delta=relative_step * unit,
        )

    def flatten(
        self, states: Float[Tensor, "state row width"]
    ) -> Float[np.ndarray, "state number"]:
        """Return states as points, ``[state, number]``: flattened, and divided by ``unit``."""
        numbers = states.flatten(1)[:, self.is_carried].double().numpy(force=True)
        return numbers / self.unit

    def unflatten(self, point: Float[np.ndarray, " number"]) -> Float[Tensor, "row width"]:
        """Return the state that a point stands for, ``[row, width]``. The inverse of
        :meth:`flatten`.

        Args:
            point: a state, flattened and divided by ``unit``.
        """
        state = self.template.flatten().clone()
        state[self.is_carried] = torch.from_numpy(point * self.unit).to(state)
        return state.view_as(self.template)

    def run_from(
        self, states: Float[Tensor, "state row width"]
    ) -> Float[Tensor, "state row width"]:
        """Run the round from each of several states, and return the states after the round,
        ``[state, row, width]``.
        """
        # An edit makes one run for each index in `rounds`, and in it writes a state before the
        # round with this index. Here every run writes another state before the only round, 0.
        rounds = [0] * len(states)
        # With "target", a choice in the round's tokens, such as an action, stays the one in `run`:
        # the inputs of the map do not depend on the state.
        edit = Edit(Place.of("latent", model=self.model), states.unsqueeze(0))
        experiment = Experiment(self.model, self.run, {"state": [edit]}, rounds, commit="target")
        outputs = next(batches(experiment))  # there is one batch, of the only edit
        # carried is [edit, episode, run, round read, row, width].
        return outputs.carried[0, 0, :, 0]

    def compute_move(self, point: Float[np.ndarray, " number"]) -> Float[np.ndarray, " number"]:
        """Return the difference that the round makes, ``[number]``: the point after the round minus
        ``point``. A point is a state, flattened and divided by ``unit``.
        """
        state = self.unflatten(point).unsqueeze(0)
        (after,) = self.flatten(self.run_from(state))
        (before,) = self.flatten(state)
        return after - before

    def compute_jacobian(
        self, point: Float[np.ndarray, " number"]
    ) -> Float[np.ndarray, "out into"]:
        """Compute the Jacobian of the round at a point by central differences, ``[number after the
        round, number before it]``.

        All directions run as rows of one batch. Finite differences need no gradients, which hard
        attention and models outside torch do not have.

        Args:
            point: a state, flattened and divided by ``unit``.
        """
        index = self.is_carried.nonzero()[:, 0]
        n_numbers = len(index)
        # [2 * n_numbers, row * width]: each number of the state moved up, then each moved down
        state = self.unflatten(point)
        nearby = state.flatten().repeat(2 * n_numbers, 1)
        nearby[torch.arange(n_numbers), index] += self.delta
        nearby[torch.arange(n_numbers, 2 * n_numbers), index] -= self.delta
        after = self.run_from(nearby.unflatten(1, state.shape)).flatten(1)[:, index]
        differences = after[:n_numbers] - after[n_numbers:]  # [number before, number after]
        # Differences and step both lack the division by `unit`, which cancels in their ratio.
        slopes = differences / (2 * self.delta)
        return slopes.T.double().numpy(force=True)


def _measure_spread(states: Float[Tensor, "episode round row width"]) -> float:
    """Return the typical distance between states of different episodes: the root of the mean
    squared distance.

    If this distance is 0 (all states are equal) or not finite, return the root of their mean
    squared norm; if that cannot serve as a unit either, return 1.
    """
    flat = states.double().flatten(2).numpy(force=True)
    with np.errstate(over="ignore"):  # states of untrained copies can grow without bound
        squares = ((flat - flat.mean(0)) ** 2).sum(-1)
        distance = np.sqrt(2 * squares.mean())  # two states differ by twice the variance
        size = np.sqrt((flat**2).sum(-1).mean())
    # The first of the three that is neither 0 nor infinite.
    return next(float(unit) for unit in (distance, size, 1.0) if 0 < unit < np.inf)


@dataclass(frozen=True, eq=False)
class _Points:
    """Fixed or slow points that a search found, one per cluster of similar states: the cluster's
    slowest point. Clusters that more starts reached come first.

    Attributes:
        points: the points, ``[point, number]``.
        speeds: distance that the round moves each point, ``[point]``.
        shares: share of the successful starts that ended in the point's cluster, ``[point]``.
    """

    points: Float[np.ndarray, "point number"]
    speeds: Float[np.ndarray, " point"]
    shares: Float[np.ndarray, " point"]


def _search_points(round_map: _RoundMap, starts: Float[np.ndarray, "start number"]) -> _Points:
    """Search for fixed and slow points: from every start, minimise the speed of a point, the
    distance by which the round moves it.

    Minima with a small speed are clustered, and the slowest point of each cluster is returned.

    Args:
        round_map: the round as a map F from states to states.
        starts: the points (flattened states) to start from.

    Returns:
        The points, ``[point, number]``, with the speed of each, ``[point]``; and the share of
        starts that ended in its cluster, ``[point]``. The largest cluster is first.
    """
    from scipy.optimize import least_squares  # a quarter of a second: only where it is used

    def compute_slope(point: Float[np.ndarray, " number"]) -> Float[np.ndarray, "out into"]:
        """Return the Jacobian of the move, F(point) - point."""
        return round_map.compute_jacobian(point) - np.eye(len(point))

    points = []
    speeds = []
    for start in starts:
        # Of the result, x is the point where the search ended, and fun the move from there.
        end = least_squares(
            round_map.compute_move, start, jac=compute_slope, method="lm", **_TOLERANCES
        )
        speed = float(np.linalg.norm(end.fun))
        if speed <= _MAX_SLOW_SPEED:
            points.append(end.x)
            speeds.append(speed)
    slowest_first = np.argsort(speeds, kind="stable")
    ordered_points = np.array(points).reshape(-1, starts.shape[1])[slowest_first]
    ordered_speeds = np.array(speeds)[slowest_first]
    clusters = _cluster(ordered_points, _CLUSTER_RADIUS)
    # Points are in the order of their speeds, so that the first of a cluster is its slowest.
    _, first_of_cluster, sizes = np.unique(clusters, return_index=True, return_counts=True)
    largest_first = np.argsort(-sizes, kind="stable")
    chosen = first_of_cluster[largest_first]
    return _Points(
        points=ordered_points[chosen],
        speeds=ordered_speeds[chosen],
        shares=sizes[largest_first] / max(sizes.sum(), 1),
    )


def _cluster(points: Float[np.ndarray, "point number"], radius: float) -> Int[np.ndarray, " point"]:
    """Divide points into clusters, and return the index of each point's cluster, ``[point]``.

    Points are assigned in order. A point farther than ``radius`` from the centres of all clusters
    becomes the centre of a new one; any other point joins the cluster with the nearest centre.

    Args:
        points: the points, ``[point, number]``.
        radius: largest Euclidean distance of a point from the centre of its cluster.
    """
    centres: list[Array] = []
    clusters = np.zeros(len(points), np.int64)
    for i, point in enumerate(points):
        distances = [float(np.linalg.norm(point - centre)) for centre in centres]
        if distances and min(distances) <= radius:
            clusters[i] = int(np.argmin(distances))
        else:
            clusters[i] = len(centres)
            centres.append(point)
    return clusters


def _compute_eigenvalues(
    round_map: _RoundMap, points: Float[np.ndarray, "point number"]
) -> Complex[np.ndarray, "point number"]:
    """Return the eigenvalues of the round's Jacobian at each point, ``[point, number]``; the
    eigenvalue with the largest modulus is first.

    Args:
        round_map: the round as a map from states to states.
        points: the points (flattened states) at which the Jacobian is computed.
    """
    eigenvalues = np.zeros(points.shape, complex)
    for i, point in enumerate(points):
        values = np.linalg.eigvals(round_map.compute_jacobian(point))
        eigenvalues[i] = values[np.argsort(-np.abs(values), kind="stable")]
    return eigenvalues


def _tabulate(
    points: _Points,
    eigenvalues: Complex[np.ndarray, "point number"],
    visited: Float[np.ndarray, "state number"],
) -> pd.DataFrame:
    """Return a table with one row per point: its kind (fixed or slow), its speed, the eigenvalues
    of the round's Jacobian, and the distance to the nearest visited state. :class:`FixedPoints`
    describes the columns.

    Args:
        points: the points, with their speeds and the shares of starts that end there.
        eigenvalues: eigenvalues of the round's Jacobian at each point, ``[point, number]``; the
            largest is first.
        visited: the states of the run, flattened as the points are, ``[state, number]``.
    """
    modulus = np.abs(eigenvalues)
    distances = np.linalg.norm(points.points[:, None] - visited, axis=-1)  # [point, state]
    # Along an eigenvector, nearby states leave the point if the modulus is above 1, and stay where
    # they are if it is 1.
    is_leaving = modulus > 1 + _MODULUS_TOLERANCE
    is_marginal = np.abs(modulus - 1) <= _MODULUS_TOLERANCE
    # [point, 1], of the largest eigenvalue; [point, 0] for a state without numbers, whose sum is 0.
    angles = np.abs(np.angle(eigenvalues[:, :1]))
    columns = {
        "kind": np.where(points.speeds <= _MAX_FIXED_SPEED, "fixed", "slow"),
        "speed": points.speeds,
        "share": points.shares,
        "leaving": is_leaving.sum(-1),
        "marginal": is_marginal.sum(-1),
    }
    columns["modulus"] = modulus.max(-1, initial=0)
    columns["turn"] = angles.sum(-1)
    columns["nearest"] = distances.min(-1, initial=np.inf)
    return pd.DataFrame(columns)


def _describe(table: pd.DataFrame, subject: str) -> str:
    """Return a sentence with the numbers of fixed, slow and stable points, and of points with
    directions along which states stay.

    Args:
        table: the table of :class:`FixedPoints`.
        subject: beginning of the sentence: the model, and the round with the repeated inputs.
    """
    if table.empty:
        return f"{subject}, has no fixed or slow point where the search started."
    n_fixed = int((table["kind"] == "fixed").sum())
    # The columns are numbers of directions along which nearby states stay, or leave the point.
    n_staying = int((table["marginal"] > 0).sum())
    n_stable = int(((table["marginal"] == 0) & (table["leaving"] == 0)).sum())
    counts = f"fixed points: {n_fixed}, slow: {len(table) - n_fixed}; stable: {n_stable}"
    return f"{subject}: {counts}; with directions along which states stay: {n_staying}."
