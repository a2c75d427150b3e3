"""How does the state move where the inputs are held? Does it settle, cycle, or drift, and how does it stretch?

A round is run again and again with the inputs of one round. *Settled* is a state whose last step is small beside how
far states of episodes lie apart; it *cycles* with period p where it comes back after p rounds and not before; it
*drifts* where every step repeats the one before. Lyapunov exponents are the mean log stretch of a round along the orbit
(QR of the Jacobians), in nats a round; what is smaller than rounding is cut off there, which is the noise floor. How
the state moves is a picture: whether anything rests on it, the changes of :mod:`interp.audit.used` say.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.audit.trial import THRESHOLDS, Array, Trial, claimed, grows, remembered
from interp.interventions.sites import row_widths
from interp.machine import Machine
from interp.measure import Measure
from interp.model.rollout import run_round
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
_CHUNK = 512
_WIDEST = 1024
"""A state of more numbers has no Jacobian here: it takes a round for each of them."""


@dataclass(frozen=True)
class _Orbit:
    """States ``[round, episode, number]`` under held inputs, in units of how far states of episodes lie apart."""

    states: Float[np.ndarray, "round episode number"]
    unit: float

    @property
    def steps(self) -> Float[np.ndarray, "round episode number"]:
        """From each round to the next."""
        return np.diff(self.states, axis=0)

    def size(self, of: Array) -> Interval:
        """The root mean square of vectors ``[episode, number]``, with its interval over episodes."""
        square = ratio_interval((of**2).sum(-1), np.ones(len(of)))
        return Interval(*(float(np.sqrt(max(x, 0.0))) for x in (square.estimate, square.low, square.high)))


@remembered
def orbit(trial: Trial, inputs_of: int | None = None) -> _Orbit:
    """Where the state goes from the one that a round half-way reads, with that round's inputs held.

    Of the first :data:`_ORBITS` episodes. ``inputs_of`` gives every one of them the inputs of one.
    """
    run, t = trial.run, trial.shape[1] // 2
    rows = slice(0, _ORBITS)
    fed, state = run.fed.at(t).each(itemgetter(rows)), run.latents[rows, t]
    if inputs_of is not None:
        fed = run.fed.at(t).each(itemgetter([inputs_of] * len(state)))
    states = [state]
    with torch.no_grad():
        step = trial.model.stepper()
        while len(states) <= trial.effort.held:
            states.append(run_round(trial.model, fed, states[-1], run.layout, run.commit, (), step).latents)
            if torch.equal(states[-1], states[-2]) or not states[-1].isfinite().all():  # the rest is known
                states += [states[-1]] * (trial.effort.held + 1 - len(states))
    flat = torch.stack(states).double().flatten(2).numpy(force=True)
    every = run.latents[:, 1:].double().flatten(2).numpy(force=True)
    with np.errstate(over="ignore"):  # untrained copies of handwired machines can grow without bound
        units = [np.sqrt(2 * ((every - every.mean(0)) ** 2).sum(-1).mean()), np.sqrt((every**2).sum(-1).mean()), 1.0]
    unit = next(float(unit) for unit in units if 0 < unit < np.inf)
    return _Orbit(flat / unit, unit)


def kind(found: _Orbit) -> tuple[str, Interval, str]:
    """What an orbit does ("settles", "cycles", "drifts", "expands", "wanders", or ""), its last step, and more."""
    bound = THRESHOLDS["settled"].value
    if not np.isfinite(found.states).all():
        return "expands", Interval(np.inf, np.inf, np.inf), "States grow beyond what numbers hold."
    steps = found.steps
    last, middle = found.size(steps[-1]), found.size(steps[len(steps) // 2])
    if last.high < bound:
        return "settles", last, ""
    for period in _PERIODS:
        back = found.size(found.states[-1] - found.states[-1 - period])
        if back.high < bound and last.low > bound:
            return "cycles", last, f"Period {period}: it comes back to within {back.estimate:.1e}."
    if last.low > bound:
        if last.low > _GROWS * middle.high:
            return "expands", last, f"Steps were {middle.estimate:.3g} half-way."
        if again(steps) > _AGAIN:
            if last.low <= middle.high / _GROWS:
                return "", last, f"Steps still shrink: they were {middle.estimate:.3g} half-way."
            shared = common(steps[-1])
            alike = "all episodes alike" if shared > THRESHOLDS["common"].value else "each episode its own way"
            return "drifts", last, f"Every step repeats the one before, {alike} (common share {shared:.2f})."
        return "wanders", last, f"Common share of the steps {common(steps[-1]):.2f}."
    return "", last, ""


def common(step: Float[np.ndarray, "episode number"]) -> float:
    """The share of the steps' squares that is their mean: 1 where all episodes move alike."""
    whole = float((step**2).sum(-1).mean())
    return float((step.mean(0) ** 2).sum()) / whole if whole else 0.0


def again(steps: Float[np.ndarray, "round episode number"]) -> float:
    """The mean cosine between the last step and the one before it."""
    one, two = steps[-2], steps[-1]
    size = np.sqrt((one**2).sum(-1) * (two**2).sum(-1))
    return float(np.where(size > 0, (one * two).sum(-1) / np.where(size > 0, size, 1), 0).mean())


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
            far = np.abs(found.states[-1][:, None] - found.states[-1][None]).max()
            row |= {
                "ends": len(np.unique(points)),
                "largest_share": float(np.bincount(points).max() / len(points)),
                "apart": float(far),
                "answers": _answers(trial, e, found),
            }
        rows.append(row)
    return pd.DataFrame(rows)


def _answers(trial: Trial, e: int, found: _Orbit) -> int:
    run, t = trial.run, trial.shape[1] // 2
    fed = run.fed.at(t).each(itemgetter([e] * found.states.shape[1]))
    state = torch.from_numpy(found.states[-1] * found.unit).to(run.latents).unflatten(1, run.latents.shape[2:])
    with torch.no_grad():
        said = run_round(trial.model, fed, state, run.layout, run.commit, ())
    if run.layout.kind != "classes":
        return 0
    return len(set(said.choice.tolist()))


def _clusters(points: Float[np.ndarray, "point number"], radius: float) -> Array:
    """Which cluster each point is in, Int[point]: a point farther than ``radius`` from all centres is a new centre.

    >>> _clusters(np.array([[0.0], [1.0], [0.001]]), 0.01).tolist()
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


# How a round stretches: Jacobians, singular values, exponents.


def live(model: Machine) -> Tensor:
    """Which numbers of what is carried mean something, Bool[row * width]: not those that pad rows."""
    width = max(channel.shape[-1] for channel in model.channels)
    return torch.stack([torch.arange(width) < n for n in row_widths(model)]).flatten()


def _jacobian(model: Machine, state: Float[Tensor, "row width"], fed: Any, delta: float) -> Float[Tensor, "out into"]:
    """What a round makes of a small change of its state, in double precision: by central differences of size ``delta``.

    The rows of a batch are independent, so that all directions run at once; differences need no gradient, which neither
    hard attention nor a machine that leaves torch has.
    """
    index = live(model).nonzero()[:, 0]
    n, flat = len(index), state.flatten()
    moved = flat.repeat(2 * n, 1)
    moved[torch.arange(n), index] += delta
    moved[torch.arange(n, 2 * n), index] -= delta
    parts = []
    with torch.no_grad():
        for chunk in moved.split(_CHUNK):
            rows = fed.each(lambda part, like=chunk: part.expand(len(like), *part.shape[1:]))
            parts.append(model.step(chunk.unflatten(1, state.shape), rows).carried.flatten(1))
    after = torch.cat(parts)[:, index]
    return ((after[:n] - after[n:]) / (2 * delta)).T


def stretch(trial: Trial) -> pd.DataFrame:
    """How rounds with held inputs stretch a state: the five largest singular values of the first, and exponents.

    Means over episodes with their ranges; empty where the state has no fixed size, or too many numbers.
    """
    model = trial.model
    if grows(model.channels) or int(live(model).sum()) > _WIDEST:
        return pd.DataFrame()
    try:
        precise = copy.deepcopy(model).to(torch.float64)
    except Exception:  # a machine that cannot be copied is looked at as it is
        precise = model
    delta = 1e-5 * orbit(trial).unit if precise.dtype == torch.float64 else 1e-3 * orbit(trial).unit
    floor = float(torch.finfo(precise.dtype).eps) / 1e-5
    t = trial.shape[1] // 2
    fed_all = precise.prepare(trial.run.fed.at(t)) if precise is not model else trial.run.fed.at(t)
    along, singular, exponents = trial.effort.along, [], []
    for e in range(min(trial.effort.jacobians, trial.shape[0])):
        fed = fed_all.each(itemgetter(slice(e, e + 1)))
        state = trial.run.latents[e, t].to(precise.dtype)
        frame, sums = None, torch.zeros(int(live(precise).sum()), dtype=precise.dtype)
        for k in range(_BURN + along):
            local = _jacobian(precise, state, fed, delta)
            if not local.isfinite().all():
                return pd.DataFrame()
            if frame is None:
                singular.append(torch.linalg.svdvals(local).numpy(force=True))
                frame = torch.eye(len(local)).to(local)
            frame, upper = torch.linalg.qr(local @ frame)
            if k >= _BURN:
                sums = sums + upper.diagonal().abs().clamp_min(floor).log()
            with torch.no_grad():
                state = precise.step(state.unsqueeze(0), fed).carried[0]
        exponents.append(np.sort((sums / along).numpy(force=True))[::-1])
    rows = []
    for i in range(min(5, len(singular[0]))):
        row: dict[str, float] = {"number": i + 1}
        for name, of in (("singular", singular), ("exponents", exponents)):
            values = [part[i] for part in of]
            row |= {name: float(np.mean(values)), f"{name}_low": min(values), f"{name}_high": max(values)}
        rows.append({**row, "floor": float(np.log(floor))})
    return pd.DataFrame(rows)


def settles(trial: Trial) -> Measure:
    """Does the state settle where the inputs are held? What it does instead stands in the phrase and in the note."""
    if name := grows(trial.model.channels):
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
