"""Do two models compute by the same circuit? Mediated shares by path, and heads matched by role.

The roles decide; both are measured on the same episodes, beside untrained models of both shapes. How a role is matched,
and what this does not prove: ``docs/method/roles-of-heads.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isnan, nan
from operator import methodcaller
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from circuits.compare.question import Budget, Compared, Participant, Question
from interp.choices.fitting import Array
from interp.core.algorithm import Algorithm, participants_of
from interp.core.display import lacks
from interp.core.machine import runs_from
from interp.interventions.experiment import Edit, Experiment, Outcome, batches
from interp.interventions.mediation import MediationResult, Split, mediate, paths
from interp.interventions.sites import Place, Site
from interp.model.layout import RoundLayout
from interp.model.run import Rollout
from interp.model.transformer import HookedLatentTransformer
from interp.results.measure import NOTHING, SPANS, UNTRAINED, Measure, Result, best_of, decisive
from interp.stats.decoder import Decoder
from interp.stats.intervals import NO_NUMBER, Interval, resample_weights
from interp.support.errors import require

_Decode = Callable[[Tensor], Tensor]
_READ, _HAND_ON, _OUTCOMES = "attention similarity", "wiring similarity", ("prediction", "update")
"""In words what of heads is alike, and the outcomes by which they are judged."""
_N_RESAMPLES = 200  # draws of the bootstrap; the heads are matched anew in each
_NOTHING = 1e-12  # smaller variances count as none


@dataclass(frozen=True)
class _Profile:
    """What the heads of a model read where, what that is worth, and which head reads what which other head wrote.

    Sums over rounds, per episode; a kind of position is a label without its number.

    Attributes:
        heads: "layer.head", counted from 0, with the head's name where it has one.
        lost: squared change of the outcome without the head at a kind of position, ``[head, side, kind, episode]``;
            sides are the prediction and the update, and ``variance`` is the outcome's own, ``[side, episode]``.
        read: squared deviation of what the head moves to a kind of position from every key, ``[head, kind, key,
            episode]``: keys are positions and, after them, a kind's position with the query's own number.
        changed: squared change of what a later head writes at a kind of position without an earlier head, ``[earlier,
            later, kind, episode]``; ``spread`` is the deviation of what a head writes, ``[head, kind, episode]``.
    """

    heads: tuple[str, ...]
    labels: tuple[str, ...]
    lost: Float[np.ndarray, "head 2 kind episode"]
    variance: Float[np.ndarray, "2 episode"]
    read: Float[np.ndarray, "head kind key episode"]
    changed: Float[np.ndarray, "head head kind episode"]
    spread: Float[np.ndarray, "head kind episode"]
    participants: Any = None

    def effects(
        self, weights: Float[np.ndarray, "resample episode"]
    ) -> Float[np.ndarray, "resample head 2 kind"]:
        """The share of each outcome that is lost without each head at a kind of position, at most 1."""
        lost, variance = (np.moveaxis(x @ weights.T, -1, 0) for x in (self.lost, self.variance))
        return np.minimum(_over(lost, variance[:, None, :, None]), 1.0)

    def of(
        self, weights: Float[np.ndarray, "resample episode"]
    ) -> Float[np.ndarray, "resample head 2 entry"]:
        """The profiles under weights of episodes: half of the whole for each side, nothing for one without effect."""
        read = np.moveaxis(self.read @ weights.T, -1, 0)
        shares = _over(read, read.sum(-1, keepdims=True))
        return (self._worth(weights)[..., None] * shares[:, :, None]).reshape(
            *shares.shape[:2], 2, -1
        )

    def composed(
        self, weights: Float[np.ndarray, "resample episode"]
    ) -> Float[np.ndarray, "resample 2 head head"]:
        """How much of what a head writes hangs on an earlier head, ``[.., earlier, later]``, by what that is worth.

        Half of the whole for each side, nothing for one where heads hang on no other.
        """
        changed, spread = (np.moveaxis(x @ weights.T, -1, 0) for x in (self.changed, self.spread))
        share = np.minimum(_over(changed, spread[:, None]), 1.0)
        entries = np.einsum("rijk,rjsk->rsij", share, self._worth(weights))
        return _over(entries, 2 * entries.sum((2, 3), keepdims=True))

    def _worth(
        self, weights: Float[np.ndarray, "resample episode"]
    ) -> Float[np.ndarray, "resample head 2 kind"]:
        """The shares that are lost, as parts of their sum: half of the whole for each side."""
        effects = self.effects(weights)
        return _over(effects, 2 * effects.sum((1, 3), keepdims=True))


@dataclass(frozen=True)
class _Role:
    """A pair of matched heads: their shares of their models' profiles, and the weighted Jaccard index of the two."""

    head: str
    reference: str
    weight: float
    reference_weight: float
    similarity: float


@dataclass(frozen=True)
class _Matched:
    """Two models' heads matched by role.

    Attributes:
        alike, composed: the weighted Jaccard index of what matched heads read, and where; that of which head reads what
            which other wrote, under the same matching; NaN where no head of either hangs on another.
        roles: the pairs of heads, weightiest first.
        by_outcome: both indices for each outcome on which a head acts, by what they are in words.
    """

    alike: Interval
    composed: Interval
    roles: tuple[_Role, ...]
    by_outcome: dict[str, Interval]


def _profile(subject: Participant, decode: _Decode | None, budget: Budget) -> _Profile:
    """The profile of a model on the test episodes.

    ``decode`` reads the carried state from the latents; None stands for the latents themselves.
    """
    run, model = subject.run(subject.samples.test), cast(HookedLatentTransformer, subject.model)
    config, names, rounds = model.config, model.config.head_names, _rounds(budget)
    places, layers, n_heads = (
        list(_kinds(run.layout).values()),
        range(config.n_layers),
        config.n_heads,
    )
    heads = [(layer, head) for layer in layers for head in range(n_heads)]
    ends = {run.layout.predict_position, run.layout.update_position}
    sides = Outcome("prediction"), Outcome("latents" if decode is None else "state", decode)

    def read(side: Outcome, of: Rollout, prediction: Tensor, carried: Tensor) -> Tensor:
        return side.values(model, run.layout, prediction, carried, of.slots[:, rounds])

    def ran(
        of: Rollout, edits: list[Edit], watched: list[Site]
    ) -> tuple[list[Tensor], Mapping[Site, Tensor]]:
        """The prediction and the state that is left, ``[episode, round, value]``, and what is at the watched sites."""
        known = given if edits else {}
        (found,) = batches(
            Experiment(
                model, of, {"": edits}, rounds, commit="target", watched=watched, known=known
            )
        )
        return [
            read(s, of, found.predictions[0, :, :, 0], found.carried[0, :, :, 0]) for s in sides
        ], found.seen

    def by_kind(
        x: Float[Tensor, "episode round position head"],
    ) -> Float[np.ndarray, "head kind episode"]:
        return np.asarray(
            torch.stack([x[:, :, at].sum((1, 2)) for at in places])
            .permute(2, 0, 1)
            .numpy(force=True)
        )

    def by_episode(
        x: Float[Tensor, "*some episode round value"],
    ) -> Float[np.ndarray, "*some episode"]:
        return np.asarray(x.double().pow(2).sum((-1, -2)).numpy(force=True))

    z, every = (
        [Site("z", i) for i in layers],
        [Site(kind, i) for kind in ("pattern", "v", "z") for i in layers],
    )
    plain, kept = ran(run, [], every)
    means = [kept[site].flatten(0, 1).mean(0) for site in z]
    # Of a layer all heads are ablated at once, each in rows of its own.
    several = run.select([*range(run.n_episodes)] * n_heads)
    given: Mapping[Site, Tensor] = {}
    whole, given = ran(several, [], [*(Site("resid_pre", i) for i in layers), *z])
    each = methodcaller("unflatten", 0, (n_heads, -1))

    def without(layer: int, at: slice | list[int]) -> list[Edit]:
        """The mean of every head of a layer at some positions, in place of what it gives there."""
        own = each(given[z[layer]].clone())
        for head in range(n_heads):
            own[head][:, :, at, head] = means[layer][at, head]
        return [Edit(Place(z[layer]), own.flatten(0, 1))]

    # Square matrices that give what each head writes its length in the residual stream.
    factors = [
        torch.linalg.qr(b.attn.W_O.detach().double().transpose(1, 2))[1].transpose(1, 2)
        for b in model.blocks
    ]

    def size(of: Tensor, layer: int) -> Float[Tensor, "episode round position head"]:
        """The squared length of what heads write to the residual stream."""
        return torch.einsum("...hd,hde->...he", of.double(), factors[layer]).pow(2).sum(-1)

    lost = np.zeros((len(heads), 2, len(places), run.n_episodes))
    changed = np.zeros((len(heads), len(heads), len(places), run.n_episodes))
    for layer in layers:
        own, later_layers = slice(layer * n_heads, (layer + 1) * n_heads), layers[layer + 1 :]
        for kind, at in enumerate(places):
            if later_layers or not ends.isdisjoint(
                at
            ):  # the last layer acts where outcomes are read, or not at all
                outcomes, _ = ran(several, without(layer, at), [])
                gone = [by_episode(each(x - y)) for x, y in zip(outcomes, whole, strict=True)]
                lost[own, :, kind] = np.stack(gone, 1)
        _, seen = (
            ran(several, without(layer, slice(None)), z[layer + 1 :]) if later_layers else ([], {})
        )
        for later in later_layers:
            moved = each(size(seen[z[later]] - given[z[later]], later))
            changed[own, later * n_heads : (later + 1) * n_heads] = [
                by_kind(of_head) for of_head in moved
            ]
    step = plain[1] - read(sides[1], run, run.predictions[:, rounds], run.latents[:, rounds])
    return _Profile(
        tuple(
            f"{layer}.{head}" + (f" {names[layer][head]}" if names else "") for layer, head in heads
        ),
        run.layout.labels,
        lost,
        np.stack([by_episode(x - x.mean((0, 1))) for x in (plain[0], step)]),
        np.array(
            [_moved(kept, layer, head, factors[layer], run.layout, places) for layer, head in heads]
        ),
        changed,
        np.concatenate([by_kind(size(kept[z[layer]] - means[layer], layer)) for layer in layers]),
        participants_of(subject.samples.test),
    )


def _moved(
    kept: Mapping[Site, Tensor],
    layer: int,
    head: int,
    factor: Tensor,
    layout: RoundLayout,
    places: list[list[int]],
) -> Float[np.ndarray, "kind key episode"]:
    """Squared deviation of what a head moves to each kind of position from every key, in the residual stream.

    After the positions come the kinds of positions (``places``): keys with the query's own number.
    """
    labels, kinds = (
        [_kind(label) for label in layout.labels],
        {i: k for k, at in enumerate(places) for i in at},
    )
    pattern = kept[Site("pattern", layer)][:, :, head]
    values = kept[Site("v", layer)][:, :, :, head].double() @ factor[head]
    found = values.new_zeros(len(places), len(labels) + len(places), len(values))
    for query, (_, own) in enumerate(labels):
        part = pattern[:, :, query, : query + 1, None] * values[:, :, : query + 1]
        sizes = (part - part.mean((0, 1))).pow(2).sum((1, 3)).T
        columns = [
            len(labels) + kinds[i] if own and own == labels[i][1] else i for i in range(query + 1)
        ]
        found[kinds[query]].index_add_(0, torch.tensor(columns, device=found.device), sizes)
    return np.asarray(found.numpy(force=True))


def _rounds(budget: Budget) -> list[int]:
    """Rounds in which heads are ablated: every second of those that are looked at, even and odd ones in turn.

    >>> Budget().at, _rounds(Budget())
    ([5, 8, 10, 13, 16, 19, 21, 24], [5, 10, 15, 20])
    """
    return [t - (t - budget.at[0] - i) % 2 for i, t in enumerate(budget.at[::2])]


def _kinds(layout: RoundLayout) -> dict[str, list[int]]:
    """Positions by their labels without numbers, in order: what a round says several of is one kind."""
    found: dict[str, list[int]] = {}
    for i, label in enumerate(layout.labels):
        found.setdefault(_kind(label)[0], []).append(i)
    return found


def _kind(label: str) -> tuple[str, str]:
    """A label's text and number, "" where it has none."""
    prefix, _, number = label.rpartition("_")
    return (prefix, number) if prefix and number.isdigit() else (label, "")


def _match(one: _Profile, other: _Profile, seed: int = 0) -> _Matched:
    """The similarities of two models, with intervals over episodes, and the heads that were matched.

    The profiles must be over the same positions, of the same episodes.
    """
    require(
        one.labels == other.labels and one.lost.shape[-1] == other.lost.shape[-1],
        f"profiles must be of the same episodes, got positions {one.labels} and {other.labels}",
    )
    weights = resample_weights(
        one.lost.shape[-1], _N_RESAMPLES, seed, plain_first=True, participants=one.participants
    )
    mine, theirs = one.of(weights), other.of(weights)
    handed, taken = one.composed(weights), other.composed(weights)
    # Sums of minima and of both, by outcome: of what matched heads read, and of what they hand on.
    roles, read, hung = list[_Role](), [], []
    for a, b, given, held in zip(mine, theirs, handed, taken, strict=True):
        common = np.minimum(a[:, None], b[None]).sum(-1)
        i, j = linear_sum_assignment(-common.sum(-1))
        read.append((common[i, j].sum(0), a.sum((0, 2)) + b.sum((0, 2))))
        alike = np.minimum(given[:, i][:, :, i], held[:, j][:, :, j]).sum((1, 2))
        hung.append((alike, given.sum((1, 2)) + held.sum((1, 2))))
        for m, n in (
            zip(i, j, strict=True) if not roles else ()
        ):  # the first draw is the sample itself
            w, v = a[m].sum(), b[n].sum()
            roles.append(
                _Role(
                    one.heads[m],
                    other.heads[n],
                    float(w),
                    float(v),
                    _jaccard(common[m, n].sum(), w + v),
                )
            )
    roles.sort(key=lambda role: -role.weight - role.reference_weight)
    by_outcome = {
        f"{name} for the {outcome}": _alike(sums, [side])
        for name, sums in ((_READ, read), (_HAND_ON, hung))
        for side, outcome in enumerate(_OUTCOMES)
        if sums[0][1][side] > 0
    }
    return _Matched(
        _alike(read), _alike(hung) if hung[0][1].any() else NO_NUMBER, tuple(roles), by_outcome
    )


def _alike(sums: Sequence[tuple[Array, Array]], sides: Sequence[int] = (0, 1)) -> Interval:
    """The weighted Jaccard index of some outcomes, from sums of minima and of both: of all data, then of resamples."""
    samples = [
        _jaccard(minima[list(sides)].sum(), both[list(sides)].sum()) for minima, both in sums
    ]
    return Interval.of_samples(samples[1:], samples[0])


def _jaccard(minima: float, both: float) -> float:
    """Sum of minima over sum of maxima, the latter being what both add up to less the former."""
    return float(minima / (both - minima)) if both > minima else float(both > 0)


def _over(parts: Array, whole: Array) -> Array:
    """Parts over their whole; 0 where that is nothing."""
    return np.asarray(
        np.where(whole > _NOTHING, parts / np.where(whole > _NOTHING, whole, 1.0), 0.0)
    )


_SHARE = 0.25  # difference of a mediated share up to which paths agree
_ROLES = 0.5  # similarity that "same" needs (why: docs/method/roles-of-heads.md)
_CONTROL_ROUNDS = 3
"""Paths in untrained models are measured in every so-many-th round only, as they need no interval of their own."""


@dataclass(frozen=True)
class _Path:
    """The share of one effect that passes through the attention patterns at one position, in both models.

    Attributes:
        cause, outcome: what is swapped, and what is read: "prediction", "state" or "latents".
        at: the position of the patterns' queries.
        shares: that are "blocked" and "carried", in the model and in the reference.
        untrained: the share blocked in every untrained model of either shape, of the effect on its latents where
            ``outcome`` is "state": no state can be read from it.
    """

    cause: str
    outcome: str
    at: str
    shares: dict[str, tuple[Interval, Interval]]
    untrained: tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, repr=False)
class CircuitPart(Result):
    """How two models compute; ``untrained`` are the heads of every untrained copy, matched with the reference's."""

    model: str
    reference: str
    paths: tuple[_Path, ...]
    matched: _Matched
    untrained: tuple[_Matched, ...]

    def alike(self) -> list[tuple[str, Interval, list[float]]]:
        """In words what of the heads is alike, how alike it is, and in every untrained copy."""
        read = _READ, self.matched.alike, [one.alike.estimate for one in self.untrained]
        handed = _HAND_ON, self.matched.composed, [one.composed.estimate for one in self.untrained]
        return [row for row in (read, handed) if not isnan(row[1].estimate)]

    @property
    def measure(self) -> Measure:
        """By how alike heads are in what they read, and in what they hand on; the less alike of the two decides.

        What forbids "yes" however alike these are: docs/method/roles-of-heads.md.
        """
        said = ", ".join(f"{words} {value.estimate:.2f}" for words, value, _ in self.alike())
        claim = Measure("circuit", "", threshold=_ROLES, unit="similarity of roles", note=said)
        if doubt := self._doubt():
            claim = replace(claim, unless={"yes": doubt})
        parts = [
            replace(claim, about=words, number=value, controls={UNTRAINED: best_of(untrained)})
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
        apart = [(_apart(*path.shares["blocked"]), path) for path in self.paths]
        gap, path = max(apart, key=lambda pair: pair[0].high)
        share = f"share of the effect of {path.cause} on the {path.outcome} carried by attention at {path.at}"
        return f"{SPANS}: {share}: difference {gap}" if gap.high > _SHARE else ""

    def to_frame(self) -> pd.DataFrame:
        """One row a measurement: similarities, which decide, shares of paths, each pair of heads."""
        rows = [
            {"name": name, **of.columns("number"), **_range(untrained)}
            for name, of, untrained in self.alike()
        ]
        rows += [
            {"name": name, **value.columns("number")}
            for name, value in self.matched.by_outcome.items()
        ]
        for path in self.paths:
            row: dict[str, Any] = {
                "name": "mediated share",
                "what": f"{path.cause} -> {path.outcome}",
                "at": path.at,
            }
            fresh = _range(path.untrained[0]) | _range(path.untrained[1], "reference ")
            for share, (mine, theirs) in path.shares.items():
                numbers = mine.columns("number") | theirs.columns("reference")
                rows.append(
                    {**row, "share": share, **numbers, **(fresh if share == "blocked" else {})}
                )
        for role in self.matched.roles:
            row = {
                "name": "role",
                "what": f"{role.head} ~ {role.reference}",
                "number": role.similarity,
            }
            rows.append({**row, "weight": role.weight, "reference weight": role.reference_weight})
        return pd.DataFrame(rows)


def _circuits(compared: Compared) -> CircuitPart:
    """Paths and roles of two models, beside fresh models of both shapes with the same samples."""
    (subject, reference), budget = compared.pair, compared.budget
    fresh = compared.untrained, compared.reference_untrained
    task = reference.task
    algorithm = (
        task.explains(reference.model)
        if task.algorithms.hypothesis or task.algorithms.records()
        else None
    )
    state = _state(reference, algorithm)
    every = (subject, reference, *fresh[0])
    decoders = [
        s.decoder(algorithm, state) if algorithm is not None and state else None for s in every
    ]
    profiles = [_profile(s, decode, budget) for s, decode in zip(every, decoders, strict=True)]
    matched = _match(profiles[0], profiles[1], budget.seed)
    null = [_match(other, profiles[1], budget.seed) for other in profiles[2:]]
    claimed, causes = (
        [] if algorithm is None else s.causes(algorithm) for s in (reference, subject)
    )
    inputs = [list(cause) for cause in causes if cause in claimed]
    measured = [
        _mediated(s, d, inputs, budget) for s, d in zip(compared.pair, decoders, strict=False)
    ]
    controls = [
        [_mediated(s, None, inputs, budget, fresh=True) for s in several] for several in fresh
    ]
    layout = subject.run(subject.samples.test).layout
    found = []
    for i, end in enumerate([layout.predict_position, *[layout.update_position] * len(inputs)]):
        mine, theirs = (m[i] for m in measured)
        shares = {
            "blocked": (mine.blocked(), theirs.blocked()),
            "carried": (mine.carried(), theirs.carried()),
        }
        own, other = (tuple(m[i].blocked().estimate for m in several) for several in controls)
        found.append(
            _Path(" + ".join(mine.cause), mine.outcome, layout.labels[end], shares, (own, other))
        )
    return CircuitPart(subject.name, reference.name, tuple(found), matched, tuple(null))


def _state(subject: Participant, algorithm: Algorithm | None) -> str:
    """The first carried variable that differs between episodes; none where nothing is carried."""
    if algorithm is None or not algorithm.state:
        return ""
    values = algorithm.run(subject.samples.known)
    return next(
        (
            key
            for key in algorithm.state
            if np.ptp(np.asarray(values[key], dtype=np.float64), 0).any()
        ),
        "",
    )


def _mediated(
    subject: Participant,
    decode: Decoder | None,
    inputs: Sequence[list[str]],
    budget: Budget,
    *,
    fresh: bool = False,
) -> list[MediationResult]:
    """Latents to prediction, then each input to the state that is left, all through patterns.

    Untrained models are looked at in fewer rounds.
    """
    model, run = subject.model, subject.run(subject.samples.test)
    ends = run.layout.predict_position, run.layout.update_position
    at = budget.at[::_CONTROL_ROUNDS] if fresh else budget.at
    split = Split(each=False, n_random=0, seed=budget.seed)
    left = Outcome("latents" if decode is None else "state", decode)
    through = partial(
        mediate, model, run, subject.run(subject.samples.other), round=at, split=split
    )
    read, written = (paths(model, "pattern", run.layout.labels[i]) for i in ends)
    return [through("latent", read), *(through(cause, written, outcome=left) for cause in inputs)]


def _range(values: Sequence[float], prefix: str = "") -> dict[str, float]:
    """The smallest and the largest of the untrained as columns; a control without a number is neither."""
    known = [value for value in values if np.isfinite(value)] or [nan]
    return {f"{prefix}untrained low": min(known), f"{prefix}untrained high": max(known)}


def _apart(a: Interval, b: Interval) -> Interval:
    """The distance of two numbers, each with its own interval."""
    gap = a.estimate - b.estimate
    below = float(np.hypot(a.estimate - a.low, b.high - b.estimate))
    above = float(np.hypot(a.high - a.estimate, b.estimate - b.low))
    low, high = gap - below, gap + above
    nearest = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    return Interval(abs(gap), nearest, max(abs(low), abs(high)))


CIRCUIT = Question(
    "circuit",
    CircuitPart,
    _circuits,
    "Its heads have the same roles as those of {}",
    "has heads of the same roles",
    "divides the work of its heads differently",
    of_two=True,
    lacks=lambda machine: (
        lacks(
            machine, "pattern"
        )  # heads are compared by what they write, from which the rest of the round is run
        or (
            ""
            if runs_from(machine)
            else f"{machine.name} has attention, but no residual stream to be run on from"
        )
    ),
)
