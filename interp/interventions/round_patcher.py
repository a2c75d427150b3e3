"""Run many patches of one round, and compute only what each patch can change.

A *cell* is one patch: the activation at a site is replaced by that of the source run. If source and
base run have the same activation there, or no later component reads it, the cell's results are the
base's. The other cells run together as a batch ``[cell, episode]``, each from the layer of its site
on. Positions that a patch cannot affect keep the base's activations. The result equals that of one
patch at a time, up to float precision.
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

from interp.core.machine import Machine, can_resume_rounds
from interp.interventions.sites import Site, mark_absent, tile
from interp.model.hooked import FiringCounter, HookFunction
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.rollout import replay, run_round, runs_without_hooks
from interp.model.run import Rollout
from interp.model.transformer import HookedLatentTransformer

_CHUNK_CPU, _CHUNK_ACCELERATOR = 256, 65_536
"""Maximum number of rows (pairs of cell and episode) that are run at once. Small batches contain
neighbouring sites, so that more work can be skipped on a CPU; accelerators prefer large batches."""


_READ_BY_LATER_POSITIONS = ("resid_pre", "k", "v")
"""Components that later positions read in the same layer; other patches affect only their position."""


def _replay_activations(
    model: Machine, run: Rollout, round: int, names: Sequence[str]
) -> dict[str, Tensor]:
    """Run one round of a rollout again, and return activations: name of a hook -> ``[episode,
    ...]``.

    Args:
        model: the model.
        run: the model's rollout, which is replayed.
        round: index of the round.
        names: names of the hooks.
    """
    _, _, cache = replay(model, run, rounds=round, names_filter=list(names))
    return {name: value[:, 0] for name, value in cache.items()}


@dataclass(frozen=True)
class _Patched:
    """Results of some cells of a :class:`RoundPatcher`; a cell is one patch, at one site.

    Attributes:
        cells: indices of the cells, in the list that :meth:`RoundPatcher.run_cells` takes.
        predictions: predictions of the patched round, ``[cell * episode, ...]``, ordered by cell.
        latents: carried state after the patched round, ``[cell * episode, latent, d_model]``,
            ordered by cell. Not to be read if the patcher has ``update=False``.
        is_unchanged: True if these cells cannot change the results, which are then those of the
            unpatched run.
    """

    cells: list[int]
    predictions: Tensor
    latents: Tensor
    is_unchanged: bool = False


class RoundPatcher:
    """Patches sites in one round of a rollout, each separately: the activation at the site is
    replaced by that of another rollout. The activations of the unpatched round, which all patches
    need, are computed once.

    Args:
        model: the model.
        run: the rollout to patch.
        round: index of the round.
        source: the rollout that activations are taken from.
        update: False skips what follows the prediction, to save time: the update of the state, and
            the model's choice in rounds that contain one.
    """

    def __init__(
        self, model: Machine, run: Rollout, round: int, source: Rollout, *, update: bool
    ) -> None:
        """Choose how patches are run, and run the unpatched round once if they start at layers."""
        self.model = model
        self.run = run
        self.round = round
        self.source = source
        self.update = update
        self.fed, self.latents = run.fed.take_round(round), run.latents[:, round]
        is_on_cpu = run.tokens.device.type == "cpu"
        self.max_rows = self.fed.choose_batch_size(_CHUNK_CPU if is_on_cpu else _CHUNK_ACCELERATOR)
        layout = run.layout
        # Number of positions that are run: without an update, nothing after the prediction is read.
        self.n_positions = layout.n_positions if update else layout.predict_position + 1
        # If the user attached hooks to the model, whole rounds are run: a hook may act at a position
        # that would be left out.
        can_run_layers = can_resume_rounds(model) and runs_without_hooks(model)
        self.transformer = cast(HookedLatentTransformer, model) if can_run_layers else None
        if self.transformer is not None:
            n_layers = self.transformer.config.n_layers
            self.n_layers = n_layers
            # Patched rows start from the stream before their layer, and read the keys and values of
            # earlier positions.
            names = [f"blocks.{n_layers - 1}.hook_resid_post"]
            for layer in range(n_layers):
                for point in ("hook_resid_pre", "attn.hook_k", "attn.hook_v"):
                    names.append(f"blocks.{layer}.{point}")
            self.unpatched = _replay_activations(model, run, round, names)

    def run_cells(self, cells: Sequence[Site]) -> Iterator[_Patched]:
        """Patch each site separately, and yield results in batches. Patches that cannot have an
        effect, if any, come first, in one batch.

        Args:
            cells: the sites to patch; a cell is one patch, at one site.

        Yields:
            Results of one batch of patches. ``cells`` has their indices in the argument ``cells``.
            ``predictions`` are those of the patched round, ``[cell * episode, ...]``. ``latents``
            is the carried state after this round, ``[cell * episode, latent, d_model]``.
        """
        run, round, model, layout = self.run, self.round, self.model, self.run.layout
        hooks = list(dict.fromkeys(cell.hook for cell in cells))
        source = _replay_activations(model, self.source, round, hooks)
        base = _replay_activations(model, run, round, hooks)
        starts = [self._find_start(cell) for cell in cells]
        # Cells before the first layer are run from the tokens on.
        layers = [-1 if cell.layer is None else cell.layer for cell in cells]
        without_effect: list[int] = []
        by_hook: dict[str, list[int]] = {}  # hook -> indices of its cells, in order of computation
        for i in sorted(range(len(cells)), key=lambda i: (layers[i], starts[i])):
            cell = cells[i]
            hook = cell.hook
            is_equal = torch.equal(cell.read(source[hook], layout), cell.read(base[hook], layout))
            if is_equal or self._is_unread(cell):
                without_effect.append(i)
            else:
                by_hook.setdefault(hook, []).append(i)
        if without_effect:
            n = len(without_effect)
            yield _Patched(
                sorted(without_effect),
                predictions=tile(run.predictions[:, round], n),
                latents=tile(run.latents[:, round + 1], n),  # the state after the round
                is_unchanged=True,
            )
        n_episodes = len(self.latents)
        cells_per_chunk = max(1, self.max_rows // n_episodes)
        # Cells at the same hook, or at hooks next to each other, run together.
        for indices in _pack_groups(list(by_hook.values()), cells_per_chunk):
            patches = _Patches([cells[i] for i in indices], source, layout)
            # Sorted by layer: if the first cell has a layer, all cells of the chunk have one.
            if self.transformer is None or layers[indices[0]] < 0:
                rows = self.fed.map_tensors(partial(tile, times=len(indices)))
                yield self._run_from_tokens(indices, rows, patches)
            else:
                yield self._run_from_layers(
                    self.transformer, indices, patches, [starts[i] for i in indices]
                )

    def _has_position(self, cell: Site) -> bool:
        """Return whether a site is at a single position of a transformer, not at all positions
        together.
        """
        return self.transformer is not None and cell.position in self.run.layout.labels

    def _find_start(self, cell: Site) -> int:
        """Return the index of the first position that a patch changes: that of the site, or 0 if
        the site is all positions together.
        """
        if not self._has_position(cell):
            return 0
        return self.run.layout.position(str(cell.position))

    def _is_unread(self, cell: Site) -> bool:
        """Return whether a patch of the site cannot affect any output that is read: the prediction
        and, if it is computed, the update.
        """
        if not self._has_position(cell):
            return False
        layout, position = self.run.layout, self._find_start(cell)
        if position >= self.n_positions:  # after all outputs that are read
            return True
        # After the attention of the last layer, a position affects only the output read at it.
        is_after_attention = (
            cell.layer == self.n_layers - 1 and cell.component not in _READ_BY_LATER_POSITIONS
        )
        read_positions = [layout.predict_position]
        if self.update:
            read_positions.append(layout.update_position)
        return is_after_attention and position not in read_positions

    def _run_from_layers(
        self,
        model: HookedLatentTransformer,
        indices: list[int],
        patches: _Patches,
        starts: list[int],
    ) -> _Patched:
        """Run many patched copies ("cells") of the round together, layer by layer. The rows of a
        cell join the batch at the layer of its patch.

        Args:
            model: the transformer.
            indices: indices of the cells.
            patches: the patched sites with their source activations.
            starts: first position that each cell changes.

        Returns:
            The results, in the order in which cells joined the batch.
        """
        n, layout = len(indices), self.run.layout
        with torch.no_grad():
            resid, order = self._run_layers(model, patches, starts)
            ordered = [indices[i] for i in order]
            if not self.update:
                # Without the update, the prediction's position is the last that was run.
                outcomes = model.unembed(model.ln_final(resid[:, -1:]))[:, 0]
                prediction = model.read_prediction(outcomes, layout.n_positions)
                latents = tile(self.run.latents[:, self.round + 1], n)
                return _Patched(ordered, prediction, latents)
            before = tile(self.latents, n)
            whole = self._copy_resid(self.n_layers, n)
            # ``resid`` has the last positions before the end, with all that are read; the unpatched
            # values before them only fill the shape.
            whole[:, self.n_positions - resid.shape[1] : self.n_positions] = resid
            output = model.read_out(whole, before)
            rows = self.fed.map_tensors(partial(tile, times=n))
            tokens = rows.tokens
            if self.run.commit == "own":
                tokens = layout.put_choice(tokens, layout.choose(output.prediction))
            if torch.equal(tokens, rows.tokens):
                latents = model.write(before, output.update, rows.slots)
                return _Patched(ordered, output.prediction, latents)
        # A patch changed the model's own choice, which is among the tokens: run the round with it.
        return self._run_from_tokens(ordered, replace(rows, tokens=tokens), patches.of(order))

    def _run_layers(
        self, model: HookedLatentTransformer, patches: _Patches, starts: list[int]
    ) -> tuple[Float[Tensor, "row pos d_model"], list[int]]:
        """Run all layers in a batch of patched copies ("cells") of the round. The rows of a cell
        join the batch at the layer of its patch.

        Args:
            model: the transformer.
            patches: the patched sites with their source activations.
            starts: first position that each cell changes.

        Returns:
            The residual stream after the last layer, ``[cell * episode, pos, d_model]``, and the
            order in which cells joined the batch, as indices in ``patches``. The axis ``pos`` has
            the last positions that are run, at least from the prediction's position on.
        """
        cells, end = patches.cells, self.n_positions
        predict_position = self.run.layout.predict_position
        start = min(*starts, predict_position)
        window = (start, end)  # positions that any patch may change, or that are read
        n_episodes = len(self.latents)
        order: list[int] = []
        no_cells = self._copy_resid(layer=0, times=0)
        resid = no_cells[:, start:end]  # [cell * episode, position, d_model]
        for layer in range(self.n_layers):
            joining = [i for i, cell in enumerate(cells) if cell.layer == layer]
            # Cells that patch the layer's input join before it, the others after it.
            early = [i for i in joining if cells[i].component == "resid_pre"]
            if early:
                unpatched = self._copy_resid(layer, len(early))[:, start:end]
                patched = patches.of(early).write(cells[early[0]].hook, window, unpatched)
                resid = torch.cat([resid, patched])
            if len(resid):
                is_last = layer == self.n_layers - 1
                # No later layer reads the positions before the prediction's.
                n_read = end - predict_position if is_last else None
                past = self._copy_past(layer, start, len(resid) // n_episodes)
                resid = model.run_from(resid, layer, layer + 1, past=past, n_read=n_read)
            late = [i for i in joining if i not in early]
            if late:
                after = self._run_patched_layer(
                    model, layer, patches.of(late), [starts[i] for i in late]
                )
                # `resid` has fewer positions than the window after the last layer, if that ran above.
                first = end - resid.shape[1]
                resid = torch.cat([resid, after[:, first:end]])
            order += early + late
        return resid, order

    def _run_patched_layer(
        self, model: HookedLatentTransformer, layer: int, patches: _Patches, starts: list[int]
    ) -> Float[Tensor, "row pos d_model"]:
        """Return the residual stream after a layer in which sites are patched, one in each patched
        copy ("cell") of the round. Positions that a patch cannot change keep the unpatched values.

        Args:
            model: the transformer.
            layer: index of the layer.
            patches: the patched sites with their source activations.
            starts: first position that each patch changes.

        Returns:
            The stream of every patched copy, one after another along the first axis.
        """
        cells, start = patches.cells, min(starts)  # a cell is given by its patched site
        # Within one layer, a patch reaches later positions only through keys and values.
        reaches_later = any(
            cell.position is None or cell.component in _READ_BY_LATER_POSITIONS for cell in cells
        )
        stop = self.n_positions if reaches_later else max(starts) + 1
        n = len(cells)
        with model.hooks(fwd_hooks=patches.hooks(window=(start, stop))):
            resid = self._copy_resid(layer, n)[:, start:stop]
            resid = model.run_from(resid, layer, layer + 1, past=self._copy_past(layer, start, n))
        patches.counter.require_all_fired()
        after = self._copy_resid(layer + 1, n)
        after[:, start:stop] = resid
        return after

    def _copy_resid(self, layer: int, times: int) -> Float[Tensor, "row pos d_model"]:
        """Return copies of the unpatched residual stream before a layer, or after the last layer.

        Args:
            layer: index of the layer; the number of layers means after the last.
            times: number of copies.
        """
        name = f"blocks.{layer}.hook_resid_pre"
        if layer == self.n_layers:
            name = f"blocks.{layer - 1}.hook_resid_post"
        return tile(self.unpatched[name], times)

    def _copy_past(self, layer: int, start: int, times: int) -> list[KeyValues] | None:
        """Return copies of a layer's unpatched keys and values at the positions before ``start``;
        None if there are none.

        Args:
            layer: index of the layer.
            start: index of a position.
            times: number of copies.
        """
        if start == 0:
            return None
        keys = self.unpatched[f"blocks.{layer}.attn.hook_k"][:, :start]
        values = self.unpatched[f"blocks.{layer}.attn.hook_v"][:, :start]
        return [KeyValues(tile(keys, times), tile(values, times))]

    def _run_from_tokens(
        self, indices: list[int], rows: EncodedRounds, patches: _Patches
    ) -> _Patched:
        """Run patched copies ("cells") of the round from its tokens on, including the model's
        choice if the round contains one.

        Args:
            indices: indices of the cells.
            rows: input of the round, for every cell.
            patches: the patched sites with their source activations.
        """
        before = tile(self.latents, len(indices))
        # With commit "own", the round is run twice: the model's choice is written into its tokens for
        # the update. Where no update is computed, "target" saves the second run.
        commit = self.run.commit if self.update else "target"
        with torch.no_grad():
            # All positions are run, so the hooks get no window of positions.
            after = run_round(
                self.model, rows, before, self.run.layout, commit, patches.hooks(window=None)
            )
        patches.counter.require_all_fired()
        return _Patched(indices, after.prediction, after.latents)


def _pack_groups(groups: Sequence[list[int]], size: int) -> Iterator[list[int]]:
    """Combine groups of indices into chunks of at most ``size``. Whole groups share a chunk; larger
    groups are divided.

    >>> list(_pack_groups([[0, 1], [2, 3], [4, 5, 6, 7, 8], [9]], 4))
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
    """Hooks for a batch of patched copies of a round, ``[cell * episode, ...]``. A *cell* is one
    patch, at one site; it has a copy of the round in every episode.

    Args:
        cells: the site of each cell.
        source: name of a hook -> activation of the source run.
        layout: token layout of the round.
    """

    def __init__(
        self, cells: Sequence[Site], source: dict[str, Tensor], layout: RoundLayout
    ) -> None:
        self.cells, self.source, self.layout = cells, source, layout
        self.masks: dict[str, Tensor] = {}
        for name in dict.fromkeys(cell.hook for cell in cells):
            axes = source[name].shape[1:-1]  # such as (position, head)
            # [cell, episode, ...], equal for all episodes and all numbers of a vector
            mask = np.zeros((len(cells), 1, *axes, 1), dtype=bool)
            for mask_of_cell, cell in zip(mask, cells, strict=True):
                if cell.hook == name:
                    mask_of_cell[cell.index(layout)] = True  # the mask's view is changed in place
            self.masks[name] = torch.from_numpy(mask).to(source[name].device)

    def of(self, chosen: Sequence[int]) -> _Patches:
        """Return the patches of the cells with some indices, in the order of ``chosen``."""
        return _Patches([self.cells[i] for i in chosen], self.source, self.layout)

    def hooks(self, window: tuple[int, int] | None) -> list[tuple[str, HookFunction]]:
        """Return one hook for each hook point with a patched site. :attr:`counter` counts the calls
        of each hook.

        Args:
            window: the positions that the forward pass runs, as (start, end); None for all.
        """
        hooks = [(name, partial(self.write, name, window)) for name in self.masks]
        self.counter = FiringCounter(hooks)
        return self.counter.hooks

    def write(
        self, name: str, window: tuple[int, int] | None, activation: Tensor, hook: object = None
    ) -> Tensor:
        """Return the activation at a hook point, in which the rows of each cell have the source's
        activation at the cell's site.

        Args:
            name: name of the hook.
            window: first position, and end, of the positions that are run; None for all.
            activation: activation of all cells' rows, ``[cell * episode, ...]``.
            hook: the hook point; not used.
        """
        source, mask = self.source[name], self.masks[name]
        axis = next(cell.kind.position_axis for cell in self.cells if cell.hook == name)
        if window is not None and axis is not None:
            start, end = window
            length = end - start
            source = source.narrow(axis, start, length)
            mask = mask.narrow(axis + 1, start, length)  # the mask's first axis is the cell
        # Attention over a window has fewer keys, too: the last axis of patterns and scores.
        source = source[..., : activation.shape[-1]]
        by_cell = activation.unflatten(0, (len(self.cells), len(source)))  # [cell, episode, ...]
        # A looped model runs a variable number of iterations, and activations of those that it did
        # not run are NaN. Where both runs lack one, infinity is written: NaN would look like no edit.
        new = mark_absent(source.to(by_cell.dtype), by_cell)
        return torch.where(mask, new, by_cell).flatten(0, 1)
