"""What can be decoded: every variable of every algorithm of every registered task, by its key.

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

Which activations go with which, and what a key means that algorithms share: docs/method/probes.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from einops import rearrange
from jaxtyping import Float, Int
from numpy import ndarray as Array

import interp.tasks
from interp.core.algorithm import NEXT, AlgorithmRecord, Episodes, Variable, missing_rounds
from interp.core.machine import Machine
from interp.support.checks import checked
from interp.support.errors import InputError, require, unknown_name
from interp.support.session import once, session
from interp.tasks import Task
from probes.values import TargetValues, When, check, filled

__all__ = ["Target", "TargetValues", "every", "get", "parse"]

_OF_THE_STATE: tuple[When, ...] = ("after", "before")
_OF_THE_ROUND: tuple[When, ...] = ("round",)


@dataclass(frozen=True)
class Target:
    """A variable to decode; calling it with episodes gives :class:`TargetValues`.

    Attributes:
        key: what it is called by: the variable's key, or ``algorithm.variable``.
        task: key of its task; empty for the round index, which every task has.
        variable: its symbol, meaning, units and role.
        record: the algorithm that it belongs to; None for the round index, which needs none.
        moments: ("after", "before") for a variable of the carried state, else ("round",); the first is the default.
        of_the_inputs: whether the round's inputs alone determine it.
    """

    key: str
    task: str
    variable: Variable = field(compare=False)
    record: AlgorithmRecord | None = field(default=None, compare=False)
    moments: tuple[When, ...] = _OF_THE_ROUND
    of_the_inputs: bool = False

    def __call__(
        self, episodes: Episodes, when: str | None = None, **parameters: Any
    ) -> TargetValues:
        """The target's values in episodes of any task that has a target of this name, at one of :attr:`moments`.

        ``parameters`` of the algorithm are those that the episodes were made with, or its defaults, where not given.
        """
        target = get(self.key, interp.tasks.of(episodes))
        moment = target.moment(when)
        known = inspect.signature(target.record.make).parameters if target.record else {}
        for name in parameters:
            if name not in known:
                raise unknown_name(f"parameter of target {target.key!r}:", name, known)
        values, outputs, mask = _read(episodes, target, moment, parameters)
        missing = missing_rounds(episodes)
        values = filled(values, missing)
        # What is the same in every episode, the round index gives away, and so does another episode.
        alike = ("round", "shuffled") if bool((values == values[:1]).all()) else ()
        inputs, types = once("round inputs", episodes, make=lambda: round_inputs(episodes))
        return TargetValues(
            key=f"{target.key}:before" if moment == "before" else target.key,
            values=values,
            outputs=outputs,
            when=moment,
            kind=target.variable.kind,
            mask=mask,
            inputs=inputs,
            types=types,
            missing=missing,
            participants=getattr(episodes, "participants", None),
            implied_by=(("inputs",) if target.of_the_inputs else ()) + alike,
            parameters=parameters,
            noun=target.variable.noun,
        )

    def moment(self, when: str | None) -> When:
        """The moment called ``when``, or the default one."""
        for moment in self.moments:
            if when in (moment, None):
                return moment
        raise unknown_name(f"moment of target {self.key!r}:", when, self.moments)


_ROUND = Variable("round_index", "t", "the number of rounds before this one", "rounds", "input")
_ROUND_INDEX = Target(_ROUND.key, "", _ROUND)


@checked
def every(task: Task | str) -> tuple[Target, ...]:
    """Every target of a task: the variables of its algorithms, then the round index.

    >>> [(target.key, target.variable.units) for target in every("experts")][:3]
    [('votes', 'class'), ('label', 'class'), ('log_weights', 'nats')]
    """
    task = interp.tasks.get(task) if isinstance(task, str) else task
    targets: dict[str, Target] = {}
    for record in task.algorithm_records().values():
        algorithm = record.make()
        for variable in algorithm.variables:
            key, of_inputs = variable.key, variable.key in algorithm.of_the_inputs
            known = targets.get(key)
            later = key.startswith(NEXT) and key.removeprefix(NEXT) in algorithm.of_the_state
            if later or (known is not None and known.of_the_inputs and of_inputs):
                continue
            moments = _OF_THE_STATE if key in algorithm.of_the_state else _OF_THE_ROUND
            name = key if known is None else f"{record.key}.{key}"
            targets[name] = Target(name, task.key, variable, record, moments, of_inputs)
    return (*targets.values(), _ROUND_INDEX)


@checked
def get(key: str, task: Task | str | None = None) -> Target:
    """The target called ``key`` or ``algorithm.key``: of a task, or of the first one that has it.

    >>> get("prediction").variable.meaning, get("bayes.prediction").variable.meaning
    ('the weighted share of votes for 1', 'the probability that y = 1')
    """
    tasks = (
        interp.tasks.every()
        if task is None
        else (interp.tasks.get(task) if isinstance(task, str) else task,)
    )
    known: dict[str, Target] = {}
    algorithm, _, variable = key.rpartition(".")
    for one in tasks:
        own = {target.key: target for target in every(one)}
        # A variable without a name of its own is that of the first algorithm that has its key, or the same in both.
        record = one.algorithm_records().get(algorithm)
        name = variable if record and key not in own and variable in record.make().keys else key
        if name in own:
            return own[name]
        known |= own
        require(
            task is None or bool(one.algorithms.records()),
            f"unknown target {key!r}: targets are variables of algorithms, and task {one.key!r} registers none; "
            "give its record algorithms=...",
        )
    raise unknown_name(
        "target" if task is None else f"target of {tasks[0].key!r}", key, known, limit=40
    )


@checked
def parse(text: str, task: Task | str | None = None) -> tuple[Target, When]:
    """A target and its moment from ``key`` or ``key:before``.

    >>> target, when = parse("log_weights:before")
    >>> target.key, when
    ('log_weights', 'before')
    """
    key, _, moment = text.partition(":")
    target = get(key, task)
    return target, target.moment(moment or None)


def round_inputs(
    episodes: Episodes,
) -> tuple[tuple[Float[Array, "episode round _"], ...], Int[Array, "episode round"] | None]:
    """What one round says by itself, in every form, and a number for each kind of round; nothing where the task does
    not say."""
    described = interp.tasks.of(episodes).analysis.round_inputs
    if described is None:
        return (), None
    inputs, missing = described(episodes), missing_rounds(episodes)
    kinds, *features = (filled(part, missing) for part in (inputs.kinds, *inputs.features))
    rows = rearrange(kinds, "episode round part -> (episode round) part")
    return tuple(features), np.unique(rows, axis=0, return_inverse=True)[1].reshape(kinds.shape[:2])


def _read(
    episodes: Episodes, target: Target, moment: When, parameters: dict[str, Any]
) -> tuple[Array, tuple[str, ...], Array | None]:
    """Values, labels and scored entries, flattened to ``[episode, round, output]``."""
    variable, record, mask = target.variable, target.record, None
    if record is None:
        rounds = np.arange(episodes.n_rounds)
        values = np.broadcast_to(rounds, (len(episodes), len(rounds)))
    else:
        made = "algorithm", record.key, *sorted(parameters.items())
        algorithm = once(made, episodes, make=lambda: record.for_episodes(episodes, **parameters))
        computed = algorithm.run(episodes)
        values = computed[NEXT + variable.key if moment == "after" else variable.key]
        of = algorithm.variable(variable.key)
        if moment == "after":
            later = algorithm.variable(NEXT + variable.key)
            if later is not of and later.scored is not None:
                of = later
            else:  # by the state after the round
                computed = {
                    **computed,
                    **{known: computed[NEXT + known] for known in algorithm.of_the_state},
                }
        mask = None if of.scored is None else of.scored(computed)
    by_output = "episode round ... -> episode round (...)"
    flat = rearrange(values, by_output)
    numbers = flat if variable.kind == "class" else flat.astype(np.float64)
    return numbers, variable.labels(values), None if mask is None else rearrange(mask, by_output)


@checked
def compute(
    targets: Sequence[str] | None, episodes: Episodes, model: Machine | None = None
) -> list[TargetValues]:
    """The values of several targets, sharing runs of their algorithms and one copy of the round's inputs.

    Args:
        targets: keys, ``key:before`` for a state before each round; when None, every variable that varies in these
            episodes, of the first algorithm that has it, states at both moments.
        model: a handwired one sets the parameters of its own algorithm.
    """
    task = interp.tasks.of(episodes)
    if targets is None:
        own_names = [target for target in every(task) if "." not in target.key]
        listed = [(target, moment) for target in own_names for moment in target.moments]
    else:
        require(
            bool(targets),
            "no targets were given; name at least one, see probes.targets.every(task)",
        )
        listed = [parse(text, task) for text in dict.fromkeys(targets)]
    of_model, values = {}, []
    if model is not None and model.is_handwired and task.algorithms.records():
        algorithm = task.explains(model)
        of_model[algorithm.key] = algorithm.parameters
    with session():
        for target, moment in listed:
            key = "" if target.record is None else target.record.key
            values.append(target(episodes, moment, **of_model.get(key, {})))
    kept = [value for value in values if value.varies or targets is not None]
    require(
        bool(kept),
        "no variable varies in these episodes, so there is nothing to decode; sample longer ones",
    )
    for value in kept:
        check(np.zeros((len(episodes), episodes.n_rounds, 1)), value)
    return [replace(value, inputs=kept[0].inputs, types=kept[0].types) for value in kept]


def __getattr__(name: str) -> Target:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return get(name)
    except InputError as error:
        raise AttributeError(str(error)) from None


def __dir__() -> list[str]:
    from interp import tasks

    return sorted(
        {*__all__, *(t.key for task in tasks.every() for t in every(task) if t.key.isidentifier())}
    )
