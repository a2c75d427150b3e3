"""The precision "auto": a property of the machine, recorded with its reason, kept when a run is resumed; and one seed
on one machine is one model, to the byte."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from interp.training.hardware import choose_precision, this_machine
from interp.training.runs import METRICS_FILE, RECORD_FILE, STATE_FILE, read_state
from interp.training.trainer import train
from tests.shell import invoked
from tests.training.test_trainer import losses, small

WITH = {"cpu_name": "x", "amx_bf16": True, "avx2": True}
WITHOUT = {"cpu_name": "x", "amx_bf16": False, "avx2": True}


def run(folder, precision, stop_at=0):
    config = small(stages=({"n_rounds": 3, "steps": 4},), precision=precision)
    train(config, folder, name="m", stop_at=stop_at, device="cpu")
    return losses(folder)


@pytest.mark.parametrize(("units", "precision"), [(WITH, "bfloat16"), (WITHOUT, "float32")])
def test_auto_is_what_the_machine_reports_and_says_why(units, precision, tmp_path, monkeypatch):
    """And gives what naming that precision gives."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: units, raising=False)
    losses = run(tmp_path / "auto", "auto")
    record = json.loads((tmp_path / "auto" / RECORD_FILE).read_text())
    assert record["config"]["precision"] == precision
    assert record["machine"] == this_machine()
    assert record["precision_because"] == (
        "the CPU has amx_bf16" if units is WITH else "the CPU reports no bfloat16 units"
    )
    assert losses == run(tmp_path / "named", precision)
    assert (
        json.loads((tmp_path / "named" / RECORD_FILE).read_text())["precision_because"]
        == "named by the settings"
    )


def test_no_stopwatch_decides(tmp_path, monkeypatch):
    """Whatever clocks say, and whatever else the machine does, the answer is the same: none is read."""
    answers = set()
    for clock in (lambda: 0.0, iter(range(10**6)).__next__, lambda: 1e9 - time.monotonic()):
        for name in ("perf_counter", "monotonic", "time", "process_time"):
            monkeypatch.setattr(time, name, clock)
        answers.add(choose_precision(small(precision="auto"), tmp_path, "cpu"))
        monkeypatch.undo()
    assert len(answers) == 1


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_resumed_run_keeps_its_precision(precision, tmp_path):
    """Whatever this machine would take: after a checkpoint, and where a run was killed before its first."""
    whole = run(tmp_path / "whole", precision)
    run(tmp_path / "parts", precision, stop_at=2)
    assert run(tmp_path / "parts", "auto") == whole
    (tmp_path / "parts" / STATE_FILE).unlink()
    (tmp_path / "parts" / "metrics.jsonl").unlink()
    shutil.rmtree(tmp_path / "parts" / "model")
    assert run(tmp_path / "parts", "auto") == whole


@pytest.mark.long
def test_two_runs_of_interp_train_give_equal_bytes(tmp_path, monkeypatch):
    """In this process and in one of its own, with another hash seed: the checkpoint to the byte; the record but for
    the checkout's revision, which an edit changes; the state and the metrics but for the seconds that batches took."""
    sets = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_mlp": 16, "batch_size": 4, "eval_every": 3, "eval_rounds": 4,
            "eval_episodes": 4, "checkpoint_every": 3, "window": 2, "precision": '"auto"',
            "stages": "[{n_rounds = 4, steps = 6}]"}  # fmt: skip
    command = [
        "train",
        "experts",
        "--name",
        "m",
        "--seed",
        "5",
        "--out",
        "out",
        "--device",
        "cpu",
        "--set",
    ]
    command += [f"{name}={value}" for name, value in sets.items()]
    files, outputs = [], []
    here, alone = tmp_path / "here", tmp_path / "alone"
    here.mkdir()
    alone.mkdir()
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    program = [sys.executable, "-m", "interp.cli", *command]
    done_alone = subprocess.run(program, cwd=alone, capture_output=True, text=True, check=True)
    monkeypatch.chdir(here)
    for home, done in ((here, invoked(*command)), (alone, done_alone)):
        folder = home / "out" / "m"
        state = read_state(folder)
        state.progress.seconds = 0.0
        lines = [
            json.loads(line) | {"seconds": 0}
            for line in (folder / METRICS_FILE).read_text().splitlines()
        ]
        tensors = {name: tensor.numpy().tobytes() for name, tensor in state.tensors.items()}
        named = {
            path.relative_to(folder): path.read_bytes()
            for path in folder.glob("model/**/*")
            if path.is_file()
        }
        record = re.sub(r'"git": ".*"', "", (folder / RECORD_FILE).read_text("utf-8"))
        files.append((named, record, tensors, state.progress, state.config, lines))
        outputs.append(
            next(line for line in done.stdout.splitlines() if line.startswith("precision: "))
        )
    assert files[0] == files[1]
    assert len(files[0][0]) >= 2
    precision, why = choose_precision(small(precision="auto"), tmp_path / "none", "cpu")
    assert outputs == [f"precision: {precision} ({why})"] * 2
