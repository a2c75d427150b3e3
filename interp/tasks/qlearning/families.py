"""What could explain a policy besides tabular Q-learning, and where a fit looks for the parameters.

Rivals keep a table that is zero at first and is written where the round's pair (s, a) meets. SARSA is on-policy: it
follows the recorded actions, whoever chose them. :func:`acting` says how a table becomes a policy: that is no part of
what is learned, so :func:`families` asks each learner with every way to act by its table. Q-learning's discount starts
at .2, since one of 0 is a family of its own.

All of them with their updates: docs/method/families.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from interp.core.algorithm import Algorithm, Family, Searched, Values, Variable
from interp.support.checks import checked
from interp.support.errors import require
from interp.tasks.lapses import lapsed, late, stopped
from interp.tasks.qlearning import bellman
from interp.tasks.qlearning.algorithms import VARIABLES, no_bootstrap, pair, q_learning

_Array = NDArray[Any]


def _plain(alpha: float = 0.1, gamma: float = 0.9) -> Algorithm:
    """Q-learning by its rates alone."""
    return replace(
        q_learning(alpha, gamma), name="Q-learning", parameters={"alpha": alpha, "gamma": gamma}
    )


late_q, stopped_q = lapsed(late, _plain, "late_q"), lapsed(stopped, _plain, "stopped_q")


# Where a fit looks for each parameter, but for what a family says itself.
_ALPHA = Searched("alpha", (0.03, 0.1, 0.3, 1.0))
_GAMMA = Searched("gamma", (0.2, 0.5, 0.7, 0.9, 0.97))
_LAG = Searched("lag", (1, 2), kind="choice")
_LAST = Searched("last", (1, 2, 3, 5, 7, 10, 12, 15, 20, 25), kind="choice")
_SIGN = Searched("sign", (-1.0, 1.0), kind="choice")
_AFTER = Searched("after", (0.0, 1.0), kind="choice", enters=("acting_values",))
_SHARED_TIES = Searched("shared_ties", (0.0, 1.0), kind="choice", enters=("policy",))
_TEMPERATURE = Searched("temperature", (0.0, 0.003, 0.01, 0.03, 0.1, 0.3), enters=("policy",))

# The same of what a round makes of a table: the temperature is of the soft maximum, in units of reward; "keep" is of
# every entry of a table that fades, a round; "trace" of a pair's eligibility after a round, beside the discount.
_STEP_ALPHA = Searched("alpha", (0.03, 0.1, 0.3, 1.0))
_STEP_GAMMA = Searched("gamma", (0.0, 0.2, 0.5, 0.7, 0.9, 0.97, 0.995))
_STEP_TEMPERATURE = Searched("temperature", (0.01, 0.03, 0.1, 0.3, 1.0, 3.0))
_STEP_KEEP = Searched("keep", (0.9, 0.99, 1.0))
_STEP_TRACE = Searched("trace", (0.0, 0.075, 0.15, 0.3, 0.6, 0.9))


def _with_acts(learner: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
    """Give a learner every way to act by its table."""

    def make(
        temperature: float = 0.0, shared_ties: float = 1.0, after: float = 1.0, **parameters: Any
    ) -> Algorithm:
        return acting(learner(**parameters), temperature, bool(shared_ties), bool(after))

    return make


def families() -> tuple[Family, ...]:
    """List what a model of Q-learning is compared with: each learner with every way to act by its table.

    Of an extension few temperatures are tried and none between them: it says that a table is late or stopped. Of a
    table after the round a lag of one is Q-learning that chooses before it, so that it is left out.
    """
    return (
        Family(
            "q_learning",
            "tabular Q-learning",
            _with_acts(q_learning),
            searched=(_ALPHA, _GAMMA, _AFTER, _SHARED_TIES, _TEMPERATURE),
            tempered=True,
        ),
        Family(
            "late_q",
            "Q-learning, some rounds late",
            _with_acts(late_q),
            searched=(
                _LAG,
                Searched("alpha", (0.1, 0.3)),
                Searched("gamma", (0.5, 0.9)),
                Searched("after", (0.0,), kind="choice", enters=("acting_values",)),
                _SHARED_TIES,
                Searched("temperature", (0.0, 0.03, 0.1, 0.3), kind="choice", enters=("policy",)),
            ),
            extends="q_learning",
        ),
        Family(
            "stopped_q",
            "Q-learning that stops learning",
            _with_acts(stopped_q),
            searched=(
                _LAST,
                Searched("alpha", (0.1, 0.3)),
                Searched("gamma", (0.5, 0.9)),
                _AFTER,
                _SHARED_TIES,
                Searched("temperature", (0.0, 0.03, 0.1, 0.3), kind="choice", enters=("policy",)),
            ),
            extends="q_learning",
        ),
        Family(
            "no_bootstrap",
            "Q-learning without bootstrapping",
            _with_acts(no_bootstrap),
            searched=(_ALPHA, _AFTER, _SHARED_TIES, _TEMPERATURE),
            tempered=True,
        ),
        Family(
            "mean_bootstrap",
            "Q-learning with the mean in place of the maximum",
            _with_acts(mean_bootstrap),
            searched=(_ALPHA, _GAMMA, _AFTER, _SHARED_TIES, _TEMPERATURE),
            tempered=True,
        ),
        Family(
            "sarsa",
            "SARSA, on-policy",
            _with_acts(sarsa),
            searched=(_ALPHA, _GAMMA, _AFTER, _SHARED_TIES, _TEMPERATURE),
            tempered=True,
        ),
        Family(
            "mean_reward",
            "mean reward of every pair",
            _with_acts(_mean_reward),
            searched=(_AFTER, _SHARED_TIES, _TEMPERATURE),
            tempered=True,
        ),
        Family(
            "visit_counts",
            "counts of visits",
            _with_acts(visit_counts),
            searched=(
                _SIGN,
                _AFTER,
                _SHARED_TIES,
                Searched("temperature", (0.0, 0.3, 1.0, 3.0, 10.0), enters=("policy",)),
            ),
            tempered=True,
        ),
    )


def updates() -> tuple[Family, ...]:
    """List what a round could make of a table: which rate and discount, and the maximum, a soft one or the mean."""
    return (
        Family("q_learning", "the maximum", q_learning, searched=(_STEP_ALPHA, _STEP_GAMMA)),
        Family(
            "soft_bootstrap",
            "a soft maximum",
            _soft_bootstrap,
            searched=(_STEP_ALPHA, _STEP_GAMMA, _STEP_TEMPERATURE),
        ),
        Family("mean_bootstrap", "the mean", mean_bootstrap, searched=(_STEP_ALPHA, _STEP_GAMMA)),
        Family("no_bootstrap", "no next value", no_bootstrap, searched=(_STEP_ALPHA,)),
        Family(
            "fading_q",
            "the maximum, of a table that fades",
            _fading_q,
            searched=(_STEP_ALPHA, _STEP_GAMMA, _STEP_KEEP),
            extends="q_learning",
        ),
        Family(
            "trace_q",
            "the maximum, with traces of eligibility",
            _trace_q,
            searched=(_STEP_ALPHA, _STEP_GAMMA, _STEP_TRACE),
            extends="q_learning",
        ),
    )


@checked
def acting(
    algorithm: Algorithm, temperature: float = 0.0, shared_ties: bool = True, after: bool = True
) -> Algorithm:
    """The same learner with another choice at the state reached.

    Args:
        temperature: of the softmax of the values, in their units; 0 is greedy.
        shared_ties: whether tied greedy actions share the probability, or the lowest index takes it.
        after: whether it chooses by the table after the round, or by the one before, as the construction does.
    """
    require(temperature >= 0, f"temperature must be at least 0, got {temperature}")
    read = "acting_values"
    moment, table = ("acting_after", "next_table") if after else ("acting_before", "table")

    def policy(v: Values) -> _Array:
        if temperature > 0:
            return np.asarray(special.softmax(v[read] / temperature, axis=-1))
        tied = bellman.greedy_sets(v[read])
        if shared_ties:
            return np.asarray(tied / tied.sum(-1, keepdims=True))
        return np.eye(tied.shape[-1])[tied.argmax(-1)]

    equations = {read: lambda v: bellman.rows_at(v[table], v["next_state"]), "policy": policy}
    own = VARIABLES(moment, equations)
    kept = {
        k: v for k, v in algorithm.parameters.items() if k not in ("tie_slope", "beta", "hardness")
    }
    return replace(
        algorithm,
        parameters={**kept, "temperature": temperature, "shared_ties": shared_ties, "after": after},
        variables=(*(v for v in algorithm.variables if v.key not in equations), *own),
        distribution=lambda v: v["policy"],
    )


_Q = q_learning()  # whose inputs, table and visits the rivals share


def _learner(
    key: str,
    name: str,
    table: Callable[[Values], _Array],
    *memories: tuple[str, str, Callable[[Values], _Array]],
    **parameters: Any,
) -> Algorithm:
    """A learner that chooses greedily by its table, ``table`` being that after the round.

    ``memories`` are further tables that it keeps, zero at first: (key, what it is, its value after the round).
    """
    labels = _Q.variable("table").outputs
    inputs, states = (
        tuple(v for v in _Q.variables if v.role == role) for role in ("input", "state")
    )
    states += tuple(
        Variable(key, key, what, "reward", "state", outputs=labels) for key, what, _ in memories
    )
    known, round_ = tuple(v.key for v in (*inputs, *states)), []
    following: dict[str, tuple[str, Callable[[Values], _Array]]] = {
        "next_visits": ("visits, this round included", lambda v: v["visits"] + pair(v)),
        **{
            f"next_{key}": (f"{what}, after the round", equation)
            for key, what, equation in memories
        },
        "next_table": ("every entry of the table after the round", table),
    }
    for what, (meaning, equation) in following.items():
        round_.append(
            Variable(
                what, what, meaning, "reward", parents=known, equation=equation, outputs=labels
            )
        )
        known = (*known, what)
    column = VARIABLES(
        "rival", {"next_column": lambda v: bellman.columns_at(v["next_table"], v["action"])}
    )
    learner = replace(
        _Q,
        key=key,
        name=name,
        parameters=parameters,
        variables=(*inputs, *states, *round_, *column),
        initial=lambda episodes: {
            variable.key: np.zeros_like(episodes.q_tables[:, 0]) for variable in states
        },
    )
    return acting(learner)


def _towards(v: Values, rate: _Array | float, target: _Array) -> _Array:
    """The table with the round's entry moved towards ``target`` ``[...]``."""
    return v["table"] + rate * pair(v) * (target[..., None, None] - v["table"])


def _bootstrapping(
    key: str,
    name: str,
    value: Callable[[_Array], _Array],
    alpha: float,
    gamma: float,
    **parameters: Any,
) -> Algorithm:
    """Q-learning with another value of the next ``[..., action]`` than their maximum; it fades by ``keep``."""
    bellman.check_rates(alpha, gamma)

    def table(v: Values) -> _Array:
        reached = bellman.rows_at(v["table"], v["next_state"])
        return parameters.get("keep", 1.0) * _towards(
            v, alpha, v["reward"] + gamma * value(reached)
        )

    return _learner(key, name, table, alpha=alpha, gamma=gamma, **parameters)


def mean_bootstrap(alpha: float = 0.1, gamma: float = 0.9) -> Algorithm:
    """Q-learning that bootstraps from the mean over actions, as for a policy of uniform actions."""
    name = "Q-learning with the mean in place of the maximum"
    return _bootstrapping("mean_bootstrap", name, lambda values: values.mean(-1), alpha, gamma)


def _soft_bootstrap(alpha: float = 0.1, gamma: float = 0.9, temperature: float = 0.1) -> Algorithm:
    """Q-learning with a soft maximum: the next values weighed by their softmax.

    Its ``temperature``, above 0, is in units of reward; near 0 it is the maximum, large the mean.
    """

    def soft(values: _Array) -> _Array:
        return np.asarray((special.softmax(values / temperature, axis=-1) * values).sum(-1))

    name = "Q-learning with a soft maximum"
    return _bootstrapping("soft_bootstrap", name, soft, alpha, gamma, temperature=temperature)


def _fading_q(alpha: float = 0.1, gamma: float = 0.9, keep: float = 0.99) -> Algorithm:
    """Q-learning whose table fades: every entry is multiplied by ``keep``, in [0, 1], at the end of each round."""
    return _bootstrapping(
        "fading_q",
        "Q-learning that forgets",
        lambda values: values.max(-1),
        alpha,
        gamma,
        keep=keep,
    )


def _trace_q(alpha: float = 0.1, gamma: float = 0.9, trace: float = 0.5) -> Algorithm:
    """Q-learning with traces of eligibility: earlier pairs learn, too, ``gamma trace`` times as much a round."""
    bellman.check_rates(alpha, gamma)

    def table(v: Values) -> _Array:
        error = v["reward"] + gamma * bellman.rows_at(v["table"], v["next_state"]).max(-1)
        error = error - (v["table"] * pair(v)).sum((-1, -2))
        return v["table"] + alpha * error[..., None, None] * v["next_eligible"]

    eligible = (
        "eligible",
        "traces of the pairs before",
        lambda v: gamma * trace * v["eligible"] + pair(v),
    )
    return _learner("trace_q", "Q(lambda)", table, eligible, alpha=alpha, gamma=gamma, trace=trace)


def sarsa(alpha: float = 0.1, gamma: float = 0.9) -> Algorithm:
    """SARSA: bootstraps from the value of the action that is taken next, as soon as it is known."""
    bellman.check_rates(alpha, gamma)

    def table(v: Values) -> _Array:
        here = pair(v)
        known = (
            v["table"]
            + alpha * gamma * (v["table"] * here).sum((-1, -2), keepdims=True) * v["last_pair"]
        )
        return known + alpha * here * (v["reward"][..., None, None] - v["table"])

    last = "last_pair", "the pair of the round before", pair
    return _learner("sarsa", "SARSA, on-policy", table, last, alpha=alpha, gamma=gamma)


def _mean_reward() -> Algorithm:
    """The mean reward of every pair, 0 where it was never visited."""
    name = "mean reward of every pair"
    return _learner(
        "mean_reward", name, lambda v: _towards(v, 1 / np.maximum(v["next_visits"], 1), v["reward"])
    )


def visit_counts(sign: float = 1.0) -> Algorithm:
    """How often every pair was visited: the habit (sign 1), or what was tried least (sign -1)."""
    return _learner(
        "visit_counts", "counts of visits", lambda v: sign * (v["visits"] + pair(v)), sign=sign
    )
