"""Ablating nodes and edges of a round: how good a circuit is, and finding one.

A circuit C is a set of edges; every other edge carries the ablated value (:mod:`interp.interventions.edge_graph`). With
m the metric's mean over episodes, M the whole model and 0 the empty circuit::

    faithfulness f(C) = (m(C) - m(0)) / (m(M) - m(0))                                       (Marks et al.; MIB)
    CPR = integral of f(C_k) dk        CMD = integral of |1 - f(C_k)| dk                     (MIB, Mueller et al., 2025)
    completeness: |m(C \\ K) - m(M \\ K)| / |m(M) - m(0)| for sets K of edges of C               (Wang et al., 2023)
    minimality of e in C: the largest |m(C \\ K) - m(C \\ (K + e))| / |m(M) - m(0)| found over sets K

C_k holds the share k of the edges with the largest scores; CPR (higher is better) and CMD (lower is better) are
trapezoids over k in 0.001 ... 1. Faithfulness above 1 is possible: a circuit may leave out what works against the
metric. Every number depends on its choices (ablation, metric, granularity, and that an edge is cut at all positions)
and is worth reading only beside random circuits of equal size. A circuit that :func:`smallest` or :func:`acdc` finds
suffices for these choices on these pairs. Others may do as well, and the order of cutting decides between them (ACDC
cuts from the exits backwards; Conmy et al., 2023).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from torch import Tensor

from interp.core.algorithm import participants_of
from interp.interventions.edge_graph import Ablation, EdgeGraph
from interp.interventions.experiment import Tabulated, named, over
from interp.interventions.pairs import Metric, Pair, Readout, find_metric
from interp.model.rollout import replay
from interp.stats.intervals import Interval, bootstrap_mean, resample_weights
from interp.support.checks import checked, fit, integer, non_empty, number, refuse_endless
from interp.support.errors import require, require_known
from interp.support.provenance import provenance

_Keep = Bool[np.ndarray, "source destination"]

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""MIB's circuit sizes, as shares of all edges."""
_AT_ONCE = 8  # circuits that are run as one batch


class CircuitScorer:
    """Measures circuits in one round of a pair: it runs the clean side with all other edges cut.

    Cut edges carry what ``ablation`` says: "resample" (the corrupted run's), "mean" (its mean over episodes) or "zero".
    """

    def __init__(
        self, pair: Pair, metric: str | Metric | None = None, ablation: str = "resample"
    ) -> None:
        at = f"got {fit('pair', pair, Pair).round}, read {pair.read_round}"
        require(
            pair.read_round == pair.round, f"circuits are measured at the round they run in, {at}"
        )
        self.pair, self.measure, self.ablation = pair, find_metric(metric, pair.layout), ablation
        self.graph = EdgeGraph(pair.model)
        require_known("ablation", ablation, get_args(Ablation))
        clean, other = (
            self.graph.contributions(run, pair.round) for run in (pair.clean, pair.corrupted)
        )
        means = other.mean(1, keepdim=True).expand_as(other)
        self.other = {"resample": other, "mean": means, "zero": torch.zeros_like(other)}[ablation]
        names = [
            f"blocks.{layer}.hook_resid_pre" for layer in range(self.graph.model.config.n_layers)
        ]
        _, _, before = replay(pair.model, pair.clean, rounds=pair.round, names_filter=names)
        self.clean = clean, [before[name][:, 0] for name in names]
        self.whose = participants_of(pair.clean_episodes)
        chosen = {"round": pair.round, "metric": self.measure.key, "ablation": ablation}
        edges = "edges between heads, MLPs and exits, at all positions"
        self.settings = provenance(pair.model, **chosen, granularity=edges)
        self._ran: dict[bytes, Readout] = {}
        self._measured: dict[Readout, Float[np.ndarray, " episode"]] = {}

    @checked
    def through(self, metric: str | Metric) -> CircuitScorer:
        """The same circuits by another metric; those that either has run are not run again."""
        other = copy(self)
        other.measure, other._measured = find_metric(metric, self.pair.layout), {}
        other.settings = {**self.settings, "metric": other.measure.key}
        return other

    def run(self, keeps: Sequence[_Keep | Tensor]) -> list[Readout]:
        """What the round gives with only the kept edges of each circuit: each is run once, several at a time."""
        kept = [self.graph.fitted("keep", keep, 0, 1) for keep in keeps]
        keys = [one.tobytes() + str(one.dtype).encode() for one in kept]
        circuits = dict(zip(keys, kept, strict=True))
        new = [key for key in circuits if key not in self._ran]
        for start in range(0, len(new), _AT_ONCE):
            batch = {key: circuits[key] for key in new[start : start + _AT_ONCE]}
            out = self.graph.run(
                self.pair.clean, self.pair.round, list(batch.values()), self.other, self.clean
            )
            self._ran |= {
                key: Readout(one.unsqueeze(1), left)
                for key, one, left in zip(batch, *out, strict=True)
            }
        return [self._ran[key] for key in keys]

    def values(self, keep: _Keep | Tensor) -> Float[np.ndarray, " episode"]:
        """The metric with only the kept edges; each circuit is run once."""
        (ran,) = self.run([keep])
        if ran not in self._measured:
            self._measured[ran] = self.measure.measure(ran, self.pair).double().numpy(force=True)
        return self._measured[ran]

    @property
    def full(self) -> Float[np.ndarray, " episode"]:
        """The metric of the whole model."""
        return self.values(self.graph.mask())

    @property
    def empty(self) -> Float[np.ndarray, " episode"]:
        """The metric with every edge cut."""
        return self.values(self.graph.mask([]))

    @property
    def gap(self) -> float:
        """The whole model's metric less the empty circuit's: faithfulness is a share of it, so 0 is an error."""
        gap = float((self.full - self.empty).mean())
        where = f"the model and the empty circuit do not differ in {self.measure.key}"
        require(abs(gap) > 1e-12, f"{where}; change the corruption or metric")
        return gap

    def faithfulness(self, keep: _Keep) -> float:
        """Share of the gap between the empty circuit and the whole model that the circuit keeps."""
        return float((self.values(keep) - self.empty).mean()) / self.gap


def _random_circuits(graph: EdgeGraph, size: int, n: int, seed: int = 0) -> list[_Keep]:
    """``n`` circuits of ``size`` edges drawn at random: the control for a circuit of that size."""
    integer("size", size, 0, len(graph.edges))
    refuse_endless("n", integer("n", n, 0))
    generator = np.random.default_rng(seed)
    draws = [generator.choice(len(graph.edges), size, replace=False) for _ in range(n)]
    return [graph.mask([graph.edges[i] for i in draw]) for draw in draws]


def ablate(scorer: CircuitScorer) -> pd.DataFrame:
    """The metric's mean drop (95 % interval over episodes) without each node, and as a share of the gap."""
    rows = []
    for i, name in enumerate(scorer.graph.sources):
        keep = scorer.graph.mask()
        keep[i] = False
        mean, low, high = bootstrap_mean(
            scorer.full - scorer.values(keep), participants=scorer.whose
        )
        rows.append({"name": name, "drop": float(mean), "low": float(low), "high": float(high)})
    frame = pd.DataFrame(rows)
    return frame.assign(
        share=frame["drop"] / scorer.gap, metric=scorer.measure.key, ablation=scorer.ablation
    )


@checked
def evaluate(
    scorer: CircuitScorer,
    keep: _Keep,
    *,
    n_random: int = 20,
    n_sets: int = 10,
    minimality: bool = True,
    seed: int = 0,
) -> Tabulated:
    """Faithfulness, completeness and minimality of a circuit, beside ``n_random`` random circuits of equal size.

    Minimality is most of the work: a run for each of ``n_sets`` sets, the empty one among them, and every edge.
    """
    require(
        n_random >= 1 and n_sets >= 1,
        f"need at least 1 random circuit and 1 set, got {n_random} and {n_sets}",
    )
    keep = scorer.graph.fitted("keep", keep, 0, 1)
    whole = keep.astype(bool)
    require(
        bool((whole == keep).all()),
        "a circuit keeps an edge or cuts it: keep must be 0 or 1, or truth values",
    )
    keep = whole & scorer.graph.exists
    graph, gap = scorer.graph, abs(scorer.gap)
    edges = [edge for edge in graph.edges if keep[edge]]
    kept, empty, full = scorer.values(keep), scorer.empty, scorer.full
    weights = resample_weights(len(kept), seed=seed, participants=scorer.whose)
    with np.errstate(
        invalid="ignore", divide="ignore"
    ):  # A resample may hold no episode that differs.
        samples = (weights @ (kept - empty)) / (weights @ (full - empty))
    interval = Interval.of_samples(samples, scorer.faithfulness(keep))
    generator = np.random.default_rng([seed, 1])
    sets = [[e for e in edges if i and generator.random() < 0.5] for i in range(n_sets)]
    missing, least = [], dict.fromkeys(map(graph.name, edges) if minimality else (), 0.0)
    for removed in sets:
        circuit, model = keep.copy(), graph.mask()
        for edge in removed:
            circuit[edge] = model[edge] = False
        without = scorer.values(circuit).mean()
        missing.append(abs(without - scorer.values(model).mean()) / gap)
        for edge in edges if minimality else ():
            if circuit[edge]:
                less = circuit.copy()
                less[edge] = False
                name = graph.name(edge)
                least[name] = max(least[name], abs(without - scorer.values(less).mean()) / gap)
    random = np.array(
        [
            scorer.faithfulness(other)
            for other in _random_circuits(graph, len(edges), n_random, seed)
        ]
    )
    row = {
        "size": len(edges),
        "of": len(graph.edges),
        **dict(zip(("faithfulness", "low", "high"), vars(interval).values(), strict=True)),
        "random_mean": float(random.mean()),
        "random_max": float(random.max()),
        "incompleteness": float(np.mean(missing)),
        "least_minimal": min(least.values(), default=float("nan")),
        "metric": scorer.measure.key,
        "ablation": scorer.ablation,
    }
    rows = {
        "circuit": interval,
        **{f"random {i + 1}": Interval(x, x, x) for i, x in enumerate(random.tolist())},
    }
    return Tabulated(
        sentence=f"{len(edges)} of {len(graph.edges)} edges keep {interval.estimate:.0%} of the difference to the "
        f"empty circuit; the best random circuit {random.max():.0%}.",
        table=pd.DataFrame([row]),
        picture=lambda figures: figures.intervals(named(rows), xlabel="faithfulness"),
        settings={**scorer.settings, "n_random": n_random, "n_sets": n_sets, "seed": seed},
    )


def _areas(shares: Sequence[float], faithfulness: ArrayLike) -> tuple[float, float]:
    """CPR, the area under the faithfulness (of one circuit or several) by share of the edges; CMD, that beside 1."""
    found = np.asarray(faithfulness).reshape(len(shares), -1)
    return float(np.trapezoid(found.mean(1), shares)), float(
        np.trapezoid(np.abs(1 - found).mean(1), shares)
    )


@checked
def faithfulness_curve(
    scorer: CircuitScorer,
    scores: Float[np.ndarray, "source destination"],
    *,
    shares: Sequence[float] = SHARES,
    n_random: int = 5,
    seed: int = 0,
) -> Tabulated:
    """Faithfulness of the circuits whose edges have the largest scores by size, and MIB's CPR and CMD.

    The areas, and those of random circuits of the same sizes, are columns of the table, the same in every row.
    """
    graph = scorer.graph
    require(n_random >= 1, f"the control needs at least 1 random circuit, got {n_random}")
    shares = [number("each share", share, 0, 1) for share in non_empty("shares", shares)]
    require(all(shares), "a share of 0 holds no edge; leave it out")
    graph.fitted("scores", scores)
    sizes = [round(share * len(graph.edges)) for share in shares]
    best = np.array([scorer.faithfulness(_top_edges(graph, scores, size)) for size in sizes])
    random = np.array(
        [
            [scorer.faithfulness(c) for c in _random_circuits(graph, n, n_random, seed)]
            for n in sizes
        ]
    )
    (cpr, cmd), (random_cpr, random_cmd) = _areas(shares, best), _areas(shares, random)
    frame = pd.DataFrame({"share": shares, "size": sizes, "faithfulness": best})
    frame = frame.assign(random_mean=random.mean(1), random_max=random.max(1), cpr=cpr, cmd=cmd)
    lines, share = {"best edges": best, "random": random.mean(1)}, "share of all edges"
    return Tabulated(
        sentence=f"CPR {cpr:.2f}, CMD {cmd:.2f}; random circuits {random_cpr:.2f} and {random_cmd:.2f}.",
        table=frame.assign(random_cpr=random_cpr, random_cmd=random_cmd),
        picture=lambda figures: figures.curves(
            over({share: shares}, lines), x=share, ylabel="faithfulness"
        ),
        settings={**scorer.settings, "n_random": n_random, "seed": seed},
    )


def _top_edges(
    graph: EdgeGraph, scores: Float[np.ndarray, "source destination"], size: int
) -> _Keep:
    """The ``size`` edges with the largest scores, by size of the score."""
    return graph.mask(sorted(graph.edges, key=lambda edge: -abs(scores[edge]))[:size])


@checked
def smallest(
    scorer: CircuitScorer, scores: Float[np.ndarray, "source destination"], tolerance: float
) -> _Keep:
    """The fewest best-scored edges within ``tolerance`` of faithfulness 1; bisection assumes that more are no worse."""
    number("tolerance", tolerance, 0)
    scorer.graph.fitted("scores", scores)
    best, sizes = partial(_top_edges, scorer.graph, scores), range(len(scorer.graph.edges))
    return best(
        bisect_left(
            sizes, True, key=lambda size: abs(1 - scorer.faithfulness(best(size))) <= tolerance
        )
    )


@checked
def acdc(scorer: CircuitScorer, tolerance: float = 0.01) -> _Keep:
    """Cut edge after edge, from the exits backwards, keeping a cut when faithfulness moves by at most ``tolerance``."""
    number("tolerance", tolerance, 0)
    graph, keep = scorer.graph, scorer.graph.live.copy()
    left = sorted((edge for edge in graph.edges if keep[edge]), key=lambda e: (-e[1], -e[0]))
    now = scorer.faithfulness(keep)
    while left:
        tried: list[tuple[int, _Keep]] = []  # the circuits that follow as long as every cut is kept
        for i, (source, destination) in enumerate(left):
            keep = keep.copy()
            keep[source, destination] = False
            name = graph.destinations[destination].rsplit(".", 1)[0]
            if name not in graph.sources or keep[graph.sources.index(name)].any():
                tried.append(
                    (i, keep)
                )  # Else nothing kept reads this destination: the cut changes nothing.
            if len(tried) == _AT_ONCE:
                break
        scorer.run([circuit for _, circuit in tried])
        before, left = left, left[i + 1 :]
        for i, circuit in tried:
            cut = scorer.faithfulness(circuit)
            if not abs(cut - now) <= tolerance:
                keep, left = circuit, before[i + 1 :]
                keep[before[i]] = True
                break
            now = cut
    return keep
