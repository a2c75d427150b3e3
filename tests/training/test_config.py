"""Training settings: presets as stated, every field overridable, unknown and wrong ones refused."""

import pytest

from interp.errors import InputError
from interp.model.transformer import HookedLatentTransformer
from interp.training.config import PRESETS, TrainingConfig, override, parse_assignment, preset, read_toml


def test_the_papers_curriculum_has_its_thirteen_lengths():
    lengths = [stage.n_rounds for stage in preset("wma", "paper").stages]
    assert lengths == [5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 65, 80, 95]
    assert preset("wma", "paper").dataset_episodes == 3000


def test_the_papers_q_learning_model_has_its_size():
    config = preset("qlearning", "paper")
    assert (config.d_model, config.n_heads, config.n_layers, config.d_mlp) == (256, 8, 4, 1024)
    assert (config.window, config.batch_size, config.warmup_steps) == (10, 64, 500)
    assert [stage.n_actions for stage in config.stages] == [2, 3, 4]


def test_the_expert_model_has_about_200_000_parameters():
    model = HookedLatentTransformer(preset("wma", "laptop").model_config("m"))
    assert 190_000 < sum(p.numel() for p in model.parameters()) < 215_000


@pytest.mark.parametrize("key", PRESETS)
def test_every_preset_is_a_valid_configuration(key):
    config = PRESETS[key]
    assert config == TrainingConfig(**config.to_dict())


def test_toml_and_assignments_override(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('lr = 3e-4\nstages = [{n_rounds = 5, steps = 10}]\nlatent_update = "replace"\n')
    config = override(preset("wma", "laptop"), read_toml(path) | parse_assignment("batch_size=8"))
    assert (config.lr, config.batch_size, config.latent_update, config.total_steps) == (3e-4, 8, "replace", 10)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rate": 1e-3}, "unknown training field 'learning_rate'"),
        ({"lr": "fast"}, "lr must be like 0.001, got 'fast'"),
        ({"batch_size": 1.5}, "batch_size must be like 64, got 1.5"),
        ({"batch_size": 0}, "batch_size must be positive, got 0"),
        ({"muon_lr": -1e-3}, "muon_lr must be 0 or more, got -0.001"),
        ({"window": -1}, "window must be 0 or more, got -1"),
        ({"mix": 1.0}, r"mix must lie in \[0, 1\), got 1.0"),
        ({"latent_update": "overwrite"}, "unknown latent_update 'overwrite'"),
        ({"precision": "float16"}, "unknown precision 'float16'"),
        ({"stages": []}, "stages must hold at least one stage"),
        ({"stages": [{"rounds": 3, "steps": 1}]}, "unknown stage field 'rounds'; did you mean 'n_rounds'"),
        ({"stages": [{"n_rounds": 0, "steps": 1}]}, "stage 0 must have n_rounds >= 1"),
        (
            {"stages": [{"n_rounds": 1, "steps": 1, "n_states": 1}]},
            "stage 0 has n_states 1, below the run's smallest, 2",
        ),
        ({"n_experts": [8, 2]}, r"n_experts must be \[low, high\], got \[8, 2\]"),
        ({"n_heads": 3}, "d_model 64 must be a multiple of n_heads 3"),
    ],
)
def test_each_bad_field_is_refused(values, message):
    with pytest.raises(InputError, match=message):
        override(preset("wma", "laptop"), values)


def test_unknown_presets_and_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="unknown model to train 'wmaa'; did you mean 'wma'"):
        preset("wmaa", "laptop")
    with pytest.raises(InputError, match="unknown preset for wma 'latop'; did you mean 'laptop'"):
        preset("wma", "latop")
    with pytest.raises(InputError, match="cannot read"):
        read_toml(tmp_path / "none.toml")
    with pytest.raises(InputError, match="not FIELD=VALUE"):
        parse_assignment("lr")
