"""Targets of probes: every variable of every algorithm of every registered task, by its key.

    >>> from probes import targets
    >>> from interp.tasks import experts
    >>> episodes = experts.sample(n_episodes=8, n_rounds=20, n_experts=3, seed=0)
    >>> after = targets.log_weights(episodes, gain=0.5)
    >>> after.values.shape, after.outputs, after.when
    ((8, 20, 3), ('e_1', 'e_2', 'e_3'), 'after')
    >>> targets.log_weights(episodes, when="before").key
    'log_weights:before'
    >>> targets.get("bayes.prediction")(episodes, low=0.1, high=0.9).outputs
    ('P(y=1)',)

docs/method/probes.md says from which activations which targets can be decoded, and what a key means
that several algorithms share.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from einops import rearrange
from jaxtyping import Float, Int
from numpy import ndarray as Array

import interp.tasks
from interp.core.algorithm import NEXT, AlgorithmRecord, Episodes, Variable, missing_rounds
from interp.core.machine import Machine
from interp.support.checks import checked, checked_fields
from interp.support.errors import InputError, require, unknown_name
from interp.support.session import compute_once, session
from interp.tasks import Task
from probes.values import TargetValues, When, check_target, fill_missing

__all__ = ["Target", "TargetValues", "every", "get", "parse"]

_STATE_MOMENTS: tuple[When, ...] = ("after", "before")
_ROUND_MOMENTS: tuple[When, ...] = ("round",)


@dataclass(frozen=True)
@checked_fields
class Target:
    """A variable of an algorithm that a probe can decode. Calling the target with episodes computes
    its values in them, as :class:`TargetValues`.

    Attributes:
        key: name of the target: the variable's key, or ``algorithm.variable``.
        task: key of its task; empty for the round index, which every task has.
        variable: symbol, meaning, units and role of the variable.
        record: the algorithm that computes it; None for the round index.
        moments: the times for which its values can be computed, the default first. They are
            ("after", "before") each round for a state that is carried from round to round, and
            ("round",) for other variables.
        of_the_inputs: True if the inputs of the round alone determine it.
    """

    key: str
    task: str
    variable: Variable = field(compare=False)
    record: AlgorithmRecord | None = field(default=None, compare=False)
    moments: tuple[When, ...] = _ROUND_MOMENTS
    of_the_inputs: bool = False

    def __call__(
        self, episodes: Episodes, when: str | None = None, **parameters: Any
    ) -> TargetValues:
        """Compute the values of a target in some episodes.

        If the episodes are of another task than :attr:`task`, its target of the same name is used.

        Args:
            episodes: the episodes.
            when: one of :attr:`moments`; the first when None.
            **parameters: parameters of the algorithm. Missing ones are those that the episodes were
                sampled with, or else the algorithm's defaults.
        """
        target = get(self.key, interp.tasks.of(episodes))
        moment = target.choose_moment(when)
        parameters_of_algorithm: Mapping[str, Any] = {}
        if target.record is not None:
            parameters_of_algorithm = inspect.signature(target.record.make).parameters
        for name in parameters:
            if name not in parameters_of_algorithm:
                kind = f"parameter of target {target.key!r}:"
                raise unknown_name(kind, name, parameters_of_algorithm)
        values, outputs, mask = _compute_values(episodes, target, moment, parameters)
        missing = missing_rounds(episodes)
        values = fill_missing(values, missing)
        key = f"{target.key}:before" if moment == "before" else target.key
        implied_by = ["inputs"] if target.of_the_inputs else []
        is_same_in_all = bool((values == values[:1]).all())
        if is_same_in_all:  # the round index determines it, and other episodes have the same values
            implied_by += ["round", "shuffled"]
        inputs, types = compute_once("round inputs", episodes, make=lambda: round_inputs(episodes))
        return TargetValues(
            key=key,
            values=values,
            outputs=outputs,
            when=moment,
            kind=target.variable.kind,
            mask=mask,
            inputs=inputs,
            types=types,
            missing=missing,
            participants=getattr(episodes, "participants", None),
            implied_by=tuple(implied_by),
            parameters=parameters,
            noun=target.variable.noun,
        )

    def choose_moment(self, when: str | None) -> When:
        """Return the moment at which the target is read: ``when``, or the default (the first of
        :attr:`moments`) if ``when`` is None. Refuse a moment that is not in :attr:`moments`.
        """
        for moment in self.moments:
            if when in (moment, None):
                return moment
        raise unknown_name(f"moment of target {self.key!r}:", when, self.moments)


_ROUND_VARIABLE = Variable(
    key="round_index",
    symbol="t",
    meaning="the number of rounds before this one",
    units="rounds",
    role="input",
)
# No task: every task has this target.
_ROUND_TARGET = Target(key=_ROUND_VARIABLE.key, task="", variable=_ROUND_VARIABLE)


@checked
def every(task: Task | str) -> tuple[Target, ...]:
    """List everything that a probe can decode in a task: the variables of its algorithms, and the
    index of the round.

    >>> [(target.key, target.variable.units) for target in every("experts")][:3]
    [('votes', 'class'), ('label', 'class'), ('log_weights', 'nats')]
    """
    task = _find_task(task)
    targets: dict[str, Target] = {}
    for record in task.algorithm_records().values():
        algorithm = record.make()
        for variable in algorithm.variables:
            key = variable.key
            state_key = key.removeprefix(NEXT)
            if state_key != key and state_key in algorithm.of_the_state:
                continue  # the next state is the state, read after the round
            known = targets.get(key)
            of_inputs = key in algorithm.of_the_inputs
            # What the inputs alone determine has the same values in all algorithms: list it once.
            if known is not None and known.of_the_inputs and of_inputs:
                continue
            moments = _STATE_MOMENTS if key in algorithm.of_the_state else _ROUND_MOMENTS
            # The first algorithm with this key has the short name.
            name = key if known is None else f"{record.key}.{key}"
            targets[name] = Target(
                key=name,
                task=task.key,
                variable=variable,
                record=record,
                moments=moments,
                of_the_inputs=of_inputs,
            )
    return (*targets.values(), _ROUND_TARGET)


def _find_task(task: Task | str) -> Task:
    """Return the task with this key; a task itself is returned unchanged."""
    return interp.tasks.get(task) if isinstance(task, str) else task


@checked
def get(key: str, task: Task | str | None = None) -> Target:
    """Return the target (variable of an algorithm) with a key.

    Args:
        key: key of a variable, such as "prediction", or "algorithm.variable", such as
            "bayes.prediction".
        task: the task or its key; with None, all tasks are searched, and the first match is
            returned.

    >>> get("prediction").variable.meaning, get("bayes.prediction").variable.meaning
    ('the weighted share of votes for 1', 'the probability that y = 1')
    """
    tasks = interp.tasks.list_tasks() if task is None else (_find_task(task),)
    known: dict[str, Target] = {}
    algorithm, _, variable = key.rpartition(".")
    for candidate in tasks:
        targets = {target.key: target for target in every(candidate)}
        if key in targets:
            return targets[key]
        # "algorithm.variable" is not listed if "variable" alone means the same values.
        record = candidate.algorithm_records().get(algorithm)
        is_of_algorithm = record is not None and variable in record.make().keys
        if is_of_algorithm and variable in targets:
            return targets[variable]
        known |= targets
        # A task without algorithms has no targets to suggest, so its error says why.
        require(
            task is None or candidate.algorithms.records(),
            f"unknown target {key!r}: targets are variables of algorithms, and task {candidate.key!r} registers none; "
            "give its record algorithms=...",
        )
    variable, bracket, _ = key.partition("[")
    require(
        not bracket or variable not in known,
        f"a target is a whole variable, got {key!r}; probe {variable!r}, and read by_output[OUTPUT] or "
        "direction(OUTPUT) of the result, where OUTPUT is one of its columns",
    )
    kind = "target" if task is None else f"target of {tasks[0].key!r}"
    raise unknown_name(kind, key, known, limit=40)


@checked
def parse(text: str, task: Task | str | None = None) -> tuple[Target, When]:
    """Return the target that a text names, and the moment at which it is decoded, as (target,
    moment). The text is a key, such as "log_weights", or ``key:before`` for a state before each
    round.

    >>> target, when = parse("log_weights:before")
    >>> target.key, when
    ('log_weights', 'before')
    """
    key, _, moment = text.partition(":")
    target = get(key, task)
    return target, target.choose_moment(moment or None)


def round_inputs(
    episodes: Episodes,
) -> tuple[tuple[Float[Array, "episode round _"], ...], Int[Array, "episode round"] | None]:
    """Return what a model reads as input in each round, in the encodings that the controls of
    probes need.

    Returns:
        The pair (features, kinds). ``features`` has one array ``[episode, round, feature]`` for
        each encoding of the inputs that the task defines. ``kinds`` is an integer for each round,
        ``[episode, round]``, which is equal for rounds with equal inputs. If the task defines no
        inputs, the pair is ((), None).
    """
    describe = interp.tasks.of(episodes).analysis.round_inputs
    if describe is None:
        return (), None
    inputs = describe(episodes)
    missing = missing_rounds(episodes)
    features = tuple(fill_missing(part, missing) for part in inputs.features)
    kinds = fill_missing(inputs.kinds, missing)
    rows = rearrange(kinds, "episode round part -> (episode round) part")
    _, numbers = np.unique(rows, axis=0, return_inverse=True)  # equal rows, equal numbers
    return features, numbers.reshape(kinds.shape[:2])


def _compute_values(
    episodes: Episodes, target: Target, moment: When, parameters: dict[str, Any]
) -> tuple[Array, tuple[str, ...], Array | None]:
    """Compute a target's values, the labels of its outputs, and which entries are scored.

    Args:
        episodes: episodes of the target's task.
        target: the target.
        moment: "before", "after" or "round".
        parameters: parameters of its algorithm.

    Returns:
        Values ``[episode, round, output]``; the labels of the outputs; and a mask of the entries
        that are scored, of the same shape, or None if all are.
    """
    variable, record = target.variable, target.record
    mask = None
    if record is None:
        rounds = np.arange(episodes.n_rounds)
        values = np.broadcast_to(rounds, (len(episodes), len(rounds)))
    else:
        name = ("algorithm", record.key, *sorted(parameters.items()))
        algorithm = compute_once(
            name, episodes, make=lambda: record.for_episodes(episodes, **parameters)
        )
        computed = algorithm.run(episodes)
        key = NEXT + variable.key if moment == "after" else variable.key
        values = computed[key]
        # The function ``scored`` of a variable computes its mask from the values of all variables.
        # If the next state has no such function of its own, the state's one is applied to the next
        # states. ``algorithm.variable`` returns the state's variable for "next_KEY", too, if the
        # algorithm has no variable of this name.
        scoring = algorithm.variable(key)
        current = algorithm.variable(variable.key)
        if moment == "after" and (scoring is current or scoring.scored is None):
            scoring = current
            # The function reads the state under the state's key, so the next state is put there.
            after = {state: computed[NEXT + state] for state in algorithm.of_the_state}
            computed = {**computed, **after}
        if scoring.scored is not None:
            mask = scoring.scored(computed)
    by_output = "episode round ... -> episode round (...)"
    flat = rearrange(values, by_output)
    if variable.kind != "class":
        flat = flat.astype(np.float64)
    if mask is not None:
        mask = rearrange(mask, by_output)
    return flat, variable.labels(values), mask


@checked
def compute(
    targets: Sequence[str] | None, episodes: Episodes, model: Machine | None = None
) -> list[TargetValues]:
    """Compute the values of several targets; each algorithm is run only once.

    Args:
        targets: keys of targets, such as "log_weights"; or ``key:before`` for a state before each
            round instead of after it. None takes all variables that vary in these episodes, and
            states both before and after each round. If several algorithms have a variable, the
            first one computes it.
        episodes: the episodes.
        model: a model. If it is handwired, its algorithm has the model's parameters. Otherwise, and
            for None, algorithms have the parameters of the episodes.

    Returns:
        One :class:`~probes.values.TargetValues` per target.
    """
    task = interp.tasks.of(episodes)
    algorithm, its_parameters = _find_parameters(task, model)
    values = []
    with session():  # caches the run of each algorithm
        for target, moment in _list_targets(targets, task):
            is_of_model = target.record is not None and target.record.key == algorithm
            parameters = its_parameters if is_of_model else {}
            values.append(target(episodes, moment, **parameters))
    if targets is None:
        values = [value for value in values if value.varies]
    require(
        values,
        "no variable varies in these episodes, so there is nothing to decode; sample longer ones",
    )
    for value in values:
        check_target(value)
    return values


def _find_parameters(task: Task, model: Machine | None) -> tuple[str, Mapping[str, Any]]:
    """Return the key and the parameters of a handwired machine's algorithm; "" and no parameters
    for other machines.
    """
    has_records = bool(task.algorithms.records())
    if model is None or not model.is_handwired or not has_records:
        return "", {}
    algorithm = task.explains(model)
    return algorithm.key, algorithm.parameters


def _list_targets(keys: Sequence[str] | None, task: Task) -> list[tuple[Target, When]]:
    """Return (target, moment) pairs; the moment says when in a round the target is read: "before",
    "after" or "round".

    Args:
        keys: keys, or ``key:before``. None lists every variable of the task at each of its moments;
            a variable of several algorithms is listed once, for the first of them.
        task: the task.
    """
    if keys is not None:
        require(keys, "no targets were given; name at least one, see probes.targets.every(task)")
        return [parse(key, task) for key in dict.fromkeys(keys)]
    listed = []
    for target in every(task):
        if "." not in target.key:  # "algorithm.variable" is of a further algorithm
            listed += [(target, moment) for moment in target.moments]
    return listed


def __getattr__(name: str) -> Target:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return get(name)
    except InputError as error:
        raise AttributeError(str(error)) from None


def __dir__() -> list[str]:
    names = {*__all__}
    for task in interp.tasks.list_tasks():
        names |= {target.key for target in every(task) if target.key.isidentifier()}
    return sorted(names)
