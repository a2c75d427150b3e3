"""What every claim of an audit shares: a model, episodes, its run over them, and how far predictions lie apart.

Predictions are compared as distributions. Of classes the distance is the total variation, from 0 to 1; of a real number
it is the distance of the means in units of two standard deviations of the means that the model gives, and 1 at most.
What a change *costs* is by how much the task's own loss rises, by the truth.

What is fixed of every claim, its threshold and the threshold's reason stand in ``claims.json``; the rule that judges is
that of :mod:`interp.results.measure`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from interp.core import catalog
from interp.core.algorithm import Algorithm, participants_of, refuse_missing
from interp.core.machine import Machine
from interp.interventions.experiment import Again, run_on
from interp.model.rollout import rollout
from interp.model.run import Rollout, room
from interp.model.transformer import untrained
from interp.results.measure import UNTRAINED, Control, Side, best_of, claims
from interp.stats.intervals import Interval
from interp.support.checks import check_fields, integer
from interp.support.errors import InputError, require

Array = NDArray[Any]
ALL = "all that is carried"
"""The name of every channel together."""
_SPARE = 3  # so many more untrained copies are drawn at most until the predictions of enough of them are finite


class _Threshold(NamedTuple):
    """A number that a word rests on; ``why`` says where it comes from, and what was measured at it."""

    value: float
    why: str


_FIXED = json.loads(Path(__file__).with_name("claims.json").read_text("utf-8"))
THRESHOLDS = {name: _Threshold(*of) for name, of in _FIXED["thresholds"].items()}
"""Name -> the threshold. They were chosen with the planted machines that ``tests/audit`` calls seen; the others were
judged once they stood."""


claimed = claims(
    {
        k: {**of, "threshold": THRESHOLDS[of["threshold"]].value}
        for k, of in _FIXED["claims"].items()
    }
)
"""The measure of a claim: its number, with what ``claims.json`` says of every machine, and changes to that."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """How much an audit runs.

    Attributes:
        episodes: of each regime; at least one of each participant, where episodes are recorded.
        rounds: of an episode, at most; as many as the task has new things in, where these are fewer.
        writes: rounds, evenly spaced, in which what is carried is changed.
        away: how many regimes beside the sampler's default are run.
        held: rounds in which the inputs are held, to see where the state goes.
        jacobians: episodes whose Jacobian is computed; ``along`` how many rounds of theirs, for exponents.
        solved: fixed points are looked for in states of at most so many numbers.
        copies: untrained copies that are put in the model's place; the best of them is a control of every claim.
    """

    episodes: int = 96
    rounds: int = 12
    writes: int = 6
    away: int = 3
    held: int = 40
    jacobians: int = 3
    along: int = 4
    solved: int = 16
    copies: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what leaves nothing to compare: folds of episodes, a round after the first, a step after a step."""
        check_fields(self)
        least = {"episodes": 8, "rounds": 2, "away": 0, "held": 10, "copies": 0, "seed": 0}
        for name, value in vars(self).items():
            integer(name, value, least.get(name, 1))


FULL = Scope()
QUICK = Scope(episodes=32, rounds=8, writes=3, away=2, held=24, jacobians=1, along=2, copies=2)


@dataclass(eq=False)
class Trial:
    """A model on episodes, with what was computed for it (:func:`interp.support.session.remembered`).

    Attributes:
        shape: episodes and rounds.
        writes: the rounds whose state is changed before it is read: evenly spaced from the second to the last.
        channels: rows of what is carried by channel; all of them first, where there are several channels.
        grows: the first channel that grows; empty where none does.
        whose: the number of the participant of each episode, over which intervals are; of the episode, where nobody is.
        first_half: which episodes are of the first half of these.
        algorithm: what the model is held against; None where its task registers nothing.
    """

    model: Machine
    episodes: Any
    effort: Scope

    def __post_init__(self) -> None:
        """What needs no run."""
        refuse_missing("an audit", self.episodes)
        self.whose = participants_of(self.episodes)
        self.first_half = self.whose < (self.whose.max() + 1) // 2
        self.task, self.layout = catalog.of(self.model), self.model.layout.fit(self.episodes)
        self.shape, last = (len(self.episodes), self.episodes.n_rounds), self.episodes.n_rounds - 1
        evenly = np.linspace(1, last, min(self.effort.writes, last)).round().astype(int).tolist()
        self.writes = tuple(sorted(set(evenly)))
        rows, at = {}, 0
        for channel in self.model.channels:
            rows[channel.name] = list(range(at, at + channel.rows))
            at += channel.rows
        # How far a cache is written belongs to the cache.
        for name in [
            name
            for name in rows
            if name.endswith("_length") and name.removesuffix("_length") in rows
        ]:
            rows[name.removesuffix("_length")] += rows.pop(name)
        self.grows = next((channel.name for channel in self.model.channels if channel.grows), "")
        self.channels = {ALL: list(range(at)), **(rows if len(rows) > 1 else {})}
        algorithms = self.task.algorithms
        known = (
            algorithms.records()
            or algorithms.hypothesis is not None
            or getattr(self.model, "algorithm", None)
        )
        self.algorithm: Algorithm | None = self.task.explains(self.model) if known else None

    @classmethod
    def of(
        cls, model: Machine, effort: Scope, regime: str = "", seed: int = 0, n_rounds: int = 0
    ) -> Trial:
        """On new episodes of a regime, of the sampler's default one where none is named."""
        task = catalog.of(model)
        n_rounds = n_rounds or rounds_for(model, effort)
        require(
            n_rounds >= 2,
            f"an audit looks from one round to the next: {model.name!r} has room for {n_rounds}",
        )
        n_episodes = max(effort.episodes, task.recorded.get("participants", 0))
        return cls(
            model, task.sample_for(model, n_episodes, n_rounds, effort.seed + seed, regime), effort
        )

    @cached_property
    def regimes(self) -> tuple[str, ...]:
        """The regimes that have episodes of the model's size."""

        def serves(regime: str) -> bool:
            with suppress(InputError):
                return len(self.task.sample_for(self.model, 1, 2, self.effort.seed, regime)) == 1
            return False

        return tuple(filter(serves, self.task.data.regimes()))

    @cached_property
    def run(self) -> Rollout:
        """What the model does when nothing is changed."""
        with torch.no_grad():
            return rollout(self.model, self.episodes)

    @cached_property
    def heuristics(self) -> dict[str, Algorithm]:
        """The algorithms of the task that carry nothing, by key."""
        made = {record.key: record.make() for record in self.task.algorithms.records()}
        return {key: algorithm for key, algorithm in made.items() if not algorithm.state}

    def predicted_by(self, algorithm: Algorithm) -> Float[np.ndarray, "episode round outcome"]:
        """The distribution that an algorithm gives over the same episodes."""
        return np.asarray(algorithm.distribution(algorithm.run(self.episodes)), np.float64)

    def distribution(self, predictions: Tensor) -> Array:
        """Predictions ``[..., episode, round, ...]`` as ``[..., episode, round, outcome]``."""
        return np.asarray(self.run.layout.distribution(predictions.double()).numpy(force=True))

    @cached_property
    def plain(self) -> Float[np.ndarray, "episode round outcome"]:
        """What the model predicts when nothing is changed."""
        return self.distribution(self.run.predictions)

    def distance(self, one: Array, other: Array) -> Array:
        """How far distributions ``[..., outcome]`` lie apart, from 0 to 1."""
        if self.run.layout.kind == "classes":
            return np.asarray(0.5 * np.abs(one - other).sum(-1))
        return np.minimum(
            np.abs(one[..., 0] - other[..., 0]) / (2 * float(self.plain[..., 0].std()) or 1.0), 1.0
        )

    def losses(self, predictions: Tensor, rounds: slice = slice(None)) -> Array:
        """The task's losses of predictions ``[*batch, episode, round, ...]``, ``[*batch, episode, round]``."""
        return np.asarray(
            self.task.data.losses(predictions, self.episodes, rounds).double().numpy(force=True)
        )

    def continued(
        self,
        changed: Tensor,
        rounds: Sequence[int],
        horizon: int | None = None,
        again: Again | None = None,
    ) -> Tensor:
        """Predictions ``[written, episode, round, ...]`` where each of ``rounds``, apart from the others, reads
        ``changed``, ``[written, episode, row, width]``.

        Rounds before the written one are as they were, and those from ``horizon`` rounds after it on. ``again`` writes
        in later rounds, too (:class:`Edit`).
        """
        run, most = self.run, self.run.n_rounds if horizon is None else horizon
        ran = run_on(self.model, run, rounds, most, changed.transpose(0, 1), again)
        found = run.predictions.unsqueeze(0).repeat(len(rounds), *[1] * run.predictions.ndim)
        for i, t in enumerate(rounds):
            later = found[i, :, t : t + most]
            later.copy_(ran.predictions[0, :, i, : later.shape[1]])
        return found

    def held(self, round: int, rows: list[int], n_rounds: int) -> Rollout:
        """A run of some episodes that is fed the inputs of one round in each of so many rounds."""
        at, run = [round] * n_rounds, self.run
        fed = run.fed.each(lambda part: part[rows][:, at])
        latents = run.latents[rows][:, [*at, round]]
        return replace(run, predictions=run.predictions[rows][:, at], latents=latents, fed=fed)

    def read(self, rounds: Sequence[int]) -> Float[Tensor, "written episode row width"]:
        """What some rounds read when nothing is changed."""
        return self.run.latents[:, list(rounds)].transpose(0, 1)

    @cached_property
    def copies(self) -> tuple[Trial, ...]:
        """Untrained copies of the model on the same episodes: the first few whose predictions are finite."""
        seeds = range(self.effort.seed, self.effort.seed + self.effort.copies + _SPARE)
        copies = (replace(self, model=untrained(self.model, seed)) for seed in seeds)
        runs = (
            copy
            for copy in copies
            if copy.run.predictions.isfinite().all() and copy.run.latents.isfinite().all()
        )
        return tuple(islice(runs, self.effort.copies))

    def untrained(
        self, number: Callable[[Trial], Interval | None], side: Side = "above"
    ) -> dict[str, Control]:
        """The control of a claim: its number with untrained copies in the model's place; empty where none runs.

        A copy that has nothing to which the claim applies counts as far from it: 0, or 1 for a claim of little.
        """
        numbers = [
            Interval(*[float(side == "below")] * 3) if (of := number(copy)) is None else of
            for copy in self.copies
        ]
        return {UNTRAINED: best_of([of.estimate for of in numbers], side)} if numbers else {}


def rounds_for(model: Machine, effort: Scope, times: int = 1) -> int:
    """Rounds of an episode, ``times`` as many where there is room for them."""
    return room(model, times * catalog.of(model).at_most(effort.rounds))
