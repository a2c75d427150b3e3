"""Evaluations of expert models: the numbers mean what they say, and their controls say what they must."""

import numpy as np
import pytest
from scipy.special import softmax

import interp
from interp.evaluation.experts import by_regime as evaluation
from interp.evaluation.experts import regret
from interp.evaluation.experts.latent import attention_to_experts, latent_control
from interp.evaluation.plan import round_attention
from interp.model.transformer import HookedLatentTransformer
from interp.tasks import experts
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.experts.predictors import bayes, log_weights, weighted_majority
from interp.tasks.qlearning.layout import QLearningRound
from tests.machines import transformer
from tests.refusals import refuses


@pytest.fixture(scope="module")
def handwired():
    return interp.load("wma-handwired", n_experts=4)


@pytest.fixture(scope="module")
def untrained():
    return transformer(ExpertRound(4, (2, 8)))


@pytest.fixture(scope="module")
def scored(handwired):
    return evaluation.evaluate(
        handwired, ["uniform", "anti-signal"], n_episodes=60, n_rounds=40, seed=5
    )


@pytest.mark.long
def test_a_handwired_model_scores_as_the_algorithm_that_it_is(handwired, scored):
    """The whole path (rollout, regret, interval) gives weighted majority's own regret at log gamma."""
    episodes = experts.sample(60, 40, 4, regime="uniform", seed=5)
    eta = handwired.config.origin["arguments"]["log_gamma"]
    expected = regret.score(weighted_majority(episodes, eta=eta).predictions, episodes, seed=5)
    for metric in ("regret", "accuracy"):
        estimate = scored["regimes"].get("uniform", "model", metric).estimate
        assert estimate == pytest.approx(expected.get(metric).estimate, abs=1e-9)


def test_every_baseline_stands_beside_the_model_with_an_interval(scored):
    frame = scored["regimes"].to_frame()
    assert set(frame["key"]) == {"model", *evaluation.BASELINES}
    assert set(frame["regime"]) == {
        "uniform",
        "anti-signal",
    }
    finite = frame[np.isfinite(frame["estimate"])]
    assert (finite["low"] <= finite["estimate"] + 1e-12).all()
    assert (finite["estimate"] <= finite["high"] + 1e-12).all()
    assert len(scored["regret_curves"]) == 2 * 10 * 40
    assert scored["regimes"].settings["training_prior"] == ["uniform"]


def test_no_learning_rate_beats_the_best_eta():
    """Weighted majority's "best eta" row is a bound for every tuning on the grid."""
    episodes = experts.sample(100, 50, 4, seed=0)
    best = evaluation.best_eta(episodes)
    final = {}
    for eta in np.geomspace(0.02, 5.0, 24).tolist():
        predictions = weighted_majority(episodes, eta=eta).predictions
        final[eta] = regret.regret(predictions, episodes)[:, -1].mean()
    assert final[best] == min(final.values())


def test_the_divergence_is_the_expectation_of_the_excess():
    """Over many labels drawn from the Bayes predictor itself, mean excess log-loss equals the KL divergence."""
    p, q = np.random.default_rng(0).uniform(0.05, 0.95, (2, 1, 50))
    expected = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    np.testing.assert_allclose(evaluation.divergence(p, q), expected, atol=1e-12)


def test_the_training_prior_is_all_regimes_of_the_training(untrained):
    """Of a model that was trained on two of them, the limit is the predictor that has to tell them apart."""
    from dataclasses import replace

    def trained(*regimes):
        return HookedLatentTransformer(
            replace(untrained.config, origin={"training": {"regimes": regimes}})
        )

    model = trained("uniform", "wide", "uniform", "switch-10")
    assert evaluation.training_prior(model) == ["uniform", "wide"]
    assert evaluation.training_prior(trained("switch-25", "switch-10")) == ["switch-25"]
    assert evaluation.training_prior(untrained) == ["uniform"]
    table = evaluation.evaluate(model, ["uniform"], n_episodes=200, n_rounds=10)["regimes"]
    limit = "uniform", "bayes_training", "excess_log_loss"
    assert table.beside[limit]["name"] == "Bayes predictor, prior of 'uniform' or 'wide'"
    assert 0.005 < table.get(*limit).estimate < 0.03


def test_models_of_ranges_are_evaluated_at_four_experts_and_at_any_number_they_serve(untrained):
    assert evaluation.n_experts_of(untrained) == 4
    table = evaluation.evaluate(untrained, ["uniform"], n_episodes=5, n_rounds=5, n_experts=7)
    assert table["regimes"].settings["n_experts"] == 7


def test_models_of_the_other_task_are_refused():
    model = transformer(QLearningRound(4, 2))
    refuses(
        "is a model of 'qlearning', not of expert advice", evaluation.evaluate, model, ["uniform"]
    )


def test_windows_cover_long_episodes_and_the_bayes_predictor_has_no_excess(handwired):
    result = evaluation.over_lengths(
        handwired, n_episodes=8, n_rounds=60, windows=((0, 20), (20, 100), (200, 300))
    )
    assert {(a, b) for _, _, a, b in result.numbers} == {(0, 20), (20, 60)}
    assert result.get("bayes", "excess_log_loss", 20, 60).estimate == 0
    refuses(r"unknown result .* Valid: .*model/", result.get, "model", "accuracy", 0, 1000)


@pytest.mark.long
def test_what_a_training_on_two_regimes_costs_stands_beside_the_model():
    """Not being told the regime costs most in the first rounds, and next to nothing once episodes have shown it."""
    result = evaluation.over_lengths(
        interp.load("wma-learned-wide"), n_episodes=100, n_rounds=60, windows=((0, 10), (50, 60))
    )
    early, late = (
        result.get("bayes_training", "divergence", *window) for window in ((0, 10), (50, 60))
    )
    assert early.low > 0.01
    assert late.high < 0.003
    assert 0 < result.get("model", "divergence", 0, 10).estimate - early.estimate < 0.005
    alone = evaluation.over_lengths(interp.load("wma-learned-additive"), n_episodes=8, n_rounds=20)
    assert "bayes_training" not in {key for key, *_ in alone.numbers}


def test_regret_at_a_prefix_is_that_of_the_prefix(handwired):
    result = evaluation.over_lengths(
        handwired, n_episodes=8, n_rounds=60, windows=((0, 20),), seed=3
    )
    episodes = experts.sample(8, 60, 4, seed=3)
    expected = regret.regret(bayes(episodes).predictions, episodes)[:, 19].mean()
    assert result.get("bayes", "regret", 0, 20).estimate == pytest.approx(expected)


@pytest.mark.long
def test_cutting_the_latent_makes_weighted_majority_a_majority_vote(handwired):
    """The latent is the only channel between rounds: cut, the model is exactly the vote with equal weights."""
    control = latent_control(handwired, experts.sample(50, 40, 4, seed=1))
    cut, vote, above = (
        control.get(quantity)
        for quantity in ("accuracy, cut", "accuracy, majority_vote", "cut minus majority vote")
    )
    assert cut.estimate == pytest.approx(vote.estimate, abs=1e-9)
    assert above.low == above.high == pytest.approx(0, abs=1e-9)
    assert control.get("lost when cut").low > 0.03
    assert control.get("lost when swapped").low > 0.03
    assert len(control.to_frame()) == 8


def test_swapping_latents_needs_two_episodes(handwired):
    refuses("at least 2 episodes", latent_control, handwired, experts.sample(1, 5, 4))


def test_the_head_that_predicts_attends_to_experts_by_their_weights_and_equally_when_cut(handwired):
    """Head 3.1 of weighted majority: its mean attention, experts ranked by accuracy, is the mean of the weights."""
    episodes = experts.sample(30, 60, 4, regime="stratified", seed=2)
    attention = attention_to_experts(handwired, episodes, rounds=[40, 50])
    log_weight = log_weights(episodes, eta=handwired.config.origin["arguments"]["log_gamma"])
    weights = softmax(log_weight[:, [40, 50]], axis=-1).mean(1)
    ranked = np.take_along_axis(weights, np.argsort(-episodes.accuracies, axis=1), axis=1).mean(0)
    for rank, weight in enumerate(ranked):
        key = (2, "0", "p?", f"expert {rank + 1}")
        assert attention.get(*key).estimate == pytest.approx(weight, abs=1e-5)
        assert attention.beside[key]["without_history"] == pytest.approx(0.25, abs=1e-5)


def test_attention_shares_of_softmax_heads_sum_to_one(untrained):
    frame = attention_to_experts(untrained, experts.sample(4, 30, 5, seed=2)).to_frame()
    np.testing.assert_allclose(
        frame.groupby(["layer", "head", "reader"])["estimate"].sum(), 1, atol=1e-6
    )


def test_a_round_s_attention_is_a_mean_pattern_by_label(untrained):
    episodes = experts.sample(3, 12, 4, seed=0)
    frame = round_attention(untrained, episodes, rounds=[5, 6])
    np.testing.assert_allclose(
        frame.groupby(["layer", "head", "query"])["attention"].sum(), 1, atol=1e-5
    )
    assert set(frame["query"]) == set(untrained.layout.fit(episodes).labels)
