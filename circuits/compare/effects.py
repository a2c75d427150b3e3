"""What does moving one variable do, where do models hold the algorithm's variables, and where do effects travel?

:func:`effects` moves every carried variable and every input (:mod:`interp.interventions.moves`) and scores what follows
against what each algorithm wants; a :class:`WherePart` puts two models side by side. The moves, their controls, and
both tables: ``docs/method/comparing.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import NamedTuple

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
from interp.interventions.moves import flat, move
from interp.interventions.sites import Place
from interp.results.measure import Result, best_of
from interp.stats.decoder import Affine
from interp.stats.intervals import NO_NUMBER, Interval

_SAME_STATE = 0.99  # R2 of a linear map: counts are log-weights over a gain, a window's are not


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
        """Return one row a move and an algorithm."""
        rows = []
        for effect in self.effects:
            rows.append({"name": "graded effect", **columns(effect, score="number")})
        if self.missing:
            rows.append({"name": "graded effect", "what": "input", "where": self.missing})
        return pd.DataFrame(rows)


class _Change(NamedTuple):
    """A change of one carried variable, ``[episode, start, ...]``, and what it is in words."""

    variable: str
    what: str
    by: Array


def effects(
    subject: Participant,
    algorithms: Mapping[str, Algorithm],
    untrained: Sequence[Participant],
    budget: Budget,
) -> EffectsPart:
    """Grade the effects of moves under each of several algorithms.

    Args:
        algorithms: by key; the first is the one that is moved, and the second its rival.
        untrained: copies of the model, of which the first is the control.
        budget: says the rounds.
    """
    moved_algorithm = next(iter(algorithms.values()))
    copies = untrained[:1]
    graded: list[_Effect] = []
    if moved_algorithm.state:
        for change in _list_changes(moved_algorithm, subject, budget):
            graded += _grade_move(subject, algorithms, copies, change, budget)
    graded += _grade_inputs(subject, algorithms, copies, budget)
    return EffectsPart(tuple(graded), lacks(subject.model, "embed"))


def _grade_move(
    subject: Participant,
    algorithms: Mapping[str, Algorithm],
    copies: Sequence[Participant],
    change: _Change,
    budget: Budget,
) -> list[_Effect]:
    """Grade one change of the state in the latents."""
    test, rounds = subject.samples.test, budget.at
    changes = {change.variable: change.by}
    (first, algorithm), *rivals = algorithms.items()
    writer = subject.writer(algorithm)
    results = {first: move(subject.model, test, algorithm, writer, changes, round=rounds)}
    for key, rival in rivals:
        wants = _translate_change(algorithm, rival, changes, subject)
        if wants is not None:
            results[key] = move(
                subject.model, test, rival, writer, changes, round=rounds, wants=wants
            )
    placebo = []
    if not writer.fills:
        elsewhere = writer.placebo(budget.seed)
        placebo.append(move(subject.model, test, algorithm, elsewhere, changes, round=rounds))
    in_copies = []
    for copy in copies:
        copy_writer = copy.writer(algorithm, tuple(writer.shapes), subject.penalty(algorithm))
        in_copies.append(move(copy.model, test, algorithm, copy_writer, changes, round=rounds))
    description = (change.variable, change.what, "latent", "prediction")
    return _grade(results, first, description, budget, placebo, in_copies)


def _list_changes(algorithm: Algorithm, subject: Participant, budget: Budget) -> list[_Change]:
    """List the changes of each variable: to states that could occur (docs/method/comparing.md)."""
    values = algorithm.run(subject.samples.test)
    other_values = algorithm.run(subject.samples.other)
    changes = []
    for key in subject.writer(algorithm).shapes:
        here = np.asarray(values[key], dtype=np.float64)[:, budget.at]
        there = np.asarray(other_values[key], dtype=np.float64)[:, budget.at]
        if np.array_equal(here, there):
            amount = max(1.0, float(np.ptp(values[key])) // 4)
            changes.append(_Change(key, f"+ {amount:g}", np.full_like(here, amount)))
            continue
        changes.append(_Change(key, "all", there - here))
        if here[0, 0].size > 1:
            mask = np.zeros(here.shape[2:])
            mask.flat[0] = 1
            changes.append(_Change(key, "one", (there - here) * mask))
    return changes


def _translate_change(
    own: Algorithm, rival: Algorithm, by: Mapping[str, Array], subject: Participant
) -> dict[str, Array] | None:
    """Return what the rival's state changes by, where it is a linear map of the moved state; None where it is none."""
    if not rival.state:
        return {}
    values = own.run(subject.samples.known)
    rival_values = rival.run(subject.samples.known)
    start_shape = next(iter(by.values())).shape[:2]
    changes = []
    for key in own.state:
        shape = (*start_shape, *values[key].shape[2:])
        changes.append(flat(by.get(key, np.zeros(shape))))
    change = np.concatenate(changes, -1)
    state = np.concatenate([flat(values[key]) for key in own.state], -1)
    features = torch.from_numpy(state.reshape(-1, state.shape[-1]))
    wants = {}
    for key in rival.state:
        goal = flat(rival_values[key])
        fitted = Affine.fit(features, torch.from_numpy(goal.reshape(-1, goal.shape[-1])))
        rest = fitted(torch.from_numpy(state)).numpy() - goal
        varied = ((goal - goal.mean((0, 1))) ** 2).sum()
        if varied and (rest**2).sum() > (1 - _SAME_STATE) * varied:
            return None
        slopes = fitted.slopes.numpy()
        reach = np.abs(slopes) * state.std((0, 1))[:, None]
        slopes[reach < 1e-9 * goal.std((0, 1)).max()] = 0.0  # rounding
        wants[key] = (change @ slopes).reshape(*start_shape, *rival_values[key].shape[2:])
    return wants


def _write_carried_state(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with its carried state as what a round writes.

    Some name something that is computed from it.
    """
    if not algorithm.state or algorithm.memory in algorithm.state:
        return algorithm
    key = algorithm.state[0]
    return replace(algorithm, memory=key, written=NEXT + key)


def _grade_inputs(
    subject: Participant,
    algorithms: Mapping[str, Algorithm],
    copies: Sequence[Participant],
    budget: Budget,
) -> list[_Effect]:
    """Grade inputs of the round from other episodes, where the task's claims say that they stand."""
    writing = {key: _write_carried_state(a) for key, a in algorithms.items()}
    first, moved_algorithm = next(iter(writing.items()))
    width = subject.run(subject.samples.test).latents.shape[-1]
    graded = []
    for claim in subject.claims(moved_algorithm):
        is_of_state = claim.outcome == "state"
        usable = {}
        for key, algorithm in writing.items():
            if claim.variable in algorithm.keys and (algorithm.written or not is_of_state):
                usable[key] = algorithm
        if first not in usable:
            continue
        results = {}
        for key, algorithm in usable.items():
            results[key] = _interchange_claim(subject, algorithm, claim, claim.places, budget)
        elsewhere = [place.placebo(width, budget.seed) for place in claim.places]
        placebo_places = [place for place in elsewhere if place]
        placebo = []
        if placebo_places:
            placebo.append(
                _interchange_claim(subject, moved_algorithm, claim, placebo_places, budget)
            )
        in_copies = [
            _interchange_claim(c, moved_algorithm, claim, claim.places, budget) for c in copies
        ]
        sites = " + ".join(str(place.site) for place in claim.places)
        description = (claim.variable, "input", sites, claim.outcome)
        for effect in _grade(results, first, description, budget, placebo, in_copies):
            key = effect.algorithm
            if is_of_state:
                score = _score_pool(subject, usable[key], claim, results[key], budget)
                effect = replace(effect, score=score)
            graded.append(effect)
    return graded


def _score_pool(
    subject: Participant,
    algorithm: Algorithm,
    claim: Claim,
    of_test: InterchangeResult,
    budget: Budget,
) -> Interval:
    """Score a claim on the known episodes, too, each with the one before it as its source."""
    known, run = subject.samples.known, subject.run(subject.samples.known)
    sources = run.select(np.roll(np.arange(len(known)), 1))
    decode = crossed_decoder(subject, algorithm, algorithm.memory).cut(slice(len(known)))
    of_known = interchange(
        subject.model,
        run,
        sources,
        algorithm,
        claim.variable,
        claim.places,
        outcome=Outcome("state", decode),
        round=budget.at,
    )
    effect = np.concatenate([of_known.effect, of_test.effect])
    wanted = np.concatenate([of_known.wanted, of_test.wanted])
    missed = np.square(effect - wanted).sum((1, 2))
    return scored(missed, np.square(wanted).sum((1, 2)), subject.samples.whose)


def _interchange_claim(
    subject: Participant,
    algorithm: Algorithm,
    claim: Claim,
    places: Sequence[Place],
    budget: Budget,
    *,
    exact: bool = False,
) -> InterchangeResult:
    """Set a claim's variable to that of other episodes at some places.

    Args:
        exact: read the state of a handwired model by its own weights; by cross-fitted decoders otherwise.
    """
    decode = None
    samples, model = subject.samples, subject.model
    reads_exactly = exact and model.is_handwired
    if claim.outcome == "state" and not reads_exactly:
        pool_decoder = crossed_decoder(subject, algorithm, algorithm.memory)
        decode = pool_decoder.cut(slice(len(samples.known), None))
    return interchange(
        model,
        samples.test,
        samples.other,
        algorithm,
        claim.variable,
        places,
        outcome=Outcome(claim.outcome, decode),
        round=budget.at,
    )


def _grade(
    results: Mapping[str, InterchangeResult],
    own: str,
    moved: tuple[str, str, str, str],
    budget: Budget,
    placebo: Sequence[InterchangeResult],
    untrained: Sequence[InterchangeResult],
) -> list[_Effect]:
    """Grade an effect under each algorithm.

    Args:
        results: by key of the algorithm.
        own: the key of the one that is moved, whose score stands beside its difference from the best rival's.
        moved: the variable, what is done to it, where, and the outcome.
        placebo, untrained: the same move elsewhere, and in an untrained copy.
    """
    difference = _best_rival_difference(results, own, budget)
    placebo_score = best_of(result.score().estimate for result in placebo).number
    untrained_score = best_of(result.score().estimate for result in untrained).number
    variable, what, where, outcome = moved
    graded = []
    for key, result in results.items():
        effect = _Effect(
            variable=variable,
            what=what,
            where=where,
            outcome=outcome,
            algorithm=key,
            score=result.score(budget.seed),
            slope=result.slope(budget.seed),
            difference=difference if key == own else NO_NUMBER,
            placebo=placebo_score,
            untrained=untrained_score,
        )
        graded.append(effect)
    return graded


def _best_rival_difference(
    results: Mapping[str, InterchangeResult], own: str, budget: Budget
) -> Interval:
    """Return the score less the best rival's; NaN where none can be paired."""
    first = results[own]
    rivals = [rival for key, rival in results.items() if key != own and first.wanted.any()]
    differences = []
    for rival in rivals:
        if rival.effect.shape == first.effect.shape:
            differences.append(score_difference(first, rival, budget.seed))
    return min(differences, key=lambda difference: difference.estimate, default=NO_NUMBER)


_STATE = "carried state"
"""What the variable that is carried from round to round is called in both models."""


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
        """Return one row a variable and a model; then one a cell of every map."""
        rows = []
        for site in self.held:
            row = columns(
                site,
                n_sites="sites tried",
                score="number",
                untrained_best="untrained, its best site",
            )
            rows.append({"name": "held", **row})
        for model, effects_map in self.maps:
            rows += _tabulate_map(model, effects_map)
        rows += [{"name": "effect carried", "where": reason} for reason in self.missing]
        return pd.DataFrame(rows)


def _tabulate_map(model: str, effects_map: EffectMap) -> list[dict[str, object]]:
    """Return a row for every cell of a map that has a number."""
    rows: list[dict[str, object]] = []
    for point, shares in zip(effects_map.points, effects_map.shares, strict=True):
        for label, share in zip(effects_map.positions, shares, strict=True):
            if not np.isfinite(share):
                continue
            row = {
                "name": "effect carried",
                "variable": " + ".join(effects_map.cause),
                "outcome": effects_map.outcome,
                "model": model,
                "where": f"{point}@{label}" if label else point,
                "number": share,
            }
            rows.append(row)
    return rows


def _locate(compared: Compared, algorithms: Sequence[Algorithm]) -> WherePart:
    """Find sites and maps of two models, by the algorithm of each.

    Of the untrained models of each shape the first is taken.
    """
    sites: list[_Held] = []
    maps: list[tuple[str, EffectMap]] = []
    missing: list[str] = []
    pair = list(zip(compared.pair, algorithms, strict=True))
    # The latents, which act on the prediction, and the inputs of both models that act on the state.
    first_causes, second_causes = (set(s.causes(algorithm)) for s, algorithm in pair)
    outcomes: dict[tuple[str, ...], str] = {("latent",): "prediction"}
    outcomes |= dict.fromkeys(sorted(first_causes & second_causes), "state")
    untrained = (compared.untrained, compared.reference_untrained)
    for (subject, algorithm), copies in zip(pair, untrained, strict=True):
        sites += _find_sites(subject, algorithm, copies[:1], compared.budget)
        if len(subject.model.points) == 1:  # effects cannot be mapped on anything
            name = subject.model.name
            missing.append(f"not applicable: {name} has no points but what it carries")
            continue
        samples = subject.samples
        for cause, key in outcomes.items():
            decode = None
            if key == "state" and not subject.model.is_handwired:
                decode = subject.decoder(algorithm, algorithm.memory)
            effects_map = effect_map(
                subject.model,
                samples.test,
                samples.other,
                list(cause),
                outcome=Outcome(key, decode),
                round=compared.budget.at[::3],
            )
            maps.append((subject.name, effects_map))
    return WherePart(tuple(sites), tuple(maps), tuple(missing))


def _find_sites(
    subject: Participant, algorithm: Algorithm, copies: Sequence[Participant], budget: Budget
) -> list[_Held]:
    """Find the best site of every variable that this model is claimed to hold."""
    sites = []
    for (variable, outcome), claims in _group_claims(subject, algorithm).items():
        scores = _score_claims(subject, algorithm, claims, budget)
        estimates = [score.estimate for score in scores]
        best = max(range(len(claims)), key=estimates.__getitem__)
        copy_scores: list[list[float]] = []
        for copy in () if subject.model.is_handwired else copies:
            in_copy = _score_claims(copy, algorithm, claims, budget)
            copy_scores.append([score.estimate for score in in_copy])
        name = _STATE if variable == algorithm.memory else variable
        same_site = [in_copy[best] for in_copy in copy_scores]
        site = _Held(
            variable=name,
            outcome=outcome,
            model=subject.name,
            where=" + ".join(map(str, claims[best].places)),
            n_sites=len(claims),
            score=scores[best],
            untrained=max(same_site, default=nan),
            untrained_best=max(map(max, copy_scores), default=nan),
        )
        sites.append(site)
    return sites


def _group_claims(subject: Participant, algorithm: Algorithm) -> dict[tuple[str, str], list[Claim]]:
    """Group what a model is claimed to hold by variable and outcome.

    Claims are the ground truth of a circuit that can be built by name; else what the task says.
    """
    origin = subject.model.origin
    is_built = "circuit" in origin and not origin.get("edits")
    claims = wired(from_origin(origin)) if is_built else subject.claims()
    grouped: dict[tuple[str, str], list[Claim]] = {}
    for claim in claims:
        if not claim.control and claim.variable in algorithm.keys:
            grouped.setdefault((claim.variable, claim.outcome), []).append(claim)
    return grouped


def _score_claims(
    subject: Participant, algorithm: Algorithm, claims: Sequence[Claim], budget: Budget
) -> list[Interval]:
    """Score each claim by graded interchange at its places."""
    scores = []
    for claim in claims:
        result = _interchange_claim(subject, algorithm, claim, claim.places, budget, exact=True)
        scores.append(result.score(budget.seed))
    return scores


def _compute_effects(compared: Compared) -> EffectsPart:
    return effects(compared.model, compared.candidates, compared.untrained, compared.budget)


def _compute_where(compared: Compared) -> WherePart:
    return _locate(compared, [s.task.explains(s.model) for s in compared.pair])


EFFECTS = Question("effects", EffectsPart, _compute_effects)
WHERE = Question("where", WherePart, _compute_where, of_two=True)
