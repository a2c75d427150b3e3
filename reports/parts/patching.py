"""Where a difference passes: activation patching of positions and heads, and circuits of edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from interp.core.display import lacks
from interp.interventions import causal_tables
from interp.interventions.edge_graph import EXITS, split_head
from interp.interventions.patching import PatchingResult, sweep
from interp.interventions.sites import head_address, sites
from interp.results import figures
from interp.results.measure import Control, Measure, decisive
from interp.stats.intervals import Interval
from reports.attention import Heads, heads_of
from reports.blocks import TEXTS, Figure, Prose, Table, cell, claim, curves, joined, pivoted
from reports.part import QUICK_EPISODES, Context, Part, needing

_LISTED = 0.01  # cells that restore less of the difference are left to the pictures
_SAYS = TEXTS["patching"]
_SAYING = {"resid_pre": "by the residual stream before each layer", "z": "by each head's output"}
_LONG = 50  # positions from which a quick report patches half as many pairs: they would take a third of its time
_MOST_POINTS = 24  # cells of a machine without layers that a picture shows


_Patched = tuple[str, PatchingResult]
"""What was corrupted, in words, and a sweep over the sites that the difference could pass."""


def part(differences: Sequence[tuple[str, str, str]] = (), n_episodes: int = 32) -> Part:
    """Patching of the residual stream and of the heads, under some differences, or every corruption of the task.

    A difference is what to call it, the key of a corruption, and the metric that shows it: when empty the probability,
    or the "prediction" of a real number.
    """

    def compute(context: Context) -> list[_Patched]:
        """Patch the round looked at; a prediction is read where the difference first shows, the state at once."""
        every = [
            (record.name.capitalize(), record.key, "")
            for record in context.task.analysis.corruptions()
        ]
        few = QUICK_EPISODES if len(context.model.layout.labels) < _LONG else QUICK_EPISODES // 2
        some = context.episodes.select(slice(few if context.quick else n_episodes))
        named = tuple(context.model.points) if lacks(context.model, *_SAYING) else tuple(_SAYING)
        t, patched = context.looked_at, list[_Patched]()
        usual = "probability" if context.task.kind == "classes" else "prediction"
        for what, key, metric in list(differences or every)[: 1 if context.quick else None]:
            corruption = context.task.corruption(key)
            clean, corrupted = corruption.build(some, t)
            read = t if metric == "state" else t + corruption.delay
            cells = sites(context.model, context.model.layout.fit(clean), named)
            result = sweep(
                context.model,
                clean,
                corrupted,
                t,
                read_round=read,
                sites=cells,
                metric=metric or usual,
            )
            patched.append((what, result))
        return patched

    return Part(
        "patching",
        "Patching",
        compute,
        _draw,
        lambda context: bool(context.task.analysis.corruptions()),
        opened=True,
    )


def _draw(differences: Sequence[_Patched], context: Context) -> list[object]:
    plain = bool(lacks(context.model, *_SAYING))
    blocks: list[object] = [
        Prose("\n\n".join(_SAYS[text] for text in (["text", "points"] if plain else ["text"])))
    ]
    for what, result in differences:
        where = f"round {result.round}" + (
            f", read at round {result.read_round}" if result.read_round != result.round else ""
        )
        caption = (
            f"Share of the difference in {result.metric.replace('_', ' ')} restored in {where}"
        )
        if result.gap == 0:
            blocks.append(
                Prose(
                    f"**{what}.** This changes nothing that is read: there is no difference to restore."
                )
            )
            continue
        if plain:
            blocks += _draw_points(what, caption, result.to_frame())
            continue
        blocks.append(_maps(what, caption, result, heads_of(context.model)))
        frame = result.to_frame().drop(
            columns=["site", "metric", "direction", "round", "read", "propagate"]
        )
        names = [
            list(of_layer) for of_layer in heads_of(context.model)
        ]  # heads are called as in the pictures
        called = [
            None
            if pd.isna(head) or int(head) >= len(names[int(layer)])
            else names[int(layer)][int(head)]
            for layer, head in zip(frame["layer"], frame["head"], strict=True)
        ]
        frame = frame.assign(head=pd.Series(called, index=frame.index, dtype=object))
        shown = frame[frame["fraction"].abs() >= _LISTED]
        said = f"{what}: the {len(shown)} of {len(frame)} cells that restore at least {_LISTED:.0%}"
        blocks.append(Table(shown, said, collapsed=True))
    return blocks


def _maps(what: str, caption: str, result: PatchingResult, heads: Heads) -> Figure:
    """What each place of the residual stream and each head restores, on one scale; rows without any are out."""
    names = {f"L{layer}": f"before layer {layer}" for layer in range(len(heads))}
    names |= {
        name: f"{name} {text}".strip() for of_layer in heads for name, text in of_layer.items()
    }
    grids, shown, idle = {}, {}, 0
    for component, saying in _SAYING.items():
        grid = result.grid(component)
        grids[saying] = grid = grid.loc[[row for row in names if row in grid.index]].rename(
            index=names
        )
        enough = grid.abs().max(axis=1) >= _LISTED
        shown[f"restored {saying}"] = grid[enough] if enough.any() else grid.head(1)
        idle += len(grid) - len(shown[f"restored {saying}"])
    drawn = figures.heatmaps(shown, label="share restored", xlabel="position", limit=1.0)
    left = (
        f" {idle} rows that restore less than {_LISTED:.0%} everywhere are left out."
        if idle
        else ""
    )
    of_heads = grids[_SAYING["z"]].stack()
    head, position = of_heads.abs().idxmax()  # type: ignore[misc]
    most = f"Head {head} at {position} restores most ({of_heads[(head, position)]:.0%})."
    data = pd.concat(grids).reset_index(names=["by", "of"])
    return Figure(
        drawn, f"{what}: patching", f"**{what}.** {most} {caption} by each activation.{left}", data
    )


def _draw_points(what: str, caption: str, frame: pd.DataFrame) -> list[object]:
    """A row for every point and place of a machine that has no layers and heads."""
    shown = frame.assign(name=frame["site"], estimate=frame["fraction"], control=False)
    shown = shown.rename(columns={"fraction_low": "low", "fraction_high": "high"})
    largest = shown[shown["estimate"].abs().rank(method="first", ascending=False) <= _MOST_POINTS]
    drawn = figures.intervals(largest, xlabel="share restored", reference={"the clean run": 1.0})
    title = f"{what}: patching what is carried and the machine's points"
    most = shown.iloc[int(shown["estimate"].abs().argmax())]
    caption = f"**{what}.** {most['site']} restores most ({most['estimate']:.0%}). {caption}"
    numbers = [
        "site",
        "effect",
        "effect_low",
        "effect_high",
        "fraction",
        "fraction_low",
        "fraction_high",
        "p_value",
    ]
    return [Figure(drawn, title, f"{caption}."), Table(frame[numbers], title, collapsed=True)]


_SOFT = (
    " Gradients do not pass hard attention, so the circuit stands here as its softmax-only variant."
)
_EDGES_LISTED = 25
_PORTS = {"q": "query", "k": "key", "v": "value"}


def _edges_suffice(tables: Mapping[str, pd.DataFrame], context: Context) -> list[Measure]:
    """That few edges suffice for the difference, and as many at random do not."""
    circuit = tables["circuit"].iloc[0]
    random, share = float(circuit["random_max"]), circuit["size"] / circuit["of"]
    number = Interval(circuit["faithfulness"], circuit["low"], circuit["high"])
    kept = claim(
        "faithful",
        number,
        threshold=min(random, 1.0),  # chance edges can overshoot
        controls={"the best of as many at random": Control(random)},
    )
    few, whole = claim("few", Interval(share, share, share)), claim("edges")
    about = f"{circuit['size']} of {circuit['of']} edges"
    return [
        decisive(
            [kept, few], key="edges", claim=whole.claim, about=about, yes=whole.yes, no=whole.no
        )
    ]


def _draw_edges(tables: Mapping[str, pd.DataFrame], context: Context) -> list[object]:
    heads = heads_of(context.smooth)
    circuit, curve = tables["circuit"].iloc[0], tables["faithfulness"]
    measured = [
        ("edges", f"{circuit['size']} of {circuit['of']}", "as many"),
        (
            "faithfulness",
            Interval(circuit["faithfulness"], circuit["low"], circuit["high"]),
            circuit["random_mean"],
        ),
        ("faithfulness, best random circuit", None, circuit["random_max"]),
        ("incompleteness (0 is complete)", circuit["incompleteness"], None),
        ("CPR, over all sizes", curve["cpr"].iloc[0], curve["random_cpr"].iloc[0]),
        ("CMD, over all sizes", curve["cmd"].iloc[0], curve["random_cmd"].iloc[0]),
    ]
    ablation = tables["ablation"]
    how = ablation["metric"].str.replace("_", " ") + ", " + ablation["ablation"]
    long = joined(ablation[["name", "drop", "low", "high"]]).assign(how=how)
    nodes = pivoted(long, "name", "how", "drop").rename(columns={"name": "node"})
    nodes["node"] = [_called(name, heads) for name in nodes["node"]]
    columns = ["measure", "best-scored edges", "random circuits of equal size"]
    listed = (
        tables["edges"].query("score != 0").head(_EDGES_LISTED).drop(columns=["metric", "steps"])
    )
    listed = listed.rename(columns={"kept": "in the circuit"})
    for column in ("source", "destination"):
        listed[column] = [_called(name, heads) for name in listed[column]]
    sizes = curve[curve["size"] >= 1].drop_duplicates("size")
    best = sizes.assign(algorithm="model", name="best-scored edges", mean=sizes["faithfulness"])
    random = sizes.assign(algorithm="random", name="random circuits", mean=sizes["random_mean"])
    said = "The fewest best-scored edges whose faithfulness is within 0.1 of 1"
    about = {"n": circuit["size"], "of_all": circuit["of"], "random": circuit["random_mean"]}
    return [
        Prose(_SAYS["edges_text"] + (_SOFT if context.model.is_handwired else "")),
        Table(pd.DataFrame(measured, columns=columns, dtype=object), said),
        curves(
            _SAYS["curve"],
            pd.concat([best, random]),
            data=curve,
            kept=cell(measured[1][1]),
            **about,
        ),
        Table(listed, "The best-scored edges (std is over episodes)", collapsed=True),
        Table(nodes, _SAYS["nodes"], collapsed=True),
    ]


def _called(name: str, heads: Heads) -> str:
    """Return the text for a node of the graph: ``L0H3.v`` as the head's own name and what of it reads."""
    if name.startswith("mlp "):
        return f"MLP of layer {int(name[4:])}"
    if name == "embed":
        return "embedding"
    if name in EXITS:
        return name
    layer, head, port = split_head(name)
    address = head_address(layer, head)
    of_layer = heads[layer]
    text = f"unused head {address}"
    if address in of_layer:
        text = f"{address} {of_layer[address]}".strip()
    return f"{text}, {_PORTS[port]}" if port else text


EDGES = Part(
    "edges",
    "Circuits of edges",
    lambda of: causal_tables.circuit_tables(
        of.smooth, of.pairs[0], of.looked_at, of.seed, minimality=False
    ),
    _draw_edges,
    lambda context: bool(context.task.analysis.default_corruption),
    _edges_suffice,
    slow=True,
    lacking=needing("pattern"),
)
"""Circuits of edges under the task's default corruption: the smallest faithful one beside random ones."""
