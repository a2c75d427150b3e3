r"""A round as a graph of edges: who writes to the residual stream, who reads it, and a forward pass with edges cut.

Sources are the embedding, every head and every MLP; destinations are the inputs of every head and MLP, and the two
exits of a round, "prediction" and "update". A cut edge contributes its *ablated* value: the other run's of a pair
("resample"), a mean over episodes ("mean"), or zero.

:func:`attribute` estimates by gradients which edges matter: check those by cutting them
(:mod:`interp.interventions.ablation`). Hard attention has no gradient; use the softmax-only variant of a handwired
circuit. :func:`strongest_reads` ranks single reads (layer, head, query, key), cuts the best and measures them: NOT
evidence of what a read brings, or that the reads together are a circuit. The formulas: docs/method/edges.md.

    >>> import interp
    >>> from interp.tasks import experts
    >>> model, episodes = interp.load("wma-handwired", n_experts=2), experts.sample(8, 12, 2, seed=0)
    >>> reads = strongest_reads(model, interp.rollout(model, episodes), 10, k=2)
    >>> reads[["layer", "head", "source", "target", "exit"]].to_numpy().tolist()
    [[1, 2, '<z>', 'w?', 'update'], [2, 0, 'p_2', 'p?', 'prediction']]
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from itertools import accumulate
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
import torch
from einops import einsum
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from interp.core.algorithm import participants_of
from interp.core.display import lacks
from interp.core.machine import Machine, runs_from
from interp.interventions.experiment import Edit, Experiment, Rows, Tabulated, batches, by_size
from interp.interventions.pairs import Metric, Pair, Readout, find_metric
from interp.interventions.sites import Place, Site, frozen, head_address, tile
from interp.model.hooked import FiringCounter, Hooks
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.run import Rollout, select_rounds
from interp.model.transformer import HookedLatentTransformer
from interp.stats.intervals import mean_interval
from interp.support.checks import array_of, checked, integer
from interp.support.errors import InputError, require, require_known, theirs
from interp.support.provenance import provenance

Ablation = Literal["resample", "mean", "zero"]
EXITS = ("prediction", "update")


def with_heads(model: Machine, what: str) -> HookedLatentTransformer:
    """The model, where its heads read and write a residual stream; else an error says what ``what`` lacks there."""
    if runs_from(model):
        return cast(HookedLatentTransformer, model)
    missing = (
        lacks(model, "pattern")
        or f"not applicable: {model.name} does not say what its heads read and write"
    )
    raise InputError(
        f"{missing}, and {what} are of heads; use interp.interventions.mediation.effect_map(model, base, source, "
        "'latent'), the share of an effect that each of its points passes on, or patching.sweep"
    )


def split_head(name: str) -> tuple[int, int, str]:
    """Return layer, head and port of a head's name in the graph; the port is "" for a source.

    >>> split_head("L1H0.q"), split_head("L1H0")
    ((1, 0, 'q'), (1, 0, ''))
    """
    address, _, port = name.partition(".")
    site = Site.parse(address)
    assert site.layer is not None and site.head is not None, name
    return site.layer, site.head, port


@checked
class EdgeGraph:
    """The edges of a model's round, whose sources and destinations are in the order computed.

    Attributes:
        sources: "embed", "L0H0", ..., "mlp 0", ...
        destinations: "L0H0.q", ..., "mlp 0", "prediction", "update".
        exists: is the source before the destination, ``[source, destination]``.
    """

    def __init__(self, model: Machine) -> None:
        self.model = with_heads(model, "edges")
        config = self.model.config
        # Name -> time: what a source writes at a time can be read by destinations at this time or later.
        sources, destinations = {"embed": 0}, dict[str, int]()
        # Hook point -> who writes there, or reads, as indices. Heads read at queries, keys and values, which are linear
        # in what is read but for normalisation, or at what is read, which takes a copy for every head of every layer.
        end = "" if config.normalization_type is None else "_input"
        self.writers, self.readers = {"blocks.0.hook_resid_pre": [0]}, dict[str, list[int]]()
        for layer in range(config.n_layers):
            block, heads, mlp = (
                f"blocks.{layer}",
                [head_address(layer, head) for head in range(config.n_heads)],
                f"mlp {layer}",
            )
            for port in "qkv":
                self.readers[f"{block}.attn.hook_{port}{end}"] = [
                    len(destinations) + i for i in range(config.n_heads)
                ]
                destinations |= dict.fromkeys((f"{head}.{port}" for head in heads), 2 * layer)
            self.writers[f"{block}.attn.hook_result"] = [
                len(sources) + i for i in range(config.n_heads)
            ]
            sources |= dict.fromkeys(heads, 2 * layer + 1)
            if config.d_mlp:
                self.readers[f"{block}.hook_mlp_in"] = [len(destinations)]
                self.writers[f"{block}.hook_mlp_out"] = [len(sources)]
                destinations[mlp], sources[mlp] = 2 * layer + 1, 2 * layer + 2
        destinations |= dict.fromkeys(EXITS, 2 * config.n_layers)
        self.sources, self.destinations = list(sources), list(destinations)
        written, read = (np.array(list(times.values())) for times in (sources, destinations))
        self.exists: NDArray[np.bool_] = written[:, None] <= read

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """(source, destination) indices of every edge, sources first."""
        return [(int(s), int(d)) for s, d in zip(*np.nonzero(self.exists), strict=True)]

    @cached_property
    def live(self) -> NDArray[np.bool_]:
        """Which edges could change anything, as :attr:`exists`: heads and MLPs whose output weights are 0 have none."""
        writes = {"embed": True}
        for layer, block in enumerate(self.model.blocks):
            writes |= {
                head_address(layer, head): does
                for head, does in enumerate(block.attn.W_O.flatten(1).any(1).tolist())
            }
            if block.mlp is not None:
                writes[f"mlp {layer}"] = bool(block.mlp.W_out.any() or block.mlp.b_out.any())
        # "mlp 0" and "L1H0.q" are of sources, "prediction" of none.
        reads = [
            writes.get(name, writes.get(name.rpartition(".")[0], True))
            for name in self.destinations
        ]
        return self.exists & np.outer([writes[name] for name in self.sources], reads)

    def name(self, edge: tuple[int, int]) -> str:
        """``source -> destination`` of an edge, given as two indices."""
        return f"{self.sources[edge[0]]} -> {self.destinations[edge[1]]}"

    def edge(self, source: str, destination: str) -> tuple[int, int]:
        """The edge between two names."""
        for kind, name, valid in (
            ("source", source, self.sources),
            ("destination", destination, self.destinations),
        ):
            require_known(kind, name, valid, limit=40)
        edge = self.sources.index(source), self.destinations.index(destination)
        later = [
            d for d, there in zip(self.destinations, self.exists[edge[0]], strict=True) if there
        ]
        require_known(f"destination of {source!r}", destination, later, limit=40)
        return edge

    def mask(
        self, edges: Sequence[tuple[int, int]] | None = None
    ) -> Bool[np.ndarray, "source destination"]:
        """Keep exactly ``edges``; all of them when None."""
        keep = np.full_like(self.exists, edges is None)
        for edge in edges or ():
            there = all(0 <= i < n for i, n in zip(edge, keep.shape, strict=True))
            sizes = "{} sources and {} destinations".format(*keep.shape)
            require(
                there,
                f"edge {tuple(edge)} is none of {sizes}; give (source, destination), as graph.edge(a, b)",
            )
            keep[edge] = True
        return keep & self.exists

    def fitted(
        self, what: str, values: Any, low: float = -np.inf, high: float = np.inf
    ) -> NDArray[Any]:
        """``values`` as an array with a finite number from ``low`` to ``high`` for every source and destination."""
        array, wanted = array_of(what, values), "a number for each of [source, destination]"
        shapes = f"{self.exists.shape}, as graph.mask() does; got shape {array.shape}"
        require(array.shape == self.exists.shape, f"{what} must hold {wanted} {shapes}")
        own = array[self.exists]
        inside = bool(np.isfinite(own).all() and (own >= low).all() and (own <= high).all())
        bounds = f" from {low:g} to {high:g}" if np.isfinite(high) else ""
        require(
            inside, f"{what} must be finite numbers{bounds}, got {own.min():.3g} to {own.max():.3g}"
        )
        return array

    def contributions(
        self, run: Rollout, round: int
    ) -> Float[Tensor, "source episode pos d_model"]:
        """What every source writes in one round of ``run``, in the order of :attr:`sources`."""
        (round,) = select_rounds(round, run.n_rounds)
        written: list[Tensor] = []
        hooks = _recorded(
            self, np.full(len(self.sources), True), lambda _, one: written.append(one)
        )
        with torch.no_grad():
            self.forward(run.fed.at(round), run.latents[:, round], hooks)
        return torch.cat(
            [written.pop(0) for _ in self.writers]
        )  # hooks are freed late, and hold the rest

    def forward(
        self,
        rounds: EncodedRounds,
        latents: Tensor,
        hooks: Hooks,
        before: tuple[int, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """A round with hooks, each of which must fire exactly once: its prediction and the latents after it.

        ``before`` is a layer and the residual stream before it, from which the round is run.
        """
        counter, model = FiringCounter(hooks), self.model
        with model.hooks(fwd_hooks=counter.hooks):
            layer, resid = before or (0, model.embedded(rounds.tokens, latents, rounds.values))
            out = model.read_out(model.run_from(resid, layer), latents)
        assert counter.fired == [1] * len(hooks), (
            f"hooks on edges fired {counter.fired} times, not once each"
        )
        return out.prediction, model.write(out.latents, out.update, rounds.slots)

    def run(
        self,
        run: Rollout,
        round: int,
        keeps: Sequence[NDArray[Any]],
        ablated: Float[Tensor, "source episode pos d_model"],
        clean: tuple[Tensor, Sequence[Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """Predictions and next latents ``[circuit, episode, ...]`` of a round in which cut edges carry ``ablated``.

        Edges with a ``keep`` between 0 and 1 carry a mixture of that and what their source writes now. ``clean`` is
        what sources write without cuts and the residual stream before every layer: all circuits run from the first
        layer at which any of them cuts an edge.
        """
        cuts, n = np.stack([(1 - keep) * self.live for keep in keeps]), len(keeps)
        n_layers, weights = (
            self.model.config.n_layers,
            torch.from_numpy(cuts).to(ablated).permute(1, 2, 0),
        )
        cut, per_layer = np.any(cuts, axis=0), (len(self.destinations) - len(EXITS)) // n_layers
        layer = min(int(cut.any(0).argmax()) // per_layer, n_layers - 1)
        n_known = 1 + layer * (len(self.sources) - 1) // n_layers
        known = (ablated - clean[0])[:n_known].unsqueeze(1)
        shifts = [known, ablated.new_zeros(len(ablated) - n_known, n, *ablated.shape[1:])]

        def take(first: int, written: Tensor) -> None:
            now, at = written.unflatten(1, (n, -1)), slice(first, first + len(written))
            shifts[1][first - n_known :][: len(now)] = ablated[at].unsqueeze(1) - now

        later = np.arange(len(self.sources)) >= n_known
        hooks = [*_recorded(self, later & cut.any(1), take), *rebuilt(self, weights, shifts, cut)]
        rows = partial(tile, times=n)
        with torch.no_grad():
            first = layer, rows(clean[1][layer])
            out = self.forward(
                run.fed.at(round).each(rows), rows(run.latents[:, round]), hooks, first
            )
        shifts.clear()  # hooks are freed late, and what they hold is most of the memory
        return out[0].unflatten(0, (n, -1)), out[1].unflatten(0, (n, -1))


def _recorded(
    graph: EdgeGraph, wanted: Bool[np.ndarray, " source"], take: Callable[[int, Tensor], None]
) -> Hooks:
    """Hooks that give ``take`` what some sources write, ``[source, row, pos, d_model]``, and the number of the first.

    All heads of a layer are given where one of them is wanted.
    """

    def record(first: int, activation: Tensor, hook: object) -> None:
        take(first, activation.movedim(2, 0) if activation.ndim == 4 else activation.unsqueeze(0))

    return [
        (hook, partial(record, at[0])) for hook, at in graph.writers.items() if wanted[at].any()
    ]


def rebuilt(
    graph: EdgeGraph,
    weights: Float[Tensor, "source destination circuit"],
    shifts: list[Float[Tensor, "_ _ episode pos d_model"]],
    cut: Bool[np.ndarray, "source destination"],
) -> Hooks:
    """Hooks that change the input of d by ``sum_s weights[s, d] shift[s]``, where an edge of ``cut`` leads to d.

    ``shifts`` are those of all sources in order, ``[source, circuit, ...]``, in parts of which each is of one circuit
    or of all; each is read when all of its sources have written. Rows are ``[circuit, episode]``.
    """

    def mixed(at: list[int]) -> Float[Tensor, "destination row pos d_model"]:
        n, parts = (
            int(graph.exists[:, at[0]].sum()),
            zip(accumulate(map(len, shifts), initial=0), shifts, strict=False),
        )
        pattern = "source at c, source c episode pos d -> at c episode pos d"
        mixes = (
            einsum(weights[i:n, at][: len(part)], part[: n - i], pattern)
            for i, part in parts
            if i < n
        )
        return reduce(torch.add, mixes).flatten(1, 2)

    def read(at: list[int], activation: Tensor, hook: Any) -> Tensor:
        change = mixed(at)
        if activation.ndim < 4:
            return activation + change[0]
        heads = [i - graph.readers[hook.name][0] for i in at]
        if not hook.name.endswith("_input"):
            maps = getattr(
                graph.model.blocks[int(hook.name.split(".")[1])].attn, f"W_{hook.name[-1].upper()}"
            )
            change = einsum(change, maps[heads], "head row pos d, head d out -> head row pos out")
        return activation.index_add(
            2, torch.tensor(heads, device=change.device), change.permute(1, 2, 0, 3)
        )

    def leave(resid: Tensor, hook: object) -> Tensor:
        """Rebuild the last residual stream: the update is read at a position of its own, behind the prediction's."""
        to_prediction, to_update = mixed([-2, -1])
        last = torch.zeros_like(resid[0, :, :1])
        last[-graph.model.layout.n_after] = 1
        return resid + to_prediction * (1 - last) + to_update * last

    cuts = {hook: [i for i in at if cut[:, i].any()] for hook, at in graph.readers.items()}
    reading = [(hook, partial(read, at)) for hook, at in cuts.items() if at]
    at_exits = f"blocks.{graph.model.config.n_layers - 1}.hook_resid_post"
    return [*reading, *[(at_exits, leave)] * bool(cut[:, -2:].any())]


_MOST_STEPS = 10_000  # each is a forward and a backward pass; the integral is exact to rounding with far fewer
_CANDIDATES = 4  # reads that are cut, for every one that is given back at most
_PROJECTIONS = 2
_NOTHING = 1e-6  # a read whose effect is below it has none: what is left of rounding


@dataclass(frozen=True, eq=False, kw_only=True)
class _AttributionResult(Tabulated):
    """Scores of every edge and their mean over episodes, the largest first in the table; 0 where there is none."""

    graph: EdgeGraph
    scores: Float[np.ndarray, "source destination episode"]
    edges: Float[np.ndarray, "source destination"]


@checked
@torch.inference_mode(False)
@torch.enable_grad()
def attribute(
    pair: Pair, metric: str | Metric | None = None, *, steps: int = 5
) -> _AttributionResult:
    """Score every edge of a pair (:func:`interp.interventions.pairs.prepare`) that is read at the round it changes.

    ``steps`` points lie on the way from the corrupted to the clean embedding; 1 is plain EAP.
    """
    integer("steps", steps, 1, _MOST_STEPS)
    model = with_heads(pair.model, "edges")
    same = pair.read_round == pair.round
    require(
        same,
        f"attribution reads the round it changes, got round {pair.round}, read {pair.read_round}",
    )
    if any(rule == "hard" for rules in model.config.attention_rules for rule in rules):
        warnings.warn(
            f"{model.name!r} has hard attention, which has no gradient: edges that only choose where a "
            "head attends score 0; attribute to its softmax-only variant, circuits.differentiable(model)",
            stacklevel=3,
        )
    measure, graph, t = find_metric(metric, pair.layout), EdgeGraph(model), pair.round
    corrupted = graph.contributions(pair.corrupted, t)
    difference = graph.contributions(pair.clean, t) - corrupted
    total = np.zeros((*graph.exists.shape, pair.clean.n_episodes))
    for step in range(1, steps + 1):
        weights = torch.zeros(total.shape).to(difference).requires_grad_()
        # Each edge adds weight x difference to what its destination reads: at weight 0, the derivative is its score.
        probe = rebuilt(graph, weights, [difference.unsqueeze(2)], graph.exists)
        start = corrupted[0] + step / steps * difference[0]  # the embedding between the two runs
        hooks: list[Any] = [
            ("blocks.0.hook_resid_pre", lambda activation, hook, start=start: start),
            *probe,
        ]
        with torch.enable_grad(), frozen(pair.model):
            prediction, latents = graph.forward(
                pair.clean.fed.at(t), pair.clean.latents[:, t], hooks
            )
            measured = measure.measure(Readout(prediction.unsqueeze(1), latents), pair)
            with theirs(
                f"the metric {measure.key!r} has no gradient: {{error}}",
                of=(RuntimeError, TypeError),
            ):
                (slope,) = torch.autograd.grad(measured.sum(), weights)
        total += slope.double().numpy(force=True)
    scores = np.where(graph.exists[..., None], total / steps, 0.0)
    mean, std = scores.mean(-1), scores.std(-1)
    rows = [
        (graph.sources[s], graph.destinations[d], mean[s, d], std[s, d]) for s, d in graph.edges
    ]
    frame = by_size(pd.DataFrame(rows, columns=["source", "destination", "score", "std"]), "score")
    first, grid = (
        frame.iloc[0],
        {"edges": pd.DataFrame(mean, index=graph.sources, columns=graph.destinations)},
    )
    axes = {"label": f"score on {measure.key}", "xlabel": "destination", "ylabel": "source"}
    return _AttributionResult(
        sentence=f"{first['source']} -> {first['destination']} scores most on {measure.key}: {first['score']:+.3g}.",
        table=frame.assign(metric=measure.key, steps=steps),
        picture=lambda figures: figures.heatmaps(grid, **axes),
        settings=provenance(model, round=t),
        graph=graph,
        scores=scores,
        edges=mean,
    )


@checked
@torch.inference_mode(False)
@torch.enable_grad()
def strongest_reads(
    model: Machine, run: Rollout, round: int, *, k: int = 12, seed: int = 0
) -> pd.DataFrame:
    """The reads of one round whose cut changes an exit most, ``k // 2`` for each exit, over the episodes of ``run``.

    A machine without heads has no reads, and is refused.

    Returns:
        Columns ``layer`` and ``head``, ``source``, ``target`` (position labels), ``weight`` (mean attention),
        ``exit`` (where its effect is largest), ``effect``, ``low``, ``high`` (95 % over episodes); by layer, then by
        position. Fewer rows where fewer reads change anything, or one is among the first for both.
    """
    integer("k", k, 2)
    model = with_heads(model, "reads")
    (round,) = select_rounds(round, run.n_rounds)
    rows = Rows.of(run, [round])
    with torch.no_grad():
        out = model(rows.fed.tokens, rows.latents, rows.fed.values)
        plain = _exits(run.layout, out.prediction, out.update)
    # The mean distance of rows from their mean; 1 where all are the same.
    spread = [float((x - x.mean(0)).norm(dim=-1).mean()) or 1.0 for x in plain]
    candidates = _candidates(model, rows, run.layout, spread, _CANDIDATES * k // 2, seed)
    layers = [Site("pattern", layer) for layer in range(model.config.n_layers)]
    (whole,) = batches(Experiment(model, run, {"": []}, [round], commit="target", watched=layers))
    changes = []
    for layer, head, query, key in candidates:
        pattern = whole.seen[layers[layer]].clone()
        pattern[:, :, head, query, key] = 0
        (cut,) = batches(
            Experiment(
                model, run, {"": [Edit(Place(layers[layer]), pattern)]}, [round], commit="target"
            )
        )
        ends = (
            _exits(run.layout, ran.predictions[0, :, 0, 0], ran.carried[0, :, 0, 0])
            for ran in (cut, whole)
        )
        sides = zip(*ends, spread, strict=True)
        changes.append([(x - y).norm(dim=-1).numpy(force=True) / scale for x, y, scale in sides])
    effects = np.stack(changes, 1)
    mean = effects.mean(-1)
    first = np.argsort(-mean, axis=-1, kind="stable")[:, : k // 2]
    best = {int(i) for out, order in enumerate(first) for i in order if mean[out, i] > _NOTHING}
    table = []
    for i in sorted(best, key=lambda i: candidates[i]):
        (layer, head, query, key), out = candidates[i], int(mean[:, i].argmax())
        weight = whole.seen[layers[layer]][:, 0, head, query, key].double().mean()
        where = (layer, head, run.layout.labels[key], run.layout.labels[query])
        value = mean_interval(
            effects[out, i], seed=seed, participants=participants_of(run.episodes)
        )
        table.append((*where, float(weight), EXITS[out], value.estimate, value.low, value.high))
    columns = ["layer", "head", "source", "target", "weight", "exit", "effect", "low", "high"]
    return pd.DataFrame(table, columns=columns)


def _exits(layout: RoundLayout, prediction: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """What a round predicts, and what it writes or leaves, each ``[row, value]``."""
    return layout.distribution(prediction).flatten(1).double(), left.flatten(1).double()


def _candidates(
    model: HookedLatentTransformer,
    rows: Rows,
    layout: RoundLayout,
    spread: Sequence[float],
    n: int,
    seed: int,
) -> list[tuple[int, ...]]:
    """The ``n`` reads (layer, head, query, key) of largest estimated effect on each exit, but of the first position."""
    n_layers, n_heads, n_pos = model.config.n_layers, model.config.n_heads, rows.fed.tokens.shape[1]
    kept = torch.ones(
        n_layers,
        len(rows.latents),
        n_heads,
        n_pos,
        n_pos,
        dtype=rows.latents.dtype,
        requires_grad=True,
    )
    hooks = [
        (f"blocks.{i}.attn.hook_pattern", lambda own, hook, by=kept[i]: own * by)
        for i in range(n_layers)
    ]
    draws, reads = torch.Generator().manual_seed(seed), []
    with torch.enable_grad(), model.hooks(fwd_hooks=hooks):
        out = model(rows.fed.tokens, rows.latents, rows.fed.values)
        for x, scale in zip(_exits(layout, out.prediction, out.update), spread, strict=True):
            score = torch.zeros(n_layers, n_heads, n_pos, n_pos, dtype=torch.float64)
            for _ in range(_PROJECTIONS):
                direction = torch.randn(x.shape[-1], generator=draws, dtype=x.dtype)
                (slope,) = torch.autograd.grad((x @ direction).sum(), kept, retain_graph=True)
                score += slope.double().abs().mean(1) / scale
            score[..., 0] = 0
            best = torch.argsort(score.flatten(), descending=True, stable=True)[:n].tolist()
            reads += [np.unravel_index(i, score.shape) for i in best if score.flatten()[i] > 0]
    return [tuple(map(int, index)) for index in dict.fromkeys(reads)]
