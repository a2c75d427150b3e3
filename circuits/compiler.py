"""Compile a circuit to a model, and its ground truth to places of that model, where a variable lives.

Score term r of a head is column r of its W_Q and W_K, move term r is column r of W_V and row r of W_O. Every layer gets
as many heads as the largest one; the missing ones are zero and named "-". Nothing else is added: no normalisation, no
biases in attention, scores unscaled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from circuits.basis import Direction
from circuits.circuit import Circuit, Location
from circuits.heads import Head
from interp.interventions.interchange import Claim
from interp.interventions.sites import Place, Site
from interp.model.config import LatentTransformerConfig
from interp.model.transformer import HookedLatentTransformer
from interp.support.checks import MOST_GB, checked
from interp.support.errors import require, require_known

_T = TypeVar("_T")
_NO_HEAD = "-"


@checked
@torch.random.fork_rng(devices=[])
def compile_circuit(
    circuit: Circuit, dtype: torch.dtype = torch.float64, max_gb: float = MOST_GB
) -> HookedLatentTransformer:
    """The transformer that a circuit describes, in evaluation mode, on the CPU.

    A model of more than ``max_gb`` units of 1e9 bytes in float32 is refused before memory is taken.
    """
    _validate(circuit)
    require_dtype(circuit, str(dtype).removeprefix("torch."))
    config = _configuration(circuit, dtype)
    model = HookedLatentTransformer(
        config, state_map=rows(circuit.state, circuit), max_gb=max_gb
    ).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        basis, vocabulary = circuit.basis, circuit.layout.vocabulary
        positions = [basis.code(i) + basis.one for i in range(circuit.layout.n_positions)]
        model.embed.table.copy_(rows([circuit.tokens[token] for token in vocabulary], circuit))
        model.value_embed.table.copy_(
            rows([circuit.payloads.get(token, basis.zero) for token in vocabulary], circuit)
        )
        model.pos_embed.table.copy_(rows(positions, circuit))
        model.latents.table.copy_(rows(circuit.latents, circuit))
        model.unembed.weight.copy_(rows(circuit.outcomes, circuit).T)
        for layer, block in enumerate(model.blocks):
            attn, mlp = block.attn, block.mlp
            for index, head in enumerate(circuit.layer(layer)):
                n_scores, n_moves = len(head.scores), len(head.moves)
                attn.W_Q[index, :, :n_scores] = rows([query for query, _ in head.scores], circuit).T
                attn.W_K[index, :, :n_scores] = rows([key for _, key in head.scores], circuit).T
                attn.W_V[index, :, :n_moves] = rows([read for read, _ in head.moves], circuit).T
                attn.W_O[index, :n_moves] = rows([write for _, write in head.moves], circuit)
            if mlp is not None:
                neurons = [neuron for neuron in circuit.neurons if neuron.layer == layer]
                mlp.W_in[:, : len(neurons)] = rows([neuron.read for neuron in neurons], circuit).T
                mlp.b_in[: len(neurons)] = torch.tensor(
                    [neuron.bias for neuron in neurons], dtype=torch.float64
                )
                mlp.W_out[: len(neurons)] = rows([neuron.write for neuron in neurons], circuit)
    return model.eval()


def _validate(circuit: Circuit) -> None:
    """Refuse data that do not make a circuit."""
    for token in circuit.layout.vocabulary:
        require(
            token in circuit.tokens,
            f"circuit {circuit.name!r} has no embedding for token {token!r}; give one",
        )
    for token in (*circuit.tokens, *circuit.payloads):
        require_known("token", token, circuit.layout.vocabulary)
    for what, given, wanted in (
        ("latents", circuit.latents, circuit.layout.n_latents),
        ("outcomes", circuit.outcomes, len(circuit.layout.outcomes)),
    ):
        n = len(given)
        require(
            n == wanted,
            f"circuit {circuit.name!r} gives {n} directions of {what}; its layout has {wanted}",
        )
    names = [head.name for head in circuit.heads]
    require(len(set(names)) == len(names), f"head names must differ, got {names}")
    require(
        min([head.layer for head in circuit.heads] + [neuron.layer for neuron in circuit.neurons])
        >= 0,
        "layers are counted from 0, got a negative one",
    )
    for head in circuit.heads:
        for term in (*head.scores, *head.moves):
            for direction in term:
                require(
                    direction.basis == circuit.basis,
                    f"head {head.name!r} uses a direction of another basis",
                )


def require_dtype(circuit: Circuit, dtype: str) -> None:
    """Refuse a dtype too coarse for the circuit."""
    require(
        dtype == "float64" or not circuit.float64_only,
        f"dtype {dtype!r} is too coarse: {circuit.float64_only}",
    )


def _configuration(circuit: Circuit, dtype: torch.dtype) -> LatentTransformerConfig:
    """Sizes, rules and names; ``origin`` says how to build the circuit again."""
    layers = [circuit.layer(index) for index in range(circuit.n_layers)]
    n_heads = max(len(heads) for heads in layers)

    def of_heads(said: Callable[[Head], _T], idle: _T) -> tuple[tuple[_T, ...], ...]:
        return tuple((*map(said, heads), *(idle,) * (n_heads - len(heads))) for heads in layers)

    return LatentTransformerConfig(
        layout=circuit.layout,
        d_model=circuit.basis.d_model,
        n_layers=circuit.n_layers,
        n_heads=n_heads,
        d_head=max(max(len(head.scores), len(head.moves)) for head in circuit.heads),
        d_mlp=max(
            sum(neuron.layer == layer for neuron in circuit.neurons)
            for layer in range(circuit.n_layers)
        ),
        act_fn="relu",
        normalization_type=None,
        attention_rules=of_heads(lambda head: head.rule, "softmax"),
        attn_scale=1.0,
        latent_update="replace",
        strip_position=True,
        output="probability",
        value_range=circuit.payload_range
        or (circuit.float32_range if dtype == torch.float32 else None),
        head_names=of_heads(lambda head: head.name, _NO_HEAD),
        name=circuit.name,
        origin={
            "circuit": circuit.name,
            "arguments": dict(circuit.arguments),
            "edits": list(circuit.edits),
        },
    )


def rows(directions: Sequence[Direction], circuit: Circuit) -> Float[Tensor, "direction d_model"]:
    """Directions as the rows of a float64 matrix."""
    for direction in directions:
        require(
            direction.basis == circuit.basis,
            f"circuit {circuit.name!r} uses a direction of another basis",
        )
    vectors = [direction.vector() for direction in directions]
    return (
        torch.from_numpy(np.stack(vectors))
        if vectors
        else torch.zeros(0, circuit.basis.d_model).double()
    )


def places(circuit: Circuit, location: Location) -> list[Place]:
    """The places that together hold a variable at one of its locations, one per position.

    >>> from circuits.registry import build
    >>> circuit = build("wma-handwired", n_experts=2)
    >>> [str(place.site) for place in places(circuit, circuit.location("votes", "embed"))]
    ['embed@p_1', 'embed@p_2']
    """
    labels = dict.fromkeys(location.labels)
    if location.keys:
        assert location.head is not None
        return [
            Place.of(Site.at_hook(location.hook, circuit.head_index(location.head), label))
            for label in labels
        ]
    pairs = list(zip(location.directions, location.labels, strict=True))
    directions = {
        label: np.stack([d.vector() for d, at in pairs if at == label]) for label in labels
    }
    return [
        Place.of(Site.at_hook(location.hook, None, label), directions[label]) for label in labels
    ]


def wired(circuit: Circuit) -> list[Claim]:
    """What the circuit's ground truth claims of every variable, and then its controls.

    >>> from circuits.registry import build
    >>> claims = wired(build("wma-handwired", n_experts=2))
    >>> claims[0].variable, claims[0].outcome, str(claims[0].places[0]), claims[-1].control
    ('log_weights', 'prediction', 'embed@<z> (rank 2)', True)
    """
    claims = []
    for row in circuit.carried:
        together = [
            place
            for at in circuit.locations(row.located, *row.locations)
            for place in places(circuit, at)
        ]
        claims.append(Claim(row.variable, tuple(together), row.outcome))
    return claims + [
        Claim.at(key, [at], outcome, True) for at, (key, outcome) in circuit.not_carried.items()
    ]
