"""What a task asks of training: targets alone are enough, and everything that is missing has a
sentence; what training watches is what the evaluation rooms measure, and watching leaves the model as it was."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from interp import tasks
from interp.evaluation.experts import regret
from interp.evaluation.qlearning.agreement import agreement
from interp.model.rollout import rollout
from interp.model.transformer import HookedLatentTransformer
from interp.tasks import experts, mdp
from interp.tasks.experts.predictors import bayes
from interp.training.batches import EpisodeSource, measure_progress
from interp.training.goal import TrainingGoal, goal_of, preset
from interp.training.trainer import train
from lab import card
from tests.refusals import refuses
from tests.training.test_trainer import small


def test_targets_alone_train_and_are_watched(changed_task, tmp_path):
    """The loss numbers is cross-entropy from the targets, and its excess is 0 where the prediction is the target."""
    goal = TrainingGoal(lambda episodes: np.eye(2)[episodes.labels])
    changed_task("experts", training=lambda: goal)
    train(small(eval_every=2), tmp_path / "run", name="tiny")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert {"cross_entropy", "excess"} <= set(rows[1])
    torch.manual_seed(0)
    model = HookedLatentTransformer(small().model_config("m"))
    episodes = experts.sample(20, 5, 4, seed=0)
    p_one = rollout(model, episodes).predictions.double().numpy(force=True)
    predictions = np.stack([1 - p_one, p_one], -1)

    def watch(targets):
        changed_task("experts", training=lambda: TrainingGoal(lambda episodes: targets))
        return measure_progress(model, [episodes], "own")

    assert watch(predictions)["excess"] == pytest.approx(0, abs=1e-12)
    chances_of_labels = np.take_along_axis(predictions, episodes.labels[..., None], -1)
    expected = -np.log(chances_of_labels).mean()
    numbers = watch(np.eye(2)[episodes.labels])
    assert numbers["cross_entropy"] == pytest.approx(expected)
    assert numbers["excess"] == numbers["cross_entropy"]


def test_held_out_batches_fix_the_sizes_that_the_goal_names(changed_task):
    config = small("qlearning", sizes={"n_states": (2, 6), "n_actions": (2, 4)}, eval_episodes=9)
    source = EpisodeSource(config, config.model_config("m").layout)
    assert [e.n_actions for e in source.evaluation()] == [2, 3, 4]
    goal = goal_of(tasks.get("qlearning"))
    changed_task("qlearning", training=lambda: replace(goal, held_out=None))
    (largest,) = EpisodeSource(config, source.layout).evaluation()
    assert (largest.n_states, largest.n_actions, len(largest)) == (6, 4, 9)


def test_what_a_record_lacks_is_said(changed_task):
    goal = goal_of(tasks.get("experts"))
    changed_task("experts", training=lambda: replace(goal, drawn=("n_experts", "n_arms")))
    refuses(
        "draws n_experts, n_arms, but its record has sizes n_experts",
        EpisodeSource,
        small(),
        small().model_config("m").layout,
    )
    changed_task("experts", training=lambda: TrainingGoal(goal.targets))
    refuses("unknown preset of 'experts' 'laptop'", preset, "experts", "laptop")
    refuses("task 'experts' has no preset, so no command trains it", card.command, small(), "tiny")
    changed_task("experts", training=None)
    refuses(
        "task 'experts' cannot be trained: its record names no goal",
        EpisodeSource,
        small(),
        small().model_config("m").layout,
    )
    refuses("unknown task to train 'experts'", preset, "experts", "laptop")


def untrained(task):
    torch.manual_seed(0)
    return HookedLatentTransformer(small(task).model_config("m"))


def test_expert_numbers_are_those_of_a_score():
    model = untrained("experts")
    episodes = experts.sample(40, 12, 4, seed=3)
    predictions = rollout(model, episodes).predictions.double().numpy(force=True)
    score = regret.score(predictions, episodes, reference=bayes(episodes).predictions)
    numbers = measure_progress(model, [episodes], "own")
    assert set(numbers) == {"log_loss", "excess", "accuracy"}
    assert numbers["log_loss"] == pytest.approx(score.get("log_loss").estimate)
    assert numbers["excess"] == pytest.approx(score.get("excess_log_loss").estimate)
    assert numbers["accuracy"] == pytest.approx(score.get("accuracy").estimate)


def test_q_learning_numbers_are_those_of_an_agreement():
    """Averaged over batches of several sizes; tied steps have a floor and no agreement."""
    model = untrained("qlearning")
    batches = [mdp.sample(30, 10, 3, n, seed=n) for n in (2, 3)]
    policies = [
        rollout(model, batch, commit="target").predictions.double().numpy(force=True)
        for batch in batches
    ]
    results = [agreement(policy, batch) for policy, batch in zip(policies, batches, strict=True)]
    numbers = measure_progress(model, batches, "target")
    names = {
        "cross_entropy": "cross_entropy",
        "excess": "cross_entropy_excess",
        "agreement": "untied",
    }
    assert set(numbers) == set(names)
    for name, quantity in names.items():
        estimates = [result.get(quantity, "all").estimate for result in results]
        assert numbers[name] == pytest.approx(np.mean(estimates))


def test_without_an_untied_step_there_is_no_agreement():
    """All Q are 0 in an MDP without rewards: every step is a tie."""
    nothing = mdp.MDPs(np.full((1, 2, 2, 2), 0.5), np.zeros((1, 2, 2)))
    episodes = mdp.MDPEpisodes.from_transitions(nothing, [[0, 1]], [[0, 1]], [[0.0, 0.0]], [[1, 0]])
    numbers = measure_progress(untrained("qlearning"), [episodes], "own")
    assert np.isnan(numbers["agreement"])
    entropy = np.log(2)
    assert numbers["excess"] == pytest.approx(numbers["cross_entropy"] - entropy)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_model_is_left_as_it_was(training):
    model = untrained("experts").train(training)
    measure_progress(model, [experts.sample(2, 2, 4, seed=0)], "own")
    assert model.training is training
