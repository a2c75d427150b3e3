"""The families of searches that could explain a model of reachability, and where a fit looks for their parameters.

All that search may put a share of their answer on all nodes reached (``spread``), as the distribution that models are
trained on does. Heuristics search nothing and keep nothing: what a search explains beyond the best of these counts.
Two heuristics are left to ``interp audit``: the undirected distance needs the root, which a round is told after its
answer, so that it is not memoryless, and names are permuted in every regime.
"""

from __future__ import annotations

from interp.algorithm import Family, Searched
from interp.tasks.reachability.algorithms import depth_limited, late_search, records, undirected

_MEMORYLESS = ("fewer_parents", "more_children", "more_ancestors")


def families() -> tuple[Family, ...]:
    """What a model of reachability is compared with."""
    known = {record.key: record for record in records()}
    hops, lags = Searched("hops", (1, 2, 3), kind="choice"), Searched("lag", (1, 2), kind="choice")
    spread = Searched("spread", (0.0, 0.2, 0.4, 0.6, 0.8), enters=("prediction",))

    def searching(key: str) -> Family:
        return Family(key, known[key].name, known[key].make, (spread,))

    return (
        searching("breadth_first"),
        Family("depth_limited", "breadth-first search of few hops", depth_limited, (hops, spread)),
        Family("late_search", late_search().name, late_search, (lags, spread), extends="breadth_first"),
        Family("undirected", undirected().name, undirected, (spread,)),
        searching("depth_first"),
        searching("random_walk"),
        *(Family(key, known[key].name, known[key].make, memoryless=True) for key in _MEMORYLESS),
    )
