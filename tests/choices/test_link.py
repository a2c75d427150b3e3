"""From distributions to choices: lapse rates and temperatures."""

import numpy as np
import pytest
from scipy import optimize

from interp.choices.link import _LIMIT_AT_ZERO, HALF_CHI2, Link, fit_link

EVERY = np.ones((1, 100), bool)


def draw(q, seed=0):
    """Choices among two outcomes, of which the second has probability ``q``."""
    luck = np.random.default_rng(seed).random(q.shape)
    return (luck < q).astype(np.int64)


@pytest.fixture
def graded():
    """The probability of the second outcome in 8,000 rounds."""
    return np.random.default_rng(1).uniform(0.01, 0.99, (40, 200))


def distribution(q):
    return np.stack([1 - q, q], -1)


def test_departures_from_what_is_certain_are_lapses():
    """In 30 of 100 rounds the other of two outcomes: .6 of the choices are guesses."""
    certain = np.tile([1.0, 0.0], (1, 100, 1))
    departs = (np.arange(100) < 30).astype(int)[None]
    link = fit_link(certain, departs, EVERY, tempered=False).link
    assert link.lapse == pytest.approx(0.6, abs=1e-3)
    assert link.temperature == 0
    assert fit_link(certain, np.zeros((1, 100), int), EVERY, tempered=False).link.lapse == 0


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0, 3.0, 5.0])
def test_the_temperature_of_a_player_is_found_and_one_that_has_its_own_gets_no_second(
    graded, temperature
):
    choices = draw(1 / (1 + (1 / graded - 1) ** (1 / temperature)))
    use = np.ones(graded.shape, bool)
    link = fit_link(distribution(graded), choices, use, tempered=False).link
    assert link.lapse < 0.05
    assert link.temperature == pytest.approx(temperature, rel=0.1)
    assert fit_link(distribution(graded), choices, use, tempered=True).link.temperature == 1


def test_lapses_of_a_soft_chooser_are_found(graded):
    lapses = np.random.default_rng(2).random(graded.shape) < 0.2
    choices = np.where(lapses, draw(np.full(graded.shape, 0.5)), draw(graded))
    use = np.ones(graded.shape, bool)
    link = fit_link(distribution(graded), choices, use, tempered=True).link
    assert link.lapse == pytest.approx(0.2, abs=0.05)
    assert link.raise_lapse(98).lapse == link.lapse


def least_nats(p, choices):
    """The least loss of all choices over lapse rates and temperatures, by scipy from three starts."""

    def nats(at):
        log_temperature, lapse = at
        weights = p ** (1 / np.exp(log_temperature))
        q = weights / weights.sum(-1, keepdims=True)
        mixed = lapse / p.shape[-1] + (1 - lapse) * q
        chances = np.take_along_axis(mixed, choices[..., None], -1)
        return -np.log(chances).sum()

    bounds = [np.log([0.25, 100]), (0, 0.999)]
    starts = [(-1.0, 0.1), (0.0, 0.4), (1.0, 0.2)]
    return min(optimize.minimize(nats, start, bounds=bounds).fun for start in starts)


@pytest.mark.parametrize(("temperature", "lapse"), [(0.4, 0.1), (0.7, 0.3), (0.5, 0.5)])
def test_the_lapse_rate_and_the_temperature_are_fitted_jointly(temperature, lapse):
    """Over three outcomes and 1,000 choices, no pair of both has a loss that is .001 nats lower."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1], (1, 1000))
    weights = p ** (1 / temperature)
    without_lapse = weights / weights.sum(-1, keepdims=True)
    q = lapse / 3 + (1 - lapse) * without_lapse
    first, second, _ = np.moveaxis(q, -1, 0)
    luck = rng.random((1, 1000))
    choices = np.where(luck < first, 0, np.where(luck < first + second, 1, 2))
    fitted = fit_link(p, choices, np.ones((1, 1000), bool), tempered=False)
    assert fitted.link.lapse > 0
    assert fitted.nats * 1000 - HALF_CHI2 < least_nats(p, choices) + 1e-3


@pytest.mark.parametrize("seed", [31, 92, 137])
def test_a_large_lapse_rate_is_found_where_a_small_one_saves_nothing(seed):
    """Of k choices against the likeliest of four outcomes, k / 3 more guesses agree with it: at temperature 0, a share
    of (4 / 3) k / n guesses has the least loss. A soft player without lapses has a larger loss."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(4), (1, 60))
    is_guess = rng.random((1, 60)) < 0.75
    choices = np.where(is_guess, rng.integers(0, 4, 60), p.argmax(-1))
    n_against = int((choices != p.argmax(-1)).sum())
    lapse = 4 / 3 * n_against / 60
    agreeing = (60 - n_against) * np.log(1 - 3 / 4 * lapse)
    least = -agreeing - n_against * np.log(lapse / 4)
    fitted = fit_link(p, choices, np.ones((1, 60), bool), tempered=False)
    assert fitted.link.temperature == 0
    assert fitted.link.lapse == pytest.approx(lapse, abs=1e-4)
    assert fitted.nats * 60 == pytest.approx(least + HALF_CHI2, abs=1e-3)


def test_no_held_out_choice_has_probability_0():
    even = np.array([0.5, 0.5])
    assert Link(0.0, 1.0, even).raise_lapse(98).lapse == 0.01
    assert Link(0.0, 0.0, even).raise_lapse(998).lapse == 0.01
    assert Link(0.0, 1.0, even).raise_lapse(998).lapse == 0.001


def test_what_a_steep_player_tells_apart_is_no_tie_and_rounding_is():
    """Counted as ties, probabilities 1e-10 from even made intervals of an eta above 1 miss it."""
    link = Link(0.0, 0.0, np.array([0.5, 0.5]))
    rows = [[0.5 + gap, 0.5 - gap] for gap in (1e-10, -1e-10, 1e-14, 0.0)]
    assert link.find_likeliest(np.array(rows)).tolist() == [0, 1, -1, -1]


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.2])
def test_intervals_cover_where_a_parameter_moves_choices_one_by_one(rate):
    """A walk of one step a choice on both sides of the truth, up log((1 - r) / r) where the player departs: the truth
    is within _LIMIT_AT_ZERO of the best in 95 % and more."""
    assert (1 - np.exp(-_LIMIT_AT_ZERO)) ** 2 == pytest.approx(0.95, abs=1e-3)
    rng = np.random.default_rng(0)
    step = np.log((1 - rate) / rate)
    departs = rng.random((4000, 2, 200)) < rate
    walk = np.where(departs, step, -step).cumsum(-1)
    best_of_each_side = np.maximum(walk.max(-1), 0)
    best = best_of_each_side.max(-1)
    assert (best <= _LIMIT_AT_ZERO).mean() > 0.945
    if rate < 0.13:
        covered = (1 - rate / (1 - rate)) ** 2
        assert (best <= HALF_CHI2).mean() == pytest.approx(covered, abs=0.02)
