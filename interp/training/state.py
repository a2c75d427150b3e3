"""The folder of a training run: its state in one file, and its metrics.

The state is safetensors: every weight, every optimizer moment, and as metadata the configuration, where the run stands
and a SHA-256 over all of it. It is written by one rename and read strictly: a state that was cut short, edited, or
lacks a moment is refused, since training on from it would be another run without a sign of it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from interp.errors import require
from interp.files import reading, write_atomic

STATE_FILE = "training.safetensors"
METRICS_FILE = "metrics.jsonl"
RECORD_FILE = "training.json"
_OPTIMIZER_STATE = (("exp_avg", "exp_avg_sq", "step"), ("momentum",))
"""What AdamW and Muon keep of every parameter."""
_DAMAGED = "it was cut short, edited or made by an earlier version; train in another folder, or restore the file"


@dataclass
class Progression:
    """Where a run stands; all of it is in the state."""

    step: int = 0
    stage: int = 0
    stage_step: int = 0
    epoch_loss: float = 0.0
    best_epoch_loss: float = math.inf
    stale_epochs: int = 0
    seconds: float = 0.0
    last_evaluation: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RunState:
    """What a state file holds.

    Attributes:
        progress: where the run stands.
        config: the fields of the run's configuration.
        tensors: ``model.NAME`` for every parameter; ``ENTRY.NAME`` for what its optimizer keeps of it.
    """

    progress: Progression
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    def weights(self, model: torch.nn.Module) -> None:
        """Copy the weights into ``model``.

        Raises:
            InputError: a weight is missing, or of another shape.
        """
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                parameter.copy_(self._tensor(f"model.{key}", parameter))

    def moments(self, model: torch.nn.Module, optimizers: list[Any]) -> None:
        """Give the optimizers what they kept of every parameter.

        Raises:
            InputError: a moment is missing, or of another shape.
        """
        for key, parameter in model.named_parameters():
            for optimizer, entries in zip(optimizers, _OPTIMIZER_STATE, strict=False):
                if any(f"{entry}.{key}" in self.tensors for entry in entries):
                    # AdamW counts its steps on the CPU, in one number.
                    optimizer.state[parameter] = {
                        entry: self.tensors[f"step.{key}"].reshape(())
                        if entry == "step"
                        else self._tensor(f"{entry}.{key}", parameter).to(parameter.device)
                        for entry in entries
                    }

    def _tensor(self, name: str, like: Tensor) -> Tensor:
        tensor = self.tensors.get(name)
        given = None if tensor is None else tuple(tensor.shape)
        require(
            given == tuple(like.shape),
            f"the training state holds {name!r} of shape {given}, the model needs {tuple(like.shape)}; {_DAMAGED}",
        )
        assert tensor is not None
        return tensor


def write_state(
    folder: Path, progress: Progression, config: Mapping[str, Any], model: torch.nn.Module, optimizers: list[Any]
) -> None:
    """Write the whole state of a run to ``folder``, in one rename.

    Raises:
        InputError: the file cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    for key, parameter in model.named_parameters():
        tensors[f"model.{key}"] = parameter.detach().cpu().contiguous()
        for optimizer in optimizers:
            for entry, tensor in optimizer.state.get(parameter, {}).items():
                tensors[f"{entry}.{key}"] = tensor.cpu().contiguous()
    about = json.loads(json.dumps({"progress": asdict(progress), "config": config}))
    state = json.dumps({**about, "digest": _digest(about, tensors)})
    write_atomic(folder / STATE_FILE, lambda path: save_file(tensors, path, metadata={"state": state}))


def read_state(folder: Path) -> RunState | None:
    """The state of the run in ``folder``; None where there is none yet.

    Raises:
        InputError: the file is damaged, edited or of an earlier version.
    """
    path = folder / STATE_FILE
    if not path.is_file():
        return None
    with reading(path, _DAMAGED):
        with safe_open(path, framework="pt") as stored:
            about = json.loads(stored.metadata()["state"])
            tensors = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
        digest = about.pop("digest", None)
        require(digest == _digest(about, tensors), f"{str(path)!r} does not hold what was written; {_DAMAGED}")
        progress = Progression(**about["progress"])
        return RunState(progress, dict(about["config"]), tensors)


def cut_metrics(folder: Path, step: int) -> None:
    """Drop metrics of steps after ``step``, where the state stands: they will be made again."""
    path = folder / METRICS_FILE
    if path.is_file():
        with reading(path):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        kept = "".join(f"{line}\n" for line in lines if _step_of(line) <= step)
        write_atomic(path, lambda temporary: temporary.write_text(kept, encoding="utf-8"))


def _digest(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    sha = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def _step_of(line: str) -> float:
    """The step of a line of metrics; infinite for one that was cut short."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
