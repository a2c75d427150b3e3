"""When does a model in training become its algorithm? Measure every saved checkpoint.

A row of the tables is one claim, or one algorithm, at one step of one training run. The tables are
NOT evidence that a number which rises together with another one causes it, nor of what another seed
does. Intervals are over episodes, not over training runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import special

from circuits.compare.driver import machines
from circuits.compare.question import Budget
from interp import tasks
from interp.choices.fitting import checked_distributions, divergence, predictor
from interp.core.algorithm import Predicted
from interp.core.machine import Machine
from interp.evaluation.plan import cut
from interp.model.rollout import rollout
from interp.results.style import in_house_style
from interp.support.checks import checked, checked_fields, require_columns
from interp.training.runs import load_run
from probes.fitting import probe

_LEAST_P = 1e-6
"""Smallest probability in the logarithm of a loss."""


@dataclass(frozen=True)
@checked_fields
class Questions:
    """What is measured at every checkpoint of a training run.

    Attributes:
        targets: keys of the algorithm's variables that probes decode from the latents; when empty,
            the task's default ones.
        reference: name of a model that each checkpoint is compared with; when empty, there is no
            comparison.
        n_episodes, n_rounds: number of episodes for probes and predictions, and of rounds per
            episode.
        seed: seed of these episodes, of the probes, and of the comparison.
    """

    targets: tuple[str, ...] = ()
    reference: str = ""
    n_episodes: int = 64
    n_rounds: int = 30
    seed: int = 0


@checked
def measure_state(path: str | Path, questions: Questions) -> dict[str, pd.DataFrame]:
    """Measure one checkpoint of a training run.

    Args:
        path: the checkpoint, a file (:func:`interp.training.runs.list_kept_states` lists those of a
            run).
        questions: what is measured.

    Returns:
        {name: table} with two tables. Both have the columns step (the checkpoint's training step)
        and seed (the run's seed).

        "measures" has one row per claim: one for each probe, and one for each claim of the
        comparison with the model ``questions.reference`` (none if this is empty). The columns are
        key (of the claim) and those of :meth:`interp.results.measure.Measure.row`, such as number
        and verdict. A further row has the key "excess"; its number is the model's loss above the
        lowest possible loss, at the last evaluation of the training before the checkpoint.

        "algorithms" has one row per algorithm of the task, at its default parameters. The columns
        are algorithm (its key), nats and without_state. nats is the divergence of the model's
        predictions from the algorithm's, averaged over episodes and rounds; without_state is the
        same if the model's latents are reset in every round. The divergence is Kullback-Leibler's,
        in nats, for classes, and :func:`interp.choices.fitting.divergence` for predicted numbers.
    """
    run = load_run(path, "model")
    model = run.model
    task = tasks.of(model)
    episodes = task.sample_for(
        model, questions.n_episodes, task.cap_rounds(questions.n_rounds), questions.seed
    )
    rows = [{"key": "excess", "number": run.evaluation.get("excess", np.nan)}]
    targets = questions.targets or task.analysis.probed
    for result in probe(model, episodes, targets, sites="latents", seed=questions.seed):
        rows.append({"key": f"probe {result.target.key}", **result.measure.row()})
    if questions.reference:
        comparison = machines(model, questions.reference, budget=Budget.quick(questions.seed))
        rows += [{"key": measure.key, **measure.row()} for measure in comparison.measures]
    columns = {"step": run.step, "seed": run.config.seed}
    return {
        "measures": pd.DataFrame(rows).assign(**columns),
        "algorithms": score_algorithms(model, episodes).assign(**columns),
    }


def score_algorithms(model: Machine, episodes: Any) -> pd.DataFrame:
    """Measure how far a model's predictions are from those of each algorithm of its task.

    Args:
        model: the model.
        episodes: the episodes to predict.

    Returns:
        A table with one row per algorithm. The columns are "algorithm" (its key), "nats"
        (divergence in nats per round) and "without_state" (the same if the model reads its initial
        latents in every round).
    """
    task = tasks.of(model)
    # `cut` puts the initial latents before every round.
    forgetful_run = rollout(model, episodes, fwd_hooks=[cut(model)])
    forgetful = model.layout.distribution(forgetful_run.predictions).numpy(force=True)
    predictions = {
        "nats": checked_distributions(predictor(model)(episodes), episodes),
        "without_state": checked_distributions(forgetful, episodes),
    }
    rows = []
    for key, family in task.rivals().items():
        truth = checked_distributions(predictor(family.make())(episodes), episodes)
        losses = {name: _measure_loss(truth, p, task.kind) for name, p in predictions.items()}
        rows.append({"algorithm": key, **losses})
    return pd.DataFrame(rows)


def _measure_loss(truth: np.ndarray, predictions: np.ndarray, kind: Predicted) -> float:
    """Return the mean divergence of a model's predictions from an algorithm's, in nats per round.

    It is the Kullback-Leibler divergence, with predicted probabilities of at least 1e-6.

    Args:
        truth, predictions: the distributions that the algorithm and the model predict, ``[episode,
            round, outcome]``.
        kind: kind of the predictions; for real numbers, :func:`interp.choices.fitting.divergence`
            is used instead.
    """
    if kind != "classes":
        return float(divergence(truth, predictions, kind).mean())
    possible = np.maximum(predictions, _LEAST_P)
    return float(special.rel_entr(truth, possible).sum(-1).mean())


@in_house_style
def draw(measures: pd.DataFrame, algorithms: pd.DataFrame, shown: Sequence[str]) -> Figure:
    """Draw three panels over training steps: the loss above the lowest possible one, the scores of
    probes, and the divergence of the model's predictions from those of algorithms.

    Args:
        measures: the tables "measures" that :func:`measure_state` returns for all checkpoints,
            concatenated.
        algorithms: the tables "algorithms" that it returns, concatenated.
        shown: keys of the algorithms to draw.
    """
    require_columns("measures", measures, "key", "seed", "step", "number", "control_number")
    require_columns("algorithms", algorithms, "algorithm", "seed", "step", "nats")
    figure = Figure(figsize=(11, 3.2))
    loss, probed, near = figure.subplots(1, 3)
    is_excess = measures["key"] == "excess"
    seeds = "seed " + measures["seed"].astype(str)
    # Checkpoints between two evaluations repeat the number of the last one: only the first is drawn.
    evaluated = measures[is_excess].drop_duplicates(["seed", "number"])
    _draw_lines(loss, evaluated.assign(label=seeds), "number")
    claims = measures[~is_excess].assign(label=measures["key"])
    _draw_lines(probed, claims, "number", control="control_number")
    is_shown = algorithms["algorithm"].isin(shown)
    _draw_lines(near, algorithms[is_shown].assign(label=algorithms["algorithm"]), "nats")
    for panel, label in (
        (loss, "loss above the floor (nats)"),
        (probed, "probe: R2 or skill (dashed: control)"),
        (near, "divergence from it (nats)"),
    ):
        panel.set_ylabel(label, fontsize=8)
        panel.legend(fontsize=6)
    return figure


def _draw_lines(axes: Axes, frame: pd.DataFrame, number: str, control: str = "") -> None:
    """Draw a line over steps for each label and seed; all lines of one label have one colour.

    Args:
        axes: the axes to draw on.
        frame: table with the columns ``label``, ``seed``, ``step``, and the columns to draw.
        number: name of the column to draw.
        control: name of a column to draw dashed; "" for none.
    """
    axes.set_xlabel("step")
    for place, (label, rows) in enumerate(frame.groupby("label", sort=False)):
        color = f"C{place}"
        for order, (_, curve) in enumerate(rows.sort_values("step").groupby("seed")):
            name = f"_{label}" if order else str(label)  # one entry a label in the legend
            axes.plot(curve["step"], curve[number], color=color, marker="o", ms=3, label=name)
            if control:
                axes.plot(curve["step"], curve[control], "--", color=color, lw=1)


def describe(measures: pd.DataFrame) -> list[str]:
    """Return one sentence per claim and seed of training. The sentence names the training step from
    which on the claim's verdict is always "yes"; or it says "not yes at the end", if the verdict at
    the last checkpoint is another one.

    Args:
        measures: the tables "measures" that :func:`measure_state` returns for all checkpoints,
            concatenated.
    """
    sentences = []
    judged = measures.dropna(subset="verdict").sort_values("step")
    for (key, seed), rows in judged.groupby(["key", "seed"], sort=False):
        refused = rows[rows["verdict"] != "yes"]
        last_refused = max(refused["step"], default=-1)
        later = rows[rows["step"] > last_refused]
        when = f"yes from step {later['step'].iloc[0]} on" if len(later) else "not yes at the end"
        sentences.append(f"{key}, seed {seed}: {when}")
    return sentences
