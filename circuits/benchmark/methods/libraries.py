"""What installed libraries answer as they are, on the same pairs: one exit, the prediction, is all that they read.

* ``transformer-lens`` (edges): TransformerLens' ``attribution_patch``, by edges; its scores of one edge at all
  positions are added up. It scores no edge to the update, for which it has no name, and refuses hard attention.
* ``transformer-lens`` (nodes): its patching of head outputs.
* ``captum`` (nodes): integrated gradients of a layer's head outputs and MLP outputs between the corrupted and the clean
  run (``LayerIntegratedGradients``), where captum is installed (``pip install "latent-context-interp[benchmark]"``).
"""

from __future__ import annotations

from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO

import torch
from torch import Tensor
from transformer_lens.patching import get_act_patch_attn_head_out_all_pos
from transformer_lens.tools.analysis.attribution_patching import EdgeAttributionConfig, Node, attribution_patch

from circuits.benchmark.known_machine import KnownMachine
from circuits.benchmark.material import Case, Material
from circuits.benchmark.method import FAINT, Method, register
from circuits.benchmark.question import Answer
from interp.errors import InputError
from interp.interventions.metrics import CLIP
from interp.model.bound import bind


class _Bound:
    """A pair as a model of row ids: TransformerLens and captum call it with numbers of prepared rounds."""

    def __init__(self, case: Case) -> None:
        pair = case.pair
        self.layout, self.n = pair.layout, pair.n_episodes
        self.is_probability = pair.model.config.output == "probability"
        self.model = bind(pair.model, pair.clean, pair.corrupted, rounds=pair.round)
        self.clean, self.corrupted = self.model.tokens
        with torch.no_grad():
            logs = [self._logs(self.model(ids)) for ids in (self.clean, self.corrupted)]
        self.rises, self.falls = (logs[0] - logs[1]).argmax(-1), (logs[0] - logs[1]).argmin(-1)

    def _logs(self, logits: Tensor) -> Tensor:
        outcomes = logits[:, self.model.predict_position, : self.layout.n_outputs]
        return outcomes.clamp_min(CLIP).log() if self.is_probability else outcomes.log_softmax(-1)

    def measure(self, logits: Tensor, ids: Tensor) -> Tensor:
        """The logit difference of each row, of the outcomes that its episode's corruption moves."""
        logs, episode = self._logs(logits), ids[:, :1] % self.n
        return (logs.gather(1, self.rises[episode]) - logs.gather(1, self.falls[episode])).squeeze(1)


def _solid(score: float) -> float:
    """The size of a score in nats, but for rounding."""
    return abs(score) if abs(score) >= FAINT else 0.0


def _attributed(subject: KnownMachine, material: Material) -> Answer:
    """Edge attribution patching by TransformerLens, which takes one episode at a time."""
    scores: dict[tuple[str, str], float] = {}
    if (case := material.case("prediction")) is not None:
        bound, config = _Bound(case), EdgeAttributionConfig(granularity="edge")
        for clean, corrupted in zip(bound.clean.split(1), bound.corrupted.split(1), strict=True):

            def metric(logits: Tensor, ids: Tensor = clean) -> Tensor:
                return bound.measure(logits, ids).mean()

            try:
                scored = attribution_patch(bound.model, clean, corrupted, metric, config)
            except ValueError as error:
                raise InputError(f"TransformerLens finds no gradient through this attention: {error}") from error
            for (writer, reader), score in scored.edge_scores.items():
                edge = _node(writer), _node(reader)
                scores[edge] = scores.get(edge, 0.0) + float(score)
    return Answer({edge: _solid(scores.get(edge, 0.0)) for edge in material.items("edges")})


def _node(node: Node) -> str:
    """A node of TransformerLens by the name that our graph has for it."""
    head = f"{node.layer}.{node.head}"
    inputs = {f"{port}_input": f"{head}.{port}" for port in "qkv"}
    mlp = dict.fromkeys(("mlp_in", "mlp_out"), f"mlp {node.layer}")
    return {"embed": "embed", "attn_head_out": head, "logits": "prediction", **mlp, **inputs}[node.kind]


def _patched(subject: KnownMachine, material: Material) -> Answer:
    """TransformerLens' ``get_act_patch_attn_head_out_all_pos``: clean head outputs put into the corrupted run."""
    scores: dict[str, float] = {}
    if (case := material.case("prediction")) is not None:
        bound = _Bound(case)

        def metric(logits: Tensor) -> Tensor:
            return bound.measure(logits, bound.corrupted).mean()

        with torch.no_grad(), redirect_stderr(StringIO()):  # It draws a progress bar.
            _, cache = bound.model.run_with_cache(bound.clean)
            values = get_act_patch_attn_head_out_all_pos(bound.model, bound.corrupted, cache, metric)
            effects = values - metric(bound.model(bound.corrupted))
        scores = {f"{layer}.{head}": float(x) for layer, row in enumerate(effects) for head, x in enumerate(row)}
    return Answer({node: _solid(scores.get(node, 0.0)) for node in material.items("nodes")})


def _integrated(subject: KnownMachine, material: Material) -> Answer:
    """Integrated gradients of layers, by captum."""
    from captum.attr import LayerIntegratedGradients

    scores: dict[str, float] = {}
    if (case := material.case("prediction")) is not None:
        bound = _Bound(case)

        def forward(ids: Tensor) -> Tensor:
            return bound.measure(bound.model(ids), ids)

        def gradients(hook: torch.nn.Module) -> Tensor:
            return LayerIntegratedGradients(forward, hook).attribute(bound.clean, bound.corrupted, n_steps=5)

        for layer, block in enumerate(subject.model.blocks):
            heads = gradients(block.attn.hook_z).sum((1, 3)).mean(0)
            scores |= {f"{layer}.{head}": float(x) for head, x in enumerate(heads)}
            if block.mlp is not None:
                scores[f"mlp {layer}"] = float(gradients(block.hook_mlp_out).sum((1, 2)).mean())
    return Answer({node: _solid(scores.get(node, 0.0)) for node in material.items("nodes")})


register(Method("transformer-lens", "TransformerLens' patching of heads", "nodes", _patched))
register(Method("transformer-lens", "TransformerLens' attribution of edges", "edges", _attributed))
if find_spec("captum") is not None:
    register(Method("captum", "captum's integrated gradients of layers", "nodes", _integrated))
