"""What training runs on, and in which precision."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from interp.support.files import read_json, reading
from interp.training import runs
from interp.training.config import TrainingConfig


def _capabilities() -> dict[str, Any]:
    """Return what torch reports of the CPU that this process runs on; not every version does."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return capabilities


def _bfloat16_units() -> str:
    """Return the names of the CPU's bfloat16 units, as torch gives them."""
    capabilities = _capabilities().items()
    return " ".join(sorted(name for name, has in capabilities if has is True and "bf16" in name))


def this_machine() -> str:
    """Return what this process can use, in words: architecture, CPU, its cores and vector units, GPU."""
    capabilities = _capabilities()
    parts = [platform.machine(), capabilities.get("cpu_name"), f"{os.cpu_count()} CPU cores"]
    parts.append(torch.backends.cpu.get_cpu_capability())
    if capabilities:
        parts.append(f"bfloat16 units: {_bfloat16_units() or 'none'}")
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join(filter(None, parts))


def choose_precision(config: TrainingConfig, folder: Path, kind: str) -> tuple[str, str]:
    """Return the precision in which a run trains, and why.

    Args:
        config: the run's settings.
        folder: its folder; a run that has begun keeps its precision.
        kind: of the device: "cpu", "cuda", "mps".
    """
    if config.precision != "auto":
        return config.precision, "named by the settings"
    if config.machine:
        return "float32", "a machine that is no transformer is trained in its own"
    path = folder / runs.RECORD_FILE
    record = read_json(path, "config") if path.is_file() else {}
    state = runs.read_state(folder)
    begun = record.get("config") if state is None else state.config
    if begun:
        with reading(path):
            reason = str(record.get("precision_because", "as this run began"))
            return str(begun["precision"]), reason
    if kind == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bfloat16", "the GPU has bfloat16 units"
        return "float32", "the GPU has no bfloat16 units"
    if kind != "cpu":
        return "float32", f"nothing says whether {kind!r} has bfloat16 units"
    units = _bfloat16_units()
    if units:
        return "bfloat16", f"the CPU has {units.replace(' ', ', ')}"
    return "float32", "the CPU reports no bfloat16 units"


def kind_of(device: str) -> str:
    """Return the kind of device that a run computes on; "auto" is this machine's accelerator, if it has one."""
    if device != "auto":
        return device
    if not torch.accelerator.is_available():
        return "cpu"
    accelerator: Any = torch.accelerator.current_accelerator()
    return str(accelerator.type)
