"""Planted nulls are not called represented; planted effects are, where there are episodes enough."""

import numpy as np
import pytest

from tests.probes import calibration


@pytest.mark.long
def test_planted_nulls_are_not_represented():
    """One of each kind; a function of the round's inputs given as a bare target is not, either."""
    steps = []
    frame = calibration.nulls(quick=True, advance=steps.append, models=["wma-handwired"])
    assert set(frame["kind"]) == set(calibration.NULLS)
    assert sum(steps) == len(frame) == 6
    assert (frame["verdict"] != "yes").all()
    assert (frame["bare"] != "yes").all()


def test_a_planted_effect_is_found_with_enough_episodes():
    frame = calibration.power(sizes=[32], effects=[0.4], designs=["independent"], n_sets=3)
    assert (frame["verdict"] == "yes").sum() >= 2
    assert frame["r2"].between(0.2, 0.6).all()
    assert frame["detectable"].between(0, 0.4).all()


@pytest.mark.slow  # Minutes: the full tables.
def test_at_most_five_in_a_hundred_nulls_are_represented():
    """At least 200 nulls of six kinds on three models."""
    frame = calibration.nulls()
    print(calibration.nulls_summary(frame))  # noqa: T201
    assert len(frame) >= 200
    assert frame["model"].nunique() == 3
    assert frame["kind"].nunique() == 6
    assert (frame["verdict"] == "yes").mean() <= 0.05
    assert (frame["bare"] != "yes").all()


@pytest.mark.slow  # Minutes: 1,600 planted effects.
def test_power_grows_with_episodes_and_effects():
    frame = calibration.power()
    print(calibration.power_summary(frame))  # noqa: T201
    hits = frame.assign(hit=frame["verdict"] == "yes")
    for _, of_design in hits.groupby("design"):
        share = of_design.pivot_table("hit", "effect", "n_episodes").to_numpy()
        assert (np.diff(share, axis=0) >= -0.06).all()
        assert (np.diff(share, axis=1) >= -0.06).all()
        assert share[-1, -1] >= 0.8
