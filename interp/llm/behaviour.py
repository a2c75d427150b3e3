r"""What a language model does with the advice: the baseline it acts like, how steeply it weighs, how far it looks back.

- *Agreement*: share of its predictions that equal a baseline's, on all rounds and on *telling* rounds, those where
  the adaptive and non-adaptive baselines contradict each other (where all experts agree, everybody agrees). Rounds
  on which a baseline is undecided do not count for it.
- *Fit*: the weighted vote with weights ``exp(eta * S_i)``, ``S_i = sum_{s<t} memory^{t-1-s} [i right at s]``, whose
  choices agree best. eta = 0 is the majority vote, a large eta with memory 1 follows the leader, with memory 0 last
  round's winners. Best agreement is the maximum-likelihood fit when the model departs from the rule at a constant
  rate. eta is read off a grid; its interval is the bootstrap over episodes.
- *Use of the best and the worst expert*: in the second half, how often it says what the most reliable expert says, and
  the opposite of what the least reliable one says.

Agreement is about choices, not about how they come about: a model that agrees with weighted majority need not hold
weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from interp.checks import checked
from interp.errors import require
from interp.llm.runs import LLMRun, episodes_of, etas_of, grouped
from interp.llm.scores import run_baseline
from interp.statistics import resample_weights
from interp.tasks.experts.predictors import decisions

COMPARED = ("weighted_majority_paper", "follow_the_leader", "follow_previous_winners", "majority_vote", "bayes_uniform")
_TELLING = ("follow_the_leader", "follow_previous_winners", "majority_vote")
_ETAS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
_MEMORIES = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)


@dataclass(frozen=True)
class Behaviour:
    """What one group of runs (model, condition, regime) acts like.

    Attributes:
        agreement: one row per baseline: share on all and on telling rounds, with 95 % intervals over episodes.
        closest: the baseline that agrees most on telling rounds.
        eta, memory, fit_agreement: the best fitting weighted vote; ``eta_low``, ``eta_high`` its 95 % interval.
        eta_full_memory: best eta when memory is 1.
        says_best, opposes_worst: shares in the second half; the best and the worst by :attr:`LLMRun.reliability`.
    """

    model: str
    condition: str
    regime: str
    n: int
    agreement: pd.DataFrame
    closest: str
    eta: float
    eta_low: float
    eta_high: float
    memory: float
    fit_agreement: float
    eta_full_memory: float
    says_best: float
    opposes_worst: float

    def to_frame(self) -> pd.DataFrame:
        """One row: everything but the agreement table."""
        return pd.DataFrame([{key: value for key, value in vars(self).items() if key != "agreement"}])


@checked
def behaviour(runs: Sequence[LLMRun], seed: int = 0) -> list[Behaviour]:
    """One :class:`Behaviour` for each (model, condition, regime) in ``runs``."""
    require(bool(runs), "no runs to analyse")
    groups = grouped(run for run in runs if run.rounds and not run.missing.all())
    return [_behaviour(members, seed) for members in groups.values()]


def _behaviour(members: Sequence[LLMRun], seed: int) -> Behaviour:
    weights = resample_weights(len(members), seed=seed)
    names, choices = _choices(members)
    table = _agreement(members, names, choices, weights)
    fits = np.stack([_fit(run) for run in members])
    mean = fits.mean(axis=0)
    best_eta, best_memory = np.unravel_index(int(mean.argmax()), mean.shape)
    drawn = np.tensordot(weights, fits, axes=1).reshape(len(weights), -1).argmax(axis=1)
    etas = np.array(_ETAS)[np.unravel_index(drawn, mean.shape)[0]]
    model, condition, regime = members[0].group
    best, worst = (float(np.mean(shares)) for shares in zip(*map(_second_half, members), strict=True))
    return Behaviour(
        model=model,
        condition=condition,
        regime=regime,
        n=len(members),
        agreement=table,
        closest=str(table["baseline"].iloc[int(table["telling"].fillna(-1).to_numpy().argmax())]),
        eta=_ETAS[best_eta],
        eta_low=float(np.quantile(etas, 0.025)),
        eta_high=float(np.quantile(etas, 0.975)),
        memory=_MEMORIES[best_memory],
        fit_agreement=float(mean.max()),
        eta_full_memory=_ETAS[int(mean[:, -1].argmax())],
        says_best=best,
        opposes_worst=worst,
    )


def _choices(members: Sequence[LLMRun]) -> tuple[dict[str, str], list[dict[str, NDArray[np.float64]]]]:
    """The names of the baselines, and what each chose on the rounds of each run; 1/2 where it was undecided."""
    regime = members[0].regime
    episodes, etas = episodes_of(members, regime), etas_of(members, regime)
    rows = {index: row for row, index in enumerate(sorted({run.index for run in members}))}
    ran = {key: run_baseline(key, episodes, etas) for key in COMPARED}
    played = {key: decisions(run.predictions) for key, (_, run) in ran.items()}
    names = {key: name for key, (name, _) in ran.items()}
    return names, [{key: choices[rows[run.index], : run.rounds] for key, choices in played.items()} for run in members]


def _agree(predictions: NDArray[np.float64], choices: NDArray[Any]) -> NDArray[np.float64]:
    """1, 0, 1/2 for a tie, NaN where the prediction is missing."""
    return 1 - np.abs(predictions - choices)


def _agreement(
    members: Sequence[LLMRun],
    names: dict[str, str],
    choices: Sequence[dict[str, NDArray[np.float64]]],
    weights: NDArray[np.float64],
) -> pd.DataFrame:
    rows = []
    telling = [np.ptp([choice[key] for key in _TELLING], axis=0) == 1 for choice in choices]
    for key in COMPARED:
        row: dict[str, object] = {"baseline": names[key]}
        agreed = [_agree(run.predictions, choice[key]) for run, choice in zip(members, choices, strict=True)]
        for name, chosen in (("all", [np.full(run.rounds, True) for run in members]), ("telling", telling)):
            played = zip(members, chosen, choices, strict=True)
            counted = [use & ~run.missing & (choice[key] != 0.5) for run, use, choice in played]
            hits = np.array([a[use].sum() for a, use in zip(agreed, counted, strict=True)])
            sizes = np.array([use.sum() for use in counted], dtype=np.float64)
            total = weights @ sizes
            drawn = np.divide(weights @ hits, total, out=np.full(len(weights), np.nan), where=total > 0)
            row[name] = hits.sum() / sizes.sum() if sizes.sum() else np.nan
            known = drawn[~np.isnan(drawn)]
            bounds = np.quantile(known, [0.025, 0.975]) if len(known) else (np.nan, np.nan)
            row[f"{name}_low"], row[f"{name}_high"] = bounds
        rows.append(row)
    return pd.DataFrame(rows)


def _fit(run: LLMRun) -> NDArray[np.float64]:
    """Float[eta, memory]: agreement of one run with each weighted vote."""
    right = (run.advice == run.labels[:, None]).astype(np.float64)[: run.rounds]
    signs = 2 * run.advice[: run.rounds] - 1
    scores = np.zeros((len(_MEMORIES), *right.shape))
    for t in range(1, run.rounds):
        scores[:, t] = scores[:, t - 1] * np.array(_MEMORIES)[:, None] + right[t - 1]
    scores -= scores.max(axis=-1, keepdims=True)
    votes = (np.exp(np.array(_ETAS)[:, None, None, None] * scores) * signs).sum(axis=-1)
    choices = np.where(np.abs(votes) <= 1e-12, 0.5, (votes > 0).astype(np.float64))
    return np.nanmean(_agree(run.predictions, choices), axis=-1)


def _second_half(run: LLMRun) -> tuple[float, float]:
    """How often the model says what the best expert says, and the opposite of what the worst one says."""
    late = slice(run.rounds // 2, run.rounds)
    said = run.predictions[late]
    if run.rounds < 2 or np.isnan(said).all():
        return float("nan"), float("nan")
    best, worst = (run.advice[late, int(expert)] for expert in (run.reliability.argmax(), run.reliability.argmin()))
    return float(np.nanmean(_agree(said, best))), float(np.nanmean(_agree(said, 1 - worst)))
