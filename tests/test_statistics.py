"""Intervals over episodes, where episodes are few or have nothing to count."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import binomtest

from interp.stats.intervals import (
    Interval,
    bootstrap_mean,
    mean_interval,
    percentile_bounds,
    ratio_interval,
    resample_weights,
    share_interval,
)
from tests.refusals import refuses


def test_a_ratio_without_steps_is_nan_and_without_resampled_steps_has_no_bounds():
    nothing = ratio_interval([0.0, 0.0], [0.0, 0.0])
    assert all(math.isnan(value) for value in (nothing.estimate, nothing.low, nothing.high))
    unlucky = ratio_interval([1.0, 0.0], [2.0, 0.0], weights=np.array([[0.0, 2.0]]))
    assert unlucky.estimate == 0.5
    assert math.isnan(unlucky.low)
    assert math.isnan(unlucky.high)


def test_the_bounds_of_a_ratio_are_those_of_its_resamples():
    weights = np.array([[2.0, 0.0], [0.0, 2.0]])
    interval = ratio_interval([1.0, 2.0], [2.0, 2.0], weights=weights)
    assert (interval.estimate, interval.low, interval.high) == pytest.approx((0.75, 0.5125, 0.9875))


@pytest.mark.parametrize("n_episodes", [16, 32, 64])
def test_intervals_of_a_share_near_1_hold_it(n_episodes):
    """With 16 episodes of one trial, a bootstrap alone holds .95 in 55 % of these draws, with 64 in 82 %."""
    generator = np.random.default_rng(n_episodes)
    trials = np.ones(n_episodes)
    intervals = [
        share_interval(generator.binomial(1, 0.95, n_episodes), trials) for _ in range(400)
    ]
    coverage = np.mean([interval.low <= 0.95 <= interval.high for interval in intervals])
    assert coverage > 0.85


def test_a_share_of_hits_alone_has_the_exact_interval_of_its_participants():
    """scipy's Clopper-Pearson interval is the oracle; an episode without a trial tells nothing."""
    for hits, trials, participants, n_participants in (
        ([3, 2, 4], [3, 2, 4], None, 3),
        ([3, 0, 4], [3, 0, 4], None, 2),
        ([1, 1, 1], [1, 1, 1], ["ann", "bob", "ann"], 2),
    ):
        interval = share_interval(hits, trials, participants=participants)
        exact = binomtest(n_participants, n_participants).proportion_ci(0.95)
        assert (interval.low, interval.high) == pytest.approx((exact.low, exact.high))
        without_hits = share_interval(np.zeros(3), trials, participants=participants)
        bounds = 1 - exact.high, 1 - exact.low
        assert (without_hits.low, without_hits.high) == pytest.approx(bounds)


def test_a_share_with_hits_and_misses_has_the_bootstrap_interval():
    hits, trials = [1.0, 2.0, 0.0, 3.0], [2.0, 2.0, 1.0, 3.0]
    assert share_interval(hits, trials, seed=3) == ratio_interval(hits, trials, seed=3)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        pytest.param((0.5, 0.9, 0.1), "low <= high, got low 0.9 and high 0.1", id="exchanged"),
        pytest.param(("0.5", 0.1, 0.9), "estimate must be a number, got '0.5'", id="text"),
        pytest.param((0.5, None, 0.9), "low must be a number, got None", id="nothing"),
        pytest.param((0.5, 0.1, True), "high must be a number, got True", id="truth value"),
    ],
)
def test_an_interval_is_three_numbers_with_its_bounds_in_order(values, sentence):
    refuses(sentence, Interval, *values)


def test_an_estimate_may_lie_outside_of_the_percentiles_of_its_bootstrap():
    """The largest of 10 values is the upper end of all resamples, so half of any symmetric interval lies below it."""
    values = np.arange(10.0)
    drawn = resample_weights(10, seed=0) > 0
    largest = np.where(drawn, values, -1).max(1)
    interval = Interval.of_samples(largest, estimate=9.5)
    assert interval.high == 9 < interval.estimate


def test_an_interval_leaves_out_samples_without_a_value():
    interval = Interval.of_samples([1.0, np.nan, 3.0, np.inf], estimate=2.0, level=1.0)
    assert (interval.estimate, interval.low, interval.high) == (2.0, 1.0, 3.0)
    nothing = Interval.of_samples(torch.zeros(0), estimate=2.0)
    assert nothing.estimate == 2.0
    assert math.isnan(nothing.low)
    assert math.isnan(nothing.high)


def test_bounds_of_many_statistics_are_those_of_each_alone():
    samples = np.random.default_rng(0).normal(size=(50, 3))
    samples[0, 1], samples[:, 2] = np.nan, np.nan
    low, high = percentile_bounds(samples)
    for i in range(3):
        alone = Interval.of_samples(samples[:, i], 0.0)
        assert_array_equal((low[i], high[i]), (alone.low, alone.high))


def test_what_is_left_of_a_share_has_its_bounds_exchanged_and_is_written_in_order():
    complement = Interval(0.5, 0.25, 0.625).complement
    assert (complement.estimate, complement.low, complement.high) == (0.5, 0.375, 0.75)
    assert str(Interval(0.5, 0.25, 0.75)) == "0.5 [0.25, 0.75]"
    assert Interval(0.5, 0.25, 0.75).columns("r2") == {"r2": 0.5, "r2_low": 0.25, "r2_high": 0.75}


def test_the_middle_of_the_samples_lies_between_the_bounds():
    samples = np.arange(101.0)
    assert [float(bound) for bound in percentile_bounds(samples)] == pytest.approx([2.5, 97.5])
    assert [float(bound) for bound in percentile_bounds(samples, 0.5)] == [25.0, 75.0]
    rows = np.array([[0.0, 10.0], [4.0, 4.0], [1.0, np.inf]])
    low, high = percentile_bounds(rows.T, 1.0)
    assert low.tolist() == [0, 4, 1]
    assert high.tolist() == [10, 4, 1]
    message = r"samples must be \[resample\], got shape \(2, 2\)"
    refuses(message, Interval.of_samples, np.zeros((2, 2)), 0.0)


def test_a_resample_draws_as_many_episodes_as_there_are_and_depends_on_the_seed_alone():
    weights = resample_weights(8, 50, seed=3)
    assert weights.shape == (50, 8)
    assert resample_weights(8).shape == (1000, 8)
    assert_allclose(weights.sum(1), 1)
    assert_array_equal(weights * 8, np.round(weights * 8))
    assert_array_equal(weights, resample_weights(8, 50, seed=3))
    assert np.ptp(weights) > 0
    assert not np.array_equal(weights, resample_weights(8, 50, seed=4))
    assert_array_equal(resample_weights(8), resample_weights(8, 1000, seed=0))
    first = resample_weights(8, 50, seed=3, plain_first=True)
    assert_array_equal(first[0], np.full(8, 1 / 8))
    assert_array_equal(first[1:], weights)
    assert resample_weights(1, 1).tolist() == [[1.0]]
    people = resample_weights(2, 50, seed=3)[
        :, [0, 1, 0]
    ]  # participants are drawn, each with all of its episodes
    drawn = resample_weights(3, 50, seed=3, participants=["bob", "ann", "bob"])
    assert_allclose(drawn, people / people.sum(1, keepdims=True))


def test_few_weights_are_kept_and_many_are_drawn_again():
    assert resample_weights(512, 512) is resample_weights(512, 512)
    assert resample_weights(513, 512) is not resample_weights(513, 512)


def test_a_bootstrap_of_nothing_or_of_more_than_fits_is_refused():
    refuses("a bootstrap needs at least 1 episode, got 0", resample_weights, 0, 1)
    refuses("a bootstrap needs at least 1 resample, got 0", resample_weights, 1, 0)
    message = "1000000 resamples of 1000000 episodes would take about 1.6e.04 GB"
    refuses(message, resample_weights, 10**6, 10**6)


def test_the_mean_and_its_bounds_are_those_of_the_resampled_means():
    values = np.random.default_rng(1).normal(size=(12, 2))
    mean, low, high = bootstrap_mean(values, seed=5)
    drawn = resample_weights(12, seed=5) @ values
    assert_array_equal(mean, values.mean(0))
    assert_allclose((low, high), np.quantile(drawn, [0.025, 0.975], axis=0))
    for i in range(2):
        interval = mean_interval(values[:, i], seed=5)
        assert interval.estimate == pytest.approx(mean[i])
        assert interval.low == pytest.approx(low[i])
        assert interval.high == pytest.approx(high[i])
    assert_array_equal(bootstrap_mean(values), bootstrap_mean(values, seed=0))
    assert mean_interval(values[:, 0]) == mean_interval(values[:, 0], seed=0)


def test_a_ratio_draws_its_resamples_as_a_mean_does():
    numerators, denominators = np.random.default_rng(2).uniform(0.5, 2, size=(2, 12))
    drawn = resample_weights(12, seed=5) @ np.stack([numerators, denominators], 1)
    wanted = np.quantile(drawn[:, 0] / drawn[:, 1], [0.025, 0.975])
    ratio = ratio_interval(numerators, denominators, seed=5)
    assert (ratio.low, ratio.high) == pytest.approx(tuple(wanted))
    assert ratio.estimate == pytest.approx(numerators.sum() / denominators.sum())
    of_seed_0 = ratio_interval(numerators, denominators, seed=0)
    assert ratio_interval(numerators, denominators) == of_seed_0
    # A resample that sums to 1 counts, one of 0 does not.
    weights = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    ones = ratio_interval([1.0, 0.0], [1.0, 0.0], weights=weights)
    assert ones.estimate == 1
    assert ones.low == 1
    assert ones.high == 1
    refuses(r"got shapes \(2,\) and \(3,\)", ratio_interval, [1, 1], [1, 1, 1])
    for participants in (
        "ab",
        [None, None],
        [1.0, np.nan],
        [1, "1"],
        ["a"],
        ["a", "a\0"],
        [[1], [2]],
        {"a": 1, "b": 2},
    ):
        refuses(
            "participants (must be 2 names|are names)",
            mean_interval,
            [1.0, 2.0],
            participants=participants,
        )
