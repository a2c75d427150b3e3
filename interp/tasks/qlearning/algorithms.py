"""Tabular Q-learning as a causal model of one round (paper, section 4)::

    column = Q(., a)    current_value = column(s)    next_values = Q(s', .)    maximum = max next_values
    td_error = r + gamma maximum - current_value      change = alpha td_error e_s      next_column = column + change

The choice is by the table before the update, as in the construction; the lowest index on ties, or the one that a slope
on the index gives (``tie_slope``), a Boltzmann policy (``beta``), or a softmax so hard that it hardly differs from the
choice (``hardness``). ``greedy_action`` is by the table after the update, as the recorded targets are.

``visits`` is no part of Q-learning: a count that a learner could keep, and what says where a table was ever written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.algorithm import Algorithm, AlgorithmRecord, Values, Variable, numbered
from interp.checks import checked
from interp.errors import InputError
from interp.tasks.qlearning import bellman
from interp.tasks.qlearning.bellman import columns_at, entries_at, rows_at
from interp.tasks.qlearning.episodes import MDPEpisodes
from interp.tasks.qlearning.tabular import QLearner

_Array = NDArray[Any]


def _read(episodes: MDPEpisodes, noise: bool) -> dict[str, _Array]:
    """State, action, reward and next state of every round, and its draw where there is ``noise``."""
    read: dict[str, Any] = {"state": episodes.states, "action": episodes.actions, "reward": episodes.rewards}
    if noise and episodes.noise is None:
        raise InputError(
            "these episodes have no noise, which q_learning(noise=True) is given; sample them, give "
            "MDPEpisodes.from_transitions noise= (zeros where all is greedy), or take noise=False"
        )
    read["next_state"] = episodes.next_states
    return read | ({"noise": episodes.noise} if noise else {})


def pair(v: Values) -> _Array:
    """One where the round's state and action meet, ``[..., S, A]``."""
    n_states, n_actions = v["table"].shape[-2:]
    return np.eye(n_states)[v["state"]][..., :, None] * np.eye(n_actions)[v["action"]][..., None, :]


def _entries(name: str) -> Callable[[_Array], tuple[str, ...]]:
    return lambda values: tuple(
        f"{name}(s_{s + 1},a_{a + 1})" for s in range(values.shape[-2]) for a in range(values.shape[-1])
    )


def _class(key: str, symbol: str, meaning: str, label: str, axis: int, **others: Any) -> Variable:
    """A state or an action: as many classes as the table has entries along an axis."""
    return Variable(
        key, symbol, meaning, "class", outputs=lambda v: (label,), kind="class",
        n_classes=lambda v: int(v["table"].shape[axis]), **others,
    )  # fmt: skip


def _value(key: str, symbol: str, meaning: str, parents: tuple[str, ...], equation: Any, labels: Any,
           scored: Any = None, units: str = "reward") -> Variable:  # fmt: skip
    outputs = labels if callable(labels) else lambda v: (labels,)
    return Variable(key, symbol, meaning, units, parents=parents, equation=equation, outputs=outputs, scored=scored)


_COLUMN, _TABLE, _VISITS = numbered("Q(s_", ",a)"), _entries("Q"), _entries("N")
_STATE, _ACTION = -2, -1
"""The axes of a table."""
# fmt: off
_GIVEN = (
    _class("state", "s_t", "where the action was taken", "s", _STATE, role="input"),
    _class("action", "a_t", "the action taken: which latent is rewritten", "a", _ACTION, role="input"),
    Variable("reward", "r_t", "the reward", "reward", "input", outputs=lambda v: ("r",)),
    _class("next_state", "s_{t+1}", "where it led", "s'", _STATE, role="input"),
    Variable("table", "Q_t", "every entry of the Q-table", "reward", "state", outputs=_TABLE),
    Variable("visits", "N_t", "how often every pair was visited", "visits", "state", outputs=_VISITS),
    _value("table_visited", "Q_t", "the Q-table, scored where the pair was visited",
           ("table", "visits"), lambda v: v["table"], _TABLE, lambda v: v["visits"] > 0),
    _value("state_values", "max_a Q_t(s, a)", "the largest value of every state",
           ("table",), lambda v: v["table"].max(-1), numbered("max Q(s_", ",.)")),
)
"""What a round is given, and what the state alone determines."""
_NOISE = Variable(
    "noise", "n_t", "the draw of the round: 0 greedy, a + 1 to take action a", "class", "input",
    outputs=lambda v: ("n",), kind="class", n_classes=lambda v: int(v["table"].shape[_ACTION]) + 1,
)
# fmt: on


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

    >>> q_learning().memory, q_learning(gamma=0.0).parameters["gamma"]
    ('table', 0.0)
    """
    bellman.check_rates(alpha, gamma)

    def sloped(v: Values) -> _Array:
        return v["next_values"] - tie_slope * np.arange(v["next_values"].shape[-1])

    def policy(v: Values) -> _Array:
        n_actions = v["next_values"].shape[-1]
        if beta is not None:
            chances = QLearner(beta=beta).policy(v["next_values"])
        elif hardness is not None:
            chances = QLearner(beta=hardness).policy(sloped(v))
        else:
            chances = np.eye(n_actions)[v["choice"]]
        return np.where(v["noise"][..., None] > 0, np.eye(n_actions)[v["noise"] - 1], chances) if noise else chances

    def next_table(v: Values) -> _Array:
        taken = np.eye(v["table"].shape[-1], dtype=bool)[v["action"]][..., None, :]
        return np.where(taken, v["next_column"][..., None], v["table"])

    def next_values(v: Values) -> _Array:
        return rows_at(v["next_table"], v["next_state"])

    # fmt: off
    round_ = (
        _value("column", "Q_t(., a_t)", "the column of the action taken: what the round's slot holds",
               ("table", "action"), lambda v: columns_at(v["table"], v["action"]), _COLUMN),
        _value("column_visited", "Q_t(., a_t)", "the column of the action taken, scored where the pair was visited",
               ("column", "visits", "action"), lambda v: v["column"], _COLUMN,
               lambda v: columns_at(v["visits"], v["action"]) > 0),
        _value("current_values", "Q_t(s_t, .)", "the row of the state left",
               ("table", "state"), lambda v: rows_at(v["table"], v["state"]), numbered("Q(s,a_", ")")),
        _value("current_value", "Q_t(s_t, a_t)", "what the visited pair was worth before the round",
               ("column", "state"), lambda v: entries_at(v["column"], v["state"]), "Q(s,a)"),
        _value("next_values", "Q_t(s_{t+1}, .)", "what each action is worth at the state reached",
               ("table", "next_state"), lambda v: rows_at(v["table"], v["next_state"]), numbered("Q(s',a_", ")")),
        _value("maximum", "max_a Q_t(s_{t+1}, a)", "the largest value at the state reached",
               ("next_values",), lambda v: v["next_values"].max(-1), "max Q(s',.)"),
        _value("bootstrapped_value", "gamma max_a Q_t(s_{t+1}, a)", "the discounted largest value at the state reached",
               ("maximum",), lambda v: gamma * v["maximum"], "gamma max Q(s',.)"),
        _class("choice", "a*_t", "the choice at the state reached, by the table before the round", "a*", _ACTION,
               parents=("next_values",), equation=lambda v: sloped(v).argmax(-1)),
        _value("policy", "pi(a | s_{t+1})", "the probability of each action at the state reached",
               ("next_values", "choice", *(["noise"] * noise)), policy, numbered("a_"), units="probability"),
        _value("best_column", "Q_t(., a*)", "the column of the chosen action; its entry at s_{t+1} is the maximum",
               ("table", "choice"), lambda v: columns_at(v["table"], v["choice"]), numbered("Q(s_", ",a*)")),
        _value("td_error", "delta_t", "r_t + gamma max_a Q_t(s_{t+1}, a) - Q_t(s_t, a_t)",
               ("reward", "bootstrapped_value", "current_value"),
               lambda v: v["reward"] + v["bootstrapped_value"] - v["current_value"], "TD error"),
        _value("change", "alpha delta_t e_{s_t}", "alpha times the TD error in the row of the state left, else 0",
               ("td_error", "state", "table"),
               lambda v: alpha * v["td_error"][..., None] * np.eye(v["table"].shape[-2])[v["state"]],
               numbered("change of Q(s_", ",a)")),
        _value("next_column", "Q_{t+1}(., a_t)", "the new column of the action taken",
               ("column", "change"), lambda v: v["column"] + v["change"], _COLUMN),
        _value("next_table", "Q_{t+1}", "every entry of the Q-table after the round",
               ("table", "action", "next_column"), next_table, _TABLE),
        _value("next_visits", "N_{t+1}", "how often every pair was visited, this round included",
               ("visits", "state", "action", "table"), lambda v: v["visits"] + pair(v), _VISITS, units="visits"),
        _value("next_column_visited", "Q_{t+1}(., a_t)",
               "the new column of the action taken, scored where the pair was visited",
               ("next_column", "next_visits", "action"), lambda v: v["next_column"], _COLUMN,
               lambda v: columns_at(v["next_visits"], v["action"]) > 0),
        _class("greedy_action", "argmax_a Q_{t+1}(s_{t+1}, a)",
               "the greedy action by the table after the round, scored where it is unique", "a*", _ACTION,
               parents=("next_table", "next_state"), equation=lambda v: next_values(v).argmax(-1),
               scored=lambda v: bellman.greedy_sets(next_values(v)).sum(-1) == 1),
    )
    # fmt: on
    return Algorithm(
        key="q_learning",
        name="tabular Q-learning",
        task="qlearning",
        parameters={
            "alpha": alpha,
            "gamma": gamma,
            "tie_slope": tie_slope,
            "beta": beta,
            "hardness": hardness,
            **({"noise": True} if noise else {}),
        },
        variables=(*([_NOISE] * noise), *_GIVEN, *round_),
        inputs=partial(_read, noise=noise),
        initial=lambda e: {"table": e.q_tables[:, 0], "visits": np.zeros(e.q_tables[:, 0].shape)},
        distribution=lambda v: v["policy"],
        memory="table",
        written="next_column",
    )


def no_bootstrap(alpha: float = 0.1) -> Algorithm:
    """The table of discount 0: the mean reward of every pair, recent ones counting more."""
    return replace(q_learning(alpha, 0.0), key="no_bootstrap", name="Q-learning without bootstrapping")


def records() -> tuple[AlgorithmRecord, ...]:
    """The algorithms of this task."""
    return (
        AlgorithmRecord("q_learning", "tabular Q-learning", "Q-learning", q_learning,
                        lambda episodes: {"alpha": episodes.alpha, "gamma": episodes.gamma}),
        AlgorithmRecord("no_bootstrap", "Q-learning without bootstrapping", "Q, gamma 0", no_bootstrap,
                        lambda episodes: {"alpha": episodes.alpha}),
    )  # fmt: skip
