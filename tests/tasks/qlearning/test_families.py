"""The rivals of Q-learning are what they say, by hand, and act as they are told."""

import numpy as np
import pytest

import interp
from interp.interventions.interchange import interchange
from interp.tasks import mdp
from interp.tasks.qlearning import TASK, MDPEpisodes, families
from interp.tasks.qlearning.algorithms import q_learning
from interp.tasks.qlearning.sampling import battery
from tests.refusals import refuses

MEAN_REWARD = TASK.rivals()["mean_reward"].make()


@pytest.fixture(scope="module")
def episodes():
    return mdp.sample(5, 12, 3, 2, seed=1, epsilon=1.0)


@pytest.fixture(scope="module")
def walk():
    """(0, a0) pays 1 and leads to 1; (1, a1) pays .5 and leads to 0; then (0, a0) again."""
    states = [[0, 1, 0]]
    actions = [[0, 1, 0]]
    rewards = [[1.0, 0.5, 1.0]]
    next_states = [[1, 0, 1]]
    transitions = (states, actions, rewards, next_states)
    return MDPEpisodes.from_transitions(mdp.chain(2, 2), *transitions, alpha=0.5, gamma=0.8)


def after(learner, episodes):
    return learner.run(episodes)["next_table"][0]


def test_sarsa_adds_the_value_of_the_action_that_was_taken_next(walk):
    tables = after(families.sarsa(0.5, 0.8), walk)
    assert tables[0].tolist() == [[0.5, 0], [0, 0]]
    assert tables[1].tolist() == [[0.5, 0], [0, 0.25]]
    # Q(1, a1) earns .5 * .8 * Q(0, a0) = .2 now that a0 was taken there; then Q(0, a0) moves to its reward.
    expected = np.diag([0.75, 0.45])
    assert tables[2] == pytest.approx(expected)


def test_the_mean_takes_the_place_of_the_maximum(walk):
    tables = after(families.mean_bootstrap(0.5, 0.8), walk)
    target = 0.5 + 0.8 * 0.25
    expected = np.diag([0.5, 0.5 * target])
    assert tables[1] == pytest.approx(expected)


def test_with_one_action_mean_and_maximum_are_the_same():
    single = mdp.sample(4, 10, 3, 1, seed=0)
    by_maximum = after(q_learning(), single)
    assert after(families.mean_bootstrap(), single) == pytest.approx(by_maximum)


def test_mean_reward_and_visits_count(walk):
    mean_rewards = after(MEAN_REWARD, walk)[-1]
    assert mean_rewards.tolist() == [[1, 0], [0, 0.5]]
    visits = after(families.visit_counts(-1.0), walk)[-1]
    assert visits.tolist() == [[-2, 0], [0, -1]]


LEARNERS = [
    families.mean_bootstrap(),
    families.sarsa(),
    MEAN_REWARD,
    families.visit_counts(),
]


@pytest.fixture(scope="module")
def model():
    return interp.load("qlearning-handwired", n_states=3, n_actions=2)


@pytest.fixture(scope="module")
def others():
    return mdp.sample(5, 12, 3, 2, seed=2, epsilon=1.0)


@pytest.mark.parametrize("learner", LEARNERS, ids=lambda learner: learner.key)
def test_a_round_writes_one_column_under_every_learner(model, episodes, others, learner):
    """What a slot holds, so that a swapped reward can be judged under any of them, whichever comes closest."""
    values = learner.run(episodes)
    is_taken = np.eye(2, dtype=bool)[values["action"]]
    columns = np.moveaxis(values["next_table"], -1, -2)
    expected = columns[is_taken].reshape(5, 12, 3)
    assert np.array_equal(values["next_column"], expected)
    interchanged = interchange(
        model, episodes, others, learner, "reward", "embed@r", outcome="state", round=[3, 6]
    )
    assert interchanged.effect.shape == interchanged.wanted.shape
    if learner.key == "mean_bootstrap":  # a reward enters by the same rate
        assert interchanged.score().estimate == pytest.approx(1)


def test_acting_is_by_the_table_before_or_after_with_ties_shared_or_broken(episodes):
    shares = families.acting(q_learning()).run(episodes)["policy"]
    assert (shares > 0).tolist() == episodes.greedy_sets.tolist()
    assert shares.sum(-1) == pytest.approx(1)
    construction = families.acting(q_learning(), shared_ties=False, after=False)
    policy = construction.run(episodes)["policy"]
    own_policy = q_learning().run(episodes)["policy"]
    assert policy.tolist() == own_policy.tolist()


def test_a_softmax_is_boltzmanns(episodes):
    policy = families.acting(q_learning(), temperature=0.2, after=False).run(episodes)["policy"]
    assert policy == pytest.approx(q_learning(beta=5.0).run(episodes)["policy"])
    refuses("temperature must be at least 0, got -1", families.acting, q_learning(), temperature=-1)


def test_q_learning_starts_where_no_bootstrap_ends():
    """Families that contain each other could never be told apart by the ratio of their divergences."""
    searched = TASK.rivals()["q_learning"].searched
    gamma = next(parameter for parameter in searched if parameter.name == "gamma")
    assert gamma.grid[0] == 0.2
    assert "gamma" not in {s.name for s in TASK.rivals()["no_bootstrap"].searched}


def test_the_battery_separates_what_looks_ahead_from_what_does_not():
    sets = battery(8, 40, n_states=4, n_actions=3, seed=0)
    delayed = sets["delayed"]
    assert list(sets) == ["grid", "explored", "draws", "chain", "delayed"]
    ahead = families.acting(q_learning(gamma=0.9)).run(delayed)["policy"]
    here = families.acting(q_learning(gamma=0.0)).run(delayed)["policy"]
    distance = np.abs(ahead - here).sum(-1)
    assert distance.mean() > 0.2
    hub = delayed.mdps.rewards.max(-1) <= 0.1
    assert (hub.sum(-1) == 2).all()


def test_fits_and_scores_are_other_episodes():
    fitted, scored = TASK.sets_for(2, 10, seed=0, n_states=4, n_actions=3)["grid"]
    assert (fitted.n_states, fitted.n_actions) == (4, 3)
    assert (fitted.states != scored.states).any()


# Lapses.


@pytest.mark.parametrize(
    "lapsed", [families.late_q(0.3, 0.8, lag=0), families.stopped_q(0.3, 0.8, last=12)]
)
def test_a_lapse_that_is_none_is_q_learning(episodes, lapsed):
    lapsed_values, plain = lapsed.run(episodes), q_learning(0.3, 0.8).run(episodes)
    for key in ("table", "next_table", "visits", "choice", "policy", "td_error"):
        assert np.array_equal(lapsed_values[key], plain[key]), key


def test_a_late_table_is_the_table_of_two_rounds_before(episodes):
    late_values = families.late_q(0.3, 0.8, lag=2).run(episodes)
    plain = q_learning(0.3, 0.8).run(episodes)
    assert not late_values["table"][:, :3].any()
    two_rounds_before = plain["table"][:, :-2]
    assert late_values["table"][:, 2:] == pytest.approx(two_rounds_before)
    assert late_values["table"][:, 2:].any()
    assert (late_values["policy"][:, 2:] != plain["policy"][:, 2:]).any()


def test_a_late_table_chooses_at_the_state_of_now(episodes):
    values = families.late_q(0.3, 0.8, lag=1).run(episodes)
    rows = np.take_along_axis(values["table"], values["next_state"][..., None, None], -2)[..., 0, :]
    assert np.array_equal(values["choice"], rows.argmax(-1))


def test_a_stopped_table_stays_as_it_is_and_is_still_chosen_by(episodes):
    stopped_values = families.stopped_q(0.3, 0.8, last=5).run(episodes)
    plain = q_learning(0.3, 0.8).run(episodes)
    assert np.array_equal(stopped_values["table"][:, :6], plain["table"][:, :6])
    kept_table = np.repeat(plain["table"][:, 5:6], 6, 1)
    assert np.array_equal(stopped_values["table"][:, 6:], kept_table)
    assert (stopped_values["table"][:, 6:] != plain["table"][:, 6:]).any()


def test_lapses_that_cannot_be_are_refused():
    refuses("lag must be an integer >= 0, got -1", families.late_q, lag=-1)
    refuses("last must be a number of rounds >= 1, got 0", families.stopped_q, last=0)
    refuses("gamma", families.late_q, gamma=1.0)
