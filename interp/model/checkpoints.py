"""Checkpoints: a folder with ``model.safetensors``, ``config.json`` and, for shipped models, ``README.md`` (the card).

Strict both ways: the file's SHA-256 is in the configuration, every weight must be there with its shape, and a folder
of another format version is refused. Nothing is pickled; the folder appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from interp import tasks
from interp.errors import InputError, require
from interp.files import write_json, write_text
from interp.model.config import LatentTransformerConfig
from interp.model.transformer import HookedLatentTransformer
from interp.provenance import versions

_FORMAT_VERSION = 1


def save_checkpoint(model: HookedLatentTransformer, folder: str | Path, card: str | None = None) -> Path:
    """Write ``model`` to ``folder``, which must not exist yet.

    Raises:
        InputError: the folder exists, its parent cannot be written, or the model's task is not registered, so that
            nothing could load it.
    """
    folder, key = Path(folder), model.layout.task
    if key not in {task.key for task in tasks.every()}:
        raise InputError(
            f"a model of the unregistered task {key!r} could not be loaded again; give the task's record to "
            "interp.tasks.register before saving"
        )
    require(not folder.exists(), f"{str(folder)!r} exists already; choose another folder or remove it")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    except OSError as error:
        message = f"cannot write {str(folder)!r}: {error.strerror}; choose a folder that can be written"
        raise InputError(message) from error
    try:
        weights = staging / "model.safetensors"
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        save_file(tensors, weights)
        weights.chmod(0o644)
        about = {
            "format_version": _FORMAT_VERSION,
            "class": type(model).__name__,
            "versions": versions(),
            "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
            "config": model.config.to_dict(),
        }
        write_json(staging / "config.json", about)
        if card is not None:
            write_text(staging / "README.md", card)
        staging.chmod(0o755)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def load_checkpoint(folder: str | Path) -> HookedLatentTransformer:
    """Load the model in ``folder``, in evaluation mode, on the CPU, in float32 (float64 if it was saved so).

    Raises:
        InputError: the folder or a file is missing, truncated, changed, or of another format version, or the model
            is of a task that is not registered.
    """
    folder = Path(folder)
    require(folder.is_dir(), f"no checkpoint folder at {str(folder)!r}; it holds config.json and model.safetensors")
    about = _read_config(folder / "config.json")
    version = about.get("format_version")
    require(
        version == _FORMAT_VERSION,
        f"{str(folder)!r} has format version {version!r}; this version reads {_FORMAT_VERSION}",
    )
    weights = folder / "model.safetensors"
    require(weights.is_file(), f"{str(folder)!r} lacks model.safetensors")
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    require(
        digest == about.get("sha256"),
        f"{str(weights)!r} is truncated or was changed: its SHA-256 is {digest[:12]}..., config.json says "
        f"{str(about.get('sha256'))[:12]}...; fetch the checkpoint again",
    )
    config = LatentTransformerConfig.from_dict(about["config"])
    tensors = load_file(weights)
    model = HookedLatentTransformer(config, state_map=tensors.get("state_map"))
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wrong = sorted(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
    require(not wrong, f"{str(weights)!r} does not fit its configuration at {', '.join(wrong[:5])}")
    if any(tensor.dtype == torch.float64 for tensor in tensors.values()):
        model = model.double()
    model.load_state_dict(tensors, strict=True)
    return model.eval()


def _read_config(path: Path) -> dict[str, Any]:
    require(path.is_file(), f"{str(path.parent)!r} lacks config.json")
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{str(path)!r} is not valid JSON ({error}); fetch the checkpoint again") from error
    require(isinstance(about, dict) and "config" in about, f"{str(path)!r} lacks the field 'config'")
    return about
