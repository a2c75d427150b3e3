"""Run the audit of a model: six checks of the state that it carries from round to round::

    from interp.audit import Budget, audit
    result = audit("reachability-learned", budget=Budget.quick())
    result["used"].verdict
    result.tables["used"]

Each check gives a measure: a number with controls, a threshold and a verdict. The tables have the
numbers that the measures were computed from.
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
    """The result of an audit: a measure (number, controls and verdict) for each check of the state
    that the model carries from round to round, and the tables behind them.

    Attributes:
        model: name of the model.
        measures: one measure per check. If the state has several channels, such as h and c of an
            LSTM, there is also one measure per channel, with the key "used".
        tables: name -> table; a table that does not apply is empty.

            - "without": effect of replacing the state in every round
              (:func:`interp.audit.used.without`);
            - "used": effect on later rounds of replacing the state once
              (:func:`interp.audit.used.table`);
            - "by_round": effect on a round of replacing the state that it reads
              (:func:`interp.audit.used.by_round`);
            - "presence": loss with the mean or the initial state
              (:func:`interp.audit.used.presence`);
            - "directions", "doses": effect of replacing a part of the state
              (:func:`interp.audit.content.table`, :func:`interp.audit.content.doses`);
            - "shortcuts": the model compared with heuristics
              (:func:`interp.audit.shortcuts.table`).
        settings: {name: value} of sizes, thresholds, seed and versions.
    """

    model: str
    measures: tuple[Measure, ...]
    tables: Mapping[str, pd.DataFrame]
    settings: Mapping[str, Any] = field(default_factory=dict)


@checked
@one_thread()
def audit(machine: str | Machine, *, budget: Budget | None = None) -> AuditResult:
    """Run six checks of the state that a model carries from round to round.

    Their keys are:

    - "used": does the state lower the loss?
    - "content": does the content of the state lower the loss, or only the presence of a state?
    - "side": does the model follow the algorithm where heuristics, which carry no state, are wrong?
    - "lasts": does a changed state also raise the loss of the next round?
    - "decoded": can the algorithm's memory be decoded from the state?
    - "directions": do few directions of the state carry its effect?

    Args:
        machine: a model, or a name or path that :func:`interp.load` accepts.
        budget: numbers of episodes, rounds and untrained copies (a control); by default
            ``Budget()``. ``Budget.quick()`` takes about a fifth of the time.

    Returns:
        A measure (number, controls, threshold and verdict) for each check, and the tables behind
        them.
    """
    budget = budget or Budget()
    model = load(machine) if isinstance(machine, str) else machine
    model.eval()
    with session(), bar(f"auditing {model.name}", 3) as advance:
        trial = Trial.of(model, budget)
        measures = _measure_checks(trial)
        advance(1)
        measures += [used.check_use(trial, channel) for channel in trial.channels if channel != ALL]
        advance(1)
        tables = _make_tables(trial)
        advance(1)
    thresholds = {name: threshold.value for name, threshold in THRESHOLDS.items()}
    n_episodes, n_rounds = trial.shape
    settings = {
        **vars(budget),
        "episodes": n_episodes,
        "rounds": n_rounds,
        "thresholds": thresholds,
    }
    return AuditResult(
        model=model.name,
        measures=tuple(measures),
        tables=tables,
        settings=provenance(model, **settings),
    )


def _measure_checks(trial: Trial) -> list[Measure]:
    """Run the six checks, and return a measure for each. The order of the measures is the order in
    which a sentence about the model mentions them.

    Args:
        trial: the model with its episodes.
    """
    content_measure = used.check_content(trial)
    # Directions of a state that lowers no loss say nothing: their check then does not apply.
    is_used = content_measure.verdict == "yes"
    return [
        used.check_use(trial, ALL),
        content_measure,
        shortcuts.check_side(trial),
        used.check_duration(trial),
        content.check_decoding(trial),
        content.check_directions(trial, is_used=is_used),
    ]


def _make_tables(trial: Trial) -> dict[str, pd.DataFrame]:
    return {
        "without": used.without(trial),
        "used": used.table(trial),
        "by_round": used.by_round(trial),
        "presence": used.presence(trial),
        "directions": content.table(trial),
        "doses": content.doses(trial),
        "shortcuts": shortcuts.table(trial),
    }
