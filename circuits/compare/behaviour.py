"""Do two models predict the same: on average, in every round, and in response to every input?

Three numbers, of which the worst decides, on the scored episodes of every set of the battery (the same for every seed)
and on episodes in which one input is changed:

* **average**: how far apart the predictions are, as a share of what the memories of the two are worth, which is how far
  each of them is from the best algorithm without a memory. It is symmetric in the two::

      alike = 1 - 2 JS(model, reference) / (JS(model, its best without) + JS(reference, its best without))

* **rounds apart**: the share of rounds in which the predictions are plainly different (:data:`PLAIN` nats). An average
  hides one round in two hundred;
* **response** (:mod:`circuits.compare.response`): the input, lag or round at which the two respond least alike.

Where the two differ, the same is asked of the reference's algorithm with its read-out fitted to the model: how a
prediction is read from the state (a temperature, a share that is spread over what was reached), with what is carried
left as it is. A model that was trained on another read-out is the same but for that: the word is then that of the
fitted one, unless this differs as well, and the note gives both numbers. One of the two must say which algorithm it
computes, as handwired machines do.

Beside the average stands that of untrained copies of the model. Without a reference the closest algorithm stands in its
place, by what it explains (:mod:`circuits.compare.algorithm`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import nan
from typing import Any

import numpy as np
import pandas as pd

from circuits.compare.algorithm import OFTEN, PLAIN, RARE, memoryless_divergences, plainly, pooled_ratio
from circuits.compare.fitting import (
    Array,
    Predict,
    by_round,
    checked_distributions,
    fit,
    predictor,
    read_out,
    said,
    task_of,
)
from circuits.compare.question import Compared, Participant, Question
from circuits.compare.response import Cell, cells, edits_of, responses
from interp import tasks
from interp.algorithm import Algorithm, Predicted
from interp.measure import UNTRAINED, Control, Measure, best_of, decisive
from interp.statistics import NO_NUMBER, Interval

_ALIKE = 0.95
"""Average. Handwired against itself 1; Weighted Majority against the Bayes predictor .3 to .7."""
_RESPONSE = 0.9
"""Response, worst cell. Seeds of ``wma-learned`` .97 and more; Weighted Majority of gain .35 against .5 .94, of gain .2
.7; 0 where an input, a lag or a round is ignored."""
_LARGE = 1e2
"""The bounds of real numbers that an untrained copy is taken to predict; log variances among them."""
_N_FAILURES = 20
"""How many rounds of largest difference are kept."""


@dataclass(frozen=True)
class Failure:
    """A round at which the two models differ most: the Jensen-Shannon divergence of the two predicted distributions.

    ``task.sets_for`` with ``n_scored`` gives the set (the second of its pair).
    """

    set: str
    n_scored: int
    episode: int
    round: int
    nats: float
    model: tuple[float, ...]
    reference: tuple[float, ...]


@dataclass(frozen=True)
class Agreement:
    """How far a model predicts what something else predicts.

    Attributes:
        alike: the average, with an interval over episodes.
        apart: share of rounds plainly apart.
        cells: responses, the least alike first; none where no input of the task can be changed.
    """

    alike: Interval
    apart: Interval
    cells: tuple[Cell, ...] = field(repr=False)

    def measure(self, control: Control | None = None) -> Measure:
        """That two predict the same: on average beside a control, in almost every round, and in every response."""
        free = Measure("behaviour", "", threshold=_RESPONSE, unit="likeness of responses", needs_control=False)
        average = replace(free, about="predictions alike", number=self.alike, threshold=_ALIKE, unit="share of memory")
        if control is not None:
            average = replace(average, controls={UNTRAINED: control}, needs_control=True)
        rounds = replace(free, about="rounds apart", number=self.apart, threshold=RARE, refuted=OFTEN, side="below")
        rounds = replace(rounds, unit=f"share of rounds {PLAIN} nats apart")
        responses = [replace(free, about=f"response to {cell.where}", number=cell.alike) for cell in self.cells]
        return decisive([average, rounds, *responses])


@dataclass(frozen=True)
class Behaviour:
    """How alike two models predict; without a reference, how much of the predictions the closest algorithm explains.

    Attributes:
        plain: as they are.
        fitted: with the read-out of one's algorithm fitted to the other; None where it has none to fit.
        read_out: the parameters of the read-out that were found.
        untrained: the average of each untrained copy of the model.
        failures: the rounds of the largest difference, worst first.
    """

    plain: Agreement
    fitted: Agreement | None = None
    read_out: Mapping[str, float] = field(default_factory=dict)
    untrained: tuple[float, ...] = ()
    failures: tuple[Failure, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """One row a number: average, rounds apart and every response, as the two are and with the read-out fitted."""
        rows: list[dict[str, Any]] = []
        for read, agreement in (("", self.plain), (said(self.read_out), self.fitted)):
            if agreement is not None:
                control = best_of(self.untrained).number if agreement is self.plain else nan
                numbers = {"predictions alike": agreement.alike, "rounds apart": agreement.apart}
                rows += [{"name": name, "read-out": read, **of.columns("number")} for name, of in numbers.items()]
                rows[-2] |= {"untrained": control}
                rows += [{"name": "response", "read-out": read, **cell.row()} for cell in agreement.cells]
        return pd.DataFrame(rows)

    @property
    def measure(self) -> Measure:
        """By the worst of average, rounds and responses; with a fitted read-out where that makes the two the same."""
        control = best_of(self.untrained)
        if self.fitted is None or self.fitted.measure().word == "no":
            return self.plain.measure(control)
        note = f"{said(self.read_out)}; alike {self.fitted.alike}, as it is {self.plain.alike}"
        return replace(self.fitted.measure(control), condition="with its read-out fitted", note=note)


def compare(compared: Compared) -> Behaviour:
    """How alike the two predict; without a reference, what the closest algorithm explains."""
    explained, model, reference = compared.parts["algorithm"], compared.model, compared.reference
    if reference is None:
        closest = explained.algorithm
        if closest is None:
            return Behaviour(Agreement(explained.explained, NO_NUMBER, ()))
        found, _ = _agreement(compared, model, closest)
        plain = Agreement(explained.explained, found.apart, found.cells)
        return Behaviour(plain, untrained=_untrained(compared, closest))
    plain, failures = _agreement(compared, model, reference.model)
    fitted, searched = None, dict[str, float]()
    if plain.measure().word != "yes" and (read := _read_out(compared)) is not None:
        subject, algorithm, searched = read
        fitted, _ = _agreement(compared, subject, algorithm)
    worst = tuple(sorted(failures, key=lambda failure: -failure.nats)[:_N_FAILURES])
    return Behaviour(plain, fitted, searched, _untrained(compared, reference.model), worst)


def _agreement(compared: Compared, subject: Participant, other: Any) -> tuple[Agreement, list[Failure]]:
    """How far one of the two predicts what the other, or an algorithm, predicts; and the rounds that differ most."""
    sets, seed = compared.sets, compared.effort.seed
    edits = edits_of(subject.task, compared.model.samples.test, compared.effort.edits)
    apart, failures = differences(predictor(subject.model), predictor(other), sets)
    own, base = (memoryless_divergences(one, sets) for one in (subject.model, other))
    alike = _alike(apart, own, base, seed)
    found = cells(edits, responses(subject.model, edits), responses(other, edits))
    return Agreement(alike, plainly(apart, seed), found), failures


def _read_out(compared: Compared) -> tuple[Participant, Algorithm, dict[str, float]] | None:
    """The algorithm of one of the two as the other would read it out: that other one, the algorithm, what was found.

    Asked of the reference's algorithm first.
    """
    model, reference = compared.pair
    for asked, subject in ((reference, model), (model, reference)):
        if not (asked.model.is_handwired or isinstance(getattr(asked.model, "algorithm", None), Algorithm)):
            continue
        algorithm = asked.task.explains(asked.model)
        family = asked.task.rivals().get(algorithm.key)
        free = None if family is None else read_out(family, algorithm)
        if free is not None:
            predict, batches = predictor(subject.model), [pair[0] for pair in compared.sets.values()]
            found = fit(free, batches, [checked_distributions(predict(batch), batch) for batch in batches])
            return subject, found.algorithm, dict(found.searched)
    return None


def _untrained(compared: Compared, other: Any) -> tuple[float, ...]:
    """The average agreement of each untrained copy of the model."""
    base, found = memoryless_divergences(other, compared.sets), []
    for copy in compared.untrained:
        guess = partial(_probable, predictor(copy.model), copy.task.kind)
        apart, _ = differences(guess, predictor(other), compared.sets)
        found.append(_alike(apart, memoryless_divergences(guess, compared.sets), base, 0).estimate)
    return tuple(found)


def _probable(predict: Predict, kind: Predicted, episodes: Any) -> Array:
    """Predictions as probabilities: an untrained copy of a handwired model may say others. Even where none is left."""
    given = predict(episodes)
    if kind != "classes":
        return np.clip(np.nan_to_num(given), -_LARGE, _LARGE)
    kept = np.clip(np.nan_to_num(given), 0.0, 1.0) + np.finfo(float).tiny
    return np.asarray(kept / kept.sum(-1, keepdims=True))


def _alike(apart: Mapping[str, Array], own: Mapping[str, Array], base: Mapping[str, Array], seed: int) -> Interval:
    """1 less the divergence of the two over what their memories are worth, half of either's."""
    worth = {name: (own[name] + base[name]) / 2 for name in apart}
    return pooled_ratio({name: nats.mean(1) for name, nats in apart.items()}, worth, seed).complement


def differences(
    model: Predict, reference: Predict, sets: Mapping[str, tuple[Any, Any]]
) -> tuple[dict[str, Array], list[Failure]]:
    """How far apart two predict in every round that is asked for, by set ``[episode, round]``, and the worst rounds.

    In nats; of a predicted mean, in its own variance.
    """
    kind, apart, failures = tasks.get(task_of(sets)).kind, {}, list[Failure]()
    for name, (_, episodes) in sets.items():
        p, q = (checked_distributions(predict(episodes), episodes) for predict in (model, reference))
        apart[name], first = by_round(p, q, kind), episodes.n_rounds - p.shape[1]
        order = np.argsort(-apart[name], axis=None, kind="stable")[:_N_FAILURES]
        for at in zip(*map(np.ndarray.tolist, np.unravel_index(order, apart[name].shape)), strict=True):
            mine, theirs = (tuple(d[at].tolist()) for d in (p, q))
            nats = float(apart[name][at])
            failures.append(Failure(name, len(episodes), at[0], first + at[1], nats, mine, theirs))
    return apart, failures


BEHAVIOUR = Question(
    "behaviour",
    Behaviour,
    compare,
    lambda compared: compared.parts["behaviour"].measure,
    *("It predicts the same as {}", "predicts the same", "predicts otherwise"),
)
