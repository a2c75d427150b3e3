"""Attention heads and MLP neurons as data, and the two building blocks that the paper's constructions use.

A head is a rule over causally masked scores and two lists of rank-one terms (``<u, h>`` is what direction u reads)::

    score(i, j) = sum_r <q_r, h_i> <k_r, h_j>          output(i) = sum_j A_ij sum_r <v_r, h_j> o_r

A query without content or target goes to the sink, whose value is zero: a silent head outputs exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from circuits.basis import Basis, Direction, PositionCode
from interp.model.config import AttentionRule
from interp.support.checks import checked, checked_fields
from interp.support.errors import require
from interp.support.files import read_rows

Term = tuple[Direction, Direction]


@dataclass(frozen=True)
@checked_fields
class Head:
    """An attention head as data.

    Attributes:
        name: the paper's number and a word, "1.1 bind"; unique in a circuit.
        layer: index of the block, from 0.
        scores: (query direction, key direction) terms.
        moves: (direction read at the key, direction written at the query) terms.
        reads, writes: what it attends to, and what holds afterwards, in words.
    """

    name: str
    layer: int
    rule: AttentionRule
    scores: tuple[Term, ...]
    moves: tuple[Term, ...]
    reads: str = ""
    writes: str = ""

    @property
    def n_nonzero(self) -> int:
        """Non-zero entries of its four matrices in an axis-aligned basis."""
        return sum(
            len(direction.coefficients) for term in self.scores + self.moves for direction in term
        )


@dataclass(frozen=True)
@checked_fields
class Neuron:
    """``relu(<read, h> + bias)`` times ``write``, added to the residual stream after a layer's attention."""

    name: str
    layer: int
    read: Direction
    bias: float
    write: Direction

    @property
    def n_nonzero(self) -> int:
        """How many of its weights are not 0."""
        return len(self.read.coefficients) + len(self.write.coefficients) + (self.bias != 0.0)


def numbered(letter: str, n: int) -> tuple[str, ...]:
    """The labels ``e_1 ... e_n`` of like tokens or positions."""
    return tuple(f"{letter}_{i}" for i in range(1, n + 1))


def names(parts: Iterable[Head | Neuron]) -> tuple[str, ...]:
    """The different names of heads and neurons, in order; neurons of a group share one."""
    return tuple(dict.fromkeys(part.name for part in parts))


def copy(
    basis: Basis, labels: Iterable[str], source: str, target: str, scale: float = 1.0
) -> tuple[Term, ...]:
    """Moves that copy the axes ``labels`` of block ``source`` to block ``target``, times ``scale``."""
    return tuple((basis[source][label], scale * basis[target][label]) for label in labels)


def match(
    basis: Basis, labels: Iterable[str], query: str, key: str, scale: float = 1.0
) -> tuple[Term, ...]:
    """Score terms ``scale * <block query at i, block key at j>`` over the axes ``labels``."""
    return tuple((scale * basis[query][label], basis[key][label]) for label in labels)


def content_chooser(
    name: str,
    layer: int,
    wanted: Sequence[Term],
    moves: tuple[Term, ...],
    sink: Direction,
    theta: float = 0.5,
) -> Head:
    """CC: a hard head that attends to the best match, or to the sink when none scores above ``theta``."""
    return Head(name, layer, "hard", (*wanted, (theta * sink.basis.one, sink)), moves)


def fixed_offset(
    name: str, layer: int, offset: int, moves: tuple[Term, ...], gate: Direction, sink: Direction
) -> Head:
    """FO(g, -l): a hard head that attends ``offset`` positions back where ``gate`` <= 0, to the sink where >= 1."""
    basis = sink.basis
    shift = shift_terms(basis, offset)
    p_1 = basis.code(0)
    sink_score = (1.0 - basis.positions.margin / 2) * basis.one + gate
    for query, key in shift:
        sink_score = sink_score - key.dot(p_1) * query
    return Head(name, layer, "hard", (*shift, (sink_score, sink)), moves)


def stated(path: Path, form: Collection[str]) -> list[dict[str, str]]:
    """The rows of a machine's table (a CSV file) that hold for one form of it, which the words ``form`` describe.

    The column "form" of a row names the words that must be among them, alternatives joined by "/".
    """
    return [
        row
        for row in read_rows(path)
        if all(set(term.split("/")) & set(form) for term in row["form"].split())
    ]


def in_words(heads: Iterable[Head], rows: Iterable[Mapping[str, str]]) -> tuple[Head, ...]:
    """Heads with what they read and write in words: rows of number, reads and writes, of which the last counts."""
    words: dict[str, Any] = {
        row["head"]: {"reads": row["reads"], "writes": row["writes"]} for row in rows
    }
    return tuple(replace(head, **words[head.name.split(" ")[0]]) for head in heads)


def shift_terms(basis: Basis, offset: int) -> tuple[Term, ...]:
    """``<p_i, R^l p_j>`` as score terms: 1 exactly at ``j = i - l``, at most 1 - Delta elsewhere."""
    code, pos = basis.positions, basis["pos"]
    if not code.lines:
        pairs = zip(code.labels[offset:], code.labels[: len(code.labels) - offset], strict=True)
        return tuple((pos[later], pos[earlier]) for later, earlier in pairs)
    terms: list[Term] = []
    for k, omega in enumerate(code.lines, 1):
        c, s = math.cos(omega * offset), math.sin(omega * offset)
        cos, sin = pos[f"cos_{k}"], pos[f"sin_{k}"]
        terms += [(cos, c * cos - s * sin), (sin, s * cos + c * sin)]
    return tuple(terms)


def softmax_only(
    heads: Sequence[Head], eta: float | None, linear: Callable[[Head], Iterable[Head]]
) -> tuple[Head, ...]:
    """All heads as softmax heads, hard ones at inverse temperature ``eta`` and linear ones as ``linear`` replaces them.

    Where ``eta`` is None, they stay as they are.
    """
    if eta is None:
        return tuple(heads)
    require(bool(math.isfinite(eta) and eta > 0), f"eta must be a number > 0 or None, got {eta!r}")

    by_rule: dict[str, Callable[[Head], Iterable[Head]]] = {
        "hard": lambda head: (
            replace(head, rule="softmax", scores=tuple((eta * q, k) for q, k in head.scores)),
        ),
        "softmax": lambda head: (head,),
        "linear": linear,
    }
    return tuple(made for head in heads for made in by_rule[head.rule](head))


def heavy_sink(head: Head, sink: Direction, scale: float, match_logit: float, heavy: float) -> Head:
    """A linear head whose scores are 0 or ``scale`` as one softmax head that sums (docs/method/ground-truth.md)."""
    require(
        head.rule == "linear",
        f"head {head.name!r} must be linear to get a heavy sink, its rule is {head.rule!r}",
    )
    scores = tuple((match_logit / scale * query, key) for query, key in head.scores)
    scores = (*scores, ((match_logit + heavy) * sink.basis.one, sink))
    moves = tuple((read, math.exp(heavy) * scale * write) for read, write in head.moves)
    return replace(head, rule="softmax", scores=scores, moves=moves)


def softmax_pair(head: Head, sink: Direction, epsilon: float, heavy: float) -> tuple[Head, Head]:
    """A linear head with any scores as two softmax heads, ``(e^{eps x} - e^{-eps x}) / (2 eps) = x + O(eps^2 x^3)``."""
    require(
        head.rule == "linear",
        f"head {head.name!r} must be linear to become a pair, its rule is {head.rule!r}",
    )

    def half(sign: float, mark: str) -> Head:
        number, _, word = head.name.partition(" ")
        scores = tuple((sign * epsilon * query, key) for query, key in head.scores)
        moves = tuple(
            (read, sign * math.exp(heavy) / (2 * epsilon) * write) for read, write in head.moves
        )
        scores = (*scores, (heavy * sink.basis.one, sink))
        return replace(
            head, name=f"{number}{mark} {word}", rule="softmax", scores=scores, moves=moves
        )

    return half(1.0, "+"), half(-1.0, "-")


def needs_float64(model: str, instead: str) -> str:
    """The sentence that refuses float32 for a circuit with pairs."""
    return (
        f"the pairs of softmax heads that {model} has at a finite eta subtract nearly equal numbers; load it with "
        f"dtype='float64', or take {instead}"
    )


# Lemma C.1 (paper, appendix C): FO(g, -l) must give its target, or the sink where there is none, at least 1 - eps of
# the attention. For unit-norm codes with margin Delta, over N visible positions, the printed lemma needs the inverse
# temperature eta = ln(N / eps) / Delta and xi = 3 d / Delta_bos on codes of squared norm d / 2; the corrected head,
# whose sink is keyed by content, needs eta = (2 / Delta) ln((N - 1) / eps) and no xi.


def _required_eta(margin: float, n_positions: int, eps: float) -> float:
    """Inverse temperature at which the corrected chooser leaks at most ``eps``, as :func:`chooser_table` lists it.

    >>> round(_required_eta(1.0, 34, 1e-8), 1)
    43.8
    """
    require(0 < eps < 1, f"eps must lie in (0, 1), got {eps!r}")
    require(n_positions >= 2, f"n_positions must be at least 2, got {n_positions!r}")
    return 2 / margin * math.log((n_positions - 1) / eps)


def _lemma(code: PositionCode, eps: float) -> tuple[float, float]:
    """eta and xi as printed, for codes of squared norm d / 2 (1 for one-hot codes)."""
    n, d = len(code.labels), len(code.axes) - 1
    norm = d / 2 if code.lines else 1.0
    separated = (
        norm * code.margin
    )  # as far as the first code is from its nearest, for all overlaps are of lags
    return math.log(n / eps) / separated, 3 * d / separated


def _measured_attention(code: PositionCode, offset: int, eta: float) -> float:
    """Least softmax attention on the right key, over firing and silent queries at every position."""
    basis = Basis.of(("id",), ("sink", "fires"), code)
    ids = basis["id"]
    head = fixed_offset("chooser", 0, offset, (), basis.one - ids["fires"], ids["sink"])
    n = len(code.labels)
    here = np.stack([(basis.code(i) + basis.one).vector() for i in range(n)])
    keys = here.copy()
    keys[0] += ids["sink"].vector()
    least = 1.0
    for fires in (True, False):
        queries = here + ids["fires"].vector() if fires else here
        scores = sum(np.outer(queries @ q.vector(), keys @ k.vector()) for q, k in head.scores)
        scores = np.where(np.tril(np.ones((n, n), bool)), eta * scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        # A target at the first position is the sink itself, whose positional score is taken away.
        right = [i - offset if fires and i > offset else 0 for i in range(n)]
        least = min(least, float(weights[np.arange(n), right].min()))
    return least


@checked
def chooser_table(
    n_positions: int = 34,
    eps: float = 1e-8,
    n_lines: tuple[int, ...] = (8, 16, 32),
    offset: int = 1,
) -> pd.DataFrame:
    """The lemma's numbers and ours, one row per position code.

    Columns: the code, the round's length, the code's coordinates and margin Delta; eta and xi as the printed lemma asks
    for; eta as the corrected head needs it, the least attention measured there on a target or the sink, and 1 - eps.
    """
    labels = numbered("t", n_positions)
    codes = {"one-hot": PositionCode(labels)}
    codes |= {f"sinusoidal, {k} lines": PositionCode.sinusoidal(labels, k, seed=0) for k in n_lines}
    rows = []
    for name, code in codes.items():
        eta = _required_eta(code.margin, n_positions, eps)
        attention = _measured_attention(code, offset, eta)
        rows.append(
            (
                name,
                n_positions,
                len(code.axes) - 1,
                code.margin,
                *_lemma(code, eps),
                eta,
                attention,
                1 - eps,
            )
        )
    columns = "code n_positions d_code margin eta_lemma xi_lemma eta attention promised"
    return pd.DataFrame(rows, columns=columns.split())
