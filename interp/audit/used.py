"""Is what is carried used? By channel, by the round in which it is changed, and by the round that is read.

One state is put in the place of another in one round (:mod:`interp.audit.changes`) and the machine runs on by itself.
*Effect* is how far predictions move; *cost* is by how much the task's loss rises. A state that is read by nobody has
neither; where it moves predictions that are worth nothing, it has an effect and no cost. The control of a cost is the
same rise by the truths of other episodes. NOT evidence of what is used of it: another episode's state differs in
everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.audit.changes import DONOR, INITIAL, LATE, MEAN, NOISE, SAME, donors, has_alike, limited
from interp.audit.subject import ALL, Array, Subject
from interp.audit.verdicts import NOT_APPLICABLE, THRESHOLDS, UNDECIDED, Verdict, placed
from interp.session import once
from interp.statistics import Interval, mean_interval, ratio_interval

OF_ALL, OF_EACH = (INITIAL, DONOR, SAME, NOISE, LATE, MEAN), (INITIAL, DONOR)
"""Changes of everything that is carried, and of single channels."""


@dataclass(frozen=True)
class Influence:
    """What one kind of change does, ``[written round, episode, read round]``; NaN before the round written.

    ``blind`` is the cost by the truths of other episodes. ``counts`` says which rows there are: not where no other
    episode gives the same answer.
    """

    channel: str
    change: str
    writes: tuple[int, ...]
    effect: Float[np.ndarray, "write episode read"]
    cost: Float[np.ndarray, "write episode read"]
    blind: Float[np.ndarray, "write episode read"]
    counts: Bool[np.ndarray, "write episode"]

    def at(self, lag: int, of: str = "effect") -> tuple[Array, Array]:
        """Per write and episode the value ``lag`` rounds on, and whether there is one."""
        values = np.stack(
            [
                part[:, t + lag] if t + lag < part.shape[1] else np.full(len(part), np.nan)
                for t, part in zip(self.writes, getattr(self, of), strict=True)
            ]
        )
        return values, self.counts & np.isfinite(values)

    def mean(self, values: Array, counts: Array, seed: int = 0) -> Interval:
        """The mean over writes, with its 95 % interval over episodes."""
        return ratio_interval(np.where(counts, values, 0).sum(0), counts.sum(0), seed=seed)

    @cached_property
    def peak(self) -> tuple[int, int]:
        """The (write, read round) at which the mean effect is largest."""
        reads = np.arange(self.effect.shape[2])
        later = self.counts[:, :, None] & (reads >= np.array(self.writes)[:, None, None])
        number = later.sum(1)
        means = np.where(number > 0, np.where(later, self.effect, 0).sum(1) / np.maximum(number, 1), -1)
        write, read = np.unravel_index(means.argmax(), means.shape)
        return int(write), int(read)

    def at_peak(self, of: str = "effect", seed: int = 0) -> Interval:
        """The mean effect, or cost, at the peak of the effect."""
        write, read = self.peak
        return self.mean(getattr(self, of)[write : write + 1, :, read], self.counts[write : write + 1], seed)

    def total(self, of: str = "cost", seed: int = 0) -> Interval:
        """The rise of the loss, summed over the rounds read and averaged over the rounds written."""
        return self.mean(np.nansum(getattr(self, of), -1), self.counts, seed)


def influence(subject: Subject, channel: str, change: str) -> Influence:
    """What a change of a channel does, by round written and round read; computed once for a subject."""
    return once(("influence", channel, change), subject, make=lambda: _influence(subject, channel, change))


def _influence(subject: Subject, channel: str, change: str) -> Influence:
    starts = subject.writes
    counts = np.ones((len(starts), subject.shape[0]), bool)
    if change == SAME:
        counts = has_alike(subject, starts) if subject.run.layout.kind == "classes" else ~counts
    return _measured(subject, channel, change, limited(subject, starts, change, channel), counts)


def _measured(subject: Subject, channel: str, change: str, state: Tensor, counts: Array) -> Influence:
    predictions = subject.continued(state, subject.writes)
    effect = subject.distance(subject.distribution(predictions), subject.plain)
    cost = subject.losses(predictions) - subject.losses(subject.run.predictions)
    others = torch.from_numpy(donors(subject.shape[0], subject.effort.seed + 1))
    blind = subject.losses(predictions[:, others]) - subject.losses(subject.run.predictions[others])
    before = np.arange(effect.shape[2]) < np.array(subject.writes)[:, None, None]
    effect, cost, blind = (np.where(before, np.nan, part) for part in (effect, cost, blind))
    return Influence(channel, change, subject.writes, effect, cost, blind, counts)


def table(subject: Subject) -> pd.DataFrame:
    """Effect and cost of every change, by channel, at once and some rounds on; by group of rounds where at once."""
    rows = []
    for channel in subject.channels:
        for change in OF_ALL if channel == ALL else OF_EACH:
            found = influence(subject, channel, change)
            for lag in (0, 1, 2, 4):
                effect, counts = found.at(lag)
                cost, _ = found.at(lag, "cost")
                if not counts.any():
                    continue
                numbers = {
                    **found.mean(effect, counts).columns("effect"),
                    **found.mean(cost, counts).columns("cost"),
                }
                rows.append({"channel": channel, "change": change, "rounds_on": lag, **numbers, "n": int(counts.sum())})
    return pd.DataFrame(rows)


def by_round(subject: Subject) -> pd.DataFrame:
    """Effect of another episode's state on the prediction of the same round, by channel and round."""
    rows = []
    for channel in subject.channels:
        found = influence(subject, channel, DONOR)
        for t, part in zip(found.writes, found.effect, strict=True):
            rows.append({"channel": channel, "round": t, **mean_interval(part[:, t]).columns("effect")})
    return pd.DataFrame(rows)


def used(subject: Subject, channel: str) -> Verdict:
    """Do predictions, and right answers, rest on the channel?

    The larger effect of two changes decides: the initial state, and another episode's. Whichever round it shows in.
    """
    found = max((influence(subject, channel, change) for change in OF_EACH), key=_peak_effect)
    effect, cost, blind = found.at_peak(), found.total(), found.total("blind")
    threshold = THRESHOLDS["effect"].value
    word, note = placed(effect, threshold, "used", "not used"), ""
    if word == "used" and cost.low <= max(0.0, blind.estimate):
        word, note = UNDECIDED, "Predictions move, but the loss does not rise by more than chance: no use shows."
    write, read = found.peak
    where = f"{found.change} in round {found.writes[write]}, read in round {read}; the loss rises by {cost} in all."
    rounds = _rounds_used(influence(subject, channel, DONOR))
    return Verdict(
        "used",
        "Is it used?",
        word,
        number=effect,
        what="predictions move by",
        control=blind.estimate,
        control_is="by the truths of other episodes the loss rises by",
        threshold=threshold,
        about=channel,
        note=f"{where} {rounds} {note}".strip(),
    )


def _peak_effect(found: Influence) -> float:
    return found.at_peak().estimate


def rounds_used(found: Influence) -> list[int]:
    """The rounds written whose own prediction moves by more than the threshold, with its whole interval."""
    threshold = THRESHOLDS["effect"].value
    return [t for t, part in zip(found.writes, found.effect, strict=True) if mean_interval(part[:, t]).low > threshold]


def _rounds_used(found: Influence) -> str:
    rounds = rounds_used(found)
    listed = ", ".join(map(str, rounds)) or "none"
    return f"Rounds whose own prediction reads it: {listed} of {', '.join(map(str, found.writes))}."


def put_back(subject: Subject) -> float:
    """How far predictions move where the own state is put in its own place: the rounding of the instrument."""
    said = subject.continued(subject.read(subject.writes), subject.writes, horizon=1)
    return float(subject.distance(subject.distribution(said), subject.plain).max())


def content(subject: Subject, channel: str = ALL) -> Verdict:
    """Is it what the state says, or that there is one? Another episode's state is as much of a state as the own one."""
    question, threshold = "Is it what the state says that counts, or that there is a state?", THRESHOLDS["effect"].value
    other, none = influence(subject, channel, DONOR), influence(subject, channel, INITIAL)
    effect, control = other.at_peak(), none.at_peak()
    word = placed(effect, threshold, "content", "pause" if control.low > threshold else "neither")
    told = f"The initial state in its place: {control}."
    same = influence(subject, channel, SAME)
    if same.counts.any():
        values, counts = same.at(0)
        told += f" Another episode's that gives the same answer: {same.mean(values, counts)}."
    return Verdict(
        "content",
        question,
        word,
        number=effect,
        what="another episode's state moves predictions by",
        control=put_back(subject),
        control_is="the own state, put back,",
        threshold=threshold,
        about=channel,
        note=told,
    )


def lasts(subject: Subject, channel: str = ALL) -> Verdict:
    """Is a state carried on from round to round, or made anew from the inputs of each?

    Control: the own state is put back in the next round, as if that round had made it anew. A verdict says what this
    machine does; untrained copies carry on, too, where their wiring does.
    """
    question, threshold = "Is a write carried on, or is the state made anew in every round?", THRESHOLDS["lasts"].value
    found = influence(subject, channel, DONOR)
    if found.at_peak().high < THRESHOLDS["effect"].value:
        return Verdict("lasts", question, NOT_APPLICABLE, about=channel, note="Nothing that is written shows at all.")
    share = _left(found)
    last, some = found.at(found.effect.shape[2] - 1 - found.writes[0])
    return Verdict(
        "lasts",
        question,
        placed(share, threshold, "carried on", "made anew"),
        number=share,
        what="share of the effect that is left a round on",
        control=put_back(subject),
        control_is="with the own state put back in between",
        threshold=threshold,
        about=channel,
        note=f"At the end of the episode, written in round {found.writes[0]}: {found.mean(last, some)}.",
    )


def _left(found: Influence) -> Interval:
    """The effect a round on as a share of that in the round itself, over the rounds written that have a next one."""
    now, counts = found.at(0)
    then, later = found.at(1)
    both = counts & later
    return ratio_interval(np.where(both, then, 0).sum(0), np.where(both, now, 0).sum(0))


def presence(subject: Subject) -> pd.DataFrame:
    """The loss of the last round by content x presence: the own state, or the mean of all; of that round, or at first.

    "Own content, no presence" is what sets the episode apart from the others, added to the initial state.
    """
    last = [subject.shape[1] - 1]
    state, initial = subject.read(last), subject.run.latents[:, 0].unsqueeze(0)
    mean = state.mean(1, keepdim=True).expand_as(state)
    cells = {
        ("own", "yes"): state,
        ("none", "yes"): mean,
        ("own", "no"): state - mean + initial,
        ("none", "no"): initial,
    }
    rows = []
    for (said, there), read in cells.items():
        loss = subject.losses(subject.continued(read, last))[0, :, -1]
        rows.append({"content": said, "presence": there, **mean_interval(loss).columns("loss")})
    return pd.DataFrame(rows)
