"""Evaluate models of reachability on the published ProsQA graphs: ``python examples/prosqa.py
GRAPHS.json [MODEL ...]``.

The graphs are those of https://github.com/Ber666/reasoning-by-superposition
(data/prosqa_valid_graph_4_coconut.json and the other splits). Names of nodes, and the order of
edges and candidates, are shuffled (seed 0), since the published ones reveal the answer. A table
shows accuracy by depth, in the first round in which the answer can be known, with 95 % intervals
over graphs. Its rows are the model, searches and heuristics, and the model without its latent. It
is printed and written to ``output/prosqa-MODEL.csv``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import interp
from interp.evaluation.reachability import answers, make_reader_and_writer
from interp.support.errors import InputError, require
from interp.tasks.reachability.episodes import ReachabilityEpisodes

OUT = Path("output")
_FIELDS = ("edges", "root", "target", "neg_target")


def read_prosqa(
    path: str | Path, n_rounds: int = 6, n_nodes: int = 0, n_edges: int = 0, seed: int | None = None
) -> ReachabilityEpisodes:
    """Read graphs in the published format.

    Args:
        path: path of the JSON file.
        n_rounds: rounds per episode; the targets are 3 or 4 steps from the root.
        n_nodes: number of node names; that of the largest graph when 0.
        n_edges: length of the list of edges; that of the largest graph when 0.
        seed: seed for shuffling the names of nodes and the order of edges and candidates, since the
            published ones reveal something about the answer (roots are 0 or 1). None keeps them,
            with the target as the first candidate.
    """
    graphs = _load(path)
    most_nodes = max(_count_nodes(graph) for graph in graphs)
    most_edges = max(len(graph["edges"]) for graph in graphs)
    n_nodes = n_nodes or most_nodes
    n_edges = n_edges or most_edges
    require(
        most_nodes <= n_nodes,
        f"the largest graph has {most_nodes} nodes, n_nodes is {n_nodes}; raise it",
    )
    require(
        most_edges <= n_edges,
        f"the largest graph has {most_edges} edges, n_edges is {n_edges}; raise it",
    )
    # `np.resize` repeats the edges of a smaller graph until the list is full.
    edges = np.stack([np.resize(np.array(graph["edges"]), (n_edges, 2)) for graph in graphs])
    candidates = np.array([[graph["target"], graph["neg_target"]] for graph in graphs])
    roots = np.array([graph["root"] for graph in graphs])
    published = ReachabilityEpisodes(
        edges, roots, candidates, n_nodes, n_rounds, regime="prosqa, published", seed=seed
    )
    if seed is None:
        return published
    rng = np.random.default_rng(seed)
    shuffled = published.shuffled(rng)
    names = np.tile(np.arange(n_nodes), (len(graphs), 1))
    return shuffled.renamed(rng.permuted(names, axis=1))


def _count_nodes(graph: dict[str, Any]) -> int:
    """Return the number of node names that a graph needs: 1 plus its largest one."""
    nodes = [graph["target"], graph["neg_target"], graph["root"]]
    for edge in graph["edges"]:
        nodes += edge
    return int(max(nodes)) + 1


def _load(path: str | Path) -> list[dict[str, Any]]:
    """Read the file's graphs, a list of dictionaries; refuse a file in another format."""
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
        fields = graph if isinstance(graph, dict) else {}
        missing = [name for name in _FIELDS if name not in fields]
        require(not missing, f"graph {i} of {str(path)!r} lacks {', '.join(missing)}")
    return graphs


def measure(path: str | Path, name: str, seed: int = 0) -> pd.DataFrame:
    """Return the accuracy in round d for targets d steps away: one row per predictor, one column
    per depth.

    Args:
        path: path of the published graphs.
        name: name of the model.
        seed: seed of the shuffled names and orders.
    """
    published = read_prosqa(path)
    sizes = {}
    if name == "reachability-handwired":
        sizes = {"n_nodes": published.n_nodes, "n_edges": published.n_edges}
    model = interp.load(name, **sizes)
    n_rounds = int(published.depths.max()) + 2  # one more than the deepest answer needs
    episodes = read_prosqa(
        path, n_rounds, n_nodes=model.layout.n_nodes, n_edges=model.layout.n_edges, seed=seed
    )
    read, write = make_reader_and_writer(model, seed)
    accuracies = answers(model, episodes, read, write, seed)
    # The first round in which the answer can be known is the one with the depth of the target.
    in_time = accuracies[accuracies["round"] == accuracies["depth"]]
    cells = []
    columns = []
    for row in in_time.itertuples():
        cells.append(f"{row.estimate:.2f} [{row.low:.2f}, {row.high:.2f}]")
        columns.append(f"depth {row.depth} (n = {row.n})")
    labelled = in_time.assign(cell=cells, column=columns)
    wide = labelled.pivot(index="key", columns="column", values="cell")
    return wide.reindex(in_time["key"].unique()).rename_axis(index=name, columns=None)


def main(path: str | Path, names: list[str]) -> dict[str, pd.DataFrame]:
    """Print and write the table of every model; return the tables by name."""
    OUT.mkdir(parents=True, exist_ok=True)
    tables = {}
    for name in names:
        table = measure(path, name)
        table.to_csv(OUT / f"prosqa-{Path(name).name}.csv")
        print(table.to_string(), end="\n\n")
        tables[name] = table
    return tables


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(
            "give the path of a published file of graphs: python examples/prosqa.py GRAPHS.json [MODEL ...]"
        )
    main(sys.argv[1], sys.argv[2:] or ["reachability-learned"])
