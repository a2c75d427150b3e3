"""Fit a linear probe, split by episode, with its controls in the same call.

``fit(activations, target)`` decodes a target from activations by ridge regression (:mod:`probes.linear`): every
prediction is made for an episode that the probe was not fitted on, R2 has a 95 % interval over episodes, and next to it
stand the controls.

What a probe is NOT evidence of: that the model uses what it can be read from. Decoding shows that a linear map of the
activation carries the target beyond the controls; use is shown by intervening along :meth:`ProbeResult.direction`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray as Array

from interp.errors import InputError, require
from interp.provenance import provenance
from probes.linear import assign_folds, cross_validate
from probes.scores import Score, SquaredSums, r2_scores
from probes.targets import TargetValues

N_FOLDS = 5


@dataclass(frozen=True)
class Control:
    """A control's score, and how much more the probe reaches."""

    name: str
    score: Score
    difference: Score


@dataclass(frozen=True)
class ProbeResult:
    """A probe's scores and controls.

    Attributes:
        target: key of the target.
        outputs: names of its outputs.
        score: R2 over all outputs with its interval; ``by_output`` for each.
        controls: the same fit where it cannot succeed, and the difference.
        predictions: out-of-fold, ``[episode, round, output]``.
        weights, intercept: the probe refitted on all episodes, on raw inputs.
        settings: provenance.
    """

    target: str
    outputs: tuple[str, ...]
    score: Score
    by_output: tuple[Score, ...]
    controls: dict[str, Control]
    predictions: Float[Array, "episode round k"]
    weights: Float[Array, "d k"]
    intercept: Float[Array, " k"]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def r2(self) -> float:
        return self.score.estimate

    @property
    def r2_ci(self) -> tuple[float, float]:
        return self.score.interval

    @property
    def represented(self) -> bool:
        """R2 and its difference from every control have intervals above zero."""
        return self.score.low > 0 and all(control.difference.low > 0 for control in self.controls.values())

    def to_frame(self) -> pd.DataFrame:
        """One row for the target, one for each output, one for each control."""
        rows = [_row(self.target, "probe", "all", self.score)]
        rows += [_row(self.target, "probe", o, s) for o, s in zip(self.outputs, self.by_output, strict=True)]
        rows += [_row(self.target, c.name, "all", c.score, c.difference) for c in self.controls.values()]
        return pd.DataFrame(rows)


def _row(target: str, fitted: str, output: str, score: Score, difference: Score | None = None) -> dict[str, Any]:
    extra = (difference.estimate, difference.low, difference.high) if difference else (np.nan,) * 3
    names = ("r2", "r2_low", "r2_high", "difference", "difference_low", "difference_high")
    return {
        "target": target,
        "fitted": fitted,
        "output": output,
        **dict(zip(names, (score.estimate, *score.interval, *extra), strict=True)),
    }


def fit(
    activations: Any,
    target: TargetValues | Array,
    groups: str = "episode",
    seed: int = 0,
) -> ProbeResult:
    """Decode ``target`` from ``activations``, with controls.

    Args:
        activations: ``[episode, round, ...]``, tensor or array; trailing axes are inputs.
        target: from :mod:`probes.targets`, or an array ``[episode, round, output]``.
        groups: "episode": folds and bootstrap are made of whole episodes; there is no other choice.
        seed: of the folds, the shuffles and the bootstrap.

    Raises:
        InputError: shapes that do not fit, NaN, a constant target, fewer episodes than folds.

    Example:
        >>> import interp, probes
        >>> from interp.tasks import experts
        >>> episodes = experts.sample(n_episodes=32, n_rounds=20, n_experts=4, seed=0)
        >>> run = interp.rollout(interp.load("wma-handwired", n_experts=4), episodes)
        >>> result = probes.fit(run.latents[:, 1:], probes.targets.log_weights(episodes), groups="episode")
        >>> round(result.r2, 6), result.represented
        (1.0, True)
    """
    require(groups == "episode", f"groups must be 'episode', got {groups!r}: rounds of one episode are not independent")
    if not isinstance(target, TargetValues):
        values = np.asarray(target)
        values = values[..., None] if values.ndim == 2 else values
        require(values.ndim == 3, f"a target is [episode, round, output], got shape {values.shape}")
        target = TargetValues("target", values, tuple(str(i) for i in range(values.shape[-1])))
    x, y = _inputs(activations), np.asarray(target.values, dtype=np.float64)
    _check(x, y, target.key)
    folds = assign_folds(len(x), N_FOLDS, seed)
    shuffled = y[np.random.default_rng([seed, 1]).permutation(len(y))]
    k = y.shape[-1]
    both = cross_validate(x, np.concatenate([y, shuffled], -1), folds, np.repeat([0, 1], k))
    scores = r2_scores(SquaredSums.of(y, both.predictions[..., :k], target.mask), seed)
    mask = target.mask
    control = r2_scores(SquaredSums.of(shuffled, both.predictions[..., k:], mask), seed)[-1]
    return ProbeResult(
        target=target.key,
        outputs=target.outputs,
        score=scores[-1],
        by_output=tuple(scores[:-1]),
        controls={"shuffled": Control("shuffled", control, scores[-1].minus(control))},
        predictions=both.predictions[..., :k],
        weights=both.weights[:, :k],
        intercept=both.intercept[:k],
        settings=provenance(target=target.key, seed=seed, n_folds=N_FOLDS, n_episodes=len(x)),
    )


def _inputs(activations: Any) -> Float[Array, "episode round d"]:
    if hasattr(activations, "detach"):
        activations = activations.detach().cpu().numpy()
    x = np.asarray(activations)
    require(x.ndim >= 3, f"activations are [episode, round, ...], got shape {x.shape}")
    return x.reshape(*x.shape[:2], -1)


def _check(x: Array, y: Array, key: str) -> None:
    if x.shape[:2] != y.shape[:2]:
        raise InputError(
            f"activations have {x.shape[0]} episodes x {x.shape[1]} rounds but target {key!r} has "
            f"{y.shape[0]} x {y.shape[1]}; for a state after each round give run.latents[:, 1:]"
        )
    require(len(x) >= N_FOLDS, f"{N_FOLDS} folds need at least {N_FOLDS} episodes, got {len(x)}; sample more")
    for what, values in (("activations", x), (f"target {key!r}", y)):
        require(bool(np.isfinite(values).all()), f"{what} hold NaN or infinite values; remove them first")
    constant = (y == y[:1, :1]).all((0, 1))
    require(not constant.all(), f"target {key!r} is constant, so there is nothing to decode; choose another")
