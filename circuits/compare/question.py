"""What a comparison is made of: its models on the same episodes, how much is done, its questions
and their answers.

A comparison fits maps and decoders on one batch of episodes ("known") and scores them on a second
("test"). A third batch ("other") gives the values that variables are set to. The file of each
:class:`Question` has its thresholds, with their reasons. Cross-fitting, the interval of a score and
its coverage: ``docs/method/comparing.md``.
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
from interp.interventions.interchange import Claim
from interp.interventions.moves import Writer, flat
from interp.model.rollout import rollout
from interp.model.run import Rollout
from interp.results.measure import Measure
from interp.stats import refit
from interp.stats.decoder import N_FOLDS, RIDGE, Decoder, is_wide
from interp.stats.intervals import NO_NUMBER, Interval, of_each
from interp.support.checks import checked, checked_fields, checked_result, integer
from interp.support.errors import require
from interp.support.session import remembered

_CERTAIN = Interval(1.0, 1.0, 1.0)
_ALLOWANCE = sqrt(
    2
)  # widens intervals as though the luck of the fit were as large as that of the episodes scored
SAME = 0.95
"""Two are the same from this share on: predictions on average (Weighted Majority against the Bayes predictor .3 to .7),
stitched states (the same algorithm .998, untrained models to .94), what a named family explains, steps below which
it is a no (a Q-table that hands a fifth of a change on has .961)."""
ARRIVES = 0.75
"""Responses of the closest family, lower end of the worst cell, and the share of a move that arrives one round later:
``wma-learned-additive`` 1.05, an update that waits after mistakes .52 (docs/method/naming-an-algorithm.md)."""
GAIN = 0.01
"""Of a score, from which on maps go without a penalty, or with the round: less is within most intervals."""
N_BANDS = 3
"""Rounds are judged in at most so many bands: one late in an episode is seen, and each still has several rounds."""
_ONE = "the two are one machine: their digests are the same"


@dataclass(frozen=True)
@checked_fields
class Budget:
    """How much of everything a comparison does.

    Attributes:
        known, test: episodes that maps are fitted on, and scored on.
        horizon, starts: rounds that a model runs on from latents that were put in, and in how many rounds they are.
        battery, scored: episodes of each set that algorithms are fitted on, and that predictions are compared on.
        edits: single inputs that are changed, to see the response.
        untrained: how many untrained models are the control.
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
        # Intervals over episodes need several of them.
        smallest = {"known": 8, "test": 8, "scored": 2, "seed": None}
        for name, value in vars(self).items():
            integer(name, value, smallest.get(name, 1))
        n_usable = self.rounds - self.rounds // 6
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
            untrained=2,
            seed=seed,
        )

    @checked
    def of_rounds(self, rounds: int) -> Budget:
        """Return a copy with ``rounds`` per episode; where they are few, models start in fewer
        rounds and run on for fewer.

        >>> short = Budget().of_rounds(6)
        >>> short.rounds, short.horizon, short.starts
        (6, 2, 3)
        """
        horizon = max(1, min(self.horizon, rounds // 3))
        starts = max(1, min(self.starts, rounds - rounds // 6 - horizon))
        return replace(self, rounds=rounds, horizon=horizon, starts=starts)

    @property
    def at(self) -> list[int]:
        """The rounds that latents are put in at, evenly spaced. The first sixth is left out: its
        latents hold little.

        The state ``horizon`` rounds after the last of them precedes a round, like all states that
        decoders are fitted on.

        >>> Budget().at
        [5, 8, 10, 13, 16, 19, 21, 24]
        """
        first, last = self.rounds // 6, self.rounds - 1 - self.horizon
        step = (last - first) / max(self.starts - 1, 1)
        return [first + round(step * i) for i in range(self.starts)]


@dataclass(frozen=True)
@checked_fields
class Samples:
    """The episodes of a comparison."""

    known: Any
    test: Any
    other: Any

    @classmethod
    def draw(cls, model: Machine, budget: Budget, sizes: dict[str, int]) -> Samples:
        """Draw episodes of a model's task and rates.

        Args:
            model: says which task and rates.
            budget: numbers of episodes, rounds, seed.
            sizes: sizes of the task, by name.

        Returns:
            Known episodes from one half of the task's data, test episodes from the other half, and
            as many other episodes.
        """
        task = tasks.of(model)
        options = {**task.data.sample_options(model), **sizes}

        def sample(half: int, n_episodes: int, seed: int) -> Any:
            seed += 3 * budget.seed
            return task.half(half).sample(n_episodes, budget.rounds, seed=seed, **options)

        known = sample(0, budget.known, 1000)
        test = sample(1, budget.test, 1001)
        other = sample(0, budget.test, 1002)
        # The last two pair up; halves of what was recorded need not be of one size.
        paired = slice(min(len(test), len(other)))
        return cls(known, test.select(paired), other.select(paired))

    @property
    def whose(self) -> NDArray[np.int64]:
        """The number of the participant of each known and each test episode."""
        return participants_of(self.known, self.test)


@dataclass(frozen=True, eq=False)
@checked_fields
class Participant:
    """A model with the episodes of a comparison. Runs and fits are cached, so that each is computed
    once.

    ``label`` replaces the model's name, for example where both models have the same one.
    """

    model: Machine
    samples: Samples
    label: str = ""

    @property
    def name(self) -> str:
        """The label, or the model's name where there is none."""
        return self.label or self.model.name

    @property
    def task(self) -> Task:
        """The record of the model's task."""
        return tasks.of(self.model)

    @property
    def names_algorithm(self) -> bool:
        """Whether the machine says which algorithm it computes, as handwired ones do."""
        algorithm = getattr(self.model, "algorithm", None)
        return self.model.is_handwired or isinstance(algorithm, Algorithm)

    @remembered
    def run(self, episodes: Any) -> Rollout:
        """Run the model on one of the three batches."""
        return rollout(self.model.eval(), episodes)

    @remembered
    def decoder(self, algorithm: Algorithm, variable: str) -> Decoder:
        """Fit a decoder from latents to a variable of the algorithm's state on the known episodes.

        Args:
            algorithm: computes the variable.
            variable: its key.
        """
        known = self.samples.known
        latents, values = self.run(known).latents[:, :-1], algorithm.run(known)
        return Decoder.fit(latents, values[variable], ridge=RIDGE)

    @remembered
    def penalty(self, algorithm: Algorithm) -> float:
        """Select the penalty of decoders of the algorithm's state, by the steps that they read in
        other folds.
        """
        latents = pooled(self).latents
        if not algorithm.state or is_wide(latents.flatten(2).flatten(0, 1)):
            return RIDGE
        key = algorithm.state[0]
        steps = np.diff(flat(pooled_values(algorithm, self.samples)[key]), axis=1)
        varied = float(((steps - steps.mean(0)) ** 2).sum())

        def missed(penalty: float) -> float:
            decoder = crossed_writer(self, algorithm, (key,), penalty).decoder
            decoded = decoder(latents[:, :-1]).numpy(force=True)
            return float(((np.diff(decoded, axis=1) - steps) ** 2).sum())

        return choose_penalty(missed, varied)

    @remembered
    def writer(
        self, algorithm: Algorithm, keys: tuple[str, ...] = (), penalty: float | None = None
    ) -> Writer:
        """Fit a writer of the algorithm's state in the latents, on the known episodes.

        Args:
            keys: the carried variables that are decoded; those that the latents hold where none is named.
            penalty: of the decoder; the one that :meth:`penalty` chooses when None.
        """
        known, run = self.samples.known, self.run(self.samples.known)
        ridge = self.penalty(algorithm) if penalty is None else penalty
        if keys:
            return Writer.fit(self.model, run, algorithm.run(known), keys, ridge=ridge)
        return Writer.of_state(self.model, run, algorithm, known, ridge=ridge)

    def claims(self, algorithm: Algorithm | None = None) -> list[Claim]:
        """Return what the task claims of any model of its kind, at the places that these rounds have.

        Of an algorithm: what it claims of its inputs, at the tokens that say them.
        """
        labels = self.run(self.samples.test).layout.labels
        channels = [channel.name for channel in self.model.channels]
        positions = {None, *labels, *channels}
        claims = []
        for claim in Claim.of(self.model):
            places = [place for place in claim.places if place.site.position in positions]
            if algorithm is not None:
                if claim.control or claim.variable not in algorithm.of_the_inputs:
                    continue
                embedded = [place for place in places if place.site.component == "embed"]
                places = [place for place in embedded if place.site.position is not None]
            if places:
                claims.append(replace(claim, places=tuple(places)))
        return claims

    def causes(self, algorithm: Algorithm) -> list[tuple[str, ...]]:
        """Return the tokens at which, by the task, an input acts on the state, each once."""
        causes: dict[tuple[str, ...], None] = {}
        for claim in self.claims(algorithm):
            if claim.outcome == "state":
                causes[tuple(str(place.site) for place in claim.places)] = None
        return list(causes)


def scored(missed: ArrayLike, whole: ArrayLike, participants: Any = None) -> Interval:
    """Return ``1 - sum missed / sum whole`` of cross-fitted maps with its 95 % interval.

    Args:
        missed, whole: ``[episode]`` each.
        participants: of each episode; the means of participants are what is summed.

    Returns:
        Exactly 1 where ``missed`` is 0; NaN where the whole is 0, or a sum is not finite.

    >>> print(scored([1.0, 2.0, 3.0, 2.0], [8.0, 8.0, 8.0, 8.0]))
    0.75 [0.3735, 0.9002]
    """
    missed, whole = of_each(missed, participants), of_each(whole, participants)
    if not np.isfinite(np.sum(missed) + np.sum(whole)):
        return NO_NUMBER
    quantile = float(stdtrit(len(missed) - 1, 0.975))
    return refit.interval(missed, whole, N_FOLDS, width=_ALLOWANCE * quantile)


@remembered
def pooled(subject: Participant) -> Rollout:
    """Join the subject's rollouts of the known and of the test episodes."""
    samples = subject.samples
    return Rollout.joined([subject.run(samples.known), subject.run(samples.test)])


def pooled_values(algorithm: Algorithm, samples: Samples) -> dict[str, NDArray[Any]]:
    """Return the algorithm's variables on the known and then the test episodes, ``[episode, round, ...]``."""
    known, test = algorithm.run(samples.known), algorithm.run(samples.test)
    return {key: np.concatenate([known[key], test[key]]) for key in known}


@dataclass(frozen=True)
@checked_result
class CrossFitted(Decoder):
    """A decoder of a pool, the first axis: every episode is read, and moved, by the fit that has not seen it.

    ``fits`` has one decoder a fold, fitted on the other folds; ``fold`` is that of each episode.
    """

    fits: tuple[Decoder, ...] = ()
    fold: tuple[int, ...] = ()

    @classmethod
    def of(cls, fits: list[Decoder], fold: NDArray[np.int64]) -> CrossFitted:
        """Make the decoder of a whole pool.

        Args:
            fits: a decoder for each fold, fitted on the episodes of the other folds.
            fold: the fold of each episode, ``[episode]``.
        """
        first = fits[0]
        return cls(first.maps, first.shape, fits=tuple(fits), fold=tuple(fold.tolist()))

    def cut(self, episodes: slice) -> CrossFitted:
        """Return the decoder of some episodes of the pool."""
        return replace(self, fold=self.fold[episodes])

    def __call__(self, latents: Tensor) -> Tensor:
        """Read the state from ``latents [episode, ..., latent, d_model]``."""
        return self._apply(lambda fit, rows: fit(latents[rows]))

    def move(self, latents: Tensor, change: Tensor) -> Tensor:
        """Move every episode by the fit of its fold (:meth:`Decoder.move`).

        Args:
            latents: ``[episode, ...]``.
            change: wanted change of the decoded values, ``[episode, ...]``.
        """
        return self._apply(lambda fit, rows: fit.move(latents[rows], change[rows]))

    def _apply(self, function: Callable[[Decoder, Tensor], Tensor]) -> Tensor:
        """Apply a function of each fit and the episodes of its fold; return results in the order of episodes."""
        fold = torch.tensor(self.fold)
        rows_by_fold, parts = [], []
        for k, fit in enumerate(self.fits):
            rows = torch.nonzero(fold == k)[:, 0]
            rows_by_fold.append(rows)
            parts.append(function(fit, rows))
        joined = torch.cat(parts)
        order = torch.cat(rows_by_fold).argsort()
        return joined[order.to(joined.device)]


def choose_penalty(missed: Callable[[float], float], varied: float) -> float:
    """Select the penalty of maps from latents: :data:`~interp.stats.decoder.RIDGE`, or none.

    A penalty shrinks what lies along directions that vary little, such as those of a code stretched
    100 : 1. Without one, maps read counts off untrained networks (see ``RIDGE``).

    Args:
        missed: squared error on other episodes of maps with a penalty.
        varied: squared error of the mean.

    Returns:
        0 where this reduces what is missed by more than :data:`GAIN` of ``varied``.
    """
    return 0.0 if missed(RIDGE) - missed(0.0) > GAIN * varied else RIDGE


@remembered
def crossed_writer(
    subject: Participant, algorithm: Algorithm, keys: tuple[str, ...], penalty: float = RIDGE
) -> Writer:
    """Fit a writer of variables for the pool, cross-fitted.

    Args:
        subject: the model, with its episodes.
        algorithm: computes the variables.
        keys: the variables to write.
        penalty: ridge penalty of the decoders.
    """
    run, values = pooled(subject), pooled_values(algorithm, subject.samples)
    fold = subject.samples.whose % N_FOLDS
    writers = []
    for k in range(N_FOLDS):
        others = fold != k
        state = {key: values[key][others] for key in keys}
        run_of_others = run.select(torch.from_numpy(others))
        writers.append(Writer.fit(subject.model, run_of_others, state, keys, ridge=penalty))
    decoder = CrossFitted.of([writer.decoder for writer in writers], fold)
    return replace(writers[0], decoder=decoder)


@dataclass(frozen=True)
class _Centred:
    """An equation that subtracts from its result the mean over elements."""

    equation: Callable[[Values], NDArray[Any]]

    def __call__(self, values: Values) -> NDArray[Any]:
        return _centre(self.equation(values))


def _centre(state: ArrayLike) -> NDArray[np.float64]:
    state = np.asarray(state, dtype=np.float64)
    return state - state.mean(-1, keepdims=True)


def modulo_sum(algorithm: Algorithm, episodes: Any) -> Algorithm:
    """Return the algorithm with states centred where no prediction depends on their sum, as for
    log-weights.

    A machine that holds only the differences of such numbers still computes the algorithm.
    """
    values = algorithm.run(episodes)
    state, inputs = algorithm.at(values, slice(None))
    prediction = algorithm.distribution(values)
    free = []
    for key in algorithm.state:
        has_elements = np.ndim(state[key]) == 3 and state[key].shape[-1] > 1
        if not has_elements or algorithm.variable(key).kind != "real":
            continue
        after, shifted = algorithm.step({**state, key: state[key] + 1.0}, inputs)
        expected = {k: values[NEXT + k] for k in algorithm.state}
        expected[key] = expected[key] + 1.0
        has_same_steps = all(np.allclose(after[k], expected[k]) for k in algorithm.state)
        if has_same_steps and np.allclose(algorithm.distribution(shifted), prediction):
            free.append(key)
    return centre_states(algorithm, free)


def centre_states(algorithm: Algorithm, keys: Sequence[str]) -> Algorithm:
    """Return the algorithm with the states ``keys``, of those that it has, less their mean over elements."""
    centred = [key for key in keys if key in algorithm.state]
    if not centred:
        return algorithm
    changes = {}
    for key in centred:
        after = algorithm.variable(NEXT + key)
        assert after.equation is not None
        changes[NEXT + key] = (after.parents, _Centred(after.equation))

    def initial(episodes: Any) -> dict[str, NDArray[Any]]:
        start = algorithm.initial(episodes)
        return {**start, **{key: _centre(start[key]) for key in centred}}

    return algorithm.varied(
        algorithm.key, algorithm.name, algorithm.parameters, changes, initial=initial
    )


def centred_states(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the keys of the states that :func:`centre_states` has centred."""
    equations = {key: algorithm.variable(NEXT + key).equation for key in algorithm.state}
    return tuple(key for key, equation in equations.items() if isinstance(equation, _Centred))


def shared_sizes(models: Sequence[Machine]) -> dict[str, int]:
    """Return sizes that every model serves: the task's default where all do, otherwise the nearest
    size.
    """
    first = models[0]
    task = tasks.of(first)
    for model in models[1:]:
        other = f"{model.name!r} of {model.layout.task}"
        require(
            model.layout.task == task.key,
            f"{first.name!r} is a model of {task.key}, {other}; compare models of one task",
        )
    sizes = {}
    for size in task.sizes:
        served = {}
        for model in models:
            n = int(getattr(model.layout, size.name))
            served[model.name] = getattr(model.layout, f"{size.name}_range", None) or (n, n)
        low = max(smallest for smallest, _ in served.values())
        high = min(largest for _, largest in served.values())
        shown = ", ".join(f"{name!r} ({a} to {b})" for name, (a, b) in served.items())
        require(
            low <= high,
            f"no {size.what} is served by all of {shown}; load the handwired model with {size.name}=...",
        )
        sizes[size.name] = min(max(size.default, low), high)
    return sizes


@dataclass(frozen=True, eq=False)
@checked_fields
class Compared:
    """A model and what it is compared with.

    Attributes:
        reference: the other model; None where the model is compared with algorithms alone.
        untrained, reference_untrained: fresh models of the shapes of the two, with the same
            samples.
        sets: episodes that distinguish algorithms, by name: (to fit on, to score on).
        parts: what was computed so far, by the key of its question.
    """

    model: Participant
    reference: Participant | None
    untrained: Sequence[Participant]
    reference_untrained: Sequence[Participant]
    budget: Budget
    sets: Mapping[str, tuple[Any, Any]]
    parts: dict[str, Any] = field(default_factory=dict)

    @property
    def pair(self) -> tuple[Participant, Participant]:
        """The model and its reference, for questions that need two."""
        assert self.reference is not None
        return self.model, self.reference

    @property
    def against(self) -> str:
        """Name of the reference, or of the closest algorithm where there is none."""
        if self.reference is not None:
            return self.reference.name
        part = self.parts["algorithm"]
        return str(part.scores[part.closest].name)

    @cached_property
    def is_one(self) -> bool:
        """Whether the two are one machine."""
        if self.reference is None:
            return False
        return self.reference.model.digest() == self.model.model.digest()

    @cached_property
    def candidates(self) -> Mapping[str, Algorithm]:
        """Algorithms that may describe the model's state: the closest one if it carries a state,
        then the reference's.

        A state is searched for only up to its sum where no prediction depends on the sum
        (:func:`modulo_sum`).
        """
        closest = self.parts["algorithm"].algorithm
        explained = self.reference or self.model
        expected = self.model.task.explains(explained.model)
        algorithms = [expected]
        if closest is not None and closest.state and closest.key != expected.key:
            algorithms.insert(0, closest)
        known = self.model.samples.known
        return {algorithm.key: modulo_sum(algorithm, known) for algorithm in algorithms}


def columns(record: object, **called: str) -> dict[str, Any]:
    """Return the fields of a record as columns of a table, in order; an interval takes three.

    Args:
        record: a dataclass instance.
        **called: the column of a field that is not called as the field is; "" leaves the field out.
    """
    row: dict[str, Any] = {}
    for key, value in vars(record).items():
        name = called.get(key, key)
        if isinstance(value, Interval):
            row |= value.columns(name)
        elif name:
            row[name] = " + ".join(value) if isinstance(value, tuple) else value
    return row


@dataclass(frozen=True)
@checked_fields
class Question:
    """A part of every comparison, and the claim that it decides. One file has everything about one
    question.

    Attributes:
        key: names the part, its table and its measure.
        kind: the dataclass that holds the part; its ``to_frame()`` is the table.
        compute: makes the part.
        claim, yes, no: what is claimed, with the reference as ``{}``, and what a sentence says of
            the model; empty where the part is only measured.
        judge: gives the measure that decides when all parts are computed; that of the part itself
            when None.
        of_two: True if it needs a reference.
        lacks: returns why a machine cannot be measured; "" where it can.
    """

    key: str
    kind: type
    compute: Callable[[Compared], Any]
    claim: str = ""
    yes: str = ""
    no: str = ""
    judge: Callable[[Compared], Measure] | None = None
    of_two: bool = False
    lacks: Callable[[Machine], str] = lambda machine: ""

    def lacking(self, compared: Compared) -> str:
        """Return why the question does not apply to these models; "" where it does."""
        subjects = compared.pair if self.of_two else (compared.model,)
        reasons = [self.lacks(s.model).removeprefix("not applicable: ") for s in subjects]
        return "; ".join(dict.fromkeys(filter(None, reasons)))

    def measure(self, compared: Compared) -> Measure:
        """Return the claim and what decides it. Of two models with one digest it is true without any measurement."""
        lacking = self.lacking(compared)
        if lacking:
            measure = Measure(self.key, "", lacking=lacking)
        else:
            measure = self.judge(compared) if self.judge else compared.parts[self.key].measure
            if compared.is_one:
                measure = Measure(
                    self.key,
                    "",
                    _CERTAIN,
                    measure.threshold,
                    unit=measure.unit,
                    needs_control=False,
                    note=_ONE,
                )
        return replace(
            measure,
            key=self.key,
            claim=self.claim.format(compared.against),
            yes=self.yes,
            no=self.no,
            rests_on=(self.key,),
        )
