"""Intervals of refitted scores against the equations of their docstring, and on a napkin: every bound and every edge.

The equations are written out once more here, with nothing left out for speed and no cut of what is large. Each table
has tame and wild data, whose half widths on the log scale lie below and above 1.
"""

from math import exp, inf, isnan, nan, sqrt

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from interp.stats import refit
from tests.refusals import refuses

TAME = np.array(
    [[9.0, 10, 11, 10, 8], [14, 17, 15, 16, 15], [20, 22, 18, 20, 19], [19, 18, 21, 22, 23]]
)
WILD = np.array([[1.0, 2, 3, 6, 4], [9, 3, 2, 2, 8], [8, 4, 2, 6, 9], [3, 9, 8, 1, 9]])
DATA = pytest.mark.parametrize("data", [TAME, WILD], ids=["tame", "wild"])
"""By row: losses, those of a control, references, and those of the control; by column: episodes."""


def bounds(interval):
    return interval.estimate, interval.low, interval.high


def ratio(losses, references, n_folds, **options):
    return refit.interval(losses, references, n_folds, "ratio", **options)


def accuracy(hits, steps, n_folds, **options):
    return refit.interval(np.subtract(steps, hits), steps, n_folds, "accuracy", **options)


def accuracy_difference(hits, control_hits, steps, n_folds, control_steps=None, **options):
    control_totals = steps if control_steps is None else control_steps
    lost = np.subtract(steps, hits), np.subtract(control_totals, control_hits)
    return refit.difference(
        *lost, steps, n_folds, "accuracy", control_references=control_totals, **options
    )


def part(losses, references, n_folds):
    """q, its bounds, h and z of the module's docstring."""
    n = len(losses)
    q = losses.sum() / references.sum()
    share_of_loss = losses / losses.sum()
    share_of_reference = references / references.sum()
    z = n * (share_of_loss - share_of_reference)
    standard_error = np.std(z, ddof=1) / sqrt(n)
    m = references.sum() ** 2 / (references**2).sum()
    t = stats.t.ppf(0.975, m - 1)
    luck_of_the_fit = sqrt(1 + n_folds / (n_folds - 1))
    allowance = m / (m - 1)
    h = t * standard_error * luck_of_the_fit * allowance
    return q, q * exp(-h), q * exp(h), h, z


def difference(fit, control):
    """D and its bounds."""
    q, low, high, _, z = fit
    control_q, control_low, control_high, _, control_z = control
    d = control_q - q
    r = np.corrcoef(z, control_z)[0, 1]
    below = joined(high - q, control_q - control_low, r)
    above = joined(q - low, control_high - control_q, r)
    return d, d - below, d + above


def joined(a, b, r):
    """The half width of a difference, of two half widths and their correlation."""
    return sqrt(a**2 + b**2 - 2 * r * a * b)


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
    assert refit.inflation(n, n_folds) == pytest.approx(width)


def test_episodes_count_by_how_much_of_the_target_varies_in_them():
    """All alike: all of them; halves of which one is twice the other: (3 / 2)^2 / (5 / 2) of 4; fewer than 2 are 2."""
    assert refit.effective_sample_size([7.0] * 5) == 5
    assert refit.effective_sample_size([0.0] * 5) == 5
    halves = [1e-300, 1e-300, 2e-300, 2e-300]
    assert refit.effective_sample_size(halves) == pytest.approx(4 * 9 / 10)
    assert refit.effective_sample_size([1.0, 0, 0, 0]) == 2
    assert refit.effective_sample_size([1.0, 1, 0, 0]) == 2
    outputs = [[1.0, 1], [2, 0], [0, 2]]  # they are summed
    assert refit.effective_sample_size(outputs) == pytest.approx(3)
    inflation = refit.inflation(9, 3, n_effective=3.0)
    t = stats.t.ppf(0.975, 2)
    assert inflation == pytest.approx(t * sqrt(2.5) * 3 / 2)
    refuses(r"more than 1 effective episode, got 1\.0", refit.inflation, 9, 3, n_effective=1.0)
    # One episode of four holds all that varies: h is that of two.
    losses = np.array([1.0, 0, 0, 1])
    references = np.array([4.0, 0, 0, 0])
    standard_error = np.std([2 - 4, 0, 0, 2], ddof=1) / 2
    h = 12.7062047 * sqrt(3) * 2 * standard_error
    interval = refit.interval(losses, references, 2)
    expected = 0.5, 1 - exp(h) / 2, 1 - exp(-h) / 2
    assert bounds(interval) == pytest.approx(expected)


def test_a_score_leans_low_where_a_constant_of_episodes_has_many_features():
    """8 episodes of +1 or -1: 8 effective ones, so 4 features are few enough and 5 are not."""
    signs = np.array([1.0, -1] * 4)[:, None, None]
    constant = signs * np.ones((8, 6, 1))
    changing = signs * np.resize([1.0, -1], (8, 6))[..., None]
    assert not refit.is_biased_low(constant, 4)
    assert refit.is_biased_low(constant, 5)
    assert not refit.is_biased_low(changing, 500)
    assert not refit.is_biased_low(np.ones((8, 6, 1)), 500)
    assert refit.is_biased_low(np.concatenate([changing, constant], -1), 5)  # some output does
    # 90 % of the squares are those of means: 2 of 3 rounds of noise is too much, and unscored rounds do not count.
    mixed = np.concatenate([constant[:, :4], changing[:, :2]], 1)
    assert not refit.is_biased_low(mixed, 5)
    is_scored = np.ones((8, 6, 1), bool)
    is_scored[:, 4:] = False
    assert refit.is_biased_low(mixed, 5, is_scored)
    for noise, leans in ((0.32, True), (0.35, False)):  # shares 1 / (1 + noise^2) of .907 and .891
        assert refit.is_biased_low(constant + noise * changing[:1], 5) is leans
    mask = np.ones((8, 6, 1), bool)
    mask[4:] = False  # four episodes are scored
    assert not refit.is_biased_low(constant, 2, mask)
    assert refit.is_biased_low(np.where(mask, constant, nan), 3, mask)
    one_value = np.zeros((8, 6, 1), bool)
    one_value[0, 0] = True
    assert not refit.is_biased_low(constant, 500, one_value)  # it is its own mean
    assert refit.is_biased_low(0.1 * constant[:, :1], 5)  # in one round, of whatever size
    assert refit.is_biased_low(np.resize(constant, (18, 6, 1)), 10)  # two a feature
    unequal = np.ones((1, 18, 1))  # 18 of 20 squares are the mean's
    unequal[0, 0] = 2
    unequal[0, 1] = 0
    assert refit.is_biased_low(signs * unequal, 5)


def test_sizes_without_an_interval_are_refused():
    refuses("at least 2 episodes, got 1", refit.inflation, 1, 2)
    refuses("folds of 4 episodes are 2 to 4, got 1", refit.inflation, 4, 1)
    refuses("are 2 to 4, got 5", refit.inflation, 4, 5)


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
    totals = refit.sum_squared_deviations(values, mask)
    of_all_values = [34 + 64 / 4, 2, 34 + 64 / 4]
    assert_allclose(totals[:, 0], of_all_values)
    assert_allclose(totals[:, 1], [4 + 4 / 1, 4 + 4 / 2, 0])
    assert_allclose(totals[:, 2:], np.zeros((3, 2)))
    totals = refit.sum_squared_deviations(values[..., :1])
    assert_allclose(totals.ravel(), of_all_values)


@DATA
@pytest.mark.parametrize("n_folds", [2, 3, 5])
def test_scores_have_the_interval_of_the_docstring(data, n_folds):
    losses, _, references, _ = data
    q, low, high, _, _ = part(losses, references, n_folds)
    assert bounds(ratio(losses, references, n_folds)) == pytest.approx((q, low, high))
    r2 = refit.interval(losses, references, n_folds)
    assert bounds(r2) == pytest.approx((1 - q, 1 - high, 1 - low))
    hits, steps = 40 - losses, np.full(5, 40.0)
    q, low, high, _, _ = part(losses, steps, n_folds)
    expected = 1 - q, 1 - min(high, 1), 1 - low
    assert bounds(accuracy(hits, steps, n_folds)) == pytest.approx(expected)


@DATA
@pytest.mark.parametrize("n_folds", [2, 3, 5])
def test_differences_join_both_intervals_and_their_correlation(data, n_folds):
    losses, of_control, references, control_references = data
    fit = part(losses, references, n_folds)
    for references_used, theirs in ((None, references), (control_references, control_references)):
        control = part(of_control, theirs, n_folds)
        interval = refit.difference(
            losses, of_control, references, n_folds, control_references=references_used
        )
        assert bounds(interval) == pytest.approx(difference(fit, control))


@DATA
@pytest.mark.parametrize("n_folds", [2, 3, 5])
def test_differences_of_accuracies_join_both_intervals_and_their_correlation(data, n_folds):
    losses, of_control, _, _ = data
    few = np.full(5, 300.0)
    longer = np.array([300.0, 320, 310, 305, 315])
    fit = part(losses, few, n_folds)
    assert fit[2] < 1
    for steps_used, theirs in ((None, few), (longer, longer)):
        control = part(of_control, theirs, n_folds)
        assert control[2] < 1
        hits = (few - losses, theirs - of_control)
        interval = accuracy_difference(*hits, few, n_folds, control_steps=steps_used)
        assert bounds(interval) == pytest.approx(difference(fit, control))


@DATA
@pytest.mark.parametrize("n_folds", [2, 3, 5])
def test_what_would_have_been_shown_is_where_the_lower_bound_is_zero(data, n_folds):
    losses, _, references, _ = data
    *_, h, _ = part(losses, references, n_folds)
    detectable = refit.smallest_detectable_score(losses, references, n_folds)
    assert detectable == pytest.approx(1 - exp(-h))


def test_what_shows_where_there_is_no_doubt_and_where_there_is_nothing_to_show():
    even = np.full(4, 2.0)
    zeros = np.zeros(4)
    losses = np.arange(4.0)
    references = np.full(4, 8.0)
    assert refit.smallest_detectable_score(even, references, 2) == 0
    assert refit.smallest_detectable_score(zeros, references, 2) == 0
    assert isnan(refit.smallest_detectable_score(losses, zeros, 2))


def test_two_episodes_by_hand():
    """Shares of the losses -.25 and .25 off those of the references: z = -.5, .5, whose mean has the error .5."""
    h = 12.7062047 * sqrt(3) * 2 / 2
    losses = [0.25, 0.75]
    loss_ratio = ratio(losses, [0.5, 0.5], 2)
    assert bounds(loss_ratio) == pytest.approx((1, exp(-h), exp(h)))
    r2 = refit.interval(losses, [2, 2], 2)
    expected = 0.75, 1 - exp(h) / 4, 1 - exp(-h) / 4
    assert bounds(r2) == pytest.approx(expected)


def test_half_widths_of_more_than_a_hundred_are_cut():
    """z = -1, 1 of two episodes and 2000 half widths of the log, whose exponential is no float any more."""
    wide = ratio([0, 2], [1, 1], 2, width=2000.0)
    assert bounds(wide) == pytest.approx((1, 0, exp(100)))
    assert bounds(accuracy([4, 4], [4, 4], 2, width=2000.0)) == (1, 0, 1)


def test_scores_of_nothing_and_of_perfection():
    zeros, some = np.zeros(4), np.arange(1.0, 5)
    assert_has_no_number(refit.interval(some, zeros, 2))
    assert_has_no_number(ratio(some, zeros, 2))
    assert_has_no_number(accuracy(zeros, zeros, 2))
    assert_has_no_number(refit.difference(some, some, zeros, 2))
    assert_has_no_number(accuracy_difference(zeros, zeros, zeros, 2))
    assert bounds(refit.interval(zeros, some, 2)) == (1, 1, 1)
    assert bounds(ratio(zeros, some, 2)) == (0, 0, 0)
    assert bounds(accuracy(zeros, some, 2)) == (0, 0, 0)


def assert_has_no_number(interval):
    """Neither the estimate nor a bound is a number."""
    assert all(map(isnan, bounds(interval)))


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
    perfect = refit.interval(np.zeros(4), many, 2, smallest=0.5)
    assert bounds(perfect) == pytest.approx((1, 1 - low, 1))
    misses = np.arange(1.0, 5) * 1e3
    hits = many - misses
    q, under, over, _, _ = part(misses, many, 2)
    half_width = sqrt(low**2 + (q - under) ** 2)
    gain = accuracy_difference(many, hits, many, 2)
    assert bounds(gain) == pytest.approx((q, q - half_width, over))
    loss = accuracy_difference(hits, many, many, 2)
    assert bounds(loss) == pytest.approx((-q, -over, -q + half_width))


@pytest.mark.parametrize("bad", [[-1, 2], [nan, 2], [inf, 2]])
def test_sums_are_finite_and_not_negative_and_zero_is_allowed(bad):
    for values in ((bad, [4, 4]), ([4, 4], bad)):
        refuses("must be finite and not negative", ratio, *values, 2)
    assert ratio([0, 0.5], [4, 4], 2).estimate == 0.5 / 8


def test_sums_are_per_episode_of_the_same_episodes():
    refuses("got one number", ratio, 2.0, [4, 4], 2)
    refuses(r"at least one; got shape \(0,\)", ratio, [], [4, 4], 2)
    assert refit.effective_sample_size([3.0]) == 2
    refuses("losses are of 2 episodes and references of 3", ratio, [1, 2], [4, 4, 4], 2)
    refuses("more misses than steps", refit.interval, [1, 5], [4, 4], 2, "accuracy")
    refuses(
        "a fit and its control share their episodes",
        refit.difference,
        [1, 2],
        [1, 2, 3],
        [4, 4],
        2,
        control_references=[4, 4, 4],
    )
    outputs = np.arange(1.0, 9).reshape(2, 2, 2)
    summed = [10, 26]
    assert bounds(ratio(outputs, [20, 20], 2)) == bounds(ratio(summed, [20, 20], 2))


def test_sixteen_episodes_are_few_and_256_enough_for_an_untrained_model():
    """The numbers for which the docstrings' coverage was measured."""
    assert (refit.FEW_EPISODES, refit.PLATEAU) == (16, 256)
