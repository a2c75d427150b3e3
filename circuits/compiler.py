"""Compile a circuit to a transformer, and its locations of variables to sites of that transformer.

Score term r of a head becomes column r of its W_Q and W_K; move term r becomes column r of W_V and
row r of W_O. All layers get as many heads as the largest; the added heads have weights of zero and
are named "-". The model has no normalisation, no attention biases, and unscaled scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from circuits.basis import Direction
from circuits.circuit import Circuit, Location
from circuits.heads import Head, Neuron
from interp.interventions.interchange import Claim
from interp.interventions.sites import Place, Site
from interp.model.config import AttentionRule, LatentTransformerConfig
from interp.model.transformer import HookedLatentTransformer
from interp.support.checks import MOST_GB, checked
from interp.support.errors import require, require_known

_NO_HEAD = "-"  # name of the heads without weights that fill up a layer


@checked
# The initial weights are drawn and then overwritten; torch's global generator stays as it was.
@torch.random.fork_rng(devices=[])
def compile_circuit(
    circuit: Circuit, dtype: torch.dtype = torch.float64, max_gb: float = MOST_GB
) -> HookedLatentTransformer:
    """Make the transformer that a circuit describes; it is in evaluation mode, on the CPU.

    Args:
        circuit: the circuit; it is validated first.
        dtype: float64 or float32, of the weights.
        max_gb: most memory that the model's weights may take, in gigabytes (1e9 bytes). A larger
            model is refused.

    Raises:
        InputError: the circuit is incomplete or inconsistent, is too large, or needs float64.
    """
    _validate(circuit)
    require_dtype(circuit, str(dtype).removeprefix("torch."))
    config = _configure(circuit, dtype)
    state_map = stack_rows(circuit.state, circuit)
    model = HookedLatentTransformer(config, state_map=state_map, max_gb=max_gb).to(dtype)
    basis, layout = circuit.basis, circuit.layout
    tokens = [circuit.tokens[token] for token in layout.vocabulary]
    payloads = [circuit.payloads.get(token, basis.zero) for token in layout.vocabulary]
    # Every position also has the constant 1, from which heads and neurons read fixed terms.
    positions = [basis.code(i) + basis.one for i in range(layout.n_positions)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.table.copy_(stack_rows(tokens, circuit))
        model.value_embed.table.copy_(stack_rows(payloads, circuit))
        model.pos_embed.table.copy_(stack_rows(positions, circuit))
        model.latents.table.copy_(stack_rows(circuit.latents, circuit))
        model.unembed.weight.copy_(stack_rows(circuit.outcomes, circuit).T)
        for layer, block in enumerate(model.blocks):
            for index, head in enumerate(circuit.layer(layer)):
                _write_head(block.attn, index, head, circuit)
            if block.mlp is not None:
                neurons = [neuron for neuron in circuit.neurons if neuron.layer == layer]
                _write_neurons(block.mlp, neurons, circuit)
    return model.eval()


def _write_head(attn: Any, index: int, head: Head, circuit: Circuit) -> None:
    """Write a head of a circuit into the weights of an attention layer.

    A head consists of terms, and the r-th terms fill index r of the axis ``d_head``. A score term
    is a pair of directions: one is read at the query (W_Q), the other at the key (W_K). A move term
    is a pair, too: one direction is read at the key (W_V), the other is written at the query (W_O).

    Args:
        attn: the attention layer, which is changed in place.
        index: index of the head in the layer.
        head: the head.
        circuit: the circuit, which has the basis of the residual stream.
    """
    # W_Q, W_K and W_V are [head, d_model, d_head], W_O is [head, d_head, d_model]. Columns beyond
    # the head's terms stay 0.
    n_scores, n_moves = len(head.scores), len(head.moves)
    attn.W_Q[index, :, :n_scores] = stack_rows([query for query, _ in head.scores], circuit).T
    attn.W_K[index, :, :n_scores] = stack_rows([key for _, key in head.scores], circuit).T
    attn.W_V[index, :, :n_moves] = stack_rows([read for read, _ in head.moves], circuit).T
    attn.W_O[index, :n_moves] = stack_rows([write for _, write in head.moves], circuit)


def _write_neurons(mlp: Any, neurons: Sequence[Neuron], circuit: Circuit) -> None:
    """Write the neurons of a layer into the first hidden units of its MLP.

    Args:
        mlp: the layer's MLP, which is changed in place.
        neurons: the layer's neurons.
        circuit: the circuit; its basis turns directions into vectors.
    """
    n = len(neurons)  # further hidden units stay 0
    biases = [neuron.bias for neuron in neurons]
    mlp.W_in[:, :n] = stack_rows([neuron.read for neuron in neurons], circuit).T
    mlp.b_in[:n] = torch.tensor(biases, dtype=torch.float64)
    mlp.W_out[:n] = stack_rows([neuron.write for neuron in neurons], circuit)


def _validate(circuit: Circuit) -> None:
    """Refuse a circuit with tokens without an embedding, wrong numbers of latents or outcomes,
    equal names of heads, or negative indices of layers.

    Args:
        circuit: the circuit.
    """
    for token in circuit.layout.vocabulary:
        require(
            token in circuit.tokens,
            f"circuit {circuit.name!r} has no embedding for token {token!r}; give one",
        )
    for token in (*circuit.tokens, *circuit.payloads):
        require_known("token", token, circuit.layout.vocabulary)
    for what, n_of_circuit, n_of_layout in (
        ("latents", len(circuit.latents), circuit.layout.n_latents),
        ("outcomes", len(circuit.outcomes), len(circuit.layout.outcomes)),
    ):
        require(
            n_of_circuit == n_of_layout,
            f"circuit {circuit.name!r} gives {n_of_circuit} directions of {what}; its layout has {n_of_layout}",
        )
    names = [head.name for head in circuit.heads]
    require(len(set(names)) == len(names), f"head names must differ, got {names}")
    parts: tuple[Head | Neuron, ...] = (*circuit.heads, *circuit.neurons)
    require(all(part.layer >= 0 for part in parts), "layers are counted from 0, got a negative one")


def require_dtype(circuit: Circuit, dtype: str) -> None:
    """Raise InputError if a circuit needs float64 and ``dtype`` is "float32"."""
    require(
        dtype == "float64" or not circuit.float64_only,
        f"dtype {dtype!r} is too coarse: {circuit.float64_only}",
    )


def _configure(circuit: Circuit, dtype: torch.dtype) -> LatentTransformerConfig:
    """Return the configuration of the transformer; its ``origin`` stores the circuit's name,
    arguments and edits, from which the circuit can be built again.

    Args:
        circuit: the circuit.
        dtype: dtype of the model, which decides the range of payloads that the model accepts.
    """
    layers = [circuit.layer(index) for index in range(circuit.n_layers)]
    n_heads = max(len(heads) for heads in layers)
    rules: list[tuple[AttentionRule, ...]] = []
    names: list[tuple[str, ...]] = []
    for heads in layers:
        # Every layer gets as many heads as the largest; those without weights are idle.
        n_idle = n_heads - len(heads)
        idle_rules: list[AttentionRule] = ["softmax"] * n_idle
        rules_of_heads: list[AttentionRule] = [head.rule for head in heads]
        rules.append((*rules_of_heads, *idle_rules))
        names_of_heads = [head.name for head in heads]
        names.append((*names_of_heads, *[_NO_HEAD] * n_idle))
    n_neurons_by_layer = Counter(neuron.layer for neuron in circuit.neurons)
    d_head = max(max(len(head.scores), len(head.moves)) for head in circuit.heads)
    # The model refuses payloads (such as rewards) outside of this range; None for no limit. Rounding
    # is coarser in float32, so some circuits that are exact for every payload in float64 need a range.
    value_range = circuit.payload_range
    if dtype == torch.float32:
        value_range = value_range or circuit.float32_range
    origin = {
        "circuit": circuit.name,
        "arguments": dict(circuit.arguments),
        "edits": list(circuit.edits),
    }
    return LatentTransformerConfig(
        layout=circuit.layout,
        d_model=circuit.basis.d_model,
        n_layers=circuit.n_layers,
        n_heads=n_heads,
        d_head=d_head,
        d_mlp=max(n_neurons_by_layer.values(), default=0),
        act_fn="relu",
        normalization_type=None,
        attention_rules=tuple(rules),
        attn_scale=1.0,  # scores are not scaled
        latent_update="replace",  # what the update token holds becomes the new latent
        strip_position=True,  # a latent must not contain the code of the update token's position
        output="probability",  # what `outcomes` read are probabilities, not logits
        value_range=value_range,
        head_names=tuple(names),
        name=circuit.name,
        origin=origin,
    )


def stack_rows(
    directions: Sequence[Direction], circuit: Circuit
) -> Float[Tensor, "direction d_model"]:
    """Return directions of the residual stream as the rows of a matrix in float64, ``[direction,
    d_model]``.

    Args:
        directions: the directions; without any, the matrix has no rows.
        circuit: the circuit; all directions must have its basis.

    Raises:
        InputError: a direction has another basis.
    """
    for direction in directions:
        require(
            direction.basis == circuit.basis,
            f"circuit {circuit.name!r} uses a direction of another basis",
        )
    if not directions:
        return torch.zeros(0, circuit.basis.d_model).double()
    vectors = [direction.vector() for direction in directions]
    return torch.from_numpy(np.stack(vectors))


def activation_sites(circuit: Circuit, location: Location) -> list[Place]:
    """Return where the compiled transformer stores a variable: the parts of its activations that
    belong to one location of the circuit.

    Args:
        circuit: the circuit.
        location: the location: a hook point, positions, and directions of the residual stream.

    Returns:
        One place per token position. All together store the variable.

    >>> from circuits.registry import build
    >>> circuit = build("wma-handwired", n_experts=2)
    >>> [str(place.site) for place in activation_sites(circuit, circuit.location("votes", "embed"))]
    ['embed@p_1', 'embed@p_2']
    """
    hook = location.hook
    if location.keys:  # of attention scores, which have no directions
        assert location.head is not None
        index = circuit.head_index(location.head)
        labels = dict.fromkeys(location.labels)
        sites = [Site.at_hook(hook, head=index, position=label) for label in labels]
        return [Place.of(site) for site in sites]
    vectors_by_label = dict[str, list[Any]]()
    for direction, label in zip(location.directions, location.labels, strict=True):
        vectors_by_label.setdefault(label, []).append(direction.vector())
    places = []
    for label, vectors in vectors_by_label.items():
        site = Site.at_hook(hook, head=None, position=label)
        # The place is the part of the activation along these directions, [direction, d_model].
        places.append(Place.of(site, np.stack(vectors)))
    return places


def list_wired_claims(circuit: Circuit) -> list[Claim]:
    """List what the circuit's construction says about interchange interventions, as claims that can
    be tested.

    A claim names a variable, places that together store it, and an outcome, "prediction" or
    "state". If the activations at these places come from another run, the outcome changes as if the
    variable came from that run. The last claims are controls, with places that do not store the
    variable.

    Args:
        circuit: the circuit.

    >>> from circuits.registry import build
    >>> claims = list_wired_claims(build("wma-handwired", n_experts=2))
    >>> claims[0].variable, claims[0].outcome, str(claims[0].places[0]), claims[-1].control
    ('log_weights', 'prediction', 'embed@<z> (rank 2)', True)
    """
    claims = []
    for row in circuit.carried:
        together: list[Place] = []
        for location in circuit.locations(row.location_key, *row.locations):
            together += activation_sites(circuit, location)
        claims.append(Claim(variable=row.variable, places=tuple(together), outcome=row.outcome))
    for site, (key, outcome) in circuit.not_carried.items():
        claims.append(Claim.at(key, [site], outcome, control=True))
    return claims
