"""``interp probe``: tables and figures from the shell, and a sweep that kill -9 does not set back."""

import json
import signal
import subprocess
import sys
import time

import pandas as pd
from typer.testing import CliRunner

import interp.tasks
import probes
from interp.cli import app
from interp.interventions.sites import COMPONENTS

SMALL = ["--experts", "1", "--episodes", "20", "--rounds", "8", "--targets", "log_weights", "counts"]


def invoke(*arguments):
    return CliRunner().invoke(app, ["probe", "wma-handwired", *map(str, arguments)])


def test_probes_at_a_site(tmp_path):
    result = invoke(*SMALL, "--site", "resid_post[1]@w?", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "The activations at resid_post[1]@w? hold the log-weights" in result.output
    folder = tmp_path / "wma-handwired"
    frame = pd.read_csv(folder / "probes.csv")
    assert set(frame["target"]) == {"log_weights", "counts"} and "untrained" in set(frame["fitted"])
    settings = json.loads((folder / "probes.json").read_text())
    assert settings["counts"]["model"] == "wma-handwired" and settings["counts"]["n_episodes"] == 20
    assert settings["counts"]["word"] in ("yes", "no", "undecided")
    assert (folder / "log_weights.svg").stat().st_size > 1000


def test_what_a_task_names_is_probed_by_default(tmp_path):
    """Sampled to the model's own sizes; the files are named after the task's variables."""
    result = CliRunner().invoke(
        app,
        ["probe", "qlearning-handwired", "--states", "3", "--actions", "2", *SMALL[2:6], "--out", str(tmp_path)],
    )
    assert result.exit_code == 0, result.output
    settings = json.loads((tmp_path / "qlearning-handwired" / "probes.json").read_text())
    assert set(settings) == set(interp.tasks.get("qlearning").analysis.probed)


def test_the_help_lists_what_the_registries_hold():
    result = CliRunner().invoke(app, ["probe", "--help"], env={"COLUMNS": "10000"})
    assert result.exit_code == 0
    for task in interp.tasks.every():
        assert all(target.key in result.output for target in probes.targets.every(task) if "." not in target.key)
        assert all(f"--{size.option}" in result.output for size in task.sizes)
    assert all(f" {component}" in result.output for component in COMPONENTS)


def test_a_sweep_that_kill_9_does_not_set_back(tmp_path):
    """Killed in the middle, no torn cell is left; run again, only missing cells are computed, and all is written."""
    arguments = ["probe", "wma-handwired", *SMALL[:-2], "label", "--sweep", "--windows", "2:8", "--jobs", "1"]
    arguments += ["--out", str(tmp_path)]
    folder = tmp_path / "wma-handwired"
    command = [sys.executable, "-m", "interp.cli", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(list(folder.glob("cells/*.json"))) < 20 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("cells/[!.]*.json")}
    assert kept and all(json.loads(path.read_text()) for path in kept)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())
    frame = pd.read_csv(folder / "sweep.csv")
    assert len(frame) == 3 * 3 * 7  # components x layers x positions
    assert set(frame["start"]) == {2} and set(frame["component"]) == {"resid_pre", "attn_out", "resid_post"}
    assert [path.name for path in folder.glob("*.svg")] == ["label-2-8.svg"]
