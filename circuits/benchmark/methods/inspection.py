"""Looking without intervening: at attention patterns, and at weights.

* ``attention``: an edge into a head is as strong as what its source writes where the head looks: the norm of the
  contribution at a key times the attention that it gets, on average over episodes and queries; queries and keys are
  not told apart. Edges into MLPs and exits are as strong as the contribution.
* ``composition``: how much of what the source writes the destination's weights read, from the weights alone
  (Elhage et al., 2021): ``|W_O W_V W_read| / (|W_O W_V| |W_read|)``; of the embedding its table stands for ``W_O W_V``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from circuits.benchmark.known_machine import KnownMachine
from circuits.benchmark.material import Material
from circuits.benchmark.method import FAINT, Method, register
from circuits.benchmark.question import Answer
from interp.model.transformer import HookedLatentTransformer


def _attention(subject: KnownMachine, material: Material) -> Answer:
    written = material.contributions(material.pair(material.corruptions[0])).norm(dim=-1)  # source episode pos
    t = material.effort.round
    run, graph, scores = material.run(), material.graph, {}
    with torch.no_grad():
        _, cache = subject.transformer.run_with_cache(run.tokens[:, t], run.latents[:, t], run.values[:, t])
    for s, d in material.candidates:
        size, name = written[s], graph.destinations[d]
        if "." in name:
            layer, head, _ = name.split(".")
            pattern = cache[f"blocks.{layer}.attn.hook_pattern"][:, int(head)].abs()
            size = (pattern * size.unsqueeze(1)).sum(-1)
        elif name in ("prediction", "update"):
            size = size[:, run.layout.update_position if name == "update" else run.layout.predict_position]
        scores[graph.sources[s], name] = float(size.mean())
    return Answer(scores)


def _composition(subject: KnownMachine, material: Material) -> Answer:
    model, graph = subject.transformer, material.graph
    with torch.no_grad():
        writes = {name: _written(model, name) for name in {graph.sources[s] for s, _ in material.candidates}}
        reads = {name: _read(model, name) for name in {graph.destinations[d] for _, d in material.candidates}}
        scores = {}
        for s, d in material.candidates:
            write, read = writes[graph.sources[s]], reads[graph.destinations[d]]
            largest = float(write.norm() * read.norm())
            share = float((write @ read).norm()) / largest if largest else 0.0
            scores[graph.sources[s], graph.destinations[d]] = share if share >= FAINT else 0.0
    return Answer(scores)


def _written(model: HookedLatentTransformer, source: str) -> Tensor:
    """What a source can write, ``[anything, d_model]``."""
    if source == "embed":
        return torch.cat([model.W_E, model.value_embed.table, model.W_pos, model.state_map])
    if source.startswith("mlp "):
        return model.get_parameter(f"blocks.{source[4:]}.mlp.W_out")
    layer, head = map(int, source.split("."))
    attn = model.blocks[layer].attn
    return attn.W_V[head] @ attn.W_O[head]


def _read(model: HookedLatentTransformer, destination: str) -> Tensor:
    """What a destination reads with, ``[d_model, anything]``; the update is read as a whole."""
    if destination == "update":
        return torch.eye(model.config.d_model).to(model.W_E)
    if destination == "prediction":
        return model.W_U
    if destination.startswith("mlp "):
        return model.get_parameter(f"blocks.{destination[4:]}.mlp.W_in")
    layer, head, port = destination.split(".")
    return model.get_parameter(f"blocks.{layer}.attn.W_{port.upper()}")[int(head)]


register(
    Method("attention", "attention inspection", "edges", _attention),
    Method("composition", "composition of weights", "edges", _composition),
)
