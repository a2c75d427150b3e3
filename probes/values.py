"""The values that a probe decodes, and checks of activations, targets and groups as users pass
them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd
from einops import rearrange
from jaxtyping import Bool, Float, Int, Shaped
from numpy import ndarray as Array

from interp.core.algorithm import Episodes
from interp.core.recorded import digest_episodes
from interp.stats import refit
from interp.stats.intervals import number_participants
from interp.stats.refit import FEW_EPISODES
from interp.support.checks import array_of, checked, checked_fields, refuse_beyond_machine
from interp.support.errors import InputError, require

When = Literal["before", "after", "round"]
# A target is rare-class beyond this share of one class: for a label of 3 %, the most probable class showed nothing in
# 60 of 60 fits, where ridge regression found the label in 41.
_MAX_COMMON_SHARE = 0.9


@dataclass(frozen=True, eq=False)
@checked_fields
class TargetValues:
    """A target of a probe: the values to decode in each round, and what the controls of the probe
    need.

    Attributes:
        key: name of the target, with ":before" if it is read before each round.
        values: ``[episode, round, output]``; class numbers 0, 1, ..., or texts, if ``kind`` is
            "class".
        outputs: a name for each output.
        when: when the values hold: "after" or "before" each round for a state that is carried from
            round to round, "round" for other variables.
        kind: "real" or "class".
        mask: True for entries that are scored, in the shape of ``values``; None for all. The probe
            is fitted on all entries in any case, since a linear read-out of a state should be right
            everywhere.
        inputs: what the model reads as input in each round, for the control "inputs", which decodes
            the target from these inputs. There may be several encodings, each ``[episode, round,
            feature]``; the best score counts. Empty leaves the control out.
        types: kind of each round as a number, ``[episode, round]``: rounds with equal inputs are of
            the same kind. The control "control_task" draws a random value for each kind. None
            leaves the control out.
        missing: True for rounds that did not take place, ``[episode, round]``; they are neither
            fitted nor scored. None if all did.
        participants: label of the participant (such as a person) of each episode. Episodes of one
            participant form one group in cross-validation and intervals, unless other groups are
            passed to the fit.
        implied_by: names of controls that decode this target by construction, such as "inputs" if
            the target is an input. The probe need not beat them.
        parameters: parameters of the algorithm that were passed when it computed the values; empty
            if it used those of the episodes.
        is_rare: True if one class has a share above .9. The most probable class is then almost
            always this one, so accuracy tells nothing about the others.
        noun: name of the target in a sentence.
        compute: function from episodes to this target in them, so that untrained copies can run on
            further episodes; None if its values in these are only known by ``key``, or not at all.

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
    compute: Callable[[Episodes], TargetValues] | None = None

    @classmethod
    @checked
    def of(cls, values: Any, key: str = "target", of_classes: bool = False) -> TargetValues:
        """Make a target from an array of values.

        Args:
            values: ``[episode, round]`` or ``[episode, round, output]``. Texts and booleans are
                classes, numbered in sorted order.
            key: name of the target.
            of_classes: True if integers are classes, too, numbered 0, 1, ...; False if they are
                quantities. Floats are always quantities.
        """
        array = _stack_table(values, "a target")
        if not _is_text(array):
            array = array_of("a target", array)
        of_classes = array.dtype.kind in ("biuOU" if of_classes else "bOU")
        if not of_classes:
            array = _convert_floats(array, "a target")
        if array.ndim == 2:
            array = array[..., None]
        require(
            array.ndim == 3,
            f"a target is an array [episode, round, output], got shape {array.shape}",
        )
        outputs = tuple(f"output {i}" for i in range(array.shape[-1]))
        noun = f"the {key.replace('_', ' ')}"
        return cls(key, array, outputs, kind="class" if of_classes else "real", noun=noun)

    def as_numbers(self) -> TargetValues:
        """Return a copy in numpy arrays of finite numbers, to which a probe can be fitted.

        ``values``, ``mask``, ``inputs`` and ``types`` may have been tensors or pandas objects. In
        missing rounds, where they may be NaN, the copy has those of the same round in another
        episode (:func:`fill_missing`). These rounds stay marked as missing, so they are neither
        fitted nor scored. ``is_rare`` is computed from the rounds that took place.

        Raises:
            InputError: no round took place, or the values are classes and not numbered 0, 1, ...
        """
        what = f"target {self.key!r}"
        values = self.values
        if self.kind == "class" and _is_text(values):
            _, numbers = np.unique(values.astype(str), return_inverse=True)
            values = numbers.reshape(values.shape)
        values = as_array(values, what)
        counted = replace(self, values=values)._counted  # self.values may be no array yet
        require(counted.any(), f"{what} has no round that took place, and a probe needs some")
        values = fill_missing(values, self.missing)
        is_rare = False
        if self.kind == "class":
            values = self._convert_classes(values)
            rows = values[counted]  # [round that took place, output]
            # If one class has nearly all of these rounds, the other classes are rare.
            most_frequent = [np.bincount(column).max() for column in rows.T]
            is_rare = bool(max(most_frequent, default=0) / len(rows) > _MAX_COMMON_SHARE)
        else:
            values = _convert_floats(values, "a target")
        mask, types = self.mask, self.types
        if mask is not None:
            mask = as_array(mask, "a mask").astype(bool)
        if types is not None:
            types = as_array(types, "kinds of rounds").astype(np.int64)
            types = fill_missing(types, self.missing)
        inputs = [_convert_floats(encoding, "the round's inputs") for encoding in self.inputs]
        filled_inputs = tuple(fill_missing(encoding, self.missing) for encoding in inputs)
        return replace(
            self, values=values, mask=mask, types=types, inputs=filled_inputs, is_rare=is_rare
        )

    def _convert_classes(self, values: Array) -> Int[Array, "episode round k"]:
        """Return values as integers, the ids of classes.

        Raises:
            InputError: the values are not 0, 1, ..., or there are more classes than fit into
                memory.
        """
        is_class = (values == np.floor(values)) & (values >= 0)
        require(is_class.all(), "classes are numbered 0, 1, ...")
        n_classes = int(values.max(initial=0)) + 1
        # Indicators need the identity matrix, and a row of it for each value, of 8 bytes a number.
        refuse_beyond_machine(
            f"indicators of {n_classes} classes (the highest number in target {self.key!r}, plus 1)",
            8.0 * n_classes * (n_classes + values.size),
        )
        return values.astype(np.int64)

    @property
    def _counted(self) -> Bool[Array, "episode round"]:
        """Mask ``[episode, round]`` of the rounds that took place."""
        if self.missing is None:
            return np.ones(self.values.shape[:2], bool)
        return ~self.missing

    @property
    def scored(self) -> Bool[Array, "episode round k"] | None:
        """Mask ``[episode, round, output]`` of the entries that are scored: those in ``mask``, in
        rounds that took place. None if all are scored.
        """
        if self.missing is None:
            return self.mask
        counted = np.broadcast_to(self._counted[..., None], self.values.shape)
        return counted if self.mask is None else counted & self.mask

    @property
    def varies(self) -> bool:
        """True if the values are not all equal; a constant cannot be decoded."""
        return bool((self.values != self.values[:1, :1]).any())

    @checked
    def rounds(self, start: int, stop: int) -> TargetValues:
        """Return a copy that has only the rounds from ``start`` to ``stop - 1``, counted from 0."""
        cut = slice(start, stop)
        parts = self._select((slice(None), cut), "values", "mask", "types", "missing")
        return replace(self, **parts, inputs=tuple(encoding[:, cut] for encoding in self.inputs))

    def remove_missing_rounds(self) -> TargetValues:
        """Return a copy without missing rounds. Each round that took place becomes an episode of
        one round, so that values are ``[round, 1, output]``.
        """
        parts = self._select(self._counted, "values", "mask", "types")
        as_episodes = {name: part[:, None] for name, part in parts.items()}
        return replace(self, **as_episodes, inputs=(), missing=None)

    def _select(self, index: Any, *names: str) -> dict[str, Any]:
        """Index several array fields of this target, and return {name of the field: its entries at
        ``index``}. Fields that are None are left out.

        Args:
            index: index into the first axes of the arrays.
            *names: names of the fields.
        """
        parts = {name: getattr(self, name) for name in names}
        return {name: part[index] for name, part in parts.items() if part is not None}

    def indicators(self) -> TargetValues:
        """Return a copy in which classes are numbers: 1 for the true class and 0 for the others,
        with one output per class. Two classes need only one output, 1 for class 1.

        A target of real numbers is returned unchanged.
        """
        if self.kind == "real":
            return self
        n_classes = int(self.values.max()) + 1
        if n_classes <= 2:
            return replace(self, values=self.values.astype(np.float64), kind="real")
        one_hot = np.eye(n_classes)[self.values]
        values = rearrange(one_hot, "episode round k c -> episode round (k c)")
        mask = None if self.mask is None else np.repeat(self.mask, n_classes, axis=-1)
        outputs = name_indicators(self.outputs, n_classes)
        return replace(self, values=values, outputs=outputs, mask=mask, kind="real")


def name_indicators(outputs: Sequence[str], n_classes: int) -> tuple[str, ...]:
    """Return names of the indicators of each output's classes, such as "label=2".

    Args:
        outputs: names of the outputs.
        n_classes: number of classes.
    """
    return tuple(f"{name}={c}" for name, c in product(outputs, range(n_classes)))


def fill_missing(values: Array, missing: Bool[Array, "episode round"] | None) -> Array:
    """Return a copy in which each missing round has the values of the same round in the first
    episode that has this round. These are placeholders for NaN, which are neither fitted nor
    scored.

    A round that no episode has is filled with the values of the first round that took place.

    Args:
        values: ``[episode, round, ...]``.
        missing: True for missing rounds, ``[episode, round]``. If it is None, or does not fit the
            shape of the values, the values are returned unchanged.

    >>> missing = np.array([[False, False], [False, True]])
    >>> fill_missing(np.array([[1.0, 2.0], [3.0, np.nan]]), missing)
    array([[1., 2.],
           [3., 2.]])
    """
    if missing is None or missing.shape != values.shape[:2]:
        return values
    source_episode = missing.argmin(0)  # [round]: the first episode that has this round
    source_round = np.arange(missing.shape[1])
    is_nowhere = missing.all(0)
    source_episode[is_nowhere], source_round[is_nowhere] = np.argwhere(~missing)[0]
    _, rounds = np.nonzero(missing)  # the round of each missing entry
    result = values.copy()
    result[missing] = values[source_episode[rounds], source_round[rounds]]
    return result


def _convert_floats(values: Any, what: str) -> Array:
    """Return numbers as a floating-point array. Floats keep their precision; other numbers become
    float64.

    Args:
        values: an array, tensor or pandas object.
        what: what the numbers are, for error messages.
    """
    array = as_array(values, what)
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def as_array(values: Any, what: str) -> Array:
    """Convert an array, a tensor of any precision or a pandas object to a numpy array.

    A data frame with two index levels (episode and round) becomes ``[episode, round, column]``, and
    such a series ``[episode, round]``, both sorted by the index. Any other pandas object becomes
    its values.

    Args:
        values: the object to convert.
        what: what the values are, for error messages.

    >>> rows = pd.MultiIndex.from_product([["ann", "bob"], range(3)], names=["episode", "round"])
    >>> as_array(pd.DataFrame({"x": range(6), "y": range(6)}, index=rows), "activations").shape
    (2, 3, 2)
    """
    return array_of(what, _stack_table(values, what))


def _is_text(values: Any) -> bool:
    """Return True if values are an array of texts, such as names of classes."""
    return (
        isinstance(values, np.ndarray)
        and pd.api.types.infer_dtype(values.ravel(), skipna=False) == "string"
    )


def _stack_table(values: Any, what: str) -> Any:
    """Return a pandas object as an array, as :func:`as_array` does; other objects unchanged.

    Args:
        values: the object.
        what: what the values are, for error messages.
    """
    if not isinstance(values, pd.Series | pd.DataFrame):
        return values
    if values.index.nlevels != 2:
        return values.to_numpy()
    table = values.sort_index()
    n_episodes = table.index.unique(0).size
    n_rounds = table.index.unique(1).size
    is_complete = n_episodes * n_rounds == len(table) and not table.index.has_duplicates
    require(
        is_complete,
        f"{what}: an index of episode and round holds every round of every episode once; this one has {len(table)} "
        f"rows for {n_episodes} episodes and {n_rounds} rounds",
    )
    return table.to_numpy().reshape(n_episodes, n_rounds, *table.shape[1:])


N_FOLDS = 5


def as_inputs(activations: Any) -> Float[Array, "episode round d"]:
    """Return activations as ``[episode, round, feature]``: all axes after the round are flattened
    into one.

    Args:
        activations: an array, tensor or pandas object ``[episode, round, ...]``.

    >>> as_inputs(np.zeros((4, 7, 2, 16))).shape
    (4, 7, 32)
    """
    x = _convert_floats(activations, "activations")
    feature_axes = x.shape[2:]
    require(
        x.ndim >= 3 and 0 not in feature_axes,
        f"activations are [episode, round, feature...], got shape {x.shape}; rows of probes.to_sklearn are for "
        "scikit-learn, so give the activations and the target that they were made of, and groups= of each episode",
    )
    n_features = int(np.prod(feature_axes))
    # A ridge probe stores some nine matrices [feature, feature] of 8 bytes a number: products of
    # every two inputs in each fold and in all, and their eigenvectors.
    refuse_beyond_machine(
        f"a probe of {n_features:,} numbers a round (of a machine, probe one of its channels or points)",
        72.0 * n_features**2,
    )
    return rearrange(x, "episode round ... -> episode round (...)")


def warn_of_few(n: int) -> str | None:
    """Issue a ``UserWarning`` if there are fewer than 16 independent episodes (or groups of
    episodes), which are too few for accurate intervals. Return its text.

    Args:
        n: number of independent episodes or groups.

    Returns:
        The text of the warning; None if there are enough episodes and no warning was issued.
    """
    if n >= FEW_EPISODES:
        return None
    text = f"{n} independent episodes are few: below {FEW_EPISODES}, 95 % intervals cover as little as 88 %"
    warnings.warn(text, UserWarning, stacklevel=4)
    return text


def expected_low_score(
    x: Float[Array, "episode round d"], target: TargetValues, groups: Int[Array, " episode"]
) -> int:
    """Return 0 if there are enough episodes for the number of features. Otherwise the score of a
    probe is biased low, and the number of features that vary is returned.

    This can only happen to a target that is nearly constant within episodes, whose rounds do not
    add data (:func:`interp.stats.refit.is_biased_low`).

    Args:
        x: activations ``[episode, round, feature]``.
        target: the target.
        groups: index of each episode's group, such as its participant. Episodes of a group are not
            independent, so only the first one is counted.
    """
    target = target.indicators()
    _, first_of_group = np.unique(groups, return_index=True)
    values = target.values[first_of_group].astype(np.float64)
    mask = None if target.scored is None else target.scored[first_of_group]
    varies = (x != x[:1, :1]).any((0, 1))  # [feature]
    n_features = int(varies.sum())
    return n_features if refit.is_biased_low(values, n_features, mask) else 0


def equal_episodes(arrays: Sequence[Any]) -> Int[Array, " episode"] | None:
    """Number the different episodes. Identical episodes get the same number, so that they can form
    one group.

    Args:
        arrays: arrays ``[episode, ...]``; identical episodes are equal in all of them.

    Returns:
        The number of each episode, ``[episode]``; None if there are fewer than 5 different
        episodes, since cross-validation needs 5 folds.

    >>> equal_episodes([np.array([0, 1, 2, 3, 4, 0])]).tolist()
    [0, 1, 2, 3, 4, 0]
    """
    numbers, different = pd.factorize(np.array(digest_episodes(arrays)))
    return numbers if len(different) >= N_FOLDS else None


def as_groups(
    groups: Any, n_episodes: int, participants: Any = None, arrays: Sequence[Any] = ()
) -> Int[Array, " episode"]:
    """Return the group of each episode as a number, ``[episode]``. Groups, such as the episodes of
    one participant, are independent of each other.

    In cross-validation, a group is in one fold. It is an error if there are fewer groups than the 5
    folds, or if a group has more than half of the episodes.

    Args:
        groups: id of each episode's group; or "episode", which makes each episode a group. With
            None, participants are the groups if they are known. Otherwise each episode is a group,
            and identical episodes are one.
        n_episodes: number of episodes.
        participants: participant of each episode, if known.
        arrays: arrays ``[episode, ...]``; episodes are identical if they are equal in all of them.

    >>> as_groups(["ann", "bob", "cem", "dia", "eva", "ann"], 6)
    array([0, 1, 2, 3, 4, 0])
    """
    what = "groups"
    if groups is None:
        if participants is not None:
            what, groups = "participants", participants
        elif arrays:
            groups = equal_episodes(arrays)
    if groups is None or isinstance(groups, str):
        require(
            groups in (None, "episode"),
            f"groups must be 'episode' or an array of one group id per episode, got {groups!r}: rounds of an episode "
            "are not independent",
        )
        what, groups = "episodes", np.arange(n_episodes)
    # Refuses a wrong number of ids, and ids that are no labels.
    number_participants(groups, n_episodes, what)
    ids = groups.tolist() if hasattr(groups, "tolist") else groups
    _, numbers = np.unique(ids, return_inverse=True)
    sizes = np.bincount(numbers)
    too_few = f"{N_FOLDS} folds of {what} need at least {N_FOLDS} {what}, got {len(sizes)}"
    if what == "participants":
        too_few += "; with groups='episode' each episode counts"
    require(len(sizes) >= N_FOLDS, too_few)
    largest = sizes.max()
    require(
        2 * largest <= n_episodes,
        f"one group holds {largest} of {n_episodes} episodes; the shuffled control needs at most half in one group",
    )
    return numbers


def check(x: Array, target: TargetValues) -> None:
    """Raise InputError if no probe of the target can be fitted to the activations.

    Shapes must fit, and there must be at least 5 episodes, one for every fold of the
    cross-validation. Numbers must be finite, and the largest absolute value must be 0 or from
    1e-140 to 1e140, so that squares can be summed. The target must vary, and at least one entry
    must be scored.

    Args:
        x: activations ``[episode, round, feature]``.
        target: the target.
    """
    n_episodes, n_rounds = x.shape[:2]
    n_target_episodes, n_target_rounds = target.values.shape[:2]
    if (n_episodes, n_rounds) != (n_target_episodes, n_target_rounds):
        has_start = n_rounds == n_target_rounds + 1
        hint = "; for a state after each round give run.latents[:, 1:]" if has_start else ""
        raise InputError(
            f"activations have {n_episodes} episodes of {n_rounds} rounds but target {target.key!r} has "
            f"{n_target_episodes} of {n_target_rounds}{hint}"
        )
    _check_numbers("the activations", x)
    check_target(target)


def check_target(target: TargetValues) -> None:
    """Raise InputError if no probe of the target can be fitted, whatever the activations are: for
    the reasons that :func:`check` lists, as far as they are about the target.
    """
    as_groups("episode", n_episodes=len(target.values))  # refuses fewer episodes than folds
    _check_shapes(target)
    name = f"target {target.key!r}"
    _check_numbers(name, target.values)
    for encoding in target.inputs:
        _check_numbers("the round's inputs", encoding)
    require(
        target.varies,
        f"{name} is constant over these episodes, so there is nothing to decode; choose another target",
    )
    is_scored = target.scored is None or bool(target.scored.any())
    require(is_scored, f"no entry of {name} is scored in these episodes; sample more")


def _check_shapes(target: TargetValues) -> None:
    """Raise InputError if a target's mask, inputs, kinds of rounds or output names do not fit the
    shape of its values.
    """
    shape = target.values.shape
    rounds = shape[:2]
    what = f"target {target.key!r} of shape {shape}"
    n_names = len(target.outputs)
    require(
        n_names == shape[-1],
        f"{what} needs a name for each of its {shape[-1]} outputs, got {n_names}",
    )
    parts = [
        ("mask", target.mask, shape),
        ("kinds of rounds", target.types, rounds),
        ("missing rounds", target.missing, rounds),
    ]
    for encoding in target.inputs:
        parts.append(("round's inputs", encoding, (*rounds, *encoding.shape[2:])))
    for part, values, wanted in parts:
        if values is not None and values.shape != wanted:
            raise InputError(f"the {part} of {what} must have shape {wanted}, got {values.shape}")


def _check_numbers(what: str, values: Array) -> None:
    """Raise InputError if some values, or the sums of their squares, are not finite numbers.

    Args:
        what: what the values are, for error messages.
        values: the values.
    """
    n_infinite = int((~np.isfinite(values)).sum())
    require(
        not n_infinite,
        f"{n_infinite} values of {what} are NaN or infinite; a probe needs finite numbers. To leave rounds out, "
        "replace their values and mark them: dataclasses.replace(TargetValues.of(values), missing=[episode, round])",
    )
    largest = float(np.abs(values).max(initial=0.0))
    require(
        largest == 0 or _SMALLEST_SQUARABLE <= largest <= _LARGEST_SQUARABLE,
        f"the largest value of {what} is {largest:.3g}, whose square no number of 64 bits can hold; a probe needs "
        f"values of up to {_LARGEST_SQUARABLE:g}, and not all below {_SMALLEST_SQUARABLE:g}: "
        "divide or multiply all by one number",
    )


_LARGEST_SQUARABLE, _SMALLEST_SQUARABLE = 1e140, 1e-140
"""Range of the largest absolute value for which sums of squares neither overflow nor vanish."""


def overflows(x: Array) -> bool:
    """Return True if no probe can be fitted, because activations, or the sum of their squares, are
    not finite.

    >>> [overflows(np.full((2, 3, 1), value)) for value in (1.0, 1e200, np.nan)]
    [False, True, True]
    """
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("erd,erd->", x, x, dtype=np.float64)  # without an array of squares
        # (sum x)^2 <= n sum x^2, so that squares of sums are finite, too.
        return not np.isfinite(x.size * squares)
