"""The round of prediction with expert advice (paper, section 3): ``<w> <z> e_1 p_1 ... e_n p_n p? | y w?``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from interp.checks import checked
from interp.errors import InputError, require
from interp.model.layout import EncodedRounds, RoundLayout, size_range
from interp.tasks.experts.episodes import ExpertEpisodes


@dataclass(frozen=True)
class ExpertRound(RoundLayout):
    """A round of prediction with expert advice: ``<w> <z> e_1 p_1 ... e_n p_n p? | y w?``.

    Args:
        n_experts: number of experts, at least 1.
        n_experts_range: smallest and largest number that the vocabulary serves; just ``n_experts`` when None.
    """

    n_experts: int
    n_experts_range: tuple[int, int] | None = None
    task: ClassVar[str] = "experts"

    def __post_init__(self) -> None:
        bounds = size_range("n_experts", self.n_experts, self.n_experts_range)
        object.__setattr__(self, "n_experts_range", bounds)

    @property
    def _bounds(self) -> tuple[int, int]:
        assert self.n_experts_range is not None
        return self.n_experts_range

    @cached_property
    def labels(self) -> tuple[str, ...]:
        advice = [label for i in range(1, self.n_experts + 1) for label in (f"e_{i}", f"p_{i}")]
        return ("<w>", "<z>", *advice, "p?", "y", "w?")

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        return ("<w>", "p?", "w?", "q0", "q1", *(f"e_{i}" for i in range(1, self._bounds[1] + 1)))

    @property
    def n_latents(self) -> int:
        """One latent holds all log-weights."""
        return 1

    @property
    def outcomes(self) -> tuple[str, ...]:
        return ("q0", "q1")

    @property
    def max_layout(self) -> ExpertRound:
        return replace(self, n_experts=self._bounds[1])

    @property
    def family(self) -> tuple[ExpertRound, ...]:
        low, high = self._bounds
        return tuple(replace(self, n_experts=n) for n in range(low, high + 1))

    def fit(self, episodes: object) -> ExpertRound:
        if not isinstance(episodes, ExpertEpisodes):
            raise InputError(f"this model reads expert episodes, got {type(episodes).__name__}")
        low, high = self._bounds
        n_experts = episodes.advice.shape[-1]
        if not low <= n_experts <= high:
            from interp.library import serving

            served = f"{low} experts" if low == high else f"{low} to {high} experts"
            raise InputError(
                f"episodes have {n_experts} experts but this model's layout serves {served}; "
                f"sample with n_experts={min(max(n_experts, low), high)}, or take a model that serves {n_experts}: "
                f"{serving(self.task, n_experts=n_experts)}"
            )
        return replace(self, n_experts=n_experts)

    def encode(self, episodes: ExpertEpisodes) -> EncodedRounds:
        layout = self.fit(episodes)
        require(
            layout == self,
            f"episodes have {layout.n_experts} experts, this layout {self.n_experts}; call layout.fit(episodes) first",
        )
        ids, n = self.token_ids, self.n_experts
        advice, labels = torch.from_numpy(episodes.advice).long(), torch.from_numpy(episodes.labels).long()
        tokens = torch.zeros(*labels.shape, self.n_positions, dtype=torch.long)
        tokens[..., 2 : 2 + 2 * n : 2] = torch.arange(ids["e_1"], ids["e_1"] + n)
        tokens[..., 3 : 3 + 2 * n : 2] = ids["q0"] + advice
        tokens[..., self.position("p?")] = ids["p?"]
        tokens[..., self.position("y")] = ids["q0"] + labels
        tokens[..., self.position("w?")] = ids["w?"]
        return EncodedRounds(tokens, torch.zeros(tokens.shape), torch.zeros_like(labels))

    # A prediction is P(y = 1) alone.

    @property
    def prediction_axes(self) -> int:
        return 0

    @checked
    def prediction(self, probabilities: Float[Tensor, "*axes outcome"]) -> Tensor:
        require(
            probabilities.shape[-1] >= 2, f"probabilities are [..., outcome], got shape {tuple(probabilities.shape)}"
        )
        return probabilities[..., 1]

    @checked
    def distribution(self, prediction: Float[Tensor, "*batch"]) -> Tensor:
        return torch.stack([1 - prediction, prediction], -1)

    @checked
    def choose(self, prediction: Float[Tensor, "*axes"]) -> Tensor:
        return (prediction > 0.5).long()
