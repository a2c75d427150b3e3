"""The rivals of expert advice are what they say, and the battery holds the episodes that tell them apart."""

import numpy as np
import pytest

from interp.errors import InputError
from interp.tasks.experts import TASK, algorithms, families, predictors, sample
from interp.tasks.experts.algorithms import bayes, majority_vote, weighted_majority
from interp.tasks.experts.episodes import battery
from interp.tasks.experts.posterior import mean_accuracy


@pytest.fixture(scope="module")
def episodes():
    return sample(6, 15, 4, seed=2)


def says(algorithm, episodes):
    return algorithm.run(episodes)["prediction"]


@pytest.mark.parametrize(
    ("rival", "base"),
    [
        (families.bayes_fading(0.2, 0.8, decay=1.0), bayes(0.2, 0.8)),
        (families.bayes_window(0.2, 0.8, window=15), bayes(0.2, 0.8)),
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


def test_a_window_forgets_what_is_older(episodes):
    """Its predictions are those of the Bayes predictor of episodes that start where the window does."""
    late = type(episodes)(episodes.advice[:, -5:], episodes.labels[:, -5:], episodes.accuracies)
    assert says(families.bayes_window(window=4), episodes)[:, -1] == pytest.approx(says(bayes(), late)[:, -1])


def test_fading_counts_are_the_geometric_sum(episodes):
    values = families.bayes_fading(decay=0.8).run(episodes)
    ages = 0.8 ** np.arange(14)[::-1]
    assert values["counts"][:, -1] == pytest.approx((episodes.correct[:, :14] * ages[:, None]).sum(1))
    assert values["elapsed"][:, -1] == pytest.approx(ages.sum())


def test_a_mixture_is_bayes_rule_over_two_regimes():
    """By hand: one expert, right once; U[.5, .5] and U[0, 1] are equally likely at first."""
    one = sample(1, 2, 1, seed=0)
    seen = type(one)(np.array([[[1], [1]]]), np.array([[1, 1]]), one.accuracies)
    values = families.bayes_mixture(0.5, 0.5, 0.0, 1.0, 0.5).run(seen)
    assert values["regime"][0].tolist() == pytest.approx([0.5, 0.5])
    assert values["prediction"][0].tolist() == pytest.approx([0.5, (0.5 + 2 / 3) / 2])


def test_fractions_have_the_posterior_of_their_beta_distribution():
    assert mean_accuracy(np.array([0.5]), np.array([1.5]), (0.0, 1.0)) == pytest.approx([1.5 / 4])


def test_fixed_share_keeps_a_floor_under_every_weight(episodes):
    values = families.fixed_share(2.0, alpha=0.2).run(episodes)
    assert values["weights"][:, 1:].min() >= 0.2 / 4 and values["weights"].sum(-1) == pytest.approx(1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: families.bayes_fading(decay=0.0), r"decay must lie in \(0, 1\], got 0"),
        (lambda: families.bayes_window(window=0), "window must be a number of rounds >= 1, got 0"),
        (lambda: families.fixed_share(alpha=1.0), r"alpha must lie in \(0, 1\), got 1"),
        (lambda: families.bayes_mixture(weight=0.0), r"weight must lie in \(0, 1\), got 0"),
        (lambda: families.fixed_vote(1.0), r"accuracy must lie in \(0, 1\), got 1"),
    ],
)
def test_parameters_outside_their_range_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_the_battery_copies_turns_and_grades():
    sets = battery(8, 20, n_experts=4, seed=3)
    copied, turncoat, graded = (sets[key] for key in ("copied", "turncoat", "graded"))
    assert (copied.advice[..., 0] == copied.advice[..., 1]).all() and (
        copied.advice[..., 0] != copied.advice[..., 2]
    ).any()
    assert (turncoat.correct[:, :10].mean(1).max(-1) == 1).all() and turncoat.correct[:, 10:].mean() < 0.65
    assert np.sort(graded.accuracies_by_round[:, 0], -1) == pytest.approx(np.tile([0.05, 0.35, 0.65, 0.95], (8, 1)))


def test_fits_and_scores_are_other_episodes(episodes):
    for fitted, scored in TASK.sets_for(type(TASK.layout(4))(4), 4, 10, seed=0).values():
        assert len(fitted) == len(scored) == 4 and (fitted.labels != scored.labels).any()


def test_every_family_has_a_base_without_a_memory_to_beat():
    families = TASK.rivals()
    assert {key for key, family in families.items() if family.memoryless} == {"majority_vote", "fixed_vote"}
    for family in families.values():
        made = family.make(**{s.name: s.grid[0] for s in family.searched})
        assert family.memoryless == (not made.state) and made.key == family.key
    assert majority_vote().state == ()
