"""Variants of any algorithm with a lapse: it learns late, stops learning, forgets, or learns only
from the last rounds.

    >>> from interp.tasks.experts.algorithms import weighted_majority
    >>> made = late(weighted_majority(0.5), 2)
    >>> made.key, made.name, dict(made.parameters)
    ('weighted_majority_late', 'Weighted Majority, some rounds late', {'gain': 0.5, 'lag': 2})

The algorithm's update rule is unchanged; the lapse determines from which round the update learns,
and how strongly. A lapse without effect (no lag, or an end or a window that is longer than the
episode) gives exactly the original algorithm. Variables have the same keys as in the original
algorithm. Except for the state, their values are those of the current round, not of the round from
which the update learns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.core.algorithm import NEXT, Algorithm, Episodes, Equation, Values, Variable
from interp.support.checks import checked
from interp.support.errors import require

_CLOCK = "clock"
_Array = NDArray[Any]


@checked
def late(algorithm: Algorithm, lag: int = 1, key: str = "") -> Algorithm:
    """Return a variant of an algorithm that learns from each round ``lag`` rounds later.

    The variant remembers the inputs of round t, and updates its state with them in round t +
    ``lag``.

    Args:
        algorithm: the algorithm to vary.
        lag: number of rounds between a round and the update from it.
        key: key of the variant; by default that of the algorithm with a suffix.
    """
    require(lag >= 0, f"lag must be an integer >= 0, got {lag}")
    with_queue = _carry_clock_and_inputs(algorithm, queue="waiting", length=lag)

    def learn_late(state: str, v: Values) -> _Array:
        """Return the next value of a state variable: its original update, computed from the inputs
        of ``lag`` rounds ago. In the first ``lag`` rounds, the value does not change.

        Args:
            state: key of the state variable.
            v: values of the round's variables, by key.
        """
        due = {}  # the inputs of `lag` rounds ago
        for input_key in _list_inputs_read(algorithm):
            waiting = _append_newest(v, f"waiting_{input_key}", input_key)  # [..., lag + 1]
            due[input_key] = waiting[..., 0]
        inputs = _round_class_numbers(algorithm, v, due)
        # The state after a round with these inputs.
        learned = algorithm.advance(v, inputs, keys=(state,))
        # In the first rounds the queue still has the zeros that it began with: no update is made.
        is_due = v[_CLOCK] >= lag
        return _apply_fraction(v[state], learned[state], fraction=is_due)

    # The new updates read inputs and states, but nothing that is computed in the current round.
    parents = tuple(v.key for v in with_queue.variables if v.role != "round")
    return _replace_updates(
        with_queue,
        key=key or f"{algorithm.key}_late",
        name=f"{algorithm.name}, some rounds late",
        parameters={"lag": lag},
        updates={state: (parents, partial(learn_late, state)) for state in algorithm.state},
    )


@checked
def stopped(algorithm: Algorithm, last: float = 10, key: str = "") -> Algorithm:
    """Return a variant of an algorithm that learns only from the first ``last`` rounds.

    Args:
        algorithm: the algorithm to vary.
        last: number of rounds from which the variant learns. With 2.5, it learns fully from two
            rounds and makes half of the third round's update.
        key: key of the variant; by default that of the algorithm with a suffix.
    """
    _check_rounds("last", last)
    is_whole = last == int(last)

    def get_fraction(clock: _Array) -> _Array:
        """Return which fraction of the update is made in rounds with the indices ``clock``."""
        return clock < last if is_whole else np.clip(last - clock, 0, 1)

    return learn_in_some_rounds(
        algorithm,
        get_fraction,
        {"last": last},
        key=key or f"{algorithm.key}_stopped",
        name=f"{algorithm.name} that stops learning",
    )


def learn_in_some_rounds(
    algorithm: Algorithm,
    get_fraction: Callable[[_Array], _Array],
    parameters: Mapping[str, Any],
    key: str,
    name: str,
) -> Algorithm:
    """Return a variant of an algorithm that learns from some rounds only, or makes only a fraction
    of an update.

    Args:
        algorithm: the algorithm to vary.
        get_fraction: function that says how much is learned from a round. It maps an array of
            round indices to an array of the same shape: booleans, True if the round's update is
            made; or numbers, the fraction of the update that is made.
        parameters: {name: value} of the parameters that the variant has besides those of the
            algorithm. They are stored in the variant's field ``parameters``, without another effect.
        key, name: key and name of the variant.
    """

    def learn(state: str, update: Equation, v: Values) -> _Array:
        """Return the next value of a state variable: its value plus a fraction of the original
        update.

        Args:
            state: key of the state variable.
            update: the original equation of its next value.
            v: values of the round's variables, by key.
        """
        return _apply_fraction(v[state], update(v), get_fraction(v[_CLOCK]))

    updates = {}
    for state in algorithm.state:
        next_state = algorithm.variable(NEXT + state)  # whose equation is the original update
        assert next_state.equation is not None
        parents = (state, _CLOCK, *next_state.parents)
        updates[state] = (parents, partial(learn, state, next_state.equation))
    with_clock = _carry_clock_and_inputs(algorithm)
    return _replace_updates(with_clock, key, name, parameters, updates)


@checked
def fading(algorithm: Algorithm, decay: float = 0.9, key: str = "") -> Algorithm:
    """Return a variant of an algorithm that multiplies the state by ``decay`` before every update,
    so that old rounds count less.

    Variables that depend on inputs alone, such as which experts were right, are not affected.

    Args:
        algorithm: the algorithm to vary.
        decay: the factor, in (0, 1].
        key: key of the variant; by default that of the algorithm with a suffix.
    """
    require(0 < decay <= 1, f"decay must lie in (0, 1], got {decay}; 1 forgets nothing")

    def learn(state: str, parents: tuple[str, ...], steps: list[Variable], v: Values) -> _Array:
        """Return the next value of a state variable: the original update, computed from states that
        are multiplied by ``decay``.

        Args:
            state: key of the state variable.
            parents: keys of the states and other variables from which the update is computed.
            steps: variables that are computed in the update, in this order; the last is the result.
            v: values of the round's variables, by key.
        """
        values = {k: decay * v[k] if k in algorithm.state else v[k] for k in parents}
        for variable in steps:
            assert variable.equation is not None
            values[variable.key] = np.asarray(variable.equation(values))
        return values[NEXT + state]

    updates = {}
    for state in algorithm.state:
        parents, steps = _trace_update(algorithm, state)
        updates[state] = (parents, partial(learn, state, parents, steps))
    return _replace_updates(
        algorithm,
        key=key or f"{algorithm.key}_fading",
        name=f"{algorithm.name} that forgets",
        parameters={"decay": decay},
        updates=updates,
    )


def _trace_update(algorithm: Algorithm, state: str) -> tuple[tuple[str, ...], list[Variable]]:
    """Split the variables behind the update of a state variable into those that the update reads
    and those that depend on states.

    Args:
        algorithm: the algorithm.
        state: key of the state variable.

    Returns:
        The keys of the variables that the update reads: states, and variables that depend on inputs
        alone. And the variables that are computed from them, each after its parents; the last is
        the state variable's next value.
    """
    from_inputs = {k for k in algorithm.of_the_inputs if not k.startswith(NEXT)}
    # The next value of a state is always computed, also if it depends on inputs alone.
    starts = from_inputs.union(algorithm.state)
    steps = [v for v in algorithm.list_dependencies((state,)) if v.key not in starts]
    read: set[str] = set()
    for step in steps:
        read.update(step.parents)
    start_keys = tuple(v.key for v in algorithm.variables if v.key in read & starts)
    return start_keys, steps


@checked
def window(algorithm: Algorithm, rounds: float = 10, key: str = "") -> Algorithm:
    """Return a variant of an algorithm with a state that depends on the last ``rounds`` rounds only.

    The variant carries the inputs of these rounds, and computes the state from them anew in each
    round. Each state variable of the algorithm must begin at zero. Its update must be an addition
    to it, and read no other state variable.

    Args:
        algorithm: the algorithm to vary.
        rounds: number of rounds in the window. With 2.5, the last two rounds count fully, and half
            of the update from the round before them is made.
        key: key of the variant; by default that of the algorithm with a suffix.
    """
    _check_rounds("window", rounds)
    n_slots = math.ceil(rounds)
    share_of_oldest = rounds - n_slots + 1  # .5 for 2.5 rounds; 1 for a whole number
    input_keys = _list_inputs_read(algorithm)

    def relearn(state: str, v: Values) -> _Array:
        """Compute a state variable from the last ``rounds`` rounds alone: start from zero, and make
        the update of each of them, the oldest first. For 2.5 rounds, half of the update of the
        oldest of three rounds is made.

        Args:
            state: key of the state variable.
            v: values of the round's variables, by key: the inputs of the last rounds, and the
                index of the round.

        Returns:
            The values of the state variable, ``[..., *elements]``.
        """
        # The state before the first round: a zero without axes, which is broadcast to the inputs'.
        # It is an integer, so that states that count stay integers.
        learned: _Array = np.zeros((), np.int64)
        for slot in range(n_slots):  # the oldest round first
            recent = {k: v[f"recent_{k}"][..., slot] for k in input_keys}
            inputs = _round_class_numbers(algorithm, v, recent)
            # In the first rounds, the older slots have no round yet: nothing is learned from them.
            fraction: _Array = v[_CLOCK] >= n_slots - slot
            if slot == 0 and n_slots != rounds:
                fraction = fraction * share_of_oldest
            after = algorithm.advance({state: learned}, inputs, keys=(state,))
            learned = _apply_fraction(learned, after[state], fraction)
        return learned

    parents = (*(f"recent_{k}" for k in input_keys), _CLOCK)
    # States become variables of the round, which are computed from the window. They are not
    # carried, so that their next values are left out.
    next_states = {NEXT + k for k in algorithm.state}
    variables = []
    for variable in algorithm.variables:
        if variable.role == "state":
            equation = partial(relearn, variable.key)
            variable = replace(variable, role="round", parents=parents, equation=equation)
        if variable.key not in next_states:
            variables.append(variable)
    with_queue = _carry_clock_and_inputs(
        algorithm, queue="recent", length=n_slots, variables=tuple(variables)
    )
    return _replace_updates(
        with_queue,
        key=key or f"{algorithm.key}_window",
        name=f"{algorithm.name} of the last rounds",
        parameters={"window": rounds},
        updates={},  # the state is computed within a round, and not carried
    )


_PARAMETER_OF_LAPSE: Mapping[Callable[..., Algorithm], str] = {
    late: "lag",
    stopped: "last",
    fading: "decay",
    window: "window",
}
"""Lapse -> name of its parameter."""


def add_lapse(
    lapse: Callable[..., Algorithm], base: Callable[..., Algorithm], key: str = ""
) -> Callable[..., Algorithm]:
    """Return a function that makes a variant of an algorithm with a lapse, a way in which learning
    fails. The returned function takes the parameters of the algorithm and, by name, the parameter
    of the lapse: ``lag`` for :func:`late`, ``last`` for :func:`stopped`, ``decay`` for
    :func:`fading`, or ``window`` for :func:`window` (the number of rounds in the window).

    Args:
        lapse: the lapse, a function of this module: :func:`late`, :func:`stopped`, :func:`fading`
            or :func:`window`.
        base: function that makes the algorithm from its parameters.
        key: key of the variant; by default that of the algorithm with a suffix.

    >>> from interp.tasks.experts.algorithms import weighted_majority
    >>> dict(add_lapse(stopped, weighted_majority)(gain=0.5, last=4).parameters)
    {'gain': 0.5, 'last': 4}
    """
    name = _PARAMETER_OF_LAPSE[lapse]

    def make(*arguments: Any, **parameters: Any) -> Algorithm:
        """Return the variant: the base algorithm with the lapse."""
        lapse_arguments = [parameters.pop(name)] if name in parameters else []
        return lapse(base(*arguments, **parameters), *lapse_arguments, key=key)

    return make


def _check_rounds(name: str, value: float) -> None:
    require(
        1 <= value <= 10**6,
        f"{name} must be a number of rounds >= 1, got {value}; at most 1,000,000 are kept",
    )


def _list_inputs_read(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the keys of the input variables on which the algorithm's next state depends."""
    needed = algorithm.list_dependencies(algorithm.state)
    return tuple(variable.key for variable in needed if variable.role == "input")


def _apply_fraction(before: _Array, after: _Array, fraction: _Array) -> _Array:
    """Return ``before + fraction (after - before)``, in the shape of ``after``: a state variable
    after a fraction of its update.

    Args:
        before, after: values of the state variable before and after the full update; their leading
            axes are those of ``fraction``.
        fraction: the fraction of the update that is made; or booleans, True for the full update.
    """
    # Axes of length 1, for those that only the values have, such as the axis of experts.
    further_axes = range(fraction.ndim, np.ndim(after))
    weight = np.expand_dims(fraction, tuple(further_axes))
    if fraction.dtype == bool:  # exact, and integers stay integers
        return np.where(weight, after, before)
    return before + weight * (after - before)


def _round_class_numbers(
    algorithm: Algorithm, v: Values, carried: Mapping[str, _Array]
) -> dict[str, _Array]:
    """Return carried inputs, by key, in which every class index is rounded to the nearest one that
    exists. Inputs that are no classes, such as rewards, are unchanged.

    A class index may be a fraction after an intervention on the carried state.

    Args:
        algorithm: the algorithm that reads the inputs.
        v: values of all variables of the round, by key.
        carried: inputs that were carried from earlier rounds, by key.
    """
    inputs = dict(carried)
    for key, value in carried.items():
        count_classes = algorithm.variable(key).n_classes
        if count_classes is not None:
            nearest = np.clip(np.rint(value), 0, count_classes(v) - 1)
            inputs[key] = nearest.astype(np.int64)
    return inputs


_CLOCK_VARIABLE = Variable(
    key=_CLOCK,
    symbol="t",
    meaning="the number of rounds before this one",
    units="rounds",
    role="state",
)


def _carry_clock_and_inputs(
    base: Algorithm, queue: str = "", length: int = 0, variables: tuple[Variable, ...] = ()
) -> Algorithm:
    """Return a copy of an algorithm that also carries the index of the round and, if ``queue`` is
    not empty, a queue of recent inputs.

    The queue has the values that the inputs of the update had in the last ``length`` rounds, the
    oldest first along the last axis. Before the first round all entries are zero.

    Args:
        base: the algorithm.
        queue: prefix of the keys of the queue's variables; "" for no queue.
        length: length of the queue, in rounds.
        variables: variables to use in place of the algorithm's. If there are any, the copy carries
            only the index and the queue. Empty to keep the algorithm's variables and its state.
    """
    input_keys = _list_inputs_read(base) if queue else ()
    carried = [_CLOCK_VARIABLE]
    next_values = [_make_next_variable(_CLOCK_VARIABLE, (_CLOCK,), lambda v: v[_CLOCK] + 1)]
    for key in input_keys:
        queued = _make_queue_variable(base.variable(key), queue, length)
        carried.append(queued)
        push = partial(_push_newest, queue_key=queued.key, key=key)
        next_values.append(_make_next_variable(queued, (queued.key, key), push))
    # An algorithm lists its variables in the order of computation: inputs and states come first.
    base_variables = variables or base.variables
    inputs_and_states = [v for v in base_variables if v.role != "round"]
    computed = [v for v in base_variables if v.role == "round"]

    def initial(episodes: Episodes) -> dict[str, _Array]:
        """Return the values of all state variables before the first round."""
        state = {} if variables else base.initial(episodes)
        state[_CLOCK] = np.zeros(len(episodes), np.int64)
        inputs = base.read(episodes) if input_keys else {}
        for key in input_keys:
            first = inputs[key][:, 0]  # for the shape and dtype of one round's values
            state[f"{queue}_{key}"] = np.zeros((*first.shape, length), first.dtype)
        return state

    return replace(
        base, variables=(*inputs_and_states, *carried, *computed, *next_values), initial=initial
    )


def _make_queue_variable(variable: Variable, queue: str, length: int) -> Variable:
    """Return the state variable that has the values of an input variable in the last rounds, along
    a further, last axis.

    Args:
        variable: the input variable.
        queue: prefix of the state variable's key.
        length: length of the queue, in rounds.
    """
    return replace(
        variable,
        key=f"{queue}_{variable.key}",
        symbol=f"{variable.symbol}, {queue}",
        meaning=f"{variable.meaning}, in the last {length} rounds",
        role="state",
        outputs=None,
    )


def _append_newest(v: Values, queue_key: str, key: str) -> _Array:
    """Return a queue of an input's last values with the current value as a further, last entry,
    ``[..., length + 1]``.

    Args:
        v: values of the round's variables.
        queue_key: key of the queue, ``[..., length]``.
        key: key of the input.
    """
    newest = v[key][..., None]
    return np.concatenate([v[queue_key], newest], axis=-1)


def _push_newest(v: Values, queue_key: str, key: str) -> _Array:
    """Return a queue of inputs after the round, ``[..., length]``: without its oldest entry, and
    with the round's input as its last entry.

    Args:
        v: values of the round's variables, by key.
        queue_key: key of the queue.
        key: key of the input.
    """
    return _append_newest(v, queue_key, key)[..., 1:]


def _make_next_variable(
    carried: Variable, parents: tuple[str, ...], equation: Equation
) -> Variable:
    """Return the round variable ``next_<key>``, a state variable's value after the round.

    Args:
        carried: the state variable.
        parents: keys of the variables that the equation reads.
        equation: computes the value from all variables of the round.
    """
    key = NEXT + carried.key
    return replace(carried, key=key, role="round", parents=parents, equation=equation)


def _replace_updates(
    algorithm: Algorithm,
    key: str,
    name: str,
    parameters: Mapping[str, Any],
    updates: Mapping[str, tuple[tuple[str, ...], Equation]],
) -> Algorithm:
    """Return a variant of an algorithm in which some state variables have other updates.

    Args:
        algorithm: the algorithm; it must have all variables that the new updates read.
        key, name: key and name of the variant.
        parameters: parameters of the variant by name, in addition to those of the algorithm.
        updates: key of a state variable -> (keys of the variables that its new update reads, the
            new update).
    """
    # A round may write a part of the next state into a latent, such as Q-learning's next_column. This
    # variable still follows from the original update, so the variant writes the next state instead.
    # A next state that is written has a new update, or no state is carried (:func:`window`).
    written = algorithm.written
    keys = [variable.key for variable in algorithm.variables]
    if written in keys and written.removeprefix(NEXT) not in updates:
        written = NEXT + algorithm.memory
    return algorithm.make_variant(
        key,
        name,
        parameters={**algorithm.parameters, **parameters},
        changes={NEXT + state: update for state, update in updates.items()},
        written=written,
    )
