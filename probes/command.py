"""What ``interp probe`` does: sample episodes, fit probes at a site or sweep the model, write tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

import interp.tasks
from interp.algorithm import Episodes
from interp.checks import checked
from interp.errors import InputError
from interp.files import writable, write_csv, write_figure, write_json, write_text
from interp.interventions.sites import COMPONENTS
from interp.machine import Machine
from probes.activations import OF_LATENTS, UPDATE, places
from probes.fit import probe
from probes.result import ProbeResult
from probes.sweep import SweepResult, sweep
from probes.targets import compute, every

__all__ = ["fit_at", "sample", "site_names", "sweep", "target_names", "window", "write_sweep"]


def target_names() -> str:
    """Every target by task, for the help of ``--targets``; of those that share a key, the first."""
    return "KEY or KEY:before, of " + "; ".join(
        f"{task.key}: {', '.join(target.key for target in every(task) if '.' not in target.key)}"
        for task in interp.tasks.every()
    )


def site_names() -> str:
    """Every word that a site begins with, for the help of ``--site``."""
    return f"{', '.join((*OF_LATENTS, UPDATE, *COMPONENTS))}; of other machines latents@CHANNEL and their own points"


@checked
def sample(
    model: Machine,
    n_episodes: int,
    n_rounds: int,
    seed: int,
    regime: str = "",
    sizes: Mapping[str, int] | None = None,
) -> Episodes:
    """Episodes of the model's task and sizes, or of other ``sizes`` that it serves."""
    episodes: Episodes = interp.tasks.of(model).sample_for(model, n_episodes, n_rounds, seed, regime, sizes)
    model.layout.fit(episodes)
    return episodes


@checked
def fit_at(
    model: Machine, episodes: Episodes, targets: Sequence[str], site: str, seed: int, folder: Path
) -> list[ProbeResult]:
    """Fit probes at one site; writes ``probes.txt``, every number as ``.csv``, measures as ``.json``, and figures."""
    names = list(targets or interp.tasks.of(episodes).analysis.probed) or None
    places(model, episodes, [site])
    compute(names, episodes, model)
    writable(folder)
    results = probe(model, episodes, names, site=site, seed=seed)
    frame = pd.concat([result.scores() for result in results], ignore_index=True)
    write_text(folder / "probes.txt", "\n\n".join(map(str, results)) + "\n")
    write_csv(folder / "probes.csv", frame)
    write_json(folder / "probes.json", {r.target.key: {**r.settings, **r.measure.to_dict()} for r in results})
    for result in results:
        if result.metric == "r2":
            write_figure(folder / f"{result.target.key.replace(':', '-')}.svg", result.plot())
    return results


@checked
def write_sweep(result: SweepResult, folder: Path) -> None:
    """Writes ``sweep.csv``, ``sweep.json`` and a map per target and window."""
    frame = result.to_frame()
    write_csv(folder / "sweep.csv", frame)
    write_json(folder / "sweep.json", result.settings)
    for target, start, stop in frame[["target", "start", "stop"]].drop_duplicates().itertuples(index=False):
        path = folder / f"{target.replace(':', '-')}-{start}-{stop}.svg"
        write_figure(path, result.heatmap(target, window=(start, stop)))


@checked
def window(text: str) -> tuple[int, int]:
    """Rounds from text: "0:10" is the first ten.

    >>> window("0:10")
    (0, 10)
    """
    try:
        start, stop = map(int, text.split(":"))
    except ValueError:
        raise InputError(f"{text!r} is not a window of rounds; write first:after-last, such as 0:10") from None
    return start, stop
