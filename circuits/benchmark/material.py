"""Episodes, runs, clean and corrupted pairs, and edge ablations that all methods share on one
subject.

Each is computed at most once, on first use. The measured CPU time of a method includes the time of
everything that it uses, even if another method used it first (:meth:`Material.measure_cost`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
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
from interp.support.checks import checked_fields, checked_result

_T = TypeVar("_T")
Exit = Literal["prediction", "state", "latents"]


def _measure_latents(readout: Readout, pair: Pair) -> torch.Tensor:
    """Measure how far a run's latents are from those of the clean run: minus the Euclidean distance
    over all latents and coordinates, one number per episode.

    Args:
        readout: predictions and latents of the run, ``[..., latent, d_model]``.
        pair: the clean and the corrupted run.
    """
    distance = readout.latents - pair.clean_readout.latents
    return -distance.flatten(-2).norm(dim=-1)


_METRICS: dict[Exit, Metric] = {
    "prediction": find_metric("logit_diff"),
    "state": find_metric("state"),
    "latents": Metric(
        "latents", "distance of the raw latents", "latent", _measure_latents, needs_update=True
    ),
}
"""The metric that reads each exit of a round: the prediction, the state or the latents.

"state" reads the latents along the directions that are known to hold the state. "latents" reads all
their coordinates, including values that nothing reads.
"""
EXITS: tuple[Exit, ...] = ("prediction", "state")
ANOTHER = "another-episode"
"""The corruption that replaces each episode by another one, so that history and current round
differ.
"""
FITTING_BATCH = 1
"""Number of the batch of episodes on which probes and decoders are fitted."""
_SMALLEST_DIFFERENCE = 1e-9
"""A pair is left out if clean and corrupted run differ by less than this, in the metric's unit."""


@dataclass(frozen=True)
@checked_fields
class Workload:
    """How many episodes, rounds and optimiser steps are computed for one subject of the benchmark.

    Attributes:
        episodes: number of episodes in a batch; also the number of pairs of a clean and a corrupted
            episode.
        rounds: rounds per episode.
        round: index of the round in which edges and nodes are studied.
        early: index of an earlier round, for methods that study two rounds.
        fits: number of episodes on which probes and subspaces are fitted.
        steps: steps of the optimiser that fits subspaces.
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
@checked_result
class Case:
    """A clean run and a corrupted run of the same episodes, together with the metric that compares
    them.

    Attributes:
        corruption: key of the corruption: how the corrupted episodes are made from the clean ones.
        exit: what the metric reads: "prediction", "state" or "latents".
        round: index of the corrupted round.
        pair: the two runs.
        metric: the metric, which turns the output of a run into one number per episode.
        scale: absolute difference of the metric between the two runs, averaged over episodes.
            Methods divide their effects by ``scale``, so that an effect of 1 is that of the whole
            corruption.
    """

    corruption: str
    exit: Exit
    round: int
    pair: Pair
    metric: Metric
    scale: float


@dataclass
class _OpenCall:
    """A function that runs now and whose CPU time is measured.

    Attributes:
        used: keys of the shared results that it used so far.
        seconds_of_results: CPU seconds of the shared results that were computed for it so far.
    """

    used: set[Hashable] = field(default_factory=set)
    seconds_of_results: float = 0.0


class Material:
    """The episodes, runs and ablations of one subject of the benchmark. All methods share them;
    each is computed on first use.

    Args:
        subject: the machine.
        effort: how many episodes, rounds and optimiser steps are computed.
        seed: seed of the episodes and of the methods' random draws.
    """

    def __init__(self, subject: KnownMachine, effort: Workload = FULL, seed: int = 0) -> None:
        self.subject = subject
        self.effort = effort
        self.seed = seed
        self._results: dict[Hashable, Any] = {}
        self._cpu_seconds: dict[Hashable, float] = {}
        self._used_by: dict[Hashable, set[Hashable]] = {}
        self._open_calls: list[_OpenCall] = []  # the innermost last

    def compute_once(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Return the cached result for a key; compute it if there is none yet.

        Args:
            key: name of the result.
            make: function without arguments that computes the result.
        """
        if key not in self._results:
            result, seconds, used = self._measure_time(make)
            self._results[key], self._cpu_seconds[key], self._used_by[key] = result, seconds, used
        if self._open_calls:  # the innermost call uses this result, and what the result used
            self._open_calls[-1].used.update({key}, self._used_by[key])
        return self._results[key]

    def measure_cost(self, ask: Callable[[], _T]) -> tuple[_T, float]:
        """Call a method, and measure its CPU time.

        The time includes computing every shared result that the method used, even if another method
        caused this computation.

        Args:
            ask: function without arguments that calls the method.

        Returns:
            A pair: the result of ``ask``, and the CPU seconds.
        """
        answer, own_seconds, used = self._measure_time(ask)
        seconds_of_results = sum(self._cpu_seconds[key] for key in used)  # not in own_seconds
        return answer, own_seconds + seconds_of_results

    def _measure_time(self, make: Callable[[], _T]) -> tuple[_T, float, set[Hashable]]:
        """Call a function and measure its CPU time.

        Args:
            make: function without arguments.

        Returns:
            Its result; its CPU seconds, without those of shared results that were computed during
            the call; and the keys of all shared results that it used.
        """
        call = _OpenCall()
        self._open_calls.append(call)
        start = time.process_time()
        try:
            result = make()
        finally:
            self._open_calls.pop()
        seconds = time.process_time() - start
        if self._open_calls:  # this call was made during another one, which does not pay for it
            self._open_calls[-1].seconds_of_results += seconds
        return result, seconds - call.seconds_of_results, call.used

    def truth(self, question: str) -> Truth:
        """Return the true answer to a question of the benchmark about the machine: which of the
        question's items (such as all edges) are true.

        Args:
            question: key of the question, such as "edges".

        Returns:
            A mapping from every item to its kind. A true item has a kind with a name, such as
            "content", and a false item has the kind "". The mapping is empty if the truth is
            unknown.
        """
        key = ("truth", question)
        if key not in self._results:  # by no `compute_once`: no method pays for what the truth took
            challenge = QUESTIONS[question]
            self._results[key], *_ = self._measure_time(lambda: challenge.truth(self.subject, self))
        return cast(Truth, self._results[key])

    def items(self, question: str) -> list[Any]:
        """Return what a method must sort into true and false to answer a question, such as all
        candidate edges.

        Args:
            question: key of the question, such as "edges".
        """
        return list(self.truth(question))

    def episodes(self, batch: int = 0, n: int | None = None) -> Any:
        """Return a batch of sampled episodes of the subject's task.

        Args:
            batch: number of the batch; each number gives independent episodes.
            n: number of episodes; ``effort.episodes`` when None.
        """
        n_episodes = self.effort.episodes if n is None else n
        # A seed from the pair (seed, batch), in the range that samplers accept.
        state = np.random.SeedSequence([self.seed, batch]).generate_state(1)
        seed = int(state[0]) % 2**31
        subject, n_rounds = self.subject, self.effort.rounds
        make = partial(subject.task.sample_for, subject.model, n_episodes, n_rounds, seed)
        return self.compute_once(("episodes", batch, n_episodes), make)

    def run(self, batch: int = 0, n: int | None = None) -> Rollout:
        """Run the subject on a batch of episodes.

        Args:
            batch, n: number of the batch and number of episodes, as for :meth:`episodes`.
        """

        def make() -> Rollout:
            return rollout(self.subject.model, self.episodes(batch, n))

        return self.compute_once(("run", batch, n), make)

    @property
    def graph(self) -> EdgeGraph:
        """The edge graph of the subject's model."""
        return self.compute_once("graph", lambda: EdgeGraph(self.subject.transformer))

    @property
    def candidates(self) -> list[tuple[int, int]]:
        """Every edge that could be part of the mechanism, as (source index, destination index) in
        the edge graph. Edges from heads and MLPs that only write zeros are left out.
        """
        graph = self.graph
        return self.compute_once(
            "candidates", lambda: [edge for edge in graph.edges if graph.live[edge]]
        )

    @property
    def edge_names(self) -> list[tuple[str, str]]:
        """Every edge that could be part of the mechanism, as (name of the source, name of the
        destination), in the order of :attr:`candidates`.
        """
        graph = self.graph
        return [(graph.sources[s], graph.destinations[d]) for s, d in self.candidates]

    @property
    def variables(self) -> Values:
        """Key of a variable -> its values ``[episode, round, ...]`` in the subject's algorithm, on
        the episodes for fitting probes.
        """

        def make() -> Values:
            return self.subject.algorithm.run(self.episodes(FITTING_BATCH, self.effort.fits))

        return self.compute_once("variables", make)

    @property
    def corruptions(self) -> tuple[str, ...]:
        """Keys of the task's corruptions (how a corrupted episode is made from a clean one), the
        default first.
        """
        analysis = self.subject.task.analysis
        keys = [corruption.key for corruption in analysis.corruptions()]
        # The default first (False sorts before True), the others in their order.
        return tuple(sorted(keys, key=lambda key: key != analysis.default_corruption))

    def pair(self, corruption: str, round: int | None = None) -> Pair:
        """Run the clean episodes and a corrupted version of them, and return both runs as a pair.

        Args:
            corruption: key of the corruption: how the corrupted episodes are made. With
                "another-episode", the corrupted episode is the next one of the batch.
            round: index of the corrupted round; ``effort.round`` when None.
        """
        model = self.subject.model
        t = self.effort.round if round is None else round

        def make() -> Pair:
            """Make the corrupted episodes, and run both."""
            clean = self.episodes()
            if corruption == ANOTHER:
                corrupted = clean.select([*range(1, len(clean)), 0])
            else:
                clean, corrupted = self.subject.task.corruption(corruption).build(clean, t)
            return prepare(model, clean, corrupted, t)

        return self.compute_once(("pair", corruption, t), make)

    def cases(
        self,
        exits: Sequence[Exit] = EXITS,
        rounds: Sequence[int] | None = None,
        corruptions: Sequence[str] | None = None,
    ) -> list[Case]:
        """List the cases. A case is a clean run and a corrupted run, with a metric that compares
        them. There is one case for each combination of a round, a corruption and an exit (the
        output that is compared). Combinations for which both runs have the same output are left
        out.

        Args:
            exits: what is compared: "prediction", "state" (the latents along the directions that
                store the state) or "latents" (all their coordinates).
            rounds: indices of the corrupted rounds; only ``effort.round`` when None.
            corruptions: keys of corruptions (how corrupted episodes are made). :data:`ANOTHER`
                replaces every episode by another one. None takes all corruptions of the task, the
                default one first.
        """
        rounds = (self.effort.round,) if rounds is None else rounds
        corruptions = self.corruptions if corruptions is None else corruptions
        cases = []
        for t, corruption, exit in product(rounds, corruptions, exits):
            make = partial(self._make_case, corruption, exit, t)
            case = self.compute_once(("case", corruption, exit, t), make)
            if case.scale > _SMALLEST_DIFFERENCE:
                cases.append(case)
        return cases

    def _make_case(self, corruption: str, exit: Exit, t: int) -> Case:
        """Make a case: a clean and a corrupted run, with the metric of one output and the size of
        the corruption's effect.

        Args:
            corruption: key of the corruption: how corrupted episodes are made.
            exit: the output that is compared: "prediction", "state" or "latents".
            t: index of the corrupted round.
        """
        pair, metric = self.pair(corruption, t), _METRICS[exit]
        clean = metric.measure(pair.clean_readout, pair)
        difference = clean - metric.measure(pair.corrupted_readout, pair)
        scale = float(difference.abs().mean())
        return Case(
            corruption=corruption, exit=exit, round=t, pair=pair, metric=metric, scale=scale
        )

    def case(self, exit: Exit) -> Case | None:
        """Return the case (a clean and a corrupted run, and a metric) of the first of the task's
        corruptions that changes an output. Return None if none changes it.

        Args:
            exit: the output: "prediction", "state" or "latents".
        """
        cases = self.cases((exit,))
        return cases[0] if cases else None

    def scorer(self, case: Case, ablation: str, purpose: str = "") -> CircuitScorer:
        """Return an object that scores circuits (sets of edges) by the metric of a case.

        Args:
            case: the clean and the corrupted run, and the metric.
            ablation: what edges outside the circuit carry: "zero", "mean" or "resample" (their
                value in the corrupted run).
            purpose: label of the caller, such as "grades". Scorers with the same corruption, round,
                ablation and purpose share their runs of circuits, also if their metrics differ. A
                method that is timed needs a purpose of its own: its time would lack runs that
                another caller made.
        """
        key = ("scorer", case.corruption, case.round, ablation, purpose)
        scorer = self.compute_once(key, lambda: CircuitScorer(case.pair, case.metric, ablation))
        return self.compute_once((*key, case.exit), lambda: scorer.with_metric(case.metric))

    def run_edge_cuts(self, corruption: str, ablation: str, t: int) -> Readout:
        """Run the clean episodes once per candidate edge, with this edge cut: another value
        replaces the source's output where the destination reads it.

        Args:
            corruption: key of the corruption, which makes the corrupted run. The ablation "zero"
                does not use it.
            ablation: the value that the destination reads in place of the source's output: "zero";
                "mean", the mean over episodes of this output in the corrupted run; or "resample",
                this output in the corrupted run.
            t: index of the round in which edges are cut.

        Returns:
            The predictions and latents of these runs, each ``[edge, episode, ...]``, with edges in
            the order of :attr:`candidates`.
        """
        # Zeros do not depend on the corruption: one run serves all.
        corruption = self.corruptions[0] if ablation == "zero" else corruption

        def make() -> Readout:
            """Run one circuit per candidate edge: all edges without this one."""
            # A scorer needs a metric; here only the readouts are used, which do not depend on it.
            scorer = CircuitScorer(self.pair(corruption, t), _METRICS["prediction"], ablation)
            # In order of destination, since circuits that run as a batch start at the first layer
            # that any of them cuts.
            order = sorted(self.candidates, key=lambda edge: edge[1])
            circuits = []
            for edge in order:
                kept_edges = scorer.graph.mask()  # all edges, [source, destination]
                kept_edges[edge] = False
                circuits.append(kept_edges)
            readouts = dict(zip(order, scorer.run(circuits), strict=True))
            predictions = [readouts[edge].predictions for edge in self.candidates]
            latents = [readouts[edge].latents for edge in self.candidates]
            return Readout(torch.stack(predictions), torch.stack(latents))

        return self.compute_once(("cut", corruption, ablation, t), make)

    def measure_drops(self, case: Case, ablation: str) -> Float[np.ndarray, "edge episode"]:
        """Return how much the metric drops when each candidate edge is cut, ``[edge, episode]``.
        The drops are divided by the case's scale, the effect of the whole corruption.

        Args:
            case: the clean and corrupted run, and the metric.
            ablation: what a cut edge carries: "zero", "mean" (its mean over episodes of the
                corrupted run) or "resample" (its value in the corrupted run).
        """
        cut_runs = self.run_edge_cuts(case.corruption, ablation, case.round)
        with torch.no_grad():
            uncut = case.metric.measure(case.pair.clean_readout, case.pair)  # [episode]
            drop = uncut - case.metric.measure(cut_runs, case.pair)  # [edge, episode]
        return np.asarray(drop.double().numpy(force=True) / case.scale)
