"""ProsQA graphs as published (Hao et al., arXiv 2412.06769; MIT licence), as recorded episodes.

Format: a JSON list of objects; those fields are read that say what the graph is: ``edges`` (pairs of indices, source
and target), ``root``, ``target`` (reachable) and ``neg_target`` (not), ``idx_to_symbol``. The questions in words, and
the steps of the answer, are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from interp.checks import checked
from interp.errors import InputError, require
from interp.tasks.reachability.episodes import ReachabilityEpisodes

_FIELDS = ("edges", "root", "target", "neg_target")


@checked
def read_prosqa(
    path: str | Path, n_rounds: int = 6, n_nodes: int = 0, n_edges: int = 0, seed: int | None = None
) -> ReachabilityEpisodes:
    """Read graphs in the published format.

    Args:
        n_rounds: rounds of every episode; the targets are 3 or 4 steps from the root.
        n_nodes, n_edges: number of names and length of the list of edges; those of the largest graph when 0.
        seed: draws other names for the nodes and another order of edges and candidates, as the published ones say
            something about the answer (roots are 0 or 1); None keeps them, the target being the first candidate.
    """
    graphs = _load(path)
    sizes = [max(max(map(max, g["edges"])), g["target"], g["neg_target"], g["root"]) + 1 for g in graphs]
    n_nodes, n_edges = n_nodes or max(sizes), n_edges or max(len(g["edges"]) for g in graphs)
    require(max(sizes) <= n_nodes, f"the largest graph has {max(sizes)} nodes, n_nodes is {n_nodes}; raise it")
    most = max(len(g["edges"]) for g in graphs)
    require(most <= n_edges, f"the largest graph has {most} edges, n_edges is {n_edges}; raise it")
    edges = np.stack([np.resize(np.array(g["edges"]), (n_edges, 2)) for g in graphs])
    candidates = np.array([[g["target"], g["neg_target"]] for g in graphs])
    roots = np.array([g["root"] for g in graphs])
    published = ReachabilityEpisodes(edges, roots, candidates, n_nodes, n_rounds, "prosqa, published", seed)
    if seed is None:
        return published
    rng = np.random.default_rng(seed)
    shuffled = published.shuffled(rng)
    return shuffled.renamed(rng.permuted(np.arange(n_nodes)[None].repeat(len(graphs), 0), axis=1))


def _load(path: str | Path) -> list[dict[str, Any]]:
    try:
        graphs = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{str(path)!r} is not JSON: {error}") from error
    require(isinstance(graphs, list) and len(graphs) > 0, f"{str(path)!r} must hold a list of graphs")
    for i, graph in enumerate(graphs):
        missing = [name for name in _FIELDS if not isinstance(graph, dict) or name not in graph]
        require(not missing, f"graph {i} of {str(path)!r} lacks {', '.join(missing)}")
    return graphs
