"""What makes the machine of each of ``lab.known.records``: a function of its size, or of nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from circuits.benchmark.known_machine import rotated, with_distractors
from circuits.registry import build
from interp.core.algorithm import Algorithm, Values, Variable
from interp.core.machine import Machine
from interp.model import library
from interp.model.layout import RoundLayout
from interp.model.transformer import HookedLatentTransformer, untrained
from interp.support.checks import checked
from interp.support.errors import require_known
from interp.tasks.experts import algorithms as experts
from interp.tasks.experts import families as rivals
from interp.tasks.qlearning import families as learners
from interp.tasks.reachability import algorithms as search
from lab import load as load_seed
from lab.known import by_algorithm, edits, handmade
from lab.variants import rescaled

REFERENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "experts": ("wma-handwired", {"n_experts": 4}),
    "qlearning": ("qlearning-handwired", {"n_states": 4, "n_actions": 3}),
    "reachability": ("reachability-handwired", {"n_nodes": 28, "n_edges": 24, "marks": False}),
}
"""Task -> the machine that its known machines are compared with: its name, and its sizes."""
GAIN = 0.5
"""The log-gamma of the reference of expert advice."""
_ONE_IN = 240
"""A rare lapse happens in about one round of so many."""


@checked
def reference(task: str, **options: Any) -> HookedLatentTransformer:
    """The machine that the known machines of a task are compared with, or the same circuit made with other options.

    >>> reference("experts").name
    'wma-handwired'
    """
    require_known("task with known machines", task, REFERENCES)
    name, sizes = REFERENCES[task]
    made: Any = library.load(name, **sizes, **options)
    return made.to(torch.float64)


@cache
def _layout(task: str) -> RoundLayout:
    return reference(task).layout


def computed(algorithm: Algorithm, name: str = "") -> Machine:
    """An algorithm as a machine in the rounds of its task's reference."""
    return by_algorithm.machine(algorithm, _layout(algorithm.task), name=name)


def _learner(algorithm: Algorithm) -> Machine:
    """A learner as a machine that acts as the reference does: by the table before the round, lowest index first."""
    return computed(learners.acting(algorithm, shared_ties=False, after=False))


def _plain() -> Algorithm:
    """What the reference of Q-learning computes, with the slope by which it breaks ties."""
    name, sizes = REFERENCES["qlearning"]
    return build(name, **sizes).algorithm


def _fresh(name: str, seed: int) -> Machine:
    return untrained(library.load(name), seed)


_advice, _values, _graph = (partial(reference, task) for task in REFERENCES)

# Edits of the state that a circuit writes, as lab.known.edits takes them.


def _kept(column: int, before: Tensor, after: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """One entry of the last axis stays as it was."""
    return torch.where(
        torch.arange(after.shape[-1], device=after.device) == column, before, after
    ), memory


def _newest(before: Tensor, after: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    return after * (1 - before), memory


def _unlearns(before: Tensor, after: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    lapse = torch.from_numpy(_rarely((after / GAIN).round().double().numpy(force=True))).to(
        after.device
    )
    return torch.where(lapse.unsqueeze(-1), 2 * before - after, after), memory


def _rarely(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """True for about one row of :data:`_ONE_IN`, whole numbers ``[..., k]``: which, nothing in them foretells."""
    primes = np.array([40503, 12289, 65537, 7919, 104729, 31337, 3571, 99991])[: numbers.shape[-1]]
    mixed = np.rint(numbers).astype(np.int64) @ primes + 2654435
    return np.asarray((mixed * 2654435761 >> 16) % _ONE_IN == 0)


def _without(task: str, column: float, name: str) -> Machine:
    return edits.edited(reference(task), partial(_kept, int(column)), name)


# Algorithms that are the reference's but for an equation.


def _but(
    base: Algorithm, name: str, key: str, parents: tuple[str, ...], equation: Callable[..., Any]
) -> Machine:
    """``base`` with the equation of one variable exchanged: ``equation`` takes the old one and the values."""
    plain = base.variable(key).equation
    varied = base.varied(
        name.replace(" ", "_"), name, base.parameters, {key: (parents, partial(equation, plain))}
    )
    return computed(varied, name)


def _inverted(plain: Callable[[Values], Any], v: Values) -> Any:
    lapse = _rarely(np.concatenate([np.rint(v["log_weights"] / GAIN), v["votes"]], -1))
    return np.where(lapse, 1 - plain(v), plain(v))


def _searching_both_ways() -> Machine:
    """Search from the root along the edges, and from each candidate against them: they meet half-way."""
    base = search.breadth_first()

    def grown(v: Values) -> Any:
        """The sets ``[..., candidate, node]`` that lead to each candidate, a step farther."""
        sets = np.maximum(
            v["backward"],
            v["candidates"][..., None] == (names := np.arange(v["backward"].shape[-1])),
        )
        ends = np.broadcast_to(v["target"][..., None, :], (*sets.shape[:-1], v["target"].shape[-1]))
        leads = np.take_along_axis(sets, ends, -1) > 0.5
        return np.maximum(
            sets, (leads[..., None] & (v["source"][..., None, :, None] == names)).any(-2)
        )

    def member(v: Values) -> Any:
        asked = np.maximum(
            v["backward"], v["candidates"][..., None] == np.arange(v["backward"].shape[-1])
        )
        return 1.0 * ((asked > 0.5) & (v["reached"][..., None, :] > 0.5)).any(-1)

    backward = Variable(
        "backward", "B_k", "the nodes that lead to each candidate", "indicator", "state"
    )
    parents = ("backward", "candidates", "source", "target")
    following = replace(
        backward, key="next_backward", role="round", parents=parents, equation=grown
    )
    made = base.varied(
        "bidirectional",
        "search from both ends",
        {},
        {"member": (("backward", "reached", "candidates"), member)},
        variables=(backward, *base.variables, following),
    )
    return computed(
        replace(
            made,
            initial=lambda e: {**base.initial(e), "backward": np.zeros((len(e), 2, e.n_nodes))},
        )
    )


_Makers = Mapping[str, Callable[..., Machine]]
_MAJORITY, _BREADTH = partial(experts.weighted_majority, GAIN), search.breadth_first
_VOTES = ("weights", "log_weights", "votes")
_EXPERTS: _Makers = {
    "itself": _advice,
    "rotated with distractors": lambda: rotated(with_distractors(_advice(), 2, 1), 1),
    "negated and scaled": lambda: rescaled(_advice(), -4.0),
    "by algorithm": lambda: computed(_MAJORITY()),
    "handmade GRU": handmade.majority,
    "gain {:g}": lambda size: _advice(log_gamma=size),
    "Bayes, wrong prior": lambda: computed(experts.bayes(0.0, 1.0)),
    "inverted once in 240": lambda: _but(
        _MAJORITY(), "inverted rarely", "prediction", _VOTES, _inverted
    ),
    "written and never read": lambda: edits.without_head(_advice(), "2.1 fetch z"),
    "leaky {:g}": lambda keep: edits.leaky(_advice(), keep),
    "last {:g} rounds": lambda rounds: edits.window(_advice(), int(rounds)),
    "noise {:g}": lambda sd: edits.noisy(_advice(), sd),
    "one round late, by algorithm": lambda: computed(rivals.late_majority(GAIN, lag=1)),
    "ignores expert {:g}": lambda expert: _without(
        "experts", expert - 1, f"ignores expert {expert:g}"
    ),
    "label stuck": lambda: _but(
        _MAJORITY(),
        "label stuck",
        "match",
        ("votes",),
        lambda plain, v: v["votes"].astype(np.int64),
    ),
    "unlearns once in 240": lambda: edits.edited(_advice(), _unlearns, "unlearns once in 240"),
    "wma-learned-additive": lambda: library.load("wma-learned-additive"),
    "random cell": lambda: computed(_MAJORITY()).untrained(1),
}
_QLEARNING: _Makers = {
    "rotated": lambda: rotated(_values(), 1),
    "two copies": lambda: edits.twice(_values()),
    "softmlp": lambda: _values(variant="softmlp"),
    "by algorithm": lambda: computed(_plain()),
    "ties shared": lambda: computed(learners.acting(_plain(), after=False)),
    "rate {:g}": lambda alpha: _values(alpha=alpha),
    "discount {:g}": lambda gamma: _values(gamma=gamma),
    "SARSA": lambda: _learner(learners.sarsa()),
    "counts of visits": lambda: _learner(learners.visit_counts()),
    "one round late": lambda: computed(learners.late_q()),
    "stops at round {:g}": lambda last: computed(learners.stopped_q(last=int(last))),
    "one action ignored": lambda: _without("qlearning", 0, "one action ignored"),
    "leaky {:g}": lambda keep: edits.leaky(_values(), keep),
    "noise {:g}": lambda sd: edits.noisy(_values(signed=True), sd),
    "qlearning-learned-1": lambda: load_seed("qlearning-learned-1"),
    "untrained, learned shape": lambda: _fresh("qlearning-learned", 100),
}
_REACHABILITY: _Makers = {
    "with distractors": lambda: with_distractors(_graph(), 2, 1),
    "by algorithm": lambda: computed(_BREADTH()),
    "noise that is cleaned away": lambda: edits.noisy(_graph(), 0.03),
    "answer spread": lambda: computed(_BREADTH(0.6)),
    "answers the opposite": lambda: _but(
        _BREADTH(),
        "opposite",
        "member",
        ("reached", "candidates"),
        lambda plain, v: plain(v)[..., ::-1],
    ),
    "two hops": lambda: computed(search.depth_limited(2)),
    "depth-first": lambda: computed(search.depth_first()),
    "undirected": lambda: computed(search.undirected()),
    "bidirectional": _searching_both_ways,
    "more ancestors": lambda: computed(search.heuristic("more_ancestors")),
    "one round late, by algorithm": lambda: computed(search.late_search(1)),
    "holds only what is new": lambda: edits.edited(_graph(), _newest, "newest"),
    "never holds node {:g}": lambda node: _without(
        "reachability", node, f"never holds node {node:g}"
    ),
    "ignores the root": lambda: edits.without_head(_graph(), "1.1 near"),
    "reachability-learned": lambda: library.load("reachability-learned"),
    "untrained": lambda: _fresh("reachability-learned", 100),
}
MAKERS: Mapping[str, _Makers] = {
    "experts": _EXPERTS,
    "qlearning": _QLEARNING,
    "reachability": _REACHABILITY,
}
"""Task -> key of a row -> what makes its machine."""
