"""What families lose on held-out choices: units, folds, optima of the likelihood, and profile intervals."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import optimize

from interp.choices.link import HALF_CHI2, profile_ends
from interp.choices.players import by_participant
from interp.choices.scoring import (
    N_FOLDS,
    ChoiceData,
    number_units,
    profile_intervals,
    score_families,
    score_guess,
    score_players,
)
from interp.tasks import bandit
from interp.tasks.bandit.algorithms import fixed_bias, perseveration, rescorla_wagner

FAMILIES = bandit.TASK.rivals()
LEARNERS = ("rescorla_wagner", "two_rates", "forgetting", "perseveration")


def play(player, n_rounds=60, n_episodes=1, seed=0):
    """Episodes of a player among two arms that reverse."""
    return bandit.sample(n_episodes, n_rounds, 2, "reversal", seed, player)


def nats_of_learner(choices, rewards, gain, loss, stays, beta):
    """The loss of Rescorla-Wagner, written down again: a value for each arm, a softmax of what they are worth."""
    values, last, total = np.zeros(2), np.zeros(2), 0.0
    for choice, reward in zip(choices, rewards, strict=True):
        logits = beta * values + stays * last
        total -= logits[choice] - np.logaddexp(*logits)
        error = reward - values[choice]
        values[choice] += (gain if error > 0 else loss) * error
        last = np.eye(2)[choice]
    return total


def test_units_are_participants_else_episodes_else_blocks_of_trials():
    """300 choices of one episode make blocks of 3; eight episodes, and eight participants, are units themselves."""
    blocks = number_units(np.ones((1, 300), bool), None)
    assert blocks[0].tolist() == np.repeat(np.arange(100), 3).tolist()
    assert number_units(np.ones((1, 60), bool), None)[0].tolist() == list(range(60))
    episodes = number_units(np.ones((8, 3), bool), None)
    assert episodes[:, 0].tolist() == list(range(8))
    names = np.repeat([f"p{i}" for i in range(8)], 2)
    people = number_units(np.ones((16, 3), bool), names)
    assert people[:, 0].tolist() == np.repeat(np.arange(8), 2).tolist()


def test_a_guess_is_scored_by_what_was_chosen_in_the_other_folds():
    """Of every fold in turn: (n1 + 1) / (n + 2) of the others, with the lapse that no choice has probability 0."""
    choices = np.array([[0, 0, 0, 1] * 8], float)
    data = ChoiceData(SimpleNamespace(participants=None), choices)
    (score,) = score_guess(data, like=np.zeros((1, 32, 2)))
    for fold in range(N_FOLDS):
        held_out = data.folds == fold
        others = choices[~held_out]
        share = (others.sum() + 1) / (others.size + 2)
        chances = np.where(choices == 1, share, 1 - share)
        np.testing.assert_allclose(score.losses[held_out], -np.log(chances)[held_out])


def test_a_learner_is_fitted_to_the_optimum_of_its_likelihood():
    """As scipy finds it in a likelihood of our own, to three digits."""
    played = play(rescorla_wagner(0.4, 4.0), n_rounds=120)
    data = ChoiceData(played, played.choices.astype(float))
    (score,) = score_families(data, {"rescorla_wagner": FAMILIES["rescorla_wagner"]})

    def loss(at):
        return nats_of_learner(played.choices[0], played.rewards[0], at[0], at[0], 0.0, at[1])

    found = optimize.minimize(
        loss, [0.3, 3.0], method="L-BFGS-B", bounds=[(0.01, 1.0), (0.1, 40.0)]
    )
    assert score.nats * 120 == pytest.approx(found.fun, abs=1e-3)
    assert list(score.parameters.values()) == pytest.approx(found.x, rel=0.01)


@pytest.fixture(scope="module")
def fitted():
    """The learners, fitted to a player who repeats."""
    played = play(perseveration(0.4, 1.0, 4.0), seed=2)
    data = ChoiceData(played, played.choices.astype(float))
    scores = score_families(data, {key: FAMILIES[key] for key in LEARNERS})
    return {score.key: score for score in scores}


@pytest.mark.parametrize("key", [key for key in LEARNERS if FAMILIES[key].extends])
def test_a_family_never_fits_worse_than_what_it_contains(fitted, key):
    assert fitted[key].nats <= fitted[FAMILIES[key].extends].nats + 1e-9


def test_players_who_share_a_grid_are_fitted_nearly_as_well_as_one_alone():
    """Three players at once: within .01 nats a choice of the optimum of each."""
    played = play(rescorla_wagner(0.4, 4.0), n_rounds=80, n_episodes=3)
    choices = played.choices.astype(float)
    family = FAMILIES["rescorla_wagner"]
    together = score_players(ChoiceData(played, choices, 0, np.arange(3)), family)
    for player, score in enumerate(together):
        alone = ChoiceData(played.select([player]), choices[[player]])
        (best,) = score_families(alone, {family.key: family})
        assert best.nats - 1e-9 <= score.nats < best.nats + 0.01


def test_intervals_are_where_the_profile_costs_half_of_chi_squared():
    """Of a bias the profile is the likelihood: 60 choices, 36 of the first arm."""
    choices = np.array([[0, 1, 0, 1, 0] * 12], float)
    rewards = np.zeros((1, 60))
    played = bandit.BanditEpisodes(choices.astype(int), rewards)
    data = ChoiceData(played, choices)
    family = FAMILIES["fixed_bias"]
    (score,) = score_families(data, {"fixed_bias": family})
    interval = profile_intervals(data, family, score)["first"]

    def excess(first):
        nats = -(36 * np.log(first) + 24 * np.log(1 - first))
        return nats + (36 * np.log(0.6) + 24 * np.log(0.4)) - HALF_CHI2

    assert interval.estimate == pytest.approx(0.6, abs=1e-3)
    assert interval.low == pytest.approx(optimize.brentq(excess, 0.1, 0.6), abs=0.01)
    assert interval.high == pytest.approx(optimize.brentq(excess, 0.6, 0.95), abs=0.01)


def test_profile_ends_are_interpolated_by_the_root_and_open_at_the_ends_of_the_grid():
    profile = 7 + HALF_CHI2 * np.array([9, 4, 0.25, 0, 0.25, 2.25, 9])
    assert profile_ends(np.arange(7.0), profile) == pytest.approx((5 / 3, 4.5))
    flat = 7 + HALF_CHI2 * np.array([0.25, 0, 0.25])
    assert profile_ends(np.arange(3.0), flat) == (0, 2)


def test_a_parameter_at_an_end_of_its_search_is_named():
    always_first = bandit.BanditEpisodes(np.zeros((1, 40), int), np.zeros((1, 40)), 2)
    data = ChoiceData(always_first, np.zeros((1, 40)))
    (score,) = score_families(data, {"fixed_bias": FAMILIES["fixed_bias"]})
    assert score.at_bound == ("first",)


def test_a_row_of_by_participant_is_that_of_its_participant_alone():
    played = play(fixed_bias(0.7), n_rounds=40, n_episodes=2)
    both = by_participant(FAMILIES["fixed_bias"], played, played.choices)
    alone = by_participant(FAMILIES["fixed_bias"], played.select([1]), played.choices[1:])
    assert both["first"][1] == pytest.approx(alone["first"][0], abs=0.03)
