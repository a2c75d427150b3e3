"""The hardware that a training run uses, and the precision that follows from it."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from interp.support.files import convert_read_errors, read_json
from interp.training import runs
from interp.training.config import TrainingConfig


def _get_capabilities() -> dict[str, Any]:
    """Return what torch reports about this CPU as a dictionary; empty in versions of torch without
    such a report.
    """
    # Without the function, `dict` is called in its place, and returns an empty dictionary.
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return capabilities


def _name_bfloat16_units() -> str:
    """Return the names of the CPU's bfloat16 units as torch reports them, joined by blanks; "" if
    there are none.
    """
    capabilities = _get_capabilities().items()
    return " ".join(sorted(name for name, has in capabilities if has is True and "bf16" in name))


def this_machine() -> str:
    """Return a description of this computer's hardware in words: architecture, CPU, number of
    cores, vector units, GPU.
    """
    capabilities = _get_capabilities()
    parts = [platform.machine(), capabilities.get("cpu_name"), f"{os.cpu_count()} CPU cores"]
    parts.append(torch.backends.cpu.get_cpu_capability())
    if capabilities:
        parts.append(f"bfloat16 units: {_name_bfloat16_units() or 'none'}")
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join(filter(None, parts))


def choose_precision(config: TrainingConfig, folder: Path, kind: str) -> tuple[str, str]:
    """Return the precision of a training run. If its setting ``precision`` is "auto", choose one
    that the hardware supports; otherwise, take the setting.

    Args:
        config: settings of the run.
        folder: folder of the run. If the run was begun earlier, its first choice is taken again.
        kind: type of the device: "cpu", "cuda" or "mps".

    Returns:
        The precision, "float32" or "bfloat16", and the reason for it in words.
    """
    if config.precision != "auto":
        return config.precision, "named by the settings"
    if config.machine:
        return "float32", "a machine that is no transformer is trained in its own"
    # The first choice is in the settings of the training checkpoint, or before there is one, in the
    # run's record. Both store the precision that was chosen, never "auto".
    path = folder / runs.RECORD_FILE
    record = read_json(path, "config") if path.is_file() else {}
    state = runs.read_state(folder)
    earlier_config = record.get("config") if state is None else state.config
    if earlier_config:
        with convert_read_errors(path):
            reason = str(record.get("precision_because", "as this run began"))
            return str(earlier_config["precision"]), reason
    if kind == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bfloat16", "the GPU has bfloat16 units"
        return "float32", "the GPU has no bfloat16 units"
    if kind != "cpu":
        return "float32", f"nothing says whether {kind!r} has bfloat16 units"
    units = _name_bfloat16_units()
    if units:
        return "bfloat16", f"the CPU has {units.replace(' ', ', ')}"
    return "float32", "the CPU reports no bfloat16 units"


def kind_of(device: str) -> str:
    """Return ``device`` itself, such as "cuda"; for "auto", return the type of this computer's
    accelerator, or "cpu" if it has none.
    """
    if device != "auto":
        return device
    if not torch.accelerator.is_available():
        return "cpu"
    accelerator: Any = torch.accelerator.current_accelerator()
    return str(accelerator.type)
