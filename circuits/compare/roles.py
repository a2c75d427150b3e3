r"""Which head of one model plays which role of the other? Heads matched by what they read and what that is worth.

Two positions of a round are looked at: the one where the prediction is read, and the one where the update is read. The
profile of a head says, for each of the two and for every position that it can attend to,

    lost(head) x read(head, key position)

* lost: the share of the outcome that goes with the head's output there, which is ablated, set to its mean over
  episodes and rounds: squared change over the outcome's own variance, at most 1. The outcome is the prediction, or the
  step of the carried state (decoded from the latents; the latents themselves where nothing is carried);
* read: the share of the variance of the head's output that comes from that key position: of pattern x value, written
  to the residual stream. It is attention mass that counts only what varies: a sink, or attention to tokens that always
  say the same, moves nothing from one place to another.

Profiles of a model add up to 1. Its mean instead of zero is what a head is set to, because a constant output is wiring,
which other models have in their biases. The similarity of two models is the weighted Jaccard index of their profiles,
the sum of minima over the sum of maxima, under the best one-to-one matching of heads (Hungarian assignment): 1 for a
model in another basis, with heads in another order, or with heads that do nothing; numbers of layers and heads may
differ. Read it beside untrained models: heads that attend to everything alike match each other well.

*Look-alikes* are heads whose attention, where the prediction is read, follows a variable of the algorithm as if they
computed with it. For every head, its attention to the positions of one kind (labels that share a prefix, such as p_1
... p_n) is regressed on every variable of the algorithm that has one element for each of them and is not given by the
round's inputs alone; both about their mean over the elements, so that R2 says whether the larger ones are attended to
more. Beside it stands what counts: the share of the latents' effect on the prediction that the pattern carries by
itself (:mod:`interp.interventions.mediation`).

What this is NOT: evidence of what is done with what is read. Heads at other positions than the two do not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from transformer_lens import TransformerLensKeyValueCacheEntry as KeyValues

from circuits.compare.fitting import Array
from circuits.compare.question import Effort, Subject
from interp.algorithm import Algorithm
from interp.errors import require
from interp.interventions.mediation import MediationResult
from interp.interventions.sites import Site
from interp.interventions.swaps import Rows, passed
from interp.model.layout import RoundLayout
from interp.model.transformer import HookedLatentTransformer
from interp.statistics import Interval, resample_weights

Decode = Callable[[Tensor], Tensor]
LOOKS, LITTLE = 0.5, 0.15
"""A look-alike has at least the first number as R2, and at most the second as upper bound of the share it carries."""
_N_RESAMPLES = 200
"""Draws of the bootstrap; the heads are matched anew in each."""
_NOTHING = 1e-12
"""Smaller variances count as none."""


@dataclass(frozen=True)
class Profile:
    """What the heads of a model read, and what that is worth; sums over rounds, per episode.

    Attributes:
        heads: "layer.head", counted from 0, with the head's name where it has one.
        lost: squared change of the outcome without the head, ``[head, side, episode]``; sides are the prediction and
            the update.
        variance: squared deviation of the outcome, ``[side, episode]``.
        read: squared deviation of what the head moves from each key position, ``[head, side, key, episode]``.
    """

    heads: tuple[str, ...]
    labels: tuple[str, ...]
    lost: Float[np.ndarray, "head 2 episode"]
    variance: Float[np.ndarray, "2 episode"]
    read: Float[np.ndarray, "head 2 key episode"]

    def effects(self, weights: Float[np.ndarray, "resample episode"]) -> Float[np.ndarray, "resample head 2"]:
        """The share of each outcome that is lost without each head, at most 1."""
        lost, variance = (np.moveaxis(x @ weights.T, -1, 0) for x in (self.lost, self.variance))
        return np.minimum(_over(lost, variance[:, None]), 1.0)

    def of(self, weights: Float[np.ndarray, "resample episode"]) -> Float[np.ndarray, "resample head entry"]:
        """The profiles under weights of episodes: half of the whole for each side, nothing for one without effect."""
        read = np.moveaxis(self.read @ weights.T, -1, 0)
        entries = self.effects(weights)[..., None] * _over(read, read.sum(-1, keepdims=True))
        entries = _over(entries, 2 * entries.sum((1, 3), keepdims=True))
        return entries.reshape(*entries.shape[:2], -1)


@dataclass(frozen=True)
class Role:
    """A pair of matched heads: their shares of their models' profiles, and the weighted Jaccard index of the two."""

    head: str
    reference: str
    weight: float
    reference_weight: float
    similarity: float


def transformer(subject: Subject) -> HookedLatentTransformer:
    """The subject's model, which is one where the question about circuits is asked."""
    return cast(HookedLatentTransformer, subject.model)


def profile(subject: Subject, decode: Decode | None, effort: Effort) -> Profile:
    """The profile of a model on the test episodes.

    ``decode`` reads the carried state from the latents; None stands for the latents themselves.
    """
    run, model = subject.run(subject.samples.test), transformer(subject)
    config, names = model.config, model.config.head_names
    ends = (run.layout.predict_position, run.layout.update_position)
    round_ = _Round.of(model, run.layout, Rows.of(run, effort.at), decode)
    heads = [(layer, head) for layer in range(config.n_layers) for head in range(config.n_heads)]

    def by_episode(x: Tensor) -> Array:
        return np.asarray(x.double().unflatten(-1, (run.n_episodes, -1)).sum(-1).numpy(force=True))

    plain = [round_.outcome(side, end) for side, end in enumerate(ends)]
    lost = [
        [by_episode((round_.outcome(side, end, head) - plain[side]).pow(2).sum(1)) for side, end in enumerate(ends)]
        for head in heads
    ]
    return Profile(
        tuple(f"{layer}.{head}" + (f" {names[layer][head]}" if names else "") for layer, head in heads),
        run.layout.labels,
        np.array(lost),
        np.stack([by_episode((x - x.mean(0)).pow(2).sum(1)) for x in (plain[0], plain[1] - round_.state())]),
        np.array([[by_episode(round_.moved(*head, end)) for end in ends] for head in heads]),
    )


def match(one: Profile, other: Profile, seed: int = 0) -> tuple[Interval, tuple[Role, ...]]:
    """The similarity of two models, with its interval over episodes, and the heads that were matched, weightiest first.

    The profiles must be over the same positions, of the same episodes.
    """
    require(
        one.labels == other.labels and one.lost.shape[-1] == other.lost.shape[-1],
        f"profiles must be of the same episodes, got positions {one.labels} and {other.labels}",
    )
    n = one.lost.shape[-1]
    weights = resample_weights(n, _N_RESAMPLES, seed, plain_first=True)
    mine, theirs = one.of(weights), other.of(weights)
    matched = [_matched(a, b) for a, b in zip(mine, theirs, strict=True)]
    samples = [
        _jaccard(common.sum(), a.sum() + b.sum()) for (_, _, common), a, b in zip(matched, mine, theirs, strict=True)
    ]
    roles = [
        Role(one.heads[i], other.heads[j], float(w), float(v), _jaccard(common, w + v))
        for i, j, common in zip(*matched[0], strict=True)
        for w, v in [(mine[0, i].sum(), theirs[0, j].sum())]
    ]
    roles.sort(key=lambda role: -role.weight - role.reference_weight)
    return Interval.of_samples(samples[1:], samples[0]), tuple(roles)


def _matched(one: Array, other: Array) -> tuple[Array, Array, Array]:
    """Indices of the heads of the two that are matched, and the sum of minima of each pair."""
    common = np.minimum(one[:, None], other[None]).sum(-1)
    i, j = linear_sum_assignment(-common)
    return i, j, common[i, j]


def _jaccard(minima: float, both: float) -> float:
    """Sum of minima over sum of maxima, the latter being what both add up to less the former."""
    return float(minima / (both - minima)) if both > minima else float(both > 0)


@dataclass(frozen=True)
class _Round:
    """Rounds that were run once: what one position makes of them without a head takes that position alone."""

    model: HookedLatentTransformer
    layout: RoundLayout
    rows: Rows
    decode: Decode | None
    kept: dict[tuple[str, int], Tensor]  # whole activations by component and layer

    @classmethod
    def of(cls, model: HookedLatentTransformer, layout: RoundLayout, rows: Rows, decode: Decode | None) -> _Round:
        kinds, layers = ("resid_pre", "k", "v", "pattern", "z"), range(model.config.n_layers)
        watched = {(kind, layer): Site(kind, layer) for kind in kinds for layer in layers}
        _, kept = passed(model, rows, layout, watched=list(watched.values()))
        return cls(model, layout, rows, decode, {key: kept[site] for key, site in watched.items()})

    def outcome(self, side: int, end: int, without: tuple[int, int] | None = None) -> Float[Tensor, "row value"]:
        """The prediction (side 0) or the state that is left (side 1), read at position ``end``, less a head there."""
        first, head = without or (0, None)
        layers = range(first, self.model.config.n_layers)
        past = (KeyValues(*(self.kept[kind, layer][:, :end] for kind in "kv")) for layer in layers)

        def averaged(z: Float[Tensor, "row pos head d_head"], hook: Any) -> Tensor:
            z = z.clone()
            z[:, :, head] = self.kept["z", first][:, end, head].mean(0)
            return z

        hooks = [] if head is None else [(f"blocks.{first}.attn.hook_z", averaged)]
        with torch.no_grad():
            with self.model.hooks(fwd_hooks=hooks):
                resid = self.model.run_from(self.kept["resid_pre", first][:, end : end + 1], first, past=past)
            read = self.model.ln_final(resid)[:, 0]
            if side == 0:
                prediction = self.model.read_prediction(self.model.unembed(read), self.layout.n_positions)
                return self.layout.distribution(prediction).double()
            update = self.model.update(read, self.layout.n_positions)
            return self.state(self.model.write(self.rows.latents, update, self.rows.fed.slots))

    def state(self, latents: Tensor | None = None) -> Float[Tensor, "row value"]:
        """What the slot that is written to holds of the carried state, in these latents or in those that are read."""
        latents = self.rows.latents if latents is None else latents
        if self.decode is None:
            return latents.flatten(1).double()
        return self.layout.written(self.decode(latents), self.rows.fed.slots).flatten(1).double()

    def moved(self, layer: int, head: int, end: int) -> Float[Tensor, "key row"]:
        """Squared deviation of what a head moves to ``end`` from every key position, in the residual stream."""
        pattern, v = self.kept["pattern", layer][:, head, end], self.kept["v", layer][:, :, head]
        part = (pattern[..., None] * v).double()
        part = part - part.mean(0)
        write = self.model.blocks[layer].attn.W_O[head].detach().double()
        return torch.einsum("rkd,de,rke->kr", part, write @ write.T, part).clamp_min(0)


def _over(parts: Array, whole: Array) -> Array:
    """Parts over their whole; 0 where that is nothing."""
    return np.asarray(np.where(whole > _NOTHING, parts / np.where(whole > _NOTHING, whole, 1.0), 0.0))


@dataclass(frozen=True)
class Look:
    """What one head's attention follows best, such as "counts" at "p", and what it carries.

    Attributes:
        head: "layer.head", counted from 0.
        carried: share of the effect of the latents on the prediction.
    """

    head: str
    variable: str
    positions: str
    r2: Interval
    carried: Interval

    @property
    def is_look_alike(self) -> bool:
        """Whether it follows the variable and carries little."""
        return self.r2.estimate >= LOOKS and self.carried.high <= LITTLE


def looks(subject: Subject, algorithm: Algorithm | None, mediated: MediationResult, effort: Effort) -> list[Look]:
    """For every head, the algorithm's variable that its attention at the prediction follows best; the strongest first.

    ``mediated`` holds the effect of the latents on the prediction through every head's pattern at that position.
    """
    run, config = subject.run(subject.samples.test), transformer(subject).config
    groups = _groups(run.layout)
    variables = _variables(subject, algorithm, effort, set(map(len, groups.values()))) if algorithm else {}
    if not variables:
        return []
    rows, end = Rows.of(run, effort.at), run.layout.predict_position
    patterns = [Site("pattern", layer) for layer in range(config.n_layers)]
    _, kept = passed(subject.model, rows, run.layout, watched=patterns)
    found = []
    for layer, site in enumerate(patterns):
        for head in range(config.n_heads):
            attention = kept[site][:, head, end].double().numpy(force=True)
            scores = [
                (_r2(attention[:, at], values, run.n_episodes, effort.seed), key, prefix)
                for prefix, at in groups.items()
                for key, values in variables.items()
                if values.shape[-1] == len(at)
            ]
            r2, key, prefix = max(scores, key=lambda score: score[0].estimate)
            carried = mediated.carried(f"pattern[{layer}.{head}]@{run.layout.labels[end]}")
            found.append(Look(f"{layer}.{head}", key, prefix, r2, carried))
    return sorted(found, key=lambda look: -look.r2.estimate)


def _groups(layout: RoundLayout) -> dict[str, list[int]]:
    """Positions up to the prediction by the prefix that their labels share, two or more of them."""
    groups = defaultdict(list)
    for i, label in enumerate(layout.labels[: layout.predict_position]):
        prefix, _, number = label.rpartition("_")
        if prefix and number.isdigit():
            groups[prefix].append(i)
    return {prefix: at for prefix, at in groups.items() if len(at) > 1}


def _variables(subject: Subject, algorithm: Algorithm, effort: Effort, sizes: set[int]) -> dict[str, Array]:
    """Variables before the update with one axis of a group's size, ``[episode x round, element]``."""
    values, given = algorithm.run(subject.samples.test), algorithm.of_the_inputs
    found = {}
    for variable in algorithm.variables:
        held = np.asarray(values[variable.key], dtype=np.float64)
        if variable.key not in given and held.ndim == 3 and held.shape[-1] in sizes:
            found[variable.key] = held[:, effort.at].reshape(-1, held.shape[-1])
    return found


def _r2(attention: Array, values: Array, n_episodes: int, seed: int) -> Interval:
    """Squared correlation of the two, about their means over elements; 0 where one of them does not differ."""
    x, y = (z - z.mean(-1, keepdims=True) for z in (values, attention))
    sums = np.stack([(a * b).reshape(n_episodes, -1).sum(1) for a, b in ((x, y), (x, x), (y, y))], -1)
    xy, xx, yy = (resample_weights(n_episodes, seed=seed, plain_first=True) @ sums).T
    r2 = np.where(xx * yy > 0, xy**2 / np.where(xx * yy > 0, xx * yy, 1.0), 0.0)
    return Interval.of_samples(r2[1:], r2[0])
