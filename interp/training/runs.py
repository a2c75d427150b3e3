"""The folders of training runs: the state of one in one file, its metrics, and the learning curves of several.

The state is safetensors: every weight, every optimizer moment, and as metadata the configuration, where the run stands
and a SHA-256 over all of it. It is written by one rename and read strictly: a state that was cut short, edited, or
lacks a moment is refused, since training on from it would be another run without a sign of it.

Learning curves show what one changed setting costs, with its spread over seeds: runs are grouped by the settings in
which they differ, the seed apart, and a row is one evaluation of one run on its own held-out episodes. NOT evidence of
what a setting could reach with more steps or another learning rate: curves end where the runs ended, and settings were
not tuned one by one.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from interp.core.machine import Machine
from interp.model.checkpoints import built
from interp.model.library import SHIPPED
from interp.model.saved import content_of
from interp.model.transformer import HookedLatentTransformer
from interp.support.checks import checked
from interp.support.errors import InputError, require
from interp.support.files import digest_of, read_json, reading, write_atomic
from interp.training.config import TrainingConfig

STATE_FILE = "training.safetensors"
METRICS_FILE = "metrics.jsonl"
RECORD_FILE = "training.json"
LEARNING_FILE = "learning.csv"
"""Beside a shipped checkpoint: the curves of the runs that its settings were compared with."""
_OPTIMIZER_STATE = (
    ("exp_avg", "exp_avg_sq", "step"),
    ("momentum",),
)  # what AdamW and Muon keep of every parameter
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
class _RunState:
    """What a state file holds; tensors are ``model.NAME`` for every parameter and ``ENTRY.NAME`` for its moments.

    A machine that is no transformer may have buffers that training moves: ``buffer.NAME``.
    """

    progress: Progression
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    def weights(self, model: torch.nn.Module) -> None:
        """Copy the weights into ``model``; one that is missing, or of another shape, is refused."""
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                parameter.copy_(self._tensor(f"model.{key}", parameter))
            for key, buffer in _buffers(model).items():
                buffer.copy_(self._tensor(f"buffer.{key}", buffer))

    def moments(self, model: torch.nn.Module, optimizers: list[Any]) -> None:
        """Give the optimizers what they kept of every parameter; strictly, as :meth:`weights`."""
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
    folder: Path,
    progress: Progression,
    config: Mapping[str, Any],
    model: torch.nn.Module,
    optimizers: list[Any],
) -> None:
    """Write the whole state of a run to ``folder``, in one rename."""
    tensors: dict[str, Tensor] = {}
    for key, parameter in model.named_parameters():
        tensors[f"model.{key}"] = parameter.detach().cpu().contiguous()
        for optimizer in optimizers:
            for entry, tensor in optimizer.state.get(parameter, {}).items():
                tensors[f"{entry}.{key}"] = tensor.cpu().contiguous()
    tensors |= {
        f"buffer.{key}": buffer.detach().cpu().contiguous()
        for key, buffer in _buffers(model).items()
    }
    about = json.loads(json.dumps({"progress": asdict(progress), "config": config}))
    state = json.dumps({**about, "digest": _digest(about, tensors)})
    write_atomic(
        folder / STATE_FILE, lambda path: save_file(tensors, path, metadata={"state": state})
    )


def _buffers(model: torch.nn.Module) -> dict[str, Tensor]:
    """What a machine keeps beside its parameters; those of a transformer never change."""
    if isinstance(model, HookedLatentTransformer):
        return {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return {key: tensor for key, tensor in model.state_dict().items() if key not in parameters}


def made(config: TrainingConfig, name: str) -> Any:
    """The model that a run trains, as it is before the first step: a transformer, or a machine that its builder makes.

    The weights of a machine are drawn from the run's seed, those of a transformer from PyTorch's generator.
    """
    if not config.machine:
        return HookedLatentTransformer(config.model_config(name))
    machine = built(config.machine["builder"], config.machine["arguments"], config.task)
    sizes = machine.layout.to_dict()
    for size, bounds in config.sizes.items():
        low, high = sizes.get(f"{size}_range") or (
            sizes.get(size, bounds[0]),
            sizes.get(size, bounds[1]),
        )
        require(
            low <= bounds[0] and bounds[1] <= high,
            f"the run has {size} {bounds[0]} to {bounds[1]}, and {machine.name!r} reads {low} to {high}: give the run "
            f'sizes={{"{size}": ({low}, {high})}}, or the builder other arguments',
        )
    trained = machine.untrained(config.seed)
    trained.name, trained.origin = name, {**machine.origin, "training": config.to_dict()}
    return trained


def read_state(folder: Path) -> _RunState | None:
    """The state of the run in ``folder``, None where there is none yet; a damaged or edited file is refused."""
    path = folder / STATE_FILE
    if not path.is_file():
        return None
    with reading(path, _DAMAGED):
        with safe_open(path, framework="pt") as stored:
            about = json.loads(stored.metadata()["state"])
            tensors = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
        digest = about.pop("digest", None)
        require(
            digest == _digest(about, tensors),
            f"{str(path)!r} does not hold what was written; {_DAMAGED}",
        )
        return _RunState(Progression(**about["progress"]), dict(about["config"]), tensors)


def cut_metrics(folder: Path, step: int) -> None:
    """Drop metrics of steps after ``step``, where the state stands: they will be made again."""
    path = folder / METRICS_FILE
    if path.is_file():
        with reading(path):
            kept = "".join(
                f"{line}\n" for line, record in _records(path) if float(record["step"]) <= step
            )
        write_atomic(path, lambda temporary: temporary.write_text(kept, encoding="utf-8"))


def _digest(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    return digest_of(about, (content_of(name, tensor) for name, tensor in sorted(tensors.items())))


def _records(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """The lines of a JSONL file, and what each says; a line that is damaged, or being written, is left out."""
    found = []
    for line in (
        path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    ):
        with suppress(ValueError):
            record = json.loads(line)
            found += [(line, record)] if isinstance(record, dict) and "step" in record else []
    return found


@dataclass(frozen=True)
class TrainedRun:
    """The newest state of a training run.

    Attributes:
        model: in evaluation mode, on the CPU.
        step, seconds: batches that it was trained on, and the time spent in them.
        stage: of the curriculum, from 0; the number of stages when all are over, early or not.
        metrics: one row per batch that was written to the run's metrics.
        about: the run's own record: versions and git revision it started with.
    """

    model: Machine
    config: TrainingConfig
    step: int
    stage: int
    seconds: float
    metrics: pd.DataFrame
    about: dict[str, Any]

    @property
    def finished(self) -> bool:
        """Whether every stage of the curriculum is over."""
        return self.stage >= len(self.config.curriculum)


@checked
def load_run(folder: str | Path, name: str) -> TrainedRun:
    """Read the run in ``folder``, which may still be going on, without changing it; its model is called ``name``."""
    folder = Path(folder)
    state = read_state(folder)
    if state is None:
        path = str(folder / STATE_FILE)
        raise InputError(
            f"no training state at {path!r}; give the folder of a run, such as output/training/NAME"
        )
    config = TrainingConfig.from_dict(state.config)
    model = made(config, name)
    state.weights(model)
    if isinstance(model, HookedLatentTransformer):
        model.latent_kept = config.latent_kept(state.progress.step)
    at, about, records = (
        state.progress,
        folder / RECORD_FILE,
        [record for _, record in _records(folder / METRICS_FILE)],
    )
    metrics = pd.DataFrame(
        records, columns=None if records else ["step", "stage", "loss", "seconds"]
    )
    return TrainedRun(
        model=model.eval(),
        config=config,
        step=at.step,
        stage=at.stage,
        seconds=at.seconds,
        metrics=metrics[metrics["step"] <= at.step],
        about=read_json(about) if about.is_file() else {},
    )


def learning_curves(folders: Sequence[str | Path]) -> pd.DataFrame:
    """Every evaluation of several runs of one task, finished or not, such as output/training/NAME.

    Returns:
        tidy: ``setting`` (what tells the groups apart, such as "latent_update=add"; where runs differ in several
        settings, those in which one is unlike most), ``seed``, ``step``, ``minutes``, and the evaluation's columns:
        ``excess`` above the floor, ``accuracy`` or ``agreement``, ...
    """
    require(
        len(folders) > 0, "no run was given; give folders of runs, such as output/training/NAME"
    )
    places = [Path(folder).resolve() for folder in folders]
    twice = next((str(place) for place in places if places.count(place) > 1), None)
    require(twice is None, f"the run in {twice!r} was given twice; give each run once")
    runs = [load_run(folder, Path(folder).name) for folder in folders]
    tasks = sorted({run.config.task for run in runs})
    require(len(tasks) == 1, f"runs of one task can be compared, got {' and '.join(tasks)}")
    settings = [{"machine": {}, **run.config.to_dict()} for run in runs]
    differing = [
        name
        for name in settings[0]
        if name != "seed" and any(s[name] != settings[0][name] for s in settings)
    ]
    usual = {
        name: Counter(said(name, s[name]) for s in settings).most_common(1)[0][0]
        for name in differing
    }
    parts = []
    for folder, run, given in zip(folders, runs, settings, strict=True):
        require(
            "excess" in run.metrics,
            f"the run in {str(folder)!r} was not evaluated yet; train it for longer",
        )
        seen = run.metrics.dropna(subset=["excess"])
        labels = {name: said(name, given[name]) for name in differing}
        unlike = [
            label for name, label in labels.items() if len(differing) == 1 or label != usual[name]
        ]
        label = ", ".join(unlike) or ("as most" if differing else "all alike")
        about: dict[str, Any] = {
            "setting": label,
            "seed": run.config.seed,
            "minutes": seen["seconds"] / 60,
        }
        parts.append(seen.drop(columns=["stage", "loss", "seconds"]).assign(**about))
    frame = pd.concat(parts, ignore_index=True)
    return frame[
        [
            "setting",
            "seed",
            "step",
            "minutes",
            *frame.columns.drop(["setting", "seed", "step", "minutes"]),
        ]
    ]


def over_seeds(curves: pd.DataFrame) -> pd.DataFrame:
    """Mean, lowest and highest ``excess`` over the seeds of a setting at each step that all its seeds reached.

    >>> frame = pd.DataFrame({"setting": "a", "seed": [0, 1], "step": 50, "excess": [0.25, 0.75]})
    >>> over_seeds(frame).to_dict("records")
    [{'setting': 'a', 'step': 50, 'mean': 0.5, 'low': 0.25, 'high': 0.75, 'n_seeds': 2}]
    """
    found = (
        curves.groupby(["setting", "step"], sort=False)["excess"]
        .agg(["mean", "min", "max", "size"])
        .reset_index()
    )
    found = found.rename(columns={"min": "low", "max": "high", "size": "n_seeds"})
    n_seeds = curves.groupby("setting")["seed"].nunique()
    return found[found["n_seeds"] == found["setting"].map(n_seeds)].reset_index(drop=True)


def shipped_curves(source: str) -> pd.DataFrame | None:
    """The curves beside a checkpoint, by its name or path; None where there are none."""
    for folder in (SHIPPED / source, Path(source)):
        if (folder / LEARNING_FILE).is_file():
            return pd.read_csv(folder / LEARNING_FILE)
    return None


def said(name: str, value: Any) -> str:
    """A setting as a label says it; of a curriculum, the rounds of its stages."""
    if name == "stages":
        return f"stages={', '.join(str(stage['n_rounds']) for stage in value)} rounds"
    if name == "machine":
        return f"machine={called(value) if value else 'transformer'}"
    return f"{name}={'none' if value == '' else value}"


def called(machine: Mapping[str, Any]) -> str:
    """A machine by its builder and arguments, such as "gru(d=16)"."""
    return f"{machine['builder']}({', '.join(f'{name}={value!r}' for name, value in machine['arguments'].items())})"
