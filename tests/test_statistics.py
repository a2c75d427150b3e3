"""Intervals over episodes, where episodes are few or have nothing to count."""

import math

import numpy as np
import pytest

from interp.statistics import Interval, percentile_bounds, ratio_interval


def test_a_ratio_without_steps_is_nan_and_without_resampled_steps_has_no_bounds():
    nothing = ratio_interval([0.0, 0.0], [0.0, 0.0])
    assert all(math.isnan(value) for value in (nothing.estimate, nothing.low, nothing.high))
    unlucky = ratio_interval([1.0, 0.0], [2.0, 0.0], weights=np.array([[0.0, 2.0]]))
    assert unlucky.estimate == 0.5
    assert math.isnan(unlucky.low) and math.isnan(unlucky.high)


def test_the_bounds_of_a_ratio_are_those_of_its_resamples():
    weights = np.array([[2.0, 0.0], [0.0, 2.0]])
    interval = ratio_interval([1.0, 2.0], [2.0, 2.0], level=1.0, weights=weights)
    assert (interval.estimate, interval.low, interval.high) == pytest.approx((0.75, 0.5, 1.0))


def test_an_interval_leaves_out_samples_without_a_value():
    interval = Interval.of_samples([1.0, np.nan, 3.0, np.inf], estimate=2.0, level=1.0)
    assert (interval.estimate, interval.low, interval.high) == (2.0, 1.0, 3.0)
    nothing = Interval.of_samples([], estimate=2.0)
    assert nothing.estimate == 2.0 and math.isnan(nothing.low) and math.isnan(nothing.high)


def test_bounds_of_many_statistics_are_those_of_each_alone():
    samples = np.random.default_rng(0).normal(size=(50, 3))
    samples[0, 1], samples[:, 2] = np.nan, np.nan
    low, high = percentile_bounds(samples)
    for i in range(3):
        alone = Interval.of_samples(samples[:, i], 0.0)
        np.testing.assert_array_equal((low[i], high[i]), (alone.low, alone.high))
