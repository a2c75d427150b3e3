"""What a comparison is made of: its models on the same episodes, how much is done, its questions and their answers.

A comparison fits maps and decoders on some episodes ("known"), scores them on others ("test"), and takes the values
that variables are set to from a third batch ("other"). All models read the same three.

A :class:`Question` computes a part of the comparison and may judge it. A :class:`Verdict` is decided by one number (the
*bound*) against a threshold: "same" where the number's 95 % interval lies above it, "different" where it lies below,
"undecided" where it holds it, or where an untrained model does as well; "not applicable" where one of the two lacks
what is asked about, such as attention heads. The rule, its thresholds and their reasons stand in the file of the
question. Thresholds were chosen on known machines (``lab/known``); those that are ``held_out`` there test
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd

from interp import tasks
from interp.algorithm import Algorithm
from interp.checks import check_fields, checked
from interp.decoder import RIDGE, Decoder
from interp.errors import InputError, require
from interp.interventions.interchange import Claim
from interp.interventions.moves import Writer
from interp.interventions.sites import Site
from interp.machine import Machine
from interp.model.rollout import rollout
from interp.model.run import Rollout
from interp.session import once
from interp.statistics import NO_NUMBER, Interval
from interp.task import Task

Word = Literal["same", "different", "undecided", "not applicable"]


@dataclass(frozen=True)
class Effort:
    """How much of everything a comparison does.

    Attributes:
        known, test: episodes that maps are fitted on, and scored on.
        horizon: rounds that a model runs on from latents that were put in.
        starts: how many rounds they are put in at.
        battery: episodes of each set that algorithms are fitted on.
        scored: episodes of each set that predictions are compared on: the same ones for every seed.
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
        require(
            self.known >= 8 and self.test >= 8,
            f"intervals over episodes need at least 8 of them, got known={self.known} and test={self.test}",
        )
        require(
            self.horizon >= 1 and self.starts >= 1 and self.horizon + self.starts < self.rounds,
            f"{self.rounds} rounds are too few for {self.starts} starts and {self.horizon} rounds on from each",
        )
        require(self.scored >= 2, f"intervals over episodes need at least 2 of a set, got scored={self.scored}")
        require(self.edits >= 1, f"responses need at least 1 input that is changed, got edits={self.edits}")
        require(self.untrained >= 1, f"the control needs at least 1 untrained model, got {self.untrained}")

    @checked
    def of_rounds(self, rounds: int) -> Effort:
        """The same with ``rounds`` per episode; where they are few, models start in fewer rounds and run on for less.

        >>> short = Effort().of_rounds(6)
        >>> short.rounds, short.horizon, short.starts
        (6, 2, 3)
        """
        horizon = max(1, min(self.horizon, rounds // 3))
        starts = max(1, min(self.starts, rounds - horizon - 1))
        return replace(self, rounds=rounds, horizon=horizon, starts=starts)

    @property
    def at(self) -> list[int]:
        """The rounds that latents are put in at, evenly spaced; not the first ones, which hold next to nothing."""
        first, last = self.rounds // 6, self.rounds - self.horizon
        return [first + round((last - first) * i / max(self.starts - 1, 1)) for i in range(self.starts)]


FULL = Effort()
QUICK = Effort(known=48, test=24, rounds=20, starts=4, battery=12, scored=48, edits=240, untrained=2)


@dataclass(frozen=True)
class Samples:
    """The episodes of a comparison."""

    known: Any
    test: Any
    other: Any

    @classmethod
    def draw(cls, model: Machine, effort: Effort, sizes: dict[str, int]) -> Samples:
        """Episodes of a model's task and rates, of ``sizes``."""
        task = tasks.of(model)

        def sample(n: int, i: int) -> Any:
            options = {**task.data.sample_options(model), **sizes}
            return task.sample(n, effort.rounds, seed=3 * effort.seed + i, **options)

        return cls(sample(effort.known, 1000), sample(effort.test, 1001), sample(effort.test, 1002))


@dataclass(frozen=True, eq=False)
class Subject:
    """A model with the episodes of a comparison; in a session it is run once on each batch.

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

    def run(self, episodes: Any) -> Rollout:
        """The model's rollout of one of the three batches."""
        return once("compared", self.model, episodes, make=lambda: rollout(self.model.eval(), episodes))

    def decoder(self, algorithm: Algorithm, variable: str) -> Decoder:
        """Latents to a variable of the algorithm's state, fitted on the known episodes."""
        known = self.samples.known

        def fitted() -> Decoder:
            return Decoder.fit(self.run(known).latents[:, :-1], algorithm.run(known)[variable], ridge=RIDGE)

        about = "decoder", algorithm.key, repr(dict(algorithm.parameters)), variable
        return once(about, self.model, known, make=fitted)

    def writer(self, algorithm: Algorithm, keys: Sequence[str] = ()) -> Writer:
        """Decodes and moves the algorithm's state in the latents, fitted on the known episodes.

        Where no carried variable is named, those that the latents hold are decoded.
        """
        known, run = self.samples.known, self.run(self.samples.known)

        def fitted() -> Writer:
            if not keys:
                return Writer.of_state(self.model, run, algorithm, known)
            return Writer.fit(self.model, run, algorithm.run(known), tuple(keys), ridge=RIDGE)

        return once(("writer", tuple(keys)), self.model, algorithm, known, make=fitted)

    def claims(self) -> list[Claim]:
        """What the task claims of any model of its kind, at the places that these rounds have."""
        at = None, *self.run(self.samples.test).layout.labels, *(channel.name for channel in self.model.channels)
        return _at(Claim.of(self.model), lambda site: site.position in at)

    def inputs(self, algorithm: Algorithm) -> list[Claim]:
        """What the task claims of the algorithm's inputs, at the tokens of these rounds that say them."""
        said = [c for c in self.claims() if not c.control and c.variable in algorithm.of_the_inputs]
        return _at(said, lambda site: site.component == "embed" and site.position is not None)

    def causes(self, algorithm: Algorithm) -> list[tuple[str, ...]]:
        """The tokens at which the task says that an input acts on the state, each once."""
        sites = [tuple(str(p.site) for p in c.places) for c in self.inputs(algorithm) if c.outcome == "state"]
        return list(dict.fromkeys(sites))


def _at(claims: Sequence[Claim], belongs: Callable[[Site], bool]) -> list[Claim]:
    """The claims at those of their places whose sites belong; without claims that are left with none."""
    places = [tuple(place for place in claim.places if belongs(place.site)) for claim in claims]
    return [replace(claim, places=some) for claim, some in zip(claims, places, strict=True) if some]


def shared_sizes(models: Sequence[Machine]) -> dict[str, int]:
    """Sizes that every model serves: the task's default where all do, else the nearest."""
    task = tasks.of(models[0])
    for model in models[1:]:
        if model.layout.task != task.key:
            raise InputError(
                f"{models[0].name!r} is a model of {task.key}, {model.name!r} of {model.layout.task}; "
                "compare models of one task"
            )
    sizes = {}
    for size in task.sizes:
        ranges = []
        for model in models:
            own = int(getattr(model.layout, size.name))
            ranges.append(getattr(model.layout, f"{size.name}_range", None) or (own, own))
        low, high = max(r[0] for r in ranges), min(r[1] for r in ranges)
        require(
            low <= high,
            f"no {size.what} is served by all of "
            f"{', '.join(f'{m.name!r} ({a} to {b})' for m, (a, b) in zip(models, ranges, strict=True))}; "
            f"load the handwired model with {size.name}=...",
        )
        sizes[size.name] = min(max(size.default, low), high)
    return sizes


@dataclass(frozen=True)
class Verdict:
    """An answer and what decided it.

    Attributes:
        question: "behaviour", "state", "update" or "circuit" (in words: "roles").
        note: what goes with it, such as "if a is also given the round number".
        decided_by: what was measured, in words.
        bound: the number that decided, with its interval.
        threshold: what it was held against.
        control: the best of the untrained models at the same; NaN where there is none.
    """

    question: str
    word: Word
    note: str
    decided_by: str
    bound: Interval
    threshold: float
    control: float = float("nan")

    def __str__(self) -> str:
        said = f"{in_words(self.question)}: {self.word}" + (f" ({self.note})" if self.note else "")
        return f"{said}; {self.decided_by} {self.bound}, threshold {self.threshold}" if self.decided_by else said


def in_words(question: str) -> str:
    """What is the same or not, as tables and pages say it: of two circuits no more is asked than roles of their parts.

    >>> in_words("state"), in_words("circuit")
    ('state', 'roles')
    """
    return {"circuit": "roles"}.get(question, question)


def at_most(decided_by: str) -> bool:
    """Whether what decided a verdict must stay below its threshold: a share of rounds that are apart."""
    return decided_by.startswith("share of rounds")


def above(value: Interval, threshold: float) -> Word:
    """ "same" where the whole interval reaches the threshold, "different" where none of it does."""
    if value.low >= threshold:
        return "same"
    return "different" if value.high < threshold else "undecided"


def best(scores: Iterable[float]) -> float:
    """The largest score of the controls; those that overflowed have none. NaN where no control has any."""
    return max((score for score in scores if np.isfinite(score)), default=float("nan"))


def controlled(word: Word, value: Interval, control: float) -> tuple[Word, str]:
    """The word, and why it is "undecided" where it cannot stand: "same" needs a control, and to be above it."""
    if word == "same" and np.isnan(control):
        return "undecided", "there is no untrained control"
    if word == "same" and control >= value.low:
        return "undecided", "an untrained model does as well"
    return word, ""


@dataclass(frozen=True, eq=False)
class Compared:
    """A model and what it is held against.

    Attributes:
        reference: the other model; None where the model is held against algorithms alone.
        untrained, reference_untrained: fresh models of the shapes of the two, with the same samples.
        sets: episodes that tell algorithms apart, by name: (to fit on, to score on).
        parts: what was computed so far, by the key of its question.
    """

    model: Subject
    reference: Subject | None
    untrained: Sequence[Subject]
    reference_untrained: Sequence[Subject]
    effort: Effort
    sets: Mapping[str, tuple[Any, Any]]
    parts: dict[str, Any] = field(default_factory=dict)

    @property
    def pair(self) -> tuple[Subject, Subject]:
        """The model and its reference, for questions that are asked of two."""
        assert self.reference is not None
        return self.model, self.reference

    @cached_property
    def candidates(self) -> Mapping[str, Algorithm]:
        """Algorithms whose state is looked for: the closest one where it carries a state, then the reference's."""
        closest = self.parts["algorithm"].algorithm
        expected = self.model.task.explains((self.reference or self.model).model)
        first = {} if closest is None or not closest.state or closest.key == expected.key else {closest.key: closest}
        return {**first, expected.key: expected}


@dataclass(frozen=True)
class Question:
    """A part of every comparison, and the rule that judges it. Everything about one stands in one file.

    Attributes:
        key: names the part, its table and its verdict.
        kind: the dataclass that holds the part; its ``to_frame()`` is the table, where it has one.
        compute: makes the part.
        judge: gives the verdict when all parts are computed; None where the part is only measured.
        of_two: whether it is asked only where there is a reference.
        lacks: a sentence where a machine has not what the question asks about; empty where it has.
    """

    key: str
    kind: type
    compute: Callable[[Compared], Any]
    judge: Callable[[Compared], Verdict] | None = None
    of_two: bool = False
    lacks: Callable[[Machine], str] = lambda machine: ""

    def asked(self, compared: Compared) -> NotApplicable | None:
        """Why it cannot be asked of these models; None where it can."""
        of = compared.pair if self.of_two else (compared.model,)
        reasons = [reason for subject in of if (reason := self.lacks(subject.model))]
        return NotApplicable("; ".join(dict.fromkeys(reasons))) if reasons else None


@dataclass(frozen=True)
class NotApplicable:
    """What stands in the place of a part that a machine has not got, with the sentence that says what it lacks."""

    reason: str

    @property
    def note(self) -> str:
        """What is lacking, for verdicts, whose word says the rest."""
        return self.reason.replace("not applicable: ", "")

    def to_frame(self) -> pd.DataFrame:
        """One row: no number, and why."""
        return pd.DataFrame([{"name": "not applicable", "what": self.note, **bounds(None)}])

    def verdict(self, question: str) -> Verdict:
        """The verdict on the question that cannot be asked."""
        return Verdict(question, "not applicable", self.note, "", NO_NUMBER, float("nan"))


def bounds(value: Interval | None, prefix: str = "") -> dict[str, float]:
    """An interval as three columns of a table: value, low, high; NaN where there is none."""
    numbers = (float("nan"),) * 3 if value is None else (value.estimate, value.low, value.high)
    return {f"{prefix}{name}": number for name, number in zip(("value", "low", "high"), numbers, strict=True)}
