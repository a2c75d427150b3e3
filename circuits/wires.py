"""Every wire of a circuit: what each head, neuron and exit reads from what each part writes, as it happens in a run.

``circuit.edges`` names the edges that the construction is about. :func:`wires` measures all of them, those from the
embeddings included: on sampled episodes, the contribution of every part to the residual stream is projected on the
directions that every later part reads, position by position. What a value reads counts where some query attends to it.

    >>> from circuits.registry import build
    >>> found = wires(build("wma-handwired", n_experts=2))
    >>> [(edge.port, edge.kind, edge.positions) for edge in found if edge.source == "2.1 fetch z"]
    [('query', 'content', ('p?',))]
    >>> sorted({edge.kind for edge in found if edge.source == "positions"})
    ['clean-up', 'constant']
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from circuits.basis import Direction
from circuits.circuit import Circuit, Edge
from circuits.compiler import compile_circuit, rows
from circuits.registry import handwired
from interp.model.layout import PREDICT_INDEX
from interp.model.rollout import rollout

EMBEDDINGS = ("tokens", "latents", "payloads", "positions")
"""The sources before the first layer: the tokens' own embedding, what the slots carry, scalar payloads, positions."""

NOTHING = 1e-9
"""A contribution smaller than this is none; the largest that counts as rounding."""


def wires(circuit: Circuit, n_rounds: int = 8, n_episodes: int = 6, seed: int = 0) -> tuple[Edge, ...]:
    """Every edge that carries something on sampled episodes, in the order of computation.

    Returns:
        Edges whose source is one of :data:`EMBEDDINGS`, a head or a group of neurons, and whose target is a head, a
        group of neurons, "prediction" or "update". ``positions`` are the labels where the target reads it. ``kind`` is
        "clean-up" where either end clears what is left over, "constant" where it is the same in every round
        of every episode, else "content". What the circuit's own table says that an edge carries is kept.
    """
    plan = handwired(circuit.name).plan
    episodes = plan.episodes(circuit, n_rounds, n_episodes, seed)
    model = compile_circuit(circuit)
    run = rollout(model, episodes)
    tokens, latents = run.tokens.flatten(0, 1), run.latents[:, :-1].flatten(0, 1)
    values = run.values.flatten(0, 1).to(latents)
    model.set_use_attn_result(True)
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, latents, values)
    slots = slice(1, 1 + latents.shape[1])
    payload = values.unsqueeze(-1) * model.value_embed.table[tokens]
    embedded = cache["hook_embed"]
    own, carried = embedded - payload, torch.zeros_like(embedded)
    payload[:, slots], own[:, slots], carried[:, slots] = 0.0, 0.0, embedded[:, slots]
    sources: list[tuple[str, float, Tensor]] = [
        (name, -1.0, part)
        for name, part in zip(EMBEDDINGS, (own, carried, payload, cache["hook_pos_embed"]), strict=True)
    ]
    for layer in range(circuit.n_layers):
        for index, head in enumerate(circuit.layer(layer)):
            sources.append((head.name, layer, cache[f"blocks.{layer}.attn.hook_result"][:, :, index]))
        neurons = [neuron for neuron in circuit.neurons if neuron.layer == layer]
        for name in dict.fromkeys(neuron.name for neuron in neurons):
            group = [i for i, neuron in enumerate(neurons) if neuron.name == name]
            post = cache[f"blocks.{layer}.mlp.hook_post"][..., group]
            sources.append((name, layer + 0.5, post @ rows([neurons[i].write for i in group], circuit)))
    known: dict[tuple[str, str, str], str] = {(e.source, e.target, e.port): e.carries for e in circuit.edges}
    labels = circuit.layout.labels
    found: list[Edge] = []
    for target, port, at, directions in _reads(circuit):
        used = torch.ones(len(labels), dtype=torch.bool)
        if port == "value":
            pattern = cache[f"blocks.{int(at)}.attn.hook_pattern"][:, circuit.head_index(target)]
            used = pattern.abs().amax((0, 1)) > NOTHING
        if port == "residual" and target in ("prediction", "update"):
            used = torch.zeros_like(used)
            used[PREDICT_INDEX if target == "prediction" else -1] = True
        maps = rows(directions, circuit)
        for source, written, contribution in sources:
            if written >= at:
                continue
            read = contribution @ maps.T * used[:, None]
            where = read.abs().amax((0, 2)) > NOTHING
            if not where.any():
                continue
            varies = bool(((read - read[:1]).abs() > NOTHING).any())
            clears = any("clean" in name or "clear" in name for name in (source, target))
            kind = "clean-up" if clears else "content" if varies else "constant"
            positions = tuple(label for label, there in zip(labels, where.tolist(), strict=True) if there)
            carries = known.get((source, target, port), "")
            found.append(Edge(source, target, port, carries, kind, positions))  # type: ignore[arg-type]
    return tuple(found)


def _reads(circuit: Circuit) -> Iterator[tuple[str, str, float, Sequence[Direction]]]:
    """Every port of every head, group of neurons and exit."""
    for layer in range(circuit.n_layers):
        for head in circuit.layer(layer):
            yield head.name, "query", layer, [query for query, _ in head.scores]
            yield head.name, "key", layer, [key for _, key in head.scores]
            yield head.name, "value", layer, [read for read, _ in head.moves]
        neurons = [neuron for neuron in circuit.neurons if neuron.layer == layer]
        for name in dict.fromkeys(neuron.name for neuron in neurons):
            yield name, "residual", layer + 0.5, [neuron.read for neuron in neurons if neuron.name == name]
    end = float(circuit.n_layers)
    yield "prediction", "residual", end, list(circuit.outcomes)
    content = [circuit.basis[block][label] for block, labels in circuit.basis.blocks[:-1] for label in labels]
    yield "update", "residual", end, content
