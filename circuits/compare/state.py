"""Do two models hold the same state? Stitching: put one model's latents, mapped, into the other, and let it run on.

A score of 1 says that the first model's latents hold all that the second one's memory is worth, 0 that they are worth
no more than none; the worse of the two directions decides. The score, its bands and its controls:
``docs/method/comparing.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from circuits.compare.question import (
    Budget,
    Participant,
    Question,
    choose_penalty,
    pooled,
    scored,
)
from interp.choices.fitting import Array, distributions, divergence
from interp.core.algorithm import Predicted
from interp.interventions.experiment import run_on
from interp.interventions.sites import carried_mask
from interp.results.measure import FEW, NOTHING, UNTRAINED, Measure, Result, best_of
from interp.stats.decoder import N_FOLDS, RIDGE, Affine, is_wide, penalised, units
from interp.stats.intervals import Interval
from interp.support.session import remembered

_HELP = ("round",)
_STITCHED = 0.95
"""Handwired and learned Weighted Majority .998 to .999 both ways with the round; untrained models to .94."""
_WORTH = 0.01
"""Nats a round that both memories must be worth: a memory that is worth nothing is replaced by any map without loss."""
_BANDS = 3  # starts are judged in at most so many bands; those in which the memory is worth nothing yet are left out
_ROUNDING = (
    1e-6  # of a coordinate's standard deviation: so much, more or less, no state should hang on
)
_HARD, _CERTAIN = 0.9, 0.99
"""A read-out is hard where so large a share of its predictions gives one outcome such a probability."""


@dataclass(frozen=True)
class Stitching:
    """One model's latents in another.

    Attributes:
        supplied: what was given beside the latents: () or ("round",).
        control: "" for the models themselves, "shuffled", or :data:`~interp.results.measure.UNTRAINED`.
        score: of the worst band of starts, which are the rounds from ``band[0]`` to ``band[1]``.
        seen: what is compared: "predictions", or "carried values" of a target that all but says which outcome it is.
    """

    source: str
    target: str
    supplied: tuple[str, ...]
    control: str
    score: Interval
    band: tuple[int, int] = (0, 0)
    seen: str = "predictions"


@dataclass(frozen=True)
class _Trajectory:
    """One episode in which a model ran on from the mapped latents of another, put in at round ``first``.

    ``own``, ``stitched`` and ``cut`` are distributions ``[round, outcome]`` from there on: the target's own, from the
    mapped latents, and from its initial ones.
    """

    source: str
    target: str
    first: int
    own: Array = field(repr=False)
    stitched: Array = field(repr=False)
    cut: Array = field(repr=False)


@dataclass(frozen=True, repr=False)
class StatePart(Result):
    """Stitchings both ways, nats a round that each model's memory is worth, and the first test episode each way."""

    model: str
    reference: str
    stitchings: tuple[Stitching, ...]
    worth: dict[str, Interval]
    trajectories: tuple[_Trajectory, ...] = ()

    def best(self, source: str, target: str) -> Stitching:
        """The best stitching; the one that also supplies the round only where this adds .01 or more."""
        both = [
            s for s in self.stitchings if (s.source, s.target, s.control) == (source, target, "")
        ]
        plain, helped = sorted(both, key=lambda s: len(s.supplied))
        return helped if helped.score.estimate >= plain.score.estimate + 0.01 else plain

    @property
    def untrained(self) -> tuple[float, ...]:
        """The worse direction of every untrained copy in the model's place."""
        copies: dict[str, list[float]] = {}
        for s in self.stitchings:
            if s.control == UNTRAINED:
                copies.setdefault(s.target if s.source == self.reference else s.source, []).append(
                    s.score.estimate
                )
        return tuple(float(np.fmin.reduce(scores)) for scores in copies.values())

    @property
    def measure(self) -> Measure:
        """By the worse direction of stitching, with what had to be supplied, beside untrained copies' worse ones."""
        ways = self.best(self.model, self.reference), self.best(self.reference, self.model)
        worst = min(ways, key=lambda s: (s.score.low, s.source))
        helped = [s.target for s in ways if s.supplied]
        little = [worth for worth in self.worth.values() if worth.low < _WORTH]
        doubt = (
            f"{NOTHING}: a memory is"
            if any(worth.high < _WORTH for worth in little)
            else f"{FEW}: a memory may be"
        )
        first, last = worst.band
        rounds = f"round {first}" if first == last else f"rounds {first} to {last}"
        return Measure(
            "state",
            "",
            worst.score,
            _STITCHED,
            unit="share of the memory's worth",
            controls={UNTRAINED: best_of(self.untrained)},
            about=f"{worst.target} on the latents of {worst.source}, by its {worst.seen}, {rounds}",
            condition="given the round number" if helped else "",
            unless={"yes": f"{doubt} worth less than {_WORTH} nats a round"} if little else {},
            note=f"the round is given to {' and '.join(helped)}" if helped else "",
        )

    def to_frame(self) -> pd.DataFrame:
        """One row a stitching, and one a model's memory."""
        rows: list[dict[str, Any]] = []
        for s in self.stitchings:
            ends = {"source": s.source, "target": s.target, "supplied": " + ".join(s.supplied)}
            place = {"control": s.control, "seen": s.seen, "rounds": "{} to {}".format(*s.band)}
            name = "control of stitching" if s.control else "stitching"
            rows.append({"name": name, **ends, **place, **s.score.columns("number")})
        for name, worth in self.worth.items():
            rows.append(
                {"name": "worth of memory, nats", "target": name, **worth.columns("number")}
            )
        return pd.DataFrame(rows)


def stitch(
    model: Participant, reference: Participant, untrained: Sequence[Participant], budget: Budget
) -> StatePart:
    """Both directions, with and without the round, beside shuffled maps and untrained copies of the model."""
    found, worth, ways, generator = [], {}, [], torch.Generator().manual_seed(0)
    everything, test = slice(None), slice(len(model.samples.known), None)
    for source, target in ((model, reference), (reference, model)):
        own = _own(target, budget)
        scale = (
            float(np.var(own)) if _kind(target) == "mean" else 1.0
        )  # a mean has units: a share of its variance
        clean = pooled(target).latents[:, budget.at]
        moved = _ROUNDING * clean.std(0) * torch.randn(clean.shape, generator=generator).to(clean)
        shaken = (_missed(target, clean + by, own, budget, everything) for by in (moved, -moved))
        # From a tie, where this changes a choice, any map leads astray: episode and start are left out.
        steady = np.maximum(*shaken) < _WORTH * scale
        cut = _cut(target, budget, everything) * steady
        whose = target.samples.whose
        worth[target.name] = scored(cut.mean(1) / scale, np.ones(len(cut)), whose).complement
        band = partial(
            _worst,
            budget,
            "carried values" if is_hard(target) else "predictions",
            cut.mean(0) >= scale * _WORTH,
        )
        ridge = _penalty(source, target, own, cut, budget)
        for helped, control, episodes in (
            (False, "", everything),
            (True, "", everything),
            (True, "shuffled", test),
        ):
            mapped = _stitched(source, target, budget, helped, ridge, shuffled=bool(control))
            missed = _missed(target, mapped[episodes], own, budget, episodes) * steady[episodes]
            worst, supplied = band(missed, cut[episodes], whose[episodes]), _HELP if helped else ()
            found.append(Stitching(source.name, target.name, supplied, control, *worst))
            if helped and not control:
                ways.append(_trajectory(source, target, mapped, budget))
        for i, copy in enumerate(untrained):
            giver, taker = (copy, target) if source is model else (source, copy)
            mapped = _stitched(giver, taker, budget, True, ridge)[test]
            without = cut[test] if taker is target else _cut(copy, budget, test) * steady[test]
            missed = _missed(taker, mapped, _own(taker, budget), budget, test) * steady[test]
            names = (
                (f"{giver.name} {i}", taker.name)
                if giver is copy
                else (giver.name, f"{taker.name} {i}")
            )
            found.append(
                Stitching(names[0], names[1], _HELP, UNTRAINED, *band(missed, without, whose[test]))
            )
    return StatePart(model.name, reference.name, tuple(found), worth, tuple(ways))


def _cut(target: Participant, budget: Budget, episodes: slice) -> Array:
    """How far the target diverges from itself with its initial latents put in, ``[episode, start]``."""
    initial = pooled(target).latents[episodes, :1].expand(-1, len(budget.at), -1, -1)
    return _missed(target, initial, _own(target, budget), budget, episodes)


def _penalty(
    source: Participant, target: Participant, own: Array, cut: Array, budget: Budget
) -> float:
    """Choose the penalty of the maps of one direction, for its controls, too."""
    if source.model.is_handwired:
        return 0.0
    if is_wide(pooled(source).latents.flatten(2).flatten(0, 1)):
        return RIDGE

    def missed(ridge: float) -> float:
        mapped = _stitched(source, target, budget, True, ridge)
        return float(_missed(target, mapped, own, budget, slice(None)).sum())

    return choose_penalty(missed, float(cut.sum()))


def is_hard(target: Participant) -> bool:
    """Whether the predictions of a machine with an exact readout of its state are choices, and show little of it."""
    if not target.model.is_handwired or target.task.kind != "classes":
        return False
    return _are_choices(_distribution(target, pooled(target).predictions))


def _are_choices(distributions: Array) -> bool:
    """Whether nearly all of some distributions, ``[..., outcome]``, all but say which outcome it is."""
    return bool((distributions.max(-1) > _CERTAIN).mean() > _HARD)


def _kind(target: Participant) -> Predicted:
    """What is compared of the target: its kind of predictions, or real numbers that it carries."""
    return "mean" if is_hard(target) else target.task.kind


def _seen(target: Participant, predictions: Tensor, carried: Tensor) -> Array:
    """Distributions of the rounds run on, ``[episode, start, horizon, outcome]``, or the values after the last one."""
    if not is_hard(target):
        return _distribution(target, predictions)
    return np.asarray(
        target.model.read_state(carried).flatten(2).unsqueeze(2).double().numpy(force=True)
    )


def _own(target: Participant, budget: Budget) -> Array:
    """What is seen of the target by itself, for the pool."""
    run, horizon = pooled(target), budget.horizon
    predictions = torch.stack([run.predictions[:, t : t + horizon] for t in budget.at], 1)
    return _seen(target, predictions, run.latents[:, [t + horizon for t in budget.at]])


def _missed(
    target: Participant, latents: Tensor, own: Array, budget: Budget, episodes: slice
) -> Array:
    """How far the target diverges from itself with ``latents`` put in, in some episodes, ``[episode, start]``.

    The mean over the rounds run on.
    """
    ran = run_on(target.model, pooled(target).select(episodes), budget.at, budget.horizon, latents)
    found = _seen(target, ran.predictions[0], ran.carried[0, :, :, 0])
    p, q = (x.reshape(-1, *x.shape[2:]) for x in (found, own[episodes]))
    return divergence(p, q, _kind(target)).reshape(found.shape[:2])


def _worst(
    budget: Budget,
    seen: str,
    counts: NDArray[np.bool_],
    missed: Array,
    asked: Array,
    whose: Any = None,
) -> tuple[Interval, tuple[int, int], str]:
    """The worst score of a band of those starts that count, the band, and what was seen; of all starts if none does."""
    starts = np.flatnonzero(counts) if counts.any() else np.arange(len(counts))
    bands = np.array_split(starts, min(_BANDS, len(starts)))
    scores = [scored(missed[:, band].sum(1), asked[:, band].sum(1), whose) for band in bands]
    worst = int(
        np.argmin([score.low for score in scores])
    )  # the first that is no number, where one is none
    return scores[worst], (budget.at[bands[worst][0]], budget.at[bands[worst][-1]]), seen


def _stitched(
    source: Participant,
    target: Participant,
    budget: Budget,
    helped: bool,
    ridge: float,
    shuffled: bool = False,
) -> Tensor:
    """The source's latents as the target's, ``[episode of the pool, start, latent, d_model]``, by maps of other folds.

    Where the round is supplied, the map has an offset of its own at every round.
    """
    given, goal = pooled(source).latents, pooled(target).latents
    x, y = given.flatten(2).double(), (goal.roll(1, 0) if shuffled else goal).flatten(2).double()
    about, rounds = ((0,), budget.at) if helped else ((0, 1), [0])
    fold = torch.from_numpy(source.samples.whose % N_FOLDS)
    mapped = torch.empty(len(x), len(budget.at), y.shape[-1], dtype=torch.float64, device=y.device)
    for k in range(N_FOLDS):
        known, own = fold != k, fold == k
        centre, middle = x[known].mean(about, keepdim=True), y[known].mean(about, keepdim=True)
        features, outputs = (x[known] - centre).flatten(0, 1), (y[known] - middle).flatten(0, 1)
        moved = x[own][:, budget.at] - centre[:, rounds]
        if ridge and is_wide(features):
            unit, products = units(features), _products(source, k, helped)
            scaled = features / unit
            if not products:
                products["samples"] = scaled @ scaled.T
            weights = penalised(products["samples"], outputs, len(features), ridge)
            mapped[own] = moved / unit @ scaled.T @ weights + middle[:, rounds]
        else:
            mapped[own] = Affine.fit(features, outputs, ridge)(moved) + middle[:, rounds]
    mapped = mapped.unflatten(-1, goal.shape[-2:])
    # How far a growing channel is written says what round it is and is no memory: the target keeps its own.
    held = carried_mask(target.model)[: mapped.shape[-2]].to(mapped.device)
    return torch.where(held, mapped, goal[:, budget.at].to(mapped))


@remembered
def _products(source: Participant, fold: int, helped: bool) -> dict[str, Tensor]:
    """Keeps the products of the samples of wide latents without a fold, which serve the maps to every goal."""
    return {}


def _trajectory(
    source: Participant, target: Participant, mapped: Tensor, budget: Budget
) -> _Trajectory:
    """The first test episode, from the first start to its end."""
    run, first, at = pooled(target), budget.at[0], len(target.samples.known)
    episode = slice(at, at + 1)
    ran = partial(run_on, target.model, run.select(episode), [first], budget.rounds - first)
    stitched, cut = (
        _distribution(target, ran(latents).predictions[0])[0, 0]
        for latents in (mapped[episode, :1], run.latents[episode, :1])
    )
    own = _distribution(target, run.predictions[episode, first:])[0]
    return _Trajectory(source.name, target.name, first, own, stitched, cut)


def _distribution(target: Participant, predictions: Tensor) -> Array:
    layout = target.run(target.samples.test).layout
    p = distributions(layout, predictions)
    if layout.kind != "classes":
        return p
    p = np.clip(p, 0.0, 1.0)  # linear heads leave rounding below 0
    return p / p.sum(-1, keepdims=True)


STATE = Question(
    "state",
    StatePart,
    lambda compared: stitch(*compared.pair, compared.untrained, compared.budget),
    *(
        "It has the same state as {}, by affine maps",
        "has the same state",
        "has, by affine maps, another state",
    ),
    of_two=True,
)
