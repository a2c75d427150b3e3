"""What an accelerator is worth: patching, what is done with shipped models, training steps by preset and precision.

``python -m tests.benchmarks accelerator [TABLE...]`` writes a CSV for each table to ``output/benchmarks``, a row when
it is measured, and takes four minutes a table at most: called again, it measures the rows that are not there
yet. In order of value:

* ``patching``: :mod:`tests.benchmarks.patching` here;
* ``cores``: a rollout, a patching sweep, a comparison and a training step of shipped models on two cores and on the
  accelerator: seconds, their ratio, and how far the results lie apart, with TF32 products, too;
* ``steps``: seconds a step and peak memory of each task's largest preset at its largest sizes, by precision (float32,
  TF32 products, bfloat16) and batch size.

Without an accelerator only ``steps`` has rows, at small sizes, which say that it works and nothing about speed.
"""

import csv
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

import interp
from circuits import compare
from interp.interventions.patching import sweep
from interp.tasks import experts
from interp.tasks.experts import analysis as corruptions
from interp.training.config import Stage, TrainingConfig
from interp.training.goal import preset
from interp.training.trainer import TrainingLoop
from tests.benchmarks import patching

OUT = Path("output/benchmarks")
PRESETS = {"experts": "paper", "qlearning": "paper", "reachability": "prosqa"}
PRECISIONS = {
    "float32": ("float32", "highest"),
    "tf32": ("float32", "high"),
    "bfloat16": ("bfloat16", "highest"),
}
"""Name -> what training computes in, and how float32 products are made."""
SECONDS = 220.0
"""A table stops before a row that would begin later."""

Row = dict[str, Any]


def present() -> bool:
    """Whether this machine has an accelerator."""
    return bool(torch.accelerator.is_available())


def config_of(task: str, **changes: Any) -> TrainingConfig:
    """The task's largest preset at its largest sizes, fresh episodes in its longest stage; small off an accelerator."""
    largest = preset(task, PRESETS[task])
    longest = max(largest.curriculum, key=lambda stage: stage.n_rounds)
    sizes = {name: (high, high) for name, (_, high) in largest.sizes.items()}
    small: Row = {"d_model": 32, "d_mlp": 64, "n_layers": 2, "n_heads": 4, "batch_size": 8}
    small = {} if present() else small
    stage = replace(longest, steps=10**6, sizes={}, until={}) if present() else Stage(4, 10**6)
    fresh = {"stages": (stage,), "dataset_episodes": 0, "precision": "float32", "sizes": sizes}
    return replace(largest, **{**fresh, **small, **changes})


def step(task: str, precision: str, size: int) -> Row:
    """Seconds a step, episodes a second and peak memory; a batch that does not fit says so."""
    trained, products = PRECISIONS[precision]
    before = torch.get_float32_matmul_precision()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    torch.set_float32_matmul_precision(products)
    config, n_steps = config_of(task, batch_size=size, precision=trained), 10 if present() else 1
    try:
        with tempfile.TemporaryDirectory() as folder:
            run = TrainingLoop(config, Path(folder), "benchmark", Accelerator(cpu=not present()))
            run.step()
            patching.wait()
            begun = time.perf_counter()
            for run.progress.step in range(1, n_steps + 1):
                run.step()
            patching.wait()
            seconds = (time.perf_counter() - begun) / n_steps
    except torch.OutOfMemoryError:
        return {"step_s": float("nan"), "episodes_a_s": 0.0, "gib": "does not fit"}
    finally:
        torch.set_float32_matmul_precision(before)
    gib = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else float("nan")
    return {"step_s": seconds, "episodes_a_s": size / seconds, "gib": gib}


def _rollout(device: str, n_episodes: int) -> Callable[[], Any]:
    model = interp.load("wma-learned-additive").to(device)
    episodes = experts.sample(n_episodes, 30, 4, seed=0)
    return lambda: interp.rollout(model, episodes).predictions


def _patched(device: str, n_episodes: int) -> Callable[[], Any]:
    model = interp.load("wma-learned-additive").to(device)
    pair = corruptions.exchange_history(experts.sample(n_episodes, 23, 4, seed=0), 20)
    return lambda: sweep(model, *pair, 20).values


def _compared(device: str, n_episodes: int) -> Callable[[], Any]:
    """The numbers of a quick comparison, whatever ``n_episodes``: its own are drawn."""
    model = interp.load("wma-learned-additive").to(device)
    return lambda: (
        compare.machines(model, "wma-handwired", budget=compare.Budget.quick())
        .to_frame()["number"]
        .to_numpy(float)
    )


def _training(device: str, n_episodes: int) -> Callable[[], Any]:
    """Losses of steps of the laptop's preset, the batch of ``n_episodes``."""
    AcceleratorState._reset_state(True)  # accelerate keeps the device that was taken first
    config = replace(preset("experts", "laptop"), batch_size=n_episodes, dataset_episodes=0)
    run = TrainingLoop(
        config, Path(tempfile.mkdtemp()), "benchmark", Accelerator(cpu=device == "cpu")
    )
    return lambda: [run.step() for _ in range(3)]


def beside(
    make: Callable[[str, int], Callable[[], Any]],
    device: str,
    n_episodes: int,
    products: str = "highest",
) -> Row:
    """Seconds on two cores and on ``device``, after a run that warms up, and the largest difference of the results."""
    seconds, results = [], []
    before, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for place in ("cpu", device):
            run = make(place, n_episodes)
            torch.set_float32_matmul_precision("highest" if place == "cpu" else products)
            results.append(torch.as_tensor(run(), dtype=torch.float64).cpu().numpy())
            patching.wait()
            begun = time.perf_counter()
            run()
            patching.wait()
            seconds.append(time.perf_counter() - begun)
    finally:
        torch.set_float32_matmul_precision(before)
        torch.set_num_threads(threads)
    gap = float(np.nanmax(np.abs(results[0] - results[1])))
    return {
        "cores_s": seconds[0],
        "device_s": seconds[1],
        "ratio": seconds[0] / seconds[1],
        "apart": gap,
    }


WORK: dict[str, tuple[Callable[[str, int], Callable[[], Any]], tuple[int, ...]]] = {
    "rollout": (_rollout, (64, 1024, 8192)),
    "sweep": (_patched, (64, 512)),
    "training step": (_training, (32, 256, 2048)),
    "comparison": (_compared, (1,)),
}
"""What is done, and of how many episodes."""


def tables() -> dict[str, dict[str, Callable[[], Row]]]:
    """Each table's rows, by what names them."""
    where = torch.accelerator.current_accelerator() if present() else None
    device = "cpu" if where is None else where.type
    sizes = (32, 256, 64, 512, 128) if present() else (8,)
    sweeps: dict[str, Callable[[], Row]] = {}
    cores: dict[str, Callable[[], Row]] = {}
    if present():
        for tool in patching.TOOLS:
            sweeps[tool] = partial(_sweep, device, tool)
        for what, (make, work_sizes) in WORK.items():
            for n, products in product(work_sizes, ("highest", "high")):
                cores[f"{what} {n} {products}"] = partial(beside, make, device, n, products)
    steps: dict[str, Callable[[], Row]] = {}
    for size, task, precision in product(sizes, PRESETS, PRECISIONS):
        steps[f"{task} {precision} {size}"] = partial(step, task, precision, size)
    return {"patching": sweeps, "cores": cores, "steps": steps}


def _sweep(device: str, component: str) -> Row:
    frame = patching.measure(device)
    return dict(frame[frame["sweep"] == component].iloc[0])


def fill(path: Path, rows: dict[str, Callable[[], Row]]) -> pd.DataFrame:
    """Measure the rows that the table lacks, and append each when it is measured."""
    done = set(pd.read_csv(path)["row"]) if path.exists() else set()
    begun = time.perf_counter()
    for name, make in rows.items():
        if name in done or time.perf_counter() - begun > SECONDS:
            continue
        row = {"row": name, **make()}
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if not file.tell():
                writer.writeheader()
            writer.writerow(row)
    return pd.read_csv(path) if path.exists() else pd.DataFrame()


def main(*asked: str, folder: Path | None = None) -> None:
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "an accelerator"
    print(
        name
        if present()
        else "no accelerator: small sizes on the CPU, which say nothing about speed"
    )
    folder = folder or (OUT if present() else Path(tempfile.mkdtemp()))
    folder.mkdir(parents=True, exist_ok=True)
    every = tables()
    if unknown := [key for key in asked if key not in every]:
        sys.exit(f"no table {unknown[0]!r}; there are {', '.join(every)}")
    for key in asked or every:
        frame = fill(folder / f"accelerator-{key}.csv", every[key])
        print(
            f"\n{key}\n{frame.to_string(index=False, float_format=lambda x: f'{x:.3g}')}",
            flush=True,
        )
