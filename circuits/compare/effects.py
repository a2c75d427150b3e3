"""What does moving one variable do, where do models hold the algorithm's variables, and where do effects travel?

:func:`effects` moves every carried variable and every input (:mod:`interp.interventions.moves`) and scores what follows
against what each algorithm wants; a :class:`WherePart` puts two models side by side. The moves, their controls, and
both tables: ``docs/method/comparing.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch

from circuits.compare.question import (
    Budget,
    Compared,
    Participant,
    Question,
    columns,
    crossed_decoder,
    scored,
)
from circuits.compiler import wired
from circuits.registry import from_origin
from interp.choices.fitting import Array
from interp.core.algorithm import NEXT, Algorithm
from interp.core.display import lacks
from interp.interventions.experiment import Outcome
from interp.interventions.interchange import Claim, InterchangeResult, interchange, score_difference
from interp.interventions.mediation import EffectMap, effect_map
from interp.interventions.moves import Writer, flat, move
from interp.interventions.sites import Place
from interp.results.measure import Result, best_of
from interp.stats.decoder import Affine
from interp.stats.intervals import NO_NUMBER, Interval

_SAME_STATE = (
    0.99  # R2 from which on a rival's state counts as a linear map of the one that is moved
)


@dataclass(frozen=True)
class _Effect:
    """One move, under one algorithm.

    Attributes:
        variable, what: which variable, and which change: "all", "one" (its first element), "+ k", or "input".
        outcome: "prediction" or "state".
        algorithm: key of the one whose counterfactual is asked for.
        score, slope: with intervals over episodes; NaN where the algorithm wants no effect.
        difference: score less that under the rival, NaN without one.
        placebo, untrained: score of the orthogonal move, NaN where the state fills all that is carried; score in an
            untrained copy.
    """

    variable: str
    what: str
    where: str
    outcome: str
    algorithm: str
    score: Interval
    slope: Interval
    difference: Interval
    placebo: float
    untrained: float


@dataclass(frozen=True, repr=False)
class EffectsPart(Result):
    """Every move under every algorithm; ``missing`` says which moves the model's kind does not allow."""

    effects: tuple[_Effect, ...]
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """One row a move and an algorithm."""
        rows = [{"name": "graded effect", **columns(e, score="number")} for e in self.effects]
        if self.missing:
            rows.append({"name": "graded effect", "what": "input", "where": self.missing})
        return pd.DataFrame(rows)


def effects(
    subject: Participant,
    algorithms: Mapping[str, Algorithm],
    untrained: Sequence[Participant],
    budget: Budget,
) -> EffectsPart:
    """Graded effects under each of ``algorithms``; the first is the one that is moved, and the second its rival."""
    test, own, found, copies = (
        subject.samples.test,
        next(iter(algorithms.values())),
        list[_Effect](),
        untrained[:1],
    )
    if own.state:
        writer = subject.writer(own)
        for variable, what, change in _moves(own, writer, subject, budget):
            results, by = {}, {variable: change}
            for key, algorithm in algorithms.items():
                wants = None if algorithm is own else _stated(own, algorithm, by, subject)
                if algorithm is own or wants is not None:
                    results[key] = move(
                        subject.model, test, algorithm, writer, by, round=budget.at, wants=wants
                    )
            random, shapes = (
                [] if writer.fills else [writer.placebo(budget.seed)],
                tuple(writer.shapes),
            )
            placebo = [move(subject.model, test, own, each, by, round=budget.at) for each in random]
            fresh = [
                move(
                    u.model,
                    test,
                    own,
                    u.writer(own, shapes, subject.penalty(own)),
                    by,
                    round=budget.at,
                )
                for u in copies
            ]
            where = (variable, what, "latent", "prediction")
            found += _graded(results, next(iter(results)), where, budget, placebo, fresh)
    found += _at_inputs(subject, algorithms, copies, budget)
    return EffectsPart(tuple(found), lacks(subject.model, "embed"))


def _moves(
    algorithm: Algorithm, writer: Writer, subject: Participant, budget: Budget
) -> list[tuple[str, str, Array]]:
    """Each variable, which change, and by how much: states that could occur (docs/method/comparing.md)."""
    own, other = (algorithm.run(e) for e in (subject.samples.test, subject.samples.other))
    found = []
    for key in writer.shapes:
        here, there = (np.asarray(v[key], dtype=np.float64)[:, budget.at] for v in (own, other))
        if np.array_equal(here, there):
            by = max(1.0, float(np.ptp(own[key])) // 4)
            found.append((key, f"+ {by:g}", np.full_like(here, by)))
            continue
        found.append((key, "all", there - here))
        if here[0, 0].size > 1:
            mask = np.zeros(here.shape[2:])
            mask.flat[0] = 1
            found.append((key, "one", (there - here) * mask))
    return found


def _stated(
    own: Algorithm, rival: Algorithm, by: Mapping[str, Array], subject: Participant
) -> dict[str, Array] | None:
    """What the rival's state changes by, where it is a linear map of the moved state; None where it is none."""
    if not rival.state:
        return {}
    mine, theirs = (a.run(subject.samples.known) for a in (own, rival))
    shape = next(iter(by.values())).shape[:2]
    zero = {key: np.zeros((*shape, *mine[key].shape[2:])) for key in own.state}
    x, change = (
        np.concatenate([flat(values[key]) for key in own.state], -1)
        for values in (mine, {**zero, **by})
    )
    wants = {}
    for key in rival.state:
        y = flat(theirs[key])
        given, held = (torch.from_numpy(v.reshape(-1, v.shape[-1])) for v in (x, y))
        fitted = Affine.fit(given, held)
        left = fitted(torch.from_numpy(x)).numpy() - y
        varies = ((y - y.mean((0, 1))) ** 2).sum()
        if varies and (left**2).sum() > (1 - _SAME_STATE) * varies:
            return None
        slopes = fitted.slopes.numpy()
        slopes[np.abs(slopes) * x.std((0, 1))[:, None] < 1e-9 * y.std((0, 1)).max()] = (
            0.0  # rounding
        )
        wants[key] = (change @ slopes).reshape(*shape, *theirs[key].shape[2:])
    return wants


def _at_inputs(
    subject: Participant,
    algorithms: Mapping[str, Algorithm],
    untrained: Sequence[Participant],
    budget: Budget,
) -> list[_Effect]:
    """Inputs of the round from other episodes, where the task's claims say that they stand."""
    # What a round writes is the carried state, also where an algorithm names something that is computed from it.
    algorithms = {
        key: replace(a, memory=a.state[0], written=NEXT + a.state[0])
        if a.state and a.memory not in a.state
        else a
        for key, a in algorithms.items()
    }
    first, found = next(iter(algorithms)), []
    own, width = algorithms[first], subject.run(subject.samples.test).latents.shape[-1]
    for claim in subject.claims(own):
        of_state = claim.outcome == "state"
        usable = {
            key: a
            for key, a in algorithms.items()
            if claim.variable in a.keys and (a.written or not of_state)
        }
        if first not in usable:
            continue
        results = {
            key: _interchanged(subject, a, claim, claim.places, budget) for key, a in usable.items()
        }
        apart = [p for p in (place.placebo(width, budget.seed) for place in claim.places) if p]
        placebo = [_interchanged(subject, own, claim, apart, budget)] if apart else []
        fresh = [_interchanged(u, own, claim, claim.places, budget) for u in untrained]
        where = (
            claim.variable,
            "input",
            " + ".join(str(place.site) for place in claim.places),
            claim.outcome,
        )
        for effect in _graded(results, first, where, budget, placebo, fresh):
            key = effect.algorithm
            score = (
                _of_pool(subject, usable[key], claim, results[key], budget)
                if of_state
                else effect.score
            )
            found.append(replace(effect, score=score))
    return found


def _of_pool(
    s: Participant, algorithm: Algorithm, claim: Claim, of_test: InterchangeResult, budget: Budget
) -> Interval:
    """The score with the known episodes, too, each with the one before it as its source."""
    known, run = s.samples.known, s.run(s.samples.known)
    before = np.roll(np.arange(len(known)), 1)
    decode = crossed_decoder(s, algorithm, algorithm.memory).cut(slice(len(known)))
    of = s.model, run, run.select(before), algorithm, claim.variable, claim.places
    of_known = interchange(*of, outcome=Outcome("state", decode), round=budget.at)
    effect, wanted = (
        np.concatenate([getattr(r, key) for r in (of_known, of_test)])
        for key in ("effect", "wanted")
    )
    missed, asked = (np.einsum("btk,btk->b", x, x) for x in (effect - wanted, wanted))
    return scored(missed, asked, s.samples.whose)


def _interchanged(
    s: Participant,
    algorithm: Algorithm,
    claim: Claim,
    places: Sequence[Place],
    budget: Budget,
    *,
    exact: bool = False,
) -> InterchangeResult:
    """A claim's variable set to that of other episodes at ``places``.

    The state is read by cross-fitted decoders; where ``exact``, by the weights of a handwired model themselves.
    """
    decode = None
    if claim.outcome == "state" and not (exact and s.model.is_handwired):
        decode = crossed_decoder(s, algorithm, algorithm.memory).cut(
            slice(len(s.samples.known), None)
        )
    of = s.model, s.samples.test, s.samples.other, algorithm, claim.variable, places
    return interchange(*of, outcome=Outcome(claim.outcome, decode), round=budget.at)


def _graded(
    results: Mapping[str, InterchangeResult],
    own: str,
    moved: tuple[str, str, str, str],
    budget: Budget,
    placebo: Sequence[InterchangeResult],
    untrained: Sequence[InterchangeResult],
) -> list[_Effect]:
    """An effect under each algorithm; that of ``own`` beside its difference from the best rival's, NaN if not paired.

    ``moved`` is the variable, what is done to it, where, and the outcome.
    """
    first, difference = results[own], NO_NUMBER
    rivals = [
        r for key, r in results.items() if key != own and r.effect.shape == first.effect.shape
    ]
    if rivals and first.wanted.any():
        difference = min(
            (score_difference(first, r, budget.seed) for r in rivals), key=lambda d: d.estimate
        )
    other, fresh = (
        best_of(result.score().estimate for result in several).number
        for several in (placebo, untrained)
    )
    found = []
    for key, result in results.items():
        score, slope = result.score(budget.seed), result.slope(budget.seed)
        found.append(
            _Effect(
                *moved, key, score, slope, difference if key == own else NO_NUMBER, other, fresh
            )
        )
    return found


_STATE = "carried state"  # what the variable that is carried from round to round is called in both models
_MAP_ROUNDS = 3  # every so-many-th of the rounds is enough for a map


@dataclass(frozen=True)
class _Held:
    """The site that holds one variable best, in one model.

    Attributes:
        variable, outcome: what is swapped, and what it shows in: "prediction" or "state".
        n_sites: how many were tried.
        score: graded interchange at this site.
        untrained: the same site in an untrained model of this shape, and the best of all its sites; NaN where the
            model's own claims are subspaces of its weights, which an untrained model does not have.
    """

    variable: str
    outcome: str
    model: str
    where: str
    n_sites: int
    score: Interval
    untrained: float
    untrained_best: float


@dataclass(frozen=True, repr=False)
class WherePart(Result):
    """Sites and maps of two models: (model, where its effects travel), all of one, then all of the other.

    ``missing`` has a sentence for each model that has no maps.
    """

    held: tuple[_Held, ...]
    maps: tuple[tuple[str, EffectMap], ...]
    missing: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """One row a variable and a model; then one a cell of every map."""
        called = {
            "n_sites": "sites tried",
            "score": "number",
            "untrained_best": "untrained, its best site",
        }
        rows = [{"name": "held", **columns(h, **called)} for h in self.held]
        for model, m in self.maps:
            what = {
                "name": "effect carried",
                "variable": " + ".join(m.cause),
                "outcome": m.outcome,
                "model": model,
            }
            rows += [
                {**what, "where": f"{point}@{label}" if label else point, "number": share}
                for point, shares in zip(m.points, m.shares, strict=True)
                for label, share in zip(m.positions, shares, strict=True)
                if np.isfinite(share)
            ]
        rows += [{"name": "effect carried", "where": reason} for reason in self.missing]
        return pd.DataFrame(rows)


def _located(compared: Compared, algorithms: Sequence[Algorithm]) -> WherePart:
    """Sites and maps of two models, by the algorithm of each; of the fresh models of each shape the first is taken."""
    held: list[_Held] = []
    maps: list[tuple[str, EffectMap]] = []
    # The latents, which act on the prediction, and the inputs of both models that act on the state.
    mine, theirs = (set(s.causes(a)) for s, a in zip(compared.pair, algorithms, strict=True))
    causes = {("latent",): "prediction", **dict.fromkeys(sorted(mine & theirs), "state")}
    budget, untrained = compared.budget, (compared.untrained, compared.reference_untrained)
    for s, algorithm, fresh in zip(compared.pair, algorithms, untrained, strict=True):
        held += _held(s, algorithm, fresh[:1], budget)
        if len(s.model.points) > 1:
            samples, rounds = (s.samples.test, s.samples.other), budget.at[::_MAP_ROUNDS]
            for cause, key in causes.items():
                fitted = key == "state" and not s.model.is_handwired
                outcome = Outcome(key, s.decoder(algorithm, algorithm.memory) if fitted else None)
                maps.append(
                    (
                        s.name,
                        effect_map(s.model, *samples, list(cause), outcome=outcome, round=rounds),
                    )
                )
    bare = [
        s.model.name for s in compared.pair if len(s.model.points) == 1
    ]  # effects cannot be mapped on anything
    missing = tuple(f"not applicable: {name} has no points but what it carries" for name in bare)
    return WherePart(tuple(held), tuple(maps), missing)


def _held(
    s: Participant, algorithm: Algorithm, fresh: Sequence[Participant], budget: Budget
) -> list[_Held]:
    """The best site of every variable that this model is claimed to hold."""
    claims: dict[tuple[str, str], list[Claim]] = {}
    # The ground truth of a circuit that can be built by name; else what the task says.
    is_built = "circuit" in s.model.origin and not s.model.origin.get("edits")
    for claim in wired(from_origin(s.model.origin)) if is_built else s.claims():
        if not claim.control and claim.variable in algorithm.keys:
            claims.setdefault((claim.variable, claim.outcome), []).append(claim)
    found = []
    for (variable, outcome), several in claims.items():
        scores, *controls = [
            [
                _interchanged(u, algorithm, c, c.places, budget, exact=True).score(budget.seed)
                for c in several
            ]
            for u in (s, *(() if s.model.is_handwired else fresh))
        ]
        best = max(range(len(several)), key=lambda i: scores[i].estimate)
        called, where = (
            _STATE if variable == algorithm.memory else variable,
            " + ".join(map(str, several[best].places)),
        )
        same = max((c[best].estimate for c in controls), default=float("nan"))
        any_site = max((score.estimate for c in controls for score in c), default=float("nan"))
        found.append(
            _Held(called, outcome, s.name, where, len(several), scores[best], same, any_site)
        )
    return found


EFFECTS = Question(
    "effects",
    EffectsPart,
    lambda compared: effects(
        compared.model, compared.candidates, compared.untrained, compared.budget
    ),
)
WHERE = Question(
    "where",
    WherePart,
    lambda compared: _located(compared, [s.task.explains(s.model) for s in compared.pair]),
    of_two=True,
)
