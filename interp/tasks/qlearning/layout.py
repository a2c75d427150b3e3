"""The round of tabular Q-learning (paper, section 4); :class:`QLearningRound` says what stands where."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from einops import rearrange
from jaxtyping import Shaped
from torch import Tensor

from interp.core.machine import Machine
from interp.model.layout import EncodedRounds
from interp.support.checks import checked
from interp.support.errors import InputError
from interp.tasks.qlearning.episodes import MDPEpisodes, MDPs
from interp.tasks.sized_round import SizedRound


@dataclass(frozen=True)
class QLearningRound(SizedRound):
    """A round of tabular Q-learning.

    ``<BOS> c_1 ... c_A Qcurr s a r Qnext s' (s'_i a_i)_i Select | a* Update``: 3 A + 10 positions; latent ``c_i``
    belongs to action i. The vocabulary serves the ranges of sizes; just the given sizes when they are None. With
    ``noise``, ``n`` follows the latents: an epsilon-greedy machine's draw of the round, ``greedy`` or ``explore_i``.
    """

    n_states: int
    n_actions: int
    n_states_range: tuple[int, int] | None = None
    n_actions_range: tuple[int, int] | None = None
    noise: bool = False
    task: ClassVar[str] = "qlearning"
    ranged: ClassVar[tuple[str, ...]] = ("n_states", "n_actions")
    episodes_are: ClassVar[str] = "MDP episodes"
    episode_types: ClassVar[tuple[type, ...]] = (MDPEpisodes, MDPs)
    predict_label: ClassVar[str] = "Select"
    choice_label: ClassVar[str | None] = "a*"
    payload: ClassVar[str | None] = "rewards"
    payload_hint: ClassVar[str] = (
        "(signed=True for negative ones), or use variant='lin', which takes any"
    )

    @cached_property
    def labels(self) -> tuple[str, ...]:
        actions = range(1, self.n_actions + 1)
        return (
            "<BOS>",
            *(f"c_{i}" for i in actions),
            *(["n"] * self.noise),
            *("Qcurr", "s", "a", "r", "Qnext", "s'"),
            *[label for i in actions for label in (f"s'_{i}", f"a_{i}")],
            *("Select", "a*", "Update"),
        )

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        (_, max_states), (_, max_actions) = self.served
        return (
            *("<BOS>", "r", "Select", "Qcurr", "Qnext", "Update"),
            *(f"s_{i}" for i in range(1, max_states + 1)),
            *(f"a_{i}" for i in range(1, max_actions + 1)),
            *self.draws,
        )

    @property
    def draws(self) -> tuple[str, ...]:
        """In the order of the episodes' ``noise``."""
        return (
            ("greedy", *(f"explore_{i}" for i in range(1, self.served[1][1] + 1)))
            if self.noise
            else ()
        )

    def to_dict(self) -> dict[str, Any]:
        # A layout without the position is written as it was before there was one.
        return {
            key: value for key, value in super().to_dict().items() if key != "noise" or self.noise
        }

    @property
    def n_latents(self) -> int:
        """One latent for each action holds its column of the Q-table."""
        return self.n_actions

    @property
    def outcomes(self) -> tuple[str, ...]:
        return tuple(f"a_{i}" for i in range(1, self.n_actions + 1))

    def encode(self, episodes: MDPEpisodes) -> EncodedRounds:
        self.require_fit(episodes)
        ids, at = self.token_ids, self.position
        states, actions = (
            torch.from_numpy(episodes.states).long(),
            torch.from_numpy(episodes.actions).long(),
        )
        following = torch.from_numpy(episodes.next_states).long()
        tokens = self.blank(*states.shape)
        if self.noise:
            drawn = episodes.noise
            if drawn is None:
                raise InputError(
                    "these episodes have no noise, the draw of every round that this model reads at 'n'; sample them, "
                    "give MDPEpisodes.from_transitions noise= (zeros where all is greedy), or load it without noise"
                )
            tokens[..., at("n")] = ids["greedy"] + torch.from_numpy(drawn).long()
        tokens[..., at("s")] = ids["s_1"] + states
        tokens[..., at("a")] = ids["a_1"] + actions
        tokens[..., at("s'")] = ids["s_1"] + following
        first = at("s'_1")
        tokens[..., first : first + 2 * self.n_actions : 2] = ids["s_1"] + following[..., None]
        tokens[..., at("a*")] = ids["a_1"] + torch.from_numpy(episodes.greedy).long()
        values = torch.zeros(tokens.shape, dtype=torch.float64)
        values[..., at("r")] = torch.from_numpy(episodes.rewards).to(torch.float64)
        return EncodedRounds(tokens, values, actions)

    @checked
    def choice_token(self, choice: Tensor) -> Tensor:
        return choice + self.token_ids["a_1"]

    # Latent i holds column i of the Q-table.

    @checked
    def state(self, readout: Shaped[Tensor, "*batch action state"]) -> Tensor:
        """``[..., A, S] -> [..., S, A]``."""
        return rearrange(readout, "... action state -> ... state action")

    @checked
    def per_latent(self, state: Shaped[Tensor, "*batch state action"]) -> Tensor:
        return rearrange(state, "... state action -> ... action state")

    @checked
    def written(self, state: Tensor, slots: Tensor) -> Tensor:
        """The column of the action taken."""
        try:
            return state.gather(-1, slots[..., None, None].expand(*state.shape[:-1], 1)).squeeze(-1)
        except RuntimeError as error:
            raise InputError(
                f"slots of shape {tuple(slots.shape)} name no column of states of shape {tuple(state.shape)}"
            ) from error


def served(model: Machine) -> tuple[tuple[int, int], tuple[int, int]]:
    """Smallest and largest number of states, and of actions, that a model serves."""
    layout = model.layout
    if not isinstance(layout, QLearningRound):
        raise InputError(f"{model.name!r} is a model of {layout.task!r}, not of Q-learning")
    states, actions = layout.served
    return states, actions


def serves(model: Machine, n_states: int, n_actions: int) -> bool:
    """Whether a model serves these sizes."""
    return all(
        low <= n <= high
        for n, (low, high) in zip((n_states, n_actions), served(model), strict=True)
    )


def representative_sizes(model: Machine) -> list[tuple[int, int]]:
    """A small, a middle and a large (n_states, n_actions) among those that a model serves."""
    (low_s, high_s), (low_a, high_a) = served(model)
    wanted = ((4, 2), (6, 3), (8, 4))
    return list(
        dict.fromkeys((min(max(s, low_s), high_s), min(max(a, low_a), high_a)) for s, a in wanted)
    )
