"""What the heads did in one round: the whole circuit where it was wired by hand, else the reads that matter most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pandas as pd
from einops import einsum

from circuits.circuit import Circuit
from circuits.registry import build
from interp.interventions.attribution import strongest_reads
from interp.library import handwired_models
from interp.statistics import Interval
from reports import flow
from reports.blocks import Figure, Prose, Table
from reports.page import Section
from reports.part import Context, Part
from reports.parts.attention import cached
from reports.wiring import wiring

WIRED, LEARNED = "The circuit", "What the heads do"
"""Titles: of a learned model no circuit is claimed."""
SHOWN = 12
"""Reads of a learned model that are drawn."""
_THRESHOLD = 0.05
"""The smallest write of a wired head that is drawn, as a share of its largest."""
_READS = (
    "Each arrow is one head's attention from one position to another, taken out on its own: its weight is set to zero, "
    "the others stay. Its **effect** is how far that moves the prediction, or the update, as a share of how far "
    "episodes lie apart there (1: as far as another episode). Shown are the largest on either, {n} in all; reads of "
    "the first position, where heads rest, are left out. Two reads that stand in for each other can both look idle, "
    "and an effect does not say what was read."
)
_BESIDE = (
    "For comparison, the circuit that was wired by hand for the same task, drawn from its table of heads. That a "
    "learned model does the same is not claimed: `interp compare` tests it."
)


def part() -> Part:
    """Which position read which, by which head."""
    return Part("circuit", WIRED, compute, draw)


def compute(context: Context) -> pd.DataFrame:
    """The reads of one round: all that wrote something, of a circuit wired by hand; else the strongest."""
    if context.handwired:
        return _written(context)
    found = strongest_reads(context.model, context.pair_runs[0], context.looked_at, k=SHOWN, seed=context.seed)
    heads = [list(names) for names in context.heads]
    return found.assign(head=[heads[at - 1][i - 1] for at, i in found[["layer", "head"]].to_numpy().tolist()])


def _written(context: Context) -> pd.DataFrame:
    """The reads of one round that wrote something, as :func:`reports.flow.edges` gives them."""
    patterns, writes = [], []
    for layer, names in enumerate(context.heads):
        pattern = cached(context, f"blocks.{layer}.attn.hook_pattern")[: len(names)]
        values = cached(context, f"blocks.{layer}.attn.hook_v")
        w_o = context.model.blocks[layer].attn.W_O.detach().numpy(force=True)
        written = einsum(values, w_o, "key head d, head d model -> head key model")
        size = np.linalg.norm(written, axis=-1)[: len(names)]
        patterns.append(pattern)
        writes.append(pattern * size[:, None, :])
    heads = [list(names) for names in context.heads]
    return flow.edges(patterns, writes, context.run.layout.labels, heads, threshold=_THRESHOLD)


def draw(reads: pd.DataFrame, context: Context) -> Section:
    """The reads as arrows, and what was wired, here or for the same task."""
    t, labels = context.looked_at, context.run.layout.labels
    if context.handwired:
        picture = Figure(
            flow.flow(reads, labels, context.heads),
            f"Which position reads which, by which head, in round {t}",
            f"Round {t} of episode {context.shown}, as it ran. An arrow is a head that reads at its foot and writes at "
            f"its tip; paler arrows carry less attention, and those that write less than {_THRESHOLD:.0%} of the "
            "head's largest write are left out. A head at rest reads the first token and writes nothing. Filled nodes "
            "have been written to.",
        )
        return Section(WIRED, [picture, *_wiring(context.circuit)])
    picture = Figure(
        flow.strongest(reads, labels, context.model.config.n_layers),
        f"The reads whose cut changes most in round {t}",
        f"Round {t}, means over {len(context.pairs[0])} episodes. On an arrow: its head and its effect.",
    )
    effects = [Interval(*values) for values in reads[["effect", "low", "high"]].to_numpy()]
    columns = ["head", "source", "target", "weight", "exit"]
    table = reads[columns].rename(columns={"source": "reads", "target": "at", "exit": "matters most to"})
    table = table.assign(effect=pd.Series(effects, dtype=object))
    caption = "The same reads, with 95 % intervals over episodes; weight is the mean attention"
    return Section(LEARNED, [Prose(_READS.format(n=len(reads))), picture, Table(table, caption), *_beside(context)])


def _beside(context: Context) -> Sequence[object]:
    """The wiring of a handwired model of the same task, where there is one."""
    names = handwired_models(context.task.key)
    if not names:
        return []
    circuit = build(names[0], **context.sizes)
    caption = f"{names[0]}, as it is wired: an arrow is a head that reads what another wrote."
    figure = Figure(_picture(circuit), "The circuit that was wired by hand", caption)
    return [Prose(_BESIDE), figure, Table(circuit.to_frame(), "Its heads", collapsed=True)]


def _wiring(circuit: Circuit) -> list[object]:
    """What was wired: heads, which reads which, and where each causal variable lives."""
    edges = pd.DataFrame([asdict(edge) for edge in circuit.edges])
    edges["positions"] = edges["positions"].map(", ".join)
    caption = "As it is wired: an arrow is a head that reads what another wrote, coloured by the port that reads it."
    what = "The heads, in the order of computation (ids, buf1, ... are blocks of the residual stream)."
    return [
        Table(circuit.to_frame(), what),
        Figure(_picture(circuit), "Which head reads which", caption),
        Table(edges, "What is read by what, the embeddings included", collapsed=True),
        Table(circuit.ground_truth(), "Where each causal variable lives", collapsed=True),
    ]


def _picture(circuit: Circuit) -> object:
    """Heads in columns by layer, and an arrow for every edge between them."""
    table, edges = circuit.to_frame(), pd.DataFrame([asdict(edge) for edge in circuit.edges])
    layers = [list(of_layer["head"]) for _, of_layer in table.groupby("layer", sort=True)]
    return wiring(layers, edges[edges["source"].isin(table["head"])])
