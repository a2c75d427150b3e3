"""Models of reachability on published ProsQA graphs: ``python examples/prosqa.py GRAPHS.json [MODEL ...]``.

The graphs are those of https://github.com/Ber666/reasoning-by-superposition (data/prosqa_valid_graph_4_coconut.json and
the other splits). Names of nodes, the order of edges and the order of candidates are drawn anew (seed 0), since the
published ones give the answer away. For every depth: accuracy in the first round that can know, of the model, of
searches and heuristics, and of the model with its latent taken away, with 95 % intervals over graphs; printed, and
written to ``output/prosqa-MODEL.csv``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import interp
from interp.evaluation.reachability import answers, reading
from interp.support.errors import InputError, require
from interp.tasks.reachability.episodes import ReachabilityEpisodes

OUT = Path("output")
_FIELDS = ("edges", "root", "target", "neg_target")


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
    sizes = [
        max(max(map(max, g["edges"])), g["target"], g["neg_target"], g["root"]) + 1 for g in graphs
    ]
    n_nodes, n_edges = n_nodes or max(sizes), n_edges or max(len(g["edges"]) for g in graphs)
    require(
        max(sizes) <= n_nodes,
        f"the largest graph has {max(sizes)} nodes, n_nodes is {n_nodes}; raise it",
    )
    most = max(len(g["edges"]) for g in graphs)
    require(most <= n_edges, f"the largest graph has {most} edges, n_edges is {n_edges}; raise it")
    edges = np.stack([np.resize(np.array(g["edges"]), (n_edges, 2)) for g in graphs])
    candidates = np.array([[g["target"], g["neg_target"]] for g in graphs])
    roots = np.array([g["root"] for g in graphs])
    published = ReachabilityEpisodes(
        edges, roots, candidates, n_nodes, n_rounds, "prosqa, published", seed
    )
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
    require(
        isinstance(graphs, list) and len(graphs) > 0, f"{str(path)!r} must hold a list of graphs"
    )
    for i, graph in enumerate(graphs):
        missing = [name for name in _FIELDS if not isinstance(graph, dict) or name not in graph]
        require(not missing, f"graph {i} of {str(path)!r} lacks {', '.join(missing)}")
    return graphs


def table(path: str | Path, name: str, seed: int = 0) -> pd.DataFrame:
    """Accuracy in round d for targets d steps away: a row a predictor, a column a depth."""
    published = read_prosqa(path)
    sizes = {"n_nodes": published.n_nodes, "n_edges": published.n_edges}
    model = interp.load(name, **sizes) if name == "reachability-handwired" else interp.load(name)
    layout, n_rounds = model.layout, int(published.depths.max()) + 2
    episodes = read_prosqa(path, n_rounds, layout.n_nodes, layout.n_edges, seed=seed)
    read, write = reading(model, seed)
    frame = answers(model, episodes, read, write, seed)
    known = frame[frame["round"] == frame["depth"]]
    said = [
        f"{e:.2f} [{a:.2f}, {b:.2f}]"
        for e, a, b in zip(known["estimate"], known["low"], known["high"], strict=True)
    ]
    depths = [
        f"depth {depth} (n = {n})" for depth, n in zip(known["depth"], known["n"], strict=True)
    ]
    wide = known.assign(said=said, depths=depths).pivot(
        index="key", columns="depths", values="said"
    )
    return wide.reindex(dict.fromkeys(known["key"])).rename_axis(index=name, columns=None)


def main(path: str | Path, names: list[str]) -> dict[str, pd.DataFrame]:
    """The table of every model."""
    OUT.mkdir(parents=True, exist_ok=True)
    found = {}
    for name in names:
        found[name] = table(path, name)
        found[name].to_csv(OUT / f"prosqa-{Path(name).name}.csv")
        print(found[name].to_string(), end="\n\n")
    return found


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(
            "give the path of a published file of graphs: python examples/prosqa.py GRAPHS.json [MODEL ...]"
        )
    main(sys.argv[1], sys.argv[2:] or ["reachability-learned"])
