"""A clean and a corrupted run, prepared for intervening at one round and reading at the same or a later one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import require
from interp.model.layout import RoundLayout
from interp.model.rollout import Rollout, rollout, select_rounds
from interp.model.transformer import HookedLatentTransformer

if TYPE_CHECKING:
    from interp.tasks.experts import ExpertEpisodes
    from interp.tasks.mdp import MDPEpisodes


@dataclass(frozen=True)
class Readout:
    """What a run gave from the intervened round to the one that is read.

    Attributes:
        predictions: ``[*cell, episode, round, ...]``: P(y = 1), or the policy over actions.
        latents: ``[*cell, episode, latent, d_model]`` after the last of these rounds.
    """

    predictions: Tensor
    latents: Tensor


@dataclass(frozen=True)
class Pair:
    """Clean and corrupted rollouts of one model, row by row, with the round to change and the round to read.

    Attributes:
        clean, corrupted: rollouts without hooks; episode i of one belongs to episode i of the other.
        clean_episodes: the episodes of the clean run: its labels, or Q-tables, are the truth for losses.
        round: where interventions act.
        read: where predictions, and the latents after it, are read; ``read >= round``.
    """

    model: HookedLatentTransformer
    clean: Rollout
    corrupted: Rollout
    clean_episodes: ExpertEpisodes | MDPEpisodes
    round: int
    read: int

    @property
    def layout(self) -> RoundLayout:
        return self.clean.layout

    @property
    def task(self) -> str:
        return self.layout.task

    @property
    def n_episodes(self) -> int:
        return self.clean.n_episodes

    @cached_property
    def clean_readout(self) -> Readout:
        return self.readout(self.clean)

    @cached_property
    def corrupted_readout(self) -> Readout:
        return self.readout(self.corrupted)

    def readout(self, run: Rollout) -> Readout:
        """What ``run`` gives from :attr:`round` to :attr:`read`."""
        return Readout(run.predictions[:, self.round : self.read + 1], run.latents[:, self.read + 1])

    def read_state(self, latents: Float[Tensor, "*batch latent d_model"]) -> Tensor:
        """The state: exact for a handwired model, the raw latents for a learned one."""
        return self.model.read_state(latents) if len(self.model.state_map) else latents

    def losses(self, predictions: Tensor) -> Float[Tensor, "*batch round"]:
        """Expected loss of each prediction from :attr:`round` to :attr:`read`, by the truth of the clean episodes.

        Experts: the probability of a mistake, ``|P(y = 1) - y|``. Q-learning: how much less the policy is worth than
        the best action, by the clean Q-table before the round.
        """
        rounds = slice(self.round, self.read + 1)
        if self.task == "experts":
            labels = torch.from_numpy(self.clean_episodes.labels[:, rounds])  # type: ignore[union-attr]
            return (predictions - labels.to(predictions)).abs()
        episodes: Any = self.clean_episodes
        tables = torch.from_numpy(episodes.q_tables[:, :-1][:, rounds]).to(predictions)
        states = torch.from_numpy(episodes.next_states[:, rounds]).to(predictions.device)
        index = states[..., None, None].expand(*states.shape, 1, tables.shape[-1])
        values = tables.gather(2, index).squeeze(2)
        policy = outcome_probabilities(predictions, self.task)
        return values.amax(-1) - (policy * values).sum(-1)


def outcome_probabilities(predictions: Tensor, task: str) -> Float[Tensor, "*batch outcome"]:
    """P(y = 1) or a policy, as a distribution over outcomes."""
    return torch.stack([1 - predictions, predictions], -1) if task == "experts" else predictions


def prepare(
    model: HookedLatentTransformer,
    clean: ExpertEpisodes | MDPEpisodes,
    corrupted: ExpertEpisodes | MDPEpisodes,
    round: int,
    read: int | None = None,
    commit: str = "own",
) -> Pair:
    """Run both sides of a pair.

    Args:
        round: where interventions act; negative counts from the end.
        read: where effects are read; the same round when None.

    Raises:
        InputError: episodes of different sizes, or a round out of range, or read before round.
    """
    model.eval()
    runs = [rollout(model, episodes, commit=commit) for episodes in (clean, corrupted)]
    shapes = [tuple(run.tokens.shape) for run in runs]
    require(
        shapes[0] == shapes[1],
        f"clean and corrupted must pair up, got [episode, round, position] {shapes[0]} and {shapes[1]}; "
        "build the corrupted episodes from the clean ones, as interp.interventions.corruptions does",
    )
    (at,) = select_rounds(round, runs[0].n_rounds)
    (until,) = select_rounds(at if read is None else read, runs[0].n_rounds)
    require(until >= at, f"read must not come before round, got round {at} and read {until}")
    return Pair(model, runs[0], runs[1], clean, at, until)
