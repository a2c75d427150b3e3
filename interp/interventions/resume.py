"""Run many patched copies of one round: batched over cells, starting from the cached residual stream.

A *cell* is one intervention: a site whose activation is replaced by its source's. Cells at one hook point run together
as a batch ``[cell, episode]``; the layers below it are not run again, because the base's residual stream there is
known (prefix reuse). The result equals patching one cell at a time, to float precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interp.errors import require
from interp.interventions.sites import Site
from interp.model.layout import EncodedRounds
from interp.model.rollout import Rollout, replay
from interp.model.transformer import HookedLatentTransformer, RoundOutput

CHUNK = 4096
"""Rows (cell x episode) run at once: bounds memory to the activations of this many rounds."""


def repeated(rounds: EncodedRounds, times: int) -> EncodedRounds:
    """All episodes, ``times`` over."""
    return EncodedRounds(*(tile(x, times) for x in (rounds.tokens, rounds.values, rounds.slots)))


def tile(x: Tensor, times: int) -> Tensor:
    """The rows of ``x``, ``times`` over."""
    return x.repeat(times, *[1] * (x.ndim - 1))


def one_round(run: Rollout, t: int) -> EncodedRounds:
    """Round ``t`` of every episode, as it was fed."""
    return EncodedRounds(run.tokens[:, t], run.values[:, t], run.slots[:, t])


def activations(model: HookedLatentTransformer, run: Rollout, t: int, names: Sequence[str]) -> dict[str, Tensor]:
    """Activations of round ``t``: ``name -> [episode, ...]``."""
    _, _, cache = replay(model, run, rounds=t, names_filter=list(names))
    return {name: value[:, 0] for name, value in cache.items()}


@dataclass(frozen=True)
class Patched:
    """What some cells gave at their round.

    Attributes:
        cells: their indices.
        output: rows ordered cell by cell, ``[cell * episode, ...]``.
        latents: the latents that the round leaves, ``[cell * episode, latent, d_model]``.
    """

    cells: list[int]
    output: RoundOutput
    latents: Tensor


def patched_rounds(
    model: HookedLatentTransformer,
    run: Rollout,
    t: int,
    cells: Sequence[Site],
    source: dict[str, Tensor],
    *,
    recommit: bool = True,
    chunk: int = CHUNK,
) -> Iterator[Patched]:
    """Round ``t`` of ``run`` with each cell's activation taken from ``source``.

    Args:
        source: activations of the source run at this round, by hook name.
        recommit: where a round holds the model's own choice, feed the choice that the patched model makes; not
            needed when only the prediction is read, which comes before it.
        chunk: rows run at once.
    """
    base, latents = one_round(run, t), run.latents[:, t]
    per_chunk = max(1, chunk // len(latents))
    prefix = activations(model, run, t, [f"blocks.{i}.hook_resid_pre" for i in range(model.config.n_layers)])
    by_hook: dict[str, list[int]] = {}
    for i, cell in enumerate(cells):
        by_hook.setdefault(cell.hook, []).append(i)
    for name, members in by_hook.items():
        for start in range(0, len(members), per_chunk):
            chosen = members[start : start + per_chunk]
            rows, before = repeated(base, len(chosen)), tile(latents, len(chosen))
            patch = _Patch([cells[i] for i in chosen], source[name], run)
            with torch.no_grad(), model.hooks(fwd_hooks=[(name, patch)]):
                output = _resume(model, rows, before, cells[chosen[0]].layer, prefix)
                patch.check(name)
                choices = _own_choices(run, output, rows.tokens) if recommit else None
                if choices is not None:
                    output = model(choices, before, rows.values)
            yield Patched(chosen, output, model.write(output.latents, output.update, rows.slots))


def _resume(
    model: HookedLatentTransformer, rows: EncodedRounds, latents: Tensor, layer: int | None, prefix: dict[str, Tensor]
) -> RoundOutput:
    """A round from ``layer`` on, the layers below being known."""
    if layer is None:
        return model(rows.tokens, latents, rows.values)
    resid = prefix[f"blocks.{layer}.hook_resid_pre"]
    resid = tile(resid, len(latents) // len(resid))
    for block in model.blocks[layer:]:
        resid = block(resid)
    return model.read_out(resid, latents)


def _own_choices(run: Rollout, output: RoundOutput, tokens: Tensor) -> Tensor | None:
    """The tokens with the choices now made, or None where nothing changes."""
    position = run.layout.choice_position
    if position is None or run.commit != "own":
        return None
    own = output.prediction.argmax(-1) + run.layout.token_ids["a_1"]
    if torch.equal(own, tokens[:, position]):
        return None
    tokens = tokens.clone()
    tokens[:, position] = own
    return tokens


class _Patch:
    """A hook on ``[cell * episode, ...]`` that gives each cell's rows the source at that cell's site."""

    def __init__(self, cells: Sequence[Site], source: Tensor, run: Rollout) -> None:
        self.source, self.fired, self.n_cells = source, 0, len(cells)
        self.where = [cell.index(run.layout) for cell in cells]

    def __call__(self, activation: Tensor, hook: object) -> Tensor:
        self.fired += 1
        changed = activation.clone()
        parts = changed.unflatten(0, (self.n_cells, len(self.source)))
        for i, where in enumerate(self.where):
            parts[i][where] = self.source[where].to(changed.dtype)
        return changed

    def check(self, name: str) -> None:
        require(self.fired == 1, f"the patch at {name!r} fired {self.fired} times in one round, which must be once")
