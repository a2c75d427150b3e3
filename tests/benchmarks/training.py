"""Seconds per training step, on one thread: the whole step (episodes, forward over all rounds, backward, optimizer).

The published code took 82-90 CPU seconds for a step of 32 sequences of 25 rounds of expert advice, and 12-14 for one of
64 episodes, |A| = 4, 30 rounds, truncated every 10, of Q-learning at d_model 256, feeding the table's a* (our "target";
"own" runs every round once more, without gradient, to find the model's choice). Run with
``python -m tests.benchmarks training``. CPU time beside wall time, since the machine may be shared.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace

import pandas as pd
import torch
from accelerate import Accelerator

from interp.training.config import Stage, TrainingConfig
from interp.training.goal import preset
from interp.training.trainer import _Run

REPEATS = 2


def settings() -> dict[str, tuple[TrainingConfig, str]]:
    """Benchmark -> configuration and the CPU seconds of the published code."""
    laptop, paper = preset("experts", "laptop"), preset("qlearning", "paper")
    largest = {"n_states": (8, 8), "n_actions": (4, 4)}
    own = replace(preset("qlearning", "laptop"), stages=(Stage(25, 1),), regimes=("grid",), sizes=largest)
    large = replace(paper, stages=(Stage(30, 1),), dataset_episodes=0, precision="float32", sizes=largest)
    size = "64 x 30 rounds, |A| = 4, window 10, d_model 256"
    return {
        "experts, 32 x 25 rounds, d_model 64": (replace(laptop, stages=(Stage(25, 1),), batch_size=32), "82-90"),
        f"qlearning, {size}, commit target": (replace(large, commit="target"), "12-14"),
        f"qlearning, {size}, commit own": (large, ""),
        "qlearning laptop, 64 x 25 rounds, |A| = 4, d_model 128": (own, ""),
    }


def measure() -> pd.DataFrame:
    """One row per benchmark: the best of some steps, after a first one that warms up."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = []
    for name, (config, published) in settings().items():
        with tempfile.TemporaryDirectory() as folder:
            run = _Run(config, folder, "benchmark", Accelerator(cpu=True))  # type: ignore[arg-type]
            run.step()
            wall, cpu = zip(*(_timed(run) for _ in range(REPEATS)), strict=True)
        rows.append({"step": name, "wall_s": min(wall), "cpu_s": min(cpu), "published_cpu_s": published})
    torch.set_num_threads(threads)
    return pd.DataFrame(rows)


def _timed(run: _Run) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    run.step()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    print(measure().to_string(index=False, float_format=lambda x: f"{x:.3g}"))


if __name__ == "__main__":
    main()
