"""Attention heads and MLP neurons as data, and the head types that the paper's constructions use.

A head has an attention rule for causally masked scores, and two lists of rank-one terms: score
terms (q_r, k_r) and move terms (v_r, o_r), pairs of directions of the residual stream. With h_i for
the residual stream at position i, ``<u, h_i>`` for its inner product with direction u, and A for
the attention pattern::

    score(i, j) = sum_r <q_r, h_i> <k_r, h_j>          output(i) = sum_j A_ij sum_r <v_r, h_j> o_r

A query that finds no match attends to a sink token. The head's output is then exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
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
        name: the head's number in the paper and a word, such as "1.1 bind"; unique in a circuit.
        layer: index of the block, from 0.
        rule: how scores become attention: "softmax", "hard" (equal attention to all keys with the
            highest score, none to others) or "linear" (the scores themselves).
        scores: pairs (direction read at the query, direction read at the key). The attention score
            is the sum, over pairs, of the product of the two numbers that are read.
        moves: pairs (direction read at the key, direction written at the query). A key's value is
            the sum, over pairs, of the number that is read times the direction that is written; the
            query gets the values of all keys, weighted by attention.
        reads: what the head attends to, in words.
        writes: its output, as a formula.
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
        """Number of non-zero entries of W_Q, W_K, W_V and W_O together. They are counted with one
        coordinate per named axis of the basis; if the basis is rotated, the stored weights have
        more.
        """
        terms = self.scores + self.moves
        return sum(len(first.coefficients) + len(second.coefficients) for first, second in terms)


@dataclass(frozen=True)
@checked_fields
class Neuron:
    """An MLP neuron as data: it adds ``relu(<read, h> + bias) * write`` to the residual stream h.

    Attributes:
        name: name of the group of neurons that it belongs to, such as "2.2 Q-values".
        layer: index of the block, from 0.
        read: the input direction: the neuron computes its inner product with the residual stream.
        bias: the bias.
        write: the output direction.
    """

    name: str
    layer: int
    read: Direction
    bias: float
    write: Direction

    @property
    def n_nonzero(self) -> int:
        """Number of the neuron's non-zero weights, including its bias. They are counted with one
        coordinate per named axis of the basis; if the basis is rotated, the stored weights have
        more.
        """
        n_directions = len(self.read.coefficients) + len(self.write.coefficients)
        return n_directions + (self.bias != 0.0)


def names(parts: Iterable[Head | Neuron]) -> tuple[str, ...]:
    """Return the distinct names of heads and groups of neurons, in the order of first appearance."""
    return tuple(dict.fromkeys(part.name for part in parts))


def copy(
    basis: Basis, labels: Iterable[str], source: str, target: str, scale: float = 1.0
) -> tuple[Term, ...]:
    """Make the move terms of a head that copies coordinates from one block of the residual stream,
    at the key, to another block, at the query.

    A move term is a pair (direction read at the key, direction written at the query).

    Args:
        basis: a basis that has both blocks.
        labels: labels of the axes to copy.
        source, target: names of the block that is read and of the block that is written.
        scale: factor of what is written.
    """
    read, write = basis[source], basis[target]
    return tuple((read[label], scale * write[label]) for label in labels)


def match(
    basis: Basis, labels: Iterable[str], query: str, key: str, scale: float = 1.0
) -> tuple[Term, ...]:
    """Make the score terms of a head that looks for equal content: the score is the inner product
    of the coordinates in a block at the query and the coordinates in a block at the key.

    A score term is a pair (direction read at the query, direction read at the key).

    Args:
        basis: a basis that has both blocks.
        labels: labels of the axes over which the inner product runs.
        query: name of the block that is read at the query.
        key: name of the block that is read at the key.
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
    """Make a head with hard attention to the keys that match the query best, or to a sink token if
    no key's score exceeds theta.

    Hard attention is the average over the keys with the highest score. The head is the paper's head
    type CC.

    Args:
        name: name of the head.
        layer: index of its block.
        wanted: score terms (direction read at the query, direction read at the key). A score is the
            sum, over terms, of the product of the two numbers that are read; it must be 1 for a
            match.
        moves: move terms (direction read at the key, direction written at the query): what the head
            copies from the match to the query.
        sink: direction along which the sink token has the component 1, and all other tokens 0.
        theta: score of the sink token.
    """
    # `one` is 1 at every position, so that every query scores the sink by theta.
    to_sink = (theta * sink.basis.one, sink)
    return Head(name, layer=layer, rule="hard", scores=(*wanted, to_sink), moves=moves)


def fixed_offset(
    name: str, layer: int, offset: int, moves: tuple[Term, ...], gate: Direction, sink: Direction
) -> Head:
    """Make a head that attends only to the token ``offset`` positions before the query. A gate can
    send the query to the sink token instead.

    It is the paper's head type FO(g, -l), with the gate g and the offset l.

    Args:
        name: name of the head.
        layer: index of its block.
        offset: how many positions back the head looks.
        moves: move terms (direction read at the key, direction written at the query): what the head
            copies from the token that it attends to.
        gate: direction that is read at the query. If the number read is at most 0, the head looks
            back; if it is at least 1, the head attends to the sink.
        sink: direction along which the sink token has the component 1, and all other tokens 0.
    """
    basis = sink.basis
    shift = shift_terms(basis, offset)
    # The target scores 1, other positions at most 1 - margin, and the sink halfway between them.
    # The gate adds at most 0 while the head looks back, and at least 1 to send it to the sink.
    sink_score = (1.0 - basis.positions.margin / 2) * basis.one + gate
    # The sink is the first token. Its position has a score by the shift terms, too, which is
    # subtracted here.
    code_of_sink = basis.code(0)
    for query, key in shift:
        sink_score = sink_score - key.dot(code_of_sink) * query
    return Head(name, layer=layer, rule="hard", scores=(*shift, (sink_score, sink)), moves=moves)


def read_variant_rows(path: Path, form: Collection[str]) -> list[dict[str, str]]:
    """Read the rows of a construction's table (a CSV file) that apply to one variant of it.

    Args:
        path: the file.
        form: words that describe the variant, such as ``{"R", "softmax"}``. A row applies if
            ``form`` contains every word in its column "form". A word may be a choice, such as
            "R/P", of which ``form`` must contain at least one.

    Returns:
        One dictionary per row, name of a column -> text.
    """
    words = set(form)
    rows = []
    for row in read_rows(path):
        choices = row["form"].split()  # such as ["R/P", "softmax"]: (R or P) and softmax
        if all(words.intersection(choice.split("/")) for choice in choices):
            rows.append(row)
    return rows


def add_descriptions(
    heads: Iterable[Head], folder: Path, form: Collection[str]
) -> tuple[Head, ...]:
    """Return the heads with their ``reads`` and ``writes`` filled in from ``heads.csv``.

    The table has the columns head (a number, such as "2.1"), reads (what the head attends to, in
    words) and writes (its output, as a formula). If a head has several rows, the last one applies.

    Args:
        heads: the heads; a name begins with the head's number, as in "2.1 fetch z".
        folder: folder of the table.
        form: words that describe the variant of the construction (:func:`read_variant_rows`).
    """
    rows = read_variant_rows(folder / "heads.csv", form)
    row_of_number = {row["head"]: row for row in rows}
    described = []
    for head in heads:
        row = row_of_number[head.name.split(" ")[0]]
        described.append(replace(head, reads=row["reads"], writes=row["writes"]))
    return tuple(described)


def shift_terms(basis: Basis, offset: int) -> tuple[Term, ...]:
    """Make score terms with which a head attends to the key ``offset`` positions before the query.

    A score term is a pair (direction read at the query, direction read at the key).

    The score of query i and key j is ``<p_i, R^l p_j>``, where p are position codes and R^l shifts
    them by l = ``offset``. The score is 1 at ``j = i - l``, and at most ``1 -
    basis.positions.margin`` at other keys.
    """
    code, pos = basis.positions, basis["pos"]
    if not code.lines:  # one-hot: each position asks for the one that is `offset` earlier
        n_pairs = len(code.labels) - offset
        pairs = zip(code.labels[offset:], code.labels[:n_pairs], strict=True)
        return tuple((pos[later], pos[earlier]) for later, earlier in pairs)
    terms: list[Term] = []
    # R^l turns the plane of each frequency omega by the angle omega * l: cos and sin of the sum of
    # two angles, by the addition theorem.
    for k, omega in enumerate(code.lines, 1):
        c, s = math.cos(omega * offset), math.sin(omega * offset)
        cos, sin = pos[f"cos_{k}"], pos[f"sin_{k}"]
        terms += [(cos, c * cos - s * sin), (sin, s * cos + c * sin)]
    return tuple(terms)


def require_positive(**values: float) -> None:
    """Raise InputError unless every argument is a finite number above 0; the error names the
    argument.
    """
    for name, value in values.items():
        is_positive = math.isfinite(value) and value > 0
        require(is_positive, f"{name} must be a number > 0, got {value!r}")


def softmax_only(
    heads: Sequence[Head], eta: float | None, linear: Callable[[Head], Iterable[Head]]
) -> tuple[Head, ...]:
    """Return the heads with every hard and linear head replaced by softmax heads.

    Args:
        heads: heads of an exact circuit.
        eta: inverse temperature of the softmax that replaces hard attention; None returns the heads
            unchanged.
        linear: function from a linear head to the one or several softmax heads that replace it.
    """
    if eta is None:
        return tuple(heads)
    require(math.isfinite(eta) and eta > 0, f"eta must be a number > 0 or None, got {eta!r}")
    softened: list[Head] = []
    for head in heads:
        if head.rule == "hard":  # the larger eta, the nearer to attention to the highest score
            scores = tuple((eta * query, key) for query, key in head.scores)
            softened.append(replace(head, rule="softmax", scores=scores))
        elif head.rule == "linear":
            softened += linear(head)
        else:
            softened.append(head)
    return tuple(softened)


def approximate_linear_head(
    head: Head, sink: Direction, scale: float, match_logit: float, heavy: float
) -> Head:
    """Return a softmax head that computes nearly the same as a linear head. The linear head's
    scores must be 0 or, for a matching key, ``scale``.

    A sink token takes nearly all attention, so that the softmax denominator is nearly constant. The
    attention to one match is then about ``exp(-heavy)``, and hardly depends on other matches
    (docs/method/ground-truth.md). The returned head writes ``exp(heavy) * scale`` times what the
    linear head writes per unit of attention, so that both outputs are nearly equal.

    Args:
        head: the linear head.
        sink: direction along which the sink token has the component 1, and all other tokens 0.
        scale: score of a match in the linear head; all other keys score 0.
        match_logit: logit of a match in the softmax head.
        heavy: logit of the sink minus ``match_logit``.
    """
    require(
        head.rule == "linear",
        f"head {head.name!r} must be linear to get a heavy sink, its rule is {head.rule!r}",
    )
    # A match scores `scale` in the linear head, and `match_logit` here.
    matches = tuple((match_logit / scale * query, key) for query, key in head.scores)
    to_sink = ((match_logit + heavy) * sink.basis.one, sink)
    moves = tuple((read, math.exp(heavy) * scale * write) for read, write in head.moves)
    return replace(head, rule="softmax", scores=(*matches, to_sink), moves=moves)


def softmax_pair(head: Head, sink: Direction, epsilon: float, heavy: float) -> tuple[Head, Head]:
    """Return two softmax heads with outputs that sum to nearly the output of a linear head.

    A linear head weighs what it reads at a key by the score x. The two heads have the logits eps x
    and -eps x. A sink token takes nearly all attention, so that the two heads pay the key about the
    attention ``e^{eps x - heavy}`` and ``e^{-eps x - heavy}``. Their outputs are multiplied by
    ``e^heavy / (2 eps)`` and ``-e^heavy / (2 eps)``. The sum of the outputs therefore weighs the
    key by ``(e^{eps x} - e^{-eps x}) / (2 eps) = x + O(eps^2 x^3)``.

    Args:
        head: the linear head.
        sink: direction along which the sink token has the component 1, and all other tokens 0.
        epsilon: the factor eps of the scores.
        heavy: logit of the sink token.

    Returns:
        The head with positive and the head with negative logits, named "2.2+ ..." and "2.2- ..."
        for a head "2.2 ...".
    """
    require(
        head.rule == "linear",
        f"head {head.name!r} must be linear to become a pair, its rule is {head.rule!r}",
    )

    number, _, word = head.name.partition(" ")

    def make_half(sign: float, mark: str) -> Head:
        """Return the softmax head with the logits ``sign * epsilon * x``, and ``mark`` in its name."""
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
    """Return the error sentence that refuses float32 for a circuit with pairs of softmax heads.

    Args:
        model: the variant that has such pairs, as text, such as "variant 'P'".
        instead: what to use instead, such as "'R'".
    """
    return (
        f"the pairs of softmax heads that {model} has at a finite eta subtract nearly equal numbers; load it with "
        f"dtype='float64', or take {instead}"
    )


# Lemma C.1 (paper, appendix C): FO(g, -l) must give its target, or the sink where there is none, at least 1 - eps of
# the attention. For unit-norm codes with margin Delta, over N visible positions, the printed lemma needs the inverse
# temperature eta = ln(N / eps) / Delta and xi = 3 d / Delta_bos on codes of squared norm d / 2; the corrected head,
# whose sink is keyed by content, needs eta = (2 / Delta) ln((N - 1) / eps) and no xi.
