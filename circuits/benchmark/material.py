"""What all methods of one subject share: episodes, rollouts, pairs, cuts; each is made once, when first asked for.

A method is charged for all that it uses, whoever asked for it first (:meth:`Material.charged`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Float

from circuits.benchmark.known_machine import KnownMachine
from circuits.benchmark.question import QUESTIONS, Truth
from interp.core.algorithm import Values
from interp.interventions.ablation import CircuitScorer
from interp.interventions.edge_graph import EdgeGraph
from interp.interventions.pairs import Metric, Pair, Readout, find_metric, prepare
from interp.model.rollout import rollout
from interp.model.run import Rollout
from interp.support.checks import checked_fields

_T = TypeVar("_T")
Exit = Literal["prediction", "state", "latents"]


_METRICS: dict[Exit, Metric] = {
    "prediction": find_metric("logit_diff"),
    "state": find_metric("state"),
    "latents": Metric(
        "latents",
        "distance of the raw latents",
        "latent",
        lambda readout, pair: (
            -(readout.latents - pair.clean_readout.latents).flatten(-2).norm(dim=-1)
        ),
        needs_update=True,
    ),
}
"""What a round gives, and the metric that reads it: the prediction, the state in directions that are known to hold it,
and the raw latents, in which whatever was not cleared away shows, read by anyone or not."""
EXITS: tuple[Exit, ...] = ("prediction", "state")
ANOTHER = "another-episode"
"""The corruption that takes another episode as it is, so that everything differs that can: history and round."""
_SMALLEST = (
    1e-9  # a pair whose two sides differ by less than this, in the metric's unit, says nothing
)


@dataclass(frozen=True)
@checked_fields
class Workload:
    """How much of everything is done.

    Attributes:
        episodes: of each batch; the rows of a pair.
        round, early: in which edges and nodes are asked for; another round, where methods look at two.
        fits: episodes on which what is learned (probes, subspaces) is learned, by ``steps`` of an optimiser.
    """

    episodes: int = 8
    rounds: int = 12
    round: int = 8
    early: int = 2
    fits: int = 64
    steps: int = 80


FULL = Workload()
QUICK = Workload(fits=32, steps=40)


@dataclass(frozen=True, eq=False)
class Case:
    """A pair of sides that a corruption (its key) makes differ, read through one exit.

    ``scale`` is by how much they differ in the metric, on average over episodes: what effects are shares of.
    """

    corruption: str
    exit: Exit
    round: int
    pair: Pair
    metric: Metric
    scale: float


class Material:
    """What methods share; ``seed`` is that of the episodes and of what methods draw."""

    def __init__(self, subject: KnownMachine, effort: Workload = FULL, seed: int = 0) -> None:
        self.subject, self.effort, self.seed = subject, effort, seed
        self._made: dict[Hashable, Any] = {}
        self._cost: dict[Hashable, float] = {}
        self._below: dict[Hashable, set[Hashable]] = {}
        self._open: list[tuple[set[Hashable], list[float]]] = []

    def once(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """What ``make`` gives, made only the first time that ``key`` is asked for."""
        if key not in self._made:
            self._made[key], self._cost[key], self._below[key] = self._timed(make)
        if self._open:
            self._open[-1][0].update({key}, self._below[key])
        return self._made[key]

    def charged(self, ask: Callable[[], _T]) -> tuple[_T, float]:
        """What ``ask`` gives, and its CPU seconds: its own, and those of everything shared that it used."""
        answer, seconds, used = self._timed(ask)
        return answer, seconds + sum(self._cost[key] for key in used)

    def _timed(self, make: Callable[[], _T]) -> tuple[_T, float, set[Hashable]]:
        """What ``make`` gives, its CPU seconds without those of what was made for it, and the keys of all it used."""
        used: set[Hashable] = set()
        inside = [0.0]
        self._open.append((used, inside))
        start = time.process_time()
        try:
            made = make()
        finally:
            self._open.pop()
        spent = time.process_time() - start
        if self._open:
            self._open[-1][1][0] += spent
        return made, spent - inside[0], used

    def truth(self, question: str) -> Truth:
        """Every item of a question and its kind, "" where it is false."""
        key = ("truth", question)
        if key not in self._made:  # by no `once`: no method pays for what the truth took
            self._made[key] = self._timed(lambda: QUESTIONS[question].truth(self.subject, self))[0]
        return cast(Truth, self._made[key])

    def items(self, question: str) -> list[Any]:
        """The items that a question asks about: all that a method may know of the truth."""
        return list(self.truth(question))

    def episodes(self, batch: int = 0, n: int | None = None) -> Any:
        """Episodes of the subject's task, the effort's number when ``n`` is None; batches are independent."""
        n = self.effort.episodes if n is None else n
        seed = int(np.random.SeedSequence([self.seed, batch]).generate_state(1)[0]) % 2**31
        make = partial(
            self.subject.task.sample_for, self.subject.model, n, self.effort.rounds, seed
        )
        return self.once(("episodes", batch, n), make)

    def run(self, batch: int = 0, n: int | None = None) -> Rollout:
        """The subject's rollout of a batch of episodes."""
        return self.once(
            ("run", batch, n), lambda: rollout(self.subject.model, self.episodes(batch, n))
        )

    @property
    def graph(self) -> EdgeGraph:
        """The edges of the subject's model, made once."""
        return self.once("graph", lambda: EdgeGraph(self.subject.transformer))

    @property
    def candidates(self) -> list[tuple[int, int]]:
        """Every edge that could be true, as the graph's indices: all but those of heads and MLPs that write nothing."""
        return self.once(
            "candidates", lambda: [edge for edge in self.graph.edges if self.graph.live[edge]]
        )

    @property
    def edge_names(self) -> list[tuple[str, str]]:
        """The names of the ends of every candidate edge, in the order of :attr:`candidates`."""
        graph = self.graph
        return [(graph.sources[s], graph.destinations[d]) for s, d in self.candidates]

    @property
    def variables(self) -> Values:
        """The algorithm's variables on the larger batch of episodes, ``[episode, round, ...]``."""
        return self.once(
            "variables", lambda: self.subject.algorithm.run(self.episodes(1, self.effort.fits))
        )

    @property
    def corruptions(self) -> tuple[str, ...]:
        """Keys of the task's corruptions, the default first."""
        first = self.subject.task.analysis.default_corruption
        return tuple(
            sorted(
                (c.key for c in self.subject.task.analysis.corruptions()),
                key=lambda key: key != first,
            )
        )

    def pair(self, corruption: str, round: int | None = None) -> Pair:
        """The clean and the corrupted run of a corruption, prepared at a round; at the effort's when None."""
        model, t = self.subject.model, self.effort.round if round is None else round

        def make() -> Pair:
            if corruption == ANOTHER:
                clean = self.episodes()
                return prepare(model, clean, clean.select([*range(1, len(clean)), 0]), t)
            return prepare(
                model, *self.subject.task.corruption(corruption).build(self.episodes(), t), t
            )

        return self.once(("pair", corruption, t), make)

    def cases(
        self,
        exits: Sequence[Exit] = EXITS,
        rounds: Sequence[int] | None = None,
        corruptions: Sequence[str] | None = None,
    ) -> list[Case]:
        """Every corruption read through each exit at which its two sides differ; the default corruption first.

        ``corruptions`` are keys of the task's (all of them when None), or :data:`ANOTHER`.
        """
        rounds = (self.effort.round,) if rounds is None else rounds
        corruptions = self.corruptions if corruptions is None else corruptions
        asked = [
            (corruption, exit, t) for t in rounds for corruption in corruptions for exit in exits
        ]
        every = (self.once(("case", *one), partial(self._case, *one)) for one in asked)
        return [case for case in every if case.scale > _SMALLEST]

    def _case(self, corruption: str, exit: Exit, t: int) -> Case:
        pair, metric = self.pair(corruption, t), _METRICS[exit]
        clean, corrupted = (
            metric.measure(side, pair) for side in (pair.clean_readout, pair.corrupted_readout)
        )
        return Case(corruption, exit, t, pair, metric, float((clean - corrupted).abs().mean()))

    def case(self, exit: Exit) -> Case | None:
        """The first corruption that shows at an exit."""
        return next(iter(self.cases((exit,))), None)

    def scorer(self, case: Case, ablation: str, purpose: str = "") -> CircuitScorer:
        """Measures circuits of a case; what it has run for another purpose is run, and charged, again."""
        key = ("scorer", case.corruption, case.round, ablation, purpose)
        scorer = self.once(key, lambda: CircuitScorer(case.pair, case.metric, ablation))
        return self.once((*key, case.exit), lambda: scorer.through(case.metric))

    def cut(self, corruption: str, ablation: str, t: int) -> Readout:
        """The clean run with every candidate edge cut on its own, ``[edge, episode]`` as :attr:`candidates`."""
        corruption = self.corruptions[0] if ablation == "zero" else corruption

        def make() -> Readout:
            scorer = CircuitScorer(self.pair(corruption, t), _METRICS["prediction"], ablation)
            circuits = {edge: scorer.graph.mask() for edge in self.candidates}
            for edge, keep in circuits.items():
                keep[edge] = False
            order = sorted(
                circuits, key=lambda edge: edge[1]
            )  # circuits run from the first layer that any cuts
            ran = dict(zip(order, scorer.run([circuits[edge] for edge in order]), strict=True))
            sides = ((ran[edge].predictions, ran[edge].latents) for edge in self.candidates)
            return Readout(*map(torch.stack, zip(*sides, strict=True)))

        return self.once(("cut", corruption, ablation, t), make)

    def drops(self, case: Case, ablation: str) -> Float[np.ndarray, "edge episode"]:
        """By how much the metric drops when each candidate edge is cut, as shares of the case's scale."""
        cut = self.cut(case.corruption, ablation, case.round)
        with torch.no_grad():
            full, left = (
                case.metric.measure(side, case.pair) for side in (case.pair.clean_readout, cut)
            )
        return np.asarray((full - left).double().numpy(force=True) / case.scale)
