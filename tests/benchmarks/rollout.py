"""Rounds per second of the handwired rollout, against NumPy and against the same matrices without hooks."""

import time
from collections.abc import Callable

import torch
from torch import Tensor

import interp
from interp.model.components import _RULES
from interp.model.config import LatentTransformerConfig
from interp.model.layout import PREDICT_INDEX, UPDATE_INDEX
from interp.model.transformer import HookedLatentTransformer
from interp.tasks import experts
from interp.tasks.experts import predictors
from interp.tasks.experts.layout import ExpertRound


def seconds(run: Callable[[], object], repeats: int = 7) -> float:
    """The fastest of several runs, after one to warm up."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def plain(model: HookedLatentTransformer) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
    """The model's forward pass in bare torch: the same matrices, no modules and no hook points."""
    normalized = model.config.normalization_type is not None
    linear = torch.nn.functional

    def norm(x: Tensor) -> Tensor:
        if not normalized:
            return x
        x = x - x.mean(-1, keepdim=True)
        return x / (x.pow(2).mean(-1, keepdim=True) + model.cfg.eps).sqrt()

    def attend(attn, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        heads, d_model, d_head = attn.W_Q.shape

        def project(weight: Tensor, bias: Tensor) -> Tensor:
            flat = weight.transpose(0, 1).reshape(d_model, heads * d_head)
            return (x @ flat).unflatten(-1, (heads, d_head)) + bias

        q, k, v = project(attn.W_Q, attn.b_Q), project(attn.W_K, attn.b_K), project(attn.W_V, attn.b_V)
        n = x.shape[1]
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / attn.scale
        scores = scores.masked_fill(attn.mask[:n, :n], float("-inf"))
        parts = [_RULES[rule](scores[:, index]) for rule, index in attn.rule_heads.items()]
        pattern = parts[0] if len(parts) == 1 else torch.cat(parts, 1)[:, attn.head_order]
        return torch.einsum("bhqk,bkhd->bqhd", pattern, v).flatten(2) @ attn.W_O.flatten(0, 1) + attn.b_O

    def forward(tokens: Tensor, latents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = model.W_E[tokens]
        x = torch.cat([x[:, :1], latents, x[:, 1 + latents.shape[1] :]], 1) + model.W_pos[: tokens.shape[1]]
        for block in model.blocks:
            x = x + attend(block.attn, norm(x))
            if block.mlp is not None:
                mlp = block.mlp
                act = linear.gelu if model.config.act_fn == "gelu" else torch.relu
                x = x + act(norm(x) @ mlp.W_in + mlp.b_in) @ mlp.W_out + mlp.b_out
        final = norm(x)
        update = final[:, UPDATE_INDEX]
        if model.config.strip_position:
            update = update - model.W_pos[tokens.shape[1] - 1]
        logits = final @ model.W_U + model.b_U
        return model.read_prediction(logits[:, PREDICT_INDEX], tokens.shape[1]), update, logits

    return forward


def main() -> None:
    torch.set_num_threads(1)
    episodes = experts.sample(n_episodes=256, n_rounds=50, n_experts=4, seed=0)
    n_rounds = episodes.labels.size
    model = interp.load("wma-handwired", n_experts=4)
    encoded = model.layout.encode(episodes)
    bare = plain(model)

    def bare_rollout() -> None:
        latents = model.initial_latents(256, 1)
        with torch.no_grad():
            for t in range(50):
                _, update, _ = bare(encoded.tokens[:, t], latents)
                latents = update[:, None]

    with torch.no_grad():
        torch.testing.assert_close(
            bare(encoded.tokens[:, 0], model.initial_latents(256, 1))[0],
            interp.rollout(model, episodes).predictions[:, 0],
        )
    rates = {
        "handwired rollout, hooked": n_rounds / seconds(lambda: interp.rollout(model, episodes)),
        "same matrices, bare torch": n_rounds / seconds(bare_rollout),
        "NumPy weighted majority": n_rounds / seconds(lambda: predictors.weighted_majority(episodes, eta=0.5)),
    }
    for name, rate in rates.items():
        print(f"{name:28} {rate:14,.0f} rounds/s   {rate / rates['handwired rollout, hooked']:8.2f} x")

    config = LatentTransformerConfig(ExpertRound(4), d_model=64, n_layers=4, n_heads=4, d_head=16, d_mlp=256)
    learned = HookedLatentTransformer(config).eval()
    tokens, latents = encoded.tokens[:64, 0], torch.randn(64, 1, 64)
    with torch.no_grad():
        hooked, unhooked = (
            seconds(lambda: learned(tokens, latents), 60),
            seconds(lambda: plain(learned)(tokens, latents), 60),
        )
    print(f"hook overhead, learned shape, batch 64: {100 * (hooked / unhooked - 1):+.1f} %")


if __name__ == "__main__":
    main()
