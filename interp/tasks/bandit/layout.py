"""The round of choosing among arms: ``<w> <z> cue choice? | choice reward w?``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from interp.model.layout import EncodedRounds
from interp.tasks.bandit.episodes import BanditEpisodes
from interp.tasks.sized_round import SizedRound


@dataclass(frozen=True)
class BanditRound(SizedRound):
    """A round of choosing among arms: ``<w> <z> cue choice? | choice reward w?``.

    The model predicts what the player chooses, and is told the choice and its reward, which is a payload. The
    vocabulary serves the range of sizes; just ``n_arms`` when it is None.
    """

    n_arms: int = 2
    n_arms_range: tuple[int, int] | None = None
    task: ClassVar[str] = "bandit"
    ranged: ClassVar[tuple[str, ...]] = ("n_arms",)
    episodes_are: ClassVar[str] = "bandit episodes"
    episode_types: ClassVar[tuple[type, ...]] = (BanditEpisodes,)
    n_latents: ClassVar[int] = 1
    predict_label: ClassVar[str] = "choice?"
    payload: ClassVar[str | None] = "rewards"
    labels: ClassVar[tuple[str, ...]] = ("<w>", "<z>", "cue", "choice?", "choice", "reward", "w?")

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        return (
            "<w>",
            "cue",
            "choice?",
            "reward",
            "w?",
            *(f"arm_{i + 1}" for i in range(self.served[0][1])),
        )

    @property
    def outcomes(self) -> tuple[str, ...]:
        return tuple(f"arm_{i + 1}" for i in range(self.n_arms))

    def encode(self, episodes: BanditEpisodes) -> EncodedRounds:
        self.require_fit(episodes)
        tokens = self.blank(*episodes.choices.shape)
        tokens[..., self.position("choice")] = self.token_ids["arm_1"] + torch.from_numpy(
            episodes.choices
        )
        values = torch.zeros(tokens.shape, dtype=torch.float64)
        values[..., self.position("reward")] = torch.from_numpy(episodes.rewards)
        return EncodedRounds(tokens, values, torch.zeros(tokens.shape[:2], dtype=torch.long))


def losses(predictions: Tensor, episodes: BanditEpisodes, rounds: slice) -> Tensor:
    """The probability of another choice than the player's, ``[*batch, episode, round]``."""
    return BanditRound(episodes.n_arms).loss(
        predictions, torch.from_numpy(episodes.choices[:, rounds])
    )
