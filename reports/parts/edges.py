"""Circuits of edges: which reads of which writes carry a difference, and how good the smallest such circuit is."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure as Picture

from interp.interventions import causal_tables
from interp.statistics import Interval
from reports import figures
from reports.blocks import Figure, Prose, Table, cell
from reports.findings import Finding, judged
from reports.heads import Heads, heads_of
from reports.page import Section
from reports.part import Context, Part

TITLE = "Circuits of edges"
_TEXT = (
    "An edge is one head's (or MLP's, or the embedding's) write as read by another's query, key or value, or by an "
    "exit. Each is scored by EAP-IG between a run and one with another episode's latents: the gradient of the logit "
    "difference, averaged on the way between the two, along the edge's difference. To cut an edge is to let it carry "
    "the other run's write, at all positions. **Faithfulness** is the share of the difference between the whole model "
    "(1) and none of its edges (0) that a circuit keeps; **CPR** is the area under it over circuit sizes (higher is "
    "better), **CMD** the area between it and 1 (lower is better). A circuit found so suffices for this metric, these "
    "pairs and this way of cutting; it is not evidence that it is the only one, or of what its edges mean."
)
_SOFT = " Gradients do not pass hard attention, so the circuit stands here as its softmax-only variant."
_NODES = (
    "Every node ablated on its own, in three ways: what the logit difference and the state lose, with 95 % intervals; "
    "what only zeros show is the same in every episode"
)
_LISTED = 25
"""Edges listed at most."""
_PORTS = {"q": "query", "k": "key", "v": "value"}


def part() -> Part:
    """Circuits of edges under the task's default corruption."""
    return Part(
        "edges", TITLE, compute, draw, lambda context: bool(context.task.default_corruption), summary, slow=True
    )


def compute(context: Context) -> dict[str, pd.DataFrame]:
    """Scored edges, faithfulness over sizes, the smallest faithful circuit, single ablations."""
    return causal_tables.circuit_tables(
        context.smooth, context.pairs[0], context.looked_at, context.seed, minimality=False
    )


def summary(found: Mapping[str, pd.DataFrame], context: Context) -> list[Finding]:
    """That few edges suffice for the difference, and as many at random do not."""
    circuit = found["circuit"].iloc[0]
    kept, random = Interval(circuit["faithfulness"], circuit["low"], circuit["high"]), circuit["random_max"]
    word = "fail" if circuit["size"] > circuit["of"] / 2 else judged(kept, random, random)
    return [
        Finding(
            "At most half of the edges suffice for the difference that another episode's latents make",
            word,
            f"{circuit['size']} of {circuit['of']} edges, faithfulness {cell(kept)}",
            f"best of as many at random: {cell(random, '.3f')}",
        )
    ]


def draw(found: Mapping[str, pd.DataFrame], context: Context) -> Section:
    """The smallest faithful circuit beside random ones, faithfulness against size, edges and single nodes."""
    heads = heads_of(context.smooth)
    circuit, curve = found["circuit"].iloc[0], found["faithfulness"]
    measured = [
        ("edges", f"{circuit['size']} of {circuit['of']}", "as many"),
        ("faithfulness", Interval(circuit["faithfulness"], circuit["low"], circuit["high"]), circuit["random_mean"]),
        ("faithfulness, best random circuit", None, circuit["random_max"]),
        ("incompleteness (0 is complete)", circuit["incompleteness"], None),
        ("CPR, over all sizes", curve["cpr"].iloc[0], curve["random_cpr"].iloc[0]),
        ("CMD, over all sizes", curve["cmd"].iloc[0], curve["random_cmd"].iloc[0]),
    ]
    columns = ["measure", "best-scored edges", "random circuits of equal size"]
    listed = found["edges"].query("score != 0").head(_LISTED).drop(columns=["metric", "steps"])
    listed = listed.rename(columns={"kept": "in the circuit"})
    for column in ("source", "destination"):
        listed[column] = [_named(name, heads) for name in listed[column]]
    return Section(
        TITLE,
        [
            Prose(_TEXT + (_SOFT if context.handwired else "")),
            Table(
                pd.DataFrame(measured, columns=columns, dtype=object),
                "The fewest best-scored edges whose faithfulness is within 0.1 of 1",
            ),
            Figure(
                _by_size(curve, int(circuit["of"])),
                "Faithfulness against circuit size",
                "Circuits of the best-scored edges, and of as many at random.",
                curve,
            ),
            Table(listed, "The best-scored edges (std is over episodes)", collapsed=True),
            Table(_nodes(found["ablation"], heads), _NODES, collapsed=True),
        ],
    )


def _by_size(curve: pd.DataFrame, n_edges: int) -> Picture:
    """Faithfulness of the best-scored edges, and of random circuits, over how many edges are kept."""
    sizes = curve[curve["size"] >= 1].drop_duplicates("size")
    parts = [
        sizes.assign(algorithm=key, name=name, mean=sizes[column])
        for key, name, column in (
            ("model", "best-scored edges", "faithfulness"),
            ("random", "random circuits", "random_mean"),
        )
    ]
    return figures.curves(
        pd.concat(parts),
        x="size",
        xlabel=f"edges kept, of {n_edges}",
        ylabel="faithfulness",
        log_x=True,
        reference={"whole model": 1.0},
    )


def _nodes(ablation: pd.DataFrame, heads: Heads) -> pd.DataFrame:
    drops = [Interval(*values) for values in ablation[["drop", "low", "high"]].to_numpy()]
    how = ablation["metric"].str.replace("_", " ") + ", " + ablation["ablation"]
    long = pd.DataFrame({"node": ablation["name"], "how": how, "drop": pd.Series(drops, dtype=object)})
    wide = long.pivot(index="node", columns="how", values="drop").loc[list(dict.fromkeys(long["node"]))]
    wide = wide[list(dict.fromkeys(long["how"]))].reset_index().rename_axis(columns=None)
    return wide.assign(node=[_named(name, heads) for name in wide["node"]])


def _named(name: str, heads: Heads) -> str:
    """``0.3.v`` as the head's own name and what of it reads."""
    place, _, port = name.partition(".")
    if name.startswith("mlp "):
        return f"MLP of layer {int(name[4:]) + 1}"
    if not place.isdigit():
        return {"embed": "embedding"}.get(name, name)
    index, _, port = port.partition(".")
    names = heads[int(place)]
    number = list(names)[int(index)] if int(index) < len(names) else f"unused head {int(place) + 1}.{int(index) + 1}"
    text = f"{number} {names.get(number, '')}".strip()
    return f"{text}, {_PORTS[port]}" if port else text
