"""The folder of a run: its state is read strictly, one process trains in it, and what was killed leaves no trace."""

import json
import os
import platform
import signal
import subprocess
import sys
import zlib

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from interp.model.saved import content_of
from interp.support.errors import InputError
from interp.support.files import digest_of, lock_folder
from interp.training import trainer
from interp.training.config import replace_fields
from interp.training.runs import METRICS_FILE, STATE_FILE, load_run, read_state
from interp.training.trainer import train
from tests.refusals import refuses
from tests.training.test_trainer import small

CONFIG = small(
    stages=({"n_rounds": 2, "steps": 4},), sizes={"n_experts": (2, 2)}, checkpoint_every=2
)


@pytest.fixture
def begun(tmp_path):
    train(CONFIG, tmp_path / "run", name="m", stop_at=2)
    return tmp_path / "run"


def rewrite(folder, change, sign):
    """Change the tensors of a state; its digest is made right again if ``sign``."""
    path = folder / STATE_FILE
    with safe_open(path, framework="pt") as stored:
        metadata = json.loads(stored.metadata()["state"])
    tensors = load_file(path)
    change(tensors)
    if sign:
        metadata.pop("digest")
        contents = (content_of(name, tensor) for name, tensor in sorted(tensors.items()))
        metadata["digest"] = digest_of(metadata, contents)
    save_file(tensors, path, metadata={"state": json.dumps(metadata)})


def broadcast(tensors):
    tensors["model.embed.W_E"] = tensors["model.embed.W_E"].flatten()[:1].clone()


def drop_a_moment(tensors):
    tensors.pop("exp_avg_sq.embed.W_E")


def edit(tensors):
    tensors["model.embed.W_E"] += 1


@pytest.mark.parametrize("change", [drop_a_moment, edit])
def test_a_state_that_was_changed_is_refused(begun, change):
    """Each of these once trained on, into another model."""
    rewrite(begun, change, sign=False)
    for read in (lambda: train(CONFIG, begun, name="m"), lambda: load_run(begun, "m")):
        refuses(r"training.safetensors' does not hold what was written; it was cut short", read)


@pytest.mark.parametrize(
    ("change", "message"), [(broadcast, r"of shape \(1,\), the model"), (drop_a_moment, "None")]
)
def test_shapes_are_checked_even_where_the_digest_fits(begun, change, message):
    rewrite(begun, change, sign=True)
    refuses(message, train, CONFIG, begun, name="m")


def cut_in_half(path):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def write_no_metadata(path):
    save_file({"a": torch.zeros(1)}, path)


@pytest.mark.parametrize("damage", [cut_in_half, write_no_metadata])
def test_a_state_that_was_cut_short_is_refused(begun, damage):
    damage(begun / STATE_FILE)
    with pytest.raises(InputError, match=r"training.safetensors' is damaged \(") as raised:
        read_state(begun)
    assert raised.value.__cause__ is not None


def test_a_second_process_in_one_folder_is_refused_and_told_which_holds_it(begun):
    with (
        lock_folder(begun),
        pytest.raises(
            InputError,
            match=rf"another process \(process {os.getpid()} on .*\) works in .*; wait for it",
        ),
    ):
        train(CONFIG, begun, name="m")
    assert train(CONFIG, begun, name="m").is_dir()


def test_a_run_killed_before_its_first_state_leaves_no_metrics_twice(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    lines = [json.dumps({"step": step, "stage": 0, "loss": 9.0, "seconds": 0.0}) for step in (1, 2)]
    (folder / METRICS_FILE).write_text("\n".join([*lines, '{"step": 3, "st']))
    train(CONFIG, folder, name="m")
    steps = [json.loads(line)["step"] for line in (folder / METRICS_FILE).read_text().splitlines()]
    assert steps == [1, 2, 3, 4]


def test_a_new_run_does_not_return_the_model_of_an_earlier_one(begun):
    """The state was removed to train anew; the model that is still there has another seed."""
    train(CONFIG, begun, name="m")
    (begun / STATE_FILE).unlink()
    again = replace_fields(CONFIG, {"seed": 1})
    refuses("is the model of an earlier run", train, again, begun, name="m")


def test_temporary_files_of_dead_processes_are_removed_and_those_of_living_ones_stay(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    machine_id = f"{zlib.crc32(platform.node().encode()):08x}"
    stale, alive = (
        tmp_path / f".x.csv.~{machine_id}-{pid}-00000000.csv" for pid in (dead.pid, os.getpid())
    )
    for path in (stale, alive):
        path.write_bytes(b"half")
    write = f"from interp.support.files import write_text; write_text({str(tmp_path / 'y')!r}, '')"
    subprocess.run([sys.executable, "-c", write], check=True)
    assert not stale.exists()
    assert alive.exists()


def test_an_interrupted_run_is_saved_after_its_step_and_says_where_it_goes_on(begun, monkeypatch):
    step = trainer.TrainingLoop.step

    def interrupted(run):
        signal.raise_signal(signal.SIGINT)
        return step(run)

    monkeypatch.setattr(trainer.TrainingLoop, "step", interrupted)
    with pytest.raises(
        KeyboardInterrupt, match="stopped at step 3 of 4; the same command goes on from step 3"
    ):
        train(CONFIG, begun, name="m")


@pytest.mark.parametrize("name", ["../../x", "", ".hidden", "a b"])
def test_a_name_is_no_path(tmp_path, name):
    refuses("name must be letters, digits", train, CONFIG, tmp_path / "run", name=name)
    assert list(tmp_path.iterdir()) == []
