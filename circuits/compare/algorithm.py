r"""Which algorithm explains what a model predicts, and does the model predict what its reference predicts?

Every family of algorithms that the task knows is fitted to the model's predictions on some episodes, and scored on
others, by the Jensen-Shannon divergence of the two distributions over outcomes, in nats, averaged over the rounds that
the task asks about (``Task.data.first_asked``); predictions of real numbers by their own divergence
(:func:`~circuits.compare.fitting.divergence`), and the rest is the same::

    JS(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2          explained = 1 - JS(family) / JS(best without a memory)
                                                           ratio     = JS(family) / JS(best other family)

Kullback-Leibler is of no use here: Weighted Majority says exactly 0 and 1. The best family, its runner-up and the best
that keeps no memory are chosen where families are fitted, and scored where they are not; the sets of episodes pull the
families apart (the battery of a task) and count alike. A family *explains* the model where, by 95 % intervals over
episodes, it explains at least :data:`_EXPLAINED` and leaves at most :data:`RATIO` of what its runner-up leaves. Else
the answer is "none of these". A family that extends another one (a memory that fades, a second interval) replaces it
where it leaves at most :data:`EXTENDED` of *its* divergence, or explains where the simpler one does not, unless that
one explains :data:`NEARLY_ALL`; the two are no rivals.

Averages hide what happens rarely: a family that explains must also respond to single inputs as the model does
(:mod:`circuits.compare.response`), to every input at every lag and in every round: every cell must reach
:data:`RESPONDS` with its whole interval.

What this is NOT: evidence of how the model computes. A lookup table with the same predictions scores the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from circuits.compare.fitting import (
    asked_rounds,
    by_round,
    checked_distributions,
    divergence,
    fit,
    predictor,
    task_of,
)
from circuits.compare.question import Compared, Question
from circuits.compare.response import Cell, Edits, cells, edits_of, responses
from interp import tasks
from interp.algorithm import Algorithm, Family, Predicted
from interp.checks import checked, unique
from interp.errors import require
from interp.files import json_values
from interp.progress import bar
from interp.provenance import provenance
from interp.session import once
from interp.statistics import Interval, mean_interval, ratio_interval, resample_weights
from interp.task import Task

_EXPLAINED, RATIO, EXTENDED = 0.95, 0.25, 0.5
"""The rule: at least so much explained, at most so much left of the runner-up's divergence, and of a simpler family's
by its extension. ``python -m tests.compare.calibrate_algorithm`` prints what these decide. The closest calls: a 50 : 50
mixture of Weighted Majority and the Bayes predictor must be none, and the Bayes predictor explains .92 to .93 of it; a
model trained on two intervals must not be called a Bayes predictor of one, which explains .98 and leaves twice to four
times as much."""
NEARLY_ALL = 0.999
"""A family that explains so much needs no extension: what it leaves is rounding, or the steps of a search."""
RESPONDS = 0.75
"""Responses of the closest family, lower end of the worst cell: .82 and more where it is right; .52 of a machine that
unlearns once in 240 rounds, 0 where one never hears an input, or hears it late."""
PLAIN = 0.1
"""Nats by which predictions are plainly different: .9 against .55; seeds of ``wma-learned`` are never .01 apart."""
RARE, OFTEN = 0.001, 0.02
"""Share of rounds plainly apart: at most the first one where two predict the same, more than the second where not."""
_N_EDITS = 240
"""Single inputs that are changed."""
_EVENLY = "evenly"
"""The name of the guess that gives every outcome the same probability, or of a real number that is the same at every
round; it needs no memory and serves every task."""
Array = NDArray[np.float64]
_Divergences = Mapping[str, Array]
"""Nats a round by set, ``[episode]`` each."""


@dataclass(frozen=True)
class FamilyScore:
    """One family, fitted.

    Attributes:
        group: key of the family that it extends, or its own.
        memoryless: whether it keeps nothing from round to round.
        family: None for the guess that is even over outcomes.
        searched: the values found of the parameters that it searches.
        fitted: divergence on the episodes that it was fitted on, nats a round; ``divergences``: on the others.
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

    @property
    def parameters(self) -> dict[str, Any]:
        """What the algorithm was made with."""
        return dict(self.algorithm.parameters) if self.algorithm is not None else {}


@dataclass(frozen=True)
class AlgorithmPart:
    """Which algorithm explains a model's predictions.

    Attributes:
        family: key of the family that explains them; None for none of these.
        closest: key of the one that comes closest, whether or not it explains; ``parameters`` are its.
        explained: 1 less its divergence over that of the best family without a memory, over all sets.
        ratio: its divergence over that of the runner-up.
        runner_up, baseline: keys of the best other family, and of the best one without a memory.
        apart: share of rounds in which its prediction is plainly another (:data:`PLAIN`); None where no family was
            close enough to ask.
        response: the input, lag or round at which its response is least like the model's; None where no input can be
            changed, or no family was close enough to ask.
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

    def __str__(self) -> str:
        made = ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in self.parameters.items())
        answer = self.scores[self.closest].name if self.family else f"none of these; closest {self.closest}"
        ratio = "{:.2g} % [{:.2g}, {:.2g}]".format(
            *(100 * x for x in (self.ratio.estimate, self.ratio.low, self.ratio.high))
        )
        response = f"; response to {self.response.where}: {self.response.alike}" if self.response else ""
        return (
            f"{answer} ({made}): explains {self.explained} of the predictions, with {ratio} of the error of the next "
            f"best, {self.scores[self.runner_up].name}{response}"
        )

    @property
    def algorithm(self) -> Algorithm | None:
        """The closest algorithm, with the parameters found."""
        return self.scores[self.closest].algorithm

    def to_frame(self) -> pd.DataFrame:
        """One row a family, a set ("all" for all of them) and a quantity: "divergence", "explained" or "ratio"."""
        seed, rows = self.settings["seed"], []
        base, rival = self.scores[self.baseline].divergences, self.scores[self.runner_up].divergences
        for score in self.scores.values():
            nats = {name: np.ones_like(values) for name, values in score.divergences.items()}
            for name in (*score.divergences, "all"):
                chosen = None if name == "all" else name
                quantities = {
                    "divergence": pooled_ratio(score.divergences, nats, seed, chosen),
                    "explained": pooled_ratio(score.divergences, base, seed, chosen).complement,
                }
                if score.key == self.closest:
                    quantities["ratio"] = pooled_ratio(score.divergences, rival, seed, chosen)
                for quantity, value in quantities.items():
                    rows.append({"name": quantity, "set": name, "family": score.key, **value.columns("number")})
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """JSON values of the answer; the table holds the numbers of every family."""
        keys = ("family", "closest", "parameters", "explained", "ratio", "runner_up", "baseline", "settings")
        return json_values({key: getattr(self, key) for key in keys} | {"name": self.scores[self.closest].name})


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
    require(task_of(sets) == task.key, f"these episodes are of {task_of(sets)!r}, not of {task.key!r}")
    asked = task.rivals() if families is None else unique(families, "family")
    require(bool(asked), "no family of algorithms to ask; give families=None for all of the task's")
    scores = _scores(subject, task, sets, asked.values())
    n_episodes = {name: (len(pair[0]), len(pair[1])) for name, pair in sets.items()}
    decided = _decided(scores, provenance(seed=seed, task=task.key, n_episodes=n_episodes))
    if decided.family is None:
        return decided
    nats = {name: _nats(subject, decided.algorithm, scored) for name, (_, scored) in sets.items()}
    apart = plainly(nats, seed)
    decided = replace(decided, apart=apart, family=None if apart.high > RARE else decided.family)
    return _responding(decided, subject, edits or edits_of(task, next(iter(sets.values()))[1], _N_EDITS))


def _nats(subject: Any, other: Any, episodes: Any) -> Array:
    """How far apart two predict in every round that is asked for, ``[episode, round]``."""
    p, q = (checked_distributions(predictor(one)(episodes), episodes) for one in (subject, other))
    return by_round(p, q, tasks.of(episodes).kind)


def plainly(apart: Mapping[str, Array], seed: int) -> Interval:
    """The share of rounds that are plainly apart; the i-th episodes of all sets are drawn together."""
    shares = np.concatenate([nats > PLAIN for nats in apart.values()], 1).mean(1)
    return mean_interval(shares, seed=seed)


def _responding(part: AlgorithmPart, subject: Any, edits: Edits) -> AlgorithmPart:
    """The same, with the family's worst response; it explains no longer where that may be another one."""
    found = cells(edits, responses(subject, edits), responses(part.algorithm, edits))
    if not found:
        return part
    worst = min(found, key=lambda cell: cell.alike.low)
    return replace(part, response=worst, family=part.family if worst.alike.low >= RESPONDS else None)


def memoryless_divergences(subject: Any, sets: Mapping[str, tuple[Any, Any]]) -> _Divergences:
    """How far predictions are from those of the best algorithm without a memory, which is chosen on other episodes."""
    task = tasks.get(task_of(sets))

    def scored() -> _Divergences:
        families = [family for family in task.rivals().values() if family.memoryless]
        return min(_scores(subject, task, sets, families), key=lambda score: score.fitted).divergences

    return once("memoryless", subject, sets, make=scored)


def _scores(
    subject: Any, task: Task, sets: Mapping[str, tuple[Any, Any]], families: Collection[Family]
) -> list[FamilyScore]:
    """The guess that is even, then every family, fitted."""
    predict = predictor(subject)
    fits = {name: checked_distributions(predict(pair[0]), pair[0]) for name, pair in sets.items()}
    given = {name: checked_distributions(predict(pair[1]), pair[1]) for name, pair in sets.items()}
    scores = [_even(fits, given, task.kind)]
    with bar("families", len(families)) as done:
        for family in families:
            scores.append(_scored(family, sets, fits, given, task.kind))
            done(1)
    return scores


def _even(fits: Mapping[str, Array], given: Mapping[str, Array], kind: Predicted) -> FamilyScore:
    """The guess that is the same at every round: even over outcomes; of a real number the mean of what is predicted."""
    if kind == "classes":
        guess = np.full(next(iter(fits.values())).shape[-1], 1 / next(iter(fits.values())).shape[-1])
    else:
        every = np.concatenate([predictions.reshape(-1, predictions.shape[-1]) for predictions in fits.values()])
        guess = every.mean(0)
        if kind == "normal":  # the variance of what is predicted over all rounds, by the law of total variance
            guess[1] = np.log(np.exp(every[:, 1]).mean() + every[:, 0].var())

    def from_even(predictions: Array) -> Array:
        return divergence(predictions, np.zeros_like(predictions) + guess, kind)

    fitted = float(np.mean([from_even(predictions).mean() for predictions in fits.values()]))
    scored = {name: from_even(predictions) for name, predictions in given.items()}
    name = "every outcome alike" if kind == "classes" else "the same at every round"
    return FamilyScore(_EVENLY, name, _EVENLY, True, None, {}, fitted, scored)


def _scored(
    family: Family,
    sets: Mapping[str, tuple[Any, Any]],
    fits: Mapping[str, Array],
    given: Mapping[str, Array],
    kind: Predicted,
) -> FamilyScore:
    found = fit(family, [pair[0] for pair in sets.values()], list(fits.values()))
    predict = predictor(found.algorithm)
    divergences = {
        name: divergence(given[name], asked_rounds(predict(pair[1]), pair[1]), kind) for name, pair in sets.items()
    }
    group = family.extends or family.key
    return FamilyScore(
        family.key, family.name, group, family.memoryless, family, found.searched, found.divergence, divergences
    )


def _decided(scores: Sequence[FamilyScore], settings: Mapping[str, Any]) -> AlgorithmPart:
    """The closest family and whether it explains: chosen by the fits, judged by the scores."""
    ranked, seed = sorted(scores, key=lambda score: score.fitted), settings["seed"]
    base = next(score for score in ranked if score.memoryless)
    group = [score for score in ranked if score.group == ranked[0].group]
    rival = next(score for score in ranked if score.group != ranked[0].group)

    def judged(score: FamilyScore) -> tuple[Interval, Interval]:
        explained, ratio = (pooled_ratio(score.divergences, other.divergences, seed) for other in (base, rival))
        return explained.complement, ratio

    def explains(score: FamilyScore) -> bool:
        explained, ratio = judged(score)
        return not score.memoryless and explained.low >= _EXPLAINED and ratio.high <= RATIO

    closest = next((score for score in group if score.key == score.group), group[0])
    extended = next((score for score in group if score.key != score.group), None)
    if extended is not None and extended.fitted < closest.fitted and judged(closest)[0].low < NEARLY_ALL:
        left = pooled_ratio(extended.divergences, closest.divergences, seed)
        if left.high <= EXTENDED or (explains(extended) and not explains(closest)):
            closest = extended
    explained, ratio = judged(closest)
    return AlgorithmPart(
        family=closest.key if explains(closest) else None,
        closest=closest.key,
        parameters=closest.parameters,
        explained=explained,
        ratio=ratio,
        runner_up=rival.key,
        baseline=base.key,
        scores={score.key: score for score in (closest, *ranked)},
        settings=settings,
    )


def pooled_ratio(over: _Divergences, under: _Divergences, seed: int, name: str | None = None) -> Interval:
    """The ratio of two mean divergences, of one set or of all alike; both from the same draws of episodes.

    Sets are drawn with one seed, and their i-th episodes share the luck of it: they are drawn together.
    """
    chosen = list(over) if name is None else [name]
    weights = np.concatenate([_draws(len(over[key]), seed) for key in chosen], axis=1)
    return ratio_interval(*(np.concatenate([of[key] for key in chosen]) for of in (over, under)), weights=weights)


@lru_cache(maxsize=16)
def _draws(n_episodes: int, seed: int) -> Array:
    """The bootstrap's draws: the same for every family, so that ratios are paired, and drawn once."""
    return resample_weights(n_episodes, seed=seed)


def _explain(compared: Compared) -> AlgorithmPart:
    model = compared.model
    edits = edits_of(model.task, model.samples.test, compared.effort.edits)
    return explain(model.model, model.task, compared.sets, seed=compared.effort.seed, edits=edits)


ALGORITHM = Question("algorithm", AlgorithmPart, _explain)
