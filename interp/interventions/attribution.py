r"""Which edges, and which reads, of a round matter: estimated by gradients, for all of them at once.

**Edges** (:func:`attribute`): edge attribution patching, with integrated gradients.

Cutting edge (s, d) replaces what d reads of s by the corrupted run's. To first order the metric then drops by::

    score(s, d) = sum  (clean(s) - corrupted(s)) . dm / d input(d)            EAP  (Nanda; Syed et al., 2023)

EAP-IG (Hanna et al., 2024) averages the gradient over inputs between the corrupted and the clean embedding,
``corrupted + k/steps (clean - corrupted)``, k = 1 ... steps, which saturated softmaxes and MLPs need; ``steps = 1``
takes the gradient at the clean input, which is plain EAP. Positive scores mean that the edge raises the metric.

A score is an estimate: check the edges that matter by cutting them (:mod:`interp.interventions.ablation`). Hard
attention has no gradient (its scores get none); use the softmax-only variant of a handwired circuit. A clipped
log-probability (see :mod:`interp.interventions.pairs`) has none either.

**Reads** (:func:`strongest_reads`): a read is (layer, head, query, key). To cut it is to set its attention weight to
zero and leave the others as they are, so that what the head wrote at the query lacks what it brought from the key. Its
effect on an exit x (the prediction's distribution, or the update) is, in each episode,

    | x - x_cut | / mean over episodes of | x - mean x |

so that 1 is a change as large as the exit's own differences between episodes. All reads are ranked by the first-order
estimate of that (two random projections of each exit, one backward pass each); the best are then cut and measured.
NOT evidence of what a read brings, or that the reads together are a circuit; two reads that stand in for each other can
each show nothing. The first position is left out: heads rest on it.

    >>> import interp
    >>> from interp.tasks import experts
    >>> model, episodes = interp.load("wma-handwired", n_experts=2), experts.sample(8, 12, 2, seed=0)
    >>> reads = strongest_reads(model, interp.rollout(model, episodes), 10, k=2)
    >>> reads[["layer", "head", "source", "target", "exit"]].to_numpy().tolist()
    [[1, 2, '<z>', 'w?', 'update'], [2, 0, 'p_2', 'p?', 'prediction']]
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.checks import checked, integer
from interp.errors import require
from interp.interventions.edge_graph import EXITS, EdgeGraph, rebuilt, with_heads
from interp.interventions.experiment import Edit, Experiment, Rows, Tabulated, batches, by_size
from interp.interventions.pairs import Metric, Pair, Readout, find_metric
from interp.interventions.sites import Place, Site, frozen
from interp.machine import Machine
from interp.model.layout import RoundLayout
from interp.model.run import Rollout, select_rounds
from interp.model.transformer import HookedLatentTransformer
from interp.provenance import provenance
from interp.statistics import mean_interval

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
def attribute(pair: Pair, metric: str | Metric | None = None, *, steps: int = 5) -> _AttributionResult:
    """Score every edge of a pair (:func:`interp.interventions.pairs.prepare`) that is read at the round it changes.

    ``steps`` points lie on the way from the corrupted to the clean embedding; 1 is plain EAP.
    """
    integer("steps", steps, 1, _MOST_STEPS)
    model = with_heads(pair.model, "edges")
    require(
        pair.read == pair.round, f"attribution reads the round it changes, got round {pair.round}, read {pair.read}"
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
        probe = rebuilt(graph, weights, lambda written: difference[: len(written)])
        start = corrupted[0] + step / steps * difference[0]  # the embedding between the two runs
        hooks: list[Any] = [("blocks.0.hook_resid_pre", lambda activation, hook, start=start: start), *probe]
        with torch.enable_grad(), frozen(pair.model):
            prediction, latents = graph.forward(pair.clean.fed.at(t), pair.clean.latents[:, t], hooks)
            measured = measure.measure(Readout(prediction.unsqueeze(1), latents), pair)
            (slope,) = torch.autograd.grad(measured.sum(), weights)
        total += slope.double().numpy(force=True)
    scores = np.where(graph.exists[..., None], total / steps, 0.0)
    mean, std = scores.mean(-1), scores.std(-1)
    rows = [(graph.sources[s], graph.destinations[d], mean[s, d], std[s, d]) for s, d in graph.edges]
    frame = by_size(pd.DataFrame(rows, columns=["source", "destination", "score", "std"]), "score")
    first, grid = frame.iloc[0], {"edges": pd.DataFrame(mean, index=graph.sources, columns=graph.destinations)}
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
def strongest_reads(model: Machine, run: Rollout, t: int, *, k: int = 12, seed: int = 0) -> pd.DataFrame:
    """The reads of round ``t`` whose cut changes an exit most, ``k // 2`` for each exit, over the episodes of ``run``.

    A machine without heads has no reads, and is refused.

    Returns:
        Columns ``layer`` and ``head``, ``source``, ``target`` (position labels), ``weight`` (mean attention),
        ``exit`` (where its effect is largest), ``effect``, ``low``, ``high`` (95 % over episodes); by layer, then by
        position. Fewer rows where fewer reads change anything, or one is among the first for both.
    """
    integer("k", k, 2)
    model = with_heads(model, "reads")
    (t,) = select_rounds(t, run.n_rounds)
    rows = Rows.of(run, [t])
    with torch.no_grad():
        out = model(rows.fed.tokens, rows.latents, rows.fed.values)
        plain = _exits(run.layout, out.prediction, out.update)
    # The mean distance of rows from their mean; 1 where all are the same.
    spread = [float((x - x.mean(0)).norm(dim=-1).mean()) or 1.0 for x in plain]
    candidates = _candidates(model, rows, run.layout, spread, _CANDIDATES * k // 2, seed)
    layers = [Site("pattern", layer) for layer in range(model.config.n_layers)]
    (whole,) = batches(Experiment(model, run, {"": []}, [t], commit="target", watched=layers))
    changes = []
    for layer, head, query, key in candidates:
        pattern = whole.seen[layers[layer]].clone()
        pattern[:, :, head, query, key] = 0
        edits = {"": [Edit(Place(layers[layer]), pattern)]}
        (cut,) = batches(Experiment(model, run, edits, [t], commit="target"))
        ends = (_exits(run.layout, ran.predictions[0, :, 0, 0], ran.carried[0, :, 0, 0]) for ran in (cut, whole))
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
        value = mean_interval(effects[out, i], seed=seed)
        table.append((*where, float(weight), EXITS[out], value.estimate, value.low, value.high))
    columns = ["layer", "head", "source", "target", "weight", "exit", "effect", "low", "high"]
    return pd.DataFrame(table, columns=columns)


def _exits(layout: RoundLayout, prediction: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """What a round predicts, and what it writes or leaves, each ``[row, value]``."""
    return layout.distribution(prediction).flatten(1).double(), left.flatten(1).double()


def _candidates(
    model: HookedLatentTransformer, rows: Rows, layout: RoundLayout, spread: Sequence[float], n: int, seed: int
) -> list[tuple[int, ...]]:
    """The ``n`` reads (layer, head, query, key) of largest estimated effect on each exit, but of the first position."""
    n_layers, n_heads, n_pos = model.config.n_layers, model.config.n_heads, rows.fed.tokens.shape[1]
    kept = torch.ones(n_layers, len(rows.latents), n_heads, n_pos, n_pos, dtype=rows.latents.dtype, requires_grad=True)
    hooks = [(f"blocks.{i}.attn.hook_pattern", lambda own, hook, by=kept[i]: own * by) for i in range(n_layers)]
    draws, reads = torch.Generator().manual_seed(seed), []
    with torch.enable_grad(), model.hooks(fwd_hooks=hooks):
        out = model(rows.fed.tokens, rows.latents, rows.fed.values)
        exits = _exits(layout, out.prediction, out.update)
        for x, scale in zip(exits, spread, strict=True):
            score = torch.zeros(n_layers, n_heads, n_pos, n_pos, dtype=torch.float64)
            for _ in range(_PROJECTIONS):
                direction = torch.randn(x.shape[-1], generator=draws, dtype=x.dtype)
                (slope,) = torch.autograd.grad((x @ direction).sum(), kept, retain_graph=True)
                score += slope.double().abs().mean(1) / scale
            score[..., 0] = 0
            best = torch.argsort(score.flatten(), descending=True, stable=True)[:n].tolist()
            reads += [np.unravel_index(i, score.shape) for i in best if score.flatten()[i] > 0]
    return [tuple(map(int, index)) for index in dict.fromkeys(reads)]
