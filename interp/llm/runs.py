"""A played episode as data (a *run*), the input of every analysis.

:mod:`interp.llm.loading` reads runs from files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from interp.llm.schemes import Condition
from interp.support.checks import checked_result
from interp.support.errors import require
from interp.tasks.experts import REGIMES, ExpertEpisodes


@dataclass(frozen=True, eq=False)
@checked_result
class LLMRun:
    """One episode that a language model played.

    Attributes:
        model: the requested name of the model.
        condition: wording of outcomes, and what the model saw of earlier rounds.
        regime, index: regime (distribution of episodes) and number of the instance, the episode
            that was played.
        advice, labels: advice and outcomes of the whole instance, Int[round, expert] and
            Int[round].
        accuracies: accuracies of the experts, Float[expert], or Float[round, expert] if they
            change; None if unknown.
        predictions: prediction of each round played: 0, 1, or NaN if missing. There are fewer than
            in the instance if the episode ended early.
        notes: note after each round played; None if there is none.
        ended: "complete", "overflow" (context full), "refused" (a server refused the next request)
            or "unfinished".
        calls: number of calls.
        malformed: number of malformed answers.
        prompt_tokens: prompt tokens of the last call in each round played; NaN if unknown.
        total_prompt_tokens, total_completion_tokens: sums over all calls.
        wording: where the system prompt comes from, such as the name of a file.
        path: the file that the run was read from.
        served: names of the model that the server reported.
        seconds: mean duration of a call; NaN if unknown.
        prompt: the system prompt; "" if unknown.
        embedded: number of answers with further words around the JSON object.
        again: predictions of the other runs of the same instance by the same model in the same
            condition, one Float[round] per run. Empty if there are none.
    """

    model: str
    condition: Condition
    regime: str
    index: int
    advice: NDArray[np.int64]
    labels: NDArray[np.int64]
    accuracies: NDArray[np.float64] | None
    predictions: NDArray[np.float64]
    notes: tuple[str | None, ...]
    ended: str
    calls: int
    malformed: int
    prompt_tokens: NDArray[np.float64]
    total_prompt_tokens: int
    total_completion_tokens: int
    wording: str
    path: Path
    served: tuple[str, ...] = ()
    seconds: float = math.nan
    prompt: str = ""
    embedded: int = 0
    again: tuple[NDArray[np.float64], ...] = ()

    def __post_init__(self) -> None:
        played = self.rounds
        fits_instance = len(self.labels) == len(self.advice) >= played
        n_notes, n_labels = len(self.notes), len(self.labels)
        require(
            fits_instance and n_notes == len(self.prompt_tokens) == played,
            f"{str(self.path)!r}: {played} predictions, {n_notes} notes and {n_labels} labels do not belong together",
        )

    @property
    def rounds(self) -> int:
        """Number of rounds that were played."""
        return len(self.predictions)

    @property
    def group(self) -> tuple[str, str, str]:
        """The tuple (model, condition, regime). Tables of scores average runs with equal tuples."""
        return self.model, self.condition.name, self.regime

    @property
    def reliability(self) -> NDArray[np.float64]:
        """Accuracy of each expert, Float[expert]: the true accuracy, if it is known and constant.
        Otherwise an estimate: the share of the episode's rounds in which the expert is right.
        Rounds that the language model did not play are included.

        After 100 rounds the estimate shows which expert of the regime "anti-signal" is the
        adversary, who is nearly always wrong. It cannot rank experts of similar accuracy.
        """
        if self.accuracies is not None and self.accuracies.ndim == 1:
            return self.accuracies
        return (self.advice == self.labels[:, None]).mean(axis=0)

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Rounds in which no attempt gave a readable prediction, Bool[round]."""
        return np.isnan(self.predictions)


def group_runs(runs: Iterable[LLMRun]) -> dict[tuple[str, str, str], list[LLMRun]]:
    """Group runs by (model, condition, regime).

    Returns:
        (model, condition, regime) -> its runs; groups are in the order in which they first appear.
    """
    groups: dict[tuple[str, str, str], list[LLMRun]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    return groups


def episodes_of(runs: Iterable[LLMRun], regime: str) -> ExpertEpisodes:
    """Return the instances (episodes to play) of one regime that the runs played, each once and
    sorted by index, as episodes for any model of this package.
    """
    by_index: dict[int, LLMRun] = {}
    for run in runs:
        if run.regime != regime:
            continue
        # Several models may have played an instance: they must have seen the same rounds.
        first = by_index.setdefault(run.index, run)
        same_labels = np.array_equal(first.labels, run.labels)
        is_same = same_labels and np.array_equal(first.advice, run.advice)
        require(
            is_same,
            f"{str(first.path)!r} and {str(run.path)!r} are both instance {run.index} of {regime!r} but differ; "
            "score them apart",
        )
    require(by_index, f"no run of regime {regime!r}")
    numbers = sorted(by_index)
    chosen = [by_index[index] for index in numbers]
    require(
        len({run.advice.shape for run in chosen}) == 1,
        f"the instances of {regime!r} differ in rounds or experts; score them apart",
    )
    unknown = np.full(chosen[0].advice.shape[1], 0.5)  # [expert]; stands for accuracies not known
    accuracies = [unknown if run.accuracies is None else run.accuracies for run in chosen]
    params = REGIMES[regime].params if regime in REGIMES else {}
    return ExpertEpisodes(
        advice=np.stack([run.advice for run in chosen]),
        labels=np.stack([run.labels for run in chosen]),
        accuracies=np.stack(accuracies),
        regime=regime,
        params=params,
        numbers=numbers,
    )
