"""Every edge of a round cut on its own, many at a time.

With one edge cut nothing changes before its destination, so what the destination reads changes by a known vector:
the ablated value of what the source writes, minus what it wrote. Many edges are run as one batch ``[edge, episode]``;
the result is that of :meth:`interp.interventions.edge_graph.EdgeGraph.run` with one edge cut, to float precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from interp.interventions.edge_graph import EdgeGraph
from interp.interventions.pairs import Readout
from interp.interventions.sites import tile
from interp.model.hooked import HookFunction
from interp.model.layout import EncodedRounds

_ROWS = 512
"""Rows (edge x episode) that are run at once."""
_Edge = tuple[int, int]


def cut_each(
    graph: EdgeGraph,
    rounds: EncodedRounds,
    latents: Float[Tensor, "episode latent d_model"],
    change: Float[Tensor, "source episode pos d_model"],
    edges: Sequence[_Edge],
) -> Readout:
    """What a round gives with each of ``edges`` cut on its own: a readout with cells ``[edge, episode]``.

    Args:
        change: what replaces a source's contribution, minus the contribution.
        edges: (source, destination) indices of the graph.
    """
    size = max(1, _ROWS // len(latents))
    order = sorted(range(len(edges)), key=lambda i: edges[i][1])
    predictions: list[Tensor] = [latents] * len(edges)
    after: list[Tensor] = [latents] * len(edges)
    for start in range(0, len(order), size):
        part = order[start : start + size]
        cuts = _Cuts(graph, [edges[i] for i in part], change)
        with torch.no_grad():
            out = graph.forward(rounds.each(partial(tile, times=len(part))), tile(latents, len(part)), cuts.hooks())
        outputs = [x.unflatten(0, (len(part), len(latents))) for x in out]
        for row, i in enumerate(part):
            predictions[i], after[i] = outputs[0][row], outputs[1][row]
    return Readout(torch.stack(predictions).unsqueeze(2), torch.stack(after))


@dataclass(frozen=True)
class _Cuts:
    """Hooks that cut one edge in each cell of a batch."""

    graph: EdgeGraph
    edges: Sequence[_Edge]
    change: Tensor

    @property
    def end(self) -> str:
        """Where heads are told: at queries, keys and values, which are linear in what is read but for normalisation,
        or at what is read, which takes a copy for every head of every layer."""
        return "" if self.graph.model.config.normalization_type is None else "_input"

    def hooks(self) -> list[tuple[str, HookFunction]]:
        """One for each activation that some destination reads."""
        places: dict[str, list[tuple[int, int, int]]] = {}  # hook -> cell, source, head (or which exit)
        last = f"blocks.{self.graph.model.config.n_layers - 1}.hook_resid_post"
        for cell, (source, destination) in enumerate(self.edges):
            name = self.graph.destinations[destination]
            if name in ("prediction", "update"):
                places.setdefault(last, []).append((cell, source, int(name == "update")))
            elif name.startswith("mlp "):
                places.setdefault(f"blocks.{name[4:]}.hook_mlp_in", []).append((cell, source, 0))
            else:
                layer, head, port = name.split(".")
                hook = f"blocks.{layer}.attn.hook_{port}{self.end}"
                places.setdefault(hook, []).append((cell, source, int(head)))
        return [(name, self._at(name, torch.tensor(several).T)) for name, several in places.items()]

    def _at(self, name: str, where: Tensor) -> HookFunction:
        cells, sources, which = where
        changes = self.change[sources]
        if ".attn." in name and not self.end:
            block = self.graph.model.blocks[int(name.split(".")[1])]
            changes = einsum(changes, getattr(block.attn, f"W_{name[-1].upper()}")[which], "c e p d, c d h -> c e p h")

        def cut(activation: Tensor, hook: object) -> Tensor:
            cut_rows = activation.unflatten(0, (len(self.edges), -1)).clone()
            if ".attn." in name:
                cut_rows[cells, :, :, which] += changes
            elif name.endswith("hook_mlp_in"):
                cut_rows[cells] += changes
            else:  # The update is read at the last position, the prediction before it.
                last = which.to(torch.bool)
                cut_rows[cells[last], :, -1] += changes[last, :, -1]
                cut_rows[cells[~last], :, :-1] += changes[~last, :, :-1]
            return cut_rows.flatten(0, 1)

        return cut
