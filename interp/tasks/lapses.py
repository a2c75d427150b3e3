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
def late(algorithm: Algorithm, lag: int = 1, key: str = "", name: str = "") -> Algorithm:
    """Return a variant of an algorithm that learns from each round ``lag`` rounds later.

    The variant remembers the inputs of round t, and updates its state with them in round t +
    ``lag``.

    Args:
        algorithm: the algorithm to vary.
        lag: number of rounds between a round and the update from it.
        key, name: key and name of the variant; by default those of the algorithm with a suffix.
    """
    require(lag >= 0, f"lag must be an integer >= 0, got {lag}")
    carrying = _carrying(algorithm, "waiting", lag)

    def learn_late(state: str, v: Values) -> _Array:
        due = {}
        for read in _inputs_read(algorithm):
            newest = v[read][..., None]
            waiting = np.concatenate([v[f"waiting_{read}"], newest], -1)
            due[read] = waiting[..., 0]
        learned = algorithm.advance(v, _as_inputs(algorithm, v, due), keys=(state,))
        return _mix(v[state], learned[state], v[_CLOCK] >= lag)

    return _vary(
        carrying,
        algorithm.state,
        learn_late,
        {"lag": lag},
        key=key or f"{algorithm.key}_late",
        name=name or f"{algorithm.name}, some rounds late",
    )


@checked
def stopped(algorithm: Algorithm, last: float = 10, key: str = "", name: str = "") -> Algorithm:
    """Return a variant of an algorithm that learns only from the first ``last`` rounds.

    Args:
        algorithm: the algorithm to vary.
        last: number of rounds from which the variant learns. With 2.5, it learns fully from two
            rounds and makes half of the third round's update.
        key, name: key and name of the variant; by default those of the algorithm with a suffix.
    """
    _check_rounds("last", last)
    is_whole = last == int(last)

    def count(clock: _Array) -> _Array:
        return clock < last if is_whole else np.clip(last - clock, 0, 1)

    key = key or f"{algorithm.key}_stopped"
    name = name or f"{algorithm.name} that stops learning"
    return sometimes(algorithm, count, {"last": last}, key, name)


def sometimes(
    algorithm: Algorithm,
    counts: Callable[[_Array], _Array],
    parameters: Mapping[str, Any],
    key: str,
    name: str,
) -> Algorithm:
    """Return a variant of an algorithm that learns from some rounds only, or makes only a fraction
    of an update.

    Args:
        algorithm: the algorithm to vary.
        counts: function that says how much is learned from a round. It maps an array of round
            indices to an array of the same shape: booleans, True if the round's update is made; or
            numbers, the fraction of the update that is made.
        parameters: {name: value} of the parameters that the variant has besides those of the
            algorithm; they are only recorded.
        key, name: key and name of the variant.
    """

    def learn(state: str, v: Values) -> _Array:
        update = algorithm.variable(NEXT + state).equation
        assert update is not None
        return _mix(v[state], update(v), counts(v[_CLOCK]))

    reads = {
        state: (state, _CLOCK, *algorithm.variable(NEXT + state).parents)
        for state in algorithm.state
    }
    return _vary(_carrying(algorithm), algorithm.state, learn, parameters, key, name, reads)


@checked
def fading(algorithm: Algorithm, decay: float = 0.9, key: str = "", name: str = "") -> Algorithm:
    """Return a variant of an algorithm that multiplies the state by ``decay`` before every update,
    so that old rounds count less.

    Variables that depend on inputs alone, such as which experts were right, are not affected.

    Args:
        algorithm: the algorithm to vary.
        decay: the factor, in (0, 1].
        key, name: key and name of the variant; by default those of the algorithm with a suffix.
    """
    require(0 < decay <= 1, f"decay must lie in (0, 1], got {decay}; 1 forgets nothing")
    of_the_round = {k for k in algorithm.of_the_inputs if not k.startswith(NEXT)}
    known = of_the_round.union(algorithm.state)
    paths: dict[str, list[Variable]] = {}
    reads: dict[str, tuple[str, ...]] = {}
    for state in algorithm.state:
        wanted = {NEXT + state}
        for variable in reversed(algorithm.variables):
            if variable.key in wanted and variable.key not in known:
                wanted.update(variable.parents)
        path = [variable for variable in algorithm.variables if variable.key in wanted]
        reads[state] = tuple(variable.key for variable in path if variable.key in known)
        paths[state] = [variable for variable in path if variable.key not in known]

    def learn(state: str, v: Values) -> _Array:
        values = {k: decay * v[k] if k in algorithm.state else v[k] for k in reads[state]}
        for variable in paths[state]:
            assert variable.equation is not None
            values[variable.key] = np.asarray(variable.equation(values))
        return values[NEXT + state]

    key = key or f"{algorithm.key}_fading"
    name = name or f"{algorithm.name} that forgets"
    return _vary(algorithm, algorithm.state, learn, {"decay": decay}, key, name, reads)


@checked
def window(algorithm: Algorithm, rounds: float = 10, key: str = "", name: str = "") -> Algorithm:
    """Return a variant of an algorithm with a state that depends on the last ``rounds`` rounds only.

    The variant carries the inputs of these rounds, and computes the state from them anew in each
    round. The algorithm's state must begin at zero, and its update must be an addition to the
    state.

    Args:
        algorithm: the algorithm to vary.
        rounds: number of rounds in the window. With 2.5, the last two rounds count fully, and half
            of the update from the round before them is made.
        key, name: key and name of the variant; by default those of the algorithm with a suffix.
    """
    _check_rounds("window", rounds)
    n_slots = math.ceil(rounds)
    read = _inputs_read(algorithm)

    def relearn(state: str, v: Values) -> _Array:
        learned: _Array = np.zeros((), np.int64)
        for slot in range(n_slots):
            recent = {k: v[f"recent_{k}"][..., slot] for k in read}
            inputs = _as_inputs(algorithm, v, recent)
            counts: _Array = v[_CLOCK] >= n_slots - slot
            if slot == 0 and n_slots != rounds:
                counts = counts * (rounds - n_slots + 1)
            after = algorithm.advance({state: learned}, inputs, keys=(state,))
            learned = _mix(learned, after[state], counts)
        return learned

    parents = (*(f"recent_{k}" for k in read), _CLOCK)
    gone = {NEXT + k for k in algorithm.state}
    variables = []
    for variable in algorithm.variables:
        if variable.role == "state":
            equation = partial(relearn, variable.key)
            variable = replace(variable, role="round", parents=parents, equation=equation)
        if variable.key not in gone:
            variables.append(variable)
    carrying = _carrying(algorithm, "recent", n_slots, tuple(variables))
    key = key or f"{algorithm.key}_window"
    name = name or f"{algorithm.name} of the last rounds"
    return _vary(carrying, (), relearn, {"window": rounds}, key, name)


_PARAMETERS: Mapping[Callable[..., Algorithm], str] = {
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
    name = _PARAMETERS[lapse]

    def make(*arguments: Any, **parameters: Any) -> Algorithm:
        lapse_arguments = [parameters.pop(name)] if name in parameters else []
        return lapse(base(*arguments, **parameters), *lapse_arguments, key=key)

    return make


def _check_rounds(name: str, value: float) -> None:
    require(
        1 <= value <= 10**6,
        f"{name} must be a number of rounds >= 1, got {value}; at most 1,000,000 are kept",
    )


def _inputs_read(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the keys of the input variables on which the algorithm's next state depends."""
    needed = algorithm.list_dependencies(algorithm.state)
    return tuple(variable.key for variable in needed if variable.role == "input")


def _mix(before: _Array, after: _Array, counts: _Array) -> _Array:
    """Return a state variable, in the shape of ``after``, after an update that is made in full, in
    part or not at all.

    Args:
        before, after: values of the state variable before and after the full update; their leading
            axes are those of ``counts``.
        counts: the fraction of the update that is made, or booleans, True for the full update.
    """
    inner = (1,) * (np.ndim(after) - counts.ndim)
    weight = counts.reshape(counts.shape + inner)
    if counts.dtype == bool:
        return np.where(weight, after, before)
    return before + weight * (after - before)


def _as_inputs(algorithm: Algorithm, v: Values, carried: Mapping[str, _Array]) -> dict[str, _Array]:
    """Return inputs that were carried from earlier rounds, with class numbers rounded to the
    nearest class.

    Class numbers may be fractional after an intervention on the carried state.

    Args:
        algorithm: the algorithm that reads the inputs.
        v: values of all variables of the round.
        carried: the carried inputs, by key.
    """
    inputs = dict(carried)
    for key, value in carried.items():
        count = algorithm.variable(key).n_classes
        if count is not None:
            nearest = np.clip(np.rint(value), 0, count(v) - 1)
            inputs[key] = nearest.astype(np.int64)
    return inputs


_TIME = Variable(_CLOCK, "t", "the number of rounds before this one", "rounds", "state")


def _carrying(
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
        variables: variables to use in place of the algorithm's; the algorithm's state is then not
            carried. Empty to keep the algorithm's variables.
    """
    read = _inputs_read(base) if queue else ()
    carried = [_TIME]
    after = [_after(_TIME, (_CLOCK,), lambda v: v[_CLOCK] + 1)]
    for key in read:
        waiting = _queue_of(base.variable(key), queue, length)
        carried.append(waiting)
        after.append(_after(waiting, (waiting.key, key), _pusher(waiting.key, key)))
    known = variables or base.variables
    before = [v for v in known if v.role != "round"]
    computed = [v for v in known if v.role == "round"]

    def initial(episodes: Episodes) -> dict[str, _Array]:
        state = {} if variables else base.initial(episodes)
        state[_CLOCK] = np.zeros(len(episodes), np.int64)
        inputs = base.read(episodes) if read else {}
        for key in read:
            first = inputs[key][:, 0]
            state[f"{queue}_{key}"] = np.zeros((*first.shape, length), first.dtype)
        return state

    return replace(base, variables=(*before, *carried, *computed, *after), initial=initial)


def _queue_of(variable: Variable, queue: str, length: int) -> Variable:
    """Return the state variable that has the last values of an input variable, with the queue as a
    further last axis.

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


def _pusher(queue: str, key: str) -> Equation:
    """Return an equation that appends the current value of the variable ``key`` to the variable
    ``queue`` and drops the queue's oldest value.
    """

    def push(values: Values) -> _Array:
        newest = values[key][..., None]
        return np.concatenate([values[queue], newest], axis=-1)[..., 1:]

    return push


def _after(carried: Variable, parents: tuple[str, ...], equation: Equation) -> Variable:
    """Return the round variable ``next_<key>``, a state variable's value after the round.

    Args:
        carried: the state variable.
        parents: keys of the variables that the equation reads.
        equation: computes the value from all variables of the round.
    """
    key = NEXT + carried.key
    return replace(carried, key=key, role="round", parents=parents, equation=equation)


def _vary(
    algorithm: Algorithm,
    states: tuple[str, ...],
    learn: Callable[[str, Values], _Array],
    parameters: Mapping[str, Any],
    key: str,
    name: str,
    reads: Mapping[str, tuple[str, ...]] | None = None,
) -> Algorithm:
    """Return a variant of ``algorithm`` in which some state variables have other updates.

    Args:
        algorithm: the algorithm; it must have all variables that the new updates read.
        states: keys of the state variables with new updates.
        learn: function ``(key of a state variable, values of the round)`` -> the state variable's
            value after the round.
        parameters: parameters of the variant by name, in addition to those of the algorithm.
        key, name: key and name of the variant.
        reads: for each of ``states``, the keys of the variables that its update reads; when None,
            all states and inputs.
    """
    everything = tuple(v.key for v in algorithm.variables if v.role != "round")
    changes = {}
    for state in states:
        parents = everything if reads is None else reads[state]
        changes[NEXT + state] = (parents, partial(learn, state))
    written = algorithm.written
    is_variable = any(v.key == written for v in algorithm.variables)
    if is_variable and written.removeprefix(NEXT) not in states:
        written = NEXT + algorithm.memory  # a part of what the round would have written
    all_parameters = {**algorithm.parameters, **parameters}
    return algorithm.make_variant(key, name, all_parameters, changes, written=written)
