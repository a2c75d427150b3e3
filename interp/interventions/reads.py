r"""Which reads of one round matter: a head's attention from one position to another, taken out on its own.

A *read* is (layer, head, query, key). To cut it is to set its weight to zero and leave the others as they are, so that
what the head wrote at the query lacks what it brought from the key. Its effect on an exit x (the prediction's
distribution, or the update) is, in each episode,

    | x - x_cut | / mean over episodes of | x - mean x |

so that 1 is a change as large as the exit's own differences between episodes. All reads are ranked by the first-order
estimate of that (two random projections of each exit, one backward pass each); the best are then cut and measured.
NOT evidence of what a read brings, or that the reads together are a circuit; a pair of reads that stand in for each
other can each show nothing. The first position is left out: heads rest on it.

    >>> import interp
    >>> from interp.tasks import experts
    >>> model, episodes = interp.load("wma-handwired", n_experts=2), experts.sample(8, 12, 2, seed=0)
    >>> found = strongest_reads(model, interp.rollout(model, episodes), 10, k=2)
    >>> found[["layer", "head", "source", "target", "exit"]].to_numpy().tolist()
    [[2, 3, '<z>', 'w?', 'update'], [3, 1, 'p_2', 'p?', 'prediction']]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from interp.checks import checked, integer
from interp.interventions.passes import Rows
from interp.interventions.resume import tile
from interp.model.layout import RoundLayout
from interp.model.replay import replay
from interp.model.run import Rollout, select_rounds
from interp.model.transformer import HookedLatentTransformer, RoundOutput
from interp.statistics import mean_interval

EXITS = ("prediction", "update")
_CANDIDATES = 4
"""Reads that are cut, for every one that is given back at most."""
_PROJECTIONS = 2
_NOTHING = 1e-6
"""An effect below it is none: what is left of rounding."""


class _Read(NamedTuple):
    layer: int
    head: int
    query: int
    key: int


@checked
def strongest_reads(
    model: HookedLatentTransformer, run: Rollout, t: int, *, k: int = 12, seed: int = 0
) -> pd.DataFrame:
    """The reads of round ``t`` whose cut changes an exit most, ``k // 2`` for each exit, over the episodes of ``run``.

    Returns:
        Columns ``layer`` and ``head`` (from 1), ``source``, ``target`` (position labels), ``weight`` (mean attention),
        ``exit`` (where its effect is largest), ``effect``, ``low``, ``high`` (95 % over episodes); by layer, then by
        position. Fewer rows where fewer reads change anything, or one is among the first for both.

    Raises:
        InputError: a round that the run does not have, or k below 2.
    """
    integer("k", k, 2)
    (t,) = select_rounds(t, run.n_rounds)
    rows = Rows.of(run, [t])
    with torch.no_grad():
        plain = _exits(model(rows.tokens, rows.latents, rows.values), run.layout)
    spread = [_spread(x) for x in plain]
    candidates = _candidates(model, rows, run.layout, spread, _CANDIDATES * k // 2, seed)
    changed = _cut(model, rows, run.layout, candidates)
    moved = [(after - before).norm(dim=-1) for after, before in zip(changed, plain, strict=True)]
    effects = np.stack([x.numpy(force=True) / scale for x, scale in zip(moved, spread, strict=True)])
    mean = effects.mean(-1)
    first = np.argsort(-mean, axis=-1, kind="stable")[:, : k // 2]
    best = {int(i) for out, order in enumerate(first) for i in order if mean[out, i] > _NOTHING}
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.config.n_layers)]
    _, _, patterns = replay(model, run, rounds=[t], names_filter=names)
    found = []
    for i in sorted(best, key=lambda i: candidates[i]):
        read, out = candidates[i], int(mean[:, i].argmax())
        weight = patterns[names[read.layer]][:, 0, read.head, read.query, read.key].double().mean()
        where = (read.layer + 1, read.head + 1, run.layout.labels[read.key], run.layout.labels[read.query])
        value = mean_interval(effects[out, i], seed=seed)
        found.append((*where, float(weight), EXITS[out], value.estimate, value.low, value.high))
    columns = ["layer", "head", "source", "target", "weight", "exit", "effect", "low", "high"]
    return pd.DataFrame(found, columns=columns)


def _exits(out: RoundOutput, layout: RoundLayout) -> tuple[Tensor, Tensor]:
    """The two exits, each ``[row, value]``."""
    return layout.distribution(out.prediction).flatten(1).double(), out.update.flatten(1).double()


def _spread(x: Tensor) -> float:
    """The mean distance of rows from their mean; 1 where all are the same."""
    return float((x - x.mean(0)).norm(dim=-1).mean()) or 1.0


def _candidates(
    model: HookedLatentTransformer, rows: Rows, layout: RoundLayout, spread: Sequence[float], n: int, seed: int
) -> list[_Read]:
    """The ``n`` reads of largest estimated effect on each exit, those of the first position left out."""
    n_layers, n_heads, n_pos = model.config.n_layers, model.config.n_heads, rows.tokens.shape[1]
    kept = torch.ones(n_layers, len(rows.tokens), n_heads, n_pos, n_pos, dtype=rows.latents.dtype, requires_grad=True)
    hooks = [(f"blocks.{i}.attn.hook_pattern", _scaled(kept[i])) for i in range(n_layers)]
    draws, found = torch.Generator().manual_seed(seed), []
    with torch.enable_grad(), model.hooks(fwd_hooks=hooks):
        exits = _exits(model(rows.tokens, rows.latents, rows.values), layout)
        for x, scale in zip(exits, spread, strict=True):
            score = torch.zeros(n_layers, n_heads, n_pos, n_pos, dtype=torch.float64)
            for _ in range(_PROJECTIONS):
                direction = torch.randn(x.shape[-1], generator=draws, dtype=x.dtype)
                (slope,) = torch.autograd.grad((x @ direction).sum(), kept, retain_graph=True)
                score += slope.double().abs().mean(1) / scale
            score[..., 0] = 0
            best = torch.argsort(score.flatten(), descending=True, stable=True)[:n].tolist()
            found += [np.unravel_index(i, score.shape) for i in best if score.flatten()[i] > 0]
    return [_Read(*map(int, index)) for index in dict.fromkeys(found)]


def _scaled(by: Tensor) -> Callable[[Tensor, object], Tensor]:
    return lambda pattern, hook: pattern * by


def _cut(
    model: HookedLatentTransformer, rows: Rows, layout: RoundLayout, reads: Sequence[_Read]
) -> tuple[Tensor, Tensor]:
    """The exits with each read cut on its own, ``[read, row, value]``."""
    n = len(rows.tokens)
    many = Rows(*(tile(x, len(reads)) for x in rows))

    def without(layer: int) -> Callable[[Tensor, object], Tensor]:
        def hook(pattern: Tensor, hook: object) -> Tensor:
            pattern = pattern.clone()
            for i, read in enumerate(reads):
                if read.layer == layer:
                    pattern[i * n : (i + 1) * n, read.head, read.query, read.key] = 0
            return pattern

        return hook

    hooks = [(f"blocks.{i}.attn.hook_pattern", without(i)) for i in range(model.config.n_layers)]
    with torch.no_grad(), model.hooks(fwd_hooks=hooks):
        exits = _exits(model(many.tokens, many.latents, many.values), layout)
    first, second = (x.unflatten(0, (len(reads), n)) for x in exits)
    return first, second
