"""The values that a probe decodes; and arrays, groups and targets as users give them, checked before any work."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from einops import rearrange
from jaxtyping import Bool, Float, Int, Shaped
from numpy import ndarray as Array

from interp.stats import refit
from interp.stats.intervals import of_whom
from interp.stats.refit import FEW_EPISODES
from interp.support.checks import array_of, checked, refuse_beyond_machine
from interp.support.errors import InputError, require

When = Literal["before", "after", "round"]
_COMMON = 0.9  # of a label of 3 % a probe's likeliest class said nothing in 60 of 60 fits, where ridge found it in 41


@dataclass(frozen=True, eq=False)
class TargetValues:
    """Values to decode, with what the controls need.

    Attributes:
        key, outputs: the target's name, with ":before" where it is meant before each round; a name for each output.
        values: ``[episode, round, output]``; class numbers 0, 1, ... where ``kind`` is "class", not "real".
        when: "after" or "before" each round (what is carried from round to round), or "round".
        mask: entries that are scored; all when None. The others are fitted (a linear readout of a state must be right
            everywhere) but count in no score.
        inputs: what the current round alone says, ``[episode, round, feature]``, in several forms of which the control
            takes the best; that control is left out when there are none.
        types: a number for each kind of round, ``[episode, round]``, for the control task; left out when None.
        missing: rounds that did not take place, ``[episode, round]``; they are neither fitted nor scored.
        participants: whose each episode is: the groups of folds and intervals, where a fit names none.
        implied_by: controls that hold this target by construction; a verdict does not ask the probe to beat these.
        parameters: of the algorithm, where others were given than the episodes' own.
        is_rare: whether a class has so large a share (:data:`_COMMON`) that what is likeliest is it in every round.
        noun: what a sentence calls the target.

    >>> noise = np.random.default_rng(0).normal(size=(8, 5, 2))
    >>> target = TargetValues.of(noise, "noise")
    >>> target.outputs, target.rounds(1, 3).values.shape
    (('output 0', 'output 1'), (8, 2, 2))
    """

    key: str
    values: Shaped[Array, "episode round k"]
    outputs: tuple[str, ...]
    when: When = "round"
    kind: Literal["real", "class"] = "real"
    mask: Bool[Array, "episode round k"] | None = None
    inputs: tuple[Float[Array, "episode round _"], ...] = ()
    types: Int[Array, "episode round"] | None = None
    missing: Bool[Array, "episode round"] | None = None
    participants: Any = None
    implied_by: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    is_rare: bool = False
    noun: str = "the target"

    @classmethod
    @checked
    def of(cls, values: Any, key: str = "target", of_classes: bool = False) -> TargetValues:
        """A target from bare numbers ``[episode, round]`` or ``[episode, round, output]``.

        With ``of_classes`` whole numbers and truth values are classes.
        """
        array = as_array(values, "a target")
        of_classes = of_classes and array.dtype.kind in "biu"
        array = array.astype(np.int64) if of_classes else _as_floats(array, "a target")
        array = array[..., None] if array.ndim == 2 else array
        require(
            array.ndim == 3,
            f"a target is an array [episode, round, output], got shape {array.shape}",
        )
        kind: Literal["real", "class"] = "class" if of_classes else "real"
        outputs = tuple(f"output {i}" for i in range(array.shape[-1]))
        return cls(key, array, outputs, kind=kind, noun=f"the {key.replace('_', ' ')}")

    def as_numbers(self) -> TargetValues:
        """The same with everything as arrays: values may be given as tensors, whole numbers or truth values."""
        values = filled(as_array(self.values, f"target {self.key!r}"), self.missing)
        if self.kind == "class":
            require(
                bool((values == np.floor(values)).all() and (values >= 0).all()),
                "classes are numbered 0, 1, ...",
            )
            n_classes = int(values.max(initial=0)) + 1
            what = f"indicators of {n_classes} classes (the highest number in target {self.key!r}, plus 1)"
            refuse_beyond_machine(what, 8.0 * n_classes * (n_classes + values.size))
            values = values.astype(np.int64)
            rows = (
                values.reshape(-1, values.shape[-1])
                if self.missing is None
                else values[~self.missing]
            )
            shares = [np.bincount(column).max() / len(rows) for column in rows.T]
        else:
            values, shares = _as_floats(values, "a target"), []
        mask = None if self.mask is None else as_array(self.mask, "a mask").astype(bool)
        types = (
            None if self.types is None else as_array(self.types, "kinds of rounds").astype(np.int64)
        )
        types = types if types is None else filled(types, self.missing)
        inputs = tuple(
            filled(_as_floats(i, "the round's inputs"), self.missing) for i in self.inputs
        )
        is_rare = bool(max(shares, default=0.0) > _COMMON)
        return replace(self, values=values, mask=mask, types=types, inputs=inputs, is_rare=is_rare)

    @property
    def scored(self) -> Bool[Array, "episode round k"] | None:
        """Entries of the mask in rounds that count; None where all are scored."""
        if self.missing is None:
            return self.mask
        return (
            np.full(self.values.shape, True if self.mask is None else self.mask)
            & ~self.missing[..., None]
        )

    @property
    def varies(self) -> bool:
        """Whether there is anything to decode: a constant has no score."""
        return bool((self.values != self.values[:1, :1]).any())

    @checked
    def rounds(self, start: int, stop: int) -> TargetValues:
        """The rounds from ``start`` to before ``stop``."""
        cut = slice(start, stop)
        parts: dict[str, Any] = {
            name: getattr(self, name) for name in ("values", "mask", "types", "missing")
        }
        kept = {name: part[:, cut] for name, part in parts.items() if part is not None}
        return replace(self, **kept, inputs=tuple(part[:, cut] for part in self.inputs))

    def packed(self) -> TargetValues:
        """The rounds that count, each as an episode of its own: ``[round, 1, output]``."""
        parts: dict[str, Any] = {name: getattr(self, name) for name in ("values", "mask", "types")}
        counted = np.ones(self.values.shape[:2], bool) if self.missing is None else ~self.missing
        kept = {name: part[counted][:, None] for name, part in parts.items() if part is not None}
        return replace(self, **kept, inputs=(), missing=None)

    def indicators(self) -> TargetValues:
        """A class target as numbers: 0 or 1 for two classes, else one output per class; a real target as it is."""
        if self.kind == "real":
            return self
        n_classes = int(self.values.max()) + 1
        if n_classes <= 2:
            return replace(self, values=self.values.astype(np.float64), kind="real")
        values = rearrange(
            np.eye(n_classes)[self.values], "episode round k c -> episode round (k c)"
        )
        mask = None if self.mask is None else np.repeat(self.mask, n_classes, axis=-1)
        outputs = tuple(f"{name}={c}" for name in self.outputs for c in range(n_classes))
        return replace(self, values=values, outputs=outputs, mask=mask, kind="real")


def filled(values: Array, missing: Bool[Array, "episode round"] | None) -> Array:
    """``[episode, round, ...]``, in missing rounds the value of the first episode that has the round.

    >>> filled(np.array([[1.0, 2.0], [3.0, np.nan]]), np.array([[False, False], [False, True]]))
    array([[1., 2.],
           [3., 2.]])
    """
    if missing is None or missing.shape != values.shape[:2]:
        return values
    episode, rounds, nowhere = missing.argmin(0), np.arange(missing.shape[1]), missing.all(0)
    episode[nowhere], rounds[nowhere] = np.argwhere(~missing)[0]
    return np.where(
        missing.reshape(*missing.shape, *[1] * (values.ndim - 2)), values[episode, rounds], values
    )


def _as_floats(values: Any, what: str) -> Array:
    array = as_array(values, what)
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def as_array(values: Any, what: str) -> Array:
    """Numbers as an array: of arrays, tensors of any precision (gradients are let go) and pandas objects.

    A pandas object whose index has two levels, episode and round, becomes ``[episode, round, column]`` (a series
    ``[episode, round]``), in the order of the levels' values; any other is its table.

    >>> rows = pd.MultiIndex.from_product([["ann", "bob"], range(3)], names=["episode", "round"])
    >>> as_array(pd.DataFrame({"x": range(6), "y": range(6)}, index=rows), "activations").shape
    (2, 3, 2)
    """
    if not isinstance(values, pd.Series | pd.DataFrame) or values.index.nlevels != 2:
        return array_of(
            what, values.to_numpy() if isinstance(values, pd.Series | pd.DataFrame) else values
        )
    table = values.sort_index()
    sizes = [len(table.index.unique(level)) for level in (0, 1)]
    require(
        sizes[0] * sizes[1] == len(table) and not table.index.has_duplicates,
        f"{what}: an index of episode and round holds every round of every episode once; this one has {len(table)} "
        f"rows for {sizes[0]} episodes and {sizes[1]} rounds",
    )
    return array_of(what, table.to_numpy().reshape(*sizes, *table.shape[1:]))


N_FOLDS = 5


def as_inputs(activations: Any) -> Float[Array, "episode round d"]:
    """Activations as an array with one feature axis.

    >>> as_inputs(np.zeros((4, 7, 2, 16))).shape
    (4, 7, 32)
    """
    x = _as_floats(activations, "activations")
    empty = x.ndim >= 3 and 0 in x.shape[2:]
    require(
        x.ndim >= 3 and not empty,
        f"activations are [episode, round, feature...], got shape {x.shape}",
    )
    n, hint = int(np.prod(x.shape[2:])), "of a machine, probe one of its channels or points"
    # A ridge probe keeps products of every two of its inputs: of each fold, of all, and their eigenvectors.
    refuse_beyond_machine(f"a probe of {n:,} numbers a round ({hint})", 72.0 * n**2)
    return rearrange(x, "episode round ... -> episode round (...)")


def warn_of_few(n: int) -> str | None:
    """The warning for few independent episodes (or groups), which is also raised; None where they suffice."""
    if n >= FEW_EPISODES:
        return None
    text = f"{n} independent episodes are few: below {FEW_EPISODES}, 95 % intervals cover as little as 88 %"
    warnings.warn(text, UserWarning, stacklevel=4)
    return text


def leans_low(
    x: Float[Array, "episode round d"],
    target: TargetValues,
    groups: Int[Array, " episode"] | None = None,
) -> int:
    """How many features vary, where :func:`interp.stats.refit.leans_low` of these and a target; else 0.

    Where several episodes make a group, one of each counts.
    """
    target = target.indicators()
    first = slice(None) if groups is None else np.unique(groups, return_index=True)[1]
    mask = None if target.scored is None else target.scored[first]
    n_features = int((x != x[:1, :1]).any((0, 1)).sum())
    return n_features * refit.leans_low(target.values[first].astype(np.float64), n_features, mask)


def as_groups(groups: Any, n_episodes: int, participants: Any = None) -> Int[Array, " episode"]:
    """A number for each episode, the same for the episodes of a group; with "episode", each is a group of its own.

    When None they are the participants, or the episodes. No group may hold more than half of the episodes.

    >>> as_groups(["ann", "bob", "cem", "dia", "eva", "ann"], 6)
    array([0, 1, 2, 3, 4, 0])
    """
    what = "groups"
    if groups is None and participants is not None:
        what, groups = "participants", participants
    if groups is None or isinstance(groups, str):
        require(
            groups in (None, "episode"),
            f"groups must be 'episode' or an array of one group id per episode, got {groups!r}: rounds of an episode "
            "are not independent",
        )
        what, groups = "episodes", np.arange(n_episodes)
    of_whom(groups, n_episodes, what)
    numbers = np.unique(
        groups.tolist() if hasattr(groups, "tolist") else groups, return_inverse=True
    )[1]
    sizes = np.bincount(numbers)
    few = f"{N_FOLDS} folds of {what} need at least {N_FOLDS} {what}, got {len(sizes)}"
    require(
        len(sizes) >= N_FOLDS,
        few + "; with groups='episode' each episode counts" * (what == "participants"),
    )
    require(
        bool(2 * sizes.max() <= n_episodes),
        f"one group holds {sizes.max()} of {n_episodes} episodes; the shuffled control needs at most half in one group",
    )
    return numbers


def check(x: Array, target: TargetValues) -> None:
    """Refuse what cannot be fitted."""
    y = target.values
    if x.shape[:2] != y.shape[:2]:
        hint = (
            "; for a state after each round give run.latents[:, 1:]"
            if x.shape[1] == y.shape[1] + 1
            else ""
        )
        raise InputError(
            f"activations have {x.shape[0]} episodes of {x.shape[1]} rounds but target {target.key!r} has {y.shape[0]} "
            f"of {y.shape[1]}{hint}"
        )
    as_groups("episode", len(x))
    shape, what = y.shape, f"target {target.key!r} of shape {y.shape}"
    n = len(target.outputs)
    require(n == shape[-1], f"{what} needs a name for each of its {shape[-1]} outputs, got {n}")
    parts = [("mask", target.mask, shape), ("kinds of rounds", target.types, shape[:2])]
    parts += [("missing rounds", target.missing, shape[:2])]
    parts += [("round's inputs", form, (*shape[:2], *form.shape[2:])) for form in target.inputs]
    for part, of, wanted in parts:
        if of is not None and of.shape != wanted:
            raise InputError(f"the {part} of {what} must have shape {wanted}, got {of.shape}")
    inputs = [("the round's inputs", form) for form in target.inputs if form.shape[-1]]
    for what, values in [("the activations", x), (f"target {target.key!r}", y), *inputs]:
        finite = np.isfinite(values)
        require(
            bool(finite.all()),
            f"{what} hold {int((~finite).sum())} values that are NaN or infinite; a probe needs finite numbers",
        )
        most = float(np.abs(values).max(initial=0.0))
        require(
            most == 0 or _LEAST <= most <= _MOST,
            f"{what} hold values of up to {most:.3g}, whose squares no number of 64 bits can hold; a probe needs "
            f"values of up to {_MOST:g}, and not all below {_LEAST:g}: divide or multiply all by one number",
        )
    require(
        target.varies,
        f"target {target.key!r} is constant over these episodes, so there is nothing to decode; choose another target",
    )
    if target.scored is not None:
        require(
            bool(target.scored.any()),
            f"no entry of target {target.key!r} is scored in these episodes; sample more",
        )


_MOST, _LEAST = 1e140, 1e-140
"""Sums of squares of values up to the first are finite, and those of values not all below the second are not 0."""


def overflows(x: Array) -> bool:
    """Whether activations, or sums of their squares, are not finite: then nothing can be fitted to them.

    >>> [overflows(np.full((2, 3, 1), value)) for value in (1.0, 1e200, np.nan)]
    [False, True, True]
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return not np.isfinite(
            x.size * np.einsum("erd,erd->", x, x, dtype=np.float64)
        )  # without an array of squares
