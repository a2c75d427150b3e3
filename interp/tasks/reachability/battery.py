"""Episodes on which searches answer differently: candidates that look alike, deep targets, any graph, one long path."""

from __future__ import annotations

from interp.checks import checked
from interp.tasks.reachability.episodes import ReachabilityEpisodes
from interp.tasks.reachability.regimes import REGIMES
from interp.tasks.reachability.sampling import sample


@checked
def battery(
    n_episodes: int, n_rounds: int, *, n_nodes: int, n_edges: int, seed: int
) -> dict[str, ReachabilityEpisodes]:
    """A batch of ``n_episodes`` of every regime, by its name; other seeds draw other episodes.

    >>> list(battery(4, 5, n_nodes=16, n_edges=24, seed=0))
    ['matched', 'prosqa', 'uniform', 'path']

    Raises:
        InputError: sizes for which no such graph exists, or a negative seed.
    """
    return {
        regime: sample(n_episodes, n_rounds, n_nodes=n_nodes, n_edges=n_edges, regime=regime, seed=seed)
        for regime in REGIMES
    }
