"""Shipping a run: the checkpoint is the run's newest state, and the card says what made it and what it is worth."""

import hashlib
import shlex
from dataclasses import replace

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from interp import tasks
from interp.model.library import load
from interp.training.config import Stage, merge, parse_assignment, replace_fields
from interp.training.goal import goal_of, preset
from interp.training.trainer import train
from lab import card, headlines
from tests.refusals import refuses
from tests.training.test_trainer import small


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """An unfinished run of 6 of 10 batches."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    train(small(eval_every=2), folder, name="tiny", stop_at=6)
    return folder


@pytest.fixture(scope="module")
def shipped(run_folder, tmp_path_factory):
    """Shipped with the real headline numbers, on shorter long episodes."""
    out = tmp_path_factory.mktemp("checkpoints")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(headlines, "WINDOWS", ((5, 10), (20, 30)))
        return card.ship(run_folder, "tiny", n_episodes=8, out=out)


@pytest.mark.long
def test_the_shipped_weights_are_the_newest_state_of_the_run(run_folder, shipped):
    state = load_file(run_folder / "training.safetensors")
    model = load(str(shipped))
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), state[f"model.{name}"], rtol=0, atol=0)
    assert model.config.name == "tiny"
    assert "stopped after 6 of 10 batches" in model.config.origin["description"]


def test_a_run_can_be_shipped_while_it_goes_on(run_folder, shipped):
    """Nothing in the run's folder is touched."""
    before = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in run_folder.iterdir()
    }
    card.load_run(run_folder, "tiny")
    assert before == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in run_folder.iterdir()
    }


def test_a_run_that_still_anneals_its_latents_is_not_shipped(tmp_path):
    """The checkpoint would replace latents, of which the model keeps half."""
    annealed = small(latent_update="replace", anneal_latents=(1, 5))
    train(annealed, tmp_path / "run", name="tiny", stop_at=3)
    message = "still keeps 0.5 of each latent, which no checkpoint stores; train on until"
    refuses(message, card.ship, tmp_path / "run", "tiny", n_episodes=8, out=tmp_path)


def test_the_card_says_what_made_it_and_what_it_is_worth(shipped):
    text = (shipped / "README.md").read_text()
    for expected in ("6 of 10 batches", "CPU cores", "interp train experts --", "Loss against wall time",
                     "Limits", "| uniform: accuracy |", "latent cut", "seed 11"):  # fmt: skip
        assert expected in text, expected


def test_the_card_says_what_weights_the_run_went_on_from(run_folder):
    run = card.load_run(run_folder, "tiny")
    sample_options = {"n_episodes": 1, "seed": 0}
    metrics = pd.DataFrame(columns=["what", "estimate", "low", "high", "beside"])
    assert "**Start**" not in card.card(run, "tiny", metrics, **sample_options)
    further = replace(run, config=replace(run.config, start="wma-learned-additive"))
    text = card.card(further, "tiny", metrics, **sample_options)
    assert "- **Start**: wma-learned-additive\n" in text
    assert 'start="wma-learned-additive"' in text


def test_the_command_on_the_card_gives_the_same_configuration():
    """Round trip through the command line's own parser, for every preset and a run that differs from it."""
    every = [
        (task.key, name, c)
        for task in tasks.list_tasks()
        for name, c in goal_of(task).presets.items()
    ]
    assert len(every) >= 5
    for task, name, config in every:
        sizes = dict.fromkeys(config.sizes, (2, 5))
        changed = replace(
            config, lr=3e-4, stages=[*config.stages, config.stages[0]], sizes=sizes, commit="target"
        )
        words = shlex.split(card.command(changed, "x"))
        values = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        overrides = {}
        for value in values:
            overrides = merge(overrides, parse_assignment(value))
        assert replace_fields(preset(words[2], words[4]), overrides) == changed, (task, name)


def test_a_name_that_is_taken_and_a_folder_without_a_run_are_refused(run_folder, shipped, tmp_path):
    refuses("exists already", card.ship, run_folder, "tiny", out=shipped.parent)
    refuses("no training state", card.ship, tmp_path, "other", out=tmp_path)


def test_a_stage_says_its_bounds():
    assert card.stage_text(Stage(20, 1000), "experts") == "1,000 batches of 20 rounds"
    bounded = Stage(15, 100, {"n_actions": 2, "n_states": 4})
    assert (
        card.stage_text(bounded, "qlearning")
        == "100 batches of 15 rounds with up to 4 states and up to 2 actions"
    )
    largest = Stage(20, 1000, {"n_experts": (8, 8)})
    assert card.stage_text(largest, "experts") == "1,000 batches of 20 rounds with 8 experts"
