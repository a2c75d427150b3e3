"""Activation patching: which positions and heads carry a difference between two runs, as labelled heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from interp.interventions.patching import PatchingResult
from reports import figures
from reports.blocks import Figure, Prose, Table
from reports.page import Section
from reports.sections.inside import Heads

_TEXT = (
    "Two runs differ in one thing. Into the corrupted run, one activation of the clean run is put, and the share of "
    "the difference between the two that comes back is what a cell shows: **1 restores the clean run, 0 does "
    "nothing**. A cell that lights up is evidence that the difference between these two inputs passes there, not of "
    "what it means."
)


@dataclass(frozen=True)
class Patched:
    """A sweep, and how to say what was corrupted ("one expert's vote is flipped")."""

    what: str
    result: PatchingResult


def patching(sweeps: Sequence[Patched], heads: Heads) -> Section:
    """Heat maps of the residual stream and of the heads for each sweep; every cell with its interval in a table."""
    blocks: list[object] = [Prose(_TEXT)]
    for sweep in sweeps:
        result = sweep.result
        where = f"round {result.round}" + (f", read at round {result.read}" if result.read != result.round else "")
        caption = f"{sweep.what} ({where}). Share of the difference in {result.metric.replace('_', ' ')} restored"
        for component, saying in (
            ("resid_pre", "by the residual stream before each layer"),
            ("head", "by each head's output"),
        ):
            grid = _positions(result.grid(component), result.labels)
            grid = _named_heads(grid, heads) if component == "head" else _named_layers(grid)
            drawn = figures.heatmap(
                grid.to_numpy(),
                list(grid.index),
                list(grid.columns),
                label="share restored",
                xlabel="position",
                limit=1,
            )
            blocks.append(Figure(drawn, f"{sweep.what}: patching {saying}", f"{caption} {saying}."))
        frame = result.to_frame().drop(columns=["metric", "direction", "round", "read", "propagate"])
        blocks.append(Table(frame, f"{sweep.what}: every cell, with intervals", collapsed=True))
    return Section("Patching", blocks)


def _positions(grid: pd.DataFrame, labels: Sequence[str]) -> pd.DataFrame:
    return grid[[label for label in labels if label in grid.columns]]


def _named_layers(grid: pd.DataFrame) -> pd.DataFrame:
    return grid.rename(index={name: f"before layer {int(name[1:]) + 1}" for name in grid.index})


def _named_heads(grid: pd.DataFrame, heads: Heads) -> pd.DataFrame:
    """Rows L0H0, ... under the heads' own names; heads that the circuit does not have are left out."""
    names = {
        f"L{layer}H{head}": f"{name} {text}".strip()
        for layer, of_layer in enumerate(heads)
        for head, (name, text) in enumerate(of_layer.items())
    }
    return grid.loc[[row for row in names if row in grid.index]].rename(index=names)
