"""What an accelerator is worth: training steps by batch, CUDA graphs, patching, and the paper's presets on the clock.

``python -m tests.benchmarks.accelerator`` runs on the accelerator of this machine and writes a table for each question
to ``output/benchmarks``; nothing in it takes more than ten minutes. Without an accelerator the same code runs at small
sizes, which says that it works and nothing about speed.

* ``steps``: seconds a step and peak memory of the ``paper`` presets by batch size;
* ``graphs``: the same steps with and without ``compile`` (CUDA graphs): seconds, and the largest difference of losses;
* ``patching``: :mod:`tests.benchmarks.patching` here;
* ``presets``: each ``paper`` preset trained for :data:`MINUTES`, or until the run is over: steps done, and the excess
  over its floor by the seconds spent. Called again, it goes on where it stopped.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from accelerate import Accelerator

from interp.training.config import Stage, TrainingConfig
from interp.training.goal import preset
from interp.training.trainer import _Run
from tests.benchmarks import patching

OUT = Path("output/benchmarks")
TASKS = ("experts", "qlearning")
MINUTES = 4.0
BATCHES = (32, 64, 128, 256, 512)
STEPS = 10 if torch.accelerator.is_available() else 2


def present() -> bool:
    """Whether this machine has an accelerator."""
    return bool(torch.accelerator.is_available())


def config_of(task: str, **changes: Any) -> TrainingConfig:
    """The task's ``paper`` preset with fresh episodes in its longest stage; without an accelerator a small one."""
    paper = preset(task, "paper")
    longest = max(paper.stages, key=lambda stage: stage.n_rounds)  # type: ignore[union-attr]
    small: dict[str, Any] = {"d_model": 32, "d_mlp": 64, "n_layers": 2, "n_heads": 2, "batch_size": 8}
    small = {} if present() else small
    stage = replace(longest, steps=10**6) if present() else Stage(4, 10**6)  # type: ignore[type-var]
    return replace(paper, **{"stages": (stage,), "dataset_episodes": 0, "precision": "float32", **small, **changes})


@contextmanager
def started(config: TrainingConfig) -> Iterator[_Run]:
    """A run that leaves nothing behind, after a step that warms it up."""
    with tempfile.TemporaryDirectory() as folder:
        run = _Run(config, Path(folder), "benchmark", Accelerator(cpu=not present()))
        run.step()
        yield run


def seconds_of(run: _Run, n_steps: int = STEPS) -> tuple[float, list[float]]:
    """Seconds a step, and the losses."""
    patching.wait()
    begun = time.perf_counter()
    losses = []
    for _ in range(n_steps):
        losses.append(run.step())
        run.at.step += 1
    patching.wait()
    return (time.perf_counter() - begun) / n_steps, losses


def steps() -> pd.DataFrame:
    """Seconds a step, episodes a second and peak memory by batch size; batches that do not fit end their task."""
    rows: list[dict[str, Any]] = []
    for task in TASKS:
        for size in BATCHES if present() else (8,):
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            try:
                with started(config_of(task, batch_size=size)) as run:
                    seconds, _ = seconds_of(run)
            except torch.OutOfMemoryError:
                break
            gib = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else float("nan")
            rows.append({"task": task, "batch": size, "step_s": seconds, "episodes_a_s": size / seconds, "gib": gib})
    return pd.DataFrame(rows)


def graphs() -> pd.DataFrame:
    """Steps with and without CUDA graphs, from the same weights and episodes."""
    rows: list[dict[str, Any]] = []
    for task in TASKS:
        found = {}
        for compiled in (False, True):
            with started(config_of(task, compile=compiled and present())) as run:
                found[compiled] = seconds_of(run)
        apart = max(abs(a - b) for a, b in zip(found[False][1], found[True][1], strict=True))
        plain, compiled_s = found[False][0], found[True][0]
        rows.append(
            {"task": task, "plain_s": plain, "graphs_s": compiled_s, "ratio": plain / compiled_s, "loss": apart}
        )
    return pd.DataFrame(rows)


def presets(folder: Path) -> pd.DataFrame:
    """The presets on the clock, going on with what ``folder`` holds: a row for each evaluation."""
    rows: list[dict[str, Any]] = []
    for task in TASKS:
        config = preset(task, "paper") if present() else config_of(task, eval_every=1, eval_episodes=4, eval_rounds=4)
        run = _Run(config, folder / task, f"{task}-paper", Accelerator(cpu=not present()))
        run.resume()
        end = time.perf_counter() + 60 * (MINUTES if present() else 0.02)
        while time.perf_counter() < end and not run._finished:
            run.loop(run.at.step + config.eval_every)
        lines = map(json.loads, (folder / task / "metrics.jsonl").read_text().splitlines())
        rows += [{"task": task, "of": config.total_steps, **line} for line in lines if "excess" in line]
    return pd.DataFrame(rows)


def main() -> None:
    where = torch.accelerator.current_accelerator() if present() else None
    device = "cpu" if where is None else where.type
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else device
    print(f"{name}" if present() else "no accelerator: small sizes on the CPU, which say nothing about speed")
    folder = OUT if present() else Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    tables: dict[str, Callable[[], pd.DataFrame]] = {
        "steps": steps,
        "graphs": graphs,
        "presets": lambda: presets(folder),
    }
    if present():
        tables["patching"] = lambda: patching.measure(device)
    for key, make in tables.items():
        frame = make()
        frame.to_csv(folder / f"{key}.csv", index=False)
        last = frame.groupby(frame.columns[0], sort=False).tail(6)
        print(f"\n{key}\n{last.to_string(index=False, float_format=lambda x: f'{x:.3g}')}", flush=True)


if __name__ == "__main__":
    main()
