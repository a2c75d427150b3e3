"""Right and wrong apart: the effect of the state where the model answers as the algorithm, where not, and where easy.

*Easy* is a round that needs no state: every heuristic of the task that answers at all answers as the algorithm does.
A mean over all rounds can hide that a state is used only where the model is wrong, or only where nothing asks for it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from interp.audit.changes import DONOR, INITIAL
from interp.audit.shortcuts import answers
from interp.audit.trial import ALL, Array, Trial
from interp.audit.used import influence
from interp.statistics import ratio_interval


def groups(trial: Trial) -> dict[str, Array]:
    """Bool[episode, round] by name; empty where there is no algorithm to be right by, or no outcomes."""
    if trial.algorithm is None or trial.run.layout.kind != "classes":
        return {}
    right, sure = answers(trial.predicted_by(trial.algorithm))
    said, _ = answers(trial.plain)
    found = {"right": sure & (said == right), "wrong": sure & (said != right), "open": ~sure}
    agree, any_sure = np.ones_like(sure), np.zeros_like(sure)
    for heuristic in trial.heuristics.values():
        given, also = answers(trial.predicted_by(heuristic))
        agree &= ~also | (given == right)
        any_sure |= also
    if trial.heuristics:
        found |= {"easy": sure & agree & any_sure, "not easy": sure & ~(agree & any_sure)}
    return found


def table(trial: Trial) -> pd.DataFrame:
    """Effect and cost of two changes on the prediction of the same round, by group of rounds."""
    rows = []
    reads = list(trial.writes)
    for name, mask in groups(trial).items():
        at = mask[:, reads].T
        if not at.any():
            continue
        for change in (DONOR, INITIAL):
            found = influence(trial, ALL, change)
            parts: dict[str, float] = {}
            for of in ("effect", "cost"):
                values, counts = found.at(0, of)
                kept = at & counts
                parts |= ratio_interval(np.where(kept, values, 0).sum(0), kept.sum(0)).columns(of)
            rows.append({"group": name, "change": change, **parts, "n": int(at.sum())})
    return pd.DataFrame(rows)
