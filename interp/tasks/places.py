"""Where a task's variables could be in a model, and where they cannot, as a table beside the task."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from interp import catalog
from interp.display import lacks
from interp.files import read_rows
from interp.machine import Machine

_table = cache(read_rows)
_Rows = Callable[[Machine], tuple[tuple[Any, ...], ...]]


def places(path: Path) -> tuple[_Rows, _Rows]:
    """``claims`` and ``aligned`` of a task's :class:`~interp.task.Analysis`, from a CSV file with a row for each.

    Of the variables "a|b" the first that the algorithm carries is meant, or the last. Sites are those of a transformer,
    and of any other machine where ``where`` is "else" (all that it carries without any). A row with ``{layer}`` stands
    for one for each layer but the last, and a label that ends in ``*`` for all that begin so. ``where`` is "replaced"
    for what is written only if an update replaces its slot, and "draws" for rounds that say when to explore.
    """
    return partial(_rows, path, "claim"), partial(_rows, path, "aligned")


def _rows(path: Path, kind: str, model: Machine) -> tuple[tuple[Any, ...], ...]:
    algorithm, layered, found = catalog.of(model).explains(model), not lacks(model, "embed", "resid_post"), []
    last = model.points["resid_post"].n_layers - 1 if layered else 0
    replaced = getattr(getattr(model, "config", None), "latent_update", "replace") != "add"
    where = {"": True, "else": True, "replaced": replaced, "draws": bool(model.layout.draws)}
    for row in _table(path):
        if row["of"] != kind or (row["where"] == "else") == layered or not where[row["where"]]:
            continue
        names = row["variable"].format(memory=algorithm.memory, written=algorithm.written).split("|")
        key = next((name for name in names if name in algorithm.state), names[-1])
        for layer in range(last) if "{layer}" in row["sites"] else [last]:
            sites: list[str] = []
            for text in row["sites"].format(layer=layer, last=last, before=max(last - 1, 0)).split():
                at, _, start = text.removesuffix("*").rpartition("@")
                several = (f"{at}@{label}" for label in model.layout.labels if label.startswith(start))
                sites += several if text.endswith("*") else [text]
            claim = key, sites or None, row["outcome"] or "prediction", *[True] * bool(row["control"])
            found.append((key, *sites) if kind == "aligned" else claim)
    return tuple(found)
