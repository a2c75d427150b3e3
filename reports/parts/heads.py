"""Report parts on heads: their attention in some rounds, and which head reads which in a handwired
circuit.
"""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from operator import attrgetter

import numpy as np
import pandas as pd

from circuits.circuit import Circuit
from interp.evaluation.plan import patterns as pattern_hooks
from interp.model.rollout import rollout
from interp.results import figures
from interp.results.style import WIDTH
from reports.attention import (
    N_EPISODES,
    N_ROUNDS,
    AttentionView,
    Heads,
    format_head_name,
    heads_of,
    show,
    space_evenly,
)
from reports.blocks import Figure, Prose, Table
from reports.part import Context, Part, is_handwired, require_components
from reports.texts import TEXTS

_TEXTS = TEXTS["heads"]


def attention(paper: str = "") -> Part:
    """Make the report part on the attention of every head, with a figure and an interactive view.

    Args:
        paper: the corresponding figure of the paper, such as "figure 1, right".
    """

    def draw(view: AttentionView, context: Context) -> list[object]:
        """Return the blocks of the page on attention: a text, and the attention patterns. Their
        caption names the strongest attention and, if the task names one, the figure of the paper.

        Args:
            view: the attention patterns of some rounds of some episodes.
            context: the model and the episodes of the report.
        """
        weight, layer, head, query, key = _find_strongest(view)
        caption = _TEXTS["attended"].format(
            round=context.detailed_round,
            shown=context.drawn_episode,
            head=view.heads[layer][head],
            read=view.labels[key],
            at=view.labels[query],
            size=weight,
        )
        caption += f" {_describe_heads(heads_of(context.model))}"
        if paper:
            caption += f" (Paper, {paper}.)"
        return [Prose(_TEXTS["attention"]), replace(view, caption=caption)]

    return Part(
        "attention",
        "Attention",
        _attend,
        draw,
        opened=True,
        lacking=require_components("pattern"),
    )


def _describe_heads(heads: Heads) -> str:
    """Return text with the names of the heads: one sentence per layer."""
    sentences = []
    for layer, names_of_layer in enumerate(heads):
        names = [f"{address} {name}" for address, name in names_of_layer.items() if name]
        if names:
            sentences.append(f"Layer {layer}: {', '.join(names)}.")
    return " ".join(sentences) or "A head is named by its layer and its number in the layer."


def _attend(context: Context) -> AttentionView:
    """Return a view of the attention in up to 3 episodes and 10 rounds.

    The round that the report shows in detail is among them, and is shown first.
    """
    others = [i for i in range(len(context.episodes)) if i != context.drawn_episode]
    episodes = [context.drawn_episode, *others][:N_EPISODES]
    # Nine rounds that are evenly spaced, and the detailed one.
    rounds = sorted({*space_evenly(context.n_rounds, N_ROUNDS - 1), context.detailed_round})
    hooks = pattern_hooks(context.model)
    chosen = context.episodes.select(episodes)
    run = rollout(context.model, chosen, names_filter=hooks, rounds=rounds)
    view = show(run, heads_of(context.model))
    first = (0, rounds.index(context.detailed_round))
    # The view counts the selected episodes; it is to show their numbers in the report.
    return replace(view, episodes=tuple(episodes), first=first, opened=False)


def _find_strongest(view: AttentionView) -> tuple[float, int, int, int, int]:
    """Find the largest attention weight of any head between two different positions, in the round
    that is shown first.

    Attention to the first position is left out: heads attend there if they have nothing to read.

    Returns:
        The weight; indices of the layer and of the head in it; and indices of the position that
        attends (query) and of the position that is attended to (key).
    """
    is_own = np.eye(len(view.labels), dtype=bool)
    strongest_of_heads = []
    for layer, patterns in enumerate(view.patterns):
        weights = np.where(is_own, 0.0, np.abs(patterns[view.first]))  # [head, query, key]
        weights[..., 0] = -1.0  # below all others, so that the first position is never chosen
        for head, head_weights in enumerate(weights):
            query, key = np.unravel_index(head_weights.argmax(), head_weights.shape)
            weight = float(head_weights[query, key])
            strongest_of_heads.append((weight, layer, head, int(query), int(key)))
    return max(strongest_of_heads)  # the weight is compared first


def _draw_hero(circuit: Circuit, context: Context) -> list[Figure]:
    """Draw which head of a handwired circuit reads which, for the top of the page.

    Args:
        circuit: the circuit.
        context: not used.
    """
    if not circuit.edges:
        return []
    caption = "An arrow means that one head reads what another head wrote."
    return [_draw_wiring(circuit, "The circuit", caption, width=4.5)]


def _show_wiring(circuit: Circuit, context: Context) -> list[object]:
    """Return the blocks of the page on a circuit: a table of its heads, a picture and a table of
    which head reads which, and a table of the sites of each variable of the algorithm.

    Args:
        circuit: the circuit.
        context: not used.
    """
    caption = (
        "The wiring: an arrow means that one head reads what another head wrote. Its "
        "colour shows the input (query, key or value)."
    )
    title = f"The heads, in the order of computation. {_FORMULAS}"
    blocks: list[object] = [Table(_list_heads(circuit), title, collapsed=True)]
    if circuit.edges:
        blocks.append(_draw_wiring(circuit, "Which head reads the output of which", caption))
        edges = _list_edges(circuit)
        edges["positions"] = edges["positions"].map(", ".join)  # each is a tuple of labels
        what = "Every edge: which component reads the output of which head, MLP or embedding"
        blocks.append(Table(edges, what, collapsed=True))
    else:
        blocks.append(Prose(_NO_EDGES.format(name=circuit.name)))
    if circuit.sites:
        places = circuit.ground_truth()
        blocks.append(Table(places, "The sites of each variable", collapsed=True))
    else:
        blocks.append(Prose(_NO_SITES.format(name=circuit.name)))
    return blocks


def _name_heads(circuit: Circuit) -> dict[str, str]:
    """Return the display name of each head and group of neurons, such as "L0H3 tag (step 1.4)", by
    its name in the circuit, such as "1.4 tag".
    """
    names = {}
    for neuron in circuit.neurons:
        # Without a number in front of the name.
        words = format_head_name(re.sub(r"^[0-9]+ ", "", neuron.name))
        names[neuron.name] = f"L{neuron.layer} MLP {words}"
    for layer in range(circuit.n_layers):
        for i, head in enumerate(circuit.layer(layer)):
            names[head.name] = f"L{layer}H{i} {format_head_name(head.name)}"
    return names


def _list_heads(circuit: Circuit) -> pd.DataFrame:
    """Return the circuit's table of heads, with the names that the page displays
    (:func:`_name_heads`).
    """
    table = circuit.to_frame()
    return table.assign(
        head=table["head"].replace(_name_heads(circuit)),
        layer=table["layer"] - 1,  # the circuit's table counts from 1, this page from 0
        writes="`" + table["writes"] + "`",
    )


def _list_edges(circuit: Circuit) -> pd.DataFrame:
    """Return a table of the circuit's edges, with the names that the page displays
    (:func:`_name_heads`).
    """
    names = _name_heads(circuit)
    edges = pd.DataFrame([asdict(edge) for edge in circuit.edges])
    return edges.replace({"source": names, "target": names})


def _draw_wiring(circuit: Circuit, title: str, caption: str, width: float = WIDTH) -> Figure:
    """Draw which head reads the output of which other head.

    Args:
        circuit: the circuit; it lists its edges.
        title: description for screen readers.
        caption: text under the picture.
        width: width of the picture, in inches.
    """
    heads = _list_heads(circuit)
    edges = _list_edges(circuit)
    layers = [list(names) for _, names in heads.groupby("layer")["head"]]
    between_heads = edges[edges["source"].isin(heads["head"])]  # not from embeddings and MLPs
    return Figure(figures.draw_wiring(layers, between_heads, width=width), title, caption)


_FORMULAS = (
    "The column of what a head writes has formulas: ids, buf1, ... are blocks of the residual "
    "stream, and u_x is the direction of x."
)
_NO_EDGES = (
    "No picture: the circuit {name} lists no edges, so it is not known which head reads the "
    "output of which."
)
_NO_SITES = "The circuit {name} lists no sites, so the sites of its variables are not known."


CIRCUIT = Part(
    "circuit",
    "The circuit",
    attrgetter("circuit"),
    _show_wiring,
    hero=_draw_hero,
    applies=is_handwired,
    lacking=require_components("pattern"),
)
"""The report part on the wiring of a handwired model and the sites of its variables."""
