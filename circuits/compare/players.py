r"""What language models play like: which algorithm explains the choices of their runs (:mod:`interp.llm`).

:func:`behaviour` asks :func:`~circuits.compare.choices.explain_choices` for each model, condition and regime, and says
how often, in the second half, the model says what the most reliable expert says, and the opposite of what the least
reliable one says. Choices that fit an algorithm do not show that a model holds weights.

Where instances were played more than once, the plays say how much of a player is noise. Who chooses with probability m
what it prefers in a round agrees with itself with :math:`m^2 + (1 - m)^2`. So where two plays agree in a share r of the
rounds, no algorithm agrees with the player in more than :math:`(1 + \sqrt{2 r - 1}) / 2` of them: the *ceiling*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from circuits.compare.choices import ChoicePart, explain_choices
from circuits.compare.fitting import predictor
from interp.checks import checked
from interp.errors import require
from interp.llm.runs import LLMRun, episodes_of, grouped
from interp.machine import Machine
from interp.statistics import NO_NUMBER, Interval, ratio_interval
from interp.tasks.experts.players import player_families

FEWEST = 8
"""Instances below which no algorithm is asked for: a bootstrap over fewer says little."""


@dataclass(frozen=True)
class PlayerBehaviour:
    """What one group of runs (model, condition, regime) plays like.

    Attributes:
        n: how many runs.
        found: which algorithm explains the choices; None below :data:`FEWEST` runs.
        says_best, opposes_worst: shares in the second half; the best and the worst by :attr:`LLMRun.reliability`.
        repeated: share of the rounds in which further plays of an instance choose as the one that is scored; NaN where
            there are none.
    """

    model: str
    condition: str
    regime: str
    n: int
    found: ChoicePart | None
    says_best: float
    opposes_worst: float
    repeated: Interval = NO_NUMBER

    def __str__(self) -> str:
        said = f"{self.model}, {self.condition}, {self.regime}: {self.found or self.answer}"
        if np.isnan(self.repeated.estimate):
            return said
        return f"{said}; repeated plays agree in {self.repeated} of the rounds, an algorithm in at most {self.ceiling}"

    @property
    def ceiling(self) -> Interval:
        """The most that any algorithm can agree, by how much repeated plays do."""
        return Interval(*((1 + max(0.0, 2 * share - 1) ** 0.5) / 2 for share in vars(self.repeated).values()))

    @property
    def answer(self) -> str:
        """Which algorithm it is, in a few words."""
        return self.found.answer if self.found else f"undecided; fewer than {FEWEST} instances"

    def to_frame(self) -> pd.DataFrame:
        """One row."""
        row: dict[str, Any] = {"model": self.model, "condition": self.condition, "regime": self.regime, "n": self.n}
        row |= {"word": "undecided", "plays_like": self.answer}
        if self.found:
            found, link = self.found, self.found.scores[self.found.closest].link
            row |= {"word": found.measure.word, "closest": found.closest, "runner_up": found.runner_up}
            row |= {"parameters": ", ".join(f"{k} {found.intervals.get(k, v)}" for k, v in found.parameters.items())}
            row |= {"lapse": link.lapse, "temperature": link.temperature}
            for name in ("nats", "floor_nats", "lead", "agreement", "telling"):
                row |= getattr(found, name).columns(name)
        if not np.isnan(self.repeated.estimate):
            row |= self.repeated.columns("repeated") | self.ceiling.columns("ceiling")
        return pd.DataFrame([row | {"says_best": self.says_best, "opposes_worst": self.opposes_worst}])

    def machines(self) -> pd.DataFrame:
        """One row for each machine that the player was held against."""
        rows = []
        for name, one in (self.found.beside if self.found else {}).items():
            row: dict[str, Any] = {"model": self.model, "condition": self.condition, "regime": self.regime}
            row |= {"n": self.n, "machine": name, "word": one.measure.word}
            for part in ("telling", "over_floor", "over_untrained", "left"):
                row |= getattr(one, part).columns(part)
            rows.append(row)
        return pd.DataFrame(rows)

    def families(self) -> pd.DataFrame:
        """One row for each family, the best first; empty where none was asked."""
        whose = {"model": self.model, "condition": self.condition, "regime": self.regime}
        return self.found.to_frame().assign(**whose) if self.found else pd.DataFrame()


@checked
def behaviour(runs: Sequence[LLMRun], seed: int = 0, machines: Sequence[Machine] = ()) -> list[PlayerBehaviour]:
    """One :class:`PlayerBehaviour` for each (model, condition, regime) in ``runs`` that has a prediction.

    Args:
        machines: models of expert advice; does the player choose as each of them does?
    """
    require(bool(runs), "no runs to analyse")
    groups = grouped(run for run in runs if run.rounds and not run.missing.all())
    for machine in machines:
        task = machine.layout.task
        require(task == "experts", f"{machine.name!r} is a model of {task}; runs of language models are of experts")
    return [_behaviour(members, seed, machines) for members in groups.values()]


def behaviour_tables(acts: Sequence[PlayerBehaviour]) -> dict[str, pd.DataFrame]:
    """What ``interp llm score`` writes of them: ``behaviour`` (a row a group) and ``families`` (a row a family)."""
    if not acts:
        return {}
    tables = {"behaviour": [one.to_frame() for one in acts], "families": [one.families() for one in acts]}
    tables |= {"machines": [one.machines() for one in acts]}
    return {name: pd.concat(frames, ignore_index=True) for name, frames in tables.items()}


def _behaviour(members: Sequence[LLMRun], seed: int, machines: Sequence[Machine]) -> PlayerBehaviour:
    model, condition, regime = members[0].group
    episodes = episodes_of(members, regime)
    choices = np.full((len(episodes), episodes.n_rounds), np.nan)
    for row, run in enumerate(sorted(members, key=lambda run: run.index)):
        choices[row, : run.rounds] = run.predictions
    found = None
    if len(members) >= FEWEST:
        beside = {one.name: (predictor(one)(episodes), predictor(one.fresh(seed))(episodes)) for one in machines}
        families = player_families(episodes.n_experts)
        found = explain_choices(episodes, choices, families=families, beside=beside, seed=seed)
    best, worst = (float(np.mean(shares)) for shares in zip(*map(_second_half, members), strict=True))
    return PlayerBehaviour(model, condition, regime, len(members), found, best, worst, _repeated(members, seed))


def _repeated(members: Sequence[LLMRun], seed: int) -> Interval:
    """How often further plays of an instance choose as the one that is scored, over instances."""
    rounds = []
    for run in members:
        plays = [np.stack([run.predictions[: len(other)], other[: run.rounds]]) for other in run.again]
        both = np.concatenate([*plays, np.empty((2, 0))], axis=1)
        known = ~np.isnan(both).any(0)
        rounds.append(((both[0] == both[1]).sum(), known.sum()))
    alike, counted = np.array(rounds, float).T
    return ratio_interval(alike, counted, seed=seed)


def _second_half(run: LLMRun) -> tuple[float, float]:
    """How often the model says what the best expert says, and the opposite of what the worst one says."""
    late = slice(run.rounds // 2, run.rounds)
    said = run.predictions[late]
    if run.rounds < 2 or np.isnan(said).all():
        return float("nan"), float("nan")
    best, worst = (run.advice[late, int(expert)] for expert in (run.reliability.argmax(), run.reliability.argmin()))

    def agreeing(words: NDArray[np.int64]) -> float:
        return float(np.nanmean(1 - np.abs(said - words)))

    return agreeing(best), agreeing(1 - worst)
