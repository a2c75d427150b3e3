"""Run chosen rounds of a run again, all at once: how activations are cached, probed and patched.

Latents known, rounds do not depend on each other: every (episode, round) is a row of one big batch. What comes out
equals the sequential pass (:mod:`interp.model.rollout`) to float precision.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from interp.checks import checked
from interp.errors import InputError, require
from interp.model.hooked import FiringCounter, HookFunction, Hooks, NamesFilter
from interp.model.run import Rollout, Rounds, select_rounds
from interp.model.transformer import HookedLatentTransformer

REPLAY_BATCH = 1024
"""Rounds per replay batch: bounds memory, and on a CPU keeps activations in cache (1.7 times as fast as 8192)."""


@checked
def replay(
    model: HookedLatentTransformer,
    run: Rollout,
    *,
    rounds: Rounds = "all",
    names_filter: NamesFilter = None,
    fwd_hooks: Hooks = (),
    chunk: int | None = None,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Run chosen rounds of ``run`` again at once, from its latents and tokens.

    Args:
        fwd_hooks: applied to the whole batch; row ``e * len(rounds) + i`` is episode e at the i-th chosen round.
        chunk: rows that run at a time, so that memory does not grow with episodes and rounds. Hooks then see one chunk
            after the other, which is right where they treat every row alike. All rows run at once where it is None and
            there are hooks.

    Returns:
        Predictions ``[episode, chosen round, ...]``, updates ``[episode, chosen round, d_model]`` and the cache
        ``name -> [episode, chosen round, ...]``.

    Raises:
        InputError: a round out of range, an unknown hook, a chunk below 1.

    Example:
        >>> import interp
        >>> from interp.tasks import experts
        >>> model = interp.load("wma-handwired", n_experts=2)
        >>> run = interp.rollout(model, experts.sample(4, 10, 2, seed=0))
        >>> _, _, cache = interp.replay(model, run, rounds=[3, 7], names_filter="blocks.1.hook_resid_post")
        >>> tuple(cache["blocks.1.hook_resid_post"].shape)[:2]                               # [episode, round, ...]
        (4, 2)
    """
    require(chunk is None or chunk >= 1, f"chunk must be 1 or more, got {chunk}")
    chosen = select_rounds(rounds, run.n_rounds)
    names = model.hook_names(names_filter) if names_filter is not None else []
    index = torch.tensor(chosen, device=run.tokens.device)
    tokens, values = run.tokens[:, index].flatten(0, 1), run.values[:, index].flatten(0, 1)
    latents = run.latents[:, index].flatten(0, 1)
    counter = FiringCounter(fwd_hooks)
    step = chunk or (len(tokens) if fwd_hooks else REPLAY_BATCH)
    predictions, updates = [], []
    cache: dict[str, list[Tensor]] = {name: [] for name in names}
    with torch.no_grad():
        for start in range(0, len(tokens), step):
            rows = slice(start, start + step)
            kept: dict[str, Tensor] = {}
            saving = [(name, _saver(kept, name)) for name in names]
            with model.hooks(fwd_hooks=[*counter.hooks, *saving]):
                out = model(tokens[rows], latents[rows], values[rows])
            predictions.append(out.prediction)
            updates.append(out.update)
            for name in names:
                cache[name].append(_fired(kept, name))
    counter.check()
    shape = (run.n_episodes, len(chosen))
    joined = {name: torch.cat(parts).unflatten(0, shape) for name, parts in cache.items()}
    return torch.cat(predictions).unflatten(0, shape), torch.cat(updates).unflatten(0, shape), joined


def _saver(kept: dict[str, Tensor], name: str) -> HookFunction:
    def save(activation: Tensor, hook: Any) -> None:
        kept[name] = activation.detach()

    return save


def _fired(kept: dict[str, Tensor], name: str) -> Tensor:
    if name not in kept:
        raise InputError(f"hook {name!r} never fired, so there is nothing to cache")
    return kept[name]
