"""Do two models compute by the same circuit? Mediated shares by path, heads matched by role, attention look-alikes.

Four things are measured in both models on the same episodes, each beside untrained models of both shapes:

* **paths**: which share of an effect passes through attention patterns (:mod:`interp.interventions.mediation`): of the
  latents on the prediction, through the patterns where it is read; and of each input that the task says to act on the
  state, on the state that is left, through the patterns where the update is read. A path on which both models are like
  their own untrained copies tells nothing about what was learned: it does not *discriminate*;
* **roles**: how well the heads of one can be matched to heads of the other (:mod:`circuits.compare.roles`), beside the
  best match that an untrained model of either shape makes with the reference;
* **edges**: how many each model needs for its prediction, and how many both need when heads stand for the heads that
  they were matched with (:mod:`circuits.compare.edges_needed`), beside random matchings;
* **look-alikes**: heads whose attention follows the algorithm's state, with what they carry
  (:mod:`circuits.compare.look_alikes`).

What the two hold alike can be computed in different ways; these numbers say in how far they do. Equal numbers are no
proof of equal circuits: they are what different circuits would have to share, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from circuits.compare.edges_needed import Needed, Shared, needed, shared
from circuits.compare.look_alikes import LITTLE, LOOKS, Look, looks
from circuits.compare.roles import Role, match, profile
from circuits.compare.subject import Effort, Subject
from interp.algorithm import Algorithm
from interp.decoder import Decoder
from interp.files import json_values
from interp.interventions.mediation import MediationResult, mediate, paths
from interp.statistics import Interval

CONTROL_ROUNDS = 3
"""Paths in untrained models are measured in every so-many-th round only, as they need no interval of their own."""


@dataclass(frozen=True)
class Path:
    """The share of one effect that passes through the attention patterns at one position, in both models.

    Attributes:
        cause, outcome: what is swapped, and what is read: "prediction", "state" or "latents".
        at: the position of the patterns' queries.
        blocked, carried: the shares in the model, with intervals over episodes.
        reference_blocked, reference_carried: those in the reference.
        untrained, reference_untrained: the share blocked in every untrained model of either shape, of the effect on
            its latents where ``outcome`` is "state": no state can be read from it.
    """

    cause: str
    outcome: str
    at: str
    blocked: Interval
    carried: Interval
    reference_blocked: Interval
    reference_carried: Interval
    untrained: tuple[float, ...]
    reference_untrained: tuple[float, ...]

    @property
    def discriminates(self) -> bool:
        """Whether one of the two models lies outside the range of its own untrained copies, by its interval."""
        pairs = ((self.blocked, self.untrained), (self.reference_blocked, self.reference_untrained))
        return any(found.high < _low(fresh) or found.low > _high(fresh) for found, fresh in pairs)


@dataclass(frozen=True)
class CircuitPart:
    """How two models compute.

    Attributes:
        model, reference: names.
        paths: mediated shares.
        similarity: of the heads' roles, under the best matching.
        untrained: that of every untrained model, of either shape, with the reference: what no training gives.
        roles: the heads matched, weightiest first.
        needed: the edges that each of the two needs, the model first.
        shared: those that both need; None where those of one are not known.
        looks, reference_looks: what heads' attention follows, and what they carry.
        settings: rounds, algorithm, seed.
    """

    model: str
    reference: str
    paths: tuple[Path, ...]
    similarity: Interval
    untrained: tuple[float, ...]
    roles: tuple[Role, ...]
    needed: tuple[Needed, Needed]
    shared: Shared | None
    looks: tuple[Look, ...]
    reference_looks: tuple[Look, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def look_alikes(self) -> list[Look]:
        """Heads of the model that attend as if they read the state, and carry little."""
        return [look for look in self.looks if look.is_look_alike]

    def to_frame(self) -> pd.DataFrame:
        """One row a measurement: a path's two shares, the similarity, each pair of heads, each head's R2 and share."""
        rows = [row for path in self.paths for row in _path_rows(path)]
        null = {"untrained low": _low(self.untrained), "untrained high": _high(self.untrained)}
        above = bool(self.similarity.low > _high(self.untrained))
        rows.append({"name": "similarity of roles", **_bounds(self.similarity), **null, "discriminates": above})
        for role in self.roles:
            row = {"name": "role", "what": f"{role.head} ~ {role.reference}", "value": role.similarity}
            rows.append({**row, "weight": role.weight, "reference weight": role.reference_weight})
        for of in self.needed:
            rows.append({"name": "edges needed", "model": of.model, "what": of.reason or f"of {of.of}", "value": of.n})
        if self.shared is not None:
            null = {"untrained low": self.shared.random_mean, "untrained high": self.shared.random_most}
            what = "under the matching of heads; for untrained read random matchings: mean, most"
            rows.append({"name": "edges shared", "what": what, "value": self.shared.n, **null})
        for name, found in ((self.model, self.looks), (self.reference, self.reference_looks)):
            for look in found:
                row = {"model": name, "what": f"{look.head}: {look.variable} at {look.positions}"}
                rows.append({"name": "attention R2", **row, **_bounds(look.r2), "look-alike": look.is_look_alike})
                rows.append({"name": "attention carries", **row, **_bounds(look.carried)})
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """JSON values; numbers that do not exist are None."""
        kept = json_values(self.to_frame().to_dict("records"))
        return {
            "model": self.model,
            "reference": self.reference,
            "measurements": [{key: value for key, value in row.items() if value is not None} for row in kept],
            "untrained": json_values(self.untrained),
            "settings": self.settings,
        }


def circuits(
    subject: Subject,
    reference: Subject,
    untrained: Sequence[Subject],
    reference_untrained: Sequence[Subject],
    effort: Effort,
) -> CircuitPart:
    """Paths, roles and look-alikes of two models.

    Args:
        untrained, reference_untrained: fresh models of the shapes of the two, with the same samples.
    """
    algorithm = _algorithm(reference)
    state = _state(reference, algorithm)
    fresh = (*untrained, *reference_untrained)
    every = (subject, reference, *fresh)
    decoders = [s.decoder(algorithm, state) if algorithm is not None and state else None for s in every]
    profiles = [profile(s, decode, effort) for s, decode in zip(every, decoders, strict=True)]
    similarity, roles = match(profiles[0], profiles[1], effort.seed)
    null = tuple(match(other, profiles[1], effort.seed)[0].estimate for other in profiles[2:])
    claimed = _inputs(reference, algorithm)
    inputs = [cause for cause in _inputs(subject, algorithm) if cause in claimed]
    measured = [_mediated(s, d, inputs, effort) for s, d in zip((subject, reference), decoders, strict=False)]
    controls = [_mediated(s, None, inputs, effort, fresh=True) for s in fresh]
    own, other = controls[: len(untrained)], controls[len(untrained) :]
    layout = subject.run(subject.samples.test).layout
    edges = needed(subject, effort), needed(reference, effort)
    seen = [looks(s, algorithm, m[0], effort) for s, m in zip((subject, reference), measured, strict=True)]
    return CircuitPart(
        subject.name,
        reference.name,
        tuple(
            _path(layout.labels[end], measured[0][i], measured[1][i], [m[i] for m in own], [m[i] for m in other])
            for i in range(len(inputs) + 1)
            for end in [layout.update_position if i else layout.predict_position]
        ),
        similarity,
        null,
        roles,
        edges,
        shared(*edges, roles, profiles[1].heads, effort.seed),
        tuple(seen[0]),
        tuple(seen[1]),
        {
            "rounds": effort.at,
            "untrained_rounds": effort.at[::CONTROL_ROUNDS],
            "state": state,
            "ablation": "mean",
            "looks": LOOKS,
            "little": LITTLE,
            "seed": effort.seed,
        },
    )


def _algorithm(reference: Subject) -> Algorithm | None:
    """The algorithm that the reference is held against; None where the task registers none."""
    task = reference.task
    return task.explains(reference.model) if task.hypothesis or task.algorithms() else None


def _state(subject: Subject, algorithm: Algorithm | None) -> str:
    """The first carried variable that differs between episodes; none where nothing is carried."""
    if algorithm is None or not algorithm.state:
        return ""
    values = algorithm.run(subject.samples.known)
    return next((key for key in algorithm.state if np.ptp(np.asarray(values[key], dtype=np.float64), 0).any()), "")


# Paths.


def _mediated(
    subject: Subject, decode: Decoder | None, inputs: Sequence[list[str]], effort: Effort, *, fresh: bool = False
) -> list[MediationResult]:
    """Latents to prediction, then each input to the state that is left, all through patterns.

    The first by head, too, but for untrained models, which are looked at in fewer rounds.
    """
    test, other, model = subject.samples.test, subject.samples.other, subject.model
    runs = subject.run(test), subject.run(other)
    layout = runs[0].layout
    read, written = (
        paths(model, "pattern", layout.labels[i]) for i in (layout.predict_position, layout.update_position)
    )
    at = effort.at[::CONTROL_ROUNDS] if fresh else effort.at
    options: dict[str, Any] = {"rounds": at, "n_random": 0, "runs": runs, "seed": effort.seed}
    found = [mediate(model, test, other, "latent", read, each=not fresh, **options)]
    options |= {"outcome": "latents" if decode is None else "state", "decode": decode, "each": False}
    return found + [mediate(model, test, other, cause, written, **options) for cause in inputs]


def _inputs(subject: Subject, algorithm: Algorithm | None) -> list[list[str]]:
    """The tokens at which the task says that an input acts on the state; none without an algorithm."""
    return [] if algorithm is None else [list(several) for several in subject.causes(algorithm)]


def _path(
    at: str,
    mine: MediationResult,
    theirs: MediationResult,
    own: Sequence[MediationResult],
    other: Sequence[MediationResult],
) -> Path:
    return Path(
        " + ".join(mine.cause),
        mine.outcome,
        at,
        mine.blocked(),
        mine.carried(),
        theirs.blocked(),
        theirs.carried(),
        tuple(result.blocked().estimate for result in own),
        tuple(result.blocked().estimate for result in other),
    )


def _path_rows(path: Path) -> list[dict[str, Any]]:
    what = {"name": "mediated share", "what": f"{path.cause} -> {path.outcome}", "at": path.at}
    fresh = {
        "untrained low": _low(path.untrained),
        "untrained high": _high(path.untrained),
        "reference untrained low": _low(path.reference_untrained),
        "reference untrained high": _high(path.reference_untrained),
    }
    blocked, held = _bounds(path.blocked), _bounds(path.reference_blocked, "reference ")
    return [
        {**what, "share": "blocked", **blocked, **held, **fresh, "discriminates": path.discriminates},
        {**what, "share": "carried", **_bounds(path.carried), **_bounds(path.reference_carried, "reference ")},
    ]


def _bounds(value: Interval, prefix: str = "") -> dict[str, float]:
    return {f"{prefix}value": value.estimate, f"{prefix}low": value.low, f"{prefix}high": value.high}


def _low(values: Sequence[float]) -> float:
    """The smallest; a control that does not exist is no number, and compares as neither more nor less."""
    known = [value for value in values if np.isfinite(value)]
    return min(known, default=float("nan"))


def _high(values: Sequence[float]) -> float:
    """The largest, likewise."""
    return max((value for value in values if np.isfinite(value)), default=float("nan"))
