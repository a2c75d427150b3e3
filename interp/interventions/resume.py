"""Run many patched copies of one round: only what a patch can change is computed again.

A *cell* is one intervention: a site whose activation is replaced by its source's. Cells at one hook point run together
as a batch ``[cell, episode]``. Layers below it are not run again, because the base's residual stream there is known
(prefix reuse), and neither are positions before it, because attention is causal: their keys and values are the base's.
Where only the prediction is read, positions after it are left out, too. The result equals patching one cell at a time
to float precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformer_lens import TransformerLensKeyValueCacheEntry as KeyValues

from interp.errors import require
from interp.interventions.sites import Site
from interp.model.layout import EncodedRounds
from interp.model.rollout import Rollout, replay
from interp.model.transformer import HookedLatentTransformer

CHUNK_CPU, CHUNK_ACCELERATOR = 256, 65_536
"""Rows (cell x episode) run at once: memory holds the activations of this many rounds. Small chunks hold neighbouring
positions and so skip more on a CPU; an accelerator wants few launches."""


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
        predictions: rows ordered cell by cell, ``[cell * episode, ...]``.
        latents: the latents that the round leaves, ``[cell * episode, latent, d_model]``; the base's where the update
            was not asked for.
    """

    cells: list[int]
    predictions: Tensor
    latents: Tensor


class RoundPatcher:
    """Patches one round of ``run``; holds what every cell reuses.

    Args:
        run: the base.
        t: the round.
        source: activations of the source run at this round, by hook name.
        update: whether what follows the prediction is needed: the update, and the choice that the patched model
            commits where a round holds one.
        chunk: rows run at once; by default ``CHUNK_CPU`` or ``CHUNK_ACCELERATOR``.
    """

    def __init__(
        self,
        model: HookedLatentTransformer,
        run: Rollout,
        t: int,
        source: dict[str, Tensor],
        *,
        update: bool,
        chunk: int | None = None,
    ) -> None:
        require(chunk is None or chunk >= 1, f"chunk must be an integer >= 1, got {chunk}")
        self.model, self.run, self.t, self.source, self.update = model, run, t, source, update
        self.base, self.latents = one_round(run, t), run.latents[:, t]
        on_cpu = run.tokens.device.type == "cpu"
        self.chunk = chunk or (CHUNK_CPU if on_cpu else CHUNK_ACCELERATOR)
        layers = range(model.config.n_layers)
        points = ("hook_resid_pre", "attn.hook_k", "attn.hook_v")
        last = f"blocks.{layers[-1]}.hook_resid_post"
        self.known = activations(model, run, t, [f"blocks.{i}.{point}" for i in layers for point in points] + [last])
        self.final = self.known[last]

    def cells(self, cells: Sequence[Site]) -> Iterator[Patched]:
        """Patch each cell on its own, in batches."""
        layout = self.run.layout
        end = layout.n_positions if self.update else layout.predict_position + 1
        starts = [0 if cell.position is None else layout.position(cell.position) for cell in cells]
        beyond = [i for i, start in enumerate(starts) if start >= end]
        if beyond:
            predictions, latents = self.run.predictions[:, self.t], self.run.latents[:, self.t + 1]
            yield Patched(beyond, tile(predictions, len(beyond)), tile(latents, len(beyond)))
        per_chunk = max(1, self.chunk // len(self.latents))
        by_hook: dict[str, list[int]] = {}
        for i in sorted(set(range(len(cells))) - set(beyond), key=lambda i: starts[i]):
            by_hook.setdefault(cells[i].hook, []).append(i)
        for name, members in by_hook.items():
            for first in range(0, len(members), per_chunk):
                chosen = members[first : first + per_chunk]
                start = min(starts[chosen[0]], layout.predict_position)
                yield self._chunk(name, chosen, [cells[i] for i in chosen], start, end)

    def _chunk(self, name: str, chosen: list[int], cells: list[Site], start: int, end: int) -> Patched:
        n, layer = len(cells), cells[0].layer
        patch = _Patch(cells, self.source[name], self.run)
        with torch.no_grad(), self.model.hooks(fwd_hooks=[(name, patch)]):
            if layer is None:
                return self._whole(chosen, self.base.tokens, patch)
            patch.window = (start, end)
            resid = tile(self.known[f"blocks.{layer}.hook_resid_pre"][:, start:end], n)
            for i, block in enumerate(self.model.blocks[layer:], start=layer):
                past = [tile(self.known[f"blocks.{i}.attn.hook_{kv}"][:, :start], n) for kv in "kv"]
                resid = block(resid, KeyValues(past[0], past[1]) if start else None)
            patch.check(name)
            before = tile(self.latents, n)
            if not self.update:
                outcomes = self.model.unembed(self.model.ln_final(resid[:, -1:]))[:, 0]
                prediction = self.model.read_prediction(outcomes, before.shape[1])
                return Patched(chosen, prediction, tile(self.run.latents[:, self.t + 1], n))
            output = self.model.read_out(torch.cat([tile(self.final[:, :start], n), resid], 1), before)
            tokens = self._own_choices(output.prediction, n)
            if tokens is not None:
                return self._whole(chosen, tokens, patch)
        return Patched(chosen, output.prediction, self.model.write(before, output.update, tile(self.base.slots, n)))

    def _whole(self, chosen: list[int], tokens: Tensor, patch: _Patch) -> Patched:
        """The patched round from its tokens on, its own choice committed."""
        n, patch.window, patch.fired = len(chosen), None, 0
        before, rows = tile(self.latents, n), repeated(self.base, n)
        tokens = tokens if len(tokens) == len(before) else rows.tokens
        output = self.model(tokens, before, rows.values)
        patch.check("the whole round")
        own = self._own_choices(output.prediction, n) if self.update else None
        if own is not None and not torch.equal(own, tokens):
            output = self.model(own, before, rows.values)
        return Patched(chosen, output.prediction, self.model.write(output.latents, output.update, rows.slots))

    def _own_choices(self, prediction: Tensor, n: int) -> Tensor | None:
        """The tokens with the choices now made, or None where the base's stay."""
        layout, tokens = self.run.layout, tile(self.base.tokens, n)
        if layout.choice_position is None or self.run.commit != "own":
            return None
        own = prediction.argmax(-1) + layout.token_ids["a_1"]
        if torch.equal(own, tokens[:, layout.choice_position]):
            return None
        tokens[:, layout.choice_position] = own
        return tokens


class _Patch:
    """A hook on ``[cell * episode, ...]`` that gives each cell's rows the source at that cell's site."""

    def __init__(self, cells: Sequence[Site], source: Tensor, run: Rollout) -> None:
        self.cells, self.source, self.layout = cells, source, run.layout
        self.fired = 0
        self.window: tuple[int, int] | None = None

    def __call__(self, activation: Tensor, hook: object) -> Tensor:
        self.fired += 1
        changed = activation.clone()
        parts = changed.unflatten(0, (len(self.cells), len(self.source)))
        for part, cell in zip(parts, self.cells, strict=True):
            source, target = self._window(cell)
            part[target] = self.source[source].to(changed.dtype)
        return changed

    def _window(self, cell: Site) -> tuple[tuple[slice | int, ...], tuple[slice | int, ...]]:
        """The cell's index in the whole activation, and in the window of positions that is run."""
        whole = cell.index(self.layout)
        if self.window is None or cell.kind.axes == "latent":
            return whole, whole
        start, end = self.window
        axis = 2 if cell.kind.axes == "head pos" else 1
        at = whole[axis]
        source, target = list(whole), list(whole)
        source[axis] = slice(start, end) if isinstance(at, slice) else at
        target[axis] = slice(None) if isinstance(at, slice) else at - start
        if cell.component in ("scores", "pattern"):
            source.append(slice(0, end))
        return tuple(source), tuple(target)

    def check(self, name: str) -> None:
        require(self.fired == 1, f"the patch at {name!r} fired {self.fired} times in one round, which must be once")
