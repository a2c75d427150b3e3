"""Edge attribution patching, with integrated gradients: every edge's effect from a few backward passes.

Cutting edge (s, d) replaces what d reads of s by the corrupted run's. To first order the metric then drops by::

    score(s, d) = sum  (clean(s) - corrupted(s)) . dm / d input(d)            EAP  (Nanda; Syed et al., 2023)

EAP-IG (Hanna et al., 2024) averages the gradient over inputs between the corrupted and the clean embedding,
``corrupted + k/steps (clean - corrupted)``, k = 1 ... steps, which saturated softmaxes and MLPs need; ``steps = 1``
takes the gradient at the clean input, which is plain EAP. Positive scores mean that the edge raises the metric.

A score is an estimate: check the edges that matter by cutting them (:mod:`interp.interventions.ablation`). Hard
attention has no gradient (its scores get none); use the softmax-only variant of a handwired circuit. A clipped
log-probability (see :mod:`interp.interventions.metrics`) has none either.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.checks import checked, integer
from interp.display import Tabled
from interp.errors import require
from interp.interventions.graph import Contributions, EdgeGraph, Rebuilder
from interp.interventions.metrics import Metric
from interp.interventions.metrics import metric as find_metric
from interp.interventions.pairs import Pair, Readout
from interp.interventions.resume import one_round
from interp.provenance import provenance

_MOST_STEPS = 10_000
"""Each is a forward and a backward pass; the integral is exact to rounding with far fewer."""


@dataclass(frozen=True)
class AttributionResult(Tabled):
    """Scores of every edge.

    Attributes:
        graph: the edges.
        scores: ``[source, destination, episode]``; 0 where there is no edge.
        metric, steps: what was attributed, and how finely.
        settings: model, round, versions.
    """

    graph: EdgeGraph
    scores: Float[np.ndarray, "source destination episode"]
    metric: str
    steps: int
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def edges(self) -> Float[np.ndarray, "source destination"]:
        """Mean score of every edge over episodes."""
        return self.scores.mean(-1)

    @property
    def nodes(self) -> dict[str, float]:
        """Every source's score: the sum over the edges that leave it."""
        return dict(zip(self.graph.sources, self.edges.sum(1).tolist(), strict=True))

    def to_frame(self) -> pd.DataFrame:
        """One row per edge, by the size of its score."""
        rows = [
            {
                "source": self.graph.sources[s],
                "destination": self.graph.destinations[d],
                "score": self.edges[s, d],
                "std": self.scores[s, d].std(),
            }
            for s, d in self.graph.edges
        ]
        frame = pd.DataFrame(rows).sort_values("score", key=np.abs, ascending=False, kind="stable", ignore_index=True)
        return frame.assign(metric=self.metric, steps=self.steps)


@checked
def attribute(pair: Pair, metric: str | Metric = "logit_diff", *, steps: int = 5) -> AttributionResult:
    """Score every edge of a pair's round.

    Args:
        pair: a prepared pair (:func:`interp.interventions.pairs.prepare`) that is read at the round it changes.
        steps: points on the way from the corrupted to the clean embedding; 1 is plain EAP.

    Raises:
        InputError: no step, or a pair that is read at a later round.

    Warns:
        UserWarning: the model has hard attention: its choice of a key has no gradient, so what it decides scores 0.
    """
    integer("steps", steps, 1, _MOST_STEPS)
    require(
        pair.read == pair.round, f"attribution reads the round it changes, got round {pair.round}, read {pair.read}"
    )
    if any(rule == "hard" for rules in pair.model.config.attention_rules for rule in rules):
        warnings.warn(
            f"{pair.model.config.name!r} has hard attention, which has no gradient: edges that only choose where a "
            "head attends score 0; attribute to its softmax-only variant, circuits.differentiable(model)",
            stacklevel=3,
        )
    measure, graph, t = find_metric(metric), EdgeGraph(pair.model), pair.round
    clean, corrupted = (graph.contributions(run, t) for run in (pair.clean, pair.corrupted))
    difference = clean.values - corrupted.values
    shape = (len(graph.sources), len(graph.destinations), pair.n_episodes)
    total = np.zeros(shape)
    for step in range(1, steps + 1):
        total += _gradient(pair, graph, measure, corrupted, difference, step / steps)
    exists = graph.exists[..., None]
    settings = provenance(model=pair.model.config.name, digest=pair.model.digest(), round=t)
    return AttributionResult(graph, np.where(exists, total / steps, 0.0), measure.key, steps, settings)


def _gradient(
    pair: Pair, graph: EdgeGraph, measure: Metric, corrupted: Contributions, difference: Tensor, at: float
) -> Float[np.ndarray, "source destination episode"]:
    """The metric's derivative along each edge's difference, with the embedding between the two runs."""
    weights = torch.zeros(len(graph.sources), len(graph.destinations), pair.n_episodes).to(difference)
    weights.requires_grad_()
    probe = _Probe(graph, weights, difference)
    start = corrupted.values[0] + at * difference[0]
    hooks = [("blocks.0.hook_resid_pre", lambda activation, hook: start), *probe.hooks]
    with torch.enable_grad():
        prediction, latents = graph.forward(one_round(pair.clean, pair.round), pair.clean.latents[:, pair.round], hooks)
        measured = measure.measure(Readout(prediction.unsqueeze(1), latents), pair)
        (slope,) = torch.autograd.grad(measured.sum(), weights)
    return slope.double().numpy(force=True)


class _Probe(Rebuilder):
    """Adds ``weight x difference`` to what each destination reads: at weight 0, the derivative is the edge's score."""

    def __init__(self, graph: EdgeGraph, weights: Tensor, difference: Tensor) -> None:
        super().__init__(graph, weights)
        self.difference = difference

    def change(self, source: int) -> Tensor:
        return self.difference[source]
