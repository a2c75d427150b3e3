"""Controls: the same fit where it cannot succeed, or where success would mean nothing.

* ``shuffled``: each episode is given the target of an episode of another group. What remains is what all share.
* ``untrained``: the same architecture with fresh random weights: what any random features of the inputs hold.
* ``inputs``: the current round's tokens and payloads, or these and their products, instead of activations.
* ``round``: the round index alone (one indicator per round): a target that grows with time is half decoded by it.
* ``control_task`` (Hewitt and Liang 2019): every kind of round (its tokens) is given a target drawn at random, the same
  wherever it occurs; a probe that can memorise does well. The difference from it is the probe's *selectivity*.

Each has the penalties and score of the probe itself. All but the untrained copies, which may be run over more episodes,
have its folds, too, so that differences are paired by episode. The word about a probe is that of its measure
(:mod:`interp.measure`): it is "yes" where the score is clear of every control that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy import ndarray as Array

from interp.measure import UNTRAINED
from probes.scores import Difference, Fitted, ProbeScore
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


@dataclass(frozen=True, eq=False)
class Control:
    """The score of a control, how much higher the probe's score is, and whether a "yes" must be clear of it.

    A control that holds the target by construction (the inputs, for a target that is one of them) does not count.
    """

    name: str
    score: ProbeScore
    difference: Difference
    counts: bool = True

    def __str__(self) -> str:
        note = "" if self.counts else " (holds the target by construction)"
        return f"{self.score}, probe - control {self.difference}{note}"


def shuffled(
    values: Shaped[Array, episode * rest], seed: int, groups: Int[Array, " episode"] | None = None
) -> Shaped[Array, episode * rest]:
    """Every episode gets the values of an episode of another group; every episode is a group when None.

    Groups are laid out one after another in random order, and values move on by as many places as the largest group
    has episodes; no group may hold more than half of them.
    """
    groups = np.arange(len(values)) if groups is None else groups
    places = np.random.default_rng([seed, _SHUFFLE]).permutation(int(groups.max()) + 1)
    order = np.argsort(np.argsort(places)[groups], kind="stable")
    result = np.empty_like(values)
    result[order] = values[np.roll(order, np.bincount(groups).max())]
    return result


def control_task(
    values: Shaped[Array, "episode round k"], types: Int[Array, "episode round"], seed: int
) -> Shaped[Array, "episode round k"]:
    """Every kind of round gets the values of a random round, wherever it occurs."""
    rows = values.reshape(-1, values.shape[-1])
    draws = np.random.default_rng([seed, _TASK]).integers(len(rows), size=int(types.max()) + 1)
    return rows[draws][types]


def assign_folds(n_episodes: int, n_folds: int, seed: int) -> Int[Array, " episode"]:
    """A fold for every episode: sizes differ by at most one."""
    return np.random.default_rng(seed).permutation(np.arange(n_episodes) % n_folds)


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of probe: ``method`` names it, and ``check`` refuses a target that it cannot fit.

    ``fit`` takes inputs ``[episode, round, feature]``, targets, and a fold and a group for each episode. A kind that is
    not ``of_classes`` decodes numbers, and classes as indicators.
    """

    name: str
    of_classes: bool
    fit: Callable[[Array, Sequence[TargetValues], Array, Array], list[Fitted]]
    check: Callable[[TargetValues], None] = lambda target: None


@dataclass(frozen=True, eq=False)
class Sample:
    """Targets of the same episodes, and a group for each of these, whose members share a fold."""

    targets: Sequence[TargetValues]
    groups: Int[Array, " episode"]
    seed: int

    def fit(self, kind: Kind, x: Array, targets: Sequence[TargetValues] = ()) -> list[Fitted]:
        """Probes of all targets, and of others of the same episodes, from ``x``."""
        folds = assign_folds(int(self.groups.max()) + 1, N_FOLDS, self.seed)[self.groups]
        every = [*self.targets, *targets]
        return kind.fit(x, every if kind.of_classes else [one.indicators() for one in every], folds, self.groups)


Copy = tuple[Array, Sample]
"""Activations ``[episode, round, feature]`` of an untrained copy, and the targets of its episodes."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A sample with what its controls need: each target shuffled, and the control task of those that have kinds."""

    sample: Sample
    kind: Kind
    drawn: Mapping[tuple[int, str], TargetValues]
    baselines: Mapping[tuple[int, str], ProbeScore] = field(default_factory=dict)

    @classmethod
    def of(cls, sample: Sample, kind: Kind) -> Problem:
        """The problem of a sample, without the scores of its baselines."""
        seed, groups, drawn = sample.seed, sample.groups, {}
        numbers = [target if kind.of_classes else target.indicators() for target in sample.targets]
        for i, t in enumerate(numbers):
            # A shuffled target brings its mask along; a control task is scored where its target is.
            mask = None if t.mask is None else shuffled(t.mask, seed, groups)
            drawn[i, "shuffled"] = replace(t, values=shuffled(t.values, seed, groups), mask=mask)
        for i, t in enumerate(numbers):
            if t.types is not None:
                drawn[i, "control_task"] = replace(t, values=control_task(t.values, t.types, seed))
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
        self, x: Float[Array, "episode round d"], copies: Iterable[Copy] = ()
    ) -> list[tuple[Fitted, dict[str, Control]]]:
        """Each target's probe and controls; of several untrained copies the one with the highest score counts."""
        n = len(self.sample.targets)
        fitted = self.sample.fit(self.kind, x, list(self.drawn.values()))
        scores = {key: one.score for key, one in zip(self.drawn, fitted[n:], strict=True)} | dict(self.baselines)
        for blank, sample in copies:
            _keep_best(scores, "untrained", sample.fit(self.kind, blank))
        return [
            (
                own,
                {
                    name: Control(
                        name, scores[i, name], own.score.minus(scores[i, name]), name not in target.implied_by
                    )
                    for name in DESCRIPTIONS
                    if (i, name) in scores
                },
            )
            for i, (own, target) in enumerate(zip(fitted, self.sample.targets, strict=False))
        ]


def _keep_best(scores: dict[tuple[int, str], ProbeScore], name: str, fitted: Sequence[Fitted]) -> None:
    """Put each target's score of a control that has several forms where it is higher than the one that is there."""
    for i, one in enumerate(fitted):
        known = scores.get((i, name))
        if known is None or one.score.estimate > known.estimate:
            scores[i, name] = one.score
