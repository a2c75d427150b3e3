"""A machine on the bench: its episodes, its runs, what its algorithm holds, and the decoder that reads its state.

Everything that does not depend on an edit is computed once for each setting (regime, rounds, seed), and shared by all
views of it. Results are shared, so nobody may write into them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from interp import catalog
from interp.algorithm import Algorithm, Values
from interp.decoder import RIDGE
from interp.errors import InputError
from interp.interventions.moves import Writer
from interp.machine import Machine
from interp.model.layout import RoundLayout
from interp.model.replay import replay
from interp.model.rollout import rollout
from interp.model.run import Rollout
from interp.task import Task

N_EPISODES = 16
"""Episodes that can be looked at."""
_N_KNOWN, _N_EXACT = 1440, 240
"""Rounds of others that decoders are fitted on; fewer where the state is there exactly, as in a handwired machine."""


@dataclass(frozen=True, eq=False)
class Bench:
    """A machine with the episodes of one setting.

    Attributes:
        origin: how the machine was loaded, for Python: ``interp.load(...)``.
    """

    model: Machine
    origin: str
    episodes: Any
    regime: str
    seed: int

    @property
    def n_rounds(self) -> int:
        """Rounds of every episode."""
        return int(self.episodes.n_rounds)

    @cached_property
    def task(self) -> Task:
        """The record of its task."""
        return catalog.of(self.model)

    @cached_property
    def algorithm(self) -> Algorithm:
        """The algorithm that it is held against."""
        return self.task.explains(self.model)

    @cached_property
    def values(self) -> Values:
        """What the algorithm holds on every episode, ``[episode, round, ...]``."""
        return self.algorithm.run(self.episodes)

    @cached_property
    def run(self) -> Rollout:
        """The machine's run over every episode."""
        return rollout(self.model, self.episodes)

    @cached_property
    def layout(self) -> RoundLayout:
        """The layout of its rounds."""
        layout: RoundLayout = self.model.layout.fit(self.episodes)
        return layout

    @lru_cache(maxsize=N_EPISODES)  # noqa: B019  (a bench lives as long as its page)
    def alone(self, episode: int) -> Rollout:
        """The run over one episode: what edits of it begin from."""
        return rollout(self.model, self.episodes.select([episode]))

    @lru_cache(maxsize=8)  # noqa: B019
    def activations(self, hook: str, rounds: tuple[int, ...], episodes: tuple[int, ...]) -> Tensor:
        """What one episode, or all of them, have at a hook point, ``[episode, chosen round, ...]``."""
        run = self.run if len(episodes) > 1 else self.alone(*episodes)
        return replay(self.model, run, rounds=list(rounds), names_filter=hook)[2][hook]

    @cached_property
    def known(self) -> Any:
        """Episodes that decoders are fitted on, of the next seed."""
        return self.task.sample_for(self.model, self.n_known, self.n_rounds, self.seed + 1, self.regime)

    @property
    def n_known(self) -> int:
        """How many these are."""
        return -(-(_N_EXACT if self.model.is_handwired else _N_KNOWN) // self.n_rounds)

    @cached_property
    def known_run(self) -> Rollout:
        """The machine's run over them."""
        return rollout(self.model, self.known)

    @property
    def ridge(self) -> float:
        """The decoder's penalty: none where the state is there exactly."""
        return 0.0 if self.model.is_handwired else RIDGE

    @cached_property
    def writer(self) -> Writer:
        """Reads the algorithm's carried state in what the machine carries, and moves it; an error where none fits."""
        return Writer.of_state(self.model, self.known_run, self.algorithm, self.known, ridge=self.ridge)

    @cached_property
    def unreadable(self) -> str:
        """Why no state is decoded; empty where one is."""
        try:
            return "" if self.writer.shapes else "the decoder reads no variable"
        except InputError as error:
            return str(error)

    @cached_property
    def fit(self) -> dict[str, float]:
        """How well each variable is decoded on these episodes, which the decoder has not seen: R2 over all numbers."""
        if self.unreadable:
            return {}
        decoded = self.writer.read(self.run.latents[:, :-1])
        return {key: score(self.values[key], read) for key, read in decoded.items()}


def score(truth: NDArray[Any], decoded: NDArray[Any]) -> float:
    """R2 over all numbers of a variable, ``[episode, round, ...]``, each weighed by how much it varies."""
    from sklearn.metrics import r2_score  # half a second: only where it is used

    rows = (np.asarray(x, dtype=np.float64).reshape(x.shape[0] * x.shape[1], -1) for x in (truth, decoded))
    return float(r2_score(*rows, multioutput="variance_weighted"))
