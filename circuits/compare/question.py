"""What a comparison is made of: its models on the same episodes, how much is done, its questions and their answers.

A comparison fits maps and decoders on some episodes ("known"), scores them on others ("test"), and takes the values
that variables are set to from a third batch ("other"). The thresholds of a :class:`Question`, and their reasons, stand
in its own file. Cross-fitting, the interval of a score and its coverage: ``docs/method/comparing.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
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
from interp.support.checks import check_fields, checked, integer
from interp.support.errors import require
from interp.support.session import remembered

_CERTAIN = Interval(1.0, 1.0, 1.0)
_ALLOWANCE = sqrt(
    2
)  # widens intervals as though the luck of the fit were as large as that of the episodes scored
_GAIN = 0.01  # of a score, from which on maps go without a penalty: less is within most intervals
_SHIFT = 1.0  # what a state is moved by to see whether anything reads its sum; no choice of counts turns on it
_ONE = "the two are one machine: their digests are the same"


@dataclass(frozen=True)
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
        check_fields(self)
        least = {
            "known": 8,
            "test": 8,
            "scored": 2,
            "seed": None,
        }  # intervals over episodes need several of them
        for name, value in vars(self).items():
            integer(name, value, least.get(name, 1))
        require(
            self.horizon + self.starts <= self.rounds - self.rounds // 6,
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
        """The same with ``rounds`` per episode; where they are few, models start in fewer rounds and run on for less.

        >>> short = Budget().of_rounds(6)
        >>> short.rounds, short.horizon, short.starts
        (6, 2, 3)
        """
        horizon = max(1, min(self.horizon, rounds // 3))
        starts = max(1, min(self.starts, rounds - rounds // 6 - horizon))
        return replace(self, rounds=rounds, horizon=horizon, starts=starts)

    @property
    def at(self) -> list[int]:
        """The rounds that latents are put in at, evenly spaced; not the first ones, which hold next to nothing.

        The state ``horizon`` rounds after the last of them is one before a round, as all that decoders are fitted on.

        >>> Budget().at
        [5, 8, 10, 13, 16, 19, 21, 24]
        """
        first, last = self.rounds // 6, self.rounds - 1 - self.horizon
        return [
            first + round((last - first) * i / max(self.starts - 1, 1)) for i in range(self.starts)
        ]


@dataclass(frozen=True)
class Samples:
    """The episodes of a comparison."""

    known: Any
    test: Any
    other: Any

    @classmethod
    def draw(cls, model: Machine, budget: Budget, sizes: dict[str, int]) -> Samples:
        """Episodes of a model's task and rates, of ``sizes``."""
        task, sizes = tasks.of(model), {**tasks.of(model).data.sample_options(model), **sizes}
        asked = {1000: (0, budget.known), 1001: (1, budget.test), 1002: (0, budget.test)}
        draws = {
            i: partial(task.half(half).sample, n, budget.rounds) for i, (half, n) in asked.items()
        }
        known, *others = (draw(seed=3 * budget.seed + i, **sizes) for i, draw in draws.items())
        n = min(
            map(len, others)
        )  # they pair up; halves of what was recorded need not be of one size
        return cls(known, *(episodes.select(slice(n)) for episodes in others))

    @property
    def whose(self) -> NDArray[np.int64]:
        """The number of the participant of each known and each test episode."""
        return participants_of(self.known, self.test)


@dataclass(frozen=True, eq=False)
class Participant:
    """A model with the episodes of a comparison; it is run once on each batch, and what is fitted to it is fitted once.

    ``label`` is what it is called where its own name would not do.
    """

    model: Machine
    samples: Samples
    label: str = ""

    @property
    def name(self) -> str:
        """The label, or the model's own name."""
        return self.label or self.model.name

    @property
    def task(self) -> Task:
        """The record of the model's task."""
        return tasks.of(self.model)

    @property
    def names_algorithm(self) -> bool:
        """Whether the machine says which algorithm it computes, as handwired ones do."""
        return self.model.is_handwired or isinstance(
            getattr(self.model, "algorithm", None), Algorithm
        )

    @remembered
    def run(self, episodes: Any) -> Rollout:
        """The model's rollout of one of the three batches."""
        return rollout(self.model.eval(), episodes)

    @remembered
    def decoder(self, algorithm: Algorithm, variable: str) -> Decoder:
        """Latents to a variable of the algorithm's state, fitted on the known episodes."""
        known = self.samples.known
        return Decoder.fit(
            self.run(known).latents[:, :-1], algorithm.run(known)[variable], ridge=RIDGE
        )

    @remembered
    def penalty(self, algorithm: Algorithm) -> float:
        """Choose the penalty of decoders of the algorithm's state, by the steps that they read in other folds."""
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
        """What the task claims of any model of its kind, at the places that these rounds have.

        Of an algorithm: what it claims of its inputs, at the tokens that say them.
        """
        at = {
            *self.run(self.samples.test).layout.labels,
            *(channel.name for channel in self.model.channels),
        }
        found = []
        for claim in Claim.of(self.model):
            places = tuple(place for place in claim.places if place.site.position in {None, *at})
            if algorithm is not None:
                places = tuple(
                    p for p in places if p.site.component == "embed" and p.site.position is not None
                )
                if claim.control or claim.variable not in algorithm.of_the_inputs:
                    continue
            if places:
                found.append(replace(claim, places=places))
        return found

    def causes(self, algorithm: Algorithm) -> list[tuple[str, ...]]:
        """The tokens at which the task says that an input acts on the state, each once."""
        sites = [
            tuple(str(p.site) for p in c.places)
            for c in self.claims(algorithm)
            if c.outcome == "state"
        ]
        return list(dict.fromkeys(sites))


def scored(missed: ArrayLike, asked: ArrayLike, whose: Any = None) -> Interval:
    """``1 - sum missed / sum asked`` of cross-fitted maps, from ``[episode]`` each, with its 95 % interval.

    With ``whose``, the participant of each episode, the means of participants are what is summed. Where nothing is
    missed the score is 1 exactly; where nothing is asked, or a sum is not finite, all three are NaN.

    >>> print(scored([1.0, 2.0, 3.0, 2.0], [8.0, 8.0, 8.0, 8.0]))
    0.75 [0.3735, 0.9002]
    """
    missed, asked = of_each(missed, whose), of_each(asked, whose)
    if not np.isfinite([np.sum(missed), np.sum(asked)]).all():
        return NO_NUMBER
    return refit.interval(
        missed, asked, N_FOLDS, width=_ALLOWANCE * float(stdtrit(len(missed) - 1, 0.975))
    )


@remembered
def pooled(subject: Participant) -> Rollout:
    """The subject's rollouts of the known episodes and of the test episodes as one."""
    return Rollout.joined(
        [subject.run(episodes) for episodes in (subject.samples.known, subject.samples.test)]
    )


def pooled_values(algorithm: Algorithm, samples: Samples) -> dict[str, NDArray[Any]]:
    """The algorithm's variables on the known and then the test episodes, ``[episode, round, ...]``."""
    known, test = algorithm.run(samples.known), algorithm.run(samples.test)
    return {key: np.concatenate([known[key], test[key]]) for key in known}


@dataclass(frozen=True)
class CrossFitted(Decoder):
    """A decoder of a pool, the first axis: every episode is read, and moved, by the fit that has not seen it.

    ``fits`` has one decoder a fold, fitted on the other folds; ``fold`` is that of each episode.
    """

    fits: tuple[Decoder, ...] = ()
    fold: tuple[int, ...] = ()

    @classmethod
    def of(cls, fits: list[Decoder], fold: NDArray[np.int64]) -> CrossFitted:
        """For the whole pool."""
        return cls(fits[0].maps, fits[0].shape, tuple(fits), tuple(fold.tolist()))

    def cut(self, episodes: slice) -> CrossFitted:
        """For some episodes of the pool."""
        return replace(self, fold=self.fold[episodes])

    def __call__(self, latents: Tensor) -> Tensor:
        """The state that ``latents [episode, ..., latent, d_model]`` hold."""
        return self._each(lambda fit, rows: fit(latents[rows]))

    def move(self, latents: Tensor, change: Tensor) -> Tensor:
        """:meth:`Decoder.move` of every episode by its own fit."""
        return self._each(lambda fit, rows: fit.move(latents[rows], change[rows]))

    def _each(self, apply: Callable[[Decoder, Tensor], Tensor]) -> Tensor:
        """What each fit makes of the episodes of its fold, in the order of the episodes."""
        rows = [
            torch.from_numpy(np.flatnonzero(np.array(self.fold) == k))
            for k in range(len(self.fits))
        ]
        parts = torch.cat([apply(fit, own) for fit, own in zip(self.fits, rows, strict=True)])
        return parts[torch.cat(rows).argsort().to(parts.device)]


@remembered
def crossed_decoder(subject: Participant, algorithm: Algorithm, variable: str) -> CrossFitted:
    """Latents to a variable of the algorithm's state, for the pool, cross-fitted."""
    latents, values = (
        pooled(subject).latents[:, :-1],
        pooled_values(algorithm, subject.samples)[variable],
    )
    fold = subject.samples.whose % N_FOLDS
    others = [fold != k for k in range(N_FOLDS)]
    fits = [
        Decoder.fit(latents[torch.from_numpy(rows)], values[rows], ridge=RIDGE) for rows in others
    ]
    return CrossFitted.of(fits, fold)


def choose_penalty(missed: Callable[[float], float], varied: float) -> float:
    """Choose the penalty of maps from latents: :data:`~interp.stats.decoder.RIDGE`, or none.

    A penalty shrinks what lies along directions that vary little, such as those of a code stretched 100 : 1; without
    one, maps read counts off untrained networks (see ``RIDGE``).

    Args:
        missed: what maps with a penalty miss on other episodes.
        varied: what they miss where they read nothing.

    Returns:
        0 where this reduces what is missed by more than :data:`_GAIN` of ``varied``.
    """
    return 0.0 if missed(RIDGE) - missed(0.0) > _GAIN * varied else RIDGE


@remembered
def crossed_writer(
    subject: Participant, algorithm: Algorithm, keys: tuple[str, ...], penalty: float = RIDGE
) -> Writer:
    """Fit a writer of ``keys`` for the pool, cross-fitted."""
    run, values, writers = pooled(subject), pooled_values(algorithm, subject.samples), []
    fold = subject.samples.whose % N_FOLDS
    for k in range(N_FOLDS):
        others = fold != k
        held = {key: values[key][others] for key in keys}
        writers.append(
            Writer.fit(
                subject.model, run.select(torch.from_numpy(others)), held, keys, ridge=penalty
            )
        )
    return replace(writers[0], decoder=CrossFitted.of([w.decoder for w in writers], fold))


@dataclass(frozen=True)
class _Centred:
    """An equation whose result is less its mean over elements."""

    equation: Callable[[Values], NDArray[Any]]

    def __call__(self, values: Values) -> NDArray[Any]:
        return _centre(self.equation(values))


def _centre(state: ArrayLike) -> NDArray[np.float64]:
    state = np.asarray(state, dtype=np.float64)
    return state - state.mean(-1, keepdims=True)


def modulo_sum(algorithm: Algorithm, episodes: Any) -> Algorithm:
    """Return the algorithm with every state centred whose sum no prediction reads, such as log-weights.

    A machine may hold the differences of such numbers alone, and be the algorithm all the same.
    """
    values = algorithm.run(episodes)
    state, inputs = algorithm.at(values, slice(None))
    free = []
    for key in algorithm.state:
        if np.ndim(state[key]) != 3 or state[key].shape[-1] < 2:
            continue
        if algorithm.variable(key).kind != "real":
            continue
        after, shifted = algorithm.step({**state, key: state[key] + _SHIFT}, inputs)
        expected = {k: values[NEXT + k] for k in algorithm.state}
        expected[key] = expected[key] + _SHIFT
        same_steps = all(np.allclose(after[k], expected[k]) for k in algorithm.state)
        if same_steps and np.allclose(
            algorithm.distribution(shifted), algorithm.distribution(values)
        ):
            free.append(key)
    return centre_states(algorithm, free)


def centre_states(algorithm: Algorithm, keys: Sequence[str]) -> Algorithm:
    """Return the algorithm with the states ``keys``, of those that it has, less their mean over elements."""
    own = [key for key in keys if key in algorithm.state]
    if not own:
        return algorithm
    changes = {}
    for key in own:
        after = algorithm.variable(NEXT + key)
        assert after.equation is not None
        changes[NEXT + key] = (after.parents, _Centred(after.equation))

    def initial(episodes: Any) -> dict[str, NDArray[Any]]:
        start = algorithm.initial(episodes)
        return {**start, **{key: _centre(start[key]) for key in own}}

    return algorithm.varied(
        algorithm.key, algorithm.name, algorithm.parameters, changes, initial=initial
    )


def centred_states(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the keys of the states that :func:`centre_states` has centred."""
    return tuple(
        key
        for key in algorithm.state
        if isinstance(algorithm.variable(NEXT + key).equation, _Centred)
    )


def shared_sizes(models: Sequence[Machine]) -> dict[str, int]:
    """Sizes that every model serves: the task's default where all do, else the nearest."""
    task = tasks.of(models[0])
    for model in models[1:]:
        two = f"{models[0].name!r} is a model of {task.key}, {model.name!r} of {model.layout.task}"
        require(model.layout.task == task.key, f"{two}; compare models of one task")
    sizes = {}
    for size in task.sizes:
        own = [(model.layout, int(getattr(model.layout, size.name))) for model in models]
        ranges = [getattr(layout, f"{size.name}_range", None) or (n, n) for layout, n in own]
        low, high = max(r[0] for r in ranges), min(r[1] for r in ranges)
        require(
            low <= high,
            f"no {size.what} is served by all of "
            f"{', '.join(f'{m.name!r} ({a} to {b})' for m, (a, b) in zip(models, ranges, strict=True))}; "
            f"load the handwired model with {size.name}=...",
        )
        sizes[size.name] = min(max(size.default, low), high)
    return sizes


@dataclass(frozen=True, eq=False)
class Compared:
    """A model and what it is held against.

    Attributes:
        reference: the other model; None where the model is held against algorithms alone.
        untrained, reference_untrained: fresh models of the shapes of the two, with the same samples.
        sets: episodes that tell algorithms apart, by name: (to fit on, to score on).
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
        """The model and its reference, for questions that are asked of two."""
        assert self.reference is not None
        return self.model, self.reference

    @property
    def against(self) -> str:
        """What the model is held against: the reference, or the closest algorithm."""
        if self.reference is not None:
            return self.reference.name
        return str(self.parts["algorithm"].scores[self.parts["algorithm"].closest].name)

    @cached_property
    def is_one(self) -> bool:
        """Whether the two are one machine."""
        return (
            self.reference is not None
            and self.reference.model.digest() == self.model.model.digest()
        )

    @cached_property
    def candidates(self) -> Mapping[str, Algorithm]:
        """Algorithms whose state is looked for: the closest one where it carries a state, then the reference's.

        A state whose sum no prediction reads is asked for up to its sum (:func:`modulo_sum`).
        """
        closest = self.parts["algorithm"].algorithm
        expected = self.model.task.explains((self.reference or self.model).model)
        first = (
            {}
            if closest is None or not closest.state or closest.key == expected.key
            else {closest.key: closest}
        )
        algorithms = {**first, expected.key: expected}
        return {
            key: modulo_sum(algorithm, self.model.samples.known)
            for key, algorithm in algorithms.items()
        }


def columns(record: object, **called: str) -> dict[str, Any]:
    """The fields of a record as columns of a table, in order, an interval as three.

    Those that are ``called`` something else have this name, or are left out where it is empty.
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
class Question:
    """A part of every comparison, and the claim that it decides. Everything about one stands in one file.

    Attributes:
        key: names the part, its table and its measure.
        kind: the dataclass that holds the part; its ``to_frame()`` is the table.
        compute: makes the part.
        claim, yes, no: what is claimed, with the reference as ``{}``, and what a sentence says of the model; empty
            where the part is only measured.
        judge: gives the measure that decides when all parts are computed; that of the part itself when None.
        of_two: whether it is asked only where there is a reference.
        lacks: a sentence where a machine has not what the question asks about; empty where it has.
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
        """Why it cannot be asked of these models; empty where it can."""
        of = compared.pair if self.of_two else (compared.model,)
        reasons = [self.lacks(one.model).removeprefix("not applicable: ") for one in of]
        return "; ".join(dict.fromkeys(filter(None, reasons)))

    def measure(self, compared: Compared) -> Measure:
        """The claim and what decides it. Of two models with one digest it is true without any measurement."""
        lacking, claim = self.lacking(compared), self.claim.format(compared.against)
        if lacking:
            found = Measure(self.key, "", lacking=lacking)
        else:
            found = self.judge(compared) if self.judge else compared.parts[self.key].measure
        if compared.is_one and not lacking:
            found = Measure(
                self.key,
                "",
                _CERTAIN,
                found.threshold,
                unit=found.unit,
                needs_control=False,
                note=_ONE,
            )
        return replace(
            found, key=self.key, claim=claim, yes=self.yes, no=self.no, rests_on=(self.key,)
        )
