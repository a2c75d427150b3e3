r"""Where a state would stay: fixed and slow points of a round with its inputs held, by descent on the speed.

The *speed* of a state :math:`h` is :math:`|F(h) - h|`, where F is a round with fixed inputs, in units of how far states
of episodes lie apart. From many visited states, Levenberg-Marquardt steps make it smaller (Sussillo and Barak, 2013,
Neural Computation 25). A point is *fixed* where nothing moves but by rounding, and *slow* where the speed has a least
value that is not 0. Eigenvalues of the Jacobian say what happens beside a point: along a direction of modulus below 1
states come back, above 1 they leave, at 1 they stay where they are put, as on a line or a ring of fixed points.

What this is NOT evidence of: that episodes come there. ``nearest`` says how far the next visited state lies; a machine
may have fixed points where it never is, and work between those where it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Complex, Float, Int
from scipy.optimize import least_squares
from torch import Tensor

from interp.algorithm import Episodes
from interp.audit.dynamics import clusters, jacobian, left, orbit, precisely
from interp.audit.trial import QUICK, Trial
from interp.checks import checked, integer
from interp.errors import InputError, require
from interp.interventions.sites import carried_mask
from interp.machine import Machine
from interp.measure import Found
from interp.model.run import select_rounds

_FIXED, _SLOW = 1e-6, 0.05
"""Speeds up to which a point is fixed, and slow; states of episodes lie 1 apart."""
_ALIKE = 0.01
"""Points that lie no farther apart are one."""
_MARGINAL = 0.01
"""A modulus that differs from 1 by no more is 1."""
_TOLERANCES = {"xtol": 1e-12, "ftol": 1e-12, "gtol": 1e-12, "max_nfev": 200}
_WIDEST = 512
"""A state of more numbers is refused: a step takes twice as many rounds for each start."""


@dataclass(frozen=True, repr=False)
class FixedPoints(Found):
    """Fixed and slow points of a machine with the inputs of one round held, those that most starts reach first.

    Attributes:
        points: states, the numbers that are carried in a row; ``speed``: of each, ``reached``: by how many starts.
        eigenvalues: of the Jacobian at each point, the largest modulus first.
        visited: states that the run reads, among them the starts; ``unit``: how far those of different episodes lie
            apart, in the state's own units.
    """

    model: str
    round: int
    points: Float[np.ndarray, "point number"]
    speed: Float[np.ndarray, " point"]
    reached: Int[np.ndarray, " point"]
    eigenvalues: Complex[np.ndarray, "point number"]
    visited: Float[np.ndarray, "state number"]
    unit: float

    @property
    def sentence(self) -> str:
        """How many points there are, and of which kind."""
        table = self.to_frame()
        held = f"{self.model}, with the inputs of round {self.round} held"
        if table.empty:
            return f"{held}, has no fixed or slow point where the search started."
        n = table["kind"].value_counts()
        stable = int(((table["leaving"] == 0) & (table["marginal"] == 0)).sum())
        stay = int((table["marginal"] > 0).sum())
        counts = f"fixed points: {n.get('fixed', 0)}, slow: {n.get('slow', 0)}; stable: {stable}"
        return f"{held}: {counts}; with directions along which states stay: {stay}."

    def to_frame(self) -> pd.DataFrame:
        """One row a point: kind, speed, share of the starts, eigenvalues, and how far the next visited state lies.

        ``leaving`` counts eigenvalues of modulus above 1, ``marginal`` those at 1; ``turn`` is the angle by which the
        leading one turns in a round, in radians.
        """
        modulus = np.abs(self.eigenvalues)
        far = np.linalg.norm(self.points[:, None] - self.visited, axis=-1).min(-1, initial=np.inf)
        columns = {
            "kind": np.where(self.speed <= _FIXED, "fixed", "slow"),
            "speed": self.speed,
            "share": self.reached / max(self.reached.sum(), 1),
            "leaving": (modulus > 1 + _MARGINAL).sum(-1),
            "marginal": (np.abs(modulus - 1) <= _MARGINAL).sum(-1),
            "modulus": modulus.max(-1, initial=0),
            "turn": np.abs(np.angle(self.eigenvalues[:, :1])).sum(-1),
            "nearest": far / self.unit,
        }
        return pd.DataFrame(columns)

    def _draw(self, figures: Any) -> Any:
        """Visited states and points in the plane of the two leading components of visited states."""
        middle = self.visited.mean(0)
        plane = np.linalg.svd(self.visited - middle, full_matrices=False)[2][:2].T
        table = self.to_frame()
        kinds = np.where(table["leaving"] > 0, "states leave", np.where(table["marginal"] > 0, "states stay", "stable"))
        return figures.plane((self.visited - middle) @ plane, (self.points - middle) @ plane, kinds.tolist())


@checked
def fixed_points(
    model: Machine, episodes: Episodes, round: int | None = None, *, episode: int = 0, starts: int = 32, seed: int = 0
) -> FixedPoints:
    """Fixed and slow points of a machine's state, with the inputs of one round held.

    Args:
        episodes: their states are where the search starts.
        round: whose inputs are held; one half-way when None. ``episode`` is whose.
        starts: how many visited states it starts from, drawn with ``seed``.

    Raises:
        InputError: a state without a fixed size, or of more than 512 numbers.

    >>> import interp
    >>> from interp.tasks import experts
    >>> episodes = experts.sample(n_episodes=8, n_rounds=6, n_experts=4, seed=0)
    >>> fixed_points(interp.load("wma-gru"), episodes, starts=2).to_frame()["kind"].isin(["fixed", "slow"]).all()
    np.True_
    """
    integer("starts", starts, 1)
    trial = Trial(model.eval(), episodes, replace(QUICK, seed=seed))
    (at,) = select_rounds(trial.shape[1] // 2 if round is None else round, trial.shape[1])
    require(0 <= episode < trial.shape[0], f"episode is 0 to {trial.shape[0] - 1}, got {episode}")
    live = carried_mask(model).flatten()
    if trial.grows:
        raise InputError(f"{model.name!r} has no fixed points: its channel {trial.grows!r} grows with every round")
    require(int(live.sum()) <= _WIDEST, f"fixed points take states of up to {_WIDEST} numbers, got {int(live.sum())}")
    unit = orbit(trial).unit
    precise, held, delta = precisely(trial, at, episode)
    states = trial.run.latents[:, 1:].flatten(0, 1).to(precise.dtype)
    drawn = np.random.default_rng(seed).choice(len(states), min(starts, len(states)), replace=False)

    def placed(x: Float[np.ndarray, " number"]) -> Tensor:
        """The state whose live numbers, in units, are ``x``."""
        state = states[0].flatten().clone()
        state[live] = torch.from_numpy(x * unit).to(state)
        return state.view_as(states[0])

    def moved(x: Float[np.ndarray, " number"]) -> Float[np.ndarray, " number"]:
        state = placed(x)[None]
        return ((left(precise, held, state) - state).flatten(1)[0, live] / unit).double().numpy(force=True)

    def slope(x: Float[np.ndarray, " number"]) -> Float[np.ndarray, "out into"]:
        return jacobian(precise, held, placed(x), live, delta).double().numpy(force=True)

    visited = states.flatten(1)[:, live].double().numpy(force=True)
    points, speed = [], []
    for start in visited[drawn] / unit:
        found = least_squares(moved, start, lambda x: slope(x) - np.eye(len(x)), method="lm", **_TOLERANCES)
        if (size := float(np.linalg.norm(found.fun))) <= _SLOW:
            points.append(found.x)
            speed.append(size)
    order = np.argsort(speed, kind="stable")
    every = np.array(points).reshape(-1, visited.shape[1])[order]
    # The slowest of each cluster, that which most starts reached first.
    _, first, reached = np.unique(clusters(every, _ALIKE), return_index=True, return_counts=True)
    most = np.argsort(-reached, kind="stable")
    kept = every[first[most]]
    values = [np.linalg.eigvals(slope(x)) for x in kept]
    eigenvalues = np.array([v[np.argsort(-np.abs(v), kind="stable")] for v in values], complex).reshape(kept.shape)
    speeds = np.array(speed)[order][first[most]]
    return FixedPoints(model.name, at, kept * unit, speeds, reached[most], eigenvalues, visited, unit)
