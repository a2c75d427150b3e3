"""What a task asks of training: targets alone are enough, and everything that is missing has a sentence."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from interp import catalog, tasks
from interp.errors import InputError
from interp.model.rollout import rollout
from interp.model.transformer import HookedLatentTransformer
from interp.tasks import experts
from interp.training import card
from interp.training.batches import EpisodeSource, watched
from interp.training.goal import TrainingGoal, goal_of, preset
from interp.training.trainer import train
from tests.refusals import refuses
from tests.training.test_trainer import small


@pytest.fixture
def with_goal(monkeypatch):
    """A registered task with another goal, until the test ends."""

    def change(key, goal):
        training = None if goal is None else (lambda: goal)
        monkeypatch.setitem(catalog._REGISTERED, key, replace(tasks.get(key), training=training))

    return change


def test_targets_alone_train_and_are_watched(with_goal, tmp_path):
    """The loss numbers is cross-entropy from the targets, and its excess is 0 where the prediction is the target."""
    with_goal("experts", TrainingGoal(lambda episodes: np.eye(2)[episodes.labels]))
    train(small(eval_every=2), tmp_path / "run", name="tiny")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {"cross_entropy", "excess"} <= set(rows[1])
    torch.manual_seed(0)
    model, episodes = HookedLatentTransformer(small().model_config("m")), experts.sample(20, 5, 4, seed=0)
    said = rollout(model, episodes).predictions.double().numpy(force=True)
    own = {"targets": np.stack([1 - said, said], -1), "labels": np.eye(2)[episodes.labels]}
    numbers = {}
    for name, targets in own.items():
        with_goal("experts", TrainingGoal(lambda episodes, targets=targets: targets))
        numbers[name] = watched(model, [episodes], "own")
    assert numbers["targets"]["excess"] == pytest.approx(0, abs=1e-12)
    expected = -np.log(np.take_along_axis(own["targets"], episodes.labels[..., None], -1)).mean()
    assert numbers["labels"]["cross_entropy"] == numbers["labels"]["excess"] == pytest.approx(expected)


def test_held_out_batches_fix_the_sizes_that_the_goal_names(with_goal):
    given = small("qlearning", sizes={"n_states": (2, 6), "n_actions": (2, 4)}, eval_episodes=9)
    source = EpisodeSource(given, given.model_config("m").layout)
    assert [e.n_actions for e in source.evaluation()] == [2, 3, 4]
    with_goal("qlearning", replace(goal_of(tasks.get("qlearning")), held_out=None))
    (largest,) = EpisodeSource(given, source.layout).evaluation()
    assert (largest.n_states, largest.n_actions, len(largest)) == (6, 4, 9)


def test_what_a_record_lacks_is_said(with_goal):
    goal = goal_of(tasks.get("experts"))
    with_goal("experts", replace(goal, drawn=("n_experts", "n_arms")))
    with pytest.raises(InputError, match="draws n_experts, n_arms, but its record has sizes n_experts"):
        EpisodeSource(small(), small().model_config("m").layout)
    with_goal("experts", TrainingGoal(goal.targets))
    refuses("unknown preset of 'experts' 'laptop'", preset, "experts", "laptop")
    refuses("task 'experts' has no preset, so no command trains it", card.command, small(), "tiny")
    with_goal("experts", None)
    with pytest.raises(InputError, match="task 'experts' cannot be trained: its record names no goal"):
        EpisodeSource(small(), small().model_config("m").layout)
    refuses("unknown task to train 'experts'", preset, "experts", "laptop")
