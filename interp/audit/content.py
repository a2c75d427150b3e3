"""What of the state is used? How few directions carry the effect, whether they turn, and how the effect grows.

A direction is one of the principal ones of the states that a round reads. The part of another episode's state that lies
in the first k of them is put in the own state's place; the share of the whole effect that this has, beside that of k
directions drawn at random. NOT evidence that these directions mean anything: they are those in which states vary most.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.audit.changes import DONOR, limited
from interp.audit.subject import ALL, Array, Subject
from interp.audit.used import influence
from interp.audit.verdicts import NOT_APPLICABLE, THRESHOLDS, UNDECIDED, Verdict
from interp.session import once
from interp.statistics import Interval, bootstrap_mean, mean_interval, ratio_interval, resample_weights

DOSES = (0.25, 0.5, 0.75, 1.0, 1.5)
_RANKS = (1, 2, 4, 8, 16, 32, 64)
_RANK = 1e-8
"""Directions that vary less than this share of the widest one do not vary."""
_RESAMPLES = 40


def directions(state: Float[Tensor, "episode row width"]) -> Float[Tensor, "direction number"]:
    """The principal directions in which states of episodes vary, widest first."""
    flat = (state - state.mean(0)).flatten(1).double()
    _, spread, axes = torch.linalg.svd(flat, full_matrices=False)
    return axes[spread > _RANK * spread[:1].clamp_min(torch.finfo(torch.float64).tiny)]


def _effects(
    subject: Subject, t: int, parts: list[Float[Tensor, "episode row width"]]
) -> Float[np.ndarray, "part episode"]:
    """How far the prediction of round ``t`` moves where each of several states is read."""
    said = subject.continued(torch.stack(parts), [t] * len(parts), horizon=1)
    return subject.distance(subject.distribution(said)[:, :, t], subject.plain[:, t])


def by_rank(subject: Subject, t: int) -> tuple[list[int], Array, Array, Array]:
    """Ranks; the effects ``[rank, episode]`` of that many principal and random directions; and the whole effect."""
    return once(("by rank", t), subject, make=lambda: _by_rank(subject, t))


def _by_rank(subject: Subject, t: int) -> tuple[list[int], Array, Array, Array]:
    own = subject.read([t])[0]
    gap = (limited(subject, [t], DONOR, ALL)[0] - own).flatten(1).double()
    axes = directions(own)
    ranks = [k for k in _RANKS if k < len(axes)] + [len(axes)]
    drawn = torch.randn(gap.shape[1], max(ranks), generator=torch.Generator().manual_seed(subject.effort.seed)).double()
    random = torch.linalg.qr(drawn).Q.T.to(gap)
    chosen = [axes[:k] for k in ranks] + [random[:k] for k in ranks]
    parts = [own + (gap @ of.T @ of).to(own).unflatten(1, own.shape[1:]) for of in chosen]
    effects = _effects(subject, t, [*parts, own + gap.to(own).unflatten(1, own.shape[1:])])
    return ranks, effects[: len(ranks)], effects[len(ranks) : -1], effects[-1]


def table(subject: Subject) -> pd.DataFrame:
    """The share of the effect by round and number of directions, principal and random."""
    rows = []
    for t in _rounds(subject):
        ranks, effects, random, whole = by_rank(subject, t)
        for k, part, control in zip(ranks, effects, random, strict=True):
            share, other = ratio_interval(part, whole), ratio_interval(control, whole)
            rows.append({"round": t, "directions": k, **share.columns("share"), "random": other.estimate})
    return pd.DataFrame(rows)


def doses(subject: Subject) -> pd.DataFrame:
    """The effect of a part of the way to another episode's state, as a share of the effect of the whole way."""
    t = subject.writes[-1]
    own, other = subject.read([t])[0], limited(subject, [t], DONOR, ALL)[0]
    effects = _effects(subject, t, [own + dose * (other - own) for dose in DOSES])
    whole = effects[DOSES.index(1.0)]
    return pd.DataFrame(
        {"round": t, "dose": dose, **ratio_interval(part, whole).columns("share")}
        for dose, part in zip(DOSES, effects, strict=True)
    )


def repeated(subject: Subject) -> pd.DataFrame:
    """A write once beside a write in every round, of all directions and of the first few: the effect some rounds on.

    Written is another episode's state, or its part in the ``directions`` that carry nine tenths of the effect in the
    last round, of the round in which it is written; "in every round" writes on, over what the rounds before left.
    """
    starts = subject.writes[:1]
    ranks, effects, _, whole = by_rank(subject, subject.writes[-1])
    shares = [float(part.mean() / whole.mean()) if whole.any() else 0.0 for part in effects]
    enough = next((k for k, share in zip(ranks, shares, strict=True) if share > THRESHOLDS["kept"].value), ranks[-1])
    few = directions(subject.read([subject.writes[-1]])[0])[:enough]

    def write(t: int, state: Tensor, axes: Tensor | None) -> Tensor:
        if t >= subject.shape[1]:  # the last round's, which nobody reads
            return state
        other = limited(subject, [t], DONOR, ALL)[0]
        if axes is None:
            return other
        return state + ((other - state).flatten(1).double() @ axes.T @ axes).to(state).unflatten(1, state.shape[1:])

    def effect_of(axes: Tensor | None, again: bool) -> Array:
        if axes is None and not again:
            return np.asarray(influence(subject, ALL, DONOR).effect[0])
        first = write(starts[0], subject.read(starts)[0], axes).unsqueeze(0)
        following = (lambda _, t, state: write(t, state, axes)) if again else None
        said = subject.continued(first, starts, again=following)
        return subject.distance(subject.distribution(said)[0], subject.plain)

    rows = []
    for n, axes in [(ranks[-1], None), (enough, few)][: 1 + (enough < ranks[-1])]:
        for again in (False, True):
            effect = effect_of(axes, again)
            for t in range(starts[0], subject.shape[1]):
                row = {"directions": n, "written": "in every round" if again else "once", "from_round": starts[0]}
                rows.append({**row, "round": t, **mean_interval(effect[:, t]).columns("effect")})
    return pd.DataFrame(rows)


def overlap(one: Float[Tensor, "k number"], other: Float[Tensor, "k number"]) -> float:
    """The mean squared cosine of the principal angles between two spaces: 1 where they are one, 0 where orthogonal.

    >>> e = torch.eye(3).double()
    >>> overlap(e[:1], e[:1]), overlap(e[:1], e[1:2])
    (1.0, 0.0)
    """
    return float((one @ other.T).square().sum() / min(len(one), len(other)))


def turning(subject: Subject, k: int = 4) -> pd.DataFrame:
    """Do the first directions turn from round to round? Overlap of two rounds' spaces, with interval and controls.

    ``same`` is that of two halves of the episodes in one round, which is as much as sampling leaves; ``null`` that of
    two rounds whose states are shuffled among them.
    """
    seed = subject.effort.seed
    rows, rng = [], np.random.default_rng(seed)
    for t, later in zip(subject.writes, subject.writes[1:], strict=False):
        one, other = subject.read([t, later])
        if min(len(directions(one)), len(directions(other))) < k:
            continue
        samples = []
        for weights in resample_weights(len(one), _RESAMPLES, seed):
            rows_drawn = torch.from_numpy(rng.choice(len(one), len(one), p=weights))
            samples.append(overlap(directions(one[rows_drawn])[:k], directions(other[rows_drawn])[:k]))
        found = overlap(directions(one)[:k], directions(other)[:k])
        half = torch.from_numpy(rng.permutation(len(one)))
        cut = len(half) // 2
        same = overlap(directions(one[half[:cut]])[:k], directions(one[half[cut:]])[:k])
        swapped = torch.from_numpy(rng.random(len(one)) < 0.5)[:, None, None]
        mixed = torch.where(swapped, other, one), torch.where(swapped, one, other)
        null = overlap(*(directions(part)[:k] for part in mixed))
        number = Interval.of_samples(np.array(samples), found).columns("overlap")
        rows.append({"round": t, "and": later, "directions": k, **number, "same": same, "null": null})
    return pd.DataFrame(rows)


def few(subject: Subject) -> Verdict:
    """How few principal directions carry nine tenths of the effect, in the last round that is changed?"""
    question, bound = "How few directions carry its effect?", THRESHOLDS["kept"].value
    t = subject.writes[-1]
    ranks, effects, random, whole = by_rank(subject, t)
    mean, low, _ = bootstrap_mean(whole)
    if float(low) <= THRESHOLDS["effect"].value:
        return Verdict("directions", question, NOT_APPLICABLE, about=ALL, note="There is no effect to carry.")
    for k, part, control in zip(ranks, effects, random, strict=True):
        share = ratio_interval(part, whole)
        if share.low > bound or k == ranks[-1]:
            word = f"{k} of {ranks[-1]}" if share.low > bound else UNDECIDED
            return Verdict(
                "directions",
                question,
                word,
                number=share,
                what=f"share of the effect that {k} directions have",
                control=ratio_interval(control, whole).estimate,
                control_is="as many random ones",
                threshold=bound,
                about=ALL,
                note=f"In round {t}; the whole effect is {float(mean):.3f}.",
            )
    raise AssertionError("there is a last rank")


def _rounds(subject: Subject) -> list[int]:
    return sorted({subject.writes[len(subject.writes) // 2], subject.writes[-1]})
