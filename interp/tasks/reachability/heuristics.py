"""Answers that need no search: a number of each candidate, looked up in the graph. What matched graphs must forbid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.algorithm import Algorithm, Values, Variable
from interp.checks import checked
from interp.errors import unknown_name
from interp.tasks.reachability import algorithms, graphs


@dataclass(frozen=True)
class Heuristic:
    """A heuristic: the candidate with the higher number is the answer.

    Attributes:
        key, name, short_name: for code, sentences and legends.
        number: Bool[..., source, target] to Int[..., node].
    """

    key: str
    name: str
    short_name: str
    number: Callable[[NDArray[np.bool_]], NDArray[Any]]


HEURISTICS = {
    heuristic.key: heuristic
    for heuristic in (
        Heuristic(
            "fewer_parents", "the candidate with the lower in-degree", "in-degree", lambda m: -graphs.in_degrees(m)
        ),
        Heuristic("more_children", "the candidate with the higher out-degree", "out-degree", graphs.out_degrees),
        Heuristic("more_ancestors", "the candidate with more ancestors", "ancestors", graphs.n_ancestors),
    )
}


@checked
def heuristic(key: str = "more_ancestors") -> Algorithm:
    """A heuristic as an algorithm that keeps nothing.

    >>> heuristic("fewer_parents").state
    ()

    Raises:
        InputError: no such heuristic.
    """
    if key not in HEURISTICS:
        raise unknown_name("heuristic", key, HEURISTICS)
    record = HEURISTICS[key]

    def compared(v: Values) -> NDArray[Any]:
        edges = np.stack([v["source"], v["target"]], -1)
        numbers = record.number(graphs.adjacency(edges, algorithms.n_nodes(v)))
        share = algorithms.shares(algorithms.take(numbers, v["candidates"]))
        return algorithms.between(share, v["candidates"], algorithms.n_nodes(v))

    answer = Variable(
        "prediction", "P(v)", "the probability that each node is the answer", "probability",
        parents=("source", "target", "candidates", "nodes"), equation=compared, outputs=algorithms.PER_NODE,
    )  # fmt: skip
    return Algorithm(
        key=record.key,
        name=record.name,
        task="reachability",
        parameters={},
        variables=(*algorithms.INPUTS, answer),
        inputs=algorithms.inputs,
        initial=lambda episodes: {},
        distribution=lambda v: v["prediction"],
    )
