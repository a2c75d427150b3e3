"""Token layout of a round of tabular Q-learning (paper, section 4)."""

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
from interp.tasks.sized_round import SizedRound, number_names


@dataclass(frozen=True)
class QLearningRound(SizedRound):
    """Token layout of a round: ``<BOS> c_1 ... c_A Qcurr s a r Qnext s' s'_1 a_1 ... s'_A a_A
    Select | a* Update``.

    Each word is one of the round's 3 A + 10 positions, in order, for A actions. The bar is no
    position: what follows it is read after the prediction.

    - ``<BOS>``: a fixed token, to which heads can attend by default (an attention sink);
    - ``c_i``: the latent of action i, a vector carried from round to round, which can hold the
      column of the Q-table for this action;
    - ``Qcurr`` and ``Qnext``: fixed tokens, which mark the parts of the round about the current and
      about the next state;
    - ``s``, ``a``, ``r`` and ``s'``: state, action, reward and next state; the token ``r`` is fixed
      and has the reward as its payload (a real number that the token carries);
    - ``s'_i`` and ``a_i``: the next state again, and action i, for every action;
    - ``Select``: the position where the model predicts the greedy action in the next state;
    - ``a*``: the action that is chosen in the next state, a token ``a_1``, ``a_2``, ...;
    - ``Update``: the position where the update of the latent is read.

    Attributes:
        n_states, n_actions: numbers of states and of actions.
        n_states_range, n_actions_range: smallest and largest number that the vocabulary supports;
            only ``n_states`` and ``n_actions`` themselves when None.
        noise: True for a further position ``n`` after the latents. Its token is the random draw of
            an epsilon-greedy machine: ``greedy``, or ``explore_i`` for the random action i.
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
        labels = ["<BOS>", *number_names("c", self.n_actions)]
        if self.noise:
            labels.append("n")
        labels += ["Qcurr", "s", "a", "r", "Qnext", "s'"]
        for i in range(1, self.n_actions + 1):
            labels += [f"s'_{i}", f"a_{i}"]
        return (*labels, "Select", "a*", "Update")

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        (_, max_states), (_, max_actions) = self.served
        fixed = ("<BOS>", "r", "Select", "Qcurr", "Qnext", "Update")
        states, actions = number_names("s", max_states), number_names("a", max_actions)
        return (*fixed, *states, *actions, *self.draws)

    @property
    def draws(self) -> tuple[str, ...]:
        """Tokens for the random draw of a round, ``("greedy", "explore_1", "explore_2", ...)``; the
        episodes' field ``noise`` has their indices. Empty if the round has no draw.
        """
        if not self.noise:
            return ()
        _, (_, max_actions) = self.served
        return ("greedy", *number_names("explore", max_actions))

    def to_dict(self) -> dict[str, Any]:
        fields = super().to_dict()
        if not self.noise:
            del fields["noise"]  # as in checkpoints from before this field existed
        return fields

    @property
    def n_latents(self) -> int:
        """Number of latents: one per action, which can hold the action's column of the Q-table (its
        values in all states).
        """
        return self.n_actions

    @property
    def outcomes(self) -> tuple[str, ...]:
        return number_names("a", self.n_actions)

    def encode(self, episodes: MDPEpisodes) -> EncodedRounds:
        """Return the tokens and numbers that a model reads in each round of the episodes."""
        self.require_fit(episodes)
        place, token_ids = self.position, self.token_ids
        first_state, first_action = token_ids["s_1"], token_ids["a_1"]
        actions = torch.from_numpy(episodes.actions)
        next_states = torch.from_numpy(episodes.next_states)
        tokens = self.make_blank_tokens(*actions.shape)
        tokens[..., place("s")] = first_state + torch.from_numpy(episodes.states)
        tokens[..., place("a")] = first_action + actions
        tokens[..., place("s'")] = first_state + next_states
        copies = slice(place("s'_1"), place("Select"), 2)  # s'_1, s'_2, ...; a_i are in between
        tokens[..., copies] = first_state + next_states[..., None]
        tokens[..., place("a*")] = first_action + torch.from_numpy(episodes.greedy)
        if self.noise:
            tokens[..., place("n")] = token_ids["greedy"] + _get_noise(episodes)
        values = torch.zeros(tokens.shape, dtype=torch.float64)
        values[..., place("r")] = torch.from_numpy(episodes.rewards)
        # The update writes into the latent of the action that was taken.
        return EncodedRounds(tokens, values, slots=actions)

    @checked
    def choice_token(self, choice: Tensor) -> Tensor:
        return choice + self.token_ids["a_1"]

    # Latent i holds column i of the Q-table.

    @checked
    def state(self, readout: Shaped[Tensor, "*batch action state"]) -> Tensor:
        """Return Q-tables ``[..., state, action]``.

        Args:
            readout: what is read out of the latents: for each action the column of the Q-table,
                ``[..., action, state]``.
        """
        return rearrange(readout, "... action state -> ... state action")

    @checked
    def per_latent(self, state: Shaped[Tensor, "*batch state action"]) -> Tensor:
        return rearrange(state, "... state action -> ... action state")

    @checked
    def select_slot_part(self, state: Tensor, slots: Tensor) -> Tensor:
        """Return the column of the Q-table that a round's update writes, ``[..., state]``: the
        values, in all states, of the action that was taken.

        Args:
            state: the Q-table, ``[..., state, action]``.
            slots: index of the action that was taken, ``[...]``.
        """
        try:
            index = slots[..., None, None].expand(*state.shape[:-1], 1)  # [..., state, 1]
            return state.gather(-1, index).squeeze(-1)
        except RuntimeError as error:
            raise InputError(
                f"slots of shape {tuple(slots.shape)} name no column of states of shape {tuple(state.shape)}"
            ) from error


def _get_noise(episodes: MDPEpisodes) -> Tensor:
    """Return the episodes' field ``noise``, the random draws that decide whether an agent explores,
    ``[episode, round]``; refuse episodes without it.
    """
    if episodes.noise is None:
        raise InputError(
            "these episodes have no noise, the draw of every round that this model reads at 'n'; sample them, "
            "give MDPEpisodes.from_transitions noise= (zeros where all is greedy), or load it without noise"
        )
    return torch.from_numpy(episodes.noise)


def get_size_ranges(model: Machine) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the sizes that a Q-learning model supports, such as ``((2, 8), (2, 4))``: the smallest
    and largest number of states, then the smallest and largest number of actions.
    """
    layout = model.layout
    if not isinstance(layout, QLearningRound):
        raise InputError(f"{model.name!r} is a model of {layout.task!r}, not of Q-learning")
    states, actions = layout.served
    return states, actions


def representative_sizes(model: Machine) -> list[tuple[int, int]]:
    """Return up to three pairs (n_states, n_actions) that a model supports, for measurements at
    several sizes: those nearest to (4, 2), (6, 3) and (8, 4).
    """
    (least_states, most_states), (least_actions, most_actions) = get_size_ranges(model)
    sizes = []
    for n_states, n_actions in ((4, 2), (6, 3), (8, 4)):
        nearest_states = min(max(n_states, least_states), most_states)
        nearest_actions = min(max(n_actions, least_actions), most_actions)
        sizes.append((nearest_states, nearest_actions))
    return list(dict.fromkeys(sizes))
