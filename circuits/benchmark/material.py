"""What all methods of one subject share: episodes, rollouts, pairs, cuts; each is made once, when first asked for.

A method is charged for all that it uses, whoever asked for it first (:meth:`Material.charged`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float

from circuits.benchmark.cuts import cut_each
from circuits.benchmark.question import Truth
from circuits.benchmark.subject import Subject, candidates
from interp.interventions.ablation import CircuitScorer
from interp.interventions.graph import Contributions, EdgeGraph, ablated
from interp.interventions.metrics import Metric
from interp.interventions.metrics import metric as find_metric
from interp.interventions.pairs import Pair, Readout, prepare
from interp.interventions.resume import one_round
from interp.model.rollout import Rollout, rollout

T = TypeVar("T")
EXITS = {"prediction": "logit_diff", "state": "state"}
"""The two exits of a round, and the metric that reads each."""
SMALLEST = 1e-9
"""A pair whose two sides differ by less than this, in the metric's unit, says nothing."""


@dataclass(frozen=True)
class Effort:
    """How much of everything is done.

    Attributes:
        episodes: of each batch; the rows of a pair.
        rounds: of an episode.
        round: in which edges and nodes are asked for.
        fits: episodes on which what is learned (probes, subspaces) is learned.
        steps: of optimisers.
    """

    episodes: int = 16
    rounds: int = 12
    round: int = 8
    fits: int = 64
    steps: int = 80


FULL = Effort()
QUICK = Effort(episodes=8, fits=32, steps=40)


@dataclass(frozen=True, eq=False)
class Case:
    """A pair read through one exit.

    Attributes:
        corruption: key of what makes the two sides differ.
        exit: "prediction" or "state".
        scale: by how much the two sides differ in the metric, on average over episodes: what effects are shares of.
    """

    corruption: str
    exit: str
    pair: Pair
    metric: Metric
    scale: float


class Material:
    """What methods share.

    Args:
        seed: of the episodes and of what methods draw.
    """

    def __init__(self, subject: Subject, effort: Effort = FULL, seed: int = 0) -> None:
        self.subject, self.effort, self.seed = subject, effort, seed
        self._made: dict[Hashable, Any] = {}
        self._cost: dict[Hashable, float] = {}
        self._below: dict[Hashable, set[Hashable]] = {}
        self._open: list[tuple[set[Hashable], list[float]]] = []

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` gives, made only the first time that ``key`` is asked for."""
        if key not in self._made:
            used: set[Hashable] = set()
            inside = [0.0]
            self._open.append((used, inside))
            start = time.process_time()
            try:
                self._made[key] = make()
            finally:
                self._open.pop()
            spent = time.process_time() - start
            self._cost[key], self._below[key] = spent - inside[0], used
            if self._open:
                self._open[-1][1][0] += spent
        if self._open:
            self._open[-1][0].update({key}, self._below[key])
        return self._made[key]

    def charged(self, ask: Callable[[], T]) -> tuple[T, float]:
        """What ``ask`` gives, and its CPU seconds: its own, and those of everything shared that it used."""
        used: set[Hashable] = set()
        inside = [0.0]
        self._open.append((used, inside))
        start = time.process_time()
        try:
            given = ask()
        finally:
            self._open.pop()
        own = time.process_time() - start - inside[0]
        return given, own + sum(self._cost[key] for key in used)

    def truth(self, question: str) -> Truth:
        """Every item of a question and its kind, "" where it is false."""
        from circuits.benchmark.questions import QUESTIONS

        return self.once(("truth", question), lambda: QUESTIONS[question].truth(self.subject, self))

    def items(self, question: str) -> list[Any]:
        """The items that a question asks about: all that a method may know of the truth."""
        return list(self.truth(question))

    def episodes(self, batch: int = 0, n: int | None = None) -> Any:
        """Episodes of the subject's task; batches are independent of each other.

        Args:
            n: how many; the effort's when None.
        """
        n = self.effort.episodes if n is None else n
        seed = int(np.random.SeedSequence([self.seed, batch]).generate_state(1)[0]) % 2**31
        make = partial(self.subject.task.sample_for, self.subject.model, n, self.effort.rounds, seed)
        return self.once(("episodes", batch, n), make)

    def run(self, batch: int = 0, n: int | None = None) -> Rollout:
        """The subject's rollout of a batch of episodes."""
        episodes = self.episodes(batch, n)
        return self.once(("run", batch, n), lambda: rollout(self.subject.model, episodes))

    @property
    def graph(self) -> EdgeGraph:
        return self.once("graph", lambda: EdgeGraph(self.subject.model))

    @property
    def candidates(self) -> list[tuple[int, int]]:
        """Every edge that could be true, as the graph's indices."""
        kept = self.once("candidates", lambda: candidates(self.subject.model))
        return [edge for edge in self.graph.edges if kept[edge]]

    @property
    def corruptions(self) -> tuple[str, ...]:
        """Keys of the task's corruptions, the default first."""
        first = self.subject.task.default_corruption
        return tuple(sorted((c.key for c in self.subject.task.corruptions()), key=lambda key: key != first))

    def pair(self, corruption: str) -> Pair:
        """The clean and the corrupted run of a corruption, prepared at the effort's round."""
        model, t = self.subject.model, self.effort.round

        def make() -> Pair:
            built = self.subject.task.corruption(corruption).build(self.episodes(), t)
            return prepare(model, *built, t)

        return self.once(("pair", corruption), make)

    @property
    def cases(self) -> tuple[Case, ...]:
        """Every corruption read through each exit at which its two sides differ."""

        def make() -> tuple[Case, ...]:
            found = []
            for corruption in self.corruptions:
                pair = self.pair(corruption)
                for exit, key in EXITS.items():
                    metric = find_metric(key)
                    sides = (metric.measure(side, pair) for side in (pair.clean_readout, pair.corrupted_readout))
                    scale = float((next(sides) - next(sides)).abs().mean())
                    if scale > SMALLEST:
                        found.append(Case(corruption, exit, pair, metric, scale))
            return tuple(found)

        return self.once("cases", make)

    def case(self, exit: str) -> Case | None:
        """The first corruption that shows at an exit."""
        return next((case for case in self.cases if case.exit == exit), None)

    def scorer(self, case: Case, ablation: str) -> CircuitScorer:
        """Measures circuits of a case."""
        key = ("scorer", case.corruption, case.exit, ablation)
        return self.once(key, lambda: CircuitScorer(case.pair, case.metric, ablation))

    def contributions(self, corruption: str, side: str) -> Contributions:
        """What every source writes on one side of a pair: "clean" or "corrupted"."""
        pair = self.pair(corruption)
        key = ("contributions", "" if side == "clean" else corruption)  # all pairs share their clean side
        return self.once(key, lambda: self.graph.contributions(getattr(pair, side), pair.round))

    def cut(self, corruption: str, ablation: str) -> Readout:
        """The clean run with every candidate edge cut on its own, ``[edge, episode]`` as :attr:`candidates`."""
        if ablation == "zero":
            corruption = self.corruptions[0]

        def make() -> Readout:
            clean, other = (self.contributions(corruption, side) for side in ("clean", "corrupted"))
            change = ablated(self.graph, other, ablation) - clean.values
            pair = self.pair(corruption)
            rounds, latents = one_round(pair.clean, pair.round), pair.clean.latents[:, pair.round]
            return cut_each(self.graph, rounds, latents, change, self.candidates)

        return self.once(("cut", corruption, ablation), make)

    def drops(self, case: Case, ablation: str) -> Float[np.ndarray, "edge episode"]:
        """By how much the metric drops when each candidate edge is cut, as shares of the case's scale."""
        cut = self.cut(case.corruption, ablation)
        with torch.no_grad():
            full = case.metric.measure(case.pair.clean_readout, case.pair)
            lost = full - case.metric.measure(cut, case.pair)
        return np.asarray(lost.double().numpy(force=True) / case.scale)
