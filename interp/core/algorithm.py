"""An algorithm as a causal model of one round: named variables, their equations, and
counterfactuals.

    >>> import interp.tasks
    >>> from interp.tasks import experts
    >>> algorithm = interp.tasks.get("experts").algorithm("weighted_majority", gain=0.5)
    >>> values = algorithm.run(experts.sample(2, 10, 4, seed=0))
    >>> values["log_weights"].shape, values["next_log_weights"].shape, values["prediction"].shape
    ((2, 10, 4), (2, 10, 4), (2, 10))

A round computes every variable from its parents, in causal order. An *input* is read from the
episodes. A *state* variable is carried from round to round; ``next_<key>`` is its value after the
round. A *round* variable is computed within the round. ``do={key: values}`` sets a variable to
values (an intervention), and everything downstream is recomputed.

What these keys are used for, and what an algorithm is not evidence of: docs/method/causal-model.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from interp.stats.intervals import number_participants
from interp.support.checks import array_of, check_number, checked_fields, format_value, integer
from interp.support.errors import InputError, convert_errors, require, require_known, unknown_name
from interp.support.files import read_rows
from interp.support.session import compute_once

Values = Mapping[str, NDArray[Any]]
"""Arrays of variables by key, ``[..., *elements]``, all with the same leading axes."""
Equation = Callable[[Values], NDArray[Any]]
CARRIED = None
"""Stands in a table of equations for a state variable: its value is that of ``next_<key>`` in the round
before, so that it has no equation.
"""
Predicted = Literal["classes", "mean", "normal"]
"""Kind of prediction: class probabilities, or for a real number its mean, or a normal distribution
(mean and log variance).
"""
NEXT = "next_"
"""Prefix of a state variable's key that denotes its value after the round."""


@runtime_checkable
class Episodes(Protocol):
    """Protocol for a batch of episodes of any task. The class of a task's episodes has further
    attributes.
    """

    @property
    def task(self) -> str:
        """Key of the task of these episodes."""

    @property
    def n_rounds(self) -> int:
        """Number of rounds of every episode, padding rounds included."""

    @property
    def regime(self) -> str:
        """Name of the regime (the kind of environment) from which the episodes were sampled."""

    @property
    def seed(self) -> int | None:
        """Seed that the episodes were sampled with; None for recorded episodes."""

    def __len__(self) -> int: ...
    def select(self, rows: Any) -> Any:
        """Return some of the episodes as a new batch.

        Args:
            rows: a slice, indices or a mask over episodes.
        """


def with_parameters(algorithm: Algorithm) -> str:
    """Return the name of an algorithm followed by its parameters, as in "Hedge (gain 0.5)". A name
    that ends with them already is returned unchanged.
    """
    if not algorithm.parameters:
        return algorithm.name
    parameters = f" ({format_parameters(algorithm.parameters)})"
    return algorithm.name.removesuffix(parameters) + parameters


def missing_rounds(episodes: Any) -> NDArray[np.bool_] | None:
    """Return the mask of missing rounds (missed trials and padding) of some episodes, Bool[episode,
    round]; None if no round is missing.
    """
    return getattr(episodes, "missing", None)


def counted_rounds(episodes: Any) -> NDArray[np.bool_]:
    """Return the mask of rounds of some episodes that took place, Bool[episode, round]; it is False
    for missed trials and padding.
    """
    missing = missing_rounds(episodes)
    if missing is not None:
        return ~missing
    return np.ones((len(episodes), episodes.n_rounds), bool)


def describe_counted(missing: NDArray[np.bool_] | None) -> str:
    """Return a clause for reports, such as "180 of 200 rounds of 4 episodes count"; "" if no round
    is missing.

    Args:
        missing: mask of missing rounds, Bool[episode, round]; None if no round is missing.
    """
    if missing is None:
        return ""
    n_counted = (~missing).sum()
    return f"{n_counted:,} of {missing.size:,} rounds of {len(missing)} episodes count"


def refuse_missing(analysis: str, *batches: Any) -> None:
    """Raise InputError if any of the episodes has missing rounds.

    Args:
        analysis: name, for the error message, of the analysis that needs every round.
        batches: the batches of episodes.
    """
    for episodes in batches:
        missing = missing_rounds(episodes)
        if missing is not None and missing.any():
            n_missing = int(missing.sum())
            n_complete = int((~missing.any(1)).sum())
            raise InputError(
                f"{analysis} counts every round, and {n_missing} rounds of these episodes did not take place; "
                f"give it complete ones, of which there are {n_complete}: episodes.select(episodes.counted.all(1))"
            )


def participants_of(*batches: Any) -> NDArray[np.int64]:
    """Give each participant of one or more batches of episodes a number (0, 1, ...), and return the
    number of each episode's participant. A participant has the same number in all batches.

    Args:
        batches: batches of episodes. If a batch has no participants, every episode of all batches
            counts as a separate participant.

    Returns:
        Int[episode], for the episodes of all batches in order.
    """
    participants: list[Any] = [getattr(episodes, "participants", None) for episodes in batches]
    n_episodes = sum(map(len, batches))
    if any(names is None for names in participants):
        return number_participants(None, n_episodes)
    return number_participants(np.concatenate(participants), n_episodes)


@dataclass(frozen=True)
@checked_fields
class Variable:
    """A variable of an algorithm, such as the log-weights of Weighted Majority.

    Attributes:
        key: the variable's name in code, tables and on the command line.
        symbol: the mathematical symbol, for labels.
        meaning: description in words.
        units: units of its values, in words.
        role: "input" (read from the episodes), "state" (carried from round to round) or "round"
            (computed within a round).
        parents: keys of the variables that the equation reads; none for inputs and states.
        equation: function that computes this variable's values. Its argument is a dictionary with
            at least the parents: key of a variable -> its values, with any leading axes. None for
            inputs and states.
        outputs: function of the variable's values that returns a label for each of its elements,
            such as ``('e_1', 'e_2')``. When None, the symbol is the label, numbered if there are
            several elements.
        kind: "real" for real numbers, or "class" for class numbers 0, 1, ...
        n_classes: function of the values of all variables (by key) that returns the number of
            classes; None for "real".
        scored: function of the values of all variables (by key) that returns a mask of this
            variable's entries: True for those that count in a probe's score. None if all count.
        noun: name in a sentence, such as "the set of reached nodes". When empty, it is made from
            the key: "the log-weights" for ``log_weights``.
    """

    key: str
    symbol: str
    meaning: str
    units: str
    role: Literal["input", "state", "round"] = "round"
    parents: tuple[str, ...] = ()
    equation: Equation | None = None
    outputs: Callable[[NDArray[Any]], tuple[str, ...]] | None = None
    kind: Literal["real", "class"] = "real"
    n_classes: Callable[[Values], int] | None = None
    scored: Equation | None = None
    noun: str = ""

    def __post_init__(self) -> None:
        """Check that variables of the role "round", and only these, have an equation, and that those
        of the kind "class", and only these, have ``n_classes``. Fill in an empty ``noun``.
        """
        is_computed = self.role == "round"
        has_equation = self.equation is not None
        # An input or a state has no equation, and so reads no parents.
        fits = has_equation == is_computed and (is_computed or not self.parents)
        require(
            fits,
            f"variable {self.key!r}: round variables need an equation, inputs and state variables take none",
        )
        has_classes = self.n_classes is not None
        require(
            has_classes == (self.kind == "class"),
            f"variable {self.key!r}: a class variable, and no other, says how many classes there are",
        )
        words = self.key.replace("log_", "log-").replace("_", " ")
        object.__setattr__(self, "noun", self.noun or f"the {words}")

    def labels(self, values: NDArray[Any]) -> tuple[str, ...]:
        """Return a label for each element of the variable, in the order of the flattened elements.

        Args:
            values: the variable's values, ``[episode, round, *elements]``.
        """
        if self.outputs is not None:
            return self.outputs(values)
        n_elements = int(np.prod(values.shape[2:], dtype=int))
        if n_elements == 1:
            return (self.symbol,)
        return tuple(f"{self.symbol} {i}" for i in range(1, n_elements + 1))


@dataclass(frozen=True)
@checked_fields
class Algorithm:
    """A causal model of one round of a task: variables, their equations, and the prediction that
    follows.

    Attributes:
        key: name in code and on the command line.
        name: name in sentences and legends.
        task: key of the task.
        parameters: the parameters that the algorithm was made with, by name, such as a learning
            rate.
        variables: the variables in causal order.
        inputs: function of episodes that returns a dictionary: key of each input variable -> its
            values, ``[episode, round, ...]``.
        initial: function of episodes that returns a dictionary: key of each state variable -> its
            values before the first round, ``[episode, ...]``.
        distribution: function of the values of all variables of a round (key -> values) that
            returns the predicted probability of each outcome, ``[..., outcome]``. For a task that
            predicts a real number, it returns the mean, ``[..., 1]``, or mean and log variance,
            ``[..., 2]``, if the task's ``kind`` is "normal".
        memory: key of the variable that summarises earlier rounds, such as "log_weights"; empty if
            there is none. Changes by steering are in the units of this variable.
        written: key of the variable that a round's update writes into a latent, such as
            "next_log_weights"; empty if there is none.
    """

    key: str
    name: str
    task: str
    parameters: Mapping[str, Any]
    variables: tuple[Variable, ...]
    inputs: Callable[[Any], dict[str, NDArray[Any]]]
    initial: Callable[[Any], dict[str, NDArray[Any]]]
    distribution: Callable[[Values], NDArray[Any]]
    memory: str = ""
    written: str = ""
    _by_key: dict[str, Variable] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check that variables are in causal order, and that every state variable has a ``next_``
        variable.
        """
        known: dict[str, Variable] = {}
        for variable in self.variables:
            require(
                variable.key not in known, f"{self.key!r} has two variables called {variable.key!r}"
            )
            for parent in variable.parents:
                require(
                    parent in known,
                    f"{self.key}.{variable.key} reads {parent!r}, which does not come before it; known so far: "
                    f"{', '.join(known) or 'none'}",
                )
            known[variable.key] = variable
        require(known, f"{self.key!r} has no variables; give at least one")
        for key in self.state:
            after = NEXT + key
            require(
                after in known,
                f"state variable {key!r} of {self.key!r} needs a round variable {after!r}",
            )
        object.__setattr__(self, "_by_key", known)
        for name in (self.memory, self.written):
            if name:
                self.variable(name)  # refuses a key that no variable has

    def __repr__(self) -> str:
        return f"{with_parameters(self)}, an algorithm of {self.task}"

    # The table of variables.

    @cached_property
    def state(self) -> tuple[str, ...]:
        """Keys of the state variables, which are carried from round to round."""
        return tuple(v.key for v in self.variables if v.role == "state")

    @cached_property
    def _inputs(self) -> tuple[str, ...]:
        """Keys of the input variables, which are read from the episodes."""
        return tuple(v.key for v in self.variables if v.role == "input")

    @cached_property
    def of_the_state(self) -> tuple[str, ...]:
        """Keys of all variables that have a value before and a value after each round.

        These are the state variables, all variables that are computed from them alone, and every
        variable ``X`` for which the algorithm has a variable ``next_X``.
        """
        determined: set[str] = set()
        for variable in self.variables:
            is_computed = bool(variable.parents) and set(variable.parents) <= determined
            is_after = variable.key.startswith(NEXT)
            if variable.role == "state" or (is_computed and not is_after):
                determined.add(variable.key)
        # A variable X for which the algorithm computes next_X has a value before and after, too.
        for variable in self.variables:
            if variable.role == "round" and NEXT + variable.key in self._by_key:
                determined.add(variable.key)
        return tuple(key for key in self._by_key if key in determined)

    @cached_property
    def of_the_inputs(self) -> tuple[str, ...]:
        """Keys of the input variables and of all variables that are computed from them alone."""
        determined: list[str] = []
        for variable in self.variables:
            is_computed = bool(variable.parents) and set(variable.parents) <= set(determined)
            if variable.role == "input" or is_computed:
                determined.append(variable.key)
        return tuple(determined)

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that :meth:`run` returns, including those that begin with ``next_``."""
        after = [NEXT + key for key in self.of_the_state]
        return tuple(dict.fromkeys([*self._by_key, *after]))

    def variable(self, key: str) -> Variable:
        """Return the variable called ``key``.

        For a key ``next_<name>``, which denotes the value after a round, return the variable
        ``<name>`` unless a variable is called ``next_<name>``.
        """
        if key in self._by_key:
            return self._by_key[key]
        before = key.removeprefix(NEXT)
        if key.startswith(NEXT) and before in self.of_the_state:
            return self._by_key[before]
        raise unknown_name(f"variable of {self.key!r}", key, self.keys, limit=40)

    # Running it.

    def step(
        self, state: Values, inputs: Values, do: Values | None = None
    ) -> tuple[dict[str, NDArray[Any]], Values]:
        """Compute all variables of one round.

        Args:
            state: key of each state variable -> its values before the round, ``[..., *shape]`` with
                any leading axes. If the state before every round is known, all rounds can be
                computed in one call.
            inputs: key of each input variable -> its values, with the same leading axes.
            do: key of a variable -> values to which it is set instead of being computed (an
                intervention); None for no intervention.

        Returns:
            Two dictionaries: key of each state variable -> its values after the round, and key of
            every variable -> its values.
        """
        do = {} if do is None else do
        for key in do:
            self.variable(key)  # refuses a key that no variable has
        state = self._check_values("the state", state, self.state)
        inputs = self._check_values("inputs", inputs, self._inputs)
        values = _compute(self.variables, state, inputs, do)
        after = {key: values[NEXT + key] for key in self.state}
        # Variables that are computed from the state alone have a value after the round, too: that
        # of their equation in the new state.
        later = dict(after)  # key without "next_" -> the value before the next round
        for key in self.of_the_state:
            next_key = NEXT + key
            if next_key not in values:
                equation = self._by_key[key].equation
                assert equation is not None
                next_value = do[next_key] if next_key in do else equation(later)
                values[next_key] = np.asarray(next_value)
            later[key] = values[next_key]
        return after, values

    def run(self, episodes: Episodes, do: Values | None = None) -> Values:
        """Compute every variable in every round of some episodes.

        A missing round leaves the state unchanged; the values of other variables in such a round
        have no meaning.

        Args:
            episodes: the episodes.
            do: key of a variable -> values ``[episode, round, ...]`` to which it is set (an
                intervention); None for no intervention.

        Returns:
            A dictionary: key of every variable -> its values, ``[episode, round, ...]``. The value
            of a state variable before the round is stored under its key, such as "log_weights", and
            its value after the round under "next_log_weights".
        """
        if do is None:
            return compute_once(
                "values", self, episodes, make=partial(self._compute_values, episodes)
            )
        return self._compute_values(episodes, do)

    def _compute_values(self, episodes: Episodes, do: Values | None = None) -> Values:
        """Compute every variable in every round, as in :meth:`run`; the result is not cached.

        Args:
            episodes: the episodes, which have the mask of missing rounds.
            do: key of a variable -> values ``[episode, round, ...]`` to which it is set; None for
                no intervention.
        """
        state, inputs = self.compute_states_and_inputs(episodes, do)
        _, computed = self.step(state, inputs, do)
        values = dict(computed)
        missing = missing_rounds(episodes)
        if missing is not None:
            for key in self.of_the_state:
                values[NEXT + key] = keep_missing(missing, values[key], values[NEXT + key])
        return values

    def compute_states_and_inputs(
        self, episodes: Episodes, do: Values | None = None
    ) -> tuple[Values, Values]:
        """Compute the state before every round and the inputs of every round, the arguments of
        :meth:`step`.

        Args:
            episodes: the episodes.
            do: key of a variable -> values ``[episode, round, ...]`` to which it is set; None for
                no intervention.

        Returns:
            Two dictionaries: key of each state variable -> its values before every round, and key
            of each input -> its values, ``[episode, round, ...]`` each.
        """
        inputs = self.read(episodes)
        state = self.unroll(
            self.start(episodes),
            inputs,
            n_episodes=len(episodes),
            n_rounds=episodes.n_rounds,
            do=do,
            missing=missing_rounds(episodes),
        )
        return state, inputs

    def unroll(
        self,
        state: Values,
        inputs: Values,
        n_episodes: int,
        n_rounds: int,
        do: Values | None = None,
        missing: NDArray[Any] | None = None,
    ) -> Values:
        """Compute the state before every round by running the rounds one after another.

        Args:
            state: the state before the first round, as returned by :meth:`start`.
            inputs: the inputs of every round, as returned by :meth:`read`.
            n_episodes: number of episodes: the first axis of state and inputs.
            n_rounds: number of rounds: the second axis of the inputs.
            do: key of a variable -> values ``[episode, round, ...]`` to which it is set; None for
                no intervention.
            missing: mask of missing rounds, which leave the state unchanged, Bool[episode, round];
                None if no round is missing.

        Returns:
            Key of each state variable -> its values before every round, ``[episode, round, ...]``.
        """
        sizes = (integer("n_episodes", n_episodes, 1), integer("n_rounds", n_rounds, 1))
        do = {} if do is None else do
        state_keys = self.state
        state = self._check_values("the state", state, state_keys, sizes[:1])
        inputs = self._check_values("inputs", inputs, self._inputs, sizes)
        for key, value in do.items():
            self.variable(key)
            shape = np.shape(value)[:2]
            require(
                shape == sizes,
                f"do[{key!r}] must be [episode, round, ...] = {sizes}, got shape {shape}",
            )
        if not state_keys:
            return {}
        states_before: dict[str, list[NDArray[Any]]] = {key: [] for key in state_keys}
        for t in range(n_rounds):
            for key in state_keys:
                states_before[key].append(state[key])
            inputs_now = {key: array[:, t] for key, array in inputs.items()}  # [episode, ...]
            do_now = {key: np.asarray(array)[:, t] for key, array in do.items()}
            after = self.advance(state, inputs_now, do_now)
            for key in state_keys:
                shape, shape_after = np.shape(state[key]), np.shape(after[key])
                require(
                    shape == shape_after,
                    f"{key!r} of {self.key!r} grows from {shape} to {shape_after}",
                )
                if missing is not None:
                    after[key] = keep_missing(missing[:, t], state[key], after[key])
            state = after
        return {key: np.stack(states, 1) for key, states in states_before.items()}

    def start(self, episodes: Episodes) -> dict[str, NDArray[Any]]:
        """Return a dictionary: key of each state variable -> its values before the first round,
        ``[episode, ...]``. Refuse episodes of another task.
        """
        self._refuse_others(episodes)
        return self._check_values("initial", self.initial(episodes), self.state, (len(episodes),))

    def read(self, episodes: Episodes) -> dict[str, NDArray[Any]]:
        """Return a dictionary: key of each input variable -> its values in every round,
        ``[episode, round, ...]``. Refuse episodes of another task.
        """
        self._refuse_others(episodes)
        return self._check_values(
            "inputs", self.inputs(episodes), self._inputs, (len(episodes), episodes.n_rounds)
        )

    def _refuse_others(self, episodes: Episodes) -> None:
        """Raise InputError if the episodes are of another task."""
        require(
            getattr(episodes, "task", None) == self.task,
            f"{self.name} runs on {self.task} episodes, got {type(episodes).__name__}",
        )

    def _check_values(
        self, what: str, values: Any, keys: Sequence[str], begin: tuple[int, ...] = ()
    ) -> dict[str, NDArray[Any]]:
        """Check that one of the algorithm's functions returned a mapping of the right keys to
        arrays of the right shapes.

        Args:
            what: name of the function for the error message.
            values: what the function returned.
            keys: the keys that the mapping must have.
            begin: sizes of the leading axes that every array must have, such as (n_episodes,).

        Returns:
            A copy of the mapping, in which the values under ``keys`` are NumPy arrays.
        """

        names = ", ".join(keys) or "nothing"

        def make_error(how: str) -> InputError:
            """Return an error about the mapping; ``how`` is the end of its message."""
            return InputError(f"{what} of {self.key!r} must be a mapping of {names} to arrays{how}")

        if not isinstance(values, Mapping):
            raise make_error(f", got {format_value(values)}")
        if not values.keys() >= set(keys):
            missing = [repr(key) for key in keys if key not in values]
            raise make_error(f"; it lacks {', '.join(missing)}")
        arrays = {key: array_of(f"{key!r} of {what}", values[key]) for key in keys}
        for key, array in arrays.items():
            if array.shape[: len(begin)] != begin:
                raise make_error(f" that begin with {begin}; {key!r} is {format_value(array)}")
        return {**values, **arrays}

    def select_step_arguments(
        self, values: Values, rounds: Sequence[int] | slice
    ) -> tuple[dict[str, NDArray[Any]], ...]:
        """Return the state before some rounds and the inputs of these rounds, as arguments for
        :meth:`step`.

        Args:
            values: values returned by :meth:`run`.
            rounds: indices of the rounds, or a slice.

        Returns:
            Two dictionaries: key of each state variable -> its values before these rounds, and key
            of each input -> its values, ``[episode, selected round, ...]`` each.
        """
        self._require_run("values", values, [*self.state, *self._inputs])
        state = {key: values[key][:, rounds] for key in self.state}
        return state, {key: values[key][:, rounds] for key in self._inputs}

    def _require_run(self, what: str, values: Values, keys: Sequence[str]) -> None:
        """Raise InputError if ``values`` lack a variable, so that :meth:`run` did not return them.

        Args:
            what: name of the values in the error message.
            values: key of each variable -> its values.
            keys: keys of the variables that are needed.
        """
        missing = [key for key in keys if key not in values]
        require(
            not missing,
            f"{what} must be values of a run of {self.key!r}; they lack {', '.join(missing)}",
        )

    def interchange(
        self, base: Values, source: Values, key: str, element: int | tuple[int, ...] | None = None
    ) -> Values:
        """Recompute the rounds of ``base`` with one variable set to its value in ``source``.

        Args:
            base: values that :meth:`run` returned for the base episodes.
            source: values that :meth:`run` returned for the source episodes, in the same shapes.
            key: key of the variable that is set.
            element: index of the only element of the variable that is set, such as 0 for the first
                expert's log-weight; None to set all elements.

        Returns:
            Key of every variable -> its values in the base episodes after this intervention. In
            each round, the state before the round is that of ``base``.
        """
        self.variable(key)
        self._require_run("base", base, [key, *self._inputs, *self.state])
        self._require_run("source", source, [key])
        value = source[key]
        if element is not None:
            value = base[key].copy()
            index = (element,) if isinstance(element, int) else element
            # The value of one episode and round; only its shape is used, to test the index.
            one_value = np.empty(value.shape[2:])
            with convert_errors(
                f"{key!r} of shape {value.shape} has no element {element}: {{error}}", of=IndexError
            ):
                n_left = one_value[index].ndim
            require(
                n_left == 0,
                f"{key!r} has {n_left} more axes than the element {element}; name one number of it",
            )
            index_in_values: tuple[Any, ...] = (Ellipsis, *index)  # after episode and round
            value[index_in_values] = source[key][index_in_values]
        # The values of a run have the state before each round and its inputs.
        _, values_after = self.step(state=base, inputs=base, do={key: value})
        return values_after

    def make_variant(
        self,
        key: str,
        name: str,
        parameters: Mapping[str, Any],
        changes: Mapping[str, tuple[tuple[str, ...], Equation]],
        **others: Any,
    ) -> Algorithm:
        """Return a variant of this algorithm in which some variables are computed by new equations
        from new parents.

        Args:
            key, name, parameters: key, name and parameters of the variant.
            changes: key of a changed variable -> (its new parents, its new equation), such as
                ``{"prediction": (("votes",), lambda values: values["votes"].mean(-1))}``.
            others: further fields of the variant. If ``variables`` is among them, the changes apply
                to these variables instead of the algorithm's.
        """
        variables = others.pop("variables", self.variables)
        for changed in changes:
            keys = [variable.key for variable in variables]
            require_known(f"variable of {self.key!r}", changed, keys, limit=40)
        new_variables = []
        for variable in variables:
            if variable.key in changes:
                parents, equation = changes[variable.key]
                variable = replace(variable, parents=parents, equation=equation)
            new_variables.append(variable)
        return replace(
            self,
            key=key,
            name=name,
            parameters=dict(parameters),
            variables=tuple(new_variables),
            **others,
        )

    def downstream(self, keys: Iterable[str]) -> set[str]:
        """Return ``keys`` together with the keys of all variables that depend on these variables
        within a round.
        """
        reached = set(keys)
        for variable in self.variables:  # in causal order: after all variables that it reads
            if reached & set(variable.parents):
                reached.add(variable.key)
        return reached

    def list_dependencies(self, keys: Sequence[str]) -> tuple[Variable, ...]:
        """Return the variables that one round must compute to update some state variables.

        Args:
            keys: keys of the state variables.

        Returns:
            The variables in causal order: each comes after its parents.
        """
        needed = {NEXT + key for key in keys}
        # Backwards, so that a variable is reached after all variables that read it.
        for variable in reversed(self.variables):
            if variable.key in needed:
                needed |= set(variable.parents)
        return tuple(v for v in self.variables if v.key in needed)

    @cached_property
    def _variables_of_next_state(self) -> tuple[Variable, ...]:
        """The variables that a round must compute to update the whole state, in causal order."""
        return self.list_dependencies(self.state)

    def advance(
        self,
        state: Values,
        inputs: Values,
        do: Values | None = None,
        keys: Sequence[str] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Compute the state after one round, and only the variables on which this state depends.

        Args:
            state: key of each state variable -> its values before the round.
            inputs: key of each input variable -> its values.
            do: key of a variable -> values to which it is set; None for no intervention.
            keys: keys of the state variables to compute; None for all.

        Returns:
            Key of each of these state variables -> its values after the round.
        """
        if keys is None:
            keys, variables = self.state, self._variables_of_next_state
        else:
            variables = self.list_dependencies(keys)
        values = _compute(variables, state, inputs, do or {})
        return {key: values[NEXT + key] for key in keys}


def keep_missing(missing: NDArray[Any], before: NDArray[Any], after: NDArray[Any]) -> NDArray[Any]:
    """Return the values of a state variable after a round: ``before`` in episodes in which the
    round is missing, otherwise ``after``.

    Args:
        missing: True for missing rounds, ``[...]``.
        before: values before the round, ``[..., *shape]``.
        after: values after the update of the round, ``[..., *shape]``.
    """
    n_inner = np.ndim(before) - missing.ndim  # axes of the variable itself, which the mask lacks
    inner_axes = tuple(range(-n_inner, 0))
    return np.where(np.expand_dims(missing, inner_axes), before, after)


def _compute(
    variables: Sequence[Variable], state: Values, inputs: Values, do: Values
) -> dict[str, NDArray[Any]]:
    """Compute the values of variables, in causal order, and return them by key.

    If an equation raises, the error message lists the shapes of the equation's parents.

    Args:
        variables: the variables in causal order.
        state: the state before the round, by key.
        inputs: inputs of the round, by key.
        do: values that variables are set to, by key.
    """
    values: dict[str, NDArray[Any]] = {}
    for variable in variables:
        key = variable.key
        if key in do:
            values[key] = np.asarray(do[key])
        elif variable.role == "state":
            values[key] = state[key]
        elif variable.equation is None:
            values[key] = inputs[key]
        else:
            try:
                values[key] = np.asarray(variable.equation(values))
            except InputError:  # its message says what is wrong
                raise
            except Exception as error:
                sizes = [f"{parent} {np.shape(values[parent])}" for parent in variable.parents]
                read = ", ".join(sizes) or "nothing"
                raise InputError(
                    f"the equation of {key!r} raised {type(error).__name__}: {error}; it reads {read}"
                ) from error
    return values


@dataclass(frozen=True)
@checked_fields
class AlgorithmRecord:
    """A task's entry for an algorithm: its names, and a function that makes the algorithm with
    chosen parameters.

    Attributes:
        key: name in code and on the command line.
        name: name in sentences.
        short_name: name in legends.
        make: function that makes the :class:`Algorithm` from parameters, which all have defaults.
        parameters: function of episodes that returns the parameters with which the episodes were
            generated, such as ``{"alpha": 0.1}``; parameters that are left out have their defaults.
    """

    key: str
    name: str
    short_name: str
    make: Callable[..., Algorithm]
    parameters: Callable[[Any], Mapping[str, Any]] = lambda episodes: {}

    def for_episodes(self, episodes: Episodes, **parameters: Any) -> Algorithm:
        """Make the algorithm with the parameters that the episodes were generated with.

        Args:
            episodes: the episodes.
            parameters: parameters by name, which take precedence over those of the episodes.
        """
        return self.make(**{**self.parameters(episodes), **parameters})


@dataclass(frozen=True)
@checked_fields
class Searched:
    """A parameter of a family of algorithms, and the grid of values that a fit searches.

    Attributes:
        name: name of the parameter.
        grid: values to try, ascending; the first and the last are the bounds of the parameter.
        kind: "real" also allows values between grid points; "choice" allows grid points only.
        used_by: keys of the variables with equations that use the parameter; empty means all
            variables. For another value of the parameter, a fit recomputes only these variables and
            what depends on them. If only the prediction depends on them, the states are reused.
        unit: name of an array of the episodes, such as "rewards", if the parameter's useful range
            depends on the size of the numbers in it; empty if not. A fit to choices divides the
            values of the grid by the typical size of these numbers.
    """

    name: str
    grid: tuple[float, ...]
    kind: Literal["real", "choice"] = "real"
    used_by: tuple[str, ...] = ()
    unit: str = ""

    def __post_init__(self) -> None:
        """Refuse a grid that is empty or not ascending."""
        grid = self.grid
        is_ascending = list(grid) == sorted(set(grid))
        require(
            grid and is_ascending,
            f"the grid of {self.name!r} must be ascending numbers, got {grid}",
        )

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest value that a fit may choose: the ends of the grid."""
        return self.grid[0], self.grid[-1]

    @property
    def is_free(self) -> bool:
        """True for a real number that a fit may choose between bounds; False for a choice among
        the values of the grid, and for a grid of a single value.
        """
        return self.kind == "real" and len(self.grid) > 1


@dataclass(frozen=True)
@checked_fields
class Family:
    """Algorithms that differ only in their parameters: one hypothesis about which algorithm a model
    runs.

    Attributes:
        key: name in code and on the command line.
        name: name in sentences.
        make: function that makes an :class:`Algorithm` from parameters, which are passed by name. A
            fit reports the parameters of the algorithm that fits best.
        searched: the parameters that a fit searches; none for a single algorithm.
        memoryless: True if the algorithms carry no state. They are a baseline that every learner
            should beat.
        extends: key of a simpler family that this family contains as a special case, such as the
            same algorithms without forgetting; empty if there is none. A comparison counts the two
            as one hypothesis, and names the simpler family unless this one explains much more.
        tempered: True if one of the parameters is an inverse temperature, which sets how sharply
            choices follow the predictions. A fit to choices adds this parameter to other families.
        vectorised: True if ``make`` also takes arrays of parameters. The axes of these arrays are
            the leading axes of the variables, so a fit to choices can fit many players at once.
    """

    key: str
    name: str
    make: Callable[..., Algorithm]
    searched: tuple[Searched, ...] = ()
    memoryless: bool = False
    extends: str = ""
    tempered: bool = False
    vectorised: bool = False

    def __post_init__(self) -> None:
        """Wrap ``make`` so that it refuses values of the searched parameters that are no finite
        numbers.

        If a parameter's grid has only 0 and 1, its value must be a number from 0 to 1 or a truth
        value. Arrays are not checked if the family is vectorised.
        """
        make = self.make
        argument_names = list(inspect.signature(make).parameters)

        @wraps(make)
        def make_and_check(*args: Any, **parameters: Any) -> Algorithm:
            """Check the values of the searched parameters, then make the algorithm."""
            values = {**dict(zip(argument_names, args, strict=False)), **parameters}
            for parameter in self.searched:
                name = parameter.name
                value = values.get(name, 0)  # a default is not checked
                if self.vectorised and isinstance(value, np.ndarray):
                    continue  # of many players, which the fit has chosen
                # A grid of 0 and 1 is that of a switch, or of a share.
                if not {*parameter.grid} <= {0, 1}:
                    check_number(f"{name} of {self.key!r}", value)
                elif not isinstance(value, bool):
                    check_number(f"{name} of {self.key!r}", value, 0, 1)
            return make(*args, **parameters)

        object.__setattr__(self, "make", make_and_check)


def format_parameters(parameters: Mapping[str, Any]) -> str:
    """Format parameters as text: "learning rate 0.1, gain 0.5" for
    ``{"learning_rate": 0.1, "gain": 0.5}``.
    """
    parts = []
    for name, value in parameters.items():
        parts.append(f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}")
    return ", ".join(parts).replace("_", " ")


def number_elements(template: str) -> Callable[[NDArray[Any]], tuple[str, ...]]:
    """Return a function that maps a variable's values to numbered labels of its elements, for the
    field ``outputs`` of :class:`Variable`.

    ``template`` has one # for each axis of the elements, the last axes of the values. Every # is
    replaced by the index, counted from 1, along its axis.

    >>> number_elements("e_#")(np.zeros((1, 1, 3)))
    ('e_1', 'e_2', 'e_3')
    """
    n_axes = template.count("#")

    def make_labels(values: NDArray[Any]) -> tuple[str, ...]:
        """Return a label for each element of a variable with these values."""
        form = template.replace("#", "{}")
        element_shape = values.shape[values.ndim - n_axes :]
        labels = []
        for index in np.ndindex(element_shape):
            counts = [i + 1 for i in index]
            labels.append(form.format(*counts))
        return tuple(labels)

    return make_labels


def variable_table(
    path: Path, **classes: Callable[[Values], int]
) -> Callable[..., tuple[Variable, ...]]:
    """Read a CSV file of variables, and return a function that makes the variables of an algorithm.

    The file has one row per variable. Its columns are ``name`` (the variable's key) and the fields
    of :class:`Variable`: symbol, meaning, units, role, parents (separated by blanks), outputs (a
    template for :func:`number_elements`) and noun. A further column, ``classes``, is empty for real
    numbers; for a class variable it has a word, such as "binary". A row named ``ALGORITHM.KEY``
    replaces the row ``KEY`` for the algorithm with the key ``ALGORITHM``.

    Args:
        path: the file.
        **classes: for every word in the column ``classes``, a function of the values of all
            variables that returns the number of classes, such as ``binary=lambda values: 2``.

    Returns:
        A function ``make(algorithm, equations, scored)``, which returns a tuple of variables:

        - ``algorithm`` is the algorithm's key;
        - ``equations`` maps the key of each variable to its equation (None for inputs and states);
        - ``scored`` maps the key of a variable to its field :attr:`Variable.scored`.
    """
    rows = {row.pop("name"): row for row in read_rows(path)}

    def make(
        algorithm: str,
        equations: Mapping[str, Equation | None],
        scored: Mapping[str, Equation] | None = None,
    ) -> tuple[Variable, ...]:
        """Return the variables of one algorithm, each made from its row of the file and its
        equation.

        Args:
            algorithm: key of the algorithm. A row ``ALGORITHM.KEY`` with this key replaces the row
                ``KEY``.
            equations: key of each variable -> its equation; None for an input or a state, which has
                none.
            scored: key of a variable -> its field :attr:`Variable.scored`. A variable that is left
                out has None.
        """
        variables = []
        for key, equation in equations.items():
            # A row of its own for this algorithm, if there is one, replaces the shared row.
            fields: dict[str, Any] = {**(rows.get(f"{algorithm}.{key}") or rows[key])}
            fields["parents"] = tuple(fields["parents"].split())
            label_template = fields["outputs"]
            fields["outputs"] = number_elements(label_template) if label_template else None
            classes_word = fields.pop("classes")
            if classes_word:
                fields |= {"kind": "class", "n_classes": classes[classes_word]}
            rule = scored.get(key) if scored else None
            variables.append(Variable(key, equation=equation, scored=rule, **fields))
        return tuple(variables)

    return make


def algorithm_builder(
    task: str,
    table: Callable[..., tuple[Variable, ...]],
    read: Mapping[str, Callable[[Any], NDArray[Any]]],
    zeros: Callable[[Any, str], NDArray[Any]],
    distribution: Callable[[Values], NDArray[Any]],
) -> Callable[..., Algorithm]:
    """Return a function that builds an algorithm of a task from its equations.

    An equation is a function that computes one variable. Its argument is a dictionary, key of a
    variable -> its values, as in :attr:`Variable.equation`.

    Args:
        task: key of the task.
        table: function ``(key of an algorithm, equations)`` -> its variables, such as the function
            that :func:`variable_table` returns. It adds what the equations do not say: symbols,
            roles and parents.
        read: key of an input that all algorithms of the task have -> function that reads the
            input's values, ``[episode, round, ...]``, from episodes.
        zeros: function ``(episodes, key)`` -> the values of the state variable ``key`` before the
            first round, ``[episode, ...]``.
        distribution: function of the values of a round's variables (by key) that returns the
            predicted distribution (:attr:`Algorithm.distribution`).

    Returns:
        A function ``make(key, name, equations, memory, *, rows, more, **parameters)``, which
        returns an :class:`Algorithm`:

        - ``key`` and ``name`` are those of the algorithm;
        - ``equations`` maps the key of each variable except inputs to its equation (None for
          states);
        - ``memory`` is the key of the variable that summarises earlier rounds;
        - ``rows`` is the key of the algorithm that is passed to ``table``; None for ``key``;
        - ``more`` maps the keys of further inputs to functions that read them, like ``read``;
        - ``parameters`` are recorded in the algorithm.
    """

    def make(
        key: str,
        name: str,
        equations: Mapping[str, Equation | None],
        memory: str = "",
        *,
        rows: str | None = None,
        more: Mapping[str, Callable[[Any], NDArray[Any]]] = MappingProxyType({}),
        **parameters: Any,
    ) -> Algorithm:
        """Return an algorithm of the task; the arguments are described at
        :func:`algorithm_builder`.
        """
        inputs = {**read, **more}  # key of an input -> function that reads it from episodes
        table_key = key if rows is None else rows
        # Inputs come first, with None for an equation, since equations may read them.
        variables = table(table_key, {**dict.fromkeys(inputs), **equations})

        def read_inputs(episodes: Any) -> dict[str, NDArray[Any]]:
            """Return the inputs of every round by key, ``[episode, round, ...]``."""
            return {name: read_input(episodes) for name, read_input in inputs.items()}

        def start(episodes: Any) -> dict[str, NDArray[Any]]:
            """Return the state before the first round by key, ``[episode, ...]``."""
            states = [variable.key for variable in variables if variable.role == "state"]
            return {state: zeros(episodes, state) for state in states}

        return Algorithm(
            key=key,
            name=name,
            task=task,
            parameters=parameters,
            variables=variables,
            inputs=read_inputs,
            initial=start,
            distribution=distribution,
            memory=memory,
            written=memory and NEXT + memory,  # "" without a memory
        )

    return make
