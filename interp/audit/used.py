"""Is what is carried used? By channel, by the round in which it is changed, and by the round that is read.

A state is put in the place of another (:class:`Change`) and the machine runs on by itself. The claims are
decided by a *worth*: the share of the task's loss that the own state takes away, compared with a machine whose state
is replaced in every round; a single round has too few answers to judge by. What the own state takes away by the truths
of other episodes is chance and does not count; the control is the worth of untrained copies' states. The tables hold
more: *effect* is how far predictions move where the state is replaced once, *cost* by how much the loss rises. NOT
evidence of what is used of a state: another episode's state differs in everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.audit.trial import ALL, THRESHOLDS, Array, Trial, claimed
from interp.results.measure import Control, Measure
from interp.stats.intervals import Interval, mean_interval, ratio_interval
from interp.support.session import remembered


class Change(StrEnum):
    """What the states that rounds read are changed to."""

    INITIAL = "the initial state"
    DONOR = "another episode's state"
    SAME = "another episode's with the same answer"
    NOISE = "noise of equal covariance"
    LATE = "a state one round old"
    MEAN = "the mean state of the round"


def donors(n_episodes: int, seed: int) -> Int[np.ndarray, " episode"]:
    """For each episode another one, drawn at random: a circle through all of them."""
    order = np.random.default_rng([seed, 11]).permutation(n_episodes)
    given = np.empty(n_episodes, np.int64)
    given[order] = np.roll(order, 1)
    return given


def alike(
    labels: Int[np.ndarray, " episode"], seed: int
) -> tuple[Int[np.ndarray, " episode"], Bool[np.ndarray, " episode"]]:
    """For each episode another one with the same label, and whether there is one; itself where there is none."""
    given, found = np.arange(len(labels)), np.zeros(len(labels), bool)
    for label in np.unique(labels):
        of = np.flatnonzero(labels == label)
        given[of], found[of] = of[donors(len(of), seed)], len(of) > 1
    return given, found


def limited(
    trial: Trial, rounds: Sequence[int], change: str, channel: str = ALL
) -> Float[Tensor, "written episode row width"]:
    """What some rounds read where ``change`` touches only the rows of ``channel``."""
    own, seed = trial.read(rounds), trial.effort.seed
    mean, n = own.mean(1, keepdim=True), own.shape[1]
    if change == Change.INITIAL:
        new = trial.run.latents[:, 0].expand_as(own)
    elif change == Change.DONOR:
        new = own[:, torch.from_numpy(donors(n, seed))]
    elif change == Change.SAME:
        answers = trial.run.choices.numpy(force=True)
        rows = (torch.from_numpy(alike(answers[:, t], seed)[0]) for t in rounds)
        new = torch.stack([state[of] for state, of in zip(own, rows, strict=True)])
    elif (
        change == Change.NOISE
    ):  # the mean, and a Gaussian combination of deviations: their covariance at any rank
        draws = torch.randn(n, n, generator=torch.Generator().manual_seed(seed)).to(own)
        new = mean + torch.einsum("ij,sjrw->sirw", draws, own - mean) / max(n - 1, 1) ** 0.5
    elif change == Change.LATE:
        new = trial.read([max(t - 1, 0) for t in rounds])
    else:
        new = mean.expand_as(own)
    state, of_channel = own.clone(), trial.channels[channel]
    state[:, :, of_channel] = new[:, :, of_channel]
    return state


_OF_EACH, CONTENT = (Change.INITIAL, Change.DONOR), (Change.DONOR, Change.MEAN)
"""Changes of single channels, and of what a state says alone."""
_CHANCE = "the truth of other episodes"
_OTHERS = 8  # by the truths of so many other episodes chance is measured


class _Influence(NamedTuple):
    """What one kind of change does, by the round written and so many rounds on; NaN where there is nothing to see.

    An episode has ended, or no other gives the same answer, where that is what is changed to.
    """

    effect: Float[np.ndarray, "write episode lag"]
    cost: Float[np.ndarray, "write episode lag"]


@remembered
def influence(trial: Trial, channel: str, change: str) -> _Influence:
    """What a change of a channel does."""
    rounds, there = trial.writes, np.ones((len(trial.writes), trial.shape[0]), bool)
    if change == Change.SAME:  # where another episode gives the same answer
        classes, answers = trial.run.layout.kind == "classes", trial.run.choices.numpy(force=True)
        there = (
            np.stack([alike(answers[:, t], trial.effort.seed)[1] for t in rounds])
            if classes
            else ~there
        )
    said = trial.continued(limited(trial, rounds, change, channel), rounds)
    moved, parts = trial.distance(trial.distribution(said), trial.plain), []
    for of in (moved, trial.losses(said) - trial.losses(trial.run.predictions)):
        later = np.full(of.shape, np.nan)
        for i, t in enumerate(rounds):
            later[i, there[i], : of.shape[2] - t] = of[i, there[i], t:]
        parts.append(later)
    return _Influence(*parts)


def mean(trial: Trial, values: Float[np.ndarray, "write episode"]) -> Interval:
    """The mean over writes, of those that there are, with its 95 % interval over episodes."""
    return ratio_interval(
        np.nansum(values, 0), np.isfinite(values).sum(0), participants=trial.whose
    )


def table(trial: Trial) -> pd.DataFrame:
    """Effect and cost of every change, by channel, at once and some rounds on."""
    rows = []
    for channel in trial.channels:
        for change in Change if channel == ALL else _OF_EACH:
            for lag in {0, 1, 2, 4} & set(range(trial.shape[1])):
                effect, cost = (of[..., lag] for of in influence(trial, channel, change))
                if n := int(np.isfinite(effect).sum()):
                    numbers = {
                        **mean(trial, effect).columns("effect"),
                        **mean(trial, cost).columns("cost"),
                    }
                    rows.append(
                        {"channel": channel, "change": change, "rounds_on": lag, **numbers, "n": n}
                    )
    return pd.DataFrame(rows)


def by_round(trial: Trial) -> pd.DataFrame:
    """Effect of another episode's state on the prediction of the same round, by channel and round."""
    return pd.DataFrame(
        {
            "channel": channel,
            "round": t,
            **mean_interval(part[:, 0], participants=trial.whose).columns("effect"),
        }
        for channel in trial.channels
        for t, part in zip(
            trial.writes, influence(trial, channel, Change.DONOR).effect, strict=True
        )
    )


def replaced(
    trial: Trial, change: str, channel: str = ALL, axes: Tensor | None = None, again: bool = True
) -> Float[Tensor, "episode round *outcome"]:
    """Predictions where every round from the second on reads a changed state; without ``again``, the second alone.

    With ``axes`` the state that a round would read is changed in these directions alone, else in rows of a channel.
    """

    def write(t: int, state: Tensor) -> Tensor:
        new, rows, after = (
            limited(trial, [t], change, channel)[0],
            trial.channels[channel],
            state.clone(),
        )
        if axes is not None:
            return state + ((new - state).flatten(1).double() @ axes.T @ axes).to(state).unflatten(
                1, state.shape[1:]
            )
        after[:, rows] = new[:, rows]
        return after

    first = write(1, trial.read([1])[0]).unsqueeze(0)
    return trial.continued(
        first, [1], again=(lambda _, t, state: write(t, state)) if again else None
    )[0]


def worth(trial: Trial, changes: Sequence[str], channel: str = ALL) -> tuple[Interval, float]:
    """The share of the loss that the own state takes away beyond chance, by the change that shows it best; and chance.

    Over rounds from the second. Chance is the same share by the truth of other episodes.
    """
    return _best([_worth(trial, change, channel) for change in changes])


def _best(found: list[tuple[Interval, float]]) -> tuple[Interval, float]:
    """A share that is wholly above the threshold, where there is one; the largest of them, or of all."""
    return max(found, key=lambda one: (one[0].low >= THRESHOLDS["worth"].value, one[0].estimate))


@remembered
def _worth(trial: Trial, change: str, channel: str) -> tuple[Interval, float]:
    return shares(
        trial, replaced(trial, change, channel), slice(max(1, trial.task.data.first_asked), None)
    )


def shares(trial: Trial, without: Tensor, rounds: slice) -> tuple[Interval, float]:
    """The share of the loss of the predictions ``without`` that the model's own are below it, beyond chance; chance."""

    def fallen(rows: Tensor) -> Array:
        lost, own = (trial.losses(of[rows])[:, rounds] for of in (without, trial.run.predictions))
        return (lost - own).sum(1)

    n, seed = trial.shape[0], trial.effort.seed
    whole = np.abs(trial.losses(without)[:, rounds]).sum(1)
    if not whole.any():
        return Interval(0.0, 0.0, 0.0), 0.0
    chance = np.mean([fallen(torch.from_numpy(donors(n, seed + 1 + i))) for i in range(_OTHERS)], 0)
    share = ratio_interval(fallen(torch.arange(n)) - chance, whole, participants=trial.whose)
    return share, float(chance.sum() / whole.sum())


def used(trial: Trial, channel: str) -> Measure:
    """Do right answers rest on the channel? By the worse of two changes: the initial state, and another episode's."""
    what = "what it carries" if channel == ALL else f"its {channel}"
    return _rests("used", trial, _OF_EACH, channel, verb="use", what=what)


def content(trial: Trial) -> Measure:
    """Is it what the state says, or that there is one? Another episode's state is as much of a state as the own one."""
    (none, _), (other, _) = worth(trial, [Change.INITIAL]), worth(trial, CONTENT)
    pauses = none.low >= THRESHOLDS["worth"].value > other.high
    note = (
        "It is a pause: the initial state costs answers, another episode's does not."
        if pauses
        else ""
    )
    return replace(
        _rests("content", trial, CONTENT, ALL, verb="read", what="what its state says"), note=note
    )


def _rests(
    key: str, trial: Trial, changes: Sequence[str], channel: str, *, verb: str, what: str
) -> Measure:
    number, chance = worth(trial, changes, channel)
    return claimed(
        key,
        number,
        controls={
            **trial.untrained(lambda copy: worth(copy, changes, channel)[0]),
            _CHANCE: Control(chance),
        },
        about="" if channel == ALL else channel,
        yes=f"{verb}s {what}",
        no=f"does not {verb} {what}",
    )


def lasts(trial: Trial) -> Measure:
    """Is a state carried on from round to round, or made anew from the inputs of each?

    Another episode's state, or the mean of all, is written in a round, and answers are judged a round on.
    """
    if trial.shape[1] < 3 or worth(trial, CONTENT)[0].high < THRESHOLDS["worth"].value:
        return claimed("lasts", lacking="no state whose replacement costs answers")
    now, then = (influence(trial, ALL, Change.DONOR).effect[..., lag] for lag in (0, 1))
    left = np.nansum(then) / max(now[np.isfinite(then)].sum(), 1e-12)
    number, chance = _lasts(trial)
    controls = {**trial.untrained(lambda copy: _lasts(copy)[0]), _CHANCE: Control(chance)}
    note = f"A round later, {left:.2f} of the effect on predictions is left."
    return claimed("lasts", number, controls=controls, note=note)


def _lasts(trial: Trial) -> tuple[Interval, float]:
    rounds, found = list(range(1, trial.shape[1] - 1)), []
    for change in CONTENT:
        late = trial.run.predictions.clone()
        said = trial.continued(limited(trial, rounds, change), rounds, horizon=2)
        for i, t in enumerate(rounds):
            late[:, t + 1] = said[i, :, t + 1]
        found.append(shares(trial, late, slice(2, None)))
    return _best(found)


def without(trial: Trial) -> pd.DataFrame:
    """The share of the loss that the own state takes away, by channel and by what is read in every round instead."""
    rows = []
    for channel in trial.channels:
        for change in (*_OF_EACH, Change.MEAN):
            number, chance = worth(trial, [change], channel)
            rows.append(
                {"channel": channel, "change": change, **number.columns("worth"), "chance": chance}
            )
    return pd.DataFrame(rows)


def presence(trial: Trial) -> pd.DataFrame:
    """The loss of the last round by content x presence: the own state, or the mean of all; of that round, or at first.

    "Own content, no presence" is what sets the episode apart from the others, added to the initial state.
    """
    last = [trial.shape[1] - 1]
    state, initial = trial.read(last), trial.run.latents[:, 0].unsqueeze(0)
    mean = state.mean(1, keepdim=True).expand_as(state)
    cells = {
        ("own", "yes"): state,
        ("none", "yes"): mean,
        ("own", "no"): state - mean + initial,
        ("none", "no"): initial,
    }
    losses = {
        cell: trial.losses(trial.continued(read, last))[0, :, -1] for cell, read in cells.items()
    }
    return pd.DataFrame(
        {
            "content": said,
            "presence": there,
            **mean_interval(loss, participants=trial.whose).columns("loss"),
        }
        for (said, there), loss in losses.items()
    )
