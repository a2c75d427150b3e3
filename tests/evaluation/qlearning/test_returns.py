"""Returns and the normalised score, on problems whose answers are known."""

from itertools import product

import numpy as np
import pytest

from interp.evaluation.qlearning.returns import normalised_score
from interp.tasks import mdp
from interp.tasks.qlearning.episodes import MDPs
from interp.tasks.qlearning.tabular import OptimalAgent, QLearner, run
from tests.refusals import refuses


def test_the_score_is_one_for_optimal_and_zero_for_random():
    mdps = mdp.sample_mdps(260, 5, 3, seed=0)
    best, chance = (
        normalised_score(run(a, mdps, 50, seed=1)) for a in (OptimalAgent(), QLearner(epsilon=1.0))
    )
    assert abs(best.get("score").estimate - 1) < 0.015
    assert abs(chance.get("score").estimate) < 0.03
    assert best.get("score").high - best.get("score").low < 0.06


def test_random_earns_most_of_the_optimum_on_the_grid():
    """The trap in raw returns: on the paper's MDPs a random policy earns 70-80 % of the optimum."""
    batches = [
        mdp.sample(12, 50, s, a, seed=10 * s + a) for s, a in product(range(2, 9), range(2, 5))
    ]
    result = normalised_score(batches)
    assert 0.68 < result.get("random").estimate / result.get("optimal").estimate < 0.80


def test_the_ladder_pays_what_its_returns_say():
    """Over 50 rounds: optimal 48.3, random 1.7 (from a few starts); the exact expectations are 48.50 and 1.97."""
    ladder = mdp.sample_mdps(600, 8, 3, seed=0, regime="ladder")
    result = normalised_score(run(QLearner(epsilon=1.0), ladder, 50, seed=0))
    assert abs(result.get("optimal").estimate - 48.50) < 0.1
    assert abs(result.get("random").estimate - 1.97) < 0.1


def test_control_matters_on_the_chain():
    """A random agent earns under 15 % there, an exploring learner about three times more."""
    chain = mdp.sample_mdps(500, 4, 2, seed=0, regime="chain")
    chance = run(QLearner(epsilon=1.0), chain, 200, seed=1).rewards.sum()
    learner = run(QLearner(epsilon=0.2), chain, 200, seed=1).rewards.sum()
    assert chance < 0.15 * 500 * 200
    assert learner > 2.5 * chance


def test_the_result_is_a_tidy_table_with_its_provenance():
    result = normalised_score([mdp.sample(30, 10, 3, 2, seed=0), mdp.sample(30, 5, 2, 2, seed=1)])
    assert result.to_frame()["quantity"].tolist() == ["score", "earned", "random", "optimal"]
    assert result.settings["n_episodes"] == 60
    assert result.settings["seeds"] == [0, 1]


def test_no_score_exists_without_a_choice_or_without_episodes():
    flat = MDPs(np.full((1, 2, 2, 2), 0.5), np.ones((1, 2, 2)))
    refuses(
        "earns as much as the optimal one",
        normalised_score,
        run(QLearner(epsilon=1.0), flat, 5, seed=0),
    )
    refuses("no episodes were given", normalised_score, [])


def test_no_score_exists_over_more_rounds_than_were_played():
    """The rewards of 5 rounds are no part of what a policy could earn in 10."""
    batches = [mdp.sample(4, n_rounds, 3, 2, seed=0) for n_rounds in (10, 5)]
    refuses(
        "n_rounds must be an integer >= 0 and <= 5, got 10", normalised_score, batches, n_rounds=10
    )


@pytest.mark.parametrize("regime", ["chain", "ladder"])
def test_no_single_action_is_good_in_every_copy(regime):
    """Were the best action the first one everywhere, agents that break ties to it would win without learning."""
    mdps = mdp.sample_mdps(40, 4, 3, seed=0, regime=regime)
    for action in range(3):
        interaction = mdp.Interaction(mdps, n_rounds=30, seed=0)
        while not interaction.done:
            interaction.advance(np.full(40, action))
        assert normalised_score(interaction.episodes()).get("score").estimate < 0.5
    best = run(OptimalAgent(), mdps, 30, seed=0)
    assert normalised_score(best).get("score").estimate > 0.9
