"""Evaluations of Q-learning models: exact on the algorithm itself, and able to tell bootstrapping from its absence."""

import numpy as np
import pytest

import interp
from interp.evaluation.qlearning import plan as qlearning
from interp.evaluation.qlearning import returns as play
from interp.evaluation.qlearning.agreement import followed_discount
from interp.tasks import mdp
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.qlearning import tabular
from interp.tasks.qlearning.layout import QLearningRound
from tests.machines import transformer
from tests.refusals import refuses


@pytest.fixture(scope="module")
def untrained():
    return transformer(QLearningRound(4, 3, (2, 4), (2, 3)), n_layers=1)


@pytest.fixture(scope="module")
def handwired():
    return interp.load("qlearning-handwired", n_states=4, n_actions=2, alpha=0.1, gamma=0.9)


@pytest.fixture(scope="module")
def batches():
    return [mdp.sample(40, 40, s, a, seed=i) for i, (s, a) in enumerate(((4, 2), (6, 3)))]


def test_the_discount_followed_is_that_of_the_table_that_chose(batches):
    """Choices of the gamma = .9 table are told from those of the gamma = 0 and gamma = .5 tables, without decoding."""
    for gamma in (0.0, 0.5, 0.9):
        choices = [batch.relearn(gamma=gamma).greedy for batch in batches]
        discount = followed_discount(choices, batches)
        best = discount.beside[gamma,]
        assert best["best_low"] <= gamma <= best["best_high"]
        assert best["best_high"] - best["best_low"] <= 0.15
        assert discount.get(gamma).estimate == max(
            value.estimate for value in discount.numbers.values()
        )


def test_random_choices_follow_no_discount(batches):
    rng = np.random.default_rng(0)
    choices = [rng.integers(batch.n_actions, size=batch.actions.shape) for batch in batches]
    frame = followed_discount(choices, batches).to_frame()
    assert frame["estimate"].max() - frame["estimate"].min() < 0.01
    assert frame["best_high"][0] - frame["best_low"][0] > 0.3


@pytest.mark.long
def test_the_handwired_model_agrees_with_the_table_wherever_there_is_one_answer(handwired):
    """It selects before it updates, so the table before the update is its reference; its a* is its own choice."""
    result = qlearning.evaluate(handwired, ["grid"], n_episodes=60)
    assert result.settings["table"] == "before"
    assert result.settings["commit"] == "own"
    assert result.get("grid", "model", "untied", "all").estimate == 1
    assert result.get("grid", "model", "disputed", "all").estimate == 1
    assert result.get("grid", "cut", "untied", "all").estimate < 0.8


@pytest.mark.long
def test_agreement_stands_beside_its_controls_with_the_commit_mode(untrained):
    result = qlearning.evaluate(untrained, ["grid"], n_episodes=12, commit="target")
    frame = result.to_frame()
    assert set(frame["key"]) == {"model", "cut", "repeat_last", "chance"}
    assert set(frame["regime"]) == {"grid"}
    assert set(frame[frame["key"] == "model"]["commit"]) == {"target"}
    quantities = set(frame[frame["key"] == "model"]["quantity"])
    assert {
        "untied_gamma0",
        "random_ties_ceiling",
        "disputed_gamma0",
        "cross_entropy_excess",
    } <= quantities
    names = "cross_entropy", "cross_entropy_floor", "cross_entropy_excess"
    paid, floor, excess = (result.get("grid", "model", name, "all").estimate for name in names)
    assert excess == pytest.approx(paid - floor)


def test_episodes_are_sampled_over_every_size_with_even_lengths(untrained):
    batches = qlearning.sample(untrained, "grid", 12, (10, 30))
    assert sorted((b.n_states, b.n_actions) for b in batches) == [
        (s, a) for s in (2, 3, 4) for a in (2, 3)
    ]
    assert sorted(b.n_rounds for b in batches) == [10, 14, 18, 22, 26, 30]


def test_models_of_the_other_task_are_refused():
    refuses(
        "is a model of 'experts', not of Q-learning",
        qlearning.evaluate,
        transformer(ExpertRound(4)),
    )


@pytest.mark.long
def test_a_shorter_horizon_is_the_start_of_the_same_play(untrained):
    played = play.evaluate(untrained, ["ladder"], n_episodes=6, horizons=(20, 60), seed=0)
    returns, frame = played["returns"], played["returns"].to_frame()
    assert set(frame["key"]) == set(play.PLAYERS)
    assert set(frame["horizon"]) == {20, 60}
    short, long = (
        returns.get("ladder", "greedy", horizon, "earned").estimate for horizon in (20, 60)
    )
    assert short < long
    mdps = [
        mdp.sample_mdps(3, s, a, seed=i, regime="ladder")
        for i, (s, a) in enumerate(returns.settings["sizes"])
    ]
    plays = [tabular.run(tabular.AGENTS["greedy"], batch, 60, i) for i, batch in enumerate(mdps)]
    expected = np.concatenate([played.rewards[:, :20].sum(1) for played in plays]).mean()
    assert short == pytest.approx(expected)
    assert played["reward_rates"].to_frame()["start"].unique().tolist() == [0, 50]


def test_the_settings_count_the_episodes_that_were_measured(untrained):
    """Every size gets equally many, so that there may be more than were asked for."""
    returns = play.evaluate(untrained, ["ladder"], n_episodes=1, horizons=(2,))["returns"]
    agreement = qlearning.evaluate(untrained, ["grid"], n_episodes=1, n_rounds=(2, 2))
    for result in (returns, agreement):
        assert result.settings["n_episodes"] == len(result.settings["sizes"]) > 1


def test_the_handwired_model_earns_exactly_what_greedy_q_learning_earns(handwired):
    """Same luck, same table, same ties: playing goes through the whole round, own choice committed."""
    returns = play.evaluate(handwired, ["grid"], n_episodes=10, horizons=(30,))["returns"]
    for quantity in ("earned", "score"):
        assert returns.get("grid", "model", 30, quantity) == returns.get(
            "grid", "greedy", 30, quantity
        )
    (size,) = returns.settings["sizes"]
    mdps = mdp.sample_mdps(10, *size, seed=4, regime="grid")
    explored = mdp.Interaction(mdps, 30, seed=4, epsilon=0.2)
    actions = None
    while not explored.done:  # the model chooses before it updates its table
        actions = explored.step(actions).next_values_before[:, 0].argmax(-1)
    expected = explored.episodes().rewards.sum(1).mean()
    assert returns.get("grid", play.EXPLORING, 30, "earned").estimate == pytest.approx(
        expected, abs=1e-12
    )
