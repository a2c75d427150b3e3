"""Interchange has the whole effect at true sites and none at wrong ones; every location has a row or a reason."""

import pytest

import circuits
from circuits.benchmark.known_machine import FORMS, SIZES
from tests.interventions import known_sites
from tests.interventions.known_sites import EXACT, NOTHING


@pytest.mark.parametrize("form", FORMS)
def test_every_location_is_in_a_row_or_says_why_not(form):
    """No location of the ground truth is left untested in silence, and no row names a location that is not there."""
    name, arguments = FORMS[form]
    circuit = circuits.build(name, **SIZES[name], **arguments)
    located = {
        (key, location.name) for key, locations in circuit.sites.items() for location in locations
    }
    rows = {(row.location_key, place) for row in circuit.carried for place in row.locations}
    assert rows | set(circuit.partial) == located
    assert not rows & set(circuit.partial)


@pytest.mark.parametrize(
    ("form", "variables"),
    [
        ("R", ("label", "match")),
        ("P, softmax", ("next_log_weights",)),
        ("lin", ("current_value",)),
    ],
)
def test_true_sites_have_the_whole_effect_and_wrong_ones_none(form, variables):
    steps = []
    frame = known_sites.sites(True, steps.append, forms=[form], variables=variables, n_pairs=6)
    assert set(frame["variable"]) == set(variables)
    assert steps == [1]
    assert (frame[["score", "score_low", "score_high", "slope"]] - 1).abs().max(axis=None) <= EXACT
    assert frame["wrong"].max() <= NOTHING
    assert (frame["n_wrong"] == 4).all()
    assert not frame["placebo"].max() > NOTHING  # attention scores have none
    assert "above 0.05: none" in known_sites.sites_summary(frame)


def test_a_row_that_falls_short_is_listed():
    frame = known_sites.sites(True, forms=["R"], variables=["match"], n_pairs=6)
    for short in ({"score": 0.9}, {"slope": float("nan")}, {"wrong": 0.2}, {"placebo": 0.2}):
        listed = known_sites.sites_summary(frame.assign(**short)).split("above 0.05:")[1]
        assert "match" in listed


@pytest.mark.slow  # Minutes: every form, with 12 wrong positions.
def test_every_true_site_of_every_form():
    """Score and slope of exact forms are 1; of softmax Q-learning nearly so: near-ties of Q have their own odds."""
    frame = known_sites.sites()
    off = (frame[["score", "slope"]] - 1).abs().max(axis=1)
    tied = (frame["machine"] == "qlearning-handwired") & frame["form"].str.endswith("softmax")
    assert (off[~tied] <= EXACT).all()
    assert (off[tied] <= 1e-3).all()
