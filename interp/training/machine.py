"""The machine that a run trains on: what it is, and which precision it is faster in.

``precision = "auto"`` is settled by measurement, once for a run. No rule knows every machine: on a CPU without
bfloat16 units a training step in bfloat16 took 4 to 7 times one in float32, with such units they are level, and on a
GPU it depends on the sizes. What was measured is recorded in the run's ``training.json``; a run that is resumed keeps
its precision, wherever it goes on. Say ``precision = "float32"`` to have the same numbers on every machine.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from interp.files import read_json
from interp.model.transformer import HookedLatentTransformer
from interp.training.batches import EpisodeSource, RoundsLoss
from interp.training.config import Stage, TrainingConfig
from interp.training.runs import RECORD_FILE, read_state

_SECONDS = 0.4
"""Spent on measuring each precision, or two steps where these take longer."""
_WORTH = 0.9
"""bfloat16 is taken where it needs at most this share of float32's time: where they are level, float32 is exacter."""
N_ROUNDS = 2
"""Rounds of the step that is timed, forward and backward."""


def this_machine() -> str:
    """What this process can use, in words: architecture, CPU, its cores and vector units, GPU.

    >>> this_machine().split(", ")[0] == platform.machine()
    True
    """
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # not in every version of torch
    parts = [platform.machine(), found.get("cpu_name"), f"{os.cpu_count()} CPU cores"]
    parts.append(torch.backends.cpu.get_cpu_capability())
    if found:
        units = [name for name, has in found.items() if has is True and "bf16" in name]
        parts.append(f"bfloat16 units: {' '.join(units) or 'none'}")
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join(part for part in parts if part)


def settled(config: TrainingConfig, folder: Path, accelerator: Accelerator) -> tuple[TrainingConfig, dict[str, float]]:
    """``config`` with a precision instead of "auto", the same in every process, and the seconds that were measured.

    A run that has begun in ``folder`` keeps its precision, and nothing is measured; nor is it where a machine that is
    no transformer is trained, which has a precision of its own.
    """
    if config.precision != "auto":
        return config, {}
    if config.machine:
        return replace(config, precision="float32"), {}
    answer: list[Any] = [None]
    if accelerator.is_main_process:
        answer[0] = _begun(folder)
        if answer[0] is None:
            seconds = measure(config, accelerator.device)
            answer[0] = faster(seconds), seconds
    if accelerator.num_processes > 1:
        broadcast_object_list(answer)
    precision, seconds = answer[0]
    return replace(config, precision=precision), seconds


def faster(seconds: dict[str, float]) -> str:
    """The precision to train in, by the seconds of a step in each.

    >>> faster({"float32": 1.1, "bfloat16": 4.4}), faster({"float32": 1.0, "bfloat16": 0.5})
    ('float32', 'bfloat16')
    """
    return "bfloat16" if seconds["bfloat16"] <= _WORTH * seconds["float32"] else "float32"


def measure(config: TrainingConfig, device: torch.device) -> dict[str, float]:
    """Seconds of a short training step of ``config``'s model and batch in each precision, in turn: the best of some."""
    short = replace(config, stages=(Stage(N_ROUNDS, 1),), dataset_episodes=0, precision="float32")
    with torch.random.fork_rng():
        model = HookedLatentTransformer(short.model_config("measured")).to(device)
    loss = RoundsLoss(model, short.commit)
    batch = EpisodeSource(short, model.layout).batch(0, 0).to(device)

    def step(precision: str) -> None:
        with torch.autocast(device.type, torch.bfloat16, precision == "bfloat16"):
            value, _ = loss(batch)
        value.backward()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)

    return _best_of({precision: partial(step, precision) for precision in ("float32", "bfloat16")}, _SECONDS)


def _best_of(runs: dict[str, Callable[[], None]], seconds: float) -> dict[str, float]:
    """The shortest time of each of ``runs``, taken in turn for ``seconds`` each after a first one, at least twice."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    while min(map(len, times.values())) < 2 or sum(map(sum, times.values())) < seconds * len(runs):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: min(taken) for name, taken in times.items()}


def _begun(folder: Path) -> tuple[str, dict[str, float]] | None:
    """The precision of the run in a folder, and what was measured for it; None where none has begun."""
    record = folder / RECORD_FILE
    about = read_json(record, "config") if record.is_file() else {}
    state = read_state(folder)
    config = about.get("config") if state is None else state.config
    return (config["precision"], about.get("precision_seconds", {})) if config else None
