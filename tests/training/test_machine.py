"""The precision "auto": measured once for a run, recorded, kept when it is resumed, and worth what naming it is."""

import json

import pytest
import torch

from interp.training.config import TrainingConfig
from interp.training.machine import _best_of, faster, measure, this_machine
from interp.training.runs import RECORD_FILE, STATE_FILE
from interp.training.trainer import train


def small(precision):
    return TrainingConfig(
        task="experts", stages=({"n_rounds": 3, "steps": 6},), d_model=16, n_layers=1, n_heads=2, d_mlp=16,
        batch_size=4, eval_every=6, eval_episodes=4, eval_rounds=3, checkpoint_every=3, precision=precision,
    )  # fmt: skip


def run(folder, precision, stop_at=0):
    train(small(precision), folder, name="m", stop_at=stop_at)
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines]


def test_auto_gives_what_naming_the_measured_precision_gives(tmp_path):
    losses = run(tmp_path / "auto", "auto")
    record = json.loads((tmp_path / "auto" / RECORD_FILE).read_text())
    assert record["config"]["precision"] == faster(record["precision_seconds"])
    assert record["machine"] == this_machine()
    assert losses == run(tmp_path / "named", record["config"]["precision"])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_resumed_run_keeps_its_precision(precision, tmp_path):
    """Whatever is faster here: after a checkpoint, and where a run was killed before its first."""
    whole = run(tmp_path / "whole", precision)
    run(tmp_path / "parts", precision, stop_at=3)
    assert run(tmp_path / "parts", "auto") == whole
    (tmp_path / "parts" / STATE_FILE).unlink()
    (tmp_path / "parts" / "metrics.jsonl").unlink()
    assert run(tmp_path / "parts", "auto") == whole


def test_the_measurement_times_both_precisions_and_draws_from_no_global_stream():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    seconds = measure(small("auto"), torch.device("cpu"))
    assert set(seconds) == {"float32", "bfloat16"} and min(seconds.values()) > 0
    assert torch.equal(before, torch.get_rng_state())


def test_each_run_is_timed_at_least_twice_after_a_first():
    calls = {"a": 0, "b": 0}

    def count(name):
        calls[name] += 1

    _best_of({name: lambda name=name: count(name) for name in calls}, 0.0)
    assert calls == {"a": 3, "b": 3}
