"""The rows of a model's card: each claim with its number and with what a reader compares it with."""

import pytest

import interp
from interp.evaluation.qlearning import returns
from interp.tasks.qlearning.layout import QLearningRound
from lab import headlines
from lab.headlines import headline
from tests.evaluation.test_machines import leader
from tests.machines import cached, transformer
from tests.refusals import refuses


def test_a_model_of_q_learning_stands_beside_tables_and_players(monkeypatch):
    monkeypatch.setattr(returns, "HORIZONS", (5, 10))
    learner = transformer(QLearningRound(4, 2), n_layers=1, d_mlp=0, name="tiny")
    frame = headline(learner, n_episodes=30)
    assert set(frame.columns) == {"what", "estimate", "low", "high", "beside"}
    assert frame["beside"].str.contains("gamma = 0 table").any()
    assert frame["beside"].str.contains("greedy .*, random").any()


@pytest.mark.long
def test_a_machine_that_counts_hits_needs_what_it_carries():
    estimates = headline(leader(), n_episodes=16).set_index("what")["estimate"]
    assert estimates["uniform: accuracy with the latent cut"] == 0.5
    assert 0.7 < estimates["uniform: accuracy"] < 0.9


@pytest.mark.long
def test_a_machine_without_room_for_long_episodes_says_so():
    frame = headline(cached(n_rounds=100), n_episodes=16).set_index("what")
    long = "uniform: episodes of 1,000 rounds"
    assert frame["beside"][long] == "not applicable: cached has room for 100 rounds, not for 1,000"
    assert frame["estimate"].drop(long).notna().all()


def test_a_model_that_was_trained_on_a_shifted_regime_has_each_row_once(monkeypatch):
    monkeypatch.setattr(headlines, "WINDOWS", ((5, 10), (20, 30)))
    model = leader()
    model.origin = {"training": {"regimes": ["stratified"]}}
    rows = headlines.headline(model, n_episodes=4)["what"]
    assert rows.is_unique
    assert "stratified: regret after 100 rounds" in set(rows)


def test_a_task_without_cards_is_refused():
    learner = transformer(interp.tasks.get("bandit").layout(n_arms=2), n_layers=1, d_mlp=0)
    refuses("unknown task with model cards 'bandit'", headline, learner)
