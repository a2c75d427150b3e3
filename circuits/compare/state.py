"""Do two models hold the same state? Stitching: put one model's latents, mapped, into the other, and let it run on.

An affine map from the latents of one model ("from") to those of another ("to") is fitted on known episodes. On others,
the second model gets the mapped latents of the first at some rounds and runs on by itself::

    score = 1 - JS(stitched, own) / JS(cut, own)

with the Jensen-Shannon divergence of its predictions, and "cut" the same model put back to its initial latents. 1: the
first model's latents hold all that the second one's memory is worth; 0: they are worth no more than none. The map is
fitted with a penalty (:data:`interp.decoder.RIDGE`); maps from handwired latents need none, because these vary only
where the circuit writes. What the memory is worth, JS(cut, own) in nats, stands beside the score: a memory that is
worth nothing gives every map the score 1.

Both directions are needed: a state may hold another one and more. Where a model does not hold what the other one needs,
it can be *supplied* beside the latents: with the "round", the map has an offset of its own at every round.

Controls, with the round supplied: the map fitted to the latents of other episodes ("shuffled"), and the latents of
untrained models. These score high (they hold what they were fed, which a good map can add up): a score counts as far as
it is above theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from circuits.compare.fitting import Array, divergence
from circuits.compare.question import Effort, Question, Subject, Verdict, above, bounds
from interp.algorithm import Predicted
from interp.decoder import RIDGE, Affine
from interp.interventions.sites import row_widths
from interp.interventions.steps import run_on
from interp.statistics import Interval, mean_interval, ratio_interval

_STITCHED = 0.95
"""Handwired and learned Weighted Majority .998 to .999 both ways with the round; untrained models to .94."""
_WORTH = 0.01
"""Nats a round that both memories must be worth: a memory that is worth nothing is replaced by any map without loss."""


@dataclass(frozen=True)
class Stitching:
    """One model's latents in another.

    Attributes:
        supplied: what was given beside the latents: () or ("round",).
        control: "" for the models themselves, "shuffled", or "untrained".
    """

    source: str
    target: str
    supplied: tuple[str, ...]
    control: str
    score: Interval


@dataclass(frozen=True)
class Trajectory:
    """One episode in which a model ran on from the mapped latents of another, which were put in at round ``first``.

    Attributes:
        own, stitched, cut: distributions from there on, ``[round, outcome]``: as the target predicts by itself, from
            the mapped latents, and from its initial ones.
    """

    source: str
    target: str
    first: int
    own: Array = field(repr=False)
    stitched: Array = field(repr=False)
    cut: Array = field(repr=False)


@dataclass(frozen=True)
class StatePart:
    """Stitchings both ways.

    Attributes:
        worth: nats a round that each model's memory is worth, by name.
        trajectories: the first test episode, each way, with the round supplied.
    """

    model: str
    reference: str
    stitchings: tuple[Stitching, ...]
    worth: dict[str, Interval]
    trajectories: tuple[Trajectory, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    def best(self, source: str, target: str) -> Stitching:
        """The best stitching; the one that also supplies the round only where this adds .01 or more."""
        both = [s for s in self.stitchings if (s.source, s.target, s.control) == (source, target, "")]
        plain, helped = sorted(both, key=lambda s: len(s.supplied))
        return helped if helped.score.estimate > plain.score.estimate + 0.01 else plain

    def untrained(self, target: str) -> float:
        """The best score of an untrained model's latents in the target, the round supplied."""
        scores = [s.score.estimate for s in self.stitchings if s.target == target and s.control == "untrained"]
        return max(scores, default=float("nan"))

    def to_frame(self) -> pd.DataFrame:
        """One row a stitching, and one a model's memory."""
        rows: list[dict[str, Any]] = []
        for s in self.stitchings:
            ends = {"source": s.source, "target": s.target, "supplied": " + ".join(s.supplied)}
            rows.append({"name": "stitching", **ends, "control": s.control, **bounds(s.score)})
        for name, worth in self.worth.items():
            rows.append({"name": "worth of memory, nats", "target": name, **bounds(worth)})
        return pd.DataFrame(rows)


def stitch(subject: Subject, reference: Subject, untrained: Sequence[Subject], effort: Effort) -> StatePart:
    """Both directions, with and without the round, beside shuffled maps and untrained models' latents."""
    found, worth = [], {}
    for source, target in ((subject, reference), (reference, subject)):
        cut, own = _cut(target, effort)
        scale = np.var(own) if target.task.kind == "mean" else 1.0  # a mean has units: a share of its variance
        worth[target.name] = mean_interval(cut.mean(1) / scale, seed=effort.seed)
        for supplied in ((), ("round",)):
            cases = [(source, "", "")]
            if supplied:  # with all the help that there is
                cases.append((source, "shuffled", ""))
                cases += [(control, "untrained", f" {i}") for i, control in enumerate(untrained)]
            for giver, control, number in cases:
                mapped = _stitched(giver, target, effort, supplied, shuffled=control == "shuffled")
                missed = _divergence(_run(target, mapped, effort.at, effort.horizon), own, target.task.kind)
                score = ratio_interval(missed.sum(1), cut.sum(1), seed=effort.seed).complement
                found.append(Stitching(giver.name + number, target.name, supplied, control, score))
    settings = {"starts": effort.at, "horizon": effort.horizon, "ridge": RIDGE, "n_episodes": effort.test}
    ways = tuple(_trajectory(*way, effort) for way in ((subject, reference), (reference, subject)))
    return StatePart(subject.name, reference.name, tuple(found), worth, ways, settings)


def _cut(target: Subject, effort: Effort) -> tuple[Array, Array]:
    """Divergence of the target without its memory, ``[episode, start]``, and its own distributions."""
    run = target.run(target.samples.test)
    initial = run.latents[:, :1].expand(-1, len(effort.at), -1, -1)
    own = np.stack([_distribution(target, run.predictions[:, t : t + effort.horizon]) for t in effort.at], 1)
    return _divergence(_run(target, initial, effort.at, effort.horizon), own, target.task.kind), own


def _stitched(
    source: Subject, target: Subject, effort: Effort, supplied: tuple[str, ...], *, shuffled: bool = False
) -> Tensor:
    """The source's latents of the test episodes as the target's, ``[episode, start, latent, d_model]``."""
    known, test = source.run(source.samples.known).latents, source.run(source.samples.test).latents
    goal = target.run(target.samples.known).latents
    if shuffled:
        goal = goal.roll(1, 0)
    ridge = 0.0 if source.model.is_handwired else RIDGE
    mapped = _mapped(known.flatten(2), goal.flatten(2), test.flatten(2)[:, effort.at], effort.at, supplied, ridge)
    mapped = mapped.unflatten(-1, goal.shape[-2:])
    own = target.run(target.samples.test).latents[:, effort.at].to(mapped)
    return torch.where(_held(target, mapped), mapped, own)


def _held(target: Subject, latents: Tensor) -> Tensor:
    """Where the target's rows hold anything, ``[latent, d_model]``: not where narrow rows are padded.

    How far a growing channel is written says what round it is and is no memory: the target keeps its own.
    """
    widths = torch.tensor(row_widths(target.model), device=latents.device)[: latents.shape[-2]]
    return torch.arange(latents.shape[-1], device=latents.device) < widths.unsqueeze(-1)


def _trajectory(source: Subject, target: Subject, effort: Effort) -> Trajectory:
    """The first test episode, from the first start to its end."""
    first, run = effort.at[0], target.run(target.samples.test)
    mapped = _stitched(source, target, effort, ("round",))[:, :1]
    stitched, cut = (
        _run(target, latents, [first], effort.rounds - first)[0, 0] for latents in (mapped, run.latents[:, :1])
    )
    own = _distribution(target, run.predictions[:1, first:])[0]
    return Trajectory(source.name, target.name, first, own, stitched, cut)


def _mapped(
    known: Tensor, goal: Tensor, test: Tensor, at: Sequence[int], supplied: tuple[str, ...], ridge: float
) -> Tensor:
    """The affine map of ``known`` to ``goal``, ``[episode, round, ...]``, at ``test [episode, start, ...]``.

    Where the round is supplied the map has an offset of its own at every round.
    """
    x, y, z = known.double(), goal.double(), test.double()
    if "round" not in supplied:
        return Affine.fit(x.flatten(0, 1), y.flatten(0, 1), ridge)(z)
    slopes = Affine.fit((x - x.mean(0)).flatten(0, 1), (y - y.mean(0)).flatten(0, 1), ridge)
    return slopes(z - x.mean(0)[list(at)]) + y.mean(0)[list(at)]


def _run(target: Subject, latents: Tensor, starts: Sequence[int], horizon: int) -> Array:
    """The target's distributions from latents that were put in, ``[episode, start, horizon, outcome]``."""
    run = target.run(target.samples.test)
    predictions, _ = run_on(target.model, run, starts, horizon, latents)
    return _distribution(target, predictions)


def _distribution(target: Subject, predictions: Tensor) -> Array:
    layout = target.run(target.samples.test).layout
    p = layout.distribution(predictions).double()
    if layout.kind == "classes":
        p = p.clamp(0, 1)  # linear heads leave rounding below 0
        p = p / p.sum(-1, keepdim=True)
    return np.asarray(p.numpy(force=True))


def _divergence(p: Array, q: Array, kind: Predicted) -> Array:
    """Mean over the rounds run on, ``[episode, start]``."""
    shape = p.shape[:2]
    return divergence(p.reshape(-1, *p.shape[2:]), q.reshape(-1, *q.shape[2:]), kind).reshape(shape)


def judge_state(part: StatePart) -> Verdict:
    """By the worse direction of stitching, with what had to be supplied."""
    ways = [part.best(part.model, part.reference), part.best(part.reference, part.model)]
    worst = min(ways, key=lambda s: s.score.low)
    control = part.untrained(worst.target)
    word = above(worst.score, _STITCHED)
    if word == "same" and any(w.low < _WORTH for w in part.worth.values()):
        word, note = "undecided", f"a memory is worth less than {_WORTH} nats a round"
    elif word == "same" and control >= worst.score.low:
        word, note = "undecided", "an untrained model's latents do as well"
    else:
        needed = [f"{s.target} must also be given the {' and the '.join(s.supplied)}" for s in ways if s.supplied]
        note = "; ".join(needed) if word == "same" else ""
    label = f"stitched {worst.source} -> {worst.target}"
    return Verdict("state", word, note, label, worst.score, _STITCHED, control)


STATE = Question(
    "state",
    StatePart,
    lambda compared: stitch(*compared.pair, compared.untrained, compared.effort),
    lambda compared: judge_state(compared.parts["state"]),
    of_two=True,
)
