"""A played episode as data, wherever it was played: what every analysis takes. :mod:`interp.llm.loading` reads them."""

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
        model, served: the requested name; the names that the server reported.
        regime, index: which instance.
        advice, labels: Int[round, expert], Int[round]: the whole instance.
        accuracies: Float[expert]; None where not known.
        predictions: Float[round played]: 0, 1, or NaN where missing; fewer than the instance's
            rounds when the episode ended early.
        notes: the note after each round played; None where there are none.
        ended: "complete", "overflow" (context full), "refused" (a server refused its next request)
            or "unfinished".
        calls, malformed, embedded: calls made, and how many answers were malformed, or stood among
            other words.
        prompt_tokens: Float[round played], prompt tokens of the last call of each round (the
            context it filled); NaN where not known.
        seconds: seconds per call, mean; NaN where not known.
        wording, prompt: which prompts, and the system prompt; "" where it is not known.
        again: predictions of further plays of the instance, where one of several was chosen.
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
        """How many rounds were played."""
        return len(self.predictions)

    @property
    def group(self) -> tuple[str, str, str]:
        """Model, condition and regime: what is averaged together."""
        return self.model, self.condition.name, self.regime

    @property
    def reliability(self) -> NDArray[np.float64]:
        """How reliable each expert is: its accuracy where that is known, otherwise its share of
        right advice over the whole instance.

        100 rounds distinguish the adversary of the anti-signal regime from the remaining experts,
        but not two equal experts.
        """
        if self.accuracies is not None and self.accuracies.ndim == 1:
            return self.accuracies
        return np.asarray((self.advice == self.labels[:, None]).mean(axis=0))

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Bool[round], where no attempt gave a readable prediction."""
        return np.isnan(self.predictions)


def grouped(runs: Iterable[LLMRun]) -> dict[tuple[str, str, str], list[LLMRun]]:
    """Return the runs of each (model, condition, regime), in the order of the first of each."""
    groups: dict[tuple[str, str, str], list[LLMRun]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    return groups


def episodes_of(runs: Iterable[LLMRun], regime: str) -> ExpertEpisodes:
    """Return the distinct instances of ``regime`` that ``runs`` played, by index, as episodes for any of our models."""
    by_index: dict[int, LLMRun] = {}
    for run in runs:
        if run.regime != regime:
            continue
        known = by_index.setdefault(run.index, run)
        same_labels = np.array_equal(known.labels, run.labels)
        is_same = same_labels and np.array_equal(known.advice, run.advice)
        require(
            is_same,
            f"{str(known.path)!r} and {str(run.path)!r} are both instance {run.index} of {regime!r} but differ; "
            "score them apart",
        )
    require(bool(by_index), f"no run of regime {regime!r}")
    chosen = [by_index[index] for index in sorted(by_index)]
    require(
        len({run.advice.shape for run in chosen}) == 1,
        f"the instances of {regime!r} differ in rounds or experts; score them apart",
    )
    unknown = np.full(chosen[0].advice.shape[1], 0.5)
    accuracies = [unknown if run.accuracies is None else run.accuracies for run in chosen]
    params = REGIMES[regime].params if regime in REGIMES else {}
    return ExpertEpisodes(
        advice=np.stack([run.advice for run in chosen]),
        labels=np.stack([run.labels for run in chosen]),
        accuracies=np.stack(accuracies),
        regime=regime,
        params=params,
    )
