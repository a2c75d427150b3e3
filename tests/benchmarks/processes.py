"""Training on two processes of this machine against one, on the same episodes: what is gained, and that it is the same.

The ``laptop`` preset of expert advice on batches of 32 and of 256 episodes of 25 rounds, a process of one thread each,
gradients averaged by gloo under torchrun. The one process reads both shards as one batch, so that losses and weights
differ by rounding only, which the rows in float64 show. ``efficiency`` is the steps per second on the wall of two
processes over twice those of one: on a shared machine, where two processes find less than two cores, that is a lower
bound; ``cpu_efficiency``, the CPU seconds of a step in one process over those in both, counts only what the processes
do. Run with ``python -m tests.benchmarks processes``.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from safetensors.torch import load_file, save_file

from interp.model.layout import EncodedRounds
from interp.support.files import read_json, write_json
from interp.support.workers import one_thread
from interp.training.batches import Batch, EpisodeSource
from interp.training.config import Stage, TrainingConfig
from interp.training.goal import preset
from interp.training.trainer import TrainingLoop

N_PROCESSES = 2
CASES = ((32, 20, "float32"), (256, 5, "float32"), (32, 20, "float64"))
"""Batch size, steps, and the dtype of everything but the loss that is reported, which is float32."""
WEIGHTS = "weights.safetensors"


class _Joined(EpisodeSource):
    """The shards of all processes as one batch."""

    def batch(self, step: int, stage: int, shard: int = 0, n_shards: int = 1) -> Batch:
        shards = [
            super(_Joined, self).batch(step, stage, i, N_PROCESSES) for i in range(N_PROCESSES)
        ]
        names = ("tokens", "values", "slots")
        rounds = EncodedRounds(
            *(torch.cat([getattr(part.rounds, name) for part in shards]) for name in names)
        )
        return replace(
            shards[0], rounds=rounds, targets=torch.cat([part.targets for part in shards])
        )


def config(batch: int) -> TrainingConfig:
    """What is trained, on batches of so many episodes."""
    laptop = preset("experts", "laptop")
    return replace(
        laptop, stages=(Stage(25, 10**4),), batch_size=batch, warmup_steps=1, precision="float32"
    )


@one_thread()
def work(folder: Path, batch: int, steps: int, dtype: str) -> None:
    """What each process does: a step that warms up, then some on the clock; the first one's weights are kept."""
    torch.set_default_dtype(getattr(torch, dtype))
    accelerator = Accelerator(
        cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)]
    )
    run = TrainingLoop(config(batch), folder, "benchmark", accelerator)
    if accelerator.num_processes == 1:
        run.source = _Joined(run.config, run.model.layout)
    losses = [_step(run)]
    accelerator.wait_for_everyone()
    wall, cpu = time.perf_counter(), time.process_time()
    losses += [_step(run) for _ in range(steps - 1)]
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    write_json(
        folder / f"{accelerator.process_index}.json",
        {"wall_s": wall, "cpu_s": cpu, "losses": losses},
    )
    if accelerator.is_main_process:
        save_file(
            {name: value.contiguous() for name, value in run.model.state_dict().items()},
            folder / WEIGHTS,
        )


def _step(run: TrainingLoop) -> float:
    loss = run.step()
    run.progress.step += 1
    return loss


def _launched(
    n: int, case: tuple[int, int, str], folder: Path
) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """What each of ``n`` processes wrote, and the weights after the last step."""
    torchrun = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)] if n > 1 else []
    )
    command = [
        sys.executable,
        *torchrun,
        "-m",
        "tests.benchmarks.processes",
        str(folder),
        *map(str, case),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    return [read_json(folder / f"{i}.json", "losses") for i in range(n)], load_file(
        folder / WEIGHTS
    )


def measure(batch: int, steps: int, dtype: str) -> pd.DataFrame:
    """A row for one process and one for two."""
    runs = {}
    for n in (1, N_PROCESSES):
        with tempfile.TemporaryDirectory() as folder:
            runs[n] = _launched(n, (batch, steps, dtype), Path(folder))
    (alone,), weights = runs[1]
    rows = []
    for n, (ranks, single) in runs.items():
        cpu, wall = sum(rank["cpu_s"] for rank in ranks), ranks[0]["wall_s"]
        loss_gaps = [abs(a - b) for a, b in zip(ranks[0]["losses"], alone["losses"], strict=True)]
        weight_gaps = [
            float((single[name] - weight).abs().max())
            for name, weight in weights.items()
            if weight.numel()
        ]
        rows.append(
            {
                "batch": batch,
                "steps": steps,
                "dtype": dtype,
                "processes": n,
                "steps_a_s": (steps - 1) / wall,
                "cpu_s_a_step": cpu / (steps - 1),
                "efficiency": alone["wall_s"] / wall / n,
                "cpu_efficiency": alone["cpu_s"] / cpu,
                "first_loss_apart": loss_gaps[0],
                "losses_apart": max(loss_gaps),
                "weights_apart": max(weight_gaps),
            }
        )
    return pd.DataFrame(rows)


def main() -> None:
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    table = pd.concat([measure(*case) for case in CASES])
    print(table.to_string(index=False, float_format=lambda x: f"{x:.3g}"))


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]) if len(
        sys.argv
    ) > 1 else main()
