"""What threads give and cost: the same calls on one thread and on all, beside nothing and beside a busy process a core.

Threads that share a loaded core wait for each other, and waiting takes CPU time. Run with
``python -m tests.benchmarks threads``; the machine must be quiet when it begins.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path

import pandas as pd
import torch
from accelerate import Accelerator
from joblib import cpu_count

import interp
from circuits import compare
from interp.interventions import patching
from interp.support.workers import one_thread
from interp.tasks import experts, mdp
from interp.tasks.experts import analysis as corruptions
from interp.training.config import Stage
from interp.training.goal import preset
from interp.training.trainer import TrainingLoop


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a call: on the wall, of CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def calls(folder: Path) -> dict[str, Callable[[], object]]:
    """What is timed, by what it is called in the table."""
    run = TrainingLoop(
        replace(preset("experts", "laptop"), stages=(Stage(25, 1),)),
        folder,
        "benchmark",
        Accelerator(cpu=True),
    )
    wma, q = interp.load("wma-learned-additive"), interp.load("qlearning-learned")
    episodes = experts.sample(256, 50, 4, seed=0)
    clean, corrupted = corruptions.flip_vote(episodes, round=20, expert="p_2")
    trajectories = mdp.sample(512, 10, 5, 3, seed=0)
    budget = compare.Budget(known=16, test=8, rounds=16, starts=2, battery=4, untrained=1)
    return {
        "train wma-learned-additive, 8 steps of 25 rounds": lambda: [run.step() for _ in range(8)],
        "roll out wma-learned-additive, 256 episodes of 50 rounds": lambda: interp.rollout(
            wma, episodes
        ),
        "roll out qlearning-learned, 512 of 10": lambda: interp.rollout(q, trajectories),
        "patch two components everywhere, 256 episodes": lambda: patching.sweep(
            wma, clean=clean, corrupted=corrupted, round=20, sites=("resid_pre", "attn_out")
        ),
        "compare with a handwired machine, small": lambda: compare.machines(
            wma, "wma-handwired", budget=budget
        ),
    }


@contextmanager
def busy() -> Iterator[None]:
    """A process on every core that does nothing else."""
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cpu_count())
    ]
    try:
        yield
    finally:
        for process in others:
            process.kill()
            process.wait()


def main() -> None:
    loads = {"quiet": nullcontext, "busy": busy}
    limits = {"one": one_thread, f"all {torch.get_num_threads()}": nullcontext}
    rows: dict[tuple[str, str, str], tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        functions = calls(Path(folder))
        for call in functions.values():
            call()
        for beside, threads in product(loads, limits):
            with loads[beside](), limits[threads]():
                rows |= {(what, beside, threads): timed(call) for what, call in functions.items()}
    print(pd.DataFrame(rows, index=["wall s", "CPU s"]).T.unstack([1, 2]).round(2).to_string())
