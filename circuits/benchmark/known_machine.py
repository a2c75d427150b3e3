"""Subjects of the benchmark: machines with known mechanisms, on which methods are graded.

    >>> subject = build("wma-handwired", "R", "rotated")
    >>> subject.name, len(subject.edges), sorted(set(subject.edges.values()))
    ('wma-handwired R, rotated', 36, ['clean-up', 'constant', 'content'])
    >>> [str(place) for place in subject.places["log_weights"]]
    ['embed@<z> (rank 3)', 'resid_post[1]@p? (rank 3)', 'resid_post[1]@w? (rank 3)']

``docs/method/benchmark.md`` describes the variants and the questions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from circuits.circuit import EMBEDDINGS, EXITS, Circuit, Kind
from circuits.compiler import activation_sites, compile_circuit, list_wired_claims
from circuits.registry import build as build_circuit
from circuits.registry import get_record
from interp import tasks
from interp.core.algorithm import Algorithm
from interp.core.machine import Machine
from interp.core.task import Task
from interp.interventions.interchange import Claim
from interp.interventions.sites import Place, head_address
from interp.model.config import LatentTransformerConfig
from interp.model.transformer import HookedLatentTransformer
from interp.support.checks import checked, checked_fields
from interp.support.errors import require, require_known

_EdgeName = tuple[str, str]
"""Source and destination of an edge, named as in
:class:`interp.interventions.edge_graph.EdgeGraph`.
"""
_SOFT = {"eta": 60.0}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "R": ("wma-handwired", {"variant": "R"}),
    "R, softmax": ("wma-handwired", {"variant": "R", **_SOFT}),
    "P": ("wma-handwired", {"variant": "P"}),
    "P, softmax": ("wma-handwired", {"variant": "P", **_SOFT}),
    "mlp": ("qlearning-handwired", {"variant": "mlp"}),
    "mlp, softmax": ("qlearning-handwired", {"variant": "mlp", **_SOFT}),
    "softmlp": ("qlearning-handwired", {"variant": "softmlp"}),
    "softmlp, softmax": ("qlearning-handwired", {"variant": "softmlp", **_SOFT}),
    "lin": ("qlearning-handwired", {"variant": "lin"}),
    "lin, softmax": ("qlearning-handwired", {"variant": "lin", **_SOFT}),
    "sum": ("reachability-handwired", {"expand": "sum"}),
    "mean": ("reachability-handwired", {"expand": "mean"}),
    "mean, softmax": ("reachability-handwired", _SOFT),
}
"""Every form, a way to construct a circuit -> the machine's name in the registry, and the arguments
with which the registry builds the form.
"""
SIZES: dict[str, dict[str, int]] = {
    "wma-handwired": {"n_experts": 3},
    "qlearning-handwired": {"n_states": 3, "n_actions": 2},
    "reachability-handwired": {"n_nodes": 5, "n_edges": 4},
}
"""Task sizes of each machine."""
VARIANTS = ("plain", "rotated", "distractors", "superposed", "simplex")
_SUM_FREE_FORMS = ("R", "P", "P, softmax")
"""Forms whose predictions need only differences of the state, so that its sum can be removed.

"R, softmax" needs only differences, too. It is left out because its updates subtract numbers of
about 1e15, which round differently without the sum.
"""
_KINDS_BY_IMPORTANCE: tuple[Kind, ...] = ("clean-up", "constant", "content")
"""Kinds of edges, the most important last: an edge that merges several gets the most important
kind.
"""


@dataclass(frozen=True, eq=False)
@checked_fields
class KnownMachine:
    """A subject of the benchmark: a model with a known mechanism, on which interpretability methods
    are graded.

    Attributes:
        name: machine, form and variant, such as "wma-handwired R, rotated".
        machine: name of the handwired model in the registry.
        form: how the model is constructed: a key of :data:`FORMS`, such as "R, softmax".
        variant: how the constructed model was changed afterwards: one of :data:`VARIANTS`, such as
            "rotated".
        model: the model.
        algorithm: the algorithm that the model computes, with its parameters.
        edges: (source, destination) of every true edge, as names of components -> kind of the edge,
            such as "content"; None if the edges are unknown.
        places: key of a variable -> every place in the activations that stores it.
        claims: one or more for each variable. A claim has the places where activations must be
            swapped together between two runs to swap the variable, and the output that shows the
            effect.
    """

    name: str
    machine: str
    form: str
    variant: str
    model: Machine
    algorithm: Algorithm
    edges: Mapping[_EdgeName, Kind] | None
    places: Mapping[str, tuple[Place, ...]]
    claims: tuple[Claim, ...] = ()

    @property
    def task(self) -> Task:
        """The model's task, as it is registered in :mod:`interp.tasks`."""
        return tasks.of(self.model)

    @property
    def transformer(self) -> HookedLatentTransformer:
        """The field ``model`` with the type of a transformer, for type checkers. Questions about
        edges and nodes need a transformer.
        """
        return cast(HookedLatentTransformer, self.model)


def _list_true_edges(circuit: Circuit) -> dict[_EdgeName, Kind]:
    """Return the circuit's edges as (source, destination) names of nodes in the edge graph, with
    their kinds.

    The edge graph has one node for all embeddings, and one for all neurons of a layer. Edges that
    merge get the most important of their kinds: content, then constant, then clean-up.
    """
    # Name in the circuit -> name of the node in the edge graph.
    nodes = {name: name for name in EXITS} | dict.fromkeys(EMBEDDINGS, "embed")
    for neuron in circuit.neurons:
        nodes[neuron.name] = f"mlp {neuron.layer}"
    heads = [head.name for head in circuit.heads]
    for head in circuit.heads:
        nodes[head.name] = head_address(head.layer, circuit.head_index(head.name))
    kinds: dict[_EdgeName, Kind] = {}
    for edge in circuit.edges:
        destination = nodes[edge.target]
        if edge.target in heads:
            destination += f".{edge.port[0]}"  # "q", "k" or "v"
        name = nodes[edge.source], destination
        kinds[name] = max(kinds.get(name, edge.kind), edge.kind, key=_KINDS_BY_IMPORTANCE.index)
    return kinds


@checked
def build(machine: str, form: str, variant: str = "plain", *, seed: int = 0) -> KnownMachine:
    """Build a model with a known mechanism, on which interpretability methods are graded. It is in
    float64.

    Args:
        machine: name of a handwired model in the registry, such as "wma-handwired".
        form: how the circuit is constructed, a key of :data:`FORMS`. In "R, softmax", "R" is the
            variant of the circuit ("R" or "P" for Weighted Majority), and "softmax" means that
            every attention head is a softmax of inverse temperature 60, instead of hard or linear.
        variant: a change that keeps the model's behaviour, one of :data:`VARIANTS`. "plain" is no
            change; "rotated" a random rotation of the residual stream; "distractors" adds random
            heads and neurons that nothing reads; "superposed" uses overlapping sinusoidal position
            codes; "simplex" removes the sum of the log-weights.
        seed: seed of the variant's random numbers: the rotation, the distractors' weights or the
            position codes.

    Returns:
        The model, the algorithm that it computes, and its true edges, places and claims.
    """
    require_known("variant", variant, VARIANTS)
    get_record(machine)
    forms = [key for key, (name, _) in FORMS.items() if name == machine]
    require_known(f"form of {machine!r}", form, forms)
    possible = variants(form)
    require(
        variant in possible,
        f"{machine!r} {form!r} cannot be {variant}; take {', '.join(possible)}",
    )
    _, form_arguments = FORMS[form]
    arguments = {**SIZES[machine], **form_arguments}
    circuit = build_circuit(machine, **arguments)
    if variant == "superposed":
        n_lines = (circuit.layout.n_positions - 1) // 2
        circuit = build_circuit(
            machine, **arguments, positions="sinusoidal", n_lines=n_lines, seed=seed
        )
    model, change = _make_variant(compile_circuit(circuit), circuit, variant, seed)

    def convert_place(place: Place) -> Place:
        """Convert a place in the residual stream to the coordinates of the variant; return other
        places unchanged.
        """
        if change is None or place.basis is None or place.site.kind.axes not in ("pos", "latent"):
            return place
        basis = change @ place.basis
        return replace(place, basis=orthonormal_basis(basis) if variant == "simplex" else basis)

    places_by_variable = {}
    for key, locations in circuit.sites.items():
        places: list[Place] = []
        for location in locations:
            places += map(convert_place, activation_sites(circuit, location))
        places_by_variable[key] = tuple(places)
    claims = []
    for claim in list_wired_claims(circuit):
        if not claim.control:
            claims.append(replace(claim, places=tuple(map(convert_place, claim.places))))
    return KnownMachine(
        name=f"{machine} {form}, {variant}",
        machine=machine,
        form=form,
        variant=variant,
        model=model,
        algorithm=circuit.algorithm,
        edges=_list_true_edges(circuit),
        places=places_by_variable,
        claims=tuple(claims),
    )


def _make_variant(
    model: HookedLatentTransformer, circuit: Circuit, variant: str, seed: int
) -> tuple[HookedLatentTransformer, Float[Tensor, "new old"] | None]:
    """Change a compiled model into a variant that computes the same function.

    Args:
        model: the compiled model.
        circuit: the circuit that the model was compiled from.
        variant: one of :data:`VARIANTS`, such as "rotated".
        seed: seed of rotations and distractors.

    Returns:
        The changed model; and a matrix that converts directions of the residual stream (columns,
        multiplied from the right) from the old model to the new one, or None if they stay the same.
    """
    if variant == "rotated":
        turn = _draw_rotation(model, seed)  # multiplied from the right, as the stream is a row
        return rotate_residual_stream(model, seed), turn.T.double()
    if variant == "distractors":
        larger = with_distractors(model, seed=seed)
        # Directions have no component along the added coordinates.
        change = torch.eye(larger.config.d_model, circuit.basis.d_model, dtype=torch.float64)
        return larger, change
    if variant == "simplex":
        # At each place, the direction along which all log-weights grow together.
        sums = []
        for location in circuit.sites["log_weights"]:
            for place in activation_sites(circuit, location):
                if place.basis is not None:
                    sums.append(place.basis.sum(1))
        lost = torch.stack(sums).to(model.W_E)
        return remove_directions(model, lost), _drop_columns(lost).double().T
    return model, None


def variants(form: str) -> tuple[str, ...]:
    """Return the names of the variants (changes that keep the behaviour) that a form of a machine
    can have.

    "simplex" needs a form of Weighted Majority that predicts only from differences of the
    log-weights, so that their sum can be removed. Every form can have the others.

    Args:
        form: how the machine is constructed: a key of :data:`FORMS`, such as "R, softmax".

    >>> variants("R"), variants("sum")
    (('plain', 'rotated', 'distractors', 'superposed', 'simplex'), ('plain', 'rotated', 'distractors', 'superposed'))
    """
    if form in _SUM_FREE_FORMS:
        return VARIANTS
    return tuple(variant for variant in VARIANTS if variant != "simplex")


def orthonormal_basis(
    columns: Float[Tensor, "dimension vector"],
) -> Float[Tensor, "dimension rank"]:
    """Return an orthonormal basis, as the columns of a matrix ``[dimension, rank]``, of the space
    that the columns of the argument span.
    """
    vectors, sizes, _ = torch.linalg.svd(columns.double(), full_matrices=False)
    return vectors[:, sizes > 1e-9 * sizes[:1]]


def rotate_residual_stream(
    model: HookedLatentTransformer, seed: int = 0
) -> HookedLatentTransformer:
    """Return a copy of the model with a residual stream that is rotated to a random orthonormal
    basis.

    All weights that read or write the stream are rotated. Predictions stay equal up to rounding,
    except where hard attention relies on exact ties.

    Args:
        model: the model.
        seed: seed of the rotation.
    """
    return transform_residual_stream(
        model, _draw_rotation(model, seed), "rotated", f"rotated, seed {seed}"
    )


def remove_directions(
    model: HookedLatentTransformer, lost: Float[Tensor, "lost d_model"]
) -> HookedLatentTransformer:
    """Return a copy of the model without some directions of its residual stream. The stream's width
    falls by the rank of the directions.

    docs/method/benchmark.md says when predictions stay the same. A model with LayerNorm is refused,
    because the removed directions contribute to the norm.

    Args:
        model: the model.
        lost: the directions to remove, ``[direction, d_model]``.

    >>> import interp
    >>> model = interp.load("wma-handwired", n_experts=2)
    >>> model.config.d_model - remove_directions(model, model.state_map.sum(0, keepdim=True)).config.d_model
    1
    """
    require(
        model.config.normalization_type is None,
        f"{model.name!r} has LayerNorm; give a model without it",
    )
    columns = _drop_columns(lost)
    n_lost = len(columns) - columns.shape[1]
    return transform_residual_stream(model, columns, "without", f"{n_lost} directions taken out")


def _drop_columns(lost: Float[Tensor, "lost d_model"]) -> Float[Tensor, "d_model left"]:
    """Return an orthonormal basis, as columns, of all directions orthogonal to the rows of
    ``lost``.
    """
    _, sizes, rows = torch.linalg.svd(lost, full_matrices=True)
    rank = int((sizes > 1e-9 * sizes.max()).sum())
    return rows[rank:].T  # the first `rank` right singular vectors span the rows of `lost`


def transform_residual_stream(
    model: HookedLatentTransformer,
    columns: Float[Tensor, "d_model new"],
    suffix: str,
    edit: str,
    back: Float[Tensor, "new d_model"] | None = None,
) -> HookedLatentTransformer:
    """Return a copy of the model with other coordinates of the residual stream. All weights that
    read or write the stream are changed accordingly.

    Args:
        model: the model.
        columns: matrix that converts the residual stream, a row vector, from old to new coordinates
            when multiplied from the right.
        suffix: text that is added to the model's name.
        edit: description of the change, for the model's origin.
        back: matrix that converts new coordinates to old ones. None takes the transpose of
            ``columns``, which is right if the columns are orthonormal.
    """
    config = replace(name_edited_model(model.config, suffix, edit), d_model=columns.shape[1])
    back = columns.T if back is None else back
    # The rows of the state map read the state from latents x, by x @ row: they change like weights
    # that read.
    changed = HookedLatentTransformer(config, model.state_map @ back.T).to(model.W_E)
    weights = dict(model.named_parameters())
    # What reads x W of the old stream x = x' back must read x' (back W); what writes y must write
    # y columns.
    with torch.no_grad():
        for name, parameter in changed.named_parameters():
            _, _, last = name.rpartition(".")
            weight = weights[name]
            if last in _READS:
                weight = back @ weight
            if last in _WRITES:
                weight = weight @ columns
            parameter.copy_(weight)
    return changed.train(model.training)


_READS = ("W_Q", "W_K", "W_V", "W_in", "W_U", "W_write")
_WRITES = ("W_E", "W_val", "W_pos", "init", "W_O", "b_O", "W_out", "b_out", "W_write", "b_write")
"""Parameters that write to the residual stream (``_READS``: that read it), by the last part of
their names.
"""


def with_distractors(
    model: HookedLatentTransformer, n: int = 2, seed: int = 0
) -> HookedLatentTransformer:
    """Return a copy of the model with additional random heads in every layer and random neurons in
    every MLP. No component reads what they write.

    Args:
        model: the model.
        n: number of heads, and of neurons, to add to each layer.
        seed: seed of their weights.
    """
    require(n >= 1, f"n must be an integer >= 1, got {n}")
    config = model.config
    # Distractors write to new coordinates; with LayerNorm to none, since these would change the norm.
    n_written = n if config.normalization_type is None else 0
    distractors = [f"distractor {i + 1}" for i in range(n)]
    rules = tuple((*row, *("softmax",) * n) for row in config.attention_rules)
    # One row per layer; a model without names of heads has no row.
    names = tuple((*row, *distractors) for row in config.head_names)
    larger = replace(
        name_edited_model(config, "distractors", f"{n} distractors a layer, seed {seed}"),
        d_model=config.d_model + n_written,
        n_heads=config.n_heads + n,
        d_mlp=config.d_mlp + n if config.d_mlp else 0,  # a model without MLPs stays so
        attention_rules=rules,
        head_names=names,
    )
    state_map = pad(model.state_map, (0, n_written))
    grown = HookedLatentTransformer(larger, state_map).to(model.W_E)
    old_weights = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in grown.named_parameters():
            weight.zero_()
            old_weight = old_weights[name]
            first_entries = tuple(slice(size) for size in old_weight.shape)  # of each axis
            weight[first_entries] = old_weight
        _draw_distractors(grown, config, seed)
    return grown.eval()


def _draw_distractors(
    model: HookedLatentTransformer, config: LatentTransformerConfig, seed: int
) -> None:
    """Draw the weights of additional heads and neurons in place, which needs ``torch.no_grad()``.
    They read the coordinates that the residual stream had before, and write to those that were added.

    Args:
        model: the model with these heads and neurons, after those that it had before.
        config: configuration of the model before.
        seed: seed of the weights.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(weight: Tensor, fan_in: int) -> None:
        """Draw weights in place, with the standard deviation 1 / sqrt(fan_in), where ``fan_in`` is
        the number of inputs that one head or neuron sums. So outputs are about as large as
        inputs.
        """
        normal = torch.randn(weight.shape, generator=generator)
        weight.copy_(normal / fan_in**0.5)

    old, added = slice(config.d_model), slice(config.d_model, None)  # coordinates
    heads, neurons = slice(config.n_heads, None), slice(config.d_mlp, None)  # the additional ones
    for block in model.blocks:
        attn, mlp = block.attn, block.mlp
        for read in (attn.W_Q, attn.W_K, attn.W_V):
            draw(read[heads, old], config.d_model)
        draw(attn.W_O[heads, :, added], config.d_head)
        if mlp is not None:
            draw(mlp.W_in[old, neurons], config.d_model)
            draw(mlp.W_out[neurons, added], 1)  # a neuron writes its single activation


def name_edited_model(
    config: LatentTransformerConfig, suffix: str, edit: str
) -> LatentTransformerConfig:
    """Return the configuration for an edited model: a new name, and the edit recorded in its
    ``origin``.

    Args:
        config: configuration of the model before the edit.
        suffix: text that is added to the model's name.
        edit: description of the edit.
    """
    edits = [*config.origin.get("edits", []), edit]
    origin = {**config.origin, "edits": edits}
    return replace(config, name=f"{config.name}-{suffix}", origin=origin)


def _draw_rotation(model: HookedLatentTransformer, seed: int) -> Float[Tensor, "d_model d_model"]:
    """Draw a random orthogonal matrix ``[d_model, d_model]`` for the model's residual stream.

    For a model with LayerNorm, the matrix leaves the all-ones vector fixed, so that the mean over
    coordinates is preserved.
    """
    d, generator = model.config.d_model, torch.Generator().manual_seed(seed)
    n_fixed = int(model.config.normalization_type is not None)
    n_free = d - n_fixed
    start = torch.cat([torch.ones(d, n_fixed), torch.randn(d, n_free, generator=generator)], 1)
    # An orthonormal frame, whose first direction (with LayerNorm) is that of the all-ones vector.
    # The matrix rotates the other directions among themselves.
    frame, _ = torch.linalg.qr(start.double())
    turn, _ = torch.linalg.qr(torch.randn(n_free, n_free, generator=generator).double())
    inner = torch.block_diag(torch.eye(n_fixed).double(), turn)
    return (frame @ inner @ frame.T).to(model.W_E)
