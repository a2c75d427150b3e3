r"""How does the state move where the inputs are held? Where does it settle, cycle or drift, and where would it stay?

A round is run again and again with the inputs of one round. *Settled* is a state whose last step is small beside how
far states of episodes lie apart; it *cycles* with period p where it comes back after p rounds and not before; it
*drifts* where every step repeats the one before. Lyapunov exponents are the mean log stretch of a round along the orbit
(QR of the Jacobians), in nats a round; what is smaller than rounding is cut off there, which is the noise floor. How
the state moves is a picture: whether anything rests on it, the changes of :mod:`interp.audit.used` say.

The *speed* of a state :math:`h` is :math:`|F(h) - h|`, where F is a round with fixed inputs, in units of how far states
of episodes lie apart. From many visited states, Levenberg-Marquardt steps make it smaller (Sussillo and Barak, 2013,
Neural Computation 25). A point is *fixed* where nothing moves but by rounding, and *slow* where the speed has a least
value that is not 0. Eigenvalues of the Jacobian say what happens beside a point: along a direction of modulus below 1
states come back, above 1 they leave, at 1 they stay where they are put, as on a line or a ring of fixed points.

What fixed points are NOT evidence of: that episodes come there. ``nearest`` says how far the next visited state lies; a
machine may have fixed points where it never is, and work between those where it is.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from interp.audit.trial import QUICK, THRESHOLDS, Array, Trial, claimed
from interp.core.algorithm import Episodes
from interp.core.machine import Machine
from interp.interventions.experiment import Edit, Experiment, Tabulated, batches
from interp.interventions.sites import Place, carried_mask
from interp.model.run import Rollout, select_rounds
from interp.results.measure import Measure
from interp.stats.intervals import Interval, ratio_interval
from interp.support.checks import checked, integer
from interp.support.errors import require
from interp.support.session import remembered

_PERIODS = range(2, 9)
_GROWS = 1.5  # steps that are so much longer at the end of the orbit than in its middle grow
_AGAIN = 0.9  # the cosine between a step and the next from which a state goes on in one direction
_ORBITS = 32  # so many episodes, at most, are followed with inputs held
_BURN = 1  # rounds before exponents are averaged
_WIDEST = 1024  # a state of more numbers has no Jacobian here: it takes a round for each of them


@dataclass(frozen=True)
class _Orbit:
    """States ``[round, episode, number]`` under held inputs, in units of how far states of episodes lie apart.

    ``answers`` are those that the last states give, and ``whose`` the participants.
    """

    states: Float[np.ndarray, "round episode number"]
    unit: float
    answers: Array
    whose: Int[np.ndarray, " episode"]

    def size(self, of: Array) -> Interval:
        """The root mean square of vectors ``[episode, number]``, with its interval over episodes."""
        square = ratio_interval((of**2).sum(-1), np.ones(len(of)), participants=self.whose)
        return Interval(
            *(float(np.sqrt(max(x, 0.0))) for x in (square.estimate, square.low, square.high))
        )


@remembered
def orbit(trial: Trial, inputs_of: int | None = None) -> _Orbit:
    """Where the state goes from the one that a round half-way reads, with that round's inputs held.

    Of the first :data:`_ORBITS` episodes. ``inputs_of`` gives every one of them the inputs of one.
    """
    run, t, most = trial.run, trial.shape[1] // 2, trial.effort.held
    own = list(range(min(_ORBITS, trial.shape[0])))
    held, start = (
        trial.held(t, own if inputs_of is None else [inputs_of] * len(own), most + 1),
        run.latents[own, t],
    )
    edit = Edit(Place.of("latent", model=trial.model), start.unsqueeze(1))
    (ran,) = batches(Experiment(trial.model, held, {"state": [edit]}, [0], most, "each"))
    states = torch.cat([start.unsqueeze(1), ran.carried[0, :, 0, :most]], 1).transpose(0, 1)
    answers = run.layout.choose(ran.predictions[0, :, 0, most]).numpy(force=True)
    flat = states.double().flatten(2).numpy(force=True)
    every = run.latents[:, 1:].double().flatten(2).numpy(force=True)
    with np.errstate(
        over="ignore"
    ):  # untrained copies of handwired machines can grow without bound
        units = [
            np.sqrt(2 * ((every - every.mean(0)) ** 2).sum(-1).mean()),
            np.sqrt((every**2).sum(-1).mean()),
            1.0,
        ]
    unit = next(float(unit) for unit in units if 0 < unit < np.inf)
    return _Orbit(flat / unit, unit, answers, trial.whose[own])


def kind(found: _Orbit) -> tuple[str, Interval, str]:
    """What an orbit does ("settles", "cycles", "drifts", "expands", "wanders", or ""), its last step, and more."""
    bound = THRESHOLDS["settled"].value
    if not np.isfinite(found.states).all():
        return "expands", Interval(np.inf, np.inf, np.inf), "States grow beyond what numbers hold."
    steps = np.diff(found.states, axis=0)
    last, middle = found.size(steps[-1]), found.size(steps[len(steps) // 2])
    if last.high < bound:
        return "settles", last, ""
    for period in _PERIODS:
        back = found.size(found.states[-1] - found.states[-1 - period])
        if back.high < bound and last.low > bound:
            return "cycles", last, f"Period {period}: it comes back to within {back.estimate:.1e}."
    if last.low > bound:
        whole = float((steps[-1] ** 2).sum(-1).mean())
        shared = (
            float((steps[-1].mean(0) ** 2).sum()) / whole if whole else 0.0
        )  # 1 where all episodes move alike
        if last.low > _GROWS * middle.high:
            return "expands", last, f"Steps were {middle.estimate:.3g} half-way."
        one, two = steps[-2], steps[-1]
        size = np.sqrt((one**2).sum(-1) * (two**2).sum(-1))
        if (
            float(np.where(size > 0, (one * two).sum(-1) / np.where(size > 0, size, 1), 0).mean())
            > _AGAIN
        ):
            if last.low <= middle.high / _GROWS:
                return "", last, f"Steps still shrink: they were {middle.estimate:.3g} half-way."
            how = (
                "all episodes step alike"
                if shared > THRESHOLDS["common"].value
                else "each episode steps its own way"
            )
            return (
                "drifts",
                last,
                f"Every step repeats the one before, and {how} ({shared:.2f} of steps is shared).",
            )
        return "wanders", last, f"Episodes share {shared:.2f} of their steps."
    return "", last, ""


def ends(trial: Trial) -> pd.DataFrame:
    """From the states of all episodes, with the inputs of one: at how many points do they end, and what is said there?

    ``apart`` is how far the two farthest ends lie apart. ``answers`` counts the different answers at these ends.
    """
    rows = []
    for e in range(min(trial.effort.jacobians, trial.shape[0])):
        found = orbit(trial, inputs_of=e)
        word, last, _ = kind(found)
        row: dict[str, Any] = {"inputs_of_episode": e, "kind": word, "last_step": last.estimate}
        if word == "settles":
            points = _clusters(found.states[-1], 10 * THRESHOLDS["settled"].value)
            row |= {
                "ends": len(np.unique(points)),
                "largest_share": float(np.bincount(points).max() / len(points)),
                "apart": float(np.abs(found.states[-1][:, None] - found.states[-1][None]).max()),
                "answers": len(set(found.answers.tolist()))
                if trial.run.layout.kind == "classes"
                else 0,
            }
        rows.append(row)
    return pd.DataFrame(rows)


def _clusters(points: Float[np.ndarray, "point number"], radius: float) -> Array:
    """Which cluster each point is in, Int[point]: a point farther than ``radius`` from all centres is a new centre."""
    centres: list[Array] = []
    found = np.zeros(len(points), np.int64)
    for i, point in enumerate(points):
        far = [float(np.sqrt(((point - centre) ** 2).sum())) for centre in centres]
        if far and min(far) <= radius:
            found[i] = int(np.argmin(far))
        else:
            found[i] = len(centres)
            centres.append(point)
    return found


def stretch(trial: Trial) -> pd.DataFrame:
    """How rounds with held inputs stretch a state: the five largest singular values of the first, and exponents.

    Means over episodes with their ranges; empty where the state has no fixed size, or too many numbers.
    """
    live = carried_mask(trial.model).flatten()
    if trial.grows or int(live.sum()) > _WIDEST:
        return pd.DataFrame()
    t, along, singular, exponents = trial.shape[1] // 2, trial.effort.along, [], []
    for e in range(min(trial.effort.jacobians, trial.shape[0])):
        precise, held, delta = _precisely(trial, t, e)
        floor = float(torch.finfo(precise.dtype).eps) / 1e-5
        state, frame = trial.run.latents[e, t].to(precise.dtype), None
        sums = torch.zeros(int(live.sum()), dtype=precise.dtype)
        for k in range(_BURN + along):
            local = _jacobian(precise, held, state, live, delta)
            if not local.isfinite().all():
                return pd.DataFrame()
            if frame is None:
                singular.append(torch.linalg.svdvals(local).numpy(force=True))
                frame = torch.eye(len(local)).to(local)
            frame, upper = torch.linalg.qr(local @ frame)
            if k >= _BURN:
                sums = sums + upper.diagonal().abs().clamp_min(floor).log()
            state = _left(precise, held, state.unsqueeze(0))[0]
        exponents.append(np.sort((sums / along).numpy(force=True))[::-1])
    rows = []
    for i in range(min(5, len(singular[0]))):
        row: dict[str, float] = {"number": i + 1}
        for name, of in (("singular", singular), ("exponents", exponents)):
            values = [part[i] for part in of]
            row |= {
                name: float(np.mean(values)),
                f"{name}_low": min(values),
                f"{name}_high": max(values),
            }
        rows.append({**row, "floor": float(np.log(floor))})
    return pd.DataFrame(rows)


def _precisely(trial: Trial, round: int, e: int) -> tuple[Machine, Rollout, float]:
    """The machine in double precision where it can be copied, one round of an episode for it, and a small change."""
    held, precise = trial.held(round, [e], 1), trial.model
    with suppress(Exception):  # a machine that cannot be copied is looked at as it is
        precise = copy.deepcopy(trial.model).to(torch.float64)
        held = replace(held, fed=precise.prepare(held.fed))
    held = replace(
        held, latents=held.latents.to(precise.dtype), predictions=held.predictions.to(precise.dtype)
    )
    return precise, held, (1e-5 if precise.dtype == torch.float64 else 1e-3) * orbit(trial).unit


def _left(
    model: Machine, held: Rollout, states: Float[Tensor, "state row width"]
) -> Float[Tensor, "state row width"]:
    """What the only round of one episode leaves of each of several states."""
    edit = Edit(Place.of("latent", model=model), states.unsqueeze(0))
    experiment = Experiment(model, held, {"state": [edit]}, [0] * len(states), commit="target")
    return next(batches(experiment)).carried[0, 0, :, 0]


def _jacobian(
    model: Machine, held: Rollout, state: Float[Tensor, "row width"], live: Tensor, delta: float
) -> Float[Tensor, "out into"]:
    """What a round makes of a small change of its state, in double precision: by central differences of size ``delta``.

    The rows of a batch are independent, so that all directions run at once; differences need no gradient, which neither
    hard attention nor a machine that leaves torch has. ``live`` numbers of what is carried mean something.
    """
    index = live.nonzero()[:, 0]
    n, flat = len(index), state.flatten()
    moved = flat.repeat(2 * n, 1)
    moved[torch.arange(n), index] += delta
    moved[torch.arange(n, 2 * n), index] -= delta
    after = _left(model, held, moved.unflatten(1, state.shape)).flatten(1)[:, index]
    return ((after[:n] - after[n:]) / (2 * delta)).T


def settles(trial: Trial) -> Measure:
    """Does the state settle where the inputs are held? What it does instead stands in the phrase and in the note."""
    if name := trial.grows:
        return claimed("settles", lacking=f"the channel {name!r} grows with every round")
    word, last, more = kind(orbit(trial))
    return claimed(
        "settles",
        last,
        unit=f"step after {trial.effort.held} rounds, of how far episodes lie apart",
        controls=trial.untrained(lambda copy: kind(orbit(copy))[1], "below"),
        no=f"{word or 'moves on'} when inputs are held",
        note=f"It {word}. {more}".strip() if word else more,
    )


_FIXED, _SLOW = (
    1e-6,
    0.05,
)  # speeds up to which a point is fixed, and slow; states of episodes lie 1 apart
_ALIKE = 0.01  # points that lie no farther apart are one
_MARGINAL = 0.01  # a modulus that differs from 1 by no more is 1
_TOLERANCES = {"xtol": 1e-12, "ftol": 1e-12, "gtol": 1e-12, "max_nfev": 200}
_WIDEST_SOLVED = (
    512  # a state of more numbers is refused: a step takes twice as many rounds for each start
)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FixedPoints(Tabulated):
    """Fixed and slow points of a machine with the inputs of one round held, those that most starts reach first.

    The table has a row for each: kind, speed, share of the starts, eigenvalues, and how far the next visited state
    lies. ``leaving`` counts eigenvalues of modulus above 1, ``marginal`` those at 1; ``turn`` is the angle by which the
    leading one turns in a round, in radians.

    Attributes:
        points: states, the numbers that are carried in a row.
        eigenvalues: of the Jacobian at each point, the largest modulus first.
        unit: how far states of different episodes lie apart, in the state's own units.
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
    """Fixed and slow points of a machine's state, with the inputs of one round held.

    Args:
        episodes: their states are where the search starts.
        round: whose inputs are held; one half-way when None. ``episode`` is whose.
        starts: how many visited states it starts from, drawn with ``seed``.

    Raises:
        InputError: a state without a fixed size, or of more than 512 numbers.
    """
    from scipy.optimize import least_squares  # a quarter of a second: only where it is used

    integer("starts", starts, 1)
    trial = Trial(model.eval(), episodes, replace(QUICK, seed=seed))
    (at,) = select_rounds(trial.shape[1] // 2 if round is None else round, trial.shape[1])
    require(0 <= episode < trial.shape[0], f"episode is 0 to {trial.shape[0] - 1}, got {episode}")
    live = carried_mask(model).flatten()
    require(
        not trial.grows,
        f"{model.name!r} has no fixed points: its channel {trial.grows!r} grows with every round",
    )
    n = int(live.sum())
    require(
        n <= _WIDEST_SOLVED, f"fixed points take states of up to {_WIDEST_SOLVED} numbers, got {n}"
    )
    unit = orbit(trial).unit
    precise, held, delta = _precisely(trial, at, episode)
    states = trial.run.latents[:, 1:].flatten(0, 1).to(precise.dtype)
    drawn = np.random.default_rng(seed).choice(len(states), min(starts, len(states)), replace=False)

    def placed(x: Float[np.ndarray, " number"]) -> Tensor:
        """The state whose live numbers, in units, are ``x``."""
        state = states[0].flatten().clone()
        state[live] = torch.from_numpy(x * unit).to(state)
        return state.view_as(states[0])

    def moved(x: Float[np.ndarray, " number"]) -> Float[np.ndarray, " number"]:
        state = placed(x)[None]
        return (
            ((_left(precise, held, state) - state).flatten(1)[0, live] / unit)
            .double()
            .numpy(force=True)
        )

    def slope(x: Float[np.ndarray, " number"]) -> Float[np.ndarray, "out into"]:
        return _jacobian(precise, held, placed(x), live, delta).double().numpy(force=True)

    visited = states.flatten(1)[:, live].double().numpy(force=True)
    points, speed = [], []
    for start in visited[drawn] / unit:
        found = least_squares(
            moved, start, lambda x: slope(x) - np.eye(len(x)), method="lm", **_TOLERANCES
        )
        if (size := float(np.linalg.norm(found.fun))) <= _SLOW:
            points.append(found.x)
            speed.append(size)
    order = np.argsort(speed, kind="stable")
    every = np.array(points).reshape(-1, visited.shape[1])[order]
    # The slowest of each cluster, that which most starts reached first.
    _, first, reached = np.unique(_clusters(every, _ALIKE), return_index=True, return_counts=True)
    most = np.argsort(-reached, kind="stable")
    kept = every[first[most]]
    values = [np.linalg.eigvals(slope(x)) for x in kept]
    eigenvalues = np.array(
        [v[np.argsort(-np.abs(v), kind="stable")] for v in values], complex
    ).reshape(kept.shape)
    modulus, speeds, n_starts = (
        np.abs(eigenvalues),
        np.array(speed)[order][first[most]],
        max(reached.sum(), 1),
    )
    columns = {
        "kind": np.where(speeds <= _FIXED, "fixed", "slow"),
        "speed": speeds,
        "share": reached[most] / n_starts,
        "leaving": (modulus > 1 + _MARGINAL).sum(-1),
        "marginal": (np.abs(modulus - 1) <= _MARGINAL).sum(-1),
        "modulus": modulus.max(-1, initial=0),
        "turn": np.abs(np.angle(eigenvalues[:, :1])).sum(-1),
        "nearest": np.linalg.norm((kept * unit)[:, None] - visited, axis=-1).min(-1, initial=np.inf)
        / unit,
    }
    table, said = pd.DataFrame(columns), f"{model.name}, with the inputs of round {at} held"
    stays, leaves, count = table["marginal"] > 0, table["leaving"] > 0, table["kind"].value_counts()
    counts = f"fixed points: {count.get('fixed', 0)}, slow: {count.get('slow', 0)}; stable: {(~stays & ~leaves).sum()}"
    text = f"{said}: {counts}; with directions along which states stay: {stays.sum()}."
    middle = visited.mean(0)  # drawn in the plane of the two leading components of visited states
    plane = np.linalg.svd(visited - middle, full_matrices=False)[2][:2].T
    shown = (visited - middle) @ plane, (kept * unit - middle) @ plane
    kinds = np.where(leaves, "states leave", np.where(stays, "states stay", "stable")).tolist()
    return FixedPoints(
        sentence=f"{said}, has no fixed or slow point where the search started."
        if table.empty
        else text,
        table=table,
        picture=lambda figures: figures.plane(*shown, kinds),
        points=kept * unit,
        eigenvalues=eigenvalues,
        unit=unit,
    )
