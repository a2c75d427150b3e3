"""Posterior-predictive checks: closed forms are those of simulated players, and what differs is named."""

from dataclasses import replace

import numpy as np
import pytest

from interp.choices.predictive import (
    PredictiveCheck,
    Statistic,
    check_predictions,
    expected_mean,
    run_lengths,
    successes_of,
)
from interp.tasks import bandit, experts

N_ROUNDS = 200
EVERY = np.ones((1, N_ROUNDS), bool)
EVEN = np.full((1, N_ROUNDS, 2), 0.5)


def test_the_mean_and_the_spread_are_those_of_simulated_players():
    """A thousand players who draw their choices."""
    rng = np.random.default_rng(3)
    q = rng.dirichlet(np.ones(3), (4, 25))
    use = rng.random((4, 25)) < 0.8
    values = np.log(q)
    luck = rng.random((1000, 4, 25, 1))
    thresholds = q.cumsum(-1)[..., :-1]
    players = (luck > thresholds).sum(-1)
    observed = np.array([expected_mean(q, values, player, use).observed for player in players])
    first = expected_mean(q, values, players[0], use)
    assert observed.mean() == pytest.approx(first.expected, abs=first.spread / 8)
    assert observed.std() == pytest.approx(first.spread, rel=0.1)


@pytest.mark.long
def test_a_player_of_the_family_passes_and_fails_as_seldom_as_the_level_says():
    """Of 1,000 players of their own probabilities at most 2 % fail where 1 % may."""
    rng = np.random.default_rng(0)
    q = rng.dirichlet(np.ones(2), (1, N_ROUNDS))
    failed = 0
    for _ in range(1000):
        choices = (rng.random((1, N_ROUNDS)) > q[..., 0]).astype(int)
        successes = rng.random((1, N_ROUNDS)) < 0.5
        failed += not check_predictions(q, choices, EVERY, successes).passes
    assert failed <= 20


def test_who_alternates_is_no_guesser_and_the_statistics_say_why():
    """It never repeats, after a success or a failure, where a guesser does so half of the time."""
    choices = (np.arange(N_ROUNDS) % 2)[None]
    successes = (np.arange(N_ROUNDS) % 3 == 0)[None]
    check = check_predictions(EVEN, choices, EVERY, successes)
    assert check.failures == ("win-stay", "lose-shift")
    assert check.statistics["win-stay"].observed == 0.0
    assert check.statistics["win-stay"].expected == 0.5
    assert check.statistics["lose-shift"].observed == 1.0


def test_a_player_of_long_runs_is_told_by_them():
    choices = (np.arange(N_ROUNDS) // 20 % 2)[None]
    check = check_predictions(EVEN, choices, EVERY, None)
    assert check.failures == ("long run goes on",)


def test_participants_who_differ_from_each_other_widen_the_spread():
    """Half of them always choose the first outcome, half the second: together they are as a fair coin would be."""
    choices = np.repeat(np.arange(10) % 2, 50).reshape(10, 50)
    q = np.full((10, 50, 2), 0.5)
    first = np.zeros_like(q)
    first[..., 0] = 1
    use = np.ones((10, 50), bool)
    alone = expected_mean(q, first, choices, use)
    people = expected_mean(q, first, choices, use, np.arange(10))
    assert alone.spread == pytest.approx(0.5 / 500**0.5)
    assert people.spread == pytest.approx(0.5 * (10 / 9) ** 0.5 / 10**0.5)


def test_a_choice_that_has_no_chance_differs_without_bound():
    assert Statistic(1.0, 0.5, 0.0, 10).z == np.inf
    assert Statistic(0.5, 0.5, 0.0, 10).z == 0.0
    assert not PredictiveCheck({"agreement": Statistic(0.0, 1.0, 0.0, 10)}).passes


def test_a_check_says_in_what_the_choices_differ_and_draws_them():
    """A spread of .02: .8 is as expected, and .2 is 30 of them below."""
    agreement, win_stay = Statistic(0.8, 0.8, 0.02, 400), Statistic(0.2, 0.8, 0.02, 400)
    check = PredictiveCheck({"agreement": agreement, "win-stay": win_stay})
    assert str(check) == "The choices differ from those of simulated players in win-stay."
    axes = check.plot().axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["win-stay", "agreement"]
    passes = PredictiveCheck({"agreement": agreement})
    assert str(passes) == "The choices differ from those of simulated players in no statistic."


def test_runs_begin_anew_after_a_missing_round():
    choices = np.array([[1, 1, 1, 1, 0]])
    known = np.array([[True, True, False, True, True]])
    assert run_lengths(choices, known).tolist() == [[1, 2, 0, 1, 1]]


def test_a_success_is_what_paid_more_than_nothing_or_the_truth():
    rewards = np.array([[0.0, 0.5, 1.0]])
    played = bandit.BanditEpisodes(np.array([[0, 1, 0]]), rewards)
    assert successes_of(played, played.choices, 0).tolist() == [[False, True, True]]
    always = bandit.BanditEpisodes(np.array([[0, 1, 0]]), rewards + 1)
    assert successes_of(always, always.choices, 0).tolist() == [[False, False, True]]
    advised = experts.sample(2, 5, 3, seed=0)
    truth = successes_of(advised, advised.labels.astype(int), 0)
    assert truth.all()


def test_a_choice_without_a_reward_is_neither_a_success_nor_a_failure():
    """Whatever number stands in the place of its reward."""
    played = bandit.sample(2, 40, 2, "reversal", seed=0)
    unpaid = np.zeros((2, 40), bool)
    unpaid[:, 1::4] = True
    statistics = []
    for reward in (0.0, 1.0):
        rewards = np.where(unpaid, reward, played.rewards)
        episodes = replace(played, rewards=rewards, missing=unpaid, unpaid=unpaid)
        successes = successes_of(episodes, played.choices, 0)
        even = np.full((2, 40, 2), 0.5)
        check = check_predictions(even, played.choices, episodes.scored, successes)
        statistics.append(check.statistics)
    assert statistics[0] == statistics[1]
    assert statistics[0]["win-stay"].n_choices + statistics[0]["lose-shift"].n_choices == 2 * 29
