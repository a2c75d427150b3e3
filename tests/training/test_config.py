"""Training settings: presets as stated, every field overridable, unknown and wrong ones refused."""

import json
from pathlib import Path

import pytest

from interp import tasks
from interp.model.library import SHIPPED
from interp.model.transformer import HookedLatentTransformer
from interp.training.config import (
    Stage,
    TrainingConfig,
    parse_assignment,
    read_toml,
    replace_fields,
)
from interp.training.goal import goal_of, preset, presets
from tests.refusals import refuses


def test_the_papers_curriculum_has_its_thirteen_lengths():
    lengths = [stage.n_rounds for stage in preset("experts", "paper").stages]
    assert lengths == [5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 65, 80, 95]
    assert preset("experts", "paper").dataset_episodes == 3000


PAPER_F2 = json.loads(Path(__file__).with_name("paper_f2.json").read_text())
"""What section F.2 of the paper says of its Q-learning run, and the preset has."""


def test_the_papers_q_learning_run_has_its_settings_and_its_card_says_what_it_lacks():
    config = preset("qlearning", "paper")
    assert {name: json.loads(json.dumps(getattr(config, name))) for name in PAPER_F2} == PAPER_F2
    assert [stage.sizes["n_actions"] for stage in config.stages] == [3, 4, 4]
    epochs = config.total_steps * config.batch_size / config.dataset_episodes
    assert epochs == pytest.approx(28, abs=0.05)
    assert len({stage.steps for stage in config.stages}) == 1
    assert {stage.n_rounds for stage in config.stages} == {50}, (
        "the paper: 10 to 50, which the card says"
    )
    limits_text = " ".join(goal_of(tasks.get("qlearning")).limits)
    for lacking in ("dropout .1", "10 to 50 rounds", "best loss in validation"):
        assert lacking in limits_text
        assert lacking in (SHIPPED / "qlearning-learned" / "README.md").read_text()
    assert not {"dropout", "keep_best"} & set(config.to_dict()), "the card says that there is none"


def test_the_expert_model_has_about_200_000_parameters():
    model = HookedLatentTransformer(preset("experts", "laptop").model_config("m"))
    n_parameters = sum(p.numel() for p in model.parameters())
    assert 190_000 < n_parameters < 215_000


@pytest.mark.parametrize("task", tasks.list_tasks(), ids=lambda task: task.key)
def test_every_preset_is_a_valid_configuration_of_its_task(task):
    for name, config in goal_of(task).presets.items():
        stored = json.dumps(config.to_dict())
        assert config == TrainingConfig.from_dict(json.loads(stored))
        assert config.task == task.key
        assert preset(task.key, name) is config
        assert f"{task.key}: " in presets()
        assert name in presets()


def test_toml_and_assignments_override(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('lr = 3e-4\nstages = [{n_rounds = 5, steps = 10}]\nlatent_update = "replace"\n')
    settings = read_toml(path) | parse_assignment("batch_size=8")
    config = replace_fields(preset("experts", "laptop"), settings)
    assert config.lr == 3e-4
    assert config.batch_size == 8
    assert config.latent_update == "replace"
    assert config.total_steps == 10


def refuse_settings(message, **settings):
    """The experts' laptop preset is refused with these settings in place of its own."""
    config = preset("experts", "laptop")
    refuses(message, lambda: replace_fields(config, settings).model_config("m"))


def refuse_stage(message, **stage):
    """The same for a curriculum of this stage alone."""
    refuse_settings(message, stages=[stage])


def test_unknown_fields_and_bad_batches_are_refused():
    refuse_settings("unknown training field 'learning_rate'", learning_rate=1e-3)
    refuse_settings("batch_size must be an integer, got 1.5", batch_size=1.5)
    refuse_settings("batch_size must be positive, got 0", batch_size=0)
    refuse_settings("muon_lr must be 0 or more, got -0.001", muon_lr=-1e-3)


def test_bad_fields_of_latents_are_refused():
    refuse_settings("window must be 0 or more, got -1", window=-1)
    message = "anneal_latents is for transformers whose latents are replaced"
    refuse_settings(message, anneal_latents=[3, 9])
    message = "anneal_latents must be .first, last. with 0 <= first < last < "
    refuse_settings(message, latent_update="replace", anneal_latents=[9, 3])
    message = "anneal_latents needs stages that never end early"
    annealed = {"latent_update": "replace", "anneal_latents": [3, 9]}
    refuse_settings(message, **annealed, patience=1)
    refuse_settings(message, **annealed, stages=[Stage(2, 20, until={"accuracy": 0.9})])
    refuse_settings("step_each must be 'window' or 'batch', got 'round'", step_each="round")
    refuse_settings(r"mix must lie in \[0, 1\), got 1.0", mix=1.0)
    message = "latent_update must be 'add' or 'replace', got 'overwrite'"
    refuse_settings(message, latent_update="overwrite")
    message = "precision must be 'auto' or 'float32' or 'bfloat16', got 'float16'"
    refuse_settings(message, precision="float16")


def test_bad_stages_are_refused():
    refuse_settings("stages must hold at least one stage", stages=[])
    refuse_stage("unknown stage field 'rounds'; did you mean 'n_rounds'", rounds=3, steps=1)
    refuse_stage("stage 0 must have n_rounds >= 1", n_rounds=0, steps=1)


def test_bad_sizes_of_stages_are_refused():
    message = "stage 0 has n_experts 3, below the run's smallest, 4"
    refuse_stage(message, n_rounds=1, steps=1, sizes={"n_experts": 3})
    refuse_stage("unknown size 'experts'", n_rounds=1, steps=1, sizes={"experts": 3})
    message = r"stage 0 has n_experts \[8, 2\]; give one number, or \[low, high\]"
    refuse_stage(message, n_rounds=1, steps=1, sizes={"n_experts": [8, 2]})


def test_bad_sizes_are_refused():
    message = r"n_experts must be \[low, high\], got \[8, 2\]"
    refuse_settings(message, sizes={"n_experts": [8, 2]})
    refuse_settings("unknown size 'n_states'. Valid: n_experts", sizes={"n_states": [2, 4]})
    refuse_settings("d_model 64 must be a multiple of n_heads 3", n_heads=3)
    message = "task cannot be set: the preset is one of 'experts'"
    refuse_settings(message, task="qlearning")


def test_bad_numbers_are_refused():
    refuse_settings("lr must be a finite number, got True", lr=True)
    refuse_settings("seed must be an integer >= 0, got -1", seed=-1)
    refuse_settings(r"betas must be two numbers in \[0, 1\)", betas=[0.9])


def test_incomplete_fields_are_refused():
    refuse_stage("a stage needs steps", n_rounds=2)
    refuse_stage("n_rounds must be an integer, got 2.0", n_rounds=2.0, steps=1)
    message = "n_experts 1000000000 is beyond any model"
    refuse_settings(message, sizes={"n_experts": [2, 10**9]})
    refuse_settings("regimes must be a list of which each is a text", regimes=[3])


def test_unknown_presets_and_files_are_refused(tmp_path):
    refuses(
        r"'expert'; did you mean 'experts'\? Valid: bandit, experts, qlearning",
        preset,
        "expert",
        "laptop",
    )
    refuses(
        "unknown preset of 'experts' 'latop'; did you mean 'laptop'", preset, "experts", "latop"
    )
    refuses(
        "unknown training field 'n_experts'",
        TrainingConfig.from_dict,
        {"task": "experts", "n_experts": [2, 8]},
    )
    refuses("cannot read", read_toml, tmp_path / "none.toml")
    (tmp_path / "c.toml").write_bytes(b"lr = 1e-3 # \xff")
    refuses("is not valid TOML in UTF-8", read_toml, tmp_path / "c.toml")
    refuses("not FIELD=VALUE", parse_assignment, "lr")


def test_sizes_are_overridden_one_by_one_and_default_to_the_task_s():
    run = replace_fields(preset("qlearning", "laptop"), parse_assignment("sizes.n_states=[2, 5]"))
    assert run.sizes == {"n_states": (2, 5), "n_actions": (2, 4)}
    assert TrainingConfig("qlearning", [{"n_rounds": 1, "steps": 1}]).sizes == {
        "n_states": (4, 4),
        "n_actions": (3, 3),
    }
