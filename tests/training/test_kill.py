"""kill -9 at random moments: what goes on afterwards ends as the run that nothing broke."""

import json
import os
import random
import signal
import time

import pytest

from interp.training.runs import METRICS_FILE
from interp.training.trainer import train
from tests.training.test_state import CONFIG

N_KILLS = 50


def start(folder):
    """A process of its own that trains in ``folder``; forked, so that it need not import torch again."""
    child = os.fork()
    if child == 0:
        try:
            train(CONFIG, folder, name="m")
        finally:
            os._exit(0)
    return child


def contents(folder):
    """The files of a run, the bytes of its model, and its metrics but for the time they took."""
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    lines = map(json.loads, (folder / METRICS_FILE).read_text().splitlines())
    metrics = [{name: value for name, value in line.items() if name != "seconds"} for line in lines]
    return files, (folder / "model" / "model.safetensors").read_bytes(), metrics


@pytest.mark.slow
def test_50_kills_leave_no_trace(tmp_path):
    """100 runs of half a second; kills fall before, during and after the first state, and into writes."""
    began = time.monotonic()
    os.waitpid(start(tmp_path / "whole"), 0)
    took, whole = time.monotonic() - began, contents(tmp_path / "whole")
    draw, moments = random.Random(0), []
    for i in range(N_KILLS):
        folder = tmp_path / f"killed-{i}"
        child = start(folder)
        time.sleep(draw.uniform(0.0, took))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        state = folder / "training.safetensors"
        moments.append("none" if not folder.is_dir() else "state" if state.is_file() else "begun")
        os.waitpid(start(folder), 0)
        assert contents(folder) == whole, f"kill {i}, after {moments[-1]}"
    assert {"begun", "state"} <= set(moments), moments
