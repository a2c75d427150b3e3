"""Choosing among arms: episodes, simulated players, the algorithms against plain loops, and the reader."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import interp
from interp.tasks import bandit
from interp.tasks.bandit import algorithms
from tests.refusals import refuses

RIVALS = bandit.TASK.rivals()


def by_hand(episodes, gain, loss, beta, forgets=0.0, stays=0.0):
    """Chances of each arm by a plain loop over one episode at a time, written apart from the equations."""
    expected = np.zeros((len(episodes), episodes.n_rounds, episodes.n_arms))
    for e in range(len(episodes)):
        values, last = [0.0] * episodes.n_arms, None
        for t in range(episodes.n_rounds):
            scores = [
                beta * value + (stays if arm == last else 0.0) for arm, value in enumerate(values)
            ]
            weights = np.exp(scores)
            expected[e, t] = weights / weights.sum()
            last = int(episodes.choices[e, t])
            error = episodes.rewards[e, t] - values[last]
            values = [
                value * (1 - (forgets if arm != last else 0)) for arm, value in enumerate(values)
            ]
            values[last] += (gain if error > 0 else loss) * error
    return expected


@pytest.mark.parametrize(
    ("algorithm", "by"),
    [
        (algorithms.rescorla_wagner(0.4, 3.0), {"gain": 0.4, "loss": 0.4, "beta": 3.0}),
        (
            RIVALS["two_rates"].make(gain=0.7, loss=0.1, inverse_temperature=3.0),
            {"gain": 0.7, "loss": 0.1, "beta": 3.0},
        ),
        (
            RIVALS["forgetting"].make(rate=0.4, forgets=0.3, inverse_temperature=3.0),
            {"gain": 0.4, "loss": 0.4, "beta": 3.0, "forgets": 0.3},
        ),
        (
            algorithms.perseveration(0.4, 1.5, 3.0),
            {"gain": 0.4, "loss": 0.4, "beta": 3.0, "stays": 1.5},
        ),
    ],
    ids=lambda one: getattr(one, "key", ""),
)
def test_learners_are_those_of_a_plain_loop(algorithm, by):
    episodes = bandit.sample(3, 30, 3, "reversal", seed=1)
    predictions = algorithm.distribution(algorithm.run(episodes))
    assert_allclose(predictions, by_hand(episodes, **by), atol=1e-12)


def test_rivals_do_what_their_names_say():
    episodes = bandit.BanditEpisodes([[0, 0, 1, 1]], [[1, 0, 0, 1]], n_arms=3)

    def chances(make, *values, **parameters):
        algorithm = make(*values, **parameters)
        return algorithm.distribution(algorithm.run(episodes))[0]

    shifts = [[1 / 3] * 3, [0.9, 0.05, 0.05], [0.2, 0.4, 0.4], [0.4, 0.2, 0.4]]
    assert_allclose(chances(algorithms.win_stay, 0.9, 0.8), shifts)
    habit = np.array([[0, 0, 0], [0.5, 0, 0], [0.75, 0, 0], [0.375, 0.5, 0]])
    weights = np.exp(habit)
    softmax = weights / weights.sum(-1, keepdims=True)
    assert_allclose(chances(algorithms.choice_kernel, 0.5, 1.0), softmax)
    biased = [[0.5, 0.25, 0.25]] * 4
    assert_allclose(chances(algorithms.fixed_bias, 0.5), biased)
    # Beta(1, 1), then Beta(2, 1): means 1/2 and 2/3, standard deviations sqrt(1/12) and sqrt(1/18).
    means = np.array([2 / 3, 1 / 2, 1 / 2])
    deviations = np.sqrt([1 / 18, 1 / 12, 1 / 12])
    scores = means + deviations
    ucb = chances(RIVALS["bayes_ucb"].make, bonus=1.0, inverse_temperature=1.0)[1]
    assert np.log(ucb[0] / ucb[1]) == pytest.approx(scores[0] - scores[1])
    rng = np.random.default_rng(0)
    draws = rng.normal(means, deviations, (200_000, 3)).argmax(1)
    shares = np.bincount(draws) / len(draws)
    thompson = chances(algorithms.bayes_thompson)[1]
    assert_allclose(thompson, shares, atol=0.004)


FOUR_ARMS = bandit.BanditEpisodes(
    [[*[0] * 20, 1, 2]],
    [[1] * 22],
    n_arms=4,
    offers=[[*[[0, 3]] * 20, [1, 3], [1, 2]]],
)
"""An arm wins 20 times, then another one once; last, this one and a new one are on offer."""


def test_a_draw_competes_with_the_draws_of_arms_on_offer_alone():
    algorithm = algorithms.bayes_thompson()
    chances = algorithm.distribution(algorithm.run(FOUR_ARMS))[0, -1]
    # Beta(2, 1) against Beta(1, 1): a gap of 1/6, and a variance of 1/18 + 1/12.
    first = stats.norm.cdf((1 / 6) / np.sqrt(1 / 18 + 1 / 12))
    assert_allclose(chances, [0, first, 1 - first, 0], atol=1e-3)


def test_draws_from_narrow_posteriors_are_compared_exactly():
    """Of 500 rounds each, the arms won 450, 440 and none, so the third never has the largest draw."""
    n_rounds, n_wins = 500, np.array([450, 440, 0])
    choices = np.repeat([0, 1, 2], n_rounds)
    is_won = np.tile(np.arange(n_rounds), 3) < n_wins[choices]
    episodes = bandit.BanditEpisodes([[*choices, 0]], [[*is_won, 0]], n_arms=3)
    algorithm = algorithms.bayes_thompson()
    chances = algorithm.distribution(algorithm.run(episodes))[0, -1]
    posterior = stats.beta(n_wins + 1, n_rounds - n_wins + 1)
    gap = posterior.mean()[0] - posterior.mean()[1]
    first = stats.norm.cdf(gap / np.sqrt(posterior.var()[:2].sum()))
    assert_allclose(chances, [first, 1 - first, 0], atol=1e-6)


def test_a_bias_to_the_first_arm_is_its_probability_whatever_else_is_on_offer():
    algorithm = algorithms.fixed_bias(0.9)
    chances = algorithm.distribution(algorithm.run(FOUR_ARMS))[0, [0, -1]]
    assert_allclose(chances, [[0.9, 0, 0, 0.1], [0, 0.5, 0.5, 0]])


@pytest.mark.parametrize("regime", bandit.REGIMES)
def test_a_simulated_player_chooses_as_its_algorithm_says(regime):
    player = algorithms.rescorla_wagner(0.5, 3.0)
    episodes = bandit.sample(200, 40, 2, regime, 0, player)
    chances = player.distribution(player.run(episodes))
    chances_of_choices = np.take_along_axis(chances, episodes.choices[..., None], -1)
    expected_chance = (chances**2).sum(-1).mean()
    assert chances_of_choices.mean() == pytest.approx(expected_chance, abs=0.01)
    again = bandit.sample(200, 40, 2, regime, 0, player)
    assert (again.choices == episodes.choices).all()
    assert (again.rewards == episodes.rewards).all()
    # Rewards follow what arms pay, not the player: one that chooses at random earns less.
    random = bandit.sample(200, 40, 2, regime, 0, algorithms.fixed_bias())
    mean_of_player = episodes.rewards.mean()
    assert random.rewards.mean() + 0.02 < mean_of_player


def test_the_round_tells_the_choice_and_its_reward_after_the_prediction():
    episodes = bandit.BanditEpisodes([[0, 2]], [[-1.5, 2.0]])
    layout = interp.tasks.get("bandit").layout(n_arms=3)
    encoded = layout.encode(episodes)
    first_round, second_round = encoded.tokens[0].tolist()
    words = [layout.vocabulary[token] for token in second_round]
    assert words[2:] == ["cue", "choice?", "arm_3", "reward", "w?"]
    assert layout.vocabulary[first_round[4]] == "arm_1"
    payloads = encoded.values[0, :, layout.position("reward")]
    assert payloads.tolist() == [-1.5, 2.0]
    assert encoded.values.count_nonzero() == 2
    assert layout.outcomes == ("arm_1", "arm_2", "arm_3")
    assert layout.position("choice") > layout.predict_position
    refuses(
        "3 arms but this model's layout serves 2 arms",
        interp.tasks.get("bandit").layout(n_arms=2).encode,
        episodes,
    )


def test_corruptions_change_what_they_say():
    episodes = bandit.sample(4, 6, seed=0)
    clean, flipped = bandit.TASK.corruption("flip-reward").build(episodes, -2)
    assert clean is episodes
    expected = episodes.rewards.copy()
    expected[:, 4] = 1 - expected[:, 4]
    assert (flipped.rewards == expected).all()
    _, corrupted = bandit.TASK.corruption("exchange-history").build(episodes, 3)
    assert (corrupted.choices[0, :3] == episodes.choices[1, :3]).all()
    assert (corrupted.choices[:, 3:] == episodes.choices[:, 3:]).all()


def refuse_two_rounds(message, **fields):
    """An episode of two rounds, whose choices and rewards are fine, is refused with these fields."""
    refuses(message, bandit.BanditEpisodes, choices=[[0, 1]], rewards=[[1, 0]], **fields)


def test_what_are_no_choices_is_refused():
    message = r"rewards have shape \(1, 1\) but choices \(1, 2\)"
    refuses(message, bandit.BanditEpisodes, choices=[[0, 1]], rewards=[[1]])
    message = "choices must be arms 0 to n_arms - 1 of 2 or more, got 2"
    refuses(message, bandit.BanditEpisodes, choices=[[0, 2]], rewards=[[1, 0]], n_arms=2)


def test_choices_below_0_are_refused():
    message = "choices must be whole numbers >= 0, got -1"
    refuses(message, bandit.BanditEpisodes, choices=[[0, -1]], rewards=[[1, 0]])


def test_names_of_arms_that_are_none_are_refused():
    refuse_two_rounds(r"arms must name each of the 2 arms, got \('a',\)", arms=("a",))
    refuse_two_rounds(r"names of arms must differ, got \('a', 'a'\)", arms=("a", "a"))


def test_a_text_of_arms_is_refused():
    refuse_two_rounds("arms must be a list", arms="ab")


def test_scales_that_are_none_are_refused():
    refuse_two_rounds("scale must be a finite number", scale=np.nan)
    refuse_two_rounds("scale must be above 0, got 0", scale=0.0)


def test_records_that_are_none_are_refused():
    refuse_two_rounds("regime must be a text, got 3", regime=3)
    refuse_two_rounds("seed must be .*integer.*, got 'x'", seed="x")


def test_a_huge_number_of_arms_is_refused():
    message = "1 episodes of 2 rounds with 1000000000000 arms would take about .* GB"
    refuse_two_rounds(message, n_arms=10**12)


@pytest.mark.parametrize(
    ("family", "parameters", "message"),
    [
        ("rescorla_wagner", {"rate": 2}, "rate must be a finite number >= 0 and <= 1, got 2"),
        ("rescorla_wagner", {"rate": -1}, "rate must be a finite number >= 0 and <= 1, got -1"),
        ("rescorla_wagner", {"inverse_temperature": -1.0}, "inverse_temperature must be .* >= 0"),
        ("two_rates", {"loss": 1.5}, "loss must be a finite number >= 0 and <= 1, got 1.5"),
        ("forgetting", {"forgets": -0.1}, "forgets must be .* >= 0 and <= 1"),
        ("win_stay", {"shifts": 1.0}, "shifts must be a finite number >= 1e-06"),
        ("fixed_bias", {"first": 0.0}, "first must be a finite number >= 1e-06"),
        ("bayes_thompson", {"keeps": 0.0}, "keeps must be a finite number >= 0.001 and <= 1"),
    ],
)
def test_a_parameter_lies_in_its_bounds(family, parameters, message):
    """However it is made: the registered algorithms, the families of a fit, and the shell's hypothesis are one."""
    refuses(message, bandit.TASK.rivals()[family].make, **parameters)


def test_a_gru_of_two_units_is_a_machine_of_this_task():
    from interp.machines.learners import learner

    machine = learner("gru", "bandit", width=2, sizes={"n_arms": 3})
    interp.check_machine(machine)
    assert interp.rollout(machine, bandit.sample(3, 5, 3, seed=0)).predictions.shape == (3, 5, 3)


@pytest.fixture
def long_table():
    """Two people with two blocks of which one is shorter, a trial that was missed, and rows in no order."""
    rows = [("ann", 1, t, "left" if t % 2 else "right", t % 3 / 2) for t in (3, 1, 2)]
    rows += [("bob", 2, 1, "left", 1.0), ("bob", 1, 1, None, None), ("bob", 1, 2, "right", 0.0)]
    return pd.DataFrame(rows, columns=["Subject", "block", "trial", "key", "outcome"])


@pytest.mark.parametrize("separator", [",", "\t", ";"])
def test_a_long_table_becomes_episodes(long_table, tmp_path, separator):
    long_table.to_csv(tmp_path / "data.txt", sep=separator, index=False)
    episodes = bandit.read(tmp_path / "data.txt")
    assert episodes.participants.tolist() == ["ann", "bob", "bob"]
    assert episodes.arms == (
        "left",
        "right",
    )
    lengths = episodes.lengths.tolist()
    assert lengths in ([3, 1, 2], [3, 2, 1])
    by_length = dict(zip(lengths, range(3), strict=True))
    assert episodes.choices[by_length[3]].tolist() == [0, 1, 0]  # trials 1, 2, 3
    assert episodes.rewards[by_length[3]].tolist() == [0.5, 1.0, 0.0]
    assert episodes.counted[by_length[2]].tolist() == [False, True, False]
    assert episodes.counted.sum() == 5
    assert episodes.regime == "recorded"


@pytest.mark.parametrize(
    ("change", "given", "message"),
    [
        (
            lambda t: t.assign(outcome="won"),
            {},
            r"line 2 of .*data.csv': 'outcome' must be a number, got won",
        ),
        (
            lambda t: t.assign(Subject=[*["ann"] * 5, None]),
            {},
            r"line 7 of .*: 'Subject' must not be empty, got nan; fill the cell, or delete the row",
        ),
        (
            lambda t: t.set_axis([*t.columns[:3], "key", "key"], axis=1),
            {"reward": "key"},
            "has two columns 'key'",
        ),
    ],
)
def test_a_table_that_says_too_little_is_refused(change, given, message, long_table, tmp_path):
    change(long_table).to_csv(tmp_path / "data.csv", index=False)
    refuses(message, bandit.read, tmp_path / "data.csv", **given)


def test_labels_of_many_digits_stay_apart(long_table, tmp_path):
    """Cells may be padded, and whole numbers be written as floats, as they are where one of them is missing."""
    numbers_of_people = {"ann": 12345671, "bob": 12345672}
    numbers_of_keys = {"left": 1_000_000_000, "right": 1_000_000_001}
    table = long_table.replace({"Subject": numbers_of_people, "key": numbers_of_keys})
    text = table.to_csv(index=False)
    (tmp_path / "data.csv").write_text(text.replace(",", ", "))
    episodes = bandit.read(tmp_path / "data.csv")
    assert set(episodes.participants) == {"12345671", "12345672"}
    assert episodes.arms == (
        "1000000000",
        "1000000001",
    )


def test_a_missing_round_may_have_no_offers():
    """The round has no effect: the predictions of the others are those without it."""
    choices, rewards = np.array([[0, 2, 1, 0]]), np.array([[1.0, 0, 1, 1]])
    offers = np.array([[[0, 1], [-1, -1], [1, 2], [0, 2]]])
    is_missing = np.array([[False, True, False, False]])
    played = [0, 2, 3]
    whole = bandit.BanditEpisodes(choices, rewards, n_arms=3, offers=offers, missing=is_missing)
    others = bandit.BanditEpisodes(
        choices[:, played], rewards[:, played], n_arms=3, offers=offers[:, played]
    )
    algorithm = algorithms.rescorla_wagner()
    chances = algorithm.distribution(algorithm.run(whole))
    assert np.isfinite(chances).all()
    assert_allclose(chances[:, played], algorithm.distribution(algorithm.run(others)))


def test_a_choice_without_a_reward_is_not_among_the_first_rounds_that_took_place():
    """Its round would come last, so that its prediction would know the choices that came after it."""
    choices, rewards = np.array([[0, 1, 1, 0]]), np.ones((1, 4))
    is_unpaid = np.array([[False, True, False, False]])
    episodes = bandit.BanditEpisodes(choices, rewards, missing=is_unpaid, unpaid=is_unpaid)
    assert episodes.scored.all()
    first = episodes.first(4)
    assert first.choices[first.scored].tolist() == [0, 1, 0]
    assert first.scored.tolist() == [[True, True, True, False]]


def test_what_fills_a_missing_round_changes_no_corruption():
    """Histories are exchanged with the rounds missing in them; a reward is flipped between those that were paid."""
    sampled = bandit.sample(4, 6, 2, seed=0)
    missing = np.zeros((4, 6), bool)
    missing[0, 1] = missing[1, 4] = True
    for filler in (0.0, 9.0):
        filled = replace(
            sampled, rewards=np.where(missing, filler, sampled.rewards), missing=missing
        )
        _, flipped = bandit.TASK.corruption("flip-reward").build(filled, 2)
        assert np.array_equal(flipped.rewards[:, 2], 1 - sampled.rewards[:, 2])
        _, corrupted = bandit.TASK.corruption("exchange-history").build(filled, 3)
        next_missing = np.roll(missing, -1, 0)
        assert np.array_equal(corrupted.missing[:, :3], next_missing[:, :3])
        assert np.array_equal(corrupted.missing[:, 3:], missing[:, 3:])
