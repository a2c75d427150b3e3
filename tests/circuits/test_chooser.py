"""Lemma C.1: the corrected chooser keeps its promise at the inverse temperature that the table asks for."""

import numpy as np
import pytest

from circuits.basis import Basis, PositionCode
from circuits.heads import Head, _measured_attention, _required_eta, chooser_table, fixed_offset, shift_terms
from tests.refusals import refuses


@pytest.mark.parametrize("eps", [1e-2, 1e-8])
@pytest.mark.parametrize("offset", [1, 2])
def test_measured_attention_is_at_least_what_is_promised(eps: float, offset: int) -> None:
    table = chooser_table(n_positions=34, eps=eps, offset=offset)
    assert (table["attention"] >= table["promised"] - 1e-15).all(), table.to_string()
    assert table["xi_lemma"][0] == 102


def test_the_requirement_is_not_slack_by_orders_of_magnitude() -> None:
    """At a fifth of the inverse temperature the promise is broken."""
    code = PositionCode(LABELS)
    assert _measured_attention(code, 1, _required_eta(1.0, 34, 1e-4) / 5) < 1 - 1e-4


def test_eps_outside_its_range_is_refused() -> None:
    refuses(r"eps must lie in \(0, 1\), got 0", _required_eta, 1.0, 34, 0)


LABELS = tuple(f"t_{i}" for i in range(34))


def chooser(code: PositionCode, offset: int) -> tuple[Basis, Head]:
    """The corrected head, for queries that all fire; position 0 holds the sink."""
    basis = Basis.of(("id",), ("sink",), code)
    return basis, fixed_offset("chooser", 0, offset, (), basis.zero, basis["id"]["sink"])


def attended(basis: Basis, head: Head) -> np.ndarray:
    """Hard attention, averaged over ties, of every position on every earlier one."""
    n = len(LABELS)
    here = np.stack([(basis.code(i) + basis.one).vector() for i in range(n)])
    keys = here.copy()
    keys[0] += basis["id"]["sink"].vector()
    scores = sum(np.outer(here @ q.vector(), keys @ k.vector()) for q, k in head.scores)
    scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
    best = scores >= scores.max(-1, keepdims=True) - 1e-12
    return best / best.sum(-1, keepdims=True)


def test_without_a_target_the_printed_chooser_attends_to_something() -> None:
    """The lemma is silent on i <= l: one-hot codes average over all that is visible, sinusoids take what looks nearest;
    a sink that is always on gets the query instead."""
    one_hot = PositionCode(LABELS)
    for offset in (1, 2):
        basis, ours = chooser(one_hot, offset)
        printed = Head("printed", 0, "hard", shift_terms(basis, offset), ())
        for i in range(offset):
            assert np.allclose(attended(basis, printed)[i, : i + 1], 1 / (i + 1))
            assert attended(basis, ours)[i, 0] == 1.0


def test_a_sink_that_keeps_its_positional_score_takes_queries_from_their_targets() -> None:
    """For sinusoids the first position looks like a target to some queries unless its own score is taken away."""
    basis, ours = chooser(PositionCode.sinusoidal(LABELS, 8, seed=0), 1)
    *shift, (_, sink) = ours.scores
    theta = 1 - basis.positions.margin / 2
    kept = Head("kept", 0, "hard", (*shift, (theta * basis.one, sink)), ())
    targets = np.arange(2, len(LABELS)), np.arange(1, len(LABELS) - 1)
    assert (attended(basis, ours)[targets] == 1).all()
    assert (attended(basis, kept)[targets] < 1).any()
