"""The audit of a machine: every claim that critics of latent reasoning doubt, the most important first.

from interp.audit import QUICK, audit
found = audit("reachability-learned", effort=QUICK)
found["used"].verdict                          # a measure of each claim: number, controls, threshold and word
found.tables["used"]                        # and what they rest on
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from interp.audit import content, dynamics, shortcuts, timing, used
from interp.audit.trial import ALL, FULL, THRESHOLDS, Scope, Trial, rounds_for
from interp.core.machine import Machine
from interp.interventions.sites import carried_mask
from interp.model.library import load
from interp.results.measure import Measure, Measured
from interp.support.checks import checked
from interp.support.provenance import provenance
from interp.support.session import session
from interp.support.workers import bar, one_thread

_SEED = 50  # of the regimes that are run with twice as many rounds


@dataclass(frozen=True, repr=False)
class AuditResult(Measured):
    """What an audit found.

    Attributes:
        measures: a measure of each claim, that of every channel last.
        tables: what they rest on, by name: "without", "used", "by_round", "presence", "directions", "doses",
            "repeated", "turning", "timing", "cycles", "rest", "ends", "stretch", "points", "groups" and "shortcuts";
            those that do not apply are empty.
        points: fixed and slow points of a state of few numbers (``effort.solved``), with their picture.
    """

    model: str
    measures: tuple[Measure, ...]
    tables: Mapping[str, pd.DataFrame]
    points: dynamics.FixedPoints | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@checked
@one_thread()
def audit(machine: str | Machine, *, effort: Scope = FULL) -> AuditResult:
    """Measure every claim of a machine.

    Args:
        machine: a machine, or a name that :func:`interp.load` takes.
        effort: how much is run; ``QUICK`` takes a third of the episodes, fewer rounds and copies.
    """
    model = (load(machine) if isinstance(machine, str) else machine).eval()
    with session(), bar(f"auditing {model.name}", 5) as done:
        trial = Trial.of(model, effort)
        whole = used.used(trial, ALL)
        is_used = whole.verdict == "yes"
        measures = [whole, used.content(trial), used.lasts(trial), content.decoded(trial)]
        done(1)
        home, rounds = str(trial.episodes.regime), rounds_for(model, effort, 2)
        others = [regime for regime in trial.regimes if regime != home]
        n = min(effort.away, len(others))  # others are taken from the last one on, evenly spaced
        names = [home, *(others[len(others) - 1 - i * len(others) // n] for i in range(n))]
        keys = ["", *names[1:]]  # the sampler's default regime has no key
        longer = {
            name: Trial.of(model, effort, keys[i], _SEED + i, rounds)
            for i, name in enumerate(names)
        }
        watched = Trial.of(
            model, effort, "", _SEED, rounds_for(model, effort, 4)
        )  # what reads the truth late, too
        truth = timing.unseen(watched, is_used)
        measures[2:2] = [shortcuts.side(trial, is_used), truth]
        done(1)
        measures += [
            timing.in_time(trial, truth.verdict == "no"),
            timing.longer(longer[home], trial.shape[1]),
        ]
        measures.append(timing.stays(longer))
        done(1)
        measures += [content.few(trial, measures[1].verdict == "yes"), dynamics.settles(trial)]
        measures += [used.used(trial, channel) for channel in trial.channels if channel != ALL]
        done(1)
        narrow = not trial.grows and int(carried_mask(model).sum()) <= effort.solved
        points = (
            dynamics.fixed_points(model, trial.episodes, starts=8, seed=effort.seed)
            if narrow
            else None
        )
        presence = [
            used.presence(of).assign(regime=name) for name, of in {**longer, home: trial}.items()
        ]
        tables = {
            "without": used.without(trial),
            "used": used.table(trial),
            "by_round": used.by_round(trial),
            "presence": pd.concat(presence, ignore_index=True),
            "directions": content.table(trial),
            "doses": content.doses(trial),
            "repeated": content.repeated(trial),
            "turning": content.turning(trial),
            "timing": timing.table(trial),
            "cycles": timing.cycles(trial),
            "rest": timing.rest_table(longer),
            "ends": pd.DataFrame() if trial.grows else dynamics.ends(trial),
            "stretch": dynamics.stretch(trial),
            "points": points.table if points else pd.DataFrame(),
            "groups": shortcuts.group_table(trial),
            "shortcuts": shortcuts.table(trial),
        }
        done(1)
    about = {**vars(effort), "episodes": trial.shape[0]}
    settings = provenance(
        model, **about, thresholds={name: of.value for name, of in THRESHOLDS.items()}
    )
    return AuditResult(model.name, tuple(measures), tables, points, settings)
