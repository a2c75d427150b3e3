"""The heads and neurons of the reachability circuit, its averaging and softmax forms, and its ground truth.

``heads.csv`` says what each head reads and writes, ``edges.csv`` which part reads what. What head 2.1 holds:
``docs/method/reachability-circuit.md``.
"""

from __future__ import annotations

from pathlib import Path

from circuits import heads as wire
from circuits.basis import MIN_MARGIN, Basis, Coordinates, PositionCode
from circuits.circuit import Circuit, VerificationPlan, held, located, table
from interp import tasks
from interp.core.algorithm import Values
from interp.support.checks import integer
from interp.support.errors import require, require_known
from interp.tasks.reachability import ReachabilityEpisodes, sample
from interp.tasks.reachability.algorithms import breadth_first
from interp.tasks.reachability.episodes import joined
from interp.tasks.reachability.layout import ReachabilityRound

_FOLDER = Path(__file__).parent
_EXPANSIONS = ("sum", "mean")
_NAME = "reachability-handwired"
_ANSWER = (
    60.0  # score by which a marked candidate leads in head 2.2: others weigh at most e^-60 of it
)
_SINK = 400.0  # score that sends every query but p? to the sink in head 2.2


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
    blocks = {
        "id": tuple(token.strip("<>") for token in layout.vocabulary),
        "near": nodes,
        "far": nodes,
        "out": (*nodes, "in"),
    }
    basis = coordinates.basis(blocks, layout.labels)
    mean = expand == "mean" or eta is not None
    heads = wire.softmax_only(_heads(basis, layout, mean), eta, lambda head: (head,))
    neurons = _neurons(basis, nodes, n_edges if mean else 1)
    ids = basis["id"]
    one_hot, every = coordinates.one_hot, layout.labels
    sources, targets, bound = (
        wire.numbered(letter, n_edges) for letter in ("s", "t", "e" if marks else "t")
    )
    groups = {
        "ALL": every,
        "NAMES": nodes,
        "SOURCES": sources,
        "TARGETS": targets,
        "NODES": [*sources, *targets, "c_1", "c_2", "r"],
        "MARKS": bound if marks else (),
        "BOUND": bound,
        # Sinusoidal codes overlap with all others; one-hot ones are told by one axis, and none lies outside the round.
        "BACK1": every[:-1] if one_hot else every,
        "BACK2": every[:-2] if one_hot else every,
        "AT_Z": ["<z>"] if one_hot else every,
        "OF_Z": ["<z>"] if one_hot else ["<w>", "<z>"],
        "AT_C": ["c_1", "c_2"] if one_hot else every,
    }
    form = {
        "marks" if marks else "unmarked",
        *["mean"] * mean,
        *["sinusoidal"] * (not one_hot),
        *["exact"] * (not eta),
    }
    sites = located(wire.stated(_FOLDER / "sites.csv", form), basis, groups, {}, {})
    return Circuit(
        name=_NAME,
        arguments=arguments,
        layout=layout,
        basis=basis,
        heads=heads,
        neurons=neurons,
        tokens={token: ids[token.strip("<>")] for token in layout.vocabulary},
        latents=(basis.zero,),
        outcomes=tuple(basis["out"][node] for node in layout.outcomes),
        state=tuple(ids[node] for node in layout.outcomes),
        algorithm=breadth_first(),
        sites=sites,
        **held(wire.stated(_FOLDER / "held.csv", form), sites, groups),
        edges=table(
            wire.stated(_FOLDER / "edges.csv", form), wire.names((*heads, *neurons)), groups
        ),
    )


def _heads(basis: Basis, layout: ReachabilityRound, mean: bool) -> tuple[wire.Head, ...]:
    """Layer 1 reads the round, layer 2 computes."""
    ids, out, pos, nodes = basis["id"], basis["out"], basis["pos"], layout.outcomes
    sink, one, at = ids["w"], basis.one, layout.position
    z = basis.code(at("<z>"))
    # What of z's code the sink has, too.
    shared = basis.positions.overlap(at("<z>"), at("<w>"))
    back = 2 if layout.marks else 1
    binding = ids["e"] if layout.marks else pos.sum(f"t_{i}" for i in range(1, layout.n_edges + 1))
    looking = one - ids["w?"] - (ids["e"] if layout.marks else 0.0 * one)
    near = wire.fixed_offset("1.1 near", 0, 1, wire.copy(basis, nodes, "id", "near"), looking, sink)
    source = wire.fixed_offset(
        "1.2 source", 0, back, wire.copy(basis, nodes, "id", "far"), one - binding, sink
    )
    fetch = wire.content_chooser(
        "1.3 fetch z", 0, ((ids["w?"], z),), wire.copy(basis, nodes, "id", "near"), sink
    )
    wanted = (*wire.match(basis, nodes, "id", "id"), (one, z))
    mark = ((z - shared * sink, out["in"]),)
    member = wire.content_chooser(
        "1.4 member", 0, wanted, mark, sink, theta=2.0 - basis.positions.margin / 2
    )
    matches = wire.match(basis, nodes, "near", "far")
    moves = wire.copy(basis, nodes, "near" if layout.marks else "id", "near")
    expand = (
        wire.content_chooser("2.1 expand", 1, matches, moves, sink)
        if mean
        else wire.Head("2.1 expand", 1, "linear", matches, moves)
    )
    candidates = (
        2.0 / _apart(basis.positions, layout) * (basis.code(at("c_1")) + basis.code(at("c_2")))
        + out["in"]
    )
    scores = (_ANSWER * ids["p?"], candidates), (_SINK * (one - ids["p?"]), sink)
    answer = wire.Head("2.2 answer", 1, "softmax", scores, wire.copy(basis, nodes, "id", "out"))
    form = {"marks" if layout.marks else "unmarked", *["mean"] * mean}
    return wire.in_words(
        (near, source, fetch, member, expand, answer), wire.stated(_FOLDER / "heads.csv", form)
    )


def _apart(codes: PositionCode, layout: ReachabilityRound) -> float:
    """By how much the candidates' codes overlap with both of them more than those of all positions before p?."""
    candidates = layout.position("c_1"), layout.position("c_2")
    alike = [
        sum(codes.overlap(j, c) for c in candidates) for j in range(layout.predict_position + 1)
    ]
    apart = min(alike[c] for c in candidates) - max(
        value for j, value in enumerate(alike) if j not in candidates
    )
    require(
        apart > MIN_MARGIN,
        f"{len(codes.lines)} lines do not tell the candidates from all other positions (margin {apart:.2g}, "
        f"{MIN_MARGIN:g} is needed); give more lines, another seed, or one-hot positions",
    )
    return apart


def _neurons(basis: Basis, nodes: tuple[str, ...], gain: int) -> tuple[wire.Neuron, ...]:
    """Neurons that clip every node to 0 or 1 and clear what is not the new set.

    A node counts as reached from ``.75 / gain`` on, and as not reached up to ``.25 / gain``.
    """
    ids, near = basis["id"], basis["near"]
    # From the second round on z holds the root, and z + r holds it twice.
    neurons = [wire.Neuron("1 clip", 0, near[node], -1.0, -near[node]) for node in nodes]
    for node in nodes:
        neurons.append(wire.Neuron("2 reached", 1, 2.0 * gain * near[node], -0.5, ids[node]))
        neurons.append(wire.Neuron("2 at most once", 1, 2.0 * gain * near[node], -1.5, -ids[node]))
        neurons.append(wire.Neuron("2 clear", 1, near[node], 0.0, -near[node]))
    return (*neurons, wire.Neuron("2 clear w?", 1, ids["w?"], 0.0, -ids["w?"]))


def _episodes(circuit: Circuit, n_rounds: int, n_episodes: int, seed: int) -> ReachabilityEpisodes:
    """Any digraphs and long paths; more rounds than nodes would repeat the same set."""
    n_nodes, n_edges = circuit.arguments["n_nodes"], circuit.arguments["n_edges"]
    rounds = min(n_rounds, n_nodes + 1)
    regimes = ("uniform", "path")
    parts = [
        sample(max(1, n_episodes // 2), rounds, n_nodes, n_edges, regime, seed)
        for regime in regimes
    ]
    return joined(parts, " and ".join(regimes))


def _soft(circuit: Circuit, values: Values, key: str) -> tuple[float, str]:
    """What softmax heads leave of what they gather; the sets that are carried, which neurons clip, stay exact."""
    lost, n = circuit.leak, len(circuit.layout.labels)
    if lost and key in ("source", "target", "frontier", "residue"):
        return n * lost, f"{n} positions x e^(-eta/2)"
    if lost and key == "member":
        return lost * (1 + n * lost), "e^(-eta/2) for the one key that marks"
    if lost and key in ("prediction", "distribution"):
        return 30 * lost * (1 + n * lost), "scores of 60 x two marks x 1/4 x e^(-eta/2)"
    return 0.0, ""


PLAN = VerificationPlan(
    sizes=((5, 4), (8, 12), (14, 20), (30, 60)),
    episodes=_episodes,
    output="prediction",
    # The sets are zeros and ones, and the answer is 0, 1/2 or 1 but for e^-60.
    tolerance=lambda key, dtype: (1e-6 if dtype == "float32" else 1e-12, "error"),
    soft=_soft,
)
"""How :func:`circuits.verify` checks this machine."""
