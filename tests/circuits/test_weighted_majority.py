"""Weighted Majority wired by hand: equal to the algorithm, causal, and symmetric where the algorithm is."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import circuits
import interp
from interp.tasks import experts
from interp.tasks.experts import predictors as algorithms
from tests.refusals import refused

VARIANTS = ("R", "P")


def errors(
    episodes: experts.ExpertEpisodes, log_gamma: float = 0.5, **arguments: Any
) -> tuple[float, float]:
    """Largest error of the prediction and of the log-weights."""
    model = circuits.load(
        "wma-handwired", n_experts=episodes.n_experts, log_gamma=log_gamma, **arguments
    )
    run = interp.rollout(model, episodes)
    predictions = run.predictions.double().numpy()
    true_predictions = algorithms.weighted_majority(episodes, eta=log_gamma).predictions
    prediction_error = np.abs(predictions - true_predictions).max()
    log_weights = model.read_state(run.latents).double().numpy()
    true_log_weights = algorithms.log_weights(episodes, log_gamma)
    log_weight_error = np.abs(log_weights - true_log_weights).max()
    return float(prediction_error), float(log_weight_error)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("n_experts", [1, 3, 8])
def test_exact_in_float64(variant: str, n_experts: int) -> None:
    """With a gain that rounds; verification, below, is at the default gain."""
    prediction, weights = errors(
        experts.sample(8, 20, n_experts, seed=n_experts), np.log(1.5), variant=variant
    )
    assert prediction <= 1e-14
    assert weights <= 1e-13


def plain_sum(episodes: experts.ExpertEpisodes, log_gamma: float, dtype: str) -> np.ndarray:
    """``lambda += log(gamma) m`` round after round in ``dtype``, from 0: ``[episode, round + 1, expert]``."""
    gain = np.dtype(dtype).type(log_gamma)
    gains = episodes.correct.astype(dtype) * gain
    start = np.zeros_like(gains[:, :1])
    sums = np.cumsum(gains, axis=1, dtype=dtype)
    return np.concatenate([start, sums], axis=1)


def test_log_weights_are_bitwise_those_of_a_float32_loop() -> None:
    """R only ever adds log(gamma) to lambda_i, so attention adds no error of its own."""
    episodes = experts.sample(4, 200, 4, seed=3)
    model = circuits.load(
        "wma-handwired", n_experts=4, log_gamma=float(np.log(1.5)), dtype="float32"
    )
    run = interp.rollout(model, episodes)
    log_weights = model.read_state(run.latents).numpy()
    assert np.array_equal(log_weights, plain_sum(episodes, np.log(1.5), "float32"))


@pytest.mark.parametrize(
    "arguments", [{"positions": "sinusoidal"}, {"rotation": 3}, {"rotation": 3, "variant": "P"}]
)
def test_other_codes_and_bases_cost_only_rounding(arguments: dict[str, Any]) -> None:
    prediction, weights = errors(experts.sample(6, 20, 4, seed=2), **arguments)
    assert prediction <= 1e-12
    assert weights <= 1e-11


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variable_of_the_ground_truth_is_where_the_table_says(variant: str) -> None:
    result = circuits.verify(
        "wma-handwired", sizes=[1, 4], n_rounds=12, n_episodes=4, variant=variant
    )
    table = result.table()
    assert result.passed, table[~table["passed"]].to_string()
    variables = {
        "log_weights",
        "binding",
        "votes",
        "label",
        "prediction",
        "next_log_weights",
        "distribution",
    }
    variables |= {"carried_state", "residue", "position_code", "causality", "horizon"}
    if variant == "R":
        variables |= {"match"}
    assert set(table["variable"]) == variables
    scores = table["where"] == "blocks.2.attn.hook_attn_scores at w?"
    variable_of_scores = "match" if variant == "R" else "next_log_weights"
    assert set(table["variable"][scores]) == {variable_of_scores}


def test_softmax_only_error_falls_with_the_inverse_temperature() -> None:
    """Every head softmax: the error of P follows (N - 1) e^{-eta/2}, down to rounding (the paper's claim)."""
    episodes = experts.sample(6, 60, 4, seed=7)
    error_by_eta = [errors(episodes, eta=eta)[0] for eta in (10.0, 20.0, 40.0, 80.0)]
    assert all(later < earlier / 10 for earlier, later in pairwise(error_by_eta[:3]))
    assert error_by_eta[0] > 0.01
    assert error_by_eta[3] <= 1e-13
    rules = circuits.load("wma-handwired", eta=40.0).config.attention_rules
    assert {rule for row in rules for rule in row} == {"softmax"}


def test_the_softmax_pair_of_variant_p_is_second_order_in_epsilon() -> None:
    episodes = experts.sample(4, 20, 3, seed=8)
    coarse = errors(episodes, variant="P", eta=120.0, epsilon=1e-2)[1]
    fine = errors(episodes, variant="P", eta=120.0, epsilon=1e-3)[1]
    assert fine < coarse / 50
    assert fine < 1e-2


@pytest.mark.parametrize(
    ("variant", "heads_of_layers", "slope", "constant"),
    [("R", [2, 3, 3], 18, 68), ("P", [2, 2, 2, 1], 20, 64)],
    ids=["R", "P"],
)
@pytest.mark.parametrize("n", [2, 8])
def test_sizes_are_those_of_the_specification(
    n: int, variant: str, heads_of_layers: list[int], slope: int, constant: int
) -> None:
    """d_model 6 n + 26; 3 layers of 2, 3, 3 heads (R) or 4 of 2, 2, 2, 1 (P); weights grow by 18 (20) per expert."""
    circuit = circuits.build("wma-handwired", n_experts=n, variant=variant)
    assert circuit.basis.d_model == 6 * n + 26
    assert [len(circuit.layer(i)) for i in range(circuit.n_layers)] == heads_of_layers
    n_nonzero = slope * n + constant
    assert sum(head.n_nonzero for head in circuit.heads) == n_nonzero
    model = circuits.compile_circuit(circuit)
    matrices = (model.W_Q, model.W_K, model.W_V, model.W_O)
    assert sum(int((weights != 0).sum()) for weights in matrices) == n_nonzero


def test_sinusoidal_codes_have_one_block_less_and_their_lines() -> None:
    circuit = circuits.build("wma-handwired", n_experts=8, positions="sinusoidal", n_lines=16)
    d_model_of_blocks = 4 * (8 + 5)
    assert circuit.basis.d_model == d_model_of_blocks + 2 * 16 + 1


test_bad_arguments_are_refused_with_a_sentence = refused(
    ({"n_experts": 0}, "n_experts must be an integer >= 1, got 0"),
    ({"variant": "Q"}, "unknown variant 'Q'"),
    ({"log_gamma": 0.0}, r"log_gamma must be a number > 0, got 0\.0"),
    ({"eta": -1.0}, r"eta must be a number > 0 or None, got -1\.0"),
    ({"positions": "learned"}, "unknown position code 'learned'"),
    ({"experts": 4}, "unknown argument of 'wma-handwired' 'experts'; did you mean 'n_experts'"),
    ({"dtype": "float16"}, "unknown dtype 'float16'; did you mean 'float"),
    by=lambda arguments: circuits.load("wma-handwired", **arguments),
)


test_unknown_models_name_the_nearest = refused(
    (lambda: circuits.load("wma-handwire"), "did you mean 'wma-handwired'"),
    (
        lambda: circuits.verify("wma-handwired", n_rounds=0),
        "n_rounds must be an integer >= 1, got 0",
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "log_gamma"), [("float64", 0.5), ("float32", 0.5), ("float32", np.log(1.5))]
)
def test_a_hundred_thousand_rounds(dtype: str, log_gamma: float) -> None:
    """Slow: 100,000 rounds; attention adds no error, however long the run.

    The log-weights are bitwise those of a plain sum in the model's dtype, and P is the weighted share that they give.
    A dyadic log(gamma) is summed exactly; ln 1.5 is not, and drifts from the algorithm as any float32 sum of it does.
    """
    episodes = experts.sample(2, 100_000, 4, seed=0)
    model = circuits.load("wma-handwired", n_experts=4, log_gamma=float(log_gamma), dtype=dtype)
    run = interp.rollout(model, episodes)
    plain = plain_sum(episodes, log_gamma, dtype)
    assert np.array_equal(model.read_state(run.latents).numpy(), plain)
    log_weights = plain[:, :-1].astype(np.float64)
    weights = np.exp(log_weights - log_weights.max(-1, keepdims=True))
    weight_of_ones = (weights * episodes.advice).sum(-1)
    share = weight_of_ones / weights.sum(-1)
    error = np.abs(run.predictions.double().numpy() - share).max()
    assert error <= (1e-12 if dtype == "float64" else 1e-6)
    true_log_weights = algorithms.log_weights(episodes, eta=float(log_gamma))
    drift = np.abs(plain - true_log_weights).max()
    assert drift == 0.0 if log_gamma == 0.5 else drift > 1.0
