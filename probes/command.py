"""What ``interp probe`` does: sample episodes, fit probes at a site or sweep the model, write tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from interp.errors import InputError
from interp.files import writable, write_atomic, write_json, write_text
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.qlearning.layout import QLearningRound
from interp.model.transformer import HookedLatentTransformer
from interp.tasks import experts, mdp
from probes.activations import check_sites
from probes.fit import compute, probe
from probes.result import ProbeResult
from probes.sweep import SweepResult, Window, sweep
from probes.targets.record import Episodes

__all__ = ["TARGETS", "fit_at", "sample", "sweep", "window", "write_sweep"]

TARGETS = {
    "experts": ("log_weights_centred", "log_weights", "weights", "accuracies"),
    "qlearning": ("q_table", "q_table_visited", "state_values"),
}
"""What is decoded by default, by task."""


def sample(model: HookedLatentTransformer, n_episodes: int, n_rounds: int, seed: int) -> Episodes:
    """Episodes of the model's task and sizes.

    Raises:
        InputError: numbers below 1.
    """
    layout = model.layout
    if isinstance(layout, ExpertRound):
        return experts.sample(n_episodes, n_rounds, layout.n_experts, seed=seed)
    assert isinstance(layout, QLearningRound)
    return mdp.sample(n_episodes, n_rounds, layout.n_states, layout.n_actions, seed=seed)


def fit_at(
    model: HookedLatentTransformer, episodes: Episodes, targets: Sequence[str], site: str, seed: int, folder: Path
) -> list[ProbeResult]:
    """Fit probes at one site; writes ``probes.txt``, ``.csv``, ``.json`` and a figure per target.

    Raises:
        InputError: an unknown target or site; a folder that cannot be written.
    """
    chosen = list(targets) or list(TARGETS[model.layout.task])
    check_sites(model, episodes, [site])
    compute(chosen, episodes)
    writable(folder)
    results = probe(model, episodes, chosen, site=site, seed=seed)
    frame = pd.concat([result.to_frame() for result in results], ignore_index=True)
    write_text(folder / "probes.txt", "\n\n".join(map(str, results)) + "\n")
    write_atomic(folder / "probes.csv", lambda path: frame.to_csv(path, index=False))
    write_json(folder / "probes.json", {result.target.key: result.settings for result in results})
    for result in results:
        if result.method == "ridge":
            _save(result.plot(), folder / f"{_file_name(result.target.key)}.svg")
    return results


def write_sweep(result: SweepResult, folder: Path) -> None:
    """Writes ``sweep.csv``, ``sweep.json`` and a map per target and window.

    Raises:
        InputError: a folder that cannot be written.
    """
    frame = result.to_frame()
    write_atomic(folder / "sweep.csv", lambda path: frame.to_csv(path, index=False))
    write_json(folder / "sweep.json", result.settings)
    for target, start, stop in frame[["target", "start", "stop"]].drop_duplicates().itertuples(index=False):
        _save(result.heatmap(target, window=(start, stop)), folder / f"{_file_name(target)}-{start}-{stop}.svg")


def window(text: str) -> Window:
    """Rounds from text: "0:10" is the first ten.

    Raises:
        InputError: text of another form.

    >>> window("0:10")
    (0, 10)
    """
    try:
        start, stop = map(int, text.split(":"))
    except ValueError:
        raise InputError(f"{text!r} is not a window of rounds; write first:after-last, such as 0:10") from None
    return start, stop


def _save(figure: Any, path: Path) -> None:
    write_atomic(path, lambda temporary: figure.savefig(temporary, format="svg"))


def _file_name(target: str) -> str:
    return target.replace(":", "-")
