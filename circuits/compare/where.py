"""Where do two models hold the algorithm's variables, and where do effects travel in them?

A :class:`WherePart` puts two models side by side; how its tables are made: ``docs/method/comparing.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
import pandas as pd

from circuits.compare.question import Budget, Compared, Participant, Question, columns
from circuits.compiler import wired
from circuits.registry import from_origin
from interp.core.algorithm import Algorithm
from interp.interventions.experiment import Outcome
from interp.interventions.interchange import Claim, interchange
from interp.interventions.mediation import EffectMap, effect_map
from interp.results.measure import Result
from interp.stats.intervals import Interval

_STATE = "carried state"
"""What the variable that is carried from round to round is called in both models."""


@dataclass(frozen=True)
class _Held:
    """The site that holds one variable best, in one model.

    Attributes:
        variable, outcome: what is swapped, and what it shows in: "prediction" or "state".
        n_sites: how many were tried.
        score: graded interchange at this site.
        untrained: the same site in an untrained model of this shape, and the best of all its sites;
            NaN where the model's claims are subspaces of its weights, which an untrained model does
            not have.
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


def _locate(compared: Compared) -> WherePart:
    """Find sites and maps of two models, by the algorithm that the task says of each.

    Of the untrained models of each shape the first is taken.
    """
    sites: list[_Held] = []
    maps: list[tuple[str, EffectMap]] = []
    missing: list[str] = []
    pair = [(subject, subject.task.explains(subject.model)) for subject in compared.pair]
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
            effects_map = effect_map(
                subject.model,
                samples.test,
                samples.other,
                list(cause),
                outcome=_outcome(subject, algorithm, key),
                round=compared.budget.at[::3],
            )
            maps.append((subject.name, effects_map))
    return WherePart(tuple(sites), tuple(maps), tuple(missing))


def _find_sites(
    subject: Participant, algorithm: Algorithm, copies: Sequence[Participant], budget: Budget
) -> list[_Held]:
    """Find the best site of every variable that this model is claimed to hold.

    Args:
        subject: the model.
        algorithm: computes the variables.
        copies: untrained copies, for the control.
        budget: gives the rounds and the seed.
    """
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
    """List what a model is claimed to hold, by variable and outcome.

    Claims are the ground truth of a circuit that can be built by name; for other models, those of
    the task.
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
    """Score each claim by graded interchange at its places.

    Args:
        subject: the model.
        algorithm: computes what the model should predict.
        claims: what to score.
        budget: gives the rounds and the seed.
    """
    samples, scores = subject.samples, []
    for claim in claims:
        result = interchange(
            subject.model,
            samples.test,
            samples.other,
            algorithm,
            claim.variable,
            claim.places,
            outcome=_outcome(subject, algorithm, claim.outcome),
            round=budget.at,
        )
        scores.append(result.score(budget.seed))
    return scores


def _outcome(subject: Participant, algorithm: Algorithm, key: str) -> Outcome:
    """Return the outcome; a handwired model's state is read by its weights, that of another model
    by a decoder.

    Args:
        subject: the model.
        algorithm: computes the state that the decoder is fitted to.
        key: "prediction" or "state".
    """
    if key == "state" and not subject.model.is_handwired:
        return Outcome(key, subject.decoder(algorithm, algorithm.memory))
    return Outcome(key)


WHERE = Question("where", WherePart, _locate, of_two=True)
