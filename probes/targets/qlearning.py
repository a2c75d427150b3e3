"""Targets of tabular Q-learning: the table, its columns, what it says at the next state, and the TD components.

At round t, with the table Q_t before it: reward r, current value Q_t(s, a), bootstrapped value gamma max_b Q_t(s', b),
TD error r + gamma max_b Q_t(s', b) - Q_t(s, a) (paper, section 4). All tables are those recorded in the episodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from interp.tasks.mdp import MDPEpisodes
from probes.targets.record import Computed, Moment, Target, at_moment, numbered, register


def _visited(episodes: MDPEpisodes, when: Moment) -> Array:
    """Which state-action pairs the episode has visited, ``[episode, round, state, action]``."""
    n_states, n_actions = episodes.n_states, episodes.n_actions
    pairs = np.eye(n_states * n_actions, dtype=bool)[episodes.states * n_actions + episodes.actions]
    seen = np.concatenate([np.zeros_like(pairs[:, :1]), np.logical_or.accumulate(pairs, axis=1)], axis=1)
    return at_moment(seen, when).reshape(*episodes.states.shape, n_states, n_actions)


def _entries(episodes: MDPEpisodes) -> tuple[str, ...]:
    states, actions = numbered("s_", episodes.n_states), numbered("a_", episodes.n_actions)
    return tuple(f"Q({s},{a})" for s in states for a in actions)


def _table(episodes: MDPEpisodes, when: Moment) -> Computed:
    tables = at_moment(episodes.q_tables, when)
    return Computed(tables.reshape(*tables.shape[:2], -1), _entries(episodes))


def _table_visited(episodes: MDPEpisodes, when: Moment) -> Computed:
    table = _table(episodes, when)
    return Computed(table.values, table.outputs, _visited(episodes, when).reshape(table.values.shape))


def _at_action(tables: Array, episodes: MDPEpisodes) -> Array:
    """The column of the action taken, ``[episode, round, state]``."""
    return np.take_along_axis(tables, episodes.actions[..., None, None], axis=-1)[..., 0]


def _column(episodes: MDPEpisodes, when: Moment) -> Computed:
    names = tuple(f"Q({s},a)" for s in numbered("s_", episodes.n_states))
    return Computed(_at_action(at_moment(episodes.q_tables, when), episodes), names)


def _column_visited(episodes: MDPEpisodes, when: Moment) -> Computed:
    column = _column(episodes, when)
    return Computed(column.values, column.outputs, _at_action(_visited(episodes, when), episodes))


def _state_values(episodes: MDPEpisodes, when: Moment) -> Computed:
    values = at_moment(episodes.q_tables, when).max(-1)
    return Computed(values, tuple(f"max Q({s},.)" for s in numbered("s_", episodes.n_states)))


def _visits(episodes: MDPEpisodes, when: Moment) -> Computed:
    n_actions = episodes.n_actions
    pairs = np.eye(episodes.n_states * n_actions)[episodes.states * n_actions + episodes.actions]
    counts = np.concatenate([np.zeros_like(pairs[:, :1]), pairs.cumsum(1)], axis=1)
    return Computed(at_moment(counts, when), tuple(name.replace("Q", "N") for name in _entries(episodes)))


def _candidates(episodes: MDPEpisodes, when: Moment) -> Computed:
    return Computed(episodes.next_values_before, tuple(f"Q(s',{a})" for a in numbered("a_", episodes.n_actions)))


def _greedy(episodes: MDPEpisodes, when: Moment) -> Computed:
    return Computed(episodes.greedy[..., None], ("a*",), ~episodes.tied[..., None])


def _current(episodes: MDPEpisodes) -> Float[Array, "episode round"]:
    column = _at_action(at_moment(episodes.q_tables, "before"), episodes)
    return np.take_along_axis(column, episodes.states[..., None], axis=-1)[..., 0]


def _bootstrap(episodes: MDPEpisodes) -> Float[Array, "episode round"]:
    return episodes.gamma * episodes.next_values_before.max(-1)


def _reward(episodes: MDPEpisodes, when: Moment) -> Computed:
    return Computed(episodes.rewards[..., None], ("r",))


def _current_value(episodes: MDPEpisodes, when: Moment) -> Computed:
    return Computed(_current(episodes)[..., None], ("Q(s,a)",))


def _bootstrapped_value(episodes: MDPEpisodes, when: Moment) -> Computed:
    return Computed(_bootstrap(episodes)[..., None], ("gamma max Q(s',.)",))


def _td_error(episodes: MDPEpisodes, when: Moment) -> Computed:
    error = episodes.rewards + _bootstrap(episodes) - _current(episodes)
    return Computed(error[..., None], ("TD error",))


def _change(episodes: MDPEpisodes, when: Moment) -> Computed:
    names = tuple(f"change of Q({s},a)" for s in numbered("s_", episodes.n_states))
    return Computed(_at_action(np.diff(episodes.q_tables, axis=1), episodes), names)


def _state(episodes: MDPEpisodes, when: Moment) -> Computed:
    return Computed(episodes.states[..., None], ("s",))


def _action(episodes: MDPEpisodes, when: Moment) -> Computed:
    return Computed(episodes.actions[..., None], ("a",))


def _next_state(episodes: MDPEpisodes, when: Moment) -> Computed:
    return Computed(episodes.next_states[..., None], ("s'",))


def _target(key: str, name: str, what: str, shape: str, compute: Callable[..., Computed], **others: Any) -> Target:
    return register(
        Target(key, name, what, "qlearning", shape, others.pop("units", "reward"), "section 4", compute, **others)
    )


_INPUT: dict[str, Any] = {"of": "round", "implied_by": ("inputs",)}

q_table = _target("q_table", "Q-table", "every entry of the Q-table", "[n_states * n_actions]", _table)
q_table_visited = _target(
    "q_table_visited",
    "Q-table, visited",
    "the Q-table, scored where the pair was visited",
    "[n_states * n_actions]",
    _table_visited,
)
q_column = _target(
    "q_column",
    "Q-column of a",
    "the Q-table's column of the action taken: what the round's slot holds",
    "[n_states]",
    _column,
)
q_column_visited = _target(
    "q_column_visited",
    "Q-column of a, visited",
    "the column of the action taken, scored where the pair was visited",
    "[n_states]",
    _column_visited,
)
state_values = _target("state_values", "max Q(s,.)", "the largest value of every state", "[n_states]", _state_values)
visits = _target(
    "visits",
    "visits N(s,a)",
    "how often every pair was visited: no part of Q-learning, but a count that a learner could keep",
    "[n_states * n_actions]",
    _visits,
    units="visits",
)
candidate_values = _target(
    "candidate_values",
    "Q(s',a_i)",
    "the value of every action at the next state, by the table before the round",
    "[n_actions]",
    _candidates,
    of="round",
)
greedy_action = _target(
    "greedy_action",
    "a*",
    "the greedy action at the next state by the table after the round, scored where it is unique",
    "[1]",
    _greedy,
    kind="class",
    of="round",
    units="class",
)
reward = _target("reward", "reward r", "the round's reward: the first TD component", "[1]", _reward, **_INPUT)
current_value = _target(
    "current_value",
    "Q(s,a)",
    "the value, before the round, of the pair that it visits",
    "[1]",
    _current_value,
    of="round",
)
bootstrapped_value = _target(
    "bootstrapped_value",
    "gamma max Q(s',.)",
    "gamma times the largest value at the next state, by the table before the round",
    "[1]",
    _bootstrapped_value,
    of="round",
)
td_error = _target(
    "td_error", "TD error", "reward plus bootstrapped value less current value", "[1]", _td_error, of="round"
)
q_change = _target(
    "q_change",
    "change of the Q-column",
    "alpha times the TD error in the row of the state visited, else 0",
    "[n_states]",
    _change,
    of="round",
)
state = _target("state", "state s", "the round's state", "[1]", _state, kind="class", units="class", **_INPUT)
action = _target("action", "action a", "the round's action", "[1]", _action, kind="class", units="class", **_INPUT)
next_state = _target(
    "next_state",
    "next state s'",
    "the state that the round leads to",
    "[1]",
    _next_state,
    kind="class",
    units="class",
    **_INPUT,
)
