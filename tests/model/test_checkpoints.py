"""Checkpoints are strict: what is missing, truncated, changed or of another format is refused with a sentence."""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import interp
from interp import tasks
from interp.errors import InputError
from interp.model.checkpoints import load_checkpoint, save_checkpoint
from interp.model.config import LatentTransformerConfig
from interp.model.transformer import HookedLatentTransformer
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.qlearning.layout import QLearningRound

SIZES = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_head": 8, "d_mlp": 32}


@pytest.fixture
def saved(tmp_path):
    model = HookedLatentTransformer(LatentTransformerConfig(ExpertRound(3, (2, 5)), name="small", **SIZES))
    return model, save_checkpoint(model, tmp_path / "small", card="# small\n")


def test_a_saved_model_loads_with_the_same_identity(saved):
    model, folder = saved
    assert load_checkpoint(folder).digest() == model.digest()
    assert (folder / "README.md").read_text() == "# small\n"


def test_float64_and_state_maps_survive(tmp_path):
    config = LatentTransformerConfig(QLearningRound(3, 2), **SIZES)
    model = HookedLatentTransformer(config, state_map=torch.eye(3, 16)).double()
    loaded = load_checkpoint(save_checkpoint(model, tmp_path / "m"))
    assert loaded.W_E.dtype == torch.float64
    assert loaded.read_state(torch.ones(2, 2, 16, dtype=torch.float64)).shape == (2, 3, 2)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no checkpoint folder at .*nowhere"):
        load_checkpoint(tmp_path / "nowhere")


def test_a_truncated_file_is_refused(saved):
    _, folder = saved
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(InputError, match="truncated or was changed"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 99}, "format version 99; this version reads 1"),
        ({"config": {}}, "the configuration lacks d_head, d_model"),
        ({"config": {"d_modle": 3}}, "did you mean 'd_model'"),
    ],
)
def test_a_wrong_configuration_is_refused(saved, change, message):
    _, folder = saved
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(about | change))
    with pytest.raises(InputError, match=message):
        load_checkpoint(folder)


def test_weights_of_another_shape_are_refused(saved, tmp_path):
    _, folder = saved
    about = json.loads((folder / "config.json").read_text())
    about["config"]["d_mlp"] = 64
    (folder / "config.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match=r"does not fit its configuration at blocks\.0\.mlp\.W_in"):
        load_checkpoint(folder)


def test_nothing_is_left_behind_when_the_folder_exists(saved):
    model, folder = saved
    with pytest.raises(InputError, match="exists already"):
        save_checkpoint(model, folder)
    assert [path.name for path in folder.parent.iterdir()] == ["small"]


@dataclass(frozen=True)
class ForeignRound(ExpertRound):
    """The round of a task that does not come with the package."""

    task: ClassVar[str] = "foreign"


def test_a_model_of_a_task_of_ones_own_needs_its_record(tmp_path, monkeypatch):
    """Saving refuses what loading would refuse; with the record registered, the model comes back."""
    monkeypatch.setattr(tasks, "_REGISTRY", dict(tasks._REGISTRY))
    model = HookedLatentTransformer(LatentTransformerConfig(ForeignRound(3), **SIZES))
    with pytest.raises(InputError, match="a model of the unregistered task 'foreign' could not be loaded again"):
        save_checkpoint(model, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []
    sizes = tasks.get("experts").sizes
    tasks.register(tasks.Task("foreign", "foreign", "", sizes, ForeignRound, lambda *a, **k: None, lambda *a: None))
    folder = save_checkpoint(model, tmp_path / "m")
    assert load_checkpoint(folder).layout == model.layout
    del tasks._REGISTRY["foreign"]
    with pytest.raises(InputError, match="of the task 'foreign', which is not registered; give its record"):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", ["wma-learned", "wma-learned-wide", "qlearning-learned"])
def test_every_shipped_checkpoint_loads(name):
    """Whatever origin.training records: configurations of earlier versions are history, not input."""
    assert name in {record.name for record in interp.models()}
    model = interp.load(name)
    assert model.config.name == name and not model.is_handwired
    assert tasks.of(model).key == model.layout.task and model.config.origin["training"]["regimes"]
