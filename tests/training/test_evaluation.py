"""What training watches is what the evaluation rooms measure, and watching leaves the model as it was."""

import numpy as np
import pytest
import torch

from interp.evaluation.experts import regret
from interp.evaluation.qlearning.agreement import agreement
from interp.model.rollout import rollout
from interp.model.transformer import HookedLatentTransformer
from interp.tasks import experts, mdp
from interp.tasks.experts.predictors import bayes
from interp.training.batches import watched
from tests.training.test_trainer import small


def fresh(task):
    torch.manual_seed(0)
    return HookedLatentTransformer(small(task).model_config("m"))


def test_expert_numbers_are_those_of_a_score():
    model = fresh("experts")
    episodes = experts.sample(40, 12, 4, seed=3)
    predictions = rollout(model, episodes).predictions.double().numpy(force=True)
    score = regret.score(predictions, episodes, reference=bayes(episodes).predictions)
    numbers = watched(model, [episodes], "own")
    assert set(numbers) == {"log_loss", "excess", "accuracy"}
    assert numbers["log_loss"] == pytest.approx(score.get("log_loss").estimate)
    assert numbers["excess"] == pytest.approx(score.get("excess_log_loss").estimate)
    assert numbers["accuracy"] == pytest.approx(score.get("accuracy").estimate)


def test_q_learning_numbers_are_those_of_an_agreement():
    """Averaged over batches of several sizes; tied steps have a floor and no agreement."""
    model = fresh("qlearning")
    batches = [mdp.sample(30, 10, 3, n, seed=n) for n in (2, 3)]
    policies = [rollout(model, batch, commit="target").predictions.double().numpy(force=True) for batch in batches]
    results = [agreement(policy, batch) for policy, batch in zip(policies, batches, strict=True)]
    numbers = watched(model, batches, "target")
    names = {"cross_entropy": "cross_entropy", "excess": "cross_entropy_excess", "agreement": "untied"}
    assert set(numbers) == set(names)
    for name, quantity in names.items():
        assert numbers[name] == pytest.approx(np.mean([result.get(quantity, "all").estimate for result in results]))


def test_without_an_untied_step_there_is_no_agreement():
    """All Q are 0 in an MDP without rewards: every step is a tie."""
    nothing = mdp.MDPs(np.full((1, 2, 2, 2), 0.5), np.zeros((1, 2, 2)))
    episodes = mdp.MDPEpisodes.from_transitions(nothing, [[0, 1]], [[0, 1]], [[0.0, 0.0]], [[1, 0]])
    numbers = watched(fresh("qlearning"), [episodes], "own")
    assert np.isnan(numbers["agreement"])
    assert numbers["excess"] == pytest.approx(numbers["cross_entropy"] - np.log(2))


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_model_is_left_as_it_was(training):
    model = fresh("experts").train(training)
    watched(model, [experts.sample(2, 2, 4, seed=0)], "own")
    assert model.training is training
