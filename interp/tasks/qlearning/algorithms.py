"""Tabular Q-learning as a causal model of one round (paper, section 4)::

    column = Q(., a)    current_value = column(s)    next_values = Q(s', .)    maximum = max next_values
    td_error = r + gamma maximum - current_value      change = alpha td_error e_s      next_column = column + change

The choice is by the table before the update, as in the construction; the lowest index on ties, or the one that a slope
on the index gives (``tie_slope``), a Boltzmann policy (``beta``), or a softmax so hard that it hardly differs from the
choice (``hardness``). ``greedy_action`` is by the table after the update, as the recorded targets are.

``visits`` is no part of Q-learning: a count that a learner could keep, and what says where a table was ever written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.algorithm import Algorithm, AlgorithmRecord, Values, Variable, numbered
from interp.checks import checked
from interp.tasks.qlearning import bellman
from interp.tasks.qlearning.episodes import MDPEpisodes
from interp.tasks.qlearning.tabular import QLearner

Array = NDArray[Any]


def inputs(episodes: MDPEpisodes) -> dict[str, Array]:
    """State, action, reward and next state of every round."""
    return {
        "state": episodes.states,
        "action": episodes.actions,
        "reward": episodes.rewards,
        "next_state": episodes.next_states,
    }


def _initial(episodes: MDPEpisodes) -> dict[str, Array]:
    start = episodes.q_tables[:, 0]
    return {"table": start, "visits": np.zeros(start.shape)}


def row(table: Array, state: Array) -> Array:
    """``table[..., state, :]``: the values of the actions at one state of each table."""
    return np.take_along_axis(table, state[..., None, None], -2)[..., 0, :]


def column_of(table: Array, action: Array) -> Array:
    """``table[..., :, action]``: the values of one action at every state of each table."""
    return np.take_along_axis(table, action[..., None, None], -1)[..., 0]


def _entry(values: Array, index: Array) -> Array:
    return np.take_along_axis(values, index[..., None], -1)[..., 0]


def pair(v: Values) -> Array:
    """One where the round's state and action meet, ``[..., S, A]``."""
    n_states, n_actions = v["table"].shape[-2:]
    return np.eye(n_states)[v["state"]][..., :, None] * np.eye(n_actions)[v["action"]][..., None, :]


def _entries(name: str) -> Any:
    def labels(values: Array) -> tuple[str, ...]:
        n_states, n_actions = values.shape[-2:]
        return tuple(f"{name}(s_{s + 1},a_{a + 1})" for s in range(n_states) for a in range(n_actions))

    return labels


def _untied(v: Values) -> Array:
    return bellman.greedy_sets(row(v["next_table"], v["next_state"])).sum(-1) == 1


def _n_states(v: Values) -> int:
    return int(v["table"].shape[-2])


def _n_actions(v: Values) -> int:
    return int(v["table"].shape[-1])


def _class(key: str, symbol: str, meaning: str, n_classes: Any, **others: Any) -> Variable:
    label = {"state": "s", "action": "a", "next_state": "s'"}.get(key, "a*")
    return Variable(
        key, symbol, meaning, "class", outputs=lambda v: (label,), kind="class", n_classes=n_classes, **others
    )


def _one(key: str, symbol: str, meaning: str, parents: tuple[str, ...], equation: Any, label: str) -> Variable:
    return Variable(key, symbol, meaning, "reward", parents=parents, equation=equation, outputs=lambda v: (label,))


COLUMN = numbered("Q(s_", ",a)")
INPUTS = (
    _class("state", "s_t", "where the action was taken", _n_states, role="input"),
    _class("action", "a_t", "the action taken: which latent is rewritten", _n_actions, role="input"),
    Variable("reward", "r_t", "the reward", "reward", "input", outputs=lambda v: ("r",)),
    _class("next_state", "s_{t+1}", "where it led", _n_states, role="input"),
)
STATE = (
    Variable("table", "Q_t", "every entry of the Q-table", "reward", "state", outputs=_entries("Q")),
    Variable("visits", "N_t", "how often every pair was visited", "visits", "state", outputs=_entries("N")),
    Variable(
        "table_visited",
        "Q_t",
        "the Q-table, scored where the pair was visited",
        "reward",
        parents=("table", "visits"),
        equation=lambda v: v["table"],
        outputs=_entries("Q"),
        scored=lambda v: v["visits"] > 0,
    ),
    Variable(
        "state_values",
        "max_a Q_t(s, a)",
        "the largest value of every state",
        "reward",
        parents=("table",),
        equation=lambda v: v["table"].max(-1),
        outputs=numbered("max Q(s_", ",.)"),
    ),
)


@checked
def q_learning(
    alpha: float = 0.1,
    gamma: float = 0.9,
    tie_slope: float = 0.0,
    beta: float | None = None,
    hardness: float | None = None,
) -> Algorithm:
    """Tabular Q-learning; ``gamma=0`` is the table that never bootstraps.

    Args:
        alpha, gamma: learning rate in (0, 1], discount in [0, 1).
        tie_slope: the choice is ``argmax_a Q(s', a) - tie_slope a``.
        beta: the policy is Boltzmann's at this inverse temperature, instead of the choice.
        hardness: the policy is a softmax of this inverse temperature of the sloped values.

    Raises:
        InputError: a rate outside its range.

    >>> q_learning().memory, q_learning(gamma=0.0).parameters["gamma"]
    ('table', 0.0)
    """
    bellman.check_rates(alpha, gamma)

    def sloped(v: Values) -> Array:
        return v["next_values"] - tie_slope * np.arange(v["next_values"].shape[-1])

    def policy(v: Values) -> Array:
        if beta is not None:
            return QLearner(beta=beta).policy(v["next_values"])
        if hardness is not None:
            return QLearner(beta=hardness).policy(sloped(v))
        return np.eye(v["next_values"].shape[-1])[v["choice"]]

    def next_table(v: Values) -> Array:
        taken = np.eye(v["table"].shape[-1], dtype=bool)[v["action"]][..., None, :]
        return np.where(taken, v["next_column"][..., None], v["table"])

    def change(v: Values) -> Array:
        return alpha * v["td_error"][..., None] * np.eye(v["table"].shape[-2])[v["state"]]

    round_ = (
        Variable(
            "column",
            "Q_t(., a_t)",
            "the column of the action taken: what the round's slot holds",
            "reward",
            parents=("table", "action"),
            equation=lambda v: column_of(v["table"], v["action"]),
            outputs=COLUMN,
        ),
        Variable(
            "column_visited",
            "Q_t(., a_t)",
            "the column of the action taken, scored where the pair was visited",
            "reward",
            parents=("column", "visits", "action"),
            equation=lambda v: v["column"],
            outputs=COLUMN,
            scored=lambda v: column_of(v["visits"], v["action"]) > 0,
        ),
        Variable(
            "current_values",
            "Q_t(s_t, .)",
            "the row of the state left",
            "reward",
            parents=("table", "state"),
            equation=lambda v: row(v["table"], v["state"]),
            outputs=numbered("Q(s,a_", ")"),
        ),
        _one(
            "current_value",
            "Q_t(s_t, a_t)",
            "what the visited pair was worth before the round",
            ("column", "state"),
            lambda v: _entry(v["column"], v["state"]),
            "Q(s,a)",
        ),
        Variable(
            "next_values",
            "Q_t(s_{t+1}, .)",
            "what each action is worth at the state reached",
            "reward",
            parents=("table", "next_state"),
            equation=lambda v: row(v["table"], v["next_state"]),
            outputs=numbered("Q(s',a_", ")"),
        ),
        _one(
            "maximum",
            "max_a Q_t(s_{t+1}, a)",
            "the largest value at the state reached",
            ("next_values",),
            lambda v: v["next_values"].max(-1),
            "max Q(s',.)",
        ),
        _one(
            "bootstrapped_value",
            "gamma max_a Q_t(s_{t+1}, a)",
            "the discounted largest value at the state reached",
            ("maximum",),
            lambda v: gamma * v["maximum"],
            "gamma max Q(s',.)",
        ),
        _class(
            "choice",
            "a*_t",
            "the choice at the state reached, by the table before the round",
            _n_actions,
            parents=("next_values",),
            equation=lambda v: sloped(v).argmax(-1),
        ),
        Variable(
            "policy",
            "pi(a | s_{t+1})",
            "the probability of each action at the state reached",
            "probability",
            parents=("next_values", "choice"),
            equation=policy,
            outputs=numbered("a_"),
        ),
        Variable(
            "best_column",
            "Q_t(., a*)",
            "the column of the chosen action; its entry at s_{t+1} is the maximum",
            "reward",
            parents=("table", "choice"),
            equation=lambda v: column_of(v["table"], v["choice"]),
            outputs=numbered("Q(s_", ",a*)"),
        ),
        _one(
            "td_error",
            "delta_t",
            "r_t + gamma max_a Q_t(s_{t+1}, a) - Q_t(s_t, a_t)",
            ("reward", "bootstrapped_value", "current_value"),
            lambda v: v["reward"] + v["bootstrapped_value"] - v["current_value"],
            "TD error",
        ),
        Variable(
            "change",
            "alpha delta_t e_{s_t}",
            "alpha times the TD error in the row of the state left, else 0",
            "reward",
            parents=("td_error", "state", "table"),
            equation=change,
            outputs=numbered("change of Q(s_", ",a)"),
        ),
        Variable(
            "next_column",
            "Q_{t+1}(., a_t)",
            "the new column of the action taken",
            "reward",
            parents=("column", "change"),
            equation=lambda v: v["column"] + v["change"],
            outputs=COLUMN,
        ),
        Variable(
            "next_table",
            "Q_{t+1}",
            "every entry of the Q-table after the round",
            "reward",
            parents=("table", "action", "next_column"),
            equation=next_table,
            outputs=_entries("Q"),
        ),
        Variable(
            "next_visits",
            "N_{t+1}",
            "how often every pair was visited, this round included",
            "visits",
            parents=("visits", "state", "action", "table"),
            equation=lambda v: v["visits"] + pair(v),
            outputs=_entries("N"),
        ),
        Variable(
            "next_column_visited",
            "Q_{t+1}(., a_t)",
            "the new column of the action taken, scored where the pair was visited",
            "reward",
            parents=("next_column", "next_visits", "action"),
            equation=lambda v: v["next_column"],
            outputs=COLUMN,
            scored=lambda v: column_of(v["next_visits"], v["action"]) > 0,
        ),
        _class(
            "greedy_action",
            "argmax_a Q_{t+1}(s_{t+1}, a)",
            "the greedy action by the table after the round, scored where it is unique",
            _n_actions,
            parents=("next_table", "next_state"),
            equation=lambda v: bellman.greedy(row(v["next_table"], v["next_state"])),
            scored=_untied,
        ),
    )
    return Algorithm(
        key="q_learning",
        name="tabular Q-learning",
        task="qlearning",
        parameters={"alpha": alpha, "gamma": gamma, "tie_slope": tie_slope, "beta": beta, "hardness": hardness},
        variables=(*INPUTS, *STATE, *round_),
        inputs=inputs,
        initial=_initial,
        distribution=lambda v: v["policy"],
        memory="table",
        written="next_column",
    )


@checked
def no_bootstrap(alpha: float = 0.1) -> Algorithm:
    """The table of discount 0: the mean reward of every pair, recent ones counting more."""
    return replace(q_learning(alpha, 0.0), key="no_bootstrap", name="Q-learning without bootstrapping")


def records() -> tuple[AlgorithmRecord, ...]:
    """The algorithms of this task."""
    return (
        AlgorithmRecord(
            "q_learning",
            "tabular Q-learning",
            "Q-learning",
            q_learning,
            lambda episodes: {"alpha": episodes.alpha, "gamma": episodes.gamma},
        ),
        AlgorithmRecord(
            "no_bootstrap",
            "Q-learning without bootstrapping",
            "Q, gamma 0",
            no_bootstrap,
            lambda episodes: {"alpha": episodes.alpha},
        ),
    )
