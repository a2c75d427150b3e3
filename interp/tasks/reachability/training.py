"""What models of reachability are trained on: the nodes reached and the answer, at every round; presets, starting weights.

A round's target is the distribution of breadth-first search with ``spread`` a half: half of it lies on the candidate
that is reached, half evenly on all nodes reached. The first round has an empty latent and asks for nothing.

The weights can start *matching* (heads look for content equal to their own and copy what they see: ``W_K = W_Q``,
``W_O = W_V^T``, the latent is read and written as tokens are) and position codes *factored* (the code of ``s_7`` is one
of the edge 7 plus one of the role s). Both are starting points only: everything is trained.
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
from interp.training.config import Stage, TrainingConfig
from interp.training.goal import TrainingGoal

SPREAD = float(__import__("os").environ.get("SPREAD", ".5"))
"""Share of a round's target that lies on all nodes reached."""
SHARPNESS = float(__import__("os").environ.get("SHARP", "2"))
WRITTEN = 0.3
"""What of the normalised residual stream is written to the latent at the start, where weights start matching."""

LAPTOP = TrainingConfig(
    task="reachability",
    sizes={"n_nodes": (16, 16), "n_edges": (24, 24)},
    stages=(Stage(2, 500), Stage(3, 500), Stage(4, 500), Stage(5, 2500)),
    regimes=("matched",),
    n_layers=2,
    latent_update="add",
    write_map=True,
    muon_lr=2e-3,
    warmup_steps=50,
    decay="linear",
    position_codes="label",
    start="matching, factored",
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
    """``cross_entropy`` from the targets, its ``excess`` over their entropy, ``accuracy`` in the rounds that can answer."""
    wanted, tiny = targets(episodes)[:, 1:], np.finfo(np.float64).tiny
    loss = -(wanted * np.log(np.maximum(predictions[:, 1:], tiny))).sum(-1).mean()
    floor = -(wanted * np.log(np.maximum(wanted, tiny))).sum(-1).mean()
    right = correct(predictions, episodes)
    known = np.arange(episodes.n_rounds) >= episodes.depths[:, None]
    last = {f"accuracy_{d}": float(right[episodes.depths == d, -1].mean()) for d in np.unique(episodes.depths)}
    return {"cross_entropy": float(loss), "excess": float(loss - floor), "accuracy": float(right[known].mean()), **last}


def correct(predictions: NDArray[Any], episodes: ReachabilityEpisodes) -> NDArray[np.float64]:
    """Float[episode, round]: 1 where the target is more probable than the negative, a half where neither is."""
    p_target, p_negative = (
        np.take_along_axis(predictions, nodes[:, None, None], -1)[..., 0]
        for nodes in (episodes.targets, episodes.negatives)
    )
    return (p_target > p_negative) + 0.5 * (p_target == p_negative)


def matching(model: HookedLatentTransformer) -> None:
    """Heads attend to what resembles them and copy it; the latent is written, and nodes are read out, as they are embedded."""
    with torch.no_grad():
        for block in model.blocks:
            block.attn.W_Q.mul_(SHARPNESS)
            block.attn.W_K.copy_(block.attn.W_Q)
            block.attn.W_O.copy_(block.attn.W_V.transpose(-1, -2))
        first = model.layout.token_ids["n_1"]
        model.unembed.weight.copy_(model.W_E[first : first + model.unembed.weight.shape[1]].T)
        if model.config.write_map:
            model.write_map.get_parameter("W_write").copy_(WRITTEN * torch.eye(model.config.d_model))


def factored(model: HookedLatentTransformer) -> None:
    """The position code of a label becomes one of its role plus one of its group: an edge, the question, the root."""
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
            group = groups.get(label, f"edge {number}")
            if label in groups or number:
                model.W_pos[position] = code(role) + code(group)
            if label == "<z>":
                model.W_pos[position] = code("root") + code("question")


def both(model: HookedLatentTransformer) -> None:
    """Matching weights and factored position codes."""
    matching(model)
    factored(model)


def goal() -> TrainingGoal:
    """What ``interp train reachability`` learns."""
    return TrainingGoal(
        targets=targets,
        presets=PRESETS,
        evaluate=evaluate,
        starts={"matching": matching, "factored": factored, "matching, factored": both},
        floor="breadth-first search",
        learns="reachability",
        limits=(
            "It names the nodes that its configuration counts, and no others.",
            "Each round was trained to say which nodes are reached: that its latent holds them is what it was asked for, "
            "not what it found by itself.",
            "Half of its prediction is spread over the nodes reached; compare the two candidates, not their probabilities.",
        ),
    )
