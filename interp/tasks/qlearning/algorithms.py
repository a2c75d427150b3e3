"""Tabular Q-learning as a causal model of one round (paper, section 4)::

    column = Q(., a)
    current_value = column(s)
    next_values = Q(s', .)
    maximum = max next_values
    td_error = r + gamma maximum - current_value
    change = alpha td_error e_s
    next_column = column + change

Here s, a, r and s' are the round's state, action, reward and next state, and e_s is the one-hot
vector of s.

The choice maximises the next state's values in the table before the round's update, as in the
handwired construction; on ties it has the lowest index. Options replace it by a choice with a
penalty on the index (``tie_slope``), a Boltzmann policy (``beta``), or a softmax so hard that it is
nearly the choice (``hardness``). ``greedy_action`` uses the table after the update, as the recorded
targets do.

``visits`` is not part of Q-learning: it counts how often each entry of the table was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from interp.core.algorithm import Algorithm, AlgorithmRecord, Equation, Values, variable_table
from interp.support.checks import checked
from interp.support.errors import InputError, require
from interp.tasks.qlearning import bellman
from interp.tasks.qlearning.bellman import take_columns, take_entries, take_rows
from interp.tasks.qlearning.episodes import MDPEpisodes

_Array = NDArray[Any]


_INPUTS = {
    "state": "states",
    "action": "actions",
    "reward": "rewards",
    "next_state": "next_states",
    "noise": "noise",
}
"""Input -> name of the array of the episodes with its values."""


def _read(episodes: MDPEpisodes, inputs: Sequence[str]) -> dict[str, _Array]:
    """Return the values of input variables by key, ``[episode, round]``; refuse episodes without a
    value for one of them.

    Args:
        episodes: the episodes.
        inputs: keys of the input variables.
    """
    if "noise" in inputs and episodes.noise is None:
        raise InputError(
            "these episodes have no noise, which q_learning(noise=True) is given; sample them, give "
            "MDPEpisodes.from_transitions noise= (zeros where all is greedy), or take noise=False"
        )
    return {key: getattr(episodes, _INPUTS[key]) for key in inputs}


def mark_pair(v: Values) -> _Array:
    """Return a table, ``[..., state, action]``, with 1 for the state and action of the round and 0
    elsewhere.

    Args:
        v: values of the round's variables, by key; "table", "state" and "action" are read.
    """
    n_states, n_actions = v["table"].shape[-2:]
    states = np.eye(n_states)[v["state"]]
    actions = np.eye(n_actions)[v["action"]]
    return states[..., :, None] * actions[..., None, :]


def _count_actions(values: Values) -> int:
    return int(values["table"].shape[-1])


VARIABLES = variable_table(
    Path(__file__).with_name("variables.csv"),
    states=lambda v: int(v["table"].shape[-2]),
    actions=_count_actions,
    draws=lambda v: _count_actions(v) + 1,
)


def _write_column(v: Values) -> _Array:
    """Return the table ``[..., state, action]`` in which the column of the action that was taken is
    the updated one.

    Args:
        v: values of the round's variables, by key.
    """
    table = v["table"]
    is_taken = np.eye(table.shape[-1], dtype=bool)[v["action"]]
    return np.where(is_taken[..., None, :], v["next_column"][..., None], table)


def _next_values_after(v: Values) -> _Array:
    """Return the values of all actions at the next state, ``[..., action]``, from the table after
    the round's update.

    Args:
        v: values of the round's variables, by key.
    """
    return take_rows(v["next_table"], v["next_state"])


def _choose_after(v: Values) -> _Array:
    """Return the index of the greedy action at the next state, ``[...]``, from the Q-table after
    the round's update; on ties, the lowest index.

    Args:
        v: values of the round's variables, by key.
    """
    return _next_values_after(v).argmax(-1)


def _has_one_greedy_action(v: Values) -> _Array:
    """Return whether exactly one action is greedy at the next state, ``[...]``, by the Q-table
    after the round's update.

    Args:
        v: values of the round's variables, by key.
    """
    greedy = bellman.greedy_sets(_next_values_after(v))
    return greedy.sum(-1) == 1


def _compute_td_error(v: Values) -> _Array:
    """Return the temporal-difference error, ``[...]``: reward plus bootstrapped value minus current
    value.

    Args:
        v: values of the round's variables, by key.
    """
    return v["reward"] + v["bootstrapped_value"] - v["current_value"]


_TABLE_EQUATIONS: dict[str, Equation] = {
    "table_visited": lambda v: v["table"],
    "state_values": lambda v: v["table"].max(-1),
    "column": lambda v: take_columns(v["table"], v["action"]),
    "column_visited": lambda v: v["column"],
}
_ROW_EQUATIONS: dict[str, Equation] = {
    "current_values": lambda v: take_rows(v["table"], v["state"]),
    "current_value": lambda v: take_entries(v["column"], v["state"]),
    "next_values": lambda v: take_rows(v["table"], v["next_state"]),
}
_UPDATE_EQUATIONS: dict[str, Equation] = {
    "next_column": lambda v: v["column"] + v["change"],
    "next_table": _write_column,
    "next_visits": lambda v: v["visits"] + mark_pair(v),
    "next_column_visited": lambda v: v["next_column"],
    "greedy_action": _choose_after,
}
_SCORED_ENTRIES: dict[str, Equation] = {
    "table_visited": lambda v: v["visits"] > 0,
    "column_visited": lambda v: take_columns(v["visits"], v["action"]) > 0,
    "next_column_visited": lambda v: take_columns(v["next_visits"], v["action"]) > 0,
    "greedy_action": _has_one_greedy_action,
}
"""Variable -> mask of its entries that count in a probe's score."""


@checked
def q_learning(
    alpha: float = 0.1,
    gamma: float = 0.9,
    tie_slope: float = 0.0,
    beta: float | None = None,
    hardness: float | None = None,
    noise: bool = False,
) -> Algorithm:
    """Return tabular Q-learning as a causal model of a round: variables with equations.

    The choice of a round is ``argmax_a Q(s', a) - tie_slope a``, for the next state s'. The
    prediction of a round is a policy: a probability for each action. By default, the choice has
    probability 1.

    Args:
        alpha: learning rate in (0, 1].
        gamma: discount in [0, 1).
        tie_slope: penalty per index of the action, so that ties go to the lowest index.
        beta: if a number, the policy is ``softmax(beta Q(s', .))``, with this inverse temperature.
        hardness: if a number, the policy is ``softmax(hardness (Q(s', a) - tie_slope a))``, which
            is nearly the choice. Ignored if ``beta`` is a number.
        noise: True if each round contains the random draw of an epsilon-greedy learner. A draw of 0
            leaves the policy unchanged, and a draw of a + 1 makes the policy take action a. The
            variable ``choice`` and the update do not depend on the draw.
    """
    bellman.check_rates(alpha, gamma)
    for what, value in (("beta", beta), ("hardness", hardness)):
        require(
            value is None or value >= 0,
            f"{what} must be a finite number >= 0, or None, got {value}",
        )

    def penalise_index(v: Values) -> _Array:
        """Return ``Q(s', a) - tie_slope a`` for every action a at the next state s', ``[...,
        action]``.

        Args:
            v: values of the round's variables, by key.
        """
        next_values = v["next_values"]
        return next_values - tie_slope * np.arange(next_values.shape[-1])

    def choose(v: Values) -> _Array:
        """Return the policy without exploration, the probability of each action at the next state,
        ``[..., action]``.

        Args:
            v: values of the round's variables, by key.
        """
        if beta is not None:
            return special.softmax(beta * v["next_values"], axis=-1)
        if hardness is not None:
            return special.softmax(hardness * penalise_index(v), axis=-1)
        n_actions = v["next_values"].shape[-1]
        return np.eye(n_actions)[v["choice"]]

    def explore(v: Values) -> _Array:
        """Return the policy with exploration, ``[..., action]``. If the round's random draw names
        an action, this action has probability 1; otherwise the policy is that of ``choose``.

        Args:
            v: values of the round's variables, by key.
        """
        n_actions = v["next_values"].shape[-1]
        random_action = np.eye(n_actions)[v["noise"] - 1]  # not used where the draw is 0
        return np.where(v["noise"][..., None] > 0, random_action, choose(v))

    def change(v: Values) -> _Array:
        """Return what the update adds to the Q-values of the action a that was taken, ``[...,
        state]``: ``alpha * td_error`` for the current state, and 0 for all other states.

        Args:
            v: values of the round's variables, by key.
        """
        n_states = v["table"].shape[-2]
        written = np.eye(n_states)[v["state"]]
        return alpha * v["td_error"][..., None] * written

    inputs = [key for key in _INPUTS if noise or key != "noise"]
    equations: dict[str, Equation | None] = dict.fromkeys((*inputs, "table", "visits"))
    equations |= _TABLE_EQUATIONS | _ROW_EQUATIONS
    equations |= {
        "maximum": lambda v: v["next_values"].max(-1),
        "bootstrapped_value": lambda v: gamma * v["maximum"],
        "choice": lambda v: penalise_index(v).argmax(-1),
        "policy": explore if noise else choose,
    }
    equations |= {
        "best_column": lambda v: take_columns(v["table"], v["choice"]),
        "td_error": _compute_td_error,
        "change": change,
    }
    equations |= _UPDATE_EQUATIONS
    parameters = {
        "alpha": alpha,
        "gamma": gamma,
        "tie_slope": tie_slope,
        "beta": beta,
        "hardness": hardness,
    }
    if noise:
        parameters["noise"] = True
    return Algorithm(
        key="q_learning",
        name="tabular Q-learning",
        task="qlearning",
        parameters=parameters,
        variables=VARIABLES("noisy" if noise else "q_learning", equations, _SCORED_ENTRIES),
        inputs=partial(_read, inputs=inputs),
        initial=_make_initial_state,
        distribution=lambda v: v["policy"],
        memory="table",
        written="next_column",
    )


def _make_initial_state(episodes: MDPEpisodes) -> dict[str, _Array]:
    """Return the state before the first round, two arrays ``[episode, state, action]`` by key.

    "table" has the Q-values with which each episode begins; "visits" counts how often each of them
    was updated, and is 0.

    Args:
        episodes: the episodes.
    """
    table = episodes.q_tables[:, 0]
    return {"table": table, "visits": np.zeros_like(table)}


def no_bootstrap(alpha: float = 0.1) -> Algorithm:
    """Return Q-learning with discount 0. The table's entry for a state-action pair is a running mean
    of this pair's rewards, in which recent rewards weigh more.

    Args:
        alpha: learning rate in (0, 1].
    """
    return replace(
        q_learning(alpha, 0.0), key="no_bootstrap", name="Q-learning without bootstrapping"
    )


def records() -> tuple[AlgorithmRecord, ...]:
    """Return the task's algorithms, each as an :class:`AlgorithmRecord` (its names, and a function
    that makes it).

    The algorithms are in order of preference: if several have a variable of the same name, the first
    one defines it.
    """
    return (
        AlgorithmRecord(
            "q_learning",
            "tabular Q-learning",
            "Q-learning",
            make=q_learning,
            parameters=lambda episodes: {"alpha": episodes.alpha, "gamma": episodes.gamma},
        ),
        AlgorithmRecord(
            "no_bootstrap",
            "Q-learning without bootstrapping",
            "Q, gamma 0",
            make=no_bootstrap,
            parameters=lambda episodes: {"alpha": episodes.alpha},
        ),
    )
