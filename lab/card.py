"""Turn a training run into a checkpoint for shipping: weights, configuration, and a model card.

The card states the data, the preset and the exact command, seeds, time, the loss against wall time,
metrics with intervals and baselines, and limits. Weights are stored in float32, as trained.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd

from interp.core import catalog
from interp.model.checkpoints import BUILDERS, save_checkpoint
from interp.model.library import SHIPPED
from interp.model.transformer import HookedLatentTransformer
from interp.support.checks import checked, folder_name
from interp.support.errors import require
from interp.support.provenance import git_revision, versions
from interp.training.config import Stage, TrainingConfig
from interp.training.goal import goal_of
from interp.training.hardware import this_machine
from interp.training.runs import TrainedRun, describe_machine, load_run
from lab.headlines import headline


@checked
def ship(
    run_folder: str | Path,
    name: str,
    *,
    n_episodes: int = 1000,
    seed: int = 11,
    out: str | Path = SHIPPED,
) -> Path:
    """Write the newest state of a training run, finished or not, as a checkpoint with a model card.

    Args:
        run_folder: folder of the run, such as output/training/experts-laptop.
        name: name of the model, such as "wma-learned".
        n_episodes, seed: episodes for the card's metrics.
        out: folder in which the checkpoint's folder is made.

    Returns:
        The new folder ``out/name``, with model.safetensors, config.json and README.md.
    """
    folder = Path(out) / folder_name("name", name)
    require(not folder.exists(), f"{str(folder)!r} exists already; remove it to ship again")
    run = load_run(run_folder, name)
    model = run.model
    origin = {**model.origin, "description": _describe(run)}
    if isinstance(model, HookedLatentTransformer):
        trained = model
        share = trained.latent_kept  # of a latent's old value, when a round writes to it
        require(
            share == trained.config.latent_kept,
            f"{name!r} still keeps {share:.2g} of each latent, which no checkpoint stores; train on until its latents "
            "are replaced, and ship it then",
        )
        model = HookedLatentTransformer(replace(trained.config, name=name, origin=origin))
        model.load_state_dict(trained.state_dict())
        model.eval()
    else:
        model.origin = origin
    metrics = headline(model, n_episodes=n_episodes, seed=seed)
    text = card(run, name, metrics, n_episodes=n_episodes, seed=seed)
    return save_checkpoint(model, folder, card=text)


def _describe(run: TrainedRun) -> str:
    """Return a line that describes a trained model: its task, training data and size."""
    config = run.config
    model: Any = run.model
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    task = catalog.get(config.task)
    learned = goal_of(task).learns or task.name
    if config.regimes:
        learned += f" ({', '.join(dict.fromkeys(config.regimes))})"
    kind = f"latents {'added to' if config.latent_update == 'add' else 'replaced'}"
    if config.machine:
        kind = f"built by {describe_machine(config.machine)}"
    text = f"trained on {learned}; {n_parameters:,} parameters, {kind}"
    if not run.finished:
        text += f", stopped after {run.step:,} of {config.total_steps:,} batches"
    return text


def card(run: TrainedRun, name: str, metrics: pd.DataFrame, *, n_episodes: int, seed: int) -> str:
    """Return the model card, in Markdown: the template ``card.md`` with the facts of the run. Lines
    of the template whose fact is empty are left out.

    Args:
        run: the run that trained the model.
        name: name of the model.
        metrics: the model's main metrics, with intervals.
        n_episodes, seed: the episodes of these metrics.
    """
    config = run.config
    task = catalog.get(config.task)
    record = {"versions": versions(), "git": git_revision(), **run.about}
    ends_early = config.patience > 0 or any(stage.until for stage in config.curriculum)
    kind = "machine" if config.machine else "transformer"
    sizes = [f"{_span(*config.sizes[size.name])} {size.option}" for size in task.sizes]
    stages = [stage_text(stage, config.task) for stage in config.curriculum]
    packages = [f"{package} {version}" for package, version in record["versions"].items()]
    described = _describe(run)
    architecture = _architecture(run)
    data = _data(config)
    regimes = _regimes(config)
    optimizers = _optimizers(config)
    decay = _DECAYS[config.decay]
    why = _precision_reason(record)
    window = _truncation(config)
    commit = _commit(run)
    machine = record.get("machine") or this_machine()
    command_line = command(config, name)
    metrics_table = _metrics_table(metrics)
    losses = format_table(_loss_curve(run))
    limits = _limits(goal_of(task).limits)
    template = Path(__file__).with_suffix(".md").read_text("utf-8")
    text = template.format(
        name=name,
        kind=kind,
        described=described,
        made=architecture,
        data=data,
        regimes=regimes,
        sizes=", ".join(sizes),
        stages="; ".join(stages),
        optimizers=optimizers,
        config=config,
        decay=decay,
        why=why,
        window=window,
        commit=commit,
        run=run,
        most="at most " if ends_early else "",
        minutes=run.seconds / 60,
        machine=machine,
        software=", ".join(packages),
        git=record["git"],
        command=command_line,
        seed=seed,
        n_episodes=n_episodes,
        metrics=metrics_table,
        losses=losses,
        limits=limits,
    )
    # A list item "- **name**: " without a text does not apply to this run.
    return re.sub(r"(?m)^- \*\*.*\*\*: \n", "", text)


_N_POINTS = 12  # most evaluations in the table of losses
_DECAYS = {"cosine": "cosine to 0", "linear": "linear to 0 in the second half"}


def _architecture(run: TrainedRun) -> str:
    """Return the sizes of a transformer, or the builder and the state of another model, in words."""
    config = run.config
    if not config.machine:
        return (
            f"{config.n_layers} layers, d_model {config.d_model}, {config.n_heads} heads, "
            f"d_mlp {config.d_mlp}"
        )
    channels = [f"{channel.name} {list(channel.shape)}" for channel in run.model.channels]
    return f"{describe_machine(config.machine)}, which carries {', '.join(channels)}"


def _data(config: TrainingConfig) -> str:
    if not config.dataset_episodes:
        return "fresh episodes in every batch"
    return f"{config.dataset_episodes:,} episodes"


def _regimes(config: TrainingConfig) -> str:
    if not config.regimes:
        return ""
    return f", regimes in turn, a batch each: {', '.join(config.regimes)}"


def _optimizers(config: TrainingConfig) -> str:
    text = f"AdamW at {config.lr:g}"
    if config.muon_lr and not config.machine:
        text += f", Muon at {config.muon_lr:g} for the matrices of the blocks"
    return text


def _precision_reason(record: dict[str, Any]) -> str:
    named = "named by the settings"
    reason = record.get("precision_because", named)
    return "" if reason == named else f" ({reason})"


def _commit(run: TrainedRun) -> str:
    choice = run.model.layout.choice_label
    if choice is None:
        return ""
    return f"{choice} was the {run.config.commit} choice in training, own in every number below"


def _metrics_table(metrics: pd.DataFrame) -> str:
    """Return the main metrics with their intervals, as a Markdown table."""
    pairs = zip(metrics.low, metrics.high, strict=True)
    intervals = [f"{low:.4g} to {high:.4g}" for low, high in pairs]
    return format_table(
        metrics.assign(**{"95 %": intervals})[["what", "estimate", "95 %", "beside"]]
    )


def _limits(limits: tuple[str, ...]) -> str:
    if not limits:
        return ""
    lines = [f"- {limit}" for limit in limits]
    return "\n".join(["\n\n## Limits\n", *lines])


def _truncation(config: TrainingConfig) -> str:
    """Return how backpropagation through time is truncated, and when the optimizer steps, in words."""
    if not config.window:
        return "no truncation through time"
    if config.step_each == "batch":
        return f"gradients cut every {config.window} rounds, a step a batch"
    return f"a step every {config.window} rounds"


def _loss_curve(run: TrainedRun) -> pd.DataFrame:
    """Return at most 12 evaluations of a run, evenly spaced in time: minutes, step and losses."""
    evaluated = run.metrics.dropna()
    if not len(evaluated):
        return pd.DataFrame({"minutes": [], "step": []})
    seconds = evaluated["seconds"]
    nearest = set()  # a set, because two times may have the same nearest evaluation
    for i in range(1, _N_POINTS + 1):
        time = seconds.max() * i / _N_POINTS
        distance = (seconds - time).abs()
        nearest.add(int(distance.idxmin()))
    chosen = evaluated.loc[sorted(nearest)]
    frame = chosen.drop(columns=["stage", "seconds", "loss", "step"])
    frame.insert(0, "minutes", chosen["seconds"] / 60)
    frame.insert(1, "step", chosen["step"])
    return frame


def command(config: TrainingConfig, name: str) -> str:
    """Return the shell command that repeats a training: the nearest preset, and all fields that
    differ from it.
    """
    presets = goal_of(catalog.get(config.task)).presets
    require(
        len(presets) > 0,
        f"task {config.task!r} has no preset, so no command trains it; give its goal presets=...",
    )
    changes = {key: _changed_fields(config, preset) for key, preset in presets.items()}
    nearest = min(changes, key=lambda key: len(changes[key]))
    parts = ["interp", "train", config.task, "--preset", nearest, "--name", name]
    if config.machine:
        builder = config.machine["builder"]
        parts += ["--machine", builder]
        for argument, value in config.machine["arguments"].items():
            parts.append(f"{argument}={_toml(value)}")
        module = BUILDERS[builder].__module__
        if not module.startswith("interp."):  # the command must import the builder first
            parts[1:1] = ["--import", module]  # after "interp"
    for field, value in changes[nearest].items():
        parts += ["--set", f"{field}={_toml(value)}"]
    return shlex.join(parts)


def _changed_fields(config: TrainingConfig, preset: TrainingConfig) -> dict[str, Any]:
    """Return the fields that differ from a preset, except the machine, which has its own option."""
    values = asdict(config)
    del values["machine"]
    defaults = asdict(preset)
    return {name: value for name, value in values.items() if value != defaults[name]}


def _toml(value: Any) -> str:
    """Return a value in TOML. Numbers, texts and booleans are written as in JSON."""
    if isinstance(value, dict):
        fields = [f"{key} = {_toml(item)}" for key, item in value.items()]
        return f"{{{', '.join(fields)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)


def stage_text(stage: Stage, task: str) -> str:
    """Return a stage of the curriculum in words, such as "500 batches of 20 rounds with up to 4 states".

    Args:
        stage: the stage.
        task: key of the task, which names the sizes.
    """
    sizes = []
    for size in catalog.get(task).sizes:
        bound = stage.sizes.get(size.name)
        if bound:
            span = f"up to {bound}" if isinstance(bound, int) else _span(*bound)
            sizes.append(f"{span} {size.option}")
    text = f"{stage.steps:,} batches of {stage.n_rounds} rounds"
    if sizes:
        text += f" with {' and '.join(sizes)}"
    if stage.until:
        goals = [f"{name} {threshold:g}" for name, threshold in stage.until.items()]
        text = f"up to {text}, until {' and '.join(goals)}"
    return text


def _span(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"


def format_table(frame: pd.DataFrame) -> str:
    """Return a data frame as a Markdown table, with four significant digits."""
    rows = [list(map(str, frame.columns)), ["---"] * len(frame.columns)]
    for cells in frame.to_numpy(object):
        rows.append([f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
