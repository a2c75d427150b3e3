"""Seconds per training step, on one thread: the whole step (episodes, forward over all rounds, backward, optimizer).

The first row has its ratio to a plain reference in the same run: a transformer of the same sizes that re-reads every
token since the first round for each prediction (:mod:`tests.benchmarks._reference`), forward, backward and AdamW on the
same batch. ``commit own`` finds the model's choice in every round, ``target`` feeds the recorded one. Run with
``python -m tests.benchmarks training``. CPU time beside wall time, since the machine may be shared.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from accelerate import Accelerator

from interp.training.config import Stage, TrainingConfig
from interp.training.goal import preset
from interp.training.trainer import _Run
from interp.workers import one_thread
from tests.benchmarks._reference import FullHistory

REPEATS = 2


def settings() -> dict[str, TrainingConfig]:
    """Benchmark -> configuration; the reference takes the first one's step, too."""
    laptop, paper = preset("experts", "laptop"), preset("qlearning", "paper")
    largest = {"n_states": (8, 8), "n_actions": (4, 4)}
    own = replace(preset("qlearning", "laptop"), stages=(Stage(25, 1),), regimes=("grid",), sizes=largest)
    large = replace(paper, stages=(Stage(30, 1),), dataset_episodes=0, precision="float32", sizes=largest)
    size = "64 x 30 rounds, |A| = 4, window 10, d_model 256"
    return {
        "experts, 32 x 25 rounds, d_model 64": replace(laptop, stages=(Stage(25, 1),), batch_size=32),
        f"qlearning, {size}, commit target": replace(large, commit="target"),
        f"qlearning, {size}, commit own": large,
        "qlearning laptop, 64 x 25 rounds, |A| = 4, d_model 128": own,
    }


@one_thread()
def measure() -> pd.DataFrame:
    """One row per benchmark: the best of some steps, after a first one that warms up."""
    rows: list[dict[str, Any]] = []
    for name, config in settings().items():
        with tempfile.TemporaryDirectory() as folder:
            run = _Run(config, Path(folder), "benchmark", Accelerator(cpu=True))
            run.step()
            wall, cpu = zip(*(timed(run.step) for _ in range(REPEATS)), strict=True)
        rows.append({"step": name, "precision": run.config.precision, "wall_s": min(wall), "cpu_s": min(cpu)})
        if len(rows) == 1:
            rows[0]["times_faster"] = min(timed(_reference(run))[1] for _ in range(REPEATS)) / min(cpu)
    return pd.DataFrame(rows)


def timed(step: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a call: on the wall, of CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - wall, time.process_time() - cpu


def _reference(run: _Run) -> Callable[[], None]:
    """The step of the plain reference on a batch of ``run``: one pass over the whole history for each prediction."""
    config, batch = run.config, run.source.batch(0, 0)
    model = FullHistory(run.model.config.d_vocab, config.d_model, config.n_layers, config.n_heads, config.d_mlp)
    optimizer = torch.optim.AdamW(model.parameters(), config.lr)

    def step() -> None:
        tokens, n_outputs = batch.rounds.tokens, batch.targets.shape[-1]
        for t in range(batch.n_rounds):
            scores = model(tokens[:, : t + 1].flatten(1))[:, :n_outputs].log_softmax(-1)
            (-(batch.targets[:, t] * scores).sum(-1).mean() / batch.n_rounds).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    print(measure().to_string(index=False, float_format=lambda x: f"{x:.3g}"))
