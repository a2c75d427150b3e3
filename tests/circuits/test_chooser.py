"""Lemma C.1: the corrected chooser keeps its promise at the inverse temperature that the table asks for."""

from __future__ import annotations

import pytest

from circuits.basis import PositionCode
from circuits.chooser import chooser_table, measured_attention, required_eta
from interp.errors import InputError


@pytest.mark.parametrize("eps", [1e-2, 1e-8])
@pytest.mark.parametrize("offset", [1, 2])
def test_measured_attention_is_at_least_what_is_promised(eps: float, offset: int) -> None:
    table = chooser_table(n_positions=34, eps=eps, offset=offset)
    assert (table["attention"] >= table["promised"] - 1e-15).all(), table.to_string()
    assert table["xi_lemma"][0] == 102


def test_the_requirement_is_not_slack_by_orders_of_magnitude() -> None:
    """At a fifth of the inverse temperature the promise is broken."""
    code = PositionCode.one_hot(f"t_{i}" for i in range(34))
    assert measured_attention(code, 1, required_eta(1.0, 34, 1e-4) / 5) < 1 - 1e-4


def test_eps_outside_its_range_is_refused() -> None:
    with pytest.raises(InputError, match=r"eps must lie in \(0, 1\), got 0"):
        required_eta(1.0, 34, 0)
