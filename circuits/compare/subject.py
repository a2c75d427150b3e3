"""What is compared: models of one task on the same episodes, each run once, and how much of everything is done.

A comparison fits maps and decoders on some episodes ("known"), scores them on others ("test"), and takes the values
that variables are set to from a third batch ("other"). Both models read the same three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from interp import tasks
from interp.algorithm import Algorithm
from interp.checks import check_fields
from interp.decoder import RIDGE, Decoder
from interp.errors import InputError, require
from interp.interventions.carriers import Claim
from interp.model.rollout import rollout
from interp.model.run import Rollout
from interp.model.transformer import HookedLatentTransformer
from interp.task import Task


@dataclass(frozen=True)
class Effort:
    """How much of everything a comparison does.

    Attributes:
        known, test: episodes that maps are fitted on, and scored on.
        rounds: of every episode.
        horizon: rounds that a model runs on from latents that were put in.
        starts: how many rounds they are put in at.
        battery: episodes of each set on which algorithms are told apart.
        untrained: how many untrained models are the control.
        seed: of every draw.
    """

    known: int = 128
    test: int = 48
    rounds: int = 30
    horizon: int = 5
    starts: int = 8
    battery: int = 48
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
        require(self.untrained >= 1, f"the control needs at least 1 untrained model, got {self.untrained}")

    def of_rounds(self, rounds: int) -> Effort:
        """The same with ``rounds`` per episode; where they are few, models start in fewer rounds and run on for less.

        >>> short = Effort().of_rounds(6)
        >>> short.rounds, short.horizon, short.starts
        (6, 2, 3)

        Raises:
            InputError: fewer than 3 rounds.
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
QUICK = Effort(known=48, test=24, rounds=20, starts=4, battery=12, untrained=2)


@dataclass(frozen=True)
class Samples:
    """The episodes of a comparison."""

    known: Any
    test: Any
    other: Any

    @classmethod
    def draw(cls, model: HookedLatentTransformer, effort: Effort, sizes: dict[str, int]) -> Samples:
        """Episodes of a model's task and rates, of ``sizes``."""
        task = tasks.of(model)

        def sample(n: int, i: int) -> Any:
            options = {**task.sample_options(model), **sizes}
            return task.sample(n, effort.rounds, seed=3 * effort.seed + i, **options)

        return cls(sample(effort.known, 1000), sample(effort.test, 1001), sample(effort.test, 1002))


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, and its rollouts of the comparison's episodes, each made once.

    Attributes:
        label: what it is called where its own name would not do; its name when empty.
    """

    model: HookedLatentTransformer
    samples: Samples
    label: str = ""
    _runs: dict[int, Rollout] = field(default_factory=dict, repr=False)
    _decoders: dict[tuple[str, ...], Decoder] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The label, or the model's own name where there is none."""
        return self.label or self.model.config.name

    @property
    def task(self) -> Task:
        """The record of the model's task."""
        return tasks.of(self.model)

    def run(self, episodes: Any) -> Rollout:
        """The model's rollout of one of the three batches."""
        if id(episodes) not in self._runs:
            self._runs[id(episodes)] = rollout(self.model.eval(), episodes)
        return self._runs[id(episodes)]

    def decoder(self, algorithm: Algorithm, variable: str) -> Decoder:
        """Latents to a variable of the algorithm's state, fitted on the known episodes, once."""
        key = algorithm.key, repr(dict(algorithm.parameters)), variable
        if key not in self._decoders:
            known = self.samples.known
            latents, held = self.run(known).latents[:, :-1], algorithm.run(known)[variable]
            self._decoders[key] = Decoder.fit(latents, held, ridge=RIDGE)
        return self._decoders[key]

    def claims(self) -> list[Claim]:
        """What the task claims of any model of its kind, at the places that these rounds have."""
        labels, found = self.run(self.samples.test).layout.labels, []
        for claim in self.task.claims(self.model):
            places = tuple(p for p in claim.places if p.site.position is None or p.site.position in labels)
            if places:
                found.append(replace(claim, places=places))
        return found

    def inputs(self, algorithm: Algorithm) -> list[Claim]:
        """What the task claims of the algorithm's inputs, at the tokens of these rounds that say them."""
        found = []
        for claim in self.claims():
            places = tuple(p for p in claim.places if p.site.component == "embed" and p.site.position is not None)
            if places and not claim.control and claim.variable in algorithm.of_the_inputs:
                found.append(replace(claim, places=places))
        return found

    def causes(self, algorithm: Algorithm) -> list[tuple[str, ...]]:
        """The tokens at which the task says that an input acts on the state, each once."""
        sites = [tuple(str(p.site) for p in c.places) for c in self.inputs(algorithm) if c.outcome == "state"]
        return list(dict.fromkeys(sites))


def shared_sizes(models: Sequence[HookedLatentTransformer]) -> dict[str, int]:
    """Sizes that every model serves: the task's default where all do, else the nearest.

    Raises:
        InputError: models of different tasks, or that share no size.
    """
    task = tasks.of(models[0])
    for model in models[1:]:
        if model.layout.task != task.key:
            raise InputError(
                f"{models[0].config.name!r} is a model of {task.key}, {model.config.name!r} of {model.layout.task}; "
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
            f"{', '.join(f'{m.config.name!r} ({a} to {b})' for m, (a, b) in zip(models, ranges, strict=True))}; "
            f"load the handwired model with {size.name}=...",
        )
        sizes[size.name] = min(max(size.default, low), high)
    return sizes
