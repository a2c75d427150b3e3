"""The families of searches that could explain a model of reachability, and where a fit looks for their parameters.

All that search may put a share of their answer on all nodes reached (``spread``), as the distribution that models are
trained on does. Heuristics search nothing and keep nothing: what a search explains beyond the best of these counts.
"""

from __future__ import annotations

from interp.algorithm import Family, Searched
from interp.tasks.reachability.algorithms import depth_limited, late_search, records, undirected


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
        Family(
            "late_search",
            "breadth-first search, some rounds late",
            late_search,
            (lags, spread),
            extends="breadth_first",
        ),
        Family("undirected", undirected().name, undirected, (spread,)),
        searching("depth_first"),
        searching("random_walk"),
        *(Family(r.key, r.name, r.make, memoryless=True) for r in known.values() if not r.make().state),
    )
