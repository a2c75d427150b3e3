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
from interp.task import chosen_indices

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
        transitions = as_array("transitions", self.transitions, np.float64, 4)
        rewards = as_array("rewards", self.rewards, np.float64, 3)
        n, n_states, n_actions = rewards.shape
        few = f"an MDP needs at least 1 state and 1 action, got {n_states} and {n_actions}"
        require(n_states >= 1 and n_actions >= 1, few)
        wanted = (n, n_states, n_actions, n_states)
        require(
            transitions.shape == wanted,
            f"transitions must have shape [episode, state, action, state] = {wanted} to go with rewards "
            f"{rewards.shape}, got {transitions.shape}",
        )
        _check_rows(transitions)
        require(bool(np.isfinite(rewards).all()), "rewards must be finite, got NaN or infinity")
        defaults = {"families": ("custom",) * n, "concentrations": np.full(n, np.nan), "bernoulli": np.zeros(n, bool)}
        filled = {k: getattr(self, k) if len(getattr(self, k)) else v for k, v in defaults.items()}
        for name, value in filled.items():
            require(len(value) == n, f"{name} must have one entry for each of the {n} MDPs, got {len(value)}")
        filled["concentrations"] = as_array("concentrations", filled["concentrations"], np.float64, 1)
        filled["bernoulli"] = as_array("bernoulli", filled["bernoulli"], np.bool_, 1)
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


def _check_rows(transitions: NDArray[np.float64]) -> None:
    require(bool(np.isfinite(transitions).all()), "transitions must be finite, got NaN or infinity")
    if transitions.size and transitions.min() < 0:
        where = tuple(int(i) for i in np.unravel_index(transitions.argmin(), transitions.shape))
        raise InputError(f"transitions{list(where)} is {transitions.min():.4g}; a probability cannot be negative")
    sums = transitions.sum(-1)
    wrong = np.argwhere(np.abs(sums - 1) > _ROW_TOLERANCE)
    if len(wrong):
        where = tuple(int(i) for i in wrong[0])
        raise InputError(
            f"transitions{list(where)} (episode, state, action) sums to {sums[where]:.6g}, not 1; normalise the rows, "
            "and write a terminal state as one that moves to itself, since episodes do not end"
        )


# Checks of user input that episodes share.


def inverse_labels(name: str, labels: Any, n: int, size: int) -> NDArray[np.int64]:
    """The old label of every new one; ``labels[episode, old]`` is the new label of every old one."""
    array = as_array(name, labels, np.int64, 2)
    wanted = f"{name} must hold a permutation of 0 to {size - 1} for each of the {n} episodes, shape {(n, size)}"
    require(array.shape == (n, size) and bool((np.sort(array, 1) == np.arange(size)).all()), wanted)
    return np.argsort(array, 1)


def freeze(record: Any, **values: Any) -> None:
    """Set the checked values of a frozen dataclass."""
    for name, value in values.items():
        object.__setattr__(record, name, value)


def as_array(name: str, value: Any, dtype: type, ndim: int) -> NDArray[Any]:
    """A user's value as an array of that type and number of axes."""
    array: NDArray[Any] = array_of(name, value).astype(dtype, copy=False)
    require(array.ndim == ndim, f"{name} must have {ndim} axes, got shape {array.shape}")
    return array


def as_labels(name: str, value: Any, kind: str, size: int) -> NDArray[np.int64]:
    """A user's state or action labels, ``[episode, round]``."""
    array: NDArray[Any] = array_of(name, value)
    require(array.dtype.kind in "iu", f"{name} must hold integers, got {array.dtype}")
    array = as_array(name, array, np.int64, 2)
    if array.size and (array.min() < 0 or array.max() >= size):
        wrong = array.min() if array.min() < 0 else array.max()
        raise InputError(
            f"{name} holds {kind} {wrong} but this MDP has {size} {kind}s (0 to {size - 1}); "
            "give the MDPs that the episodes were made in"
        )
    return array
