"""Which algorithm explains what a model predicts, and does the model predict what its reference predicts?

:func:`explain` fits every family of algorithms that the task knows to the model's predictions, and scores it on other
episodes. A :class:`Behaviour` says whether two models predict the same. How a family is chosen, and what this is no
evidence of: ``docs/method/naming-an-algorithm.md``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import nan
from typing import Any

import numpy as np
import pandas as pd

from circuits.compare.question import Compared, Participant, Question
from circuits.compare.response import Cell, Edits, cells, edits_of, responses
from interp import tasks
from interp.choices.fitting import (
    Array,
    OnDemand,
    Predict,
    asked_rounds,
    by_round,
    checked_distributions,
    divergence,
    fit,
    predictor,
    probable,
    read_out,
    task_of,
)
from interp.core.algorithm import (
    NEXT,
    Algorithm,
    Family,
    Predicted,
    in_words,
    participants_of,
    refuse_missing,
)
from interp.core.task import Task
from interp.interventions.experiment import named
from interp.results.measure import UNTRAINED, Control, Measure, Result, best_of, decisive
from interp.stats.confidence_set import model_confidence_set
from interp.stats.intervals import (
    NO_NUMBER,
    Interval,
    mean_interval,
    of_each,
    ratio_interval,
    resample_weights,
)
from interp.support.checks import checked, unique
from interp.support.errors import require
from interp.support.files import json_values
from interp.support.provenance import provenance
from interp.support.session import remembered
from interp.support.workers import bar

_EXPLAINED, RATIO, EXTENDED = 0.95, 0.25, 0.5
"""Explained at least; left at most of the runner-up's divergence, and of a simpler family's by its extension."""
NEARLY_ALL = 0.999
"""A family that explains so much needs no extension: what it leaves is rounding, or the steps of a search."""
_RESPONDS = 0.75
"""Responses of the closest family, lower end of the worst cell (why: docs/method/naming-an-algorithm.md)."""
_PLAIN = 0.1
"""Nats by which predictions are plainly different: .9 against .55; seeds of
``wma-learned-additive`` are never .01 apart."""
_RARE, _OFTEN = 0.001, 0.02
"""Share of rounds plainly apart: at most the first one where two predict the same, more than the second where not."""
_N_EDITS = 240  # single inputs that are changed
_LEFT = 0.65  # of what a name misses, changes of its update leave more (why: docs/method/naming-an-algorithm.md)
_SMALL = 1e-3  # how much of a change is made to see which way it moves predictions
_EVENLY = "evenly"
"""The guess that needs no memory: every outcome alike, or a real number that is the same at every round."""
_Divergences = Mapping[str, Array]  # nats a round by set, ``[episode]`` each
_Sets = Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True)
class FamilyScore:
    """One family, fitted.

    Attributes:
        group: key of the family that it extends, or its own.
        memoryless: whether it keeps nothing from round to round.
        family: None for the guess that is even over outcomes.
        searched: the values found of the parameters that it searches.
        fitted: divergence on the episodes that it was fitted on, nats a round; ``divergences``: on the others, of each
            participant, or episode.
    """

    key: str
    name: str
    group: str
    memoryless: bool
    family: Family | None
    searched: Mapping[str, float]
    fitted: float
    divergences: _Divergences = field(repr=False)

    @cached_property
    def algorithm(self) -> Algorithm | None:
        """With the parameters found; None for the guess."""
        return None if self.family is None else self.family.make(**self.searched)


@dataclass(frozen=True, repr=False)
class AlgorithmPart(Result):
    """Which algorithm explains a model's predictions.

    Attributes:
        family: key of the family that explains them; None for none of these.
        closest: key of the one that comes closest, whether or not it explains; ``parameters`` are its.
        explained: 1 less its divergence over that of the best family without a memory, over all sets.
        ratio: its divergence over that of the runner-up.
        runner_up, baseline: keys of the best other family, and of the best one without a memory.
        apart: share of rounds in which its prediction is plainly another (:data:`_PLAIN`); None where no family was
            close enough to ask.
        response: the input, lag or round at which its response is least like the model's; None where no input can be
            changed, or no family was close enough to ask.
        left: share of what it misses that small changes of its update leave; None where that was not asked.
        change: the small change that leaves least of it by itself, in words; "" where none was asked.
        not_rejected: keys of the families that may predict best, by the model confidence set over episodes (95 %).
        scores: every family by key, the closest first.
    """

    family: str | None
    closest: str
    parameters: Mapping[str, Any]
    explained: Interval
    ratio: Interval
    runner_up: str
    baseline: str
    scores: Mapping[str, FamilyScore]
    settings: Mapping[str, Any] = field(repr=False, default_factory=dict)
    apart: Interval | None = None
    response: Cell | None = None
    left: Interval | None = None
    change: str = ""
    not_rejected: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Which algorithm it is, and how much of the predictions it explains."""
        name, rival = (self.scores[key].name for key in (self.closest, self.runner_up))
        named = f"{name} ({in_words(self.parameters)})"
        told = f"explains {self.explained} of the predictions and leaves {self.ratio} of the error of {rival}."
        if self.family:
            return f"{named} {told}"
        found = f"No family fits; the closest, {named}, {told}"
        if self.left is not None and self.change:
            found += f" Small changes of its update leave {self.left.estimate:.2f} of that; {self.change}."
        return found

    @property
    def algorithm(self) -> Algorithm | None:
        """The closest algorithm, with the parameters found."""
        return self.scores[self.closest].algorithm

    def _draw(self, figures: Any) -> Any:
        """What every family explains; all but the closest in grey."""
        base, seed = self.scores[self.baseline].divergences, self.settings["seed"]
        rows = {
            one.name: _pooled_ratio(one.divergences, base, seed).complement
            for one in self.scores.values()
        }
        drawn = named(rows).assign(control=[key != self.closest for key in self.scores])
        return figures.intervals(
            drawn, xlabel="share of the predictions that is explained", floor=-0.5
        )

    def to_frame(self) -> pd.DataFrame:
        """One row a family, a set ("all" for all of them) and a quantity: "divergence", "explained" or "ratio"."""
        seed, rows = self.settings["seed"], []
        base, rival = (
            self.scores[self.baseline].divergences,
            self.scores[self.runner_up].divergences,
        )
        for score in self.scores.values():
            nats = {name: np.ones_like(values) for name, values in score.divergences.items()}
            for name in (*score.divergences, "all"):
                chosen = None if name == "all" else name
                quantities = {
                    "divergence": _pooled_ratio(score.divergences, nats, seed, chosen),
                    "explained": _pooled_ratio(score.divergences, base, seed, chosen).complement,
                }
                if score.key == self.closest:
                    quantities["ratio"] = _pooled_ratio(score.divergences, rival, seed, chosen)
                for quantity, value in quantities.items():
                    rows.append(
                        {
                            "name": quantity,
                            "set": name,
                            "family": score.key,
                            **value.columns("number"),
                        }
                    )
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """JSON values of the answer; the table holds the numbers of every family."""
        keys = (
            "family",
            "closest",
            "parameters",
            "explained",
            "ratio",
            "runner_up",
            "baseline",
            "not_rejected",
            "change",
            "settings",
        )
        return json_values(
            {key: getattr(self, key) for key in keys} | {"name": self.scores[self.closest].name}
        )


@checked
def explain(
    subject: Any,
    task: Task,
    sets: Mapping[str, tuple[Any, Any]],
    *,
    seed: int,
    families: Sequence[Family] | None = None,
    edits: Edits | None = None,
) -> AlgorithmPart:
    """Which family of algorithms predicts what the subject predicts.

    Args:
        subject: a model, an algorithm, or a function of episodes to distributions ``[episode, round, outcome]``.
        sets: by name, (episodes to fit on, other episodes to score on), such as ``task.sets_for(...)`` gives.
        seed: of the bootstrap over episodes.
        families: those that are asked; all of the task's when None.
        edits: single inputs that are changed, for the response; some of the first set's episodes when None.

    Raises:
        InputError: sets of another task, or predictions that are no distributions.

    >>> from interp.tasks import experts
    >>> from interp.tasks.experts.algorithms import weighted_majority
    >>> pair = tuple(experts.sample(16, 20, 4, seed=seed) for seed in (0, 1))
    >>> some = [f for f in experts.TASK.rivals().values() if f.key in ("weighted_majority", "follow_the_leader")]
    >>> found = explain(weighted_majority(0.5), experts.TASK, {"uniform": pair}, seed=0, families=some)
    >>> found.family, found.parameters
    ('weighted_majority', {'gain': 0.5})
    """
    require(
        task_of(sets) == task.key, f"these episodes are of {task_of(sets)!r}, not of {task.key!r}"
    )
    refuse_missing(
        "the search for an algorithm", *(batch for pair in sets.values() for batch in pair)
    )
    asked = task.rivals() if families is None else unique(families, "family")
    require(bool(asked), "no family of algorithms to ask; give families=None for all of the task's")
    scores = _scores(subject, task, sets, asked.values())
    n_episodes = {name: (len(pair[0]), len(pair[1])) for name, pair in sets.items()}
    decided = _decided(scores, provenance(seed=seed, task=task.key, n_episodes=n_episodes))
    if decided.family is None or (made := decided.algorithm) is None:
        return decided
    apart = _plainly(_differences(predictor(subject), predictor(made), sets)[0], sets, seed)
    decided = replace(decided, apart=apart, family=None if apart.high > _RARE else decided.family)
    edits = edits or Edits.of(task, next(iter(sets.values()))[1], _N_EDITS)
    decided = _responding(decided, subject, edits)
    if decided.family is None or decided.explained.low >= NEARLY_ALL or task.kind != "classes":
        return decided
    left, change = _left(predictor(subject), made, sets, seed)
    family = None if left.low <= _LEFT else decided.family
    return replace(decided, left=left, change=change, family=family)


def _left(predict: Predict, algorithm: Algorithm, sets: _Sets, seed: int) -> tuple[Interval, str]:
    """Measure what small changes of the algorithm's update leave of what it misses.

    To first order, in standard deviations of an outcome; fitted on the episodes that families are fitted on.

    Returns:
        The share that all changes together leave, and the change that leaves least by itself, with its share.
    """
    fitted_on = [pair[0] for pair in sets.values()]
    scored_on = [pair[1] for pair in sets.values()]
    missed, slopes, names = _standardised(predict, algorithm, fitted_on)
    other_missed, other_slopes, _ = _standardised(predict, algorithm, scored_on)
    participants = participants_of(scored_on[0])

    def left_by(changes: list[int]) -> Interval:
        chosen = slopes[..., changes].reshape(missed.size, -1)
        weights = np.linalg.lstsq(chosen, missed.ravel(), rcond=_SMALL)[0]
        rest = other_missed - other_slopes[..., changes] @ weights
        sums = [np.square(nats).sum((1, 2)) for nats in (rest, other_missed)]
        return ratio_interval(*sums, seed=seed, participants=participants)

    alone = {name: left_by([i]).estimate for i, name in enumerate(names)}
    best = min(alone, key=lambda name: round(alone[name], 3), default="")  # the first of equal ones
    words = f"{best} alone leaves {alone[best]:.2f}" if best else ""
    return left_by(list(range(len(names)))), words


def _standardised(
    predict: Predict, algorithm: Algorithm, batches: Sequence[Any]
) -> tuple[Array, Array, list[str]]:
    """Return what the algorithm misses of predictions and how fast changes move it, in standard deviations.

    ``[episode, asked round of all batches, outcome]``, the second with a last axis of changes; then their names.
    """
    missed, slopes, names = [], [], list[str]()
    for episodes in batches:
        p = checked_distributions(predict(episodes), episodes)
        q, moved, names = _changed(algorithm, episodes)
        deviation = np.sqrt(p + q + _RARE)
        missed.append((p - q) / deviation)
        slopes.append(moved / deviation[..., None])
    return np.concatenate(missed, 1), np.concatenate(slopes, 1), names


def _changed(algorithm: Algorithm, episodes: Any) -> tuple[Array, Array, list[str]]:
    """Return predictions ``[episode, asked round, outcome]``, how fast changes move them, and what these are in words.

    The second has a last axis of changes.
    """
    values, inputs, before = (
        algorithm.run(episodes),
        algorithm.read(episodes),
        list[dict[str, Array]](),
    )
    free = [
        key
        for key in algorithm.state
        if values[key].ndim > 2 and algorithm.variable(key).kind == "real"
    ]
    directions = {key: _changes(values[key], values[NEXT + key], inputs) for key in free}
    moves = {key: _SMALL * np.stack(list(named.values())) for key, named in directions.items()}
    own = asked_rounds(algorithm.distribution(values), episodes)
    n = max(map(len, moves.values()), default=1)
    state = {key: np.repeat(values[key][None, :, 0], n, 0) for key in algorithm.state}
    inputs = {key: np.broadcast_to(value, (n, *value.shape)) for key, value in inputs.items()}
    for t in range(episodes.n_rounds):
        before.append(state)
        state = algorithm.advance(state, {key: value[:, :, t] for key, value in inputs.items()})
        state |= {key: state[key] + move[:, :, t] for key, move in moves.items()}
    changed = {key: np.stack([one[key] for one in before], 2) for key in algorithm.state}
    p = algorithm.distribution(
        OnDemand(algorithm, {**changed, **inputs})
    )  # what comes after it is not needed
    slopes = np.stack([asked_rounds(changed_p, episodes) - own for changed_p in p], -1) / _SMALL
    names = max(directions.values(), key=len, default={})
    return own, np.nan_to_num(slopes), list(names)


def _changes(state: Array, after: Array, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return what each round could leave beside its own step, by what it is in words, ``[episode, round, ...]`` each.

    Args:
        state, after: one carried variable before and after every round, ``[episode, round, ...]``.
        inputs: of the rounds, by key.
    """
    state = np.asarray(state, float)
    step = after - state
    per_round = [1] * (state.ndim - 2)
    round_number = np.arange(step.shape[1]).reshape(-1, *per_round)
    last_step = np.concatenate([np.zeros_like(step[:, :1]), step[:, :-1]], 1)
    below_largest = state - state.max(-1, keepdims=True)
    directions = {
        "a larger step": step,
        "steps that follow the last one": step * last_step,
        "steps that grow with the round": step * round_number,
        "steps that alternate": step * (-1.0) ** round_number,
    }
    for period in (3, 4):
        for name, wave in (("", np.cos), (", shifted", np.sin)):
            turn = wave(2 * np.pi * round_number / period)
            directions[f"steps of period {period}{name}"] = step * turn
    directions |= {
        "steps that grow with the state": step * state,
        "steps that follow the others'": step * step.mean(-1, keepdims=True),
        "steps that differ by element": step * np.arange(step.shape[-1]),
    }
    for key, given in inputs.items():
        values = given.reshape(*given.shape[:2], *per_round) if given.ndim == 2 else given
        fits = values.shape[2:] in (step.shape[2:], tuple(per_round))
        directions[f"steps that depend on {key}"] = step * values if fits else np.zeros_like(step)
    return directions | {
        "the last step once more": last_step,
        "a leak": state,
        "a leak that grows": state**2,
        "a leak below the largest": below_largest,
        "a leak that grows below the largest": below_largest**2,
        "a clipped state": np.exp(below_largest),
        "steps of a neighbour": np.roll(step, 1, -1),
    }


def _responding(part: AlgorithmPart, subject: Any, edits: Edits) -> AlgorithmPart:
    """The same, with the family's worst response; it explains no longer where that may be another one."""
    made = part.algorithm
    found = cells(edits, responses(subject, edits), responses(made, edits)) if made else ()
    if not found:
        return part
    return replace(
        part, response=found[0], family=part.family if found[0].alike.low >= _RESPONDS else None
    )


def _plainly(apart: Mapping[str, Array], sets: _Sets, seed: int) -> Interval:
    """The share of rounds that are plainly apart; the i-th episodes of all sets are drawn together."""
    shares = np.concatenate([nats > _PLAIN for nats in apart.values()], 1).mean(1)
    return mean_interval(
        shares, seed=seed, participants=participants_of(next(iter(sets.values()))[1])
    )


@remembered
def _memoryless(compared: Compared, subject: Any) -> _Divergences:
    """How far predictions are from those of the best algorithm without a memory, which is chosen on other episodes."""
    task = tasks.get(task_of(compared.sets))
    families = [family for family in task.rivals().values() if family.memoryless]
    return min(
        _scores(subject, task, compared.sets, families), key=lambda score: score.fitted
    ).divergences


def _scores(
    subject: Any, task: Task, sets: _Sets, families: Collection[Family]
) -> list[FamilyScore]:
    """The guess that is even, then every family, fitted."""
    predict = predictor(subject)
    fits = {name: checked_distributions(predict(pair[0]), pair[0]) for name, pair in sets.items()}
    given = {name: checked_distributions(predict(pair[1]), pair[1]) for name, pair in sets.items()}
    scores = [_even(fits, given, sets, task.kind)]
    with bar("families", len(families)) as done:
        for family in families:
            fitted, searched = fit(family, [pair[0] for pair in sets.values()], list(fits.values()))
            guess, divergences = predictor(family.make(**searched)), {}
            for name, (_, episodes) in sets.items():
                nats = divergence(given[name], asked_rounds(guess(episodes), episodes), task.kind)
                divergences[name] = of_each(nats, participants_of(episodes))
            about = family.key, family.name, family.extends or family.key, family.memoryless, family
            scores.append(FamilyScore(*about, searched, fitted, divergences))
            done(1)
    return scores


def _even(
    fits: Mapping[str, Array], given: Mapping[str, Array], sets: _Sets, kind: Predicted
) -> FamilyScore:
    """The guess that is the same at every round: even over outcomes; of a real number the mean of what is predicted."""
    if kind == "classes":
        guess = np.full(
            next(iter(fits.values())).shape[-1], 1 / next(iter(fits.values())).shape[-1]
        )
    else:
        every = np.concatenate(
            [predictions.reshape(-1, predictions.shape[-1]) for predictions in fits.values()]
        )
        guess = every.mean(0)
        if (
            kind == "normal"
        ):  # the variance of what is predicted over all rounds, by the law of total variance
            guess[1] = np.log(np.exp(every[:, 1]).mean() + every[:, 0].var())

    fitted, scored = (
        {
            name: divergence(given, np.zeros_like(given) + guess, kind)
            for name, given in predictions.items()
        }
        for predictions in (fits, given)
    )
    fitted_nats = float(np.mean([nats.mean() for nats in fitted.values()]))
    name = "every outcome alike" if kind == "classes" else "the same at every round"
    by_whom = {key: of_each(nats, participants_of(sets[key][1])) for key, nats in scored.items()}
    return FamilyScore(_EVENLY, name, _EVENLY, True, None, {}, fitted_nats, by_whom)


def _decided(scores: Sequence[FamilyScore], settings: Mapping[str, Any]) -> AlgorithmPart:
    """The closest family and whether it explains: chosen by the fits, judged by the scores."""
    ranked, seed = sorted(scores, key=lambda score: score.fitted), settings["seed"]
    base = next(score for score in ranked if score.memoryless)
    group = [score for score in ranked if score.group == ranked[0].group]
    rival = next(score for score in ranked if score.group != ranked[0].group)

    def judged(score: FamilyScore) -> tuple[Interval, Interval]:
        explained, ratio = (
            _pooled_ratio(score.divergences, other.divergences, seed) for other in (base, rival)
        )
        return explained.complement, ratio

    def explains(score: FamilyScore) -> bool:
        explained, ratio = judged(score)
        return not score.memoryless and explained.low >= _EXPLAINED and ratio.high <= RATIO

    closest = next((score for score in group if score.key == score.group), group[0])
    extended = group[0]
    if extended.fitted < closest.fitted and judged(closest)[0].low < NEARLY_ALL:
        left = _pooled_ratio(extended.divergences, closest.divergences, seed)
        if left.high <= EXTENDED or (explains(extended) and not explains(closest)):
            closest = extended
    explained, ratio = judged(closest)
    return AlgorithmPart(
        family=closest.key if explains(closest) else None,
        closest=closest.key,
        parameters=dict(closest.algorithm.parameters) if closest.algorithm else {},
        explained=explained,
        ratio=ratio,
        runner_up=rival.key,
        baseline=base.key,
        scores={score.key: score for score in (closest, *ranked)},
        settings=settings,
        not_rejected=_not_rejected(ranked, base, seed),
    )


def _not_rejected(scores: Sequence[FamilyScore], base: FamilyScore, seed: int) -> tuple[str, ...]:
    """Return the keys of the families that are not rejected as the best one, by the model confidence set.

    Episodes are the units; the i-th ones of all sets count together. What a family leaves below a thousandth of what
    the best one without a memory leaves is rounding, or the steps of a search: such families tie.

    Args:
        scores: of all families.
        base: that of the best family without a memory.
        seed: of the bootstrap.
    """
    n_units = min(len(nats) for nats in base.divergences.values())
    losses = np.stack(
        [np.mean([nats[:n_units] for nats in s.divergences.values()], 0) for s in scores], 1
    )
    finite = np.isfinite(losses).all(0)
    least = (1 - NEARLY_ALL) * np.mean([nats.mean() for nats in base.divergences.values()])
    if n_units < 2 or not finite.any():
        return ()
    result = model_confidence_set(np.maximum(losses[:, finite], least), seed=seed)
    asked = [score.key for score, is_finite in zip(scores, finite, strict=True) if is_finite]
    return tuple(key for key, included in zip(asked, result.included, strict=True) if included)


def _pooled_ratio(
    over: _Divergences, under: _Divergences, seed: int, name: str | None = None
) -> Interval:
    """The ratio of two mean divergences, of one set or of all alike; both from the same draws of episodes.

    Sets are drawn with one seed, and their i-th episodes share the luck of it: they are drawn together.
    """
    chosen = list(over) if name is None else [name]
    weights = np.concatenate(
        [resample_weights(len(over[key]), seed=seed) for key in chosen], axis=1
    )
    return ratio_interval(
        *(np.concatenate([of[key] for key in chosen]) for of in (over, under)), weights=weights
    )


_ALIKE = 0.95  # average; handwired against itself 1, Weighted Majority against the Bayes predictor .3 to .7
_RESPONSE = 0.9  # response, worst cell
_N_FAILURES = 20  # how many rounds of largest difference are kept


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
class _Agreement:
    """How far a model predicts what something else predicts: on average, and in what share of rounds not at all.

    ``cells`` are responses, the least alike first; none where no input of the task can be changed.
    """

    alike: Interval
    apart: Interval
    cells: tuple[Cell, ...] = field(repr=False)

    def measure(self, control: Control | None = None) -> Measure:
        """That two predict the same: on average beside a control, in almost every round, and in every response."""
        free = Measure(
            "behaviour", "", threshold=_RESPONSE, unit="likeness of responses", needs_control=False
        )
        average = replace(
            free,
            about="predictions alike",
            number=self.alike,
            threshold=_ALIKE,
            unit="share of memory",
        )
        if control is not None:
            average = replace(average, controls={UNTRAINED: control}, needs_control=True)
        rounds = replace(
            free,
            about="rounds apart",
            number=self.apart,
            threshold=_RARE,
            no_threshold=_OFTEN,
            side="below",
        )
        rounds = replace(rounds, unit=f"share of rounds {_PLAIN} nats apart")
        responses = [
            replace(free, about=f"response to {cell.where}", number=cell.alike)
            for cell in self.cells
        ]
        return decisive([average, rounds, *responses])


@dataclass(frozen=True, repr=False)
class Behaviour(Result):
    """How alike two models predict; without a reference, how much of the predictions the closest algorithm explains.

    Attributes:
        plain: as they are.
        fitted: with the read-out of one's algorithm fitted to the other; None where it has none to fit.
        read_out: the parameters of the read-out that were found.
        untrained: the average of each untrained copy of the model.
        failures: the rounds of the largest difference, worst first.
    """

    plain: _Agreement
    fitted: _Agreement | None = None
    read_out: Mapping[str, float] = field(default_factory=dict)
    untrained: tuple[float, ...] = ()
    failures: tuple[Failure, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """One row a number: average, rounds apart and every response, as the two are and with the read-out fitted."""
        rows: list[dict[str, Any]] = []
        for read, agreement in (("", self.plain), (in_words(self.read_out), self.fitted)):
            if agreement is not None:
                numbers = {"predictions alike": agreement.alike, "rounds apart": agreement.apart}
                rows += [
                    {"name": name, "read-out": read, **of.columns("number")}
                    for name, of in numbers.items()
                ]
                rows[-2] |= {
                    "untrained": best_of(self.untrained).number if agreement is self.plain else nan
                }
                rows += [
                    {"name": "response", "read-out": read, **cell.row()} for cell in agreement.cells
                ]
        return pd.DataFrame(rows)

    @property
    def measure(self) -> Measure:
        """By the worst of average, rounds and responses; with a fitted read-out where that makes the two the same."""
        control = best_of(self.untrained)
        if self.fitted is None or self.fitted.measure().verdict == "no":
            return self.plain.measure(control)
        note = f"{in_words(self.read_out)}; alike {self.fitted.alike}, as it is {self.plain.alike}"
        return replace(
            self.fitted.measure(control), condition="with its read-out fitted", note=note
        )


def _behaves(compared: Compared) -> Behaviour:
    """How alike the two predict; without a reference, what the closest algorithm explains."""
    explained, model, reference = compared.parts["algorithm"], compared.model, compared.reference
    if reference is None:
        closest = explained.algorithm
        if closest is None:
            return Behaviour(_Agreement(explained.explained, NO_NUMBER, ()))
        found, _ = _agreement(compared, model, closest)
        plain = _Agreement(explained.explained, found.apart, found.cells)
        return Behaviour(plain, untrained=_untrained(compared, closest))
    plain, failures = _agreement(compared, model, reference.model)
    fitted, searched = None, dict[str, float]()
    if plain.measure().verdict != "yes" and (read := _read_out(compared)) is not None:
        subject, algorithm, searched = read
        fitted, _ = _agreement(compared, subject, algorithm)
    worst = tuple(sorted(failures, key=lambda failure: -failure.nats)[:_N_FAILURES])
    return Behaviour(plain, fitted, searched, _untrained(compared, reference.model), worst)


def _agreement(
    compared: Compared, subject: Participant, other: Any
) -> tuple[_Agreement, list[Failure]]:
    """How far one of the two predicts what the other, or an algorithm, predicts; and the rounds that differ most."""
    sets, seed = compared.sets, compared.budget.seed
    edits = edits_of(compared, 1)
    apart, failures = _differences(predictor(subject.model), predictor(other), sets)
    own, base = (_memoryless(compared, one) for one in (subject.model, other))
    found = cells(edits, responses(subject.model, edits), responses(other, edits))
    return _Agreement(
        _alike(apart, own, base, sets, seed), _plainly(apart, sets, seed), found
    ), failures


def _read_out(compared: Compared) -> tuple[Participant, Algorithm, dict[str, float]] | None:
    """The algorithm of one of the two as the other would read it out: that other one, the algorithm, what was found.

    Asked of the reference's algorithm first.
    """
    model, reference = compared.pair
    for asked, subject in ((reference, model), (model, reference)):
        if not asked.names_algorithm:
            continue
        algorithm = asked.task.explains(asked.model)
        family = asked.task.rivals().get(algorithm.key)
        free = None if family is None else read_out(family, algorithm)
        if free is not None:
            predict, batches = (
                predictor(subject.model),
                [pair[0] for pair in compared.sets.values()],
            )
            _, found = fit(
                free, batches, [checked_distributions(predict(batch), batch) for batch in batches]
            )
            return subject, free.make(**found), found
    return None


def _untrained(compared: Compared, other: Any) -> tuple[float, ...]:
    """The average agreement of each untrained copy of the model."""
    base, found = _memoryless(compared, other), []
    for copy in compared.untrained:
        predict, kind = predictor(copy.model), copy.task.kind

        def guess(episodes: Any, predict: Predict = predict, kind: Predicted = kind) -> Array:
            return probable(predict(episodes), kind)

        apart, _ = _differences(guess, predictor(other), compared.sets)
        found.append(_alike(apart, _memoryless(compared, guess), base, compared.sets, 0).estimate)
    return tuple(found)


def _alike(
    apart: Mapping[str, Array],
    own: Mapping[str, Array],
    base: Mapping[str, Array],
    sets: _Sets,
    seed: int,
) -> Interval:
    """1 less the divergence of the two over what their memories are worth, half of either's."""
    worth = {name: (own[name] + base[name]) / 2 for name in apart}
    nats = {name: of_each(of.mean(1), participants_of(sets[name][1])) for name, of in apart.items()}
    return _pooled_ratio(nats, worth, seed).complement


def _differences(
    model: Predict, reference: Predict, sets: _Sets
) -> tuple[dict[str, Array], list[Failure]]:
    """How far apart two predict in every round that is asked for, by set ``[episode, round]``, and the worst rounds.

    In nats; of a predicted mean, in its own variance.
    """
    kind, apart, failures = tasks.get(task_of(sets)).kind, {}, list[Failure]()
    for name, (_, episodes) in sets.items():
        p, q = (
            checked_distributions(predict(episodes), episodes) for predict in (model, reference)
        )
        apart[name], first = by_round(p, q, kind), episodes.n_rounds - p.shape[1]
        order = np.argsort(-apart[name], axis=None, kind="stable")[:_N_FAILURES]
        for at in zip(
            *map(np.ndarray.tolist, np.unravel_index(order, apart[name].shape)), strict=True
        ):
            mine, theirs = (tuple(d[at].tolist()) for d in (p, q))
            failures.append(
                Failure(
                    name, len(episodes), at[0], first + at[1], float(apart[name][at]), mine, theirs
                )
            )
    return apart, failures


ALGORITHM = Question(
    "algorithm",
    AlgorithmPart,
    lambda compared: explain(
        compared.model.model,
        compared.model.task,
        compared.sets,
        seed=compared.budget.seed,
        edits=edits_of(compared, 1),
    ),
)
BEHAVIOUR = Question(
    "behaviour",
    Behaviour,
    _behaves,
    *("It predicts the same as {}", "predicts the same", "predicts differently"),
)
