"""Machines whose right words are known (:mod:`lab.known`): one at small size, all where slow tests run."""

import numpy as np
import pytest
from scipy import special

import interp
from circuits import compare
from circuits.compare import explain
from interp.choices.fitting import predictor
from interp.tasks.experts import algorithms as experts
from interp.tasks.experts import families as rivals
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.lapses import add_lapse, late, stopped, window
from interp.tasks.qlearning import TASK as Q_LEARNING
from interp.tasks.qlearning import algorithms as q
from interp.tasks.qlearning import families as q_rivals
from interp.tasks.qlearning.layout import QLearningRound
from interp.tasks.reachability import algorithms as search
from interp.tasks.reachability.layout import ReachabilityRound
from lab import known
from lab.known import scores
from tests.compare.test_algorithm import blend

SMALL = compare.Budget(
    known=16, test=12, rounds=20, starts=2, horizon=4, battery=2, scored=16, edits=60, untrained=1
)


@pytest.mark.long
@pytest.mark.usefixtures("few_fits", "no_rules")
def test_a_machine_of_another_algorithm_gets_the_right_words_at_small_size():
    """The machine by algorithm is scored in ``test_scores``.

    A GRU that was written by hand, a machine of another gain and a random cell are compared in
    ``tests/compare/test_machines.py``; machines of other algorithms are named in ``tests/compare/test_algorithm.py``.
    """
    specimen = known.gallery("experts")["label stuck"]
    row = scores.score(specimen, known.reference("experts"), SMALL)
    for question in ("behaviour", "state", "update", "algorithm"):
        assert row[f"{question}_mark"] == "right", row
    assert row["n_wrong"] == 0, row


EVERY = [(task, key) for task in known.TASKS for key in known.gallery(task)]


@pytest.mark.slow(
    reason="15 to 60 CPU seconds a machine; one is compared by default, at small size"
)
@pytest.mark.parametrize(("task", "key"), EVERY, ids=[f"{task}: {key}" for task, key in EVERY])
def test_no_known_machine_gets_a_wrong_word(task, key):
    row = scores.score(known.gallery(task)[key], known.reference(task), compare.Budget.quick())
    assert not row["n_wrong"], row


LAYOUTS = {
    "experts": (ExpertRound(4), 30),
    "qlearning": (QLearningRound(4, 3), 50),
    "reachability": (ReachabilityRound(16, 24), 5),
}
"""Task -> how a round is laid out, and rounds of an episode."""
PREDICTORS = [
    ("experts", "bayes_mixture", lambda: interp.load("wma-learned-wide")),
    ("experts", "follow_the_leader", experts.follow_the_leader),
    ("experts", "bayes", lambda: experts.bayes(0.0, 1.0)),
    ("experts", "bayes", lambda: noisy(experts.bayes(), 0.3)),
    ("experts", "", lambda: blend(experts.weighted_majority(1.0), experts.bayes())),
    ("experts", "", experts.majority_vote),
]
LAPSES_OF_BAYES = [
    ("experts", "bayes_fading", lambda: rivals.bayes_fading(decay=0.98)),
    ("experts", "bayes_window", lambda: add_lapse(window, experts.bayes)(0.1, 0.8, window=7)),
    ("experts", "fixed_share", lambda: rivals.fixed_share(1.3, 0.04)),
    (
        "experts",
        "stopped_majority",
        lambda: stopped(experts.weighted_majority(0.5), 10, "stopped_majority"),
    ),
]
FURTHER_RIVALS = [
    ("experts", "deaf_majority", lambda: rivals.deaf_majority(0.7, 2, 1)),
    ("experts", "bayes_late", lambda: add_lapse(late, experts.bayes)(lag=1)),
    ("experts", "bayes_stopped", lambda: add_lapse(stopped, experts.bayes)(0.2, 0.9, last=10)),
    ("experts", "sigmoid_vote", lambda: rivals.sigmoid_vote(0.15)),
    ("experts", "follow_previous_winners", experts.follow_previous_winners),
]
MEAN_REWARD = Q_LEARNING.rivals()["mean_reward"]
LEARNERS = [
    (
        "qlearning",
        "no_bootstrap",
        lambda: interp.load("qlearning-handwired", n_states=4, n_actions=3, gamma=0.0),
    ),
    ("qlearning", "mean_bootstrap", lambda: q_rivals.mean_bootstrap(0.1, 0.8)),
    ("qlearning", "q_learning", lambda: q_rivals.acting(q.q_learning(0.2, 0.8), temperature=0.05)),
    (
        "qlearning",
        "mean_reward",
        MEAN_REWARD.make,
    ),
]
BLENDS_AND_SEARCHES = [
    ("qlearning", "", lambda: blend(q_rivals.acting(q.q_learning()), q_rivals.sarsa())),
    ("reachability", "late_search", lambda: search.late_search(2, 0.3)),
]
FAMILIES = [*PREDICTORS, *LAPSES_OF_BAYES, *FURTHER_RIVALS, *LEARNERS, *BLENDS_AND_SEARCHES]
"""Machines of the families that the gallery has none of, or at other parameters; "" where none must be named."""


def noisy(subject, noise):
    """A predictor whose log-odds of the second of two outcomes are off by Gaussian noise."""

    def predict(episodes):
        chances = np.clip(predictor(subject)(episodes)[..., 1], 1e-9, 1 - 1e-9)
        rng = np.random.default_rng(len(chances))
        log_odds = special.logit(chances) + noise * rng.normal(size=chances.shape)
        noisy_chances = special.expit(log_odds)
        return np.stack([1 - noisy_chances, noisy_chances], -1)

    return predict


@pytest.mark.slow(
    reason="5 to 15 CPU seconds a machine; test_algorithm asks machines of few families by default"
)
@pytest.mark.parametrize(("task", "family", "make"), FAMILIES)
def test_a_machine_of_every_family_gets_its_algorithm(task, family, make):
    layout, n_rounds = LAYOUTS[task]
    record = interp.tasks.get(task)
    sets = record.sets_for(16, n_rounds, 0, **record.sizes_of(layout))
    explanation = explain(make(), record, sets, seed=0)
    assert (explanation.family or "") == family
