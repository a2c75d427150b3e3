"""The families of searches that could explain a model of reachability, and where a fit looks for their parameters.

All that search may put a share of their answer on all nodes reached (``spread``), as the distribution that models are
trained on does. Heuristics search nothing and keep nothing: what a search explains beyond the best of these counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from interp.algorithm import Algorithm, Family, Searched
from interp.tasks.reachability import algorithms, heuristics, paths

SPREAD = Searched("spread", (0.0, 0.2, 0.4, 0.6, 0.8), enters=("prediction",))


def _depth_limited(hops: float, spread: float) -> Algorithm:
    return algorithms.depth_limited(int(hops), spread)


def _spreading(search: Callable[[], Algorithm], spread: float) -> Algorithm:
    """A search whose answer is spread over the nodes reached."""
    path, answer = search(), algorithms.prediction(spread)
    variables = tuple(answer if variable.key == answer.key else variable for variable in path.variables)
    return replace(path, parameters={**path.parameters, "spread": spread}, variables=variables)


def families() -> tuple[Family, ...]:
    """What a model of reachability is compared with."""
    hops = Searched("hops", (1, 2, 3), kind="choice")
    return (
        Family("breadth_first", "parallel breadth-first search", algorithms.breadth_first, (SPREAD,)),
        Family("depth_limited", "breadth-first search of few hops", _depth_limited, (hops, SPREAD)),
        Family("depth_first", "depth-first search, a node a round", partial(_spreading, paths.depth_first), (SPREAD,)),
        Family("random_walk", "a random walk, a node a round", partial(_spreading, paths.random_walk), (SPREAD,)),
        *(
            Family(record.key, record.name, partial(heuristics.heuristic, record.key), memoryless=True)
            for record in heuristics.HEURISTICS.values()
        ),
    )
