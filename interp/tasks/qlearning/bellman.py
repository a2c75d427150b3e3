r"""The Q-learning update and the greedy choice: pure functions that samplers, learners and replays share.

    Q_{t+1}(s_t, a_t) = Q_t(s_t, a_t) + alpha (r_t + gamma max_a Q_t(s_{t+1}, a) - Q_t(s_t, a_t))

(paper, section 4; every other entry keeps its value). ``gamma = 0`` is allowed: that table never bootstraps, and it is
the baseline that shows whether a learner does. They live with the tasks because episodes carry the tables that this
update makes, and tasks import nothing from ``interp.algorithms``.

Ties: the greedy action is the lowest index among the exactly largest values (``numpy.argmax``). Whether a step *is* a
tie is asked with a tolerance, since values that are equal on paper may differ in the last bit.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

from interp.errors import require

TIE_TOLERANCE = 1e-12
"""Values closer than this to the largest are tied with it."""

Table = Float[np.ndarray, "episode state action"]
Tables = Float[np.ndarray, "episode step state action"]
PerEpisode = Int[np.ndarray, " episode"]


def check_rates(alpha: float, gamma: float) -> None:
    """Refuse a learning rate or a discount outside its range.

    Raises:
        InputError: alpha outside (0, 1] or gamma outside [0, 1).
    """
    require(0 < alpha <= 1, f"alpha must lie in (0, 1], got {alpha}; the paper uses 0.1")
    require(0 <= gamma < 1, f"gamma must lie in [0, 1), got {gamma}; the paper uses 0.9, and 0 never bootstraps")


def q_update(
    table: Table,
    states: PerEpisode,
    actions: PerEpisode,
    rewards: Float[np.ndarray, " episode"],
    next_states: PerEpisode,
    alpha: float,
    gamma: float,
) -> Table:
    """One update per episode; the given table is left as it is.

    >>> q_update(np.zeros((1, 2, 2)), *(np.array([x]) for x in (0, 1)), np.array([1.0]), np.array([1]), 0.5, 0.9)[0]
    array([[0. , 0.5],
           [0. , 0. ]])
    """
    rows = np.arange(len(table))
    current = table[rows, states, actions]
    target = rewards + gamma * table[rows, next_states].max(-1)
    updated = table.copy()
    updated[rows, states, actions] = current + alpha * (target - current)
    return updated


def replay_tables(
    states: Int[np.ndarray, "episode round"],
    actions: Int[np.ndarray, "episode round"],
    rewards: Float[np.ndarray, "episode round"],
    next_states: Int[np.ndarray, "episode round"],
    initial: Table,
    alpha: float,
    gamma: float,
) -> Tables:
    """The tables ``[episode, round + 1, state, action]`` that Q-learning makes of recorded transitions."""
    n_episodes, n_rounds = states.shape
    tables = np.empty((n_episodes, n_rounds + 1, *initial.shape[1:]))
    tables[:, 0] = initial
    for t in range(n_rounds):
        step = states[:, t], actions[:, t], rewards[:, t], next_states[:, t]
        tables[:, t + 1] = q_update(tables[:, t], *step, alpha, gamma)
    return tables


def rows_at(tables: Tables, states: Int[np.ndarray, "episode step"]) -> Float[np.ndarray, "episode step action"]:
    """``tables[b, t, states[b, t], :]``: the action values at one state of every table."""
    return np.take_along_axis(tables, states[..., None, None], axis=2).squeeze(2)


def greedy(values: Float[np.ndarray, "*batch action"]) -> Int[np.ndarray, "*batch"]:
    """The action of largest value, the lowest index on ties."""
    return np.asarray(values.argmax(-1))


def greedy_sets(
    values: Float[np.ndarray, "*batch action"], tolerance: float = TIE_TOLERANCE
) -> Bool[np.ndarray, "*batch action"]:
    """Which actions are greedy: within ``tolerance`` of the largest value."""
    return values >= values.max(-1, keepdims=True) - tolerance
