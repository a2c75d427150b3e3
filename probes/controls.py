"""Controls: the same fit where it cannot succeed, or where success would mean nothing.

* ``shuffled``: each episode is given the target of an episode of another group. What remains is what all share.
* ``untrained``: the same architecture with fresh random weights: what any random features of the inputs hold.
* ``inputs``: the current round's tokens and payloads, or these and their products, instead of activations.
* ``round``: the round index alone (one indicator per round): a target that grows with time is half decoded by it.
* ``control_task`` (Hewitt and Liang 2019): every kind of round (its tokens) is given a target drawn at random, the same
  wherever it occurs; a probe that can memorise does well. The difference from it is the probe's *selectivity*.

Each has the folds, penalties and score of the probe itself, so that differences are paired by episode.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy import ndarray as Array

from probes.linear import RidgeFit, cross_validate
from probes.scores import R2, Difference, ProbeScore
from probes.targets.values import TargetValues

DESCRIPTIONS = {
    "shuffled": "targets shuffled between episodes",
    "untrained": "an untrained model of the same architecture",
    "inputs": "the current round's inputs alone",
    "round": "the round index alone",
    "control_task": "a random target for every kind of round",
}
"""What each control is, in the order of tables."""

_SHUFFLE, _TASK = 1, 2


@dataclass(frozen=True, eq=False)
class Control:
    """The score of a control, how much higher the probe's score is, and whether the verdict depends on it.

    A control that holds the target by construction (the inputs, for a target that is one of them) is shown, not asked.
    """

    name: str
    score: ProbeScore
    difference: Difference
    counted: bool = True

    def __str__(self) -> str:
        note = "" if self.counted else " (holds the target by construction)"
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


def round_index(n_episodes: int, n_rounds: int) -> Float[Array, "episode round index"]:
    """One indicator per round."""
    return np.broadcast_to(np.eye(n_rounds), (n_episodes, n_rounds, n_rounds))


@dataclass(frozen=True, eq=False)
class Part:
    """One target in one role (as it is, "shuffled", or replaced by its "control_task"), and its columns."""

    target: int
    role: str
    columns: slice


@dataclass(frozen=True, eq=False)
class Fitted:
    """What one matrix of inputs gave: the fit, and the score of every part by (target, role)."""

    fit: RidgeFit
    errors: Float[Array, "group k"]
    scores: dict[tuple[int, str], ProbeScore]


@dataclass(frozen=True, eq=False)
class Problem:
    """Real targets side by side, each with its shuffled copy and its control task: what one factorisation fits.

    Attributes:
        targets: as numbers; class targets as indicators.
        r2: all columns and their score; those of the targets themselves come first, ``n_own`` of them.
        blocks: the part that each column belongs to.
        parts: what the columns are.
    """

    targets: tuple[TargetValues, ...]
    r2: R2
    blocks: Int[Array, " k"]
    n_own: int
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, targets: Sequence[TargetValues], seed: int, groups: Int[Array, " episode"], n_folds: int) -> Problem:
        """The targets, with the shuffled ones and those of the control tasks beside them."""
        numbers = tuple(target.indicators() for target in targets)
        # A shuffled target brings its mask along; a control task is scored where its target is.
        roles = [(i, "probe", target.values, target.mask) for i, target in enumerate(numbers)]
        for i, t in enumerate(numbers):
            mask = None if t.mask is None else shuffled(t.mask, seed, groups)
            roles.append((i, "shuffled", shuffled(t.values, seed, groups), mask))
        roles += [
            (i, "control_task", control_task(t.values, t.types, seed), t.mask)
            for i, t in enumerate(numbers)
            if t.types is not None
        ]
        y = np.concatenate([values for _, _, values, _ in roles], axis=-1, dtype=np.float64)
        masks = [np.ones(v.shape, dtype=bool) if mask is None else mask for _, _, v, mask in roles]
        mask = np.concatenate(masks, axis=-1) if any(target.mask is not None for target in numbers) else None
        widths = [values.shape[-1] for _, _, values, _ in roles]
        starts = np.cumsum([0, *widths])
        parts = [Part(i, role, slice(int(starts[p]), int(starts[p + 1]))) for p, (i, role, *_) in enumerate(roles)]
        return cls(
            targets=numbers,
            r2=R2.of(y, mask, groups, n_folds),
            blocks=np.repeat(np.arange(len(roles)), widths),
            n_own=sum(target.values.shape[-1] for target in numbers),
            parts=tuple(parts),
        )

    def fit(self, x: Float[Array, "episode round d"], folds: Int[Array, " episode"], own_only: bool = False) -> Fitted:
        """Fit and score every part, or the targets themselves only, from ``x``."""
        end = self.n_own if own_only else self.r2.y.shape[-1]
        fit = cross_validate(x, self.r2.y[..., :end], folds, self.blocks[:end])
        errors = self.r2.errors(fit.predictions)
        parts = [part for part in self.parts if part.columns.stop <= end]
        return Fitted(fit, errors, {(p.target, p.role): self.r2.overall(errors, p.columns) for p in parts})

    def baselines(self, folds: Int[Array, " episode"]) -> dict[tuple[int, str], ProbeScore]:
        """The controls that depend on no activation: the round index and, where known, the round's inputs."""
        known = {"round": (round_index(*self.r2.y.shape[:2]),), "inputs": self.targets[0].inputs}
        scores: dict[tuple[int, str], ProbeScore] = {}
        for name, forms in known.items():
            for x in forms:
                for (i, _), score in self.fit(x, folds, own_only=True).scores.items():
                    scores[i, name] = best(scores.get((i, name)), score)
        return scores


def best(one: ProbeScore | None, other: ProbeScore) -> ProbeScore:
    """The higher of two scores of a control that has several forms."""
    return other if one is None or other.estimate > one.estimate else one


def controls_of(target: TargetValues, score: ProbeScore, others: dict[str, ProbeScore]) -> dict[str, Control]:
    """Controls with their differences from the probe's score, in the order of tables."""
    return {
        name: Control(name, others[name], score.minus(others[name]), name not in target.implied_by)
        for name in DESCRIPTIONS
        if name in others
    }


def lacks_inputs(target: TargetValues, names: Container[str]) -> bool:
    """Whether the inputs control is needed for a verdict but was not run; the verdict is then undecided at most."""
    return "inputs" not in names and "inputs" not in target.implied_by
