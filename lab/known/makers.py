"""Functions that make the machine of each record in ``lab.known.records``; some take a size.

A machine is an algorithm (:data:`ALGORITHMS`), the reference with an edit (:data:`EDITS`), or
another model (:data:`OTHERS`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from circuits.benchmark.known_machine import rotate_residual_stream, with_distractors
from circuits.registry import build
from interp.core.algorithm import Algorithm, Values, Variable
from interp.core.machine import Machine
from interp.model import library
from interp.model.transformer import HookedLatentTransformer, untrained
from interp.support.checks import checked
from interp.support.errors import require_known
from interp.tasks.experts import algorithms as experts
from interp.tasks.experts import families as rivals
from interp.tasks.qlearning import families as learners
from interp.tasks.reachability import algorithms as search
from lab import load
from lab.known import by_algorithm, edits, handmade
from lab.variants import rescaled

REFERENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "experts": ("wma-handwired", {"n_experts": 4}),
    "qlearning": ("qlearning-handwired", {"n_states": 4, "n_actions": 3}),
    "reachability": ("reachability-handwired", {"n_nodes": 28, "n_edges": 24, "marks": False}),
}
"""Name and sizes of the machine that a task's known machines are compared with, by task."""
GAIN = 0.5
"""Log-gamma of the reference for expert advice."""
_ONE_IN = 240
"""A rare lapse happens in about one of this many rounds."""
_PRIMES = np.array([40503, 12289, 65537, 7919, 104729, 31337, 3571, 99991])


@checked
def reference(task: str, **options: Any) -> HookedLatentTransformer:
    """Return the machine that a task's known machines are compared with; ``options`` vary its
    circuit.

    >>> reference("experts").name
    'wma-handwired'
    """
    require_known("task with known machines", task, REFERENCES)
    name, sizes = REFERENCES[task]
    machine: Any = library.load(name, **sizes, **options)
    return machine.to(torch.float64)


def computed(algorithm: Algorithm) -> Machine:
    """Return an algorithm as a machine, with the layout of its task's reference."""
    return by_algorithm.machine(algorithm, reference(algorithm.task).layout)


def _lapses(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a mask that is True for about one in :data:`_ONE_IN` rows of whole numbers ``[...,
    k]``.

    It is a hash, so that no single number predicts it.
    """
    whole = np.rint(numbers).astype(np.int64)
    # The constants are arbitrary: they only have to mix the digits of all numbers.
    mixed = whole @ _PRIMES[: whole.shape[-1]] + 2654435
    return np.asarray((mixed * 2654435761 >> 16) % _ONE_IN == 0)


# Algorithms.


def act_like_reference(algorithm: Algorithm) -> Algorithm:
    """Return a learner that acts as the reference does: by the table before the round; of equal
    actions, the first.
    """
    return learners.acting(algorithm, shared_ties=False, after=False)


def compute_reference_q() -> Algorithm:
    """Return the algorithm of the Q-learning reference, including the slope by which it breaks
    ties.
    """
    name, sizes = REFERENCES["qlearning"]
    return build(name, **sizes).algorithm


def _inverted() -> Algorithm:
    """Return Weighted Majority that predicts the opposite in about one round of 240."""
    majority = experts.weighted_majority(GAIN)
    plain: Any = majority.variable("prediction").equation

    def invert(v: Values) -> Any:
        hits = np.rint(v["log_weights"] / GAIN)
        is_lapse = _lapses(np.concatenate([hits, v["votes"]], -1))
        return np.where(is_lapse, 1 - plain(v), plain(v))

    change = {"prediction": (("weights", "log_weights", "votes"), invert)}
    return majority.make_variant("inverted_rarely", "inverted rarely", majority.parameters, change)


def _label_stuck() -> Algorithm:
    """Return Weighted Majority that always takes the true label to be 1."""
    majority = experts.weighted_majority(GAIN)
    change = {"match": (("votes",), lambda v: v["votes"].astype(np.int64))}
    return majority.make_variant("label_stuck", "label stuck", majority.parameters, change)


def _opposite() -> Algorithm:
    """Return a search that answers with the candidate that is not reached."""
    base = search.breadth_first()
    plain: Any = base.variable("member").equation
    change = {"member": (("reached", "candidates"), lambda v: plain(v)[..., ::-1])}
    return base.make_variant("opposite", "opposite", base.parameters, change)


def _bidirectional() -> Algorithm:
    """Return a search from the root along the edges, and from each candidate against them, until
    they meet.
    """
    base = search.breadth_first()

    def with_candidates(v: Values) -> Any:
        """Return the sets of nodes that lead to each candidate, itself included, ``[..., candidate,
        node]``.
        """
        names = np.arange(v["backward"].shape[-1])
        return np.maximum(v["backward"], v["candidates"][..., None] == names)

    def grow(v: Values) -> Any:
        """Return these sets after one more step against the edges."""
        sets = with_candidates(v)  # [..., candidate, node]
        names = np.arange(sets.shape[-1])
        n_edges = v["target"].shape[-1]
        # Of every candidate and edge: is the edge's target in the set, and which node is its source?
        targets = np.broadcast_to(v["target"][..., None, :], (*sets.shape[:-1], n_edges))
        leads = np.take_along_axis(sets, targets, -1) > 0.5
        is_source = v["source"][..., None, :, None] == names
        return np.maximum(sets, (leads[..., None] & is_source).any(-2))

    def meet(v: Values) -> Any:
        """Return 1 for each candidate whose set has a node that was reached from the root, else 0."""
        reached = v["reached"][..., None, :] > 0.5
        return 1.0 * ((with_candidates(v) > 0.5) & reached).any(-1)

    def begin(episodes: Any) -> Values:
        empty = np.zeros((len(episodes), 2, episodes.n_nodes))
        return {**base.initial(episodes), "backward": empty}

    backward = Variable(
        "backward", "B_k", "the nodes that lead to each candidate", "indicator", "state"
    )
    next_backward = replace(
        backward,
        key="next_backward",
        role="round",
        parents=("backward", "candidates", "source", "target"),
        equation=grow,
    )
    return base.make_variant(
        "bidirectional",
        "search from both ends",
        {},
        {"member": (("backward", "reached", "candidates"), meet)},
        variables=(backward, *base.variables, next_backward),
        initial=begin,
    )


_ALGORITHMS_OF_EXPERTS: Mapping[str, Callable[..., Algorithm]] = {
    "by algorithm": partial(experts.weighted_majority, GAIN),
    "Bayes, wrong prior": partial(experts.bayes, 0.0, 1.0),
    "inverted once in 240": _inverted,
    "one round late, by algorithm": partial(rivals.late_majority, GAIN, lag=1),
    "label stuck": _label_stuck,
}
_ALGORITHMS_OF_QLEARNING: Mapping[str, Callable[..., Algorithm]] = {
    "by algorithm": compute_reference_q,
    "ties shared": lambda: learners.acting(compute_reference_q(), after=False),
    "SARSA": lambda: act_like_reference(learners.sarsa()),
    "counts of visits": lambda: act_like_reference(learners.visit_counts()),
    "one round late": learners.late_q,
    "stops at round {:g}": lambda last: learners.stopped_q(last=int(last)),
}
_ALGORITHMS_OF_REACHABILITY: Mapping[str, Callable[..., Algorithm]] = {
    "by algorithm": search.breadth_first,
    "answer spread": partial(search.breadth_first, 0.6),
    "answers the opposite": _opposite,
    "two hops": partial(search.depth_limited, 2),
    "depth-first": search.depth_first,
    "undirected": search.undirected,
    "bidirectional": _bidirectional,
    "more ancestors": partial(search.heuristic, "more_ancestors"),
    "one round late, by algorithm": partial(search.late_search, 1),
}
ALGORITHMS = {
    "experts": _ALGORITHMS_OF_EXPERTS,
    "qlearning": _ALGORITHMS_OF_QLEARNING,
    "reachability": _ALGORITHMS_OF_REACHABILITY,
}
"""Functions that make an algorithm, by task and key of the record; they take the record's size, if
any.
"""


# Edits of the reference: functions of it, and of a size where the record has one.


def _stuck(
    model: HookedLatentTransformer, column: float, name: str = "one action ignored"
) -> Machine:
    """Return the circuit with one entry of the state's last axis that never changes.

    Args:
        model: the circuit.
        column: index of the entry, from 0.
        name: name of the machine.
    """

    def keep(before: Tensor, after: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        columns = torch.arange(after.shape[-1], device=after.device)
        return torch.where(columns == column, before, after), memory

    return edits.edited(model, keep, name)


def _unlearning(model: HookedLatentTransformer) -> Machine:
    """Return the circuit that subtracts hits instead of adding them, in about one round of 240."""

    def unlearn(before: Tensor, after: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        hits = (after / GAIN).round().double()
        is_lapse = torch.from_numpy(_lapses(hits.numpy(force=True)))
        is_lapse = is_lapse.to(after.device).unsqueeze(-1)
        return torch.where(is_lapse, 2 * before - after, after), memory

    return edits.edited(model, unlearn, "unlearns once in 240")


def _newest(model: HookedLatentTransformer) -> Machine:
    """Return the search that carries only the nodes that the round newly reached."""

    def forget(before: Tensor, after: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return after * (1 - before), memory

    return edits.edited(model, forget, "newest")


def _distracted(model: HookedLatentTransformer) -> HookedLatentTransformer:
    return with_distractors(model, 2, 1)


def _ignoring(model: HookedLatentTransformer, expert: float) -> Machine:
    return _stuck(model, expert - 1, f"ignores expert {expert:g}")


def _missing(model: HookedLatentTransformer, node: float) -> Machine:
    return _stuck(model, node - 1, f"never holds node {node:g}")


_EDITS_OF_EXPERTS: Mapping[str, Callable[..., Machine]] = {
    "itself": lambda model: model,
    "rotated with distractors": lambda model: rotate_residual_stream(_distracted(model), 1),
    "negated and scaled": partial(rescaled, factor=-4.0),
    "written and never read": partial(edits.without_head, head="2.1 fetch z"),
    "leaky {:g}": edits.leaky,
    "last {:g} rounds": edits.window,
    "noise {:g}": edits.noisy,
    "ignores expert {:g}": _ignoring,
    "unlearns once in 240": _unlearning,
}
_EDITS_OF_QLEARNING: Mapping[str, Callable[..., Machine]] = {
    "rotated": partial(rotate_residual_stream, seed=1),
    "two copies": edits.twice,
    "one action ignored": partial(_stuck, column=0),
    "leaky {:g}": edits.leaky,
}
_EDITS_OF_REACHABILITY: Mapping[str, Callable[..., Machine]] = {
    "with distractors": _distracted,
    "noise that is cleaned away": partial(edits.noisy, sd=0.03),
    "holds only what is new": _newest,
    "never holds node {:g}": _missing,
    "ignores the root": partial(edits.without_head, head="1.1 near"),
}
EDITS = {
    "experts": _EDITS_OF_EXPERTS,
    "qlearning": _EDITS_OF_QLEARNING,
    "reachability": _EDITS_OF_REACHABILITY,
}
"""Functions that make a machine from the reference, by task and key of the record."""


# Other machines: the circuit built with other options, trained and untrained models.


def _untrained(name: str) -> Machine:
    return untrained(load(name), 100)


_OTHERS_OF_EXPERTS: Mapping[str, Callable[..., Machine]] = {
    "handmade GRU": handmade.majority,
    "gain {:g}": lambda size: reference("experts", log_gamma=size),
    "wma-learned-additive": partial(load, "wma-learned-additive"),
    "random cell": lambda: computed(experts.weighted_majority(GAIN)).untrained(1),
}
_OTHERS_OF_QLEARNING: Mapping[str, Callable[..., Machine]] = {
    "softmlp": partial(reference, "qlearning", variant="softmlp"),
    "rate {:g}": lambda alpha: reference("qlearning", alpha=alpha),
    "discount {:g}": lambda gamma: reference("qlearning", gamma=gamma),
    "noise {:g}": lambda sd: edits.noisy(reference("qlearning", signed=True), sd),
    "qlearning-learned-additive-1": partial(load, "qlearning-learned-additive-1"),
    "untrained, learned shape": partial(_untrained, "qlearning-learned-additive"),
}
_OTHERS_OF_REACHABILITY: Mapping[str, Callable[..., Machine]] = {
    "reachability-learned": partial(load, "reachability-learned"),
    "untrained": partial(_untrained, "reachability-learned"),
}
OTHERS = {
    "experts": _OTHERS_OF_EXPERTS,
    "qlearning": _OTHERS_OF_QLEARNING,
    "reachability": _OTHERS_OF_REACHABILITY,
}
"""Functions that make other machines, by task and key of the record."""


def make(task: str, key: str, *size: float) -> Machine:
    """Make the machine of a record.

    Args:
        task: task of the record.
        key: key of the record, with the size as ``{:g}``.
        *size: the size, if the record has sizes.
    """
    if key in ALGORITHMS[task]:
        return computed(ALGORITHMS[task][key](*size))
    if key in EDITS[task]:
        return EDITS[task][key](reference(task), *size)
    return OTHERS[task][key](*size)
