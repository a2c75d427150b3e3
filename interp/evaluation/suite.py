"""Everything that is measured of one model, as named tables: what ``interp evaluate`` writes.

    >>> import interp
    >>> model = interp.load("wma-handwired", n_experts=2)
    >>> len(plan_of(model).parts(model))
    20

The task's :class:`~interp.evaluation.plan.EvaluationPlan` defines what is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from interp.core import catalog
from interp.core.machine import Machine
from interp.evaluation.plan import EvaluationPlan, notes
from interp.results.measure import Result
from interp.support.checks import checked_result
from interp.support.errors import InputError, require
from interp.support.files import write_csv, write_json
from interp.support.provenance import provenance
from interp.support.session import Finished
from interp.support.workers import each

_Part = Any
"""A part is a table, or several by name."""


@dataclass(frozen=True, eq=False)
@checked_result
class Evaluation(Result):
    """All tables of one model, by name; "summary" is the one to print."""

    tables: dict[str, pd.DataFrame]
    settings: dict[str, Any] = field(repr=False)
    explained: str = ""

    @property
    def sentence(self) -> str:
        """What was measured, and what the columns of the summary are."""
        n_episodes = self.settings["n_episodes"]
        measured = f"{self.settings['model']}, measured on {n_episodes} episodes of each regime."
        return f"{measured} {self.explained}".strip()

    def to_frame(self) -> pd.DataFrame:
        """Return the summary."""
        return self.tables["summary"]

    @property
    def notes(self) -> dict[str, str]:
        """The sentences of tables without numbers, by name: what does not apply to this model."""
        return notes(self.tables)

    def write(self, folder: str | Path) -> list[Path]:
        """Write one CSV per table and ``settings.json``, each atomically."""
        folder = Path(folder)
        paths = [write_csv(folder / f"{name}.csv", frame) for name, frame in self.tables.items()]
        return [*paths, write_json(folder / "settings.json", self.settings)]


def plan_of(model: Machine) -> EvaluationPlan:
    """Return how models of this task are evaluated; refuse a task with a record that names no
    evaluation.
    """
    task = catalog.of(model)
    if task.evaluation is None:
        raise InputError(
            f"models of {task.key!r} cannot be evaluated: give the task's record evaluation=..."
        )
    return task.evaluation()


def evaluate(
    model: Machine,
    *,
    n_episodes: int = 128,
    seed: int = 0,
    done: Callable[[int], None] = lambda steps: None,
    n_jobs: int = 1,
    scheduler: str = "",
    folder: str | Path | None = None,
    shard: str = "",
) -> Evaluation | None:
    """Measure everything that the model's task plans.

    Args:
        model: the model.
        n_episodes: per regime; long episodes use half of it.
        seed: seed of the episodes.
        done: called with 1 after each of the plan's parts.
        n_jobs, scheduler: workers that measure the parts, as :func:`interp.support.workers.each`
            takes them.
        folder: where finished parts are kept until all are, so that a run that was killed goes on;
            None keeps none.
        shard: measure and keep only these parts (:func:`interp.support.shares.divide`), which needs
            a folder.

    Returns:
        The evaluation; None of a share.
    """
    plan = plan_of(model)
    used = catalog.of(model).recorded
    require(
        not used,
        f"evaluation draws the regimes of its plan; leave interp.tasks.using first, which has {used}",
    )
    require(
        n_episodes >= plan.min_episodes,
        f"episodes must be at least {plan.min_episodes}, got {n_episodes}",
    )
    names = list(plan.parts(model))
    settings = provenance(model, n_episodes=n_episodes, seed=seed)
    settings.pop("git")
    finished = Finished(folder, settings)
    measured_here = finished.divide(names, _Part, shard)
    shared = (model, n_episodes, seed, finished)
    parts = {}
    for name, part in each(_measured, shared, measured_here, n_jobs=n_jobs, scheduler=scheduler):
        parts[name] = part
        done(1)
    if shard:
        return None
    tables = plan.tables(model, {name: parts[name] for name in names})
    described = {"task": model.layout.task, "commit": "own", "origin": model.origin}
    finished.clear()
    settings = provenance(model, n_episodes=n_episodes, seed=seed, **described)
    return Evaluation(tables, settings, explained=plan.explained)


def _measured(shared: tuple[Machine, int, int, Finished], part: str) -> tuple[str, Any]:
    """Return a part by its name: read where it was kept, else measured and kept."""
    model, n_episodes, seed, finished = shared
    measure = partial(plan_of(model).measure, model, part, n_episodes, seed)
    return part, finished.part(part, _Part, measure)


def headline(model: Machine, *, n_episodes: int = 1000, seed: int = 11) -> pd.DataFrame:
    """Compute the few numbers of a model card, one row per claim, each with its 95 % interval over
    episodes.

    Args:
        model: the model.
        n_episodes: of the main rows; slower ones use a fraction of them.
        seed: seed of the episodes.
    """
    plan = plan_of(model)
    if plan.headline is None:
        raise InputError(
            f"the evaluation of {model.layout.task!r} names no headline; give its plan headline=..."
        )
    return pd.DataFrame(plan.headline(model, n_episodes, seed))
