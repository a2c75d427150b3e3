"""A memory handed over: exact between exact machines, by hand on an algorithm, and with what it must not do."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import interp
from interp.interventions.hand_over import hand_over, read_memory, state_difference
from interp.tasks import experts, mdp, using
from interp.tasks.experts.algorithms import bayes, weighted_majority
from interp.tasks.qlearning.algorithms import q_learning
from tests.refusals import refuses

ROUND = 5


@pytest.fixture(scope="module")
def episodes():
    return experts.sample(16, 12, 3, seed=1)


@pytest.fixture(scope="module")
def handwired():
    return interp.load("wma-handwired", n_experts=3).double()


@pytest.fixture(scope="module")
def run(handwired, episodes):
    return interp.rollout(handwired, episodes)


@pytest.fixture(scope="module")
def result(run, handwired):
    """What the handwired machine does with its own memory."""
    return hand_over(run, ROUND, to=handwired)


def _count_hits(episodes, n_rounds):
    """Return how often each expert was right in the first rounds, ``[episode, expert]``."""
    return episodes.correct[:, :n_rounds].sum(1)


def _vote(episodes, hits, t, gain):
    """Return the probability of outcome 1 in round t by Weighted Majority's formula from counts of hits."""
    weights = np.exp(gain * hits)
    weights = weights / weights.sum(1, keepdims=True)
    return (weights * episodes.advice[:, t]).sum(1)


def test_a_handwired_machine_goes_on_exactly_with_its_own_memory(result):
    """The state is an affine function of the log-weights, so nothing is lost: all of the way."""
    assert result.read == ("log_weights",)
    assert result.not_read == ()
    assert_allclose(result.handed_over, result.saw_everything, atol=1e-9)
    assert result.share.estimate == pytest.approx(1, abs=1e-6)


def test_the_receiver_that_saw_everything_is_the_run_itself(run, result):
    predicted = run.layout.distribution(run.predictions[:, ROUND:]).numpy()
    assert_allclose(result.saw_everything, predicted, atol=1e-9)


def test_an_algorithm_plays_on_from_the_decoded_counts(run, episodes):
    """Weighted Majority by hand: the hits before the round and those since, weighted exponentially."""
    gain = 0.5
    result = hand_over(run, ROUND, to=weighted_majority(gain=gain))
    scale = experts.TASK.explains(run.model).parameters["gain"] / gain
    before = _count_hits(episodes, ROUND) * scale
    for t in range(ROUND, 12):
        since = _count_hits(episodes, t) - _count_hits(episodes, ROUND)
        expected = _vote(episodes, before + since, t, gain)
        assert_allclose(result.handed_over[:, t - ROUND, 1], expected, atol=1e-6)


def test_a_number_that_is_the_same_in_every_episode_is_handed_over_too():
    """The Bayes predictor needs how many rounds passed, besides the counts: without it, it predicts NaN."""
    episodes = experts.sample(16, 12, 4, seed=1)
    result = hand_over(interp.rollout(interp.load("wma-gru"), episodes), ROUND, to=bayes())
    assert_allclose(result.handed_over, result.saw_everything, atol=0.05)
    assert result.share.low > 0.9


def test_another_memory_is_that_of_the_episode_before(run, result, episodes):
    """In the round of the hand-over it votes by the hits of the neighbouring episode."""
    gain = experts.TASK.explains(run.model).parameters["gain"]
    others = np.roll(_count_hits(episodes, ROUND), 1, axis=0)
    expected = _vote(episodes, others, ROUND, gain)
    assert_allclose(result.another_episode[:, 0, 1], expected, atol=1e-6)


def test_who_starts_anew_votes_with_equal_weights(result, episodes):
    share_of_votes = episodes.advice[:, ROUND].mean(1)
    assert_allclose(result.starts_anew[:, 0, 1], share_of_votes, atol=1e-9)


def test_distances_are_total_variation(result):
    """Half the sum of absolute differences of both outcomes, which is the difference of one."""
    row = result.to_frame().set_index("memory").loc["starts anew"]
    difference = result.starts_anew[..., 1] - result.saw_everything[..., 1]
    expected = np.abs(difference).mean()
    assert row["distance"] == pytest.approx(expected)
    assert row["low"] <= row["distance"] <= row["high"]


def test_a_learned_memory_is_decoded_by_the_algorithm_that_is_in_use():
    """Alone, a learned machine is compared with the Bayes predictor, which carries no log-weights."""
    giver = interp.rollout(interp.load("wma-gru"), experts.sample(4, 12, 4, seed=1))
    receiver = interp.load("wma-handwired", n_experts=4)
    with interp.tasks.using(None, weighted_majority()):
        handed = hand_over(giver, ROUND, to=receiver)
        differs = state_difference(giver, giver, ROUND)
    assert handed.read == ("log_weights",)
    assert set(differs["variable"]) == {"log_weights"}


@pytest.mark.long
def test_a_learned_memory_serves_a_handwired_machine():
    """Trained on labels, it hands Weighted Majority what it counts; an untrained copy hands over a good deal less."""
    receiver = interp.load("wma-handwired", n_experts=4)
    episodes = experts.sample(32, 20, 4, seed=1)
    giver = interp.load("wma-gru")
    learned = hand_over(interp.rollout(giver, episodes), 10, to=receiver)
    untrained = hand_over(interp.rollout(giver.untrained(), episodes), 10, to=receiver)
    assert learned.share.low > 0.9
    assert untrained.share.high < learned.share.low
    assert learned.sentence.startswith(
        "wma-handwired plays on from round 10 with the memory of wma-gru"
    )


@pytest.mark.long
def test_a_memory_is_handed_to_a_machine_of_another_kind():
    episodes = experts.sample(32, 20, 4, seed=1)
    run = interp.rollout(interp.load("wma-gru"), episodes)
    result = hand_over(run, 10, to=interp.load("wma-learned-additive"), via=bayes())
    assert result.read == ("counts",)
    assert result.share.low > 0.9


@pytest.mark.long
def test_a_table_of_values_is_handed_over():
    machine = interp.load("qlearning-handwired", n_states=3, n_actions=2).double()
    episodes = interp.tasks.get("qlearning").sample_for(machine, 16, 12, seed=1)
    result = hand_over(interp.rollout(machine, episodes), 6, to=machine)
    assert_allclose(result.handed_over, result.saw_everything, atol=1e-6)


def test_recorded_participants_of_the_second_half_are_not_in_the_decoder(run, handwired):
    """Forty people: the decoder of their memories is fitted on twenty, and the other twenty are read."""
    people = experts.sample(40, 12, 3, seed=5)
    algorithm = weighted_majority()
    with using(people) as task:
        others = interp.rollout(handwired, task.for_half(1).sample(20, 12))
        memory = read_memory(others, 6, algorithm, n_known=20)
        refuses(
            "the decoder of round 15 is fitted on recorded episodes, which have 12 rounds",
            read_memory,
            interp.rollout(handwired, experts.sample(4, 16, 3, seed=6)),
            15,
            algorithm,
        )
    known = set(memory.known.numbers.tolist())
    assert len(known) == 20
    assert known.isdisjoint(others.episodes.numbers.tolist())


def test_states_differ_by_what_the_algorithm_counted_differently(run, handwired):
    """Two sets of episodes: the difference of their log-weights, element by element, the largest first."""
    others = experts.sample(16, 12, 3, seed=2)
    table = state_difference(run, interp.rollout(handwired, others), ROUND)
    algorithm = experts.TASK.explains(handwired)
    other_weights = algorithm.run(others)["log_weights"][:, ROUND]
    weights = algorithm.run(run.episodes)["log_weights"][:, ROUND]
    ordered = table.sort_values(["episode", "element"])["difference"].to_numpy()
    assert_allclose(ordered.reshape(16, 3), other_weights - weights, atol=1e-6)
    assert table["difference"].abs().is_monotonic_decreasing


def test_what_cannot_be_handed_over_is_refused(run, handwired):
    refuses(r"round must be from 1.* to 11.*got 0", hand_over, run, 0, to=handwired)
    refuses(r"round must be from 1.* to 11.*got 12", hand_over, run, 12, to=handwired)
    refuses(r"round must be from 1.* to 11.*got -12", hand_over, run, -12, to=handwired)
    fewer = interp.rollout(handwired, experts.sample(4, 12, 3, seed=2))
    refuses("16 and 4 episodes", state_difference, run, fewer, ROUND)
    alone = run.select([0])
    refuses("give 2 episodes or more", hand_over, alone, ROUND, to=handwired)
    refuses(
        "unknown variable that Bayes predictor carries 'log_weights'. Valid: counts, elapsed",
        hand_over,
        run,
        ROUND,
        to=bayes(),
        via=weighted_majority(),
    )


def test_episodes_with_missing_rounds_are_refused(handwired):
    """Their state was not written in every round, so that a map of a full history would misread it."""
    episodes = experts.sample(8, 12, 3, seed=1)
    missing = np.zeros((8, 12), dtype=bool)
    missing[0, 3] = True
    run = interp.rollout(handwired, replace(episodes, missing=missing))
    refuses("reading a memory counts every round", hand_over, run, ROUND, to=handwired)
    refuses("reading a memory counts every round", state_difference, run, run, ROUND)


def test_a_state_without_the_variable_is_said_to_have_none():
    """A replacing machine at random weights forgets: nothing of it is handed over, and nothing is made up."""
    machine = interp.load("wma-handwired", n_experts=3).untrained()
    run = interp.rollout(machine, experts.sample(8, 12, 3, seed=1))
    refuses("no affine map reads a variable", hand_over, run, 10, to=machine)


def test_an_algorithm_breaks_ties_as_if_it_had_seen_everything():
    """Rewards that no round has reached yet leave equal values, and an algorithm draws among equals."""
    machine = interp.load("qlearning-handwired", n_states=3, n_actions=2).double()
    episodes = mdp.sample(64, 20, 3, 2, seed=3)
    handed = hand_over(interp.rollout(machine, episodes), 10, to=q_learning())
    assert_allclose(handed.handed_over, handed.saw_everything, atol=1e-5)
    assert handed.share.estimate == pytest.approx(1)
