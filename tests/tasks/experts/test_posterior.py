"""Posterior means and evidences equal quadrature, tails included, and the orders of a regime are averaged exactly."""

from functools import cache
from itertools import pairwise, permutations, product
from math import factorial

import mpmath
import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from interp.evaluation.experts.regret import excess_log_loss, log_loss
from interp.stats.intervals import mean_interval
from interp.tasks.experts import REGIMES, ExpertRegime, families, sample
from interp.tasks.experts import predictors as algorithms
from interp.tasks.experts.posterior import (
    average_orders,
    filter_switches,
    log_evidence,
    mean_accuracy,
)
from tests.refusals import refuses

INTERVALS = [(0.3, 0.9), (0.0, 1.0), (0.55, 0.65), (0.0, 0.1), (0.9, 1.0)]


@cache
def moments(hits, misses, bounds):
    """log of the integral of q^k (1-q)^l, and the mean: Gauss-Legendre with enough nodes is exact for polynomials."""
    nodes, weights = np.polynomial.legendre.leggauss((hits + misses) // 2 + 2)
    low, high = bounds
    q = low + (high - low) * (nodes + 1) / 2
    logs = hits * np.log(q) + misses * np.log1p(-q)
    largest = logs.max()
    scaled = weights * np.exp(logs - largest)
    log_integral = np.log(scaled.sum() / 2) + largest
    mean = (scaled * q).sum() / scaled.sum()
    return log_integral, mean


@pytest.mark.parametrize("bounds", INTERVALS)
def test_posterior_equals_quadrature(bounds):
    records = [
        (0, 0),
        (1, 0),
        (0, 1),
        (3, 4),
        (20, 5),
        (5, 20),
        (70, 30),
        (100, 0),
        (0, 100),
        (500, 300),
        (0, 800),
    ]
    hits, misses = (np.array(side) for side in zip(*records, strict=True))
    evidence, mean = log_evidence(hits, misses, bounds), mean_accuracy(hits, misses, bounds)
    for i, record in enumerate(records):
        expected = moments(*record, bounds)
        assert evidence[i] == pytest.approx(expected[0], abs=1e-9, rel=1e-11), record
        assert mean[i] == pytest.approx(expected[1], rel=1e-11), record


@pytest.mark.parametrize(
    "record", [(10_000, 0), (0, 10_000), (9_900, 100), (100_000, 3), (2_000, 98_000)]
)
def test_tails_that_underflow_stay_exact(record):
    """Records that the prior calls impossible, against arithmetic with 60 digits."""
    hits, misses, (low, high) = *record, (0.3, 0.9)
    with mpmath.workdps(60):
        edge = mpmath.mpf("0.9") if hits > misses else mpmath.mpf("0.3")

        def log_likelihood(q):
            log_of_hits = hits * mpmath.log(q)
            return log_of_hits + misses * mpmath.log1p(-q)

        peak = log_likelihood(edge)
        # The posterior leaves the edge exponentially: 60 decay lengths hold all of it.
        length = 60 / abs(hits / edge - misses / (1 - edge))
        span = [edge - length, edge] if hits > misses else [edge, edge + length]

        def density(q):
            return mpmath.exp(log_likelihood(q) - peak)

        total = mpmath.quad(density, span, maxdegree=8)
        mean = mpmath.quad(lambda q: q * density(q), span, maxdegree=8) / total
        width = mpmath.mpf("0.9") - mpmath.mpf("0.3")
        expected = float(mpmath.log(total / width) + peak)
    k = np.array([hits])
    l = np.array([misses])  # noqa: E741
    assert mean_accuracy(k, l, (low, high))[0] == pytest.approx(float(mean), abs=1e-11)
    assert log_evidence(k, l, (low, high))[0] == pytest.approx(expected, rel=1e-12, abs=1e-8)


def test_without_prior_knowledge_the_closed_form_is_the_general_one_bit_for_bit() -> None:
    """Counts, and fractions of them; the smallest number above 0 is no 0."""
    counts = np.random.default_rng(0).integers(0, 3000, (2, 1000))
    for hits, misses in (counts, counts * np.array([[0.37], [0.91]])):
        general = mean_accuracy(hits, misses, (5e-324, 1.0))
        np.testing.assert_array_equal(mean_accuracy(hits, misses, (0.0, 1.0)), general)


def test_counts_below_0_are_computed_like_fractions():
    """An intervention that raises the hits alone leaves fewer than 0 misses."""
    hits = np.array([3, 2, 1])
    misses = np.array([-1, 0, 2])
    of_fractions = mean_accuracy(hits * 1.0, misses * 1.0, (0.3, 0.9))
    np.testing.assert_array_equal(mean_accuracy(hits, misses, (0.3, 0.9)), of_fractions)


def test_a_known_accuracy_learns_nothing():
    hits = np.array([0, 3])
    misses = np.array([2, 0])
    assert mean_accuracy(hits, misses, (0.7, 0.7)).tolist() == [0.7, 0.7]
    by_hand = [2 * np.log(0.3), 3 * np.log(0.7)]
    assert log_evidence(hits, misses, (0.7, 0.7)) == pytest.approx(by_hand)
    assert log_evidence(hits, misses, (1.0, 1.0)).tolist() == [-np.inf, 0.0]


def by_enumeration(episodes, slots, joint=False):
    """P(y = 1) of the first episode, by quadrature over every accuracy and a mean over all n! orders.

    With ``joint``, the probability of all that was seen and of y = 0, 1.
    """
    predictions, jointly = [], []
    for t in range(episodes.n_rounds):
        right = episodes.correct[0, :t].sum(axis=0)
        weight = np.zeros(2)
        for order in permutations(slots):
            for y in (0, 1):
                hit = right + (episodes.advice[0, t] == y)
                log_likelihood = 0.0
                for n_hits, (low, high) in zip(hit, order, strict=True):
                    n_misses = t + 1 - n_hits
                    if low == high:
                        log_likelihood += np.log(low) * n_hits
                        log_likelihood += np.log1p(-low) * n_misses
                    else:
                        log_likelihood += moments(int(n_hits), int(n_misses), (low, high))[0]
                weight[y] += np.exp(log_likelihood) / factorial(len(slots))
        jointly.append(weight)
        predictions.append(weight[1] / weight.sum())
    return np.array(jointly if joint else predictions)


@pytest.mark.parametrize(
    "name", ["stratified", "anti-signal", "2-real", "dominant", "3-high-quality", "uniform"]
)
def test_bayes_of_a_regime_equals_enumeration(name):
    episodes = sample(1, 12, 4, name, seed=2)
    expected = by_enumeration(episodes, REGIMES[name].list_intervals(4))
    assert np.allclose(algorithms.bayes(episodes).predictions[0], expected, rtol=0, atol=1e-12)


def test_bayes_of_one_of_two_regimes_is_the_algorithm_of_two_intervals_and_equals_enumeration():
    episodes = sample(6, 40, 4, "uniform", seed=3)
    run = algorithms.bayes(episodes, ["uniform", "wide"])
    named = families.bayes_mixture(0.3, 0.9, 0.0, 1.0, 0.5).run(episodes)
    assert np.allclose(run.predictions, named["prediction"], rtol=0, atol=1e-12)
    both_regimes, few = ("wide", "stratified"), sample(1, 12, 4, "stratified", seed=2)
    log_joint = [
        by_enumeration(few, REGIMES[name].list_intervals(4), joint=True) for name in both_regimes
    ]
    expected = [p_one / (zero + p_one) for zero, p_one in np.add(*log_joint)]
    assert np.allclose(
        algorithms.bayes(few, list(both_regimes)).predictions[0], expected, rtol=0, atol=1e-12
    )


def test_a_list_of_regimes_is_not_empty_and_holds_no_switch():
    episodes = sample(2, 5, 4, seed=0)
    listed, alone = (algorithms.bayes(episodes, prior).predictions for prior in (["wide"], "wide"))
    assert np.array_equal(listed, alone)
    refuses("needs at least one", algorithms.bayes, episodes, [])
    refuses(
        "regime 'switch-10' switches, and cannot be one of several",
        algorithms.bayes,
        episodes,
        ["uniform", "switch-10"],
    )


def test_bayes_of_a_switching_regime_equals_enumeration_of_all_switch_paths():
    regime = ExpertRegime("s", "", (0.4, 0.4), ((0.85, 0.85),), min_experts=2, switch_every=2)
    episodes = sample(3, 7, 3, regime, seed=4)
    best_experts = product(range(3), repeat=4)
    paths = [path for path in best_experts if all(a != b for a, b in pairwise(path))]
    run = algorithms.bayes(episodes)
    for b, t in product(range(3), range(7)):
        weight = np.zeros(2)
        for path in paths:
            q = np.full((8, 3), 0.4)
            q[np.arange(8), np.repeat(path, 2)] = 0.85
            past = np.where(episodes.correct[b, :t], q[:t], 1 - q[:t])
            for y in (0, 1):
                now = np.where(episodes.advice[b, t] == y, q[t], 1 - q[t])
                weight[y] += past.prod() * now.prod()
        expected = weight[1] / weight.sum()
        assert run.predictions[b, t] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        "uniform",
        "stratified",
        "flat",
        "anti-signal",
        "1-real",
        "switch-10",
        "2-high-quality",
    ],
)
def test_bayes_is_calibrated_and_best_on_its_own_regime(name):
    """What the exact conditional must be: its frequencies are right, and every other predictor has excess log-loss."""
    episodes = sample(600, 60, 4, name, seed=8)
    predictions = algorithms.bayes(episodes).predictions
    happened, foretold = calibration_curve(
        episodes.labels.ravel(), predictions.ravel(), n_bins=10, strategy="quantile"
    )
    assert np.abs(happened - foretold).max() < 0.04

    def mean_excess(other_predictions):
        excess = excess_log_loss(other_predictions, predictions, episodes)
        return mean_interval(excess.mean(axis=1))

    for key in ("bayes_uniform", "bayes_wide", "random"):
        predictions_elsewhere = algorithms.PREDICTORS[key].run(episodes).predictions
        if not np.allclose(predictions_elsewhere, predictions):
            assert mean_excess(predictions_elsewhere).low > 0, key
    oracle = algorithms.oracle(episodes)
    assert mean_excess(oracle.predictions).high < 0
    assert np.isfinite(log_loss(predictions, episodes)).all()


@pytest.mark.parametrize("name", ["stratified", "switch-10"])
def test_blocks_of_episodes_change_nothing(name, monkeypatch):
    episodes = sample(11, 30, 4, name, seed=0)
    whole = algorithms.bayes(episodes)
    monkeypatch.setattr("interp.tasks.experts.posterior._BLOCK", 1)
    assert np.allclose(
        whole.predictions, algorithms.bayes(episodes).predictions, rtol=0, atol=1e-14
    )


def test_orders_are_counted_before_they_are_listed():
    """Of the 40! arrangements of 40 experts, two of them real, 780 differ."""
    prior = REGIMES["2-real"].list_intervals(40)
    assert np.isfinite(average_orders(sample(1, 2, 40, seed=0), [prior])).all()
    for name, n, words in (
        ("stratified", 30, "4 kinds of slot have 24360 orders"),
        ("2-real", 60, "1770 orders"),
    ):
        prior = REGIMES[name].list_intervals(n)
        message = f"{n} experts in .*{words}, more than 1000"
        refuses(message, average_orders, sample(1, 2, n, seed=0), [prior])


def test_switching_between_unknown_accuracies_is_refused():
    refuses("needs known accuracies", filter_switches, sample(1, 4, 2), ((0.3, 0.9), (0.3, 0.9)), 2)
