"""Which algorithm each participant chooses by, at which parameters, and how far participants differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from circuits.compare.choices import ChoicePart, explain_choices
from interp.algorithm import Family
from interp.checks import array_of, checked
from interp.errors import require
from interp.measure import Found, listed
from interp.statistics import mean_interval


@dataclass(frozen=True, repr=False)
class _EachParticipant(Found):
    """Every participant by itself, fitted and scored on stretches of its own episodes where these are few.

    Attributes:
        found: which family explains the choices of each participant, by its name.
        seed: of the bootstrap over participants.
    """

    found: Mapping[str, ChoicePart]
    seed: int = field(default=0)

    @property
    def sentence(self) -> str:
        """How many participants are closest to each family, and of how many it is the name."""
        near = Counter(one.closest for one in self.found.values())
        named = Counter(one.closest for one in self.found.values() if one.family)
        each = [f"{n} closest to {key} ({named[key]} named)" for key, n in near.most_common()]
        return f"Of {len(self.found)} participants, {listed(each)}."

    def to_frame(self) -> pd.DataFrame:
        """A row for each participant: closest family, word, nats beside the floor, parameters with their intervals."""
        rows = []
        for name, one in self.found.items():
            row: dict[str, Any] = {"participant": name, "closest": one.closest, "word": one.measure.word}
            row |= {"nats": one.nats.estimate, "floor_nats": one.floor_nats.estimate, **one.over_floor.columns("saved")}
            for key, value in one.parameters.items():
                row |= one.intervals[key].columns(key) if key in one.intervals else {key: value}
            rows.append(row)
        return pd.DataFrame(rows)

    def pooled(self) -> pd.DataFrame:
        """A row for each family and parameter: its mean over the participants closest to it, and their spread.

        The spread is the standard deviation over participants, which holds the error of each one's estimate, too.
        """
        rows = []
        for key in dict.fromkeys(one.closest for one in self.found.values()):
            members = [one for one in self.found.values() if one.closest == key]
            for name in members[0].parameters:
                values = np.array([one.parameters[name] for one in members if name in one.parameters])
                row: dict[str, Any] = {"family": key, "participants": len(members), "parameter": name}
                rows.append(row | mean_interval(values, seed=self.seed).columns("mean") | {"spread": values.std()})
        return pd.DataFrame(rows)

    def _draw(self, figures: Any) -> Any:
        table = self.to_frame()
        names = table["participant"].astype(str) + ", " + table["closest"]
        drawn = pd.DataFrame({"name": names, "estimate": table["saved"]})
        drawn = drawn.assign(low=table["saved_low"], high=table["saved_high"])
        return figures.intervals(drawn, xlabel="nats a round saved beside the best guess without a memory")


@checked
def explain_each(
    episodes: Any, choices: Any, *, families: Sequence[Family] | None = None, seed: int = 0
) -> _EachParticipant:
    """Which family explains the choices of each participant, as :func:`~circuits.compare.choices.explain_choices` says.

    Args:
        episodes: what they saw, with ``participants``.
        choices: the outcome chosen ``[episode, round]``, counted from 0; NaN where there is none.
        families: those that are asked; all of the task's when None.
        seed: of the bootstraps.
    """
    require(episodes.participants is not None, "the episodes name no participants; give participants, one an episode")
    chosen, whose = array_of("choices", choices), np.asarray(episodes.participants)
    require(len(chosen) == len(episodes), f"choices must be of {len(episodes)} episodes, got {len(chosen)}")
    found = {}
    for name in np.unique(whose):
        rows = np.flatnonzero(whose == name)
        found[str(name)] = explain_choices(episodes.select(rows), chosen[rows], families=families, seed=seed)
    return _EachParticipant(found, seed)
