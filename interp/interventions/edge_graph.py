"""A round as a graph of edges: who writes to the residual stream, who reads it, and a forward pass with edges cut.

Sources: the embedding (tokens, payloads, latents, positions), every head, every MLP. Destinations: the query, key and
value inputs of every head, every MLP's input, and the two exits of a round, "prediction" and "update". The residual
stream is a sum, so each destination's input is exactly ``sum_s contribution(s)`` over earlier sources (plus biases);
cut edges contribute their *ablated* value instead::

    input(d) = sum_s  keep[s, d] now(s) + (1 - keep[s, d]) ablated(s)

``keep`` is one for the whole batch, over all positions. Ablated contributions come from the other run of a pair
("resample"), from a mean over episodes ("mean"), or are zero. What a model with additive latents carries from round to
round beside its update is no edge of a round: cutting every edge to "update" leaves the base's old latents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from interp.checks import array_of, checked
from interp.display import lacks
from interp.errors import InputError, require, require_known
from interp.machine import Machine, runs_from
from interp.model.hooked import FiringCounter, HookFunction
from interp.model.layout import EncodedRounds
from interp.model.run import Rollout, select_rounds
from interp.model.transformer import HookedLatentTransformer

Ablation = Literal["resample", "mean", "zero"]
EXITS = ("prediction", "update")


def with_heads(model: Machine, what: str) -> HookedLatentTransformer:
    """The model, where its heads read and write a residual stream; else an error says what ``what`` lacks there."""
    if runs_from(model):
        return cast(HookedLatentTransformer, model)
    missing = lacks(model, "pattern") or f"not applicable: {model.name} does not say what its heads read and write"
    raise InputError(
        f"{missing}, and {what} are of heads; use interp.interventions.mediation.effect_map(model, base, source, "
        "'latent'), the share of an effect that each of its points passes on, or patching.sweep"
    )


@checked
class EdgeGraph:
    """The edges of a model's round, whose sources and destinations are in the order computed.

    Attributes:
        sources: "embed", "0.0", ..., "mlp 0", ...
        destinations: "0.0.q", ..., "mlp 0", "prediction", "update".
        exists: is the source before the destination, ``[source, destination]``.
    """

    def __init__(self, model: Machine) -> None:
        self.model = with_heads(model, "edges")
        config = self.model.config
        # Name -> time: what a source writes at a time can be read by destinations at this time or later.
        sources, destinations = {"embed": 0}, dict[str, int]()
        # Hook point -> who writes there, or reads.
        self.writers, self.readers = {"blocks.0.hook_resid_pre": ["embed"]}, dict[str, list[str]]()
        for layer in range(config.n_layers):
            block, heads, mlp = f"blocks.{layer}", [f"{layer}.{head}" for head in range(config.n_heads)], f"mlp {layer}"
            for port in "qkv":
                self.readers[f"{block}.attn.hook_{port}_input"] = ports = [f"{head}.{port}" for head in heads]
                destinations |= dict.fromkeys(ports, 2 * layer)
            self.writers[f"{block}.attn.hook_result"] = heads
            sources |= dict.fromkeys(heads, 2 * layer + 1)
            if config.d_mlp:
                self.readers[f"{block}.hook_mlp_in"] = self.writers[f"{block}.hook_mlp_out"] = [mlp]
                destinations[mlp], sources[mlp] = 2 * layer + 1, 2 * layer + 2
        destinations |= dict.fromkeys(EXITS, 2 * config.n_layers)
        self.sources, self.destinations = list(sources), list(destinations)
        written, read = (np.array(list(times.values())) for times in (sources, destinations))
        self.exists: NDArray[np.bool_] = written[:, None] <= read

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """(source, destination) indices of every edge, sources first."""
        return [(int(s), int(d)) for s, d in zip(*np.nonzero(self.exists), strict=True)]

    def name(self, edge: tuple[int, int]) -> str:
        """``source -> destination`` of an edge, given as two indices."""
        return f"{self.sources[edge[0]]} -> {self.destinations[edge[1]]}"

    def edge(self, source: str, destination: str) -> tuple[int, int]:
        """The edge between two names."""
        for kind, name, valid in (("source", source, self.sources), ("destination", destination, self.destinations)):
            require_known(kind, name, valid, limit=40)
        edge = self.sources.index(source), self.destinations.index(destination)
        later = [d for d, there in zip(self.destinations, self.exists[edge[0]], strict=True) if there]
        require_known(f"destination of {source!r}", destination, later, limit=40)
        return edge

    def mask(self, edges: Sequence[tuple[int, int]] | None = None) -> Bool[np.ndarray, "source destination"]:
        """Keep exactly ``edges``; all of them when None."""
        keep = np.full_like(self.exists, edges is None)
        for edge in edges or ():
            there = all(0 <= i < n for i, n in zip(edge, keep.shape, strict=True))
            sizes = "{} sources and {} destinations".format(*keep.shape)
            require(there, f"edge {tuple(edge)} is none of {sizes}; give (source, destination), as graph.edge(a, b)")
            keep[edge] = True
        return keep & self.exists

    def fitted(self, what: str, values: Any, low: float = -np.inf, high: float = np.inf) -> NDArray[Any]:
        """``values`` as an array with a finite number from ``low`` to ``high`` for every source and destination."""
        array, wanted = array_of(what, values), "a number for each of [source, destination]"
        shapes = f"{self.exists.shape}, as graph.mask() does; got shape {array.shape}"
        require(array.shape == self.exists.shape, f"{what} must hold {wanted} {shapes}")
        own = array[self.exists]
        inside = bool(np.isfinite(own).all() and (own >= low).all() and (own <= high).all())
        bounds = f" from {low:g} to {high:g}" if np.isfinite(high) else ""
        require(inside, f"{what} must be finite numbers{bounds}, got {own.min():.3g} to {own.max():.3g}")
        return array

    def contributions(self, run: Rollout, t: int) -> Float[Tensor, "source episode pos d_model"]:
        """What every source writes in round ``t`` of ``run``, in the order of :attr:`sources`."""
        (t,) = select_rounds(t, run.n_rounds)
        written: dict[str, Tensor] = {}
        with torch.no_grad():
            self.forward(run.fed.at(t), run.latents[:, t], _recorded(self, written))
        return torch.stack([written.pop(name) for name in self.sources])  # hooks are freed late, and hold the rest

    def forward(
        self, rounds: EncodedRounds, latents: Tensor, hooks: list[tuple[str, HookFunction]]
    ) -> tuple[Tensor, Tensor]:
        """A round with hooks: its prediction and the latents after it; every hook must fire exactly once."""
        counter = FiringCounter(hooks)
        with self.model.hooks(fwd_hooks=counter.hooks):
            out = self.model(rounds.tokens, latents, rounds.values)
        assert counter.fired == [1] * len(hooks), f"hooks on edges fired {counter.fired} times, not once each"
        return out.prediction, self.model.write(out.latents, out.update, rounds.slots)

    def run(
        self,
        rounds: EncodedRounds,
        latents: Tensor,
        keep: Bool[np.ndarray, "source destination"] | Tensor,
        ablated: Float[Tensor, "source episode pos d_model"],
    ) -> tuple[Tensor, Tensor]:
        """The prediction and the next latents of a round in which cut edges carry ``ablated``.

        Edges with a ``keep`` between 0 and 1 carry a mixture of that and what their source writes now.
        """
        self.fitted("keep", keep, 0, 1)
        weights = (1 - torch.as_tensor(keep).to(ablated)).unsqueeze(-1)
        cut = rebuilt(self, weights, lambda written: ablated[: len(written)] - torch.stack(written))
        with torch.no_grad():
            return self.forward(rounds, latents, cut)


def ablated(
    other: Float[Tensor, "source episode pos d_model"], ablation: str
) -> Float[Tensor, "source episode pos d_model"]:
    """What cut edges carry: the other run's contributions, their mean over episodes, or zero."""
    require_known("ablation", ablation, get_args(Ablation))
    if ablation == "mean":
        return other.mean(1, keepdim=True).expand_as(other)
    return other if ablation == "resample" else torch.zeros_like(other)


def _recorded(graph: EdgeGraph, written: dict[str, Tensor]) -> list[tuple[str, HookFunction]]:
    """Hooks that record what every source writes, by its name."""

    def record(names: list[str], activation: Tensor, hook: object) -> None:
        parts = activation.unbind(2) if activation.ndim == 4 else [activation]
        written.update(zip(names, parts, strict=True))

    return [(hook, partial(record, names)) for hook, names in graph.writers.items()]


def rebuilt(
    graph: EdgeGraph, weights: Float[Tensor, "source destination episode_or_1"], shift: Callable[[list[Tensor]], Tensor]
) -> list[tuple[str, HookFunction]]:
    """Hooks that change the input of d by ``sum_s weights[s, d] shift[s]``, given what the first sources write now."""
    written: dict[str, Tensor] = {}

    def mixed(destinations: Sequence[str]) -> Float[Tensor, "destination episode pos d_model"]:
        at, changes = [graph.destinations.index(name) for name in destinations], shift(list(written.values()))
        return einsum(
            weights[: len(changes), at], changes, "source at episode, source episode pos d -> at episode pos d"
        )

    def read(names: list[str], resid: Tensor, hook: object) -> Tensor:
        by_head = rearrange(mixed(names), "head episode pos d -> episode pos head d")
        return resid + (by_head if resid.ndim == 4 else by_head[:, :, 0])

    def leave(resid: Tensor, hook: object) -> Tensor:
        """Rebuild the last residual stream: the update is read at a position of its own, behind the prediction's."""
        to_prediction, to_update = mixed(EXITS)
        written.clear()  # hooks are freed late, and what they hold is most of the memory
        last = torch.zeros_like(resid[0, :, :1])
        last[-graph.model.layout.n_after] = 1
        return resid + to_prediction * (1 - last) + to_update * last

    reading = [(hook, partial(read, names)) for hook, names in graph.readers.items()]
    end = f"blocks.{graph.model.config.n_layers - 1}.hook_resid_post"
    return [*_recorded(graph, written), *reading, (end, leave)]
