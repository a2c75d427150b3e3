"""Forty-nine machines that were written down, with their right answers, before any of them was compared.

    python -m lab calibrate --table unseen --quick

No rule and no threshold was chosen with them. A machine is the reference's algorithm with its state in another code
(:class:`Code`), another algorithm, or the reference's circuit that is built or edited in another way. The right
answers mean what they mean in :mod:`lab.known`; "state" is "either" for a code that no affine map reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from circuits.benchmark.known_machine import rotate_residual_stream, with_distractors
from interp.core.algorithm import Algorithm, Equation, Values
from interp.core.machine import Machine
from interp.model.layout import RoundLayout
from interp.tasks.experts import algorithms as experts
from interp.tasks.experts import families as rivals
from interp.tasks.lapses import learn_in_some_rounds, stopped
from interp.tasks.qlearning import families as learners
from interp.tasks.qlearning.algorithms import mark_pair, q_learning
from interp.tasks.reachability import algorithms as search
from lab.known import Right, Specimen, reference
from lab.known.by_algorithm import Computed, RandomCell, adapt_computed
from lab.known.makers import GAIN, act_like_reference, compute_reference_q, computed
from lab.variants import rescaled

_Array = NDArray[Any]
_NEARLY_1 = 1 - 1e-12
_Words = Mapping[str, Right]


# The same algorithm with its state in another code.


@dataclass(frozen=True)
class Code:
    """How the first variable of an algorithm's state is carried.

    Attributes:
        name: of the code.
        encode: function from the variable ``[batch, number]`` to the numbers that are carried.
        decode: the inverse function, which accepts any carried numbers.
        with_round: True if the number of earlier rounds is carried, too. It is then the second
            argument of both functions, ``[batch, 1]``.
    """

    name: str
    encode: Callable[..., Any]
    decode: Callable[..., Any]
    with_round: bool = False


class Coded(Computed):
    """An algorithm that carries its state in another code."""

    def __init__(self, algorithm: Algorithm, layout: RoundLayout, code: Code) -> None:
        super().__init__(algorithm, layout)
        self.code = code
        coded_shape = self.shapes[algorithm.state[0]]  # only the first variable is encoded
        self.n_coded = math.prod(coded_shape)
        self.n_others = len(self.first) - self.n_coded
        # The initial state and the random network (of untrained copies) are those of the code.
        no_rounds = torch.zeros(1, 1, dtype=torch.float64)
        self.first = self._carry(self.first[None], no_rounds)[0]
        self.n_carried = len(self.first)
        self.random = RandomCell(layout, self.n_carried)

    def extra_repr(self) -> str:
        """Return what it computes and its code, for the machine's digest."""
        algorithm = super().extra_repr()
        return f"{algorithm}, code={self.code.name}"

    def _convert(self, convert: Callable[..., Any], numbers: Tensor, elapsed: Tensor) -> Tensor:
        """Apply a function of the code (``encode`` or ``decode``) to numbers.

        Args:
            convert: the function.
            numbers: the numbers, ``[batch, number]``.
            elapsed: the number of earlier rounds, ``[batch, 1]``.
        """
        arguments = [numbers.numpy()]
        if self.code.with_round:
            arguments.append(elapsed.numpy())
        converted = np.asarray(convert(*arguments), np.float64)
        return torch.from_numpy(converted)

    def _carry(self, numbers: Tensor, elapsed: Tensor) -> Tensor:
        """Return the numbers that are carried, ``[batch, number]``: the code of the first variable,
        the other variables and, if the code needs it, the number of earlier rounds.

        Args:
            numbers: the plain state, ``[batch, number]``.
            elapsed: the number of earlier rounds, ``[batch, 1]``.
        """
        plain, others = numbers.tensor_split((self.n_coded,), dim=1)
        columns = [self._convert(self.code.encode, plain, elapsed), others]
        if self.code.with_round:
            columns.append(elapsed)
        return torch.cat(columns, 1)

    def _elapsed(self, carried: Tensor) -> Tensor:
        """Return the number of earlier rounds, ``[batch, 1]``; 0 if it is not carried."""
        if self.code.with_round:
            return carried[:, -1:].double()
        return torch.zeros(len(carried), 1).double()

    def parts(self, state: Tensor) -> dict[str, _Array]:
        """Decode the carried numbers ``[batch, number]`` into the algorithm's variables, ``[batch,
        ...]`` each.
        """
        carried = state.detach().double()
        elapsed = self._elapsed(carried)
        n_code = carried.shape[1] - self.n_others - int(self.code.with_round)
        coded, others, _ = carried.tensor_split((n_code, n_code + self.n_others), dim=1)
        decoded = self._convert(self.code.decode, coded, elapsed)
        return super().parts(torch.cat([decoded, others], 1))

    def flattened(self, parts: Any, like: Tensor) -> Tensor:
        """Encode the algorithm's variables as carried numbers, ``[batch, number]``.

        Args:
            parts: the variables after a round, by key.
            like: the carried numbers before the round, which give the dtype and the round.
        """
        numbers = super().flattened(parts, like.double())
        return self._carry(numbers, self._elapsed(like) + 1).to(like)


def in_code(algorithm: Algorithm, code: Code) -> Machine:
    """Return an algorithm as a machine that carries its state in a code."""
    module = Coded(algorithm, reference(algorithm.task).layout, code)
    return adapt_computed(module, f"{algorithm.key} in {code.name}")


def _draw_rotation(size: int) -> _Array:
    """Return a random orthogonal matrix ``[size, size]``."""
    rng = np.random.default_rng(size)
    q, _ = np.linalg.qr(rng.standard_normal((size, size)))
    return np.asarray(q)


# In these codes x is the variable, c what is carried, and t the number of earlier rounds.


def _encode_waves(x: _Array) -> _Array:
    """Encode each log-weight as a point on a circle; 40 hits are one turn."""
    angles = 2 * np.pi * x / (40 * GAIN)
    return np.concatenate([np.cos(angles), np.sin(angles)], 1)


def _decode_waves(c: _Array) -> _Array:
    cosines, sines = np.split(c, 2, axis=1)
    turns = np.arctan2(sines, cosines) / (2 * np.pi)
    return turns % 1 * 40 * GAIN


def _encode_bits(x: _Array) -> _Array:
    """Encode each log-weight as its number of hits in six binary digits."""
    hits = np.rint(x / GAIN).clip(0, 63).astype(int)
    bits = hits[..., None] >> np.arange(6) & 1
    return bits.reshape(len(x), -1).astype(float)


def _decode_bits(c: _Array) -> _Array:
    bits = c.reshape(len(c), -1, 6) > 0.5
    hits = bits @ 2 ** np.arange(6)
    return GAIN * hits.astype(float)


def _squash(size: int, scale: float) -> Code:
    """Return a code that rotates ``size`` numbers, and takes the tanh of each."""
    rotation = _draw_rotation(size)

    def encode(x: _Array) -> _Array:
        squashed: _Array = np.tanh(x @ rotation.T / scale)
        return squashed

    def decode(c: _Array) -> _Array:
        inside = np.clip(c, -_NEARLY_1, _NEARLY_1)
        return scale * np.arctanh(inside) @ rotation

    return Code("a rotated tanh", encode, decode)


def _rotate(size: int) -> Code:
    """Return a code that rotates and shifts ``size`` numbers."""
    rotation = _draw_rotation(size)
    shift = np.arange(size) / size
    return Code("a rotation", lambda x: x @ rotation.T + shift, lambda c: (c - shift) @ rotation)


def _log_positive(c: _Array, smallest: float = 1e-9) -> _Array:
    logs: _Array = np.log(np.maximum(c, smallest))
    return logs


_CUBE_ROOTS = Code("cube roots", np.cbrt, lambda c: c**3)
_LOGARITHMS = Code("logarithms", np.log1p, lambda c: np.expm1(c.clip(-5, 5)))
_WAVES = Code("waves", _encode_waves, _decode_waves)
_BITS = Code("bits", _encode_bits, _decode_bits)
_WEIGHTS = Code(
    "normalised weights", partial(special.softmax, axis=1), partial(_log_positive, smallest=1e-12)
)
_ROOTS = Code("square roots", lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda c: c * np.abs(c))
_EXPONENTIALS = Code("exponentials", np.exp, _log_positive)
_COMPLEMENTS = Code("complements", lambda x: 1 - x, lambda c: 1 - c)

_PAIR_INDICES = np.array(np.triu_indices(4, k=1))  # [2, pair]
_FIRST, _SECOND = np.eye(4)[_PAIR_INDICES]
_MINUS = _FIRST - _SECOND
"""Differences of four numbers, ``[pair, number]``."""


def _encode_misses(x: _Array, t: _Array) -> _Array:
    misses = GAIN * t - x
    return np.concatenate([x, misses], 1)


def _alternate(x: _Array, t: _Array) -> _Array:
    is_odd = np.rint(t) % 2
    return np.where(is_odd, -x, x)


# The differences keep x up to its mean, which the prediction does not depend on: of four numbers,
# _MINUS.T @ _MINUS = 4 (identity - mean).
_PAIRS = Code("differences of pairs", lambda x: x @ _MINUS.T, lambda c: c @ _MINUS / 4)
_MISSES = Code("hits and misses", _encode_misses, lambda c, t: c[:, :4], with_round=True)
_ALTERNATING = Code("signs that alternate", _alternate, _alternate, with_round=True)
_MEAN = Code("a mean a round", lambda x, t: x / (1 + t), lambda c, t: c * (1 + t), with_round=True)


def _code_experts() -> Iterator[Specimen]:
    """Yield Weighted Majority in other codes."""
    in_this_code = partial(_encoded, experts.weighted_majority(GAIN))
    yield in_this_code(_CUBE_ROOTS)
    yield in_this_code(_LOGARITHMS)
    yield in_this_code(_WAVES)
    yield in_this_code(_BITS)
    yield in_this_code(_squash(4, scale=12.0))
    yield in_this_code(_WEIGHTS)
    yield in_this_code(_PAIRS, state="yes")
    yield in_this_code(_MISSES, state="yes")
    yield in_this_code(_ALTERNATING)
    yield in_this_code(_MEAN)


def _code_q_learning() -> Iterator[Specimen]:
    """Yield Q-learning in other codes."""
    in_this_code = partial(_encoded, compute_reference_q())
    yield in_this_code(_ROOTS)
    yield in_this_code(_squash(12, scale=2.0))
    yield in_this_code(_rotate(12), state="yes")
    yield in_this_code(_ALTERNATING)
    yield in_this_code(_MEAN)
    yield in_this_code(_EXPONENTIALS)


def _code_searches() -> Iterator[Specimen]:
    """Yield breadth-first search in other codes."""
    in_this_code = partial(_encoded, search.breadth_first())
    yield in_this_code(_COMPLEMENTS, state="yes")
    yield in_this_code(_rotate(28), state="yes")
    yield in_this_code(_ALTERNATING)


# Other algorithms.


def _majority(key: str, update: Equation, *reads: str) -> Algorithm:
    """Return Weighted Majority with another update of its log-weights.

    Args:
        key: key of the new algorithm.
        update: equation of the new log-weights.
        *reads: keys of variables that this equation reads in addition to ``log_weights`` and
            ``match`` (1 for each expert that was right).
    """
    base = experts.weighted_majority(GAIN)
    changes = {"next_log_weights": (("log_weights", "match", *reads), update)}
    return base.make_variant(key, key.replace("_", " "), base.parameters, changes)


def _capped(v: Values) -> _Array:
    return np.minimum(v["log_weights"] + GAIN * v["match"], 2.0)


def _disagreeing(v: Values) -> _Array:
    """Credit every expert that was right, three times as much if the four votes were tied."""
    is_tied = v["votes"].sum(-1, keepdims=True) == 2
    gains = GAIN * np.where(is_tied, 3, 1)
    return v["log_weights"] + gains * v["match"]


def _minority(v: Values) -> _Array:
    """Credit every expert that was right, the more, the fewer were right."""
    share_right = v["match"].mean(-1, keepdims=True)
    gains = 2 * GAIN * (1 - share_right)
    return v["log_weights"] + gains * v["match"]


def _second_twice(v: Values) -> _Array:
    gains = GAIN * np.array([1.0, 3.0, 1.0, 1.0])
    return v["log_weights"] + gains * v["match"]


def _winner_only(v: Values) -> _Array:
    """Credit one expert alone: the first one that was right."""
    is_first = (v["match"].cumsum(-1) == 1) * v["match"]
    return v["log_weights"] + GAIN * is_first


def _squared() -> Algorithm:
    """Return Weighted Majority that squares its odds before it predicts."""
    base = experts.weighted_majority(GAIN)
    plain: Any = base.variable("prediction").equation

    def sharpen(v: Values) -> Any:
        p = plain(v)
        return p**2 / (p**2 + (1 - p) ** 2)

    changes = {"prediction": (("weights", "votes"), sharpen)}
    return base.make_variant("squared_vote", "squared vote", base.parameters, changes)


def _every_other() -> Algorithm:
    def counts(clock: _Array) -> _Array:
        return clock % 2 == 0

    base = experts.weighted_majority(GAIN)
    return learn_in_some_rounds(base, counts, {}, "every_other", "learns in every other round")


def _learner(key: str, next_column: Equation, *reads: str) -> Algorithm:
    """Return Q-learning with another update of the column of the action taken.

    Args:
        key: key of the new algorithm.
        next_column: equation of the column after the round.
        *reads: keys of variables that this equation reads in addition to ``column``, ``td_error``
            and ``change`` (what Q-learning would add to the column).
    """
    base = q_learning()
    changes = {"next_column": (("column", "td_error", "change", *reads), next_column)}
    return base.make_variant(key, key.replace("_", " "), {}, changes)


def _large_errors(v: Values) -> _Array:
    """Learn from errors above .3 alone."""
    is_large = np.abs(v["td_error"]) > 0.3
    return v["column"] + is_large[..., None] * v["change"]


def _decaying(v: Values) -> _Array:
    """Learn with the rate 1 / (1 + visits), so that a value is the mean of its targets."""
    visits_before = (v["visits"] * mark_pair(v)).sum((-1, -2))
    rate = 10 / (1 + visits_before)  # relative to the rate .1 that ``change`` contains
    return v["column"] + rate[..., None] * v["change"]


def _spilling(v: Values) -> _Array:
    """Write half of the change into the entry of the next state, too."""
    n_states = v["column"].shape[-1]
    reached = np.eye(n_states)[v["next_state"]]
    spilled = 0.05 * v["td_error"][..., None] * reached
    return v["column"] + v["change"] + spilled


def _clipped(v: Values) -> _Array:
    return v["column"] + np.clip(v["change"], -0.02, 0.02)


def _second_best() -> Algorithm:
    """Return Q-learning that bootstraps from the second largest of the next values."""
    base = q_learning()
    changes = {"maximum": (("next_values",), lambda v: np.sort(v["next_values"], -1)[..., -2])}
    return base.make_variant("second", "second", {}, changes)


def _optimistic() -> Algorithm:
    base = q_learning()
    start = base.initial

    def begin(episodes: Any) -> Any:
        first = start(episodes)
        return {**first, "table": np.ones_like(first["table"])}

    return base.make_variant("optimistic", "optimistic", {}, {}, initial=begin)


def _searching(key: str, next_reached: Equation, *reads: str) -> Algorithm:
    """Return breadth-first search with another update of its reached nodes.

    Args:
        key: key of the new algorithm.
        next_reached: equation of the update.
        *reads: keys of variables that this equation reads in addition to the usual ones.
    """
    base = search.breadth_first()
    parents = base.variable("next_reached").parents
    changes = {"next_reached": (tuple(dict.fromkeys((*parents, "reached", *reads))), next_reached)}
    return base.make_variant(key, key.replace("_", " "), {}, changes)


def _expand(v: Values) -> _Array:
    """Return the reached nodes after the round, as breadth-first search computes them."""
    plain: Any = search.breadth_first().variable("next_reached").equation
    return np.asarray(plain(v))


def _half_the_edges(v: Values) -> _Array:
    n_edges = v["active"].shape[-1]
    is_even = np.arange(n_edges) % 2 == 0
    return _expand({**v, "active": v["active"] * is_even})


def _few_nodes(v: Values) -> _Array:
    """Stop when six nodes are reached."""
    is_full = v["reached"].sum(-1, keepdims=True) >= 6
    return np.where(is_full, v["reached"], _expand(v))


def _low_names(v: Values) -> _Array:
    """Hold the twenty nodes of the lowest names alone."""
    expanded = _expand(v)
    is_low = np.arange(expanded.shape[-1]) < 20
    return expanded * is_low


def _two_hops_a_round(v: Values) -> _Array:
    """Expand the reached set twice, along the edges that leave it after the first time, too."""
    once = _expand(v)
    sources = np.broadcast_to(v["source"], v["active"].shape)
    active = (np.take_along_axis(once, sources, -1) > 0.5).astype(float)
    return _expand({**v, "frontier": once, "active": active})


_NO: _Words = {"behaviour": "no", "state": "no", "update": "no"}
_ANY_STATE: _Words = {**_NO, "state": "either"}
_UPDATE_DIFFERS: _Words = {**_ANY_STATE, "behaviour": "either"}
_READ_OUT: _Words = {"behaviour": "no", "state": "yes", "update": "yes"}
_SAME: _Words = {"behaviour": "yes", "state": "yes", "update": "yes", "circuit": "yes"}


def _specimen(
    key: str,
    machine: Machine | Algorithm,
    right: _Words,
    family: str | None = "",
) -> Specimen:
    """Return a machine, or an algorithm as a machine, with its right answers.

    Args:
        key: key of the machine, unique in its task.
        machine: the machine or the algorithm.
        right: the right answer to each question.
        family: key of the family that must be named; "" for none, None where it is not scored.
    """
    known = computed(machine) if isinstance(machine, Algorithm) else machine
    return Specimen(
        key=key,
        task=known.layout.task,
        make=lambda: known,
        right=right,
        why=key,
        algorithm=family,
        held_out=True,
    )


def _encoded(algorithm: Algorithm, code: Code, state: Right = "either") -> Specimen:
    """Return an algorithm with its state in another code, with the right answers.

    Args:
        algorithm: the algorithm.
        code: the code.
        state: the right answer to whether an affine map reads the state; "either" for a code that is
            not affine.
    """
    right: _Words = {"behaviour": "yes", "state": state, "update": "yes"}
    return _specimen(code.name, in_code(algorithm, code), right, algorithm.key)


def _list_majorities() -> Iterator[Specimen]:
    """Yield other algorithms of expert advice."""
    disagreeing = _majority("disagreeing", _disagreeing, "votes")
    yield _specimen("fixed share .1", rivals.fixed_share(GAIN, 0.1), _ANY_STATE, "fixed_share")
    yield _specimen("log-weights up to 2", _majority("capped", _capped), _NO)
    yield _specimen("two against two count triple", disagreeing, _ANY_STATE)
    yield _specimen("credit to minorities", _majority("minority", _minority), _ANY_STATE)
    yield _specimen("expert 2 counts triple", _majority("second", _second_twice), _ANY_STATE)
    yield _specimen("credit to the first", _majority("first", _winner_only), _NO)
    yield _specimen("squared vote", _squared(), _READ_OUT, None)
    yield _specimen("learns in every other round", _every_other(), _NO)
    yield _specimen("Bayes U[.5, 1]", experts.bayes(0.5, 1.0), _READ_OUT, "bayes")


def _list_learners() -> Iterator[Specimen]:
    """Yield other algorithms of Q-learning."""
    decaying = _learner("decaying", _decaying, "visits", "table", "state", "action")
    spilling = _learner("spilling", _spilling, "next_state")
    mean = act_like_reference(learners.mean_bootstrap())
    no_bootstrap = act_like_reference(q_learning(gamma=0.0))
    begins: _Words = {"behaviour": "no", "state": "either", "update": "yes"}
    yield _specimen("large errors alone", _learner("large_errors", _large_errors), _ANY_STATE)
    yield _specimen("mean of targets", decaying, _ANY_STATE)
    yield _specimen("spills into the next state", spilling, _ANY_STATE)
    yield _specimen("clipped changes", _learner("clipped", _clipped), _ANY_STATE)
    yield _specimen("second-best bootstrap", _second_best(), _UPDATE_DIFFERS)
    yield _specimen("mean bootstrap", mean, _UPDATE_DIFFERS, "mean_bootstrap")
    yield _specimen("no bootstrap", no_bootstrap, _UPDATE_DIFFERS, "no_bootstrap")
    yield _specimen("begins at 1", _optimistic(), begins, None)


def _list_searches() -> Iterator[Specimen]:
    """Yield other algorithms of reachability."""
    stopping = stopped(search.breadth_first(), 2)
    two_hops = _searching("two_hops", _two_hops_a_round, "source")
    yield _specimen("half the edges", _searching("half_the_edges", _half_the_edges), _NO)
    yield _specimen("up to six nodes", _searching("few_nodes", _few_nodes), _ANY_STATE)
    yield _specimen("twenty nodes", _searching("low_names", _low_names), _ANY_STATE)
    yield _specimen("two hops a round", two_hops, _NO)
    yield _specimen("stops after two rounds", stopping, _NO, "depth_limited")
    yield _specimen("three hops", search.depth_limited(3), _UPDATE_DIFFERS, None)


def _list_circuits() -> Iterator[Specimen]:
    """Yield circuits that are built or edited in another way."""
    other_heads: _Words = {**_SAME, "circuit": "either"}
    wma = "weighted_majority"
    q = "q_learning"
    bfs = "breadth_first"
    turned = rotate_residual_stream(reference("experts"), 3)
    larger = rescaled(reference("qlearning"), 8.0)
    negated = rescaled(reference("reachability"), -4.0)
    distracted = with_distractors(reference("reachability"), 3, 5)
    yield _specimen("variant P", reference("experts", variant="P"), other_heads, wma)
    yield _specimen("softmax of 60", reference("experts", eta=60.0), _SAME, wma)
    yield _specimen("rotated thrice", turned, _SAME, wma)
    yield _specimen("variant lin", reference("qlearning", variant="lin"), other_heads, q)
    yield _specimen("state times 8", larger, _SAME, q)
    yield _specimen("state times -4", negated, _SAME, bfs)
    yield _specimen("rotated with distractors", rotate_residual_stream(distracted, 5), _SAME, bfs)


@cache
def gallery() -> dict[str, Specimen]:
    """Return every machine by its task and key, such as "experts: bits"."""
    lists = (
        _code_experts,
        _code_q_learning,
        _code_searches,
        _list_majorities,
        _list_learners,
        _list_searches,
        _list_circuits,
    )
    specimens = [specimen for list_machines in lists for specimen in list_machines()]
    return {f"{specimen.task}: {specimen.key}": specimen for specimen in specimens}
