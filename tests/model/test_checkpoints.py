"""Checkpoints are strict: what is missing, truncated, changed or of another format is refused with a sentence."""

import hashlib
import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file

import interp
import lab
from interp import tasks
from interp.core import catalog
from interp.model.checkpoints import load_checkpoint, save_checkpoint
from interp.model.transformer import HookedLatentTransformer
from interp.support.files import digest_of, json_values
from interp.tasks.experts import ExpertEpisodes
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.qlearning.layout import QLearningRound
from interp.training.goal import preset
from tests.cases import cases
from tests.machines import transformer
from tests.refusals import refuses

SIZES = {"n_layers": 1, "d_mlp": 32}


@pytest.fixture
def saved(tmp_path):
    model = transformer(ExpertRound(3, (2, 5)), name="small", **SIZES)
    return model, save_checkpoint(model, tmp_path / "small", card="# small\n")


def rewrite(folder, change):
    """Change fields of config.json, or of the configuration in it, and make its digests right again."""
    config = json.loads((folder / "config.json").read_text())
    for name, value in change.items():
        (config if name in config else config["config"])[name] = value
    weights = (folder / "model.safetensors").read_bytes()
    config["sha256"] = hashlib.sha256(weights).hexdigest()
    config = {key: value for key, value in config.items() if key != "digest"}
    (folder / "config.json").write_text(json.dumps({**config, "digest": digest_of(config)}))


def test_a_saved_model_loads_with_the_same_identity(saved):
    model, folder = saved
    assert load_checkpoint(folder).digest() == model.digest()
    assert (folder / "README.md").read_text() == "# small\n"


def test_float64_and_state_maps_survive(tmp_path):
    plain = transformer(QLearningRound(3, 2), **SIZES)
    model = HookedLatentTransformer(plain.config, state_map=torch.eye(3, 16)).double()
    loaded = load_checkpoint(save_checkpoint(model, tmp_path / "m"))
    assert loaded.W_E.dtype == torch.float64
    assert loaded.read_state(torch.ones(2, 2, 16, dtype=torch.float64)).shape == (2, 3, 2)


OTHERS = (
    {"act_fn": "relu"},
    {"latent_update": "replace"},
    {"output": "probability"},
    {"normalization_type": None},
)


@pytest.mark.parametrize("change", [*OTHERS, "weights"])
def test_another_function_of_the_same_weights_is_refused_though_it_is_signed(change, saved):
    _, folder = saved
    if change == "weights":
        path = folder / "model.safetensors"
        save_file({name: 1e30 * tensor for name, tensor in load_file(path).items()}, path)
    rewrite(folder, {} if change == "weights" else change)
    refuses(r"predicts otherwise|is not a number", load_checkpoint, folder)


def test_a_missing_folder_is_named(tmp_path):
    refuses(r"no checkpoint folder at .*nowhere", load_checkpoint, tmp_path / "nowhere")
    refuses("model of a training run is in its subfolder 'model'", load_checkpoint, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *cases(__file__, "test_a_wrong_configuration_is_refused"),
        ({"config": None}, "a configuration is a table of fields, got None"),
        ({"d_model": None}, "d_model must be an integer, got None"),
    ],
)
def test_a_wrong_configuration_is_refused(saved, change, message):
    """Even one whose digest fits, so that no check relies on the digest."""
    _, folder = saved
    rewrite(folder, change)
    refuses(message, load_checkpoint, folder)


@pytest.mark.parametrize("change", [*OTHERS, {"attn_scale": 3.0}])
def test_an_edited_configuration_is_refused(saved, change):
    """It would load, and predict something else."""
    model, folder = saved
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "config": {**config["config"], **change}}))
    refuses(
        r"config\.json' was edited: its digest is not that of its contents", load_checkpoint, folder
    )
    path.write_text(json.dumps(config))
    assert load_checkpoint(folder).digest() == model.digest()


def test_a_shipped_model_has_the_digest_that_runs_kept_before_name():
    """How the model computes enters nothing of its identity: neither buffers of another type nor new names in code."""
    assert interp.load("wma-learned-additive").digest().startswith("5647ad4796b71173")


def test_weights_that_are_not_finite_are_refused(saved, tmp_path):
    model, folder = saved
    tensors = model.state_dict()
    tensors["embed.W_E"][0, 0] = torch.nan
    refuses(
        r"'small' cannot be saved: weights that are not finite at embed\.W_E",
        save_checkpoint,
        model,
        tmp_path / "other",
    )
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        folder / "model.safetensors",
    )
    rewrite(folder, {})
    refuses(
        r"model\.safetensors' is damaged: weights that are not finite at embed\.W_E",
        load_checkpoint,
        folder,
    )


def test_damaged_weights_whose_digest_was_made_right_are_refused(saved):
    _, folder = saved
    weights = folder / "model.safetensors"
    for damaged in (b"", b"\xff" * 64, weights.read_bytes()[:100]):
        weights.write_bytes(damaged)
        rewrite(folder, {})
        with pytest.raises(
            interp.InputError, match=r"model\.safetensors' is damaged \(SafetensorError"
        ) as raised:
            load_checkpoint(folder)
        assert raised.value.__cause__ is not None


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_weights_that_are_no_real_numbers_are_refused(dtype, saved, tmp_path):
    """In a file, where one of them was cast silently; and in a model, that runs or is saved."""
    model, folder = saved
    weights = load_file(folder / "model.safetensors")
    save_file(
        {**weights, "unembed.W_U": weights["unembed.W_U"].to(dtype)}, folder / "model.safetensors"
    )
    rewrite(folder, {})
    refuses(
        f"unembed.W_U is stored as {dtype}, where the model has torch.float32",
        load_checkpoint,
        folder,
    )
    episodes = interp.tasks.experts.sample(2, 3, 3, seed=0)
    for weight in (model.unembed.W_U, model.W_E):
        weight.requires_grad_(False)
        weight.data = weight.data.to(dtype)
        refuses(
            rf"the weights of 'small' are of .*{dtype}.*a model computes in real",
            interp.rollout,
            model,
            episodes,
        )
    refuses(
        rf"'small' (are of .*|cannot be saved in ){dtype}",
        save_checkpoint,
        model,
        tmp_path / "again",
    )


def test_nothing_is_left_behind_when_the_folder_exists(saved):
    model, folder = saved
    refuses("exists already", save_checkpoint, model, folder)
    assert [path.name for path in folder.parent.iterdir()] == ["small"]


@dataclass(frozen=True)
class ForeignRound(ExpertRound):
    """The round of a task that does not come with the package."""

    task: ClassVar[str] = "foreign"


@dataclass(frozen=True, eq=False)
class ForeignEpisodes(ExpertEpisodes):
    """Its episodes."""

    task: ClassVar[str] = "foreign"


def test_a_model_of_a_task_of_ones_own_needs_its_record(tmp_path, registry):
    """Saving refuses what loading would refuse; with the record registered, the model comes back."""
    model = transformer(ForeignRound(3), **SIZES)
    refuses(
        "a model of the unregistered task 'foreign' could not be loaded again",
        save_checkpoint,
        model,
        tmp_path / "m",
    )
    assert list(tmp_path.iterdir()) == []
    sizes = tasks.get("experts").sizes
    known = tasks.get("experts").data

    def sample(*sizes, **how):
        drawn = known.sample(*sizes, **how)
        return ForeignEpisodes(
            **{field.name: getattr(drawn, field.name) for field in fields(drawn)}
        )

    tasks.register(
        tasks.Task("foreign", "foreign", "", tasks.Data(ForeignRound, sample, known.losses, sizes))
    )
    folder = save_checkpoint(model, tmp_path / "m")
    assert load_checkpoint(folder).layout == model.layout
    del catalog.REGISTERED["foreign"]
    refuses(
        "of the task 'foreign', which is not registered; give its record", load_checkpoint, folder
    )


LEARNED = [record.name for record in interp.models() if record.kind == "learned"]
SHIPPED = [*LEARNED, *lab.names()]
"""The models that ship, and the further seeds beside the packages."""


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_checkpoint_loads(name):
    """Whatever origin.training records: configurations of earlier versions are history, not input."""
    model = lab.load(name)
    assert model.name == name
    assert not model.is_handwired
    assert not model.training
    assert tasks.of(model).key == model.layout.task
    assert "seed" in model.origin["training"]


# The three seeds of wma-learned were trained in several runs, and their configurations have the last run of each.
IN_SEVERAL_RUNS = ["wma-learned-1", "wma-learned-2"]


@pytest.mark.parametrize(
    "name", [n for n in SHIPPED if re.fullmatch(r".*(?<!-run)-\d", n) and n not in IN_SEVERAL_RUNS]
)
def test_another_seed_of_a_model_was_trained_as_it_was(name):
    """With every setting of its preset; the precision is the machine's choice ("auto")."""
    first, seed = name.rsplit("-", 1)
    first_training, second_training = (
        lab.load(model_name).origin["training"] for model_name in (first, name)
    )
    assert (first_training["seed"], second_training["seed"]) == (0, int(seed))
    plans = [
        [(stage["n_rounds"], stage["steps"]) for stage in training.get("stages", [])]
        for training in (first_training, second_training)
    ]
    assert plans[0] == plans[1]
    shared = first_training.keys() & second_training.keys() - {
        "seed",
        "stages",
        "task",
        "precision",
    }
    assert {key for key in shared if first_training[key] != second_training[key]} == set()


@pytest.mark.parametrize("seed", [1, 2])
def test_another_seed_of_the_paper_s_recurrence_begins_with_one_run_of_the_preset(seed):
    config = preset("experts", "laptop-replaced")
    trained = lab.load(f"wma-learned-{seed}-short").origin["training"]
    assert trained["seed"] == seed
    assert trained["start"] == ""
    for key in ("anneal_latents", "latent_update", "lr", "muon_lr", "batch_size"):
        assert trained[key] == json_values(config.to_dict()[key])
    stages = [(stage["n_rounds"], stage["steps"]) for stage in trained["stages"]]
    assert stages == [(stage.n_rounds, stage.steps) for stage in config.stages]


@pytest.mark.parametrize("seed", ["", "-1", "-2"])
def test_every_run_of_the_paper_s_recurrence_starts_from_a_model_that_is_kept(seed):
    """From each seed's last run back to its first one, ``-short``."""
    name = f"wma-learned{seed}"
    started_from = []
    while not name.endswith("-short"):
        name = Path(lab.load(name).origin["training"]["start"]).name
        started_from.append(name)
    assert len(started_from) == {"": 2, "-1": 3, "-2": 4}[seed]
