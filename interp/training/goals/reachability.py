"""What models of reachability are trained on: the nodes reached and the answer, round by round.

A round's target is the distribution of breadth-first search with a ``spread`` of 0.6: .4 of it lies on the candidate
that is reached, .6 evenly on all nodes reached. The first round has an empty latent and asks for nothing. Two other
targets ask for less: "answers", the candidate alone in every round, and "final answers", the candidate in the last.

A stage of the curriculum lasts until targets at its depth are answered, at most as long as it says.

What weights start from decides whether anything is learned in minutes; all of it is trained on. Four properties can be
given, each with those before it:

- *matching*: heads look for what resembles their own and copy it (``W_K = W_Q``, ``W_O`` in proportion to ``W_V^T``);
  latents are written, and nodes read out, as tokens are embedded; MLPs start small;
- *factored*: the position code of ``s_7`` is one of edge 7 plus one of the role s;
- *apart*: tokens and positions have halves of the residual stream, and half of the heads matches each;
- *bound*: names are orthogonal where heads read them, and heads that match by place write what they copy beside the
  names, so that an edge's end holds its two nodes apart.

Learning curves of them all are beside the shipped model (``interp/checkpoints/reachability-learned/learning.csv``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.model.transformer import HookedLatentTransformer
from interp.support.errors import require
from interp.tasks.reachability.algorithms import SPREAD, breadth_first
from interp.tasks.reachability.episodes import ReachabilityEpisodes
from interp.training.config import shipped
from interp.training.goal import TrainingGoal


def _targets(
    episodes: ReachabilityEpisodes, spread: float = SPREAD, first: int = 1
) -> NDArray[Any]:
    """What each round should predict, ``[episode, round, node]``; zeros before the round ``first``: it weighs nothing.

    Without a spread these are the candidates alone: the one that is reached, halves where both or none are.
    """
    wanted: NDArray[Any] = breadth_first(spread).run(episodes)["prediction"].copy()
    wanted[:, :first] = 0.0
    return wanted


def _evaluate(predictions: NDArray[Any], episodes: ReachabilityEpisodes) -> dict[str, float]:
    """Loss, ``excess`` over the targets' entropy, accuracy from round d on, and by depth d.

    ``answered_d`` is the accuracy in round d, the first that can know; ``accuracy_d`` that in the last round.
    """
    wanted, tiny = _targets(episodes)[:, 1:], np.finfo(np.float64).tiny
    loss = -(wanted * np.log(np.maximum(predictions[:, 1:], tiny))).sum(-1).mean()
    floor = -(wanted * np.log(np.maximum(wanted, tiny))).sum(-1).mean()
    right = episodes.correct(predictions)
    known = np.arange(episodes.n_rounds) >= episodes.depths[:, None]
    by_depth: dict[str, float] = {}
    for d in np.unique(episodes.depths):
        of = right[episodes.depths == d]
        by_depth |= {
            f"answered_{d}": float(of[:, d].mean()),
            f"accuracy_{d}": float(of[:, -1].mean()),
        }
    overall = {
        "cross_entropy": float(loss),
        "excess": float(loss - floor),
        "accuracy": float(right[known].mean()),
    }
    return overall | by_depth


# What weights start from.

_COPIED, _WRITTEN, _SMALL = 1.0, 0.1, 0.1
"""Where weights start matching: what a head copies of what it attends to, what of the normalised residual stream is
written to the latent, and what the MLPs' drawn output weights are multiplied by."""
_ROLE = 0.25
"""Share of a role in a factored position code: small, so that the two ends of an edge attend to each other."""
_Start = Callable[[HookedLatentTransformer], None]


def _matching(model: HookedLatentTransformer) -> None:
    """Heads match and copy; the MLPs start small, so that what was copied is not drowned by what they make of it."""
    with torch.no_grad():
        for block in model.blocks:
            for weight in (block.attn.W_Q, block.attn.W_V):
                for head in weight:
                    torch.nn.init.orthogonal_(head)
            block.attn.W_K.copy_(block.attn.W_Q)
            block.attn.W_O.copy_(_COPIED * block.attn.W_V.transpose(-1, -2))
            if block.mlp is not None:
                block.mlp.W_out.mul_(_SMALL)
        first = model.layout.token_ids["n_1"]
        model.unembed.weight.copy_(model.W_E[first : first + model.unembed.weight.shape[1]].T)
        if model.config.write_map:
            model.write_map.get_parameter("W_write").copy_(
                _WRITTEN * torch.eye(model.config.d_model)
            )


def _factored(model: HookedLatentTransformer) -> None:
    """A position's code becomes that of its group (an edge, the question, the root) plus a part of that of its role."""
    std, generator = model.config.init_std, torch.Generator().manual_seed(0)
    codes: dict[str, torch.Tensor] = {}

    def code(name: str) -> torch.Tensor:
        if name not in codes:
            codes[name] = std * torch.randn(model.config.d_model, generator=generator).to(
                model.W_pos
            )
        return codes[name]

    groups = {"c_1": "question", "c_2": "question", "p?": "question", "r": "root", "w?": "root"}
    with torch.no_grad():
        for position, label in enumerate(model.layout.max_layout.labels):
            role, _, number = label.partition("_")
            if label in groups or number:
                model.W_pos[position] = _ROLE * code(role) + code(
                    groups.get(label, f"edge {number}")
                )
            if label == "<z>":
                model.W_pos[position] = code("root") + code("question")


def _apart(model: HookedLatentTransformer) -> None:
    """Tokens and positions start in halves of the residual stream: half of the heads match by place, half by content.

    All heads copy content, and content is what the latent is written.
    """
    half, by_place = model.config.d_model // 2, model.config.n_heads // 2
    with torch.no_grad():
        second, first = slice(half, None), slice(half)
        for table, empty in (
            (model.W_E, second),
            (model.latents.table, second),
            (model.W_pos, first),
        ):
            table[:, empty] = 0.0
            table.mul_(2**0.5)
        _matching(model)
        for block in model.blocks:
            for index in range(model.config.n_heads):
                block.attn.W_Q[index] = block.attn.W_V[index] = 0.0
                torch.nn.init.orthogonal_(
                    block.attn.W_Q[index, second if index < by_place else first]
                )
                torch.nn.init.orthogonal_(block.attn.W_V[index, :half])
            block.attn.W_K.copy_(block.attn.W_Q)
            block.attn.W_O.copy_(_COPIED * block.attn.W_V.transpose(-1, -2))
        if model.config.write_map:
            model.write_map.get_parameter("W_write")[half:] = 0.0


def _bound(model: HookedLatentTransformer) -> None:
    """:func:`_apart`, with orthogonal names, and beside them a place of their own for copies by place.

    Of ``d_head`` dimensions each: names, copies. Heads that match by content look for both in both; whether an edge
    is found by its own node or by the one that it was bound to is left to training.
    """
    d_head, half = model.config.d_head, model.config.d_model // 2
    require(
        2 * d_head <= half,
        f"start 'bound' needs 2 d_head <= d_model / 2, got d_head {d_head} and d_model {model.config.d_model}: "
        "give 4 heads or more",
    )
    _apart(model)
    names, copies = slice(d_head), slice(d_head, 2 * d_head)
    first, n_names = model.layout.token_ids["n_1"], model.unembed.weight.shape[1]
    with torch.no_grad():
        table = model.W_E[first : first + n_names]
        size = table.norm(dim=1).mean()
        model.W_E[:, :half] = model.latents.table[:] = 0.0
        table[:, names] = size * torch.nn.init.orthogonal_(torch.empty_like(table[:, names]))
        model.unembed.weight.copy_(table.T)
        for block in model.blocks:
            for index in range(model.config.n_heads):
                by_place = index < model.config.n_heads // 2
                if not by_place:
                    block.attn.W_Q[index] = 0.0
                    block.attn.W_Q[index, names] = block.attn.W_Q[index, copies] = _orthogonal(
                        model.W_E, d_head
                    )
                block.attn.W_V[index] = block.attn.W_O[index] = 0.0
                block.attn.W_V[index, names] = _orthogonal(model.W_E, d_head)
                block.attn.W_O[index, :, copies if by_place else names] = (
                    _COPIED * block.attn.W_V[index, names].T
                )
            block.attn.W_K.copy_(block.attn.W_Q)
        if model.config.write_map:
            written = model.write_map.get_parameter("W_write")
            written[:] = 0.0
            written[names, names] = written[copies, names] = _WRITTEN * torch.eye(d_head)


def _orthogonal(like: Tensor, size: int) -> Tensor:
    return torch.nn.init.orthogonal_(like.new_empty(size, size))


def _factored_and(start: _Start, model: HookedLatentTransformer) -> None:
    """Another start after :func:`_factored`."""
    _factored(model)
    start(model)


_STARTS: dict[str, _Start] = {
    "matching": _matching,
    "factored": _factored,
    "matching, factored": partial(_factored_and, _matching),
    "matching, factored, apart": partial(_factored_and, _apart),
    "matching, factored, apart, bound": partial(_factored_and, _bound),
}


def goal() -> TrainingGoal:
    """What ``interp train reachability`` learns."""
    less = {
        "answers": partial(_targets, spread=0.0),
        "final answers": partial(_targets, spread=0.0, first=-1),
    }
    known = shipped("reachability")
    return TrainingGoal(
        targets=_targets, other_targets=less, evaluate=_evaluate, starts=_STARTS, **known
    )
