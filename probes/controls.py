"""Controls: the same fit where it cannot succeed, or where success would mean nothing.

The word of a probe is "yes" where its score is clear of every control that counts. A score estimates *that score, on
new episodes, of this very probe, refitted on all episodes*; its interval is that of
:mod:`interp.stats.refit`. What each
control tells, and how R2 is taken: docs/method/probes.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isnan, nan
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy import ndarray as Array

from interp.results.measure import UNTRAINED
from interp.stats import refit
from interp.stats.intervals import Interval
from interp.support.checks import array_of, checked
from probes.values import N_FOLDS, TargetValues

DESCRIPTIONS = {
    "shuffled": "the target of other episodes",
    "untrained": UNTRAINED,
    "inputs": "a probe of the round's inputs",
    "round": "a probe of the round index",
    "control_task": "a random target for each kind of round",
}
"""What each control is, in the order of tables."""

_SHUFFLE, _TASK = 1, 2


class _Difference(Interval):
    """How much higher a probe's score is than a control's; the bounds are NaN where these are of other episodes."""

    def __str__(self) -> str:
        bounds = "(no interval)" if isnan(self.low) else f"[{self.low:.3f}, {self.high:.3f}]"
        return f"{self.estimate:.3f} {bounds}"


@dataclass(frozen=True, eq=False)
class ProbeScore(_Difference):
    """An estimate with its 95 % interval, and the sums over episodes that the interval is read from.

    Attributes:
        losses: out-of-fold, per independent group of episodes: squared errors (R2), misses (accuracy).
        references: what they are divided by: totals (R2), scored steps (accuracy).
        kind: "skill" (R2: one minus the ratio), "accuracy" (the same, within 0 and 1) or "ratio" (the ratio itself).
        constant: losses of the best constant: the references of R2, the misses of the most frequent class.
        graded: of rare classes, the squared errors of probabilities, and what the shares of the classes leave.

    >>> losses = np.array([[1.0, 2.0, 3.0, 2.0, 2.0], [7.0, 8.0, 7.0, 8.0, 8.0]])
    >>> score, control = (ProbeScore.of(lost, np.full(5, 8.0)) for lost in losses)
    >>> print(score, "beats the control by", score.minus(control))
    0.750 [0.431, 0.890] beats the control by 0.700 [0.349, 0.923]
    """

    losses: Float[Array, " group"] = field(repr=False)
    references: Float[Array, " group"] = field(repr=False)
    kind: refit.Score = "skill"
    constant: Float[Array, " group"] = field(default_factory=lambda: np.zeros(0), repr=False)
    graded: tuple[Float[Array, " group"], Float[Array, " group"]] | None = field(
        default=None, repr=False
    )

    @classmethod
    @checked
    def of(
        cls,
        losses: Shaped[Array, " group"],
        references: Shaped[Array, " group"],
        kind: refit.Score = "skill",
        constant: Shaped[Array, " group"] | None = None,
        graded: tuple[Float[Array, " group"], Float[Array, " group"]] | None = None,
    ) -> ProbeScore:
        """From sums per independent group of episodes; the constant's losses are the references when None."""
        lost = array_of("losses", losses).astype(np.float64)
        scale = array_of("references", references).astype(np.float64)
        own = refit.interval(lost, scale, N_FOLDS, kind)
        return cls(
            own.estimate,
            own.low,
            own.high,
            lost,
            scale,
            kind,
            scale if constant is None else constant,
            graded,
        )

    @property
    def skill(self) -> Interval:
        """One minus the losses over those of the best constant: R2 itself, or what an accuracy is above guessing.

        Of rare classes it is R2 of their indicators, as probabilities give them: what is likeliest misses them all.
        """
        if self.kind == "skill":
            return Interval(self.estimate, self.low, self.high)
        if self.graded is not None:
            return refit.interval(*self.graded, N_FOLDS)
        return refit.interval(self.losses, self.constant, N_FOLDS, smallest=0.5)

    @checked
    def minus(self, other: ProbeScore) -> _Difference:
        """The difference from a score of the same kind, with its paired interval where both have the same episodes."""
        lost, of_control, scale, references = (
            self.losses,
            other.losses,
            self.references,
            other.references,
        )
        if len(lost) != len(of_control):
            return _Difference(self.estimate - other.estimate, nan, nan)
        paired = refit.difference(
            lost, of_control, scale, N_FOLDS, self.kind, control_references=references
        )
        return _Difference(paired.estimate, paired.low, paired.high)

    @property
    def detectable(self) -> float:
        """The smallest skill whose interval would have excluded 0 in this sample."""
        return refit.detectable(*(self.graded or (self.losses, self.constant)), N_FOLDS)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A cross-validated probe of one target: its score, and the other fields of a result, made when they are needed."""

    score: ProbeScore
    details: Callable[[], dict[str, Any]]


def fitted(
    target: TargetValues,
    predictions: Shaped[Array, "episode round k"],
    groups: Int[Array, " episode"],
    refitted: Callable[[], dict[str, Any]],
    probabilities: Sequence[Float[Array, "episode round c"]] = (),
) -> Fitted:
    """A probe of one target from its out-of-fold predictions: R2 of numbers, the accuracy of classes.

    ``refitted`` gives what belongs to the probe that was fitted on all episodes.
    """
    of_classes = target.kind == "class"
    y = target.values if of_classes else target.values.astype(np.float64)
    used = np.ones(y.shape, dtype=bool) if target.mask is None else target.mask

    def summed(values: Shaped[Array, "episode round k"]) -> Float[Array, "group k"]:
        return refit.in_groups((values * used).sum(1), groups)

    steps = summed(used)
    kind: refit.Score = "accuracy" if of_classes else "skill"
    graded = None
    if probabilities and target.is_rare:
        given = np.concatenate(probabilities, -1)
        shown = np.concatenate(
            [np.eye(p.shape[-1])[y[..., k]] for k, p in enumerate(probabilities)], -1
        )
        scored = np.repeat(used, probabilities[0].shape[-1], -1)
        missed = refit.in_groups(np.square((given - shown) * scored).sum(1), groups)
        graded = missed.sum(1), refit.totals(shown, scored, groups).sum(1)
    if of_classes:
        most = [
            np.bincount(y[..., k][used[..., k]], minlength=1).argmax() for k in range(y.shape[-1])
        ]
        parts = summed(predictions != y), steps, summed(y != np.array(most))
    else:
        wrong, totals = (y - predictions) * used, refit.totals(y, target.mask, groups)
        parts = refit.in_groups(np.einsum("etk,etk->ek", wrong, wrong), groups), totals, totals
    score = ProbeScore.of(parts[0].sum(1), parts[1].sum(1), kind, parts[2].sum(1), graded)

    def details() -> dict[str, Any]:
        each = zip(target.outputs, *(part.T for part in parts), strict=True)
        metrics: dict[str, Interval] = {"accuracy" if of_classes else "r2": score}
        if not of_classes:
            metrics["mae"] = ProbeScore.of(
                summed(np.abs(y - predictions)).sum(1), steps.sum(1), "ratio"
            )
        if probabilities:
            truth = y.astype(np.int64)
            of_truth = [
                np.take_along_axis(p, truth[..., [k]], axis=-1)[..., 0]
                for k, p in enumerate(probabilities)
            ]
            losses = -np.log(np.maximum(np.stack(of_truth, axis=-1), np.finfo(np.float64).tiny))
            metrics["log_loss"] = ProbeScore.of(
                summed(np.maximum(losses, 0.0)).sum(1), steps.sum(1), "ratio"
            )
        by_output = {
            name: ProbeScore.of(lost, scale, kind, constant) for name, lost, scale, constant in each
        }
        found = {"by_output": by_output, "metrics": metrics, "columns": target.outputs}
        return {**found, "predictions": predictions.astype(np.float64), **refitted()}

    return Fitted(score, details)


def _unpacked(one: Fitted, counted: Bool[Array, "episode round"]) -> dict[str, Any]:
    """Details of a probe of rounds fitted one by one: predictions ``[episode, round, output]``, NaN in the others."""
    made = one.details()
    predictions = np.full((*counted.shape, made["predictions"].shape[-1]), nan)
    predictions[counted] = made["predictions"][:, 0]
    return {**made, "predictions": predictions}


@dataclass(frozen=True, eq=False)
class ControlScore:
    """The score of a control, how much higher the probe's score is, and whether a "yes" must be clear of it.

    A control that holds the target by construction (the inputs, for a target that is one of them) does not count.
    """

    name: str
    score: ProbeScore
    difference: _Difference
    counts: bool = True

    def __str__(self) -> str:
        note = "" if self.counts else " (holds the target by construction)"
        return f"{self.score}, probe - control {self.difference}{note}"


def _shuffled(
    values: Shaped[Array, episode * rest], seed: int, groups: Int[Array, " episode"] | None = None
) -> Shaped[Array, episode * rest]:
    """Every episode gets the values of an episode of another group; every episode is a group when None.

    Groups are laid out in random order, and values move on by as many places as the largest group has episodes.
    """
    groups = np.arange(len(values)) if groups is None else groups
    places = np.random.default_rng([seed, _SHUFFLE]).permutation(int(groups.max()) + 1)
    order = np.argsort(np.argsort(places)[groups], kind="stable")
    result = np.empty_like(values)
    result[order] = values[np.roll(order, np.bincount(groups).max())]
    return result


def _control_task(
    values: Shaped[Array, "episode round k"],
    types: Int[Array, "episode round"],
    seed: int,
    missing: Bool[Array, "episode round"] | None = None,
) -> Shaped[Array, "episode round k"]:
    """Every kind of round gets the values of a random round that counts, wherever it occurs."""
    rows = values.reshape(-1, values.shape[-1]) if missing is None else values[~missing]
    draws = np.random.default_rng([seed, _TASK]).integers(len(rows), size=int(types.max()) + 1)
    return rows[draws][types]


def _assign_folds(n_episodes: int, n_folds: int, seed: int) -> Int[Array, " episode"]:
    """A fold for every episode: sizes differ by at most one."""
    return np.random.default_rng(seed).permutation(np.arange(n_episodes) % n_folds)


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of probe, which ``method`` names.

    ``fit`` takes inputs ``[episode, round, feature]``, targets, and a fold and a group for each episode. A kind that is
    not ``of_classes`` decodes numbers, and classes as indicators.
    """

    name: str
    of_classes: bool
    fit: Callable[[Array, Sequence[TargetValues], Array, Array], list[Fitted]]


@dataclass(frozen=True, eq=False)
class GroupedTargets:
    """Targets of the same episodes, and a group for each of these, whose members share a fold."""

    targets: Sequence[TargetValues]
    groups: Int[Array, " episode"]
    seed: int

    def fit(self, kind: Kind, x: Array, targets: Sequence[TargetValues] = ()) -> list[Fitted]:
        """Probes of all targets, and of others of the same episodes, from ``x``.

        Where some rounds do not count, each round that does is fitted as an episode of its own, in the fold and group
        of its episode; targets of which the same rounds count are fitted together.
        """
        folds = _assign_folds(int(self.groups.max()) + 1, N_FOLDS, self.seed)[self.groups]
        every = [one if kind.of_classes else one.indicators() for one in (*self.targets, *targets)]
        if self.targets[0].missing is None:
            return kind.fit(x, every, folds, self.groups)
        found: dict[int, Fitted] = {}
        masks = [np.asarray(one.missing).tobytes() for one in every]
        for mask in dict.fromkeys(masks):
            alike = [i for i, own in enumerate(masks) if own == mask]
            counted = ~np.asarray(every[alike[0]].missing)
            row, packed = np.nonzero(counted)[0], [every[i].packed() for i in alike]
            made = kind.fit(x[counted][:, None], packed, folds[row], self.groups[row])
            for i, one in zip(alike, made, strict=True):
                found[i] = replace(one, details=partial(_unpacked, one, counted))
        return [found[i] for i in range(len(every))]


@dataclass(frozen=True, eq=False)
class Problem:
    """A sample with what its controls need: each target shuffled, and the control task of those that have kinds."""

    sample: GroupedTargets
    kind: Kind
    drawn: Mapping[tuple[int, str], TargetValues]
    baselines: Mapping[tuple[int, str], ProbeScore] = field(default_factory=dict)

    @classmethod
    def of(cls, sample: GroupedTargets, kind: Kind) -> Problem:
        """The problem of a sample, without the scores of its baselines."""
        seed, groups, drawn = sample.seed, sample.groups, {}
        numbers = [target if kind.of_classes else target.indicators() for target in sample.targets]
        for i, t in enumerate(numbers):
            # A shuffled target brings its mask along; a control task is scored where its target is.
            mask = None if t.mask is None else _shuffled(t.mask, seed, groups)
            both = None if t.missing is None else t.missing | _shuffled(t.missing, seed, groups)
            drawn[i, "shuffled"] = replace(
                t, values=_shuffled(t.values, seed, groups), mask=mask, missing=both
            )
        for i, t in enumerate(numbers):
            if t.types is not None:
                drawn[i, "control_task"] = replace(
                    t, values=_control_task(t.values, t.types, seed, t.missing)
                )
        return cls(replace(sample, targets=numbers), kind, drawn)

    def with_baselines(self) -> Problem:
        """The same with the scores of the controls that read no activation: the round index and the round's inputs."""
        scores: dict[tuple[int, str], ProbeScore] = {}
        n_episodes, n_rounds = self.sample.targets[0].values.shape[:2]
        index = np.broadcast_to(np.eye(n_rounds), (n_episodes, n_rounds, n_rounds))
        for name, forms in (("round", (index,)), ("inputs", self.sample.targets[0].inputs)):
            for form in forms:
                _keep_best(scores, name, self.sample.fit(self.kind, form))
        return replace(self, baselines=scores)

    def fit(
        self,
        x: Float[Array, "episode round d"],
        copies: Iterable[tuple[Array, GroupedTargets]] = (),
    ) -> list[tuple[Fitted, dict[str, ControlScore]]]:
        """Each target's probe and controls; of several untrained copies the one with the highest score counts.

        ``copies`` are activations of each copy, and the targets of its episodes.
        """
        n = len(self.sample.targets)
        fitted = self.sample.fit(self.kind, x, list(self.drawn.values()))
        scores = {key: one.score for key, one in zip(self.drawn, fitted[n:], strict=True)} | dict(
            self.baselines
        )
        for blank, sample in copies:
            _keep_best(scores, "untrained", sample.fit(self.kind, blank))
        results = []
        for i, (own, target) in enumerate(zip(fitted, self.sample.targets, strict=False)):
            controls = {}
            for name in DESCRIPTIONS:
                if score := scores.get((i, name)):
                    counts = name not in target.implied_by
                    controls[name] = ControlScore(name, score, own.score.minus(score), counts)
            results.append((own, controls))
        return results


def _keep_best(
    scores: dict[tuple[int, str], ProbeScore], name: str, fitted: Sequence[Fitted]
) -> None:
    """Put each target's score of a control that has several forms where it is higher than the one that is there."""
    for i, one in enumerate(fitted):
        known = scores.get((i, name))
        if known is None or one.score.estimate > known.estimate:
            scores[i, name] = one.score
