"""What the task registers: breadth-first search and its rivals, from the modules that define them."""

from __future__ import annotations

from functools import partial

from interp.algorithm import AlgorithmRecord
from interp.tasks.reachability import algorithms, heuristics, paths


def records() -> tuple[AlgorithmRecord, ...]:
    """The algorithms of this task, the ground truth first."""
    limited = {hops: f"{hops} hop{'s' * (hops > 1)}" for hops in (1, 2, 3)}
    return (
        AlgorithmRecord("breadth_first", "parallel breadth-first search", "BFS", algorithms.breadth_first),
        *(
            AlgorithmRecord(
                f"depth_limited_{hops}",
                f"breadth-first search of {words}",
                f"BFS, {words}",
                partial(algorithms.depth_limited, hops),
            )
            for hops, words in limited.items()
        ),
        AlgorithmRecord("depth_first", "depth-first search, a node a round", "DFS", paths.depth_first),
        AlgorithmRecord("random_walk", "a random walk, a node a round", "walk", paths.random_walk),
        *(
            AlgorithmRecord(record.key, record.name, record.short_name, partial(heuristics.heuristic, record.key))
            for record in heuristics.HEURISTICS.values()
        ),
    )
