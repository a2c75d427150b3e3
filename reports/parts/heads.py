"""What the heads do: where they look in some rounds, and what one round's reads do."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pandas as pd
from einops import einsum

from circuits.circuit import Circuit
from circuits.registry import build
from interp.interventions.edge_graph import strongest_reads
from interp.model.library import handwired_models
from interp.model.rollout import rollout
from interp.results import figures
from interp.results.style import WIDTH
from reports import arrows, panels
from reports.attention import N_EPISODES, N_ROUNDS, AttentionView, heads_of, show, spread, worded
from reports.blocks import TEXTS, Figure, Prose, Table, joined
from reports.page import Section
from reports.part import Context, Part, needing

_SAYS = TEXTS["heads"]


def attention(paper: str = "") -> Part:
    """Attention of every head, drawn for paper and interactive; ``paper`` is its figure there, as "figure 1, right"."""

    def draw(view: AttentionView, context: Context) -> list[object]:
        _, layer, head, query, key = _ranked(view)[0]
        at, read, size = (
            view.labels[query],
            view.labels[key],
            abs(view.patterns[layer][view.first][head, query, key]),
        )
        named = [
            [f"{address} {text}" for address, text in of.items() if text]
            for of in heads_of(context.model)
        ]
        called = " ".join(
            f"Layer {layer}: {', '.join(of)}." for layer, of in enumerate(named) if of
        )
        most = {"head": view.heads[layer][head], "read": read, "at": at, "size": size}
        caption = _SAYS["attended"].format(round=context.looked_at, shown=context.shown, **most)
        caption += " " + (called or "A head is called by its layer and its place in it.")
        caption += f" (Paper, {paper}.)" if paper else ""
        return [Prose(_SAYS["attention"]), replace(view, caption=caption)]

    def hero(view: AttentionView, context: Context) -> list[Figure]:
        best = [one[1:3] for one in _ranked(view)[:4]]
        shown = np.array([view.patterns[layer][view.first][head] for layer, head in best])
        picture = panels.attention(
            [shown], view.labels, [[view.heads[at][i] for at, i in best]], columns=2, width=3.5
        )
        caption = f"Attention in round {context.looked_at}: the {len(best)} heads that read most."
        return [Figure(picture, f"Attention in round {context.looked_at}", caption)]

    return Part(
        "attention", "Attention", _attend, draw, hero=hero, opened=True, lacking=needing("pattern")
    )


def _attend(context: Context) -> AttentionView:
    """The patterns of ``N_EPISODES`` episodes in ``N_ROUNDS`` rounds, the round looked at among them."""
    episodes = [context.shown, *[i for i in range(len(context.episodes)) if i != context.shown]][
        :N_EPISODES
    ]
    rounds = sorted({*spread(context.n_rounds, N_ROUNDS - 1), context.looked_at})
    kind = context.model.points["pattern"]
    names = [kind.hook.format(layer=layer) for layer in range(kind.n_layers)]
    run = rollout(
        context.model, context.episodes.select(episodes), names_filter=names, rounds=rounds
    )
    first = (0, rounds.index(context.looked_at))
    return replace(
        show(run, heads_of(context.model)), episodes=tuple(episodes), first=first, opened=False
    )


def _ranked(view: AttentionView) -> list[tuple[float, int, int, int, int]]:
    """Every head with its strongest read of another position than the first, where heads rest, and than its own.

    Each is (minus the weight, layer, head, query, key); the strongest comes first.
    """
    n, found = len(view.labels), []
    for layer, pattern in enumerate(view.patterns):
        for head, of_head in enumerate(
            np.abs(pattern[view.first])[..., 1:] * (1 - np.eye(n, n - 1, k=-1))
        ):
            query, key = map(int, np.unravel_index(int(of_head.argmax()), of_head.shape))
            found.append((-float(of_head[query, key]), layer, head, query, key + 1))
    return sorted(found)


_WIRED, _LEARNED = "The circuit", "What the heads do"
_SHOWN = 12  # reads of a learned model that are drawn
_THRESHOLD = 0.05  # the smallest write of a wired head that is drawn, as a share of its largest


def _hero(reads: pd.DataFrame, context: Context) -> list[Figure]:
    if not context.model.is_handwired:
        return []
    caption = (
        f"Round {context.looked_at}: an arrow is a head, from what it reads to where it writes."
    )
    picture: Any = Figure(_flow(reads, context, width=4.5), "The circuit in one round", caption)
    if (
        picture.figure.get_figwidth() > 7
    ):  # so many positions that arrows between them cannot be told apart
        caption = "An arrow is a head that reads what another wrote."
        picture = _picture(context.circuit, "The circuit", caption, width=4.5)
    return [picture] if isinstance(picture, Figure) else []


def _flow(reads: pd.DataFrame, context: Context, width: float) -> Any:
    """The reads of a circuit wired by hand, a colour a head; of a learned model, a colour for what each matters to."""
    labels, n_layers = context.run.layout.labels, len(heads_of(context.model))
    if context.model.is_handwired:
        legend = {
            name: f"{name}  {text}".strip()
            for of in heads_of(context.model)
            for name, text in of.items()
        }
        return arrows.flow(
            reads.rename(columns={"head": "of"}), labels, n_layers, legend, width=width
        )
    named = [
        f"{head} {effect:.2f}" for head, effect in zip(reads["head"], reads["effect"], strict=True)
    ]
    drawn = reads.assign(
        of=reads["exit"], label=named, weight=reads["effect"] / reads["effect"].max()
    )
    legend = {name: f"matters most to the {name}" for name in ("prediction", "update")}
    return arrows.flow(drawn, labels, n_layers, legend, width=width)


def _read(context: Context) -> pd.DataFrame:
    """The reads of one round: all that wrote something, of a circuit wired by hand; else the strongest."""
    if context.model.is_handwired:
        return _written(context)
    run = rollout(context.model, context.pairs[0])
    reads = strongest_reads(context.model, run, context.looked_at, k=_SHOWN, seed=context.seed)
    heads = [list(names) for names in heads_of(context.model)]
    return reads.assign(
        head=[heads[at][i] for at, i in reads[["layer", "head"]].to_numpy().tolist()]
    )


def _written(context: Context) -> pd.DataFrame:
    """The reads of one round that wrote something, as :func:`reports.arrows.written` gives them."""
    run, patterns, writes = context.run, [], []
    model: Any = context.model

    at = (context.shown, run.cached_rounds.index(context.looked_at))
    heads = [list(names) for names in heads_of(context.model)]
    for layer, names in enumerate(heads):
        pattern = run.cache[f"blocks.{layer}.attn.hook_pattern"][at].numpy(force=True)[: len(names)]
        w_o = model.blocks[layer].attn.W_O.detach().numpy(force=True)
        values = run.cache[f"blocks.{layer}.attn.hook_v"][at].numpy(force=True)
        moved = einsum(values, w_o, "key head d, head d model -> head key model")
        patterns.append(pattern)
        writes.append(pattern * np.linalg.norm(moved, axis=-1)[: len(names), None, :])
    return arrows.written(patterns, writes, run.layout.labels, heads, threshold=_THRESHOLD)


def _draw_reads(reads: pd.DataFrame, context: Context) -> Section:
    t, drawn = context.looked_at, _flow(reads, context, WIDTH)
    if context.model.is_handwired:
        about = {"heads": reads["head"].nunique(), "t": t, "shown": context.shown, "n": len(reads)}
        caption = _SAYS["wired"].format(**about, least=_THRESHOLD)
        picture = Figure(drawn, f"Which position reads which, by which head, in round {t}", caption)
        return Section(_WIRED, [picture, *_wiring(context.circuit)])
    matters = (
        _SAYS["most"].format(**reads.iloc[reads["effect"].argmax()])
        if len(reads)
        else "No read matters."
    )
    caption = f"{matters} Round {t}, means over {len(context.pairs[0])} episodes. On an arrow: head and effect."
    picture = Figure(drawn, f"The reads whose cut changes most in round {t}", caption)
    beside: list[object] = []
    if names := handwired_models(context.task.key):
        wired = build(names[0], **context.sizes)
        said = f"{names[0]}, as it is wired: an arrow is a head that reads what another wrote."
        whole = _picture(wired, "The circuit that was wired by hand", said)
        beside = [
            Prose(_SAYS["beside"]),
            whole,
            Table(_named(wired)[0], f"Its heads. {_FORMULAS}", collapsed=True),
        ]
    table = joined(reads[["head", "source", "target", "weight", "exit", "effect", "low", "high"]])
    table = table.rename(columns={"source": "reads", "target": "at", "exit": "matters most to"})
    caption = "The same reads, with 95 % intervals over episodes; weight is the mean attention"
    return Section(
        _LEARNED,
        [Prose(_SAYS["reads"].format(n=len(reads))), picture, Table(table, caption), *beside],
    )


def _wiring(wired: Circuit) -> list[object]:
    """What was wired: heads, which reads which, and where each causal variable lives."""
    caption = "As it is wired: an arrow is a head that reads what another wrote, coloured by the port that reads it."
    blocks: list[object] = [
        Table(
            _named(wired)[0], f"The heads, in the order of computation. {_FORMULAS}", collapsed=True
        ),
        _picture(wired, "Which head reads which", caption),
    ]
    if wired.edges:
        edges = _named(wired)[1].assign(positions=lambda frame: frame["positions"].map(", ".join))
        blocks.append(Table(edges, "What is read by what, the embeddings included", collapsed=True))
    if wired.sites:
        return [
            *blocks,
            Table(wired.ground_truth(), "Where each causal variable lives", collapsed=True),
        ]
    return [*blocks, Prose(_NO_SITES.format(name=wired.name))]


def _named(wired: Circuit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The circuit's heads and edges, called as the model's are: head "1.4 tag" is "L0H3 tag (step 1.4)"."""
    called = {
        n.name: f"L{n.layer} MLP {worded(re.sub(r'^[0-9]+ ', '', n.name))}" for n in wired.neurons
    }
    called |= {
        head.name: f"L{layer}H{i} {worded(head.name)}"
        for layer in range(wired.n_layers)
        for i, head in enumerate(wired.layer(layer))
    }
    table, edges = wired.to_frame(), pd.DataFrame([asdict(edge) for edge in wired.edges])
    formulas = "`" + table["writes"] + "`"
    table = table.assign(
        head=table["head"].replace(called), layer=table["layer"] - 1, writes=formulas
    )
    return table, edges.replace({"source": called, "target": called}) if len(edges) else edges


def _picture(wired: Circuit, title: str, caption: str, **size: float) -> Figure | Prose:
    table, edges = _named(wired)
    if not len(edges):
        return Prose(_NO_EDGES.format(name=wired.name))
    layers = [list(of_layer["head"]) for _, of_layer in table.groupby("layer", sort=True)]
    return Figure(
        figures.wiring(layers, edges[edges["source"].isin(table["head"])], **size), title, caption
    )


_FORMULAS = "What a head writes is a formula: ids, buf1, ... are blocks of the residual stream, u_x the direction of x."
_NO_EDGES = (
    "Not drawn: the circuit {name} lists no edges, so it does not say which head reads which."
)
_NO_SITES = "The circuit {name} lists no sites, so it does not say where its variables live."


CIRCUIT = Part("circuit", _WIRED, _read, _draw_reads, hero=_hero, lacking=needing("pattern"))
"""Which position read which, by which head, in the round looked at."""
