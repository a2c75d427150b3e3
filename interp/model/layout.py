"""The token layout of one round: a label for every position, and what each position is for.

A round of the experts task (paper, section 3) and one of tabular Q-learning (section 4)::

    <w> <z> e_1 p_1 ... e_n p_n p? | y w?
    <BOS> c_1 ... c_A Qcurr s a r Qnext s' (s'_i a_i)_i Select | a* Update

Latents stand at ``latent_positions``; the prediction is read at ``predict_position``; the update is read at
``update_position`` and replaces (or is added to) one latent slot. Everything after the prediction is the *suffix*:
the model is told the truth, or commits its own choice, only there. A layout also knows how episodes become tokens.

A model can serve a range of sizes (``n_experts_range``, ...): its vocabulary is that of the largest, and
:meth:`RoundLayout.fit` gives the layout for given episodes. Prediction and update stand at fixed distances from the
end, and latents at fixed distances from the start, in every size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from interp.errors import InputError, require, unknown_name

if TYPE_CHECKING:
    from interp.tasks.experts import ExpertEpisodes
    from interp.tasks.mdp_types import MDPEpisodes, MDPs

LATENT_START = 1
PREDICT_INDEX = -3
UPDATE_INDEX = -1


@dataclass(frozen=True)
class EncodedRounds:
    """Episodes as model input.

    Attributes:
        tokens: Int[episode, round, pos]; 0 stands at latent slots (the latent takes its place).
        values: Float[episode, round, pos], scalar payloads (rewards), zero elsewhere.
        slots: Int[episode, round], the latent slot that the round's update is written to.
    """

    tokens: Tensor
    values: Tensor
    slots: Tensor


@dataclass(frozen=True)
class RoundLayout:
    """What both layouts share; use :class:`ExpertRound` or :class:`QLearningRound`."""

    task: ClassVar[str]
    choice_label: ClassVar[str | None] = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The label of every position, in order."""
        raise NotImplementedError

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The tokens, in id order; the first one is the attention sink (``<w>`` or ``<BOS>``)."""
        raise NotImplementedError

    @property
    def n_latents(self) -> int:
        raise NotImplementedError

    @property
    def n_outputs(self) -> int:
        """Number of outcomes predicted: two labels, or the actions."""
        raise NotImplementedError

    @property
    def max_layout(self) -> RoundLayout:
        """The layout of the largest size that the vocabulary serves."""
        raise NotImplementedError

    @property
    def family(self) -> tuple[RoundLayout, ...]:
        """The layouts of every length that the vocabulary serves, shortest first."""
        raise NotImplementedError

    def fit(self, episodes: Any) -> RoundLayout:
        """The layout of this family for the sizes of ``episodes``.

        Raises:
            InputError: episodes of another task, or of a size outside this layout's range.
        """
        raise NotImplementedError

    def encode(self, episodes: Any) -> EncodedRounds:
        """Tokens, payloads and update slots of ``episodes``; their sizes must be this layout's.

        Raises:
            InputError: episodes of another task or of other sizes.
        """
        raise NotImplementedError

    def state(self, readout: Tensor) -> Tensor:
        """Arrange what a state readout gives per latent, ``[..., latent, k]``, as the algorithm's state."""
        raise NotImplementedError

    @property
    def n_positions(self) -> int:
        return len(self.labels)

    @property
    def latent_positions(self) -> tuple[int, ...]:
        return tuple(range(LATENT_START, LATENT_START + self.n_latents))

    @property
    def predict_position(self) -> int:
        return self.n_positions + PREDICT_INDEX

    @property
    def update_position(self) -> int:
        return self.n_positions + UPDATE_INDEX

    @property
    def choice_position(self) -> int | None:
        """Where the model's own choice is committed (``a*``); None when a round holds no such token."""
        return None if self.choice_label is None else self.position(self.choice_label)

    @cached_property
    def token_ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.vocabulary)}

    def position(self, label: str) -> int:
        """The position of ``label``.

        Raises:
            InputError: no such label; the nearest ones are named.
        """
        try:
            return self.labels.index(label)
        except ValueError:
            raise unknown_name("position label", label, self.labels, limit=40) from None

    def positions(self, labels: str | Iterable[str]) -> tuple[int, ...]:
        """Positions of several labels; "all" means every position."""
        if isinstance(labels, str):
            labels = self.labels if labels == "all" else (labels,)
        return tuple(self.position(label) for label in labels)

    def to_dict(self) -> dict[str, Any]:
        """Sizes as JSON values, with the task's name."""
        return {"task": self.task, **{f.name: getattr(self, f.name) for f in fields(self)}}


def _size_range(name: str, size: int, given: tuple[int, int] | None) -> tuple[int, int]:
    require(isinstance(size, int | np.integer) and size >= 1, f"{name} must be an integer >= 1, got {size!r}")
    low, high = (size, size) if given is None else (int(given[0]), int(given[1]))
    require(
        1 <= low <= size <= high,
        f"{name} {size} is outside {name}_range ({low}, {high}); give a range that holds it",
    )
    return low, high


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
        bounds = _size_range("n_experts", self.n_experts, self.n_experts_range)
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
        return 1

    @property
    def n_outputs(self) -> int:
        return 2

    @property
    def max_layout(self) -> ExpertRound:
        return replace(self, n_experts=self._bounds[1])

    @property
    def family(self) -> tuple[ExpertRound, ...]:
        low, high = self._bounds
        return tuple(replace(self, n_experts=n) for n in range(low, high + 1))

    def fit(self, episodes: ExpertEpisodes) -> ExpertRound:
        from interp.tasks.experts import ExpertEpisodes

        if not isinstance(episodes, ExpertEpisodes):
            raise InputError(f"this model reads expert episodes, got {type(episodes).__name__}")
        low, high = self._bounds
        n_experts = episodes.advice.shape[-1]
        if not low <= n_experts <= high:
            served = f"{low} experts" if low == high else f"{low} to {high} experts"
            raise InputError(
                f"episodes have {n_experts} experts but this model's layout serves {served}; "
                f"sample with n_experts={min(max(n_experts, low), high)} or load the model with n_experts={n_experts}"
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

    def state(self, readout: Tensor) -> Tensor:
        """``[..., 1, n] -> [..., n]``: one number per expert."""
        return readout.squeeze(-2)


@dataclass(frozen=True)
class QLearningRound(RoundLayout):
    """A round of tabular Q-learning.

    ``<BOS> c_1 ... c_A Qcurr s a r Qnext s' (s'_i a_i)_i Select | a* Update``: 3 A + 10 positions; latent ``c_i``
    belongs to action i.

    Args:
        n_states: number of states, at least 1.
        n_actions: number of actions, at least 1.
        n_states_range, n_actions_range: sizes that the vocabulary serves; just the given ones when None.
    """

    n_states: int
    n_actions: int
    n_states_range: tuple[int, int] | None = None
    n_actions_range: tuple[int, int] | None = None
    task: ClassVar[str] = "qlearning"
    choice_label: ClassVar[str | None] = "a*"

    def __post_init__(self) -> None:
        states = _size_range("n_states", self.n_states, self.n_states_range)
        actions = _size_range("n_actions", self.n_actions, self.n_actions_range)
        object.__setattr__(self, "n_states_range", states)
        object.__setattr__(self, "n_actions_range", actions)

    @property
    def _bounds(self) -> tuple[tuple[int, int], tuple[int, int]]:
        assert self.n_states_range is not None and self.n_actions_range is not None
        return self.n_states_range, self.n_actions_range

    @cached_property
    def labels(self) -> tuple[str, ...]:
        actions = range(1, self.n_actions + 1)
        candidates = [label for i in actions for label in (f"s'_{i}", f"a_{i}")]
        return (
            "<BOS>",
            *(f"c_{i}" for i in actions),
            *("Qcurr", "s", "a", "r", "Qnext", "s'"),
            *candidates,
            *("Select", "a*", "Update"),
        )

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        (_, max_states), (_, max_actions) = self._bounds
        return (
            *("<BOS>", "r", "Select", "Qcurr", "Qnext", "Update"),
            *(f"s_{i}" for i in range(1, max_states + 1)),
            *(f"a_{i}" for i in range(1, max_actions + 1)),
        )

    @property
    def n_latents(self) -> int:
        return self.n_actions

    @property
    def n_outputs(self) -> int:
        return self.n_actions

    @property
    def max_layout(self) -> QLearningRound:
        (_, max_states), (_, max_actions) = self._bounds
        return replace(self, n_states=max_states, n_actions=max_actions)

    @property
    def family(self) -> tuple[QLearningRound, ...]:
        (low, high), most = self._bounds[1], self.max_layout
        return tuple(replace(most, n_actions=n) for n in range(low, high + 1))

    def fit(self, episodes: MDPEpisodes | MDPs) -> QLearningRound:
        from interp.tasks.mdp_types import MDPEpisodes, MDPs

        if not isinstance(episodes, MDPEpisodes | MDPs):
            raise InputError(f"this model reads MDP episodes, got {type(episodes).__name__}")
        sizes = {"n_states": episodes.n_states, "n_actions": episodes.n_actions}
        for (name, size), (low, high) in zip(sizes.items(), self._bounds, strict=True):
            require(
                low <= size <= high,
                f"episodes have {name} {size} but this model's layout serves {low} to {high}; "
                f"sample with {name} in that range or load the model with {name}={size}",
            )
        return replace(self, n_states=episodes.n_states, n_actions=episodes.n_actions)

    def encode(self, episodes: MDPEpisodes) -> EncodedRounds:
        layout = self.fit(episodes)
        require(
            layout == self,
            f"episodes have {layout.n_states} states and {layout.n_actions} actions, this layout {self.n_states} and "
            f"{self.n_actions}; call layout.fit(episodes) first",
        )
        ids, at = self.token_ids, self.position
        states, actions = torch.from_numpy(episodes.states).long(), torch.from_numpy(episodes.actions).long()
        following = torch.from_numpy(episodes.next_states).long()
        tokens = torch.zeros(*states.shape, self.n_positions, dtype=torch.long)
        for label in ("Qcurr", "r", "Qnext", "Select", "Update"):
            tokens[..., at(label)] = ids[label]
        tokens[..., at("s")] = ids["s_1"] + states
        tokens[..., at("a")] = ids["a_1"] + actions
        tokens[..., at("s'")] = ids["s_1"] + following
        first = at("s'_1")
        tokens[..., first : first + 2 * self.n_actions : 2] = ids["s_1"] + following[..., None]
        candidates = torch.arange(ids["a_1"], ids["a_1"] + self.n_actions)
        tokens[..., first + 1 : first + 2 * self.n_actions : 2] = candidates
        tokens[..., at("a*")] = ids["a_1"] + torch.from_numpy(episodes.greedy).long()
        values = torch.zeros(tokens.shape, dtype=torch.float64)
        values[..., at("r")] = torch.from_numpy(episodes.rewards).to(torch.float64)
        return EncodedRounds(tokens, values, actions)

    def state(self, readout: Tensor) -> Tensor:
        """``[..., A, S] -> [..., S, A]``: latent i holds column i of the Q-table."""
        return readout.transpose(-1, -2)


def layout_from_dict(data: dict[str, Any]) -> RoundLayout:
    """The layout that :meth:`RoundLayout.to_dict` described.

    Raises:
        InputError: unknown task.
    """
    layouts: dict[str, type[RoundLayout]] = {cls.task: cls for cls in (ExpertRound, QLearningRound)}
    sizes: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k != "task"}
    try:
        cls = layouts[data["task"]]
    except KeyError:
        raise unknown_name("task", data.get("task"), layouts) from None
    return cls(**sizes)
