r"""Bellman's equation: sampled, it is the Q-learning update; solved, it gives optimal policies.

    Q_{t+1}(s_t, a_t) = Q_t(s_t, a_t) + alpha (r_t + gamma max_a Q_t(s_{t+1}, a) - Q_t(s_t, a_t))
    V_k(s) = max_a r(s, a) + sum_s' P(s' | s, a) V_{k-1}(s')    (no discount, V_0 = 0)

Here s_t, a_t and r_t are state, action and reward of round t, alpha is the learning rate, and gamma
the discount (paper, section 4). V_k is the optimal value with k rounds left. The greedy action is
the one with the lowest index among the exactly largest values. Tied actions are found with a
tolerance, since equal values may differ in the last bit. Optima use the mean of Bernoulli rewards.
They are for agents that know the MDP; a learner, which must first explore it, cannot reach them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from interp.support.errors import require
from interp.tasks.qlearning.mdps import MDPs

_TIE_TOLERANCE = 1e-12  # values closer than this to the largest are tied with it

_Table = Float[np.ndarray, "episode state action"]
_PerEpisode = Int[np.ndarray, " episode"]
_PerRound = Int[np.ndarray, "episode round"]


def check_rates(alpha: float, gamma: float) -> None:
    """Raise InputError if the learning rate ``alpha`` is not in (0, 1], or the discount ``gamma``
    not in [0, 1).
    """
    require(0 < alpha <= 1, f"alpha must lie in (0, 1], got {alpha}; the paper uses 0.1")
    require(
        0 <= gamma < 1,
        f"gamma must lie in [0, 1), got {gamma}; the paper uses 0.9, and 0 never bootstraps",
    )


def q_update(
    table: _Table,
    states: _PerEpisode,
    actions: _PerEpisode,
    rewards: Float[np.ndarray, " episode"],
    next_states: _PerEpisode,
    alpha: float,
    gamma: float,
) -> _Table:
    """Return new tables after one Q-learning update in every episode, ``[episode, state, action]``.

    Args:
        table: the tables before the update, ``[episode, state, action]``.
        states, actions, rewards, next_states: the transition in each episode, ``[episode]``.
        alpha: learning rate.
        gamma: discount.
    """
    rows = np.arange(len(table))
    current = table[rows, states, actions]
    target = rewards + gamma * table[rows, next_states].max(-1)
    updated = table.copy()
    updated[rows, states, actions] = current + alpha * (target - current)
    return updated


def replay_tables(
    states: _PerRound,
    actions: _PerRound,
    rewards: Float[np.ndarray, "episode round"],
    next_states: _PerRound,
    initial: _Table,
    alpha: float,
    gamma: float,
    missing: Bool[np.ndarray, "episode round"] | None = None,
) -> Float[np.ndarray, "episode step state action"]:
    """Compute the Q-tables that Q-learning would have learned from recorded transitions.

    Args:
        states, actions, rewards, next_states: the transition in each round, ``[episode, round]``.
        initial: the tables before the first round, ``[episode, state, action]``.
        alpha: learning rate.
        gamma: discount.
        missing: Bool[episode, round], True for rounds that leave the table unchanged.

    Returns:
        Tables ``[episode, round + 1, state, action]``; index t is the table before round t.
    """
    n_episodes, n_rounds = states.shape
    tables = np.empty((n_episodes, n_rounds + 1, *initial.shape[1:]))
    tables[:, 0] = initial
    for t in range(n_rounds):
        transition = states[:, t], actions[:, t], rewards[:, t], next_states[:, t]
        tables[:, t + 1] = q_update(tables[:, t], *transition, alpha, gamma)
        if missing is not None:  # undo the update in episodes in which the round is missing
            tables[missing[:, t], t + 1] = tables[missing[:, t], t]
    return tables


def take_rows(
    tables: Float[np.ndarray, "*batch state action"], states: Int[np.ndarray, "*batch"]
) -> Float[np.ndarray, "*batch action"]:
    """Return the values of all actions at one state of each table: ``tables[..., states[...], :]``.

    Args:
        tables: Q-tables, ``[..., state, action]``.
        states: index of the state, one per table, ``[...]``.
    """
    return np.take_along_axis(tables, states[..., None, None], -2)[..., 0, :]


def take_columns(
    tables: Float[np.ndarray, "*batch state action"], actions: Int[np.ndarray, "*batch"]
) -> Float[np.ndarray, "*batch state"]:
    """Return the values of one action in all states of each table:
    ``tables[..., :, actions[...]]``.

    Args:
        tables: Q-tables, ``[..., state, action]``.
        actions: index of the action, one per table, ``[...]``.
    """
    return np.take_along_axis(tables, actions[..., None, None], -1)[..., 0]


def take_entries(
    rows: Shaped[np.ndarray, "*batch index"], index: Int[np.ndarray, "*batch"]
) -> Shaped[np.ndarray, "*batch"]:
    """Return one entry of each row: ``rows[..., index[...]]``.

    Args:
        rows: arrays ``[..., index]``.
        index: index of the entry, one per row, ``[...]``.
    """
    entries = np.take_along_axis(rows, index[..., None], -1)
    return entries[..., 0]


def greedy_sets(values: Float[np.ndarray, "*batch action"]) -> Bool[np.ndarray, "*batch action"]:
    """Return a mask of the greedy actions, ``[..., action]``: True where an action's value equals
    the largest value up to 1e-12.

    Args:
        values: action values, ``[..., action]``.
    """
    return values >= values.max(-1, keepdims=True) - _TIE_TOLERANCE


# Optima of known MDPs.


class _FinitePlan(NamedTuple):
    """The optimal values and policy of each MDP if a fixed number of rounds is played.

    Attributes:
        values: expected sum of the rewards from a round on, ``[mdp, round + 1, state]``; 0 after
            the last round.
        policy: the optimal action, ``[mdp, round, state]``.
    """

    values: Float[np.ndarray, "mdp steps state"]
    policy: Int[np.ndarray, "mdp round state"]


def finite_horizon(mdps: MDPs, n_rounds: int) -> _FinitePlan:
    """Compute the optimal values and policy of each MDP by backward induction, if ``n_rounds``
    rounds are played.

    Args:
        mdps: the MDPs.
        n_rounds: number of rounds that are played.

    Returns:
        ``values``: expected sum of the rewards from a round on, ``[mdp, round + 1, state]``; 0
        after the last round. ``policy``: the optimal action, ``[mdp, round, state]``.
    """
    require(n_rounds >= 1, f"n_rounds must be at least 1, got {n_rounds}")
    values = np.zeros((len(mdps), n_rounds + 1, mdps.n_states))
    policy = np.zeros((len(mdps), n_rounds, mdps.n_states), np.int64)
    for t in reversed(range(n_rounds)):
        action_values = _compute_action_values(mdps, values[:, t + 1])
        values[:, t] = action_values.max(-1)
        # The first of the best actions; greedy_sets marks actions as tied up to rounding.
        policy[:, t] = greedy_sets(action_values).argmax(-1)
    return _FinitePlan(values, policy)


def random_values(mdps: MDPs, n_rounds: int) -> Float[np.ndarray, "mdp steps state"]:
    """Compute the expected sum of the rewards from each round on, if all actions are uniformly
    random.

    Args:
        mdps: the MDPs.
        n_rounds: number of rounds that are played.

    Returns:
        The sums, ``[mdp, round + 1, state]``; 0 after the last round.
    """
    require(n_rounds >= 1, f"n_rounds must be at least 1, got {n_rounds}")
    values = np.zeros((len(mdps), n_rounds + 1, mdps.n_states))
    for t in reversed(range(n_rounds)):  # backwards: a value contains that of the next round
        values[:, t] = _compute_action_values(mdps, values[:, t + 1]).mean(-1)
    return values


def _compute_action_values(
    mdps: MDPs, values: Float[np.ndarray, "mdp state"]
) -> Float[np.ndarray, "mdp state action"]:
    """Return the reward of each action plus the expected value of the next state,
    ``[mdp, state, action]``.

    Args:
        mdps: the MDPs.
        values: value of each state in the next round, ``[mdp, state]``.
    """
    # Axes: MDP b, state s, action a, next state n.
    return mdps.rewards + np.einsum("bsan,bn->bsa", mdps.transitions, values)
