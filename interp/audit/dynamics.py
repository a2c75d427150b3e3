"""How does the state move where the inputs are held? Does it settle, cycle, or drift, and how does it stretch?

A round is run again and again with the inputs of one round. *Settled* is a state whose last step is small beside how
far states of episodes lie apart; it *cycles* with period p where it comes back after p rounds and not before; it
*drifts* where every step repeats the one before. Lyapunov exponents are the mean log stretch of a round along the orbit
(QR of the Jacobians), in nats a round; what is smaller than rounding is cut off there, which is the noise floor. How
the state moves is a picture: whether anything rests on it, the changes of :mod:`interp.audit.used` say.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.audit.trial import THRESHOLDS, Array, Trial, claimed
from interp.interventions.experiment import Edit, Experiment, batches
from interp.interventions.sites import Place, carried_mask
from interp.machine import Machine
from interp.measure import Measure
from interp.model.run import Rollout
from interp.session import remembered
from interp.statistics import Interval, ratio_interval

_PERIODS = range(2, 9)
_GROWS = 1.5
"""Steps that are so much longer at the end of the orbit than in its middle grow."""
_AGAIN = 0.9
"""The cosine between a step and the next from which a state goes on in one direction."""
_ORBITS = 32
"""So many episodes, at most, are followed with inputs held."""
_BURN = 1
"""Rounds before exponents are averaged."""
_WIDEST = 1024
"""A state of more numbers has no Jacobian here: it takes a round for each of them."""


@dataclass(frozen=True)
class _Orbit:
    """States ``[round, episode, number]`` under held inputs, in units of how far states of episodes lie apart.

    ``answers`` are those that the last states give.
    """

    states: Float[np.ndarray, "round episode number"]
    unit: float
    answers: Array

    def size(self, of: Array) -> Interval:
        """The root mean square of vectors ``[episode, number]``, with its interval over episodes."""
        square = ratio_interval((of**2).sum(-1), np.ones(len(of)))
        return Interval(*(float(np.sqrt(max(x, 0.0))) for x in (square.estimate, square.low, square.high)))


@remembered
def orbit(trial: Trial, inputs_of: int | None = None) -> _Orbit:
    """Where the state goes from the one that a round half-way reads, with that round's inputs held.

    Of the first :data:`_ORBITS` episodes. ``inputs_of`` gives every one of them the inputs of one.
    """
    run, t, most = trial.run, trial.shape[1] // 2, trial.effort.held
    own = list(range(min(_ORBITS, trial.shape[0])))
    held, start = trial.held(t, own if inputs_of is None else [inputs_of] * len(own), most + 1), run.latents[own, t]
    edit = Edit(Place.of("latent", model=trial.model), start.unsqueeze(1))
    (ran,) = batches(Experiment(trial.model, held, {"state": [edit]}, [0], most, "each"))
    states = torch.cat([start.unsqueeze(1), ran.carried[0, :, 0, :most]], 1).transpose(0, 1)
    answers = run.layout.choose(ran.predictions[0, :, 0, most]).numpy(force=True)
    flat = states.double().flatten(2).numpy(force=True)
    every = run.latents[:, 1:].double().flatten(2).numpy(force=True)
    with np.errstate(over="ignore"):  # untrained copies of handwired machines can grow without bound
        units = [np.sqrt(2 * ((every - every.mean(0)) ** 2).sum(-1).mean()), np.sqrt((every**2).sum(-1).mean()), 1.0]
    unit = next(float(unit) for unit in units if 0 < unit < np.inf)
    return _Orbit(flat / unit, unit, answers)


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
        shared = float((steps[-1].mean(0) ** 2).sum()) / whole if whole else 0.0  # 1 where all episodes move alike
        if last.low > _GROWS * middle.high:
            return "expands", last, f"Steps were {middle.estimate:.3g} half-way."
        one, two = steps[-2], steps[-1]
        size = np.sqrt((one**2).sum(-1) * (two**2).sum(-1))
        cosine = np.where(size > 0, (one * two).sum(-1) / np.where(size > 0, size, 1), 0)
        if float(cosine.mean()) > _AGAIN:
            if last.low <= middle.high / _GROWS:
                return "", last, f"Steps still shrink: they were {middle.estimate:.3g} half-way."
            alike = "all episodes alike" if shared > THRESHOLDS["common"].value else "each episode its own way"
            return "drifts", last, f"Every step repeats the one before, {alike} (common share {shared:.2f})."
        return "wanders", last, f"Common share of the steps {shared:.2f}."
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
            points = clusters(found.states[-1], 10 * THRESHOLDS["settled"].value)
            far = np.abs(found.states[-1][:, None] - found.states[-1][None]).max()
            row |= {
                "ends": len(np.unique(points)),
                "largest_share": float(np.bincount(points).max() / len(points)),
                "apart": float(far),
                "answers": len(set(found.answers.tolist())) if trial.run.layout.kind == "classes" else 0,
            }
        rows.append(row)
    return pd.DataFrame(rows)


def clusters(points: Float[np.ndarray, "point number"], radius: float) -> Array:
    """Which cluster each point is in, Int[point]: a point farther than ``radius`` from all centres is a new centre.

    >>> clusters(np.array([[0.0], [1.0], [0.001]]), 0.01).tolist()
    [0, 1, 0]
    """
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
        precise, held, delta = precisely(trial, t, e)
        floor = float(torch.finfo(precise.dtype).eps) / 1e-5
        state, frame = trial.run.latents[e, t].to(precise.dtype), None
        sums = torch.zeros(int(live.sum()), dtype=precise.dtype)
        for k in range(_BURN + along):
            local = jacobian(precise, held, state, live, delta)
            if not local.isfinite().all():
                return pd.DataFrame()
            if frame is None:
                singular.append(torch.linalg.svdvals(local).numpy(force=True))
                frame = torch.eye(len(local)).to(local)
            frame, upper = torch.linalg.qr(local @ frame)
            if k >= _BURN:
                sums = sums + upper.diagonal().abs().clamp_min(floor).log()
            state = left(precise, held, state.unsqueeze(0))[0]
        exponents.append(np.sort((sums / along).numpy(force=True))[::-1])
    rows = []
    for i in range(min(5, len(singular[0]))):
        row: dict[str, float] = {"number": i + 1}
        for name, of in (("singular", singular), ("exponents", exponents)):
            values = [part[i] for part in of]
            row |= {name: float(np.mean(values)), f"{name}_low": min(values), f"{name}_high": max(values)}
        rows.append({**row, "floor": float(np.log(floor))})
    return pd.DataFrame(rows)


def precisely(trial: Trial, t: int, e: int) -> tuple[Machine, Rollout, float]:
    """The machine in double precision where it can be copied, one round of an episode for it, and a small change."""
    held, precise = trial.held(t, [e], 1), trial.model
    with suppress(Exception):  # a machine that cannot be copied is looked at as it is
        precise = copy.deepcopy(trial.model).to(torch.float64)
        held = replace(held, fed=precise.prepare(held.fed))
    held = replace(held, latents=held.latents.to(precise.dtype), predictions=held.predictions.to(precise.dtype))
    return precise, held, (1e-5 if precise.dtype == torch.float64 else 1e-3) * orbit(trial).unit


def left(model: Machine, held: Rollout, states: Float[Tensor, "state row width"]) -> Float[Tensor, "state row width"]:
    """What the only round of one episode leaves of each of several states."""
    edit = Edit(Place.of("latent", model=model), states.unsqueeze(0))
    experiment = Experiment(model, held, {"state": [edit]}, [0] * len(states), commit="target")
    return next(batches(experiment)).carried[0, 0, :, 0]


def jacobian(
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
    after = left(model, held, moved.unflatten(1, state.shape)).flatten(1)[:, index]
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
