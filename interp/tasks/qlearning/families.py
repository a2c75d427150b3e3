"""Rivals of tabular Q-learning that could explain a policy, and the grids of their parameters.

Every rival keeps a table that begins at zero, and updates it at the round's state-action pair.
SARSA is on-policy: it uses the recorded actions, whoever chose them. :func:`acting` defines how
actions are chosen from a table: at which temperature, with which rule for ties, and from the table
before or after the update. How a table is learned does not determine this, so :func:`families`
combines each learner with every way to choose. Q-learning's discount is at least .2 in fits, since
a discount of 0 is a separate family.

All rivals with their updates: docs/method/families.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from interp.core.algorithm import NEXT, Algorithm, Equation, Family, Searched, Values, Variable
from interp.support.checks import check_number, checked
from interp.support.errors import require
from interp.tasks.lapses import add_lapse, late, stopped
from interp.tasks.qlearning import bellman
from interp.tasks.qlearning.algorithms import VARIABLES, mark_pair, no_bootstrap, q_learning

_Array = NDArray[Any]


def _q_learning_by_rates(alpha: float = 0.1, gamma: float = 0.9) -> Algorithm:
    """Return tabular Q-learning that has only the learning rate ``alpha`` and the discount ``gamma``
    in its field ``parameters``.
    """
    return replace(
        q_learning(alpha, gamma), name="Q-learning", parameters={"alpha": alpha, "gamma": gamma}
    )


late_q = add_lapse(late, _q_learning_by_rates, "late_q")
stopped_q = add_lapse(stopped, _q_learning_by_rates, "stopped_q")


# The grid of each parameter in a fit, unless a family has its own.
_ALPHA = Searched("alpha", (0.03, 0.1, 0.3, 1.0))
_GAMMA = Searched("gamma", (0.2, 0.5, 0.7, 0.9, 0.97))
_LAG = Searched("lag", (1, 2), kind="choice")
_LAST = Searched("last", (1, 2, 3, 5, 7, 10, 12, 15, 20, 25), kind="choice")
_SIGN = Searched("sign", (-1.0, 1.0), kind="choice")
_ACTS_AFTER = Searched("after", (0.0, 1.0), kind="choice", used_by=("acting_values",))
_SHARED_TIES = Searched("shared_ties", (0.0, 1.0), kind="choice", used_by=("policy",))
_TEMPERATURE = Searched("temperature", (0.0, 0.003, 0.01, 0.03, 0.1, 0.3), used_by=("policy",))

# The same for fits to the update of a table. "temperature" is that of the soft maximum, in units of
# reward; "keep" is the factor of a fading table's entries in a round; "trace" is the decay of a
# pair's eligibility in a round, besides the discount.
_STEP_GAMMA = Searched("gamma", (0.0, 0.2, 0.5, 0.7, 0.9, 0.97, 0.995))
_STEP_TEMPERATURE = Searched("temperature", (0.01, 0.03, 0.1, 0.3, 1.0, 3.0))
_STEP_KEEP = Searched("keep", (0.9, 0.99, 1.0))
_STEP_TRACE = Searched("trace", (0.0, 0.075, 0.15, 0.3, 0.6, 0.9))


_ACTING = (_ACTS_AFTER, _SHARED_TIES, _TEMPERATURE)
_FEW_RATES = (Searched("alpha", (0.1, 0.3)), Searched("gamma", (0.5, 0.9)))
_ACTS_BEFORE = Searched("after", (0.0,), kind="choice", used_by=("acting_values",))
_FEW_TEMPERATURES = Searched(
    "temperature", (0.0, 0.03, 0.1, 0.3), kind="choice", used_by=("policy",)
)
_COUNT_TEMPERATURES = Searched("temperature", (0.0, 0.3, 1.0, 3.0, 10.0), used_by=("policy",))


def _make_family(
    key: str,
    name: str,
    learner: Callable[..., Algorithm],
    searched: tuple[Searched, ...],
    extends: str = "",
) -> Family:
    """Return a family: one learner, combined with every way to choose actions from its table
    (:func:`acting`).

    Args:
        key: key of the family.
        name: name of the family.
        learner: function that makes the learner from parameters.
        searched: the parameters that a fit searches, including those of :func:`acting`.
        extends: key of the simpler family that this one extends; "" for none.
    """

    def make(
        temperature: float = 0.0, shared_ties: float = 1.0, after: float = 1.0, **parameters: Any
    ) -> Algorithm:
        """Return the learner with these parameters and this way to choose actions."""
        # The grid of a fit has numbers: 0 or 1 for these two.
        return acting(
            learner(**parameters), temperature, shared_ties=bool(shared_ties), after=bool(after)
        )

    return Family(key, name, make, searched, extends=extends, tempered=not extends)


def families() -> tuple[Family, ...]:
    """Return the families of algorithms with which the predictions of a Q-learning model are
    compared. The algorithms of a family differ only in their parameters. Each learner is combined
    with every way to choose actions from its table: greedily or by a softmax, before or after the
    round's update.

    Two families extend Q-learning: one learns late, the other stops learning. These two are fitted
    with only a few learning rates, discounts and temperatures. The late learner always chooses
    before the round's update. If it chose after the update, a lag of one round would be the same as
    ordinary Q-learning that chooses before the update.
    """
    late_searched = (_LAG, *_FEW_RATES, _ACTS_BEFORE, _SHARED_TIES, _FEW_TEMPERATURES)
    stopped_searched = (_LAST, *_FEW_RATES, _ACTS_AFTER, _SHARED_TIES, _FEW_TEMPERATURES)
    rates_searched = (_ALPHA, _GAMMA, *_ACTING)
    mean_name = "Q-learning with the mean in place of the maximum"
    counts_searched = (_SIGN, _ACTS_AFTER, _SHARED_TIES, _COUNT_TEMPERATURES)
    return (
        _make_family("q_learning", "tabular Q-learning", q_learning, rates_searched),
        _make_family(
            "late_q", "Q-learning, some rounds late", late_q, late_searched, extends="q_learning"
        ),
        _make_family(
            "stopped_q",
            "Q-learning that stops learning",
            stopped_q,
            stopped_searched,
            extends="q_learning",
        ),
        _make_family(
            "no_bootstrap", "Q-learning without bootstrapping", no_bootstrap, (_ALPHA, *_ACTING)
        ),
        _make_family("mean_bootstrap", mean_name, mean_bootstrap, rates_searched),
        _make_family("sarsa", "SARSA, on-policy", sarsa, rates_searched),
        _make_family("mean_reward", "mean reward of every pair", _mean_reward, _ACTING),
        _make_family("visit_counts", "counts of visits", visit_counts, counts_searched),
    )


def updates() -> tuple[Family, ...]:
    """Return the families of rules for updating a Q-table, which are fitted to the updates of the
    Q-table that is decoded from a model.

    Families differ in the value of the next state from which they bootstrap, such as the maximum or
    the mean over actions. One family has a table that fades, another has eligibility traces. The
    rules of a family differ only in their parameters, such as the learning rate.
    """
    return (
        Family("q_learning", "the maximum", q_learning, searched=(_ALPHA, _STEP_GAMMA)),
        Family(
            "soft_bootstrap",
            "a soft maximum",
            _soft_bootstrap,
            searched=(_ALPHA, _STEP_GAMMA, _STEP_TEMPERATURE),
        ),
        Family("mean_bootstrap", "the mean", mean_bootstrap, searched=(_ALPHA, _STEP_GAMMA)),
        Family("no_bootstrap", "no next value", no_bootstrap, searched=(_ALPHA,)),
        Family(
            "fading_q",
            "the maximum, of a table that fades",
            _fading_q,
            searched=(_ALPHA, _STEP_GAMMA, _STEP_KEEP),
            extends="q_learning",
        ),
        Family(
            "trace_q",
            "the maximum, with traces of eligibility",
            _trace_q,
            searched=(_ALPHA, _STEP_GAMMA, _STEP_TRACE),
            extends="q_learning",
        ),
    )


@checked
def acting(
    algorithm: Algorithm, temperature: float = 0.0, shared_ties: bool = True, after: bool = True
) -> Algorithm:
    """Return a copy of a learner that learns in the same way, and chooses actions from its table by
    another policy.

    Args:
        algorithm: the learner, an algorithm with a table of action values.
        temperature: temperature of the softmax policy over action values, in units of reward; 0 for
            a greedy policy.
        shared_ties: for a greedy policy: True if tied actions share the probability; False if the
            tied action with the lowest index gets all of it.
        after: True to use the table after the round's update; False for the table before it, which
            the handwired construction uses.
    """
    require(temperature >= 0, f"temperature must be at least 0, got {temperature}")
    rows_key = "acting_after" if after else "acting_before"  # of rows in variables.csv
    table_key = "next_table" if after else "table"

    def acting_values(v: Values) -> _Array:
        """Return the action values from which the policy chooses, ``[..., action]``."""
        return bellman.take_rows(v[table_key], v["next_state"])

    def policy(v: Values) -> _Array:
        """Return the probability of each action, ``[..., action]``."""
        if temperature > 0:
            return special.softmax(v["acting_values"] / temperature, axis=-1)
        tied = bellman.greedy_sets(v["acting_values"])
        if shared_ties:
            shares: _Array = tied / tied.sum(-1, keepdims=True)
            return shares
        n_actions = tied.shape[-1]
        return np.eye(n_actions)[tied.argmax(-1)]

    # These replace the learner's own policy; rows of variables.csv describe them.
    equations = {"acting_values": acting_values, "policy": policy}
    variables = [variable for variable in algorithm.variables if variable.key not in equations]
    parameters = {"temperature": temperature, "shared_ties": shared_ties, "after": after}
    for name, value in algorithm.parameters.items():
        if name not in ("tie_slope", "beta", "hardness"):  # of the policy that is replaced
            parameters.setdefault(name, value)
    return replace(
        algorithm,
        parameters=parameters,
        variables=(*variables, *VARIABLES(rows_key, equations)),
        distribution=lambda v: v["policy"],
    )


_BASE = q_learning()  # whose inputs, table and visits the rivals share


_MEANINGS = {
    "eligible": "traces of the pairs before",
    "last_pair": "the pair of the round before",
    "next_visits": "visits, this round included",
    "next_eligible": "traces of the pairs before, after the round",
    "next_last_pair": "the pair of the round before, after the round",
    "next_table": "every entry of the table after the round",
}
"""Meaning of each variable that only rivals have, or that they define in another way."""


def _make_learner(
    key: str,
    name: str,
    update_table: Equation,
    memories: Mapping[str, Equation] = MappingProxyType({}),
    **parameters: Any,
) -> Algorithm:
    """Make a learner that chooses greedily by its table.

    Args:
        key: key of the algorithm.
        name: name of the algorithm.
        update_table: equation of the learner's table after a round.
        memories: {key: equation} of further tables that the learner carries from round to round.
            They begin at zero, and the equation computes the table after a round.
        parameters: parameters for the algorithm's field ``parameters``, by name.
    """
    # The inputs and states of tabular Q-learning, without its equations.
    variables = [v for v in _BASE.variables if v.role in ("input", "state")]
    for memory in memories:
        variables.append(_make_pair_variable(memory, role="state"))
    states = [variable.key for variable in variables if variable.role == "state"]
    # The table comes last, so that its update may read the next values of the memories.
    updates = {"visits": lambda v: v["visits"] + mark_pair(v), **memories, "table": update_table}
    for state, update in updates.items():
        # An update may read all inputs, all states, and the next values that are computed before.
        parents = tuple(variable.key for variable in variables)
        next_value = _make_pair_variable(NEXT + state, parents=parents, equation=update)
        variables.append(next_value)
    # What a model's update writes into a latent: the column of the action that was taken.
    write = {"next_column": lambda v: bellman.take_columns(v["next_table"], v["action"])}

    def start_at_zero(episodes: Any) -> dict[str, _Array]:
        """Return the values of all state variables before the first round."""
        empty = np.zeros_like(episodes.q_tables[:, 0])  # [episode, state, action]
        return dict.fromkeys(states, empty)

    learner = replace(
        _BASE,
        key=key,
        name=name,
        parameters=parameters,
        variables=(*variables, *VARIABLES("rival", write)),
        initial=start_at_zero,
    )
    return acting(learner)  # adds the greedy choice


def _make_pair_variable(key: str, **rest: Any) -> Variable:
    """Return a variable with one number for every state-action pair.

    Args:
        key: key of the variable, which is its symbol, too.
        rest: further fields of the :class:`Variable`.
    """
    outputs = _BASE.variable("table").outputs
    return Variable(
        key=key, symbol=key, meaning=_MEANINGS[key], units="reward", outputs=outputs, **rest
    )


def _move_towards(v: Values, rate: _Array | float, target: _Array) -> _Array:
    """Return the table after its entry for the round's state-action pair is moved towards a target.

    Args:
        v: values of the round's variables.
        rate: share of the distance to the target by which the entry moves.
        target: one number per table, ``[...]``.
    """
    gap = target[..., None, None] - v["table"]  # [..., state, action]
    return v["table"] + rate * mark_pair(v) * gap


def _make_bootstrapping(
    key: str,
    name: str,
    value: Callable[[_Array], _Array],
    alpha: float,
    gamma: float,
    **parameters: Any,
) -> Algorithm:
    """Make a variant of Q-learning with another function in place of the maximum over next actions.

    Args:
        key: key of the algorithm.
        name: name of the algorithm.
        value: maps the action values at the next state, ``[..., action]``, to the value from which
            the update bootstraps, ``[...]``.
        alpha: learning rate.
        gamma: discount.
        parameters: further parameters for the algorithm's field ``parameters``, by name. If
            ``keep`` is among them, the table is multiplied by it after each round.
    """
    bellman.check_rates(alpha, gamma)
    keep = parameters.get("keep", 1.0)

    def update_table(v: Values) -> _Array:
        """Return the table after the round, ``[..., state, action]``: the entry of the pair that
        was visited moves towards the reward plus the discounted value of the next state.
        """
        next_values = bellman.take_rows(v["table"], v["next_state"])  # [..., action]
        target = v["reward"] + gamma * value(next_values)
        return keep * _move_towards(v, alpha, target)

    return _make_learner(key, name, update_table, alpha=alpha, gamma=gamma, **parameters)


def mean_bootstrap(alpha: float = 0.1, gamma: float = 0.9) -> Algorithm:
    """Return a variant of Q-learning that bootstraps from the mean of the next state's action
    values instead of their maximum.

    Args:
        alpha: learning rate.
        gamma: discount.
    """
    name = "Q-learning with the mean in place of the maximum"
    return _make_bootstrapping("mean_bootstrap", name, lambda values: values.mean(-1), alpha, gamma)


def _soft_bootstrap(alpha: float = 0.1, gamma: float = 0.9, temperature: float = 0.1) -> Algorithm:
    """Return a variant of Q-learning that bootstraps from a soft maximum: the mean of the next
    state's action values, weighted by their softmax.

    Args:
        alpha: learning rate.
        gamma: discount.
        temperature: temperature of the softmax, above 0, in units of reward. Near 0 the soft
            maximum is the maximum; for large temperatures it is the mean.
    """
    require(temperature > 0, f"temperature must be above 0, got {temperature}")

    def soft_maximum(values: _Array) -> _Array:
        """Return the soft maximum ``[...]`` of action values ``[..., action]``."""
        weights = special.softmax(values / temperature, axis=-1)
        maximum: _Array = (weights * values).sum(-1)
        return maximum

    name = "Q-learning with a soft maximum"
    return _make_bootstrapping(
        "soft_bootstrap", name, soft_maximum, alpha, gamma, temperature=temperature
    )


def _fading_q(alpha: float = 0.1, gamma: float = 0.9, keep: float = 0.99) -> Algorithm:
    """Return Q-learning with a table whose entries all decay in each round.

    Args:
        alpha: learning rate.
        gamma: discount.
        keep: factor by which every entry is multiplied after a round, in [0, 1].
    """
    check_number("keep", keep, 0, 1)
    name = "Q-learning that forgets"
    return _make_bootstrapping(
        "fading_q", name, lambda values: values.max(-1), alpha, gamma, keep=keep
    )


def _trace_q(alpha: float = 0.1, gamma: float = 0.9, trace: float = 0.5) -> Algorithm:
    """Return Q-learning with eligibility traces: an error also changes the entries of state-action
    pairs of earlier rounds.

    Args:
        alpha: learning rate.
        gamma: discount.
        trace: the parameter lambda of Q(lambda), in [0, 1]. A pair's eligibility, 1 when it is
            visited, is multiplied by ``gamma trace`` in each further round.
    """
    bellman.check_rates(alpha, gamma)
    check_number("trace", trace, 0, 1)

    def update_table(v: Values) -> _Array:
        """Return the table after the round, ``[..., state, action]``: every entry moves in the
        direction of the error, in proportion to its eligibility.
        """
        table = v["table"]
        current = (table * mark_pair(v)).sum((-1, -2))  # mark_pair: 1 at the visited pair, else 0
        next_value = bellman.take_rows(table, v["next_state"]).max(-1)
        error = v["reward"] + gamma * next_value - current
        return table + alpha * error[..., None, None] * v["next_eligible"]

    def update_traces(v: Values) -> _Array:
        """Return the eligibility of every pair after the round, ``[..., state, action]``."""
        return gamma * trace * v["eligible"] + mark_pair(v)

    memories = {"eligible": update_traces}
    return _make_learner(
        "trace_q", "Q(lambda)", update_table, memories, alpha=alpha, gamma=gamma, trace=trace
    )


def sarsa(alpha: float = 0.1, gamma: float = 0.9) -> Algorithm:
    """Return SARSA, which bootstraps from the value of the action that is taken in the next state.
    This action is known only in the following round, which completes the update.

    Args:
        alpha: learning rate.
        gamma: discount.
    """
    bellman.check_rates(alpha, gamma)

    def update_table(v: Values) -> _Array:
        """Return the table after the round, ``[..., state, action]``."""
        table, this_pair = v["table"], mark_pair(v)  # this_pair: 1 at the visited pair, else 0
        current = (table * this_pair).sum((-1, -2), keepdims=True)  # the value of this pair
        # The last round's update still lacks its last term, the value of the action taken now.
        completed = table + alpha * gamma * current * v["last_pair"]
        # The update of this round, without that term: the next round will add it.
        gap = v["reward"][..., None, None] - table
        return completed + alpha * this_pair * gap

    memories = {"last_pair": mark_pair}
    return _make_learner(
        "sarsa", "SARSA, on-policy", update_table, memories, alpha=alpha, gamma=gamma
    )


def _mean_reward() -> Algorithm:
    """Return the algorithm whose table has the mean reward of each state-action pair so far; 0 for
    pairs that were never visited.
    """

    def update_table(v: Values) -> _Array:
        """Return the table after the round, ``[..., state, action]``."""
        rate = 1 / np.maximum(v["next_visits"], 1)  # makes the entry a running mean
        return _move_towards(v, rate, v["reward"])

    return _make_learner("mean_reward", "mean reward of every pair", update_table)


def visit_counts(sign: float = 1.0) -> Algorithm:
    """Return an algorithm that ignores rewards: it counts how often each action was taken in each
    state, and chooses by the counts in the current state.

    Args:
        sign: 1 to choose the action that was taken most often (a habit), -1 to choose the action
            that was taken least often.
    """
    return _make_learner(
        "visit_counts", "counts of visits", lambda v: sign * v["next_visits"], sign=sign
    )
