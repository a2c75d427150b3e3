"""The machine that a run trains on: what it is, and which precision it trains in.

``precision = "auto"`` is settled once for a run by what the machine reports of itself, never by a stopwatch: one seed
on one machine is one model, however busy the machine is. On a CPU without bfloat16 units a training step in bfloat16
took 4 to 7 times one in float32; with such units it took .6 to .9 of it, most where the matrices are large. What was
taken, and why, is recorded in the run's ``training.json``; a run that is resumed keeps its precision, wherever it goes
on. Say ``precision = "float32"`` to have the same numbers on every machine.
"""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from interp.files import read_json, reading
from interp.training.config import TrainingConfig
from interp.training.runs import RECORD_FILE, read_state


def _units() -> list[str]:
    """The bfloat16 units of the CPU that this process runs on, by the names that torch gives them."""
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # not in every version of torch
    return sorted(name for name, has in found.items() if has is True and "bf16" in name)


def this_machine() -> str:
    """What this process can use, in words: architecture, CPU, its cores and vector units, GPU.

    >>> this_machine().split(", ")[0] == platform.machine()
    True
    """
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    parts = [platform.machine(), found.get("cpu_name"), f"{os.cpu_count()} CPU cores"]
    parts.append(torch.backends.cpu.get_cpu_capability())
    if found:
        parts.append(f"bfloat16 units: {' '.join(_units()) or 'none'}")
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join(part for part in parts if part)


def settled(config: TrainingConfig, folder: Path, accelerator: Accelerator) -> tuple[TrainingConfig, str]:
    """``config`` with a precision instead of "auto", the same in every process, and why it is that one.

    A run that has begun in ``folder`` keeps its precision. A machine that is no transformer has a precision of its own.
    """
    answer: list[Any] = [taken(config, folder, accelerator.device.type)] if accelerator.is_main_process else [None]
    if accelerator.num_processes > 1:
        broadcast_object_list(answer)
    precision, why = answer[0]
    return replace(config, precision=precision), why


def taken(config: TrainingConfig, folder: Path, kind: str) -> tuple[str, str]:
    """The precision that ``config`` is trained in on a ``kind`` of device ("cpu", "cuda", "mps"), and why."""
    if config.precision != "auto":
        return config.precision, "named by the settings"
    if config.machine:
        return "float32", "a machine that is no transformer is trained in its own"
    record = folder / RECORD_FILE
    about = read_json(record, "config") if record.is_file() else {}
    state = read_state(folder)
    begun = about.get("config") if state is None else state.config
    if not begun:
        return _precision_of(kind)
    with reading(record):
        return str(begun["precision"]), str(about.get("precision_because", "as this run began"))


def kind_of(device: str) -> str:
    """The kind of device that a run on ``device`` computes on; "auto" is this machine's accelerator, if it has one."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return (found.type if found else "cpu") if device == "auto" else device


def _precision_of(kind: str) -> tuple[str, str]:
    """The precision that a kind of device trains in, and the property of this machine that says so."""
    if kind == "cuda":
        whole = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bfloat16" if whole else "float32"), f"the GPU has {'' if whole else 'no '}bfloat16 units"
    if kind != "cpu":
        return "float32", f"nothing says whether {kind!r} has bfloat16 units"
    units = _units()
    return (
        ("bfloat16", f"the CPU has {', '.join(units)}") if units else ("float32", "the CPU reports no bfloat16 units")
    )
