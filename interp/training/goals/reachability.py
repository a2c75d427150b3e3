"""The training goal of reachability: models predict the nodes reached and the answer in each round.

The target of a round is the distribution that breadth-first search predicts: .4 on the candidate
node that can be reached, and .6 (the ``spread``) evenly on all nodes reached so far. The first
round has an empty latent and no target. Two other targets contain less: "answers" has only the
candidate in every round, and "final answers" only the candidate in the last round.

A stage of the curriculum ends when questions at its depth are answered, or after its largest number
of batches.

The initial weights decide whether a model learns within minutes; all weights are then trained. A
*start* sets initial weights with some of four properties, in this order:

- *matching*: heads attend to positions with content that resembles the query's, and copy this
  content (``W_K = W_Q``, ``W_O`` in proportion to ``W_V^T``). Latents are written, and nodes are
  read out, in the same directions as token embeddings. The output weights of MLPs start small;
- *factored*: the position embedding of ``s_7`` (the source of edge 7) is the sum of a vector for
  edge 7 and a vector for the role s;
- *apart*: tokens and positions occupy different halves of the residual stream. One half of the
  heads matches by position, the other half by content;
- *bound*: token embeddings are orthogonal where heads read them. Heads that match by position write
  their copies into separate dimensions, so that the end of an edge holds its two nodes separately.

Learning curves for all starts are in the folder of the shipped model
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
from interp.training.config import read_goal_file
from interp.training.goal import TrainingGoal

_TINY = float(np.finfo(np.float64).tiny)


def _targets(
    episodes: ReachabilityEpisodes, spread: float = SPREAD, first: int = 1
) -> NDArray[Any]:
    """Return the distribution that each round should predict, ``[episode, round, node]``.

    Args:
        episodes: the episodes.
        spread: share of the target on all nodes reached so far; the rest is on the candidate (one
            of the two nodes in question) that has been reached, or half on each if both or neither
            have.
        first: index of the first round with a target; earlier rounds have zeros, which add no loss.

    Returns:
        Probabilities, ``[episode, round, node]``; zeros in rounds without a target.
    """
    targets: NDArray[Any] = breadth_first(spread).run(episodes)["prediction"].copy()
    targets[:, :first] = 0.0
    return targets


def _evaluate(predictions: NDArray[Any], episodes: ReachabilityEpisodes) -> dict[str, float]:
    """Return the numbers that show progress in training: cross-entropy, its ``excess`` over the
    entropy of the targets, and accuracies.

    The answer to a question can be known from round d on, with d the depth of the target node (its
    distance from the root). ``accuracy`` is the mean over all such rounds. For each depth d,
    ``answered_d`` is the accuracy in round d, and ``accuracy_d`` the accuracy in the last round.

    Args:
        predictions: predicted probabilities of nodes, ``[episode, round, node]``.
        episodes: the episodes, with the depth of each target.
    """
    targets = _targets(episodes)[:, 1:]  # round 0 has none
    loss = _cross_entropy(targets, predictions[:, 1:])
    is_right = episodes.correct(predictions)
    can_know = np.arange(episodes.n_rounds) >= episodes.depths[:, None]  # [episode, round]
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


# Initial weights.

_COPIED = 1.0
"""Factor of the content that a head copies, in the start "matching"."""
_WRITTEN = 0.1
"""Factor of the normalised residual stream when it is written to the latent."""
_SMALL = 0.1
"""Factor of the MLPs' random output weights."""
_ROLE = 0.25
"""Factor of the role's vector in a position embedding; small, so that an edge's ends match."""
_GROUPS = {"c_1": "question", "c_2": "question", "p?": "question", "r": "root", "w?": "root"}
"""Label of a position -> its group. The two ends of an edge form a group by their number."""
_Start = Callable[[HookedLatentTransformer], None]


def _copy_what_matches(attn: Attention) -> None:
    """Set a block's weights ``W_K`` equal to ``W_Q``, so that heads match similar content, and
    ``W_O`` to the transpose of ``W_V``, so that heads copy what they read.
    """
    attn.W_K.copy_(attn.W_Q)
    attn.W_O.copy_(_COPIED * attn.W_V.transpose(-1, -2))


def _start_matching(model: HookedLatentTransformer) -> None:
    """Set the weights for the start "matching" (a choice of initial weights): heads match similar
    content and copy it. MLPs start small, so that their random outputs do not drown the copies. The
    unembedding of a node is its token embedding.
    """
    for block in model.blocks:
        for head in (*block.attn.W_Q, *block.attn.W_V):  # each [d_model, d_head]
            nn.init.orthogonal_(head)
        _copy_what_matches(block.attn)
        if block.mlp is not None:
            block.mlp.W_out.mul_(_SMALL)
    # A node's logit is the product of the residual stream and the node's own embedding.
    model.unembed.weight.copy_(_get_node_embeddings(model).T)
    if model.config.write_map:  # write the residual stream itself, scaled down
        _get_write_weights(model).copy_(_WRITTEN * torch.eye(model.config.d_model))


def _get_node_embeddings(model: HookedLatentTransformer) -> Tensor:
    """Return the token embeddings of the nodes, ``[node, d_model]``."""
    first = model.layout.token_ids["n_1"]
    return model.W_E[first : first + model.unembed.weight.shape[1]]


def _get_write_weights(model: HookedLatentTransformer) -> Tensor:
    """Return the model's matrix ``W_write``, ``[d_model, d_model]``, which maps the residual stream
    to the update of the latent.
    """
    return model.write_map.get_parameter("W_write")


def _start_factored(model: HookedLatentTransformer) -> None:
    """Set the position embeddings for the start "factored" (a choice of initial weights).

    Each is the sum of two vectors: one for the position's group (an edge, the question or the root),
    and a smaller one for its role, such as "source". The latent's position gets the sum of the
    vectors of the root and of the question.
    """
    generator = torch.Generator().manual_seed(0)
    codes: dict[str, Tensor] = {}  # name of a role or a group -> its vector

    def get_code(name: str) -> Tensor:
        """Return the vector of the role or group called ``name``, ``[d_model]``; it is drawn when it
        is first needed.
        """
        if name not in codes:
            drawn = torch.randn(model.config.d_model, generator=generator).to(model.W_pos)
            codes[name] = model.config.init_std * drawn
        return codes[name]

    for position, label in enumerate(model.layout.max_layout.labels):
        role, _, number = label.partition("_")  # "s_7", the source of edge 7: role s, number 7
        # A label with a number but no group of its own is an end of the edge with this number.
        if label in _GROUPS or number:
            role_code = get_code(role)
            group = _GROUPS.get(label, f"edge {number}")
            model.W_pos[position] = _ROLE * role_code + get_code(group)
        # The latent's position: heads that match by position connect it to the root and the question.
        if label == "<z>":
            model.W_pos[position] = get_code("root") + get_code("question")


def _start_apart(model: HookedLatentTransformer) -> None:
    """Set the weights for the start "apart" (a choice of initial weights): one half of the residual
    stream is for tokens, the other for positions. Half of the heads match by position, the other
    half by content.

    All heads copy content, and only content is written to the latent.
    """
    half = model.config.d_model // 2
    n_by_position = model.config.n_heads // 2  # number of heads that match by position
    content = slice(half)  # dimensions of tokens
    positions = slice(half, None)  # dimensions of positions
    _empty_half(model.W_E, positions)
    _empty_half(model.latents.table, positions)
    _empty_half(model.W_pos, content)
    _start_matching(model)
    # The weights of the heads are set again, because a head may read only one half here.
    for block in model.blocks:
        attn = block.attn
        for head in range(model.config.n_heads):
            attn.W_Q[head] = 0.0
            attn.W_V[head] = 0.0
            matched = positions if head < n_by_position else content
            nn.init.orthogonal_(attn.W_Q[head, matched])
            nn.init.orthogonal_(attn.W_V[head, content])
        _copy_what_matches(attn)  # keys and outputs from the new queries and values
    if model.config.write_map:
        _get_write_weights(model)[positions] = 0.0


def _empty_half(table: Tensor, columns: slice) -> None:
    """Set ``columns`` of an embedding table, half of all columns, to zero, and scale the rest so
    that vectors keep their length.
    """
    table[:, columns] = 0.0
    table.mul_(2**0.5)


def _start_bound(model: HookedLatentTransformer) -> None:
    """Set the weights for the start "bound" (a choice of initial weights), which changes the start
    "apart":

    - the embeddings of nodes are orthogonal, and have only the first ``d_head`` dimensions;
    - heads that match by position write what they copy to the next ``d_head`` dimensions;
    - heads that match by content compare both groups of dimensions with the same weights.

    So training decides whether such a head finds an edge by the node at its position, or by the node
    that was copied there.
    """
    d_head = model.config.d_head
    half = model.config.d_model // 2
    require(
        2 * d_head <= half,
        f"start 'bound' needs 2 d_head <= d_model / 2, got d_head {d_head} and d_model {model.config.d_model}: "
        "give 4 heads or more",
    )
    _start_apart(model)
    names = slice(d_head)  # dimensions of a token's own embedding
    copies = slice(d_head, 2 * d_head)  # dimensions of another token's, copied by a head
    embeddings = _get_node_embeddings(model)  # a view of W_E: setting it sets the model's weights
    length = embeddings.norm(dim=1).mean()
    # As in "apart", the first half of d_model is for tokens and the second for positions. In the
    # first half, only nodes get an embedding here; the first latent is empty.
    content = slice(half)
    model.W_E[:, content] = 0.0
    model.latents.table.zero_()
    directions = nn.init.orthogonal_(torch.empty_like(embeddings[:, names]))
    embeddings[:, names] = length * directions
    model.unembed.weight.copy_(embeddings.T)
    for block in model.blocks:
        attn = block.attn
        for head in range(model.config.n_heads):
            copies_to = copies
            # The second half of the heads matches by content, and not by position.
            if head >= model.config.n_heads // 2:
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
        # Both nodes, the position's own and the copied one, are written in the dimensions of names.
        write_weights = _get_write_weights(model)
        write_weights.zero_()
        write_weights[names, names] = _WRITTEN * torch.eye(d_head)
        write_weights[copies, names] = _WRITTEN * torch.eye(d_head)


def _draw_orthogonal(like: Tensor, size: int) -> Tensor:
    return nn.init.orthogonal_(like.new_empty(size, size))


def _make_start(*starts: _Start) -> _Start:
    """Return a function that sets a model's initial weights by calling several such functions, one
    after the other.
    """

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
    """Return the training goal of reachability (targets, presets and measures of progress): models
    predict the nodes reached so far and the answer.
    """
    return TrainingGoal(
        targets=_targets,
        other_targets={
            "answers": partial(_targets, spread=0.0),
            "final answers": partial(_targets, spread=0.0, first=-1),
        },
        evaluate=_evaluate,
        starts=_STARTS,
        **read_goal_file("reachability"),
    )
