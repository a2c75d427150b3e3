"""Where do two models hold the algorithm's variables, and where do effects travel? Sites and maps, side by side.

* **sites**: what each model is claimed to hold where (a handwired circuit's ground truth; for others the places that
  the task names, whole activations), tested by graded interchange: for every variable and outcome the site that scores
  best, with the same site of an untrained model, and the best of all sites that such a model has. The carried state is
  one row, whatever statistic each model's algorithm calls it by.
* **maps**: the share of an effect that each activation of the residual stream carries by itself, layer by position:
  of the latents on the prediction, and of each input of the round on the state that it leaves. Both models' maps have
  one scale (1 is the whole effect), so they show where a cause arrives, and in which layer two of them meet. Of a
  machine without layers the map is of its own points.

What this is NOT: a proof that the best claimed site is the best there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from circuits.compare.effects import interchanged
from circuits.compare.question import Compared, Effort, Participant, Question
from circuits.compiler import wired
from circuits.registry import from_origin
from interp.algorithm import Algorithm
from interp.interventions.experiment import Outcome
from interp.interventions.interchange import Claim
from interp.interventions.mediation import EffectMap, effect_map
from interp.machine import Machine
from interp.statistics import Interval

STATE = "carried state"
"""What the variable that is carried from round to round is called in both models."""
_MAP_ROUNDS = 3
"""Every so-many-th of the rounds is enough for a map."""


@dataclass(frozen=True)
class Held:
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


@dataclass(frozen=True)
class WherePart:
    """Sites and maps of two models.

    Attributes:
        maps: (model, where its effects travel), first all of one, then all of the other, causes in the same order.
        missing: a sentence for each model that has no maps.
    """

    held: tuple[Held, ...]
    maps: tuple[tuple[str, EffectMap], ...]
    missing: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """One row a variable and a model; then one a cell of every map."""
        rows: list[dict[str, Any]] = []
        for h in self.held:
            said = {key: getattr(h, key) for key in ("variable", "outcome", "model", "where")}
            fresh = {"untrained": h.untrained, "untrained, its best site": h.untrained_best}
            rows.append({"name": "held", **said, "sites tried": h.n_sites, **h.score.columns("number"), **fresh})
        for model, m in self.maps:
            what = {"name": "effect carried", "variable": " + ".join(m.cause), "outcome": m.outcome, "model": model}
            rows += [
                {**what, "where": f"{point}@{label}" if label else point, "number": share}
                for point, shares in zip(m.points, m.shares, strict=True)
                for label, share in zip(m.positions, shares, strict=True)
                if np.isfinite(share)
            ]
        rows += [{"name": "effect carried", "where": reason} for reason in self.missing]
        return pd.DataFrame(rows)


def where(compared: Compared, algorithms: Sequence[Algorithm]) -> WherePart:
    """Sites and maps of two models, by the algorithm of each; of the fresh models of each shape the first is taken."""
    held: list[Held] = []
    maps: list[tuple[str, EffectMap]] = []
    # The latents, which act on the prediction, and the inputs of both models that act on the state.
    mine, theirs = (set(s.causes(a)) for s, a in zip(compared.pair, algorithms, strict=True))
    causes = {("latent",): "prediction", **dict.fromkeys(sorted(mine & theirs), "state")}
    effort, untrained = compared.effort, (compared.untrained, compared.reference_untrained)
    for s, algorithm, fresh in zip(compared.pair, algorithms, untrained, strict=True):
        held += _held(s, algorithm, fresh[:1], effort)
        if not _unmapped(s.model):
            maps += [(s.name, _map(s, algorithm, cause, outcome, effort)) for cause, outcome in causes.items()]
    missing = tuple(filter(None, (_unmapped(s.model) for s in compared.pair)))
    return WherePart(tuple(held), tuple(maps), missing)


def _unmapped(machine: Machine) -> str:
    """A sentence where there is nothing that an effect could be mapped on."""
    return f"not applicable: {machine.name} has no points but what it carries" if len(machine.points) == 1 else ""


def _held(s: Participant, algorithm: Algorithm, fresh: Sequence[Participant], effort: Effort) -> list[Held]:
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
            [interchanged(u, algorithm, c, c.places, effort, exact=True).score(effort.seed) for c in several]
            for u in (s, *(() if s.model.is_handwired else fresh))
        ]
        best = max(range(len(several)), key=lambda i: scores[i].estimate)
        found.append(
            Held(
                STATE if variable == algorithm.memory else variable,
                outcome,
                s.name,
                " + ".join(map(str, several[best].places)),
                len(several),
                scores[best],
                max((c[best].estimate for c in controls), default=float("nan")),
                max((score.estimate for c in controls for score in c), default=float("nan")),
            )
        )
    return found


def _map(s: Participant, algorithm: Algorithm, cause: tuple[str, ...], outcome: str, effort: Effort) -> EffectMap:
    test, other, rounds = s.samples.test, s.samples.other, effort.at[::_MAP_ROUNDS]
    fitted = outcome == "state" and not s.model.is_handwired
    decode = s.decoder(algorithm, algorithm.memory) if fitted else None
    return effect_map(s.model, test, other, list(cause), outcome=Outcome(outcome, decode), rounds=rounds)


WHERE = Question(
    "where",
    WherePart,
    lambda compared: where(compared, [s.task.explains(s.model) for s in compared.pair]),
    of_two=True,
)
