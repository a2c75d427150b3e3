"""The rivals of expert advice, those with a lapse among them, are what they say; what a model is held against."""

import numpy as np
import pytest
import torch

import interp
from interp.tasks import experts
from interp.tasks.experts import TASK, algorithms, analysis, families, predictors, sample
from interp.tasks.experts.algorithms import (
    bayes,
    follow_the_leader,
    majority_vote,
    weighted_majority,
)
from interp.tasks.experts.episodes import battery
from interp.tasks.experts.posterior import mean_accuracy
from interp.tasks.lapses import add_lapse, fading, late, stopped, window
from tests.refusals import refuses

STOPPED = add_lapse(stopped, weighted_majority, "stopped_majority")


@pytest.fixture(scope="module")
def episodes():
    return sample(6, 15, 4, seed=2)


def says(algorithm, episodes):
    return algorithm.run(episodes)["prediction"]


@pytest.mark.parametrize(
    ("rival", "base"),
    [
        (families.bayes_fading(0.2, 0.8, decay=1.0), bayes(0.2, 0.8)),
        (families.bayes_mixture(0.2, 0.8, 0.2, 0.8, 0.3), bayes(0.2, 0.8)),
        (families.fading_majority(0.7, decay=1.0), weighted_majority(0.7)),
        (families.fixed_share(0.7, alpha=1e-13), weighted_majority(0.7)),
        (families.fixed_vote(0.6), bayes(0.6, 0.6)),
    ],
    ids=lambda algorithm: algorithm.key,
)
def test_a_rival_that_varies_nothing_is_its_base(episodes, rival, base):
    assert says(rival, episodes) == pytest.approx(says(base, episodes), abs=1e-10)


def test_previous_winners_are_the_baseline(episodes):
    expected = predictors.PREDICTORS["follow_previous_winners"].run(episodes).predictions
    assert says(algorithms.follow_previous_winners(), episodes) == pytest.approx(expected)


def test_fading_counts_are_the_geometric_sum(episodes):
    values = families.bayes_fading(decay=0.8).run(episodes)
    factors = 0.8 ** np.arange(14)[::-1]
    faded = episodes.correct[:, :14] * factors[:, None]
    assert values["counts"][:, -1] == pytest.approx(faded.sum(1))
    last_elapsed = values["elapsed"][:, -1]
    assert last_elapsed == pytest.approx(factors.sum())


def test_a_mixture_is_bayes_rule_over_two_regimes():
    """By hand: one expert, right once; U[.5, .5] and U[0, 1] are equally likely at first."""
    drawn = sample(1, 2, 1, seed=0)
    right_twice = type(drawn)(np.ones((1, 2, 1), int), np.ones((1, 2), int), drawn.accuracies)
    values = families.bayes_mixture(0.5, 0.5, 0.0, 1.0, 0.5).run(right_twice)
    regimes = values["regime"][0].tolist()
    assert regimes == pytest.approx([0.5, 0.5])
    first, second = values["prediction"][0].tolist()
    assert first == pytest.approx(0.5)
    assert second == pytest.approx((0.5 + 2 / 3) / 2)


def test_fractions_have_the_posterior_of_their_beta_distribution():
    half_right = np.array([0.5])
    out_of = np.array([1.5])
    mean = mean_accuracy(half_right, out_of, (0.0, 1.0))
    assert mean == pytest.approx([1.5 / 4])


def test_fixed_share_keeps_a_floor_under_every_weight(episodes):
    values = families.fixed_share(2.0, alpha=0.2).run(episodes)
    assert values["weights"][:, 1:].min() >= 0.2 / 4
    assert values["weights"].sum(-1) == pytest.approx(1)


def test_lapses_outside_their_range_are_refused():
    refuses(r"decay must lie in \(0, 1\], got 0", families.bayes_fading, decay=0.0)
    message = "window must be a number of rounds >= 1, got 0"
    refuses(message, add_lapse(window, bayes), window=0)
    refuses(message, families.majority_window, window=0)
    message = "lag must be an integer >= 0, got -1"
    refuses(message, families.late_majority, lag=-1)
    refuses(message, add_lapse(late, bayes), lag=-1)


def test_last_rounds_outside_their_range_are_refused():
    message = "last must be a number of rounds >= 1, got 0"
    refuses(message, STOPPED, last=0)
    refuses(message, add_lapse(stopped, bayes), last=0)


def test_parameters_outside_their_range_are_refused():
    refuses("expert must be an integer >= 1, got 0", families.deaf_majority, expert=0)
    message = "hears must be 0, 1, or 0.5 for no vote, got 0.3"
    refuses(message, families.deaf_majority, hears=0.3)
    refuses(r"alpha must lie in \(0, 1\), got 1", families.fixed_share, alpha=1.0)
    refuses(r"weight must lie in \(0, 1\), got 0", families.bayes_mixture, weight=0.0)
    refuses(r"accuracy must lie in \(0, 1\), got 1", families.fixed_vote, 1.0)


def test_the_battery_copies_turns_and_grades():
    sets = battery(8, 20, n_experts=4, seed=3)
    copied = sets["copied"]
    assert (copied.advice[..., 0] == copied.advice[..., 1]).all()
    assert (copied.advice[..., 0] != copied.advice[..., 2]).any()
    turncoat = sets["turncoat"]
    best_accuracy = turncoat.correct[:, :10].mean(1).max(-1)
    assert (best_accuracy == 1).all()
    assert turncoat.correct[:, 10:].mean() < 0.65
    ascending = np.sort(sets["graded"].accuracies_by_round[:, 0], -1)
    expected = np.tile([0.05, 0.35, 0.65, 0.95], (8, 1))
    assert ascending == pytest.approx(expected)


def test_fits_and_scores_are_other_episodes(episodes):
    for fitted, scored in TASK.sets_for(4, 10, seed=0, n_experts=4).values():
        assert len(fitted) == len(scored) == 4
        assert (fitted.labels != scored.labels).any()


def test_every_family_has_a_base_without_a_memory_to_beat():
    families = TASK.rivals()
    assert {key for key, family in families.items() if family.memoryless} == {
        "majority_vote",
        "fixed_vote",
    }
    for family in families.values():
        member = family.make(**{s.name: s.grid[0] for s in family.searched})
        assert family.memoryless == (not member.state)
        assert member.key == family.key
    assert majority_vote().state == ()


# Lapses.


def some(episodes, rounds=slice(None), experts=slice(None)):
    """The episodes of some rounds and experts."""
    votes_and_labels = episodes.advice[:, rounds, experts], episodes.labels[:, rounds]
    return type(episodes)(*votes_and_labels, episodes.accuracies[..., experts])


MAJORITY, BAYES = weighted_majority(0.7), bayes(0.2, 0.8)


@pytest.mark.parametrize(
    ("lapsed", "base"),
    [
        (families.late_majority(0.7, lag=0), MAJORITY),
        (add_lapse(late, bayes)(0.2, 0.8, lag=0), BAYES),
        (families.majority_window(0.7, window=15), MAJORITY),
        (add_lapse(window, bayes)(0.2, 0.8, window=15), BAYES),
        (STOPPED(0.7, last=15), MAJORITY),
        (add_lapse(stopped, bayes)(0.2, 0.8, last=15), BAYES),
        *((families.deaf_majority(0.7, 5, hears), MAJORITY) for hears in (0, 0.5, 1)),
    ],
    ids=lambda algorithm: algorithm.key,
)
def test_a_lapse_that_is_none_leaves_the_base(episodes, lapsed, base):
    lapsed_values, plain = lapsed.run(episodes), base.run(episodes)
    for key in (*base.state, "prediction", "match"):
        assert lapsed_values[key] == pytest.approx(plain[key], abs=1e-13), (
            key
        )  # a sum of gains, or a gain times a count


@pytest.mark.parametrize(
    ("late", "base"),
    [
        (families.late_majority(0.7, lag=2), MAJORITY),
        (add_lapse(late, bayes)(0.2, 0.8, lag=2), BAYES),
    ],
    ids=["majority", "bayes"],
)
def test_a_late_one_holds_what_its_base_held_two_rounds_before(episodes, late, base):
    late_values, plain = late.run(episodes), base.run(episodes)
    for key in base.state:
        assert np.array_equal(late_values[key][:, 2:], plain[key][:, :-2])
        assert not late_values[key][:, :2].any()


@pytest.mark.parametrize(
    "stopped", [STOPPED(0.7, last=4), add_lapse(stopped, bayes)(0.2, 0.8, last=4)]
)
def test_a_stopped_one_holds_what_it_held_when_it_stopped(episodes, stopped):
    values, base = stopped.run(episodes), MAJORITY if "gain" in stopped.parameters else BAYES
    plain = base.run(episodes)
    for key in base.state:
        before_stop = plain[key][:, :5]
        assert np.array_equal(values[key][:, :5], before_stop)
        held_on = np.repeat(before_stop[:, 4:], 10, 1)
        assert np.array_equal(values[key][:, 5:], held_on)


@pytest.mark.parametrize(
    ("windowed", "base"),
    [
        (families.majority_window(0.7, window=4), MAJORITY),
        (add_lapse(window, bayes)(0.2, 0.8, window=4), BAYES),
    ],
    ids=["majority", "bayes"],
)
def test_a_window_predicts_as_if_the_episode_began_with_it(episodes, windowed, base):
    from_window_on = some(episodes, slice(-5, None))
    last = says(base, from_window_on)[:, -1]
    assert says(windowed, episodes)[:, -1] == pytest.approx(last)


@pytest.mark.parametrize(
    ("family", "option"),
    [(families.majority_window, "window"), (STOPPED, "last")],
    ids=["majority_window", "stopped_majority"],
)
def test_a_fraction_of_a_round_counts_as_that_fraction(episodes, family, option):
    """Between two whole numbers the log-weights lie on the line between theirs."""
    shorter = family(0.7, **{option: 4}).run(episodes)["log_weights"]
    between = family(0.7, **{option: 4.25}).run(episodes)["log_weights"]
    longer = family(0.7, **{option: 5}).run(episodes)["log_weights"]
    assert between == pytest.approx(0.75 * shorter + 0.25 * longer)
    assert (shorter != longer).any()


def test_a_fraction_of_a_round_counts_as_that_fraction_in_counts(episodes):
    shorter = add_lapse(stopped, bayes)(last=4).run(episodes)["counts"]
    between = add_lapse(stopped, bayes)(last=4.25).run(episodes)["counts"]
    longer = add_lapse(stopped, bayes)(last=5).run(episodes)["counts"]
    assert between == pytest.approx(0.75 * shorter + 0.25 * longer)


def test_an_expert_without_a_vote_might_as_well_not_be_there(episodes):
    heard = says(MAJORITY, some(episodes, experts=[0, 2, 3]))
    assert says(families.deaf_majority(0.7, 2), episodes) == pytest.approx(heard)


@pytest.mark.parametrize("vote", [0, 1])
def test_an_expert_that_is_taken_to_say_the_same_is_judged_by_that(episodes, vote):
    advice = episodes.advice.copy()
    advice[..., 1] = vote
    stuck = type(episodes)(advice, episodes.labels, episodes.accuracies)
    assert says(families.deaf_majority(0.7, 2, vote), episodes) == pytest.approx(
        says(MAJORITY, stuck)
    )


def test_with_nobody_to_hear_the_answer_is_even():
    assert (says(families.deaf_majority(0.7, 1), sample(3, 5, 1, seed=0)) == 0.5).all()


def test_the_order_of_the_experts_does_not_matter_to_a_lapse(episodes):
    order = [2, 0, 3, 1]
    turned = some(episodes, experts=order)
    for lapse in (
        families.late_majority(0.7, lag=1),
        families.majority_window(0.7, window=3),
        STOPPED(0.7, last=6),
    ):
        assert says(lapse, turned) == pytest.approx(says(lapse, episodes))
    first = families.deaf_majority(0.7, 1, 1)
    second = families.deaf_majority(0.7, order.index(0) + 1, 1)
    assert says(second, turned) == pytest.approx(says(first, episodes))


@pytest.mark.parametrize("lapse", [late, stopped, fading, window])
def test_a_lapse_takes_any_algorithm_and_says_what_it_reads(episodes, lapse):
    """Follow the leader, which no family varies; equations see what they declare alone, and a state is written."""
    lapsing = lapse(follow_the_leader(), *([0.9] if lapse is fading else [3]))
    base = follow_the_leader()
    values = lapsing.run(episodes)
    assert lapsing.key.startswith(base.key)
    assert len(lapsing.parameters) == 1
    base_values = base.run(episodes)
    assert (values["prediction"] != base_values["prediction"]).any()
    assert lapsing.written == "next_counts"
    assert values["next_counts"].shape == values["counts"].shape
    for variable in (v for v in lapsing.variables if v.equation is not None):
        declared = {key: values[key] for key in variable.parents}
        assert np.array_equal(variable.equation(declared), values[variable.key]), variable.key


def test_a_model_is_held_against_its_own_algorithm_or_bayes():
    handwired = interp.load("wma-handwired", n_experts=3, log_gamma=0.7)
    own_algorithm = interp.tasks.of(handwired).explains(handwired)
    assert own_algorithm.key == "weighted_majority"
    assert own_algorithm.parameters == {"gain": 0.7}
    learned = interp.load("wma-learned-additive")
    assert interp.tasks.get("experts").explains(learned).key == "bayes"


def test_losses_are_the_probability_of_a_mistake():
    episodes = experts.sample(2, 3, 2, seed=0)
    predictions = torch.full((4, 2, 2), 0.9, dtype=torch.float64)
    measured = analysis.losses(predictions, episodes, slice(1, 3))
    distances = np.abs(0.9 - episodes.labels[:, 1:])
    np.testing.assert_allclose(measured, np.broadcast_to(distances, (4, 2, 2)))


def test_a_round_says_votes_label_and_matches():
    episodes = experts.sample(2, 3, 2, seed=0)
    labels = episodes.labels[..., None]
    inputs = analysis.round_inputs(episodes)
    plain, products = inputs.features
    votes_and_label = np.concatenate([episodes.advice, labels], -1)
    np.testing.assert_array_equal(plain, votes_and_label)
    np.testing.assert_array_equal(products[..., :3], plain)
    np.testing.assert_array_equal(products[..., 3:], episodes.advice == labels)
    np.testing.assert_array_equal(inputs.kinds, plain)


def test_steering_raises_the_first_experts_weight():
    steering = analysis.steering()
    episodes = experts.sample(2, 3, 2, seed=0)
    assert steering.change((2,)).tolist() == [1, 0]
    first_votes = episodes.advice[:, 1, 0]
    assert steering.outcome(episodes, 1).tolist() == first_votes.tolist()
