"""Rounds per second of rollouts, against the same matrices in bare torch and, for the handwired model, against NumPy.

Bare torch has the weights laid out beforehand, no modules, no hook points and no checks, and keeps nothing but the
latents. One thread, CPU seconds: on a shared machine, time on the wall is mostly waiting. Run with
``python -m tests.benchmarks rollout``.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

import interp
from interp.model.components import _RULES, MLP, Attention
from interp.model.config import LatentTransformerConfig
from interp.model.transformer import HookedLatentTransformer
from interp.tasks import experts
from interp.tasks.experts import predictors
from interp.tasks.experts.layout import ExpertRound
from interp.workers import one_thread

Forward = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
N_EPISODES, N_ROUNDS, REPEATS = 256, 50, 7


def seconds(*calls: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """The fewest CPU seconds of each of several calls, made in turn after one round to warm up."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats + 1):
        for call, own in zip(calls, times, strict=True):
            start = time.process_time()
            call()
            own.append(time.process_time() - start)
    return [min(own[1:]) for own in times]


def plain(model: HookedLatentTransformer) -> Forward:
    """The model's forward pass in bare torch: the same matrices, laid out once, no modules and no hook points."""
    blocks = [(attending(block.attn), wide(model, block.mlp)) for block in model.blocks]
    normalized, eps = model.config.normalization_type is not None, model.cfg.eps

    def norm(x: Tensor) -> Tensor:
        if not normalized:
            return x
        x = x - x.mean(-1, keepdim=True)
        return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()

    def forward(tokens: Tensor, latents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = model.W_E[tokens]
        x = torch.cat([x[:, :1], latents, x[:, 1 + latents.shape[1] :]], 1) + model.W_pos[: tokens.shape[1]]
        for attend, widen in blocks:
            x = x + attend(norm(x))
            if widen is not None:
                x = x + widen(norm(x))
        final = norm(x)
        update = final[:, model.layout.update_position]
        if model.config.strip_position:
            update = update - model.W_pos[tokens.shape[1] - 1]
        logits = final @ model.W_U + model.b_U
        return model.read_prediction(logits[:, model.layout.predict_position], tokens.shape[1]), update, logits

    return forward


def attending(attn: Attention) -> Callable[[Tensor], Tensor]:
    """An attention layer."""
    heads, d_model, d_head = attn.W_Q.shape
    weights = ((attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K), (attn.W_V, attn.b_V))
    flat = [(weight.transpose(0, 1).reshape(d_model, heads * d_head), bias.flatten()) for weight, bias in weights]
    out = attn.W_O.flatten(0, 1)

    def attend(x: Tensor) -> Tensor:
        q, k, v = ((x @ weight + bias).unflatten(-1, (heads, d_head)) for weight, bias in flat)
        n = x.shape[1]
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / attn.scale
        scores = scores.masked_fill(attn.mask[:n, :n], float("-inf"))
        parts = [_RULES[rule](scores[:, index]) for rule, index in attn.rule_heads.items()]
        pattern = parts[0] if len(parts) == 1 else torch.cat(parts, 1)[:, attn.head_order]
        return torch.einsum("bhqk,bkhd->bqhd", pattern, v).flatten(2) @ out + attn.b_O

    return attend


def wide(model: HookedLatentTransformer, mlp: MLP | None) -> Callable[[Tensor], Tensor] | None:
    """An MLP layer, where there is one."""
    if mlp is None:
        return None
    act = torch.nn.functional.gelu if model.config.act_fn == "gelu" else torch.relu
    return lambda x: act(x @ mlp.W_in + mlp.b_in) @ mlp.W_out + mlp.b_out


def rates(model: HookedLatentTransformer, episodes: experts.ExpertEpisodes) -> tuple[float, float]:
    """Rounds per second of ``interp.rollout`` and of bare torch, which predict the same."""
    encoded, bare, n = model.layout.encode(episodes), plain(model), len(episodes)

    def bare_rollout() -> Tensor:
        latents, predictions = model.initial_latents(n, 1), []
        for t in range(N_ROUNDS):
            prediction, update, _ = bare(encoded.tokens[:, t], latents)
            latents = model.write(latents, update, encoded.slots[:, t])
            predictions.append(prediction)
        return torch.stack(predictions, 1)

    with torch.no_grad():
        torch.testing.assert_close(bare_rollout(), interp.rollout(model, episodes).predictions)
        taken = seconds(lambda: interp.rollout(model, episodes), bare_rollout)
    own, theirs = (n * N_ROUNDS / s for s in taken)
    return own, theirs


@one_thread()
def main() -> None:
    torch.manual_seed(0)
    config = LatentTransformerConfig(ExpertRound(4), d_model=64, n_layers=4, n_heads=4, d_head=16, d_mlp=256)
    models = {
        "handwired": interp.load("wma-handwired", n_experts=4),
        "learned shape": HookedLatentTransformer(config).eval(),
    }
    episodes = experts.sample(N_EPISODES, N_ROUNDS, 4, seed=0)
    for n in (64, N_EPISODES):
        for name, model in models.items():
            own, theirs = rates(model, episodes.select(slice(n)))
            print(f"{name:14} batch {n:3}: {own:8,.0f} rounds/s, bare torch {theirs:8,.0f}, {own / theirs:5.2f} x")
    (taken,) = seconds(lambda: predictors.weighted_majority(episodes, eta=0.5))
    print(f"NumPy weighted majority: {N_EPISODES * N_ROUNDS / taken:,.0f} rounds/s")


if __name__ == "__main__":
    main()
