"""Token layout of a round of the bandit task: ``<w> <z> cue choice? | choice reward w?``
(:class:`BanditRound` explains the positions).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from interp.model.layout import EncodedRounds
from interp.tasks.bandit.episodes import BanditEpisodes
from interp.tasks.sized_round import SizedRound, number_names


@dataclass(frozen=True)
class BanditRound(SizedRound):
    """Token layout of a round of the bandit task: ``<w> <z> cue choice? | choice reward w?``.

    Each word is a position of the round, in order. The bar is no position: what follows it is read
    after the prediction.

    - ``<w>``: a fixed token, to which heads can attend by default (an attention sink);
    - ``<z>``: the latent, which carries what earlier rounds wrote;
    - ``cue``: a fixed token, which marks the beginning of the round;
    - ``choice?``: the position where the model predicts the player's choice;
    - ``choice``: the arm that the player chose, a token ``arm_1``, ``arm_2``, ...;
    - ``reward``: a fixed token, with the reward as its payload (a real number that the token
      carries);
    - ``w?``: the position where the update of the latent is read.

    Attributes:
        n_arms: number of arms.
        n_arms_range: smallest and largest number of arms that the vocabulary supports; only
            ``n_arms`` when None.
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
        _, most_arms = self.served[0]
        return ("<w>", "cue", "choice?", "reward", "w?", *number_names("arm", most_arms))

    @property
    def outcomes(self) -> tuple[str, ...]:
        return number_names("arm", self.n_arms)

    def encode(self, episodes: BanditEpisodes) -> EncodedRounds:
        """Return the tokens and numbers that a model reads in each round of the episodes."""
        self.require_fit(episodes)
        choices = torch.from_numpy(episodes.choices)
        tokens = self.make_blank_tokens(*choices.shape)
        tokens[..., self.position("choice")] = self.token_ids["arm_1"] + choices
        values = torch.zeros(tokens.shape, dtype=torch.float64)
        values[..., self.position("reward")] = torch.from_numpy(episodes.rewards)
        return EncodedRounds(tokens, values, slots=torch.zeros_like(choices))


def losses(predictions: Tensor, episodes: BanditEpisodes, rounds: slice) -> Tensor:
    """Return the loss of predicted choices, ``[*batch, episode, round]``: 1 minus the predicted
    probability of the arm that the player chose.

    Args:
        predictions: predicted probability that each arm is chosen,
            ``[*batch, episode, round, arm]``.
        episodes: the episodes, which have the choices.
        rounds: slice of the episodes' rounds to which the predictions belong.
    """
    choices = torch.from_numpy(episodes.choices[:, rounds])
    return BanditRound(episodes.n_arms).loss(predictions, choices)
