"""What cannot be fitted, told in a sentence before any work is done."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from einops import rearrange
from jaxtyping import Float, Int
from numpy import ndarray as Array

from interp.errors import InputError, require
from interp.refit import FEW_EPISODES
from probes.arrays import as_array
from probes.targets.values import TargetValues

N_FOLDS = 5


def as_inputs(activations: Any) -> Float[Array, "episode round d"]:
    """Activations as an array with one feature axis.

    Raises:
        InputError: fewer than three axes.

    >>> as_inputs(np.zeros((4, 7, 2, 16))).shape
    (4, 7, 32)
    """
    x = as_array(activations, "activations")
    x = x if x.dtype.kind == "f" else x.astype(np.float64)
    require(x.ndim >= 3, f"activations are [episode, round, feature...], got shape {x.shape}")
    return rearrange(x, "episode round ... -> episode round (...)")


def warn_of_few(n: int, stacklevel: int = 4) -> str | None:
    """The warning for few independent episodes (or groups), which is also raised; None where they suffice."""
    if n >= FEW_EPISODES:
        return None
    text = f"{n} independent episodes are few: below {FEW_EPISODES}, 95 % intervals cover as little as 88 %"
    warnings.warn(text, UserWarning, stacklevel=stacklevel)
    return text


def as_groups(groups: Any, n_episodes: int) -> Int[Array, " episode"]:
    """A number for each episode, the same for the episodes of a group; with "episode", each is a group of its own.

    Raises:
        InputError: another word, not one id per episode, fewer groups than folds, or a group so large that its episodes
            cannot all be given values of other groups (the shuffled control).

    >>> as_groups(["ann", "bob", "cem", "dia", "eva", "ann"], 6)
    array([0, 1, 2, 3, 4, 0])
    """
    what = "groups"
    if isinstance(groups, str):
        require(
            groups == "episode",
            f"groups must be 'episode' or an array of one group id per episode, got {groups!r}: rounds of an episode "
            "are not independent",
        )
        what, groups = "episodes", np.arange(n_episodes)
    ids = np.asarray(groups.tolist() if hasattr(groups, "tolist") else groups)
    require(ids.shape == (n_episodes,), f"groups must hold {n_episodes} ids, one per episode, got shape {ids.shape}")
    numbers = np.unique(ids, return_inverse=True)[1]
    sizes = np.bincount(numbers)
    require(len(sizes) >= N_FOLDS, f"{N_FOLDS} folds of {what} need at least {N_FOLDS} {what}, got {len(sizes)}")
    require(
        bool(2 * sizes.max() <= n_episodes),
        f"one group holds {sizes.max()} of {n_episodes} episodes; the shuffled control needs at most half in one group",
    )
    return numbers


def check(x: Array, target: TargetValues) -> None:
    """Refuse what cannot be fitted.

    Raises:
        InputError: shapes that do not fit, too few episodes, NaN, a constant target, or one that is scored nowhere.
    """
    y = target.values
    if x.shape[:2] != y.shape[:2]:
        hint = "; for a state after each round give run.latents[:, 1:]" if x.shape[1] == y.shape[1] + 1 else ""
        raise InputError(
            f"activations have {x.shape[0]} episodes of {x.shape[1]} rounds but target {target.key!r} has {y.shape[0]} "
            f"of {y.shape[1]}{hint}"
        )
    as_groups("episode", len(x))
    for what, values in (("the activations", x), (f"target {target.key!r}", y)):
        finite = np.isfinite(values)
        require(
            bool(finite.all()),
            f"{what} hold {int((~finite).sum())} values that are NaN or infinite; a probe needs finite numbers",
        )
    for inputs in target.inputs:
        require(bool(np.isfinite(inputs).all()), "the round's inputs hold NaN or infinite values")
    require(
        target.varies,
        f"target {target.key!r} is constant over these episodes, so there is nothing to decode; choose another target",
    )
    if target.mask is not None:
        require(bool(target.mask.any()), f"no entry of target {target.key!r} is scored in these episodes; sample more")


def check_classes(target: TargetValues) -> None:
    """Refuse classes that no logistic probe can tell apart because an output has one of them only.

    Raises:
        InputError: such an output.
    """
    rows = target.values.reshape(-1, target.values.shape[-1])
    constant = [name for name, values in zip(target.outputs, rows.T, strict=True) if (values == values[0]).all()]
    require(
        not constant,
        f"output {constant[0] if constant else ''!r} of target {target.key!r} is one class in all {len(rows)} rounds, "
        "so there is nothing to decode; sample more episodes or rounds",
    )


def check_untrained(x: Array, blank: Array) -> None:
    """Refuse an untrained control of another shape, or one that ran away.

    Raises:
        InputError: either of these.
    """
    require(
        x.shape == blank.shape,
        f"activations of the untrained model have shape {blank.shape}, those of the model {x.shape}; "
        "use probes.untrained(model) on the same episodes",
    )
    require(bool(np.isfinite(blank).all()), "activations of the untrained model hold NaN or infinite values")
