"""What models of reachability are trained on: the nodes reached and the answer, round by round.

A round's target is the distribution of breadth-first search with a ``spread`` of 0.6: .4 of it lies
on the candidate that is reached, .6 evenly on all nodes reached. The first round has an empty
latent and no target. Two other targets contain less: "answers", the candidate alone in every round,
and "final answers", the candidate in the last.

A stage of the curriculum lasts until targets at its depth are answered, at most as long as it says.

The start of the weights decides whether a model learns in minutes; all weights are then trained.
Four properties can be chosen, each with those before it:

- *matching*: heads look for content that resembles that of the query and copy it (``W_K = W_Q``,
  ``W_O`` in proportion to ``W_V^T``); latents are written, and nodes read out, as tokens are
  embedded; MLPs start small;
- *factored*: the position code of ``s_7`` is one of edge 7 plus one of the role s;
- *apart*: tokens and positions have halves of the residual stream, and half of the heads matches
  each;
- *bound*: names are orthogonal where heads read them, and heads that match by place write what they
  copy into separate dimensions, so that an edge's end holds its two nodes separately.

Learning curves of them all are in the folder of the shipped model
(``interp/checkpoints/reachability-learned/learning.csv``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from interp.model.components import Attention
from interp.model.transformer import HookedLatentTransformer
from interp.support.errors import require
from interp.tasks.reachability.algorithms import SPREAD, breadth_first
from interp.tasks.reachability.episodes import ReachabilityEpisodes
from interp.training.config import shipped
from interp.training.goal import TrainingGoal

_TINY = float(np.finfo(np.float64).tiny)


def _targets(
    episodes: ReachabilityEpisodes, spread: float = SPREAD, first: int = 1
) -> NDArray[Any]:
    """Return what each round should predict, ``[episode, round, node]``.

    Args:
        episodes: of reachability.
        spread: share of the target on all nodes reached; without any these are the candidates
            alone: the one that is reached, halves where both or none are.
        first: the first round with a target; earlier ones have zeros, which add no loss.
    """
    targets: NDArray[Any] = breadth_first(spread).run(episodes)["prediction"].copy()
    targets[:, :first] = 0.0
    return targets


def _evaluate(predictions: NDArray[Any], episodes: ReachabilityEpisodes) -> dict[str, float]:
    """Return the loss, its ``excess`` over the targets' entropy, accuracy from round d on, and by depth d.

    ``answered_d`` is the accuracy in round d, the first that can know; ``accuracy_d`` that in the last round.
    """
    targets = _targets(episodes)[:, 1:]
    loss = _cross_entropy(targets, predictions[:, 1:])
    is_right = episodes.correct(predictions)
    can_know = np.arange(episodes.n_rounds) >= episodes.depths[:, None]
    numbers = {
        "cross_entropy": loss,
        "excess": loss - _cross_entropy(targets, targets),
        "accuracy": float(is_right[can_know].mean()),
    }
    for depth in np.unique(episodes.depths):
        right_at_depth = is_right[episodes.depths == depth]
        numbers[f"answered_{depth}"] = float(right_at_depth[:, depth].mean())
        numbers[f"accuracy_{depth}"] = float(right_at_depth[:, -1].mean())
    return numbers


def _cross_entropy(targets: NDArray[Any], predictions: NDArray[Any]) -> float:
    per_round = (targets * np.log(np.maximum(predictions, _TINY))).sum(-1)
    return float(-per_round.mean())


# What weights start from.

_COPIED = 1.0
"""What a head copies of what it attends to, where weights start matching."""
_WRITTEN = 0.1
"""What of the normalised residual stream is written to the latent."""
_SMALL = 0.1
"""What the MLPs' drawn output weights are multiplied by."""
_ROLE = 0.25
"""Share of a role in a factored position code: small, so that the two ends of an edge attend to each other."""
_GROUPS = {"c_1": "question", "c_2": "question", "p?": "question", "r": "root", "w?": "root"}
"""Labels whose positions share a code; the two ends of an edge share one by their number."""
_Start = Callable[[HookedLatentTransformer], None]


def _copy_what_matches(attn: Attention) -> None:
    """Set the heads to match content that resembles the query's, and to write what they read."""
    attn.W_K.copy_(attn.W_Q)
    attn.W_O.copy_(_COPIED * attn.W_V.transpose(-1, -2))


def _start_matching(model: HookedLatentTransformer) -> None:
    """Set heads to match and copy; the MLPs start small, so that they do not drown what was
    copied.
    """
    for block in model.blocks:
        for head in (*block.attn.W_Q, *block.attn.W_V):
            nn.init.orthogonal_(head)
        _copy_what_matches(block.attn)
        if block.mlp is not None:
            block.mlp.W_out.mul_(_SMALL)
    model.unembed.weight.copy_(_node_names(model).T)
    if model.config.write_map:
        _write_weights(model).copy_(_WRITTEN * torch.eye(model.config.d_model))


def _node_names(model: HookedLatentTransformer) -> Tensor:
    """Return the embeddings of the nodes, ``[node, d_model]``."""
    first = model.layout.token_ids["n_1"]
    return model.W_E[first : first + model.unembed.weight.shape[1]]


def _write_weights(model: HookedLatentTransformer) -> Tensor:
    """Return the matrix that writes the latent."""
    return model.write_map.get_parameter("W_write")


def _start_factored(model: HookedLatentTransformer) -> None:
    """Make a position's code that of its group (an edge, the question, the root) plus a part of that of its role."""
    generator = torch.Generator().manual_seed(0)
    codes: dict[str, Tensor] = {}

    def code_of(name: str) -> Tensor:
        if name not in codes:
            drawn = torch.randn(model.config.d_model, generator=generator).to(model.W_pos)
            codes[name] = model.config.init_std * drawn
        return codes[name]

    for position, label in enumerate(model.layout.max_layout.labels):
        role, _, number = label.partition("_")
        if label in _GROUPS or number:
            role_code = code_of(role)
            group = _GROUPS.get(label, f"edge {number}")
            model.W_pos[position] = _ROLE * role_code + code_of(group)
        if label == "<z>":
            model.W_pos[position] = code_of("root") + code_of("question")


def _start_apart(model: HookedLatentTransformer) -> None:
    """Split the residual stream in halves for tokens and positions: half of the heads match by
    place, half by content.

    All heads copy content, and content is what the latent is written.
    """
    half = model.config.d_model // 2
    n_by_place = model.config.n_heads // 2
    content = slice(half)
    places = slice(half, None)
    _leave_empty(model.W_E, places)
    _leave_empty(model.latents.table, places)
    _leave_empty(model.W_pos, content)
    _start_matching(model)
    for block in model.blocks:
        attn = block.attn
        for head in range(model.config.n_heads):
            attn.W_Q[head] = 0.0
            attn.W_V[head] = 0.0
            matched = places if head < n_by_place else content
            nn.init.orthogonal_(attn.W_Q[head, matched])
            nn.init.orthogonal_(attn.W_V[head, content])
        _copy_what_matches(attn)
    if model.config.write_map:
        _write_weights(model)[places] = 0.0


def _leave_empty(table: Tensor, columns: slice) -> None:
    """Set half of a table's columns to zero; the rest grows, so that its vectors have the same
    length.
    """
    table[:, columns] = 0.0
    table.mul_(2**0.5)


def _start_bound(model: HookedLatentTransformer) -> None:
    """Apply :func:`_start_apart`, with orthogonal names, and separate dimensions for copies by
    place.

    Of ``d_head`` dimensions each: names, copies. Heads that match by content look for both in both;
    training decides whether an edge
    is found by its node or by the one that it was bound to.
    """
    d_head = model.config.d_head
    half = model.config.d_model // 2
    require(
        2 * d_head <= half,
        f"start 'bound' needs 2 d_head <= d_model / 2, got d_head {d_head} and d_model {model.config.d_model}: "
        "give 4 heads or more",
    )
    _start_apart(model)
    names = slice(d_head)
    copies = slice(d_head, 2 * d_head)
    node_names = _node_names(model)
    size = node_names.norm(dim=1).mean()
    model.W_E[:, :half] = 0.0
    model.latents.table.zero_()
    node_names[:, names] = size * nn.init.orthogonal_(torch.empty_like(node_names[:, names]))
    model.unembed.weight.copy_(node_names.T)
    for block in model.blocks:
        attn = block.attn
        for head in range(model.config.n_heads):
            copies_to = copies
            if head >= model.config.n_heads // 2:  # matches by content
                copies_to = names
                queries = _draw_orthogonal(model.W_E, d_head)
                attn.W_Q[head] = 0.0
                attn.W_Q[head, names] = queries
                attn.W_Q[head, copies] = queries
            values = _draw_orthogonal(model.W_E, d_head)
            attn.W_V[head] = 0.0
            attn.W_O[head] = 0.0
            attn.W_V[head, names] = values
            attn.W_O[head, :, copies_to] = _COPIED * values.T
        attn.W_K.copy_(attn.W_Q)
    if model.config.write_map:
        written = _write_weights(model)
        written.zero_()
        written[names, names] = _WRITTEN * torch.eye(d_head)
        written[copies, names] = _WRITTEN * torch.eye(d_head)


def _draw_orthogonal(like: Tensor, size: int) -> Tensor:
    return nn.init.orthogonal_(like.new_empty(size, size))


def _make_start(*starts: _Start) -> _Start:
    """Return a start that sets one property after the other."""

    def set_weights(model: HookedLatentTransformer) -> None:
        with torch.no_grad():
            for start in starts:
                start(model)

    return set_weights


_STARTS: dict[str, _Start] = {
    "matching": _make_start(_start_matching),
    "factored": _make_start(_start_factored),
    "matching, factored": _make_start(_start_factored, _start_matching),
    "matching, factored, apart": _make_start(_start_factored, _start_apart),
    "matching, factored, apart, bound": _make_start(_start_factored, _start_bound),
}


def goal() -> TrainingGoal:
    """Return what ``interp train reachability`` learns."""
    return TrainingGoal(
        targets=_targets,
        other_targets={
            "answers": partial(_targets, spread=0.0),
            "final answers": partial(_targets, spread=0.0, first=-1),
        },
        evaluate=_evaluate,
        starts=_STARTS,
        **shipped("reachability"),
    )
