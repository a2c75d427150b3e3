"""Attention of every head in some rounds of some episodes: drawn for paper, and interactive."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

import interp
from reports.attention import N_EPISODES, N_ROUNDS, AttentionView, spread
from reports.blocks import Prose
from reports.heads import Heads
from reports.page import Section
from reports.part import Context, Part

TITLE = "Attention"
_TEXT = (
    "Rows (destinations) attend to columns (sources). Open the view below the picture to choose an episode, a round, a "
    "layer and a head, by mouse or by keyboard; there, hover over a head to enlarge it, click to keep it, hover over a "
    "cell for its weight; grey is what a causal mask hides. Heads with the linear rule show their raw scores, where "
    "orange is negative. **Where a head looks is not evidence of what it does**: see the patching and the circuit."
)


def part(paper: str = "") -> Part:
    """The patterns of a few episodes.

    Args:
        paper: which of the paper's figures this is, such as "figure 1, right"; none when empty.
    """
    return Part("attention", TITLE, compute, lambda view, context: draw(view, context, paper))


def compute(context: Context) -> AttentionView:
    """The patterns of ``N_EPISODES`` episodes in ``N_ROUNDS`` rounds, the round looked at among them."""
    others = [i for i in range(len(context.episodes)) if i != context.shown]
    episodes = [context.shown, *others][:N_EPISODES]
    rounds = sorted({*spread(context.n_rounds, N_ROUNDS - 1), context.looked_at})
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(context.model.config.n_layers)]
    run = interp.rollout(context.model, context.episodes.select(episodes), names_filter=names, rounds=rounds)
    return AttentionView(
        [run.cache[name][:, :, : len(own)].numpy(force=True) for name, own in zip(names, context.heads, strict=True)],
        run.layout.labels,
        [list(own) for own in context.heads],
        f"Attention of {context.name}",
        episodes=tuple(episodes),
        rounds=tuple(rounds),
        first=(0, rounds.index(context.looked_at)),
    )


def draw(view: AttentionView, context: Context, paper: str = "") -> Section:
    """The view, under what it is."""
    caption = f"Every head in round {context.looked_at} of episode {context.shown}. {_said(context.heads)}"
    return Section(TITLE, [Prose(_TEXT), replace(view, caption=f"Paper, {paper}. {caption}" if paper else caption)])


def cached(context: Context, name: str) -> NDArray[np.floating]:
    """An activation of the round looked at, in the episode that is drawn."""
    run = context.run
    return run.cache[name][context.shown, run.cached_rounds.index(context.looked_at)].numpy(force=True)


def _said(heads: Heads) -> str:
    """What the heads of a handwired model are called, beside their numbers."""
    told = [f"{number} {text}" for of_layer in heads for number, text in of_layer.items() if text]
    return f"The heads are {', '.join(told)}." if told else "A head is called by its layer and its place in it."
