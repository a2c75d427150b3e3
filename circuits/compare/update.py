"""Does the model update its state as an algorithm does?

:func:`score_updates` decodes the state of every candidate algorithm from the model's latents. It compares
how the decoded state changes over a round (a step) with the change that the algorithm computes
(step R2). :data:`RULES` decide the claim: docs/method/comparing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf, nan
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.kernel_approximation import RBFSampler
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from circuits.compare.algorithm import NEARLY_ALL, RATIO
from circuits.compare.question import (
    ARRIVES,
    HALF,
    SAME,
    Budget,
    Compared,
    CrossFitted,
    Participant,
    Question,
    centre_states,
    centred_states,
    fit_crossfitted_writer,
    make_row,
    pool_runs,
    pool_values,
    score_maps,
)
from circuits.compare.response import ResponsePart
from circuits.compare.state import is_hard
from interp.choices.fitting import Array, list_grid_points, search
from interp.core.algorithm import Algorithm, Family, Values, format_parameters
from interp.interventions.interchange import flatten_elements
from interp.interventions.moves import StepResult, Transition, Writer, transition
from interp.results.measure import (
    AS_WELL,
    MISREAD,
    UNTRAINED,
    Measure,
    Result,
    Verdict,
    conjoin,
    merge_copies,
)
from interp.stats.decoder import RIDGE, Affine
from interp.stats.intervals import Interval, ratio_interval
from interp.support.checks import checked_fields, checked_result
from interp.support.session import cached_in_session

ON, OFF = "on", "off"
_SAME_STEPS = 0.975
"""Step R2 of a "yes": a Q-table that passes on only a fifth of each change has .961."""
_N_FEATURES, _KERNEL_WIDTH = 600, 1 / 18
"""Number of random features of the non-linear decoder, and its kernel width for standardised
latents.

It reads .99 of the steps of ``wma-gru``, of which affine maps read .92, and less than 0 of noise.
"""
_FLIPPED_SHARE = 0.1
"""Share of a set's elements that are flipped to leave the states that occur in episodes.

Most of the set stays possible.
"""


@dataclass(frozen=True)
@checked_result
class StepScore:
    """How close the steps of a model's state are to the steps of an algorithm.

    The algorithm's state is decoded from the model's latents. A step is the change of the decoded
    state over one round (or several). The algorithm computes its own step from the same state and
    inputs. Step R2 is 1 minus the sum of the squared differences between the two steps, divided by
    the variation of the algorithm's steps.

    Attributes:
        model, algorithm: name of the model and key of the algorithm.
        state: the state variables that were decoded.
        missing: state variables of the algorithm that cannot be decoded from the latents.
        decoded: R2 of the linear decoder of the state from latents, on the test episodes, for the
            variable that is decoded worst.
        nonlinear: R2 of a non-linear decoder of the state from latents, on the test episodes, for
            the variable that is decoded worst. The changes of the decoded state from round to round
            are compared with those of the algorithm's state.
        manifold: "on" for steps from states that occur in episodes, "off" for steps from states
            that were changed so that they occur in no episode.
        horizon: number of rounds of a step.
        r2: step R2 of the model.
        untrained: step R2 of each untrained copy.
    """

    model: str
    algorithm: str
    state: tuple[str, ...]
    missing: tuple[str, ...]
    decoded: float
    nonlinear: float
    manifold: str
    horizon: int
    r2: Interval
    untrained: tuple[float, ...]


@dataclass(frozen=True)
@checked_result
class FittedUpdate:
    """An update rule with parameters that were fitted to a model's steps (the changes of its state
    over a round, where the state is decoded from latents).

    Attributes:
        key, name: key and name of the rule's family (a rule with free parameters).
        state: the state variables that were decoded.
        parameters: name of a parameter -> its fitted value.
        r2: R2 of the steps that the rule predicts, on the test episodes.
        left: (1 - R2) of the rule / (1 - R2) of the algorithm whose state is decoded, on the test
            episodes. The steps are of the rule's own state, which may differ from the algorithm's.
    """

    key: str
    name: str
    state: tuple[str, ...]
    parameters: Mapping[str, float]
    r2: Interval
    left: Interval


@dataclass(frozen=True, repr=False)
@checked_result
class UpdatePart(Result):
    """How a model updates its state: how well candidate algorithms, and fitted update rules,
    predict the changes of the state that is decoded from its latents.

    Attributes:
        updates: for every candidate algorithm, its step R2 (how well it predicts these changes),
            for several kinds of steps.
        fitted: update rules that were fitted to the model's steps, the closest first.
    """

    updates: tuple[StepScore, ...]
    fitted: tuple[FittedUpdate, ...] = ()

    def of(self, algorithm: str) -> list[StepScore]:
        """Return the scores of one algorithm, one for each kind of steps that was compared. The
        attributes ``manifold`` and ``horizon`` of a :class:`StepScore` say which steps it is of.

        Args:
            algorithm: key of the algorithm.
        """
        return [update for update in self.updates if update.algorithm == algorithm]

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per :class:`StepScore` (how well an algorithm predicts
        changes of the decoded state), then one per fitted update rule.

        The column name is "step R2" or "fitted update". The columns number, number_low and
        number_high are the step R2 and the ends of its interval. The other columns are the fields
        of :class:`StepScore`. Three have other names: "decoded R2" (``decoded``), "non-linear R2"
        (``nonlinear``) and "not decodable" (``missing``). The column untrained is the step R2 of
        the best untrained copy. Rows of fitted rules also have the columns parameters, and left,
        left_low and left_high (:attr:`FittedUpdate.left`).
        """
        rows: list[dict[str, Any]] = []
        for score in self.updates:
            row = make_row(
                score,
                missing="not decodable",
                decoded="decoded R2",
                nonlinear="non-linear R2",
                r2="number",
                untrained="",  # left out: here only the best copy is reported
            )
            best_copy = merge_copies(score.untrained).number
            rows.append({"name": "step R2", **row, "untrained": best_copy})
        for update in self.fitted:
            row = {
                "name": "fitted update",
                "algorithm": update.key,
                "parameters": format_parameters(update.parameters),
                "state": " + ".join(update.state),
                "manifold": ON,
                "horizon": 1,
            }
            rows.append({**row, **update.r2.columns("number"), **update.left.columns("left")})
        return pd.DataFrame(rows)


def score_updates(
    subject: Participant,
    algorithms: Mapping[str, Algorithm],
    untrained: Sequence[Participant],
    budget: Budget,
) -> UpdatePart:
    """Score how well candidate algorithms predict a model's steps (the changes of its state over
    rounds, where the state is decoded from latents), and fit update rules to the steps.

    Each candidate has its own state, which is decoded. Update rules are fitted only to the steps of
    the last candidate's state.

    Args:
        subject: the model.
        algorithms: key -> candidate algorithm; those without a state are left out.
        untrained: untrained copies of the model; decoders are fitted to each.
        budget: the rounds that steps start from, and the number of rounds of long steps.

    Returns:
        The scores and the fitted update rules. Each candidate has four scores. Steps are over one
        round or over several; and they start from states that occur in episodes, or from states
        that were changed so that they occur in no episode.
    """
    scores: list[StepScore] = []
    carrying = {key: algorithm for key, algorithm in algorithms.items() if algorithm.state}
    for name, algorithm in carrying.items():
        writer = subject.writer(algorithm)
        keys = tuple(writer.shapes)
        missing = tuple(key for key in algorithm.state if key not in keys)  # not decodable
        decoded = _measure_decoding_r2(writer, subject, algorithm)
        nonlinear = _measure_nonlinear_r2(subject, algorithm, keys)
        strange = draw_strange_states(pool_values(algorithm, subject.samples), keys, budget)
        manifolds = {ON: None, OFF: strange}  # changes of the states that steps start from
        for (manifold, changes), horizon in product(manifolds.items(), (1, budget.horizon)):
            steps = _Steps(
                algorithm=algorithm,
                keys=keys,
                rounds=budget.at,
                horizon=horizon,
                changes=changes,
                penalty=subject.penalty(algorithm),
            )
            score = StepScore(
                model=subject.name,
                algorithm=name,
                state=keys,
                missing=missing,
                decoded=decoded,
                nonlinear=nonlinear,
                manifold=manifold,
                horizon=horizon,
                r2=steps.score(subject),
                untrained=tuple(steps.score_control(copy) for copy in untrained),
            )
            scores.append(score)
    fitted: list[FittedUpdate] = []
    if carrying:
        *_, last_candidate = carrying.values()
        fitted = _fit_updates(subject, last_candidate, budget)
    return UpdatePart(tuple(scores), tuple(fitted))


@dataclass(frozen=True)
class _Steps:
    """Which steps (changes of an algorithm's state over rounds) a model is scored on.

    Attributes:
        algorithm: the algorithm.
        keys: the state variables that are decoded.
        rounds: rounds with which steps begin (starts).
        horizon: number of rounds of a step.
        changes: key of a state variable -> what is added to it in the latents before each step,
            ``[episode, start, ...]``; None for no change.
        penalty: ridge penalty of all decoders, including those of controls.
    """

    algorithm: Algorithm
    keys: tuple[str, ...]
    rounds: Sequence[int]
    horizon: int
    changes: Mapping[str, Array] | None
    penalty: float

    def score(self, subject: Participant) -> Interval:
        """Return the step R2 of a model (how close its steps are to the algorithm's), over the known
        and test episodes, with its interval.
        """
        known = self.sum_squares(subject, is_known=True)
        test = self.sum_squares(subject, is_known=False)
        missed, varied = np.concatenate([known, test], axis=1)
        return score_maps(missed, varied, subject.samples.participants)

    def score_control(self, copy: Participant) -> float:
        """Return the step R2 of an untrained copy of the model (how close its steps are to the
        algorithm's), on the test episodes.
        """
        missed, varied = self.sum_squares(copy, is_known=False)
        participants = copy.samples.participants[len(copy.samples.known) :]
        return score_maps(missed, varied, participants).estimate

    def sum_squares(self, subject: Participant, is_known: bool) -> Array:
        """Return two sums of squares per episode, ``[2, episode]``: the differences between decoded
        steps and the algorithm's steps, and the deviations of the algorithm's steps from their mean.

        A step is the change of the state over ``horizon`` rounds. The step R2 is 1 - the first sum /
        the second.

        Args:
            subject: the model.
            is_known: True for the known episodes, False for the test episodes. Each is decoded by a
                fit on other episodes.
        """
        # The writer decodes the state from latents. Its episodes are the known ones, then the test
        # ones.
        n_known = len(subject.samples.known)
        rows = slice(n_known) if is_known else slice(n_known, None)
        episodes = subject.samples.known if is_known else subject.samples.test
        writer = fit_crossfitted_writer(subject, self.algorithm, self.keys, self.penalty)
        assert isinstance(writer.decoder, CrossFitted)
        decoder = writer.decoder.select_episodes(rows)
        changes = None
        if self.changes is not None:
            changes = {key: change[rows] for key, change in self.changes.items()}
        steps = transition(
            subject.model,
            episodes,
            replace(writer, decoder=decoder),
            round=self.rounds,
            horizon=self.horizon,
            by=changes,
        )
        result = steps.under(self.algorithm)  # both sums of squares, [episode, start] each
        return np.stack([result.missed.sum(1), result.varied.sum(1)])


def draw_strange_states(values: Values, keys: Sequence[str], budget: Budget) -> dict[str, Array]:
    """Draw random changes of an algorithm's state that lead to states that occur in no episode.

    There are two rules:

    - In a variable with only the values 0 and 1, each element is flipped with probability .1.
    - In any other variable, Gaussian noise is added to each element, and the sum is clipped to the
      element's range over episodes and rounds. The standard deviation of the noise is that of the
      element over episodes in the same round. If all of these are 0, it is an eighth of the
      variable's range.

    Args:
        values: the algorithm's values on the known and test episodes.
        keys: the state variables that are decoded.
        budget: the rounds at which states are changed (starts, ``budget.at``), and the seed.

    Returns:
        Key of a state variable -> its changes ``[episode, start, ...]``, to be added to its values.
    """
    # With the 7, these draws are independent of others with the same seed.
    rng = np.random.default_rng([budget.seed, 7])
    changes = {}
    for key in keys:
        state = np.asarray(values[key], dtype=np.float64)
        here = state[:, budget.at]  # [episode, start, ...]
        if np.isin(state, (0.0, 1.0)).all():
            flip = 1 - 2 * here  # added to 0 it gives 1, and to 1 it gives 0
            changes[key] = np.where(rng.random(here.shape) < _FLIPPED_SHARE, flip, 0.0)
            continue
        spread = here.std(0, keepdims=True)
        if not spread.any():  # such as the round: an eighth of its range over rounds
            spread = np.full_like(spread, np.ptp(state) / 8)
        # Elements change independently of each other, which they do not in episodes.
        strange = here + spread * rng.standard_normal(here.shape)
        changes[key] = np.clip(strange, state.min((0, 1)), state.max((0, 1))) - here
    return changes


def _measure_decoding_r2(writer: Writer, subject: Participant, algorithm: Algorithm) -> float:
    """Return the R2 of a linear decoder of the state on the test episodes, for the variable that it
    decodes worst.

    Args:
        writer: object that decodes the algorithm's state from the model's latents.
        subject: the model.
        algorithm: the algorithm that computes the true values.
    """
    run, values = subject.run(subject.samples.test), algorithm.run(subject.samples.test)
    # The latents before each round, as the values are; the last ones follow the last round.
    decoded = writer.read(run.latents[:, :-1])
    scores = []
    for key in writer.shapes:
        state = np.asarray(values[key], dtype=np.float64)  # [episode, round, ...]
        missed = ((decoded[key] - state) ** 2).sum()
        varied = ((state - state.mean((0, 1))) ** 2).sum()
        scores.append(1 - missed / varied)
    return float(min(scores))


def _measure_nonlinear_r2(subject: Participant, algorithm: Algorithm, keys: Sequence[str]) -> float:
    """Decode the algorithm's state from random features of the latents, and return the R2 of its
    changes from round to round.

    Args:
        subject: the model; the decoder is fitted on its known episodes and scored on its test
            episodes.
        algorithm: the algorithm that computes the true values.
        keys: the state variables; the smallest R2 among them is returned.
    """
    n_known = len(subject.samples.known)
    known_features, test_features = _make_random_features(subject)
    values = pool_values(algorithm, subject.samples)
    scores = []
    for key in keys:
        # [episode, round, element], the known episodes first.
        state = torch.from_numpy(flatten_elements(values[key]))
        fit = Affine.fit(known_features, state[:n_known].flatten(0, 1), RIDGE)
        decoded = fit(test_features).reshape(state[n_known:].shape)
        steps = state[n_known:].diff(dim=1)
        varied = ((steps - steps.mean(0)) ** 2).sum()
        missed = ((decoded.diff(dim=1) - steps) ** 2).sum()
        # A variable that never moves is decoded in full by its mean.
        scores.append(float(1 - missed / varied) if varied else 1.0)
    return min(scores)


@cached_in_session
def _make_random_features(subject: Participant) -> tuple[Tensor, Tensor]:
    """Return standardised latents with 600 random cosine features appended, for a non-linear
    decoder.

    Returns:
        Features ``[sample, feature]`` of the known episodes, and of the test episodes; a sample is
        a round of an episode.
    """
    # Latents before each round, [episode, round, coordinate].
    latents = pool_runs(subject).latents[:, :-1].flatten(2).double().numpy(force=True)
    n_known, n_coordinates = len(subject.samples.known), latents.shape[-1]
    known = latents[:n_known].reshape(-1, n_coordinates)
    test = latents[n_known:].reshape(-1, n_coordinates)
    # Random Fourier features: inner products of them approximate a Gaussian kernel. The width grows
    # with the number of coordinates, as squared distances of standardised latents do.
    cosines = RBFSampler(
        gamma=_KERNEL_WIDTH / n_coordinates, n_components=_N_FEATURES, random_state=0
    )
    features = make_pipeline(
        StandardScaler(), FeatureUnion([("plain", "passthrough"), ("cosines", cosines)])
    )
    known_features, test_features = features.fit_transform(known), features.transform(test)
    return torch.from_numpy(known_features), torch.from_numpy(test_features)


# Families of updates, fitted to the decoded steps.


def _fit_updates(subject: Participant, algorithm: Algorithm, budget: Budget) -> list[FittedUpdate]:
    """Fit the task's families of update rules to the steps of the model's decoded state, and score
    them on other episodes.

    Args:
        subject: the model.
        algorithm: the algorithm; its state is decoded, and its error is compared with the errors of
            the update rules.
        budget: the rounds that steps start from, and the seed.

    Returns:
        The fitted update rules, the best first (:func:`_make_sort_key`).
    """
    writer = subject.writer(algorithm)  # decodes the algorithm's state from latents
    keys = tuple(writer.shapes)  # the state variables that it decodes
    steps_to_fit = transition(subject.model, subject.samples.other, writer, round=budget.at)
    steps_to_score = transition(subject.model, subject.samples.test, writer, round=budget.at)
    errors_of_algorithm = steps_to_score.under(algorithm)
    families = subject.task.update_families()
    missed: dict[str, float] = {}  # error of each rule, by key
    results: dict[str, FittedUpdate] = {}
    for family in families.values():
        if not set(keys) <= set(_make_member(family, {}).state):  # it lacks a decoded variable
            continue
        if family.extends == algorithm.key:
            fitted = _fit_extension(
                subject=subject,
                family=family,
                algorithm=algorithm,
                keys=keys,
                errors_of_algorithm=errors_of_algorithm,
                budget=budget,
            )
        else:
            fitted = _fit_family(
                family=family,
                algorithm=algorithm,
                steps_to_fit=steps_to_fit,
                steps_to_score=steps_to_score,
                errors_of_algorithm=errors_of_algorithm,
                seed=budget.seed,
            )
        missed[family.key], results[family.key] = fitted

    def rank(key: str) -> tuple[float, float]:
        return _make_sort_key(missed[key], missed.get(families[key].extends, inf))

    return [results[key] for key in sorted(results, key=rank)]


def _make_sort_key(missed: float, base: float) -> tuple[float, float]:
    """Return a sort key for the error of a fitted update rule; smaller is better.

    A rule that extends another rule, but leaves more than half of that rule's error, comes right
    after that rule.

    Args:
        missed: the rule's error.
        base: the error of the rule that it extends; infinite if it extends none.
    """
    if HALF * base < missed <= base:
        return base, missed  # after the extended rule, whose key is (base, 0)
    return missed, 0.0


def _fit_family(
    family: Family,
    algorithm: Algorithm,
    steps_to_fit: Transition,
    steps_to_score: Transition,
    errors_of_algorithm: StepResult,
    seed: int,
) -> tuple[float, FittedUpdate]:
    """Fit the parameters of a family of update rules to steps (changes of the decoded state over a
    round), and score the best rule on other steps.

    Args:
        family: the family of update rules.
        algorithm: the candidate algorithm. If it subtracts the mean over a variable's elements, the
            rules do so, too.
        steps_to_fit, steps_to_score: decoded steps.
        errors_of_algorithm: the candidate algorithm's errors on the steps to score on.
        seed: seed of the bootstrap.

    Returns:
        The error of the best rule where it was fitted, and its score on other steps.
    """
    centred = centred_states(algorithm)
    # `used_by` names the variables that a parameter enters, such as "prediction". It is empty for a
    # parameter that may enter all equations, also those of the state. Only such a parameter can
    # change a step; in the families of updates, the others only change the prediction.
    free = [parameter for parameter in family.searched if not parameter.used_by]

    def make_rule(parameters: Mapping[str, float]) -> Algorithm:
        return centre_states(_make_member(family, parameters), centred)

    def loss(parameters: Mapping[str, float]) -> float:
        return steps_to_fit.compute_residual_share(make_rule(parameters))

    missed, parameters = search(free, loss)
    errors = steps_to_score.under(make_rule(parameters))
    return missed, _make_fitted_update(
        family=family,
        parameters=parameters,
        steps=steps_to_score,
        errors=errors,
        errors_of_algorithm=errors_of_algorithm,
        seed=seed,
    )


def _fit_extension(
    subject: Participant,
    family: Family,
    algorithm: Algorithm,
    keys: tuple[str, ...],
    errors_of_algorithm: StepResult,
    budget: Budget,
) -> tuple[float, FittedUpdate]:
    """Fit a family of update rules that extends ``algorithm``: take the best point of its parameter
    grid.

    The state of the extension may differ from the algorithm's, as with an eligibility trace. A
    decoder of the state is therefore fitted for each point of the grid.

    Args:
        subject: the model.
        family: the extension.
        algorithm: the algorithm that it extends; shared parameters keep the algorithm's values.
        keys: the state variables that are decoded.
        errors_of_algorithm: the algorithm's errors on the test episodes.
        budget: the rounds that steps start from, and the seed.

    Returns:
        The error of the best rule where it was fitted, and its score on other episodes.
    """
    centred = centred_states(algorithm)
    penalty = subject.penalty(algorithm)

    def decode_steps(member: Algorithm, episodes: Any) -> Transition:
        """Fit a decoder of the state of an algorithm of the family, and decode the model's steps in
        the episodes.
        """
        writer = subject.writer(member, keys, penalty)
        return transition(subject.model, episodes, writer, round=budget.at)

    smallest, best, best_parameters = inf, algorithm, dict(algorithm.parameters)
    for parameters in _list_extensions(family, algorithm.parameters):
        member = centre_states(_make_member(family, parameters), centred)
        missed = decode_steps(member, subject.samples.other).compute_residual_share(member)
        if missed < smallest:
            smallest, best, best_parameters = missed, member, parameters
    steps = decode_steps(best, subject.samples.test)
    errors = steps.under(best)
    return smallest, _make_fitted_update(
        family=family,
        parameters=best_parameters,
        steps=steps,
        errors=errors,
        errors_of_algorithm=errors_of_algorithm,
        seed=budget.seed,
    )


def _list_extensions(family: Family, fixed: Mapping[str, Any]) -> list[dict[str, float]]:
    """Return the points of a family's parameter grid that extend an algorithm: parameters that the
    algorithm has, too, keep its values.

    Args:
        family: the extension.
        fixed: the algorithm's parameters.
    """
    shared, free = {}, []  # values of shared parameters; parameters that are varied
    for parameter in family.searched:
        name = parameter.name
        if name in fixed:
            shared[name] = fixed[name]
        # A parameter with names of variables in `used_by` only enters the prediction, and changes no
        # step.
        elif not parameter.used_by:
            free.append(parameter)
    names = [parameter.name for parameter in free]
    return [shared | dict(zip(names, point, strict=True)) for point in list_grid_points(free)]


def _make_fitted_update(
    family: Family,
    parameters: Mapping[str, float],
    steps: Transition,
    errors: StepResult,
    errors_of_algorithm: StepResult,
    seed: int,
) -> FittedUpdate:
    """Return a fitted update rule with its step R2, and its 1 - R2 divided by that of the candidate
    algorithm.

    Args:
        family: the family of the rule.
        parameters: the fitted parameters.
        steps: the decoded steps to score on.
        errors: the rule's errors on these steps.
        errors_of_algorithm: the algorithm's errors, relative to which the rule's are reported.
        seed: seed of the bootstrap.
    """
    # The rule may decode another state than the algorithm, so that each error is a share, as in R2.
    relative_error = ratio_interval(
        _compute_shares_missed(errors),
        _compute_shares_missed(errors_of_algorithm),
        seed=seed,
        participants=errors_of_algorithm.participants,
    )
    return FittedUpdate(
        key=family.key,
        name=family.name,
        state=tuple(steps.shapes),
        parameters=parameters,
        r2=errors.r2(seed),
        left=relative_error,
    )


def _compute_shares_missed(errors: StepResult) -> Array:
    """Return each episode's squared error, divided by the variation of the steps of all episodes,
    ``[episode]``. The shares sum to 1 - R2.
    """
    return errors.missed.sum(1) / errors.varied.sum()


def _make_member(family: Family, parameters: Mapping[str, float]) -> Algorithm:
    """Return the algorithm of a family that has these parameters.

    Parameters that are not among them, such as those of the prediction, take the first value of
    their grid.
    """
    first = {parameter.name: parameter.grid[0] for parameter in family.searched}
    return family.make(**{**first, **parameters})


# The rules of the claim.


@dataclass(frozen=True)
@checked_result
class Evidence:
    """The numbers from which :data:`RULES` decide whether a model updates its state as an algorithm
    does: the reference's algorithm or, if there is no reference, the task's.

    Attributes:
        steps: how well the algorithm predicts changes of the model's decoded state (step R2), for
            several kinds of steps.
        response: similarity of the model's responses to a changed input and to a state that is
            changed accordingly.
        fitted: the fitted update rule that predicts these changes best; None if none was fitted.
        reference: name of the reference; "" if there is none.
        alike: lower bound of the similarity of the model's predictions to the reference's; NaN if
            there is no reference.
        shows_state: False if the reference predicts nearly one-hot distributions, which show little
            of its state.
        state: the verdict on whether model and reference have the same state, such as "yes"; "" if
            there is no reference.
    """

    steps: Sequence[StepScore]
    response: ResponsePart = field(default_factory=ResponsePart)
    fitted: FittedUpdate | None = None
    reference: str = ""
    alike: float = nan
    shows_state: bool = True
    state: str = ""

    @property
    def one_step(self) -> StepScore:
        """The score for steps of one round, from states that occur in episodes. It says how well
        the algorithm predicts the changes of the decoded state (step R2).
        """
        return next(score for score in self.steps if score.horizon == 1 and score.manifold == ON)

    @property
    def is_unread(self) -> bool:
        """True if no affine map decodes the state well from the latents: the linear decoder has an
        R2 below .95.
        """
        return self.one_step.decoded < SAME


def _measure_steps(evidence: Evidence) -> list[Measure]:
    """Return the step R2 of one kind of steps as a measure, the only item of a list: the R2 with
    the lowest lower bound.

    The step R2 says how well the algorithm predicts the change of the decoded state. The control is
    the smallest step R2 of each untrained copy.
    """
    worst = min(evidence.steps, key=lambda score: score.r2.low)  # of the kinds of steps
    rounds = "one round on" if worst.horizon == 1 else f"{worst.horizon} rounds on"
    start = "states that occur" if worst.manifold == ON else "states that no episode reaches"
    # [copy]: the smallest over the scores of each copy; NaN is no score.
    worst_of_copies = np.fmin.reduce([score.untrained for score in evidence.steps])
    measure = Measure(
        key="update",
        claim="",  # filled in by Question.measure
        number=worst.r2,
        threshold=_SAME_STEPS,
        no_threshold=SAME,
        unit="step R2",
        controls={UNTRAINED: merge_copies(worst_of_copies)},
        about=f"{' + '.join(worst.state)}, {rounds}, from {start}",
    )
    return [measure]


def _measure_responses(evidence: Evidence) -> list[Measure]:
    """Return one measure per cell: the similarity between the response to a changed input and the
    effect of changing the state.

    A cell is one input at one range of rounds after its change, or one round.
    """
    return [
        Measure(
            key="update",
            claim="",  # filled in by Question.measure
            number=cell.alike,
            threshold=HALF,
            unit="likeness of responses",
            needs_control=False,  # the control of the claim is that of _measure_steps
            about=f"response to {cell.where}, against the move of the state",
        )
        for cell in evidence.response.cells
    ]


def _measure_arrival(evidence: Evidence) -> list[Measure]:
    """Return the size of the response one round after a changed input as a measure, in a list that
    is empty unless the response is too small.
    """
    arrives = evidence.response.arrives
    if not arrives.high < ARRIVES:  # NaN passes: the response was not measured
        return []
    measure = Measure(
        key="update",
        claim="",  # filled in by Question.measure
        number=arrives,
        threshold=ARRIVES,
        unit="share",
        needs_control=False,  # the control of the claim is that of _measure_steps
        about="response one round later, as a share of the move of the state",
    )
    return [measure]


def _measure_next_state(evidence: Evidence) -> list[Measure]:
    """Return the correlation :attr:`ResponsePart.later` as a measure, the only item of a list. The
    list is empty if the lower end of the correlation's interval is at least .5 or NaN.

    The measure's verdict is never "no": it can only turn a "yes" into "undecided".
    """
    correlation = evidence.response.later
    if not correlation.low < HALF:  # NaN passes: the correlation was not measured
        return []
    measure = Measure(
        key="update",
        claim="",  # filled in by Question.measure
        number=correlation,
        threshold=HALF,
        no_threshold=-1.0,  # a correlation is never below this
        unit="correlation of changes",
        needs_control=False,  # the control of the claim is that of _measure_steps
        about="prediction from the state of the round after",
    )
    return [measure]


def _doubt_no_of_same_predictions(evidence: Evidence) -> str:
    """Return a reason against the verdict "no" if the model predicts the same as the reference,
    otherwise "".

    Equal predictions count only if the reference's predictions show its state, or if affine maps
    cannot decode the model's state.
    """
    is_same = evidence.alike >= NEARLY_ALL
    if is_same and (evidence.shows_state or evidence.is_unread):
        return f"{MISREAD}: its predictions are those of {evidence.reference}"
    return ""


def _doubt_no_of_unread_state(evidence: Evidence) -> str:
    """Return a reason against the verdict "no" (the model does not update its state as the algorithm
    does) if affine maps misread the model's state, otherwise "".

    They do if a non-linear decoder reads the steps much better, or if they read the state poorly and
    stitching finds that the model has the reference's state.
    """
    # The returned texts continue the sentence MISREAD, whose subject is the affine maps.
    linear, nonlinear = evidence.one_step.r2.estimate, evidence.one_step.nonlinear
    if 1 - nonlinear <= RATIO * (1 - linear):  # at most a quarter of the linear decoder's error
        return f"{MISREAD}: they read R2 {linear:.2f} of its steps, a non-linear decoder {nonlinear:.2f}"
    if evidence.state == "yes" and evidence.is_unread:
        return f"{MISREAD}: stitched, it is that of {evidence.reference}"
    return ""


def _doubt_yes_of_other_update(evidence: Evidence) -> str:
    """Return a reason against the verdict "yes" if another fitted update rule removes at least half
    of the algorithm's error, otherwise "".

    Errors that are mere rounding give no reason.
    """
    fitted = evidence.fitted
    is_exact = evidence.one_step.r2.estimate >= NEARLY_ALL
    if fitted is None or is_exact or fitted.left.high > HALF:
        return ""
    name = f"{fitted.name} ({format_parameters(fitted.parameters)})"
    return f"{name} {AS_WELL}: it leaves {fitted.left} of what steps miss"


@dataclass(frozen=True)
@checked_fields
class Rule:
    """A rule for deciding the claim that a model updates its state as an algorithm does.

    A rule has one of two functions. ``require`` returns what must be true for a "yes";
    ``find_doubt`` returns a reason against a verdict.

    Attributes:
        name: name of the rule.
        sentence: what the rule demands, in words, for a report page.
        reason: an example of a machine for which the rule is needed.
        require: function from the evidence to measures. The verdict on the claim is "yes" only if
            all their verdicts are "yes".
        doubted_verdict: the verdict that ``find_doubt`` can prevent.
        find_doubt: function from the evidence to the reason why the verdict ``doubted_verdict`` must
            not be returned; "" if it may.
    """

    name: str
    sentence: str
    reason: str
    require: Callable[[Evidence], list[Measure]] | None = None
    doubted_verdict: Verdict | None = None
    find_doubt: Callable[[Evidence], str] | None = None


RULES = (
    Rule(
        "steps",
        "The decoded state steps as the algorithm's does: one round on and several, from states that occur and others.",
        "A memory that forgets 2 % a round has a step R2 of .87, a window of 10 rounds one below 0.",
        require=_measure_steps,
    ),
    Rule(
        "responses",
        "A changed input changes predictions as the move of the state does, at every lag and in every round.",
        "A machine that never hears one input steps as the algorithm does in nearly all rounds.",
        require=_measure_responses,
    ),
    Rule(
        "arrival",
        "The response one round later has the size of the move of the state.",
        "An update that waits a round after mistakes is decoded with the state, and arrives late: .52.",
        require=_measure_arrival,
    ),
    Rule(
        "next state",
        "Predictions follow the state of the round after, where no input can be changed alone.",
        "A search from both ends holds the reference's set, and answers from more than it.",
        require=_measure_next_state,
    ),
    Rule(
        "same predictions",
        "What predicts as the reference does may hold the state in another code.",
        "Weights whose sum is kept at 1 hold no log-weights, and are Weighted Majority.",
        doubted_verdict="no",
        find_doubt=_doubt_no_of_same_predictions,
    ),
    Rule(
        "unread state",
        "A state that only a non-linear decoder reads, or only stitching finds, may be updated alike.",
        "Affine maps read .92 of the steps of wma-gru, and a non-linear decoder .99.",
        doubted_verdict="no",
        find_doubt=_doubt_no_of_unread_state,
    ),
    Rule(
        "another update",
        "No other update, as fitted, leaves less than half of what the algorithm misses of the steps.",
        "A table that fades by .98 a round has a step R2 above the threshold.",
        doubted_verdict="yes",
        find_doubt=_doubt_yes_of_other_update,
    ),
)
"""The rules that decide whether a model updates its state as an algorithm does, in order."""


def judge(evidence: Evidence) -> Measure:
    """Apply all :data:`RULES` to decide the claim that a model updates its state as an algorithm
    does.

    Args:
        evidence: the numbers that the rules use.

    Returns:
        The measure that decides the claim. Its note names the rule that it comes from.
    """
    measures: list[Measure] = []
    for rule in RULES:
        if rule.require is not None:
            note = _describe_decision(rule)
            measures += [replace(measure, note=note) for measure in rule.require(evidence)]
    decided = conjoin(measures)
    for rule in RULES:
        if rule.find_doubt is not None and rule.doubted_verdict == decided.verdict:
            reason = rule.find_doubt(evidence)
            if reason:  # a reason in `unless` turns the verdict into "undecided"
                note = _describe_decision(rule)
                return replace(decided, unless={decided.verdict: reason}, note=note)
    return decided


def _describe_decision(rule: Rule) -> str:
    return f"Decided by the rule of {rule.name}: {rule.sentence}"


def _judge_update(compared: Compared) -> Measure:
    """Decide the claim that the model updates its state as the reference's algorithm does.

    Without a reference, the algorithm is the one that the task assigns to the model. If a reference
    names no algorithm, or if the algorithm carries no state, the claim does not apply.
    """
    reference = compared.reference
    # If both models are one machine, the claim holds whatever the algorithm is.
    if reference is not None and not reference.names_algorithm and not compared.is_same_machine:
        return Measure(key="update", claim="", lacking=f"{reference.name} names no algorithm")
    parts = compared.parts  # the results of all questions, by key
    part = parts["update"]
    expected = compared.expected.key  # of the reference's algorithm, or the model's
    steps = part.of(expected)  # the scores of this algorithm
    if not steps:
        return Measure(key="update", claim="", lacking=f"{expected} carries no state")
    fitted = part.fitted[0] if part.fitted else None  # the best update rule
    evidence = Evidence(steps=steps, response=parts["response"], fitted=fitted)
    if reference is not None:
        similarity = parts["behaviour"].measure.number
        evidence = replace(
            evidence,
            reference=reference.name,
            alike=similarity.low,
            shows_state=not is_hard(reference),
            state=parts["state"].measure.verdict,
        )
    return judge(evidence)


UPDATE = Question(
    "update",
    UpdatePart,
    lambda compared: score_updates(
        compared.model, compared.candidates, compared.untrained, compared.budget
    ),
    claim="It updates its state as {} does",
    yes="updates its state likewise",
    no="updates its state differently",
    judge=_judge_update,
)
