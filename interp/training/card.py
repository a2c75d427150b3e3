"""From a training run to a checkpoint that ships: its weights, its configuration, and a card that says what it is.

The card states the data, the preset and the exact command, seeds, time, the loss against wall time, the metrics with
intervals and what stands beside them, and the limits. Weights are stored in float32, as trained.
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
from interp.evaluation.suite import headline
from interp.model.checkpoints import BUILDERS, save_checkpoint
from interp.model.library import SHIPPED
from interp.model.transformer import HookedLatentTransformer
from interp.support.checks import checked, folder_name
from interp.support.errors import require
from interp.support.provenance import git_revision, versions
from interp.training.config import Stage, TrainingConfig
from interp.training.goal import goal_of
from interp.training.runs import TrainedRun, called, load_run
from interp.training.trainer import this_machine


@checked
def ship(
    run_folder: str | Path,
    name: str,
    *,
    n_episodes: int = 1000,
    seed: int = 11,
    out: str | Path = SHIPPED,
) -> Path:
    """Write ``out/name`` (model.safetensors, config.json, README.md) from the newest state of a run, finished or not.

    ``n_episodes`` and ``seed`` are of the card's metrics. Example: ``ship("output/training/experts-laptop",
    "wma-learned-additive")``.
    """
    folder = Path(out) / folder_name("name", name)
    require(not folder.exists(), f"{str(folder)!r} exists already; remove it to ship again")
    run = load_run(run_folder, name)
    origin = {**run.model.origin, "description": _describe(run)}
    model, trained = run.model, run.model
    if isinstance(trained, HookedLatentTransformer):
        model = HookedLatentTransformer(replace(trained.config, name=name, origin=origin))
        model.load_state_dict(trained.state_dict())
        model.eval()
    else:
        model.origin = origin
    metrics = headline(model, n_episodes=n_episodes, seed=seed)
    return save_checkpoint(
        model, folder, card=card(run, name, metrics, n_episodes=n_episodes, seed=seed)
    )


def _describe(run: TrainedRun) -> str:
    """One line: task, what it was trained on, size."""
    config = run.config
    n_parameters = sum(parameter.numel() for parameter in run.model.parameters())  # type: ignore[attr-defined]
    task = catalog.get(config.task)
    learned = goal_of(task).learns or task.name
    if config.regimes:
        learned += f" ({', '.join(dict.fromkeys(config.regimes))})"
    unfinished = (
        "" if run.finished else f", stopped after {run.step:,} of {config.total_steps:,} batches"
    )
    kind = f"latents {'added to' if config.latent_update == 'add' else 'replaced'}"
    if config.machine:
        kind = f"built by {called(config.machine)}"
    return f"trained on {learned}; {n_parameters:,} parameters, {kind}{unfinished}"


def card(run: TrainedRun, name: str, metrics: pd.DataFrame, *, n_episodes: int, seed: int) -> str:
    """The model card, in Markdown."""
    config, task, choice = run.config, catalog.get(run.config.task), run.model.layout.choice_label
    limits, about = (
        goal_of(task).limits,
        {"versions": versions(), "git": git_revision(), **run.about},
    )
    early = config.patience > 0 or any(
        stage.until for stage in config.curriculum
    )  # over before all steps are made
    optimizers = f"AdamW at {config.lr:g}"
    if config.muon_lr and not config.machine:
        optimizers += f", Muon at {config.muon_lr:g} for the matrices of the blocks"
    because = about.get("precision_because", "named by the settings")
    made = f"{config.n_layers} layers, d_model {config.d_model}, {config.n_heads} heads, d_mlp {config.d_mlp}"
    if config.machine:
        carried = ", ".join(
            f"{channel.name} {list(channel.shape)}" for channel in run.model.channels
        )
        made = f"{called(config.machine)}, which carries {carried}"
    spans = [
        f"{low:.4g} to {high:.4g}" for low, high in zip(metrics.low, metrics.high, strict=True)
    ]
    template = Path(__file__).with_suffix(".md").read_text("utf-8")
    text = template.format(
        name=name,
        kind="machine" if config.machine else "transformer",
        described=_describe(run),
        made=made,
        data=f"{config.dataset_episodes:,} episodes"
        if config.dataset_episodes
        else "fresh episodes in every batch",
        regimes=f", regimes in turn, a batch each: {', '.join(config.regimes)}"
        if config.regimes
        else "",
        sizes=", ".join(f"{_span(*config.sizes[size.name])} {size.option}" for size in task.sizes),
        stages="; ".join(_stage_text(stage, config.task) for stage in config.curriculum),
        optimizers=optimizers,
        config=config,
        decay={"cosine": "cosine to 0", "linear": "linear to 0 in the second half"}[config.decay],
        why="" if because == "named by the settings" else f" ({because})",
        window=_truncation(config),
        commit=f"{choice} was the {config.commit} choice in training, own in every number below"
        if choice
        else "",
        run=run,
        most="at most " * early,
        minutes=run.seconds / 60,
        machine=about.get("machine") or this_machine(),
        software=", ".join(
            f"{package} {version}" for package, version in about["versions"].items()
        ),
        git=about["git"],
        command=command(config, name),
        seed=seed,
        n_episodes=n_episodes,
        metrics=_table(metrics.assign(**{"95 %": spans})[["what", "estimate", "95 %", "beside"]]),
        losses=_table(_loss_curve(run)),
        limits="\n".join(["\n\n## Limits\n", *(f"- {limit}" for limit in limits)])
        if limits
        else "",
    )
    return re.sub(r"(?m)^- \*\*.*\*\*: \n", "", text)  # what does not apply


def _truncation(config: TrainingConfig) -> str:
    """Say how backpropagation through time is truncated, and when the optimizer steps."""
    if not config.window:
        return "no truncation through time"
    if config.step_each == "batch":
        return f"gradients cut every {config.window} rounds, a step a batch"
    return f"a step every {config.window} rounds"


def _loss_curve(run: TrainedRun, points: int = 12) -> pd.DataFrame:
    """At most ``points`` evaluations, at about equal distances in time: minutes, step and every number."""
    evaluated = run.metrics.dropna() if len(run.metrics) else run.metrics
    if not len(evaluated):
        return pd.DataFrame({"minutes": [], "step": []})
    targets = [evaluated["seconds"].max() * (i + 1) / points for i in range(points)]
    chosen = evaluated.loc[
        sorted({int((evaluated["seconds"] - target).abs().idxmin()) for target in targets})
    ]
    frame = chosen.drop(columns=["stage", "seconds", "loss"]).assign(minutes=chosen["seconds"] / 60)
    return frame[["minutes", "step", *(c for c in frame.columns if c not in ("minutes", "step"))]]


def command(config: TrainingConfig, name: str) -> str:
    """The command that trains this again: the nearest preset, and every field in which the run differs from it."""

    def differing(preset: TrainingConfig) -> dict[str, Any]:
        """Return the fields that the preset lacks; a machine is named by an option of its own."""
        values = asdict(config)
        defaults = asdict(preset)
        return {
            name: value
            for name, value in values.items()
            if name != "machine" and value != defaults[name]
        }

    candidates = {
        key: differing(preset) for key, preset in goal_of(catalog.get(config.task)).presets.items()
    }
    require(
        bool(candidates),
        f"task {config.task!r} has no preset, so no command trains it; give its goal presets=...",
    )
    preset, changed = min(candidates.items(), key=lambda item: len(item[1]))
    parts = ["interp", "train", config.task, "--preset", preset, "--name", name]
    if config.machine:
        given = [
            f"{argument}={_toml(value)}" for argument, value in config.machine["arguments"].items()
        ]
        module = BUILDERS[config.machine["builder"]].__module__
        parts += ["--machine", config.machine["builder"], *given]
        if not module.startswith("interp."):
            parts[1:1] = ["--import", module]
    for field, value in changed.items():
        parts += ["--set", f"{field}={_toml(value)}"]
    return shlex.join(parts)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return (
        "[" + ", ".join(map(_toml, value)) + "]"
        if isinstance(value, list | tuple)
        else json.dumps(value)
    )


def _stage_text(stage: Stage, task: str) -> str:
    bounds = [(stage.sizes.get(size.name), size.option) for size in catalog.get(task).sizes]
    said = [
        (f"up to {bound}" if isinstance(bound, int) else _span(*bound), name)
        for bound, name in bounds
        if bound
    ]
    sizes = " and ".join(f"{span} {name}" for span, name in said)
    until = " and ".join(f"{name} {least:g}" for name, least in stage.until.items())
    return (
        f"{'up to ' if until else ''}{stage.steps:,} batches of {stage.n_rounds} rounds"
        + (f" with {sizes}" if sizes else "")
        + (f", until {until}" if until else "")
    )


def _span(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"


def _table(frame: pd.DataFrame) -> str:
    """A frame as Markdown; numbers to four significant digits."""
    cells = [
        [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row]
        for row in frame.to_numpy(object)
    ]
    rows: list[list[str]] = [list(map(str, frame.columns)), ["---"] * len(frame.columns), *cells]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
