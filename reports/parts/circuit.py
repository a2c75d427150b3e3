"""The circuit as it ran in one round, and, where it was wired by hand, its wiring and its ground truth."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pandas as pd
from einops import einsum

from circuits.circuit import Circuit
from reports import flow
from reports.blocks import Figure, Table
from reports.page import Section
from reports.part import Context, Part
from reports.parts.attention import cached
from reports.wiring import wiring

WIRED, LEARNED = "The circuit", "What the heads read"
"""Titles: of a learned model no circuit is claimed."""


def part() -> Part:
    """Which position read which, by which head."""
    return Part("circuit", WIRED, compute, draw)


def compute(context: Context) -> pd.DataFrame:
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
    return flow.edges(patterns, writes, context.run.layout.labels, heads, threshold=_threshold(context))


def draw(reads: pd.DataFrame, context: Context) -> Section:
    """The reads as arrows, and what was wired."""
    t, labels = context.looked_at, context.run.layout.labels
    picture = Figure(
        flow.flow(reads, labels, context.heads),
        f"Which position reads which, by which head, in round {t}",
        f"Round {t} of episode {context.shown}, as it ran. An arrow is a head that reads at its foot and writes at its "
        "tip; paler arrows carry less attention, and those that write less than "
        f"{_threshold(context):.0%} of the head's largest write are left out. A head at rest reads the first token and "
        "writes nothing. Filled nodes have been written to.",
    )
    return Section(WIRED, [picture, *_wiring(context.circuit)]) if context.handwired else Section(LEARNED, [picture])


def _threshold(context: Context) -> float:
    """The smallest write that is drawn, as a share of the head's largest; learned heads write a little everywhere."""
    return 0.05 if context.model.config.head_names else 0.4


def _wiring(circuit: Circuit) -> list[object]:
    """What was wired: heads, which reads which, and where each causal variable lives."""
    edges = pd.DataFrame([asdict(edge) for edge in circuit.edges])
    edges["positions"] = edges["positions"].map(", ".join)
    table = circuit.to_frame()
    between = edges[edges["source"].isin(table["head"])]
    layers = [list(part["head"]) for _, part in table.groupby("layer", sort=True)]
    caption = "As it is wired: an arrow is a head that reads what another wrote, coloured by the port that reads it."
    return [
        Table(table, "The heads, in the order of computation (ids, buf1, ... are blocks of the residual stream)."),
        Figure(wiring(layers, between), "Which head reads which", caption),
        Table(edges, "What is read by what, the embeddings included", collapsed=True),
        Table(circuit.ground_truth(), "Where each causal variable lives", collapsed=True),
    ]
