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

from circuits.compare.question import (
    ARRIVES,
    SAME,
    Budget,
    Compared,
    Participant,
    Question,
)
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
from interp.support.checks import checked, checked_result, unique
from interp.support.errors import require
from interp.support.files import json_values
from interp.support.provenance import provenance
from interp.support.session import remembered
from interp.support.workers import bar

RATIO, EXTENDED = 0.25, 0.5
"""Left at most of the runner-up's divergence, and of a simpler family's by its extension."""
NEARLY_ALL = 0.999
"""A family that explains so much needs no extension: what it leaves is rounding, or the steps of a search."""
_PLAIN = 0.1
"""Nats by which predictions are plainly different: .9 against .55; seeds of
``wma-learned-additive`` are never .01 apart."""
_RARE, _OFTEN = 0.001, 0.02
"""Share of rounds plainly apart: at most the first one where two predict the same, more than the second where not."""
_LEFT = 0.65  # of what a name misses, changes of its update leave more (why: docs/method/naming-an-algorithm.md)
_SMALL = 1e-3  # how much of a change is made to see which way it moves predictions
_EVENLY = "evenly"
"""The guess that needs no memory: every outcome alike, or a real number that is the same at every round."""
_RECORDED = (
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
"""Fields of the answer in JSON."""
_Divergences = Mapping[str, Array]  # nats a round by set, ``[episode]`` each
_Sets = Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True)
@checked_result
class FamilyScore:
    """One family, fitted.

    Attributes:
        group: key of the family that it extends; its key where it extends none.
        memoryless: True if it carries no state from round to round.
        family: None for the guess that is even over outcomes.
        searched: fitted values of the parameters that it searches, by name.
        fitted: divergence on the episodes that it was fitted on, in nats a round.
        divergences: divergence on the episodes to score on, by set, ``[participant or episode]``.
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
@checked_result
class AlgorithmPart(Result):
    """Which algorithm explains a model's predictions.

    Attributes:
        family: key of the family that explains them; None if no family does.
        closest: key of the family that comes closest, whether or not it explains; ``parameters``
            are those of its fit.
        explained: 1 minus its divergence over that of the best family without a memory, over all
            sets.
        ratio: its divergence over that of the runner-up.
        runner_up, baseline: keys of the best family of another group, and of the best one without a
            memory.
        apart: share of rounds in which its prediction plainly differs (:data:`_PLAIN`); None where
            no family was close enough to measure this.
        response: the input, lag or round at which its response is least like the model's; None
            where no input can be changed, or no family was close enough.
        left: share of what it misses that remains after small changes of its update; None where
            this was not measured.
        change: the small change that reduces this most by itself, in words; "" where this was not
            measured.
        not_rejected: keys of the families that may predict best, by the model confidence set over
            episodes (95 %).
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
        name, rival = self.scores[self.closest].name, self.scores[self.runner_up].name
        family = f"{name} ({in_words(self.parameters)})"
        explains = f"explains {self.explained} of the predictions"
        finding = f"{explains} and leaves {self.ratio} of the error of {rival}."
        if self.family:
            return f"{family} {finding}"
        sentence = f"No family fits; the closest, {family}, {finding}"
        if self.left is not None and self.change:
            share = f"{self.left.estimate:.2f}"
            sentence += f" Small changes of its update leave {share} of that; {self.change}."
        return sentence

    @property
    def algorithm(self) -> Algorithm | None:
        """The closest algorithm, with the parameters found."""
        return self.scores[self.closest].algorithm

    def _draw(self, figures: Any) -> Any:
        """Draw what every family explains; all but the closest in grey."""
        base, seed = self.scores[self.baseline].divergences, self.settings["seed"]
        explained = {}
        for score in self.scores.values():
            explained[score.name] = _pooled_ratio(score.divergences, base, seed).complement
        is_grey = [key != self.closest for key in self.scores]
        rows = named(explained).assign(control=is_grey)
        xlabel = "share of the predictions that is explained"
        return figures.intervals(rows, xlabel=xlabel, floor=-0.5)

    def to_frame(self) -> pd.DataFrame:
        """Return one row a family, a set ("all" for all) and a quantity: "divergence", "explained" or "ratio"."""
        seed, rows = self.settings["seed"], []
        base = self.scores[self.baseline].divergences
        rival = self.scores[self.runner_up].divergences
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
                    row = {"name": quantity, "set": name, "family": score.key}
                    rows.append({**row, **value.columns("number")})
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values of the answer; the table holds the numbers of every family."""
        record = {key: getattr(self, key) for key in _RECORDED}
        return json_values({**record, "name": self.scores[self.closest].name})


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
    """Find the family of algorithms that predicts what the subject predicts.

    Args:
        subject: a model, an algorithm, or a function of episodes to distributions ``[episode,
            round, outcome]``.
        sets: by name, (episodes to fit on, other episodes to score on), such as
            ``task.sets_for(...)`` gives.
        seed: of the bootstrap over episodes.
        families: candidates; all of the task's when None.
        edits: single inputs that are changed, for the response; some of the first set's episodes
            when None.

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
    candidates = task.rivals() if families is None else unique(families, "family")
    require(
        bool(candidates), "no family of algorithms to ask; give families=None for all of the task's"
    )
    scores = _score_families(subject, task, sets, candidates.values())
    n_episodes = {name: (len(pair[0]), len(pair[1])) for name, pair in sets.items()}
    part = _decide(scores, provenance(seed=seed, task=task.key, n_episodes=n_episodes))
    algorithm = part.algorithm
    if part.family is None or algorithm is None:
        return part
    predict = predictor(subject)
    differences, _ = _measure_differences(predict, predictor(algorithm), sets)
    share_apart = _share_plainly_apart(differences, sets, seed)
    family = None if share_apart.high > _RARE else part.family
    part = replace(part, apart=share_apart, family=family)
    _, first_scored_on = next(iter(sets.values()))
    edits = edits or Edits.of(task, first_scored_on, Budget.quick().edits)
    part = _judge_responses(part, subject, edits)
    is_complete = part.explained.low >= NEARLY_ALL or task.kind != "classes"
    if part.family is None or is_complete:
        return part
    remainder, change = _measure_left(predict, algorithm, sets, seed)
    family = None if remainder.low <= _LEFT else part.family
    return replace(part, left=remainder, change=change, family=family)


def _judge_responses(part: AlgorithmPart, subject: Any, edits: Edits) -> AlgorithmPart:
    """Add the family's worst response to the part; withdraw the family if that response may differ
    from the model's.

    Args:
        part: the part so far; its closest algorithm is compared.
        subject: the model, or whatever :func:`responses` takes.
        edits: single inputs that are changed.

    Returns:
        A copy with ``response`` set, and ``family`` None where the response's lower bound is below
        the threshold.
    """
    algorithm = part.algorithm
    assert algorithm is not None
    compared = cells(edits, responses(subject, edits), responses(algorithm, edits))
    if not compared:
        return part
    worst = compared[0]
    family = part.family if worst.alike.low >= ARRIVES else None
    return replace(part, response=worst, family=family)


def _measure_left(
    predict: Predict, algorithm: Algorithm, sets: _Sets, seed: int
) -> tuple[Interval, str]:
    """Measure the share of the algorithm's error that remains after small changes of its update.

    Changes are to first order, in standard deviations of an outcome. They are fitted on the same
    episodes as families.

    Args:
        predict: the model's predictions.
        algorithm: what explains them best.
        sets: by name, (episodes to fit on, episodes to score on).
        seed: seed of the bootstrap.

    Returns:
        The share that all changes together leave, and the change that leaves least by itself, with
        its share.
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
    """Compute what the algorithm misses of predictions and how fast changes move it, in standard
    deviations.

    Args:
        predict: the model's predictions.
        algorithm: the one that is compared with it.
        batches: episodes, of each set.

    Returns:
        The missing part ``[episode, scored round of all batches, outcome]``, the slopes with a last
        axis of changes, and the names of the changes.
    """
    missed, slopes, names = [], [], list[str]()
    for episodes in batches:
        p = checked_distributions(predict(episodes), episodes)
        q, slopes_of_batch, names = _changed(algorithm, episodes)
        deviation = np.sqrt(p + q + _RARE)
        missed.append((p - q) / deviation)
        slopes.append(slopes_of_batch / deviation[..., None])
    return np.concatenate(missed, 1), np.concatenate(slopes, 1), names


def _changed(algorithm: Algorithm, episodes: Any) -> tuple[Array, Array, list[str]]:
    """Compute predictions and how fast small changes of the state move them.

    Returns:
        Predictions ``[episode, scored round, outcome]``, slopes with a last axis of changes, and
        the changes in words.
    """
    values, inputs = algorithm.run(episodes), algorithm.read(episodes)
    directions = {}
    for key in algorithm.state:
        if values[key].ndim > 2 and algorithm.variable(key).kind == "real":
            directions[key] = _list_directions(values[key], values[NEXT + key], inputs)
    moves = {key: _SMALL * np.stack(list(of_key.values())) for key, of_key in directions.items()}
    names = max(directions.values(), key=len, default={})
    n_changes = max(len(names), 1)
    state = {key: np.repeat(values[key][None, :, 0], n_changes, 0) for key in algorithm.state}
    repeated = {key: np.broadcast_to(x, (n_changes, *x.shape)) for key, x in inputs.items()}
    states = []
    for t in range(episodes.n_rounds):
        states.append(state)
        state = algorithm.advance(state, {key: x[:, :, t] for key, x in repeated.items()})
        state |= {key: state[key] + move[:, :, t] for key, move in moves.items()}
    changed = {key: np.stack([state[key] for state in states], 2) for key in algorithm.state}
    # What comes after the prediction is not needed.
    changed_p = algorithm.distribution(OnDemand(algorithm, {**changed, **repeated}))
    p = asked_rounds(algorithm.distribution(values), episodes)
    slopes = [(asked_rounds(of_change, episodes) - p) / _SMALL for of_change in changed_p]
    return p, np.nan_to_num(np.stack(slopes, -1)), list(names)


def _list_directions(state: Array, after: Array, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return what each round could add to its step, by its description in words, ``[episode, round,
    ...]``.

    Args:
        state, after: one carried variable before and after every round, ``[episode, round, ...]``.
        inputs: inputs of the rounds, by key.
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
    for key, values in inputs.items():
        shaped = values.reshape(*values.shape[:2], *per_round) if values.ndim == 2 else values
        fits = shaped.shape[2:] in (step.shape[2:], tuple(per_round))
        directions[f"steps that depend on {key}"] = step * shaped if fits else np.zeros_like(step)
    return directions | {
        "the last step once more": last_step,
        "a leak": state,
        "a leak that grows": state**2,
        "a leak below the largest": below_largest,
        "a leak that grows below the largest": below_largest**2,
        "a clipped state": np.exp(below_largest),
        "steps of a neighbour": np.roll(step, 1, -1),
    }


def _share_plainly_apart(apart: Mapping[str, Array], sets: _Sets, seed: int) -> Interval:
    """Return the share of rounds in which two predictions plainly differ; the i-th episodes of all
    sets are drawn together.

    Args:
        apart: divergences in nats, ``[episode, round]`` by set.
        sets: the episodes, by set; their participants are resampled.
        seed: seed of the bootstrap.
    """
    is_apart = np.concatenate([nats > _PLAIN for nats in apart.values()], 1)
    _, scored_on = next(iter(sets.values()))
    return mean_interval(is_apart.mean(1), seed=seed, participants=participants_of(scored_on))


@remembered
def _measure_memoryless(compared: Compared, subject: Any) -> _Divergences:
    """Measure how far predictions are from the best algorithm without a memory, which is chosen on other episodes."""
    task = tasks.get(task_of(compared.sets))
    families = [family for family in task.rivals().values() if family.memoryless]
    scores = _score_families(subject, task, compared.sets, families)
    return min(scores, key=lambda score: score.fitted).divergences


def _score_families(
    subject: Any, task: Task, sets: _Sets, families: Collection[Family]
) -> list[FamilyScore]:
    """Fit every family on the first batch of each set, and score it on the second.

    Args:
        subject: whatever :func:`~interp.choices.fitting.predictor` takes.
        task: says of what kind predictions are.
        sets: by name, (episodes to fit on, episodes to score on).
        families: the candidates.

    Returns:
        The guess that is even over outcomes, then every family, in order.
    """
    predict = predictor(subject)
    fitted_on = [pair[0] for pair in sets.values()]
    to_fit = [checked_distributions(predict(episodes), episodes) for episodes in fitted_on]
    to_score = {}
    for name, (_, episodes) in sets.items():
        to_score[name] = checked_distributions(predict(episodes), episodes)
    scores = [_score_even_guess(to_fit, to_score, sets, task.kind)]
    with bar("families", len(families)) as done:
        for family in families:
            nats, searched = fit(family, fitted_on, to_fit)
            guess, divergences = predictor(family.make(**searched)), {}
            for name, (_, episodes) in sets.items():
                guessed = asked_rounds(guess(episodes), episodes)
                by_episode = divergence(to_score[name], guessed, task.kind)
                divergences[name] = of_each(by_episode, participants_of(episodes))
            score = FamilyScore(
                key=family.key,
                name=family.name,
                group=family.extends or family.key,
                memoryless=family.memoryless,
                family=family,
                searched=searched,
                fitted=nats,
                divergences=divergences,
            )
            scores.append(score)
            done(1)
    return scores


def _score_even_guess(
    to_fit: Sequence[Array], to_score: Mapping[str, Array], sets: _Sets, kind: Predicted
) -> FamilyScore:
    """Score the guess that is the same at every round.

    It is even over outcomes; of a real number it is the mean of what is predicted.

    Args:
        to_fit, to_score: distributions of the episodes of each set that families are fitted on, and scored on.
    """
    flat = np.concatenate([p.reshape(-1, p.shape[-1]) for p in to_fit])
    n_numbers = flat.shape[-1]
    guess = np.full(n_numbers, 1 / n_numbers) if kind == "classes" else flat.mean(0)
    if kind == "normal":  # the variance over all rounds, by the law of total variance
        variances = np.exp(flat[:, 1])
        guess[1] = np.log(variances.mean() + flat[:, 0].var())

    def measure(predictions: Array) -> Array:
        return divergence(predictions, np.broadcast_to(guess, predictions.shape), kind)

    divergences = {}
    for name, predictions in to_score.items():
        divergences[name] = of_each(measure(predictions), participants_of(sets[name][1]))
    return FamilyScore(
        key=_EVENLY,
        name="every outcome alike" if kind == "classes" else "the same at every round",
        group=_EVENLY,
        memoryless=True,
        family=None,
        searched={},
        fitted=float(np.mean([measure(predictions).mean() for predictions in to_fit])),
        divergences=divergences,
    )


def _decide(scores: Sequence[FamilyScore], settings: Mapping[str, Any]) -> AlgorithmPart:
    """Select the closest family by the fits, and determine by the scores whether it explains.

    An extension replaces the family that it extends where this leaves a gap and the extension
    closes most of it, or where only the extension explains.
    """
    ranked, seed = sorted(scores, key=lambda score: score.fitted), settings["seed"]
    base = next(score for score in ranked if score.memoryless)
    group = [score for score in ranked if score.group == ranked[0].group]
    rival = next(score for score in ranked if score.group != ranked[0].group)

    def measure_explained(score: FamilyScore) -> Interval:
        return _pooled_ratio(score.divergences, base.divergences, seed).complement

    def measure_ratio(score: FamilyScore) -> Interval:
        return _pooled_ratio(score.divergences, rival.divergences, seed)

    def is_explaining(score: FamilyScore) -> bool:
        if score.memoryless or measure_explained(score).low < SAME:
            return False
        return measure_ratio(score).high <= RATIO

    extended = group[0]
    closest = next((score for score in group if score.key == score.group), extended)
    is_open = measure_explained(closest).low < NEARLY_ALL
    if extended.fitted < closest.fitted and is_open:
        remainder = _pooled_ratio(extended.divergences, closest.divergences, seed)
        explains_alone = is_explaining(extended) and not is_explaining(closest)
        if remainder.high <= EXTENDED or explains_alone:
            closest = extended
    algorithm = closest.algorithm
    return AlgorithmPart(
        family=closest.key if is_explaining(closest) else None,
        closest=closest.key,
        parameters=dict(algorithm.parameters) if algorithm else {},
        explained=measure_explained(closest),
        ratio=measure_ratio(closest),
        runner_up=rival.key,
        baseline=base.key,
        scores={score.key: score for score in (closest, *ranked)},
        settings=settings,
        not_rejected=_list_not_rejected(ranked, base, seed),
    )


def _list_not_rejected(
    scores: Sequence[FamilyScore], base: FamilyScore, seed: int
) -> tuple[str, ...]:
    """Return the keys of the families that are not rejected as the best one, by the model confidence set.

    Episodes are the units; the i-th ones of all sets count together. What a family leaves below a thousandth of what
    the best one without a memory leaves is rounding, or the steps of a search: such families tie.

    Args:
        scores: of all families.
        base: that of the best family without a memory.
        seed: of the bootstrap.
    """
    n_units = min(len(nats) for nats in base.divergences.values())

    def mean_over_sets(score: FamilyScore) -> Array:
        return np.mean([nats[:n_units] for nats in score.divergences.values()], axis=0)

    losses = np.stack([mean_over_sets(score) for score in scores], 1)
    is_finite = np.isfinite(losses).all(0)
    if n_units < 2 or not is_finite.any():
        return ()
    base_nats = np.mean([nats.mean() for nats in base.divergences.values()])
    least_loss = (1 - NEARLY_ALL) * base_nats
    result = model_confidence_set(np.maximum(losses[:, is_finite], least_loss), seed=seed)
    keys = np.array([score.key for score in scores])[is_finite]
    return tuple(keys[list(result.included)].tolist())


def _pooled_ratio(
    over: _Divergences, under: _Divergences, seed: int, name: str | None = None
) -> Interval:
    """Return the ratio of two mean divergences, both from the same draws of episodes.

    All sets are drawn with one seed, so that their i-th episodes are drawn together.

    Args:
        over, under: divergences ``[episode]`` by set.
        seed: seed of the bootstrap.
        name: one set; all sets when None.
    """
    chosen = list(over) if name is None else [name]
    weights = [resample_weights(len(over[key]), seed=seed) for key in chosen]
    numerator = np.concatenate([over[key] for key in chosen])
    denominator = np.concatenate([under[key] for key in chosen])
    return ratio_interval(numerator, denominator, weights=np.concatenate(weights, axis=1))


_RESPONSE = 0.9  # response, worst cell
_N_FAILURES = 20  # how many rounds of largest difference are kept


@dataclass(frozen=True)
@checked_result
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
    """How far a model predicts what another one predicts: on average, and the share of rounds in
    which it does not.

    ``cells`` are responses, the least similar first; empty where no input of the task can be
    changed.
    """

    alike: Interval
    apart: Interval
    cells: tuple[Cell, ...] = field(repr=False)

    def measure(self, control: Control | None = None) -> Measure:
        """Return the verdict that two predict the same: on average (with a control), in almost
        every round, in every response.
        """
        average = Measure(
            "behaviour",
            "",
            self.alike,
            SAME,
            unit="share of memory",
            about="predictions alike",
            controls={} if control is None else {UNTRAINED: control},
            needs_control=control is not None,
        )
        rounds = Measure(
            "behaviour",
            "",
            self.apart,
            _RARE,
            no_threshold=_OFTEN,
            side="below",
            unit=f"share of rounds {_PLAIN} nats apart",
            about="rounds apart",
            needs_control=False,
        )
        measures = [average, rounds]
        for cell in self.cells:
            response = Measure(
                "behaviour",
                "",
                cell.alike,
                _RESPONSE,
                unit="likeness of responses",
                about=f"response to {cell.where}",
                needs_control=False,
            )
            measures.append(response)
        return decisive(measures)


@dataclass(frozen=True, repr=False)
@checked_result
class Behaviour(Result):
    """How similarly two models predict; without a reference, how much of the predictions the
    closest algorithm explains.

    Attributes:
        plain: agreement of the models as they are.
        fitted: agreement with the read-out of one model's algorithm fitted to the other; None where
            there is none to fit.
        read_out: fitted parameters of the read-out.
        untrained: average agreement of each untrained copy of the model.
        failures: the rounds of the largest difference, worst first.
    """

    plain: _Agreement
    fitted: _Agreement | None = None
    read_out: Mapping[str, float] = field(default_factory=dict)
    untrained: tuple[float, ...] = ()
    failures: tuple[Failure, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return one row per number, as the two are and with the read-out fitted: average, plainly
        different rounds, responses.
        """
        rows = self._list_rows("", self.plain)
        rows[0]["untrained"] = best_of(self.untrained).number
        if self.fitted is not None:
            rows += self._list_rows(in_words(self.read_out), self.fitted)
        return pd.DataFrame(rows)

    def _list_rows(self, read_out: str, agreement: _Agreement) -> list[dict[str, Any]]:
        """Return the rows of one read-out.

        Args:
            read_out: the read-out's parameters in words; "" for the models as they are.
            agreement: its numbers.
        """
        rows: list[dict[str, Any]] = []
        numbers = {"predictions alike": agreement.alike, "rounds apart": agreement.apart}
        for name, number in numbers.items():
            row = {"name": name, "read-out": read_out, **number.columns("number")}
            rows.append({**row, "untrained": nan})
        for cell in agreement.cells:
            rows.append({"name": "response", "read-out": read_out, **cell.row()})
        return rows

    @property
    def measure(self) -> Measure:
        """The worst of average, rounds and responses; with a fitted read-out where that makes the two the same."""
        control = best_of(self.untrained)
        fitted = self.fitted
        if fitted is None or fitted.measure().verdict == "no":
            return self.plain.measure(control)
        likeness = f"alike {fitted.alike}, as it is {self.plain.alike}"
        note = f"{in_words(self.read_out)}; {likeness}"
        return replace(fitted.measure(control), condition="with its read-out fitted", note=note)


def _compare_behaviour(compared: Compared) -> Behaviour:
    """Compare what two predict; without a reference, say what the closest algorithm explains."""
    explained, model, reference = compared.parts["algorithm"], compared.model, compared.reference
    if reference is None:
        closest = explained.algorithm
        if closest is None:
            return Behaviour(_Agreement(explained.explained, NO_NUMBER, ()))
        agreement, _ = _compare_predictions(compared, model, closest)
        plain = replace(agreement, alike=explained.explained)
        return Behaviour(plain, untrained=_compare_untrained(compared, closest))
    plain, failures = _compare_predictions(compared, model, reference.model)
    read = None
    if plain.measure().verdict != "yes":
        read = _fit_read_out(compared)
    fitted, searched = None, dict[str, float]()
    if read is not None:
        subject, algorithm, searched = read
        fitted, _ = _compare_predictions(compared, subject, algorithm)
    worst = sorted(failures, key=lambda failure: -failure.nats)[:_N_FAILURES]
    return Behaviour(
        plain=plain,
        fitted=fitted,
        read_out=searched,
        untrained=_compare_untrained(compared, reference.model),
        failures=tuple(worst),
    )


def _compare_predictions(
    compared: Compared, subject: Participant, other: Any
) -> tuple[_Agreement, list[Failure]]:
    """Measure how far a model predicts what another one, or an algorithm, predicts.

    Args:
        compared: gives the sets of episodes, the budget and the edits.
        subject: the model.
        other: a model or an algorithm.

    Returns:
        Their agreement, and the rounds in which they differ most.
    """
    sets, seed = compared.sets, compared.budget.seed
    edits = edits_of(compared, 1)
    differences, failures = _measure_differences(predictor(subject.model), predictor(other), sets)
    worth = _measure_memoryless(compared, subject.model)
    other_worth = _measure_memoryless(compared, other)
    agreement = _Agreement(
        alike=_measure_likeness(differences, worth, other_worth, sets, seed),
        apart=_share_plainly_apart(differences, sets, seed),
        cells=cells(edits, responses(subject.model, edits), responses(other, edits)),
    )
    return agreement, failures


def _fit_read_out(compared: Compared) -> tuple[Participant, Algorithm, dict[str, float]] | None:
    """Fit the read-out of one model's algorithm to the other model; the reference's algorithm is
    tried first.

    Returns:
        The other model, the algorithm, and the fitted parameters; None where neither has a read-out
        to fit.
    """
    model, reference = compared.pair
    for owner, subject in ((reference, model), (model, reference)):
        if not owner.names_algorithm:
            continue
        algorithm = owner.task.explains(owner.model)
        family = owner.task.rivals().get(algorithm.key)
        free = None if family is None else read_out(family, algorithm)
        if free is None:
            continue
        predict = predictor(subject.model)
        batches = [pair[0] for pair in compared.sets.values()]
        predictions = [checked_distributions(predict(batch), batch) for batch in batches]
        _, searched = fit(free, batches, predictions)
        return subject, free.make(**searched), searched
    return None


def _compare_untrained(compared: Compared, other: Any) -> tuple[float, ...]:
    """Return the average agreement of each untrained copy of the model."""
    other_worth, likenesses = _measure_memoryless(compared, other), []
    for copy in compared.untrained:
        predict, kind = predictor(copy.model), copy.task.kind

        def guess(episodes: Any, predict: Predict = predict, kind: Predicted = kind) -> Array:
            return probable(predict(episodes), kind)

        differences, _ = _measure_differences(guess, predictor(other), compared.sets)
        worth = _measure_memoryless(compared, guess)
        likeness = _measure_likeness(differences, worth, other_worth, compared.sets, 0)
        likenesses.append(likeness.estimate)
    return tuple(likenesses)


def _measure_likeness(
    apart: Mapping[str, Array],
    worth: Mapping[str, Array],
    other_worth: Mapping[str, Array],
    sets: _Sets,
    seed: int,
) -> Interval:
    """Return 1 minus the divergence of two models over the mean gain from their memories.

    Args:
        apart: divergence of the two, ``[episode, round]`` by set.
        worth, other_worth: divergence of each from the best algorithm without a memory, by set.
        sets: the episodes, by set.
        seed: seed of the bootstrap.
    """
    mean_worth, nats = {}, {}
    for name, differences in apart.items():
        mean_worth[name] = (worth[name] + other_worth[name]) / 2
        nats[name] = of_each(differences.mean(1), participants_of(sets[name][1]))
    return _pooled_ratio(nats, mean_worth, seed).complement


def _measure_differences(
    model: Predict, reference: Predict, sets: _Sets
) -> tuple[dict[str, Array], list[Failure]]:
    """Measure the divergence of two in every scored round, in nats; differences of means are in
    units of their variance.

    Args:
        model, reference: predictions of the two.
        sets: by name, (episodes to fit on, episodes to score on); the second are compared.

    Returns:
        Divergences ``[episode, round]`` by set, and the rounds of each set with the largest ones.
    """
    kind = tasks.get(task_of(sets)).kind
    nats_by_set, failures = {}, []
    for name, (_, episodes) in sets.items():
        p = checked_distributions(model(episodes), episodes)
        q = checked_distributions(reference(episodes), episodes)
        nats = by_round(p, q, kind)
        nats_by_set[name] = nats
        first_round = episodes.n_rounds - p.shape[1]
        order = np.argsort(-nats, axis=None, kind="stable")[:_N_FAILURES]
        for index in order.tolist():
            episode, t = divmod(index, nats.shape[1])
            failure = Failure(
                set=name,
                n_scored=len(episodes),
                episode=episode,
                round=first_round + t,
                nats=float(nats[episode, t]),
                model=tuple(p[episode, t].tolist()),
                reference=tuple(q[episode, t].tolist()),
            )
            failures.append(failure)
    return nats_by_set, failures


def _explain_model(compared: Compared) -> AlgorithmPart:
    """Find the algorithm that explains the compared model."""
    model, edits = compared.model, edits_of(compared, 1)
    seed = compared.budget.seed
    return explain(model.model, model.task, compared.sets, seed=seed, edits=edits)


ALGORITHM = Question("algorithm", AlgorithmPart, _explain_model)
BEHAVIOUR = Question(
    "behaviour",
    Behaviour,
    _compare_behaviour,
    "It predicts the same as {}",
    "predicts the same",
    "predicts differently",
)
