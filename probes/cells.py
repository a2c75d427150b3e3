"""Cells of a sweep: one site in one window of rounds, every target with its controls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float, Int
from numpy import ndarray as Array

from interp.interventions.sites import Site
from probes.activations import without_rounding
from probes.checks import check_untrained
from probes.controls import DESCRIPTIONS, Problem, controls_of, lacks_inputs
from probes.scores import ProbeScore
from probes.verdict import detectable_of, verdict_of

Window = tuple[int, int]
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Shared:
    """What all cells of a window share.

    Attributes:
        window: first round, and the round after the last.
        problem: the targets in these rounds.
        folds: the fold of each episode.
        digest: of everything that a cell depends on but its site.
        baselines: scores of the controls that read no activation, by (target, control).
    """

    window: Window
    problem: Problem
    folds: Int[Array, " episode"]
    digest: str
    baselines: dict[tuple[int, str], ProbeScore] = field(default_factory=dict)


def cell(
    shared: Shared, site: Site, x: Float[Array, "episode round d"], blank: Float[Array, "episode round d"]
) -> tuple[Shared, Site, list[Row]]:
    """One row per target, from activations of the model and of its untrained copy."""
    check_untrained(x, blank)
    problem = shared.problem
    fitted = problem.fit(without_rounding(x), shared.folds).scores
    of_blank = problem.fit(without_rounding(blank), shared.folds, own_only=True).scores
    others = shared.baselines | {key: score for key, score in fitted.items() if key[1] != "probe"}
    others |= {(i, "untrained"): score for (i, _), score in of_blank.items()}
    rows = []
    for i, target in enumerate(problem.targets):
        score = fitted[i, "probe"]
        controls = controls_of(target, score, {name: s for (j, name), s in others.items() if j == i})
        differences = [control.difference for control in controls.values() if control.counted]
        closest = min(differences, key=lambda difference: difference.low)
        verdict = verdict_of(score, controls, limited=lacks_inputs(target, controls))
        rows.append(
            {
                "target": target.key,
                "site": str(site),
                "component": site.component,
                "layer": site.layer,
                "head": site.head,
                "position": site.position,
                "start": shared.window[0],
                "stop": shared.window[1],
                "r2": score.estimate,
                "low": score.low,
                "high": score.high,
                **{name: controls[name].score.estimate if name in controls else None for name in DESCRIPTIONS},
                "difference": closest.estimate,
                "difference_low": closest.low,
                "verdict": verdict,
                "detectable": detectable_of(score, controls),
                "represented": verdict == "represented",
            }
        )
    return shared, site, rows


_PLACE = ("target", "site", "component", "layer", "head", "position", "start", "stop")
_RESULT = ("difference", "difference_low", "verdict", "detectable", "represented")
COLUMNS = (*_PLACE, "r2", "low", "high", *DESCRIPTIONS, *_RESULT)
"""The columns of a sweep, in their order."""
