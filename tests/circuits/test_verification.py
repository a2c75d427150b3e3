"""What verification sees: errors at every scale of values, residues, causality, ties, what is lost in every round."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import typer

import circuits
import interp.tasks
from circuits.basis import MIN_MARGIN, PositionCode
from circuits.exactness import check, check_horizon
from circuits.registry import get_record, with_defaults
from circuits.verification import VerificationResult
from interp.cli import app
from interp.cli.options import parse_settings
from interp.model.rollout import rollout
from tests.circuits.faults import edit_head
from tests.refusals import refuses
from tests.shell import printed, refusal

Q = "qlearning-handwired"


def verified(**arguments: Any) -> VerificationResult:
    return circuits.verify(Q, [(2, 2)], 10, 3, **arguments)


def failures(circuit: Any, dtype: str = "float64", model: Any = None) -> set[str]:
    plan = get_record(circuit.name).plan
    episodes = plan.episodes(circuit, 20, 3, 0)
    return {
        entry.variable
        for entry in check(circuit, episodes, 0, dtype, plan, model)
        if not entry.passed
    }


TINY, HUGE = {"rewards": (0.0, 1e-6), "gamma": 0.999}, {"rewards": (0.0, 1e9), "gamma": 0.0}


@pytest.mark.parametrize(
    ("variant", "arguments"),
    [("mlp", TINY), ("lin", TINY), ("lin", HUGE)],
    ids=["mlp, tiny rewards", "lin, tiny rewards", "lin, huge rewards"],
)
def test_the_machines_are_right_at_every_scale_in_both_dtypes(
    variant: str, arguments: dict[str, Any]
) -> None:
    result = verified(variant=variant, **arguments)
    assert result.passed, result.summary().to_string()


def test_a_small_fault_is_seen_at_the_scale_of_the_rewards() -> None:
    """A part in a thousand of alpha, at rewards of a millionth: the absolute error is far below any fixed bound."""
    circuit = circuits.build(Q, n_states=3, n_actions=2, rewards=(0.0, 1e-6), relative_tau=2.5e-7)
    reward = circuit.head("4.2")
    wrong = edit_head(
        circuit, "4.2", moves=tuple((read, 1.001 * write) for read, write in reward.moves)
    )
    for dtype in ("float64", "float32"):
        assert not failures(circuit, dtype)
        assert "carried_state" in failures(wrong, dtype)


def test_what_is_left_in_the_latents_is_seen() -> None:
    circuit = circuits.build("wma-handwired", n_experts=3)
    assert not failures(circuit)
    assert failures(circuit.without("3.3")) == {"residue"}, (
        "the clean-up head is inert for everything else"
    )
    model = circuits.compile_circuit(circuit)
    model.config = replace(model.config, strip_position=False)
    assert {"residue", "position_code"} <= failures(circuit, model=model)


@pytest.mark.parametrize("name", [known.name for known in circuits.models()])
def test_the_unembedding_of_every_outcome_is_checked(name: str) -> None:
    """A prediction of experts is P(y = 1) alone; the other column of W_U tells P(y = 0)."""
    small = {"n_nodes": 6, "n_edges": 6} if name.startswith("reachability") else {}
    circuit = circuits.build(name, **small)
    assert not failures(circuit)
    for outcome in (0, 1):
        model = circuits.compile_circuit(circuit)
        with torch.no_grad():
            model.W_U[:, outcome] = torch.randn(
                len(model.W_U), generator=torch.Generator().manual_seed(0)
            ).double()
        failed = failures(circuit, model=model)
        assert failed
        assert failed <= {"distribution", get_record(name).plan.output}
        assert "distribution" in failed or circuit.layout.prediction_axes == 1


def test_a_mask_that_lets_one_position_look_ahead_is_seen() -> None:
    circuit = circuits.build("wma-handwired", n_experts=3)
    model = circuits.compile_circuit(circuit)
    assert "causality" not in failures(circuit, model=model)
    p = circuit.layout.position("p?")
    model.blocks[2].attn.mask[p, p + 1] = False
    assert "causality" in failures(circuit, model=model)


def test_too_many_undecided_rows_fail() -> None:
    result = verified(variant="lin", dtype="float32")
    assert result.summary()["undecided"].max() < 0.1
    fewer = replace(result.checks[0], undecided=0.2)
    assert result.checks[0].passed
    assert not fewer.passed
    assert fewer.measure().verdict == "undecided"


def test_verification_is_a_measure_of_each_variable_by_its_worst_check() -> None:
    result = verified(dtype="float64")
    n = len({check.variable for check in result.checks})
    assert len(result.measures) == n < len(result.checks)
    assert {measure.verdict for measure in result} == {"yes"}
    assert (
        result.sentence
        == f"{Q} is tabular Q-learning exactly: all {n} checks agree to float precision."
    )
    worst = max(check.relative for check in result.checks if check.variable == "carried_state")
    assert result["carried_state"].number.estimate == worst
    far = [replace(check, error=1.0, relative=1.0) for check in result.checks[:1]]
    wrong = VerificationResult(Q, "Q-learning", (*result.checks, *far))
    assert not wrong.passed
    assert wrong.failures == tuple(far)
    assert wrong[far[0].variable].verdict == "no"
    assert wrong.sentence == f"{Q} is not Q-learning: 1 of {n} checks fails: {far[0].variable}."
    tied = [replace(result.checks[0], undecided=0.2)]
    undecided = VerificationResult(Q, "Q-learning", (*tied, *result.checks[1:]))
    assert undecided.sentence.startswith(f"{Q} may not be Q-learning: 1 of {n} checks fails: ")


@pytest.mark.parametrize(
    ("name", "size", "arguments"),
    [
        (Q, (3, 3), {"variant": "mlp", "eta": 60.0}),
        (Q, (2, 2), {"variant": "lin", "eta": 60.0}),
        ("wma-handwired", 2, {"variant": "P", "eta": 60.0}),
        ("wma-handwired", 2, {"variant": "P", "eta": 2000.0}),
    ],
    ids=["Q, mlp", "Q, lin", "P", "P, without a leak"],
)
def test_softmax_forms_are_the_algorithm_up_to_their_errors_and_not_exactly(
    name: str, size: Any, arguments: dict[str, Any]
) -> None:
    """Pairs of heads round zeros, so that ties of zeros are undecided, and err at any sharpness of the others."""
    result = circuits.verify(name, [size], 40, 6, "float64", **arguments)
    assert result.passed, result.summary().to_string()
    assert " up to the errors of softmax heads: all " in result.sentence
    assert "exactly" not in result.sentence


def test_float32_limits_are_refused_with_the_bound_that_they_break() -> None:
    """Whether the slope is given or the default of float64; 0, or one above the bound, is accepted."""
    for circuit in (
        circuits.build(Q),
        circuits.build(Q, variant="lin"),
        circuits.build(Q, tau=1.8e-6),
    ):
        refuses(
            r"tau = .* is below 1\.90735e-06, what float32 resolves .* tau >= 1\.907e-06",
            circuits.compile_circuit,
            circuit,
            torch.float32,
        )
    for options in (
        {"tau": 0.0},
        {"tau": 2e-6},
        {"relative_tau": 1.2e-7},
        {"gamma": 0.0, "tau": 1.2e-7},
    ):
        assert (
            circuits.compile_circuit(circuits.build(Q, **options), torch.float32).W_E.dtype
            == torch.float32
        )
    refuses(
        r"tau = 1e-05 is below 2048, what float32 resolves .* M = 1\.71799e\+10",
        circuits.load,
        Q,
        dtype="float32",
        rewards=(0.0, 1e9),
        tau=1e-5,
    )
    refuses(
        r"values up to M = .* are beyond 1\.32923e\+36",
        circuits.load,
        Q,
        dtype="float32",
        rewards=(0.0, 1e37),
    )
    assert circuits.load(Q, rewards=(0.0, 1e9), tau=1e-5).W_E.dtype == torch.float64
    refuses(
        r"tau = 1e-13 is below 3\.8147e-06, what float64 resolves .* give no tau",
        circuits.load,
        Q,
        rewards=(0.0, 1e9),
        tau=1e-13,
    )


@pytest.mark.parametrize("variant", ["mlp", "softmlp", "lin"])
def test_the_refused_slopes_are_those_that_break_no_ties(variant: str) -> None:
    """Random tables up to M in float32, the best value twice: a slope at the bound always chooses the first of them."""
    right = {}
    for share in (1.0, 1 / 64):
        circuit = circuits.build(
            Q, n_states=2, n_actions=4, variant=variant, tau=share * 16 * 2.0**-23
        )
        assert bool(circuit.float64_only) == (share < 1)
        model = circuits.compile_circuit(replace(circuit, float64_only=""), torch.float32)
        episodes = get_record(Q).plan.episodes(circuit, 1, 300, 0)
        run = rollout(model, episodes)
        table = torch.rand(300, 2, 4, generator=torch.Generator().manual_seed(0)) * 15.9
        every = torch.arange(300)
        first = torch.arange(300) % 3
        best = table.amax(-1)
        table *= 0.9
        table[every, :, first] = table[every, :, first + 1] = best
        latents = run.latents[:, 0] + torch.einsum("esa, sd -> ead", table, model.state_map)
        with torch.no_grad():
            chosen = model(run.tokens[:, 0], latents, run.values[:, 0].float()).prediction
        right[share] = float((chosen == torch.eye(4)[first]).all(-1).float().mean())
    assert right[1.0] == 1.0
    assert right[1 / 64] < 0.6


@pytest.mark.parametrize("n_lines", [1, 2, 3])
def test_codes_of_few_lines_tell_positions_apart_or_are_refused(n_lines: int) -> None:
    for T in (9, 13, 22):
        for seed in range(5):
            assert PositionCode.sinusoidal(map(str, range(T)), n_lines, seed).margin >= MIN_MARGIN
    refuses(
        r"n_lines=1 cannot tell 200 positions apart: .* give more lines",
        PositionCode.sinusoidal,
        map(str, range(200)),
        1,
        0,
    )


def test_settings_of_the_command_line() -> None:
    assert parse_settings(["gamma=0", "signed=true", "variant=lin"]) == {
        "gamma": 0,
        "signed": True,
        "variant": "lin",
    }
    for pair, message in (
        ("gamma", "NAME=VALUE"),
        ("rewards=[0,", "is no value"),
        ("decimal=,", "or a text in quotes, as in \"decimal=','\""),
    ):
        refuses(message, parse_settings, [pair])
    for name in ("key pressed", "key_resp.keys", "Wähl"):
        assert parse_settings([f"choice={name}"]) == {"choice": name}
    refuses(
        "unknown argument of 'qlearning-handwired' 'gama'; did you mean 'gamma'", verified, gama=0.5
    )
    refuses(r"n_states is a size of the task: give it in sizes \(--states", verified, n_states=3)


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
    short, long = check_horizon(circuit, 2, dtype, get_record(name).plan, 30)
    assert short.passed
    assert long.passed
    assert "10 rounds" in short.where or name == R
    assert long.tolerance >= short.tolerance


def test_what_every_round_loses_is_seen_where_a_tolerance_for_one_horizon_does_not_see_it() -> None:
    """A state that keeps all but 3e-15 of itself a round passes every other check."""
    circuit, plan = circuits.build(W, n_experts=2), get_record(W).plan
    carry = circuit.head("2.3")
    leaking = edit_head(
        circuit, "2.3", moves=tuple((read, (1 - 3e-15) * write) for read, write in carry.moves)
    )
    episodes = plan.episodes(leaking, 30, 2, 0)
    assert all(measure.passed for measure in check(leaking, episodes, 2, "float64", plan))
    assert [measure.passed for measure in check_horizon(leaking, 2, "float64", plan, 30)] == [
        False,
        False,
    ]
    assert all(measure.passed for measure in check_horizon(circuit, 2, "float64", plan, 30))


def test_weights_that_change_between_two_horizons_fail() -> None:
    circuit, plan = circuits.build(W, n_experts=2), get_record(W).plan
    model = circuits.compile_circuit(circuit)
    read = model.read_state

    def drifting(latents: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            model.W_pos[-1] += 0.0 * model.W_pos[-1] + 1e-300
        return read(latents)

    model.read_state = drifting  # type: ignore[method-assign]
    assert not any(
        check.passed for check in check_horizon(circuit, 2, "float64", plan, 10, model=model)
    )


def test_verification_runs_it_once_for_each_dtype_and_for_exact_forms_alone() -> None:
    result = circuits.verify(W, [2, 3], n_rounds=5, n_episodes=2)
    rows = result.table().query("variable == 'horizon'")
    assert result.passed
    assert rows["size"].tolist() == [2] * 4
    assert rows["dtype"].nunique() == 2
    assert rows["where"].str.contains("after 5 rounds|after 10 rounds").all()
    for arguments in ({"eta": 60.0}, {"rotation": 0}, {"positions": "sinusoidal"}):
        assert not check_horizon(
            circuits.build(W, n_experts=2, **arguments), 2, "float64", get_record(W).plan, 5
        )


def test_every_size_of_every_task_is_an_option() -> None:
    options = {option.name for option in typer.main.get_command(app).commands["verify"].params}
    assert {size.option for task in interp.tasks.list_tasks() for size in task.sizes} <= options
    assert "sizes" not in options


@pytest.mark.long
def test_sizes_are_combined_and_a_missing_one_is_the_tasks_default() -> None:
    output = printed(
        "verify", "qlearning-handwired", "--states", 2, 3, "--rounds", 3, "--episodes", 3
    )
    assert {"(2, 3)", "(3, 3)"} == {
        line.split("│")[1].strip() for line in output.splitlines() if line.startswith("│")
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("wma-handwired", "--states", 3),
            "'wma-handwired' has no size --states; its sizes are --experts",
        ),
        (
            ("qlearning-handwired", "--experts", 2, 4),
            "has no size --experts; its sizes are --states, --actions",
        ),
    ],
)
def test_sizes_of_another_task_are_refused(arguments: tuple[object, ...], message: str) -> None:
    assert message in refusal("verify", *arguments)
