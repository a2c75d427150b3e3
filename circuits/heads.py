"""Attention heads and MLP neurons as data, and the two building blocks that the paper's
constructions use.

A head is a rule over causally masked scores and two lists of rank-one terms (``<u, h>`` is what
direction u reads)::

    score(i, j) = sum_r <q_r, h_i> <k_r, h_j>          output(i) = sum_j A_ij sum_r <v_r, h_j> o_r

A query without content or target attends to the sink. The sink's value is zero, so a silent head
outputs exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from circuits.basis import Basis, Direction
from interp.model.config import AttentionRule
from interp.support.checks import checked_fields
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
        terms = self.scores + self.moves
        return sum(len(first.coefficients) + len(second.coefficients) for first, second in terms)


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
        n_directions = len(self.read.coefficients) + len(self.write.coefficients)
        return n_directions + (self.bias != 0.0)


def numbered(letter: str, n: int) -> tuple[str, ...]:
    """Return the labels ``e_1 ... e_n`` of like tokens or positions."""
    return tuple(f"{letter}_{i}" for i in range(1, n + 1))


def names(parts: Iterable[Head | Neuron]) -> tuple[str, ...]:
    """Return the different names of heads and neurons, in order; neurons of a group share one."""
    return tuple(dict.fromkeys(part.name for part in parts))


def copy(
    basis: Basis, labels: Iterable[str], source: str, target: str, scale: float = 1.0
) -> tuple[Term, ...]:
    """Return moves that copy axes from one block to another.

    Args:
        basis: has both blocks.
        labels: the axes.
        source, target: names of the blocks.
        scale: factor of what is written.
    """
    read, write = basis[source], basis[target]
    return tuple((read[label], scale * write[label]) for label in labels)


def match(
    basis: Basis, labels: Iterable[str], query: str, key: str, scale: float = 1.0
) -> tuple[Term, ...]:
    """Return score terms ``scale * <block query at i, block key at j>`` over some axes.

    Args:
        basis: has both blocks.
        labels: the axes.
        query, key: names of the blocks.
        scale: factor of the score.
    """
    queries, keys = basis[query], basis[key]
    return tuple((scale * queries[label], keys[label]) for label in labels)


def content_chooser(
    name: str,
    layer: int,
    wanted: Sequence[Term],
    moves: tuple[Term, ...],
    sink: Direction,
    theta: float = 0.5,
) -> Head:
    """Make CC: a hard head that attends to the best match, or to the sink when none scores above ``theta``.

    Args:
        wanted: score terms, 1 for a match.
        moves: what is moved from there.
        sink: the direction of the sink's token.
    """
    to_sink = (theta * sink.basis.one, sink)
    return Head(name, layer, "hard", scores=(*wanted, to_sink), moves=moves)


def fixed_offset(
    name: str, layer: int, offset: int, moves: tuple[Term, ...], gate: Direction, sink: Direction
) -> Head:
    """Make FO(g, -l): a hard head that attends a fixed number of positions back.

    Args:
        name, layer: of the head.
        offset: how many positions back.
        moves: what is moved from there.
        gate: the head fires where this functional is <= 0, and attends to the sink where it is >=
            1.
        sink: the direction of the sink's token.
    """
    basis = sink.basis
    shift = shift_terms(basis, offset)
    p_1 = basis.code(0)
    sink_score = (1.0 - basis.positions.margin / 2) * basis.one + gate
    for query, key in shift:
        sink_score = sink_score - key.dot(p_1) * query
    return Head(name, layer, "hard", scores=(*shift, (sink_score, sink)), moves=moves)


def stated(path: Path, form: Collection[str]) -> list[dict[str, str]]:
    """Read the rows of a machine's table (a CSV file) that hold for one form of it.

    Args:
        form: the words that describe the form. The column "form" of a row names those that must be among them,
            alternatives joined by "/".
    """
    words = set(form)
    rows = []
    for row in read_rows(path):
        terms = row["form"].split()
        if all(words.intersection(term.split("/")) for term in terms):
            rows.append(row)
    return rows


def in_words(heads: Iterable[Head], rows: Iterable[Mapping[str, str]]) -> tuple[Head, ...]:
    """Add to heads what they read and write in words, from rows of number, reads and writes; later
    rows of a number count.
    """
    row_of_number = {row["head"]: row for row in rows}
    described = []
    for head in heads:
        row = row_of_number[head.name.split(" ")[0]]
        described.append(replace(head, reads=row["reads"], writes=row["writes"]))
    return tuple(described)


def shift_terms(basis: Basis, offset: int) -> tuple[Term, ...]:
    """Return ``<p_i, R^l p_j>`` as score terms: 1 exactly at ``j = i - l``, at most 1 - Delta elsewhere."""
    code, pos = basis.positions, basis["pos"]
    if not code.lines:
        n_pairs = len(code.labels) - offset
        pairs = zip(code.labels[offset:], code.labels[:n_pairs], strict=True)
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
    """Replace all heads by softmax heads.

    Args:
        heads: the heads of an exact circuit.
        eta: inverse temperature of hard heads; None leaves heads as they are.
        linear: returns the softmax heads that replace a linear one.
    """
    if eta is None:
        return tuple(heads)
    require(bool(math.isfinite(eta) and eta > 0), f"eta must be a number > 0 or None, got {eta!r}")
    softened: list[Head] = []
    for head in heads:
        if head.rule == "hard":
            scores = tuple((eta * query, key) for query, key in head.scores)
            softened.append(replace(head, rule="softmax", scores=scores))
        elif head.rule == "linear":
            softened += linear(head)
        else:
            softened.append(head)
    return tuple(softened)


def heavy_sink(head: Head, sink: Direction, scale: float, match_logit: float, heavy: float) -> Head:
    """Convert a linear head with scores 0 or ``scale`` into one softmax head that sums.

    Args:
        head: the linear head.
        sink: the direction of the sink's token.
        scale: score of a match in the linear head.
        match_logit: logit of a match.
        heavy: by how much the sink's logit is larger (docs/method/ground-truth.md).
    """
    require(
        head.rule == "linear",
        f"head {head.name!r} must be linear to get a heavy sink, its rule is {head.rule!r}",
    )
    matches = tuple((match_logit / scale * query, key) for query, key in head.scores)
    to_sink = ((match_logit + heavy) * sink.basis.one, sink)
    moves = tuple((read, math.exp(heavy) * scale * write) for read, write in head.moves)
    return replace(head, rule="softmax", scores=(*matches, to_sink), moves=moves)


def softmax_pair(head: Head, sink: Direction, epsilon: float, heavy: float) -> tuple[Head, Head]:
    """Split a linear head into two softmax heads, ``(e^{eps x} - e^{-eps x}) / (2 eps) = x +
    O(eps^2 x^3)``.

    Args:
        head: the linear head.
        sink: the direction of the sink's token.
        epsilon: scale of the scores.
        heavy: logit of the sink.
    """
    require(
        head.rule == "linear",
        f"head {head.name!r} must be linear to become a pair, its rule is {head.rule!r}",
    )

    number, _, word = head.name.partition(" ")

    def make_half(sign: float, mark: str) -> Head:
        matches = tuple((sign * epsilon * query, key) for query, key in head.scores)
        to_sink = (heavy * sink.basis.one, sink)
        scale = sign * math.exp(heavy) / (2 * epsilon)
        return replace(
            head,
            name=f"{number}{mark} {word}",
            rule="softmax",
            scores=(*matches, to_sink),
            moves=tuple((read, scale * write) for read, write in head.moves),
        )

    return make_half(1.0, "+"), make_half(-1.0, "-")


def needs_float64(model: str, instead: str) -> str:
    """Return the sentence that refuses float32 for a circuit with pairs."""
    return (
        f"the pairs of softmax heads that {model} has at a finite eta subtract nearly equal numbers; load it with "
        f"dtype='float64', or take {instead}"
    )


# Lemma C.1 (paper, appendix C): FO(g, -l) must give its target, or the sink where there is none, at least 1 - eps of
# the attention. For unit-norm codes with margin Delta, over N visible positions, the printed lemma needs the inverse
# temperature eta = ln(N / eps) / Delta and xi = 3 d / Delta_bos on codes of squared norm d / 2; the corrected head,
# whose sink is keyed by content, needs eta = (2 / Delta) ln((N - 1) / eps) and no xi.
