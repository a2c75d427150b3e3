"""What models of reachability are trained on (the nodes reached, and the answer), and what their weights start from.

A round's target is the distribution of breadth-first search with a ``spread`` of 0.6: .4 of it lies on the candidate
that is reached, .6 evenly on all nodes reached. The first round has an empty latent and asks for nothing.

What weights start from decides whether anything is learned in minutes. Three properties can be given: *matching*
(heads look for what resembles their own and copy it, ``W_K = W_Q``, ``W_O`` in proportion to ``W_V^T``; latents are
written, and nodes read out, as tokens are embedded; MLPs start small), *factored* position codes (that of ``s_7`` is
one of edge 7 plus one of the role s), and *apart* (tokens and positions in halves of the residual stream, half of the
heads matching each). All of it is trained on. Depth 1 in graphs of 10 names, batch 32, one seed each: with all three
1.00 after 400 steps; as drawn, or matching and factored alone, chance after 600.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from interp.model.transformer import HookedLatentTransformer
from interp.tasks.reachability.algorithms import breadth_first
from interp.tasks.reachability.episodes import ReachabilityEpisodes
from interp.tasks.reachability.scores import correct
from interp.training.config import Stage, TrainingConfig
from interp.training.goal import TrainingGoal

SPREAD = 0.6
"""Share of a round's target that lies on all nodes reached."""
COPIED, WRITTEN, SMALL = 0.4, 0.1, 0.1
"""Where weights start matching: what a head copies of what it attends to, what of the normalised residual stream is
written to the latent, and what the MLPs' drawn output weights are multiplied by."""

LAPTOP = TrainingConfig(
    task="reachability",
    sizes={"n_nodes": (10, 10), "n_edges": (14, 14)},
    stages=(Stage(2, 600), Stage(3, 400), Stage(4, 400), Stage(5, 1600)),
    batch_size=32,
    lr=2e-3,
    regimes=("matched",),
    n_layers=2,
    latent_update="add",
    write_map=True,
    muon_lr=3e-3,
    warmup_steps=50,
    decay="linear",
    position_codes="label",
    start="matching, factored, apart",
    eval_every=100,
    eval_rounds=5,
)
PRESETS = {
    "laptop": LAPTOP,
    "prosqa": replace(
        LAPTOP,
        sizes={"n_nodes": (28, 28), "n_edges": (16, 54)},
        d_model=128,
        stages=(Stage(2, 1000, {"n_edges": 24}), Stage(3, 1000), Stage(4, 1000), Stage(5, 7000)),
    ),
}


def targets(episodes: ReachabilityEpisodes) -> NDArray[Any]:
    """What each round should predict, ``[episode, round, node]``; zeros in the first round, which weighs nothing."""
    wanted = breadth_first(SPREAD).run(episodes)["prediction"].copy()
    wanted[:, 0] = 0.0
    return wanted


def evaluate(predictions: NDArray[Any], episodes: ReachabilityEpisodes) -> dict[str, float]:
    """Loss, ``excess`` over the targets' entropy, accuracy from round d on, and in the last round by depth."""
    wanted, tiny = targets(episodes)[:, 1:], np.finfo(np.float64).tiny
    loss = -(wanted * np.log(np.maximum(predictions[:, 1:], tiny))).sum(-1).mean()
    floor = -(wanted * np.log(np.maximum(wanted, tiny))).sum(-1).mean()
    right = correct(predictions, episodes)
    known = np.arange(episodes.n_rounds) >= episodes.depths[:, None]
    last = {f"accuracy_{d}": float(right[episodes.depths == d, -1].mean()) for d in np.unique(episodes.depths)}
    return {"cross_entropy": float(loss), "excess": float(loss - floor), "accuracy": float(right[known].mean()), **last}


def matching(model: HookedLatentTransformer) -> None:
    """Heads attend to what resembles them and copy it; latents are written, and nodes read out, as they are embedded.

    The MLPs start small, so that what was copied is not drowned by what they make of it.
    """
    with torch.no_grad():
        for block in model.blocks:
            for weight in (block.attn.W_Q, block.attn.W_V):
                for head in weight:
                    torch.nn.init.orthogonal_(head)
            block.attn.W_K.copy_(block.attn.W_Q)
            block.attn.W_O.copy_(COPIED * block.attn.W_V.transpose(-1, -2))
            if block.mlp is not None:
                block.mlp.W_out.mul_(SMALL)
        first = model.layout.token_ids["n_1"]
        model.unembed.weight.copy_(model.W_E[first : first + model.unembed.weight.shape[1]].T)
        if model.config.write_map:
            model.write_map.get_parameter("W_write").copy_(WRITTEN * torch.eye(model.config.d_model))


def factored(model: HookedLatentTransformer) -> None:
    """A position's code becomes that of its group (an edge, the question, the root) plus half that of its role."""
    std, generator = model.config.init_std, torch.Generator().manual_seed(0)
    codes: dict[str, torch.Tensor] = {}

    def code(name: str) -> torch.Tensor:
        if name not in codes:
            codes[name] = std * torch.randn(model.config.d_model, generator=generator).to(model.W_pos)
        return codes[name]

    groups = {"c_1": "question", "c_2": "question", "p?": "question", "r": "root", "w?": "root"}
    with torch.no_grad():
        for position, label in enumerate(model.layout.max_layout.labels):
            role, _, number = label.partition("_")
            if label in groups or number:
                model.W_pos[position] = 0.5 * code(role) + code(groups.get(label, f"edge {number}"))
            if label == "<z>":
                model.W_pos[position] = code("root") + code("question")


def apart(model: HookedLatentTransformer) -> None:
    """Tokens and positions start in halves of the residual stream: half of the heads match by place, half by content.

    All heads copy content, and content is what the latent is written.
    """
    half, by_place = model.config.d_model // 2, model.config.n_heads // 2
    with torch.no_grad():
        for table, empty in (
            (model.W_E, slice(half, None)),
            (model.latents.table, slice(half, None)),
            (model.W_pos, slice(half)),
        ):
            table[:, empty] = 0.0
            table.mul_(2**0.5)
        matching(model)
        for block in model.blocks:
            for index in range(model.config.n_heads):
                mine = slice(half, None) if index < by_place else slice(half)
                block.attn.W_Q[index] = 0.0
                torch.nn.init.orthogonal_(block.attn.W_Q[index, mine])
                block.attn.W_V[index] = 0.0
                torch.nn.init.orthogonal_(block.attn.W_V[index, :half])
            block.attn.W_K.copy_(block.attn.W_Q)
            block.attn.W_O.copy_(COPIED * block.attn.W_V.transpose(-1, -2))
        if model.config.write_map:
            model.write_map.get_parameter("W_write")[half:] = 0.0


def both(model: HookedLatentTransformer) -> None:
    """Matching weights and factored position codes."""
    factored(model)
    matching(model)


def all_apart(model: HookedLatentTransformer) -> None:
    """Factored position codes, tokens and positions apart, matching weights."""
    factored(model)
    apart(model)


STARTS = {
    "matching": matching,
    "factored": factored,
    "matching, factored": both,
    "matching, factored, apart": all_apart,
}


def goal() -> TrainingGoal:
    """What ``interp train reachability`` learns."""
    return TrainingGoal(
        targets=targets,
        presets=PRESETS,
        evaluate=evaluate,
        starts=STARTS,
        floor="breadth-first search",
        learns="reachability",
        limits=(
            "It names the nodes that its configuration counts, and no others.",
            "Each round was trained to say which nodes are reached: that its latent holds them is what it was asked "
            "for, not what it found by itself.",
            "A part of its prediction is spread over the nodes reached: compare the two candidates with each other.",
        ),
    )
