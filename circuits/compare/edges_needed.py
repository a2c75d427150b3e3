"""How many edges does each model need, and how many of them do the two share under the matching of their heads?

The edges of a round (:class:`interp.interventions.edge_graph.EdgeGraph`) are scored by EAP-IG between a run and one
with the task's default corruption, read in the prediction; the fewest best-scored ones whose faithfulness is within
:data:`TOLERANCE` of 1 are *needed*. Heads of one model stand for heads of the other as their roles were matched
(:mod:`circuits.compare.roles`); an edge is shared where its two ends, and the port, are matched and both models need
it. Beside it stands the same count under random matchings of heads.

What this is NOT: the only circuit that does, or evidence that a shared edge carries the same thing in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from circuits.compare.roles import Role
from circuits.compare.subject import Effort, Subject
from circuits.registry import differentiable
from interp.errors import InputError
from interp.interventions.ablation import CircuitScorer, smallest
from interp.interventions.attribution import attribute
from interp.interventions.pairs import corruption, prepare

TOLERANCE = 0.1
"""How far from 1 the faithfulness of the edges that are needed may be."""
N_EPISODES, N_RANDOM = 16, 200
Edges = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Needed:
    """The edges that one model needs for its prediction.

    Attributes:
        model: its name.
        n, of: how many, of how many.
        edges: (source, destination) as the graph names them.
        reason: why they could not be found; "" where they were.
    """

    model: str
    n: int
    of: int
    edges: tuple[tuple[str, str], ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Shared:
    """Edges that both models need, under the matching of their heads.

    Attributes:
        n: how many.
        random_mean, random_most: under random matchings of heads.
    """

    n: int
    random_mean: float
    random_most: int


def needed(subject: Subject, effort: Effort) -> Needed:
    """The fewest best-scored edges that do what the whole model does, at the last round that is looked at."""
    task, t = subject.task, effort.at[-1]
    try:
        model = differentiable(subject.model).eval()
        sizes = task.sizes_of(subject.run(subject.samples.test).layout)
        options = {**task.sample_options(model), **sizes}
        clean, corrupted = corruption(model).build(
            task.sample(N_EPISODES, t + 1, seed=3 * effort.seed + 1003, **options), round=t
        )
        scorer = CircuitScorer(prepare(model, clean, corrupted, t))
        keep = smallest(scorer, attribute(scorer.pair, scorer.measure).edges, TOLERANCE)
    except InputError as error:
        return Needed(subject.name, 0, 0, reason=str(error))
    graph = scorer.graph
    edges = tuple((graph.sources[s], graph.destinations[d]) for s, d in graph.edges if keep[s, d])
    return Needed(subject.name, len(edges), graph.n_edges, edges)


def shared(mine: Needed, theirs: Needed, roles: Sequence[Role], heads: Sequence[str], seed: int) -> Shared | None:
    """How many edges both need; None where those of one are not known.

    Args:
        roles: the heads matched, "layer.head name" each.
        heads: of the reference, as many as a random matching draws from.
    """
    if mine.reason or theirs.reason:
        return None
    other = frozenset(theirs.edges)
    matched = {_number(role.head): _number(role.reference) for role in roles}
    rng, known = np.random.default_rng([seed, 11]), [_number(head) for head in heads]
    counts = [_common(mine, other, dict(zip(matched, rng.permutation(known), strict=False))) for _ in range(N_RANDOM)]
    return Shared(_common(mine, other, matched), float(np.mean(counts)), max(counts))


def _number(head: str) -> str:
    """The place of a head that was named "1.0 2.1 fetch z": "1.0"."""
    return head.split()[0]


def _common(mine: Needed, other: Edges, matched: Mapping[str, str]) -> int:
    def renamed(end: str) -> str | None:
        if end[0].isdigit():
            layer, head, *port = end.split(".")
            of = matched.get(f"{layer}.{head}")
            return None if of is None else ".".join([of, *port])
        return end

    return sum((renamed(s), renamed(d)) in other for s, d in mine.edges)
