"""What ``interp patch`` does: corrupt sampled episodes, sweep, map rounds, write tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from interp import catalog
from interp.checks import checked, checked_fields
from interp.errors import require
from interp.files import write_csv, write_figure, write_json
from interp.interventions.metrics import METRICS, exits
from interp.interventions.metrics import metric as find_metric
from interp.interventions.pairs import corruption as find_corruption
from interp.interventions.pairs import prepare
from interp.interventions.patching import PatchingResult, RoundMap, of_pair, round_map
from interp.interventions.sites import sites
from interp.machine import Machine


@dataclass(frozen=True)
@checked_fields
class Sample:
    """The episodes that are patched: ``n_rounds`` long, or as long as the round and the map need when None.

    ``corruption`` is the key of one of the model's task, its default when empty. ``n_map`` rounds from the patched one
    on are in the round x round map of the latents; 0 for no map.
    """

    corruption: str = ""
    n_episodes: int = 64
    n_rounds: int | None = None
    n_map: int = 12
    seed: int = 0
    regime: str = ""
    sizes: Mapping[str, int] | None = None


@dataclass(frozen=True)
class PatchCommand:
    """What a run of the command gives: a sweep for each metric, and the first one's round map where effects run on."""

    corruption: str
    sweeps: tuple[PatchingResult, ...]
    rounds: RoundMap | None


@checked
def patch(
    model: Machine,
    round: int,
    *,
    components: Sequence[str] = (),
    metrics: Sequence[str] = (),
    read: int | None = None,
    propagate: bool = True,
    direction: str = "denoising",
    sample: Sample = Sample(),
) -> PatchCommand:
    """Sample episodes, corrupt them at ``round`` and patch every layer, head and position there, or every point of a
    machine that has no layers.

    Args:
        components: what is swept, :func:`interp.interventions.sites.swept` when empty.
        metrics: both exits (``metrics.exits``) when empty, or the one of them that can show the corruption.
        read: the round read; by default the first at which this corruption can show in each metric.
    """
    record, n_map = find_corruption(model, sample.corruption), sample.n_map
    require(n_map >= 0 and round >= 0, f"round and the map's size must be at least 0, got {round} and {n_map}")
    read_by = [find_metric(metric, model.layout) for metric in metrics or exits(model.layout)]
    hidden = [m for m in read_by if not (propagate or record.delay == 0 or m.needs_update)]
    require(
        not (hidden and metrics),
        f"{record.key!r} shows in predictions only {record.delay} round later, which held latents hide; "
        "let effects propagate, or read --metric state",
    )
    read_by = [m for m in read_by if m not in hidden]
    until = [round + (0 if m.needs_update else record.delay) if read is None else read for m in read_by]
    length = max(*until, round + max(n_map, 1) - 1) + 1 if sample.n_rounds is None else sample.n_rounds
    drawn = catalog.of(model).sample_for(model, sample.n_episodes, length, sample.seed, sample.regime, sample.sizes)
    clean, corrupted = record.build(drawn, round)
    cells = sites(model, components=components or None)
    swept = []
    for measure, t in zip(read_by, until, strict=True):
        pair = prepare(model, clean, corrupted, round, t)
        swept.append(of_pair(pair, sites=cells, metric=measure, direction=direction, propagate=propagate))
    at = list(range(round, min(round + n_map, length)))
    if not propagate or not at:
        return PatchCommand(record.key, tuple(swept), None)
    mapped = round_map(model, clean, corrupted, "latent", rounds=at, metric=read_by[0], direction=direction)
    return PatchCommand(record.key, tuple(swept), mapped)


def write(result: PatchCommand, folder: Path) -> list[Path]:
    """Write ``patching.csv``, ``patching.json``, a heat map per metric and component and, where made, the round map."""

    first = result.sweeps[0]
    choices = {name: getattr(first, name) for name in ("direction", "round", "propagate")}
    measured = [{name: getattr(swept, name) for name in ("metric", "read", "gap")} for swept in result.sweeps]
    frame = pd.concat([swept.to_frame() for swept in result.sweeps], ignore_index=True)
    paths = [write_csv(folder / "patching.csv", frame)]
    paths.append(write_json(folder / "patching.json", {**choices, "metrics": measured, **first.settings}))
    for swept in result.sweeps:
        for component in dict.fromkeys(site.component for site in swept.sites):
            paths.append(_svg(swept.plot(component), folder / f"{swept.metric}-{component}.svg"))
    if result.rounds is not None:
        paths.append(write_csv(folder / "rounds.csv", result.rounds.to_frame()))
        paths.append(_svg(result.rounds.plot(), folder / "rounds.svg"))
    return paths


def summary(result: PatchCommand, n: int = 10) -> pd.DataFrame:
    """The sites with the largest effects of each metric."""
    columns = ["metric", "site", "effect", "effect_low", "effect_high", "p_value", "fraction"]
    return pd.concat([swept.to_frame()[columns].head(n) for swept in result.sweeps], ignore_index=True)


def corruption_names() -> str:
    """The corruptions of every task, for the command's help."""
    named = {task.key: ", ".join(record.key for record in task.analysis.corruptions()) for task in catalog.every()}
    return "; ".join(f"{task}: {keys}" for task, keys in named.items() if keys)


def metric_names() -> str:
    """The metrics, for the command's help."""
    return ", ".join(METRICS)


def _svg(figure: Any, path: Path) -> Path:
    """Write a figure as SVG with text as text, the same bytes each time."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "interp"}):
        return write_figure(path, figure)
