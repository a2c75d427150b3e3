"""Activation patching: which positions and heads carry a difference between two runs, as labelled heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from interp.interventions.patching import PatchingResult, sweep
from reports import figures
from reports.blocks import Figure, Prose, Table
from reports.heads import Heads
from reports.page import Section
from reports.part import Context, Part

TITLE = "Patching"
LISTED = 0.01
"""Cells that restore less of the difference are left to the pictures."""
QUICK_EPISODES = 8
"""Episodes that are patched in a quick report, under the first difference alone."""
_TEXT = (
    "Two runs differ in one thing. Into the corrupted run, one activation of the clean run is put, and the share of "
    "the difference between the two that comes back is what a cell shows: **1 restores the clean run, 0 does "
    "nothing**. A cell that lights up is evidence that the difference between these two inputs passes there, not of "
    "what it means."
)


@dataclass(frozen=True)
class Difference:
    """A corruption of the task, how to say it ("One expert's vote is flipped"), and the metric that shows it."""

    what: str
    corruption: str
    metric: str = "probability"


@dataclass(frozen=True)
class PatchedDifference:
    """A sweep over the sites that a difference could pass, and how to say what was corrupted."""

    what: str
    result: PatchingResult


def part(differences: Sequence[Difference] = (), n_episodes: int = 32) -> Part:
    """Patching of the residual stream and of the heads.

    Args:
        differences: to patch; every corruption of the task when there are none.
        n_episodes: at most.
    """

    def compute(context: Context) -> list[PatchedDifference]:
        every = [Difference(record.name.capitalize(), record.key) for record in context.task.corruptions()]
        taken = list(differences or every)[: 1 if context.quick else None]
        return [patch(context, difference, QUICK_EPISODES if context.quick else n_episodes) for difference in taken]

    return Part("patching", TITLE, compute, draw, lambda context: bool(context.task.corruptions()))


def patch(context: Context, difference: Difference, n_episodes: int) -> PatchedDifference:
    """Patch the round looked at; a prediction is read where the difference first shows, the state at once."""
    corruption, t = context.task.corruption(difference.corruption), context.looked_at
    clean, corrupted = corruption.build(context.episodes.select(slice(n_episodes)), t)
    read = t if difference.metric == "state" else t + corruption.delay
    result = sweep(
        context.model, clean, corrupted, t, read=read, components=("resid_pre", "head"), metric=difference.metric
    )
    return PatchedDifference(difference.what, result)


def draw(differences: Sequence[PatchedDifference], context: Context) -> Section:
    """Heat maps of the residual stream and of the heads for each difference; then the cells that matter."""
    blocks: list[object] = [Prose(_TEXT)]
    for difference in differences:
        result = difference.result
        where = f"round {result.round}" + (f", read at round {result.read}" if result.read != result.round else "")
        caption = f"{difference.what} ({where}). Share of the difference in {result.metric.replace('_', ' ')} restored"
        for component, saying in (
            ("resid_pre", "by the residual stream before each layer"),
            ("head", "by each head's output"),
        ):
            grid = _positions(result.grid(component), result.labels)
            grid = _named_heads(grid, context.heads) if component == "head" else _named_layers(grid)
            drawn = figures.heatmap(
                grid.to_numpy(),
                list(grid.index),
                list(grid.columns),
                label="share restored",
                xlabel="position",
                limit=1,
            )
            blocks.append(
                Figure(drawn, f"{difference.what}: patching {saying}", f"{caption} {saying}.", grid.reset_index())
            )
        frame = _counted(result.to_frame(), context.heads)
        shown = frame[frame["fraction"].abs() >= LISTED]
        said = f"{difference.what}: the {len(shown)} of {len(frame)} cells that restore at least {LISTED:.0%}"
        blocks.append(Table(shown, said, collapsed=True))
    return Section(TITLE, blocks)


def _counted(frame: pd.DataFrame, heads: Heads) -> pd.DataFrame:
    """Every cell, with layers counted from one and heads by the names that the pictures call them."""
    frame = frame.drop(columns=["site", "metric", "direction", "round", "read", "propagate"])
    names = [list(of_layer) for of_layer in heads]
    places = zip(frame["layer"], frame["head"], strict=True)
    called = [
        None if pd.isna(head) or int(head) >= len(names[int(layer)]) else names[int(layer)][int(head)]
        for layer, head in places
    ]
    return frame.assign(layer=frame["layer"] + 1, head=pd.Series(called, index=frame.index, dtype=object))


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
