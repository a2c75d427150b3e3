"""What does moving one variable do? Graded moves, under the algorithm that explains the model and under its rivals.

In the latents, every carried variable that they hold is moved alone (:mod:`interp.interventions.moves`): all of its
elements to their values in other episodes, one element alone, or, where it does not differ between episodes (the
round), by an amount. At the tokens of a model that embeds them, inputs are taken from other episodes where the task
says that they stand. Each has a score against what each algorithm wants, the difference from the rival with its
interval, and its controls: a move as far in an orthogonal direction, and the same in an untrained model.

A rival may hold the same numbers in other variables: log-weights are counts times a gain. Where its state is a linear
map of the moved state on these episodes (R2 of at least .99), the change of its state is that map of the change. Where
it is not, the rival has no score for this move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from circuits.compare.crossfit import chosen, crossed_decoder, scored
from circuits.compare.fitting import Array
from circuits.compare.question import Effort, Question, Subject, bounds
from interp.algorithm import NEXT, Algorithm
from interp.decoder import RIDGE, Affine
from interp.display import lacks
from interp.interventions.counterfactual import InterchangeResult, score_difference
from interp.interventions.experiment import Outcome
from interp.interventions.interchange import Claim, interchange
from interp.interventions.moves import Writer, move
from interp.interventions.swaps import Place
from interp.statistics import Interval

_SAME_STATE = 0.99
"""R2 from which on a rival's state counts as a linear map of the one that is moved."""


@dataclass(frozen=True)
class Effect:
    """One move, under one algorithm.

    Attributes:
        variable, what: which variable, and which change: "all", "one" (its first element), "+ k", or "input".
        outcome: "prediction" or "state".
        algorithm: key of the one whose counterfactual is asked for.
        score, slope: with intervals over episodes; None where the algorithm wants no effect.
        difference: score less that under the rival, None without one.
        placebo, untrained: score of the orthogonal move, NaN where the state fills all that is carried; largest score
            in an untrained model.
        by_magnitude: score and slope of small to large wanted effects.
    """

    variable: str
    what: str
    where: str
    outcome: str
    algorithm: str
    score: Interval | None
    slope: Interval | None
    difference: Interval | None
    placebo: float
    untrained: float
    by_magnitude: pd.DataFrame = field(repr=False, compare=False)


@dataclass(frozen=True)
class EffectsPart:
    """Every move under every algorithm; ``missing`` says which moves the model's kind does not allow."""

    effects: tuple[Effect, ...]
    missing: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """One row a move and an algorithm."""
        rows = []
        for e in self.effects:
            said = {key: getattr(e, key) for key in ("variable", "what", "where", "outcome", "algorithm")}
            numbers = bounds(e.score) | bounds(e.slope, "slope ") | bounds(e.difference, "difference ")
            rows.append({"name": "graded effect", **said, **numbers, "placebo": e.placebo, "untrained": e.untrained})
        if self.missing:
            rows.append({"name": "graded effect", "what": "input", "where": self.missing, **bounds(None)})
        return pd.DataFrame(rows)


@dataclass(frozen=True)
class _Move:
    """A change of one carried variable at the start rounds."""

    variable: str
    what: str
    change: Array


def effects(
    subject: Subject, algorithms: Mapping[str, Algorithm], untrained: Sequence[Subject], effort: Effort
) -> EffectsPart:
    """Graded effects under each of ``algorithms``; the first is the one that is moved, and the second its rival."""
    moves = (_in_latents, _at_inputs) if next(iter(algorithms.values())).state else (_at_inputs,)
    found = [effect for moved in moves for effect in moved(subject, algorithms, untrained, effort)]
    settings = {"rounds": effort.at, "ridge": RIDGE, "seed": effort.seed}
    return EffectsPart(tuple(found), lacks(subject.model, "embed"), settings)


def _in_latents(
    subject: Subject, algorithms: Mapping[str, Algorithm], untrained: Sequence[Subject], effort: Effort
) -> list[Effect]:
    test, own = subject.samples.test, next(iter(algorithms.values()))
    writer = subject.writer(own)
    controls = [(u, u.writer(own, tuple(writer.shapes))) for u in untrained[:1]]

    def result(s: Subject, algorithm: Algorithm, w: Writer, m: _Move, wants: Any = None) -> InterchangeResult:
        return move(s.model, test, algorithm, w, {m.variable: m.change}, rounds=effort.at, wants=wants)

    found = []
    for m in _moves(own, writer, subject, effort):
        results = {}
        for key, algorithm in algorithms.items():
            wants = None if algorithm is own else _stated(own, algorithm, m, subject, effort)
            if algorithm is own or wants is not None:
                results[key] = result(subject, algorithm, writer, m, wants)
        first = next(iter(results.values()))
        placebo = float("nan")
        if not writer.fills:
            placebo = result(subject, own, writer.placebo(effort.seed), m).score().estimate
        fresh = max((result(u, own, w, m).score().estimate for u, w in controls), default=float("nan"))
        found += _graded(results, first, (m.variable, m.what, "latent", "prediction"), effort, placebo, fresh)
    return found


def _moves(algorithm: Algorithm, writer: Writer, subject: Subject, effort: Effort) -> list[_Move]:
    """All elements to those of other episodes and the first one alone; what does not differ, by a quarter of its range.

    Only states that could occur: a count cannot exceed the number of rounds.
    """
    own, other = (algorithm.run(e) for e in (subject.samples.test, subject.samples.other))
    found = []
    for key in writer.shapes:
        here, there = (np.asarray(v[key], dtype=np.float64)[:, effort.at] for v in (own, other))
        if np.array_equal(here, there):
            by = max(1.0, float(np.ptp(own[key])) // 4)
            found.append(_Move(key, f"+ {by:g}", np.full_like(here, by)))
            continue
        found.append(_Move(key, "all", there - here))
        if here[0, 0].size > 1:
            mask = np.zeros(here.shape[2:])
            mask.flat[0] = 1
            found.append(_Move(key, "one", (there - here) * mask))
    return found


def _stated(own: Algorithm, rival: Algorithm, m: _Move, subject: Subject, effort: Effort) -> dict[str, Array] | None:
    """What the rival's state changes by, where it is a linear map of the moved state; None where it is none."""
    if not rival.state:
        return {}
    mine, theirs = (a.run(subject.samples.known) for a in (own, rival))
    x = np.concatenate([_flat(mine[key]) for key in own.state], -1)
    change = np.concatenate(
        [
            _flat(m.change if key == m.variable else np.zeros((*m.change.shape[:2], *mine[key].shape[2:])))
            for key in own.state
        ],
        -1,
    )
    wants = {}
    for key in rival.state:
        y = _flat(theirs[key])
        given, held = (torch.from_numpy(v.reshape(-1, v.shape[-1])) for v in (x, y))
        fitted = Affine.fit(given, held)
        left = fitted(torch.from_numpy(x)).numpy() - y
        varies = ((y - y.mean((0, 1))) ** 2).sum()
        if varies and (left**2).sum() > (1 - _SAME_STATE) * varies:
            return None
        slopes = fitted.slopes.numpy()
        slopes[np.abs(slopes) * x.std((0, 1))[:, None] < 1e-9 * y.std((0, 1)).max()] = 0.0  # rounding
        step = change @ slopes
        wants[key] = step.reshape(*m.change.shape[:2], *theirs[key].shape[2:])
    return wants


def _at_inputs(
    subject: Subject, algorithms: Mapping[str, Algorithm], untrained: Sequence[Subject], effort: Effort
) -> list[Effect]:
    """Inputs of the round from other episodes, where the task's claims say that they stand."""
    algorithms = {key: _carrying(algorithm) for key, algorithm in algorithms.items()}
    own = next(iter(algorithms.values()))
    found = []
    for claim in subject.inputs(own):
        usable, places = {k: a for k, a in algorithms.items() if claim.variable in a.keys}, claim.places
        if claim.outcome == "state":
            usable = {key: algorithm for key, algorithm in usable.items() if algorithm.written}
        if own not in usable.values():
            continue
        results = {key: interchanged(subject, algorithm, claim, places, effort) for key, algorithm in usable.items()}
        width = subject.run(subject.samples.test).latents.shape[-1]
        apart = [p for p in (place.placebo(width, effort.seed) for place in places) if p]
        placebo = interchanged(subject, own, claim, apart, effort).score().estimate if apart else float("nan")
        fresh = max(
            (interchanged(u, own, claim, places, effort).score().estimate for u in untrained[:1]), default=float("nan")
        )
        where = " + ".join(str(place.site) for place in places)
        first = next(r for k, r in results.items() if usable[k] is own)
        effects = _graded(results, first, (claim.variable, "input", where, claim.outcome), effort, placebo, fresh)
        if claim.outcome == "state":
            effects = [
                replace(
                    effect, score=_of_pool(subject, usable[effect.algorithm], claim, results[effect.algorithm], effort)
                )
                for effect in effects
            ]
        found += effects
    return found


def _of_pool(
    s: Subject, algorithm: Algorithm, claim: Claim, of_test: InterchangeResult, effort: Effort
) -> Interval | None:
    """The score with the known episodes, too, each with the one before it as its source; None without any effect."""
    known, run = s.samples.known, s.run(s.samples.known)
    before = np.roll(np.arange(len(known)), 1)
    decode = crossed_decoder(s, algorithm, algorithm.memory).cut(slice(len(known)))
    of_known = interchange(
        *(s.model, run, chosen(run, before), algorithm, claim.variable, claim.places),
        outcome=Outcome("state", decode),
        rounds=effort.at,
    )
    effect, wanted = (np.concatenate([getattr(r, key) for r in (of_known, of_test)]) for key in ("effect", "wanted"))
    missed, asked = (np.einsum("btk,btk->b", x, x) for x in (effect - wanted, wanted))
    return scored(missed, asked) if asked.any() else None


def _carrying(algorithm: Algorithm) -> Algorithm:
    """The algorithm, with its carried state as what a round writes, where it names something computed from it."""
    if not algorithm.state or algorithm.memory in algorithm.state:
        return algorithm
    return replace(algorithm, memory=algorithm.state[0], written=NEXT + algorithm.state[0])


def interchanged(
    s: Subject, algorithm: Algorithm, claim: Claim, places: Sequence[Place], effort: Effort, *, exact: bool = False
) -> InterchangeResult:
    """A claim's variable set to that of other episodes at ``places``.

    The state is read by cross-fitted decoders; where ``exact``, by the weights of a handwired model themselves.
    """
    test, other, fitted = s.samples.test, s.samples.other, not (exact and s.model.is_handwired)
    decode = None
    if claim.outcome == "state" and fitted:
        decode = crossed_decoder(s, algorithm, algorithm.memory).cut(slice(len(s.samples.known), None))
    return interchange(
        *(s.model, test, other, algorithm, claim.variable, places),
        outcome=Outcome(claim.outcome, decode),
        rounds=effort.at,
    )


def _graded(
    results: Mapping[str, InterchangeResult],
    first: InterchangeResult,
    moved: tuple[str, str, str, str],
    effort: Effort,
    placebo: float,
    untrained: float,
) -> list[Effect]:
    """An effect under each algorithm; the first one's beside its difference from each rival's best.

    A rival whose state has another size, such as the rounds that a window holds, has no difference that can be paired.
    ``moved`` is the variable, what is done to it, where, and the outcome.
    """
    found = []
    rivals = [r for r in results.values() if r is not first and r.effect.shape == first.effect.shape]
    for key, result in results.items():
        wants = bool((result.wanted**2).sum())
        difference = None
        if result is first and rivals and wants:
            difference = min((score_difference(result, r, effort.seed) for r in rivals), key=lambda d: d.estimate)
        asked = int((np.abs(result.wanted).max(-1) > 0).sum())
        found.append(
            Effect(
                *moved,
                key,
                result.score(effort.seed) if wants else None,
                result.slope(effort.seed) if wants else None,
                difference,
                placebo,
                untrained,
                result.by_magnitude(min(4, asked)) if asked else pd.DataFrame(),
            )
        )
    return found


def _flat(x: np.ndarray) -> Array:
    return np.asarray(x, dtype=np.float64).reshape(*x.shape[:2], -1)


EFFECTS = Question(
    "effects",
    EffectsPart,
    lambda compared: effects(compared.model, compared.candidates, compared.untrained, compared.effort),
)
