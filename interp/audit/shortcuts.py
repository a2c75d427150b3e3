"""State or shortcut: what does a model answer where a heuristic and the algorithm disagree?

A heuristic is an algorithm of the task that carries nothing. On most episodes it may answer as the algorithm does, so
that right answers say nothing. Here episodes are drawn, from every regime, until there are enough on which it is wrong
in the last round and the algorithm is not; the model's loss is then nearer the one's or the other's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.algorithm import Algorithm
from interp.audit.subject import Array, Subject
from interp.audit.verdicts import NOT_APPLICABLE, THRESHOLDS, UNDECIDED, Verdict
from interp.machine import Machine
from interp.session import once
from interp.statistics import Interval, mean_interval

_WANTED, _REGIMES, _DRAWS, _FEW = 48, 7, 6, 8
"""Adversarial episodes that are wanted (no more than an audit runs of a regime), regimes that are drawn from, draws of
each, and fewer that decide nothing."""
_MARGIN = 0.6
"""A heuristic is wrong where its loss is above the algorithm's by this share of the most that was seen in any regime:
more than a half, so that ties are no mistakes of one that can be wrong."""
_TIE = 1e-6
_SURE = 0.05
"""By so much probability the likeliest outcome must lead the next one, else an answer is a tie."""


@dataclass(frozen=True)
class Adversarial:
    """Episodes on which a heuristic loses clearly more than the algorithm in the last round.

    Attributes:
        drawn: how many episodes were drawn to find them.
        algorithm, heuristic: the loss of each, ``[episode]``.
    """

    name: str
    subjects: tuple[Subject, ...]
    drawn: int
    algorithm: Float[np.ndarray, " episode"]
    heuristic: Float[np.ndarray, " episode"]

    def sides(self, model: Machine | None = None) -> Array:
        """1 where the model's loss is nearer the algorithm's, 0 where it is nearer the heuristic's, 1/2 half-way."""
        of = [subject if model is None else subject.another(model) for subject in self.subjects]
        losses = np.concatenate([last_losses(subject, subject.run.predictions) for subject in of])
        nearer = np.abs(losses - self.heuristic) - np.abs(losses - self.algorithm)
        return np.where(np.abs(nearer) < _TIE, 0.5, 1.0 * (nearer > 0))


def last_losses(subject: Subject, predictions: Tensor) -> Float[np.ndarray, " episode"]:
    """The losses of the last round."""
    return subject.losses(predictions)[:, -1]


def of_algorithm(subject: Subject, algorithm: Algorithm) -> Float[np.ndarray, " episode"]:
    """The losses of an algorithm in the last round."""
    return last_losses(subject, subject.layout.prediction(torch.from_numpy(subject.told(algorithm))))


def answers(told: Float[np.ndarray, "*batch outcome"]) -> tuple[Int[np.ndarray, "*batch"], Bool[np.ndarray, "*batch"]]:
    """The likeliest outcome, and whether it leads clearly.

    >>> answers(np.array([[0.5, 0.5], [0.2, 0.8]]))
    (array([0, 1]), array([False,  True]))
    """
    ordered = np.sort(told, -1)
    return told.argmax(-1), ordered[..., -1] - ordered[..., -2] > _SURE


def adversarial(subject: Subject, heuristic: Algorithm) -> Adversarial | None:
    """Episodes of every regime on which the heuristic is wrong and the algorithm is not; None where too few come."""
    known = subject.algorithm
    assert known is not None
    regimes = ["", *subject.regimes][:_REGIMES]
    least = max(float(gaps(drawn_for(subject, regime, 0), known, heuristic).max()) for regime in regimes) * _MARGIN
    if least < _TIE:
        return None
    chosen: list[Subject] = []
    drawn, found, wanted = 0, 0, min(_WANTED, subject.effort.episodes)
    for regime in regimes:
        for draw in range(_DRAWS):
            if found >= wanted:
                break
            more = drawn_for(subject, regime, draw)
            drawn += len(more.episodes)
            rows = np.flatnonzero(gaps(more, known, heuristic) > least)[: wanted - found]
            if len(rows):
                chosen.append(Subject(subject.model, more.episodes.select(rows), subject.effort))
                found += len(rows)
            if draw == 1 and not found:
                break  # a regime in which the heuristic is never wrong
    if found < _FEW:
        return None
    losses = [np.concatenate([of_algorithm(part, of) for part in chosen]) for of in (known, heuristic)]
    return Adversarial(heuristic.name, tuple(chosen), drawn, *losses)


def gaps(subject: Subject, algorithm: Algorithm, heuristic: Algorithm) -> Float[np.ndarray, " episode"]:
    """By how much the heuristic loses more than the algorithm in the last round."""
    return of_algorithm(subject, heuristic) - of_algorithm(subject, algorithm)


def drawn_for(subject: Subject, regime: str, draw: int) -> Subject:
    """A further draw of a regime, of as many episodes; kept, as every heuristic asks for it."""
    return once(
        ("draw", regime, draw),
        subject,
        make=lambda: Subject.of(subject.model, subject.effort, regime, 1000 + draw, subject.shape[1]),
    )


def found_for(subject: Subject) -> dict[str, Adversarial | None]:
    """The adversarial episodes of every heuristic of the task."""
    if subject.algorithm is None:
        return {}
    return once(
        "adversarial", subject, make=lambda: {key: adversarial(subject, of) for key, of in subject.heuristics.items()}
    )


def table(subject: Subject) -> pd.DataFrame:
    """Per heuristic: its mean loss in the last round, and whose side the model takes where it is wrong."""
    rows = []
    for key, found in found_for(subject).items():
        heuristic = subject.heuristics[key]
        assert subject.algorithm is not None
        losses = {
            "its_loss": of_algorithm(subject, heuristic),
            "algorithm_loss": of_algorithm(subject, subject.algorithm),
        }
        row = {
            "heuristic": heuristic.name,
            **{name: float(of.mean()) for name, of in losses.items()},
            "explains_more": explains_more(subject, heuristic),
        }
        if found is not None:
            row |= {**mean_interval(found.sides()).columns("side"), "n": len(found.algorithm), "drawn": found.drawn}
        rows.append(row)
    return pd.DataFrame(rows)


def explains_more(subject: Subject, heuristic: Algorithm) -> float:
    """The share of the variation of predictions that a heuristic explains beside the algorithm, on other episodes."""
    assert subject.algorithm is not None
    parts = [subject.plain, subject.told(subject.algorithm), subject.told(heuristic)]
    said, known, also = (part - part.mean((0, 1)) for part in parts)
    half, left = len(said) // 2, []
    for features in ([known], [known, also]):
        missed = 0.0
        for fit, rest in ((slice(0, half), slice(half, None)), (slice(half, None), slice(0, half))):
            x, held = (np.stack([f[of].ravel() for f in features], -1) for of in (fit, rest))
            slopes = np.linalg.lstsq(x, said[fit].ravel(), rcond=None)[0]
            missed += float(((said[rest].ravel() - held @ slopes) ** 2).sum())
        left.append(missed / max(float((said**2).sum()), 1e-12))
    return left[0] - left[1]


def side(subject: Subject, blank: Subject | None, is_used: str) -> Verdict:
    """State or shortcut? By the heuristic whose side the model takes most; ``is_used`` is the word on its state."""
    question, bound = "State or shortcut?", THRESHOLDS["side"].value
    known = {key: found for key, found in found_for(subject).items() if found is not None}
    if not known:
        why = (
            "The task names no heuristic whose answers differ." if found_for(subject) or not subject.heuristics else ""
        )
        return Verdict("side", question, NOT_APPLICABLE, note=why or "It is held against no algorithm with outcomes.")
    numbers = {key: mean_interval(found.sides()) for key, found in known.items()}
    key = min(numbers, key=lambda name: numbers[name].estimate)
    number, worst = numbers[key], known[key]
    control = None if blank is None else float(worst.sides(blank.model).mean())
    word = _word(number, bound, is_used, control)
    others = "; ".join(f"{known[name].name} {value}" for name, value in numbers.items() if name != key)
    note = f"Against {worst.name}, on {len(worst.algorithm)} of {worst.drawn} episodes drawn."
    if word == "inputs":
        note += " It takes the algorithm's side without its state: by another way through the inputs."
    return Verdict(
        "side",
        question,
        word,
        number=number,
        what="takes the algorithm's side in",
        control=control,
        control_is="an untrained copy in",
        threshold=bound,
        note=note + (f" Others: {others}." if others else ""),
    )


def _word(number: Interval, bound: float, is_used: str, control: float | None) -> str:
    if control is None:
        return UNDECIDED
    if number.low > bound:
        return {"used": "state", "not used": "inputs"}.get(is_used, UNDECIDED)
    return "shortcut" if number.high < 1 - bound else UNDECIDED
