"""Intervals of refitted scores against the equations of their docstring, and on a napkin: every bound and every edge.

The equations are written out once more here, with nothing left out for speed and no cut of what is large. Each table
has tame and wild data, whose half widths on the log scale lie below and above 1.
"""

from math import exp, inf, isnan, nan, sqrt

import numpy as np
import pytest
from scipy import stats

from interp.stats import refit
from interp.support.errors import InputError
from tests.refusals import refused, refuses
from tests.test_refit import accuracy, accuracy_difference, bounds, ratio

TAME = np.array(
    [[9.0, 10, 11, 10, 8], [14, 17, 15, 16, 15], [20, 22, 18, 20, 19], [19, 18, 21, 22, 23]]
)
WILD = np.array([[1.0, 2, 3, 6, 4], [9, 3, 2, 2, 8], [8, 4, 2, 6, 9], [3, 9, 8, 1, 9]])
DATA = pytest.mark.parametrize("data", [TAME, WILD], ids=["tame", "wild"])
"""By row: losses, those of a control, references, and those of the control; by column: episodes."""


def part(losses, references, n_folds):
    """q, its bounds, h and z of the module's docstring."""
    n = len(losses)
    q = losses.sum() / references.sum()
    z = n * (losses / losses.sum() - references / references.sum())
    m = references.sum() ** 2 / (references**2).sum()
    t = stats.t.ppf(0.975, m - 1)
    h = t * np.std(z, ddof=1) / sqrt(n) * sqrt(1 + n_folds / (n_folds - 1)) * m / (m - 1)
    return q, q * exp(-h), q * exp(h), h, z


def difference(one, other):
    """D and its bounds."""
    (q, low, high, _, z), (of_control, control_low, control_high, _, of_z) = one, other
    d, r = of_control - q, np.corrcoef(z, of_z)[0, 1]
    below, above = (high - q, of_control - control_low), (q - low, control_high - of_control)
    root = [sqrt(a**2 + b**2 - 2 * r * a * b) for a, b in (below, above)]
    return d, d - root[0], d + root[1]


@pytest.mark.parametrize(
    ("n", "n_folds", "width"),
    [
        (2, 2, 12.7062047 * sqrt(3) * 2),  # Student's t of 1, 2 and 8 degrees
        (3, 3, 4.3026527 * sqrt(2.5) * 3 / 2),
        (3, 2, 4.3026527 * sqrt(3) * 3 / 2),
        (9, 3, 2.3060041 * sqrt(2.5) * 9 / 8),
    ],
)
def test_the_inflation_is_student_times_the_luck_of_the_fit_times_the_allowance(n, n_folds, width):
    assert refit._inflation(n, n_folds) == pytest.approx(width)


def test_episodes_count_by_how_much_of_the_target_varies_in_them():
    """All alike: all of them; halves of which one is twice the other: (3 / 2)^2 / (5 / 2) of 4; fewer than 2 are 2."""
    assert refit.effective([7.0] * 5) == 5
    assert refit.effective([0.0] * 5) == 5
    assert refit.effective([1e-300, 1e-300, 2e-300, 2e-300]) == pytest.approx(4 * 9 / 10)
    assert refit.effective([1.0, 0, 0, 0]) == refit.effective([1.0, 1, 0, 0]) == 2
    assert refit.effective([[1.0, 1], [2, 0], [0, 2]]) == pytest.approx(3)  # outputs are summed
    assert refit._inflation(9, 3, n_effective=3.0) == pytest.approx(
        stats.t.ppf(0.975, 2) * sqrt(2.5) * 3 / 2
    )
    refuses(r"more than 1 effective episode, got 1\.0", refit._inflation, 9, 3, n_effective=1.0)
    # One episode of four holds all that varies: h is that of two.
    losses = np.array([1.0, 0, 0, 1])
    references = np.array([4.0, 0, 0, 0])
    h = 12.7062047 * sqrt(3) * 2 * np.std([2 - 4, 0, 0, 2], ddof=1) / 2
    assert bounds(refit.interval(losses, references, 2)) == pytest.approx(
        (0.5, 1 - exp(h) / 2, 1 - exp(-h) / 2)
    )


def test_a_score_leans_low_where_a_constant_of_episodes_has_many_features():
    """8 episodes of +1 or -1: 8 effective ones, so 4 features are few enough and 5 are not."""
    signs = np.array([1.0, -1] * 4)[:, None, None]
    constant = signs * np.ones((8, 6, 1))
    changing = signs * np.resize([1.0, -1], (8, 6))[..., None]
    assert not refit.leans_low(constant, 4)
    assert refit.leans_low(constant, 5)
    assert not refit.leans_low(changing, 500)
    assert not refit.leans_low(np.ones((8, 6, 1)), 500)
    assert refit.leans_low(np.concatenate([changing, constant], -1), 5)  # some output does
    # 90 % of the squares are those of means: 2 of 3 rounds of noise is too much, and unscored rounds do not count.
    mixed = np.concatenate([constant[:, :4], changing[:, :2]], 1)
    assert not refit.leans_low(mixed, 5)
    assert refit.leans_low(mixed, 5, np.arange(6)[:, None] < np.full((8, 1, 1), 4))
    for noise, leans in ((0.32, True), (0.35, False)):  # shares 1 / (1 + noise^2) of .907 and .891
        assert (
            refit.leans_low(constant + noise * np.resize([1.0, -1], 6)[None, :, None], 5) is leans
        )
    mask = np.ones((8, 6, 1), bool)
    mask[4:] = False  # four episodes are scored
    assert not refit.leans_low(constant, 2, mask)
    assert refit.leans_low(np.where(mask, constant, nan), 3, mask)
    assert not refit.leans_low(
        constant, 500, np.arange(48).reshape(8, 6, 1) == 0
    )  # one value is its own mean
    assert refit.leans_low(0.1 * constant[:, :1], 5)  # in one round, of whatever size
    assert refit.leans_low(np.resize(constant, (18, 6, 1)), 10)  # two a feature
    assert refit.leans_low(
        signs * np.array([2.0, 0, *[1] * 16])[None, :, None], 5
    )  # 18 of 20 squares are the mean's


test_sizes_without_an_interval_are_refused = refused(
    (1, 2, "at least 2 episodes, got 1"),
    (4, 1, "folds of 4 episodes are 2 to 4, got 1"),
    (4, 5, "are 2 to 4, got 5"),
    by=lambda n, n_folds: refit._inflation(n, n_folds),
)


def test_totals_by_hand():
    """Squares about the mean and the allowance: of all values; of three, in two episodes; of one; and of none."""
    values = np.array(
        [
            [[1, 0, nan, 5], [3, 2, nan, nan]],
            [[5, 4, 6, 5], [7, nan, nan, nan]],
            [[9, 100, nan, 5], [11, nan, nan, nan]],
        ]
    )
    mask = np.zeros(values.shape, bool)
    mask[..., 0] = mask[0, :, 1] = mask[1, 0, 1] = mask[1, 0, 2] = True
    by_hand = [[34 + 64 / 4, 2, 34 + 64 / 4], [4 + 4 / 1, 4 + 4 / 2, 0], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_allclose(refit.totals(values, mask), np.transpose(by_hand))
    np.testing.assert_allclose(refit.totals(values[..., :1]).ravel(), by_hand[0])


@DATA
@pytest.mark.parametrize("n_folds", [2, 3, 5])
def test_scores_have_the_interval_of_the_docstring(data, n_folds):
    losses, _, references, _ = data
    q, low, high, _, _ = part(losses, references, n_folds)
    assert bounds(ratio(losses, references, n_folds)) == pytest.approx((q, low, high))
    assert bounds(refit.interval(losses, references, n_folds)) == pytest.approx(
        (1 - q, 1 - high, 1 - low)
    )
    hits, steps = 40 - losses, np.full(5, 40.0)
    q, low, high, _, _ = part(losses, steps, n_folds)
    assert bounds(accuracy(hits, steps, n_folds)) == pytest.approx(
        (1 - q, 1 - min(high, 1), 1 - low)
    )


@DATA
@pytest.mark.parametrize("n_folds", [2, 3, 5])
def test_differences_join_both_intervals_and_their_correlation(data, n_folds):
    losses, of_control, references, control_references = data
    for references_used, theirs in ((None, references), (control_references, control_references)):
        fit, control = part(losses, references, n_folds), part(of_control, theirs, n_folds)
        joined = refit.difference(
            losses, of_control, references, n_folds, control_references=references_used
        )
        assert bounds(joined) == pytest.approx(difference(fit, control))
    few, longer = np.full(5, 300.0), np.array([300.0, 320, 310, 305, 315])
    for references_used, theirs in ((None, few), (longer, longer)):
        fit, control = part(losses, few, n_folds), part(of_control, theirs, n_folds)
        hits = (few - losses, theirs - of_control)
        joined = accuracy_difference(*hits, few, n_folds, control_steps=references_used)
        assert fit[2] < 1 > control[2]
        assert bounds(joined) == pytest.approx(difference(fit, control))


@DATA
@pytest.mark.parametrize("n_folds", [2, 3, 5])
def test_what_would_have_been_shown_is_where_the_lower_bound_is_zero(data, n_folds):
    losses, _, references, _ = data
    *_, h, _ = part(losses, references, n_folds)
    assert refit.detectable(losses, references, n_folds) == pytest.approx(1 - exp(-h))


def test_what_shows_where_there_is_no_doubt_and_where_there_is_nothing_to_show():
    even = np.full(4, 2.0)
    zeros = np.zeros(4)
    losses = np.arange(4.0)
    references = np.full(4, 8.0)
    assert refit.detectable(even, references, 2) == refit.detectable(zeros, references, 2) == 0
    assert isnan(refit.detectable(losses, zeros, 2))


def test_two_episodes_by_hand():
    """Shares of the losses -.25 and .25 off those of the references: z = -.5, .5, whose mean has the error .5."""
    h = 12.7062047 * sqrt(3) * 2 / 2
    assert bounds(ratio([0.25, 0.75], [0.5, 0.5], 2)) == pytest.approx((1, exp(-h), exp(h)))
    assert bounds(refit.interval([0.25, 0.75], [2, 2], 2)) == pytest.approx(
        (0.75, 1 - exp(h) / 4, 1 - exp(-h) / 4)
    )


def test_half_widths_of_more_than_a_hundred_are_cut():
    """z = -1, 1 of two episodes and 2000 half widths of the log, whose exponential is no float any more."""
    assert bounds(ratio([0, 2], [1, 1], 2, width=2000.0)) == pytest.approx((1, 0, exp(100)))
    assert bounds(accuracy([4, 4], [4, 4], 2, width=2000.0)) == (1, 0, 1)


def test_scores_of_nothing_and_of_perfection():
    zeros, some = np.zeros(4), np.arange(1.0, 5)
    for interval in (
        refit.interval(some, zeros, 2),
        ratio(some, zeros, 2),
        accuracy(zeros, zeros, 2),
        refit.difference(some, some, zeros, 2),
        accuracy_difference(zeros, zeros, zeros, 2),
    ):
        assert all(map(isnan, bounds(interval)))
    assert bounds(refit.interval(zeros, some, 2)) == (1, 1, 1)
    assert bounds(ratio(zeros, some, 2)) == (0, 0, 0)
    assert bounds(accuracy(zeros, some, 2)) == (0, 0, 0)


def test_no_miss_is_half_a_miss_in_one_episode_for_its_bound():
    """Of 4 episodes of 100 steps: h = 3.1824463 sqrt(3) 4 / 3 of a share .5 / 400; it goes with no other misses."""
    steps = np.full(4, 100.0)
    h = 3.1824463 * sqrt(3) * 4 / 3
    low = 0.5 / 400 * exp(h)
    assert bounds(accuracy(steps, steps, 2)) == pytest.approx((1, 1 - min(low, 1), 1))
    many = np.full(4, 1e6)
    low = 0.5 / 4e6 * exp(h)
    assert bounds(accuracy(many, many, 2)) == pytest.approx((1, 1 - low, 1))
    assert low < 0.01
    assert bounds(refit.interval(np.zeros(4), many, 2, smallest=0.5)) == pytest.approx(
        (1, 1 - low, 1)
    )
    q, under, over, _, _ = part(np.arange(1.0, 5) * 1e3, many, 2)
    gain = accuracy_difference(many, many - np.arange(1.0, 5) * 1e3, many, 2)
    assert bounds(gain) == pytest.approx((q, q - sqrt(low**2 + (q - under) ** 2), over))
    loss = accuracy_difference(many - np.arange(1.0, 5) * 1e3, many, many, 2)
    assert bounds(loss) == pytest.approx((-q, -over, -q + sqrt(low**2 + (q - under) ** 2)))


@pytest.mark.parametrize("bad", [[-1, 2], [nan, 2], [inf, 2]])
def test_sums_are_finite_and_not_negative_and_zero_is_allowed(bad):
    for values in ((bad, [4, 4]), ([4, 4], bad)):
        refuses("must be finite and not negative", ratio, *values, 2)
    assert ratio([0, 0.5], [4, 4], 2).estimate == 0.5 / 8


def test_sums_are_per_episode_of_the_same_episodes():
    refuses("got one number", ratio, 2.0, [4, 4], 2)
    refuses(r"at least one; got shape \(0,\)", ratio, [], [4, 4], 2)
    assert refit.effective([3.0]) == 2
    refuses("losses are of 2 episodes and references of 3", ratio, [1, 2], [4, 4, 4], 2)
    refuses("more misses than steps", refit.interval, [1, 5], [4, 4], 2, "accuracy")
    with pytest.raises(InputError, match="a fit and its control share their episodes"):
        refit.difference([1, 2], [1, 2, 3], [4, 4], 2, control_references=[4, 4, 4])
    outputs = np.arange(1.0, 9).reshape(2, 2, 2)
    assert bounds(ratio(outputs, [20, 20], 2)) == bounds(ratio([10, 26], [20, 20], 2))


def test_sixteen_episodes_are_few_and_256_enough_for_an_untrained_model():
    """The numbers for which the docstrings' coverage was measured."""
    assert (refit.FEW_EPISODES, refit.PLATEAU) == (16, 256)
