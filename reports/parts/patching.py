"""Report parts on where a difference between two runs passes through the model: activation
patching, and circuits of edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from interp.core.display import describe_lacking
from interp.interventions import causal_tables
from interp.interventions.edge_graph import EXITS, split_head
from interp.interventions.patching import NO_GAP, PatchingResult, sweep
from interp.interventions.sites import head_address, sites
from interp.results import figures
from interp.results.measure import Control, Measure, conjoin
from interp.stats.intervals import Interval
from reports.attention import Heads, heads_of
from reports.blocks import Figure, Prose, Table, cell, claim, curves
from reports.claims import CLAIMS
from reports.part import QUICK_EPISODES, Context, Part, require_components
from reports.texts import TEXTS

_NUMBER_COLUMNS = [
    "effect",
    "effect_low",
    "effect_high",
    "fraction",
    "fraction_low",
    "fraction_high",
    "p_value",
]
"""Columns of a patching sweep that the page lists for each site."""
_SMALLEST_SHARE = 0.01
"""Share of the difference that a cell must restore to be listed; the pictures show all cells."""
_TEXTS = TEXTS["patching"]
_HEATMAP_TITLES = {
    "resid_pre": "by the residual stream before each layer",
    "z": "by each head's output",
}
"""Component that is patched in a transformer -> title of its heatmap."""
_MANY_POSITIONS = 50
"""Positions from which a quick report patches half as many pairs: all would take a third of its time."""
_MOST_POINTS = 24
"""Most cells of a machine without layers that a picture shows."""

_Patched = tuple[str, PatchingResult]
"""What was corrupted, in words, and the patching sweep."""


def part(differences: Sequence[tuple[str, str, str]] = (), n_episodes: int = 32) -> Part:
    """Make the report part on activation patching. The model runs on a corrupted episode, while one
    activation gets the value that it has in the run on the clean episode. Such runs are made for
    the residual stream and for the outputs of heads, one place at a time.

    Args:
        differences: ways to corrupt an episode, each as (what is changed, in words; key of a
            corruption of the task; metric that shows the effect). The metric "" is the probability
            of a class or, for a task that predicts numbers, the predicted number. When empty, all
            corruptions of the task are used. A quick report uses only the first.
        n_episodes: number of pairs of a clean and a corrupted episode in a full report.
    """

    def compute(context: Context) -> list[_Patched]:
        """Patch every site in the round that the report shows in detail, for each of the chosen
        corruptions.

        The effect on the metric "state" is read in this round. The effect on a prediction is read
        in the first round in which the corruption can change it.

        Args:
            context: the model and the episodes of the report.
        """
        model = context.model
        layout, t = model.layout, context.detailed_round
        # (What is changed, in words; key of the corruption; metric, "" for the default).
        chosen = list(differences) or _list_corruptions(context)
        n_patched = n_episodes
        if context.quick:
            chosen = chosen[:1]
            has_many = len(layout.labels) >= _MANY_POSITIONS
            n_patched = QUICK_EPISODES // 2 if has_many else QUICK_EPISODES
        episodes = context.episodes.select(slice(n_patched))
        components = tuple(_HEATMAP_TITLES)
        if describe_lacking(model, *components):  # not a transformer: all hook points are patched
            components = tuple(model.points)
        default_metric = "probability" if context.task.kind == "classes" else "prediction"
        patched: list[_Patched] = []
        for what, key, metric in chosen:
            corruption = context.task.corruption(key)
            clean, corrupted = corruption.build(episodes, t)
            # The layout that has the sizes of these episodes, such as their number of experts.
            places = sites(model, layout.fit(clean), components)
            result = sweep(
                model,
                clean,
                corrupted,
                t,
                read_round=t if metric == "state" else t + corruption.delay,
                sites=places,
                metric=metric or default_metric,
            )
            patched.append((what, result))
        return patched

    def applies(context: Context) -> bool:
        return bool(context.task.analysis.corruptions())

    return Part("patching", "Patching", compute, _draw, applies, opened=True)


def _list_corruptions(context: Context) -> list[tuple[str, str, str]]:
    """List all ways in which the task can corrupt an episode, for the part on patching.

    Returns:
        For each: (its name for the page, its key, ""). The third text names the metric that shows
        the effect; "" stands for the default metric.
    """
    records = context.task.analysis.corruptions()
    return [(record.name.capitalize(), record.key, "") for record in records]


def _draw(differences: Sequence[_Patched], context: Context) -> list[object]:
    """Return the blocks of the page for each corruption: a picture and a table of what patching
    restores, or a sentence if the corruption changes too little.

    Args:
        differences: for each corruption, what was changed, in words, and the results of patching.
        context: the model and the episodes of the report.
    """
    # Without the components of the heatmaps, a model was patched at all of its hook points.
    why_no_heatmaps = describe_lacking(context.model, *_HEATMAP_TITLES)
    texts = [_TEXTS["text"]]
    if why_no_heatmaps:
        texts.append(_TEXTS["points"])
    blocks: list[object] = [Prose("\n\n".join(texts))]
    for what, result in differences:
        if abs(result.gap) < NO_GAP:
            blocks.append(Prose(f"**{what}.** {result.sentence}"))
        elif why_no_heatmaps:
            blocks += _draw_hook_points(what, _describe(result), result.to_frame())
        else:
            heads = heads_of(context.model)
            blocks.append(_draw_maps(what, _describe(result), result, heads))
            blocks.append(_list_cells(what, result))
    return blocks


def _describe(result: PatchingResult) -> str:
    """Return a caption that names the metric, the patched round and, if it is another one, the
    round in which the effect is read.

    Args:
        result: the results of patching.
    """
    where = f"round {result.round}"
    if result.read_round != result.round:
        where += f", read at round {result.read_round}"
    return f"Share of the difference in {result.metric.replace('_', ' ')} restored in {where}"


def _list_cells(what: str, result: PatchingResult) -> Table:
    """Make a table of the patched sites that restore (or reverse) at least 1 % of the change that
    the corruption makes in the metric.

    Args:
        what: what was corrupted, in words.
        result: the results of patching, site by site.
    """
    frame = result.to_frame()
    shown = frame.loc[frame["fraction"].abs() >= _SMALLEST_SHARE, ["site", *_NUMBER_COLUMNS]]
    count = f"{len(shown)} of {len(frame)} cells"
    title = f"{what}: {count}, with a share of at least {_SMALLEST_SHARE:.0%} (above or below 0)"
    return Table(shown, title, collapsed=True)


def _draw_maps(what: str, caption: str, result: PatchingResult, heads: Heads) -> Figure:
    """Draw heatmaps of the share of the difference that patching restores, at each layer and
    position of the residual stream and at each head.

    Rows that restore nothing are left out.

    Args:
        what: what was corrupted, in words.
        caption: what was patched and read, in words.
        result: the results of patching, site by site.
        heads: names of the heads by layer.
    """
    # Row of a grid, a layer or the address of a head -> its displayed name, in the order of rows.
    names = {f"L{layer}": f"before layer {layer}" for layer in range(len(heads))}
    for layer_heads in heads:
        for address, text in layer_heads.items():
            names[address] = f"{address} {text}".strip()
    grids: dict[str, pd.DataFrame] = {}  # rows: layers or heads; columns: positions
    drawn_grids: dict[str, pd.DataFrame] = {}
    n_left_out = 0
    for component, title in _HEATMAP_TITLES.items():
        grid = result.grid(component)
        rows = [row for row in names if row in grid.index]
        grid = grid.loc[rows].rename(index=names)
        restores = grid.abs().max(axis=1) >= _SMALLEST_SHARE
        # If no row restores anything, the first one is drawn, since a picture needs a row.
        drawn_rows = grid[restores] if restores.any() else grid.head(1)
        n_left_out += len(grid) - len(drawn_rows)
        grids[title] = grid
        drawn_grids[f"restored {title}"] = drawn_rows
    picture = figures.heatmaps(drawn_grids, label="share restored", xlabel="position", limit=1.0)
    note = ""
    if n_left_out:
        note = f" Rows that restore less than {_SMALLEST_SHARE:.0%} everywhere are left out ({n_left_out})."
    head_shares = grids[_HEATMAP_TITLES["z"]].stack()  # by (head, position)
    head, position = head_shares.idxmax()  # type: ignore[misc]
    strongest = f"Head {head} at {position} restores most ({head_shares[(head, position)]:.0%})."
    data = pd.concat(grids).reset_index(names=["by", "of"])
    text = f"**{what}.** {strongest} {caption} by each activation.{note}"
    return Figure(picture, f"{what}: patching", text, data)


def _draw_hook_points(what: str, caption: str, frame: pd.DataFrame) -> list[object]:
    """Draw the share that patching restores for a machine without layers and heads: one row per
    hook point and position.

    Args:
        what: what was corrupted, in words.
        caption: what was patched and read, in words.
        frame: table with one row per site.
    """
    # The columns that figures.intervals draws.
    shown = frame.assign(name=frame["site"], estimate=frame["fraction"], control=False)
    shown = shown.rename(columns={"fraction_low": "low", "fraction_high": "high"})
    # Sites that change most, in either direction, have the first ranks.
    rank = shown["estimate"].abs().rank(method="first", ascending=False)
    drawn = figures.intervals(
        shown[rank <= _MOST_POINTS], xlabel="share restored", reference={"the clean run": 1.0}
    )
    title = f"{what}: patching the state and the machine's points"
    strongest = shown.sort_values("estimate", ascending=False).iloc[0]
    share = f"{strongest['estimate']:.0%}"
    text = f"**{what}.** {strongest['site']} restores most ({share}). {caption}."
    return [
        Figure(drawn, title, text),
        Table(frame[["site", *_NUMBER_COLUMNS]], title, collapsed=True),
    ]


_SOFTMAX_NOTE = (
    " Gradients do not pass through hard attention, so the softmax-only variant of the circuit "
    "is used here."
)
_EDGES_LISTED = 25
"""Number of the best-scored edges that the table lists."""
_PORTS = {"q": "query", "k": "key", "v": "value"}


def _measure_edges(tables: Mapping[str, pd.DataFrame], context: Context) -> list[Measure]:
    """Return the measure of whether few edges preserve the difference between clean and corrupted
    runs.

    The edges of the circuit must be at most half of all edges. They must also preserve more of the
    difference than any of several random sets with equally many edges, the control.

    Args:
        tables: tables by name, as :func:`interp.interventions.causal_tables.circuit_tables` returns
            them.
        context: the report's model, episodes and settings; not used.
    """
    circuit = tables["circuit"].iloc[0]
    best_random = float(circuit["random_max"])
    share = circuit["size"] / circuit["of"]
    is_faithful = claim(
        "faithful",
        _get_faithfulness(circuit),
        threshold=min(best_random, 1.0),  # random edges may overshoot a faithfulness of 1
        controls={"the best of equally many random edges": Control(best_random)},
    )
    is_small = claim("few", Interval(share, share, share))  # a count, without uncertainty
    texts = CLAIMS["edges"]  # of the claim that both are true
    sizes = f"{circuit['size']} of {circuit['of']} edges"
    return [conjoin([is_faithful, is_small], key="edges", about=sizes, **texts)]


def _get_faithfulness(circuit: pd.Series) -> Interval:
    """Return the faithfulness of a circuit, with its interval.

    Args:
        circuit: row of a table of circuits.
    """
    return Interval(circuit["faithfulness"], circuit["low"], circuit["high"])


def _draw_edges(tables: Mapping[str, pd.DataFrame], context: Context) -> list[object]:
    """Return the blocks of the section: a table about the smallest faithful circuit, curves of
    faithfulness over circuit size, and a folded table of the edges with the highest scores.

    Args:
        tables: tables by name, as :func:`interp.interventions.causal_tables.circuit_tables` returns
            them.
        context: the report's model, episodes and settings.
    """
    heads = heads_of(context.differentiable_model)
    circuit = tables["circuit"].iloc[0]
    curve = tables["faithfulness"]
    first = curve.iloc[0]  # CPR and CMD, over all sizes, are the same in every row
    faithfulness = _get_faithfulness(circuit)
    n_edges, n_all = circuit["size"], circuit["of"]
    rows = [
        ("edges", f"{n_edges} of {n_all}", "as many"),
        ("faithfulness", faithfulness, circuit["random_mean"]),
        ("faithfulness, best random circuit", None, circuit["random_max"]),
        ("incompleteness (0: complete)", circuit["incompleteness"], None),
        ("CPR, over all sizes", first["cpr"], first["random_cpr"]),
        ("CMD, over all sizes", first["cmd"], first["random_cmd"]),
    ]
    columns = ["measure", "best-scored edges", "random circuits of equal size"]
    numbers = pd.DataFrame(rows, columns=columns, dtype=object)
    sizes = curve[curve["size"] >= 1].drop_duplicates("size")  # one row per size of a circuit
    best = sizes.assign(algorithm="model", name="best-scored edges", mean=sizes["faithfulness"])
    random = sizes.assign(algorithm="random", name="random circuits", mean=sizes["random_mean"])
    picture = curves(
        _TEXTS["curve"],
        pd.concat([best, random]),
        data=curve,
        kept=cell(faithfulness),
        n=n_edges,
        of_all=n_all,
        random=circuit["random_mean"],
    )
    note = _SOFTMAX_NOTE if context.model.is_handwired else ""
    smallest = "The smallest circuit of best-scored edges with a faithfulness within 0.1 of 1"
    best_edges = "The best-scored edges, with the standard deviation of scores over episodes (std)"
    return [
        Prose(_TEXTS["edges_text"] + note),
        Table(numbers, smallest),
        picture,
        Table(_list_edges(tables["edges"], heads), best_edges, collapsed=True),
    ]


def _list_edges(edges: pd.DataFrame, heads: Heads) -> pd.DataFrame:
    """Return a table of the best-scored edges, with the names of nodes that the pictures use.

    Args:
        edges: table of all edges, the best first.
        heads: names of the heads by layer.
    """
    listed = edges.query("score != 0").head(_EDGES_LISTED).drop(columns=["metric", "steps"])
    listed = listed.rename(columns={"kept": "in the circuit"})
    for column in ("source", "destination"):
        listed[column] = [_name_node(name, heads) for name in listed[column]]
    return listed


def _name_node(name: str, heads: Heads) -> str:
    """Return the name of a node of the edge graph for a reader, such as "L0H3 state tag, value" for
    ``L0H3.v``.

    Args:
        name: name of the node in the edge graph.
        heads: names of the heads by layer.
    """
    if name.startswith("mlp "):
        return f"MLP of layer {int(name[4:])}"  # "mlp 2"
    if name == "embed":
        return "embedding"
    if name in EXITS:
        return name
    layer, head, port = split_head(name)  # the port is "q", "k" or "v" of a head that reads
    address = head_address(layer, head)
    text = f"unused head {address}"
    if address in heads[layer]:
        text = f"{address} {heads[layer][address]}".strip()
    return f"{text}, {_PORTS[port]}" if port else text


def _find_circuit(context: Context) -> dict[str, pd.DataFrame]:
    """Find the smallest set of edges that preserves the effect of the task's default corruption,
    and return tables about it by name (:func:`interp.interventions.causal_tables.circuit_tables`).

    Args:
        context: the model and the episodes of the report.
    """
    model, episodes = context.differentiable_model, context.pairs[0]
    t, seed = context.detailed_round, context.seed
    return causal_tables.circuit_tables(model, episodes, t, seed, in_full=False)


EDGES = Part(
    "edges",
    "Circuits of edges",
    _find_circuit,
    _draw_edges,
    applies=lambda context: bool(context.task.analysis.default_corruption),
    summary=_measure_edges,
    slow=True,
    lacking=require_components("pattern"),
)
"""The report part on the smallest faithful circuit of edges, against random circuits.

It uses the task's default corruption.
"""
