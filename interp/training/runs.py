"""The folders of training runs: the state of one in one file, its metrics, and the learning curves
of several.

The state is safetensors: every weight, every optimizer moment, and as metadata the configuration,
where the run stands and a SHA-256 over all of it. It is written by one rename and read strictly: a
state that was cut short, edited, or lacks a moment is refused, since training on from it would be
another run without a sign of it.

Learning curves show what one changed setting costs, with its spread over seeds: runs are grouped by
the settings in which they differ, without the seed, and a row is one evaluation of one run on its
evaluation episodes. NOT evidence of what a setting could reach with more steps or another learning
rate: curves end where the runs ended, and settings were not tuned one by one.
"""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
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
from interp.support.checks import checked, checked_result
from interp.support.errors import InputError, require
from interp.support.files import digest_of, read_json, reading, write_atomic
from interp.training.config import TrainingConfig

STATE_FILE = "training.safetensors"
METRICS_FILE = "metrics.jsonl"
KEPT_FOLDER = "kept"
RECORD_FILE = "training.json"
_METRICS = ["step", "stage", "loss", "seconds"]
"""Columns of the metrics of every batch."""
LEARNING_FILE = "learning.csv"
"""Beside a shipped checkpoint: the curves of the runs that its settings were compared with."""
_MOMENTS = (("exp_avg", "exp_avg_sq", "step"), ("momentum",))
"""What AdamW and Muon store of every parameter."""
_DAMAGED = "it was cut short, edited or made by an earlier version; train in another folder, or restore the file"


@dataclass
@checked_result
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
@checked_result
class RunState:
    """What a state file holds; tensors are ``model.NAME`` for every parameter and ``ENTRY.NAME`` for its moments.

    A machine that is no transformer may have buffers that training moves: ``buffer.NAME``.
    """

    progress: Progression
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    def load_weights(self, model: torch.nn.Module) -> None:
        """Load the weights into ``model``; refuse one that is missing, or of another shape."""
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                parameter.copy_(self._tensor(f"model.{key}", parameter))
            for key, buffer in _buffers(model).items():
                buffer.copy_(self._tensor(f"buffer.{key}", buffer))

    def load_moments(self, model: torch.nn.Module, optimizers: list[Any]) -> None:
        """Load what AdamW, and Muon where there is one, stored of every parameter, as strictly.

        Args:
            model: has the parameters.
            optimizers: AdamW, and Muon where there is one.
        """
        for key, parameter in model.named_parameters():
            for optimizer, entries in zip(optimizers, _MOMENTS, strict=False):
                names = [f"{entry}.{key}" for entry in entries]
                if not self.tensors.keys().isdisjoint(names):
                    moments = [self._moment(name, parameter) for name in names]
                    optimizer.state[parameter] = dict(zip(entries, moments, strict=True))

    def _moment(self, name: str, parameter: Tensor) -> Tensor:
        if name.startswith("step."):  # AdamW counts its steps on the CPU, in one number
            return self.tensors[name].reshape(())
        return self._tensor(name, parameter).to(parameter.device)

    def _tensor(self, name: str, like: Tensor) -> Tensor:
        tensor = self.tensors.get(name)
        if tensor is not None and tensor.shape == like.shape:
            return tensor
        shape = None if tensor is None else tuple(tensor.shape)
        raise InputError(
            f"the training state holds {name!r} of shape {shape}, the model needs {tuple(like.shape)}; {_DAMAGED}"
        )


def write_state(
    folder: Path,
    progress: Progression,
    config: Mapping[str, Any],
    model: torch.nn.Module,
    optimizers: list[Any],
) -> None:
    """Write the whole state of a run, in one rename.

    Args:
        folder: the run's folder.
        progress: where it stands.
        config: its settings.
        model: what is trained.
        optimizers: what trains it.
    """
    tensors: dict[str, Tensor] = {}
    for key, parameter in model.named_parameters():
        tensors[f"model.{key}"] = parameter
        for optimizer in optimizers:
            for entry, moment in optimizer.state.get(parameter, {}).items():
                tensors[f"{entry}.{key}"] = moment
    for key, buffer in _buffers(model).items():
        tensors[f"buffer.{key}"] = buffer
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = json.loads(json.dumps({"progress": asdict(progress), "config": config}))
    state = json.dumps({**header, "digest": _digest(header, tensors)})
    write_atomic(
        folder / STATE_FILE, lambda path: save_file(tensors, path, metadata={"state": state})
    )


def _buffers(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return what a machine stores in addition to its parameters; empty for a transformer, which
    changes no buffer.
    """
    if isinstance(model, HookedLatentTransformer):
        return {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return {key: tensor for key, tensor in model.state_dict().items() if key not in parameters}


def make_model(config: TrainingConfig, name: str) -> Any:
    """Make what a run trains, as it is before the first step: a transformer, or a machine of a registered builder.

    The weights of a machine are drawn from the run's seed, those of a transformer from PyTorch's generator.
    """
    if not config.machine:
        return HookedLatentTransformer(config.model_config(name))
    machine = built(config.machine["builder"], config.machine["arguments"], config.task)
    _require_sizes(machine, config)
    trained = machine.untrained(config.seed)
    trained.name = name
    trained.origin = {**machine.origin, "training": config.to_dict()}
    return trained


def _require_sizes(machine: Machine, config: TrainingConfig) -> None:
    """Refuse a run with rounds of sizes that its machine does not read."""
    sizes = machine.layout.to_dict()
    for size, (smallest, largest) in config.sizes.items():
        fixed = (sizes.get(size, smallest), sizes.get(size, largest))
        low, high = sizes.get(f"{size}_range") or fixed
        require(
            low <= smallest and largest <= high,
            f"the run has {size} {smallest} to {largest}, and {machine.name!r} reads {low} to {high}: give the run "
            f'sizes={{"{size}": ({low}, {high})}}, or the builder other arguments',
        )


def keep_state(folder: Path, step: int) -> None:
    """Write a copy of the newest state of a run, that of ``step``, which later states do not
    replace.
    """
    write_atomic(
        folder / KEPT_FOLDER / f"{step:08d}.safetensors",
        lambda path: shutil.copyfile(folder / STATE_FILE, path),
    )


def kept(folder: str | Path) -> dict[int, Path]:
    """Return the stored states of a run, by their step: those in its folder ``kept``, or in
    ``folder`` itself.
    """
    folder = Path(folder)
    places = folder / KEPT_FOLDER if (folder / KEPT_FOLDER).is_dir() else folder
    by_step = {}
    for path in sorted(places.glob("*.safetensors")):
        by_step[_read_header(path)["progress"]["step"]] = path
    require(
        bool(by_step),
        f"no states were kept in {str(folder)!r}; train with --keep-every 100, say",
    )
    return dict(sorted(by_step.items()))


def _read_header(path: Path) -> dict[str, Any]:
    with reading(path, _DAMAGED), safe_open(path, framework="pt") as stored:
        return dict(json.loads(stored.metadata()["state"]))


def read_state(path: Path) -> RunState | None:
    """Read a state, that of the run where ``path`` is a folder; None where there is none yet.

    A damaged or edited file is refused.
    """
    path = path / STATE_FILE if path.is_dir() else path
    if not path.is_file():
        return None
    with reading(path, _DAMAGED):
        with safe_open(path, framework="pt") as stored:
            header = json.loads(stored.metadata()["state"])
            tensors = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
        digest = header.pop("digest", None)
        require(
            digest == _digest(header, tensors),
            f"{str(path)!r} does not hold what was written; {_DAMAGED}",
        )
        return RunState(Progression(**header["progress"]), dict(header["config"]), tensors)


def cut_metrics(folder: Path, step: int) -> None:
    """Remove metrics of steps after ``step``, that of the state: they will be made again."""
    path = folder / METRICS_FILE
    if not path.is_file():
        return
    with reading(path):
        lines = [line for line, record in _records(path) if float(record["step"]) <= step]
    text = "".join(f"{line}\n" for line in lines)
    write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    contents = (content_of(name, tensor) for name, tensor in sorted(tensors.items()))
    return digest_of(header, contents)


def _records(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the lines of a JSONL file with their records; one that is damaged, or being written, is left out."""
    if not path.is_file():
        return []
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and "step" in record:
            records.append((line, record))
    return records


@dataclass(frozen=True)
@checked_result
class TrainedRun:
    """The newest state of a training run.

    Attributes:
        model: in evaluation mode, on the CPU.
        step, seconds: batches that it was trained on, and the time spent in them.
        stage: of the curriculum, from 0; the number of stages when all are over, early or not.
        evaluation: the newest numbers on held-out episodes; ``excess`` above the floor among them.
        metrics: one row per batch that was written to the run's metrics.
        about: the record of the run: versions and git revision it started with.
    """

    model: Machine
    config: TrainingConfig
    step: int
    stage: int
    seconds: float
    metrics: pd.DataFrame
    about: dict[str, Any]
    evaluation: dict[str, float]

    @property
    def finished(self) -> bool:
        """Whether every stage of the curriculum is over."""
        return self.stage >= len(self.config.curriculum)


@checked
def load_run(folder: str | Path, name: str) -> TrainedRun:
    """Read the run in ``folder``, which may still be going on, without changing it; its model is
    called ``name``.

    In place of a folder, the file of a stored state (:func:`kept`) is the run as it was at that
    step.
    """
    place = Path(folder)
    folder = place if place.is_dir() else place.parent
    state = read_state(place)
    if state is None:
        path = str(place / STATE_FILE)
        raise InputError(
            f"no training state at {path!r}; give the folder of a run, such as output/training/NAME"
        )
    config = TrainingConfig.from_dict(state.config)
    progress = state.progress
    model = make_model(config, name)
    state.load_weights(model)
    if isinstance(model, HookedLatentTransformer):
        model.latent_kept = config.latent_kept(progress.step)
    records = [record for _, record in _records(folder / METRICS_FILE)]
    metrics = pd.DataFrame(records) if records else pd.DataFrame(columns=_METRICS)
    record_file = folder / RECORD_FILE
    return TrainedRun(
        model=model.eval(),
        config=config,
        step=progress.step,
        stage=progress.stage,
        seconds=progress.seconds,
        metrics=metrics[metrics["step"] <= progress.step],
        about=read_json(record_file) if record_file.is_file() else {},
        evaluation=dict(progress.last_evaluation),
    )


def learning_curves(folders: Sequence[str | Path]) -> pd.DataFrame:
    """Read every evaluation of several runs of one task, finished or not, such as
    output/training/NAME.

    Returns:
        tidy: ``setting`` (in which groups differ, such as "latent_update=add"; where runs differ in
        several settings, those in which one is unlike most), ``seed``, ``step``, ``minutes``, and
        the evaluation's columns: ``excess`` above the floor, ``accuracy`` or ``agreement``, ...
    """
    require(
        len(folders) > 0, "no run was given; give folders of runs, such as output/training/NAME"
    )
    places = Counter(str(Path(folder).resolve()) for folder in folders)
    place, n_times = places.most_common(1)[0]
    require(n_times == 1, f"the run in {place!r} was given twice; give each run once")
    runs = [load_run(folder, Path(folder).name) for folder in folders]
    tasks = sorted({run.config.task for run in runs})
    require(len(tasks) == 1, f"runs of one task can be compared, got {' and '.join(tasks)}")
    parts = []
    for folder, run, label in zip(folders, runs, _label_runs(runs), strict=True):
        require(
            "excess" in run.metrics,
            f"the run in {str(folder)!r} was not evaluated yet; train it for longer",
        )
        evaluated = run.metrics.dropna(subset=["excess"])
        curve = evaluated.drop(columns=["stage", "loss", "seconds"])
        curve.insert(0, "setting", label)
        curve.insert(1, "seed", run.config.seed)
        curve.insert(3, "minutes", evaluated["seconds"] / 60)
        parts.append(curve)
    return pd.concat(parts, ignore_index=True)


def _label_runs(runs: Sequence[TrainedRun]) -> list[str]:
    """Return what distinguishes each run: its settings, or of several those that most runs do not
    have.
    """
    settings = [{"machine": {}, **asdict(run.config), "seed": None} for run in runs]
    first = settings[0]
    differing = [name for name in first if any(values[name] != first[name] for values in settings)]
    usual = {}
    for name in differing:
        counts = Counter(setting_text(name, values[name]) for values in settings)
        usual[name] = counts.most_common(1)[0][0]
    labels = []
    for values in settings:
        texts = {name: setting_text(name, values[name]) for name in differing}
        if len(differing) > 1:
            texts = {name: text for name, text in texts.items() if text != usual[name]}
        no_difference = "as most" if differing else "all alike"
        labels.append(", ".join(texts.values()) or no_difference)
    return labels


def over_seeds(curves: pd.DataFrame) -> pd.DataFrame:
    """Compute mean, lowest and highest ``excess`` over the seeds of a setting at each step that all
    its seeds reached.

    >>> frame = pd.DataFrame({"setting": "a", "seed": [0, 1], "step": 50, "excess": [0.25, 0.75]})
    >>> over_seeds(frame).to_dict("records")
    [{'setting': 'a', 'step': 50, 'mean': 0.5, 'low': 0.25, 'high': 0.75, 'n_seeds': 2}]
    """
    by_step = curves.groupby(["setting", "step"], sort=False)["excess"]
    spread = by_step.agg(mean="mean", low="min", high="max", n_seeds="size").reset_index()
    n_seeds = curves.groupby("setting")["seed"].nunique()
    is_complete = spread["n_seeds"] == spread["setting"].map(n_seeds)
    return spread[is_complete].reset_index(drop=True)


def shipped_curves(source: str) -> pd.DataFrame | None:
    """Read the curves in the folder of a checkpoint, by its name or path; None where there are
    none.
    """
    for folder in (SHIPPED / source, Path(source)):
        if (folder / LEARNING_FILE).is_file():
            return pd.read_csv(folder / LEARNING_FILE)
    return None


def setting_text(name: str, value: Any) -> str:
    """Return a setting as a label says it; of a curriculum, the rounds of its stages."""
    if name == "stages":
        return f"stages={', '.join(str(stage['n_rounds']) for stage in value)} rounds"
    if name == "machine":
        return f"machine={describe_machine(value) if value else 'transformer'}"
    return f"{name}={'none' if value in ('', ()) else value}"


def describe_machine(machine: Mapping[str, Any]) -> str:
    """Return a machine's builder and arguments, such as "gru(d=16)"."""
    arguments = [f"{name}={value!r}" for name, value in machine["arguments"].items()]
    return f"{machine['builder']}({', '.join(arguments)})"
