"""State or shortcut: what does a model answer where a heuristic and the algorithm disagree?

A heuristic is an algorithm of the task that carries nothing. On most episodes it may answer as the algorithm does, so
that right answers say nothing. Here episodes are drawn, from every regime, until there are enough on which it is wrong
in the last round and the algorithm is not; the model's loss is then nearer the one's or the other's.

Right and wrong apart: :func:`groups` tells rounds in which the model answers as the algorithm from those in which it
does not, and from *easy* ones, which need no state: every heuristic of the task that answers at all answers as the
algorithm does. A mean over all rounds can hide that a state is used only where the model is wrong, or where nothing
asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int

from interp.audit.trial import ALL, THRESHOLDS, Array, Trial, claimed
from interp.audit.used import Change, influence, mean
from interp.core.algorithm import Algorithm, participants_of
from interp.core.machine import Machine
from interp.model.layout import EncodedRounds
from interp.model.rollout import sequential
from interp.results.measure import Measure
from interp.stats.intervals import Interval, mean_interval
from interp.support.session import remembered

_WANTED, _REGIMES, _DRAWS, _FEW = 48, 7, 6, 8
"""Adversarial episodes that are wanted (no more than an audit runs of a regime), regimes that are drawn from, draws of
each, and fewer that decide nothing."""
_MARGIN = 0.6
"""A heuristic is wrong where its loss is above the algorithm's by this share of the most that was seen in any regime:
more than a half, so that ties are no mistakes of one that can be wrong."""
_TIE = 1e-6
_SURE = 0.05  # by so much probability the likeliest outcome must lead the next one, else an answer is a tie


@dataclass(frozen=True)
class _Adversarial:
    """Episodes on which a heuristic loses clearly more than the algorithm in the last round.

    Attributes:
        drawn: how many episodes were drawn to find them.
        algorithm, heuristic: the loss of each, ``[episode]``.
    """

    name: str
    trials: tuple[Trial, ...]
    drawn: int
    algorithm: Float[np.ndarray, " episode"]
    heuristic: Float[np.ndarray, " episode"]

    def side(self, model: Machine | None = None) -> Interval:
        """1 where the model's loss is nearer the algorithm's, 0 where it is nearer the heuristic's, 1/2 half-way."""
        of = model or self.trials[0].model
        fed = EncodedRounds.joined(
            [of.prepare(trial.layout.encode(trial.episodes)) for trial in self.trials]
        )
        said = sequential(
            of, fed, self.trials[0].layout, "own"
        ).predictions  # few episodes of each: run as one
        parts = said.split([len(trial.episodes) for trial in self.trials])
        losses = np.concatenate(
            [one.losses(part)[:, -1] for one, part in zip(self.trials, parts, strict=True)]
        )
        nearer = np.abs(losses - self.heuristic) - np.abs(losses - self.algorithm)
        nearest = np.where(np.abs(nearer) < _TIE, 0.5, 1.0 * (nearer > 0))
        return mean_interval(
            nearest, participants=participants_of(*(trial.episodes for trial in self.trials))
        )


def of_algorithm(trial: Trial, algorithm: Algorithm) -> Float[np.ndarray, " episode"]:
    """The losses of an algorithm in the last round."""
    return trial.losses(trial.layout.prediction(torch.from_numpy(trial.predicted_by(algorithm))))[
        :, -1
    ]


def _answers(
    given: Float[np.ndarray, "*batch outcome"],
) -> tuple[Int[np.ndarray, "*batch"], Bool[np.ndarray, "*batch"]]:
    """The likeliest outcome, and whether it leads clearly."""
    ordered = np.sort(given, -1)
    return given.argmax(-1), ordered[..., -1] - ordered[..., -2] > _SURE


def adversarial(trial: Trial, heuristic: Algorithm) -> _Adversarial | None:
    """Episodes of every regime on which the heuristic is wrong and the algorithm is not; None where too few come."""
    known = trial.algorithm
    assert known is not None
    regimes = ["", *trial.regimes][:_REGIMES]

    def gaps(of: Trial) -> Float[np.ndarray, " episode"]:
        """By how much the heuristic loses more than the algorithm in the last round."""
        return of_algorithm(of, heuristic) - of_algorithm(of, known)

    least = max(float(gaps(_drawn_for(trial, regime, 0)).max()) for regime in regimes) * _MARGIN
    if least < _TIE:
        return None
    chosen: list[Trial] = []
    drawn, found, wanted = 0, 0, min(_WANTED, trial.effort.episodes)
    for regime in regimes:
        for draw in range(
            1 if trial.task.data.halves else _DRAWS
        ):  # what was recorded is drawn once
            if found >= wanted:
                break
            more = _drawn_for(trial, regime, draw)
            drawn += len(more.episodes)
            rows = np.flatnonzero(gaps(more) > least)[: wanted - found]
            if len(rows):
                chosen.append(Trial(trial.model, more.episodes.select(rows), trial.effort))
                found += len(rows)
            if draw == 1 and not found:
                break  # a regime in which the heuristic is never wrong
    if found < _FEW:
        return None
    losses = [
        np.concatenate([of_algorithm(part, of) for part in chosen]) for of in (known, heuristic)
    ]
    return _Adversarial(heuristic.name, tuple(chosen), drawn, *losses)


@remembered
def _drawn_for(trial: Trial, regime: str, draw: int) -> Trial:
    """A further draw of a regime, of as many episodes, for every heuristic."""
    return Trial.of(trial.model, trial.effort, regime, 1000 + draw, trial.shape[1])


@remembered
def _found_for(trial: Trial) -> dict[str, _Adversarial | None]:
    """The adversarial episodes of every heuristic of the task."""
    return (
        {}
        if trial.algorithm is None
        else {key: adversarial(trial, of) for key, of in trial.heuristics.items()}
    )


def table(trial: Trial) -> pd.DataFrame:
    """Per heuristic: its mean loss in the last round, and whose side the model takes where it is wrong."""
    rows = []
    for key, found in _found_for(trial).items():
        heuristic, known = trial.heuristics[key], trial.algorithm
        assert known is not None
        row = {
            "heuristic": heuristic.name,
            "its_loss": float(of_algorithm(trial, heuristic).mean()),
            "algorithm_loss": float(of_algorithm(trial, known).mean()),
            "explains_more": _explains_more(trial, known, heuristic),
        }
        if found is not None:
            row |= {**found.side().columns("side"), "n": len(found.algorithm), "drawn": found.drawn}
        rows.append(row)
    return pd.DataFrame(rows)


def _explains_more(trial: Trial, algorithm: Algorithm, heuristic: Algorithm) -> float:
    """The share of the variation of predictions that a heuristic explains beside the algorithm, on other episodes."""
    parts = [trial.plain, trial.predicted_by(algorithm), trial.predicted_by(heuristic)]
    said, known, also = (part - part.mean((0, 1)) for part in parts)
    half, left = trial.first_half, []
    for features in ([known], [known, also]):
        missed = 0.0
        for fit, rest in ((half, ~half), (~half, half)):
            x, held = (np.stack([f[of].ravel() for f in features], -1) for of in (fit, rest))
            slopes = np.linalg.lstsq(x, said[fit].ravel(), rcond=None)[0]
            missed += float(((said[rest].ravel() - held @ slopes) ** 2).sum())
        left.append(missed / max(float((said**2).sum()), 1e-12))
    return left[0] - left[1]


def side(trial: Trial, is_used: bool) -> Measure:
    """Whose side does the model take? By the heuristic that it follows most, on episodes on which that one is wrong."""
    bound = THRESHOLDS["side"].value
    known = {key: found for key, found in _found_for(trial).items() if found is not None}
    if not known:
        return claimed(
            "side", lacking="no heuristic of its task whose answers differ from the algorithm's"
        )
    numbers = {key: found.side() for key, found in known.items()}
    key = min(numbers, key=lambda name: numbers[name].estimate)
    worst = known[key]
    note = (
        f"The heuristic is {worst.name}, on {len(worst.algorithm)} of {worst.drawn} episodes drawn."
    )
    if not is_used and numbers[key].low >= bound:
        note += " It shows no use of what is carried: it finds another way through the inputs."
    others = "; ".join(
        f"{known[name].name} {value}" for name, value in numbers.items() if name != key
    )
    return claimed(
        "side",
        numbers[key],
        no_threshold=1 - bound,
        controls=trial.untrained(lambda copy: worst.side(copy.model)),
        no=f"answers like {worst.name}",
        note=note + (f" Others: {others}." if others else ""),
    )


def groups(trial: Trial) -> dict[str, Array]:
    """Bool[episode, round] by name; empty where there is no algorithm to be right by, or no outcomes."""
    if trial.algorithm is None or trial.run.layout.kind != "classes":
        return {}
    right, sure = _answers(trial.predicted_by(trial.algorithm))
    said, _ = _answers(trial.plain)
    found = {"right": sure & (said == right), "wrong": sure & (said != right), "open": ~sure}
    agree, any_sure = np.ones_like(sure), np.zeros_like(sure)
    for heuristic in trial.heuristics.values():
        given, also = _answers(trial.predicted_by(heuristic))
        agree &= ~also | (given == right)
        any_sure |= also
    if trial.heuristics:
        found |= {"easy": sure & agree & any_sure, "not easy": sure & ~(agree & any_sure)}
    return found


def group_table(trial: Trial) -> pd.DataFrame:
    """Effect and cost of two changes on the prediction of the same round, by group of rounds."""
    rows = []
    for name, mask in groups(trial).items():
        at = mask[:, list(trial.writes)].T
        for change in (Change.DONOR, Change.INITIAL) if at.any() else ():
            effect, cost = (
                mean(trial, np.where(at, of[..., 0], np.nan))
                for of in influence(trial, ALL, change)
            )
            numbers = {**effect.columns("effect"), **cost.columns("cost")}
            rows.append({"group": name, "change": change, **numbers, "n": int(at.sum())})
    return pd.DataFrame(rows)
