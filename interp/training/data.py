"""Batches of episodes for training: a pure function of the seed and the step, so that resuming needs no data state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from interp.errors import require
from interp.model.layout import EncodedRounds, RoundLayout
from interp.tasks import experts, mdp
from interp.tasks.experts import ExpertEpisodes
from interp.tasks.mdp import MDPEpisodes
from interp.training.config import Stage, TrainingConfig

TRAIN, DATASET, EVALUATION = range(3)
"""Random streams: the batch of a step, the fixed data set, the held-out episodes."""


@dataclass(frozen=True)
class Batch:
    """Encoded episodes with the probability of each outcome to be learned.

    Attributes:
        rounds: tokens, payloads and update slots, ``[episode, round, ...]``.
        targets: Float[episode, round, outcome]: one-hot labels, or uniform over the tied greedy actions.
        layout: the layout of these rounds.
    """

    rounds: EncodedRounds
    targets: Tensor
    layout: RoundLayout

    def to(self, device: torch.device) -> Batch:
        """The batch on a device."""
        return self._each(lambda tensor: tensor.to(device))

    @property
    def n_rounds(self) -> int:
        return self.targets.shape[1]

    def truncate(self, n_rounds: int) -> Batch:
        """The first ``n_rounds`` rounds."""
        return self._each(lambda tensor: tensor[:, :n_rounds])

    def windows(self, n_rounds: int) -> Iterator[Batch]:
        """The episodes in pieces of ``n_rounds`` consecutive rounds (the last may be shorter); 0: in one piece."""
        length = n_rounds or self.n_rounds
        for start in range(0, self.n_rounds, length):
            yield self._each(lambda tensor, start=start: tensor[:, start : start + length])  # type: ignore[misc]

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        rounds = EncodedRounds(change(self.rounds.tokens), change(self.rounds.values), change(self.rounds.slots))
        return replace(self, rounds=rounds, targets=change(self.targets))


def encode(episodes: ExpertEpisodes | MDPEpisodes, layout: RoundLayout) -> Batch:
    """Episodes as a batch; ``layout`` is the model's.

    Tied greedy actions (unvisited states) are not labels: each gets an equal share of the target, so that the loss
    has its floor where the prediction is uniform over them.
    """
    fitted = layout.fit(episodes)
    if isinstance(episodes, ExpertEpisodes):
        targets = torch.nn.functional.one_hot(torch.from_numpy(episodes.labels).long(), 2).float()
    else:
        ties = torch.from_numpy(episodes.greedy_sets).float()
        targets = ties / ties.sum(-1, keepdim=True)
    rounds = fitted.encode(episodes)
    return Batch(replace(rounds, values=rounds.values.float()), targets, fitted)


class EpisodeSource:
    """Training batches and held-out episodes of a training run."""

    def __init__(self, config: TrainingConfig, layout: RoundLayout) -> None:
        self.config, self.layout = config, layout

    def batch(self, step: int, stage: int, shard: int = 0, n_shards: int = 1) -> Batch:
        """The batch of an optimizer step; shards of the same step hold different episodes."""
        config = self.config
        rng = np.random.default_rng([config.seed, TRAIN, step, shard])
        chosen = config.curriculum[stage]
        if stage and rng.random() < config.mix:
            chosen = config.curriculum[rng.integers(stage)]
        n_episodes = max(1, config.batch_size // n_shards)
        if config.dataset_episodes:
            return encode(self._from_dataset(rng, n_episodes, chosen), self.layout).truncate(chosen.n_rounds)
        return encode(self._sample(rng, n_episodes, chosen, step), self.layout)

    def evaluation(self) -> list[ExpertEpisodes | MDPEpisodes]:
        """Held-out episodes, the same throughout a run: one batch per size for Q-learning."""
        config = self.config
        rng = np.random.default_rng([config.seed, EVALUATION])
        sizes = range(config.n_actions[0], config.n_actions[1] + 1) if config.task == "qlearning" else [0]
        stages = [Stage(config.eval_rounds, 1, n_actions) for n_actions in sizes]
        n_episodes = max(1, config.eval_episodes // len(stages))
        return [self._sample(rng, n_episodes, s, i, fixed=True) for i, s in enumerate(stages)]

    def _sample(
        self, rng: np.random.Generator, n_episodes: int, stage: Stage, turn: int, fixed: bool = False
    ) -> ExpertEpisodes | MDPEpisodes:
        config = self.config
        regime = config.regimes[turn % len(config.regimes)]
        seed = int(rng.integers(2**31))
        if config.task == "wma":
            high = self._most(stage, "n_experts")
            n_experts = high if fixed else int(rng.integers(config.n_experts[0], high + 1))
            return experts.sample(n_episodes, stage.n_rounds, n_experts, regime=regime, seed=seed)
        high = self._most(stage, "n_actions")
        n_actions = high if fixed else int(rng.integers(config.n_actions[0], high + 1))
        n_states = int(rng.integers(config.n_states[0], self._most(stage, "n_states") + 1))
        return mdp.sample(n_episodes, stage.n_rounds, n_states, n_actions, regime=regime, seed=seed)

    def _most(self, stage: Stage, size: str) -> int:
        """The largest ``size`` ("n_experts", "n_states", "n_actions") of a stage."""
        largest = getattr(self.config, size)[1]
        return min(getattr(stage, size) or largest, largest)

    @cached_property
    def _dataset(self) -> list[ExpertEpisodes | MDPEpisodes]:
        """The fixed data set: as many batches of equal sizes as make up ``dataset_episodes``."""
        config = self.config
        longest = max(stage.n_rounds for stage in config.curriculum)
        n_batches = -(-config.dataset_episodes // config.batch_size)
        stage = Stage(longest, 1, config.n_actions[1])
        rng = np.random.default_rng([config.seed, DATASET])
        return [self._sample(rng, config.batch_size, stage, i) for i in range(n_batches)]

    def _from_dataset(self, rng: np.random.Generator, n_episodes: int, stage: Stage) -> ExpertEpisodes | MDPEpisodes:
        sizes = ("n_experts",) if self.config.task == "wma" else ("n_states", "n_actions")
        most = {size: self._most(stage, size) for size in sizes}
        allowed = [e for e in self._dataset if all(getattr(e, size) <= bound for size, bound in most.items())]
        bounds = " and ".join(f"{size} <= {bound}" for size, bound in most.items())
        require(
            len(allowed) > 0, f"no batch of the data set has {bounds}; raise dataset_episodes, or the stage's bounds"
        )
        episodes = allowed[rng.integers(len(allowed))]
        rows = rng.choice(len(episodes), size=n_episodes, replace=n_episodes > len(episodes))
        return episodes.select(rows)
