"""Known machines of reachability, held against parallel breadth-first search.

What the words mean is said in :mod:`lab.known.experts`. The *state* is the set of nodes that are held: one that
lacks nodes, or holds others, is another set. Graphs stay the same for a whole episode, so that a lapse that touches one
edge or one node shows wherever an answer rests on it, which is seldom.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from circuits.compare.variants import rotated, with_distractors
from circuits.registry import load
from interp import library
from interp.algorithm import Algorithm, Values, Variable
from interp.machine import Machine
from interp.model.transformer import untrained
from interp.tasks.reachability import algorithms
from interp.tasks.reachability.layout import ReachabilityRound
from lab.known import by_algorithm, edits
from lab.known.specimen import Specimen, specimen

_SIZES: dict[str, Any] = {"n_nodes": 28, "n_edges": 24}
"""As many names as trained models have."""
_NODE, _ASKED = 5, 3
"""The node that one machine never holds, and the first candidate at which another one answers the opposite."""

_specimen = partial(specimen, "reachability")


wired = partial(load, "reachability-handwired", **_SIZES, marks=False)
"""The reference, or the same circuit made with other options."""


def computed(algorithm: Algorithm, name: str = "") -> Machine:
    """An algorithm as a machine in the reference's rounds."""
    return by_algorithm.machine(algorithm, ReachabilityRound(**_SIZES), name=name)


def specimens() -> tuple[Specimen, ...]:
    """The known machines."""
    return (*_the_same(), *_other_answers(), *_other_searches(), *_lapses(), *_learned())


def _the_same() -> tuple[Specimen, ...]:
    """Machines that compute the reference in another way."""
    known = partial(_specimen, algorithm="breadth_first")
    plain = algorithms.breadth_first
    clean = "noise of .03 a node is added every round, and the next round takes every node for held or not held"
    return (
        known("itself", wired, "s s s s", "nothing was done to it"),
        known("rotated", lambda: rotated(wired(), 1), "s s s s", "the same numbers in another basis", held_out=True),
        known(
            "with distractors",
            lambda: with_distractors(wired(), 2, 1),
            "s s s s",
            "two random heads and neurons a layer write what nothing reads",
        ),
        known(
            "two copies",
            lambda: edits.twice(wired()),
            "s s s s",
            "a second copy of the set is written and never read; the first is used as in the reference",
            held_out=True,
        ),
        known(
            "expands by the mean",
            lambda: wired(expand="mean"),
            "s s s s",
            "the head that expands attends to active edges evenly, and neurons clip what it gives",
        ),
        known(
            "softmax form", lambda: wired(eta=30.0), "s s s s", "every head is softmax; sets are exact", held_out=True
        ),
        known("by algorithm", lambda: computed(plain()), "s s s", "the algorithm itself, without a network"),
        known("noise that is cleaned away", lambda: edits.noisy(wired(), 0.03), "s e e s", clean, held_out=True),
    )


def _other_answers() -> tuple[Specimen, ...]:
    """Machines that hold the reference's set and answer otherwise from it."""
    known = _specimen
    return (
        known(
            "answer spread",
            lambda: computed(algorithms.breadth_first(0.6)),
            "s s s",
            "six tenths of the answer lie on all nodes that are held: another read-out, to be fitted",
            "breadth_first",
        ),
        known(
            "answers the opposite",
            lambda: computed(_opposite(None)),
            "d s s",
            "it answers the candidate that is not reached",
            "",
            held_out=True,
        ),
        known(
            "opposite for one candidate",
            lambda: computed(_opposite(_ASKED)),
            "d s s",
            "it answers the candidate that is not reached where the first one is one certain node of 28",
        ),
        known(
            "written and never read",
            lambda: edits.without_head(wired(), "1.4 member"),
            "d e s e",
            "the set is kept as in the reference, but nobody asks whether a candidate is in it: halves",
            "",
            held_out=True,
        ),
    )


def _other_searches() -> tuple[Specimen, ...]:
    """Searches that hold another set, and heuristics that hold none."""
    known = _specimen
    hops = "it sees no farther than {} from the root"
    heuristic = "it answers by {}, and holds nothing"
    return (
        known(
            "one hop",
            lambda: edits.learning(wired(), lambda t: t < 1, "one hop"),
            "d d d s",
            hops.format("one hop"),
            "depth_limited",
            held_out=True,
        ),
        known(
            "two hops", lambda: computed(algorithms.depth_limited(2)), "d d d", hops.format("two hops"), "depth_limited"
        ),
        known(
            "depth-first",
            lambda: computed(algorithms.depth_first()),
            "d d d",
            "it follows one path, a node a round, and backtracks",
            "depth_first",
        ),
        known(
            "one node a round",
            lambda: computed(_one_by_one()),
            "d d d",
            "breadth-first search that adds one node a round, the first in the order of the edges",
            held_out=True,
        ),
        known(
            "undirected",
            lambda: computed(algorithms.undirected()),
            "d d d",
            "it follows every edge both ways, and reaches more",
            "undirected",
        ),
        known(
            "bidirectional",
            lambda: computed(_bidirectional()),
            "d e s",
            "it holds the reference's set and two more, grown backwards from the candidates, and knows twice as far",
            held_out=True,
        ),
        known(
            "fewer parents",
            lambda: computed(algorithms.heuristic("fewer_parents")),
            "d d d",
            heuristic.format("in-degrees"),
            "",
        ),
        known(
            "more ancestors",
            lambda: computed(algorithms.heuristic("more_ancestors")),
            "d d d",
            heuristic.format("how many nodes lead to a candidate"),
            "",
            held_out=True,
        ),
    )


def _lapses() -> tuple[Specimen, ...]:
    """Machines that are late, forget, or miss an edge or a node."""
    known = _specimen
    late = "it holds what it should have held {} before"
    return (
        known(
            "one round late",
            lambda: edits.learning(wired(), lambda t: t >= 1, "one round late"),
            "d e d s",
            late.format("one round"),
            "late_search",
        ),
        known(
            "one round late, by algorithm",
            lambda: computed(algorithms.late_search(1)),
            "d e d",
            late.format("one round"),
            "late_search",
            held_out=True,
        ),
        known(
            "holds only what is new",
            lambda: edits.edited(wired(), _newest, "newest"),
            "d d d s",
            "of every round it keeps only the nodes that were not held before it",
            "",
        ),
        known(
            "never holds one node",
            lambda: edits.edited(wired(), _blind_spot, "blind spot"),
            "d e e s",
            "one node of 28 is dropped whenever it is reached, and what lies behind it is not found",
            held_out=True,
        ),
        known("ignores the last edge", lambda: computed(_without_edge()), "d e d", "one edge of 24 is never followed"),
        known(
            "ignores the root",
            lambda: edits.without_head(wired(), "1.1 near"),
            "d d d e",
            "the search never starts, so that the set stays empty",
            "",
            held_out=True,
        ),
    )


def _learned() -> tuple[Specimen, ...]:
    """Models that were trained on this task, and models that were not trained."""
    known = _specimen
    trained = "trained on an answer that is spread over all nodes held; nobody can say how near its set comes"
    nothing = "random weights: nothing was learned"
    return (
        known("reachability-learned", lambda: library.load("reachability-learned"), "e e e d", trained),
        known(
            "reachability-learned-1", lambda: library.load("reachability-learned-1"), "e e e d", trained, held_out=True
        ),
        known(
            "reachability-learned-2", lambda: library.load("reachability-learned-2"), "e e e d", trained, held_out=True
        ),
        known("untrained", lambda: untrained(library.load("reachability-learned"), 100), "d d d d", nothing, ""),
        known(
            "random cell",
            lambda: computed(algorithms.breadth_first()).fresh(1),
            "d d d",
            "a random network that holds a record of every round and computes nothing",
            "",
        ),
    )


# Edits of the set, as lab.known.edits takes them.


def _newest(before: Tensor, after: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    return after * (1 - before), memory


def _blind_spot(before: Tensor, after: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(torch.arange(after.shape[-1], device=after.device) == _NODE, 0.0, after), memory


# Algorithms that are breadth-first search but for an equation or two.


def _equation(algorithm: Algorithm, key: str) -> Any:
    equation = algorithm.variable(key).equation
    assert equation is not None
    return equation


def _opposite(node: int | None) -> Algorithm:
    """It answers the opposite where ``node`` is the first candidate; everywhere, if it is None."""
    base = algorithms.breadth_first()
    member = _equation(base, "member")

    def exchanged(v: Values) -> Any:
        first = v["candidates"][..., :1]
        return np.where((first == node) | (node is None), member(v)[..., ::-1], member(v))

    changes = {"member": (("reached", "candidates"), exchanged)}
    return base.varied("opposite", "the opposite of a search", {"node": node}, changes)


def _without_edge() -> Algorithm:
    base = algorithms.breadth_first()
    active = _equation(base, "active")

    def followed(v: Values) -> Any:
        return active(v) * (np.arange(v["source"].shape[-1]) < v["source"].shape[-1] - 1)

    changes = {"active": (("frontier", "source"), followed)}
    return base.varied("without_the_last_edge", "search without the last edge", {}, changes)


def _one_by_one() -> Algorithm:
    """Breadth-first search in which only the first edge that leads to a new node is followed in a round."""
    base = algorithms.breadth_first()
    active = _equation(base, "active")

    def first(v: Values) -> Any:
        held = np.take_along_axis(np.broadcast_to(v["frontier"], v["frontier"].shape), v["target"], -1) > 0.5
        leads = (active(v) > 0.5) & ~held
        return 1.0 * (leads & (leads.cumsum(-1) == 1))

    changes = {"active": (("frontier", "source", "target"), first)}
    return base.varied("one_by_one", "search, one node a round", {}, changes)


def _bidirectional() -> Algorithm:
    """Search from the root along the edges, and from each candidate against them: they meet half-way."""
    base = algorithms.breadth_first()

    def grown(v: Values) -> Any:
        """The sets ``[..., candidate, node]`` that lead to each candidate, a step farther."""
        sets = v["backward"].copy()
        names = np.arange(sets.shape[-1])
        sets = np.maximum(sets, v["candidates"][..., None] == names)
        ends = np.broadcast_to(v["target"][..., None, :], (*sets.shape[:-1], v["target"].shape[-1]))
        leads = np.take_along_axis(sets, ends, -1) > 0.5
        starts = v["source"][..., None, :, None] == names
        return np.maximum(sets, (leads[..., None] & starts).any(-2))

    def member(v: Values) -> Any:
        asked = np.maximum(v["backward"], v["candidates"][..., None] == np.arange(v["backward"].shape[-1]))
        return 1.0 * ((asked > 0.5) & (v["reached"][..., None, :] > 0.5)).any(-1)

    backward = Variable("backward", "B_k", "the nodes that lead to each candidate", "indicator", "state")
    following = Variable(
        "next_backward",
        "B_k'",
        "those after the round",
        "indicator",
        parents=("backward", "candidates", "source", "target"),
        equation=grown,
    )
    made = base.varied(
        "bidirectional",
        "search from both ends",
        {},
        {"member": (("backward", "reached", "candidates"), member)},
        variables=(backward, *base.variables, following),
    )
    return replace(made, initial=lambda e: {**base.initial(e), "backward": np.zeros((len(e), 2, e.n_nodes))})
