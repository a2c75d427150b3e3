"""Evaluate one model: all its tables by name, as ``interp evaluate`` writes them.

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
from interp.support.workers import run_on_workers

_Part = Any
"""Result of one part of an evaluation: a table, or several tables by name."""


@dataclass(frozen=True, eq=False)
@checked_result
class Evaluation(Result):
    """The evaluation of one model: its tables by name.

    Attributes:
        tables: name -> table. The table "summary" has the main numbers; which other tables there
            are depends on the task.
        settings: {name: value} of the model, number of episodes, seed and versions of software.
        explained: sentences that explain the rows and columns of "summary".
    """

    tables: dict[str, pd.DataFrame]
    settings: dict[str, Any] = field(repr=False)
    explained: str = ""

    @property
    def sentence(self) -> str:
        """A sentence that says which model was measured, on how many episodes, and what the rows
        and columns of the summary mean.
        """
        n_episodes = self.settings["n_episodes"]
        measured = f"{self.settings['model']}, measured on {n_episodes} episodes of each regime."
        return f"{measured} {self.explained}".strip()

    def to_frame(self) -> pd.DataFrame:
        """Return the table "summary", which has the main numbers of the evaluation."""
        return self.tables["summary"]

    @property
    def notes(self) -> dict[str, str]:
        """{name of a table: sentence}, for the tables without numbers. The sentence says why the
        table does not apply to this model.
        """
        return notes(self.tables)

    def write(self, folder: str | Path) -> list[Path]:
        """Write one CSV file per table, and ``settings.json``, to ``folder``. If writing is
        interrupted, no incomplete file is left.

        Returns:
            The paths of the files.
        """
        folder = Path(folder)
        paths = [write_csv(folder / f"{name}.csv", frame) for name, frame in self.tables.items()]
        return [*paths, write_json(folder / "settings.json", self.settings)]


def plan_of(model: Machine) -> EvaluationPlan:
    """Return the evaluation plan of the model's task, which says what is measured.

    Raises:
        InputError: the task has no evaluation plan.
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
    """Measure everything in the evaluation plan of the model's task. The plan has parts, such as
    one for each regime (distribution of episodes).

    Args:
        model: the model.
        n_episodes: number of episodes per regime; costly parts, such as long episodes, use half of
            it.
        seed: seed of the episodes.
        done: function that is called with the number 1 after each part, for a progress bar.
        n_jobs: number of worker processes that compute the parts; -1 for one per core.
        scheduler: address of a dask scheduler, whose workers then compute the parts in place of
            processes here; "" for none.
        folder: folder that stores finished parts, so that an interrupted run can resume; None
            stores nothing.
        shard: which share of the parts to compute, such as "2/64" for the second of 64 shares
            (:func:`interp.support.shares.divide`). The results are then stored in ``folder`` and
            not returned. "" means all parts: parts that are stored in ``folder`` are read, all
            others are computed.

    Returns:
        The evaluation; None if ``shard`` is set.
    """
    plan = plan_of(model)
    recorded = catalog.of(model).recorded
    require(
        not recorded,
        f"evaluation draws the regimes of its plan; leave interp.tasks.using first, which has {recorded}",
    )
    require(
        n_episodes >= plan.min_episodes,
        f"episodes must be at least {plan.min_episodes}, got {n_episodes}",
    )
    names = list(plan.parts(model))
    settings = provenance(model, n_episodes=n_episodes, seed=seed)
    settings.pop("git")  # a later commit may continue this evaluation
    finished = Finished(folder, settings)  # results of parts that are stored in the folder
    measured_here = finished.divide(names, _Part, shard)
    shared = (model, n_episodes, seed, finished)
    parts = {}
    for name, part in run_on_workers(
        _measure_part, shared, measured_here, n_jobs=n_jobs, scheduler=scheduler
    ):
        parts[name] = part
        done(1)
    if shard:
        return None
    tables = plan.tables(model, {name: parts[name] for name in names})
    # "own": where a round contains the model's choice, evaluations let it read its own.
    described = {"task": model.layout.task, "commit": "own", "origin": model.origin}
    finished.clear()
    settings = provenance(model, n_episodes=n_episodes, seed=seed, **described)
    return Evaluation(tables, settings, explained=plan.explained)


def _measure_part(shared: tuple[Machine, int, int, Finished], part: str) -> tuple[str, Any]:
    """Return the name and the result of one part of an evaluation, such as one regime. A result
    that is stored in a file is read; any other result is computed and stored.

    Args:
        shared: the model, the number of episodes, the seed, and the folder of finished parts.
        part: name of the part.
    """
    model, n_episodes, seed, finished = shared
    measure = partial(plan_of(model).measure, model, part, n_episodes, seed)
    return part, finished.part(part, _Part, measure)
