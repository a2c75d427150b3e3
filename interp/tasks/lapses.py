"""Lapses of any algorithm: it learns late, stops learning, forgets, or learns from the last rounds alone.

    >>> from interp.tasks.experts.algorithms import weighted_majority
    >>> made = late(weighted_majority(0.5), 2)
    >>> made.key, made.name, dict(made.parameters)
    ('weighted_majority_late', 'Weighted Majority, some rounds late', {'gain': 0.5, 'lag': 2})

The update of the algorithm stays as it is; the lapse says of which round it is the update, and how much of it counts.
Every lapsed algorithm is its base exactly where the lapse is none: no lag, an end or a window after the last round.
Variables keep their keys and are about the round of now, but for the state after it.
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
    """``algorithm`` that learns from a round ``lag`` rounds after it, by the state that it then has."""
    require(lag >= 0, f"lag must be an integer >= 0, got {lag}")

    def after(state: str, v: Values) -> _Array:
        due = {
            k: np.concatenate([v[f"waiting_{k}"], np.asarray(v[k])[..., None]], -1)[..., 0]
            for k in _read(algorithm)
        }
        return _mixed(
            v[state],
            algorithm.advance(v, _heard(algorithm, v, due), keys=(state,))[state],
            v[_CLOCK] >= lag,
        )

    made = key or f"{algorithm.key}_late", name or f"{algorithm.name}, some rounds late"
    return _updated(
        _carrying(algorithm, "waiting", lag), algorithm.state, after, {"lag": lag}, *made
    )


@checked
def stopped(algorithm: Algorithm, last: float = 10, key: str = "", name: str = "") -> Algorithm:
    """``algorithm`` that learns from the first ``last`` rounds alone; of a fraction of one, that fraction counts."""
    _check_rounds("last", last)
    made = key or f"{algorithm.key}_stopped", name or f"{algorithm.name} that stops learning"
    if last == int(last):
        return sometimes(algorithm, lambda clock: clock < last, {"last": last}, *made)
    return sometimes(algorithm, lambda clock: np.clip(last - clock, 0, 1), {"last": last}, *made)


def sometimes(
    algorithm: Algorithm,
    counts: Callable[[_Array], _Array],
    parameters: Mapping[str, Any],
    key: str,
    name: str,
) -> Algorithm:
    """``algorithm`` that learns in some rounds: ``counts`` takes the number of rounds before one to whether it does."""

    def after(state: str, v: Values) -> _Array:
        update = algorithm.variable(NEXT + state).equation
        assert update is not None
        return _mixed(v[state], np.asarray(update(v)), counts(v[_CLOCK]))

    reads = {k: (k, _CLOCK, *algorithm.variable(NEXT + k).parents) for k in algorithm.state}
    return _updated(_carrying(algorithm), algorithm.state, after, parameters, key, name, reads)


@checked
def fading(algorithm: Algorithm, decay: float = 0.9, key: str = "", name: str = "") -> Algorithm:
    """``algorithm`` whose state is multiplied by ``decay`` before every update.

    The update reads the variables that depend on inputs alone as the round has them, such as which experts were right.
    """
    require(0 < decay <= 1, f"decay must lie in (0, 1], got {decay}; 1 forgets nothing")
    kept = {k for k in algorithm.of_the_inputs if not k.startswith(NEXT)} | set(algorithm.state)
    path: dict[str, list[Variable]] = {}
    for state in algorithm.state:
        wanted = {NEXT + state}
        for variable in reversed(algorithm.variables):
            if variable.key in wanted - kept:
                wanted |= set(variable.parents)
        path[state] = [variable for variable in algorithm.variables if variable.key in wanted]
    reads = {
        state: tuple(v.key for v in several if v.key in kept) for state, several in path.items()
    }

    def after(state: str, v: Values) -> _Array:
        values = {k: decay * v[k] if k in algorithm.state else v[k] for k in reads[state]}
        for variable in path[state]:
            if variable.key not in kept:
                assert variable.equation is not None
                values[variable.key] = np.asarray(variable.equation(values))
        return values[NEXT + state]

    made = key or f"{algorithm.key}_fading", name or f"{algorithm.name} that forgets"
    return _updated(algorithm, algorithm.state, after, {"decay": decay}, *made, reads)


@checked
def window(algorithm: Algorithm, rounds: float = 10, key: str = "", name: str = "") -> Algorithm:
    """``algorithm`` of the last ``rounds`` rounds; of a fraction of a round, that fraction counts.

    It carries the inputs of these rounds and makes its state of them anew: a state that is zero before the first round,
    and that every round adds to.
    """
    _check_rounds("window", rounds)
    kept, read = math.ceil(rounds), _read(algorithm)

    def held(state: str, v: Values) -> _Array:
        found: _Array = np.zeros((), np.int64)
        for slot in range(kept):
            heard = _heard(algorithm, v, {k: v[f"recent_{k}"][..., slot] for k in read})
            counts: _Array = v[_CLOCK] >= kept - slot
            if slot == 0 and kept != rounds:
                counts = counts * (rounds - kept + 1)
            found = _mixed(
                found, algorithm.advance({state: found}, heard, keys=(state,))[state], counts
            )
        return found

    parents = (*(f"recent_{k}" for k in read), _CLOCK)
    gone = {NEXT + k for k in algorithm.state}
    variables = tuple(
        replace(v, role="round", parents=parents, equation=partial(held, v.key))
        if v.role == "state"
        else v
        for v in algorithm.variables
        if v.key not in gone
    )
    made = key or f"{algorithm.key}_window", name or f"{algorithm.name} of the last rounds"
    return _updated(
        _carrying(algorithm, "recent", kept, variables), (), held, {"window": rounds}, *made
    )


def lapsed(
    lapse: Callable[..., Algorithm], base: Callable[..., Algorithm], key: str = ""
) -> Callable[..., Algorithm]:
    """What makes ``base`` with a lapse: of the parameters of ``base``, and of the lapse's own by its name.

    >>> from interp.tasks.experts.algorithms import weighted_majority
    >>> dict(lapsed(stopped, weighted_majority)(gain=0.5, last=4).parameters)
    {'gain': 0.5, 'last': 4}
    """
    name = {late: "lag", stopped: "last", fading: "decay", window: "window"}[lapse]

    def make(*given: Any, **parameters: Any) -> Algorithm:
        own = [parameters.pop(name)] if name in parameters else []
        return lapse(base(*given, **parameters), *own, key=key)

    return make


def _check_rounds(name: str, value: float) -> None:
    require(
        1 <= value <= 10**6,
        f"{name} must be a number of rounds >= 1, got {value}; at most 1,000,000 are kept",
    )


def _read(algorithm: Algorithm) -> tuple[str, ...]:
    """The inputs that the update reads."""
    return tuple(v.key for v in algorithm.needed(algorithm.state) if v.role == "input")


def _mixed(before: _Array, after: _Array, counts: _Array) -> _Array:
    """``after`` where a round counts, ``before`` where not, and as far between them as a fraction of it counts."""
    counts = counts.reshape(counts.shape + (1,) * (np.ndim(after) - counts.ndim))
    return (
        np.where(counts, after, before)
        if counts.dtype == bool
        else before + counts * (after - before)
    )


def _heard(algorithm: Algorithm, v: Values, inputs: Mapping[str, _Array]) -> dict[str, _Array]:
    """Inputs that were carried: classes are the nearest ones, where another state was put into a machine."""
    heard = dict(inputs)
    for key, value in inputs.items():
        if (n_classes := algorithm.variable(key).n_classes) is not None:
            heard[key] = np.clip(np.rint(value), 0, n_classes(v) - 1).astype(np.int64)
    return heard


def _carrying(
    base: Algorithm, queue: str = "", length: int = 0, variables: tuple[Variable, ...] = ()
) -> Algorithm:
    """``base``, or ``variables`` in the place of its own, with a clock and a queue of what the update reads.

    The clock is the number of rounds before this one; the queue holds the inputs of the last ``length`` rounds, the
    oldest first along the last axis, and zeros before the first round.
    """
    clock, read = (
        Variable(_CLOCK, "t", "the number of rounds before this one", "rounds", "state"),
        _read(base),
    )
    carried, following = [clock], [_after(clock, (_CLOCK,), lambda v: v[_CLOCK] + 1)]
    for of in map(base.variable, read if queue else ()):
        key, what = f"{queue}_{of.key}", f"{of.meaning}, in the last {length} rounds"
        carried.append(
            replace(
                of,
                key=key,
                symbol=f"{of.symbol}, {queue}",
                meaning=what,
                role="state",
                outputs=None,
            )
        )
        following.append(_after(carried[-1], (key, of.key), _pusher(queue=key, key=of.key)))
    known = variables or base.variables
    at = next(i for i, v in enumerate(known) if v.role == "round")

    def initial(episodes: Episodes) -> dict[str, _Array]:
        inputs = base.read(episodes) if queue else {}
        queues = {
            f"{queue}_{k}": np.zeros((*inputs[k][:, 0].shape, length), inputs[k].dtype)
            for k in read
            if queue
        }
        kept = {} if variables else base.initial(episodes)
        return {**kept, _CLOCK: np.zeros(len(episodes), np.int64), **queues}

    return replace(
        base, variables=(*known[:at], *carried, *known[at:], *following), initial=initial
    )


def _pusher(queue: str, key: str) -> Callable[[Values], _Array]:
    """Return an equation that pushes the newest value of ``key`` onto ``queue`` and drops the oldest."""

    def push(values: Values) -> _Array:
        newest = np.asarray(values[key])[..., None]
        return np.concatenate([values[queue], newest], axis=-1)[..., 1:]

    return push


def _after(carried: Variable, parents: tuple[str, ...], equation: Equation) -> Variable:
    return replace(
        carried, key=NEXT + carried.key, role="round", parents=parents, equation=equation
    )


def _updated(
    algorithm: Algorithm,
    states: tuple[str, ...],
    after: Callable[[str, Values], _Array],
    parameters: Mapping[str, Any],
    key: str,
    name: str,
    reads: Mapping[str, tuple[str, ...]] | None = None,
) -> Algorithm:
    """``algorithm`` with another value of ``states`` after a round, and further parameters.

    ``reads`` are the parents of each of these values; the whole state and all inputs when None.
    """
    given = tuple(v.key for v in algorithm.variables if v.role != "round")
    changes = {
        NEXT + state: (given if reads is None else reads[state], partial(after, state))
        for state in states
    }
    memory, written = algorithm.memory, algorithm.written
    if (
        any(v.key == written for v in algorithm.variables)
        and written.removeprefix(NEXT) not in states
    ):
        written = NEXT + memory  # a part of what the round would have written
    return algorithm.varied(
        key, name, {**algorithm.parameters, **parameters}, changes, written=written
    )
