"""Run many patched copies of one round: only what a patch can change is computed again.

A *cell* is one intervention: a site whose activation is replaced by its source's. Many cells run together as a batch
``[cell, episode]``. Layers below the lowest of them are not run again, because the base's residual stream there is
known (prefix reuse), and neither are positions before the first, because attention is causal: their keys and values
are the base's. Where only the prediction is read, positions after it are left out, too. The result equals patching one
cell at a time to float precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformer_lens import TransformerLensKeyValueCacheEntry as KeyValues

from interp.errors import require
from interp.interventions.sites import Site
from interp.interventions.swaps import tile
from interp.machine import Machine
from interp.model.hooked import FiringCounter, HookFunction
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.replay import replay
from interp.model.rollout import Step, run_round
from interp.model.run import Rollout
from interp.model.transformer import HookedLatentTransformer

CHUNK_CPU, CHUNK_ACCELERATOR = 256, 65_536
"""Rows (cell x episode) run at once: memory holds the activations of this many rounds. Small chunks hold neighbouring
sites and so skip more on a CPU; an accelerator wants few launches."""


def next_round(model: Machine, run: Rollout, t: int, latents: Tensor, times: int) -> Step:
    """Round ``t`` of ``run``, from the latents of ``times`` copies of its episodes that were intervened on before."""
    with torch.no_grad():
        return run_round(model, run.fed.at(t).each(partial(tile, times=times)), latents, run.layout, run.commit, ())


def activations(model: Machine, run: Rollout, t: int, names: Sequence[str]) -> dict[str, Tensor]:
    """Activations of round ``t``: ``name -> [episode, ...]``."""
    _, _, cache = replay(model, run, rounds=t, names_filter=list(names))
    return {name: value[:, 0] for name, value in cache.items()}


@dataclass(frozen=True)
class Patched:
    """What the cells with some indices gave at their round.

    Attributes:
        predictions: rows ordered cell by cell, ``[cell * episode, ...]``.
        latents: after the round, ``[cell * episode, latent, d_model]``; the base's where no update was asked for.
    """

    cells: list[int]
    predictions: Tensor
    latents: Tensor


class RoundPatcher:
    """Patches round ``t`` of ``run``, the base; holds what every cell reuses.

    Args:
        source: the run that activations are taken from.
        update: whether what follows the prediction is needed: the update, and the choice that the patched model
            commits where a round holds one.
        chunk: rows run at once; by default ``CHUNK_CPU`` or ``CHUNK_ACCELERATOR``.
    """

    def __init__(
        self,
        model: Machine,
        run: Rollout,
        t: int,
        source: Rollout,
        *,
        update: bool,
        chunk: int | None = None,
    ) -> None:
        require(chunk is None or chunk >= 1, f"chunk must be an integer >= 1, got {chunk}")
        self.model, self.run, self.t, self.source, self.update = model, run, t, source, update
        self.base, self.latents = run.fed.at(t), run.latents[:, t]
        on_cpu = run.tokens.device.type == "cpu"
        self.chunk = chunk or (CHUNK_CPU if on_cpu else CHUNK_ACCELERATOR)
        self.transformer = model if isinstance(model, HookedLatentTransformer) else None
        self.known: dict[str, Tensor] = {}
        if self.transformer is not None:
            self.n_layers, points = self.transformer.config.n_layers, ("hook_resid_pre", "attn.hook_k", "attn.hook_v")
            self.last = f"blocks.{self.n_layers - 1}.hook_resid_post"
            names = [f"blocks.{i}.{point}" for i in range(self.n_layers) for point in points]
            self.known = activations(model, run, t, [*names, self.last])

    def cells(self, cells: Sequence[Site]) -> Iterator[Patched]:
        """Patch each cell on its own, in batches."""
        layout, hooks = self.run.layout, list(dict.fromkeys(cell.hook for cell in cells))
        source = activations(self.model, self.source, self.t, hooks)
        end = layout.n_positions if self.update else layout.predict_position + 1
        placed = [self.transformer is not None and cell.position in layout.labels for cell in cells]
        starts = [layout.position(str(cell.position)) if at else 0 for cell, at in zip(cells, placed, strict=True)]
        beyond = [i for i, start in enumerate(starts) if start >= end]
        if beyond:
            predictions, latents = self.run.predictions[:, self.t], self.run.latents[:, self.t + 1]
            yield Patched(beyond, tile(predictions, len(beyond)), tile(latents, len(beyond)))
        by_hook: dict[str, list[int]] = {}
        # Cells are run from the lowest layer of any on; those before the first layer from the tokens on.
        depths = [-1 if cell.layer is None else cell.layer for cell in cells]
        for i in sorted(set(range(len(cells))) - set(beyond), key=lambda i: (depths[i], starts[i])):
            by_hook.setdefault(cells[i].hook, []).append(i)
        for indices in _packed(list(by_hook.values()), max(1, self.chunk // len(self.latents))):
            start = min(starts[i] for i in indices)
            patches = _Patches([cells[i] for i in indices], source, layout)
            yield self._chunk(indices, patches, cells[indices[0]].layer, min(start, layout.predict_position), end)

    def _chunk(self, indices: list[int], patches: _Patches, layer: int | None, start: int, end: int) -> Patched:
        n, layout = len(indices), self.run.layout
        rows, before = self.base.each(partial(tile, times=n)), tile(self.latents, n)
        model = self.transformer
        if layer is None or model is None:
            return self._whole(indices, rows, before, patches)
        with torch.no_grad(), model.hooks(fwd_hooks=patches.hooks((start, end))):
            resid = tile(self.known[f"blocks.{layer}.hook_resid_pre"][:, start:end], n)
            names = (f"blocks.{i}.attn.hook_" for i in range(layer, self.n_layers))
            past = (KeyValues(*(tile(self.known[name + kv][:, :start], n) for kv in "kv")) for name in names)
            resid = model.run_from(resid, layer, past=past if start else None)
            patches.counter.check()
            if not self.update:
                outcomes = model.unembed(model.ln_final(resid[:, -1:]))[:, 0]
                prediction = model.read_prediction(outcomes, layout.n_positions)
                return Patched(indices, prediction, tile(self.run.latents[:, self.t + 1], n))
            output = model.read_out(torch.cat([tile(self.known[self.last][:, :start], n), resid], 1), before)
            tokens = rows.tokens
            if self.run.commit == "own":
                tokens = layout.commit(tokens, layout.choose(output.prediction))
            if torch.equal(tokens, rows.tokens):
                return Patched(indices, output.prediction, model.write(before, output.update, rows.slots))
        return self._whole(indices, replace(rows, tokens=tokens), before, patches)

    def _whole(self, indices: list[int], rows: EncodedRounds, before: Tensor, patches: _Patches) -> Patched:
        """The patched round from its tokens on, its own choice committed."""
        commit = self.run.commit if self.update else "target"
        with torch.no_grad():
            after = run_round(self.model, rows, before, self.run.layout, commit, patches.hooks(None))
        patches.counter.check()
        return Patched(indices, after.prediction, after.latents)


def _packed(groups: Sequence[list[int]], size: int) -> Iterator[list[int]]:
    """``groups`` in chunks of at most ``size``: whole ones share a chunk, larger ones are cut by themselves.

    A chunk runs from its first group's layer on, so sharing saves launches and costs work; small chunks do not share.

    >>> list(_packed([[0, 1], [2, 3], [4, 5, 6, 7, 8], [9]], 4))
    [[0, 1, 2, 3], [4, 5, 6, 7], [8], [9]]
    """
    chunk: list[int] = []
    for group in groups:
        if len(chunk) + len(group) > size and chunk:
            yield chunk
            chunk = []
        if len(group) > size:
            yield from (group[first : first + size] for first in range(0, len(group), size))
        else:
            chunk = chunk + group
    if chunk:
        yield chunk


class _Patches:
    """Hooks on ``[cell * episode, ...]`` that give each cell's rows the source at that cell's site."""

    def __init__(self, cells: Sequence[Site], source: dict[str, Tensor], layout: RoundLayout) -> None:
        self.n_cells = len(cells)
        self.sources = {cell.hook: source[cell.hook] for cell in cells}
        self.masks: dict[str, Tensor] = {}
        self.position_axes = {cell.hook: cell.kind.position_axis for cell in cells}
        for name, values in self.sources.items():
            mask = np.zeros((len(cells), 1, *values.shape[1:-1], 1), dtype=bool)
            for row, cell in zip(mask, cells, strict=True):
                if cell.hook == name:
                    row[cell.index(layout)] = True
            self.masks[name] = torch.from_numpy(mask).to(values.device)

    def hooks(self, window: tuple[int, int] | None) -> list[tuple[str, HookFunction]]:
        """A hook per hook point, for a pass over a ``window`` of positions (start, end), or over all."""
        self.counter = FiringCounter([(name, partial(self._write, name, window)) for name in self.sources])
        return self.counter.hooks

    def _write(self, name: str, window: tuple[int, int] | None, activation: Tensor, hook: object) -> Tensor:
        source, mask, axis = self.sources[name], self.masks[name], self.position_axes[name]
        if window is not None and axis is not None:
            start, length = window[0], window[1] - window[0]
            source, mask = source.narrow(axis, start, length), mask.narrow(axis + 1, start, length)
        # Attention over a window has fewer keys, too.
        source = source[..., : activation.shape[-1]]
        parts = activation.unflatten(0, (self.n_cells, len(source)))
        return torch.where(mask, source.to(parts.dtype), parts).flatten(0, 1)
