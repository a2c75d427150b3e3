"""Do two models compute by the same circuit? Mediated shares by path, heads matched by role, attention look-alikes.

Four things are measured in both models on the same episodes, each beside untrained models of both shapes:

* **roles**: how well the heads of one can be matched to heads of the other (:mod:`circuits.compare.roles`): by what
  they read at every position and what that is worth, and by which head reads what which other wrote; beside the best
  match that an untrained model of either shape makes with the reference;
* **paths**: which share of an effect passes through attention patterns (:mod:`interp.interventions.mediation`): of the
  latents on the prediction, through the patterns where it is read; and of each input that the task says to act on the
  state, on the state that is left, through the patterns where the update is read;
* **edges**: those that each model needs for its prediction. The edges of a round
  (:class:`interp.interventions.edge_graph.EdgeGraph`) are scored by EAP-IG between a run and one with the task's
  default corruption; the fewest best-scored ones whose faithfulness is within :data:`TOLERANCE` of 1 are *needed*. An
  edge is shared where its two ends, and the port, are matched by role and both models need it; beside it stands the
  same count under random matchings of heads;
* **look-alikes**: heads whose attention follows the algorithm's state, with what they carry
  (:mod:`circuits.compare.roles`).

The verdict, in words "same roles", is by the roles: "same" where heads do alike things in alike places and hand them on
alike, more so than untrained models, and no path differs by much; "different" where either is unlike. A path alone
makes nothing different: which share passes through patterns is no sign of training. Of 60 untrained copies of
``wma-learned`` it is -.26 to .93 (latents to prediction), of the handwired machine -.08 to 1.08, so that trained models
lie among them (.29 and 1), and no few copies could tell.

What this is NOT: proof of equal circuits. Different circuits can share these numbers; nor are the needed edges the only
ones that do, or a shared edge evidence that it carries the same thing in both. Heads are matched one to one: a model
that does with two heads what the other does with one is not the same in this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from circuits.compare.question import Compared, Effort, Question, Subject, Verdict, above, bounds
from circuits.compare.roles import HAND_ON, LITTLE, LOOKS, READ, Look, Role, looks, match, profile, rounds, transformer
from circuits.registry import differentiable
from interp.algorithm import Algorithm
from interp.decoder import Decoder
from interp.display import lacks
from interp.errors import InputError
from interp.files import json_values
from interp.interventions.ablation import CircuitScorer, smallest
from interp.interventions.attribution import attribute
from interp.interventions.experiment import Outcome
from interp.interventions.mediation import MediationResult, Split, mediate, paths
from interp.interventions.pairs import corruption, prepare
from interp.machine import Machine
from interp.statistics import Interval

_SHARE = 0.25
"""Difference of a mediated share up to which paths agree: 0 between handwired R and P; .64, .82 to ``wma-learned``."""
_ROLES = 0.5
"""Similarity that "same" needs. Of ``wma-handwired`` to itself, rotated, with distractors, with gain .2, fading, late
or noisy, bounds of what is read alike begin at .80, and handed on at 1; to a memory of 5 rounds at .62 and 1. To R
those of P end at .85 and .01, of ``wma-learned`` at .29 and .004; to its other seeds at .31 and .36, to untrained ones
at .16 and .40. A head in two halves is undecided: .6 of what is handed on, a third for its outcome."""
TOLERANCE = 0.1
"""How far from 1 the faithfulness of the edges that are needed may be."""
NO_CONTROL = "no control: no untrained model could be measured"
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
        similarity: of what heads read where, under the best matching.
        composed: of which head reads what which other wrote, under the same matching; None where none of either does.
        untrained, untrained_composed: those of every untrained model, of either shape, with the reference: what no
            training gives.
        roles: the heads matched, weightiest first.
        by_outcome: similarity and composition for each outcome alone, by what they are in words.
        needed: the edges that each of the two needs, the model first.
        shared: the edges that both need; None where those of one are not known.
    """

    model: str
    reference: str
    paths: tuple[Path, ...]
    similarity: Interval
    composed: Interval | None
    untrained: tuple[float, ...]
    untrained_composed: tuple[float, ...]
    roles: tuple[Role, ...]
    by_outcome: dict[str, Interval]
    needed: tuple[Needed, Needed]
    shared: Shared | None
    looks: tuple[Look, ...]
    reference_looks: tuple[Look, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    def alike(self) -> list[tuple[str, Interval, tuple[float, ...]]]:
        """In words what of the heads is alike, how alike it is, and in every untrained model."""
        handed = [] if self.composed is None else [(HAND_ON, self.composed, self.untrained_composed)]
        return [(READ, self.similarity, self.untrained), *handed]

    def to_frame(self) -> pd.DataFrame:
        """One row a measurement: shares of paths, similarities, each pair of heads, each head's R2 and share."""
        rows = [row for path in self.paths for row in _path_rows(path)]
        for name, value, untrained in self.alike():
            low, high = _range(untrained)
            null = {"untrained low": low, "untrained high": high, "above untrained": bool(value.low > high)}
            rows.append({"name": f"heads {name}", **bounds(value), **null})
        rows += [{"name": f"heads {name}", **bounds(value)} for name, value in self.by_outcome.items()]
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
                rows.append({"name": "attention R2", **row, **bounds(look.r2), "look-alike": look.is_look_alike})
                rows.append({"name": "attention carries", **row, **bounds(look.carried)})
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


def circuits(compared: Compared) -> CircuitPart:
    """Paths, roles, edges and look-alikes of two models, beside fresh models of both shapes with the same samples."""
    (subject, reference), effort = compared.pair, compared.effort
    fresh = compared.untrained, compared.reference_untrained
    algorithm = _algorithm(reference)
    state = _state(reference, algorithm)
    every = (subject, reference, *fresh[0], *fresh[1])
    decoders = [s.decoder(algorithm, state) if algorithm is not None and state else None for s in every]
    profiles = [profile(s, decode, effort) for s, decode in zip(every, decoders, strict=True)]
    matched = match(profiles[0], profiles[1], effort.seed)
    null = [match(other, profiles[1], effort.seed) for other in profiles[2:]]
    claimed = _inputs(reference, algorithm)
    inputs = [cause for cause in _inputs(subject, algorithm) if cause in claimed]
    measured = [_mediated(s, d, inputs, effort) for s, d in zip(compared.pair, decoders, strict=False)]
    controls = [[_mediated(s, None, inputs, effort, fresh=True) for s in several] for several in fresh]
    layout = subject.run(subject.samples.test).layout
    edges = needed(subject, effort), needed(reference, effort)
    seen = [looks(s, algorithm, m[0], effort) for s, m in zip(compared.pair, measured, strict=True)]
    looked = {"rounds": effort.at, "untrained_rounds": effort.at[::_CONTROL_ROUNDS], "roles_rounds": rounds(effort)}
    rules = {"state": state, "ablation": "mean", "looks": LOOKS, "little": LITTLE, "seed": effort.seed}
    return CircuitPart(
        subject.name,
        reference.name,
        tuple(
            _path(layout.labels[end], [m[i] for m in measured], [[m[i] for m in several] for several in controls])
            for i in range(len(inputs) + 1)
            for end in [layout.update_position if i else layout.predict_position]
        ),
        matched.alike,
        matched.composed,
        tuple(other.alike.estimate for other in null),
        tuple(float("nan") if other.composed is None else other.composed.estimate for other in null),
        matched.roles,
        matched.by_outcome,
        edges,
        shared(*edges, matched.roles, profiles[1].heads, effort.seed),
        tuple(seen[0]),
        tuple(seen[1]),
        looked | rules,
    )


def _algorithm(reference: Subject) -> Algorithm | None:
    """The algorithm that the reference is held against; None where the task registers none."""
    task = reference.task
    return task.explains(reference.model) if task.algorithms.hypothesis or task.algorithms.records() else None


def _state(subject: Subject, algorithm: Algorithm | None) -> str:
    """The first carried variable that differs between episodes; none where nothing is carried."""
    if algorithm is None or not algorithm.state:
        return ""
    values = algorithm.run(subject.samples.known)
    return next((key for key in algorithm.state if np.ptp(np.asarray(values[key], dtype=np.float64), 0).any()), "")


def _mediated(
    subject: Subject, decode: Decoder | None, inputs: Sequence[list[str]], effort: Effort, *, fresh: bool = False
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


def _inputs(subject: Subject, algorithm: Algorithm | None) -> list[list[str]]:
    """The tokens at which the task says that an input acts on the state; none without an algorithm."""
    return [] if algorithm is None else [list(several) for several in subject.causes(algorithm)]


def _path(at: str, pair: Sequence[MediationResult], fresh: Sequence[Sequence[MediationResult]]) -> Path:
    """One path, from its results in the two models and in the fresh models of each shape."""
    mine, theirs = pair
    shares = mine.blocked(), mine.carried(), theirs.blocked(), theirs.carried()
    untrained, reference_untrained = (tuple(result.blocked().estimate for result in several) for several in fresh)
    return Path(" + ".join(mine.cause), mine.outcome, at, *shares, untrained, reference_untrained)


def _path_rows(path: Path) -> list[dict[str, Any]]:
    what = {"name": "mediated share", "what": f"{path.cause} -> {path.outcome}", "at": path.at}
    names = [f"{whose}untrained {end}" for whose in ("", "reference ") for end in ("low", "high")]
    fresh = dict(zip(names, (*_range(path.untrained), *_range(path.reference_untrained)), strict=True))
    blocked, held = bounds(path.blocked), bounds(path.reference_blocked, "reference ")
    return [
        {**what, "share": "blocked", **blocked, **held, **fresh},
        {**what, "share": "carried", **bounds(path.carried), **bounds(path.reference_carried, "reference ")},
    ]


def _range(values: Sequence[float]) -> tuple[float, float]:
    """The smallest and the largest; a control that does not exist is no number, and is neither more nor less."""
    known = [value for value in values if np.isfinite(value)] or [float("nan")]
    return min(known), max(known)


def needed(subject: Subject, effort: Effort) -> Needed:
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
        keep = smallest(scorer, attribute(scorer.pair, scorer.measure).edges, TOLERANCE)
    except InputError as error:
        return Needed(subject.name, 0, 0, reason=str(error))
    graph = scorer.graph
    edges = tuple((graph.sources[s], graph.destinations[d]) for s, d in graph.edges if keep[s, d])
    return Needed(subject.name, len(edges), graph.n_edges, edges)


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


def judge_circuit(part: CircuitPart) -> Verdict:
    """From how alike heads are in what they read, and in what they hand on; the less alike of the two decides.

    "same" also needs that they are alike for each outcome, and is forbidden by paths that differ, by heads that change
    nothing and by untrained models that are as alike. Without any of these, nothing is said.
    """
    name, worst, untrained = min(part.alike(), key=lambda row: row[1].low)
    null = max((value for value in untrained if np.isfinite(value)), default=float("nan"))
    word, doubt = above(worst, _ROLES), _doubt(part)
    if doubt and (word == "same" or doubt == NO_CONTROL):
        word = "undecided"
    said = ", ".join(f"{words} {value.estimate:.2f}" for words, value, _ in part.alike())
    note = "" if word == "same" else "; ".join(filter(None, [f"heads {said}", doubt if word == "undecided" else ""]))
    return Verdict("circuit", word, note, f"heads {name}", worst, _ROLES, null)


def _doubt(part: CircuitPart) -> str:
    """What stands against two circuits' being called the same, however alike their heads are; "" where nothing does."""
    for _, value, untrained in part.alike():
        known = [control for control in untrained if np.isfinite(control)]
        if not known:
            return NO_CONTROL
        if max(known) >= value.low:
            return "untrained models are as alike"
    if not any(role.weight and role.reference_weight for role in part.roles):
        return "no head of the two changes anything"
    name, value = min(part.by_outcome.items(), key=lambda pair: pair[1].low)
    if value.low < _ROLES:
        return f"{name} {value}"
    apart = [(_apart(path.blocked, path.reference_blocked), path) for path in part.paths]
    gap, path = max(apart, key=lambda pair: pair[0].high)
    if gap.high > _SHARE:
        share = f"share of the effect of {path.cause} on the {path.outcome} carried by attention at {path.at}"
        return f"{share}: difference {gap}"
    return ""


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
    lambda compared: judge_circuit(compared.parts["circuit"]),
    of_two=True,
    lacks=_lacks,
)
