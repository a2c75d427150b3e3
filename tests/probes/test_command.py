"""``interp probe``: tables and figures from the shell, and a sweep that kill -9 does not set back."""

import json
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest
from typer.testing import CliRunner

from interp.cli import app

SMALL = ["--experts", "1", "--episodes", "20", "--rounds", "8", "--targets", "log_weights", "counts"]


def invoke(*arguments):
    return CliRunner().invoke(app, ["probe", "wma-handwired", *map(str, arguments)])


def test_probes_at_a_site(tmp_path):
    result = invoke(*SMALL, "--site", "resid_post[1]@w?", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "log_weights at resid_post[1]@w?" in result.output and "represented" in result.output
    folder = tmp_path / "wma-handwired"
    frame = pd.read_csv(folder / "probes.csv")
    assert set(frame["target"]) == {"log_weights", "counts"} and "untrained" in set(frame["fitted"])
    settings = json.loads((folder / "probes.json").read_text())
    assert settings["counts"]["model"] == "wma-handwired" and settings["counts"]["n_episodes"] == 20
    assert (folder / "log_weights.svg").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--targets", "log_weight"), "unknown target 'log_weight'; did you mean 'log_weights'"),
        (("--targets", "q_table"), "target 'q_table' needs qlearning episodes"),
        (("--site", "middle"), "unknown component 'middle'"),
        (("--site", "resid_post[9]@w?"), "layers 0 to 2"),
        (("--episodes", "4", "--rounds", "5"), "5 folds of episodes need at least 5 episodes, got 4"),
        (("--episodes", "0"), "n_episodes must be an integer >= 1, got 0"),
        (("--sweep", "--windows", "first"), "'first' is not a window of rounds; write first:after-last, such as 0:10"),
        (("--sweep", "--windows", "0:300"), "window (0, 300) is not within the rounds"),
        (("--out", "/proc/none", "--sweep", "--episodes", "5", "--rounds", "3"), "cannot write to '/proc/none"),
        (("--out", "/proc/none", "--episodes", "5", "--rounds", "3"), "cannot write to '/proc/none"),
    ],
)
def test_bad_input_exits_with_2_and_one_sentence(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output and result.output.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_sweep_that_kill_9_does_not_set_back(tmp_path):
    """Killed in the middle, no torn cell is left; run again, only missing cells are computed, and all is written."""
    arguments = ["probe", "wma-handwired", *SMALL[:-2], "label", "--sweep", "--windows", "2:8", "--jobs", "1"]
    arguments += ["--out", str(tmp_path)]
    folder = tmp_path / "wma-handwired"
    command = [sys.executable, "-m", "interp.cli", *arguments]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
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
