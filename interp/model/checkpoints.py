"""Checkpoints: a folder with ``model.safetensors``, ``config.json`` and, for shipped models, ``README.md`` (the card).

Strict both ways: ``config.json`` holds the SHA-256 of the weights and a digest over itself, so that an edited
configuration is refused like edited weights; every weight must be there with its shape, finite; and a folder of another
format version is refused. Nothing is pickled; the folder appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from interp import catalog
from interp.checks import MOST_GB, checked, file_path
from interp.errors import InputError, require
from interp.files import read_json, reading, temporary_beside, write_json, write_text, writing
from interp.model.config import LatentTransformerConfig
from interp.model.transformer import HookedLatentTransformer
from interp.provenance import versions

_FORMAT_VERSION = 2
_BEFORE_DIGESTS = 1
"""The version whose configuration no digest covers; its folders load with a warning."""


@checked
def save_checkpoint(model: HookedLatentTransformer, folder: str | Path, card: str | None = None) -> Path:
    """Write ``model`` (its task registered, its weights finite) to ``folder``, which must not exist yet."""
    folder, key = Path(file_path(folder, "the checkpoint folder")), model.layout.task
    if key not in {task.key for task in catalog.every()}:
        raise InputError(
            f"a model of the unregistered task {key!r} could not be loaded again; give the task's record to "
            "interp.tasks.register before saving"
        )
    require(not folder.exists(), f"{str(folder)!r} exists already; choose another folder or remove it")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    _check_finite(tensors, f"{model.config.name!r} cannot be saved:")
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = temporary_beside(folder)
        try:
            staging.mkdir()
            weights = staging / "model.safetensors"
            save_file(tensors, weights)
            weights.chmod(0o644)
            about = {
                "format_version": _FORMAT_VERSION,
                "class": type(model).__name__,
                "versions": versions(),
                "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
                "config": model.config.to_dict(),
            }
            write_json(staging / "config.json", {**about, "digest": _digest(about)})
            if card is not None:
                write_text(staging / "README.md", card)
            staging.chmod(0o755)
            staging.rename(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return folder


@checked
def load_checkpoint(folder: str | Path, *, max_gb: float = MOST_GB) -> HookedLatentTransformer:
    """Load the model in ``folder``, in evaluation mode, on the CPU, in float32 (float64 if it was saved so).

    A model of more than ``max_gb``, by its configuration, is refused before memory is taken.
    """
    folder = Path(file_path(folder, "the checkpoint folder"))
    require(folder.is_dir(), f"no checkpoint folder at {str(folder)!r}; it holds config.json and model.safetensors")
    about = read_json(folder / "config.json", "config")
    _check_about(folder, about)
    weights = folder / "model.safetensors"
    require(weights.is_file(), f"{str(folder)!r} lacks model.safetensors")
    with reading(weights):
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    require(
        digest == about.get("sha256"),
        f"{str(weights)!r} is truncated or was changed: its SHA-256 is {digest[:12]}..., config.json says "
        f"{str(about.get('sha256'))[:12]}...; fetch the checkpoint again",
    )
    with reading(folder / "config.json"):
        config = LatentTransformerConfig.from_dict(about["config"])
    with reading(weights):
        tensors = load_file(weights)
    config.require_room(max_gb)
    model = HookedLatentTransformer(config, state_map=tensors.get("state_map"))
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wrong = sorted(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
    require(not wrong, f"{str(weights)!r} does not fit its configuration at {', '.join(wrong[:5])}")
    _check_finite(tensors, f"{str(weights)!r} is damaged:")
    if any(tensor.dtype == torch.float64 for tensor in tensors.values()):
        model = model.double()
    model.load_state_dict(tensors, strict=True)
    return model.eval()


def _check_about(folder: Path, about: dict[str, Any]) -> None:
    """Refuse a configuration of another version, or one that was edited since it was written."""
    version = about.get("format_version")
    require(
        version in (_FORMAT_VERSION, _BEFORE_DIGESTS) and not isinstance(version, bool),
        f"{str(folder)!r} has format version {version!r}; this version reads {_BEFORE_DIGESTS} and {_FORMAT_VERSION}",
    )
    if version == _BEFORE_DIGESTS and "digest" not in about:
        warnings.warn(
            f"{str(folder)!r} is of format version {version}: nothing shows whether its config.json was edited; load "
            "it where that is certain, and save it again with save_checkpoint",
            stacklevel=6,
        )
        return
    require(
        about.get("digest") == _digest({key: value for key, value in about.items() if key != "digest"}),
        f"{str(folder / 'config.json')!r} was edited: its digest is not that of its contents; fetch the checkpoint "
        "again, or change the model in Python and save it with save_checkpoint",
    )


def _digest(about: dict[str, Any]) -> str:
    """SHA-256 of everything that ``config.json`` says beside its digest; the weights' own is part of it."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _check_finite(tensors: dict[str, torch.Tensor], what: str) -> None:
    wrong = [name for name, tensor in tensors.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
    require(not wrong, f"{what} weights that are not finite at {', '.join(wrong[:5])}; use an earlier checkpoint")
