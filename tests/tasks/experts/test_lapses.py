"""Algorithms with a lapse are what they say: their base where it is none, and else what the lapse makes of it."""

import numpy as np
import pytest

from interp.errors import InputError
from interp.lapses import fading, late, stopped, window
from interp.tasks.experts import families as lapses
from interp.tasks.experts import sample
from interp.tasks.experts.algorithms import bayes, follow_the_leader, weighted_majority


@pytest.fixture(scope="module")
def episodes():
    return sample(6, 15, 4, seed=2)


def says(algorithm, episodes):
    return algorithm.run(episodes)["prediction"]


def some(episodes, rounds=slice(None), experts=slice(None)):
    """The episodes of some rounds and experts."""
    kept = episodes.advice[:, rounds, experts], episodes.labels[:, rounds]
    return type(episodes)(*kept, episodes.accuracies[..., experts])


MAJORITY, BAYES = weighted_majority(0.7), bayes(0.2, 0.8)


@pytest.mark.parametrize(
    ("lapsed", "base"),
    [
        (lapses.late_majority(0.7, lag=0), MAJORITY),
        (lapses.bayes_late(0.2, 0.8, lag=0), BAYES),
        (lapses.majority_window(0.7, window=15), MAJORITY),
        (lapses.bayes_window(0.2, 0.8, window=15), BAYES),
        (lapses.stopped_majority(0.7, last=15), MAJORITY),
        (lapses.bayes_stopped(0.2, 0.8, last=15), BAYES),
        *((lapses.deaf_majority(0.7, 5, hears), MAJORITY) for hears in (0, 0.5, 1)),
    ],
    ids=lambda algorithm: algorithm.key,
)
def test_a_lapse_that_is_none_leaves_the_base(episodes, lapsed, base):
    made, plain = lapsed.run(episodes), base.run(episodes)
    for key in (*base.state, "prediction", "match"):
        assert made[key] == pytest.approx(plain[key], abs=1e-13), key  # a sum of gains, or a gain times a count


@pytest.mark.parametrize(
    ("late", "base"),
    [(lapses.late_majority(0.7, lag=2), MAJORITY), (lapses.bayes_late(0.2, 0.8, lag=2), BAYES)],
    ids=["majority", "bayes"],
)
def test_a_late_one_holds_what_its_base_held_two_rounds_before(episodes, late, base):
    made, plain = late.run(episodes), base.run(episodes)
    for key in base.state:
        assert np.array_equal(made[key][:, 2:], plain[key][:, :-2]) and not made[key][:, :2].any()


@pytest.mark.parametrize("stopped", [lapses.stopped_majority(0.7, last=4), lapses.bayes_stopped(0.2, 0.8, last=4)])
def test_a_stopped_one_holds_what_it_held_when_it_stopped(episodes, stopped):
    values, base = stopped.run(episodes), MAJORITY if "gain" in stopped.parameters else BAYES
    plain = base.run(episodes)
    for key in base.state:
        assert np.array_equal(values[key][:, :5], plain[key][:, :5])
        assert np.array_equal(values[key][:, 5:], np.repeat(plain[key][:, 4:5], 10, 1))


@pytest.mark.parametrize(
    ("windowed", "base"),
    [(lapses.majority_window(0.7, window=4), MAJORITY), (lapses.bayes_window(0.2, 0.8, window=4), BAYES)],
    ids=["majority", "bayes"],
)
def test_a_window_predicts_as_if_the_episode_began_with_it(episodes, windowed, base):
    assert says(windowed, episodes)[:, -1] == pytest.approx(says(base, some(episodes, slice(-5, None)))[:, -1])


def test_a_fraction_of_a_round_counts_as_that_fraction(episodes):
    """Between two whole numbers the log-weights lie on the line between theirs."""
    for made, key in ((lapses.majority_window, "window"), (lapses.stopped_majority, "last")):
        held = [made(0.7, **{key: n}).run(episodes)["log_weights"] for n in (4, 4.25, 5)]
        assert held[1] == pytest.approx(0.75 * held[0] + 0.25 * held[2]) and (held[0] != held[2]).any()
    fewer, between, more = (lapses.bayes_stopped(last=n).run(episodes)["counts"] for n in (4, 4.25, 5))
    assert between == pytest.approx(0.75 * fewer + 0.25 * more)


def test_an_expert_without_a_vote_might_as_well_not_be_there(episodes):
    heard = says(MAJORITY, some(episodes, experts=[0, 2, 3]))
    assert says(lapses.deaf_majority(0.7, 2), episodes) == pytest.approx(heard)


@pytest.mark.parametrize("word", [0, 1])
def test_an_expert_that_is_taken_to_say_the_same_is_judged_by_that(episodes, word):
    advice = episodes.advice.copy()
    advice[..., 1] = word
    stuck = type(episodes)(advice, episodes.labels, episodes.accuracies)
    assert says(lapses.deaf_majority(0.7, 2, word), episodes) == pytest.approx(says(MAJORITY, stuck))


def test_with_nobody_to_hear_the_answer_is_even():
    assert (says(lapses.deaf_majority(0.7, 1), sample(3, 5, 1, seed=0)) == 0.5).all()


def test_the_order_of_the_experts_does_not_matter_to_a_lapse(episodes):
    order = [2, 0, 3, 1]
    turned = some(episodes, experts=order)
    for lapsed in (
        lapses.late_majority(0.7, lag=1),
        lapses.majority_window(0.7, window=3),
        lapses.stopped_majority(0.7, last=6),
    ):
        assert says(lapsed, turned) == pytest.approx(says(lapsed, episodes))
    first, second = lapses.deaf_majority(0.7, 1, 1), lapses.deaf_majority(0.7, order.index(0) + 1, 1)
    assert says(second, turned) == pytest.approx(says(first, episodes))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lapses.late_majority(lag=-1), "lag must be an integer >= 0, got -1"),
        (lambda: lapses.bayes_late(lag=-1), "lag must be an integer >= 0, got -1"),
        (lambda: lapses.majority_window(window=0), "window must be a number of rounds >= 1, got 0"),
        (lambda: lapses.stopped_majority(last=0), "last must be a number of rounds >= 1, got 0"),
        (lambda: lapses.bayes_stopped(last=0), "last must be a number of rounds >= 1, got 0"),
        (lambda: lapses.deaf_majority(expert=0), "expert must be an integer >= 1, got 0"),
        (lambda: lapses.deaf_majority(hears=0.3), "hears must be 0, 1, or 0.5 for no vote, got 0.3"),
    ],
)
def test_lapses_that_cannot_be_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("lapse", [late, stopped, fading, window])
def test_a_lapse_takes_any_algorithm_and_says_what_it_reads(episodes, lapse):
    """Follow the leader, which no family varies; equations see what they declare alone, and a state is written."""
    made = lapse(follow_the_leader(), *([0.9] if lapse is fading else [3]))
    base, values = follow_the_leader(), made.run(episodes)
    assert made.key.startswith(base.key) and len(made.parameters) == 1
    assert (made.run(episodes)["prediction"] != base.run(episodes)["prediction"]).any()
    assert made.written == "next_counts" and values["next_counts"].shape == values["counts"].shape
    for variable in (v for v in made.variables if v.equation is not None):
        declared = {key: values[key] for key in variable.parents}
        assert np.array_equal(variable.equation(declared), values[variable.key]), variable.key
