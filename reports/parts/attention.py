"""Attention of every head in the round looked at, as interactive views."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from reports.attention import AttentionView
from reports.blocks import Prose
from reports.page import Section
from reports.part import Context, Part

TITLE = "Attention"
_TEXT = (
    "Open a view to draw it; hover over a head to enlarge it, click to keep it, hover over a cell for its "
    "weight. Rows (destinations) attend to columns (sources); grey is what a causal mask hides. Heads with the "
    "linear rule show their raw scores, where orange is negative. Where a head looks is not evidence of what it "
    "does: see the patching and the circuit."
)


def part() -> Part:
    """A view per layer."""
    return Part("attention", TITLE, lambda context: context.run, lambda run, context: draw(context))


def draw(context: Context) -> Section:
    """The views of one episode."""
    views = [
        AttentionView(
            cached(context, f"blocks.{layer}.attn.hook_pattern")[: len(names)],
            context.run.layout.labels,
            list(names),
            title=f"Round {context.looked_at}, layer {layer + 1}: {_joined(names)}",
        )
        for layer, names in enumerate(context.heads)
    ]
    return Section(TITLE, [Prose(_TEXT), *views])


def cached(context: Context, name: str) -> NDArray[np.floating]:
    """An activation of the round looked at, in the episode that is drawn."""
    run = context.run
    return run.cache[name][context.shown, run.cached_rounds.index(context.looked_at)].numpy(force=True)


def _joined(names: Mapping[str, str]) -> str:
    parts = [f"{name} {text}".strip() for name, text in names.items()]
    return ", ".join(parts) if sum(map(len, parts)) <= 110 else f"{len(parts)} heads"
