"""Does the state lower the loss, by its content, and how many rounds on?

A state is replaced by another one (:class:`Change`) and the machine runs on by itself. The checks
are decided by the *worth* of a state,

    (loss with the changed state - loss with the state) / loss with the changed state,

the share of the task's loss that the state removes. It counts all rounds that read a state, each of
which reads a changed one: a single round has too few answers to judge by. The control is the worth
of untrained copies' states. The content of a state is its information on the episode: another
episode's state, or the mean of all, lacks it and is otherwise a normal state. A state may also
lower the loss on the truth of further episodes. That part is no such content, and is subtracted. It
is not subtracted in comparisons with the initial state: the mere presence of a state may help, too.

A worth of 0 does not mean that no prediction depends on the state: predictions may move and be no
better. So every check also has the *effect*, the mean distance of predictions with the changed
state from the unchanged ones. "does not use" is reported only where the effect is small, too. The
*cost* in the tables is the rise of the loss. NOT evidence of what is used of a state: another
episode's state differs in everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.audit.trial import ALL, THRESHOLDS, Trial
from interp.results.measure import Measure
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


EITHER = (Change.INITIAL, Change.DONOR)
"""Changes that are tabled of every channel."""
_WITHOUT_CONTENT = (Change.DONOR, Change.MEAN)
"""Changes that leave a state without what it says of its own episode."""
_N_FURTHER = 8  # further episodes by whose truth chance is measured
_LAGS = (0, 1, 2, 4)  # rounds after a change at which its effect is tabled


def draw_donors(n_episodes: int, seed: int) -> Int[np.ndarray, " episode"]:
    """Draw another episode for each episode: a circle through all of them, in random order."""
    order = np.random.default_rng([seed, 11]).permutation(n_episodes)
    donor = np.empty(n_episodes, np.int64)
    donor[order] = np.roll(order, 1)
    return donor


def draw_donors_alike(
    labels: Int[np.ndarray, " episode"], seed: int
) -> tuple[Int[np.ndarray, " episode"], Bool[np.ndarray, " episode"]]:
    """Draw another episode with the same label for each episode; return also whether there is one.

    An episode with a unique label is its donor itself.
    """
    donor = np.arange(len(labels))
    has_donor = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        donor[rows] = rows[draw_donors(len(rows), seed)]
        has_donor[rows] = len(rows) > 1
    return donor, has_donor


def change_states(
    trial: Trial, rounds: Sequence[int], change: str, channel: str = ALL
) -> Float[Tensor, "written episode row width"]:
    """Return the states that rounds read, with the rows of a channel changed.

    Args:
        trial: the model and its run.
        rounds: that read the states.
        change: a :class:`Change`.
        channel: of the state; all by default.
    """
    states = trial.read(rounds)
    rows = trial.channels[channel]
    state = states.clone()
    state[:, :, rows] = _new_states(trial, rounds, change, states)[:, :, rows]
    return state


def _new_states(trial: Trial, rounds: Sequence[int], change: str, own: Tensor) -> Tensor:
    seed = trial.budget.seed
    n_episodes = own.shape[1]
    mean = own.mean(1, keepdim=True)
    if change == Change.INITIAL:
        return trial.run.latents[:, 0].expand_as(own)
    if change == Change.DONOR:
        return own[:, torch.from_numpy(draw_donors(n_episodes, seed))]
    if change == Change.SAME:
        answers = trial.run.choices.numpy(force=True)
        donors = [draw_donors_alike(answers[:, t], seed)[0] for t in rounds]
        states = [own[i, torch.from_numpy(donor)] for i, donor in enumerate(donors)]
        return torch.stack(states)
    if change == Change.NOISE:  # a Gaussian combination of deviations has their covariance
        generator = torch.Generator().manual_seed(seed)
        draws = torch.randn(n_episodes, n_episodes, generator=generator).to(own)
        noise = torch.einsum("ij,sjrw->sirw", draws, own - mean)
        return mean + noise / max(n_episodes - 1, 1) ** 0.5
    if change == Change.LATE:
        return trial.read([max(t - 1, 0) for t in rounds])
    return mean.expand_as(own)


class _Influence(NamedTuple):
    """The effect and the cost of a change, by the round written and rounds later; NaN where no
    change can be measured.

    This is so after the last round, and where no other episode gives the same answer.
    """

    effect: Float[np.ndarray, "write episode lag"]
    cost: Float[np.ndarray, "write episode lag"]


@remembered
def influence(trial: Trial, channel: str, change: str) -> _Influence:
    """Measure all later predictions after a channel is changed once, in each of the rounds written.

    Args:
        trial: the model and its run.
        channel: of the state.
        change: a :class:`Change`.
    """
    predictions = trial.continued(change_states(trial, trial.writes, change, channel), trial.writes)
    effect = trial.distance(trial.distribution(predictions), trial.plain)
    cost = trial.losses(predictions) - trial.own_losses
    counted = _has_change(trial, change)
    return _Influence(_by_lag(trial, effect, counted), _by_lag(trial, cost, counted))


def _has_change(trial: Trial, change: str) -> Bool[np.ndarray, "write episode"]:
    """Return whether there is a state to change to: some changes need another episode that gives
    the same answer.
    """
    if change != Change.SAME:
        return np.ones((len(trial.writes), trial.shape[0]), bool)
    if trial.run.layout.kind != "classes":
        return np.zeros((len(trial.writes), trial.shape[0]), bool)
    answers = trial.run.choices.numpy(force=True)
    drawn = [draw_donors_alike(answers[:, t], trial.budget.seed) for t in trial.writes]
    return np.stack([has_donor for _, has_donor in drawn])


def _by_lag(
    trial: Trial,
    values: Float[np.ndarray, "write episode round"],
    counted: Bool[np.ndarray, "write episode"],
) -> Float[np.ndarray, "write episode lag"]:
    """Move values so that the last axis counts rounds from the round written.

    Args:
        trial: gives the rounds written.
        values: by round.
        counted: other entries become NaN.
    """
    shifted = np.full(values.shape, np.nan)
    n_rounds = values.shape[2]
    for i, t in enumerate(trial.writes):
        shifted[i, counted[i], : n_rounds - t] = values[i, counted[i], t:]
    return shifted


def mean_over_writes(trial: Trial, values: Float[np.ndarray, "write episode"]) -> Interval:
    """Return the mean over the finite entries, with its 95 % interval over episodes."""
    counts = np.isfinite(values).sum(0)
    return ratio_interval(np.nansum(values, 0), counts, participants=trial.whose)


def predict_with(
    trial: Trial, change: str, channel: str = ALL
) -> Float[Tensor, "episode round *outcome"]:
    """Run with a changed state in every round from the second on, and return the predictions.

    Args:
        trial: the model and its run.
        change: a :class:`Change`.
        channel: of the state; all by default.
    """
    rows = trial.channels[channel]

    def change_again(_: object, t: int, state: Tensor) -> Tensor:
        changed = state.clone()
        changed[:, rows] = change_states(trial, [t], change, channel)[0][:, rows]
        return changed

    first = change_states(trial, [1], change, channel)
    return trial.continued(first, [1], again=change_again)[0]


class _Worth(NamedTuple):
    """The share of the loss that a state removes, and the mean distance by which predictions move
    without it.

    ``change`` is what the state was compared with.
    """

    change: str
    share: Interval
    effect: Interval


def worth_of_content(trial: Trial, channel: str = ALL) -> _Worth:
    """Return the gain from a state's information on its episode, by the change with the highest
    lower bound.
    """
    worths = [worth_by(trial, change, channel) for change in _WITHOUT_CONTENT]
    return max(worths, key=lambda worth: worth.share.low)


def worth_of_state(trial: Trial, channel: str = ALL) -> _Worth:
    """Return the gain from the content where it pays; otherwise that from any state instead of the
    initial one.
    """
    content_worth = worth_of_content(trial, channel)
    if content_worth.share.low >= THRESHOLDS["worth"].value:
        return content_worth
    return worth_by(trial, Change.INITIAL, channel)


@remembered
def worth_by(trial: Trial, change: str, channel: str = ALL) -> _Worth:
    """Return the gain from a channel's state compared with a change of it.

    Args:
        trial: the model and its run.
        change: a :class:`Change`.
        channel: of the state; all by default.
    """
    return weigh(trial, predict_with(trial, change, channel), change, trial.scored)


def weigh(
    trial: Trial, changed: Float[Tensor, "episode round *outcome"], change: str, rounds: slice
) -> _Worth:
    """Compare predictions with a changed state with the unchanged ones, in some rounds.

    Args:
        trial: the model and its run.
        changed: predictions with the changed state.
        change: a :class:`Change`.
        rounds: that count.
    """
    whole = np.abs(trial.losses(changed)[:, rounds]).sum(1)
    share = Interval(0.0, 0.0, 0.0)
    if whole.any():
        saved = (trial.losses(changed) - trial.own_losses)[:, rounds].sum(1)
        if change in _WITHOUT_CONTENT:
            saved = saved - _saved_by_chance(trial, changed, rounds)
        share = ratio_interval(saved, whole, participants=trial.whose)
    distances = trial.distance(trial.distribution(changed), trial.plain)[:, rounds]
    effect = mean_interval(distances.mean(1), participants=trial.whose)
    return _Worth(change, share, effect)


def _saved_by_chance(
    trial: Trial, changed: Float[Tensor, "episode round *outcome"], rounds: slice
) -> Float[np.ndarray, " episode"]:
    """Return the loss that the state removes when it is scored by the truth of further episodes.

    Args:
        trial: the model and its run.
        changed: predictions with a changed state.
        rounds: that count.
    """
    predictions = trial.run.predictions
    saved = []
    for i in range(_N_FURTHER):
        donors = draw_donors(trial.shape[0], trial.budget.seed + 1 + i)
        rows = torch.from_numpy(donors)
        difference = trial.losses(changed[rows]) - trial.losses(predictions[rows])
        saved.append(difference[:, rounds].sum(1))
    return np.mean(saved, axis=0)


def used(trial: Trial, channel: str) -> Measure:
    """Check whether the state of a channel lowers the loss, by the initial state and by another episode's."""
    what = "what it carries" if channel == ALL else f"its {channel}"
    worth = worth_of_state(trial, channel)
    number_of = f"share of the loss {trial.horizon} that it takes away"
    denial = _deny(
        worth.effect, unused=f"does not use {what}", unpaid=f"predicts no better for {what}"
    )
    controls = trial.untrained(lambda copy: worth_by(copy, worth.change, channel).share)
    threshold = THRESHOLDS["worth"].value
    named = "" if channel == ALL else channel
    note = f"Predictions move by {worth.effect} with {worth.change}."
    unit = f"{number_of}, compared with {worth.change}"
    return Measure(
        key="used",
        claim="What is carried lowers the loss",
        number=worth.share,
        threshold=threshold,
        unit=unit,
        controls=controls,
        about=named,
        yes=f"uses {what}",
        no=denial,
        rests_on=("without", "used", "by_round"),
        caution="what is used of the state: another episode's differs in everything",
        note=note,
    )


def content(trial: Trial) -> Measure:
    """Check whether the content of the state counts, or another episode's state is as good."""
    threshold = THRESHOLDS["worth"].value
    initial = worth_by(trial, Change.INITIAL).share
    worth = worth_of_content(trial)
    note = f"Predictions move by {worth.effect} with {worth.change}."
    if initial.low >= threshold > worth.share.high:
        note += " It is a pause: the initial state costs answers, other states do not."
    denial = _deny(
        worth.effect,
        unused="does not use the content of its state",
        unpaid="predicts no better for the content of its state",
    )
    unit = f"share of the loss {trial.horizon} that it takes away, compared with {worth.change}"
    controls = trial.untrained(lambda copy: worth_by(copy, worth.change).share)
    return Measure(
        key="content",
        claim="The content of its state counts, not its mere presence",
        number=worth.share,
        threshold=threshold,
        unit=unit,
        controls=controls,
        yes="uses the content of its state",
        no=denial,
        rests_on=("without", "presence"),
        caution="what is used of the content: another episode's differs in everything",
        note=note,
    )


def _deny(effect: Interval, *, unused: str, unpaid: str) -> str:
    """Return the predicate for a state that does not lower the loss; predictions may still move.

    Args:
        effect: mean distance of predictions.
        unused: the predicate where they do not move.
        unpaid: the predicate where they do.
    """
    return unused if effect.high < THRESHOLDS["worth"].value else unpaid


def lasts(trial: Trial) -> Measure:
    """Check whether a state is carried on, or made anew in every round; answers are scored one
    round later.
    """
    claim = "The effect of its state lasts"
    threshold = THRESHOLDS["worth"].value
    has_later = trial.shape[1] >= 3
    if not has_later or worth_of_content(trial).share.high < threshold:
        lacking = "no state whose replacement costs answers"
        return Measure(key="lasts", claim=claim, lacking=lacking)
    worths = [_worth_later(trial, change) for change in _WITHOUT_CONTENT]
    worth = max(worths, key=lambda later: later.share.low)
    denial = _deny(
        worth.effect,
        unused="makes its state anew in every round",
        unpaid="predicts no better for its state one round later",
    )
    unit = (
        f"share of the loss one round later that its state takes away, compared with {worth.change}"
    )
    controls = trial.untrained(lambda copy: _worth_later(copy, worth.change).share)
    return Measure(
        key="lasts",
        claim=claim,
        number=worth.share,
        threshold=threshold,
        unit=unit,
        controls=controls,
        yes="carries its state on",
        no=denial,
        rests_on=("used",),
        note=_describe_decay(trial),
    )


def _worth_later(trial: Trial, change: str) -> _Worth:
    """Return the gain from the content one round after the round that reads a changed state."""
    rounds = range(1, trial.shape[1] - 1)
    predictions = trial.continued(change_states(trial, rounds, change), rounds, horizon=2)
    later = trial.run.predictions.clone()
    for i, t in enumerate(rounds):
        later[:, t + 1] = predictions[i, :, t + 1]
    return weigh(trial, later, change, slice(max(2, trial.task.data.first_asked), None))


def _describe_decay(trial: Trial) -> str:
    """Say how much of the effect on predictions is left some rounds later, over the same rounds written."""
    effect = influence(trial, ALL, Change.DONOR).effect
    parts = []
    for lag in _LAGS[1:]:
        if lag >= trial.shape[1] - trial.writes[0]:
            continue
        later = effect[..., lag]
        at_once = effect[..., 0][np.isfinite(later)].sum()
        remaining = np.nansum(later) / max(at_once, 1e-12)
        parts.append(f"{remaining:.2f} after {lag}")
    return f"Of the effect on predictions, by rounds: {', '.join(parts)}."


def table(trial: Trial) -> pd.DataFrame:
    """Return effect and cost of every change, by channel, at once and some rounds later."""
    rows = []
    for channel in trial.channels:
        for change in Change if channel == ALL else EITHER:
            changed = influence(trial, channel, change)
            for lag in _LAGS:
                if lag >= trial.shape[1]:
                    continue
                effect = changed.effect[..., lag]
                is_seen = np.isfinite(effect)
                if not is_seen.any():
                    continue
                row = {"channel": channel, "change": change, "rounds_on": lag}
                row |= mean_over_writes(trial, effect).columns("effect")
                row |= mean_over_writes(trial, changed.cost[..., lag]).columns("cost")
                row["n"] = int(is_seen.sum())
                rows.append(row)
    return pd.DataFrame(rows)


def by_round(trial: Trial) -> pd.DataFrame:
    """Return the effect of another episode's state on the prediction of the same round, by channel
    and round.
    """
    rows = []
    for channel in trial.channels:
        effects = influence(trial, channel, Change.DONOR).effect[..., 0]
        for t, effect in zip(trial.writes, effects, strict=True):
            interval = mean_interval(effect, participants=trial.whose)
            rows.append({"channel": channel, "round": t, **interval.columns("effect")})
    return pd.DataFrame(rows)


def without(trial: Trial) -> pd.DataFrame:
    """Return gain and effect by channel and by what every round reads in place of the state."""
    rows = []
    for channel in trial.channels:
        for change in (*EITHER, Change.MEAN):
            worth = worth_by(trial, change, channel)
            row: dict[str, Any] = {"channel": channel, "change": change}
            row |= worth.share.columns("worth")
            row |= worth.effect.columns("effect")
            rows.append(row)
    return pd.DataFrame(rows)


def presence(trial: Trial) -> pd.DataFrame:
    """Return the loss of the last round by content and presence of the state that it reads.

    The content is that of the state or the mean of all; absent is the initial state. Content
    without presence is the difference of the state to the mean, added to the initial state.
    """
    last = [trial.shape[1] - 1]
    state = trial.read(last)
    mean = state.mean(1, keepdim=True).expand_as(state)
    initial = trial.run.latents[:, 0].unsqueeze(0)
    states = {
        ("own", "yes"): state,
        ("none", "yes"): mean,
        ("own", "no"): state - mean + initial,
        ("none", "no"): initial,
    }
    rows = []
    for (content_of, present), changed in states.items():
        loss = trial.losses(trial.continued(changed, last))[0, :, -1]
        interval = mean_interval(loss, participants=trial.whose)
        rows.append({"content": content_of, "presence": present, **interval.columns("loss")})
    return pd.DataFrame(rows)
