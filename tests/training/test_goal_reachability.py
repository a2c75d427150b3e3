"""What models are trained on, and what their weights start from."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from interp.model.transformer import HookedLatentTransformer
from interp.tasks.reachability import TASK, sample
from interp.training.batches import EpisodeSource
from interp.training.config import Stage
from interp.training.goal import preset
from interp.training.goals import reachability as training
from interp.training.trainer import train
from tests.refusals import refuses

GOAL = training.goal()
TINY = replace(
    preset("reachability", "laptop"),
    sizes={"n_nodes": (8, 8), "n_edges": (10, 10)},
    stages=(Stage(2, 2), Stage(3, 2)),
    d_model=16,
    d_mlp=16,
    batch_size=4,
    eval_episodes=4,
    eval_rounds=3,
)


def test_targets_are_the_answer_and_the_set_and_nothing_in_the_first_round() -> None:
    episodes = sample(8, 4, 12, 18, seed=0, depths=(1, 2))
    wanted = GOAL.targets(episodes)
    first = TASK.data.first_asked
    assert first == 1
    assert (wanted[:, :first] == 0).all()
    assert np.allclose(wanted[:, first:].sum(-1), 1)
    rows = np.arange(8)
    assert (wanted[:, -1].argmax(-1) == episodes.targets).all()
    of_negatives = wanted[rows, -1, episodes.negatives]
    assert (of_negatives == 0).all()
    numbers = GOAL.evaluate(np.maximum(wanted, 1e-300), episodes)
    assert numbers["excess"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", GOAL.starts)
def test_starts_keep_shapes_and_differ_from_what_was_drawn(name: str) -> None:
    config = TINY.model_config("tiny")
    torch.manual_seed(0)
    model = HookedLatentTransformer(config)
    drawn = {key: value.clone() for key, value in model.state_dict().items()}
    GOAL.starts[name](model)
    started = model.state_dict()
    assert [key for key in started if not torch.equal(started[key], drawn[key])]
    assert all(torch.isfinite(value).all() for value in started.values())
    if "matching" in name:
        for block in model.blocks:
            assert torch.equal(block.attn.W_K, block.attn.W_Q)
            if "bound" not in name:
                assert torch.allclose(block.attn.W_O, block.attn.W_V.mT)
    if "factored" in name:
        position_of = model.layout.position
        end = model.W_pos[position_of("t_3")]
        own_start = model.W_pos[position_of("s_3")]
        other_start = model.W_pos[position_of("s_7")]
        assert end @ own_start > end @ other_start, "an edge's two ends share a code"


def test_bound_copies_by_place_lie_beside_the_names() -> None:
    model = HookedLatentTransformer(TINY.model_config("tiny"))
    bound = GOAL.starts["matching, factored, apart, bound"]
    bound(model)
    d_head, first = model.config.d_head, model.layout.token_ids["n_1"]
    name = model.W_E[first]
    assert name[:d_head].abs().sum() > 0
    assert name[d_head:].abs().sum() == 0
    attn = model.blocks[0].attn
    by_place = name @ attn.W_V[0] @ attn.W_O[0]
    by_content = name @ attn.W_V[-1] @ attn.W_O[-1]
    assert torch.allclose(by_place[d_head : 2 * d_head], name[:d_head], atol=1e-6)
    assert torch.allclose(by_content[:d_head], name[:d_head], atol=1e-6)
    two_heads = HookedLatentTransformer(replace(TINY, n_heads=2).model_config("tiny"))
    refuses("give 4 heads or more", bound, two_heads)


def test_other_targets_ask_for_less() -> None:
    episodes = sample(8, 4, 12, 18, seed=0, depths=(1, 2))
    answers, final = (GOAL.other_targets[name](episodes) for name in ("answers", "final answers"))
    assert (np.count_nonzero(answers[:, 1:], axis=-1) <= 2).all()
    assert np.array_equal(answers[:, -1], final[:, -1])
    assert answers[:, 1].any()
    assert not final[:, :-1].any()


def test_final_answers_stand_in_the_last_round_of_a_stage_that_a_data_set_is_cut_to() -> None:
    stages = (Stage(2, 1), Stage(3, 1))
    config = replace(TINY, stages=stages, targets="final answers", dataset_episodes=8)
    source = EpisodeSource(config, config.model_config("tiny").layout)
    targets = source.batch(0, stage=0).targets
    assert targets.shape[1] == 2
    assert targets[:, -1].sum(-1).tolist() == [1.0] * len(targets)


def test_a_stage_ends_when_its_depth_is_answered(tmp_path: Path) -> None:
    """Nothing is asked for by a stage that waits for an accuracy of 0: it ends at the first evaluation."""
    stages = (Stage(2, 50, until={"answered_1": 0.0}), Stage(3, 2))
    train(replace(TINY, stages=stages, eval_every=2), tmp_path / "run", name="tiny")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    stages_seen = [json.loads(line)["stage"] for line in lines]
    assert stages_seen == [0, 1, 1, 2]
    refuses(
        "did you mean 'answered_1'",
        train,
        replace(TINY, stages=(Stage(2, 2, until={"answered1": 0.9}),)),
        tmp_path / "other",
        name="tiny",
    )


def test_unknown_targets_are_refused(tmp_path: Path) -> None:
    refuses(
        "did you mean 'answers'",
        train,
        replace(TINY, targets="answer"),
        tmp_path / "run",
        name="tiny",
    )
