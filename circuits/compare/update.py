"""Does the model update its state as an algorithm does? Step R2 of each candidate's state, on and off the manifold.

:func:`updates` decodes the carried state of every algorithm that could explain the model from its latents, and compares
its update with the model's. When :func:`judge` says yes or no: ``docs/method/comparing.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import isnan
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.kernel_approximation import RBFSampler
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import PowerTransformer, StandardScaler
from torch import Tensor

from circuits.compare.algorithm import EXTENDED, NEARLY_ALL, RATIO
from circuits.compare.effects import EffectsPart
from circuits.compare.question import (
    Compared,
    CrossFitted,
    Effort,
    Participant,
    Question,
    columns,
    crossed_writer,
    pooled,
    pooled_values,
    scored,
)
from circuits.compare.response import RESPONDS, ResponsePart
from circuits.compare.state import is_hard
from interp.choices.fitting import Array, search
from interp.core.algorithm import Algorithm, Family, Values, in_words
from interp.interventions.moves import StepResult, Transition, Writer, flat, transition
from interp.results.measure import (
    AS_WELL,
    NOTHING,
    SPANS,
    UNTRAINED,
    Measure,
    Result,
    Verdict,
    best_of,
    decisive,
)
from interp.stats.decoder import RIDGE, Affine
from interp.stats.intervals import Interval, ratio_interval
from interp.support.session import remembered

_ON, _OFF = "on", "off"
_STEPPED, _STRAYED = (
    0.975,
    0.95,
)  # step R2 of a yes, and below which it is a no (why: docs/method/comparing.md)
_EXACT = 1 - 1e-4  # step R2 from which what is left is rounding
_GRADED = 0.9
"""Score of an input in what a round writes: 1 where it is handwired, .999 for the label in ``wma-learned``."""
_CHANGED = 0.1  # share of the elements of a set that change off the manifold
_ARRIVES = 0.75  # share of a move that a response one round later must make not to be called late
_FEATURES, _NARROW = 600, 1 / 18
"""Random features of the non-linear decoder, and what their gamma is, times the number of latent coordinates."""
_STRANGE = 1.0  # how far states are moved off the manifold: standard deviations of each element at the round


@dataclass(frozen=True)
class _Update:
    """The step R2 of one algorithm's state in one model.

    Attributes:
        state: the variables that were decoded; missing: those carried by the algorithm that the latents do not hold.
        decoded: R2 of the decoder on other episodes, worst variable.
        bent: R2 of the algorithm's own steps as a non-linear decoder reads them, on other episodes.
        manifold: "on", or "off" where states were moved.
        untrained: R2 of each untrained model.
    """

    model: str
    algorithm: str
    state: tuple[str, ...]
    missing: tuple[str, ...]
    decoded: float
    bent: float
    manifold: str
    horizon: int
    r2: Interval
    untrained: tuple[float, ...]


@dataclass(frozen=True)
class _Rule:
    """A family of updates, fitted to what one round makes of the decoded state; R2 is on other episodes.

    ``left`` is what it misses of the steps there, as a share of what the algorithm misses.
    """

    key: str
    name: str
    state: tuple[str, ...]
    parameters: Mapping[str, float]
    r2: Interval
    left: Interval


@dataclass(frozen=True, repr=False)
class UpdatePart(Result):
    """Step R2 of every candidate, and the families of updates as fitted, the closest first."""

    updates: tuple[_Update, ...]
    rules: tuple[_Rule, ...] = ()

    def of(self, algorithm: str) -> list[_Update]:
        """Those of one algorithm's state."""
        return [update for update in self.updates if update.algorithm == algorithm]

    def to_frame(self) -> pd.DataFrame:
        """One row a candidate, a manifold and a horizon; then one a family of updates."""
        rows: list[dict[str, Any]] = []
        called = {
            "missing": "not decodable",
            "decoded": "decoded R2",
            "bent": "non-linear R2",
            "r2": "number",
        }
        for u in self.updates:
            row = {"name": "step R2", **columns(u, **called, untrained="")}
            rows.append({**row, "untrained": best_of(u.untrained).number})
        for rule in self.rules:
            row = {
                "name": "fitted update",
                "algorithm": rule.key,
                "parameters": in_words(rule.parameters),
            }
            held = {"state": " + ".join(rule.state), "manifold": _ON, "horizon": 1}
            rows.append({**row, **held, **rule.r2.columns("number"), **rule.left.columns("left")})
        return pd.DataFrame(rows)


def updates(
    subject: Participant,
    algorithms: Mapping[str, Algorithm],
    untrained: Sequence[Participant],
    effort: Effort,
) -> UpdatePart:
    """Step R2 of the state of every algorithm that carries one, and the updates that fit the last one's state."""
    found = []
    for name, algorithm in algorithms.items():
        if not algorithm.state:
            continue
        own = subject.writer(algorithm)
        keys, decoded = tuple(own.shapes), _decoded(own, subject, algorithm)
        missing = tuple(key for key in algorithm.state if key not in keys)
        values, bent = pooled_values(algorithm, subject.samples), _bent(subject, algorithm, keys)
        moves = {_ON: None, _OFF: strange(values, keys, effort)}
        for (manifold, by), horizon in product(moves.items(), (1, effort.horizon)):
            about, whose = (algorithm, keys, effort, horizon, by), subject.samples.whose
            r2 = scored(*_missed_steps(subject, *about), whose)
            n = len(subject.samples.known)
            fresh = (scored(*_missed_steps(u, *about, known=False), whose[n:]) for u in untrained)
            controls = tuple(score.estimate for score in fresh)
            found.append(
                _Update(
                    subject.name,
                    name,
                    keys,
                    missing,
                    decoded,
                    bent,
                    manifold,
                    horizon,
                    r2,
                    controls,
                )
            )
    reference = [algorithm for algorithm in algorithms.values() if algorithm.state][-1:]
    return UpdatePart(tuple(found), tuple(r for a in reference for r in _rules(subject, a, effort)))


def _rules(subject: Participant, algorithm: Algorithm, effort: Effort) -> list[_Rule]:
    """The families of updates that carry what was decoded, fitted on one batch and scored on another."""
    test, other, writer = subject.samples.test, subject.samples.other, subject.writer(algorithm)
    fits, scores = (
        transition(subject.model, episodes, writer, round=effort.at) for episodes in (other, test)
    )
    own, families = scores.under(algorithm), subject.task.update_families()
    found = [
        _extended(subject, family, algorithm, tuple(writer.shapes), own, effort)
        if family.extends == algorithm.key
        else _fitted(family, fits, scores, own, effort.seed)
        for family in families.values()
        if set(writer.shapes) <= set(_made(family, {}).state)
    ]
    left = {rule.key: missed for missed, rule in found}
    return [
        r
        for m, r in sorted(
            found, key=lambda one: _rank(one[0], left.get(families[one[1].key].extends, np.inf))
        )
    ]


def _rank(missed: float, base: float) -> tuple[float, float]:
    """By what a rule leaves; an extension that leaves hardly less than ``base``, what it extends, comes after that."""
    return (base, missed) if EXTENDED * base < missed <= base else (missed, 0.0)


def _fitted(
    family: Family, fits: Transition, scores: Transition, own: StepResult, seed: int
) -> tuple[float, _Rule]:
    """The family's update that says most of the model's steps, with what it leaves of them where it was fitted."""
    searched = [parameter for parameter in family.searched if not parameter.enters]
    left, found = search(searched, lambda parameters: fits.left(_made(family, parameters)))
    return left, _rule(family, found, scores, own, seed)


def _rule(
    family: Family, found: Mapping[str, float], steps: Transition, own: StepResult, seed: int
) -> _Rule:
    made = steps.under(_made(family, found))
    sums = (of.missed.sum(1) / of.varied.sum() for of in (made, own))
    missed = ratio_interval(*sums, seed=seed, participants=own.participants)
    return _Rule(family.key, family.name, tuple(steps.shapes), found, made.r2(seed), missed)


def _extended(
    subject: Participant,
    family: Family,
    algorithm: Algorithm,
    keys: tuple[str, ...],
    own: StepResult,
    effort: Effort,
) -> tuple[float, _Rule]:
    """An extension of ``algorithm``, at the point of its grid that says most of the steps of its own state.

    A machine that keeps a trace holds another table than the algorithm's, so each point has a decoder of its own.
    """
    free = [s for s in family.searched if s.name not in algorithm.parameters and not s.enters]
    known = {
        s.name: algorithm.parameters[s.name]
        for s in family.searched
        if s.name in algorithm.parameters
    }
    found: list[tuple[float, dict[str, float], Algorithm]] = []

    def steps(made: Algorithm, episodes: Any) -> Transition:
        return transition(subject.model, episodes, subject.writer(made, keys), round=effort.at)

    for point in product(*(s.grid for s in free)):
        parameters = {**known, **dict(zip([s.name for s in free], point, strict=True))}
        made = _made(family, parameters)
        found.append((steps(made, subject.samples.other).left(made), parameters, made))
    left, parameters, made = min(found, key=lambda one: one[0])
    return left, _rule(family, parameters, steps(made, subject.samples.test), own, effort.seed)


def _made(family: Family, parameters: Mapping[str, float]) -> Algorithm:
    """A member of the family; parameters that are not given, such as those of the prediction alone, are the first."""
    return family.make(**{**{p.name: p.grid[0] for p in family.searched}, **parameters})


def _bent(subject: Participant, algorithm: Algorithm, keys: tuple[str, ...]) -> float:
    """R2 of the algorithm's own steps in what :func:`_features` of the latents decode, the least of any variable.

    Fitted on the known episodes (what a high one says: docs/method/comparing.md).
    """
    values, n, scores = pooled_values(algorithm, subject.samples), len(subject.samples.known), []
    known, test = _features(subject)
    parts = [flat(values[key]) for key in keys]
    held = np.concatenate(parts, -1)
    fitted = Affine.fit(known, torch.from_numpy(held[:n].reshape(len(known), -1)), RIDGE)
    decoded = fitted(test).numpy().reshape(held[n:].shape)
    ends = np.cumsum([part.shape[-1] for part in parts])[:-1]
    for made, true in zip(
        *(np.split(np.diff(of, axis=1), ends, -1) for of in (decoded, held[n:])), strict=True
    ):
        about = ((true - true.mean(0)) ** 2).sum()
        scores.append(1 - ((made - true) ** 2).sum() / about if about else 1.0)
    return float(min(scores))


@remembered
def _features(subject: Participant) -> tuple[Tensor, Tensor]:
    """Random and other features of the latents, and the round number, ``[round, feature]``: known and test episodes."""
    n = len(subject.samples.known)
    x = np.nan_to_num(pooled(subject).latents[:, :-1].flatten(2).double().numpy(force=True))
    x = np.concatenate([x, np.broadcast_to(np.arange(x.shape[1])[:, None], (*x.shape[:2], 1))], -1)
    features = RBFSampler(gamma=_NARROW / x.shape[-1], n_components=_FEATURES, random_state=0)
    straight = make_pipeline(
        StandardScaler(), FeatureUnion([("plain", "passthrough"), ("bent", features)])
    )
    unbent = (
        PowerTransformer() if x.shape[-1] <= _FEATURES else "drop"
    )  # of each coordinate alone, such as a logarithm
    read = FeatureUnion([("straight", straight), ("unbent", unbent)])
    known, test = (part.reshape(-1, x.shape[-1]) for part in (x[:n], x[n:]))
    known, test = read.fit_transform(known), read.transform(test)
    if (n_rounds := x.shape[1]) * x.shape[-1] <= _FEATURES:  # a map of its own for every round
        own = (np.eye(n_rounds)[:, :, None] * x[:, :, None]).reshape(-1, n_rounds * x.shape[-1])
        known, test = np.hstack([known, own[: len(known)]]), np.hstack([test, own[len(known) :]])
    return torch.from_numpy(known), torch.from_numpy(test)


def _missed_steps(
    subject: Participant,
    algorithm: Algorithm,
    keys: tuple[str, ...],
    effort: Effort,
    horizon: int,
    by: Mapping[str, Array] | None,
    *,
    known: bool = True,
) -> tuple[Array, Array]:
    """What the algorithm misses of the model's steps, and what it says of them, ``[episode]`` each.

    Args:
        by: what the variables ``keys`` are moved by first, ``[episode of the pool, start, ...]``; nothing when None.
        known: whether the known episodes are scored, too, each by decoders that were fitted without it.
    """
    writer, samples = crossed_writer(subject, algorithm, keys), subject.samples
    assert isinstance(writer.decoder, CrossFitted)
    n, sums = len(samples.known), []
    for episodes, rows in [(samples.known, slice(n))] * known + [(samples.test, slice(n, None))]:
        mine = replace(writer, decoder=writer.decoder.cut(rows))
        moved = None if by is None else {key: change[rows] for key, change in by.items()}
        found = transition(
            subject.model, episodes, mine, round=effort.at, horizon=horizon, by=moved
        ).under(algorithm)
        sums.append((found.missed.sum(1), found.varied.sum(1)))
    missed, varied = (np.concatenate(parts) for parts in zip(*sums, strict=True))
    return missed, varied


def strange(values: Values, keys: Sequence[str], effort: Effort) -> dict[str, Array]:
    """Changes of the decoded state that lead off the manifold: each element is moved by its own random amount.

    No element leaves its range over rounds and episodes; elements of a set change with probability :data:`_CHANGED`.
    """
    rng, changes = np.random.default_rng([effort.seed, 7]), {}
    for key in keys:
        held = np.asarray(values[key], dtype=np.float64)
        here, low, high = held[:, effort.at], held.min((0, 1)), held.max((0, 1))
        if np.isin(held, (0.0, 1.0)).all():
            changes[key] = np.where(rng.random(here.shape) < _CHANGED, 1 - 2 * here, 0.0)
            continue
        spread = here.std(0, keepdims=True)
        if not spread.any():
            spread = np.full_like(spread, np.ptp(held) / 8)
        changes[key] = (
            np.clip(here + _STRANGE * spread * rng.standard_normal(here.shape), low, high) - here
        )
    return changes


def _decoded(writer: Writer, subject: Participant, algorithm: Algorithm) -> float:
    """R2 of the decoder on the test episodes, of the variable that it reads worst."""
    run, values = subject.run(subject.samples.test), algorithm.run(subject.samples.test)
    read = writer.read(run.latents[:, :-1])
    scores = []
    for key in writer.shapes:
        held = np.asarray(values[key], dtype=np.float64)
        scores.append(1 - ((read[key] - held) ** 2).sum() / ((held - held.mean((0, 1))) ** 2).sum())
    return float(min(scores))


def judge(
    part: UpdatePart, effects: EffectsPart, algorithm: str, response: ResponsePart
) -> Measure:
    """By the step R2 of ``algorithm``'s state, the scores of inputs in what a round writes, and the responses."""
    claims = [_of_steps(part, part.of(algorithm))]
    graded = [
        e
        for e in effects.effects
        if (e.algorithm, e.what, e.outcome) == (algorithm, "input", "state")
    ]
    graded = [e for e in graded if not isnan(e.score.estimate)]
    if graded:
        weakest = min(graded, key=lambda e: e.score.low)
        about, controls = (
            f"{weakest.variable} in what a round writes",
            {UNTRAINED: best_of([weakest.untrained])},
        )
        claims.append(
            Measure(
                "update", "", weakest.score, _GRADED, unit="score", controls=controls, about=about
            )
        )
    free = Measure(
        "update", "", threshold=RESPONDS, unit="likeness of responses", needs_control=False
    )
    about = "response to {}, against the move of the state"
    claims += [
        replace(free, number=cell.alike, about=about.format(cell.where)) for cell in response.cells
    ]
    if (
        response.later.low < RESPONDS
    ):  # a search from both ends holds the state, too, and answers from more than it
        about, unit = "prediction from the state of the round after", "correlation of changes"
        claims.append(
            Measure(
                "update", "", response.later, RESPONDS, no_threshold=-1.0, unit=unit, about=about
            )
        )
    if response.arrives.high < _ARRIVES:
        about = "response one round later, as a share of the move of the state"
        claims.append(Measure("update", "", response.arrives, _ARRIVES, unit="share", about=about))
    hidden = claims[0].unless.get("no", "")
    if (
        hidden.startswith(NOTHING) and part.of(algorithm)[0].decoded < _STRAYED
    ):  # affine maps do not move it either
        claims = [replace(claim, unless={**claim.unless, "no": hidden}) for claim in claims]
    return decisive(claims)


def _of_steps(part: UpdatePart, steps: Sequence[_Update]) -> Measure:
    """By the worst step; each untrained copy's number is that of its own worst step."""
    worst = min(steps, key=lambda u: u.r2.low)
    plain = next(u for u in steps if u.manifold == _ON and u.horizon == 1)
    unless: dict[Verdict, str] = {}
    if 1 - plain.bent <= RATIO * (1 - plain.r2.estimate):
        unless["no"] = (
            f"{NOTHING}: affine maps read R2 {plain.r2.estimate:.2f} of its steps, others {plain.bent:.2f}"
        )
    on = min(u.r2.low for u in steps if u.manifold == _ON)
    only = f"{SPANS}: only states that no episode reaches are updated differently"
    if on >= _STRAYED:
        unless["no"] = only
    if on >= NEARLY_ALL and worst.r2.estimate < _EXACT and 1 - on <= RATIO * (1 - worst.r2.high):
        unless["yes"] = only
    if (rest := 1 - plain.r2.estimate) > 1 - NEARLY_ALL:
        if part.rules and (rival := part.rules[0]).left.high <= EXTENDED:
            other = f"{rival.name} ({in_words(rival.parameters)})"
            unless["yes"] = f"{other} {AS_WELL}: it leaves {rival.left} of what steps miss"
        others = [
            u
            for u in part.updates
            if (u.manifold, u.horizon) == (_ON, 1) and 1 - u.r2.low <= RATIO * rest
        ]
        if others:  # the state of another algorithm, which is not this one's
            missed = (
                f"{1 - others[0].r2.estimate:.2g} of its steps is missed, and {rest:.2g} of these"
            )
            unless["yes"] = f"{others[0].algorithm} {AS_WELL}: {missed}"
    state, far = (
        " + ".join(worst.state),
        "one round on" if worst.horizon == 1 else f"{worst.horizon} rounds on",
    )
    return Measure(
        "update",
        "",
        worst.r2,
        _STEPPED,
        no_threshold=_STRAYED,
        unit="step R2",
        controls={UNTRAINED: best_of(np.fmin.reduce([u.untrained for u in steps]))},
        about=f"{state}, {far}, from states that {'occur' if worst.manifold == _ON else 'no episode reaches'}",
        unless=unless,
    )


def _judged(compared: Compared) -> Measure:
    """By the state of the reference's algorithm, where it names one.

    A lapse of it, or a small change, that predicts as the model forbids "yes". Predictions that are the reference's
    forbid "no": what maps read otherwise is a code, such as weights whose sum is kept at 1. Mere choices do where none
    reads the state.
    """
    found, algorithm = compared.parts["algorithm"], list(compared.candidates)[-1]
    reference = compared.reference
    if reference is not None and not reference.names_algorithm and not compared.is_one:
        return Measure("update", "", lacking=f"{reference.name} names no algorithm")
    measure = judge(
        compared.parts["update"], compared.parts["effects"], algorithm, compared.parts["response"]
    )
    closest, unless = found.scores[found.closest], dict(measure.unless)
    if found.family and closest.group == algorithm != closest.key:
        unless.setdefault("yes", f"{closest.name} {AS_WELL}: it explains the predictions")
    if found.left and not found.family and closest.group == algorithm:
        unless.setdefault(
            "yes",
            f"a small change of it {AS_WELL}: it leaves {found.left} of what predictions miss",
        )
    unread = compared.parts["update"].of(algorithm)[0].decoded < _STRAYED
    if reference and (
        (unread and compared.parts["state"].measure.verdict == "yes")
        or (
            compared.parts["behaviour"].measure.number.low >= NEARLY_ALL
            and (unread or not is_hard(reference))
        )
    ):
        unless.setdefault(
            "no", f"{NOTHING}: it is {reference.name} in a code that affine maps misread"
        )
    return replace(measure, unless=unless)


UPDATE = Question(
    "update",
    UpdatePart,
    lambda compared: updates(
        compared.model, compared.candidates, compared.untrained, compared.effort
    ),
    *(
        "It updates its state as {} does",
        "updates its state likewise",
        "updates its state differently",
    ),
    judge=_judged,
)
