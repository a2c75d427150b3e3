"""What ``interp patch`` does: corrupt sampled episodes, sweep, map rounds, write tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from interp import catalog
from interp.checks import checked
from interp.errors import require
from interp.files import write_csv, write_figure, write_json
from interp.interventions.metrics import METRICS, exits
from interp.interventions.metrics import metric as find_metric
from interp.interventions.pairs import corruption as find_corruption
from interp.interventions.patching import PatchingResult, RoundMap, round_map, sweep
from interp.interventions.sites import COMPONENTS
from interp.machine import Machine
from interp.progress import bar


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
    corruption: str = "",
    *,
    propagate: bool = True,
    read: int | None = None,
    components: Sequence[str] = (),
    metrics: Sequence[str] = (),
    direction: str = "denoising",
    n_episodes: int = 64,
    n_rounds: int | None = None,
    n_map: int = 12,
    seed: int = 0,
    regime: str = "",
    sizes: Mapping[str, int] | None = None,
) -> PatchCommand:
    """Sample episodes, corrupt them at ``round`` and patch every layer, head and position there, or every point of a
    machine that has no layers.

    Args:
        corruption: key of a corruption of the model's task; the task's default when empty.
        components: what is swept, :func:`interp.interventions.sites.swept` when empty.
        read: the round read; by default the first at which this corruption can show in each metric.
        metrics: both exits (``metrics.exits``) when empty, or the one of them that can show the corruption.
        n_rounds: length of the episodes; ``round + n_map`` when None.
        n_map: rounds of the round x round map of the latents, from ``round`` on; 0 for none.
    """
    record = find_corruption(model, corruption)
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
    length = max(*until, round + max(n_map, 1) - 1) + 1 if n_rounds is None else n_rounds
    pair = record.build(catalog.of(model).sample_for(model, n_episodes, length, seed, regime, sizes), round)
    options: dict[str, Any] = {"components": components or None, "direction": direction, "propagate": propagate}
    swept = tuple(sweep(model, *pair, round, metric=m, read=t, **options) for m, t in zip(read_by, until, strict=True))
    at = list(range(round, min(round + n_map, length)))
    if not propagate or not at:
        return PatchCommand(record.key, swept, None)
    with bar("round x round", len(at)) as done:
        mapped = round_map(model, *pair, "latent", rounds=at, done=done, metric=read_by[0], direction=direction)
    return PatchCommand(record.key, swept, mapped)


def write(result: PatchCommand, folder: Path) -> list[Path]:
    """Write ``patching.csv``, ``patching.json``, a heat map per metric and component and, where made, the round map."""
    from interp.figures import heatmaps  # matplotlib is heavy

    first = result.sweeps[0]
    choices = {name: getattr(first, name) for name in ("direction", "round", "propagate")}
    measured = [{name: getattr(swept, name) for name in ("metric", "read", "gap")} for swept in result.sweeps]
    frame = pd.concat([swept.to_frame() for swept in result.sweeps], ignore_index=True)
    paths = [write_csv(folder / "patching.csv", frame)]
    paths.append(write_json(folder / "patching.json", {**choices, "metrics": measured, **first.settings}))
    title = f"{first.settings['model']}: {first.direction} at round {first.round}"
    for swept in result.sweeps:
        for component in dict.fromkeys(site.component for site in swept.sites):
            table, name = swept.grid(component, "effect"), f"{title}, read at {swept.read}\n{component}"
            kind = next(site.kind for site in swept.sites if site.component == component)
            rows = "head" if kind.n_heads else "layer" if component in COMPONENTS else "point"
            unit = f"effect on {swept.metric} ({swept.unit})"
            figure = heatmaps({name: table}, label=unit, xlabel="position", ylabel=rows)
            paths.append(_svg(figure, folder / f"{swept.metric}-{component}.svg"))
    if result.rounds is not None:
        table, name = result.rounds.grid(), f"{title}\nlatents, round x round"
        unit = f"effect on {result.rounds.metric}"
        figure = heatmaps({name: table}, label=unit, xlabel="read at", ylabel="patched at")
        paths.append(write_csv(folder / "rounds.csv", result.rounds.to_frame()))
        paths.append(_svg(figure, folder / "rounds.svg"))
    return paths


def summary(result: PatchCommand, n: int = 10) -> pd.DataFrame:
    """The sites with the largest effects of each metric."""
    parts = []
    for swept in result.sweeps:
        frame = swept.to_frame().sort_values("effect", key=lambda effect: effect.abs(), ascending=False)
        parts.append(frame[["metric", "site", "effect", "effect_low", "effect_high", "p_value", "fraction"]].head(n))
    return pd.concat(parts, ignore_index=True)


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
