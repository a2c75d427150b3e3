"""The effective rates are exact on exact tables, survive noise in a decoding, and refuse what determines nothing."""

from itertools import product

import numpy as np
import pytest

import interp
from interp.evaluation.qlearning.rates import effective_rates, evaluate
from interp.tasks import mdp
from tests.refusals import refuses


@pytest.fixture(scope="module")
def episodes():
    return mdp.sample(300, 50, 4, 3, seed=0)


@pytest.mark.parametrize(("alpha", "gamma"), [(0.1, 0.9), (0.1, 0.0), (0.5, 0.5)])
def test_exact_tables_give_their_own_rates(episodes, alpha, gamma):
    """(.1, .9) on the true tables, (.1, 0) on the table that never bootstraps, by both estimators."""
    result = effective_rates(episodes.relearned(alpha=alpha, gamma=gamma).q_tables, episodes)
    for (rate, _), found in result.numbers.items():
        assert abs(found.estimate - {"alpha": alpha, "gamma": gamma}[rate]) < 1e-9
        assert abs(found.high - found.low) < 1e-9


def test_noise_in_the_decoding_hides_the_bootstrap_from_least_squares_only(episodes):
    """Noise of .2 in every decoded value: least squares finds gamma near 0, the instruments still find it near .9."""
    noise = np.random.default_rng(0).normal(scale=0.2, size=episodes.q_tables.shape)
    result = effective_rates(episodes.q_tables + noise, episodes)
    assert (
        result.get("gamma", "least squares").estimate < 0.3
        and result.get("alpha", "least squares").estimate > 0.2
    )
    assert result.get("gamma", "instruments").estimate > 0.75
    assert abs(result.get("alpha", "instruments").estimate - 0.1) < 0.04
    flat = effective_rates(episodes.relearned(gamma=0.0).q_tables + noise / 4, episodes)
    assert abs(flat.get("gamma", "instruments").estimate) < 0.1


def test_the_interval_comes_from_episodes(episodes):
    """It covers the truth under small noise, and pools batches of different sizes."""
    other = mdp.sample(100, 20, 2, 2, seed=1)
    noisy = [
        e.q_tables + np.random.default_rng(i).normal(scale=0.01, size=e.q_tables.shape)
        for i, e in enumerate((episodes, other))
    ]
    result = effective_rates(noisy, [episodes, other])
    gamma = result.get("gamma", "instruments")
    assert gamma.low < 0.9 < gamma.high and result.settings["n_episodes"] == 400
    frame = result.to_frame()
    expected = product(("alpha", "gamma"), ("instruments", "least squares"))
    assert list(zip(frame["rate"], frame["method"], strict=True)) == list(expected)


def test_bad_input_is_refused_with_a_sentence(episodes):
    with pytest.raises(
        interp.InputError, match=r"tables must be \[episode, round \+ 1, state, action\]"
    ):
        effective_rates(episodes.q_tables[:, 1:], episodes)
    refuses(
        "tables must be finite", effective_rates, np.full(episodes.q_tables.shape, np.nan), episodes
    )
    refuses(
        "the decoded changes determine no rates",
        effective_rates,
        np.zeros(episodes.q_tables.shape),
        episodes,
    )


def test_a_model_taught_single_rounds_has_q_learnings_rates_and_its_untrained_copy_overflows():
    result = evaluate(interp.load("qlearning-taught"), n_episodes=60, n_rounds=30)
    assert {source for source, *_ in result.numbers} == {"model", "true table", "gamma = 0 table"}
    alpha, gamma = (
        result.get("model", rate, "instruments").estimate for rate in ("alpha", "gamma")
    )
    assert abs(alpha - 0.1) < 0.002 and abs(gamma - 0.9) < 0.03
    assert result.get("model", "R2 of the table", "held-out episodes").low > 0.99
