"""The edges of a circuit, measured in its running model: what ``circuit.edges`` states is held against them.

On sampled episodes, the contribution of every part to the residual stream, and of every embedding, is projected on the
directions that every later part reads, position by position. What a value reads counts where some query attends to it.
An edge says that something is read; it need not change anything.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from circuits.basis import Direction
from circuits.circuit import EMBEDDINGS, Circuit, Edge
from circuits.compiler import compile_circuit, stack_rows
from circuits.registry import get_record
from interp.model.rollout import rollout

_Names = tuple[str, ...]
"""A head, both halves of a pair, a group of neurons, an embedding or an exit."""

_NOTHING = 1e-8
"""A contribution smaller than this is none: 50 times the rounding of a pair of softmax heads, 1e-5 of any real one."""


def wires(circuit: Circuit, n_episodes: int = 6) -> tuple[Edge, ...]:
    """Every edge that carries something on sampled episodes, in the order of computation.

    Returns:
        Edges with their kind and positions; what the circuit's own table says that an edge carries is kept.
    """
    n_rounds, seed = 8, 0
    episodes = get_record(circuit.name).plan.episodes(circuit, n_rounds, n_episodes, seed)
    model = compile_circuit(circuit)
    run = rollout(model, episodes)
    tokens = run.tokens.flatten(0, 1)
    latents = run.latents[:, :-1].flatten(0, 1)
    values = run.values.flatten(0, 1).to(latents)
    model.set_use_attn_result(True)
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, latents, values)
    slots = slice(1, 1 + latents.shape[1])
    payload = values.unsqueeze(-1) * model.value_embed.table[tokens]
    embedded = cache["hook_embed"]
    embedded_only, carried = embedded - payload, torch.zeros_like(embedded)
    payload[:, slots], embedded_only[:, slots], carried[:, slots] = 0.0, 0.0, embedded[:, slots]
    sources: list[tuple[_Names, float, Tensor]] = [
        ((name,), -1.0, part)
        for name, part in zip(
            EMBEDDINGS, (embedded_only, carried, payload, cache["hook_pos_embed"]), strict=True
        )
    ]
    for layer in range(circuit.n_layers):
        for names in _wholes(circuit, layer):
            halves = [circuit.head_index(name) for name in names]
            sources.append(
                (names, layer, cache[f"blocks.{layer}.attn.hook_result"][:, :, halves].sum(2))
            )
        neurons = [neuron for neuron in circuit.neurons if neuron.layer == layer]
        for name in dict.fromkeys(neuron.name for neuron in neurons):
            group = [i for i, neuron in enumerate(neurons) if neuron.name == name]
            post = cache[f"blocks.{layer}.mlp.hook_post"][..., group]
            sources.append(
                (
                    (name,),
                    layer + 0.5,
                    post @ stack_rows([neurons[i].write for i in group], circuit),
                )
            )
    carried_by: dict[tuple[str, str, str], str] = {
        (e.source, e.target, e.port): e.carries for e in circuit.edges
    }
    labels = circuit.layout.labels
    edges: list[Edge] = []
    for targets, port, position, directions in _reads(circuit):
        used = torch.ones(len(labels), dtype=torch.bool)
        if port == "value":
            used = (
                _weight(cache[f"blocks.{int(position)}.attn.hook_pattern"], targets, circuit)
                .abs()
                .amax((0, 1))
                > _NOTHING
            )
        if port == "residual" and targets[0] in ("prediction", "update"):
            used = torch.zeros_like(used)
            layout = circuit.layout
            used[
                layout.predict_position if targets[0] == "prediction" else layout.update_position
            ] = True
        # Large scores, such as those of a sharp maximum, would make the rounding of a latent look like a wire.
        maps = stack_rows(directions, circuit)
        maps = maps / maps.norm(dim=-1, keepdim=True).clamp(min=1.0)
        for names, written, contribution in sources:
            if written >= position:
                continue
            read = contribution @ maps.T * used[:, None]
            where = read.abs().amax((0, 2)) > _NOTHING
            if not where.any():
                continue
            varies = bool(((read - read[:1]).abs() > _NOTHING).any())
            clears = any("clean" in name or "clear" in name for name in (*names, *targets))
            kind = "clean-up" if clears else "content" if varies else "constant"
            positions = tuple(
                label for label, there in zip(labels, where.tolist(), strict=True) if there
            )
            for source, target in product(names, targets):
                carries = carried_by.get((source, target, port), "")
                edges.append(Edge(source, target, port, carries, kind, positions))  # type: ignore[arg-type]
    return tuple(edges)


def _wholes(circuit: Circuit, layer: int) -> list[_Names]:
    """The heads of a layer, the two halves of a pair together: alone each writes what the other takes back."""
    wholes: dict[tuple[str, str], list[str]] = {}
    for head in circuit.layer(layer):
        number, _, word = head.name.partition(" ")
        wholes.setdefault((number.rstrip("+-"), word), []).append(head.name)
    return [tuple(names) for names in wholes.values()]


def _weight(pattern: Tensor, names: _Names, circuit: Circuit) -> Tensor:
    """How much of each key's value a query gets: attention, times what a heavy sink makes W_O give back, of a pair
    the difference."""
    total = torch.zeros_like(pattern[:, 0])
    first = circuit.head(names[0]).moves[0][1]
    for name in names:
        write = circuit.head(name).moves[0][1]
        gain = max(1.0, write.dot(write) ** 0.5)
        total += math.copysign(gain, write.dot(first)) * pattern[:, circuit.head_index(name)]
    return total


def _reads(circuit: Circuit) -> Iterator[tuple[_Names, str, float, Sequence[Direction]]]:
    """Every port of every head, group of neurons and exit; the halves of a pair read the same."""
    for layer in range(circuit.n_layers):
        for names in _wholes(circuit, layer):
            head = circuit.head(names[0])
            yield names, "query", layer, [query for query, _ in head.scores]
            yield names, "key", layer, [key for _, key in head.scores]
            yield names, "value", layer, [read for read, _ in head.moves]
        neurons = [neuron for neuron in circuit.neurons if neuron.layer == layer]
        for name in dict.fromkeys(neuron.name for neuron in neurons):
            yield (
                (name,),
                "residual",
                layer + 0.5,
                [neuron.read for neuron in neurons if neuron.name == name],
            )
    end = float(circuit.n_layers)
    yield ("prediction",), "residual", end, list(circuit.outcomes)
    content = [
        circuit.basis[block][label]
        for block, labels in circuit.basis.blocks[:-1]
        for label in labels
    ]
    yield ("update",), "residual", end, content
