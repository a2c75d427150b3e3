"""The heads and neurons of the reachability circuit, layer by layer, and its averaging and softmax forms."""

from __future__ import annotations

from circuits.basis import MIN_MARGIN, Basis, Coordinates, PositionCode
from circuits.circuit import Circuit
from circuits.heads import Head, Neuron, content_chooser, copy, fixed_offset, in_words, match, names, softmax_only
from circuits.reachability.ground_truth import CARRIED, NOT_CARRIED, edges, sites
from circuits.stated import present
from interp import tasks
from interp.checks import integer
from interp.errors import require, require_known
from interp.tasks.reachability.algorithms import breadth_first
from interp.tasks.reachability.layout import ReachabilityRound

_EXPANSIONS = ("sum", "mean")
_NAME = "reachability-handwired"
_ANSWER = 60.0
"""Score by which a marked candidate leads in head 2.2: others weigh at most e^-60 of it."""
_SINK = 400.0
"""Score that sends every query but p? to the sink in head 2.2."""

_WORDS = """
1.3  w? looks at z                                                        near(w?) += z_t
1.4  every node looks for itself in z                                     out[in](c_k) = [c_k in z_t]
2.1  w? looks at the edges whose source is in near(w?)                    near(w?) += the targets of active edges
2.2  p? looks at the candidates, at marked ones only where there are any  out(p?) = P(c_1) u_{c_1} + P(c_2) u_{c_2}
"""
"""What each head reads and writes."""
_WORDS_MARKED = """
1.1  marks e_i and w? look one token back  near(e_i) = t_i; near(w?) = r
1.2  marks e_i look two tokens back        far(e_i) = s_i
"""
_WORDS_UNMARKED = """
1.1  w? looks one token back          near(w?) = r
1.2  targets t_i look one token back  far(t_i) = s_i
"""
_WORDS_MEAN = """
2.1  w? looks at the edges whose source is in near(w?)  near(w?) += the targets of active edges, averaged
"""


@Coordinates.taken_by
def reachability(
    n_nodes: int = 16,
    n_edges: int = 24,
    expand: str = "sum",
    eta: float | None = None,
    marks: bool = True,
    *,
    coordinates: Coordinates,
) -> Circuit:
    """The reachability circuit.

    Args:
        n_nodes: number of names for nodes, at least 4, as for the graphs that the task draws.
        n_edges: length of the list of edges, at least 3.
        expand: "sum" (head 2.1 is linear) or "mean" (it averages over the active edges).
        eta: None for hard and linear heads (exact); else every head is softmax, at inverse temperature ``eta``, and
            head 2.1 averages.
        marks: whether a mark follows every edge, where its two ends are bound; without marks they are bound at the
            edge's target, in rounds as learned models read them.
        coordinates: by the names of their fields: ``positions``, ``n_lines``, ``seed``, ``rotation``. Sinusoidal
            positions need marks: heads are then as wide as there are nodes or lines, not positions.
    """
    arguments = coordinates.joined(locals())
    require_known("way to expand", expand, _EXPANSIONS)
    given = {"n_nodes": n_nodes, "n_edges": n_edges}
    for size in tasks.get("reachability").sizes:
        integer(size.name, given[size.name], size.minimum)
    layout = ReachabilityRound(n_nodes, n_edges, marks=marks)
    require(
        marks or coordinates.one_hot,
        "without marks an edge's target is told by its position, which sinusoidal codes do not; give marks=True, or "
        "positions='one-hot'",
    )
    nodes = layout.outcomes
    blocks = {"id": tuple(map(_name, layout.vocabulary)), "near": nodes, "far": nodes, "out": (*nodes, "in")}
    basis = coordinates.basis(blocks, layout.labels)
    mean = expand == "mean" or eta is not None
    heads = softmax_only(_heads(basis, layout, mean), eta, lambda head: (head,))
    neurons = _neurons(basis, nodes, n_edges if mean else 1)
    ids = basis["id"]
    located = sites(basis, layout, exact=eta is None, mean=mean)
    return Circuit(
        name=_NAME,
        arguments=arguments,
        layout=layout,
        basis=basis,
        heads=heads,
        neurons=neurons,
        tokens={token: ids[_name(token)] for token in layout.vocabulary},
        latents=(basis.zero,),
        outcomes=tuple(basis["out"][node] for node in layout.outcomes),
        state=tuple(ids[node] for node in layout.outcomes),
        algorithm=breadth_first(),
        sites=located,
        carried=present(CARRIED, located),
        not_carried=NOT_CARRIED,
        edges=edges(layout, names((*heads, *neurons)), mean, coordinates.one_hot),
    )


def _name(token: str) -> str:
    return token.strip("<>")


def _heads(basis: Basis, layout: ReachabilityRound, mean: bool) -> tuple[Head, ...]:
    """Layer 1 reads the round, layer 2 computes."""
    ids, out, pos, nodes = basis["id"], basis["out"], basis["pos"], layout.outcomes
    sink, one, at = ids["w"], basis.one, layout.position
    z = basis.code(at("<z>"))
    # What of z's code the sink has, too.
    shared = basis.positions.overlap(at("<z>"), at("<w>"))
    back = 2 if layout.marks else 1
    binding = ids["e"] if layout.marks else pos.sum(f"t_{i}" for i in range(1, layout.n_edges + 1))
    looking = one - ids["w?"] - (ids["e"] if layout.marks else 0.0 * one)
    near = fixed_offset("1.1 near", 0, 1, copy(basis, nodes, "id", "near"), looking, sink)
    source = fixed_offset("1.2 source", 0, back, copy(basis, nodes, "id", "far"), one - binding, sink)
    fetch = content_chooser("1.3 fetch z", 0, ((ids["w?"], z),), copy(basis, nodes, "id", "near"), sink)
    wanted = (*match(basis, nodes, "id", "id"), (one, z))
    mark = ((z - shared * sink, out["in"]),)
    member = content_chooser("1.4 member", 0, wanted, mark, sink, theta=2.0 - basis.positions.margin / 2)
    matches = match(basis, nodes, "near", "far")
    moves = copy(basis, nodes, "near" if layout.marks else "id", "near")
    expand = (
        content_chooser("2.1 expand", 1, matches, moves, sink)
        if mean
        else Head("2.1 expand", 1, "linear", matches, moves)
    )
    candidates = 2.0 / _apart(basis.positions, layout) * (basis.code(at("c_1")) + basis.code(at("c_2"))) + out["in"]
    scores = (_ANSWER * ids["p?"], candidates), (_SINK * (one - ids["p?"]), sink)
    answer = Head("2.2 answer", 1, "softmax", scores, copy(basis, nodes, "id", "out"))
    words = _WORDS + (_WORDS_MARKED if layout.marks else _WORDS_UNMARKED) + (_WORDS_MEAN if mean else "")
    return in_words((near, source, fetch, member, expand, answer), words)


def _apart(codes: PositionCode, layout: ReachabilityRound) -> float:
    """By how much the candidates' codes overlap with both of them more than those of all positions before p?."""
    candidates = layout.position("c_1"), layout.position("c_2")
    alike = [sum(codes.overlap(j, c) for c in candidates) for j in range(layout.predict_position + 1)]
    others = [value for j, value in enumerate(alike) if j not in candidates]
    apart = min(alike[c] for c in candidates) - max(others)
    require(
        apart > MIN_MARGIN,
        f"{len(codes.lines)} lines do not tell the candidates from all other positions (margin {apart:.2g}, "
        f"{MIN_MARGIN:g} is needed); give more lines, another seed, or one-hot positions",
    )
    return apart


def _neurons(basis: Basis, nodes: tuple[str, ...], gain: int) -> tuple[Neuron, ...]:
    """Neurons that clip every node to 0 or 1 and clear what is not the new set.

    A node counts as reached from ``.75 / gain`` on, and as not reached up to ``.25 / gain``.
    """
    ids, near = basis["id"], basis["near"]
    # From the second round on z holds the root, and z + r holds it twice.
    neurons = [Neuron("1 clip", 0, near[node], -1.0, -near[node]) for node in nodes]
    for node in nodes:
        neurons.append(Neuron("2 reached", 1, 2.0 * gain * near[node], -0.5, ids[node]))
        neurons.append(Neuron("2 at most once", 1, 2.0 * gain * near[node], -1.5, -ids[node]))
        neurons.append(Neuron("2 clear", 1, near[node], 0.0, -near[node]))
    return (*neurons, Neuron("2 clear w?", 1, ids["w?"], 0.0, -ids["w?"]))
