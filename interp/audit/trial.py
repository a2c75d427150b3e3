"""What all checks of an audit share: the model, its episodes, its run, and distances between
predictions.

The distance between two predicted distributions over classes is their total variation, from 0 to 1.
If the model predicts real numbers, it is the distance of the means, divided by two standard
deviations of the model's means, and at most 1. The *cost* of a change of the state is the rise of
the task's loss.

:data:`THRESHOLDS` lists every threshold with its reason; :mod:`interp.results.measure` has the rule
for verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from interp.core import catalog
from interp.core.algorithm import Algorithm, participants_of, refuse_missing
from interp.core.machine import Machine
from interp.interventions.experiment import StateRewriter, run_on
from interp.model.rollout import rollout
from interp.model.run import Rollout, limit_rounds
from interp.model.transformer import untrained
from interp.results.measure import UNTRAINED, Control, merge_copies
from interp.stats.intervals import Interval
from interp.support.checks import checked_fields, integer
from interp.support.errors import InputError, require

Array = NDArray[Any]
ALL = "all that is carried"
"""Name of all channels of the state together."""
_MAX_SPARE_COPIES = 3  # further untrained copies to draw if the predictions of some are not finite


class _Threshold(NamedTuple):
    """The number that a check's result must reach for the verdict "yes", with the reason for this
    number.
    """

    value: float
    why: str


THRESHOLDS = {
    "worth": _Threshold(
        0.02, "share of the loss that a state takes away: states that are not read give 0"
    ),
    "decoded": _Threshold(0.5, "half of the variation; planted machines' own memories give .78"),
    "kept": _Threshold(0.9, "directions are enough where nine tenths of the worth pass them"),
    "side": _Threshold(
        0.75,
        "halfway between chance and always the algorithm's; planted heuristics give 0, handwired machines 1",
    ),
}
"""Name -> threshold. They were chosen on the models with planted behaviour that ``tests/audit`` calls
"seen"; the unseen ones were tested after the thresholds were fixed."""


@dataclass(frozen=True, kw_only=True)
@checked_fields
class Budget:
    """The sizes of an audit.

    Attributes:
        episodes: number of episodes; at least one per participant if episodes are recorded.
        rounds: largest number of rounds per episode. Episodes are shorter if later rounds of the
            task contain no new information.
        writes: number of rounds in which the state is changed for the tables "used" and "by_round",
            evenly spaced. Each of these changes is made in a separate run. The checks do not use
            this number: they change the state in every round.
        copies: number of untrained copies of the model. Every check is also made with the copies,
            and the best of their numbers is a control.
        seed: seed of the episodes, of random changes and of the copies.
    """

    episodes: int = 96
    rounds: int = 12
    writes: int = 6
    copies: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes that are too small for an audit."""
        lowest = {"episodes": 8, "rounds": 2, "writes": 1, "copies": 0, "seed": 0}
        for name, value in vars(self).items():
            integer(name, value, lowest[name])

    @classmethod
    def quick(cls) -> Budget:
        """Return the sizes of a quick audit: a third of the episodes, and fewer rounds, changed
        states and copies.
        """
        return cls(episodes=32, rounds=8, writes=3, copies=2)


@dataclass(eq=False)
@checked_fields
class Trial:
    """A model with the episodes of an audit, and what the audit computes for them. Results are
    cached on the trial.

    Attributes:
        model: the model.
        episodes: the episodes, without missing rounds.
        budget: the sizes of the audit.
        shape: number of episodes and number of rounds, as a pair.
        writes: indices of the rounds that read a changed state in the tables "used" and "by_round";
            evenly spaced from the second round to the last.
        channels: name of a channel (part of the state, such as h of an LSTM) -> indices of its rows
            of the state. The first item, with the name :data:`ALL`, is the whole state.
        participants: for each episode, the index of its participant, ``[episode]``; if there are no
            participants, the index of the episode. Intervals resample participants.
        n_participants: number of participants.
        first_half: True for episodes that belong to the first half of the participants,
            ``[episode]``.
        algorithm: the algorithm that should explain the model's predictions; None if neither the
            task nor the model names one.
    """

    model: Machine
    episodes: Any
    budget: Budget

    def __post_init__(self) -> None:
        """Compute the attributes that need no run of the model."""
        refuse_missing("an audit", self.episodes)
        self.participants = participants_of(self.episodes)  # indices 0, 1, ... by episode
        self.n_participants = int(self.participants.max()) + 1
        self.first_half = self.participants < self.n_participants // 2
        self.task = catalog.of(self.model)
        self.layout = self.model.layout.fit(self.episodes)
        self.shape = (len(self.episodes), self.episodes.n_rounds)
        last_round = self.episodes.n_rounds - 1
        # The rounds that read a changed state: evenly spaced, without the first, which reads the
        # initial state.
        n_writes = min(self.budget.writes, last_round)
        evenly = np.linspace(1, last_round, n_writes).round()
        self.writes = tuple(sorted(set(evenly.astype(int).tolist())))  # rounding may repeat one
        self.channels = _list_rows_by_channel(self.model)
        self.algorithm = self._find_algorithm()

    def _find_algorithm(self) -> Algorithm | None:
        """Return the algorithm that the task, or the model itself, names as the explanation of the
        model's behaviour; None if there is none.
        """
        algorithms = self.task.algorithms
        own_algorithm = getattr(self.model, "algorithm", None)
        if algorithms.records() or algorithms.hypothesis is not None or own_algorithm:
            return self.task.explains(self.model)
        return None

    @classmethod
    def of(
        cls, model: Machine, budget: Budget, regime: str = "", seed: int = 0, n_rounds: int = 0
    ) -> Trial:
        """Make a trial (a model with its episodes) with newly sampled episodes.

        Args:
            model: the model.
            budget: numbers of episodes and rounds; recorded data gives at least one episode per
                participant.
            regime: name of the distribution of episodes to sample from; "" for the task's default
                one.
            seed: number that is added to the budget's seed, to sample other episodes.
            n_rounds: number of rounds per episode; by default (0) that of the budget.
        """
        task = catalog.of(model)
        n_rounds = n_rounds or limit_rounds(model, task.cap_rounds(budget.rounds))
        require(
            n_rounds >= 2,
            f"an audit looks from one round to the next: {model.name!r} has room for {n_rounds}",
        )
        n_episodes = max(budget.episodes, task.recorded.get("participants", 0))
        episodes = task.sample_for(model, n_episodes, n_rounds, budget.seed + seed, regime)
        return cls(model, episodes, budget)

    @cached_property
    def regimes(self) -> tuple[str, ...]:
        """The names of the task's regimes (distributions of episodes) that have episodes of the
        model's sizes, such as its number of experts.
        """
        possible = []
        for regime in self.task.data.regimes():
            # Sampling fails if the regime has no episodes of the model's sizes.
            with suppress(InputError):
                self.task.sample_for(
                    self.model, n_episodes=1, n_rounds=2, seed=self.budget.seed, regime=regime
                )
                possible.append(regime)
        return tuple(possible)

    @cached_property
    def run(self) -> Rollout:
        """The model's rollout on the trial's episodes, with its state unchanged."""
        with torch.no_grad():
            return rollout(self.model, self.episodes)

    @cached_property
    def heuristics(self) -> dict[str, Algorithm]:
        """{key: algorithm} of the task's algorithms that carry no state from round to round, with
        default parameters.
        """
        algorithms = {record.key: record.make() for record in self.task.algorithms.records()}
        return {key: algorithm for key, algorithm in algorithms.items() if not algorithm.state}

    @property
    def scored_rounds(self) -> slice:
        """Slice of the rounds that count in losses: all rounds with a scored prediction, except the
        first round of the episode, which reads no earlier round's state.
        """
        return slice(max(1, self.task.data.first_asked), None)

    @property
    def scored_in_words(self) -> str:
        """The rounds that count in losses, in words, such as "in rounds 1 to 11"."""
        return f"in rounds {self.scored_rounds.start} to {self.shape[1] - 1}"

    def predicted_by(self, algorithm: Algorithm) -> Float[np.ndarray, "episode round outcome"]:
        """Return the distributions that an algorithm predicts on the trial's episodes, ``[episode,
        round, outcome]``.

        Args:
            algorithm: the algorithm.
        """
        predicted = algorithm.distribution(algorithm.run(self.episodes))
        return np.asarray(predicted, np.float64)

    def distribution(self, predictions: Tensor) -> Array:
        """Convert a model's predictions to distributions, ``[..., episode, round, outcome]``. The
        last axis has the probability of each outcome; for real numbers the mean, or mean and log
        variance.

        Args:
            predictions: predictions as a rollout has them, ``[..., episode, round, ...]``, such as
                the probability of label 1, or one number per class.
        """
        distribution = self.run.layout.distribution(predictions.double())
        return distribution.numpy(force=True)

    @cached_property
    def unchanged_distributions(self) -> Float[np.ndarray, "episode round outcome"]:
        """The distributions that the model predicts with its state unchanged, ``[episode, round,
        outcome]``.
        """
        return self.distribution(self.run.predictions)

    @cached_property
    def unchanged_losses(self) -> Float[np.ndarray, "episode round"]:
        """The losses of the model's predictions with its state unchanged, ``[episode, round]``."""
        return self.losses(self.run.predictions)

    def distance(self, first: Array, second: Array) -> Array:
        """Return the distance between predicted distributions, from 0 to 1, ``[...]``.

        For classes it is the total variation distance. For real numbers it is |difference of the
        two predicted means| / (2 s), cut off at 1. Here s is the standard deviation of all means
        that the model predicts for the trial's episodes with its state unchanged.

        Args:
            first, second: the two distributions, or arrays of them, ``[..., outcome]``. The last
                axis has the probability of each outcome; for real numbers the mean, or mean and log
                variance.
        """
        if self.run.layout.kind == "classes":
            differences = np.abs(first - second)
            return 0.5 * differences.sum(-1)
        means = self.unchanged_distributions[..., 0]
        width = 2 * float(means.std()) or 1.0  # if all means are equal, any unit will do
        differences = np.abs(first[..., 0] - second[..., 0])
        return np.minimum(differences / width, 1.0)

    def losses(self, predictions: Tensor) -> Array:
        """Return the losses of a model's predictions on the trial's episodes. The task defines the
        loss, such as the probability of a mistake.

        Args:
            predictions: predictions as a rollout has them, ``[*batch, episode, round, ...]``.

        Returns:
            Losses ``[*batch, episode, round]``.
        """
        every_round = slice(None)
        losses = self.task.data.losses(predictions, self.episodes, every_round)
        return losses.double().numpy(force=True)

    def rerun(
        self,
        changed: Tensor,
        rounds: Sequence[int],
        horizon: int | None = None,
        rewrite_state: StateRewriter | None = None,
    ) -> Tensor:
        """Run the model again with changed states, once for each round in ``rounds``. In each run,
        one of these rounds reads a changed state, and the model runs on from there.

        Args:
            changed: the changed states, ``[chosen, episode, row, width]``. The axis ``chosen``
                has one entry for each round in ``rounds``: the state that this round reads.
            rounds: indices of the rounds that read a changed state, one per run.
            horizon: number of rounds to run, including the round that reads the changed state; None
                runs to the last round. Predictions of later rounds are copied from the run without
                changes.
            rewrite_state: function that also changes the states that later rounds read. It is
                called before each later round: ``(index of the round that read the changed state,
                index of the later round, state)`` -> the state that the later round reads. None
                changes nothing further.

        Returns:
            The predictions of all rounds in each run, ``[chosen, episode, round, ...]``.
        """
        run = self.run
        n_further = run.n_rounds if horizon is None else horizon
        changed_by_episode = changed.transpose(0, 1)  # [episode, chosen, row, width]
        continuation = run_on(self.model, run, rounds, n_further, changed_by_episode, rewrite_state)
        unchanged = run.predictions.expand(len(rounds), *run.predictions.shape)
        predictions = unchanged.clone()  # [chosen, episode, round, ...]
        for i, t in enumerate(rounds):
            later = predictions[i, :, t : t + n_further]  # a view [episode, lag, ...]
            # The continuation is [1, episode, chosen, lag, ...]. Its lags may go beyond the last
            # round of the episode.
            later.copy_(continuation.predictions[0, :, i, : later.shape[1]])
        return predictions

    def select_states(self, rounds: Sequence[int]) -> Float[Tensor, "chosen episode row width"]:
        """Return the states that some rounds read in the trial's run, ``[chosen, episode, row,
        width]``.

        A state is a matrix ``[row, width]``, such as a transformer's latents, one per row. The axis
        ``chosen`` has one entry for each round in ``rounds``.

        Args:
            rounds: indices of the rounds.
        """
        return self.run.latents[:, list(rounds)].transpose(0, 1)

    @cached_property
    def copies(self) -> tuple[Trial, ...]:
        """Untrained copies of the model, each as a trial with the same episodes. Copies with
        predictions or states that are not finite are left out.
        """
        finite: list[Trial] = []
        n_wanted = self.budget.copies
        first_seed = self.budget.seed
        # A few seeds more than needed, in place of those whose copies are not finite.
        for seed in range(first_seed, first_seed + n_wanted + _MAX_SPARE_COPIES):
            if len(finite) == n_wanted:
                break
            copy = replace(self, model=untrained(self.model, seed))
            predictions_finite = copy.run.predictions.isfinite().all()
            if predictions_finite and copy.run.latents.isfinite().all():
                finite.append(copy)
        return tuple(finite)

    def score_copies(self, score: Callable[[Trial], Interval | None]) -> dict[str, Control]:
        """Measure each untrained copy of the model, and return the largest of the numbers as a
        control.

        Args:
            score: function that measures a copy in the same way as a check measures the model. It
                returns None if the check does not apply to the copy; this counts as 0.

        Returns:
            ``{"an untrained copy": control}``; empty if there are no copies.
        """
        numbers = []
        for copy in self.copies:
            number = score(copy)
            numbers.append(0.0 if number is None else number.estimate)
        return {UNTRAINED: merge_copies(numbers)} if numbers else {}


def _list_rows_by_channel(model: Machine) -> dict[str, list[int]]:
    """Return which rows of a model's state belong to each channel (named part of the state), such
    as h and c of an LSTM.

    Args:
        model: the model.

    Returns:
        Name of a channel -> indices of its rows. If there are several channels, the entry
        :data:`ALL`, with all rows, comes first.
    """
    rows: dict[str, list[int]] = {}
    n_rows = 0
    for channel in model.channels:
        rows[channel.name] = list(range(n_rows, n_rows + channel.rows))
        n_rows += channel.rows
    # The number of used rows of a cache is a channel such as "cache_length". It is changed together
    # with the cache, so that both are listed as one channel.
    for name in list(rows):
        cache = name.removesuffix("_length")
        if cache != name and cache in rows:
            rows[cache] += rows.pop(name)
    whole_state = {ALL: list(range(n_rows))}
    return {**whole_state, **rows} if len(rows) > 1 else whole_state
