"""Build the reachability circuit: its heads and neurons, its variants with averaging and with
softmax heads, and its ground truth.

``heads.csv`` says what each head reads and writes, and ``edges.csv`` which component reads the
output of which other component.
``docs/method/reachability-circuit.md`` explains what the scores of head 2.1 contain.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from circuits import heads as wire
from circuits.basis import MIN_MARGIN, Basis, Coordinates, PositionCode
from circuits.circuit import Circuit, VerificationPlan, read_tables
from interp import tasks
from interp.core.algorithm import Values
from interp.support.checks import integer
from interp.support.errors import require, require_known
from interp.tasks.reachability import ReachabilityEpisodes, sample
from interp.tasks.reachability.algorithms import breadth_first
from interp.tasks.reachability.episodes import join_batches
from interp.tasks.reachability.layout import ReachabilityRound
from interp.tasks.sized_round import number_names

_FOLDER = Path(__file__).parent
_EXPANSIONS = ("sum", "mean")
_NAME = "reachability-handwired"
_CANDIDATE_LEAD = 60.0
"""Score lead of a reached candidate in head 2.2: all others get at most e^-60 of its attention."""
_SINK_SCORE = 400.0  # score that sends every query but p? to the sink in head 2.2


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
    """Build the circuit that decides by breadth-first search which of two candidate nodes can be
    reached; heads such as 2.1 are numbered by layer.

    Args:
        n_nodes: number of node names, at least 4; every node of a graph has one of them.
        n_edges: number of edges of a graph, at least 3.
        expand: kind of head 2.1, which finds the targets of edges that start at a reached node:
            "sum" (a linear head, which adds these targets) or "mean" (a hard head, which averages
            them).
        eta: inverse temperature of the softmax heads that replace all hard heads; the circuit is
            then nearly exact, and head 2.1 averages (as with ``expand="mean"``). None keeps hard
            and linear heads, and the circuit is exact.
        marks: True puts a marker token after every edge, where the circuit combines the edge's
            source and target. False has no markers, as in the rounds that learned models read;
            source and target are combined at the target's token.
        coordinates: position codes and rotation of the basis. Callers pass the four fields of
            :class:`~circuits.basis.Coordinates` as keywords in its place: ``positions``,
            ``n_lines``, ``seed``, ``rotation``. ``positions="sinusoidal"`` needs ``marks=True``;
            the heads' width (d_head) then depends on the number of nodes and Fourier lines, not on
            the number of positions.
    """
    arguments = coordinates.joined(locals())
    require_known("way to expand", expand, _EXPANSIONS)
    sizes = {"n_nodes": n_nodes, "n_edges": n_edges}
    for size in tasks.get("reachability").sizes:
        integer(size.name, sizes[size.name], size.minimum)
    layout = ReachabilityRound(n_nodes, n_edges, marks=marks)
    require(
        marks or coordinates.one_hot,
        "without marks an edge's target is told by its position, which sinusoidal codes do not; give marks=True, or "
        "positions='one-hot'",
    )
    nodes = layout.outcomes
    tokens = {token: token.strip("<>") for token in layout.vocabulary}
    blocks = {
        "id": tuple(tokens.values()),
        "near": nodes,
        "far": nodes,
        "out": (*nodes, "in"),
    }
    basis = coordinates.basis(blocks, layout.labels)
    is_mean = expand == "mean" or eta is not None
    one_hot, labels = coordinates.one_hot, layout.labels
    form = {"marks" if marks else "unmarked"}
    if is_mean:
        form.add("mean")
    if not one_hot:
        form.add("sinusoidal")
    if not eta:
        form.add("exact")
    exact_heads = _make_heads(basis, layout, is_mean)
    described_heads = wire.add_descriptions(exact_heads, _FOLDER, form)
    # With a finite eta no head is linear, so that none needs a replacement.
    heads = wire.softmax_only(described_heads, eta, linear=lambda head: (head,))
    # A mean over edges is at least 1 / n_edges where an edge reaches the node.
    neurons = _make_neurons(basis, nodes, n_edges if is_mean else 1)
    ids, out = basis["id"], basis["out"]
    sources, targets = number_names("s", n_edges), number_names("t", n_edges)
    # Where an edge's source and target are combined.
    bound = number_names("e", n_edges) if marks else targets
    # Words of the tables -> labels.
    groups = {
        "ALL": labels,
        "NAMES": nodes,
        "SOURCES": sources,
        "TARGETS": targets,
        "NODES": [*sources, *targets, "c_1", "c_2", "r"],
        "MARKS": bound if marks else (),
        "BOUND": bound,
    }
    # A sinusoidal code overlaps with those of all other positions. A one-hot code has one axis, and
    # there are no codes of positions outside of the round.
    one_back = two_back = near_z = near_c = labels
    of_z: tuple[str, ...] = ("<w>", "<z>")
    if one_hot:
        one_back, two_back = labels[:-1], labels[:-2]
        near_z = of_z = ("<z>",)
        near_c = ("c_1", "c_2")
    groups |= {"BACK1": one_back, "BACK2": two_back, "AT_Z": near_z, "OF_Z": of_z, "AT_C": near_c}
    tables = read_tables(_FOLDER, form, parts=(*heads, *neurons), basis=basis, groups=groups)
    vectors = {token: ids[label] for token, label in tokens.items()}
    outcomes = tuple(out[node] for node in nodes)
    state = tuple(ids[node] for node in nodes)
    return Circuit(
        name=_NAME,
        arguments=arguments,
        layout=layout,
        basis=basis,
        heads=heads,
        neurons=neurons,
        tokens=vectors,
        latents=(basis.zero,),
        outcomes=outcomes,
        state=state,
        algorithm=breadth_first(),
        **tables,
    )


def _make_heads(basis: Basis, layout: ReachabilityRound, is_mean: bool) -> list[wire.Head]:
    """Make all heads: those of layer 1 read edges and the latent; those of layer 2 add the nodes
    that are newly reached, and answer.

    Args:
        basis: basis of the residual stream.
        layout: the positions of a round.
        is_mean: True if head 2.1 averages over edges, False if it sums.
    """
    ids, out, pos, nodes = basis["id"], basis["out"], basis["pos"], layout.outcomes
    sink, constant, position = ids["w"], basis.one, layout.position

    copy = partial(wire.copy, basis, nodes)  # (source block, target block)
    z = basis.code(position("<z>"))
    # The component of z's position code that the sink's position has, too.
    shared = basis.positions.overlap(position("<z>"), position("<w>"))
    # Gates are 0 at the tokens that look back, and 1 at all others, which attend to the sink.
    gate_of_near = constant - ids["w?"]
    # Source and target of an edge are combined at one position. `is_combining` reads 1 there, and
    # the source stands `source_offset` positions before it.
    if layout.marks:
        source_offset, is_combining = 2, ids["e"]
        gate_of_near = gate_of_near - ids["e"]
    else:
        source_offset, is_combining = 1, pos.sum(number_names("t", layout.n_edges))
    near, far = copy("id", "near"), copy("id", "far")
    same_node_in_z = (*wire.match(basis, nodes, "id", "id"), (constant, z))
    mark = ((z - shared * sink, out["in"]),)
    # A member of the set scores 2 at z, 1 for the node and 1 for the position; others less by the
    # margin or more.
    theta = 2.0 - basis.positions.margin / 2
    matches = wire.match(basis, nodes, "near", "far")
    moves = copy("near" if layout.marks else "id", "near")
    expand = wire.Head("2.1 expand", layer=1, rule="linear", scores=matches, moves=moves)
    if is_mean:
        expand = wire.content_chooser("2.1 expand", layer=1, wanted=matches, moves=moves, sink=sink)
    # Scaled so that candidates score 2 more than other positions; 1 more if they are reached.
    codes = basis.code(position("c_1")) + basis.code(position("c_2"))
    candidates = 2.0 / _measure_lead(basis.positions, layout) * codes + out["in"]
    to_candidates = (_CANDIDATE_LEAD * ids["p?"], candidates)
    to_sink = (_SINK_SCORE * (constant - ids["p?"]), sink)
    scores = (to_candidates, to_sink)
    of_z = ((ids["w?"], z),)
    answer = wire.Head(
        "2.2 answer", layer=1, rule="softmax", scores=scores, moves=copy("id", "out")
    )
    return [
        wire.fixed_offset("1.1 near", layer=0, offset=1, moves=near, gate=gate_of_near, sink=sink),
        wire.fixed_offset(
            "1.2 source",
            layer=0,
            offset=source_offset,
            moves=far,
            gate=constant - is_combining,
            sink=sink,
        ),
        wire.content_chooser("1.3 fetch z", layer=0, wanted=of_z, moves=near, sink=sink),
        wire.content_chooser(
            "1.4 member", layer=0, wanted=same_node_in_z, moves=mark, sink=sink, theta=theta
        ),
        expand,
        answer,
    ]


def _measure_lead(codes: PositionCode, layout: ReachabilityRound) -> float:
    """Measure how well head 2.2 can tell the two candidates from other positions by their position
    codes.

    The head looks for the sum of the codes of the two candidates' positions.

    Args:
        codes: the code of each position.
        layout: the positions of a round; those after ``p?`` do not count.

    Returns:
        The smallest inner product of this sum with the code of a candidate, minus the largest with
        the code of another position.

    Raises:
        InputError: the difference is too small to separate the candidates.
    """
    candidates = layout.position("c_1"), layout.position("c_2")
    of_candidates: list[float] = []
    of_others: list[float] = []
    for j in range(layout.predict_position + 1):
        # Inner product of the code of position j with the sum of both candidates' codes.
        overlap = sum(codes.overlap(j, c) for c in candidates)
        overlaps = of_candidates if j in candidates else of_others
        overlaps.append(overlap)
    lead = min(of_candidates) - max(of_others)
    require(
        lead > MIN_MARGIN,
        f"{len(codes.lines)} lines do not tell the candidates from all other positions (margin {lead:.2g}, "
        f"{MIN_MARGIN:g} is needed); give more lines, another seed, or one-hot positions",
    )
    return lead


def _make_neurons(basis: Basis, nodes: tuple[str, ...], gain: int) -> tuple[wire.Neuron, ...]:
    """Make the neurons, which round every node's entry to 0 (not reached) or 1, and erase
    everything but the new set of reached nodes.

    Args:
        basis: basis of the residual stream.
        nodes: names of the nodes.
        gain: factor of the entries before rounding: entries from ``.75 / gain`` on become 1, and
            entries up to ``.25 / gain`` become 0. Averages over edges are small and need a large
            gain.
    """
    ids, near = basis["id"], basis["near"]
    # The sum of the latent's set and of the root r counts the root twice, if the set has it already.
    # x - relu(x - 1) turns 2 into 1, and leaves 0 and 1.
    neurons = [
        wire.Neuron("1 clip", layer=0, read=near[node], bias=-1.0, write=-near[node])
        for node in nodes
    ]
    for node in nodes:
        copied, written = near[node], ids[node]
        reached = 2.0 * gain * copied
        # relu(y - .5) - relu(y - 1.5), with y = 2 gain x, rises from 0 to 1 between y = .5 and 1.5.
        neurons += [
            wire.Neuron("2 reached", layer=1, read=reached, bias=-0.5, write=written),
            wire.Neuron("2 at most once", layer=1, read=reached, bias=-1.5, write=-written),
            wire.Neuron("2 clear", layer=1, read=copied, bias=0.0, write=-copied),
        ]
    return (
        *neurons,
        wire.Neuron("2 clear w?", layer=1, read=ids["w?"], bias=0.0, write=-ids["w?"]),
    )


def _sample_episodes(
    circuit: Circuit, n_rounds: int, n_episodes: int, seed: int
) -> ReachabilityEpisodes:
    """Sample episodes for verification: half on random directed graphs, half on graphs with long
    paths.

    Args:
        circuit: the circuit, for the numbers of nodes and edges.
        n_rounds: number of rounds, cut to the number of nodes + 1, since the set of reached nodes
            cannot grow afterwards.
        n_episodes: number of episodes, both halves together; rounded down to an even number, at
            least 2.
        seed: seed of the draws.
    """
    n_nodes, n_edges = circuit.arguments["n_nodes"], circuit.arguments["n_edges"]
    n_rounds = min(n_rounds, n_nodes + 1)
    n_per_regime = max(1, n_episodes // 2)
    regimes = ("uniform", "path")
    parts = [sample(n_per_regime, n_rounds, n_nodes, n_edges, regime, seed) for regime in regimes]
    return join_batches(parts, " and ".join(regimes))


def _bound_soft_error(circuit: Circuit, values: Values, key: str) -> tuple[float, str]:
    """Bound the error that softmax heads add to a variable.

    The sets that pass to the next round stay exact, because neurons round them to 0 or 1.

    Args:
        circuit: the circuit, for the attention to wrong positions (``leak``) and the sizes.
        values: the values that the algorithm computes; not used.
        key: key of the variable.

    Returns:
        The bound, and a text with its formula; (0, "") if there is no error.
    """
    leak, n = circuit.leak, len(circuit.layout.labels)
    if not leak:
        return 0.0, ""
    # Each of n positions gets at most the share `leak` of the attention.
    if key in ("source", "target", "frontier", "residue"):
        return n * leak, f"{n} positions x e^(-eta/2)"
    # Head 1.4 misses only the share of z, the one key that it reads a mark from. The mark itself is
    # 1 up to n leaks.
    error_of_mark = leak * (1 + n * leak)
    if key == "member":
        return error_of_mark, "e^(-eta/2) for the one key that marks"
    # Head 2.2 multiplies the marks of both candidates by 60; the softmax of two scores changes by at
    # most 1/4 of what their difference changes.
    if key in ("prediction", "distribution"):
        return 30 * error_of_mark, "scores of 60 x two marks x 1/4 x e^(-eta/2)"
    return 0.0, ""


PLAN = VerificationPlan(
    sizes=((5, 4), (8, 12), (14, 20), (30, 60)),
    episodes=_sample_episodes,
    output="prediction",
    # The sets are zeros and ones, and the answer is 0, 1/2 or 1 but for e^-60.
    tolerance=lambda key, dtype: (1e-6 if dtype == "float32" else 1e-12, "error"),
    soft=_bound_soft_error,
)
"""How :func:`circuits.verify` checks this machine."""
