"""Where heads look in some rounds, and what the reads of a handwired circuit write in one."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from einops import einsum

from circuits.circuit import Circuit
from interp.model.rollout import rollout
from interp.results import figures
from interp.results.style import WIDTH
from reports import arrows, panels
from reports.attention import (
    N_EPISODES,
    N_ROUNDS,
    AttentionView,
    Heads,
    heads_of,
    show,
    spread,
    worded,
)
from reports.blocks import Figure, Prose, Table
from reports.part import Context, Part, needing, wired
from reports.texts import TEXTS

_SAYS = TEXTS["heads"]


def attention(paper: str = "") -> Part:
    """Make the part of the attention of every head, as a figure and as an interactive view.

    Args:
        paper: the matching figure of the paper, as "figure 1, right".
    """

    def draw(view: AttentionView, context: Context) -> list[object]:
        read = _rank_heads(view)[0]
        caption = _SAYS["attended"].format(
            round=context.looked_at,
            shown=context.shown,
            head=view.heads[read.layer][read.head],
            read=view.labels[read.key],
            at=view.labels[read.query],
            size=read.weight,
        )
        caption += f" {_describe_heads(heads_of(context.model))}"
        if paper:
            caption += f" (Paper, {paper}.)"
        return [Prose(_SAYS["attention"]), replace(view, caption=caption)]

    def draw_hero(view: AttentionView, context: Context) -> list[Figure]:
        best = _rank_heads(view)[:4]
        patterns = [view.patterns[read.layer][view.first][read.head] for read in best]
        names = [view.heads[read.layer][read.head] for read in best]
        picture = panels.attention([np.array(patterns)], view.labels, [names], columns=2, width=3.5)
        title = f"Attention in round {context.looked_at}"
        return [Figure(picture, title, f"{title}: the {len(best)} heads that read most.")]

    return Part(
        "attention",
        "Attention",
        _attend,
        draw,
        hero=draw_hero,
        opened=True,
        lacking=needing("pattern"),
    )


def _describe_heads(heads: Heads) -> str:
    """Say what the heads are called, layer by layer."""
    sentences = []
    for layer, of_layer in enumerate(heads):
        names = [f"{address} {text}" for address, text in of_layer.items() if text]
        if names:
            sentences.append(f"Layer {layer}: {', '.join(names)}.")
    return " ".join(sentences) or "A head is called by its layer and its place in it."


def _attend(context: Context) -> AttentionView:
    """Show the patterns of ``N_EPISODES`` episodes in ``N_ROUNDS`` rounds, including the round
    looked at.
    """
    others = [i for i in range(len(context.episodes)) if i != context.shown]
    episodes = [context.shown, *others][:N_EPISODES]
    rounds = sorted({*spread(context.n_rounds, N_ROUNDS - 1), context.looked_at})
    kind = context.model.points["pattern"]
    hooks = [kind.hook.format(layer=layer) for layer in range(kind.n_layers)]
    chosen = context.episodes.select(episodes)
    run = rollout(context.model, chosen, names_filter=hooks, rounds=rounds)
    view = show(run, heads_of(context.model))
    first = (0, rounds.index(context.looked_at))
    return replace(view, episodes=tuple(episodes), first=first, opened=False)


class _Read(NamedTuple):
    """The strongest read of a head: indices, and the weight."""

    weight: float
    layer: int
    head: int
    query: int
    key: int


def _rank_heads(view: AttentionView) -> list[_Read]:
    """List every head's strongest read, the strongest first; reads within one position, or of the
    first one, are left out.

    Heads rest on the first position.
    """
    n = len(view.labels)
    is_own = np.eye(n, dtype=bool)
    reads = []
    for layer, patterns in enumerate(view.patterns):
        weights = np.where(is_own, 0.0, np.abs(patterns[view.first]))
        for head, of_head in enumerate(weights[..., 1:]):
            query, key = divmod(int(of_head.argmax()), n - 1)
            reads.append(_Read(float(of_head[query, key]), layer, head, query, key + 1))
    return sorted(reads, key=lambda read: -read.weight)


_THRESHOLD = 0.05  # the smallest write of a wired head that is drawn, as a share of its largest
_WIDEST = (
    7  # inches: a wider picture has so many positions that arrows between them cannot be told apart
)


def _draw_hero(reads: pd.DataFrame, context: Context) -> list[Figure]:
    """Draw a handwired circuit in one round, or as it is wired where it has many positions."""
    caption = (
        f"Round {context.looked_at}: an arrow is a head, from what it reads to where it writes."
    )
    drawn = _draw_flow(reads, context, width=4.5)
    if drawn.get_figwidth() <= _WIDEST:
        return [Figure(drawn, "The circuit in one round", caption)]
    caption = "An arrow is a head that reads what another wrote."
    picture = _draw_wiring(context.circuit, "The circuit", caption, width=4.5)
    return [picture] if isinstance(picture, Figure) else []


def _draw_flow(reads: pd.DataFrame, context: Context, width: float) -> Any:
    """Draw the reads of a round, a colour a head.

    Args:
        reads: a row a read.
        context: of the report.
        width: of the picture, in inches.
    """
    heads = heads_of(context.model)
    legend = {}
    for of_layer in heads:
        for address, text in of_layer.items():
            legend[address] = f"{address}  {text}".strip()
    drawn = reads.rename(columns={"head": "of"})
    return arrows.flow(drawn, context.run.layout.labels, len(heads), legend, width=width)


def _find_writes(context: Context) -> pd.DataFrame:
    """Find the reads of one round that wrote something, as :func:`reports.arrows.find_writes` gives them."""
    run = context.run
    model: Any = context.model
    patterns = []
    writes = []
    here = (context.shown, run.cached_rounds.index(context.looked_at))
    addresses = [list(of_layer) for of_layer in heads_of(model)]
    for layer, names in enumerate(addresses):
        attention_hooks = f"blocks.{layer}.attn"
        pattern = run.cache[f"{attention_hooks}.hook_pattern"][here].numpy(force=True)
        values = run.cache[f"{attention_hooks}.hook_v"][here].numpy(force=True)
        w_o = model.blocks[layer].attn.W_O.numpy(force=True)
        moves = einsum(values, w_o, "key head d, head d model -> head key model")
        sizes = np.linalg.norm(moves, axis=-1)[:, None, :]
        patterns.append(pattern[: len(names)])
        writes.append((pattern * sizes)[: len(names)])
    labels = run.layout.labels
    return arrows.find_writes(patterns, writes, labels, addresses, threshold=_THRESHOLD)


def _draw_reads(reads: pd.DataFrame, context: Context) -> list[object]:
    """Draw the reads of a round, and the circuit that was wired by hand."""
    t = context.looked_at
    drawn = _draw_flow(reads, context, WIDTH)
    n_heads = reads["head"].nunique()
    caption = _SAYS["wired"].format(
        heads=n_heads, t=t, shown=context.shown, n=len(reads), least=_THRESHOLD
    )
    title = f"Which position reads which, by which head, in round {t}"
    return [Figure(drawn, title, caption), *_show_wiring(context.circuit)]


def _show_wiring(circuit: Circuit) -> list[object]:
    """Show what was wired: heads, which reads which, and where each causal variable lives."""
    caption = "As it is wired: an arrow is a head that reads what another wrote, coloured by the port that reads it."
    heads = f"The heads, in the order of computation. {_FORMULAS}"
    blocks: list[object] = [
        Table(_list_heads(circuit), heads, collapsed=True),
        _draw_wiring(circuit, "Which head reads which", caption),
    ]
    if circuit.edges:
        edges = _list_edges(circuit)
        edges["positions"] = edges["positions"].map(", ".join)
        blocks.append(Table(edges, "What is read by what, the embeddings included", collapsed=True))
    if circuit.sites:
        places = circuit.ground_truth()
        blocks.append(Table(places, "Where each causal variable lives", collapsed=True))
    else:
        blocks.append(Prose(_NO_SITES.format(name=circuit.name)))
    return blocks


def _call_heads(circuit: Circuit) -> dict[str, str]:
    """Call the circuit's heads as the model's are: head "1.4 tag" is "L0H3 tag (step 1.4)"."""
    names = {}
    for neuron in circuit.neurons:
        words = worded(re.sub(r"^[0-9]+ ", "", neuron.name))
        names[neuron.name] = f"L{neuron.layer} MLP {words}"
    for layer in range(circuit.n_layers):
        for i, head in enumerate(circuit.layer(layer)):
            names[head.name] = f"L{layer}H{i} {worded(head.name)}"
    return names


def _list_heads(circuit: Circuit) -> pd.DataFrame:
    """List the circuit's heads."""
    table = circuit.to_frame()
    return table.assign(
        head=table["head"].replace(_call_heads(circuit)),
        layer=table["layer"] - 1,
        writes="`" + table["writes"] + "`",
    )


def _list_edges(circuit: Circuit) -> pd.DataFrame:
    """List which head reads what an earlier head, or an embedding, wrote."""
    names = _call_heads(circuit)
    edges = pd.DataFrame([asdict(edge) for edge in circuit.edges])
    return edges.replace({"source": names, "target": names})


def _draw_wiring(circuit: Circuit, title: str, caption: str, **size: float) -> Figure | Prose:
    """Draw which head reads what another wrote; say why not where the circuit lists no edges.

    Args:
        circuit: with its edges.
        title: for screen readers.
        caption: under the picture.
        size: width of the picture, in inches.
    """
    if not circuit.edges:
        return Prose(_NO_EDGES.format(name=circuit.name))
    heads = _list_heads(circuit)
    edges = _list_edges(circuit)
    layers = [list(of_layer) for _, of_layer in heads.groupby("layer")["head"]]
    between_heads = edges[edges["source"].isin(heads["head"])]
    return Figure(figures.wiring(layers, between_heads, **size), title, caption)


_FORMULAS = "What a head writes is a formula: ids, buf1, ... are blocks of the residual stream, u_x the direction of x."
_NO_EDGES = (
    "Not drawn: the circuit {name} lists no edges, so it does not say which head reads which."
)
_NO_SITES = "The circuit {name} lists no sites, so it does not say where its variables live."


CIRCUIT = Part(
    "circuit",
    "The circuit",
    _find_writes,
    _draw_reads,
    hero=_draw_hero,
    applies=wired,
    lacking=needing("pattern"),
)
"""Which position read which, by which head, in the round looked at."""
