"""Models of reachability on published ProsQA graphs: ``python examples/prosqa.py GRAPHS.json [MODEL ...]``.

The graphs are those of https://github.com/Ber666/reasoning-by-superposition (data/prosqa_valid_graph_4_coconut.json and
the other splits). Names of nodes, the order of edges and the order of candidates are drawn anew (seed 0), since the
published ones give the answer away. For every depth: accuracy in the first round that can know, of the model, of
searches and heuristics, and of the model with its latent taken away, with 95 % intervals over graphs; printed, and
written to ``output/prosqa-MODEL.csv``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

import interp
from interp.tasks.reachability.evaluation import answers, reading
from interp.tasks.reachability.prosqa import read_prosqa

OUT = Path("output")


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
        f"{e:.2f} [{a:.2f}, {b:.2f}]" for e, a, b in zip(known["estimate"], known["low"], known["high"], strict=True)
    ]
    depths = [f"depth {depth} (n = {n})" for depth, n in zip(known["depth"], known["n"], strict=True)]
    wide = known.assign(said=said, depths=depths).pivot(index="key", columns="depths", values="said")
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
        sys.exit("give the path of a published file of graphs: python examples/prosqa.py GRAPHS.json [MODEL ...]")
    main(sys.argv[1], sys.argv[2:] or ["reachability-learned"])
