"""Run many patched copies of one round: only what a patch can change is computed again.

A *cell* is one intervention: a site whose activation is replaced by its source's. Where source and base have the same
activation, or nothing later reads it, the base's results are the cell's. The others run together as a batch
``[cell, episode]``, each from the layer of its site on; positions before the first that is patched, and those that read
nothing of it, keep the base's. The result equals patching one cell at a time to float precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import TransformerLensKeyValueCacheEntry as KeyValues

from interp.core.machine import Machine, runs_from
from interp.interventions.sites import Site, tile
from interp.model.hooked import FiringCounter, HookFunction
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.rollout import replay, run_round
from interp.model.run import Rollout
from interp.model.transformer import HookedLatentTransformer

_CHUNK_CPU, _CHUNK_ACCELERATOR = 256, 65_536
"""Rows (cell x episode) run at once: memory holds the activations of this many rounds. Small chunks hold neighbouring
sites and so skip more on a CPU; an accelerator wants few launches."""


_READ_LATER = ("resid_pre", "k", "v")
"""Components that later positions read in the layer itself; what else is patched at a position changes only its own."""


def _activations(
    model: Machine, run: Rollout, round: int, names: Sequence[str]
) -> dict[str, Tensor]:
    """Activations of one round: ``name -> [episode, ...]``."""
    _, _, cache = replay(model, run, rounds=round, names_filter=list(names))
    return {name: value[:, 0] for name, value in cache.items()}


@dataclass(frozen=True)
class _Patched:
    """What the cells with some indices gave at their round.

    Attributes:
        predictions: rows ordered cell by cell, ``[cell * episode, ...]``.
        latents: after the round, ``[cell * episode, latent, d_model]``; the base's where no update was asked for.
        idle: whether both are the base's, because these cells can change neither.
    """

    cells: list[int]
    predictions: Tensor
    latents: Tensor
    idle: bool = False


class RoundPatcher:
    """Patches one round of ``run``, the base; holds what every cell reuses.

    Args:
        source: the run that activations are taken from.
        update: whether what follows the prediction is needed: the update, and the choice that the patched model
            commits where a round holds one.
    """

    def __init__(
        self, model: Machine, run: Rollout, round: int, source: Rollout, *, update: bool
    ) -> None:
        self.model, self.run, self.round, self.source, self.update = (
            model,
            run,
            round,
            source,
            update,
        )
        self.base, self.latents = run.fed.at(round), run.latents[:, round]
        self.chunk = self.base.at_once(
            _CHUNK_CPU if run.tokens.device.type == "cpu" else _CHUNK_ACCELERATOR
        )
        self.transformer = cast(HookedLatentTransformer, model) if runs_from(model) else None
        self.end = run.layout.n_positions if update else run.layout.predict_position + 1
        if self.transformer is not None:
            self.n_layers, points = (
                self.transformer.config.n_layers,
                ("hook_resid_pre", "attn.hook_k", "attn.hook_v"),
            )
            names = [f"blocks.{i}.{point}" for i in range(self.n_layers) for point in points]
            self.known = _activations(
                model, run, round, [*names, f"blocks.{self.n_layers - 1}.hook_resid_post"]
            )

    def cells(self, cells: Sequence[Site]) -> Iterator[_Patched]:
        """Patch each cell on its own, in batches; the first batch are those that change nothing, if any."""
        layout, hooks = self.run.layout, list(dict.fromkeys(cell.hook for cell in cells))
        source, base = (
            _activations(self.model, run, self.round, hooks) for run in (self.source, self.run)
        )
        placed = [self.transformer is not None and cell.position in layout.labels for cell in cells]
        starts = [
            layout.position(str(cell.position)) if at else 0
            for cell, at in zip(cells, placed, strict=True)
        ]

        read = {
            layout.predict_position,
            layout.update_position if self.update else layout.predict_position,
        }

        def idle(cell: Site, start: int, at: bool) -> bool:
            # What acts after the last layer has read other positions does so where it is read, or not at all.
            late = at and cell.layer == self.n_layers - 1 and cell.component not in _READ_LATER
            if (at and start >= self.end) or (late and start not in read):
                return True
            return torch.equal(*(cell.read(of[cell.hook], layout) for of in (source, base)))

        same = [i for i, cell in enumerate(cells) if idle(cell, starts[i], placed[i])]
        if same:
            predictions, latents = (
                self.run.predictions[:, self.round],
                self.run.latents[:, self.round + 1],
            )
            yield _Patched(same, tile(predictions, len(same)), tile(latents, len(same)), idle=True)
        by_hook: dict[str, list[int]] = {}
        # Cells before the first layer are run from the tokens on.
        depths = [-1 if cell.layer is None else cell.layer for cell in cells]
        for i in sorted(set(range(len(cells))) - set(same), key=lambda i: (depths[i], starts[i])):
            by_hook.setdefault(cells[i].hook, []).append(i)
        for indices in _packed(list(by_hook.values()), max(1, self.chunk // len(self.latents))):
            patches = _Patches([cells[i] for i in indices], source, layout)
            if self.transformer is None or depths[indices[0]] < 0:
                yield self._whole(
                    indices, self.base.each(partial(tile, times=len(indices))), patches
                )
            else:
                yield self._chunk(self.transformer, indices, patches, [starts[i] for i in indices])

    def _chunk(
        self,
        model: HookedLatentTransformer,
        indices: list[int],
        patches: _Patches,
        starts: list[int],
    ) -> _Patched:
        """Layer by layer, from the lowest of any cell on; every cell's rows join where it is patched."""
        n, layout, read = len(indices), self.run.layout, self.run.layout.predict_position
        start = min(*starts, read)
        before, order = tile(self.latents, n), []
        with torch.no_grad():
            resid, quiet = self._resid(0, 0)[:, start : self.end], model.is_quiet()
            for layer in range(self.n_layers):
                here = [i for i, cell in enumerate(patches.cells) if cell.layer == layer]
                early = [i for i in here if quiet and patches.cells[i].component == "resid_pre"]
                if early:
                    own = self._resid(layer, len(early))[:, start : self.end]
                    own = patches.of(early).write(
                        patches.cells[early[0]].hook, (start, self.end), own
                    )
                    resid = torch.cat([resid, own])
                last = layer == self.n_layers - 1
                if len(resid):
                    n_read = self.end - read if last and quiet else None
                    past = self._past(layer, start, len(resid) // len(self.latents))
                    resid = model.run_from(resid, layer, layer + 1, past=past, n_read=n_read)
                late = [i for i in here if i not in early]
                if late:
                    after = self._after(model, layer, patches.of(late), [starts[i] for i in late])
                    resid = torch.cat([resid, after[:, self.end - resid.shape[1] : self.end]])
                order += early + late
            if not self.update:
                outcomes = model.unembed(model.ln_final(resid[:, -1:]))[:, 0]
                prediction = model.read_prediction(outcomes, layout.n_positions)
                return _Patched(
                    [indices[i] for i in order],
                    prediction,
                    tile(self.run.latents[:, self.round + 1], n),
                )
            whole = self._resid(self.n_layers, n)
            whole[:, self.end - resid.shape[1] : self.end] = resid
            output = model.read_out(whole, before)
            rows = self.base.each(partial(tile, times=n))
            tokens = rows.tokens
            if self.run.commit == "own":
                tokens = layout.commit(tokens, layout.choose(output.prediction))
            indices = [indices[i] for i in order]
            if torch.equal(tokens, rows.tokens):
                return _Patched(
                    indices, output.prediction, model.write(before, output.update, rows.slots)
                )
        return self._whole(indices, replace(rows, tokens=tokens), patches.of(order))

    def _after(
        self, model: HookedLatentTransformer, layer: int, patches: _Patches, starts: list[int]
    ) -> Float[Tensor, "row pos d_model"]:
        """The residual stream after a layer with cells: the base's, but where they can change it."""
        spreads = any(
            cell.position is None or cell.component in _READ_LATER for cell in patches.cells
        )
        start, stop = min(starts), self.end if spreads else max(starts) + 1
        n = len(patches.cells)
        with model.hooks(fwd_hooks=patches.hooks((start, stop))):
            resid = self._resid(layer, n)[:, start:stop]
            resid = model.run_from(resid, layer, layer + 1, past=self._past(layer, start, n))
        patches.counter.check()
        after = self._resid(layer + 1, n)
        after[:, start:stop] = resid
        return after

    def _resid(self, layer: int, times: int) -> Float[Tensor, "row pos d_model"]:
        """Copies of the base's residual stream before a layer, or after the last."""
        last = layer == self.n_layers
        return tile(
            self.known[f"blocks.{layer - last}.hook_resid_{'post' if last else 'pre'}"], times
        )

    def _past(self, layer: int, start: int, times: int) -> list[KeyValues] | None:
        """Copies of a layer's keys and values at the positions before ``start``."""
        names = (f"blocks.{layer}.attn.hook_{kv}" for kv in "kv")
        return (
            [KeyValues(*(tile(self.known[name][:, :start], times) for name in names))]
            if start
            else None
        )

    def _whole(self, indices: list[int], rows: EncodedRounds, patches: _Patches) -> _Patched:
        """The patched round from its tokens on, its own choice committed."""
        before = tile(self.latents, len(indices))
        commit = self.run.commit if self.update else "target"
        with torch.no_grad():
            after = run_round(
                self.model, rows, before, self.run.layout, commit, patches.hooks(None)
            )
        patches.counter.check()
        return _Patched(indices, after.prediction, after.latents)


def _packed(groups: Sequence[list[int]], size: int) -> Iterator[list[int]]:
    """``groups`` in chunks of at most ``size``: whole ones share a chunk, larger ones are cut by themselves.

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

    def __init__(
        self, cells: Sequence[Site], source: dict[str, Tensor], layout: RoundLayout
    ) -> None:
        self.cells, self.source, self.layout = cells, source, layout
        self.masks: dict[str, Tensor] = {}
        for name in dict.fromkeys(cell.hook for cell in cells):
            mask = np.zeros((len(cells), 1, *source[name].shape[1:-1], 1), dtype=bool)
            for row, cell in zip(mask, cells, strict=True):
                if cell.hook == name:
                    row[cell.index(layout)] = True
            self.masks[name] = torch.from_numpy(mask).to(source[name].device)

    def of(self, chosen: Sequence[int]) -> _Patches:
        """Those of some cells, in the order given."""
        return _Patches([self.cells[i] for i in chosen], self.source, self.layout)

    def hooks(self, window: tuple[int, int] | None) -> list[tuple[str, HookFunction]]:
        """A hook per hook point, for a pass over a ``window`` of positions (start, end), or over all."""
        self.counter = FiringCounter(
            [(name, partial(self.write, name, window)) for name in self.masks]
        )
        return self.counter.hooks

    def write(
        self, name: str, window: tuple[int, int] | None, activation: Tensor, hook: object = None
    ) -> Tensor:
        """The activation at a hook point, in a window of positions, with every cell's source in its rows."""
        source, mask = self.source[name], self.masks[name]
        axis = next(cell.kind.position_axis for cell in self.cells if cell.hook == name)
        if window is not None and axis is not None:
            start, length = window[0], window[1] - window[0]
            source, mask = source.narrow(axis, start, length), mask.narrow(axis + 1, start, length)
        # Attention over a window has fewer keys, too.
        source = source[..., : activation.shape[-1]]
        parts = activation.unflatten(0, (len(self.cells), len(source)))
        return torch.where(mask, source.to(parts.dtype), parts).flatten(0, 1)
