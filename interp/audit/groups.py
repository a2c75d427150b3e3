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
from interp.audit.used import influence, mean


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
    for name, mask in groups(trial).items():
        at = mask[:, list(trial.writes)].T
        for change in (DONOR, INITIAL) if at.any() else ():
            effect, cost = (mean(np.where(at, of[..., 0], np.nan)) for of in influence(trial, ALL, change))
            numbers = {**effect.columns("effect"), **cost.columns("cost")}
            rows.append({"group": name, "change": change, **numbers, "n": int(at.sum())})
    return pd.DataFrame(rows)
