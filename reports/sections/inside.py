"""Looking inside a round: attention views, the circuit as it runs, and its table of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from interp.model.rollout import Rollout
from interp.model.transformer import HookedLatentTransformer
from reports import flow
from reports.attention import AttentionView
from reports.blocks import Figure, Prose, Table
from reports.page import Section

Heads = Sequence[Mapping[str, str]]
"""Per layer: short name of a head -> what it does, in the order of the weights; heads beyond these are empty."""


def hooks(model: HookedLatentTransformer) -> list[str]:
    """The activations that these sections need in the run's cache."""
    names = ("hook_pattern", "hook_v")
    return [f"blocks.{layer}.attn.{name}" for layer in range(model.config.n_layers) for name in names]


def default_heads(model: HookedLatentTransformer) -> Heads:
    """Heads of a model that nobody has named: L0H0, L0H1, ..."""
    config = model.config
    return [{f"L{layer}H{head}": "" for head in range(config.n_heads)} for layer in range(config.n_layers)]


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
        "Open a view to draw it; hover over a head to enlarge it, click to keep it, hover over a cell for its weight. Rows "
        "(destinations) attend to columns (sources); grey is what a causal mask hides. Heads with the linear rule show "
        "their raw scores, where orange is negative. Where a head looks is not evidence of what it does: see the patching "
        "and the circuit."
    )
    return Section("Attention", [Prose(text), *views])


def circuit(
    model: HookedLatentTransformer,
    run: Rollout,
    heads: Heads,
    round: int,
    *,
    episode: int = 0,
    table: pd.DataFrame | None = None,
    text: str = "",
) -> Section:
    """The circuit as it ran in one round, drawn from its attention and its writes, and its table of heads."""
    patterns, writes = [], []
    for layer, names in enumerate(heads):
        pattern = _of(run, f"blocks.{layer}.attn.hook_pattern", round, episode)[: len(names)]
        values = _of(run, f"blocks.{layer}.attn.hook_v", round, episode)
        w_o = model.blocks[layer].attn.W_O.detach().numpy(force=True)
        size = np.linalg.norm(np.einsum("khd,hdm->hkm", values, w_o), axis=-1)[: len(names)]
        patterns.append(pattern)
        writes.append(pattern * size[:, None, :])
    labels = run.layout.labels
    found = flow.edges(patterns, writes, labels, [list(names) for names in heads])
    picture = Figure(
        flow.flow(found, labels, heads),
        f"Which position reads which, by which head, in round {round}",
        f"Round {round} of episode {episode}, as it ran. An arrow is a head that reads at its foot and writes at its tip; "
        "paler arrows carry less attention. Heads at rest read the first token, where they find nothing to write, and draw "
        "no arrow. Black nodes have been written to.",
    )
    blocks: list[object] = [Prose(text)] if text else []
    blocks.append(picture)
    if table is not None:
        blocks.append(Table(table, "The heads, as they are wired.", collapsed=True))
    return Section("The circuit", blocks)


def _of(run: Rollout, name: str, round: int, episode: int) -> NDArray[np.floating]:
    return run.cache[name][episode, run.cached_rounds.index(round)].numpy(force=True)


def _joined(names: Mapping[str, str]) -> str:
    parts = [f"{name} {text}".strip() for name, text in names.items()]
    return ", ".join(parts) if sum(map(len, parts)) <= 110 else f"{len(parts)} heads"
