"""What a target is: a named record, computed from episodes, that knows its moment and what would give it away.

Time: a *state* target stands, at round t, for the state after round t (what ``run.latents[:, 1:]`` hold) or, with
``when="before"``, before it (what ``run.latents[:, :-1]`` hold: what round t reads). A target of a *round* (a vote, a
TD error) belongs to round t itself, and its activations are those of round t.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy import ndarray as Array

from interp.errors import InputError, require, unknown_name
from interp.tasks.experts import ExpertEpisodes
from interp.tasks.mdp import MDPEpisodes

Episodes = ExpertEpisodes | MDPEpisodes
Task = Literal["experts", "qlearning", "any"]
Moment = Literal["before", "after"]
When = Literal["before", "after", "round"]
Kind = Literal["real", "class"]


@dataclass(frozen=True, eq=False)
class Computed:
    """What a target's function gives: values, a name for each output, and which entries are scored (all when None)."""

    values: Shaped[Array, "episode round k"]
    outputs: tuple[str, ...]
    mask: Bool[Array, "episode round k"] | None = None


@dataclass(frozen=True, eq=False)
class TargetValues:
    """Values to decode, with what the controls need.

    Attributes:
        key: the target's name; ":before" is added where it is meant before each round.
        values: ``[episode, round, output]``; class numbers 0, 1, ... where ``kind`` is "class".
        outputs: a name for each output.
        when: "after" or "before" each round (states), or "round".
        kind: "real" or "class".
        mask: entries that are scored; all when None. The others are fitted (a linear readout of a state must be right
            everywhere) but count in no score.
        inputs: what the current round alone says, ``[episode, round, feature]``, in several forms of which the control
            takes the best; it is left out when there are none.
        types: a number for each kind of round, ``[episode, round]``, for the control task; left out when None.
        implied_by: controls that hold this target by construction, so that no verdict asks to beat them.
    """

    key: str
    values: Shaped[Array, "episode round k"]
    outputs: tuple[str, ...]
    when: When = "round"
    kind: Kind = "real"
    mask: Bool[Array, "episode round k"] | None = None
    inputs: tuple[Float[Array, "episode round _"], ...] = ()
    types: Int[Array, "episode round"] | None = None
    implied_by: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Any, key: str = "target") -> TargetValues:
        """A target from a bare array ``[episode, round]`` or ``[episode, round, output]``.

        Raises:
            InputError: an array of another shape.
        """
        array = np.asarray(values)
        array = array[..., None] if array.ndim == 2 else array
        require(array.ndim == 3, f"a target is an array [episode, round, output], got shape {array.shape}")
        return cls(key, array, tuple(f"output {i}" for i in range(array.shape[-1])))

    def rounds(self, start: int, stop: int) -> TargetValues:
        """The rounds from ``start`` to before ``stop``."""
        cut = slice(start, stop)
        parts: dict[str, Any] = {name: getattr(self, name) for name in ("values", "mask", "types")}
        kept = {name: part[:, cut] for name, part in parts.items() if part is not None}
        return replace(self, **kept, inputs=tuple(part[:, cut] for part in self.inputs))

    def indicators(self) -> TargetValues:
        """A class target as numbers: 0 or 1 for two classes, else one output per class; a real target as it is."""
        if self.kind == "real":
            return self
        n_classes = int(self.values.max()) + 1
        if n_classes <= 2:
            return replace(self, values=self.values.astype(np.float64), kind="real")
        values = np.eye(n_classes)[self.values].reshape(*self.values.shape[:2], -1)
        mask = None if self.mask is None else np.repeat(self.mask, n_classes, axis=-1)
        outputs = tuple(f"{name}={c}" for name in self.outputs for c in range(n_classes))
        return replace(self, values=values, outputs=outputs, mask=mask, kind="real")


@dataclass(frozen=True)
class Target:
    """A target that can be computed from episodes; calling it gives :class:`TargetValues`.

    Attributes:
        key: what it is called by; name: what tables and legends call it.
        what: one sentence: what it is.
        task: the task whose episodes it is computed from.
        shape: outputs per round, in the task's sizes.
        units: of the values.
        source: where the paper defines it.
        compute: the function of episodes, moment and parameters.
        kind: "real" or "class".
        of: "state" or "round".
        parameters: what its values depend on besides the episodes, with their defaults.
        implied_by: controls that hold it by construction.
    """

    key: str
    name: str
    what: str
    task: Task
    shape: str
    units: str
    source: str
    compute: Callable[..., Computed]
    kind: Kind = "real"
    of: Literal["state", "round"] = "state"
    parameters: Mapping[str, float] = field(default_factory=dict)
    implied_by: tuple[str, ...] = ()

    def __call__(self, episodes: Episodes, when: str = "after", **parameters: float) -> TargetValues:
        """The target's values.

        Args:
            when: the state after or before each round; a target of the round itself has one moment only.
            parameters: other values of :attr:`parameters`.

        Raises:
            InputError: episodes of another task, an unknown moment or parameter.
        """
        task = task_of(episodes)
        others = [target.key for target in REGISTRY.values() if target.serves(task)]
        require(
            self.serves(task),
            f"target {self.key!r} needs {self.task} episodes, got {type(episodes).__name__}, for: {', '.join(others)}",
        )
        moment = _moment(when)
        for name in parameters:
            if name not in self.parameters:
                raise unknown_name(f"parameter of target {self.key!r}:", name, self.parameters)
        computed = self.compute(episodes, moment, **{**self.parameters, **parameters})
        inputs, types = round_inputs(episodes)
        return TargetValues(
            key=f"{self.key}:before" if self.of == "state" and moment == "before" else self.key,
            values=computed.values,
            outputs=computed.outputs,
            when=moment if self.of == "state" else "round",
            kind=self.kind,
            mask=computed.mask,
            inputs=inputs,
            types=types,
            implied_by=self.implied_by,
        )

    def serves(self, task: str) -> bool:
        """Whether it can be computed from episodes of ``task``."""
        return self.task in (task, "any")


REGISTRY: dict[str, Target] = {}
"""Every target, by key."""


def register(target: Target) -> Target:
    """Add a target to the registry.

    Raises:
        InputError: its key is taken.
    """
    require(target.key not in REGISTRY, f"a target {target.key!r} exists already; choose another key")
    REGISTRY[target.key] = target
    return target


def parse(text: str) -> tuple[Target, Moment]:
    """A target and its moment from ``key`` or ``key:before``.

    Raises:
        InputError: no such target, or a moment that is none.

    >>> target, when = parse("log_weights:before")
    >>> target.key, when
    ('log_weights', 'before')
    """
    key, _, moment = text.partition(":")
    if key not in REGISTRY:
        raise unknown_name("target", key, REGISTRY, limit=40)
    return REGISTRY[key], _moment(moment or "after")


def _moment(name: str) -> Moment:
    moments: tuple[Moment, ...] = get_args(Moment)
    for moment in moments:
        if name == moment:
            return moment
    raise unknown_name("moment", name, moments)


def task_of(episodes: Any) -> Literal["experts", "qlearning"]:
    """The task that episodes belong to.

    Raises:
        InputError: not episodes.
    """
    if isinstance(episodes, ExpertEpisodes):
        return "experts"
    if isinstance(episodes, MDPEpisodes):
        return "qlearning"
    raise InputError(f"targets are computed from ExpertEpisodes or MDPEpisodes, got {type(episodes).__name__}")


def round_inputs(
    episodes: Episodes,
) -> tuple[tuple[Float[Array, "episode round _"], ...], Int[Array, "episode round"]]:
    """What one round says by itself, in two forms, and a number for each kind of round.

    Generous, so that the control is strong: the tokens and payloads of the whole round, its outcome included; and the
    same with their products (whether each expert was right; the reward for each state and action), which say more but
    cost more to fit.
    """
    if isinstance(episodes, ExpertEpisodes):
        advice, label = episodes.advice.astype(np.float64), episodes.labels.astype(np.float64)[..., None]
        plain, products = [advice, label], [episodes.correct.astype(np.float64)]
        kinds = np.concatenate([episodes.advice, episodes.labels[..., None]], axis=-1)
    else:
        n_states, n_actions = episodes.n_states, episodes.n_actions
        pair = np.eye(n_states * n_actions)[episodes.states * n_actions + episodes.actions]
        rewards, states = episodes.rewards[..., None], np.eye(n_states)
        plain = [states[episodes.states], np.eye(n_actions)[episodes.actions], states[episodes.next_states], rewards]
        products = [pair, pair * rewards]
        kinds = np.stack([episodes.states, episodes.actions, episodes.next_states], axis=-1)
    types = np.unique(kinds.reshape(-1, kinds.shape[-1]), axis=0, return_inverse=True)[1].reshape(kinds.shape[:2])
    return (np.concatenate(plain, axis=-1), np.concatenate([*plain, *products], axis=-1)), types


def at_moment(states: Shaped[Array, "episode steps *rest"], when: Moment) -> Shaped[Array, "episode round *rest"]:
    """States before the first round and after every round, cut to one entry per round."""
    return states[:, 1:] if when == "after" else states[:, :-1]


def numbered(prefix: str, n: int) -> tuple[str, ...]:
    """``prefix1``, ``prefix2``, ...: labels as the layouts count them."""
    return tuple(f"{prefix}{i}" for i in range(1, n + 1))
