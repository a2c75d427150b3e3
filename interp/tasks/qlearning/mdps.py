"""A batch of finite MDPs of one size: frozen, validated when made.

P(s' | s, a): every row a distribution;  r(s, a): any finite number (the paper's lie in [0, 1])
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import ArrayLike, NDArray

from interp.checks import array_of, checked
from interp.errors import InputError, require
from interp.task import chosen_indices, episode_array, freeze

_ROW_TOLERANCE = 1e-8


@dataclass(frozen=True, eq=False)
class MDPs:
    """A batch of finite MDPs of one size.

    Attributes:
        transitions: P(s' | s, a), ``[episode, state, action, next state]``.
        rewards: r(s, a), ``[episode, state, action]``.
        families: the reward family of each MDP, "custom" when none is given.
        concentrations: the Dirichlet concentration of each MDP's transitions, NaN where they were not drawn so.
        bernoulli: where True, the reward is 1 with probability r(s, a), else 0; where False it is r(s, a) itself.

    >>> MDPs(transitions=np.full((1, 2, 3, 2), 0.5), rewards=np.zeros((1, 2, 3))).n_actions
    3
    """

    transitions: NDArray[Any]
    rewards: NDArray[Any]
    families: tuple[str, ...] = ()
    concentrations: NDArray[Any] = field(default_factory=lambda: np.empty(0))
    bernoulli: NDArray[Any] = field(default_factory=lambda: np.empty(0, bool))

    def __post_init__(self) -> None:
        transitions = episode_array("transitions", self.transitions, "episode, state, action, next state", 0)
        rewards = episode_array("rewards", self.rewards, "episode, state, action")
        n, n_states, n_actions = rewards.shape
        few = f"an MDP needs at least 1 state and 1 action, got {n_states} and {n_actions}"
        require(n_states >= 1 and n_actions >= 1, few)
        wanted = (n, n_states, n_actions, n_states)
        require(
            transitions.shape == wanted,
            f"transitions must have shape [episode, state, action, state] = {wanted} to go with rewards "
            f"{rewards.shape}, got {transitions.shape}",
        )
        sums = transitions.sum(-1)
        for where in np.argwhere(np.abs(sums - 1) > _ROW_TOLERANCE)[:1].tolist():
            raise InputError(
                f"transitions{where} (episode, state, action) sums to {sums[tuple(where)]:.6g}, not 1; normalise the "
                "rows, and write a terminal state as one that moves to itself, since episodes do not end"
            )
        defaults: dict[str, Any] = {"concentrations": np.full(n, np.nan), "bernoulli": np.zeros(n, bool)}
        defaults["families"] = ("custom",) * n
        filled = {k: getattr(self, k) if len(getattr(self, k)) else v for k, v in defaults.items()}
        for name, value in filled.items():
            require(len(value) == n, f"{name} must have one entry for each of the {n} MDPs, got {len(value)}")
        for name in ("concentrations", "bernoulli"):
            filled[name] = array_of(name, filled[name]).astype(defaults[name].dtype, copy=False)
        chances = rewards[filled["bernoulli"]]
        require(
            chances.size == 0 or bool(chances.min() >= 0 and chances.max() <= 1),
            "Bernoulli rewards are probabilities of success and must lie in [0, 1]",
        )
        freeze(self, transitions=transitions, rewards=rewards, **filled)

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def n_states(self) -> int:
        """States of every MDP."""
        return self.rewards.shape[1]

    @property
    def n_actions(self) -> int:
        """Actions of every MDP."""
        return self.rewards.shape[2]

    @checked
    def select(self, index: slice | ArrayLike) -> MDPs:
        """The MDPs at ``index``: a slice, indices (with repeats for a resample) or a mask."""
        chosen = chosen_indices(index, len(self))
        families = tuple(self.families[i] for i in chosen)
        arrays = {f.name: getattr(self, f.name)[chosen] for f in fields(self) if f.name != "families"}
        return MDPs(families=families, **arrays)

    def permuted(self, states: Int[np.ndarray, "episode state"], actions: Int[np.ndarray, "episode action"]) -> MDPs:
        """The same MDPs under new labels: state ``s`` is called ``states[episode, s]``, and so for actions."""
        rows = np.arange(len(self))
        old_states = inverse_labels("states", states, len(self), self.n_states)
        old_actions = inverse_labels("actions", actions, len(self), self.n_actions)
        at = rows[:, None, None], old_states[:, :, None], old_actions[:, None, :]
        transitions = np.take_along_axis(self.transitions[at], old_states[:, None, None, :], axis=3)
        return replace(self, transitions=transitions, rewards=self.rewards[at])


def inverse_labels(name: str, labels: Any, n: int, size: int) -> NDArray[np.int64]:
    """The old label of every new one; ``labels[episode, old]`` is the new label of every old one."""
    array = episode_array(name, labels, "episode, label", whole=True)
    wanted = f"{name} must hold a permutation of 0 to {size - 1} for each of the {n} episodes, shape {(n, size)}"
    require(array.shape == (n, size) and bool((np.sort(array, 1) == np.arange(size)).all()), wanted)
    return np.argsort(array, 1)
