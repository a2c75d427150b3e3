"""SIGTERM, as job queues send it: a command ends like after Ctrl-C, with what it has kept, and exit status 143."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from interp.cli.command import Commands
from interp.llm.protocol import read_lines
from interp.support.errors import InputError
from interp.training.runs import METRICS_FILE

PROGRAM = [sys.executable, "-m", "interp.cli"]


def start(program: list[str], interrupt: Any = signal.default_int_handler) -> Any:
    """Start a process of its own in the checkout; ``interrupt`` is what it begins with as handler of Ctrl-C."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        return subprocess.Popen(
            program, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    finally:
        signal.signal(signal.SIGINT, before)


def wait_for(process: Any, is_reached: Callable[[], bool]) -> None:
    """Wait until a process has come so far."""
    deadline = time.monotonic() + 300
    while not is_reached() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()


@pytest.mark.long
def test_a_training_that_is_told_to_end_saves_and_goes_on(tmp_path: Path) -> None:
    """Its message names the step that is saved; the same command begins there, and its metrics have no gap."""
    metrics = tmp_path / "run" / METRICS_FILE
    command = [*PROGRAM, "train", "experts", "--name", "run", "--out", str(tmp_path)]
    command += ["--set", "batch_size=2", "--set", "checkpoint_every=1000000"]
    process = start(command)
    wait_for(process, lambda: metrics.exists() and metrics.read_text().count("\n") >= 2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    n_steps = metrics.read_text().count("\n")
    assert process.returncode == 143
    assert f"stopped at step {n_steps} of" in errors
    assert f"the same command goes on from step {n_steps}" in errors

    process = start(command)
    wait_for(process, lambda: metrics.read_text().count("\n") > n_steps)
    process.kill()
    process.communicate()
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == list(range(1, len(steps) + 1))


@pytest.mark.long
def test_a_run_of_many_parts_keeps_those_that_are_finished(tmp_path: Path) -> None:
    """Every trace that it leaves is whole lines, and the same command plays none of them again.

    It ignores Ctrl-C, as a shell's background does; SIGTERM it does not ignore.
    """
    command = [*PROGRAM, "llm", "run", "--agent", "counter", "--out", str(tmp_path)]
    command += ["--episodes", "8", "--regime", "flat", "--conditions", "online-no-note"]
    process = start(command, interrupt=signal.SIG_IGN)
    wait_for(process, lambda: len(list(tmp_path.rglob("*.jsonl"))) >= 2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 143
    assert "every answer is on disk: run the same command again to resume" in errors
    n_calls = 0
    for trace in tmp_path.rglob("*.jsonl"):
        n_calls += sum("reply" in record for record in read_lines(trace)[0])
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert f"{8 * 100 - n_calls:,} calls now and {n_calls:,} before" in done.stdout


def test_a_second_signal_ends_at_once() -> None:
    """The process is in the midst of saving; the second signal does not wait for that."""
    program = """
import time, typer
from interp.cli.command import Commands
app = typer.Typer(cls=Commands)
@app.command()
def wait():
    try:
        print("ready", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("saving", flush=True)
        time.sleep(60)
@app.command()
def other():
    pass
app(["wait"])
"""
    process = start([sys.executable, "-c", program])
    for word in ("ready", "saving"):
        assert process.stdout.readline().strip() == word
        process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGTERM


def test_a_signal_that_code_takes_for_an_error_is_a_signal() -> None:
    """What reads a file may call it damaged where it was interrupted; the command says that it was stopped."""
    group = typer.Typer(cls=Commands)

    @group.command()
    def read() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt as stop:
            raise InputError("the file is damaged") from stop

    group.command("other")(read)
    result = CliRunner().invoke(group, ["read"])
    assert result.exit_code == 143
    assert "interp: stopped; the same command goes on" in result.output
    assert "damaged" not in result.output
