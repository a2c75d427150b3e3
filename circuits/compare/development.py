"""When does a model become its algorithm? The questions of a comparison at every kept state of a training.

A row of the tables is one claim, or one family of algorithms, at one step of one run. What is NOT shown: that a number
which rises beside another one causes it, or what another seed does, beyond the runs that are given. The budget is small
and the same at every step; its intervals are over episodes, not over trainings.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from circuits.compare.driver import machines
from circuits.compare.question import Budget
from interp.support.checks import checked
from interp.training.runs import load_run

BUDGET = Budget(
    known=32,
    test=16,
    rounds=16,
    horizon=3,
    starts=3,
    battery=6,
    scored=24,
    edits=60,
    untrained=1,
)
"""What is run at every step."""
CURVES = {
    "excess": "loss above the floor (nats a round)",
    "behaviour": "predictions: R2",
    "state": "state: R2 of the reference's by an affine map",
    "update": "update: loss left by the rule (share)",
    "circuit": "heads: similarity of roles",
}
"""What is drawn, by the key of its claim, each in a panel."""


@checked
def measure_state(
    path: str | Path, reference: str | None, budget: Budget = BUDGET
) -> dict[str, pd.DataFrame]:
    """Compare a kept state of a training with a reference.

    Args:
        path: of the state (:func:`interp.training.runs.kept`).
        reference: name of a model; None for algorithms alone.
        budget: how much is run.

    Returns:
        "measures", a row a claim, with the run's own ``excess`` first; and "families", a row a family.
    """
    run = load_run(path, "model")
    about = {"step": run.step, "seed": run.config.seed}
    comparison = machines(run.model, reference, budget=budget)
    keys = ["excess", *(measure.key for measure in comparison.measures)]
    excess = pd.DataFrame([{"number": run.evaluation.get("excess", float("nan"))}])
    measures = pd.concat([excess, comparison.to_frame()], ignore_index=True)
    measures.insert(0, "key", keys)
    families = comparison.tables["algorithm"]
    return {"measures": measures.assign(**about), "families": families.assign(**about)}


def draw(measures: pd.DataFrame) -> Any:
    """Draw a panel for each claim: its number over steps, a line a seed; its control dashed, its threshold dotted."""
    import matplotlib.pyplot as plt

    shown = [key for key in CURVES if key in set(measures["key"])]
    figure, axes = plt.subplots(1, len(shown), figsize=(3.2 * len(shown), 2.9), squeeze=False)
    for key, panel in zip(shown, axes[0], strict=True):
        _draw_claim(panel, measures[measures["key"] == key])
        panel.set_title(CURVES[key], fontsize=8)
        panel.set_xlabel("step")
    figure.tight_layout()
    return figure


def _draw_claim(panel: Any, rows: pd.DataFrame) -> None:
    """Draw one claim, a line for each seed."""
    for seed, curve in rows.groupby("seed"):
        curve = curve.sort_values("step")
        (line,) = panel.plot(curve["step"], curve["number"], marker="o", ms=3, label=f"seed {seed}")
        panel.fill_between(
            curve["step"], curve["low"], curve["high"], color=line.get_color(), alpha=0.2
        )
        panel.plot(curve["step"], curve["control_number"], "--", color=line.get_color(), lw=1)
    thresholds = rows["threshold"].dropna()
    if len(thresholds):
        panel.axhline(thresholds.iloc[0], ls=":", color="gray", lw=1)


def first_steps(measures: pd.DataFrame) -> Sequence[str]:
    """Say of each claim and seed from which kept step on it is "yes"."""
    sentences = []
    judged = measures.dropna(subset="verdict")
    for (key, seed), rows in judged.groupby(["key", "seed"], sort=False):
        rows = rows.sort_values("step")
        is_open = rows["verdict"] != "yes"
        later = rows[is_open[::-1].cummax()[::-1] == False]  # noqa: E712
        when = f"yes from step {later['step'].iloc[0]} on" if len(later) else "not yes at the end"
        sentences.append(f"{key}, seed {seed}: {when}")
    return sentences
