"""Looking inside a round: attention views, the circuit as it runs, and its table of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from circuits.circuit import Circuit
from interp.model.rollout import Rollout
from interp.model.transformer import HookedLatentTransformer
from reports import flow
from reports.attention import AttentionView
from reports.blocks import Figure, Prose, Table
from reports.page import Section
from reports.wiring import wiring

Heads = Sequence[Mapping[str, str]]
"""Per layer: short name of a head -> what it does, in the order of the weights; heads beyond these are empty."""


def hooks(model: HookedLatentTransformer) -> list[str]:
    """The activations that these sections need in the run's cache."""
    names = ("hook_pattern", "hook_v")
    return [f"blocks.{layer}.attn.{name}" for layer in range(model.config.n_layers) for name in names]


def heads_of(model: HookedLatentTransformer) -> Heads:
    """The model's own names ("1.4 current-phase tag": number and words), or L0H0, L0H1, ... where nobody named them.

    Heads named "-" pad a layer to the common width and are left out.
    """
    config = model.config
    if not config.head_names:
        return [{f"L{layer}H{head}": "" for head in range(config.n_heads)} for layer in range(config.n_layers)]
    split = [[name.partition(" ") for name in names if name != "-"] for names in config.head_names]
    return [{number: text for number, _, text in names} for names in split]


def attention(run: Rollout, heads: Heads, rounds: Sequence[int], *, episode: int = 0, eager: bool = False) -> Section:
    """Attention of every layer, at the cached ``rounds`` of one episode.

    Args:
        run: with :func:`hooks` cached at ``rounds``.
        eager: draw the first view as the page opens.
    """
    views = [
        AttentionView(
            _of(run, f"blocks.{layer}.attn.hook_pattern", t, episode)[: len(names)],
            run.layout.labels,
            list(names),
            title=f"Round {t}, layer {layer + 1}: {_joined(names)}",
            eager=eager and t == rounds[0] and layer == 0,
        )
        for t in rounds
        for layer, names in enumerate(heads)
    ]
    text = (
        "Open a view to draw it; hover over a head to enlarge it, click to keep it, hover over a cell for its "
        "weight. Rows (destinations) attend to columns (sources); grey is what a causal mask hides. Heads with the "
        "linear rule show their raw scores, where orange is negative. Where a head looks is not evidence of what it "
        "does: see the patching and the circuit."
    )
    return Section("Attention", [Prose(text), *views])


def circuit(
    model: HookedLatentTransformer,
    run: Rollout,
    heads: Heads,
    round: int,
    *,
    episode: int = 0,
    wired: Circuit | None = None,
) -> Section:
    """The circuit as it ran in one round, and, where it was wired by hand, its wiring and its ground truth."""
    patterns, writes = [], []
    for layer, names in enumerate(heads):
        pattern = _of(run, f"blocks.{layer}.attn.hook_pattern", round, episode)[: len(names)]
        values = _of(run, f"blocks.{layer}.attn.hook_v", round, episode)
        w_o = model.blocks[layer].attn.W_O.detach().numpy(force=True)
        size = np.linalg.norm(np.einsum("khd,hdm->hkm", values, w_o), axis=-1)[: len(names)]
        patterns.append(pattern)
        writes.append(pattern * size[:, None, :])
    labels = run.layout.labels
    threshold = 0.05 if model.config.head_names else 0.4  # learned heads write a little everywhere
    found = flow.edges(patterns, writes, labels, [list(names) for names in heads], threshold=threshold)
    picture = Figure(
        flow.flow(found, labels, heads),
        f"Which position reads which, by which head, in round {round}",
        f"Round {round} of episode {episode}, as it ran. An arrow is a head that reads at its foot and writes at its "
        "tip; paler arrows carry less attention, and those that write less than "
        f"{threshold:.0%} of the head's largest write are left out. A head at rest reads the first token and writes "
        "nothing. Filled nodes have been written to.",
    )
    title = "The circuit" if wired else "What the heads read"  # of a learned model no circuit is claimed
    return Section(title, [picture, *(_wiring(wired) if wired else [])])


def _wiring(circuit: Circuit) -> list[object]:
    """What was wired: heads, which reads which, and where each causal variable lives."""
    edges = pd.DataFrame([asdict(edge) for edge in circuit.edges])
    table = circuit.to_frame()
    layers = [list(part["head"]) for _, part in table.groupby("layer", sort=True)]
    caption = "As it is wired: an arrow is a head that reads what another wrote, coloured by the port that reads it."
    return [
        Table(table, "The heads, in the order of computation (ids, buf1, ... are blocks of the residual stream)."),
        Figure(wiring(layers, edges), "Which head reads which", caption),
        Table(edges, "What each arrow carries", collapsed=True),
        Table(circuit.ground_truth(), "Where each causal variable lives", collapsed=True),
    ]


def _of(run: Rollout, name: str, round: int, episode: int) -> NDArray[np.floating]:
    return run.cache[name][episode, run.cached_rounds.index(round)].numpy(force=True)


def _joined(names: Mapping[str, str]) -> str:
    parts = [f"{name} {text}".strip() for name, text in names.items()]
    return ", ".join(parts) if sum(map(len, parts)) <= 110 else f"{len(parts)} heads"
