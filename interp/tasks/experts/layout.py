"""Token layout of a round with expert advice (paper, section 3):
``<w> <z> e_1 p_1 ... e_n p_n p? | y w?`` (:class:`ExpertRound` explains the positions).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from interp.model.layout import EncodedRounds
from interp.support.checks import checked
from interp.support.errors import require
from interp.tasks.experts.episodes import ExpertEpisodes
from interp.tasks.sized_round import SizedRound, number_names


@dataclass(frozen=True)
class ExpertRound(SizedRound):
    """Token layout of a round with expert advice: ``<w> <z> e_1 p_1 ... e_n p_n p? | y w?``.

    Each word is a position of the round, in order. The bar is no position: what follows it is read
    after the prediction.

    - ``<w>``: a fixed token, to which heads can attend by default (an attention sink);
    - ``<z>``: the latent, which carries what earlier rounds wrote;
    - ``e_i``: a token that names expert i;
    - ``p_i``: the advice of expert i, a token ``q0`` or ``q1`` for label 0 or 1;
    - ``p?``: the position where the model predicts the label;
    - ``y``: the true label, ``q0`` or ``q1``;
    - ``w?``: the position where the update of the latent is read.

    A prediction is one number, the probability that the label is 1.

    Attributes:
        n_experts: number of experts.
        n_experts_range: smallest and largest number of experts that the vocabulary supports; only
            ``n_experts`` when None.
    """

    n_experts: int
    n_experts_range: tuple[int, int] | None = None
    task: ClassVar[str] = "experts"
    ranged: ClassVar[tuple[str, ...]] = ("n_experts",)
    episodes_are: ClassVar[str] = "expert episodes"
    episode_types: ClassVar[tuple[type, ...]] = (ExpertEpisodes,)
    n_latents: ClassVar[int] = 1
    """One latent holds all log-weights."""
    outcomes: ClassVar[tuple[str, ...]] = ("q0", "q1")
    prediction_axes: ClassVar[int] = 0

    @cached_property
    def labels(self) -> tuple[str, ...]:
        advice = [label for i in range(1, self.n_experts + 1) for label in (f"e_{i}", f"p_{i}")]
        return ("<w>", "<z>", *advice, "p?", "y", "w?")

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        _, most_experts = self.served[0]
        return ("<w>", "p?", "w?", "q0", "q1", *number_names("e", most_experts))

    def encode(self, episodes: ExpertEpisodes) -> EncodedRounds:
        """Return the tokens and numbers that a model reads in each round of the episodes."""
        self.require_fit(episodes)
        labels = torch.from_numpy(episodes.labels)
        tokens = self.make_blank_tokens(*labels.shape)
        label_0 = self.token_ids["q0"]
        votes = slice(3, 3 + 2 * self.n_experts, 2)  # p_1, ..., p_n, after <w>, <z> and e_1
        tokens[..., votes] = label_0 + torch.from_numpy(episodes.advice)
        tokens[..., self.position("y")] = label_0 + labels
        no_values = torch.zeros(tokens.shape)
        return EncodedRounds(tokens, no_values, slots=torch.zeros_like(labels))

    # A prediction is P(y = 1) alone.

    @checked
    def prediction(self, probabilities: Float[Tensor, "*axes outcome"]) -> Tensor:
        require(
            probabilities.shape[-1] >= 2,
            f"probabilities are [..., outcome], got shape {tuple(probabilities.shape)}",
        )
        return probabilities[..., 1]

    @checked
    def distribution(self, prediction: Float[Tensor, "*batch"]) -> Tensor:
        return torch.stack([1 - prediction, prediction], -1)

    @checked
    def choose(self, prediction: Float[Tensor, "*axes"]) -> Tensor:
        return (prediction > 0.5).long()
