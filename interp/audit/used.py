"""Does the state lower the loss, is it by its content, and for how many rounds?

The state that a round reads is replaced by another one (:class:`Change`), and the model continues
from there. The checks are decided by the *worth* of a state, the share of the loss that it removes::

    (loss with the changed state - loss with the state) / loss with the changed state

The state is changed in every round, because a single round has too few answers. The control is the
same share for untrained copies of the model. The *content* of a state is its information about the
episode: another episode's state, or the mean state, lacks it and is normal otherwise. A state may
also lower the loss with respect to the labels of other episodes. That part is not information about
the episode and is subtracted. In comparisons with the initial state it is not subtracted, because
the mere presence of a state may help, too.

A share of 0 does not mean that no prediction depends on the state: predictions may change without
getting worse. So every check also reports the *effect*, the mean distance between predictions with
the changed and the unchanged state. "does not use" is reported only if the effect is small, too.
The *cost* in the tables is the rise of the loss. This is NOT evidence of which part of a state is
used, because another episode's state differs in everything.
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
from interp.support.session import cached_in_session


class Change(StrEnum):
    """A replacement for the state that a round reads, such as another episode's state.

    * ``INITIAL``: the state before the first round;
    * ``DONOR``: the state of another episode in the same round;
    * ``SAME``: the state of another episode in the same round, drawn among the episodes for which
      the model gives the same answer in this round;
    * ``LATE``: the state that the same episode's previous round read;
    * ``MEAN``: the mean over episodes of the states in this round;
    * ``NOISE``: a random state, drawn with the mean and covariance that the states of this round
      have over episodes.
    """

    INITIAL = "the initial state"
    DONOR = "another episode's state"
    SAME = "another episode's with the same answer"
    NOISE = "noise of equal covariance"
    LATE = "a state one round old"
    MEAN = "the mean state of the round"


CHANNEL_CHANGES = (Change.INITIAL, Change.DONOR)
"""Changes that the tables list for every single channel."""
_WITHOUT_CONTENT = (Change.DONOR, Change.MEAN)
"""Changes that remove a state's information about its own episode."""
_DONOR_STREAM = 11  # number of the random stream that draws donors
_N_FURTHER = 8  # number of other episodes whose labels measure a gain by chance
_LAGS = (0, 1, 2, 4)  # numbers of rounds after a change at which the tables list its effect


def draw_donors(n_episodes: int, seed: int) -> Int[np.ndarray, " episode"]:
    """Draw, for each episode, another episode (its donor) to take a state from. Every episode is
    the donor of exactly one other.

    Args:
        n_episodes: number of episodes.
        seed: seed of the draw.

    Returns:
        The index of each episode's donor, ``[episode]``.
    """
    order = np.random.default_rng([seed, _DONOR_STREAM]).permutation(n_episodes)
    donor = np.empty(n_episodes, np.int64)
    # In the random order, each episode takes from the one before it, and the first from the last.
    donor[order] = np.roll(order, 1)
    return donor


def draw_donors_with_same_label(
    labels: Int[np.ndarray, " episode"], seed: int
) -> tuple[Int[np.ndarray, " episode"], Bool[np.ndarray, " episode"]]:
    """Draw, for each episode, another episode (its donor) with the same label, to take a state
    from.

    Args:
        labels: label of each episode, such as the model's answer, ``[episode]``.
        seed: seed of the draw.

    Returns:
        Two arrays ``[episode]``: the index of each episode's donor; and True where there is another
        episode with this label. An episode with a unique label is its own donor.
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
) -> Float[Tensor, "chosen episode row width"]:
    """Return the states that some rounds read, with one channel (some rows of the state) replaced.

    Args:
        trial: the model with its run.
        rounds: indices of the rounds.
        change: how the channel is replaced: a member of :class:`Change`.
        channel: name of the channel, such as h of an LSTM; by default the whole state.

    Returns:
        The states, ``[chosen, episode, row, width]``. The axis ``chosen`` has one entry for each
        round in ``rounds``, in the same order.
    """
    unchanged = trial.select_states(rounds)
    rows = trial.channels[channel]
    changed = unchanged.clone()
    replacements = _make_states(trial, rounds, change, unchanged)
    changed[:, :, rows] = replacements[:, :, rows]
    return changed


def _make_states(trial: Trial, rounds: Sequence[int], change: str, unchanged: Tensor) -> Tensor:
    """Return the states that ``change`` puts in place of the states that some rounds read, such as
    the mean state over episodes.

    All parts of the state are replaced, even if the caller uses only some of them.

    Args:
        trial: the model with its run.
        rounds: indices of the rounds.
        change: how states are replaced: a member of :class:`Change`.
        unchanged: the states that these rounds read, ``[chosen, episode, row, width]``. The axis
            ``chosen`` has one entry for each round in ``rounds``.

    Returns:
        The new states, in the shape of ``unchanged``.
    """
    seed = trial.budget.seed
    n_episodes = unchanged.shape[1]
    mean = unchanged.mean(1, keepdim=True)  # over episodes
    if change == Change.INITIAL:
        return trial.run.latents[:, 0].expand_as(unchanged)
    if change == Change.DONOR:
        return unchanged[:, torch.from_numpy(draw_donors(n_episodes, seed))]
    if change == Change.SAME:  # another episode with the same answer
        answers = trial.run.choices.numpy(force=True)  # [episode, round]
        states = []
        for i, t in enumerate(rounds):
            donor, _ = draw_donors_with_same_label(answers[:, t], seed)
            states.append(unchanged[i, torch.from_numpy(donor)])
        return torch.stack(states)
    if change == Change.NOISE:
        # sum_j g_j d_j / sqrt(n - 1), with standard normal g_j and the episodes' deviations d_j from
        # their mean, has the sample covariance sum_j d_j d_j^T / (n - 1).
        generator = torch.Generator().manual_seed(seed)
        draws = torch.randn(n_episodes, n_episodes, generator=generator).to(unchanged)
        noise = torch.einsum("ij,sjrw->sirw", draws, unchanged - mean)
        return mean + noise / max(n_episodes - 1, 1) ** 0.5
    if change == Change.LATE:
        return trial.select_states([max(t - 1, 0) for t in rounds])  # what round t - 1 read
    return mean.expand_as(unchanged)  # Change.MEAN


class _Influence(NamedTuple):
    """Effect and cost of changing the state once, ``[write, episode, lag]``. The axis ``write`` is
    the round that reads the changed state, ``lag`` the number of rounds since then.

    Entries are NaN after the last round. ``Change.SAME`` takes the state from another episode in
    which the model gives the same answer; entries are NaN if there is none.

    Attributes:
        effect: distance between the predictions with the changed and the unchanged state.
        cost: loss with the changed state minus loss with the unchanged state.
    """

    effect: Float[np.ndarray, "write episode lag"]
    cost: Float[np.ndarray, "write episode lag"]


@cached_in_session
def measure_influence(trial: Trial, channel: str, change: str) -> _Influence:
    """Measure how changing a channel of the state once affects all later predictions. The model is
    run again for each of the rounds ``trial.writes``; in each run only this round reads a changed
    state.

    Args:
        trial: the model with its run.
        channel: name of the part of the state that is replaced, such as h of an LSTM.
        change: what replaces the state: a member of :class:`Change`.

    Returns:
        Two arrays ``[write, episode, lag]``: ``effect``, the distance between changed and unchanged
        predictions, and ``cost``, the rise of the loss. ``write`` is the round that reads the
        changed state, ``lag`` the number of rounds since then. Entries are NaN for rounds after the
        last one. They are also NaN if the change is ``Change.SAME``, and no other episode has the
        same answer.
    """
    predictions = trial.rerun(change_states(trial, trial.writes, change, channel), trial.writes)
    effect = trial.distance(trial.distribution(predictions), trial.unchanged_distributions)
    cost = trial.losses(predictions) - trial.unchanged_losses
    counted = _has_change(trial, change)
    return _Influence(
        effect=_shift_to_lags(trial, effect, counted), cost=_shift_to_lags(trial, cost, counted)
    )


def _has_change(trial: Trial, change: str) -> Bool[np.ndarray, "write episode"]:
    """Return where the state that a round reads can be replaced, ``[write, episode]``, for each
    round of ``trial.writes``.

    Only ``Change.SAME`` may be impossible: the model must give the same answer in another episode.
    Answers that are real numbers are never the same.

    Args:
        trial: the model with its run.
        change: what replaces the state: a member of :class:`Change`.
    """
    if change != Change.SAME:
        return np.ones((len(trial.writes), trial.shape[0]), bool)
    if trial.run.layout.kind != "classes":  # answers that are real numbers are never the same
        return np.zeros((len(trial.writes), trial.shape[0]), bool)
    answers = trial.run.choices.numpy(force=True)  # [episode, round]
    drawn = [draw_donors_with_same_label(answers[:, t], trial.budget.seed) for t in trial.writes]
    return np.stack([has_donor for _, has_donor in drawn])


def _shift_to_lags(
    trial: Trial,
    values: Float[np.ndarray, "write episode round"],
    counted: Bool[np.ndarray, "write episode"],
) -> Float[np.ndarray, "write episode lag"]:
    """Shift values by round so that the last axis counts rounds from the change on, ``[write,
    episode, lag]``. Lag 0 is the round that reads the changed state.

    Args:
        trial: the model with its run; its rounds ``writes`` read the changed states.
        values: the values by round, ``[write, episode, round]``.
        counted: True for entries that count, ``[write, episode]``; entries that do not become NaN.
    """
    shifted = np.full(values.shape, np.nan)
    n_rounds = values.shape[2]
    for i, t in enumerate(trial.writes):
        shifted[i, counted[i], : n_rounds - t] = values[i, counted[i], t:]
    return shifted


def mean_over_writes(trial: Trial, values: Float[np.ndarray, "write episode"]) -> Interval:
    """Return the mean over all finite entries, with its 95 % interval over participants (or
    episodes, if the trial has no participants).

    Args:
        trial: the model with its episodes and their participants.
        values: values ``[write, episode]``, where ``write`` is the round that reads a changed
            state; NaN where the change cannot be made.
    """
    counts = np.isfinite(values).sum(0)
    return ratio_interval(np.nansum(values, 0), counts, participants=trial.participants)


def predict_with(
    trial: Trial, change: str, channel: str = ALL
) -> Float[Tensor, "episode round *outcome"]:
    """Return the model's predictions if every round from the second on reads a replaced state,
    ``[episode, round, ...]``.

    Args:
        trial: the model with its run.
        change: what replaces the state: a member of :class:`Change`.
        channel: name of the part of the state that is replaced, such as h of an LSTM; by default
            the whole state.
    """
    rows = trial.channels[channel]

    def replace_rows(_: object, t: int, state: Tensor) -> Tensor:
        """Return the state that a round reads, with the channel's rows replaced.

        Args:
            _: not used.
            t: index of the round.
            state: the state that it would read without the replacement, ``[episode, row, width]``.
        """
        changed = state.clone()
        (state_of_round,) = change_states(trial, [t], change, channel)  # [episode, row, width]
        changed[:, rows] = state_of_round[:, rows]
        return changed

    # One run, in which round 1 is the first that reads another round's state.
    first = change_states(trial, [1], change, channel)
    (predictions,) = trial.rerun(first, [1], rewrite_state=replace_rows)
    return predictions


class _Worth(NamedTuple):
    """How much the carried state lowers the loss of a model, compared with a replacement.

    Attributes:
        change: what replaces the state: a member of :class:`Change`.
        share: share of the loss with the replacement that the unchanged state removes.
        effect: mean distance between predictions with the replacement and with the unchanged state.
    """

    change: str
    share: Interval
    effect: Interval


def measure_worth_of_content(trial: Trial, channel: str = ALL) -> _Worth:
    """Measure how much the content of the state (its information about the episode) lowers the
    loss.

    The state of every round is replaced in two ways: by another episode's state, and by the mean
    state over episodes. For each, the worth is (loss with the replacement - loss with the unchanged
    state) / loss with the replacement. Of the two, the one counts for which the lower end of the
    worth's interval is higher.

    Args:
        trial: the model with its run.
        channel: name of a part of the state, such as h of an LSTM; by default the whole state.

    Returns:
        ``change``, the replacement that counts; ``share``, the worth; and ``effect``, the mean
        distance between predictions with the replacement and with the unchanged state. The last two
        have intervals.
    """
    worths = [measure_worth(trial, change, channel) for change in _WITHOUT_CONTENT]
    return max(worths, key=lambda worth: worth.share.low)


def measure_worth_of_state(trial: Trial, channel: str = ALL) -> _Worth:
    """Measure how much the state lowers the loss. The share is (loss with a replacement in every
    round - loss with the unchanged state) / loss with the replacement.

    There are up to three replacements:

    - Another episode's state and the mean state over episodes are tried first. Of the two, the one
      counts for which the lower end of the share's interval is higher.
    - If this lower end is below .02, the threshold of the checks, the initial state counts instead.

    Args:
        trial: the model with its run.
        channel: name of a part of the state, such as h of an LSTM; by default the whole state.

    Returns:
        ``change``, the replacement that counts; ``share``; and ``effect``, the mean distance
        between predictions with this replacement and with the unchanged state. The last two have
        intervals.
    """
    content_worth = measure_worth_of_content(trial, channel)
    if content_worth.share.low >= THRESHOLDS["worth"].value:
        return content_worth
    return measure_worth(trial, Change.INITIAL, channel)


@cached_in_session
def measure_worth(trial: Trial, change: str, channel: str = ALL) -> _Worth:
    """Measure how much the state lowers the loss, compared with a replacement in every round. The
    share is (loss with the replacement - loss with the unchanged state) / loss with the
    replacement.

    If the replacement is another episode's state or the mean state, the part of the numerator that
    is not information about the episode is subtracted (:func:`share_of_loss`).

    Args:
        trial: the model with its run.
        change: what replaces the state: a member of :class:`Change`.
        channel: name of the part of the state that is replaced, such as h of an LSTM; by default
            the whole state.

    Returns:
        ``change``, the replacement; ``share``; and ``effect``, the mean distance between
        predictions with the replaced and with the unchanged state. The last two have intervals.
    """
    return share_of_loss(trial, predict_with(trial, change, channel), change, trial.scored_rounds)


def share_of_loss(
    trial: Trial, changed: Float[Tensor, "episode round *outcome"], change: str, rounds: slice
) -> _Worth:
    """Compute the share of the loss that the state removes, from predictions with a changed state.

    The share is ``(changed loss - unchanged loss) / changed loss``. The losses are those with the
    changed and with the unchanged state, summed over episodes and rounds (in the denominator, their
    absolute values). The share is 0 if the changed loss is 0.

    If another episode's state or the mean state replaces the state, the share counts only the
    state's information about its own episode. But a changed state may also raise the loss on the
    labels of any episode. This rise is measured by comparing each episode's labels with the
    predictions of a random other episode. It is averaged over 8 draws, and subtracted from the
    numerator.

    Args:
        trial: the model with its run.
        changed: predictions with the changed state, ``[episode, round, ...]``.
        change: what replaces the state: a member of :class:`Change`. It decides whether the rise is
            subtracted.
        rounds: slice of the rounds that count.

    Returns:
        ``change``; ``share``; and ``effect``, the mean distance between predictions with the
        changed and the unchanged state. The last two have intervals over participants, or over
        episodes if the trial has no participants.
    """
    losses = trial.losses(changed)[:, rounds]
    # The denominator takes absolute values: if real numbers are predicted with a variance, the loss
    # is minus a log density, which may be negative.
    changed_loss = np.abs(losses).sum(1)
    share = Interval(0.0, 0.0, 0.0)
    if changed_loss.any():
        saved = (losses - trial.unchanged_losses[:, rounds]).sum(1)
        if change in _WITHOUT_CONTENT:
            saved = saved - _measure_saved_by_chance(trial, changed, rounds)
        share = ratio_interval(saved, changed_loss, participants=trial.participants)
    distances = trial.distance(trial.distribution(changed), trial.unchanged_distributions)
    effect = mean_interval(distances[:, rounds].mean(1), participants=trial.participants)
    return _Worth(change, share, effect)


def _measure_saved_by_chance(
    trial: Trial, changed: Float[Tensor, "episode round *outcome"], rounds: slice
) -> Float[np.ndarray, " episode"]:
    """Return the part of the loss that the state removes without information about the episode: the
    rise of the loss by a changed state, if each episode's labels are compared with another
    episode's predictions.

    Args:
        trial: the model with its run.
        changed: predictions with a changed state, ``[episode, round, ...]``.
        rounds: slice of the rounds that count.

    Returns:
        The rise of the loss, ``[episode]``, summed over these rounds, and averaged over
        :data:`_N_FURTHER` random draws of the other episodes.
    """
    predictions = trial.run.predictions
    saved = []
    for i in range(_N_FURTHER):
        # Other seeds than the budget's, which drew the donors of the changed states.
        donors = draw_donors(trial.shape[0], trial.budget.seed + 1 + i)
        rows = torch.from_numpy(donors)
        # Predictions of another episode, scored on the labels of this one.
        difference = trial.losses(changed[rows]) - trial.losses(predictions[rows])
        saved.append(difference[:, rounds].sum(1))
    return np.mean(saved, axis=0)


def check_use(trial: Trial, channel: str) -> Measure:
    """Check whether the state, or one channel of it, lowers the loss. The loss is compared with
    that of a run in which every round reads a replacement, which :func:`measure_worth_of_state`
    chooses.

    Args:
        trial: the model with its run.
        channel: name of a part of the state, such as h of an LSTM;
            :data:`interp.audit.trial.ALL` for the whole state.

    Returns:
        A measure, with controls and verdict. Its number is the share of the loss with the
        replacement that the unchanged state removes. Its ``unit`` names the replacement.
    """
    is_whole = channel == ALL
    what = "what it carries" if is_whole else f"its {channel}"
    worth = measure_worth_of_state(trial, channel)
    return _make_measure(
        worth,
        key="used",
        claim="What is carried lowers the loss",
        unit=f"share of the loss {trial.scored_in_words} that it takes away",
        controls=trial.score_copies(lambda copy: measure_worth(copy, worth.change, channel).share),
        about="" if is_whole else channel,
        yes=f"uses {what}",
        no_if_predictions_stay=f"does not use {what}",
        no_if_predictions_change=f"predicts no better for {what}",
        rests_on=("without", "used", "by_round"),  # names of tables of the audit
        caution="which part of the state is used: another episode's state differs in every part",
        note=_describe_effect(worth),
    )


def check_content(trial: Trial) -> Measure:
    """Check whether the content of the state (its information about the episode) lowers the loss.
    The loss is compared with that of a run in which every round reads a replacement: another
    episode's state or the mean state, which :func:`measure_worth_of_content` chooses.

    Args:
        trial: the model with its run.

    Returns:
        A measure, with controls and verdict. Its number is the share of the loss with the
        replacement that the unchanged state removes.
    """
    initial = measure_worth(trial, Change.INITIAL).share
    worth = measure_worth_of_content(trial)
    note = _describe_effect(worth)
    # With the initial state the loss is higher, and with other states that lack information it is
    # not. So rounds do not use information: they need some state that is not the initial one, as
    # language models use tokens without information, called pause tokens.
    is_pause = initial.low >= THRESHOLDS["worth"].value > worth.share.high
    if is_pause:
        note += " It is a pause: the initial state costs answers, other states do not."
    return _make_measure(
        worth,
        key="content",
        claim="The content of its state counts, not its mere presence",
        unit=f"share of the loss {trial.scored_in_words} that it takes away",
        controls=trial.score_copies(lambda copy: measure_worth(copy, worth.change).share),
        yes="uses the content of its state",
        no_if_predictions_stay="does not use the content of its state",
        no_if_predictions_change="predicts no better for the content of its state",
        rests_on=("without", "presence"),  # names of tables of the audit
        caution="which part of the content is used: another episode's state differs in every part",
        note=note,
    )


def _describe_effect(worth: _Worth) -> str:
    """Return a sentence that says how far predictions move if the state is replaced.

    Args:
        worth: what replaces the state, and its effect.
    """
    return f"Predictions move by {worth.effect} with {worth.change}."


def _make_measure(
    worth: _Worth,
    *,
    unit: str,
    no_if_predictions_stay: str,
    no_if_predictions_change: str,
    **described: Any,
) -> Measure:
    """Make the measure of a check from the share of the loss that a state removes.

    Args:
        worth: this share, and the effect of the replacement on predictions.
        unit: unit of the share, in words; "compared with" and the replacement are appended.
        no_if_predictions_stay: what the verdict "no" says if the replacement does not change
            predictions, such as "does not use the content of its state".
        no_if_predictions_change: what the verdict "no" says if predictions change, but do not get
            worse.
        described: other fields of :class:`~interp.results.measure.Measure`.
    """
    threshold = THRESHOLDS["worth"].value
    # Predictions count as unchanged if their mean distance is below the same threshold.
    return Measure(
        number=worth.share,
        threshold=threshold,
        unit=f"{unit}, compared with {worth.change}",
        no=no_if_predictions_stay if worth.effect.high < threshold else no_if_predictions_change,
        **described,
    )


def check_duration(trial: Trial) -> Measure:
    """Check whether the effect of the state lasts: if one round reads a replacement, the loss of
    the next round must rise, too.

    The replacement is another episode's state or the mean state over episodes. Of the two, the one
    counts that gives the larger number, by the lower end of its interval.

    Args:
        trial: the model with its run.

    Returns:
        A measure, with controls and verdict. Its number is (next round's loss after a replacement -
        its loss after the unchanged state) / its loss after a replacement. The part of the
        numerator that is not information about the episode is subtracted (:func:`share_of_loss`).
    """
    claim = "The effect of its state lasts"
    has_later = trial.shape[1] >= 3  # round 1 reads another state, round 2 is the later one
    if not has_later or measure_worth_of_content(trial).share.high < THRESHOLDS["worth"].value:
        lacking = "no state whose replacement costs answers"
        return Measure(key="lasts", claim=claim, lacking=lacking)
    worths = [_measure_worth_later(trial, change) for change in _WITHOUT_CONTENT]
    worth = max(worths, key=lambda later: later.share.low)
    return _make_measure(
        worth,
        key="lasts",
        claim=claim,
        unit="share of the loss one round later that its state takes away",
        controls=trial.score_copies(lambda copy: _measure_worth_later(copy, worth.change).share),
        yes="carries its state on",
        no_if_predictions_stay="makes its state anew in every round",
        no_if_predictions_change="predicts no better for its state one round later",
        rests_on=("used",),  # a table of the audit: effects of one changed state on later rounds
        note=_describe_decay(trial),
    )


def _measure_worth_later(trial: Trial, change: str) -> _Worth:
    """Return the share of the next round's loss that the unchanged state removes, compared with a
    state that is changed in one round. Every round is changed in turn.

    Args:
        trial: the model with its run.
        change: what replaces the state: a member of :class:`Change`.
    """
    rounds = range(1, trial.shape[1] - 1)  # those that read an earlier state and have a next round
    # Two rounds are run again: the one that reads the changed state, and the next one.
    predictions = trial.rerun(change_states(trial, rounds, change), rounds, horizon=2)
    later = trial.run.predictions.clone()
    for i, t in enumerate(rounds):
        later[:, t + 1] = predictions[i, :, t + 1]
    first_later = 2  # round 1 is the first that reads a changed state
    scored = slice(max(first_later, trial.task.data.first_asked), None)
    return share_of_loss(trial, later, change, scored)


def _describe_decay(trial: Trial) -> str:
    """Return a sentence that says which share of the effect of a changed state is left after some
    rounds.

    Args:
        trial: the model with its run.
    """
    effect = measure_influence(trial, ALL, Change.DONOR).effect
    parts = []
    for lag in _LAGS[1:]:  # the first is 0, the round that reads the changed state
        if lag >= trial.shape[1] - trial.writes[0]:  # after the last round, for every change
            continue
        later = effect[..., lag]
        # The effect at lag 0 of the same changes. Changes in late rounds have no effect at this
        # lag (NaN), and do not count.
        first = effect[..., 0][np.isfinite(later)].sum()
        remaining = np.nansum(later) / max(first, 1e-12)  # 0 if there is no effect at all
        parts.append(f"{remaining:.2f} after {lag}")
    return f"Of the effect on predictions, by rounds: {', '.join(parts)}."


def table(trial: Trial) -> pd.DataFrame:
    """Measure how every change of the state affects later predictions. In each run, only one of the
    rounds ``trial.writes`` reads a changed state.

    Args:
        trial: the model with its run.

    Returns:
        A table with one row per ``channel`` (part of the state, such as h of an LSTM), ``change``
        (the replacement) and ``rounds_on`` (number of rounds since the change). ``effect`` is the
        mean distance between the changed and the unchanged prediction, and ``cost`` the mean rise
        of the loss. Both have the ends of their intervals in columns such as ``effect_low``. ``n``
        is the number of values averaged over, one for each pair of an episode and a round that
        reads a changed state.
    """
    rows = []
    _, n_rounds = trial.shape
    lags = [lag for lag in _LAGS if lag < n_rounds]
    for channel in trial.channels:
        # Single channels are listed with fewer changes, which keeps the table short.
        for change in Change if channel == ALL else CHANNEL_CHANGES:
            changed = measure_influence(trial, channel, change)
            for lag in lags:
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
    """Measure how much the prediction of a round changes if this round reads another episode's
    state.

    Args:
        trial: the model with its run.

    Returns:
        A table with one row per ``channel`` (part of the state, such as h of an LSTM) and ``round``
        (its index, one of ``trial.writes``). ``effect`` is the mean distance between the changed
        and the unchanged prediction, with the ends ``effect_low`` and ``effect_high`` of its
        interval.
    """
    rows = []
    for channel in trial.channels:
        effects = measure_influence(trial, channel, Change.DONOR).effect[..., 0]  # at lag 0
        for t, effect in zip(trial.writes, effects, strict=True):
            # interval.columns has the cells "effect", "effect_low" and "effect_high".
            interval = mean_interval(effect, participants=trial.participants)
            rows.append({"channel": channel, "round": t, **interval.columns("effect")})
    return pd.DataFrame(rows)


def without(trial: Trial) -> pd.DataFrame:
    """Measure how much the state lowers the loss and changes predictions, by replacing it in every
    round.

    Args:
        trial: the model with its run.

    Returns:
        A table with one row per ``channel`` (part of the state, such as h of an LSTM) and
        ``change`` (the replacement, in words: the initial state, another episode's state, or the
        mean state of the round). ``worth`` is (loss with the replacement - loss with the unchanged
        state) / loss with the replacement (:func:`measure_worth`). ``effect`` is the mean distance
        between predictions with the replaced and with the unchanged state, from 0 to 1; for classes
        it is the total variation distance (:meth:`~interp.audit.trial.Trial.distance`). Both have
        the ends of their intervals in columns such as ``worth_low``.
    """
    rows = []
    for channel in trial.channels:
        for change in (*CHANNEL_CHANGES, Change.MEAN):
            worth = measure_worth(trial, change, channel)
            row: dict[str, Any] = {"channel": channel, "change": change}
            row |= worth.share.columns("worth")
            row |= worth.effect.columns("effect")
            rows.append(row)
    return pd.DataFrame(rows)


def presence(trial: Trial) -> pd.DataFrame:
    """Measure the loss of the last round with each of four states in turn, to separate two effects:
    that of a state's content (its information about the episode), and that of its mere presence.

    The four states are:

    - the unchanged state: content and presence;
    - the mean state over episodes: presence without content;
    - the initial state plus the unchanged state's deviation from the mean: content without
      presence;
    - the initial state: neither.

    Args:
        trial: the model with its run.

    Returns:
        A table with one row per state. ``content`` is "own" if the state has content, otherwise
        "none"; ``presence`` is "yes" or "no". ``loss`` is the mean loss of the last round, and
        ``loss_low`` and ``loss_high`` are the ends of its interval.
    """
    last = [trial.shape[1] - 1]
    state = trial.select_states(last)
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
        (predictions,) = trial.rerun(changed, last)  # of one run
        loss = trial.losses(predictions)[:, -1]
        interval = mean_interval(loss, participants=trial.participants)
        rows.append({"content": content_of, "presence": present, **interval.columns("loss")})
    return pd.DataFrame(rows)
