"""What a comparison consists of: models on shared episodes, a budget, and questions with their
results.

A comparison fits maps and decoders on one batch of episodes ("known") and scores them on a second
("test"). A third batch ("other") supplies the values that variables are set to. The file of each
:class:`Question` has its thresholds, with their reasons. ``docs/method/comparing.md`` explains
cross-fitting and the interval of a score.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit
from torch import Tensor

from interp import tasks
from interp.core.algorithm import NEXT, Algorithm, Values, participants_of
from interp.core.machine import Machine
from interp.core.task import Task
from interp.interventions.interchange import flatten_elements
from interp.interventions.moves import Writer
from interp.model.rollout import rollout
from interp.model.run import Rollout
from interp.results.measure import Measure
from interp.stats import refit
from interp.stats.decoder import N_FOLDS, RIDGE, Decoder, is_wide
from interp.stats.intervals import NO_NUMBER, Interval, average_by_participant
from interp.support.checks import checked, checked_fields, checked_result, integer
from interp.support.errors import require
from interp.support.session import cached_in_session

_CERTAIN = Interval(1.0, 1.0, 1.0)
# Widens intervals as though the luck of the fit were as large as that of the episodes scored.
_ALLOWANCE = sqrt(2)
SAME = 0.95
"""Similarity from which two things count as the same: predictions, stitched states, steps of the
state.

Measured values: Weighted Majority and the Bayes predictor .3 to .7 (predictions); the same
algorithm .998, untrained models up to .94 (stitched states); a Q-table that passes on a fifth of
each change .961 (steps).
"""
ARRIVES = 0.75
"""Threshold on responses to changed inputs, and on the share of a state change that acts one round
later.

Measured values: ``wma-learned-additive`` 1.05, an update that waits after mistakes .52
(docs/method/naming-an-algorithm.md).
"""
HALF = 0.5
"""Threshold of one half, for errors that remain and for similarities.

An extension replaces the simpler family or update if at most half of the simpler one's error
remains. Two things are alike if their similarity is at least half: the responses to a changed input
and to the matching change of state, or the roles of two models' heads. The measured similarities
are in docs/method/naming-an-algorithm.md and docs/method/roles-of-heads.md.
"""
GAIN = 0.01
"""Gain in score that justifies maps without a ridge penalty, or with the round number as an input.

Smaller gains are within most intervals.
"""
N_BANDS = 3
"""Largest number of bands of rounds that are judged separately.

A difference late in an episode shows in its band, and each band still has several rounds.
"""
_SAME_DIGESTS = "the two are one machine: their digests are the same"


@dataclass(frozen=True)
@checked_fields
class Budget:
    """How much a comparison of models computes.

    Attributes:
        known, test: numbers of episodes. On ``known`` episodes, maps and decoders of latents are
            fitted; on ``test`` other episodes, they are scored.
        rounds: rounds per episode.
        horizon: number of rounds that a model runs on after changed latents were inserted into it.
        starts: number of rounds per episode at which latents are inserted.
        battery, scored: numbers of episodes in each of the task's sets of episodes. On ``battery``
            episodes, algorithms are fitted to a model's predictions; on ``scored`` other episodes,
            predictions are compared.
        edits: approximate number of changes of inputs, for comparing how predictions respond to
            them.
        untrained: number of untrained copies of the model, which are the control.
        seed: seed of everything that is drawn.
    """

    known: int = 128
    test: int = 48
    rounds: int = 30
    horizon: int = 5
    starts: int = 8
    battery: int = 48
    scored: int = 96
    edits: int = 800
    untrained: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that are too small, and runs that go on beyond the last round."""
        # Intervals over episodes need several of them.
        smallest = {"known": 8, "test": 8, "scored": 2, "seed": None}
        for name, value in vars(self).items():
            integer(name, value, smallest.get(name, 1))
        n_usable = self.rounds - self.rounds // 6  # runs start after the first sixth (`at`)
        require(
            self.horizon + self.starts <= n_usable,
            f"{self.rounds} rounds are too few for {self.starts} starts and {self.horizon} rounds on from each",
        )

    @classmethod
    def quick(cls, seed: int = 0) -> Budget:
        """Return the budget of a quick comparison, which does about a quarter of the work."""
        return cls(
            known=48,
            test=24,
            rounds=20,
            starts=4,
            battery=12,
            scored=48,
            edits=240,
            untrained=1,
            seed=seed,
        )

    @checked
    def of_rounds(self, rounds: int) -> Budget:
        """Return a copy with another number of rounds per episode. If they are fewer than before,
        ``horizon`` (number of rounds that follow each start) and ``starts`` (number of rounds at
        which runs start) are reduced to fit.

        >>> short = Budget().of_rounds(6)
        >>> short.rounds, short.horizon, short.starts
        (6, 2, 3)
        """
        if rounds >= self.rounds:
            return replace(self, rounds=rounds)
        # At most a third of the rounds follow a start, so that there is room for several starts.
        horizon = max(1, min(self.horizon, rounds // 3))
        n_usable = rounds - rounds // 6  # runs start after the first sixth (`at`)
        starts = max(1, min(self.starts, n_usable - horizon))
        return replace(self, rounds=rounds, horizon=horizon, starts=starts)

    @property
    def at(self) -> list[int]:
        """Indices of the rounds at which latents are inserted, evenly spaced.

        They begin after the first sixth of the rounds, in which latents contain little. The last of
        them is ``horizon`` rounds before the last round of the episode.

        >>> Budget().at
        [5, 8, 10, 13, 16, 19, 21, 24]
        """
        first, last = self.rounds // 6, self.rounds - 1 - self.horizon
        step = (last - first) / max(self.starts - 1, 1)
        return [first + round(step * i) for i in range(self.starts)]


@dataclass(frozen=True)
@checked_fields
class Samples:
    """The three batches of episodes of a comparison.

    Attributes:
        known: episodes on which maps and decoders of latents are fitted.
        test: episodes on which the maps and decoders are scored.
        other: further episodes, on which update rules are fitted.
    """

    known: Any
    test: Any
    other: Any

    @classmethod
    def draw(cls, model: Machine, budget: Budget, sizes: dict[str, int]) -> Samples:
        """Sample the episodes of a comparison.

        ``known`` and ``other`` come from the first half of the task's data, ``test`` from the
        second half, so that scores are for recorded participants to whom no map was fitted.
        ``other`` has as many episodes as ``test``.

        Args:
            model: the model, which determines the task and, with it, how episodes are sampled.
            budget: numbers of episodes and rounds, and the seed.
            sizes: name of a size of the task, such as "n_experts" -> its value.
        """
        task = tasks.of(model)
        options = {**task.data.sample_options(model), **sizes}

        def sample(half: int, n_episodes: int, seed: int) -> Any:
            """Sample episodes from the first (0) or second (1) half of the data."""
            # One budget uses three seeds. Budgets with other seeds use other ones: 1000 to 1002,
            # 1003 to 1005 and so on.
            seed += 3 * budget.seed
            return task.for_half(half).sample(n_episodes, budget.rounds, seed=seed, **options)

        known = sample(0, budget.known, 1000)
        test = sample(1, budget.test, 1001)
        other = sample(0, budget.test, 1002)
        # The i-th episodes of "test" and "other" form a pair. The halves of recorded data may have
        # unequal sizes, so that one of the batches has more episodes than the other.
        paired = slice(min(len(test), len(other)))
        return cls(known, test.select(paired), other.select(paired))

    @property
    def participants(self) -> NDArray[np.int64]:
        """Index of the participant (such as a person) of each episode, ``[episode]``: known
        episodes first, then test episodes. If episodes have no participants, each counts as one.
        """
        return participants_of(self.known, self.test)


@dataclass(frozen=True, eq=False)
@checked_fields
class Participant:
    """A model with the episodes of a comparison. Its runs and the decoders fitted to it are cached.

    Attributes:
        model: the model.
        samples: the episodes.
        label: replaces the model's name, for example if both compared models have the same name.
    """

    model: Machine
    samples: Samples
    label: str = ""

    @property
    def name(self) -> str:
        """The label, or the model's name if there is no label."""
        return self.label or self.model.name

    @property
    def task(self) -> Task:
        """The model's task, as it is registered in :mod:`interp.tasks`."""
        return tasks.of(self.model)

    @property
    def names_algorithm(self) -> bool:
        """True if it is stated which algorithm the model computes, as for handwired models."""
        algorithm = getattr(self.model, "algorithm", None)
        return self.model.is_handwired or isinstance(algorithm, Algorithm)

    @cached_in_session
    def run(self, episodes: Any) -> Rollout:
        """Run the model on one of the three batches of episodes (known, test or other); the run is
        cached.
        """
        return rollout(self.model.eval(), episodes)

    @cached_in_session
    def decoder(self, algorithm: Algorithm, variable: str) -> Decoder:
        """Fit a linear decoder from the model's latents to a state variable of an algorithm, on the
        known episodes (those that maps are fitted on).

        Args:
            algorithm: the algorithm that computes the variable.
            variable: key of the variable.
        """
        known = self.samples.known
        latents, values = self.run(known).latents[:, :-1], algorithm.run(known)
        return Decoder.fit(latents, values[variable], ridge=RIDGE)

    @cached_in_session
    def penalty(self, algorithm: Algorithm) -> float:
        """Choose the ridge penalty of decoders of the algorithm's state: the standard one or none.

        Both are tried on the algorithm's first state variable. The error is the squared difference
        between the variable's changes from round to round and the changes of its decoded values, on
        episodes that the decoder was not fitted to.

        Returns:
            0 (no penalty) if the error without a penalty is clearly smaller than the error with the
            standard penalty (:func:`choose_penalty`); otherwise the standard penalty. If latents
            have more coordinates than there are samples, or the algorithm has no state, the
            standard penalty is returned without trying both.
        """
        latents = pool_runs(self).latents  # [episode, round, latent, d_model]
        if not algorithm.state or is_wide(latents.flatten(2).flatten(0, 1)):
            return RIDGE
        key = algorithm.state[0]
        values = flatten_elements(pool_values(algorithm, self.samples)[key])
        steps = np.diff(values, axis=1)  # changes from round to round
        error_of_mean = float(((steps - steps.mean(0)) ** 2).sum())

        def sum_errors(penalty: float) -> float:
            """Return the squared error of the changes of the decoded values, for this penalty."""
            decoder = fit_crossfitted_writer(self, algorithm, (key,), penalty).decoder
            # Latents before each round, as the values are; after the last round there is no value.
            decoded = decoder(latents[:, :-1]).numpy(force=True)
            return float(((np.diff(decoded, axis=1) - steps) ** 2).sum())

        return choose_penalty(sum_errors, error_of_mean)

    @cached_in_session
    def writer(
        self, algorithm: Algorithm, keys: tuple[str, ...] = (), penalty: float | None = None
    ) -> Writer:
        """Fit a writer on the known episodes (those that maps are fitted on). A writer decodes the
        algorithm's state from latents, and changes latents so that they encode another state.

        Args:
            algorithm: the algorithm.
            keys: keys of the state variables to decode; when empty, those that can be decoded from
                the latents.
            penalty: ridge penalty of the decoder; :meth:`penalty` chooses it when None.
        """
        known, run = self.samples.known, self.run(self.samples.known)
        ridge = self.penalty(algorithm) if penalty is None else penalty
        if keys:
            return Writer.fit(self.model, run, algorithm.run(known), keys, ridge=ridge)
        return Writer.of_state(self.model, run, algorithm, known, ridge=ridge)


def score_maps(missed: ArrayLike, whole: ArrayLike, participants: Any = None) -> Interval:
    """Score cross-fitted maps, such as decoders, by their errors: return ``1 - sum(missed) /
    sum(whole)`` with its 95 % interval. Cross-fitted means that each episode is mapped by a fit on
    other episodes.

    The score is an R2 if the errors are squared errors and the baseline predicts the mean.

    Args:
        missed: error of the maps, ``[episode]``.
        whole: error of the baseline that they are compared with, ``[episode]``.
        participants: label of the participant (such as a person) of each episode, ``[episode]``;
            errors are averaged per participant first. None if every episode is independent.

    Returns:
        The score: exactly 1 if ``missed`` is 0; NaN if the sum of ``whole`` is 0 or a sum is not
        finite.

    >>> print(score_maps([1.0, 2.0, 3.0, 2.0], [8.0, 8.0, 8.0, 8.0]))
    0.75 [0.3735, 0.9002]
    """
    missed = average_by_participant(missed, participants)
    whole = average_by_participant(whole, participants)
    if not np.isfinite(np.sum(missed) + np.sum(whole)):
        return NO_NUMBER
    quantile = float(stdtrit(len(missed) - 1, 0.975))  # of Student's t, for a 95 % interval
    # The interval spans `width` standard errors to each side; the allowance is for maps that would
    # differ if they were fitted to other episodes.
    return refit.interval(missed, whole, N_FOLDS, width=_ALLOWANCE * quantile)


@cached_in_session
def pool_runs(subject: Participant) -> Rollout:
    """Run the model on the known episodes (those that maps are fitted on) and on the test episodes,
    and return both runs as one rollout, with the known episodes first.
    """
    samples = subject.samples
    return Rollout.join([subject.run(samples.known), subject.run(samples.test)])


def pool_values(algorithm: Algorithm, samples: Samples) -> dict[str, NDArray[Any]]:
    """Compute the values of an algorithm's variables on two batches of episodes, one after the
    other.

    Args:
        algorithm: the algorithm.
        samples: the batches ``known`` and ``test``, in this order.

    Returns:
        Key of a variable -> its values ``[episode, round, ...]``.
    """
    known, test = algorithm.run(samples.known), algorithm.run(samples.test)
    return {key: np.concatenate([known[key], test[key]]) for key in known}


@dataclass(frozen=True)
@checked_result
class CrossFitted(Decoder):
    """A decoder of an algorithm's state from latents that is cross-fitted: each episode is decoded
    by a map that was fitted on other episodes.

    The decoder only applies to the latents of the episodes that ``fold`` describes, in the same
    order.

    Attributes:
        fits: one decoder per fold, fitted on the episodes of the other folds.
        fold: for each episode, the index of its fold, ``[episode]``. The decoder with the same
            index in ``fits`` decodes the episode.
    """

    fits: tuple[Decoder, ...] = ()
    fold: tuple[int, ...] = ()

    def select_episodes(self, episodes: slice) -> CrossFitted:
        """Return a copy of this decoder that decodes some of its episodes.

        For each episode, a cross-fitted decoder has a map that was fitted on other episodes, so it
        must be called with the latents of all its episodes. The copy is called with the latents of
        the selected episodes, and decodes each of them by the same map as before.

        Args:
            episodes: slice of the decoder's episodes.
        """
        return replace(self, fold=self.fold[episodes])

    def __call__(self, latents: Tensor) -> Tensor:
        """Decode the state from latents ``[episode, ..., latent, d_model]``, each episode by the
        maps that were not fitted on it.
        """
        return self._apply(Decoder.__call__, latents)

    def move(self, latents: Tensor, change: Tensor) -> Tensor:
        """Return a copy of the latents that is changed so that the decoded values change by
        ``change`` (:meth:`Decoder.move`).

        Args:
            latents: the latents, ``[episode, ..., latent, d_model]``.
            change: what is added to the decoded values, ``[episode, ...]``.
        """
        return self._apply(Decoder.move, latents, change)

    def _apply(self, method: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
        """Call a method of the decoder of each fold on the episodes of the fold, and return the
        results in the order of the episodes.

        Args:
            method: the method, such as ``Decoder.move``.
            arguments: arguments of the method, ``[episode, ...]`` each.
        """
        fold = torch.tensor(self.fold)
        rows_by_fold, parts = [], []
        for k, fit in enumerate(self.fits):
            rows = torch.nonzero(fold == k)[:, 0]
            rows_by_fold.append(rows)
            parts.append(method(fit, *(argument[rows] for argument in arguments)))
        joined = torch.cat(parts)  # [episode, ...], ordered by fold
        order = torch.cat(rows_by_fold).argsort()  # the inverse of this order
        return joined[order.to(joined.device)]


def choose_penalty(compute_error: Callable[[float], float], error_of_mean: float) -> float:
    """Choose the ridge penalty of a decoder: the standard one (:data:`~interp.stats.decoder.RIDGE`)
    or none.

    With a penalty, a decoder misses what is encoded along directions of little variance. Without a
    penalty, it decodes too much: counts of inputs, for example, even from untrained networks.

    Args:
        compute_error: function from a penalty to the decoder's squared error on episodes that it
            was not fitted to.
        error_of_mean: squared error of predicting the mean.

    Returns:
        0 if the error without a penalty is lower than the error with the standard penalty by more
        than 1 % of ``error_of_mean``; otherwise the standard penalty.
    """
    gain_without_penalty = compute_error(RIDGE) - compute_error(0.0)
    return 0.0 if gain_without_penalty > GAIN * error_of_mean else RIDGE


@cached_in_session
def fit_crossfitted_writer(
    subject: Participant, algorithm: Algorithm, keys: tuple[str, ...], penalty: float = RIDGE
) -> Writer:
    """Fit a cross-fitted writer of state variables on the known and test episodes.

    A writer decodes variables from latents, and changes latents so that they encode other values.
    Cross-fitted means that each episode is decoded by a fit on other episodes.

    Args:
        subject: the model, with its episodes.
        algorithm: the algorithm that computes the variables.
        keys: the variables to write.
        penalty: ridge penalty of the decoders.
    """
    run, values = pool_runs(subject), pool_values(algorithm, subject.samples)
    fold = subject.samples.participants % N_FOLDS  # all episodes of a participant in one fold
    writers = []
    for k in range(N_FOLDS):
        others = fold != k
        state = {key: values[key][others] for key in keys}
        run_of_others = run.select(torch.from_numpy(others))
        writers.append(Writer.fit(subject.model, run_of_others, state, keys, ridge=penalty))
    first, fits = writers[0], tuple(writer.decoder for writer in writers)
    # The first two arguments are those of a decoder without folds, and are not used to decode: each
    # episode is decoded by one of `fits`.
    decoder = CrossFitted(
        first.decoder.affine, first.decoder.shape, fits=fits, fold=tuple(fold.tolist())
    )
    return replace(first, decoder=decoder)


@dataclass(frozen=True)
class _Centred:
    """The equation of a centred variable: compute the variable by ``equation``, then subtract the
    mean over its elements.
    """

    equation: Callable[[Values], NDArray[Any]]

    def __call__(self, values: Values) -> NDArray[Any]:
        return _centre(self.equation(values))


def _centre(state: ArrayLike) -> NDArray[np.float64]:
    state = np.asarray(state, dtype=np.float64)
    return state - state.mean(-1, keepdims=True)


def remove_irrelevant_constants(algorithm: Algorithm, episodes: Any) -> Algorithm:
    """Return a copy of the algorithm without irrelevant constants in its state: a state variable is
    centred if adding a constant to all its elements changes no prediction.

    Centred means that the mean over elements is subtracted. Log-weights are such a variable: only
    their differences matter. A machine that stores only these differences still computes the
    algorithm.

    Args:
        algorithm: the algorithm.
        episodes: episodes on which the effect of adding a constant is tested.
    """
    values = algorithm.run(episodes)
    state, inputs = algorithm.select_step_arguments(values, slice(None))  # of all rounds
    prediction = algorithm.distribution(values)
    free = []  # keys of the variables to which a constant can be added
    for key in algorithm.state:
        before = state[key]  # [episode, round, element]
        has_elements = before.ndim == 3 and before.shape[-1] > 1
        if not has_elements or algorithm.variable(key).kind != "real":
            continue
        # Add 1 to the variable before every round. After the round, the variable must also be larger
        # by 1, and nothing else may have changed: neither another state variable nor the prediction.
        after, values_of_shifted = algorithm.step({**state, key: before + 1.0}, inputs)
        expected = {k: values[NEXT + k] for k in algorithm.state}
        expected[key] = expected[key] + 1.0
        has_same_steps = all(np.allclose(after[k], expected[k]) for k in algorithm.state)
        if has_same_steps and np.allclose(algorithm.distribution(values_of_shifted), prediction):
            free.append(key)
    return centre_states(algorithm, free)


def centre_states(algorithm: Algorithm, keys: Sequence[str]) -> Algorithm:
    """Return a copy of an algorithm in which some state variables are centred: the mean over their
    elements is subtracted in every round.

    Args:
        algorithm: the algorithm.
        keys: keys of the state variables; those that the algorithm does not have are ignored.
    """
    centred = [key for key in keys if key in algorithm.state]
    if not centred:
        return algorithm
    changes = {}  # key of a variable -> (the variables that its equation reads, new equation)
    for key in centred:
        after = algorithm.variable(NEXT + key)  # the state variable after the update
        assert after.equation is not None
        changes[NEXT + key] = (after.parents, _Centred(after.equation))

    def initial(episodes: Any) -> dict[str, NDArray[Any]]:
        """Return the algorithm's initial state, centred like the later ones."""
        start = algorithm.initial(episodes)
        return {**start, **{key: _centre(start[key]) for key in centred}}

    return algorithm.make_variant(
        algorithm.key, algorithm.name, algorithm.parameters, changes, initial=initial
    )


def centred_states(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the keys of the state variables that the algorithm centres: it subtracts their mean
    over elements (see :func:`centre_states`).
    """
    equations = {key: algorithm.variable(NEXT + key).equation for key in algorithm.state}
    return tuple(key for key, equation in equations.items() if isinstance(equation, _Centred))


def shared_sizes(models: Sequence[Machine]) -> dict[str, int]:
    """Return task sizes that every model accepts: the task's default sizes if possible, otherwise
    the nearest ones.

    Raises:
        InputError: the models are of different tasks, or accept no common size.

    Returns:
        Name of a size, such as "n_experts" -> its value.
    """
    first = models[0]
    task = tasks.of(first)
    for model in models[1:]:
        named_model = f"{model.name!r} of {model.layout.task}"
        require(
            model.layout.task == task.key,
            f"{first.name!r} is a model of {task.key}, {named_model}; compare models of one task",
        )
    sizes = {}
    for size in task.sizes:
        ranges = {}  # name of a model -> smallest and largest size that it accepts
        for model in models:
            # Some layouts accept a range of sizes, such as `n_states_range`; others only one size.
            n = int(getattr(model.layout, size.name))
            ranges[model.name] = getattr(model.layout, f"{size.name}_range", None) or (n, n)
        low = max(smallest for smallest, _ in ranges.values())
        high = min(largest for _, largest in ranges.values())
        in_words = ", ".join(f"{name!r} ({a} to {b})" for name, (a, b) in ranges.items())
        require(
            low <= high,
            f"no {size.what} is served by all of {in_words}; load the handwired model with {size.name}=...",
        )
        sizes[size.name] = min(max(size.default, low), high)
    return sizes


@dataclass(frozen=True, eq=False)
@checked_fields
class Compared:
    """A model and what it is compared with, as input of the comparison's questions.

    Attributes:
        model: the model, with its episodes.
        reference: the model that it is compared with, on the same episodes; None if it is compared
            with algorithms alone.
        untrained: untrained copies of the model, with the same episodes; they serve as controls.
        budget: how much is computed.
        sets: name of a set of episodes -> a pair of batches. Algorithms are fitted to a model's
            predictions on the first batch; predictions are compared on the second.
        parts: key of a question, such as "state" -> its result, for the questions that were
            answered so far.
    """

    model: Participant
    reference: Participant | None
    untrained: Sequence[Participant]
    budget: Budget
    sets: Mapping[str, tuple[Any, Any]]
    parts: dict[str, Any] = field(default_factory=dict)

    @property
    def pair(self) -> tuple[Participant, Participant]:
        """The model and its reference, for questions that need two models."""
        assert self.reference is not None
        return self.model, self.reference

    @property
    def reference_name(self) -> str:
        """Name of what the model is compared with: the reference or, if there is no reference, the
        algorithm that is closest to the model.
        """
        if self.reference is not None:
            return self.reference.name
        part = self.parts["algorithm"]
        name_of_closest: str = part.scores[part.closest].name
        return name_of_closest

    @cached_property
    def is_same_machine(self) -> bool:
        """True if model and reference are the same machine: their digests (hashes of configuration
        and weights) are equal.
        """
        if self.reference is None:
            return False
        return self.reference.model.digest() == self.model.model.digest()

    @cached_property
    def expected(self) -> Algorithm:
        """The algorithm that the task assigns to the reference, or to the model if there is no
        reference.

        State variables are centred if adding a constant to all their elements changes no prediction
        (:func:`remove_irrelevant_constants`).
        """
        owner = self.reference or self.model
        algorithm = self.model.task.explains(owner.model)
        return remove_irrelevant_constants(algorithm, self.model.samples.known)

    @cached_property
    def candidates(self) -> Mapping[str, Algorithm]:
        """Key -> algorithm, for the one or two algorithms that may describe the model's state.

        The last item is the expected algorithm (:attr:`expected`). If another algorithm predicts
        more like the model and carries a state, it is the first item; its state variables are
        centred in the same way.
        """
        closest, expected = self.parts["algorithm"].algorithm, self.expected
        candidates = {expected.key: expected}
        if closest is None or not closest.state or closest.key in candidates:
            return candidates
        centred = remove_irrelevant_constants(closest, self.model.samples.known)
        return {closest.key: centred, **candidates}


def make_row(record: object, **renamed: str) -> dict[str, Any]:
    """Return the fields of a dataclass instance as one row of a table.

    A field with an interval becomes three columns, such as r2, r2_low and r2_high. A tuple of texts
    becomes one text, joined by " + ".

    Args:
        record: the dataclass instance.
        **renamed: name of a field -> name of its column, where they differ. The name "" leaves out
            a field that has no interval, as in ``make_row(cell, alike="number", size="")``.

    Returns:
        Name of a column -> value, in the order of the fields.
    """
    row: dict[str, Any] = {}
    for key, value in vars(record).items():
        name = renamed.get(key, key)
        if isinstance(value, Interval):
            row |= value.columns(name)
        elif name:
            row[name] = " + ".join(value) if isinstance(value, tuple) else value
    return row


@dataclass(frozen=True)
@checked_fields
class Question:
    """A question that every comparison asks: how its result is computed, and which claim the result
    decides.

    Attributes:
        key: name of the question, of its result, its table and its measure, such as "state".
        kind: dataclass of the result; its method ``to_frame()`` returns the table.
        compute: function from a :class:`Compared` to the result.
        claim: the claim, a sentence such as "It predicts the same as {}"; ``{}`` stands for the
            name of what the model is compared with. Empty if the result decides no claim.
        yes, no: predicates with the model as subject: ``yes`` for a true claim, such as "predicts
            the same", and ``no`` for a false claim, such as "predicts differently".
        judge: function from the :class:`Compared` to the measure that decides the claim. It is
            called when the results of all questions are in ``parts``. None takes the attribute
            ``measure`` of this question's result.
        needs_reference: True if the question compares the model with a reference machine, and is left out if
            there is no reference; False if it also applies to a model alone.
        find_lack: function from a machine to the reason why the question does not apply to it; "" if
            it applies. If ``needs_reference`` is True, the question must also apply to the reference.
    """

    key: str
    kind: type
    compute: Callable[[Compared], Any]
    claim: str = ""
    yes: str = ""
    no: str = ""
    judge: Callable[[Compared], Measure] | None = None
    needs_reference: bool = False
    find_lack: Callable[[Machine], str] = lambda machine: ""

    def find_lacks(self, compared: Compared) -> str:
        """Return the reason why the question does not apply to the compared models, such as a lack
        of attention heads; "" if it applies.
        """
        subjects = compared.pair if self.needs_reference else (compared.model,)
        # The verdict already says "not applicable".
        reasons = [self.find_lack(s.model).removeprefix("not applicable: ") for s in subjects]
        different = dict.fromkeys(reason for reason in reasons if reason)  # each reason once
        return "; ".join(different)

    def measure(self, compared: Compared) -> Measure:
        """Return the measure that decides this question's claim about the compared models.

        The measure states this question's ``claim``, in which the name of the reference (or of the
        closest algorithm) replaces ``{}``.

        Args:
            compared: the compared models, with the results of all questions in its ``parts``.

        Returns:
            The measure. If the question does not apply, it has no number, and its field ``lacking``
            says why (verdict "not applicable"). If both models are one machine (equal digests), its
            number is set to 1 without measurement.
        """
        # Measures are made with an empty claim, which is set at the end.
        key, lacks = self.key, self.find_lacks(compared)
        if lacks:
            measure = Measure(key=key, claim="", lacking=lacks)
        else:
            measure = self.judge(compared) if self.judge else compared.parts[key].measure
            if compared.is_same_machine and not measure.lacking:
                measure = Measure(
                    key=key,
                    claim="",
                    number=_CERTAIN,
                    threshold=measure.threshold,
                    unit=measure.unit,
                    needs_control=False,
                    note=_SAME_DIGESTS,
                )
        return replace(
            measure,
            key=key,
            claim=self.claim.format(compared.reference_name),
            yes=self.yes,
            no=self.no,
            rests_on=(key,),
        )
