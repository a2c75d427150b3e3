"""The audit of a machine: six checks of the state that it carries.

from interp.audit import Budget, audit
result = audit("reachability-learned", budget=Budget.quick())
result["used"].verdict                      # a measure of each check: number, controls, threshold and verdict
result.tables["used"]                       # the numbers behind it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from interp.audit import content, shortcuts, used
from interp.audit.trial import ALL, THRESHOLDS, Budget, Trial
from interp.core.machine import Machine
from interp.model.library import load
from interp.results.measure import Measure, Measured
from interp.support.checks import checked
from interp.support.provenance import provenance
from interp.support.session import session
from interp.support.workers import bar, one_thread


@dataclass(frozen=True, repr=False)
class AuditResult(Measured):
    """The measures of an audit and the tables behind them.

    Attributes:
        measures: one of each check; where a machine has several channels, "used" of each channel follows.
        tables: "without", "used", "by_round", "presence", "directions", "doses" and "shortcuts"; a table
            that does not apply is empty.
    """

    model: str
    measures: tuple[Measure, ...]
    tables: Mapping[str, pd.DataFrame]
    settings: Mapping[str, Any] = field(default_factory=dict)


@checked
@one_thread()
def audit(machine: str | Machine, *, budget: Budget | None = None) -> AuditResult:
    """Check what a machine's state is used for.

    Args:
        machine: a machine, or a name that :func:`interp.load` takes.
        budget: how much is run: ``Budget()`` when None; ``Budget.quick()`` does a fifth of it.
    """
    budget = budget or Budget()
    model = load(machine) if isinstance(machine, str) else machine
    model.eval()
    with session(), bar(f"auditing {model.name}", 3) as advance:
        trial = Trial.of(model, budget)
        measures = _measure_checks(trial)
        advance(1)
        measures += [used.used(trial, channel) for channel in trial.channels if channel != ALL]
        advance(1)
        tables = _make_tables(trial)
        advance(1)
    thresholds = {name: threshold.value for name, threshold in THRESHOLDS.items()}
    settings = {**vars(budget), "episodes": trial.shape[0], "thresholds": thresholds}
    return AuditResult(
        model=model.name,
        measures=tuple(measures),
        tables=tables,
        settings=provenance(model, **settings),
    )


def _measure_checks(trial: Trial) -> list[Measure]:
    """Measure the six checks, in the order in which a sentence about the model names them."""
    matters = used.content(trial)
    is_used = matters.verdict == "yes"
    measures = [used.used(trial, ALL), matters, shortcuts.side(trial)]
    return [
        *measures,
        used.lasts(trial),
        content.decoded(trial),
        content.few(trial, is_used=is_used),
    ]


def _make_tables(trial: Trial) -> dict[str, pd.DataFrame]:
    tabulate = {
        "without": used.without,
        "used": used.table,
        "by_round": used.by_round,
        "presence": used.presence,
    }
    tabulate |= {"directions": content.table, "doses": content.doses}
    tabulate |= {"shortcuts": shortcuts.table}
    return {name: make_table(trial) for name, make_table in tabulate.items()}
