"""Shares of mediation from sums that are given: intervals, controls, and where there is nothing to share."""

from dataclasses import replace
from math import isnan, sqrt

import numpy as np
import pytest

from interp.interventions.mediation import MediationResult, _EffectSums
from interp.interventions.sites import Site
from interp.stats.intervals import ratio_interval
from interp.support.errors import InputError
from tests.refusals import refuses

TOTAL = np.array([4.0, 2.0, 1.0, 3.0])
LOST = np.array([[1.0, 2, 0, 1], [4, 1, 1, 2]])
BROUGHT = np.array([[2.0, 0, 1, 0], [3, 2, 0, 3]])
HALF = MediationResult(
    cause=("latent",),
    outcome="prediction",
    mediators=("L0H0@p?", "all"),
    total=TOTAL,
    lost=LOST / 2,
    brought=BROUGHT / 4,
    moved=np.ones(2),
    random=np.zeros((2, 0, 2)),
    n_random_sites=np.array([0, 0]),
    n_pairs=4,
)
WHOLE = replace(
    HALF,
    cause=("latent", "y"),
    lost=LOST,
    brought=BROUGHT,
    moved=np.array([0.25, 0.75]),
    random=np.array([[[0.1, 0.2], [0.3, 0.6]], [[0.0, 1.0], [0.5, 0.5]]]),
    n_random_sites=np.array([1, 2]),
    n_pairs=8,
    settings={"seed": 3},
)


@pytest.mark.parametrize(
    ("mediator", "blocked", "carried"), [("L0H0@p?", 0.4, 0.3), ("all", 0.8, 0.8)]
)
def test_shares_are_ratios_of_sums_over_episodes(mediator, blocked, carried):
    i = WHOLE.mediators.index(mediator)
    for share, parts, by_hand in (
        (WHOLE.blocked, LOST, blocked),
        (WHOLE.carried, BROUGHT, carried),
    ):
        assert share(mediator) == ratio_interval(parts[i], TOTAL, seed=3)
        assert share(mediator).estimate == pytest.approx(by_hand)
    assert HALF.blocked(mediator) == ratio_interval(LOST[i] / 2, TOTAL, seed=0)
    assert WHOLE.blocked() == WHOLE.blocked("all")
    assert WHOLE.carried() == WHOLE.carried("all")
    refuses("unknown mediator 'every'", WHOLE.blocked, "every")


def test_the_table_has_shares_with_intervals_and_those_of_the_controls():
    frame = WHOLE.to_frame()[::-1]  # the largest share carried comes first
    by_hand = {
        "blocked": [0.4, 0.8],
        "carried": [0.3, 0.8],
        "random_blocked": [0.2, 0.25],
        "random_carried": [0.4, 0.75],
        "moved": [0.25, 0.75],
        "n_random_sites": [1, 2],
        "effect": [sqrt(10 / 8)] * 2,
    }
    assert frame["mediator"].tolist() == ["L0H0@p?", "all"]
    for key, values in by_hand.items():
        assert frame[key].tolist() == pytest.approx(values), key
    assert set(frame.cause) == {"latent + y"}
    lows = [WHOLE.blocked(name).low for name in WHOLE.mediators]
    assert frame.blocked_low.tolist() == lows
    without_controls = HALF.to_frame()
    assert without_controls["random_blocked"].isna().all()
    assert without_controls["random_carried"].isna().all()


def test_the_sentence_says_how_much_passes_and_which_of_several_carries_most():
    parts = ("lost", "brought", "moved", "random", "n_random_sites")
    three = replace(
        WHOLE, mediators=("a", "b", "all"), **{key: getattr(WHOLE, key)[[0, 1, 1]] for key in parts}
    )
    passes = "80% of the effect of latent + y on the prediction passes through the mediators"
    assert (WHOLE.sentence, three.sentence) == (
        f"{passes}.",
        f"{passes}, most of it through b (80%).",
    )
    assert replace(WHOLE, reason="nothing moves").sentence == "Nothing moves."


@pytest.mark.parametrize(("n", "listed"), [(40, True), (41, False)])
def test_an_unknown_mediator_is_told_all_names_where_they_are_no_more_than_forty(n, listed):
    many = replace(WHOLE, mediators=tuple(f"site{i:02}" for i in range(n)))
    with pytest.raises(InputError) as error:
        many.blocked("every")
    assert all(name in str(error.value) for name in many.mediators) is listed


def test_shares_of_a_draw_are_of_all_rows_and_an_empty_draw_has_none():
    case = (Site.parse("L0H0@p?"),)
    lost, brought = LOST[0], BROUGHT[0]
    sums = _EffectSums(TOTAL, {case: lost, (): lost}, {case: brought, (): lost}, {case: 1.0}, False)
    assert sums.shares(case) == pytest.approx((0.4, 0.3))
    assert all(map(isnan, sums.shares(())))
    assert all(map(isnan, replace(sums, is_null=True).shares(case)))
