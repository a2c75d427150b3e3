"""Rivals of tabular Q-learning: what else a model that imitates it could be keeping, and how it could act by it.

All keep a table that is zero at first and is written where the round's pair (s, a) meets::

    mean_bootstrap   Q(s, a) += alpha (r + gamma mean_b Q(s', b) - Q(s, a))         the mean in place of the maximum
    soft_bootstrap   Q(s, a) += alpha (r + gamma sum_b pi(b) Q(s', b) - Q(s, a))    pi = softmax(Q(s', .) / temperature)
    sarsa            Q(s, a) += alpha (r - Q(s, a)), and alpha gamma Q(s', a') once the next action a' is taken
    mean_reward      Q(s, a) = mean of the rewards of the pair
    visit_counts     Q(s, a) = how often the pair was visited, or less that
    monte_carlo      Q(s, a) = mean over visits of the discounted rewards since: no bootstrapping, but looking ahead

SARSA is on-policy: it follows the recorded actions, whoever chose them. :func:`acting` says how a table becomes a
policy at the state reached: by the table before or after the round, greedily with ties shared or broken to the lowest
index, or by a softmax. These are no part of what is learned, and any learner may be given any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from interp.algorithm import Algorithm, Values, Variable, numbered
from interp.checks import checked
from interp.errors import require
from interp.tasks.qlearning import algorithms, bellman
from interp.tasks.qlearning.episodes import MDPEpisodes

Array = NDArray[Any]


@checked
def acting(algorithm: Algorithm, temperature: float = 0.0, shared_ties: bool = True, after: bool = True) -> Algorithm:
    """The same learner with another choice at the state reached.

    Args:
        temperature: of the softmax of the values, in their units; 0 is greedy.
        shared_ties: whether tied greedy actions share the probability, or the lowest index takes it.
        after: whether it chooses by the table after the round, or by the one before, as the construction does.

    Raises:
        InputError: a negative temperature.
    """
    require(temperature >= 0, f"temperature must be at least 0, got {temperature}")
    read = "acting_values"

    def values(v: Values) -> Array:
        return algorithms.row(v["next_table" if after else "table"], v["next_state"])

    def policy(v: Values) -> Array:
        if temperature > 0:
            return np.asarray(special.softmax(v[read] / temperature, axis=-1))
        tied = bellman.greedy_sets(v[read])
        if shared_ties:
            return np.asarray(tied / tied.sum(-1, keepdims=True))
        return np.eye(tied.shape[-1])[tied.argmax(-1)]

    labels = numbered("a_")
    moment = "after" if after else "before"
    seen = Variable(
        read, f"Q(s_{{t+1}}, .), {moment}", "what the choice is made by", "reward",
        parents=("table", "next_table", "next_state"), equation=values, outputs=labels,
    )  # fmt: skip
    choice = Variable(
        "policy", "pi(a | s_{t+1})", "the probability of each action at the state reached", "probability",
        parents=(read,), equation=policy, outputs=labels,
    )  # fmt: skip
    kept = {k: v for k, v in algorithm.parameters.items() if k not in ("tie_slope", "beta", "hardness")}
    return replace(
        algorithm,
        parameters={**kept, "temperature": temperature, "shared_ties": shared_ties, "after": after},
        variables=(*(v for v in algorithm.variables if v.key not in (read, "policy")), seen, choice),
        distribution=lambda v: v["policy"],
    )


def _learner(
    key: str,
    name: str,
    parameters: dict[str, Any],
    table: Callable[[Values], Array],
    memories: tuple[tuple[str, str, Callable[[Values], Array]], ...] = (),
) -> Algorithm:
    """A learner that chooses greedily by its table.

    Args:
        table: the table after the round.
        memories: further tables that it keeps, zero at first: (key, what it is, its value after the round).
    """
    held, visits = algorithms.STATE[0], algorithms.STATE[1]
    inputs = tuple(v.key for v in algorithms.INPUTS)
    states = (held, visits, *(Variable(k, k, what, "reward", "state", outputs=held.outputs) for k, what, _ in memories))
    known = (*inputs, *(v.key for v in states))
    updates = [
        ("next_visits", "visits, this round included", lambda v: v["visits"] + algorithms.pair(v)),
        *((f"next_{k}", f"{what}, after the round", equation) for k, what, equation in memories),
        ("next_table", "every entry of the table after the round", table),
    ]
    written, round_ = known, []
    for name_, what, equation in updates:
        round_.append(Variable(name_, name_, what, "reward", parents=written, equation=equation, outputs=held.outputs))
        written = (*written, name_)
    round_.append(
        Variable(
            "next_column", "next_column", "the new column of the action taken", "reward",
            parents=("next_table", "action"), outputs=algorithms.COLUMN,
            equation=lambda v: algorithms.column_of(v["next_table"], v["action"]),
        )
    )  # fmt: skip

    def initial(episodes: MDPEpisodes) -> dict[str, Array]:
        return {variable.key: np.zeros_like(episodes.q_tables[:, 0]) for variable in states}

    learner = Algorithm(
        key=key,
        name=name,
        task="qlearning",
        parameters=parameters,
        variables=(*algorithms.INPUTS, *states, *round_),
        inputs=algorithms.inputs,
        initial=initial,
        distribution=lambda v: v["policy"],
        memory="table",
        written="next_column",
    )
    return acting(learner)


def _towards(v: Values, rate: Array | float, target: Array) -> Array:
    """The table with the round's entry moved towards ``target`` ``[...]``."""
    pair = algorithms.pair(v)
    return v["table"] + rate * pair * (target[..., None, None] - v["table"])


@checked
def mean_bootstrap(alpha: float = 0.1, gamma: float = 0.9) -> Algorithm:
    """Q-learning that bootstraps from the mean over actions, as for a policy of uniform actions.

    Raises:
        InputError: a rate outside its range.
    """
    bellman.check_rates(alpha, gamma)

    def table(v: Values) -> Array:
        return _towards(v, alpha, v["reward"] + gamma * algorithms.row(v["table"], v["next_state"]).mean(-1))

    parameters = {"alpha": alpha, "gamma": gamma}
    return _learner("mean_bootstrap", "Q-learning with the mean in place of the maximum", parameters, table)


@checked
def soft_bootstrap(alpha: float = 0.1, gamma: float = 0.9, temperature: float = 0.1) -> Algorithm:
    """Q-learning with a soft maximum: the next values weighed by their softmax.

    Args:
        temperature: of the softmax, in units of reward; near 0 the maximum, large the mean.

    Raises:
        InputError: a rate outside its range, or a temperature that is not positive.
    """
    bellman.check_rates(alpha, gamma)
    require(temperature > 0, f"temperature must be above 0, got {temperature}")

    def table(v: Values) -> Array:
        following = algorithms.row(v["table"], v["next_state"])
        value = (special.softmax(following / temperature, axis=-1) * following).sum(-1)
        return _towards(v, alpha, v["reward"] + gamma * value)

    parameters = {"alpha": alpha, "gamma": gamma, "temperature": temperature}
    return _learner("soft_bootstrap", "Q-learning with a soft maximum", parameters, table)


def sarsa(alpha: float = 0.1, gamma: float = 0.9) -> Algorithm:
    """SARSA: bootstraps from the value of the action that is taken next, as soon as it is known.

    Raises:
        InputError: a rate outside its range.
    """
    bellman.check_rates(alpha, gamma)

    def table(v: Values) -> Array:
        pair = algorithms.pair(v)
        following = (v["table"] * pair).sum((-1, -2), keepdims=True)
        known = v["table"] + alpha * gamma * following * v["last_pair"]
        return known + alpha * pair * (v["reward"][..., None, None] - v["table"])

    memories = (("last_pair", "the pair of the round before", algorithms.pair),)
    return _learner("sarsa", "SARSA, on-policy", {"alpha": alpha, "gamma": gamma}, table, memories)


def mean_reward() -> Algorithm:
    """The mean reward of every pair, 0 where it was never visited."""
    return _learner(
        "mean_reward",
        "mean reward of every pair",
        {},
        lambda v: _towards(v, 1 / np.maximum(v["next_visits"], 1), v["reward"]),
    )


@checked
def visit_counts(sign: float = 1.0) -> Algorithm:
    """How often every pair was visited: the habit (sign 1), or what was tried least (sign -1)."""
    return _learner(
        "visit_counts", "counts of visits", {"sign": sign}, lambda v: sign * (v["visits"] + algorithms.pair(v))
    )


@checked
def monte_carlo(gamma: float = 0.9) -> Algorithm:
    """The mean over visits of the rewards since, discounted by ``gamma`` a round.

    Raises:
        InputError: gamma outside [0, 1).
    """
    bellman.check_rates(1.0, gamma)

    def returns(v: Values) -> Array:
        return v["returns"] + v["next_credit"] * v["reward"][..., None, None]

    memories = (
        ("credit", "how much of a reward every pair earns", lambda v: gamma * v["credit"] + algorithms.pair(v)),
        ("returns", "discounted rewards since every pair's visits", returns),
    )
    return _learner(
        "monte_carlo",
        "Monte Carlo returns",
        {"gamma": gamma},
        lambda v: v["next_returns"] / np.maximum(v["next_visits"], 1),
        memories,
    )
