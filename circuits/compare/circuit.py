"""Do two models compute by the same circuit? Mediated shares by path, heads matched by role, attention look-alikes.

Four things are measured in both models on the same episodes, each beside untrained models of both shapes:

* **roles**: how well the heads of one can be matched to heads of the other (:mod:`circuits.compare.roles`): by what
  they read at every position and what that is worth, and by which head reads what which other wrote; beside the best
  match that an untrained copy of the model makes with the reference;
* **paths**: which share of an effect passes through attention patterns (:mod:`interp.interventions.mediation`): of the
  latents on the prediction, through the patterns where it is read; and of each input that the task says to act on the
  state, on the state that is left, through the patterns where the update is read;
* **edges**: those that each model needs for its prediction. The edges of a round
  (:class:`interp.interventions.edge_graph.EdgeGraph`) are scored by EAP-IG between a run and one with the task's
  default corruption; the fewest best-scored ones whose faithfulness is within :data:`_TOLERANCE` of 1 are *needed*. An
  edge is shared where its two ends, and the port, are matched by role and both models need it; beside it stands the
  same count under random matchings of heads;
* **look-alikes**: heads whose attention follows the algorithm's state, with what they carry
  (:mod:`circuits.compare.roles`).

The claim is decided by the roles: it is true where heads do alike things in alike places and hand them on alike, clear
of untrained copies of the model, and no path differs by much; it is false where either is unlike. A path alone makes
nothing false: which share passes through patterns is no sign of training. Of 60 untrained copies of
``wma-learned`` it is -.26 to .93 (latents to prediction), of the handwired machine -.08 to 1.08, so that trained models
lie among them (.29 and 1), and no few copies could tell.

What this is NOT: proof of equal circuits. Different circuits can share these numbers; nor are the needed edges the only
ones that do, or a shared edge evidence that it carries the same thing in both. Heads are matched one to one: a model
that does with two heads what the other does with one is not the same in this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from typing import Any

import numpy as np
import pandas as pd

from circuits.compare.question import Compared, Effort, Participant, Question
from circuits.compare.roles import HAND_ON, READ, Look, Matched, Role, looks, match, profile, transformer
from circuits.registry import differentiable
from interp.algorithm import Algorithm
from interp.decoder import Decoder
from interp.display import lacks
from interp.errors import InputError
from interp.interventions.ablation import CircuitScorer, smallest
from interp.interventions.attribution import attribute
from interp.interventions.experiment import Outcome
from interp.interventions.mediation import MediationResult, Split, mediate, paths
from interp.interventions.pairs import corruption, prepare
from interp.machine import Machine
from interp.measure import NOTHING, SPANS, UNTRAINED, Measure, best_of, decisive
from interp.statistics import Interval

_SHARE = 0.25
"""Difference of a mediated share up to which paths agree: 0 between handwired R and P; .64, .82 to ``wma-learned``."""
_ROLES = 0.5
"""Similarity that "same" needs. Of ``wma-handwired`` to itself, rotated, with distractors, with gain .2, fading, late
or noisy, bounds of what is read alike begin at .80, and handed on at 1; to a memory of 5 rounds at .62 and 1. To R
those of P end at .85 and .01, of ``wma-learned`` at .29 and .004; to its other seeds at .31 and .36, to untrained ones
at .16 and .40. A head in two halves is undecided: .6 of what is handed on, a third for its outcome."""
_TOLERANCE = 0.1
"""How far from 1 the faithfulness of the edges that are needed may be."""
_N_EPISODES, _N_RANDOM = 16, 200
"""Episodes that edges are scored on; random matchings of heads."""
_CONTROL_ROUNDS = 3
"""Paths in untrained models are measured in every so-many-th round only, as they need no interval of their own."""


@dataclass(frozen=True)
class Path:
    """The share of one effect that passes through the attention patterns at one position, in both models.

    Attributes:
        cause, outcome: what is swapped, and what is read: "prediction", "state" or "latents".
        at: the position of the patterns' queries.
        blocked, carried: the shares in the model.
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


@dataclass(frozen=True)
class Needed:
    """The edges that one model needs for its prediction: ``n`` of ``of``, as (source, destination).

    ``reason`` says why they could not be found; "" where they were.
    """

    model: str
    n: int
    of: int
    edges: tuple[tuple[str, str], ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Shared:
    """How many edges both models need, under the matching of their heads and under random matchings."""

    n: int
    random_mean: float
    random_most: int


@dataclass(frozen=True)
class CircuitPart:
    """How two models compute.

    Attributes:
        matched: the heads of the two, matched by role; ``untrained``: those of every untrained copy of the model with
            the reference.
        needed: the edges that each of the two needs, the model first; ``shared``: those that both need, None where
            those of one are not known.
        looks: of each head of the two, what its attention follows, the model first.
    """

    model: str
    reference: str
    paths: tuple[Path, ...]
    matched: Matched
    untrained: tuple[Matched, ...]
    needed: tuple[Needed, Needed]
    shared: Shared | None
    looks: tuple[tuple[Look, ...], ...]

    def alike(self) -> list[tuple[str, Interval, list[float]]]:
        """In words what of the heads is alike, how alike it is, and in every untrained copy."""
        found = {READ: "alike", HAND_ON: "composed"}
        rows = [
            (words, getattr(self.matched, name), [getattr(one, name).estimate for one in self.untrained])
            for words, name in found.items()
        ]
        return [row for row in rows if not isnan(row[1].estimate)]

    @property
    def measure(self) -> Measure:
        """By how alike heads are in what they read, and in what they hand on; the less alike of the two decides.

        However alike these are, "yes" is forbidden by heads that change nothing, by an outcome for which heads are
        less alike, and by paths whose shares may differ.
        """
        said = ", ".join(f"{words} {value.estimate:.2f}" for words, value, _ in self.alike())
        claim = Measure("circuit", "", threshold=_ROLES, unit="similarity of roles", note=f"heads {said}")
        if doubt := self._doubt():
            claim = replace(claim, unless={"yes": doubt})
        parts = [
            replace(claim, about=f"heads {words}", number=value, controls={UNTRAINED: best_of(untrained)})
            for words, value, untrained in sorted(self.alike(), key=lambda row: row[1].low)
        ]
        return decisive(parts)

    def _doubt(self) -> str:
        """What stands against two circuits' being the same, however alike their heads are; "" where nothing does."""
        if not any(role.weight and role.reference_weight for role in self.matched.roles):
            return f"{NOTHING}: no head of the two changes anything"
        name, value = min(self.matched.by_outcome.items(), key=lambda pair: pair[1].low)
        if value.low < _ROLES:
            return f"{SPANS}: {name} {value}"
        apart = [(_apart(path.blocked, path.reference_blocked), path) for path in self.paths]
        gap, path = max(apart, key=lambda pair: pair[0].high)
        share = f"share of the effect of {path.cause} on the {path.outcome} carried by attention at {path.at}"
        return f"{SPANS}: {share}: difference {gap}" if gap.high > _SHARE else ""

    def to_frame(self) -> pd.DataFrame:
        """One row a measurement: shares of paths, similarities, each pair of heads, each head's R2 and share."""
        rows: list[dict[str, Any]] = []
        for path in self.paths:
            row: dict[str, Any] = {"name": "mediated share", "what": f"{path.cause} -> {path.outcome}", "at": path.at}
            fresh = _range(path.untrained) | _range(path.reference_untrained, "reference ")
            for share in ("blocked", "carried"):
                mine, theirs = getattr(path, share), getattr(path, f"reference_{share}")
                numbers = mine.columns("number") | theirs.columns("reference")
                rows.append({**row, "share": share, **numbers, **(fresh if share == "blocked" else {})})
        for name, value, untrained in self.alike():
            rows.append({"name": f"heads {name}", **value.columns("number"), **_range(untrained)})
        for name, value in self.matched.by_outcome.items():
            rows.append({"name": f"heads {name}", **value.columns("number")})
        for role in self.matched.roles:
            row = {"name": "role", "what": f"{role.head} ~ {role.reference}", "number": role.similarity}
            rows.append({**row, "weight": role.weight, "reference weight": role.reference_weight})
        for of in self.needed:
            rows.append({"name": "edges needed", "model": of.model, "what": of.reason or f"of {of.of}", "number": of.n})
        if self.shared is not None:
            null = {"untrained low": self.shared.random_mean, "untrained high": self.shared.random_most}
            what = "under the matching of heads; for untrained read random matchings: mean, most"
            rows.append({"name": "edges shared", "what": what, "number": self.shared.n, **null})
        for name, found in zip((self.model, self.reference), self.looks, strict=True):
            for look in found:
                row = {"model": name, "what": f"{look.head}: {look.variable} at {look.positions}"}
                follows = look.r2.columns("number") | {"look-alike": look.is_look_alike}
                rows.append({"name": "attention R2", **row, **follows})
                rows.append({"name": "attention carries", **row, **look.carried.columns("number")})
        return pd.DataFrame(rows)


def circuits(compared: Compared) -> CircuitPart:
    """Paths, roles, edges and look-alikes of two models, beside fresh models of both shapes with the same samples."""
    (subject, reference), effort = compared.pair, compared.effort
    fresh = compared.untrained, compared.reference_untrained
    task = reference.task
    has_algorithm = task.algorithms.hypothesis or task.algorithms.records()
    algorithm = task.explains(reference.model) if has_algorithm else None
    state = _state(reference, algorithm)
    every = (subject, reference, *fresh[0])
    decoders = [s.decoder(algorithm, state) if algorithm is not None and state else None for s in every]
    profiles = [profile(s, decode, effort) for s, decode in zip(every, decoders, strict=True)]
    matched = match(profiles[0], profiles[1], effort.seed)
    null = [match(other, profiles[1], effort.seed) for other in profiles[2:]]
    claimed, own = ([] if algorithm is None else s.causes(algorithm) for s in (reference, subject))
    inputs = [list(cause) for cause in own if cause in claimed]
    measured = [_mediated(s, d, inputs, effort) for s, d in zip(compared.pair, decoders, strict=False)]
    controls = [[_mediated(s, None, inputs, effort, fresh=True) for s in several] for several in fresh]
    layout = subject.run(subject.samples.test).layout
    ends = layout.predict_position, *[layout.update_position] * len(inputs)
    found = []
    for i, end in enumerate(ends):
        mine, theirs = (m[i] for m in measured)
        shares = mine.blocked(), mine.carried(), theirs.blocked(), theirs.carried()
        blocked = (tuple(m[i].blocked().estimate for m in several) for several in controls)
        found.append(Path(" + ".join(mine.cause), mine.outcome, layout.labels[end], *shares, *blocked))
    edges = needed(subject, effort), needed(reference, effort)
    seen = tuple(tuple(looks(s, algorithm, m[0], effort)) for s, m in zip(compared.pair, measured, strict=True))
    both, names = shared(*edges, matched.roles, profiles[1].heads, effort.seed), (subject.name, reference.name)
    return CircuitPart(*names, tuple(found), matched, tuple(null), edges, both, seen)


def _state(subject: Participant, algorithm: Algorithm | None) -> str:
    """The first carried variable that differs between episodes; none where nothing is carried."""
    if algorithm is None or not algorithm.state:
        return ""
    values = algorithm.run(subject.samples.known)
    return next((key for key in algorithm.state if np.ptp(np.asarray(values[key], dtype=np.float64), 0).any()), "")


def _mediated(
    subject: Participant, decode: Decoder | None, inputs: Sequence[list[str]], effort: Effort, *, fresh: bool = False
) -> list[MediationResult]:
    """Latents to prediction, then each input to the state that is left, all through patterns.

    The first by head, too, but for untrained models, which are looked at in fewer rounds.
    """
    test, other, model = subject.samples.test, subject.samples.other, subject.model
    run = subject.run(test)
    layout = run.layout
    read, written = (
        paths(model, "pattern", layout.labels[i]) for i in (layout.predict_position, layout.update_position)
    )
    at = effort.at[::_CONTROL_ROUNDS] if fresh else effort.at
    joint = Split(each=False, n_random=0, seed=effort.seed)
    pair = (model, run, subject.run(other))
    found = [mediate(*pair, "latent", read, rounds=at, split=joint if fresh else replace(joint, each=True))]
    left = Outcome("latents" if decode is None else "state", decode)
    return found + [mediate(*pair, cause, written, outcome=left, rounds=at, split=joint) for cause in inputs]


def _range(values: Sequence[float], prefix: str = "") -> dict[str, float]:
    """The smallest and the largest of the untrained as columns; a control without a number is neither."""
    known = [value for value in values if np.isfinite(value)] or [nan]
    return {f"{prefix}untrained low": min(known), f"{prefix}untrained high": max(known)}


def needed(subject: Participant, effort: Effort) -> Needed:
    """The fewest best-scored edges that do what the whole model does, at the last round that is looked at."""
    task, t = subject.task, effort.at[-1]
    try:
        model = differentiable(transformer(subject)).eval()
        sizes = task.sizes_of(subject.run(subject.samples.test).layout)
        options = {**task.data.sample_options(model), **sizes}
        clean, corrupted = corruption(model).build(
            task.sample(_N_EPISODES, t + 1, seed=3 * effort.seed + 1003, **options), round=t
        )
        scorer = CircuitScorer(prepare(model, clean, corrupted, t))
        keep = smallest(scorer, attribute(scorer.pair, scorer.measure).edges, _TOLERANCE)
    except InputError as error:
        return Needed(subject.name, 0, 0, reason=str(error))
    graph = scorer.graph
    edges = tuple((graph.sources[s], graph.destinations[d]) for s, d in graph.edges if keep[s, d])
    return Needed(subject.name, len(edges), len(graph.edges), edges)


def shared(mine: Needed, theirs: Needed, roles: Sequence[Role], heads: Sequence[str], seed: int) -> Shared | None:
    """How many edges both need; None where those of one are not known.

    Random matchings draw from ``heads``, those of the reference.
    """
    if mine.reason or theirs.reason:
        return None
    other = frozenset(theirs.edges)
    # The number of a head that is named "1.0 2.1 fetch z" is "1.0".
    matched = {role.head.split()[0]: role.reference.split()[0] for role in roles}
    rng, known = np.random.default_rng([seed, 11]), [head.split()[0] for head in heads]
    counts = [_common(mine, other, dict(zip(matched, rng.permutation(known), strict=False))) for _ in range(_N_RANDOM)]
    return Shared(_common(mine, other, matched), float(np.mean(counts)), max(counts))


def _common(mine: Needed, other: frozenset[tuple[str, str]], matched: Mapping[str, str]) -> int:
    def renamed(end: str) -> str | None:
        if end[0].isdigit():
            layer, head, *port = end.split(".")
            of = matched.get(f"{layer}.{head}")
            return None if of is None else ".".join([of, *port])
        return end

    return sum((renamed(s), renamed(d)) in other for s, d in mine.edges)


def _apart(a: Interval, b: Interval) -> Interval:
    """The distance of two numbers, each with its own interval."""
    gap = a.estimate - b.estimate
    below = float(np.hypot(a.estimate - a.low, b.high - b.estimate))
    above = float(np.hypot(a.high - a.estimate, b.estimate - b.low))
    low, high = gap - below, gap + above
    nearest = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    return Interval(abs(gap), nearest, max(abs(low), abs(high)))


def _lacks(machine: Machine) -> str:
    """Heads are compared by what they write to a residual stream, from which the rest of the round is run."""
    other = f"not applicable: {machine.name} has attention, but no residual stream that it can be run on from"
    return lacks(machine, "pattern") or ("" if hasattr(machine, "run_from") else other)


CIRCUIT = Question(
    "circuit",
    CircuitPart,
    circuits,
    lambda compared: compared.parts["circuit"].measure,
    "Its heads have the same roles as those of {}",
    "has heads of the same roles",
    "divides the work of its heads differently",
    of_two=True,
    lacks=_lacks,
)
