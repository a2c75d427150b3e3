"""Finding circuits: the best-scored edges, or cutting edge after edge while the behaviour stays (ACDC).

A circuit that these find suffices for this metric on these pairs with this ablation; others may do as well, and the
order of cutting decides between them (ACDC goes from the exits backwards, as Conmy et al., 2023).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from interp.checks import checked
from interp.errors import require, unknown_name
from interp.interventions.ablation import CircuitScorer, Keep
from interp.interventions.attribution import attribute
from interp.tasks.task import unique


@dataclass(frozen=True)
class PruningAlgorithm:
    """A way to find a circuit: its key, its name in tables, a short name for legends.

    Attributes:
        prune: ``(scorer, tolerance) -> circuit``.
    """

    key: str
    name: str
    short_name: str
    prune: Callable[[CircuitScorer, float], Keep]


@checked
def top_edges(scorer: CircuitScorer, scores: Float[np.ndarray, "source destination"], size: int) -> Keep:
    """The ``size`` edges with the largest scores, by size of the score."""
    graph = scorer.graph
    require(0 <= size <= graph.n_edges, f"size must lie between 0 and {graph.n_edges} edges, got {size}")
    return graph.mask(sorted(graph.edges, key=lambda edge: -abs(scores[edge]))[:size])


@checked
def smallest(scorer: CircuitScorer, scores: Float[np.ndarray, "source destination"], tolerance: float) -> Keep:
    """The fewest best-scored edges whose faithfulness is within ``tolerance`` of 1.

    Found by bisection, which assumes that more edges are not worse.
    """
    low, high = 0, scorer.graph.n_edges
    while low < high:
        middle = (low + high) // 2
        if abs(1 - scorer.faithfulness(top_edges(scorer, scores, middle))) <= tolerance:
            high = middle
        else:
            low = middle + 1
    return top_edges(scorer, scores, high)


@checked
def greedy(scorer: CircuitScorer, tolerance: float = 0.01) -> Keep:
    """The :func:`smallest` circuit of the edges that EAP-IG scores best."""
    return smallest(scorer, attribute(scorer.pair, scorer.measure).edges, tolerance)


@checked
def acdc(scorer: CircuitScorer, tolerance: float = 0.01) -> Keep:
    """Cut edge after edge, from the exits backwards, keeping a cut when faithfulness moves by at most ``tolerance``."""
    graph, keep = scorer.graph, scorer.graph.mask()
    now = scorer.faithfulness(keep)
    for edge in sorted(graph.edges, key=lambda e: (-e[1], -e[0])):
        name = graph.destinations[edge[1]].rsplit(".", 1)[0]
        keep[edge] = False
        if name in graph.sources and not keep[graph.sources.index(name)].any():
            continue  # Nothing kept reads this destination: cutting its inputs changes nothing.
        cut = scorer.faithfulness(keep)
        if abs(cut - now) <= tolerance:
            now = cut
        else:
            keep[edge] = True
    return keep


PRUNING: dict[str, PruningAlgorithm] = unique(
    (
        PruningAlgorithm("greedy", "best-scored edges (EAP-IG)", "greedy", greedy),
        PruningAlgorithm("acdc", "automatic circuit discovery", "ACDC", acdc),
    ),
    "pruning algorithm",
)


@checked
def prune(scorer: CircuitScorer, algorithm: str = "acdc", tolerance: float = 0.01) -> Keep:
    """Find a circuit.

    Raises:
        InputError: no such algorithm, or a negative tolerance.
    """
    if algorithm not in PRUNING:
        raise unknown_name("pruning algorithm", algorithm, PRUNING)
    require(tolerance >= 0, f"tolerance must be a number >= 0, got {tolerance}")
    return PRUNING[algorithm].prune(scorer, tolerance)
