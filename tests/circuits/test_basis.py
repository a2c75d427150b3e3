"""The labelled basis (names for indices, no mixing of spaces), and Lemma C.1: what choosers by position promise."""

import numpy as np
import pytest

from circuits.basis import Basis, PositionCode
from circuits.heads import (
    Head,
    fixed_offset,
    shift_terms,
)
from interp.support.errors import InputError
from tests.circuits.chooser import chooser_table, measure_attention, required_eta, score_visible
from tests.refusals import refused, refuses

LABELS = ("w", "z", "e_1", "p_1", "p?", "y", "w?")


def basis(**settings: object) -> Basis:
    return Basis.of(("id", "buf1"), ("w", "e_1"), PositionCode(LABELS), **settings)  # type: ignore[arg-type]


def test_directions_add_subtract_and_scale_by_name() -> None:
    b = basis()
    direction = 2.0 * b["id"]["w"] - b["buf1"]["e_1"] + b.zero
    assert str(direction) == "2 id[w] - buf1[e_1]"
    assert direction.dot(direction) == 5.0
    assert str(direction - 2.0 * b["id"]["w"]) == "-buf1[e_1]"
    both_labels = b["id"].sum(("w", "e_1"))
    assert both_labels.vector().tolist()[:4] == [1.0, 1.0, 0.0, 0.0]


test_unknown_blocks_and_labels_name_the_nearest = refused(
    (lambda: basis()["buf"], r"unknown block 'buf'; did you mean 'buf1'"),
    (lambda: basis()["id"]["e_2"], r"unknown label of block 'id' 'e_2'; did you mean 'e_1'"),
)


def test_directions_of_two_bases_refuse_each_other() -> None:
    with pytest.raises(InputError, match="two bases"):
        basis()["id"]["w"] + basis(rotation=1)["id"]["w"]
    twice = basis()["id"]["w"] + basis()["id"]["w"]
    assert twice.dot(twice) == 4.0


def test_block_names_must_differ() -> None:
    refuses("block names must differ", Basis.of, ("id", "id"), ("w",), PositionCode(LABELS))


@pytest.mark.parametrize("rotation", [None, 5])
def test_axes_are_orthonormal(rotation: int | None) -> None:
    b = basis(rotation=rotation)
    gram = b.axes @ b.axes.T
    assert np.allclose(gram, np.eye(b.d_model), atol=1e-14)
    code_2, code_3, constant = b.code(2).vector(), b.code(3).vector(), b.one.vector()
    assert code_2 @ code_3 == pytest.approx(0.0, abs=1e-14)
    assert constant @ code_2 == pytest.approx(0.0, abs=1e-14)


def test_sinusoidal_codes_have_unit_norm_and_the_stated_margin() -> None:
    code = PositionCode.sinusoidal(LABELS, 3, seed=1)
    b = Basis.of(("id",), ("w",), code)
    codes = [b.code(i) for i in range(7)]
    gram = np.array([[first.dot(second) for second in codes] for first in codes])
    assert np.allclose(np.diag(gram), 1.0)
    largest_overlap = np.max(gram - 2 * np.eye(7))
    assert largest_overlap == pytest.approx(1 - code.margin)
    refuses(r"n_lines must lie in 1 \.\.\. 7", PositionCode.sinusoidal, LABELS, 8, seed=1)


@pytest.mark.parametrize("eps", [1e-2, 1e-8])
@pytest.mark.parametrize("offset", [1, 2])
def test_measured_attention_is_at_least_what_is_promised(eps: float, offset: int) -> None:
    table = chooser_table(n_positions=34, eps=eps, offset=offset)
    assert (table["attention"] >= table["promised"] - 1e-15).all(), table.to_string()
    assert table["xi_lemma"][0] == 102


def test_the_requirement_is_not_slack_by_orders_of_magnitude() -> None:
    """At a fifth of the inverse temperature the promise is broken."""
    assert measure_attention(PositionCode(MANY), 1, required_eta(1.0, 34, 1e-4) / 5) < 1 - 1e-4


MANY = tuple(f"t_{i}" for i in range(34))


def chooser(code: PositionCode, offset: int) -> tuple[Basis, Head]:
    """The corrected head, for queries that all fire; position 0 holds the sink."""
    basis = Basis.of(("id",), ("sink",), code)
    return basis, fixed_offset("chooser", 0, offset, (), basis.zero, basis["id"]["sink"])


def attended(basis: Basis, head: Head) -> np.ndarray:
    """Hard attention, averaged over ties, of every position on every earlier one."""
    n = len(MANY)
    inputs = [basis.code(i) + basis.one for i in range(n)]
    queries = np.stack([direction.vector() for direction in inputs])
    keys = queries.copy()
    keys[0] += basis["id"]["sink"].vector()
    scores = score_visible(head, queries, keys)
    best = scores >= scores.max(-1, keepdims=True) - 1e-12
    return best / best.sum(-1, keepdims=True)


def test_without_a_target_the_printed_chooser_attends_to_something() -> None:
    """The lemma is silent on i <= l: one-hot codes average over all that is visible, sinusoids take what looks nearest;
    a sink that is always on gets the query instead."""
    one_hot = PositionCode(MANY)
    for offset in (1, 2):
        basis, ours = chooser(one_hot, offset)
        printed = Head("printed", 0, "hard", shift_terms(basis, offset), ())
        for i in range(offset):
            assert np.allclose(attended(basis, printed)[i, : i + 1], 1 / (i + 1))
            assert attended(basis, ours)[i, 0] == 1.0


def test_a_sink_that_keeps_its_positional_score_takes_queries_from_their_targets() -> None:
    """For sinusoids the first position looks like a target to some queries unless its own score is taken away."""
    basis, ours = chooser(PositionCode.sinusoidal(MANY, 8, seed=0), 1)
    *shift, (_, sink) = ours.scores
    below_the_target = 1 - basis.positions.margin / 2
    sink_score = (below_the_target * basis.one, sink)
    sink_head = Head("kept", 0, "hard", (*shift, sink_score), ())
    targets = np.arange(2, len(MANY)), np.arange(1, len(MANY) - 1)
    assert (attended(basis, ours)[targets] == 1).all()
    assert (attended(basis, sink_head)[targets] < 1).any()
