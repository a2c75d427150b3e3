"""What the weights of a model of reachability start from; all of it is trained on.

What they start from decides whether anything is learned in minutes. Four properties can be given, each with those
before it:

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

import torch
from torch import Tensor

from interp.errors import require
from interp.model.transformer import HookedLatentTransformer

COPIED, WRITTEN, SMALL = 1.0, 0.1, 0.1
"""Where weights start matching: what a head copies of what it attends to, what of the normalised residual stream is
written to the latent, and what the MLPs' drawn output weights are multiplied by."""
ROLE = 0.25
"""Share of a role in a factored position code: small, so that the two ends of an edge attend to each other."""
Start = Callable[[HookedLatentTransformer], None]


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
    """A position's code becomes that of its group (an edge, the question, the root) plus a part of that of its role."""
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
                model.W_pos[position] = ROLE * code(role) + code(groups.get(label, f"edge {number}"))
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


def bound(model: HookedLatentTransformer) -> None:
    """:func:`apart`, with orthogonal names, and beside them a place of their own for copies by place.

    Of ``d_head`` dimensions each: names, copies. Heads that match by content look for both in both; whether an edge
    is found by its own node or by the one that it was bound to is left to training.

    Raises:
        InputError: half of the residual stream does not hold both.
    """
    d_head, half = model.config.d_head, model.config.d_model // 2
    require(
        2 * d_head <= half,
        f"start 'bound' needs 2 d_head <= d_model / 2, got d_head {d_head} and d_model {model.config.d_model}: "
        "give 4 heads or more",
    )
    apart(model)
    names, copies = slice(d_head), slice(d_head, 2 * d_head)
    first, n_names = model.layout.token_ids["n_1"], model.unembed.weight.shape[1]
    with torch.no_grad():
        table = model.W_E[first : first + n_names]
        size = table.norm(dim=1).mean()
        model.W_E[:, :half] = 0.0
        model.latents.table[:] = 0.0
        table[:, names] = size * torch.nn.init.orthogonal_(torch.empty_like(table[:, names]))
        model.unembed.weight.copy_(table.T)
        for block in model.blocks:
            for index in range(model.config.n_heads):
                by_place = index < model.config.n_heads // 2
                if not by_place:
                    block.attn.W_Q[index] = 0.0
                    block.attn.W_Q[index, names] = block.attn.W_Q[index, copies] = _orthogonal(model.W_E, d_head)
                block.attn.W_V[index] = 0.0
                block.attn.W_V[index, names] = _orthogonal(model.W_E, d_head)
                block.attn.W_O[index] = 0.0
                block.attn.W_O[index, :, copies if by_place else names] = COPIED * block.attn.W_V[index, names].T
            block.attn.W_K.copy_(block.attn.W_Q)
        if model.config.write_map:
            written = model.write_map.get_parameter("W_write")
            written[:] = 0.0
            for part in (names, copies):
                written[part, names] = WRITTEN * torch.eye(d_head)


def _orthogonal(like: Tensor, size: int) -> Tensor:
    return torch.nn.init.orthogonal_(like.new_empty(size, size))


def each(*parts: Start) -> Start:
    """One start after the other."""

    def start(model: HookedLatentTransformer) -> None:
        for part in parts:
            part(model)

    return start


STARTS = {
    "matching": matching,
    "factored": factored,
    "matching, factored": each(factored, matching),
    "matching, factored, apart": each(factored, apart),
    "matching, factored, apart, bound": each(factored, bound),
}
