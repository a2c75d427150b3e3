"""The files of training runs: the training checkpoint of a run, its metrics, and learning curves of
several runs.

A *training checkpoint* is the file from which an interrupted run is resumed, in safetensors format,
with every weight and every optimizer moment. Its metadata hold the configuration, the progress, and
a SHA-256 of everything. It is replaced by a rename, so that it is always complete. A training
checkpoint that was truncated, edited, or lacks a moment is refused, because training would silently
continue as another run.

Learning curves compare runs that differ in some settings. Runs that differ only in their seed form
one group; a row is one evaluation of one run. NOT evidence of what a setting could reach with more
steps or another learning rate: curves end where the runs ended, and settings were not tuned.
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
from interp.model.checkpoints import build_registered
from interp.model.library import SHIPPED
from interp.model.saved import content_of
from interp.model.transformer import HookedLatentTransformer
from interp.support.checks import checked, checked_result
from interp.support.errors import InputError, require
from interp.support.files import convert_read_errors, digest_of, read_json, write_atomic, write_text
from interp.training.config import TrainingConfig

STATE_FILE = "training.safetensors"
METRICS_FILE = "metrics.jsonl"
KEPT_FOLDER = "kept"
RECORD_FILE = "training.json"
_METRIC_COLUMNS = ["step", "stage", "loss", "seconds"]
"""Columns of the metrics, which have one row per batch."""
LEARNING_FILE = "learning.csv"
"""File in a shipped checkpoint's folder: learning curves of the runs that compared its settings."""
_MOMENTS_BY_OPTIMIZER = (("exp_avg", "exp_avg_sq", "step"), ("momentum",))
"""Names of the moments that AdamW, and Muon, store for every parameter."""
_DAMAGED_HINT = "it was cut short, edited or made by an earlier version; train in another folder, or restore the file"


@dataclass
@checked_result
class Progression:
    """How far a training run has come: what its checkpoint stores in addition to weights, optimizer
    moments and settings.

    An epoch is a fixed number of batches, the run's setting ``epoch_steps``. A stage of the
    curriculum may end early if the mean loss of epochs no longer falls.

    Attributes:
        step: number of batches that the model was trained on so far.
        stage: index of the current stage of the curriculum.
        stage_step: number of batches that the model was trained on in the current stage.
        epoch_loss: sum of the losses of the current epoch's batches so far, divided by
            ``epoch_steps``; at the end of the epoch it is the epoch's mean loss.
        best_epoch_loss: lowest mean loss of a complete epoch in this stage; infinite before the
            first.
        stale_epochs: number of epochs since the last one that made progress in this stage. An epoch
            makes progress if its mean loss is more than ``min_gain`` (a setting) below the lowest
            of earlier epochs.
        seconds: time spent on training, in seconds.
        last_evaluation: {name: value} of the numbers that the newest evaluation computed, such as
            ``{"excess": 0.01}``; empty before the first.
    """

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
    """The content of a training checkpoint: weights, optimizer moments, settings and progress of a
    run.

    Attributes:
        progress: the progress of the run.
        config: its settings, {field of :class:`~interp.training.config.TrainingConfig`: value}.
        tensors: name -> tensor. For a parameter called NAME, ``model.NAME`` is its value, and
            entries such as ``exp_avg.NAME`` are its optimizer moments. ``buffer.NAME`` is a buffer
            of a model that is not a transformer.
    """

    progress: Progression
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    def load_weights(self, model: torch.nn.Module) -> None:
        """Copy the stored weights into ``model``, in place.

        Raises:
            InputError: a weight of the model is not stored, or has another shape.
        """
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                parameter.copy_(self._read_tensor(f"model.{key}", parameter))
            for key, buffer in _list_buffers(model).items():
                buffer.copy_(self._read_tensor(f"buffer.{key}", buffer))

    def load_moments(self, model: torch.nn.Module, optimizers: list[Any]) -> None:
        """Copy the stored optimizer moments of every parameter into the optimizers.

        Args:
            model: the model with the parameters.
            optimizers: AdamW, and Muon if it is used.

        Raises:
            InputError: only some moments of a parameter are stored, or one has another shape.
        """
        for key, parameter in model.named_parameters():
            # Not strict: without Muon, its moments have no optimizer.
            for optimizer, entries in zip(optimizers, _MOMENTS_BY_OPTIMIZER, strict=False):
                names = [f"{entry}.{key}" for entry in entries]
                # The other optimizer may train this parameter, and one without gradients has no moments.
                if not self.tensors.keys().isdisjoint(names):
                    moments = [self._read_moment(name, parameter) for name in names]
                    optimizer.state[parameter] = dict(zip(entries, moments, strict=True))

    def _read_moment(self, name: str, parameter: Tensor) -> Tensor:
        if name.startswith("step."):  # AdamW counts its steps on the CPU, in one number
            return self.tensors[name].reshape(())
        return self._read_tensor(name, parameter).to(parameter.device)

    def _read_tensor(self, name: str, like: Tensor) -> Tensor:
        tensor = self.tensors.get(name)
        if tensor is not None and tensor.shape == like.shape:
            return tensor
        shape = None if tensor is None else tuple(tensor.shape)
        raise InputError(
            f"the training state holds {name!r} of shape {shape}, the model needs {tuple(like.shape)}; {_DAMAGED_HINT}"
        )


def write_state(
    folder: Path,
    progress: Progression,
    config: Mapping[str, Any],
    model: torch.nn.Module,
    optimizers: list[Any],
) -> None:
    """Write the training checkpoint of a run, from which it can be resumed. The file is replaced by
    a rename, so that it is always complete.

    Args:
        folder: folder of the run.
        progress: progress of the run.
        config: settings of the run, {name: value}.
        model: the trained model.
        optimizers: the optimizers; their moments are stored.
    """
    tensors: dict[str, Tensor] = {}
    for key, parameter in model.named_parameters():
        tensors[f"model.{key}"] = parameter
        for optimizer in optimizers:
            for entry, moment in optimizer.state.get(parameter, {}).items():
                tensors[f"{entry}.{key}"] = moment
    for key, buffer in _list_buffers(model).items():
        tensors[f"buffer.{key}"] = buffer
    # safetensors stores contiguous tensors only.
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # As JSON reads it back, with tuples as lists: the digest is compared with that of the file read.
    header = json.loads(json.dumps({"progress": asdict(progress), "config": config}))
    state = json.dumps({**header, "digest": _digest(header, tensors)})
    write_atomic(
        folder / STATE_FILE, lambda path: save_file(tensors, path, metadata={"state": state})
    )


def _list_buffers(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the tensors that a model stores in addition to its parameters; empty for a
    transformer, because its buffers do not change.
    """
    if isinstance(model, HookedLatentTransformer):
        return {}
    # With the names of shared parameters, too: the state has an entry for each name.
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return {key: tensor for key, tensor in model.state_dict().items() if key not in parameters}


def make_model(config: TrainingConfig, name: str) -> Any:
    """Make the model that a training run trains, with its initial weights: a transformer, or the
    registered model that the run's setting ``machine`` names.

    The weights of a registered model are drawn from the run's seed, those of a transformer from
    PyTorch's global generator.

    Args:
        config: settings of the run.
        name: name of the model.
    """
    if not config.machine:
        return HookedLatentTransformer(config.model_config(name))
    machine = build_registered(config.machine["builder"], config.machine["arguments"], config.task)
    _require_sizes(machine, config)
    trained = machine.untrained(config.seed)
    trained.name = name
    trained.origin = {**machine.origin, "training": config.to_dict()}
    return trained


def set_recurrence(model: Any, config: TrainingConfig, step: int) -> None:
    """Set how much of a latent's old value remains when a round writes to it, for batch ``step`` of
    a transformer's run (:meth:`TrainingConfig.latent_kept`). Other models have no such factor.

    Args:
        model: the model that is trained.
        config: settings of the run.
        step: index of the batch.
    """
    if isinstance(model, HookedLatentTransformer):
        model.latent_kept = config.latent_kept(step)


def _require_sizes(machine: Machine, config: TrainingConfig) -> None:
    """Refuse a run's settings if the range of a size (such as the number of experts) exceeds what
    the model to train can read.
    """
    sizes = machine.layout.to_dict()
    for size, (smallest, largest) in config.sizes.items():
        # A layout has the range of a size, or one value of it, or does not have the size.
        only_size = (sizes.get(size, smallest), sizes.get(size, largest))
        low, high = sizes.get(f"{size}_range") or only_size
        require(
            low <= smallest and largest <= high,
            f"the run has {size} {smallest} to {largest}, and {machine.name!r} reads {low} to {high}: give the run "
            f'sizes={{"{size}": ({low}, {high})}}, or the builder other arguments',
        )


def keep_state(folder: Path, step: int) -> None:
    """Copy the training checkpoint in a run's folder into the subfolder ``kept``, where no later
    checkpoint replaces it.

    Args:
        folder: folder of the run.
        step: number of batches so far, from which the copy gets its name.
    """
    write_atomic(
        folder / KEPT_FOLDER / f"{step:08d}.safetensors",
        lambda path: shutil.copyfile(folder / STATE_FILE, path),
    )


def list_kept_states(folder: str | Path) -> dict[int, Path]:
    """List the training checkpoints that a run stored for good (argument ``keep_every`` of
    :func:`interp.training.trainer.train`).

    Args:
        folder: the run's folder, or a folder with the files.

    Returns:
        Number of batches that the model was trained on by then -> path of the file, in ascending
        order.

    Raises:
        InputError: if there is no such file.
    """
    folder = Path(folder)
    kept_folder = folder / KEPT_FOLDER if (folder / KEPT_FOLDER).is_dir() else folder
    by_step = {
        _read_header(path)["progress"]["step"]: path
        for path in sorted(kept_folder.glob("*.safetensors"))
    }
    require(
        by_step,
        f"no states were kept in {str(folder)!r}; train with --keep-every 100, say",
    )
    return dict(sorted(by_step.items()))


def _read_header(path: Path) -> dict[str, Any]:
    with convert_read_errors(path, _DAMAGED_HINT), safe_open(path, framework="pt") as stored:
        return dict(json.loads(stored.metadata()["state"]))


def read_state(path: Path) -> RunState | None:
    """Read a training checkpoint; return None if there is no such file.

    Args:
        path: the file, or the folder of a run.

    Raises:
        InputError: the file was damaged or edited.
    """
    path = path / STATE_FILE if path.is_dir() else path
    if not path.is_file():
        return None
    with convert_read_errors(path, _DAMAGED_HINT):
        with safe_open(path, framework="pt") as stored:
            header = json.loads(stored.metadata()["state"])
            tensors = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
        digest = header.pop("digest", None)
        require(
            digest == _digest(header, tensors),
            f"{str(path)!r} does not hold what was written; {_DAMAGED_HINT}",
        )
        return RunState(Progression(**header["progress"]), dict(header["config"]), tensors)


def cut_metrics(folder: Path, step: int) -> None:
    """Remove from a run's file of metrics the lines of all batches after batch ``step``. A run that
    is resumed at this batch trains on the later ones again.
    """
    path = folder / METRICS_FILE
    if not path.is_file():
        return
    with convert_read_errors(path):
        lines = [line for line, record in _read_records(path) if float(record["step"]) <= step]
    text = "".join(f"{line}\n" for line in lines)
    write_text(path, text)


def _digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    contents = (content_of(name, tensor) for name, tensor in sorted(tensors.items()))
    return digest_of(header, contents)


def _read_records(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the lines of a JSONL file with their parsed records. Lines that are damaged or
    incomplete are left out.
    """
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
    """A training run at the time of its newest training checkpoint, or of an earlier one.

    Attributes:
        model: the model in evaluation mode, on the CPU.
        config: the settings of the run.
        step: number of batches that the model was trained on.
        stage: index of the current stage of the curriculum; the number of stages if all are over.
        seconds: time spent on training, in seconds.
        metrics: table with one row per batch. Its columns are "step" (number of batches), "stage",
            "loss" (of the batch) and "seconds" (spent on training so far). Rows with an evaluation
            also have the numbers that it computed, such as "excess".
        about: record of the run: its settings, hardware, versions and git revision at the start.
        evaluation: {name: value} of the numbers that the newest evaluation computed, such as
            "excess".
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
        """True if every stage of the curriculum is over."""
        return self.stage >= len(self.config.curriculum)


@checked
def load_run(folder: str | Path, name: str) -> TrainedRun:
    """Read a training run, which may still be running, without changing it.

    Args:
        folder: the run's folder, or one of its training checkpoints (a file that
            :func:`list_kept_states` lists), for the run at that time.
        name: name for the model.
    """
    source = Path(folder)
    is_file = not source.is_dir()
    folder = source.parent if is_file else source
    # The newest checkpoint (STATE_FILE) lies in the run's own folder, even if that is called "kept".
    is_kept = is_file and folder.name == KEPT_FOLDER and source.name != STATE_FILE
    if is_kept:  # metrics and record are in the run's folder, one above
        folder = folder.parent
    state = read_state(source)
    if state is None:
        path = str(source / STATE_FILE)
        raise InputError(
            f"no training state at {path!r}; give the folder of a run, such as output/training/NAME"
        )
    config = TrainingConfig.from_dict(state.config)
    progress = state.progress
    model = make_model(config, name)
    state.load_weights(model)
    set_recurrence(model, config, progress.step)
    records = [record for _, record in _read_records(folder / METRICS_FILE)]
    # Without records the table still has its columns.
    metrics = pd.DataFrame(records, columns=None if records else _METRIC_COLUMNS)
    record_file = folder / RECORD_FILE
    return TrainedRun(
        model=model.eval(),
        config=config,
        step=progress.step,
        stage=progress.stage,
        seconds=progress.seconds,
        metrics=metrics[metrics["step"] <= progress.step],
        about=read_json(record_file) if record_file.is_file() else {},
        evaluation=progress.last_evaluation,
    )


def learning_curves(folders: Sequence[str | Path]) -> pd.DataFrame:
    """Return every evaluation of several runs of one task, finished or not, as a table.

    Args:
        folders: folders of the runs, such as output/training/NAME.

    Returns:
        A table with one row per evaluation of one run, and these columns:

        * setting: a label of the run, with its values of the settings in which the runs differ,
          such as "latent_update=add". If the runs differ in several settings, the most common value
          of each is left out; "as most" if all are left out, and "all alike" if no setting differs;
        * seed: the run's seed;
        * step: number of batches before the evaluation;
        * minutes: time of training before the evaluation;
        * excess: loss above the lowest that can be reached, on episodes that are not trained on;
        * further numbers that depend on the task, such as accuracy, on the same episodes.
    """
    require(
        len(folders) > 0, "no run was given; give folders of runs, such as output/training/NAME"
    )
    uses_of_folders = Counter(str(Path(folder).resolve()) for folder in folders)
    place, n_times = uses_of_folders.most_common(1)[0]
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
    """Return a label for each run: the settings in which runs differ, such as "lr=0.001".

    If runs differ in several settings, the most common value of each is left out of the labels.
    """
    # A different seed is no different setting, so it is left out of the comparison.
    settings = [{**asdict(run.config), "seed": None} for run in runs]
    first = settings[0]
    differing = [name for name in first if any(values[name] != first[name] for values in settings)]
    most_common = set()  # of each setting the text of its value in most runs, such as "lr=0.001"
    for name in differing:
        counts = Counter(setting_text(name, values[name]) for values in settings)
        text, _ = counts.most_common(1)[0]
        most_common.add(text)
    labels = []
    for values in settings:
        texts = [setting_text(name, values[name]) for name in differing]
        if len(differing) > 1:
            texts = [text for text in texts if text not in most_common]
        # This run has the most common value of every setting, or no setting differs between runs.
        no_difference = "as most" if differing else "all alike"
        labels.append(", ".join(texts) or no_difference)
    return labels


def over_seeds(curves: pd.DataFrame) -> pd.DataFrame:
    """Average learning curves over the seeds of each setting.

    The result has one row per setting and step. ``mean``, ``low`` and ``high`` are the mean, lowest
    and highest ``excess`` (loss above the lowest that can be reached) over runs, and ``n_seeds`` is
    the number of their seeds. Steps at which only some seeds of a setting were evaluated are left
    out.

    >>> frame = pd.DataFrame({"setting": "a", "seed": [0, 1], "step": 50, "excess": [0.25, 0.75]})
    >>> over_seeds(frame).to_dict("records")
    [{'setting': 'a', 'step': 50, 'mean': 0.5, 'low': 0.25, 'high': 0.75, 'n_seeds': 2}]

    Args:
        curves: the table of :func:`learning_curves`.
    """
    spread = curves.groupby(["setting", "step"], sort=False, as_index=False).agg(
        mean=("excess", "mean"),
        low=("excess", "min"),
        high=("excess", "max"),
        n_seeds=("seed", "nunique"),
    )
    n_seeds = curves.groupby("setting")["seed"].nunique()
    is_complete = spread["n_seeds"] == spread["setting"].map(n_seeds)
    return spread[is_complete].reset_index(drop=True)


def shipped_curves(source: str) -> pd.DataFrame | None:
    """Return the learning curves that are stored in a model's checkpoint folder, as a table with
    the columns that :func:`learning_curves` describes; None if there are none.

    Args:
        source: name of a shipped model, or path of a model's checkpoint folder.
    """
    for folder in (SHIPPED / source, Path(source)):
        if (folder / LEARNING_FILE).is_file():
            return pd.read_csv(folder / LEARNING_FILE)
    return None


def setting_text(name: str, value: Any) -> str:
    """Return a setting of a training run as text for a label, such as "lr=0.001". Different values
    have different texts.

    Args:
        name: name of the setting.
        value: its value.
    """
    if name == "stages":
        return f"stages={'; '.join(map(_describe_stage, value))}"
    if name == "machine":
        return f"machine={describe_machine(value) if value else 'transformer'}"
    return f"{name}={'none' if value in ('', ()) else value}"


def _describe_stage(stage: Mapping[str, Any]) -> str:
    """Return the fields of a stage as text, such as "n_rounds 20, steps 500"; empty fields are left
    out.
    """
    return ", ".join(f"{name} {value}" for name, value in stage.items() if value)


def describe_machine(machine: Mapping[str, Any]) -> str:
    """Return a run's setting ``machine`` as text, such as "gru(d=16)".

    Args:
        machine: the setting, such as ``{"builder": "gru", "arguments": {"d": 16}}``.
    """
    arguments = [f"{name}={value!r}" for name, value in machine["arguments"].items()]
    return f"{machine['builder']}({', '.join(arguments)})"
