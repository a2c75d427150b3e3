"""Ablate nodes and edges of a round, to measure how good a circuit is, and to find one.

A circuit C is a set of edges; every other edge carries an ablated value
(:mod:`interp.interventions.edge_graph`). With m the metric's mean over episodes, M the whole model
and 0 the empty circuit::

    faithfulness f(C) = (m(C) - m(0)) / (m(M) - m(0))                           (Marks et al.; MIB)
    CPR = integral of f(C_k) dk,  CMD = integral of |1 - f(C_k)| dk     (MIB, Mueller et al., 2025)
    completeness: |m(C \\ K) - m(M \\ K)| / |m(M) - m(0)| for sets K of edges of C
                                                                                (Wang et al., 2023)
    minimality of e in C: the largest |m(C \\ K) - m(C \\ (K + e))| / |m(M) - m(0)| over sets K

C_k holds the share k of the edges with the largest scores; CPR (higher is better) and CMD (lower is
better) are trapezoids over k in 0.001 ... 1. Faithfulness above 1 is possible: a circuit may leave
out what works against the metric. Every number depends on the choices of ablation, metric and
granularity, and on cutting an edge at all positions at once. Compare it with random circuits of
equal size. A circuit that :func:`smallest` finds suffices for these choices on these pairs. Other
circuits may do as well; which one is found depends on the order of cutting (ACDC cuts from the
outputs backwards; Conmy et al., 2023).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from interp.core.algorithm import participants_of
from interp.interventions.edge_graph import Ablation, EdgeGraph
from interp.interventions.experiment import Tabulated, make_interval_table, tabulate_over
from interp.interventions.pairs import Metric, Pair, Readout, find_metric
from interp.model.rollout import replay
from interp.stats.intervals import Interval, mean_interval, resample_weights
from interp.support.checks import (
    check_number,
    check_type,
    checked,
    integer,
    non_empty,
    refuse_endless,
)
from interp.support.errors import require, require_known
from interp.support.provenance import provenance

_EdgeMask = Bool[np.ndarray, "source destination"]

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""MIB's circuit sizes, as shares of all edges."""
_CIRCUITS_PER_BATCH = 8  # number of circuits that are run as one batch


class CircuitScorer:
    """Measures how well circuits reproduce a model. A circuit is a set of edges between heads,
    MLPs, inputs and outputs. The model runs one round (``pair.round``) of the clean episodes with
    all edges outside the circuit cut, and a metric of its output is computed.

    Args:
        pair: clean and corrupted runs of the same episodes, which differ from the round
            ``pair.round`` on. The metric must be read in this round (``read_round`` equal to
            ``round``).
        metric: a metric or its key; by default the logit difference, or "prediction" if a real
            number is predicted.
        ablation: what cut edges carry: "resample" (the corrupted run's value), "mean" (the
            corrupted run's mean over episodes) or "zero".
    """

    def __init__(
        self, pair: Pair, metric: str | Metric | None = None, ablation: str = "resample"
    ) -> None:
        """Run the clean and the corrupted round once, and store what every circuit needs of them."""
        round, read_round = check_type("pair", pair, Pair).round, pair.read_round
        require(
            read_round == round,
            f"circuits are measured at the round they run in, got {round}, read {read_round}",
        )
        require_known("ablation", ablation, get_args(Ablation))
        model, clean = pair.model, pair.clean
        self.pair = pair
        self.measure = find_metric(metric, pair.layout)
        self.ablation = ablation
        graph = EdgeGraph(model)
        self.graph = graph
        clean_written = graph.contributions(clean, round)
        corrupted_written = graph.contributions(pair.corrupted, round)
        self.ablated = _ablate_outputs(corrupted_written, ablation)  # what cut edges carry
        layers = range(graph.model.config.n_layers)
        names = [f"blocks.{layer}.hook_resid_pre" for layer in layers]
        _, _, cache = replay(model, clean, rounds=round, names_filter=names)
        # In the clean run: what sources write, and the residual stream before each layer. A circuit
        # without a cut before some layer starts there. (Index 0: the only round.)
        self.clean = clean_written, [cache[name][:, 0] for name in names]
        self.participants = participants_of(pair.clean_episodes)
        self.settings = provenance(
            model,
            round=round,
            metric=self.measure.key,
            ablation=ablation,
            granularity="edges between heads, MLPs and exits, at all positions",
        )
        # Caches: a circuit, as bytes -> its run; a run -> the metric in each episode.
        self._readouts: dict[bytes, Readout] = {}
        self._measured: dict[Readout, Float[np.ndarray, " episode"]] = {}

    @checked
    def with_metric(self, metric: str | Metric) -> CircuitScorer:
        """Return a copy of this scorer that measures another metric. It reuses the runs of circuits
        that were already run.

        Args:
            metric: a metric or its key, such as "state".
        """
        measure = find_metric(metric, self.pair.layout)
        scorer = copy(self)
        scorer.measure = measure
        scorer._measured = {}
        scorer.settings = {**self.settings, "metric": measure.key}
        return scorer

    def run(self, keeps: Sequence[_EdgeMask | Tensor]) -> list[Readout]:
        """Run the round once per circuit, with all edges outside the circuit cut. Results are
        cached.

        Args:
            keeps: for each circuit, which edges it keeps, ``[source, destination]``: booleans, or
                numbers from 0 to 1. With the number k, an edge carries a mixture of what its source
                writes (share k) and the value of a cut edge (share 1 - k).

        Returns:
            For each circuit, the predictions and the carried state (latents) of all clean episodes
            after the round, as a :class:`~interp.interventions.pairs.Readout`.
        """
        graph, pair, readouts = self.graph, self.pair, self._readouts
        keys: list[bytes] = []
        not_run: dict[bytes, NDArray[Any]] = {}
        for keep in check_type("keeps", keeps, Sequence[Any]):
            circuit = graph.require_edge_values("keep", keep, low=0, high=1)
            # With the type: the same bytes mean other numbers in another type.
            key = circuit.tobytes() + str(circuit.dtype).encode()
            keys.append(key)
            if key not in readouts:
                not_run[key] = circuit
        new_keys = list(not_run)
        for start in range(0, len(new_keys), _CIRCUITS_PER_BATCH):
            batch = new_keys[start : start + _CIRCUITS_PER_BATCH]
            circuits = [not_run[key] for key in batch]
            predictions, latents = graph.run(
                pair.clean, pair.round, circuits, ablated=self.ablated, clean=self.clean
            )
            for key, prediction, carried in zip(batch, predictions, latents, strict=True):
                # A readout has an axis of rounds, here of one round.
                readouts[key] = Readout(prediction.unsqueeze(1), carried)
        return [readouts[key] for key in keys]

    def values(self, keep: _EdgeMask | Tensor) -> Float[np.ndarray, " episode"]:
        """Return the metric in each clean episode, ``[episode]``, with all edges outside a circuit
        cut. Results are cached.

        Args:
            keep: True for the edges that the circuit has, ``[source, destination]``; or numbers
                from 0 to 1, for edges that are cut in part (:meth:`run`).
        """
        (readout,) = self.run([keep])
        known = self._measured
        if readout not in known:
            measured = self.measure.measure(readout, self.pair)
            known[readout] = measured.double().numpy(force=True)
        return known[readout]

    @property
    def full(self) -> Float[np.ndarray, " episode"]:
        """The metric in each episode with no edge cut (the whole model), ``[episode]``."""
        return self.values(self.graph.mask())

    @property
    def empty(self) -> Float[np.ndarray, " episode"]:
        """The metric in each episode with every edge cut (the empty circuit), ``[episode]``."""
        return self.values(self.graph.mask([]))

    @property
    def gap(self) -> float:
        """The mean metric of the whole model minus the mean metric of the empty circuit (all edges
        cut). Faithfulness divides by this gap, so a gap of 0 is an error.
        """
        gap = float((self.full - self.empty).mean())
        require(
            abs(gap) > 1e-12,
            f"the model and the empty circuit do not differ in {self.measure.key}; change the corruption or metric",
        )
        return gap

    def faithfulness(self, keep: _EdgeMask) -> float:
        """Return a circuit's faithfulness: its mean metric, scaled so that the empty circuit has 0
        and the whole model 1.

        Args:
            keep: True for the edges that the circuit has, ``[source, destination]``.
        """
        gaps = self.values(keep) - self.empty
        return float(gaps.mean()) / self.gap


def _ablate_outputs(written: Tensor, ablation: str) -> Tensor:
    """Return the values that cut edges carry, ``[source, episode, ...]``.

    Args:
        written: what each source (head, MLP or embedding) writes in the corrupted run, ``[source,
            episode, ...]``.
        ablation: "resample" (as written), "mean" (the mean over episodes) or "zero".
    """
    if ablation == "mean":
        return written.mean(1, keepdim=True).expand_as(written)
    if ablation == "zero":
        return torch.zeros_like(written)
    return written


def random_circuits(graph: EdgeGraph, size: int, n: int, seed: int = 0) -> list[_EdgeMask]:
    """Draw random sets of edges, the control for a circuit with as many edges.

    Args:
        graph: the graph of all edges.
        size: number of edges in each circuit.
        n: number of circuits.
        seed: seed of the draws.

    Returns:
        One mask per circuit, ``[source, destination]``: True for the edges that it has.
    """
    edges = graph.edges
    n_edges = len(edges)
    integer("size", size, 0, n_edges)
    refuse_endless("n", integer("n", n, 0))
    generator = np.random.default_rng(seed)
    circuits: list[_EdgeMask] = []
    for _ in range(n):
        drawn = generator.choice(n_edges, size, replace=False)
        circuits.append(graph.mask([edges[i] for i in drawn]))
    return circuits


def ablate(scorer: CircuitScorer) -> pd.DataFrame:
    """Ablate each node (head, MLP or input) in turn, by cutting all edges that leave it. Measure by
    how much this lowers the metric of ``scorer``.

    Returns:
        A table with one row per node. ``name`` is the node. ``drop`` is the metric of the whole
        model minus the metric without the node, averaged over episodes, with its 95 % interval
        ``low`` to ``high``. ``share`` is the drop divided by the drop when all edges are cut.
        ``metric`` and ``ablation`` are those of the scorer.
    """
    graph = scorer.graph
    rows = []
    for i, name in enumerate(graph.sources):
        keep = graph.mask()
        keep[i] = False  # all edges that leave the node
        drops = scorer.full - scorer.values(keep)  # [episode]
        mean = mean_interval(drops, participants=scorer.participants)
        rows.append({"name": name, "drop": mean.estimate, "low": mean.low, "high": mean.high})
    frame = pd.DataFrame(rows)
    share = frame["drop"] / scorer.gap
    return frame.assign(share=share, metric=scorer.measure.key, ablation=scorer.ablation)


@checked
def evaluate(
    scorer: CircuitScorer,
    keep: _EdgeMask,
    *,
    n_random: int = 20,
    n_sets: int = 10,
    minimality: bool = True,
    seed: int = 0,
) -> Tabulated:
    """Measure faithfulness, completeness and minimality of a circuit, with random circuits of equal
    size as the control.

    Faithfulness is the circuit's mean metric, scaled so that the empty circuit has 0 and the whole
    model 1. For the other two, some edges of the circuit are removed. A circuit is *complete* if
    the whole model has the same metric as the circuit when the same edges are removed from both. It
    is *minimal* if each of its edges changes the metric when it is removed, alone or after others.

    Args:
        scorer: measures circuits on one pair of clean and corrupted runs.
        keep: True for the edges that the circuit has, ``[source, destination]``.
        n_random: number of random circuits.
        n_sets: number of random sets of the circuit's edges that are removed, one set at a time.
            The first set is empty. Each further set contains each edge with probability one half.
        minimality: False skips minimality, whose number is then NaN. It is most of the work: one
            run for each set and edge.
        seed: seed of random circuits, sets and the bootstrap.

    Returns:
        A result with a table of one row. ``size`` is the number of edges of the circuit and ``of``
        that of the whole model. ``faithfulness`` has a 95 % interval (``low``, ``high``);
        ``random_mean`` and ``random_max`` are the mean and the maximum faithfulness of the random
        circuits.

        Two further numbers are in units of the gap, the difference in the mean metric between the
        whole model and the empty circuit. ``incompleteness`` is the absolute difference between
        circuit and whole model after a set is removed from both, averaged over sets.
        ``least_minimal`` is the effect of the edge that matters least. The effect of an edge is the
        largest change of the mean metric, over sets, if the edge is removed in addition to the set.
    """
    require(
        n_random >= 1 and n_sets >= 1,
        f"need at least 1 random circuit and 1 set, got {n_random} and {n_sets}",
    )
    graph = scorer.graph
    keep = graph.require_edge_values("keep", keep, low=0, high=1)
    is_kept = keep.astype(bool)
    require(
        (is_kept == keep).all(),
        "a circuit keeps an edge or cuts it: keep must be 0 or 1, or truth values",
    )
    circuit = is_kept & graph.exists
    n_edges = int(circuit.sum())
    interval = _bootstrap_faithfulness(scorer, circuit, seed)
    # Both as shares of the gap between the whole model and the empty circuit.
    differences, smallest_effect = _remove_random_sets(
        scorer, circuit, n_sets=n_sets, minimality=minimality, seed=seed
    )
    of_same_size = random_circuits(graph, n_edges, n_random, seed)
    random = np.array([scorer.faithfulness(drawn) for drawn in of_same_size])
    n_edges_of_model = len(graph.edges)
    mean_random = float(random.mean())  # over circuits
    best_random = float(random.max())
    incompleteness = float(np.mean(differences))
    faithfulness = interval.estimate
    row: dict[str, float] = {
        "size": n_edges,
        "of": n_edges_of_model,
        "faithfulness": faithfulness,
        "low": interval.low,
        "high": interval.high,
        "random_mean": mean_random,
        "random_max": best_random,
        "incompleteness": incompleteness,
        "least_minimal": smallest_effect,
    }
    rows = {"circuit": interval}
    for i, share in enumerate(random.tolist()):
        rows[f"random {i + 1}"] = Interval(share, share, share)  # a point in the figure
    frame = pd.DataFrame([row])
    frame = frame.assign(metric=scorer.measure.key, ablation=scorer.ablation)
    sentence = (
        f"{n_edges} of {n_edges_of_model} edges keep {faithfulness:.0%} of the difference to the "
        f"empty circuit; the best random circuit {best_random:.0%}."
    )
    return Tabulated(
        sentence=sentence,
        table=frame,
        picture=lambda figures: figures.intervals(make_interval_table(rows), xlabel="faithfulness"),
        settings={**scorer.settings, "n_random": n_random, "n_sets": n_sets, "seed": seed},
    )


def _bootstrap_faithfulness(scorer: CircuitScorer, keep: _EdgeMask, seed: int) -> Interval:
    """Return the faithfulness of a circuit with its 95 % bootstrap interval over episodes.

    Args:
        scorer: measures circuits on one pair of clean and corrupted runs.
        keep: True for the edges that the circuit has, ``[source, destination]``.
        seed: seed of the bootstrap.
    """
    # The metric in each episode, [episode]
    with_circuit, empty, full = scorer.values(keep), scorer.empty, scorer.full
    weights = resample_weights(len(full), seed=seed, participants=scorer.participants)
    # The numerator and the denominator of faithfulness, for each resample of episodes.
    with np.errstate(invalid="ignore", divide="ignore"):
        # [resample]; 0 / 0 if a resample holds no episode in which model and empty circuit differ
        samples = (weights @ (with_circuit - empty)) / (weights @ (full - empty))
    return Interval.of_samples(samples, scorer.faithfulness(keep))


def _remove_random_sets(
    scorer: CircuitScorer, keep: _EdgeMask, *, n_sets: int, minimality: bool, seed: int
) -> tuple[list[float], float]:
    """Remove random sets of edges both from a circuit and from the whole model, to measure
    completeness and minimality.

    Args:
        scorer: measures circuits on one pair of clean and corrupted runs.
        keep: True for the edges that the circuit has, ``[source, destination]``.
        n_sets: number of sets; the first is empty.
        minimality: whether, after each set, every remaining edge of the circuit is also removed,
            one at a time.
        seed: seed of the sets.

    Returns:
        A tuple of two items, both as shares of the gap between the whole model and the empty
        circuit. First, for each set, the absolute difference of the mean metric between circuit and
        model after the removal. Second, the effect of the edge that matters least (NaN if not
        measured); the effect of an edge is the largest change of the mean metric, over the sets,
        when the edge is removed as well.
    """
    graph, gap = scorer.graph, abs(scorer.gap)
    edges = [edge for edge in graph.edges if keep[edge]]
    differences: list[float] = []
    # Edge -> largest change by its removal, over the sets; empty if minimality is not measured.
    measured_edges = edges if minimality else []
    largest_change = dict.fromkeys(measured_edges, 0.0)
    for removed in _draw_sets(edges, n_sets, seed):
        circuit, model = keep.copy(), graph.mask()
        for edge in removed:
            circuit[edge] = model[edge] = False
        circuit_mean = scorer.values(circuit).mean()
        model_mean = scorer.values(model).mean()
        differences.append(abs(circuit_mean - model_mean) / gap)
        for edge in largest_change:
            if circuit[edge]:  # not removed with the set
                without_edge = circuit.copy()
                without_edge[edge] = False
                change = abs(circuit_mean - scorer.values(without_edge).mean()) / gap
                largest_change[edge] = max(largest_change[edge], change)
    return differences, min(largest_change.values(), default=float("nan"))


def _draw_sets(edges: Sequence[tuple[int, int]], n: int, seed: int) -> list[list[tuple[int, int]]]:
    """Draw sets of edges that contain each edge with probability one half; the first set is empty.

    Args:
        edges: edges of the circuit, as pairs (source, destination) of indices.
        n: number of sets, including the empty one.
        seed: seed of the draws.
    """
    generator = np.random.default_rng([seed, 1])  # not the stream of random_circuits
    sets: list[list[tuple[int, int]]] = [[]]
    for _ in range(n - 1):
        sets.append([edge for edge in edges if generator.random() < 0.5])
    return sets


def find_areas(shares: Sequence[float], faithfulness: ArrayLike) -> tuple[float, float]:
    """Return two summaries of a curve of faithfulness over circuit size: CPR, the area under the
    curve, and CMD, the area between the curve and 1. They are those of the Mechanistic
    Interpretability Benchmark (MIB).

    Args:
        shares: sizes of the circuits, as shares of all edges, in increasing order.
        faithfulness: faithfulness of the circuit of each size, ``[share]``; or ``[share, circuit]``
            for several circuits per size. The areas are then averaged over circuits.

    Returns:
        The pair (CPR, CMD), by the trapezoid rule.
    """
    by_share = np.asarray(faithfulness).reshape(len(shares), -1)  # [share, circuit]
    cpr = np.trapezoid(by_share.mean(1), shares)
    cmd = np.trapezoid(np.abs(1 - by_share).mean(1), shares)
    return float(cpr), float(cmd)


@checked
def faithfulness_curve(
    scorer: CircuitScorer,
    scores: Float[np.ndarray, "source destination"],
    *,
    shares: Sequence[float] = SHARES,
    n_random: int = 5,
    seed: int = 0,
) -> Tabulated:
    """Measure the faithfulness of circuits of several sizes, which consist of the edges with the
    highest scores. Faithfulness is the mean metric, scaled so that the empty circuit has 0 and the
    whole model 1. Its curve over circuit size is summarised by CPR (the area under it) and CMD (the
    area between it and 1).

    Args:
        scorer: measures circuits on one pair of clean and corrupted runs.
        scores: score of each edge, ``[source, destination]``, such as an attribution; edges are
            ranked by absolute value.
        shares: sizes of the circuits, as shares of all edges, in any order.
        n_random: number of random circuits of each size.
        seed: seed of the random circuits.

    Returns:
        A result with a table that has one row per size: ``share`` of all edges, ``size`` (number of
        edges) and ``faithfulness`` of the highest-scored edges. ``random_mean`` and ``random_max``
        are the mean and the maximum faithfulness of the random circuits. ``cpr``, ``cmd``,
        ``random_cpr`` and ``random_cmd`` summarise the whole curves, so they are equal in all rows.
    """
    graph = scorer.graph
    require(n_random >= 1, f"the control needs at least 1 random circuit, got {n_random}")
    shares = sorted(
        check_number("each share", share, 0, 1) for share in non_empty("shares", shares)
    )
    require(all(shares), "a share of 0 holds no edge; leave it out")
    graph.require_edge_values("scores", scores)
    n_edges = len(graph.edges)
    sizes = [round(share * n_edges) for share in shares]
    best = np.array([scorer.faithfulness(_select_top_edges(graph, scores, size)) for size in sizes])
    random_by_size: list[list[float]] = []
    for size in sizes:
        circuits = random_circuits(graph, size, n_random, seed)
        random_by_size.append([scorer.faithfulness(circuit) for circuit in circuits])
    random = np.array(random_by_size)  # [size, circuit]
    mean_random = random.mean(1)
    cpr, cmd = find_areas(shares, best)
    random_cpr, random_cmd = find_areas(shares, random)
    frame = pd.DataFrame({"share": shares, "size": sizes, "faithfulness": best})
    frame = frame.assign(
        random_mean=mean_random,
        random_max=random.max(1),
        cpr=cpr,
        cmd=cmd,
        random_cpr=random_cpr,
        random_cmd=random_cmd,
    )
    x = "share of all edges"
    lines = tabulate_over({x: shares}, {"best edges": best, "random": mean_random})
    sentence = (
        f"CPR {cpr:.2f}, CMD {cmd:.2f}; random circuits {random_cpr:.2f} and {random_cmd:.2f}."
    )
    return Tabulated(
        sentence=sentence,
        table=frame,
        picture=lambda figures: figures.curves(lines, x=x, ylabel="faithfulness"),
        settings={**scorer.settings, "n_random": n_random, "seed": seed},
    )


def _select_top_edges(
    graph: EdgeGraph, scores: Float[np.ndarray, "source destination"], size: int
) -> _EdgeMask:
    """Return the circuit of the edges with the largest absolute scores.

    Args:
        graph: the graph of all edges.
        scores: score of each edge, ``[source, destination]``.
        size: number of edges in the circuit.

    Returns:
        A mask ``[source, destination]``, True for the edges that the circuit has.
    """
    ranked = sorted(graph.edges, key=lambda edge: -abs(scores[edge]))
    return graph.mask(ranked[:size])


@checked
def smallest(
    scorer: CircuitScorer, scores: Float[np.ndarray, "source destination"], tolerance: float
) -> _EdgeMask:
    """Find the smallest faithful circuit of the edges with the highest scores. Faithful means that
    its faithfulness (0 for no edges, 1 for the whole model) is within ``tolerance`` of 1.

    The number of edges is found by bisection, which assumes that larger circuits are not worse.

    Args:
        scorer: measures circuits on one pair of clean and corrupted runs.
        scores: score of each edge, ``[source, destination]``, such as an attribution; edges are
            ranked by absolute value.
        tolerance: largest allowed ``|1 - faithfulness|``.

    Returns:
        A mask ``[source, destination]``, True for the edges that the circuit has.
    """
    graph = scorer.graph
    check_number("tolerance", tolerance, 0)
    graph.require_edge_values("scores", scores)
    select_top = partial(_select_top_edges, graph, scores)  # the circuit of a given size

    def suffices(size: int) -> bool:
        """Return whether the circuit of this size is faithful."""
        return abs(1 - scorer.faithfulness(select_top(size))) <= tolerance

    # If no smaller circuit suffices, bisect_left returns the number of edges: the whole model.
    sizes = range(len(graph.edges))
    return select_top(bisect_left(sizes, True, key=suffices))
