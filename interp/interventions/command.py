"""What ``interp patch`` does: corrupt sampled episodes, sweep, map rounds, write tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from interp import tasks
from interp.checks import checked
from interp.errors import require
from interp.files import write_atomic, write_json
from interp.interventions import heatmaps
from interp.interventions.metrics import METRICS
from interp.interventions.metrics import metric as find_metric
from interp.interventions.pairs import corruption as find_corruption
from interp.interventions.patching import PatchingResult, sweep
from interp.interventions.rounds import RoundMap, round_map
from interp.model.transformer import HookedLatentTransformer
from interp.progress import bar


@dataclass(frozen=True)
class PatchCommand:
    """What a run of the command gives: the sweep, and the round map where effects run on.

    Attributes:
        corruption: key of the one that was taken.
    """

    corruption: str
    sweep: PatchingResult
    rounds: RoundMap | None


@checked
def patch(
    model: HookedLatentTransformer,
    round: int,
    corruption: str = "",
    *,
    propagate: bool = True,
    read: int | None = None,
    components: Sequence[str] = ("resid_pre", "attn_out", "head"),
    metric: str = "logit_diff",
    direction: str = "denoising",
    n_episodes: int = 64,
    n_rounds: int | None = None,
    n_map: int = 12,
    seed: int = 0,
    regime: str = "",
    sizes: Mapping[str, int] | None = None,
) -> PatchCommand:
    """Sample episodes, corrupt them at ``round`` and patch every layer, head and position there.

    Args:
        corruption: key of a corruption of the model's task; the task's default when empty.
        read: the round read; by default the first at which this corruption can show.
        n_rounds: length of the episodes; ``round + n_map`` when None.
        n_map: rounds of the round x round map of the latents, from ``round`` on; 0 for none.
        regime, sizes: of the episodes; the task's default and the model's own when not given.

    Raises:
        InputError: unknown names, a round out of range, or a corruption that held latents hide from every prediction.
    """
    record = find_corruption(model, corruption)
    require(n_map >= 0 and round >= 0, f"round and the map's size must be at least 0, got {round} and {n_map}")
    measured = find_metric(metric)
    require(
        propagate or record.delay == 0 or measured.needs_update,
        f"{record.key!r} shows in predictions only {record.delay} round later, which held latents hide; "
        "let effects propagate, or read --metric state",
    )
    shows = 0 if measured.needs_update else record.delay
    until = round + shows if read is None else read
    length = max(until + 1, round + max(n_map, 1)) if n_rounds is None else n_rounds
    clean, corrupted = record.build(tasks.of(model).sample_for(model, n_episodes, length, seed, regime, sizes), round)
    options: dict[str, Any] = {"metric": metric, "direction": direction}
    swept = sweep(model, clean, corrupted, round, components=components, read=until, propagate=propagate, **options)
    at = list(range(round, min(round + n_map, length)))
    if not propagate or not at:
        return PatchCommand(record.key, swept, None)
    with bar("round x round", len(at)) as done:
        mapped = round_map(model, clean, corrupted, "latent", rounds=at, done=done, **options)
    return PatchCommand(record.key, swept, mapped)


def write(result: PatchCommand, folder: Path) -> list[Path]:
    """Write ``patching.csv``, ``patching.json``, a heat map per component and, where made, the round map.

    Raises:
        InputError: a folder that cannot be written.
    """
    swept, paths = result.sweep, []
    choices = {name: getattr(swept, name) for name in ("metric", "direction", "round", "read", "propagate")}
    paths.append(_csv(swept.to_frame(), folder / "patching.csv"))
    paths.append(write_json(folder / "patching.json", {**choices, "gap": swept.gap, **swept.settings}))
    title = f"{swept.settings['model']}: {swept.direction} at round {swept.round}, read at {swept.read}"
    for component in dict.fromkeys(site.component for site in swept.sites):
        figure = heatmaps.heatmap(
            swept.grid(component, "effect"),
            f"{title}\n{component}",
            x="position",
            y="layer" if component != "z" else "head",
            unit=f"effect on {swept.metric} ({swept.unit})",
        )
        paths.append(heatmaps.save(figure, folder / f"{component}.svg"))
    if result.rounds is not None:
        mapped = result.rounds
        paths.append(_csv(mapped.to_frame(), folder / "rounds.csv"))
        figure = heatmaps.heatmap(
            mapped.grid(),
            f"{title}\nlatents, round x round",
            x="read at",
            y="patched at",
            unit=f"effect on {mapped.metric}",
        )
        paths.append(heatmaps.save(figure, folder / "rounds.svg"))
    return paths


def summary(swept: PatchingResult, n: int = 10) -> pd.DataFrame:
    """The sites with the largest effects."""
    frame = swept.to_frame().sort_values("effect", key=lambda effect: effect.abs(), ascending=False)
    return frame[["site", "effect", "effect_low", "effect_high", "p_value", "fraction"]].head(n)


def corruption_names() -> str:
    """The corruptions of every task, for the command's help."""
    named = {task.key: ", ".join(record.key for record in task.corruptions()) for task in tasks.every()}
    return "; ".join(f"{task}: {keys}" for task, keys in named.items() if keys)


def metric_names() -> str:
    """The metrics, for the command's help."""
    return ", ".join(METRICS)


def _csv(frame: pd.DataFrame, path: Path) -> Path:
    def store(temporary: Path) -> Any:
        return frame.to_csv(temporary, index=False)

    return write_atomic(path, store)
