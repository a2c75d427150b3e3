r"""A transformer's round as a graph of edges, and a forward pass with some edges cut.

Sources write to the residual stream: the embedding, every head and every MLP. Destinations read it:
the query, key and value inputs of every head, every MLP, and the two outputs ("exits") of a round:
"prediction", and "update" (of the carried state). An edge connects a source to a later destination.
A cut edge carries an *ablated* value instead of the source's: that of the corrupted run
("resample"), the mean of that over episodes ("mean"), or zero.

:func:`attribute` estimates by gradients which edges matter. Check the estimate by cutting edges
(:mod:`interp.interventions.ablation`). Hard attention has no gradient; use the softmax-only variant
of a handwired circuit. The formulas are in docs/method/edges.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
import torch
from einops import einsum
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from interp.core.display import describe_lacking
from interp.core.machine import Machine, can_resume_rounds
from interp.interventions.experiment import Tabulated, sort_by_size
from interp.interventions.pairs import Metric, Pair, Readout, find_metric
from interp.interventions.sites import Site, freeze_parameters, head_address, tile
from interp.model.hooked import FiringCounter, HookFunction, Hooks
from interp.model.layout import EncodedRounds
from interp.model.run import Rollout, select_rounds
from interp.model.transformer import HookedLatentTransformer
from interp.support.checks import array_of, checked, integer
from interp.support.errors import InputError, convert_errors, require, require_known
from interp.support.provenance import provenance

Ablation = Literal["resample", "mean", "zero"]
EXITS = ("prediction", "update")


def require_heads(model: Machine, what: str) -> HookedLatentTransformer:
    """Return the model unchanged if it is a transformer with heads that can be edited; otherwise
    raise an error.

    Args:
        model: the model.
        what: what needs heads, in the plural, for the error message, such as "edges".
    """
    # Only our own transformers can resume a round at a layer, and they have hook points at what each
    # head reads and writes. Other machines may have attention, but no such points.
    if can_resume_rounds(model):
        return cast(HookedLatentTransformer, model)
    missing = (
        describe_lacking(model, "pattern")
        or f"not applicable: {model.name} does not say what its heads read and write"
    )
    raise InputError(
        f"{missing}, and {what} are of heads; use interp.interventions.patching.sweep, "
        "which patches each of its points, or mediation.mediate, the share of an effect that a point passes on"
    )


def split_head(name: str) -> tuple[int, int, str]:
    """Return (index of the layer, index of the head, input) from the name of a head in an
    :class:`EdgeGraph`. The input is "q", "k" or "v" for a destination such as "L1H0.q", and "" for
    a source such as "L1H0".

    >>> split_head("L1H0.q"), split_head("L1H0")
    ((1, 0, 'q'), (1, 0, ''))
    """
    address, _, port = name.partition(".")
    site = Site.parse(address)
    assert site.layer is not None and site.head is not None, name
    return site.layer, site.head, port


def _add_nodes(nodes: dict[str, int], names: Sequence[str], time: int) -> list[int]:
    """Add nodes to the dictionary ``nodes``, and return their indices in it.

    Args:
        nodes: name of each node -> time at which it reads or writes; changed in place.
        names: names of the new nodes.
        time: time at which the new nodes read or write.
    """
    first = len(nodes)
    nodes |= dict.fromkeys(names, time)
    return list(range(first, len(nodes)))


@checked
class EdgeGraph:
    """The graph of the parts of a transformer in one round. There is an edge from each source,
    which writes to the residual stream, to each destination that reads it later. A circuit is a set
    of edges.

    Args:
        model: the transformer; a model without heads is an error.

    Attributes:
        sources: names of the embedding, heads and MLPs in the order of computation: "embed",
            "L0H0", ..., "mlp 0", ...
        destinations: names of the inputs of heads (queries, keys, values), of MLPs and of the two
            outputs of a round, in the order of computation: "L0H0.q", ..., "mlp 0", ...,
            "prediction", "update".
        exists: True if there is an edge, which means that the source is computed before the
            destination, ``[source, destination]``.
    """

    def __init__(self, model: Machine) -> None:
        """List the sources and destinations in the order of computation, with the times at which
        they write and read; the times decide which pairs are edges.
        """
        self.model = require_heads(model, "edges")
        config = self.model.config
        # Name -> time: what a source writes at a time can be read by destinations at this time or
        # later. In layer i, attention reads at 2i and writes at 2i + 1, when the MLP reads.
        sources: dict[str, int] = {"embed": 0}
        destinations: dict[str, int] = {}
        # Hook point -> indices of the sources whose output, or destinations whose input, is there. Queries, keys and
        # values are linear in what a head reads from the stream, and so are changed themselves. With a normalisation
        # they are not: the head's copy of the stream is changed instead ("_input"), which takes one copy for every
        # head of every layer.
        suffix = "" if config.normalization_type is None else "_input"
        self.sources_at: dict[str, list[int]] = {"blocks.0.hook_resid_pre": [0]}
        self.destinations_at: dict[str, list[int]] = {}
        n_layers = config.n_layers
        for layer in range(n_layers):
            block, mlp = f"blocks.{layer}", f"mlp {layer}"
            before_attention = 2 * layer
            before_mlp = before_attention + 1
            after_mlp = before_mlp + 1
            heads = [head_address(layer, head) for head in range(config.n_heads)]
            for port in "qkv":
                names = [f"{head}.{port}" for head in heads]
                hook = f"{block}.attn.hook_{port}{suffix}"
                self.destinations_at[hook] = _add_nodes(destinations, names, before_attention)
            self.sources_at[f"{block}.attn.hook_result"] = _add_nodes(sources, heads, before_mlp)
            if config.d_mlp:
                mlp_input, mlp_output = f"{block}.hook_mlp_in", f"{block}.hook_mlp_out"
                self.destinations_at[mlp_input] = _add_nodes(destinations, [mlp], before_mlp)
                self.sources_at[mlp_output] = _add_nodes(sources, [mlp], after_mlp)
        _add_nodes(destinations, EXITS, 2 * n_layers)  # read after the last layer
        self.sources, self.destinations = list(sources), list(destinations)
        write_times = np.array(list(sources.values()))
        read_times = np.array(list(destinations.values()))
        self.exists: NDArray[np.bool_] = write_times[:, None] <= read_times

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """For every edge, the pair (index of its source in ``sources``, index of its destination in
        ``destinations``), sorted by source.
        """
        return [(int(s), int(d)) for s, d in np.argwhere(self.exists)]

    @cached_property
    def live(self) -> NDArray[np.bool_]:
        """True for edges that can have an effect, ``[source, destination]``. An edge from or to a
        head or MLP has no effect if the output weights of this head or MLP are 0.
        """
        writes = {"embed": True}  # name of a source -> whether its output weights are not all 0
        for layer, block in enumerate(self.model.blocks):
            heads_write = block.attn.W_O.flatten(1).any(1)
            for head, head_writes in enumerate(heads_write.tolist()):
                writes[head_address(layer, head)] = head_writes
            mlp = block.mlp
            if mlp is not None:
                writes[f"mlp {layer}"] = bool(mlp.W_out.any() or mlp.b_out.any())
        destination_matters: list[bool] = []
        for name in self.destinations:
            # "mlp 0" and "L1H0.q" are inputs of a source, which must write; "prediction" is not.
            source = name if name in writes else name.rpartition(".")[0]
            destination_matters.append(writes.get(source, True))
        source_writes = [writes[name] for name in self.sources]
        return self.exists & np.outer(source_writes, destination_matters)

    def name(self, edge: tuple[int, int]) -> str:
        """Return the name of an edge, ``source -> destination``, from its indices (source,
        destination).
        """
        source, destination = edge
        return f"{self.sources[source]} -> {self.destinations[destination]}"

    def edge(self, source: str, destination: str) -> tuple[int, int]:
        """Return the indices (source, destination) of an edge from the names of its ends. It is an
        error if the destination is not computed after the source.

        Args:
            source, destination: names from :attr:`sources` and :attr:`destinations`, such as "L0H0"
                and "L1H0.q".
        """
        sources, destinations = self.sources, self.destinations
        require_known("source", source, sources, limit=40)
        require_known("destination", destination, destinations, limit=40)
        row, column = sources.index(source), destinations.index(destination)
        later = [destinations[i] for i in np.flatnonzero(self.exists[row])]
        require_known(f"destination of {source!r}", destination, later, limit=40)
        return row, column

    def mask(
        self, edges: Sequence[tuple[int, int]] | None = None
    ) -> Bool[np.ndarray, "source destination"]:
        """Return a circuit as booleans ``[source, destination]``: True for the pairs of indices in
        ``edges``, or for all edges if it is None. Pairs without an edge stay False.
        """
        keep = np.full_like(self.exists, edges is None)  # without a list, every edge
        n_sources, n_destinations = keep.shape
        for edge in edges or ():
            source, destination = edge
            is_inside = 0 <= source < n_sources and 0 <= destination < n_destinations
            require(
                is_inside,
                f"edge {tuple(edge)} is none of {n_sources} sources and {n_destinations} destinations; give (source, "
                "destination), as graph.edge(a, b)",
            )
            keep[edge] = True
        return keep & self.exists

    def require_edge_values(
        self, what: str, values: Any, low: float = -np.inf, high: float = np.inf
    ) -> NDArray[Any]:
        """Return ``values`` as an array ``[source, destination]``, after checking that it has a
        finite number for every edge. Entries without an edge are not checked.

        Args:
            what: name of the values, for error messages.
            values: numbers or booleans, ``[source, destination]``.
            low, high: smallest and largest allowed number.
        """
        array, exists = array_of(what, values), self.exists
        shape, wanted = array.shape, exists.shape
        require(
            shape == wanted,
            f"{what} must hold a number for each of [source, destination] {wanted}, as graph.mask() does; got shape "
            f"{shape}",
        )
        numbers = array[exists]
        smallest, largest = numbers.min(), numbers.max()
        bounds = f" from {low:g} to {high:g}" if np.isfinite(high) else ""
        is_inside = np.isfinite(numbers).all() and low <= smallest and largest <= high
        require(
            is_inside,
            f"{what} must be finite numbers{bounds}, got {smallest:.3g} to {largest:.3g}",
        )
        return array

    def contributions(
        self, run: Rollout, round: int
    ) -> Float[Tensor, "source episode pos d_model"]:
        """Run one round of a rollout again, and return what every source (the embedding, each head
        and each MLP) adds to the residual stream, ``[source, episode, pos, d_model]``.

        Args:
            run: the rollout that provides the input and the carried state.
            round: index of the round.
        """
        (t,) = select_rounds(round, run.n_rounds)
        written: list[Tensor] = []
        every_source = np.full(len(self.sources), True)
        # Each hook appends what its sources write; hooks fire in the order of the sources.
        hooks = _make_recording_hooks(
            self, every_source, record=lambda first, outputs: written.append(outputs)
        )
        with torch.no_grad():
            self.forward(run.fed.take_round(t), run.latents[:, t], hooks)
        # pop, since the hooks refer to the list, are freed late, and would keep its tensors.
        return torch.cat([written.pop(0) for _ in self.sources_at])

    def forward(
        self,
        rounds: EncodedRounds,
        latents: Tensor,
        hooks: Hooks,
        before: tuple[int, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run the model for one round with hooks, in every row of a batch. Each hook must be called
        exactly once.

        Args:
            rounds: inputs of the round, encoded as tokens and values, one row per episode.
            latents: state that the round reads, ``[row, latent, d_model]``.
            hooks: pairs of the name of a hook point and a hook function.
            before: where to start: the pair (index of a layer, residual stream before this layer).
                By default the computation starts with the embedding.

        Returns:
            The prediction of the round, ``[row, ...]``, and the state after it,
            ``[row, latent, d_model]``.
        """
        counter, model = FiringCounter(hooks), self.model
        with model.hooks(fwd_hooks=counter.hooks):
            if before is None:
                before = 0, model.embed_round(rounds.tokens, latents, rounds.values)
            layer, resid = before
            out = model.read_out(model.run_from(resid, layer), latents)
        fired = counter.fired
        assert fired == [1] * len(hooks), f"hooks on edges fired {fired} times, not once each"
        return out.prediction, model.write(out.latents, out.update, rounds.slots)

    def run(
        self,
        run: Rollout,
        round: int,
        keeps: Sequence[NDArray[Any]],
        ablated: Float[Tensor, "source episode pos d_model"],
        clean: tuple[Tensor, Sequence[Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """Run a round of the clean episodes once per circuit (set of edges). All other edges are
        cut: they carry given values in place of what their source writes.

        Args:
            run: the clean rollout.
            round: index of the round.
            keeps: for each circuit, numbers from 0 to 1, ``[source, destination]``. With 1 the edge
                carries what its source writes, with 0 (cut) the ablated value, and in between a
                mixture.
            ablated: the value that cut edges of each source carry,
                ``[source, episode, pos, d_model]``.
            clean: the same run without cuts, which saves computation up to the first cut: what
                sources write, ``[source, episode, pos, d_model]``; and a sequence with the residual
                stream before each layer, ``[episode, pos, d_model]``.

        Returns:
            Predictions, and latents after the round, ``[circuit, episode, ...]`` each.
        """
        n, n_layers = len(keeps), self.model.config.n_layers
        cut_shares = np.stack([(1 - keep) * self.live for keep in keeps])
        weights = torch.from_numpy(cut_shares).to(ablated).permute(1, 2, 0)
        is_cut = np.any(cut_shares, axis=0)  # in at least one circuit, [source, destination]
        # Computation starts at the layer of the first destination with a cut edge. Destinations,
        # and sources after the embedding, are ordered by layer, equally many in each.
        n_sources = len(ablated)
        n_destinations_per_layer = (len(self.destinations) - len(EXITS)) // n_layers
        first_cut = int(is_cut.any(0).argmax())
        layer = min(first_cut // n_destinations_per_layer, n_layers - 1)
        n_known = 1 + layer * (n_sources - 1) // n_layers  # sources before this layer
        clean_written, clean_resid = clean
        # Shifts, ablated minus written: [source, circuit, episode, pos, d_model]
        known = (ablated - clean_written)[:n_known].unsqueeze(1)  # the same in all circuits
        later = ablated.new_zeros(n_sources - n_known, n, *ablated.shape[1:])
        shifts = [known, later]

        def fill_later(first: int, written: Tensor) -> None:
            """Store the shifts (ablated minus written values) of some sources as soon as they
            write.

            Args:
                first: index of the first of these sources.
                written: what they write, ``[source, circuit * episode, pos, d_model]``.
            """
            end = first + len(written)
            shift = ablated[first:end].unsqueeze(1) - written.unflatten(1, (n, -1))
            later[first - n_known : end - n_known] = shift

        is_later = np.arange(n_sources) >= n_known
        hooks = [
            *_make_recording_hooks(self, is_later & is_cut.any(1), record=fill_later),
            *make_shift_hooks(self, weights, shifts, is_cut),
        ]
        repeat = partial(tile, times=n)  # once for each circuit
        fed = run.fed.take_round(round).map_tensors(repeat)
        resid = repeat(clean_resid[layer])
        with torch.no_grad():
            prediction, latents = self.forward(
                fed, repeat(run.latents[:, round]), hooks, before=(layer, resid)
            )
        shifts.clear()  # hooks are freed late, and what they hold is most of the memory
        return prediction.unflatten(0, (n, -1)), latents.unflatten(0, (n, -1))


def _make_recording_hooks(
    graph: EdgeGraph, wanted: Bool[np.ndarray, " source"], record: Callable[[int, Tensor], None]
) -> Hooks:
    """Return hooks that call the function ``record`` with what some sources write, when they write
    it.

    It is called once for each wanted embedding or MLP, and once for all heads of a layer together
    if at least one of them is wanted.

    Args:
        graph: the graph.
        wanted: which sources are wanted.
        record: function of two arguments: the index of the first of the sources, and what they
            write, ``[source, row, pos, d_model]``.
    """

    def visit(first: int, activation: Tensor, hook: object) -> None:
        """Call ``record`` with ``first``, the index of the first source at this hook point, and
        with the activation as ``[source, row, pos, d_model]``.
        """
        is_of_heads = activation.ndim == 4  # [row, pos, head, d_model]
        record(first, activation.movedim(2, 0) if is_of_heads else activation.unsqueeze(0))

    return [
        (hook, partial(visit, sources[0]))
        for hook, sources in graph.sources_at.items()
        if wanted[sources].any()
    ]


def make_shift_hooks(
    graph: EdgeGraph,
    weights: Float[Tensor, "source destination circuit"],
    shifts: list[Float[Tensor, "_ _ episode pos d_model"]],
    is_cut: Bool[np.ndarray, "source destination"],
) -> Hooks:
    """Return hooks that shift what destinations (inputs of heads and MLPs, and the outputs of a
    round) read from the residual stream.

    In circuit c, ``sum_s weights[s, d, c] * shifts[s, c]`` is added to the input of destination d.
    The sum is over the sources s (embedding, heads and MLPs) that are computed before d. A weight
    of 0 leaves an edge unchanged. To cut an edge, use the weight 1, and as the shift what the cut
    edge should carry minus what its source writes in this run.

    Args:
        graph: the graph.
        weights: weight of each edge in each circuit, ``[source, destination, circuit]``; 0 for
            edges that a circuit keeps.
        shifts: shift of each source: a list of tensors, which joined along the first axis are
            ``[source, circuit, episode, pos, d_model]``. The axis ``circuit`` has length 1 if the
            shift is the same for all circuits. Values may be filled in during the run, before they
            are needed: the hook of a destination reads only the shifts of earlier sources.
        is_cut: True for edges that are cut in at least one circuit, ``[source, destination]``.
            Destinations that no such edge enters get no hook.
    """

    def sum_shifts(destinations: list[int]) -> Float[Tensor, "destination row pos d_model"]:
        """Return what is added to the input of each of ``destinations``, which share a hook point:
        the weighted sum of the shifts of its sources. Rows are pairs of circuit and episode.
        """
        # Destinations of one hook have the same sources: the first ones, in order of computation.
        n_sources = int(graph.exists[:, destinations[0]].sum())
        sums: list[Tensor] = []
        first = 0  # index of the first source of the part
        for part in shifts:
            end = first + len(part)
            # Of the part's sources, those that are computed before the destinations.
            n_summed = min(end, n_sources) - first
            if n_summed > 0:
                part_weights = weights[first : first + n_summed, destinations]
                axes = "source to c, source c episode pos d -> to c episode pos d"
                sums.append(einsum(part_weights, part[:n_summed], axes))
            first = end
        return reduce(torch.add, sums).flatten(1, 2)

    def change_input(destinations: list[int], activation: Tensor, hook: Any) -> Tensor:
        """Return the activation at a hook with the shifts of cut edges added.

        A destination is an MLP's input, or the input of one head's queries, keys or values. Its
        shift is the weighted sum of the shifts of its sources (``sum_shifts``).

        Args:
            destinations: indices of those destinations at the hook that a cut edge enters.
            activation: ``[row, pos, d_model]`` for an MLP, else ``[row, pos, head, ...]``.
            hook: the hook point, whose name says what the activation is.
        """
        change = sum_shifts(destinations)  # [destination, row, pos, d_model]
        if activation.ndim < 4:  # an MLP: one destination, without an axis of heads
            return activation + change[0]
        name = hook.name  # such as "blocks.1.attn.hook_q"
        first = graph.destinations_at[name][0]  # head 0 of the layer
        heads = [i - first for i in destinations]
        if not name.endswith("_input"):
            # The hook sees queries, keys or values: the change passes through their weights.
            _, layer, *_ = name.split(".")
            maps = getattr(graph.model.blocks[int(layer)].attn, f"W_{name[-1].upper()}")
            change = einsum(change, maps[heads], "head row pos d, head d out -> head row pos out")
        index = torch.tensor(heads, device=change.device)
        return activation.index_add(2, index, change.permute(1, 2, 0, 3))

    def change_exits(resid: Tensor, hook: object) -> Tensor:
        """Add the weighted sums of shifts to the residual stream after the last block. The position
        where the update is read gets the sum for the update, all others that for the prediction.
        """
        # The last two destinations are the exits.
        to_prediction, to_update = sum_shifts([-2, -1])
        update_position = -graph.model.layout.n_from_update  # counted from the end of the round
        is_update = torch.zeros_like(resid[0, :, :1])  # [pos, 1]
        is_update[update_position] = 1
        return resid + to_prediction * (1 - is_update) + to_update * is_update

    hooks: list[tuple[str, HookFunction]] = []
    is_shifted = np.asarray(is_cut.any(0))  # [destination]
    for hook, destinations in graph.destinations_at.items():
        shifted = [i for i in destinations if is_shifted[i]]
        if shifted:
            hooks.append((hook, partial(change_input, shifted)))
    if is_shifted[-len(EXITS) :].any():
        last = graph.model.config.n_layers - 1
        hooks.append((f"blocks.{last}.hook_resid_post", change_exits))
    return hooks


_MAX_STEPS = 10_000  # each step is a forward and a backward pass; far fewer suffice


@dataclass(frozen=True, eq=False, kw_only=True)
class _AttributionResult(Tabulated):
    """Attribution scores of edges: estimates of the effect of cutting each edge, per episode and
    averaged.

    The table has one row per edge, the largest absolute mean score first.

    Attributes:
        graph: the graph.
        scores: score of each edge in each episode, ``[source, destination, episode]``; 0 for pairs
            (source, destination) without an edge.
        edges: mean score of each edge over episodes, ``[source, destination]``.
    """

    graph: EdgeGraph
    scores: Float[np.ndarray, "source destination episode"]
    edges: Float[np.ndarray, "source destination"]


@checked
@torch.inference_mode(False)
@torch.enable_grad()
def attribute(
    pair: Pair, metric: str | Metric | None = None, *, steps: int = 5
) -> _AttributionResult:
    """Estimate the effect of every edge on a metric by gradients: edge attribution patching with
    integrated gradients (EAP-IG). The score of an edge estimates by how much the metric of the
    clean run drops if the edge is cut. A cut edge carries what its source writes in the corrupted
    run.

    Args:
        pair: clean and corrupted runs (:func:`interp.interventions.pairs.prepare`). The metric must
            be read in the round that is changed (``read_round`` equal to ``round``).
        metric: a metric or its key; by default "logit_diff", or "prediction" if a real number is
            predicted.
        steps: number of points at which gradients are taken, evenly spaced on the line from the
            corrupted to the clean embedding; the last is the clean one. 1 is plain EAP.

    Returns:
        A result with ``scores``, ``[source, destination, episode]``, and their means ``edges``,
        ``[source, destination]``. Its table has one row per edge, the largest absolute score first:
        ``source``, ``destination``, ``score`` (the mean) and ``std`` (over episodes).
    """
    integer("steps", steps, 1, _MAX_STEPS)
    model = require_heads(pair.model, "edges")
    t, read_round, clean = pair.round, pair.read_round, pair.clean
    require(
        read_round == t,
        f"attribution reads the round it changes, got round {t}, read {read_round}",
    )
    if any("hard" in rules for rules in model.config.attention_rules):
        warnings.warn(
            f"{model.name!r} has hard attention, which has no gradient: edges that only choose where a "
            "head attends score 0; attribute to its softmax-only variant, circuits.differentiable(model)",
            stacklevel=3,
        )
    measure, graph = find_metric(metric, pair.layout), EdgeGraph(model)
    exists, metric_key = graph.exists, measure.key
    corrupted = graph.contributions(pair.corrupted, t)
    difference = graph.contributions(clean, t) - corrupted
    slope_sums = np.zeros((*exists.shape, clean.n_episodes))
    for step in range(1, steps + 1):
        # Every episode takes the place of a circuit, with its own weights.
        weights = torch.zeros(slope_sums.shape).to(difference).requires_grad_()
        # Each edge adds weight x difference to what its destination reads: at weight 0, the derivative is its score.
        weight_hooks = make_shift_hooks(graph, weights, [difference.unsqueeze(2)], exists)
        # Source 0 is the embedding: a point on the line between the two runs.
        embedding = corrupted[0] + step / steps * difference[0]
        hooks: list[Any] = [
            ("blocks.0.hook_resid_pre", lambda activation, hook, embedding=embedding: embedding),
            *weight_hooks,
        ]
        with torch.enable_grad(), freeze_parameters(model):
            prediction, latents = graph.forward(clean.fed.take_round(t), clean.latents[:, t], hooks)
            measured = measure.measure(Readout(prediction.unsqueeze(1), latents), pair)
            with convert_errors(
                f"the metric {metric_key!r} has no gradient: {{error}}",
                of=(RuntimeError, TypeError),
            ):
                (slope,) = torch.autograd.grad(measured.sum(), weights)
        slope_sums += slope.double().numpy(force=True)
    scores = np.where(exists[..., None], slope_sums / steps, 0.0)
    mean, std = scores.mean(-1), scores.std(-1)
    sources, destinations = graph.sources, graph.destinations
    rows = [(sources[s], destinations[d], mean[s, d], std[s, d]) for s, d in graph.edges]
    columns = ["source", "destination", "score", "std"]
    frame = sort_by_size(pd.DataFrame(rows, columns=columns), "score")
    first = frame.iloc[0]
    grid = pd.DataFrame(mean, index=sources, columns=destinations)
    axes = {"label": f"score on {metric_key}", "xlabel": "destination", "ylabel": "source"}
    source, destination, score, _ = first
    sentence = f"{source} -> {destination} scores most on {metric_key}: {score:+.3g}."
    return _AttributionResult(
        sentence=sentence,
        table=frame.assign(metric=metric_key, steps=steps),
        picture=lambda figures: figures.heatmaps({"edges": grid}, **axes),
        settings=provenance(model, round=t),
        graph=graph,
        scores=scores,
        edges=mean,
    )
