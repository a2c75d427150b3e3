"""What installed libraries answer as they are, on the same pairs: one exit, the prediction, is all that they read.

Captum takes part where it is installed (``pip install "latent-context-interp[benchmark]"``). What each scores:
``docs/method/benchmark.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from importlib.util import find_spec
from io import StringIO
from typing import Any, cast

import torch
from torch import Tensor
from transformer_lens.patching import get_act_patch_attn_head_out_all_pos
from transformer_lens.tools.analysis.attribution_patching import (
    EdgeAttributionConfig,
    Node,
    attribution_patch,
)

from circuits.benchmark.known_machine import KnownMachine
from circuits.benchmark.material import Case, Material
from circuits.benchmark.methods import FAINT, Method, register
from circuits.benchmark.question import Answer
from interp.interventions.pairs import CLIP
from interp.interventions.sites import head_address
from interp.model.bound import bind
from interp.model.transformer import HookedLatentTransformer
from interp.support.errors import theirs


class _Bound:
    """A pair as a model of row ids: TransformerLens and captum call it with numbers of prepared rounds."""

    def __init__(self, case: Case) -> None:
        pair = case.pair
        model = cast(HookedLatentTransformer, pair.model)  # what has edges is one
        self.layout, self.n, self.blocks = pair.layout, pair.clean.n_episodes, model.blocks
        self.is_probability = model.config.output == "probability"
        self.model = bind(model, pair.clean, pair.corrupted, rounds=pair.round)
        self.clean, self.corrupted = self.model.tokens
        with torch.no_grad():
            logs = [self._logs(self.model(ids)) for ids in (self.clean, self.corrupted)]
        self.rises, self.falls = (logs[0] - logs[1]).argmax(-1), (logs[0] - logs[1]).argmin(-1)

    def _logs(self, logits: Tensor) -> Tensor:
        outcomes = logits[:, self.model.predict_position, : self.layout.n_outputs]
        return outcomes.clamp_min(CLIP).log() if self.is_probability else outcomes.log_softmax(-1)

    def measure(self, logits: Tensor, ids: Tensor) -> Tensor:
        """Compute the logit difference of each row, between the outcomes that its episode's
        corruption raises and lowers.

        Args:
            logits: of the model.
            ids: token ids; the first column also says which episode a row is of.
        """
        logs, episode = self._logs(logits), ids[:, :1] % self.n
        return (logs.gather(1, self.rises[episode]) - logs.gather(1, self.falls[episode])).squeeze(
            1
        )


def _answered(
    question: str,
    measured: Callable[[_Bound], dict[Any, float]],
    subject: KnownMachine,
    material: Material,
) -> Answer:
    """Convert a library's scores to an answer: absolute values in nats, 0 for rounding and for
    items without a score.

    Args:
        question: gives the items.
        measured: runs the library.
        subject: the machine.
        material: its runs.
    """
    case = material.case("prediction")
    sizes = (
        {} if case is None else {item: abs(score) for item, score in measured(_Bound(case)).items()}
    )
    return Answer(
        {
            item: sizes[item] if sizes.get(item, 0.0) >= FAINT else 0.0
            for item in material.items(question)
        }
    )


def _attributed(bound: _Bound) -> dict[Any, float]:
    """Run edge attribution patching by TransformerLens, which takes one episode at a time."""
    scores: dict[Any, float] = {}
    config = EdgeAttributionConfig(granularity="edge")
    for clean, corrupted in zip(bound.clean.split(1), bound.corrupted.split(1), strict=True):

        def metric(logits: Tensor, ids: Tensor = clean) -> Tensor:
            return bound.measure(logits, ids).mean()

        with theirs(
            "TransformerLens finds no gradient through this attention: {error}", of=ValueError
        ):
            scored = attribution_patch(bound.model, clean, corrupted, metric, config)
        for (writer, reader), score in scored.edge_scores.items():
            edge = _node(writer), _node(reader)
            scores[edge] = scores.get(edge, 0.0) + float(score)
    return scores


def _node(node: Node) -> str:
    """Return the name in our graph of a node of TransformerLens."""
    head = head_address(node.layer, node.head)
    inputs = {f"{port}_input": f"{head}.{port}" for port in "qkv"}
    mlp = dict.fromkeys(("mlp_in", "mlp_out"), f"mlp {node.layer}")
    return {"embed": "embed", "attn_head_out": head, "logits": "prediction", **mlp, **inputs}[
        node.kind
    ]


def _patched(bound: _Bound) -> dict[Any, float]:
    """Patch clean head outputs into the corrupted run by TransformerLens'
    ``get_act_patch_attn_head_out_all_pos``.
    """

    def metric(logits: Tensor) -> Tensor:
        return bound.measure(logits, bound.corrupted).mean()

    with torch.no_grad(), redirect_stderr(StringIO()):  # It draws a progress bar.
        _, cache = bound.model.run_with_cache(bound.clean)
        values = get_act_patch_attn_head_out_all_pos(bound.model, bound.corrupted, cache, metric)
        effects = values - metric(bound.model(bound.corrupted))
    return {
        head_address(layer, head): float(x)
        for layer, row in enumerate(effects)
        for head, x in enumerate(row)
    }


def _integrated(bound: _Bound) -> dict[Any, float]:
    from captum.attr import LayerIntegratedGradients

    def gradients(hook: torch.nn.Module) -> Tensor:
        of = LayerIntegratedGradients(lambda ids: bound.measure(bound.model(ids), ids), hook)
        return of.attribute(bound.clean, bound.corrupted, n_steps=5)

    scores: dict[Any, float] = {}
    for layer, block in enumerate(bound.blocks):
        heads = gradients(block.attn.hook_z).sum((1, 3)).mean(0)
        scores |= {head_address(layer, head): float(x) for head, x in enumerate(heads)}
        if block.mlp is not None:
            scores[f"mlp {layer}"] = float(gradients(block.hook_mlp_out).sum((1, 2)).mean())
    return scores


_NAMES = {
    "nodes": "TransformerLens' patching of heads",
    "edges": "TransformerLens' attribution of edges",
}
for _question, _measured in {"nodes": _patched, "edges": _attributed}.items():
    register(
        Method(
            "transformer-lens",
            _NAMES[_question],
            _question,
            partial(_answered, _question, _measured),
        )
    )
if find_spec("captum") is not None:
    _captum = partial(_answered, "nodes", _integrated)
    register(Method("captum", "captum's integrated gradients of layers", "nodes", _captum))
