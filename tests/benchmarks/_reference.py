"""A plain reference: a transformer that re-reads every token since the first round, as the published code does.

Pre-norm blocks with torch's own causal attention over the tokens of all rounds; the sizes are those of the models
here. It keeps no latents, keys or values: each decision is one forward pass over the whole history. What the numbers
in its weights are does not matter for its time.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention


class FullHistory(nn.Module):
    """Scores at the last token of a history of any number of rounds.

    Args:
        n_vocab: of its tokens, and of what it scores.
    """

    def __init__(self, n_vocab: int, d_model: int = 64, n_layers: int = 4, n_heads: int = 4, d_mlp: int = 256) -> None:
        super().__init__()
        self.embed, self.unembed, self.n_heads = nn.Embedding(n_vocab, d_model), nn.Linear(d_model, n_vocab), n_heads
        shapes = {"qkv": (d_model, 3 * d_model), "out": (d_model, d_model), "up": (d_model, d_mlp)}
        shapes["down"] = (d_mlp, d_model)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(*shape) for name, shape in shapes.items()}) for _ in range(n_layers)
        )
        self.norm = nn.LayerNorm(d_model, elementwise_affine=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Int[batch, token] to Float[batch, n_vocab]."""
        resid = self.embed(tokens)
        for block in self.blocks:
            q, k, v = (
                part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
                for part in block["qkv"](self.norm(resid)).chunk(3, -1)
            )
            resid = resid + block["out"](
                scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            )
            resid = resid + block["down"](gelu(block["up"](self.norm(resid))))
        return self.unembed(self.norm(resid[:, -1]))
