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
from interp.tasks.qlearning.bellman import columns_at, entries_at, rows_at
from interp.tasks.qlearning.episodes import MDPEpisodes

_Array = NDArray[Any]


def _read(episodes: MDPEpisodes, noise: bool) -> dict[str, _Array]:
    """State, action, reward and next state of every round, and its draw where there is ``noise``."""
    if noise and episodes.noise is None:
        raise InputError(
            "these episodes have no noise, which q_learning(noise=True) is given; sample them, give "
            "MDPEpisodes.from_transitions noise= (zeros where all is greedy), or take noise=False"
        )
    read: dict[str, Any] = {
        "state": episodes.states,
        "action": episodes.actions,
        "reward": episodes.rewards,
    }
    return (
        read | {"next_state": episodes.next_states} | ({"noise": episodes.noise} if noise else {})
    )


def pair(v: Values) -> _Array:
    """One where the round's state and action meet, ``[..., S, A]``."""
    n_states, n_actions = v["table"].shape[-2:]
    return np.eye(n_states)[v["state"]][..., :, None] * np.eye(n_actions)[v["action"]][..., None, :]


VARIABLES = variable_table(
    Path(__file__).with_name("variables.csv"),
    states=lambda v: int(v["table"].shape[-2]),
    actions=lambda v: int(v["table"].shape[-1]),
    draws=lambda v: int(v["table"].shape[-1]) + 1,
)


@checked
def q_learning(
    alpha: float = 0.1,
    gamma: float = 0.9,
    tie_slope: float = 0.0,
    beta: float | None = None,
    hardness: float | None = None,
    noise: bool = False,
) -> Algorithm:
    """Tabular Q-learning; ``gamma=0`` is the table that never bootstraps.

    Args:
        tie_slope: the choice is ``argmax_a Q(s', a) - tie_slope a``.
        beta: the policy is Boltzmann's at this inverse temperature, instead of the choice.
        hardness: the policy is a softmax of this inverse temperature of the sloped values.
        noise: a round also gives the draw of an epsilon-greedy learner, 0 or a + 1: the policy is then action a. The
            choice, and the update, are as without it.
    """
    bellman.check_rates(alpha, gamma)
    for what, value in (("beta", beta), ("hardness", hardness)):
        require(
            value is None or value >= 0,
            f"{what} must be a finite number >= 0, or None, got {value}",
        )

    def sloped(v: Values) -> _Array:
        return v["next_values"] - tie_slope * np.arange(v["next_values"].shape[-1])

    def policy(v: Values) -> _Array:
        n_actions, slope = v["next_values"].shape[-1], hardness if beta is None else beta
        if slope is None:
            chances = np.eye(n_actions)[v["choice"]]
        else:
            values = sloped(v) if beta is None else v["next_values"]
            chances = special.softmax(slope * (values - values.max(-1, keepdims=True)), axis=-1)
        return (
            np.where(v["noise"][..., None] > 0, np.eye(n_actions)[v["noise"] - 1], chances)
            if noise
            else chances
        )

    def next_table(v: Values) -> _Array:
        taken = np.eye(v["table"].shape[-1], dtype=bool)[v["action"]][..., None, :]
        return np.where(taken, v["next_column"][..., None], v["table"])

    equations: dict[str, Equation | None] = {
        **({"noise": None} if noise else {}),
        **dict.fromkeys(("state", "action", "reward", "next_state", "table", "visits")),
        "table_visited": lambda v: v["table"],
        "state_values": lambda v: v["table"].max(-1),
        "column": lambda v: columns_at(v["table"], v["action"]),
        "column_visited": lambda v: v["column"],
        "current_values": lambda v: rows_at(v["table"], v["state"]),
        "current_value": lambda v: entries_at(v["column"], v["state"]),
        "next_values": lambda v: rows_at(v["table"], v["next_state"]),
        "maximum": lambda v: v["next_values"].max(-1),
        "bootstrapped_value": lambda v: gamma * v["maximum"],
        "choice": lambda v: sloped(v).argmax(-1),
        "policy": policy,
        "best_column": lambda v: columns_at(v["table"], v["choice"]),
        "td_error": lambda v: v["reward"] + v["bootstrapped_value"] - v["current_value"],
        "change": lambda v: (
            alpha * v["td_error"][..., None] * np.eye(v["table"].shape[-2])[v["state"]]
        ),
        "next_column": lambda v: v["column"] + v["change"],
        "next_table": next_table,
        "next_visits": lambda v: v["visits"] + pair(v),
        "next_column_visited": lambda v: v["next_column"],
        "greedy_action": lambda v: rows_at(v["next_table"], v["next_state"]).argmax(-1),
    }
    scored = {
        "table_visited": lambda v: v["visits"] > 0,
        "column_visited": lambda v: columns_at(v["visits"], v["action"]) > 0,
        "next_column_visited": lambda v: columns_at(v["next_visits"], v["action"]) > 0,
        "greedy_action": lambda v: (
            bellman.greedy_sets(rows_at(v["next_table"], v["next_state"])).sum(-1) == 1
        ),
    }
    parameters = {
        "alpha": alpha,
        "gamma": gamma,
        "tie_slope": tie_slope,
        "beta": beta,
        "hardness": hardness,
    }
    return Algorithm(
        key="q_learning",
        name="tabular Q-learning",
        task="qlearning",
        parameters=parameters | ({"noise": True} if noise else {}),
        variables=VARIABLES("noisy" if noise else "q_learning", equations, scored),
        inputs=partial(_read, noise=noise),
        initial=lambda e: {"table": e.q_tables[:, 0], "visits": np.zeros(e.q_tables[:, 0].shape)},
        distribution=lambda v: v["policy"],
        memory="table",
        written="next_column",
    )


def no_bootstrap(alpha: float = 0.1) -> Algorithm:
    """The table of discount 0: the mean reward of every pair, recent ones counting more."""
    return replace(
        q_learning(alpha, 0.0), key="no_bootstrap", name="Q-learning without bootstrapping"
    )


def records() -> tuple[AlgorithmRecord, ...]:
    """The algorithms of this task."""
    plain = "Q-learning without bootstrapping"
    return (
        AlgorithmRecord(
            "q_learning",
            "tabular Q-learning",
            "Q-learning",
            q_learning,
            lambda e: {"alpha": e.alpha, "gamma": e.gamma},
        ),
        AlgorithmRecord(
            "no_bootstrap", plain, "Q, gamma 0", no_bootstrap, lambda e: {"alpha": e.alpha}
        ),
    )
