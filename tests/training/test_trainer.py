"""The trainer: it learns, resumes after kill -9 with the same losses, really runs two processes; Muon is orthogonal."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file

import interp
from interp.model.checkpoints import load_checkpoint
from interp.model.rollout import rollout
from interp.model.transformer import HookedLatentTransformer
from interp.training.batches import EpisodeSource, RoundsLoss, encode
from interp.training.config import TrainingConfig, replace_fields
from interp.training.goal import preset
from interp.training.muon import Muon, is_stack, orthogonalise
from interp.training.runs import load_run
from interp.training.trainer import schedule, train
from tests.refusals import refuses
from tests.shell import invoked

SMALL = {
    "d_model": 16,
    "n_layers": 1,
    "n_heads": 2,
    "d_mlp": 16,
    "batch_size": 4,
    "warmup_steps": 2,
    "precision": "float32",
}
EVALUATED = {"eval_every": 4, "eval_episodes": 4, "eval_rounds": 3, "checkpoint_every": 3}


def small(task="experts", **changes):
    stages = changes.pop("stages", ({"n_rounds": 3, "steps": 5}, {"n_rounds": 4, "steps": 5}))
    regimes = ("uniform",) if task == "experts" else ("grid",)
    sizes = {} if task == "experts" else {"n_states": (2, 8), "n_actions": (2, 4)}
    settings = {"task": task, "stages": stages, "regimes": regimes, "sizes": sizes}
    return TrainingConfig(**{**settings, **SMALL, **EVALUATED, **changes})


def losses(folder):
    return {
        r["step"]: r["loss"]
        for r in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    }


@pytest.mark.long
def test_kill_9_loses_nothing(tmp_path):
    """Steps after the last checkpoint are made again, with the same losses."""
    config = small(stages=({"n_rounds": 3, "steps": 20},))
    child = os.fork()
    if child == 0:
        try:
            train(config, tmp_path / "killed", name="m")
        finally:
            os._exit(0)
    metrics, deadline = tmp_path / "killed" / "metrics.jsonl", time.monotonic() + 120
    while time.monotonic() < deadline and not (
        metrics.is_file() and metrics.read_text().count("\n") >= 5
    ):
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert 5 <= len(losses(tmp_path / "killed")) < 20
    for run in ("killed", "whole"):
        train(config, tmp_path / run, name="m")
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")


def test_two_processes_are_really_two(tmp_path):
    """Two gloo processes average their gradients: the losses are those of the two shards of every batch."""
    arguments = ["train", "experts", "--name", "two", "--out", str(tmp_path), "--processes", "2"]
    for key, value in (SMALL | EVALUATED).items():
        arguments += ["--set", f"{key}={json.dumps(value)}"]
    arguments += ["--set", "stages=[{n_rounds=3, steps=3}]"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = str(tmp_path / "two" / "model")
    children = []
    for rank in range(2):
        if (child := os.fork()) == 0:
            try:  # what torchrun tells each process
                signal.alarm(120)
                os.environ |= {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": "2"}
                os.environ |= {
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": f"{port}",
                    "CUDA_VISIBLE_DEVICES": "",
                }
                AcceleratorState._reset_state(reset_partial_state=True)
                (tmp_path / f"{rank}.txt").write_text(invoked(*arguments).stdout)
            finally:
                os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    first, second = ((tmp_path / f"{rank}.txt").read_text() for rank in range(2))
    assert first.splitlines()[-1] == model
    assert "precision: " in first
    assert model not in second  # one of the two processes speaks
    config = replace_fields(
        preset("experts", "laptop"),
        {"stages": ({"n_rounds": 3, "steps": 3},), **SMALL, **EVALUATED},
    )
    torch.manual_seed(config.seed)
    model = HookedLatentTransformer(config.model_config("two"))
    source = EpisodeSource(config, model.layout)
    loss = RoundsLoss(model, config.commit)
    shards = [source.batch(0, 0, shard, 2) for shard in range(2)]
    first = [loss(shard)[0].item() for shard in shards]
    assert len(shards[0].targets) == 2
    assert losses(tmp_path / "two")[1] == pytest.approx(sum(first) / 2, abs=1e-6)


def test_runs_of_both_precisions_in_one_process(tmp_path):
    """bfloat16 runs the forward pass under autocast, and only its own run's."""
    for name, precision in (("half", "bfloat16"), ("single", "float32"), ("again", "float32")):
        config = small(stages=({"n_rounds": 3, "steps": 4},), precision=precision)
        train(config, tmp_path / name, name="m")
    assert losses(tmp_path / "single") == losses(tmp_path / "again") != losses(tmp_path / "half")


def test_fewer_processes_than_asked_for_are_refused(tmp_path):
    refuses(
        "2 processes were asked for but 1 run",
        train,
        small(),
        tmp_path / "run",
        name="m",
        n_processes=2,
    )


def test_a_device_that_this_machine_lacks_is_refused(tmp_path):
    refuses(
        "device must be 'auto', 'cpu' or what this machine has",
        train,
        small(),
        tmp_path / "run",
        name="m",
        device="abacus",
    )


def test_another_configuration_in_the_same_folder_is_refused(tmp_path):
    train(small(), tmp_path / "run", name="m", stop_at=3)
    refuses(r"another configuration \(lr differ", train, small(lr=5e-4), tmp_path / "run", name="m")


@pytest.mark.parametrize("window", [1, 2, 4])
def test_windows_hand_on_their_latents_and_cut_the_gradient(window):
    """The loss of an episode is the mean over its windows; a later window has no gradient of the initial latents."""
    config = small("qlearning", stages=({"n_rounds": 4, "steps": 1},))
    torch.manual_seed(0)
    model = HookedLatentTransformer(config.model_config("m"))
    loss = RoundsLoss(model, "own")
    batch = EpisodeSource(config, model.layout).batch(0, 0)
    whole, _ = loss(batch)
    latents, losses = None, []
    for piece in batch.windows(window):
        model.zero_grad()
        value, latents = loss(piece, latents)
        value.backward()
        assert (model.latents.table.grad is None) == bool(losses)
        latents = latents.detach()
        losses.append(value.item())
    assert len(losses) == 4 // window
    assert sum(losses) / len(losses) == pytest.approx(whole.item(), abs=1e-6)


def check_loss(model, config, commit):
    """Training computes only what the loss needs of a round; the choices committed and the latents are a rollout's.

    Its gradient reaches every weight, also those that act through the latents of later rounds alone.
    """
    (episodes,) = EpisodeSource(config, model.layout).evaluation()[-1:]
    batch = encode(episodes, model.layout)
    value, latents = RoundsLoss(model, commit)(batch)
    run = rollout(model, episodes, commit=commit)
    expected = -(batch.targets * run.layout.distribution(run.predictions).log()).sum(-1).mean()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(latents, run.latents[:, -1])
    value.backward()
    idle = set()
    for name, weight in model.named_parameters():
        if weight.grad is None or not weight.grad.any():
            idle.add(name)
    assert idle <= {"value_embed.W_val"}  # expert advice has no payloads


@pytest.mark.parametrize("task", ["experts", "qlearning"])
@pytest.mark.parametrize("commit", ["own", "target"])
def test_the_loss_is_that_of_the_rollout(task, commit):
    config = small(task, stages=({"n_rounds": 4, "steps": 1},), n_layers=2, write_map=True)
    torch.manual_seed(0)
    check_loss(HookedLatentTransformer(config.model_config("m")), config, commit)


def test_a_window_is_an_optimizer_step(tmp_path):
    train(small(stages=({"n_rounds": 5, "steps": 3},), window=2), tmp_path / "run", name="m")
    steps = load_file(tmp_path / "run" / "training.safetensors")["step.unembed.W_U"]
    assert steps.item() == 3 * 3


def test_a_batch_is_one_step_with_the_gradient_of_all_its_windows(tmp_path):
    """AdamW's first moment after one step is (1 - beta_1) times the gradient."""
    config = small(
        stages=({"n_rounds": 5, "steps": 1},),
        window=2,
        step_each="batch",
        clip=1e9,
        betas=(0.9, 0.95),
    )
    train(config, tmp_path / "run", name="m")
    state = load_file(tmp_path / "run" / "training.safetensors")

    torch.manual_seed(config.seed)
    model = HookedLatentTransformer(config.model_config("m"))
    loss = RoundsLoss(model, config.commit)
    batch = EpisodeSource(config, model.layout).batch(0, 0)
    latents = None
    for window in batch.windows(2):
        value, latents = loss(window, latents)
        (value * window.n_rounds / 5).backward()
        latents = latents.detach()

    assert state["step.unembed.W_U"].item() == 1
    expected = 0.1 * model.unembed.weight.grad
    torch.testing.assert_close(state["exp_avg.unembed.W_U"], expected)


def test_annealed_latents_end_as_replaced_ones(tmp_path):
    """Batch 2 of 4 keeps half of the old latent; the trained model keeps none of it and says so."""
    config = small(
        stages=({"n_rounds": 3, "steps": 6},), latent_update="replace", anneal_latents=[1, 3]
    )
    folder = train(config, tmp_path / "run", name="m", stop_at=2)
    halfway = load_run(tmp_path / "run", "m").model
    latents = torch.ones(1, 1, 16)
    update = torch.full((1, 16), 3.0)
    slots = torch.zeros(1).long()
    assert halfway.write(latents, update, slots).unique().tolist() == [3.5]

    train(config, tmp_path / "run", name="m")
    trained = interp.load(folder)
    latents = torch.ones(1, 1, trained.config.d_model)
    update = torch.zeros(1, trained.config.d_model)
    assert trained.config.latent_update == "replace"
    assert not trained.write(latents, update, slots).any()


@pytest.mark.parametrize("task", ["experts", "qlearning"])
def test_batches_are_a_function_of_seed_step_and_shard(task):
    config = small(task)
    layout = config.model_config("m").layout
    source, again = EpisodeSource(config, layout), EpisodeSource(config, layout)
    assert torch.equal(source.batch(7, 1).rounds.tokens, again.batch(7, 1).rounds.tokens)
    tokens = [source.batch(step, 0, shard, 2).rounds.tokens for step, shard in ((1, 0), (1, 1))]
    assert tokens[0].shape != tokens[1].shape or not torch.equal(*tokens)


def test_shards_of_a_step_are_as_long_as_each_other():
    """Processes make an optimizer step a window: one with more rounds than the others would wait for them for good."""
    config = small(
        stages=({"n_rounds": 2, "steps": 1}, {"n_rounds": 3, "steps": 1}), mix=0.5, window=1
    )
    source = EpisodeSource(config, config.model_config("m").layout)
    lengths = [
        {source.batch(step, 1, shard, 4).n_rounds for shard in range(4)} for step in range(12)
    ]
    assert all(len(of_step) == 1 for of_step in lengths)
    assert len(set.union(*lengths)) == 2


def test_a_fixed_data_set_is_drawn_from_again_and_again():
    config = small(dataset_episodes=4)
    source = EpisodeSource(config, config.model_config("m").layout)
    rows = {
        tuple(row)
        for step in range(6)
        for row in source.batch(step, 0).rounds.tokens.flatten(1).tolist()
    }
    assert len(rows) <= 4


@pytest.mark.parametrize("dataset_episodes", [0, 80])
def test_a_stage_bounds_the_number_of_experts(dataset_episodes):
    """From above, to a range, and never beyond the run's own; the last stage has those."""
    expected = {3: {2, 3}, (4, 5): {4, 5}, (6, 9): {6}, 0: {2, 3, 4, 5, 6}}
    stages = tuple({"n_rounds": 3, "steps": 1, "sizes": {"n_experts": bound}} for bound in expected)
    config = small(
        "experts",
        stages=stages,
        sizes={"n_experts": (2, 6)},
        mix=0.0,
        dataset_episodes=dataset_episodes,
    )
    source = EpisodeSource(config, HookedLatentTransformer(config.model_config("m")).layout)
    for stage, numbers in enumerate(expected.values()):
        assert {source.batch(step, stage).layout.n_experts for step in range(30)} == numbers


def test_progress_says_which_of_several_regimes_it_is_measured_on(tmp_path, monkeypatch):
    """An evaluation of a single batch has episodes of the first regime alone."""
    config = small(regimes=("uniform", "wide"), stages=({"n_rounds": 2, "steps": 1},))
    source = EpisodeSource(config, config.model_config("m").layout)
    evaluated = tuple(episodes.regime for episodes in source.evaluation())
    assert evaluated == source.evaluated_regimes == ("uniform",)
    texts = []

    @contextmanager
    def display(*about):
        yield lambda completed, text: texts.append(text)

    monkeypatch.setattr("interp.training.trainer.display", display)
    train(config, tmp_path / "run", name="m")
    assert texts[-1].endswith(" (uniform)")


def test_tied_actions_share_the_target():
    config = small("qlearning")
    batch = EpisodeSource(config, config.model_config("m").layout).batch(0, 0)
    torch.testing.assert_close(batch.targets.sum(-1), torch.ones(batch.targets.shape[:2]))
    assert (batch.targets.amax(-1) < 1).any()


@pytest.mark.slow
def test_compiled_and_plain_steps_agree():
    """Slow: torch.compile takes half a minute for each shape."""
    command = [sys.executable, "-m", "tests.training.compiled"]
    gaps = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    )
    assert set(gaps) == {"experts", "qlearning"}
    assert all(difference < 1e-6 for gap in gaps.values() for difference in gap)


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("linear", {0: 0.25, 3: 1, 4: 1, 20: 1, 30: 0.5, 40: 0}),
        ("cosine", {0: 0.25, 3: 1, 4: 1, 22: 0.5, 40: 0}),
    ],
)
def test_rates_warm_up_and_fall_to_zero(decay, expected):
    """Linear: constant up to the middle of the run, then a line to zero; cosine: one half at half of the rest."""
    config = small(warmup_steps=4, stages=[{"n_rounds": 2, "steps": 40}], decay=decay)
    assert {step: schedule(step, config) for step in expected} == pytest.approx(expected)


def test_a_run_goes_on_from_a_trained_model(tmp_path):
    first = load_checkpoint(train(small(seed=1), tmp_path / "first", name="m"))
    still = {"lr": 1e-30, "weight_decay": 0.0, "stages": ({"n_rounds": 3, "steps": 1},)}
    folder = train(
        small(start=str(tmp_path / "first" / "model"), **still), tmp_path / "second", name="n"
    )
    for key, value in load_checkpoint(folder).state_dict().items():
        torch.testing.assert_close(value, first.state_dict()[key])
    refuses(
        r"do not fit this run: d_model is 8 here and 16 there.*; give the run the same",
        train,
        small(start=str(tmp_path / "first" / "model"), d_model=8),
        tmp_path / "third",
        name="n",
    )
    refuses(
        "unknown start of 'experts' 'wma-learned-additiv'; did you mean 'wma-learned-additive'",
        train,
        small(start="wma-learned-additiv"),
        tmp_path / "fourth",
        name="n",
    )


@pytest.mark.parametrize("shape", [(6, 6), (3, 8, 4), (2, 4, 16)])
def test_singular_values_become_about_one(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    singular_values = torch.linalg.svdvals(orthogonalise(matrix))
    assert singular_values.min() > 0.5
    assert singular_values.max() < 1.3


def test_singular_vectors_stay_and_each_matrix_of_a_stack_is_on_its_own():
    stack = torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(1))
    left_vectors, _, right = torch.linalg.svd(stack[1], full_matrices=False)
    rotated = left_vectors.T @ orthogonalise(stack)[1] @ right.T
    torch.testing.assert_close(rotated, torch.diag(rotated.diagonal()), atol=1e-4, rtol=0)
    torch.testing.assert_close(orthogonalise(stack)[1], orthogonalise(stack[1]))


def test_a_step_has_the_size_of_adamw():
    """Root mean square .2 lr for a square matrix, whatever the size of the gradient."""
    weight = torch.nn.Parameter(torch.zeros(32, 32))
    weight.grad = 1e-3 * torch.randn(32, 32, generator=torch.Generator().manual_seed(2))
    Muon([weight], lr=1e-2, weight_decay=0.0).step()
    assert weight.pow(2).mean().sqrt().item() == pytest.approx(0.2e-2, rel=0.25)


@pytest.mark.long
def test_it_descends_and_decays():
    torch.manual_seed(0)
    target = torch.randn(2, 5, 7)
    weight = torch.nn.Parameter(torch.zeros(2, 5, 7))
    optimizer = Muon([weight], lr=0.05, weight_decay=0.0)
    for _ in range(200):
        loss = (weight - target).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05 * target.pow(2).sum()
    decayed = torch.nn.Parameter(torch.ones(4, 4))
    decayed.grad = torch.zeros(4, 4)
    Muon([decayed], lr=0.1, weight_decay=0.5).step()
    torch.testing.assert_close(decayed.detach(), torch.full((4, 4), 0.95))


@pytest.mark.long
def test_it_trains_the_matrices_of_the_blocks_only():
    model = HookedLatentTransformer(preset("qlearning", "laptop").model_config("m"))
    chosen = {
        name.rpartition(".")[2]
        for name, parameter in model.named_parameters()
        if is_stack(name, parameter)
    }
    assert chosen == {"W_Q", "W_K", "W_V", "W_O", "W_in", "W_out"}
