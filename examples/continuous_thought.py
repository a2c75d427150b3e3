"""Is a frontier that can be decoded also used? The controls that critics of latent reasoning ask for, side by side.

For every model named: what it answers (by depth, in the first round that can know), what is left without its
recurrence, whether a set of nodes can be decoded from its latent (beside an untrained model of the same shape), and
whether a node written into that set changes its answers as it changes those of parallel search. Models that were
trained in other ways (final answers only, no curriculum) are given as checkpoint folders. Run it with
``python examples/continuous_thought.py [MODEL ...]``; the table is printed, and written to
``output/continuous-thought.csv``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

import interp
import probes
from interp import tasks
from interp.evaluation.reachability import OTHER, PARENT
from interp.evaluation.suite import evaluate
from interp.model.transformer import HookedLatentTransformer

OUT = Path("output/continuous-thought.csv")
FEW = 4
"""Graphs of a depth at least, for a number on it."""


def row(model: HookedLatentTransformer, n_episodes: int = 256, seed: int = 0) -> dict[str, float]:
    """What the table says of a model of reachability, on matched graphs of its own sizes."""
    tables = evaluate(model, n_episodes=n_episodes, seed=seed).tables
    frame = tables["by_round"]
    matched = frame[frame["regime"] == "matched"]
    known = matched[
        (matched["key"] == "model") & (matched["round"] == matched["depth"]) & (matched["n"] >= FEW)
    ]
    found = {
        f"depth {depth}": value
        for depth, value in zip(known["depth"], known["estimate"], strict=True)
    }
    deep = matched[(matched["round"] == matched["round"].max()) & (matched["depth"] > 1)]
    for key in ("cut", "frozen", "discrete"):
        of = deep[deep["key"] == key]
        found[key] = (of["estimate"] * of["n"]).sum() / of["n"].sum()
    (decoded,) = probes.probe(
        model, tasks.of(model).sample_for(model, n_episodes, 6, seed + 1), ("reached",), seed=seed
    )
    found["decoded R2"] = decoded.r2
    for name, control in decoded.controls.items():
        found[f"R2, {name}"] = control.score.estimate
    found["exact sets"] = tables["sets"]["estimate"].mean()
    later = tables["moved"][tables["moved"]["later"] == 1].set_index("move")
    found |= {
        "parent written": 1 - later["model"][PARENT],
        "another written": 1 - later["model"][OTHER],
    }
    return found


def main(names: list[str], n_episodes: int = 256) -> pd.DataFrame:
    """The table, a row a model."""
    table = pd.DataFrame(
        {name: row(interp.load(name), n_episodes) for name in names}
    ).T.rename_axis("model")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(OUT)
    print(table.round(3).T.to_string())
    return table


if __name__ == "__main__":
    main(sys.argv[1:] or ["reachability-handwired"])
