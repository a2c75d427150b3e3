"""Machines that are no transformers: the one trainer trains them, checkpoints hold them without their code."""

import json
import math
import shlex
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import interp
import interp.machines.learners  # its own builders are registered outside the tests
from interp.evaluation.experts import regret
from interp.model import checkpoints
from interp.model.checkpoints import load_checkpoint, save_checkpoint
from interp.model.transformer import untrained
from interp.support.files import digest_of
from interp.tasks import experts
from interp.training.config import TrainingConfig, replace_fields
from interp.training.goal import preset
from interp.training.runs import learning_curves, load_run
from interp.training.trainer import train
from lab import headlines
from lab.card import card, command, ship
from tests import machines
from tests.refusals import refuses
from tests.reports.test_machines import reader_of
from tests.shell import printed, refusal
from tests.training.test_trainer import check_loss, losses
from tests.training.test_trainer import small as of_trainer


def wide(width=12, rate=0.0):
    """A GRU whose width is an argument, with dropout and a count of the rounds of training in a buffer."""

    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.read = (
                nn.GRUCell(machines.N_EXPERTS + 1, width),
                nn.Linear(width + machines.N_EXPERTS, 2),
            )
            self.drop = nn.Dropout(rate)
            self.register_buffer("rounds", torch.zeros(()))

    def step(module, carried, fed):
        advice, truth = machines.read_round(fed)
        if module.training:
            module.rounds += 1
        scores = module.read(torch.cat([module.drop(carried["h"]), advice], 1))
        return scores, {"h": module.cell(torch.cat([advice, truth], 1), carried["h"])}

    channels = [interp.Channel("h", (width,))]
    return interp.adapt(
        Counted(),
        "experts",
        sizes={"n_experts": machines.N_EXPERTS},
        step=step,
        channels=channels,
        name="x",
    )


def chooser(width=8):
    """A machine of Q-learning, whose rounds hold its own choice."""
    layout = interp.tasks.get("qlearning").layout(n_states=2, n_actions=2)
    return reader_of(layout, width)


BUILDERS = {
    "gru": (machines.gru, "experts"),
    "lstm": (machines.lstm, "experts"),
    "loop": (machines.loop, "experts"),
    "wide": (wide, "experts"),
    "chooser": (chooser, "qlearning"),
}


@pytest.fixture(autouse=True)
def registered(builders):
    """The builders of this file, known for one test."""
    for name, (build, task) in BUILDERS.items():
        interp.register_machine(name, build, description=f"a {name} of the tests", task=task)


def small(task="experts", **changes):
    sizes = {} if task == "experts" else {"sizes": {"n_states": (2, 2), "n_actions": (2, 2)}}
    return of_trainer(task, **{**sizes, **changes})


# Training.


@pytest.mark.long
def test_a_gru_learns_what_its_untrained_copy_cannot(tmp_path):
    """Better than chance, ln 2, and than the untrained copy, on episodes that it never saw."""
    config = small(
        stages=({"n_rounds": 12, "steps": 80},),
        batch_size=64,
        lr=5e-2,
        regimes=("uniform",),
        eval_every=80,
    )
    trained = interp.load(train(config, tmp_path / "run", name="mine", machine="gru"))
    episodes = experts.sample(200, 20, machines.N_EXPERTS, seed=77)

    def late_loss(machine):
        run = interp.rollout(machine, episodes)
        losses_by_round = regret.log_loss(run.predictions.numpy(), episodes)
        return losses_by_round[:, 5:].mean()

    assert late_loss(trained) < 0.58
    assert late_loss(untrained(trained)) > math.log(2) - 0.02
    assert trained.name == "mine"
    assert trained.layout.task == "experts"
    assert not trained.training
    interp.check_machine(trained)


@pytest.mark.long
@pytest.mark.parametrize(
    ("machine", "changes"),
    [
        (None, {"task": "qlearning", "muon_lr": 1e-3, "window": 2}),
        ("lstm", {"window": 2, "precision": "auto"}),
        ("chooser", {"task": "qlearning"}),
    ],
)
def test_a_run_that_was_stopped_ends_as_the_unbroken_one(machine, changes, tmp_path):
    """A transformer's, with Muon, and those of machines; AdamW's is killed in `test_kill_9_loses_nothing`."""
    stages = {"n_rounds": 3, "steps": 3}, {"n_rounds": 4, "steps": 3}
    config = small(stages=stages, **changes)
    train(config, tmp_path / "whole", name="m", machine=machine)
    for stop_at in (2, 5, 0):
        loaded = machine and interp.load(machine)
        train(config, tmp_path / "parts", name="m", machine=loaded, stop_at=stop_at)
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")
    whole, parts = (load_checkpoint(tmp_path / run / "model") for run in ("whole", "parts"))
    assert whole.digest() == parts.digest()
    assert not machine or parts.digest() != interp.load(machine).digest()


def test_dropout_and_buffers_are_resumed(tmp_path):
    """What a machine draws in training is a function of the step, and what it counts is in the state."""
    config = small(stages=({"n_rounds": 3, "steps": 6},))
    machine = interp.load("wide", rate=0.5)
    train(config, tmp_path / "whole", name="m", machine=machine)
    train(config, tmp_path / "parts", name="m", machine=machine, stop_at=4)
    train(config, tmp_path / "parts", name="m", machine=machine)
    train(config, tmp_path / "dry", name="m", machine="wide")
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts") != losses(tmp_path / "dry")
    whole, parts = (load_checkpoint(tmp_path / run / "model") for run in ("whole", "parts"))
    assert whole.digest() == parts.digest()
    assert whole.module.rounds >= 18


@pytest.mark.parametrize(("machine", "task"), [("gru", "experts"), ("chooser", "qlearning")])
@pytest.mark.parametrize("commit", ["own", "target"])
def test_the_loss_is_that_of_the_rollout_and_reaches_every_weight(machine, task, commit):
    check_loss(interp.load(machine), small(task), commit)


def test_the_seed_of_the_run_draws_the_weights(tmp_path):
    still = {"stages": ({"n_rounds": 2, "steps": 1},), "lr": 1e-30, "weight_decay": 0.0}
    runs = {
        seed: train(small(seed=seed, **still), tmp_path / str(seed), name="m", machine="gru")
        for seed in (0, 1)
    }
    for seed, folder in runs.items():
        expected = interp.load("gru").untrained(seed).state_dict()
        weights_loaded = load_checkpoint(folder).state_dict()
        for key in expected:
            assert torch.allclose(weights_loaded[key], expected[key], atol=1e-20)
    first, second = [load_checkpoint(folder) for folder in runs.values()]
    assert not torch.equal(first.module.cell.weight_ih, second.module.cell.weight_ih)


def test_a_run_goes_on_from_a_trained_machine(tmp_path):
    first = train(small(seed=1), tmp_path / "first", name="m", machine="gru")
    still = {"stages": ({"n_rounds": 2, "steps": 1},), "lr": 1e-30, "weight_decay": 0.0}
    second = load_checkpoint(
        train(small(start=str(first), **still), tmp_path / "second", name="n", machine="gru")
    )
    for key, value in load_checkpoint(first).state_dict().items():
        torch.testing.assert_close(second.state_dict()[key], value)
    for machine, why in (
        ("lstm", "builder is lstm here and gru there"),
        (None, "it is another kind of model"),
    ):
        refuses(
            why, train, small(start=str(first)), tmp_path / str(machine), name="n", machine=machine
        )
    refuses(
        "it is another kind of model",
        train,
        small(start="wma-learned-additive"),
        tmp_path / "third",
        name="n",
        machine="gru",
    )


def test_a_run_begins_with_weights_of_a_loop_of_ones_own_only_where_start_names_them(tmp_path):
    """Put into a machine's module, saved as a checkpoint and named as the start."""
    machine = interp.load("gru")
    machine.module.load_state_dict(interp.load("gru").untrained(7).module.state_dict())
    checkpoint = save_checkpoint(machine, tmp_path / "mine")
    still = {"stages": ({"n_rounds": 2, "steps": 1},), "lr": 1e-30, "weight_decay": 0.0}
    drawn = train(small(**still), tmp_path / "drawn", name="n", machine=machine)
    continued = train(
        small(start=str(checkpoint), **still), tmp_path / "continued", name="n", machine=machine
    )
    expected = {drawn: interp.load("gru").untrained(0), continued: machine}
    for folder, with_weights in expected.items():
        for key, value in with_weights.state_dict().items():
            torch.testing.assert_close(load_checkpoint(folder).state_dict()[key], value)


def test_what_cannot_be_trained_says_why(tmp_path):
    def refused(why, machine="gru", **changes):
        refuses(why, train, small(**changes), tmp_path / "run", name="m", machine=machine)

    refused(
        "no builder of machines called 'grus' is registered here; register it first", machine="grus"
    )
    refused(
        r"'gru' does not say how to make it again.*interp.register_machine", machine=machines.gru()
    )
    refused(
        r"'wma-learned-additive' does not say how to make it again",
        machine=interp.load("wma-learned-additive"),
    )
    refused(
        r"the run has n_experts 2 to 8, and 'gru' reads 4 to 4: give the run sizes",
        sizes={"n_experts": (2, 8)},
    )
    refused(
        "the builder of 'chooser' makes a machine of 'qlearning'; this needs one of 'experts'",
        machine="chooser",
    )
    refused("a machine is trained in its own; set 'float32' or 'auto'", precision="bfloat16")
    refused("compile is for transformers", compile=True)
    refuses(
        "'wide' cannot be built so: got an unexpected keyword argument 'depth'",
        train,
        small(machine={"builder": "wide", "arguments": {"depth": 1}}),
        tmp_path / "run",
        name="m",
    )
    assert not (tmp_path / "run" / "training.json").exists()


def test_presets_of_the_task_train_machines():
    config = replace_fields(preset("experts", "laptop"), {"machine": {"builder": "gru"}})
    assert config.machine == {"builder": "gru", "arguments": {}}
    assert config.to_dict()["machine"] == config.machine
    assert TrainingConfig.from_dict(config.to_dict()) == config
    assert (
        "machine" not in preset("experts", "laptop").to_dict()
    )  # runs of transformers are what they were
    refuses(
        r'machine must be {"builder": NAME, "arguments": {...}}',
        replace_fields,
        preset("experts", "laptop"),
        {"machine": {"name": "gru"}},
    )


def test_a_run_is_read_drawn_and_told(tmp_path):
    """The run itself, its curve beside a transformer's, and a card that says what was trained, and how."""
    folders = [tmp_path / "gru", tmp_path / "transformer"]
    train(small(), folders[0], name="m", machine="gru")
    train(small(), folders[1], name="m")
    run = load_run(folders[0], "again")
    assert run.finished
    assert run.model.name == "again"
    assert list(learning_curves(folders)["setting"].unique()) == [
        "machine=gru()",
        "machine=transformer",
    ]
    rows = pd.DataFrame(
        {"what": ["log loss"], "estimate": [0.5], "low": [0.4], "high": [0.6], "beside": ["ln 2"]}
    )
    text = card(run, "mine", rows, n_episodes=10, seed=0)
    assert "A machine trained on expert advice" in text
    assert "**Model**: gru(), which carries h [16]" in text
    assert (
        "interp --import tests.machines train experts --preset laptop --name mine --machine gru"
        in text
    )


@pytest.mark.long
def test_a_trained_machine_ships_with_a_card(tmp_path, monkeypatch):
    monkeypatch.setattr(headlines, "WINDOWS", ((5, 10), (20, 30)))
    train(small(), tmp_path / "run", name="m", machine="gru", stop_at=3)
    folder = ship(tmp_path / "run", "mine", out=tmp_path / "out", n_episodes=8)
    text = (folder / "README.md").read_text()
    assert "3 of 10 batches, 0 minutes" in text
    assert "| uniform: accuracy |" in text
    shipped = interp.load(folder)
    assert shipped.name == "mine"
    assert shipped.origin["description"].startswith("trained on expert advice")
    refuses(
        r"is a learned model: its checkpoint fixes everything, so it takes no d=3",
        interp.load,
        folder,
        d=3,
    )


# Checkpoints.


@pytest.fixture
def saved(tmp_path):
    model = interp.load("wide", width=9).untrained(3)
    model.name = "mine"
    return model, save_checkpoint(model, tmp_path / "mine")


def test_a_saved_machine_loads_as_it_was(saved, tmp_path):
    model, folder = saved
    again = interp.load(folder)
    assert again.digest() == model.digest()
    assert again.name == "mine"
    assert again.channels == model.channels
    assert again.origin == {"builder": "wide", "arguments": {"width": 9}}
    episodes = experts.sample(3, 5, machines.N_EXPERTS, seed=1)
    latents = interp.rollout(model, episodes).latents
    assert torch.equal(interp.rollout(again, episodes).latents, latents)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    double = interp.load("wide").double()
    loaded = load_checkpoint(save_checkpoint(double, tmp_path / "double"))
    assert loaded.digest() == double.digest()
    assert double.digest() != model.digest()
    refuses(
        r"cannot be saved in torch.bfloat16: call .float\(\) first",
        save_checkpoint,
        interp.load("wide").bfloat16(),
        tmp_path / "half",
    )


def test_a_machine_that_nothing_could_make_again_is_not_saved(tmp_path):
    refuses(
        "'gru' does not say how to make it again, so it cannot be saved",
        save_checkpoint,
        machines.gru(),
        tmp_path / "m",
    )
    wrong = machines.gru()
    wrong.origin = {"builder": "lstm", "arguments": {}}
    refuses(
        r"the weights do not fit the machine that the builder 'lstm' makes of {}",
        save_checkpoint,
        wrong,
        tmp_path / "m",
    )
    wrong.origin = {"builder": "gru", "arguments": {}}
    wrong.one_step = lambda module, carried, fed: None
    refuses("which makes another machine", save_checkpoint, wrong, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_checkpoint_without_its_builder_says_what_to_register(saved, monkeypatch):
    monkeypatch.delitem(checkpoints.BUILDERS, "wide")
    refuses(
        r"'wide' is registered here; register it first: interp.register_machine",
        load_checkpoint,
        saved[1],
    )


def test_a_builder_that_has_changed_is_refused(saved, monkeypatch):
    """Its weights no longer fit, or they fit and do something else: code is not in the checkpoint."""
    _, folder = saved
    load_checkpoint(
        folder
    )  # what was found to do the same once may do something else the next time
    monkeypatch.setitem(checkpoints.BUILDERS, "wide", lambda width: wide(width + 1))
    refuses(
        r"the weights do not fit the machine that the builder 'wide' makes of",
        load_checkpoint,
        folder,
    )

    def bolder(width):
        machine = wide(width)
        step_before = machine.one_step
        machine.one_step = lambda module, carried, fed: (
            2 * (out := step_before(module, carried, fed))[0],
            out[1],
        )
        return machine

    monkeypatch.setitem(checkpoints.BUILDERS, "wide", bolder)
    refuses(
        r"the builder 'wide' has changed since this was saved.*predicts otherwise",
        load_checkpoint,
        folder,
    )


def test_an_edited_checkpoint_is_refused(saved):
    _, folder = saved
    config = json.loads((folder / "config.json").read_text())
    config["config"]["arguments"]["width"] = 10
    (folder / "config.json").write_text(json.dumps(config))
    refuses("was edited: its digest is not that of its contents", load_checkpoint, folder)
    for name, why in (("predicts", "lacks predicts"), ("layout", "lacks layout")):
        cut = {**config, "config": {**config["config"], name: None}}
        cut["digest"] = digest_of({key: value for key, value in cut.items() if key != "digest"})
        (folder / "config.json").write_text(json.dumps(cut))
        refuses(why, load_checkpoint, folder)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    refuses("is truncated or was changed", load_checkpoint, folder)


def test_an_exact_machine_is_no_longer_exact_once_it_is_trained(tmp_path):
    def exact():
        machine = machines.gru()
        machine.state_reader = lambda tree: tree["h"][..., :4]
        return machine

    interp.register_machine("exact", exact, description="", task="experts")
    assert load_checkpoint(
        save_checkpoint(interp.load("exact"), tmp_path / "as_built")
    ).is_handwired
    assert not load_checkpoint(
        train(small(), tmp_path / "run", name="m", machine="exact")
    ).is_handwired


def test_weights_that_are_used_twice_are_saved(tmp_path):
    def tied():
        machine = wide(6)
        machine.module.more = machine.module.cell
        return machine

    interp.register_machine("tied", tied, description="", task="experts")
    model = load_checkpoint(train(small(), tmp_path / "run", name="m", machine="tied"))
    assert model.module.more is model.module.cell


# Registering.


def test_a_registered_machine_is_loaded_and_listed_by_name():
    record = next(record for record in interp.models() if record.name == "wide")
    assert (record.kind, record.task, record.description) == (
        "built",
        "experts",
        "a wide of the tests",
    )
    machine = interp.load("wide", width=np.int64(5).item())
    assert machine.name == "wide"
    assert machine.channels[0].shape == (5,)
    assert machine.origin == {"builder": "wide", "arguments": {"width": 5}}


def test_a_built_machine_is_the_same_every_time():
    before = torch.random.get_rng_state()
    first = interp.load("wide")
    again = interp.load("wide")
    wider = interp.load("wide", width=13)
    assert first.digest() == again.digest() != wider.digest()
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_builder_that_breaks_the_contract_is_refused_when_it_builds():
    def leaking():
        machine = machines.gru()
        step_before = machine.one_step

        def step(module, carried, fed):
            scores, after = step_before(module, carried, fed)
            return scores + machines.read_round(fed)[1], after

        machine.one_step = step
        return machine

    interp.register_machine("leaking", leaking, description="", task="experts")
    refuses(
        r"predictions_do_not_see_the_truth: .*sees the truth before it predicts",
        interp.load,
        "leaking",
    )


def test_wrong_registrations_and_arguments_are_refused():
    def refused(why, name="new", build=machines.gru, description="", task="experts"):
        refuses(why, interp.register_machine, name, build, description=description, task=task)

    refused("a model 'gru' is known already; choose another name", name="gru")
    refused("a model 'wma-learned-additive' is known already", name="wma-learned-additive")
    refused("name must be letters, digits", name="../x")
    refused("unknown task 'expert'; did you mean 'experts'", task="expert")
    refused("build must be", build="gru")
    refused("description must be", description=3)
    refuses(
        r"'wide' is built from JSON values, which a checkpoint can hold; got",
        interp.load,
        "wide",
        width={1, 2},
    )
    refuses(r"'wide' is built from JSON values", interp.load, "wide", rate=float("nan"))
    refuses(
        r"'wide' cannot be built so: .*'depth'; it takes \(width=12, rate=0.0\)",
        interp.load,
        "wide",
        depth=3,
    )
    interp.register_machine("list", lambda: [1], description="", task="experts")
    refuses(
        r"the builder of .list. must return a machine, such as interp.adapt makes",
        interp.load,
        "list",
    )
    interp.register_machine(
        "ours", lambda: interp.load("wma-handwired"), description="", task="experts"
    )
    refuses(r".ours. must return a machine whose name and origin can be set", interp.load, "ours")


@pytest.mark.long
def test_the_command_line_imports_the_module_that_registers(tmp_path, monkeypatch):
    """It lists and trains the machine, resumes nothing that is finished, and says what went wrong in a sentence."""
    code = "import interp\nfrom tests import machines\n"
    code += (
        "interp.register_machine('my-gru', machines.gru, description='of my own', task='experts')\n"
    )
    (tmp_path / "my_own_machines.py").write_text(code)
    (tmp_path / "my_broken_machines.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    assert "built      of my own" in printed("--import", "my_own_machines", "models")
    sizes = [
        "--set",
        "stages=[{n_rounds=2, steps=2}]",
        "--set",
        "eval_rounds=2",
        "--set",
        "eval_episodes=4",
    ]
    trained = printed(
        "train",
        "experts",
        "--machine",
        "my-gru",
        "seed=3",
        "--name",
        "mine",
        "--out",
        tmp_path,
        *sizes,
    )
    assert trained.splitlines()[-1] == str(tmp_path / "mine" / "model")
    first = load_run(tmp_path / "mine", "mine")
    assert interp.load(tmp_path / "mine" / "model").origin["arguments"] == {"seed": 3}
    again = shlex.split(command(first.config, "mine"))[3:]  # without interp --import MODULE
    printed(*again, "--out", tmp_path / "again")
    assert load_run(tmp_path / "again" / "mine", "mine").model.digest() == first.model.digest()
    wrong = refusal("--import", "my_broken_machines", "models")
    assert (
        wrong == "interp: --import my_broken_machines raised ZeroDivisionError: division by zero\n"
    )
    unknown = refusal("train", "experts", "--machine", "your-gru")
    assert "interp: no builder of machines called 'your-gru'" in unknown
    without_value = refusal("train", "experts", "--machine", "my-gru", "wide")
    assert "interp: --machine takes NAME=VALUE" in without_value
    sys.modules.pop("my_own_machines")
