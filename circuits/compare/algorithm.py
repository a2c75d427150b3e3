"""Which algorithm explains a model's predictions, and do two models predict the same?

:func:`explain` fits every family of algorithms that the task knows to the model's predictions, and
scores each on other episodes. :class:`Behaviour` compares the predictions of two models.
``docs/method/naming-an-algorithm.md`` says how a family is chosen, and what the choice does not
prove.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import nan
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from circuits.compare.question import (
    ARRIVES,
    HALF,
    SAME,
    Budget,
    Compared,
    Participant,
    Question,
)
from circuits.compare.response import Cell, Edits, compare_responses, make_edits, measure_responses
from interp import tasks
from interp.choices.fitting import (
    Array,
    OnDemand,
    Predict,
    checked_distributions,
    divergence,
    divergence_by_round,
    fit,
    make_distributions,
    predictor,
    read_out,
    select_scored_rounds,
    task_of,
)
from interp.core.algorithm import (
    NEXT,
    Algorithm,
    Family,
    Predicted,
    Values,
    format_parameters,
    participants_of,
    refuse_missing,
)
from interp.core.task import Task
from interp.interventions.experiment import make_interval_table
from interp.results.measure import UNTRAINED, Control, Measure, Result, conjoin, merge_copies
from interp.stats.confidence_set import model_confidence_set
from interp.stats.intervals import (
    NO_NUMBER,
    Interval,
    average_by_participant,
    mean_interval,
    ratio_interval,
    resample_weights,
)
from interp.support.checks import checked, checked_result, index_by_key
from interp.support.errors import require, require_known
from interp.support.files import json_values
from interp.support.provenance import provenance
from interp.support.session import cached_in_session
from interp.support.workers import bar

RATIO = 0.25
"""Threshold on a ratio of divergences.

A family explains the model only if it leaves at most this share of the runner-up's divergence.
"""
NEARLY_ALL = 0.999
"""A family that explains this share needs no extension: the rest is rounding or search error."""
_PLAIN_DIFFERENCE = 0.1
"""Two predictions differ plainly from this divergence on, in nats: such as .9 against .55.

Seeds of ``wma-learned-additive`` never differ by .01.
"""
_RARE_SHARE, _OFTEN_SHARE = 0.001, 0.02
"""Thresholds on the share of rounds whose predictions differ plainly.

``_RARE_SHARE``: at most this share for "predicts the same". ``_OFTEN_SHARE``: more than this share for
"predicts differently".
"""
_LEAST_VARIANCE = 0.001
"""Added to p + q, the scale of squared errors of a probability, so that none is divided by 0."""
_LEAST_REMAINDER = 0.65
"""Share of a named family's error that small changes of its update must leave.

docs/method/naming-an-algorithm.md gives the reason.
"""
_DERIVATIVE_STEP = 1e-3
"""Step of the finite differences by which a small change of an update moves predictions."""
_SMALLEST_SINGULAR_VALUE = 1e-3
"""Smaller singular values, relative to the largest, count as 0 where small changes are fitted."""
_CONSTANT_GUESS = "evenly"
"""Key of the guess without memory: equal probabilities, or for real numbers one constant."""
_FIELDS_IN_JSON = (
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
"""Fields of the result that are written to JSON."""
_Divergences = Mapping[str, Array]  # by set, each ``[episode]`` or ``[participant]``
_Sets = Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True)
@checked_result
class FamilyScore:
    """How well a family of algorithms (an algorithm with free parameters, here fitted) predicts
    what a model predicts.

    Attributes:
        key, name: key and name of the family.
        group: key of the family that this family extends by further parameters; its own ``key`` if
            it extends none.
        memoryless: True if the family carries no state from round to round.
        family: the family; None for the constant guess, which predicts the same in every round.
        searched: name of a parameter -> its fitted value.
        fitted_divergence: divergence of the family's predictions from the model's, on the episodes
            that it was fitted to, averaged over rounds. For classes it is the Jensen-Shannon
            divergence in nats; :func:`interp.choices.fitting.divergence` has the other kinds.
        divergences: name of a set of episodes -> the same divergence on episodes of the set that
            the family was not fitted to, ``[participant]``; or ``[episode]`` if the episodes have
            no participants.
    """

    key: str
    name: str
    group: str
    memoryless: bool
    family: Family | None
    searched: Mapping[str, float]
    fitted_divergence: float
    divergences: _Divergences = field(repr=False)

    @cached_property
    def algorithm(self) -> Algorithm | None:
        """The family's algorithm with the fitted parameters; None for the guess that predicts the
        same in every round.
        """
        return None if self.family is None else self.family.make(**self.searched)


@dataclass(frozen=True, repr=False)
@checked_result
class AlgorithmPart(Result):
    """Which algorithm explains a model's predictions.

    A family is an algorithm with free parameters, which are fitted to the model. A family is
    memoryless if it carries no state from round to round. Below, "divergence" means how far the
    family's predictions are from the model's, on episodes that the family was not fitted to. For
    classes it is the Jensen-Shannon divergence (:func:`interp.choices.fitting.divergence`).

    Attributes:
        family: key of the family that explains the predictions; None if no family does.
        closest: key of the closest family, whether or not it explains the predictions.
        parameters: fitted parameters of the closest family.
        explained: 1 - (divergence of the closest family / divergence of the best memoryless
            family).
        ratio: divergence of the closest family / divergence of the runner-up.
        runner_up: key of the best family outside the closest family's group; families that extend
            the same family form a group.
        baseline: key of the best memoryless family.
        scores: key of a family -> its score, the closest first.
        settings: seed, numbers of episodes and other provenance.
        apart: share of rounds in which the closest family's predictions diverge from the model's by
            more than .1 nats. None if ``explained`` and ``ratio`` already rule out all families.
        response: the group of changed inputs to which the predictions of the closest family and of
            the model respond least similarly, a :class:`~circuits.compare.response.Cell`. A group
            has, for example, all changes of one input. The similarity is 1 if both predictions
            change equally, 0 if their changes are unrelated. None if not measured.
        left: share of the squared difference between the family's and the model's predictions that
            remains if many small changes of the family's update are fitted to the model. None if
            not measured.
        change: the best of these changes, in words, with the share of the squared difference that
            remains if only this change is fitted. "" if not measured.
        not_rejected: keys of the families that may be the best: the 95 % model confidence set, by a
            bootstrap over episodes.
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

    def __post_init__(self) -> None:
        for key in (self.closest, self.runner_up, self.baseline):
            require_known("family", key, self.scores)

    @property
    def sentence(self) -> str:
        """A sentence that names the closest algorithm and says which share of the model's
        predictions the algorithm explains.
        """
        name, rival = self.scores[self.closest].name, self.scores[self.runner_up].name
        family = f"{name} ({format_parameters(self.parameters)})"
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
        """The algorithm that is closest to the model's predictions, with the fitted parameters;
        None if a guess that is the same in every round is closest.
        """
        return self.scores[self.closest].algorithm

    def _draw(self, figures: Any) -> Any:
        """Draw the share of the model's predictions that each family explains, with its 95 %
        interval. All families but the closest are grey.

        Args:
            figures: the module :mod:`interp.results.figures`, which has the plotting functions.
        """
        base, seed = self.scores[self.baseline].divergences, self.settings["seed"]
        explained = {}
        for score in self.scores.values():
            explained[score.name] = _pooled_ratio(score.divergences, base, seed=seed).complement
        is_grey = [key != self.closest for key in self.scores]
        rows = make_interval_table(explained).assign(control=is_grey)
        xlabel = "share of the predictions that is explained"
        # The share of a family that predicts worse than the baseline is negative, without a limit.
        return figures.intervals(rows, xlabel=xlabel, floor=-0.5)

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per family of algorithms, set of episodes and quantity.

        The columns are name (the quantity), set (name of the set of episodes; "all" for all
        together), family (its key), number, and number_low and number_high (the ends of its 95 %
        interval). The quantities are:

        * "divergence": of the family's predictions from the model's;
        * "explained": 1 - divergence / divergence of the best memoryless family (one that carries
          no state);
        * "ratio", only for the closest family: divergence / divergence of the runner-up.
        """
        seed, rows = self.settings["seed"], []
        base = self.scores[self.baseline].divergences
        for score in self.scores.values():
            # The ratio to 1 nat is the mean divergence itself, with its interval.
            one_nat = {name: np.ones_like(values) for name, values in score.divergences.items()}
            denominators = {"divergence": one_nat, "explained": base}
            if score.key == self.closest:
                denominators["ratio"] = self.scores[self.runner_up].divergences
            for name in (*score.divergences, "all"):
                chosen = None if name == "all" else name
                for quantity, under in denominators.items():
                    value = _pooled_ratio(score.divergences, under, seed=seed, name=chosen)
                    if quantity == "explained":
                        value = value.complement
                    row = {"name": quantity, "set": name, "family": score.key}
                    rows.append({**row, **value.columns("number")})
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dictionary of JSON values, without the scores of the single
        families.
        """
        record = {key: getattr(self, key) for key in _FIELDS_IN_JSON}
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
    """Find the family of algorithms (an algorithm with free parameters) that predicts what a model
    predicts. The parameters are fitted to the model's predictions.

    Args:
        subject: what is explained: a model, an algorithm, or a function from episodes to
            distributions ``[episode, round, outcome]``.
        task: the task of the episodes.
        sets: name of a set of episodes -> (episodes to fit on, other episodes to score on), with
            the same two numbers of episodes in every set. ``task.sets_for(...)`` returns such sets.
        seed: seed of the bootstrap over episodes.
        families: the candidates; None takes all of the task.
        edits: episodes in which one input is changed. The closest algorithm must respond to the
            changes as the model does. By default, inputs are changed in the episodes to score on of
            the first set in ``sets``.

    Returns:
        The family that explains the model, if there is one; the closest family; and the scores of
        all families.

    Raises:
        InputError: sets of another task or of unequal sizes, or predictions that are no
            distributions.

    >>> from interp.tasks import experts
    >>> from interp.tasks.experts.algorithms import weighted_majority
    >>> pair = tuple(experts.sample(16, 20, 4, seed=seed) for seed in (0, 1))
    >>> some = [f for f in experts.TASK.rivals().values() if f.key in ("weighted_majority", "follow_the_leader")]
    >>> found = explain(weighted_majority(0.5), experts.TASK, {"uniform": pair}, seed=0, families=some)
    >>> found.family, found.parameters
    ('weighted_majority', {'gain': 0.5})
    """
    n_episodes = _check_sets(sets, task)
    candidates = task.rivals() if families is None else index_by_key(families, "family")
    require(candidates, "no family of algorithms to ask; give families=None for all of the task's")
    scores = _score_families(subject, task, sets, candidates.values())
    part = _choose_family(scores, provenance(seed=seed, task=task.key, n_episodes=n_episodes))
    if part.family is None:  # not even the closest family explains the predictions
        return part
    # The family explains the predictions on average; three tests can still rule it out.
    algorithm = part.algorithm
    assert algorithm is not None
    # First: in nearly all rounds its predictions must be near the model's.
    predict = predictor(subject)
    differences, _ = _measure_differences(predict, predictor(algorithm), sets)
    share_apart = _share_plainly_apart(differences, sets, seed)
    family = None if share_apart.high > _RARE_SHARE else part.family
    part = replace(part, apart=share_apart, family=family)
    # Second: it must respond to changes of inputs as the model does.
    _, first_scored_on = next(iter(sets.values()))
    edits = edits or Edits.of(task, first_scored_on, Budget.quick().edits)
    part = _judge_responses(part, subject, edits)
    # Third, where there is an error left: small changes of its update must not remove much of it.
    # The test weights errors by the variance of an outcome, p (1 - p), which only probabilities of
    # classes have.
    is_exact = part.explained.low >= NEARLY_ALL
    if part.family is None or is_exact or task.kind != "classes":
        return part
    remainder, change = _measure_remainder(predict, algorithm, sets, seed)
    family = None if remainder.low <= _LEAST_REMAINDER else part.family
    return replace(part, left=remainder, change=change, family=family)


def _check_sets(sets: _Sets, task: Task) -> dict[str, tuple[int, int]]:
    """Refuse sets of another task, sets with missing rounds, and sets with different numbers of
    episodes.

    Args:
        sets: by name, (episodes to fit on, episodes to score on).
        task: the task that the episodes must belong to.

    Returns:
        By name, (number of episodes to fit on, number of episodes to score on).
    """
    key = task_of(sets)
    require(key == task.key, f"these episodes are of {key!r}, not of {task.key!r}")
    n_episodes = {}
    for name, (fitted_on, scored_on) in sets.items():
        refuse_missing("the search for an algorithm", fitted_on, scored_on)
        n_episodes[name] = (len(fitted_on), len(scored_on))
    require(
        len(set(n_episodes.values())) == 1,
        "the sets must have equally many episodes to fit on, and to score on, since their i-th ones are resampled "
        f"together; got {n_episodes}",
    )
    return n_episodes


def _judge_responses(part: AlgorithmPart, subject: Any, edits: Edits) -> AlgorithmPart:
    """Compare the closest algorithm's responses to changed inputs with the model's, and record the
    least similar one.

    Args:
        part: the result so far.
        subject: the model, or whatever :func:`measure_responses` takes.
        edits: changes of single inputs.

    Returns:
        A copy of the result with the least similar response in ``response``. If the lower bound of
        its similarity is below :data:`~circuits.compare.question.ARRIVES` (.75), ``family`` becomes
        None: the family does not explain the model.
    """
    algorithm = part.algorithm
    assert algorithm is not None
    cells = compare_responses(
        edits, ours=measure_responses(subject, edits), theirs=measure_responses(algorithm, edits)
    )
    if not cells:
        return part
    worst = cells[0]  # cells are sorted, the least similar first
    # The threshold is named for its other use: the share of a state change that acts one round
    # later.
    family = part.family if worst.alike.low >= ARRIVES else None
    return replace(part, response=worst, family=family)


def _measure_remainder(
    predict: Predict, algorithm: Algorithm, sets: _Sets, seed: int
) -> tuple[Interval, str]:
    """Measure how much of an algorithm's error is left if small changes of its update are fitted to
    the model.

    The error is the difference between the model's and the algorithm's predictions. It is regressed
    on the effects that the changes have on predictions, with a linear approximation.

    Args:
        predict: function from episodes to the model's predictions.
        algorithm: the algorithm that is closest to the model.
        sets: by name, (episodes on which changes are fitted, episodes on which the error is
            measured).
        seed: seed of the bootstrap.

    Returns:
        A pair: the share of the squared error that is left after all changes together; and a
        sentence about the best single change, such as "a leak alone leaves 0.40".
    """
    fitted_on, scored_on = zip(*sets.values(), strict=True)
    # Errors [episode, round, outcome], slopes [episode, round, outcome, change]. All sets have
    # equally many episodes, by the same participants; their rounds are concatenated.
    errors, slopes, names = _compute_errors_and_slopes(predict, algorithm, fitted_on)
    scored_errors, scored_slopes, _ = _compute_errors_and_slopes(predict, algorithm, scored_on)
    participants = participants_of(scored_on[0])  # the same in every set

    def measure_rest(changes: list[int]) -> Interval:
        """Fit some of the changes to the errors on the episodes to fit on. Return the share of the
        squared error that is left on the episodes to score on.

        Args:
            changes: indices of the changes.
        """
        # One row for each number that is predicted, one column for each change. Changes with nearly
        # the same effects get no large opposite weights: small singular values count as 0.
        effects = slopes[..., changes].reshape(errors.size, -1)
        weights, *_ = np.linalg.lstsq(effects, errors.ravel(), rcond=_SMALLEST_SINGULAR_VALUE)
        rest = scored_errors - scored_slopes[..., changes] @ weights
        by_episode = [(part**2).sum((1, 2)) for part in (rest, scored_errors)]
        return ratio_interval(*by_episode, seed=seed, participants=participants)

    rest_of = {name: measure_rest([i]).estimate for i, name in enumerate(names)}
    best = min(rest_of, key=lambda name: round(rest_of[name], 3), default="")  # the first of equals
    words = f"{best} alone leaves {rest_of[best]:.2f}" if best else ""
    all_changes = list(range(len(names)))
    return measure_rest(all_changes), words


def _compute_errors_and_slopes(
    predict: Predict, algorithm: Algorithm, batches: Sequence[Any]
) -> tuple[Array, Array, list[str]]:
    """Return the differences between a model's and an algorithm's predictions, and how the
    algorithm's predictions respond to small changes of its update (:func:`_list_directions`), such
    as a larger step.

    Both are divided by ``sqrt(p + q + 0.001)``, where p is the probability of an outcome that the
    model predicts, and q that of the algorithm.

    Args:
        predict: function from a batch of episodes to the model's predictions.
        algorithm: the algorithm.
        batches: batches with equally many episodes. Their scored rounds are joined along the axis
            "round" of the results.

    Returns:
        Three values:

        - the differences p - q, ``[episode, round, outcome]``;
        - the derivatives of q by the size of each change, ``[episode, round, outcome, change]``;
        - a description of each change, such as "a larger step".
    """
    errors, slopes, names = [], [], list[str]()
    for episodes in batches:
        p = checked_distributions(predict(episodes), episodes)  # the model's predictions
        q, slopes_of_batch, names = _differentiate_by_update(algorithm, episodes)
        # The variance of an outcome is p (1 - p): about p if p is small. Model (p) and algorithm (q)
        # count equally in p + q. The missing factor 1/2 does not matter: only ratios of errors are
        # used.
        deviation = np.sqrt(p + q + _LEAST_VARIANCE)
        errors.append((p - q) / deviation)
        slopes.append(slopes_of_batch / deviation[..., None])
    return np.concatenate(errors, 1), np.concatenate(slopes, 1), names


def _differentiate_by_update(algorithm: Algorithm, episodes: Any) -> tuple[Array, Array, list[str]]:
    """Compute an algorithm's predictions, and how they respond to small additions to its state
    after every round (:func:`_list_directions`).

    Only state variables that are arrays of real numbers are changed. Derivatives are finite
    differences.

    Args:
        algorithm: the algorithm.
        episodes: the episodes that it runs on.

    Returns:
        Three values:

        - the predictions, ``[episode, scored round, outcome]``;
        - their derivatives by the size of each addition, ``[episode, scored round, outcome,
          change]``;
        - the additions in words, such as "a larger step".
    """
    values, inputs = algorithm.run(episodes), algorithm.read(episodes)
    additions: dict[str, Array] = {}  # [change, episode, round, ...] by state variable
    names: list[str] = []  # of the changes, the same for all variables
    for key in algorithm.state:
        has_elements = values[key].ndim > 2  # axes after [episode, round]
        if has_elements and algorithm.variable(key).kind == "real":
            # The key with the prefix NEXT is that of the updated variable, after the round.
            directions = _list_directions(values[key], values[NEXT + key], inputs)
            additions[key] = _DERIVATIVE_STEP * np.stack(list(directions.values()))
            names = list(directions)
    n_copies = max(len(names), 1)  # without real-valued state, one copy that does not change
    # One copy of the algorithm for each change, along axis 0; all start from the state of round 0.
    start = {key: np.repeat(values[key][None, :, 0], n_copies, 0) for key in algorithm.state}
    copied_inputs = {key: np.broadcast_to(x, (n_copies, *x.shape)) for key, x in inputs.items()}
    states = _add_in_every_round(algorithm, start, copied_inputs, additions, episodes.n_rounds)
    # OnDemand computes only the variables that the predictions need.
    p_of_copies = algorithm.distribution(OnDemand(algorithm, {**states, **copied_inputs}))
    p = select_scored_rounds(algorithm.distribution(values), episodes)
    slopes = []
    for p_of_copy in p_of_copies:
        difference = select_scored_rounds(p_of_copy, episodes) - p
        slopes.append(difference / _DERIVATIVE_STEP)
    return p, np.nan_to_num(np.stack(slopes, -1)), names


def _add_in_every_round(
    algorithm: Algorithm, start: Values, inputs: Values, additions: Values, n_rounds: int
) -> dict[str, Array]:
    """Run copies of an algorithm, and add something to the state of each after every update.

    Args:
        algorithm: the algorithm.
        start: state before the first round, ``[copy, episode, ...]`` by state variable.
        inputs: inputs of the rounds, ``[copy, episode, round, ...]`` by key.
        additions: what is added to state variables, ``[copy, episode, round, ...]`` by key.
        n_rounds: number of rounds.

    Returns:
        The state before every round, ``[copy, episode, round, ...]`` by state variable.
    """
    states, state = [], start
    for t in range(n_rounds):
        states.append(state)
        state = algorithm.advance(state, {key: x[:, :, t] for key, x in inputs.items()})
        for key, addition in additions.items():
            state[key] = state[key] + addition[:, :, t]
    return {key: np.stack([state[key] for state in states], 2) for key in algorithm.state}


def _list_directions(state: Array, after: Array, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """List small changes of how an algorithm updates a state variable, such as a larger step or a
    leak.

    Args:
        state, after: the variable before and after every round, ``[episode, round, ...]``.
        inputs: inputs of the rounds, by key.

    Returns:
        Change in words -> array ``[episode, round, ...]``. The changed update adds a small multiple
        of this array to the variable, in every round.
    """
    state = np.asarray(state, float)
    step = after - state  # [episode, round, ...]
    per_round = [1] * (state.ndim - 2)  # axes behind the round's, to which it is broadcast
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
    mean_step = step.mean(-1, keepdims=True)
    element_number = np.arange(step.shape[-1])
    directions |= {
        "steps that grow with the state": step * state,
        "steps that follow the others'": step * mean_step,
        "steps that differ by element": step * element_number,
    }
    for key, values in inputs.items():
        # An input of one number per round multiplies all elements. An input of another shape than
        # the step cannot be multiplied; it gets zeros, since all state variables must have the same
        # list of changes.
        shaped = values.reshape(*values.shape[:2], *per_round) if values.ndim == 2 else values
        fits = shaped.shape[2:] in (step.shape[2:], tuple(per_round))
        directions[f"steps that depend on {key}"] = step * shaped if fits else np.zeros_like(step)
    return directions | {
        "the last step once more": last_step,
        "a leak": state,
        "a leak that grows": state**2,
        "a leak below the largest": below_largest,
        "a leak that grows below the largest": below_largest**2,
        "a clipped state": np.exp(below_largest),  # near 0, except for the largest elements
        "steps of a neighbour": np.roll(step, 1, -1),
    }


def _share_plainly_apart(divergences: Mapping[str, Array], sets: _Sets, seed: int) -> Interval:
    """Return the share of rounds in which two predictions differ by more than .1 nats, with its
    interval. The bootstrap resamples the i-th episodes of all sets together.

    Args:
        divergences: divergences of the two predictions in nats, ``[episode, round]`` by set.
        sets: by name, (episodes to fit on, episodes to score on); only their participants are used.
        seed: seed of the bootstrap.
    """
    is_apart = np.concatenate([nats > _PLAIN_DIFFERENCE for nats in divergences.values()], 1)
    _, scored_on = next(iter(sets.values()))
    return mean_interval(is_apart.mean(1), seed=seed, participants=participants_of(scored_on))


@cached_in_session
def _measure_gain_from_memory(compared: Compared, subject: Any) -> _Divergences:
    """Measure how much a model's predictions depend on earlier rounds: their divergence from those
    of the best algorithm without memory.

    Candidates are all algorithms of the task without memory, and a constant guess. They are fitted
    to the model's predictions on the first batch of each set of episodes. The one that fits best is
    compared with the model on the second batch.

    Args:
        compared: the comparison, of which only ``compared.sets`` is used: name -> (first batch,
            second batch).
        subject: the model. It may also be an algorithm, or a function from episodes to predictions.

    Returns:
        Name of a set -> the divergence, averaged over rounds, of each participant,
        ``[participant]``, or of each episode, ``[episode]``, if the episodes have no participants.
    """
    some_episodes, _ = next(iter(compared.sets.values()))
    task = tasks.of(some_episodes)  # not tasks.get, which does not know an algorithm of tasks.using
    families = [family for family in task.rivals().values() if family.memoryless]
    scores = _score_families(subject, task, compared.sets, families)
    return min(scores, key=lambda score: score.fitted_divergence).divergences


def _score_families(
    subject: Any, task: Task, sets: _Sets, families: Collection[Family]
) -> list[FamilyScore]:
    """Fit every family on the first batch of each set, and score it on the second.

    Args:
        subject: what the families are fitted to: a model, an algorithm, or a function that predicts
            (see :func:`~interp.choices.fitting.predictor`).
        task: the task, for the kind of its predictions.
        sets: by name, (episodes to fit on, episodes to score on).
        families: the candidates.

    Returns:
        The score of the constant guess, then one for every family, in order.
    """
    predict = predictor(subject)
    fitted_on = [episodes for episodes, _ in sets.values()]
    to_fit = [checked_distributions(predict(episodes), episodes) for episodes in fitted_on]
    to_score = {}
    for name, (_, episodes) in sets.items():
        to_score[name] = checked_distributions(predict(episodes), episodes)
    scores = [_score_constant_guess(to_fit, to_score, sets, task.kind)]
    with bar("families", len(families)) as done:
        for family in families:
            nats, searched = fit(family, fitted_on, to_fit)
            predict_by_family = predictor(family.make(**searched))
            divergences = {}
            for name, (_, episodes) in sets.items():
                guessed = select_scored_rounds(predict_by_family(episodes), episodes)
                by_episode = divergence(to_score[name], guessed, task.kind)
                divergences[name] = average_by_participant(by_episode, participants_of(episodes))
            score = FamilyScore(
                key=family.key,
                name=family.name,
                group=family.extends or family.key,
                memoryless=family.memoryless,
                family=family,
                searched=searched,
                fitted_divergence=nats,
                divergences=divergences,
            )
            scores.append(score)
            done(1)
    return scores


def _score_constant_guess(
    to_fit: Sequence[Array], to_score: Mapping[str, Array], sets: _Sets, kind: Predicted
) -> FamilyScore:
    """Score a guess that is the same in every round: equal probabilities for classes; for real
    numbers the mean of the model's predictions and, if a variance is predicted, their total
    variance.

    Args:
        to_fit: the model's predictions on the episodes to fit on, one array per set.
        to_score: the model's predictions on the episodes to score on, by set.
        sets: by name, (episodes to fit on, episodes to score on).
        kind: what is predicted: "classes", "mean" or "normal" (mean and log variance).
    """
    # One row for each round of each episode. Its numbers are probabilities ("classes"), mean and
    # log variance ("normal"), or a mean alone.
    flat = np.concatenate([p.reshape(-1, p.shape[-1]) for p in to_fit])
    n_numbers = flat.shape[-1]
    guess = np.full(n_numbers, 1 / n_numbers) if kind == "classes" else flat.mean(0)
    if kind == "normal":  # the variance over all rounds, by the law of total variance
        variances = np.exp(flat[:, 1])
        guess[1] = np.log(variances.mean() + flat[:, 0].var())

    def measure(predictions: Array) -> Array:
        """Return the divergence of the guess from the model's predictions, ``[episode]``.

        Args:
            predictions: the model's predictions, ``[episode, round, outcome]``.
        """
        return divergence(predictions, np.broadcast_to(guess, predictions.shape), kind)

    divergences = {}
    for name, (_, episodes) in sets.items():
        participants = participants_of(episodes)
        divergences[name] = average_by_participant(measure(to_score[name]), participants)
    nats_on_fit = [measure(predictions).mean() for predictions in to_fit]
    return FamilyScore(
        key=_CONSTANT_GUESS,
        name="every outcome alike" if kind == "classes" else "the same at every round",
        group=_CONSTANT_GUESS,
        memoryless=True,
        family=None,
        searched={},
        fitted_divergence=float(np.mean(nats_on_fit)),
        divergences=divergences,
    )


def _choose_family(scores: Sequence[FamilyScore], settings: Mapping[str, Any]) -> AlgorithmPart:
    """Choose the family that is closest to the model, and decide whether it explains the model's
    predictions.

    The closest family has the smallest divergence on the episodes that it was fitted to. Whether it
    explains the predictions is decided on other episodes (:func:`_judge_fit`). A family that
    extends a simpler one is chosen only if one of two conditions holds:

    - it removes at least half of the simpler one's divergence;
    - it explains the predictions, and the simpler one does not.

    Args:
        scores: scores of all families.
        settings: the seed of the bootstrap and other provenance.
    """
    seed = settings["seed"]
    ranked = sorted(scores, key=lambda score: score.fitted_divergence)
    best = ranked[0]
    base = next(score for score in ranked if score.memoryless)
    rival = next(score for score in ranked if score.group != best.group)
    # The family that the best one extends; the best one itself if it extends none, or if the
    # extended family is no candidate.
    simple = next((score for score in ranked if score.key == score.group == best.group), best)
    closest, closest_fit = simple, _judge_fit(simple, base, rival, seed)
    is_rounding = closest_fit.explained.low >= NEARLY_ALL  # then nothing is left to explain
    if best.fitted_divergence < simple.fitted_divergence and not is_rounding:
        best_fit = _judge_fit(best, base, rival, seed)
        remainder = _pooled_ratio(best.divergences, simple.divergences, seed=seed)
        explains_alone = best_fit.is_good and not closest_fit.is_good
        if remainder.high <= HALF or explains_alone:
            closest, closest_fit = best, best_fit
    family = closest.key if closest_fit.is_good else None
    algorithm = closest.algorithm
    parameters = dict(algorithm.parameters) if algorithm else {}
    # The closest family comes first, even if another one has the smallest divergence.
    scores_by_key = {score.key: score for score in (closest, *ranked)}
    return AlgorithmPart(
        family=family,
        closest=closest.key,
        parameters=parameters,
        explained=closest_fit.explained,
        ratio=closest_fit.ratio,
        runner_up=rival.key,
        baseline=base.key,
        scores=scores_by_key,
        settings=settings,
        not_rejected=_list_confidence_set(ranked, base, seed),
    )


class _Fit(NamedTuple):
    """How well a family explains a model's predictions.

    Attributes:
        explained: 1 - divergence / divergence of the best memoryless family.
        ratio: divergence / divergence of the rival, the best family of another group.
        is_good: True if the family has memory, explains enough, and leaves much less error than the
            rival.
    """

    explained: Interval
    ratio: Interval
    is_good: bool


def _judge_fit(score: FamilyScore, base: FamilyScore, rival: FamilyScore, seed: int) -> _Fit:
    """Compare a family's divergence from the model with those of two other families.

    The fit is good if the family has a memory, its divergence is at most 1 - :data:`SAME` of that of
    ``base``, and at most :data:`RATIO` of that of ``rival``. Both must hold at the worst end of the
    interval. A family without a memory explains nothing that the model computes with its state.

    Args:
        score: score of the family.
        base: score of the best memoryless family.
        rival: score of the best family of another group (families that extend one another).
        seed: seed of the bootstrap.
    """
    explained = _pooled_ratio(score.divergences, base.divergences, seed=seed).complement
    ratio = _pooled_ratio(score.divergences, rival.divergences, seed=seed)
    is_poor = score.memoryless or explained.low < SAME
    return _Fit(explained, ratio, is_good=not is_poor and ratio.high <= RATIO)


def _list_confidence_set(
    scores: Sequence[FamilyScore], base: FamilyScore, seed: int
) -> tuple[str, ...]:
    """Return the keys of the families in the 95 % model confidence set, any of which may be the
    best.

    The loss of a family is its divergence from the model, averaged over sets of episodes. Losses
    below a thousandth of the best memoryless family's loss count as equal: so little comes from
    rounding, or from an inexact search for parameters.

    Args:
        scores: scores of all families.
        base: score of the best memoryless family.
        seed: seed of the bootstrap.
    """
    # Units are episodes or, if there are any, participants. Where sets differ in their number, the
    # smallest number is used, since the i-th units of all sets are averaged.
    n_units = min(len(nats) for nats in base.divergences.values())

    def mean_over_sets(score: FamilyScore) -> Array:
        """Return the loss of a family in each unit (participant, or episode without participants),
        ``[unit]``: its divergence, averaged over the sets of episodes.

        Args:
            score: score of the family.
        """
        return np.mean([nats[:n_units] for nats in score.divergences.values()], axis=0)

    losses = np.stack([mean_over_sets(score) for score in scores], 1)  # [unit, family]
    is_finite = np.isfinite(losses).all(0)  # [family]
    if n_units < 2 or not is_finite.any():
        return ()
    base_nats = np.mean([nats.mean() for nats in base.divergences.values()])
    least_loss = (1 - NEARLY_ALL) * base_nats
    result = model_confidence_set(np.maximum(losses[:, is_finite], least_loss), seed=seed)
    keys = np.array([score.key for score in scores])[is_finite]
    return tuple(keys[result.included].tolist())


def _pooled_ratio(
    over: _Divergences, under: _Divergences, seed: int, name: str | None = None
) -> Interval:
    """Return the ratio of two mean divergences, with a bootstrap interval in which both means are
    taken over the same resampled episodes.

    All sets of episodes use one seed, so that their i-th episodes are resampled together.

    Args:
        over, under: divergences ``[episode]`` (or ``[participant]``) by set of episodes: numerator
            and denominator.
        seed: seed of the bootstrap.
        name: name of the only set to use; all sets when None.
    """
    chosen = list(over) if name is None else [name]
    # [resample, episode] for each set; one seed draws the same episodes in all.
    weights = [resample_weights(len(over[key]), seed=seed) for key in chosen]
    numerator = np.concatenate([over[key] for key in chosen])
    denominator = np.concatenate([under[key] for key in chosen])
    return ratio_interval(numerator, denominator, weights=np.concatenate(weights, axis=1))


_SAME_RESPONSE = 0.9
"""Similarity of two models' responses, in the worst cell, from which they respond the same."""
_N_FAILURES = 20
"""Number of rounds with the largest difference that the result keeps."""


@dataclass(frozen=True)
@checked_result
class Failure:
    """A round in which the predictions of a model and its reference differ most.

    Attributes:
        set: name of the set of episodes, such as a regime. ``task.sets_for`` returns two batches
            under this name, one to fit on and one to score on; the round belongs to the latter.
        n_scored: number of episodes in the batch to score on. To sample this batch again, pass the
            number to ``task.sets_for``.
        episode, round: indices of the episode in the batch and of the round in the episode.
        nats: divergence of the two predictions; for classes, the Jensen-Shannon divergence in nats.
        model, reference: the distributions that the model and the reference predict.
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
    """How similarly two models predict.

    Attributes:
        alike: average similarity: 1 - (divergence of the two models / mean of what each gains from
            its memory, :func:`_measure_gain_from_memory`).
        apart: share of rounds in which the two predictions differ by more than .1 nats.
        cells: similarity of their responses to changed inputs, the least similar first; empty if
            the task has no input that can be changed alone.
    """

    alike: Interval
    apart: Interval
    cells: tuple[Cell, ...] = field(repr=False)

    def measure(self, control: Control | None = None) -> Measure:
        """Return a measure (a number with its interval, threshold and verdict) of the claim that
        two models predict the same.

        The claim is true only if three conditions are:

        - the average similarity of the predictions is at least .95, and far enough above
          ``control``;
        - the two predictions differ by more than .1 nats in at most .1 % of the rounds;
        - after each change of an input, the similarity of the two models' responses is at least .9.

        Each condition has a verdict. The result is the measure of the condition with the worst
        verdict: "no" is worse than "undecided", which is worse than "yes".

        Args:
            control: average similarity between untrained copies of the model and the other model;
                None for no control.
        """
        # The claim's text is filled in by Question.measure.
        average = Measure(
            key="behaviour",
            claim="",
            number=self.alike,
            threshold=SAME,
            unit="share of memory",
            about="predictions alike",
            controls={} if control is None else {UNTRAINED: control},
            needs_control=control is not None,
        )
        rounds = Measure(
            key="behaviour",
            claim="",
            number=self.apart,
            threshold=_RARE_SHARE,
            no_threshold=_OFTEN_SHARE,
            side="below",
            unit=f"share of rounds {_PLAIN_DIFFERENCE} nats apart",
            about="rounds apart",
            needs_control=False,  # the control of the claim is that of `average`
        )
        measures = [average, rounds]
        for cell in self.cells:
            response = Measure(
                key="behaviour",
                claim="",
                number=cell.alike,
                threshold=_SAME_RESPONSE,
                unit="likeness of responses",
                about=f"response to {cell.where}",
                needs_control=False,  # the control of the claim is that of `average`
            )
            measures.append(response)
        return conjoin(measures)


@dataclass(frozen=True, repr=False)
@checked_result
class Behaviour(Result):
    """How similar a model's predictions are to those of its reference (another model). If there is
    no reference, the closest algorithm takes its place.

    Attributes:
        plain: agreement of the two models as they are. ``plain.alike`` is 1 - (divergence of their
            predictions / gain from memory). The gain from memory is the divergence of a model's
            predictions from those of the best memoryless algorithm, averaged over the two models.
            If there is no reference, ``plain.alike`` is :attr:`AlgorithmPart.explained`.
            ``plain.apart`` is the share of rounds in which the predictions diverge by more than .1
            nats. ``plain.cells`` has the similarity of the responses to changed inputs.
        fitted: the same agreement of one model with the other model's algorithm, after the read-out
            parameters of this algorithm (such as a temperature) were fitted to the first model.
            None if nothing was fitted.
        read_out: name of a read-out parameter -> its fitted value.
        untrained: ``alike`` of each untrained copy of the model with the reference.
        failures: the rounds in which the models differ most, worst first; empty without a
            reference.
    """

    plain: _Agreement
    fitted: _Agreement | None = None
    read_out: Mapping[str, float] = field(default_factory=dict)
    untrained: tuple[float, ...] = ()
    failures: tuple[Failure, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per number. The rows compare the model with its reference as
        they are, and again after read-out parameters were fitted, if any were.

        The columns are name (of the quantity), read-out (the fitted parameters in words; "" for the
        models as they are), number, number_low and number_high (the ends of its interval), and
        untrained (the number of the best untrained copy). The quantities are "predictions alike"
        (average similarity), "rounds apart" (share of rounds that differ by more than .1 nats) and
        "response" (similarity of the responses to a changed input). Rows "response" also have the
        columns what (the input), when (rounds after the change), response and reference response
        (sizes of the two responses).
        """
        rows = self._list_rows("", self.plain)
        # The first row is that of the average similarity, the only number with a control.
        rows[0]["untrained"] = merge_copies(self.untrained).number
        if self.fitted is not None:
            rows += self._list_rows(format_parameters(self.read_out), self.fitted)
        return pd.DataFrame(rows)

    def _list_rows(self, read_out: str, agreement: _Agreement) -> list[dict[str, Any]]:
        """Return the rows of the table for one agreement: average similarity, share of plainly
        different rounds, and each response.

        Args:
            read_out: the fitted read-out parameters in words; "" for the models as they are.
            agreement: how similarly the two models predict.
        """
        rows: list[dict[str, Any]] = []
        numbers = {"predictions alike": agreement.alike, "rounds apart": agreement.apart}
        for name, number in numbers.items():
            # The caller sets "untrained" in the one row that has a control.
            row = {"name": name, "read-out": read_out, **number.columns("number"), "untrained": nan}
            rows.append(row)
        for cell in agreement.cells:
            rows.append({"name": "response", "read-out": read_out, **cell.row()})
        return rows

    @property
    def measure(self) -> Measure:
        """A measure (a number with its interval, threshold and verdict) of the claim that the model
        and its reference predict the same.

        The claim has three conditions: similar predictions on average, few rounds in which they
        differ by more than .1 nats, and similar responses to changed inputs. The measure is that of
        the condition with the worst verdict.

        If the two differ only in read-out parameters, such as a temperature, the claim may be true
        of :attr:`fitted`, in which these are equal. So the measure is that of ``fitted`` if it
        exists and its verdict is not "no", and otherwise that of :attr:`plain`. In the first case,
        its field ``condition`` is "with its read-out fitted".
        """
        control = merge_copies(self.untrained)
        fitted = self.fitted
        if fitted is None or fitted.measure().verdict == "no":
            return self.plain.measure(control)
        likeness = f"alike {fitted.alike}, as it is {self.plain.alike}"
        note = f"{format_parameters(self.read_out)}; {likeness}"
        return replace(fitted.measure(control), condition="with its read-out fitted", note=note)


def _compare_behaviour(compared: Compared) -> Behaviour:
    """Compare the predictions of the model with those of the reference. Without a reference,
    compare them with those of the algorithm that is closest to the model.

    If the two models do not clearly predict the same, read-out parameters (such as a temperature)
    are fitted, and the predictions are compared again.

    Args:
        compared: model, reference and episodes; the question "algorithm" must have its result
            there.
    """
    algorithm_part = compared.parts["algorithm"]
    model, reference = compared.model, compared.reference
    if reference is None:
        closest = algorithm_part.algorithm
        if closest is None:
            return Behaviour(_Agreement(alike=algorithm_part.explained, apart=NO_NUMBER, cells=()))
        agreement, _ = _compare_predictions(compared, model, closest)
        # The similarity to an algorithm is the share of the predictions that it explains, which the
        # question "algorithm" has measured.
        plain = replace(agreement, alike=algorithm_part.explained)
        return Behaviour(plain, untrained=_compare_with_untrained(compared, closest))
    plain, failures = _compare_predictions(compared, model, reference.model)
    read_out_fit = None
    if plain.measure().verdict != "yes":
        read_out_fit = _fit_read_out(compared)
    fitted, searched = None, dict[str, float]()
    if read_out_fit is not None:
        subject, algorithm, searched = read_out_fit
        fitted, _ = _compare_predictions(compared, subject, algorithm)
    worst = sorted(failures, key=lambda failure: -failure.nats)[:_N_FAILURES]
    return Behaviour(
        plain=plain,
        fitted=fitted,
        read_out=searched,
        untrained=_compare_with_untrained(compared, reference.model),
        failures=tuple(worst),
    )


def _compare_predictions(
    compared: Compared, subject: Participant, other: Any
) -> tuple[_Agreement, list[Failure]]:
    """Measure how similar a model's predictions are to those of another model or an algorithm.

    Args:
        compared: the comparison, which supplies the sets of episodes, the seed, and the number of
            inputs to change.
        subject: the model.
        other: the other model, or the algorithm.

    Returns:
        The agreement of the two; and the rounds of each set in which their predictions differ most.
    """
    sets, seed = compared.sets, compared.budget.seed
    edits = make_edits(compared, 1)
    differences, failures = _measure_differences(predictor(subject.model), predictor(other), sets)
    gain = _measure_gain_from_memory(compared, subject.model)
    other_gain = _measure_gain_from_memory(compared, other)
    agreement = _Agreement(
        alike=_measure_likeness(differences, gain, other_gain, sets, seed),
        apart=_share_plainly_apart(differences, sets, seed),
        cells=compare_responses(
            edits,
            ours=measure_responses(subject.model, edits),
            theirs=measure_responses(other, edits),
        ),
    )
    return agreement, failures


def _fit_read_out(compared: Compared) -> tuple[Participant, Algorithm, dict[str, float]] | None:
    """Fit the parameters of an algorithm's read-out (how its state becomes predictions), such as
    the temperature, so that the model and the reference can be compared without them.

    The algorithm of the reference is fitted to the model's predictions. If it has no such
    parameter, the algorithm of the model is fitted to the reference's predictions.

    Args:
        compared: model and reference, with the episodes to fit on.

    Returns:
        A triple: the model to which the algorithm was fitted; the algorithm with fitted parameters;
        name of a parameter -> its value. None if neither algorithm has such a parameter.
    """
    model, reference = compared.pair
    # The owner's algorithm is fitted to the subject's predictions.
    for owner, subject in ((reference, model), (model, reference)):
        family = _find_read_out_family(owner)
        if family:
            predict = predictor(subject.model)
            batches = [fitted_on for fitted_on, _ in compared.sets.values()]
            predictions = [checked_distributions(predict(batch), batch) for batch in batches]
            _, parameters = fit(family, batches, predictions)
            return subject, family.make(**parameters), parameters
    return None


def _find_read_out_family(owner: Participant) -> Family | None:
    """Return the algorithm of a model as a family in which only parameters of the read-out (how its
    state becomes predictions) are free. Return None if there is no such parameter, or if the
    model's algorithm is not known.

    Args:
        owner: the model.
    """
    if not owner.names_algorithm:
        return None
    algorithm = owner.task.explains(owner.model)  # the one that the task assigns to the model
    # A task's families ("rivals") have its algorithms' keys; in each, all parameters are free.
    family = owner.task.rivals().get(algorithm.key)
    return read_out(family, algorithm) if family else None


def _compare_with_untrained(compared: Compared, other: Any) -> tuple[float, ...]:
    """Return the average similarity of predictions between each untrained copy of the model and a
    reference. It is relative to what both gain from their memory.

    Args:
        compared: the comparison, with the untrained copies.
        other: the reference: a model or an algorithm.
    """
    other_gain = _measure_gain_from_memory(compared, other)
    likenesses = []
    for copy in compared.untrained:
        predict = partial(_predict_distributions, copy)  # its outputs need not be distributions
        differences, _ = _measure_differences(predict, predictor(other), compared.sets)
        gain = _measure_gain_from_memory(compared, predict)
        # Only the estimate is used, on which the seed of the interval has no effect.
        likeness = _measure_likeness(differences, gain, other_gain, compared.sets, seed=0)
        likenesses.append(likeness.estimate)
    return tuple(likenesses)


def _predict_distributions(copy: Participant, episodes: Any) -> Array:
    """Return the predictions of an untrained copy, each replaced by the nearest probability
    distribution, ``[episode, round, outcome]``.

    Args:
        copy: the untrained copy.
        episodes: the episodes.
    """
    predict = predictor(copy.model)
    return make_distributions(predict(episodes), copy.task.kind)


def _measure_likeness(
    divergences: Mapping[str, Array],
    gain: Mapping[str, Array],
    other_gain: Mapping[str, Array],
    sets: _Sets,
    seed: int,
) -> Interval:
    """Return the average similarity of two models: 1 - (their divergence / mean of what each gains
    from its memory).

    Args:
        divergences: divergence of the two models, ``[episode, round]`` by set.
        gain, other_gain: what each model gains from its memory, as
            :func:`_measure_gain_from_memory` returns it.
        sets: the episodes by set.
        seed: seed of the bootstrap.
    """
    mean_gain, nats = {}, {}
    for name, differences in divergences.items():
        mean_gain[name] = (gain[name] + other_gain[name]) / 2
        _, scored_on = sets[name]
        nats[name] = average_by_participant(differences.mean(1), participants_of(scored_on))
    return _pooled_ratio(nats, mean_gain, seed=seed).complement


def _measure_differences(
    model: Predict, reference: Predict, sets: _Sets
) -> tuple[dict[str, Array], list[Failure]]:
    """Measure the divergence of two predictions in every scored round.

    It is in nats; for predicted means, it is the squared difference, divided by the variance of the
    reference's means (:func:`~interp.choices.fitting.divergence_by_round`).

    Args:
        model, reference: functions from episodes to predictions.
        sets: by name, (episodes to fit on, episodes to score on); only the second are used.

    Returns:
        Divergences ``[episode, round]`` by set, and the rounds of each set with the largest ones.
    """
    kind = tasks.get(task_of(sets)).kind
    nats_by_set, failures = {}, []
    for name, (_, episodes) in sets.items():
        p = checked_distributions(model(episodes), episodes)  # [episode, scored round, outcome]
        q = checked_distributions(reference(episodes), episodes)
        nats = divergence_by_round(p, q, kind)  # [episode, scored round]
        nats_by_set[name] = nats
        first_round = episodes.n_rounds - p.shape[1]  # earlier rounds are not scored
        largest_first = np.argsort(-nats, axis=None, kind="stable")[:_N_FAILURES]
        for index in largest_first.tolist():
            episode, t = divmod(index, nats.shape[1])
            of_model, of_reference = p[episode, t].tolist(), q[episode, t].tolist()
            failure = Failure(
                set=name,
                n_scored=len(episodes),
                episode=episode,
                round=first_round + t,
                nats=float(nats[episode, t]),
                model=tuple(of_model),
                reference=tuple(of_reference),
            )
            failures.append(failure)
    return nats_by_set, failures


def _explain_model(compared: Compared) -> AlgorithmPart:
    """Find the algorithm that explains the predictions of the compared model (:func:`explain`).

    Args:
        compared: the model, with episodes and budget.
    """
    model, edits = compared.model, make_edits(compared, 1)
    seed = compared.budget.seed
    return explain(model.model, model.task, compared.sets, seed=seed, edits=edits)


ALGORITHM = Question("algorithm", AlgorithmPart, _explain_model)
BEHAVIOUR = Question(
    "behaviour",
    Behaviour,
    _compare_behaviour,
    claim="It predicts the same as {}",
    yes="predicts the same",
    no="predicts differently",
)
