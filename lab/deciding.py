"""How often the intervals that decide state and update hold the truth, and how far more episodes would move it.

The machines have a state and an update that are neither exact nor wrong: Weighted Majority with noise of .1 in its
latents, and ``wma-learned``, against the handwired machine. The truth of a comparison is the score that maps fitted to
as many episodes have on new ones (:mod:`circuits.compare.question`): for each small comparison, the mean of all others
of its size, which has an eighth of its luck.

Beside it stand large comparisons, of :data:`LARGE` times as many episodes in the same rounds. Maps that are fitted on
many episodes are better ones, so that the mean of the large ones is a harder truth: it counts the bias of small maps.

``python -m lab calibrate --table deciding`` writes it. What this is NOT: coverage on other machines, tasks or
thresholds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from circuits.compare.effects import effects
from circuits.compare.question import FULL, QUICK, Effort, Participant, Samples
from circuits.compare.state import stitch
from circuits.compare.update import updates
from interp.core.machine import Machine
from interp.model.library import load
from interp.stats.intervals import exact_share
from interp.support.session import session
from lab.variants import noisy

LARGE, N_LARGE, N_SMALL = 7, 4, {True: 12, False: 60}
"""How many times as many episodes a large comparison has; how many large ones; how many small ones, by quick."""
_N_EXPERTS = 4
_EFFORTS = {"QUICK": QUICK, "FULL": FULL}


@cache
def _handwired() -> Any:
    machine: Any = load("wma-handwired", n_experts=_N_EXPERTS)
    return machine.double()


MACHINES: dict[str, Callable[[], Machine]] = {
    "noise .1": lambda: noisy(_handwired(), 0.1),
    "wma-learned": lambda: load("wma-learned"),
}


def parts(quick: bool) -> tuple[str, ...]:
    """Every comparison, ``"MACHINE, EFFORT, small or large, SEED"``; quick ones at quick effort alone."""
    sizes = {"small": N_SMALL[quick], "large": N_LARGE}
    return tuple(
        f"{machine}, {effort}, {size}, {seed}"
        for effort in list(_EFFORTS)[: 1 if quick else 2]
        for machine in MACHINES
        for size, n in sizes.items()
        for seed in range(n)
    )


def comparison(quick: bool, advance: Callable[[int], None], part: str) -> pd.DataFrame:
    """Every number that decides state or update in one comparison, with its interval."""
    machine, effort, size, seed = part.split(", ")
    rows = deciding(MACHINES[machine](), _sized(_EFFORTS[effort], size, int(seed)))
    advance(1)
    return rows.assign(machine=machine, effort=effort, size=size, seed=int(seed))


def _sized(effort: Effort, size: str, seed: int) -> Effort:
    times = LARGE if size == "large" else 1
    offset = 10_000 if size == "large" else 0
    return replace(
        effort, known=times * effort.known, test=times * effort.test, seed=1 + seed + offset
    )


def deciding(model: Machine, effort: Effort) -> pd.DataFrame:
    """A row a number: stitched both ways, with and without the round, worth, step R2, and inputs in what is written."""
    samples = Samples.draw(model, effort, {"n_experts": _N_EXPERTS})
    own, reference = Participant(model, samples), Participant(_handwired(), samples)
    algorithm = {"wm": reference.task.explains(reference.model)}
    with session():
        state = stitch(own, reference, [], effort)
        steps, moves = updates(own, algorithm, [], effort), effects(own, algorithm, [], effort)
    found = [
        (
            "state",
            f"{'there' if s.source == own.name else 'back'}{', with the round' * len(s.supplied)}",
            s.score,
        )
        for s in state.stitchings
        if not s.control
    ]
    found += [
        ("state", f"worth, {'own' if k == own.name else 'reference'}", v)
        for k, v in state.worth.items()
    ]
    found += [("update", f"{u.manifold} the manifold, {u.horizon} on", u.r2) for u in steps.updates]
    inputs = [e for e in moves.effects if e.what == "input" and e.outcome == "state" and e.score]
    found += [("update", f"input {e.variable}", e.score) for e in inputs if e.score]
    ends = {"value": "estimate", "low": "low", "high": "high"}
    return pd.DataFrame(
        {
            "question": q,
            "number": name,
            **{column: getattr(score, end) for column, end in ends.items()},
        }
        for q, name, score in found
    )


def covered(frame: pd.DataFrame) -> pd.DataFrame:
    """The coverage of every number, from the rows of small and large comparisons.

    ``truth_below`` and ``truth_above`` are the shares of intervals that the truth lies below and above; ``low`` and
    ``high`` are the exact 95 % bounds of the coverage. ``of_large`` is the share of intervals that hold the mean of the
    large comparisons (``large``).
    """
    rows: list[dict[str, Any]] = []
    for key, group in frame.groupby(["machine", "question", "number", "effort"], sort=False):
        small, large = group[group["size"] == "small"], group[group["size"] == "large"]
        n, mean, most = len(small), float(small["value"].mean()), float(large["value"].mean())
        truth = (n * mean - small["value"]) / (n - 1)  # of each small one, the mean of the others
        below, above = (int(side.sum()) for side in (truth < small["low"], truth > small["high"]))
        sure = exact_share((small["low"] <= truth) & (truth <= small["high"]))
        held = float(((small["low"] <= most) & (most <= small["high"])).mean())
        named = dict(zip(("machine", "question", "number", "effort"), key, strict=True))
        shares = {
            "coverage": 1 - (below + above) / n,
            "truth_below": below / n,
            "truth_above": above / n,
        }
        spread = {
            "mean": mean,
            "sd": float(np.std(small["value"], ddof=1)),
            "large": most,
            "of_large": held,
        }
        rows.append({**named, "n": n, **shares, "low": sure.low, "high": sure.high, **spread})
    return pd.DataFrame(rows)


def summary(frame: pd.DataFrame) -> str:
    """The coverage of every number as text."""
    return (
        "Coverage of nominal 95 % intervals of what decides state and update: of the mean of other comparisons of\n"
        "this size, and of that of large ones\n"
        f"{covered(frame).round(4).to_string(index=False)}"
    )
