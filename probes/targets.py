"""What can be decoded: each target a named record, called with episodes.

``targets.log_weights(episodes)`` gives :class:`TargetValues`, ``[episode, round, output]``, and what the controls need:
the current round's inputs. A state target stands, at round t, for the state *after* round t (what ``latents[:, t + 1]``
hold); with ``when="before"`` for the state before it (what ``latents[:, t]`` hold, and what round t reads). A target
of a round (a label, a TD error) belongs to the round itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy import ndarray as Array

from interp.errors import InputError, require, unknown_name

When = Literal["before", "after", "round"]
Kind = Literal["real", "class"]


@dataclass(frozen=True)
class TargetValues:
    """Values to decode.

    Attributes:
        key: the target's name.
        values: ``[episode, round, output]``; class numbers where ``kind`` is "class".
        outputs: a name for each output.
        when: "after" or "before" each round (states), or "round" (quantities of the round itself).
        kind: "real" (scored by R2) or "class".
        mask: entries that are scored; all when None.
        inputs: what the current round alone says: its tokens and their products, ``[episode, round, feature]``.
        types: a number for each distinct round, ``[episode, round]``, for the control task.
        implied_by: controls that hold this target by construction, so that beating them is not asked for.
        scale: arbitrary factors in the values (``log_gamma``), as text.
    """

    key: str
    values: Shaped[Array, "episode round k"]
    outputs: tuple[str, ...]
    when: When = "after"
    kind: Kind = "real"
    mask: Bool[Array, "episode round k"] | None = None
    inputs: Float[Array, "episode round m"] | None = None
    types: Int[Array, "episode round"] | None = None
    implied_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """A target that can be computed from episodes.

    Attributes:
        key: what it is called by.
        name: its name in tables.
        what: one sentence: what it is.
        task: "experts", "qlearning" or "any".
        shape: outputs per round, in the task's sizes.
        units: of the values.
        source: where the paper (or a reference) defines it.
        kind: "real" or "class".
        of: "state" (then ``when`` is "after" or "before") or "round".
        implied_by: controls that hold it by construction.
    """

    key: str
    name: str
    what: str
    task: Literal["experts", "qlearning", "any"]
    shape: str
    units: str
    source: str
    compute: Callable[[Any], tuple[Array, tuple[str, ...], Array | None]]
    kind: Kind = "real"
    of: Literal["state", "round"] = "state"
    implied_by: tuple[str, ...] = ()

    def __call__(self, episodes: Any, when: Literal["before", "after"] = "after") -> TargetValues:
        """The target's values.

        Args:
            episodes: episodes of the target's task.
            when: the state after or before each round; a target of the round itself has only one.

        Raises:
            InputError: episodes of another task.
        """
        task = task_of(episodes)
        require(self.task in (task, "any"), f"target {self.key!r} belongs to the {self.task} task, got {task} episodes")
        values, outputs, mask = self.compute(episodes)
        if self.of == "state":
            rounds = slice(1, None) if when == "after" else slice(None, -1)
            values, mask = values[:, rounds], None if mask is None else mask[:, rounds]
        inputs, types = round_inputs(episodes)
        moment: When = when if self.of == "state" else "round"
        key = self.key if moment != "before" else f"{self.key}:before"
        return TargetValues(key, values, outputs, moment, self.kind, mask, inputs, types, self.implied_by)


def task_of(episodes: Any) -> Literal["experts", "qlearning"]:
    """The task that episodes belong to."""
    if hasattr(episodes, "advice"):
        return "experts"
    if hasattr(episodes, "q_tables"):
        return "qlearning"
    raise InputError(f"targets are computed from ExpertEpisodes or MDPEpisodes, got {type(episodes).__name__}")


def round_inputs(episodes: Any) -> tuple[Float[Array, "episode round m"], Int[Array, "episode round"]]:
    """What one round says by itself, generously: its tokens, payloads and their products; and the round's type."""
    if task_of(episodes) == "experts":
        advice, label = episodes.advice.astype(np.float64), episodes.labels.astype(np.float64)[..., None]
        matches = (advice == label).astype(np.float64)
        powers = 2 ** np.arange(advice.shape[-1])
        types = np.unique((episodes.advice @ powers) * 2 + episodes.labels, return_inverse=True)[1]
        return np.concatenate([advice, label, matches], axis=-1), types.reshape(episodes.labels.shape)
    S, A = episodes.n_states, episodes.n_actions
    pair = episodes.states * A + episodes.actions
    one_hot = np.eye(S * A)[pair]
    reward = np.asarray(episodes.rewards, dtype=np.float64)[..., None]
    features = [one_hot, np.eye(S)[episodes.next_states], reward, one_hot * reward]
    types = np.unique(pair * S + episodes.next_states, return_inverse=True)[1]
    return np.concatenate(features, axis=-1), types.reshape(pair.shape)


def _experts(prefix: str, n: int) -> tuple[str, ...]:
    return tuple(f"{prefix}{i}" for i in range(1, n + 1))


def _counts(episodes: Any) -> Float[Array, "episode round_plus_1 expert"]:
    """How often each expert was right, before the first round and after every round."""
    matches = (episodes.advice == episodes.labels[..., None]).astype(np.float64)
    return np.concatenate([np.zeros_like(matches[:, :1]), matches.cumsum(1)], axis=1)


LOG_GAMMA = 0.5


def _log_weights(episodes: Any) -> tuple[Array, tuple[str, ...], None]:
    counts = _counts(episodes)
    return LOG_GAMMA * counts, _experts("e_", counts.shape[-1]), None


def _centred(episodes: Any) -> tuple[Array, tuple[str, ...], None]:
    values, names, mask = _log_weights(episodes)
    return values - values.mean(-1, keepdims=True), names, mask


REGISTRY: dict[str, Target] = {}


def register(target: Target) -> Target:
    """Add a target; its key must be new.

    Raises:
        InputError: the key is taken.
    """
    require(target.key not in REGISTRY, f"a target {target.key!r} exists already; choose another key")
    REGISTRY[target.key] = target
    return target


def get(key: str) -> Target:
    """The target of a key.

    Raises:
        InputError: no such target; the nearest ones are named.
    """
    if key not in REGISTRY:
        raise unknown_name("target", key, REGISTRY, limit=40)
    return REGISTRY[key]


log_weights = register(
    Target(
        "log_weights",
        "log-weights",
        "the log-weight of every expert, up to the factor log gamma: log gamma times how often it was right",
        *("experts", "[n_experts]", "nats", "section 3"),
        _log_weights,
    )
)
log_weights_centred = register(
    Target(
        "log_weights_centred",
        "centred log-weights",
        "log-weights less their mean over experts: all that the prediction depends on",
        *("experts", "[n_experts]", "nats", "section 3"),
        _centred,
    )
)
