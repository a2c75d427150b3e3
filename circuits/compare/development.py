"""When does a model become its algorithm? The same questions at every kept state of a training.

A row of the tables is one claim, or one algorithm, at one step of one run. NOT evidence that what rises beside another
number causes it, nor of what another seed does, beyond the runs that are given. Intervals are over episodes, not over
trainings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from circuits.compare.driver import machines
from circuits.compare.question import Budget
from interp import tasks
from interp.choices.fitting import predictor
from interp.core.machine import Machine
from interp.evaluation.plan import cut
from interp.model.rollout import rollout
from interp.support.checks import checked, checked_fields
from interp.training.runs import load_run
from probes.fitting import probe

_LEAST = 1e-6
"""The least probability that a loss takes a logarithm of."""


@dataclass(frozen=True)
@checked_fields
class Questions:
    """What is asked of every state.

    Attributes:
        targets: variables that probes read from the latents; the task's when empty.
        reference: name of the model that each state is compared with, too; not compared when empty.
        n_episodes, n_rounds, seed: of the episodes of probes and predictions.
    """

    targets: tuple[str, ...] = ()
    reference: str = ""
    n_episodes: int = 64
    n_rounds: int = 30
    seed: int = 0


@checked
def measure_state(path: str | Path, questions: Questions) -> dict[str, pd.DataFrame]:
    """Ask the questions of one kept state of a training.

    Args:
        path: of the state (:func:`interp.training.runs.kept`).
        questions: what is asked.

    Returns:
        "measures": a row a claim, ``excess`` of the run's own evaluation and ``without its state`` among them;
        "algorithms": for each algorithm of the task, at its default parameters, what the model loses a round (nats)
        where the algorithm's predictions are the truth.
    """
    run = load_run(path, "model")
    model = run.model
    task = tasks.of(model)
    episodes = task.sample_for(
        model, questions.n_episodes, task.at_most(questions.n_rounds), questions.seed
    )
    rows = [{"key": "excess", "number": run.evaluation.get("excess", np.nan)}]
    targets = questions.targets or task.analysis.probed
    for result in probe(model, episodes, list(targets), sites="latents", seed=questions.seed):
        rows.append({"key": f"probe {result.target.key}", **result.measure.row()})
    if questions.reference:
        comparison = machines(model, questions.reference, budget=Budget.quick(questions.seed))
        rows += [{"key": measure.key, **measure.row()} for measure in comparison.measures]
    about = {"step": run.step, "seed": run.config.seed}
    return {
        "measures": pd.DataFrame(rows).assign(**about),
        "algorithms": _score_algorithms(model, episodes).assign(**about),
    }


def _score_algorithms(model: Machine, episodes: Any) -> pd.DataFrame:
    """Return what the model loses where an algorithm's predictions are the truth, with its state and without it."""
    layout = model.layout
    predictions = predictor(model)(episodes)
    forgetful_run = rollout(model, episodes, fwd_hooks=[cut(model)])
    forgetful = layout.distribution(forgetful_run.predictions).double().numpy(force=True)
    rows = []
    for key, family in tasks.of(model).rivals().items():
        truth = predictor(family.make())(episodes)
        rows.append(
            {
                "algorithm": key,
                "nats": _loss(truth, predictions),
                "without_state": _loss(truth, forgetful),
            }
        )
    return pd.DataFrame(rows)


def _loss(truth: np.ndarray, predictions: np.ndarray) -> float:
    """Return the mean KL divergence of predictions from the truth, in nats a round."""
    p, q = np.maximum(truth, _LEAST), np.maximum(predictions, _LEAST)
    return float((truth * np.log(p / q)).sum(-1).mean())


def draw(measures: pd.DataFrame, algorithms: pd.DataFrame, shown: Sequence[str]) -> Any:
    """Draw the loss above the floor, what probes read, and how near the predictions are to algorithms, over steps.

    Args:
        measures: rows of "measures" of all states.
        algorithms: rows of "algorithms" of all states.
        shown: algorithms that are drawn.
    """
    import matplotlib.pyplot as plt

    figure, (loss, probed, near) = plt.subplots(1, 3, figsize=(11, 3.2))
    for seed, rows in measures.sort_values("step").groupby("seed"):
        excess = rows[rows["key"] == "excess"]
        loss.plot(excess["step"], excess["number"], marker="o", ms=3, label=f"seed {seed}")
        others = rows[rows["key"] != "excess"]
        for (key, curve), color in zip(others.groupby("key", sort=False), _colors(), strict=False):
            probed.plot(curve["step"], curve["number"], color=color, marker="o", ms=3, label=key)
            probed.plot(curve["step"], curve["control_number"], "--", color=color, lw=1)
    for (key, curve), color in zip(
        algorithms[algorithms["algorithm"].isin(shown)].groupby("algorithm"),
        _colors(),
        strict=False,
    ):
        for _, of_seed in curve.sort_values("step").groupby("seed"):
            near.plot(of_seed["step"], of_seed["nats"], color=color, marker="o", ms=3, label=key)
    loss.set_ylabel("loss above the floor (nats)", fontsize=8)
    probed.set_ylabel("probe: R2 or skill (dashed: control)", fontsize=8)
    near.set_ylabel("divergence from it (nats)", fontsize=8)
    for panel in (loss, probed, near):
        panel.set_xlabel("step")
        handles, labels = panel.get_legend_handles_labels()
        by_label = dict(zip(labels, handles, strict=True))
        panel.legend(by_label.values(), by_label.keys(), fontsize=6)
    figure.tight_layout()
    return figure


def _colors() -> list[str]:
    return [f"C{number}" for number in range(10)]


def describe(measures: pd.DataFrame) -> list[str]:
    """Say of each claim and seed from which kept step on it stays "yes"."""
    sentences = []
    judged = measures.dropna(subset="verdict").sort_values("step")
    for (key, seed), rows in judged.groupby(["key", "seed"], sort=False):
        refused = rows[rows["verdict"] != "yes"]
        last_refused = refused["step"].max() if len(refused) else -1
        later = rows[rows["step"] > last_refused]
        when = f"yes from step {later['step'].iloc[0]} on" if len(later) else "not yes at the end"
        sentences.append(f"{key}, seed {seed}: {when}")
    return sentences
