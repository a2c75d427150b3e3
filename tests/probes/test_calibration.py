"""Planted nulls are not called represented; planted effects are, where there are episodes enough."""

import numpy as np
import pytest

from tests.probes import calibration


@pytest.mark.long
def test_planted_nulls_are_not_represented():
    """One of each kind; a function of the round's inputs given as a bare target is not, either."""
    frame = calibration.nulls(["wma-handwired"], n_sets=1, n_episodes=20, n_rounds=10)
    assert set(frame["kind"]) == set(calibration.NULLS)
    assert len(frame) == 6
    assert (frame["verdict"] != "yes").all()
    assert (frame["bare"] != "yes").all()


def test_a_planted_effect_is_found_with_enough_episodes():
    frame = calibration.power(["independent"], sizes=[32], effects=[0.4], n_sets=3)
    assert (frame["verdict"] == "yes").sum() >= 2
    assert frame["r2"].between(0.2, 0.6).all()
    assert frame["detectable"].between(0, 0.4).all()


@pytest.mark.slow  # Minutes: the full tables.
def test_at_most_five_in_a_hundred_nulls_are_represented():
    """At least 200 nulls of six kinds on three models."""
    models = ["wma-handwired", "wma-learned-additive", "qlearning-learned"]
    frame = calibration.nulls(models, n_sets=12, n_episodes=32, n_rounds=20)
    assert len(frame) >= 200
    assert frame["model"].nunique() == 3
    assert frame["kind"].nunique() == 6
    assert (frame["verdict"] == "yes").mean() <= 0.05
    assert (frame["bare"] != "yes").all()


@pytest.mark.slow  # Minutes: 1,600 planted effects.
def test_power_grows_with_episodes_and_effects():
    sizes, effects = [16, 32, 64, 128], [0.05, 0.1, 0.2, 0.4]
    frame = calibration.power(["independent", "walk"], sizes, effects, n_sets=50)
    hits = frame.assign(hit=frame["verdict"] == "yes")
    for _, of_design in hits.groupby("design"):
        share = of_design.pivot_table("hit", "effect", "n_episodes").to_numpy()
        assert (np.diff(share, axis=0) >= -0.06).all()
        assert (np.diff(share, axis=1) >= -0.06).all()
        assert share[-1, -1] >= 0.8
