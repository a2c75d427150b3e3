"""Intervals over episodes, where episodes are few or have nothing to count."""

import math

import numpy as np
import pytest

from interp.statistics import ratio_interval


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
