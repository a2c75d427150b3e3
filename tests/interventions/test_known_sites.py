"""Interchange has the whole effect at true sites and none at wrong ones; every location has a row or a reason."""

import pytest

import circuits
from circuits.benchmark.known_machine import FORMS, SIZES
from tests.interventions import known_sites
from tests.interventions.known_sites import EXACT, NOTHING


@pytest.mark.parametrize("form", FORMS)
def test_every_location_is_in_a_row_or_says_why_not(form):
    name, arguments = FORMS[form]
    circuit = circuits.build(name, **SIZES[name], **arguments)
    known_sites.assert_every_location_has_a_row(circuit)


@pytest.mark.parametrize(
    ("form", "variables"),
    [
        ("R", ("label", "match")),
        ("P, softmax", ("next_log_weights",)),
        ("lin", ("current_value",)),
    ],
)
def test_true_sites_have_the_whole_effect_and_wrong_ones_none(form, variables):
    frame = known_sites.sites(True, forms=[form], variables=variables, n_pairs=6)
    assert set(frame["variable"]) == set(variables)
    effects = frame[["score", "score_low", "score_high", "slope"]]
    assert effects.notna().all(axis=None)
    assert (effects - 1).abs().max(axis=None) <= EXACT
    assert frame["wrong"].max() <= NOTHING
    assert not frame["placebo"].max() > NOTHING  # attention scores have none


@pytest.mark.slow  # Minutes: every form, with 12 wrong positions.
def test_every_true_site_of_every_form():
    """Score and slope of exact forms are 1; of softmax Q-learning nearly so: near-ties of Q have their own odds."""
    frame = known_sites.sites()
    off = (frame[["score", "slope"]] - 1).abs().max(axis=1)
    tied = (frame["machine"] == "qlearning-handwired") & frame["form"].str.endswith("softmax")
    assert (off[~tied] <= EXACT).all()
    assert (off[tied] <= 1e-3).all()
