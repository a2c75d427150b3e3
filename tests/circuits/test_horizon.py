"""One set of weights serves every horizon: the check passes for what is exact, and sees what is lost in every round."""

import math
from typing import Any

import pytest
import torch

import circuits
from circuits.exactness import check_horizon
from circuits.registry import handwired, with_defaults

W, Q, R = "wma-handwired", "qlearning-handwired", "reachability-handwired"
EXACT: dict[str, tuple[str, dict[str, Any], str]] = {
    "a gain that rounds": (W, {"n_experts": 2, "log_gamma": math.log(1.5)}, "float32"),
    "the variant that reads its state twice": (W, {"n_experts": 2, "variant": "P"}, "float64"),
    "Q-learning": (Q, {"n_states": 2, "n_actions": 2}, "float32"),
    "search": (R, {"n_nodes": 5, "n_edges": 4}, "float64"),
}


@pytest.mark.parametrize("form", EXACT)
def test_exact_forms_lose_no_more_than_a_sum_does(form: str) -> None:
    name, arguments, dtype = EXACT[form]
    circuit = circuits.build(name, **with_defaults(name, dtype, arguments))
    short, long = check_horizon(circuit, 2, dtype, handwired(name).plan, 100)
    assert short.passed and long.passed
    assert "10 rounds" in short.where or name == R
    assert long.tolerance >= short.tolerance


def test_what_every_round_loses_is_seen_where_a_tolerance_for_one_horizon_does_not_see_it() -> None:
    """A state that keeps all but 3e-15 of itself a round passes every other check."""
    circuit, plan = circuits.build(W, n_experts=2), handwired(W).plan
    carry = circuit.head("2.3")
    leaking = circuit.edit("2.3", moves=tuple((read, (1 - 3e-15) * write) for read, write in carry.moves))
    assert all(
        check.passed
        for check in circuits.exactness.check(leaking, plan.episodes(leaking, 100, 2, 0), 2, "float64", plan)
    )
    assert [check.passed for check in check_horizon(leaking, 2, "float64", plan, 100)] == [False, False]
    assert all(check.passed for check in check_horizon(circuit, 2, "float64", plan, 100))


def test_weights_that_change_between_two_horizons_fail() -> None:
    circuit, plan = circuits.build(W, n_experts=2), handwired(W).plan
    model = circuits.compile_circuit(circuit)
    read = model.read_state

    def drifting(latents: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            model.W_pos[-1] += 0.0 * model.W_pos[-1] + 1e-300
        return read(latents)

    model.read_state = drifting  # type: ignore[method-assign]
    checks = check_horizon(circuit, 2, "float64", plan, 10, model=model)
    assert not any(check.passed for check in checks)


def test_verification_runs_it_once_for_each_dtype_and_for_exact_forms_alone() -> None:
    found = circuits.verify(W, [2, 3], n_rounds=5, n_episodes=2)
    rows = found.table().query("variable == 'horizon'")
    assert found.passed and rows["size"].tolist() == [2] * 4 and rows["dtype"].nunique() == 2
    assert rows["where"].str.contains("after 5 rounds|after 10 rounds").all()
    for arguments in ({"eta": 60.0}, {"rotation": 0}, {"positions": "sinusoidal"}):
        circuit = circuits.build(W, n_experts=2, **arguments)
        assert not check_horizon(circuit, 2, "float64", handwired(W).plan, 5)
