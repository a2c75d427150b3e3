"""Tying subspaces of a model to variables of an algorithm, while it learns: interchange intervention training.

A :class:`Tie` says which direction at which sites stands for which element of a variable. For random pairs of rounds
and random sets of elements, the model's round with these directions set to what they are in the source round must
predict, from then on, what the algorithm predicts with these elements set (IIT: Geiger et al., 2022). Its *strict*
counterpart says that nothing else matters: the rest of a tied site, and every head that the circuit has no use for, are
set to what they are in the source round, and the predictions must stay as they were (SIIT: Gupta et al., 2024). What
comes out has weights like any learned model's, and a truth to grade methods by.

Every loss is a cross-entropy of predictions from the algorithm's distribution; activations are never supervised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from interp.core.algorithm import Algorithm, Values
from interp.interventions.sites import Site, write
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.transformer import HookedLatentTransformer

_Element = tuple[int, ...]
_LEAST = 0.02
"""Smallest denominator of a chi-squared divergence: rarer outcomes weigh no more than those of this probability."""


@dataclass(frozen=True)
class Tie:
    """A variable and the directions that stand for its elements.

    Attributes:
        holds: site -> the elements that it holds, a direction for each; together they are the whole variable.
        outcome: where a change of it shows, "prediction" (and in later rounds) or "state" (in later rounds only).
    """

    variable: str
    holds: Mapping[str, tuple[_Element, ...]]
    outcome: str = "prediction"

    @property
    def elements(self) -> tuple[_Element, ...]:
        """All elements, in the order of the sites."""
        return tuple(element for several in self.holds.values() for element in several)


def bases(
    ties: Sequence[Tie], d_model: int, d_head: int, seed: int
) -> dict[str, Float[Tensor, "width element"]]:
    """A random orthonormal basis for each tied site: its first directions stand for the site's elements, in order."""
    vectors: dict[str, Tensor] = {}
    for tie in ties:
        for i, (site, elements) in enumerate(tie.holds.items()):
            rng = np.random.default_rng([seed, ties.index(tie), i])
            width = d_head if Site.parse(site).kind.has_head else d_model
            rows, _ = np.linalg.qr(rng.standard_normal((width, len(elements))))
            vectors[site] = torch.from_numpy(rows).float()
    return vectors


@dataclass(frozen=True)
class Pairs:
    """Rounds of a batch that pair up: base rows and rounds, source rows and rounds, each ``[pair]``."""

    base: NDArray[np.int64]
    at: NDArray[np.int64]
    source: NDArray[np.int64]
    source_at: NDArray[np.int64]

    @classmethod
    def drawn(cls, n_episodes: int, n_rounds: int, horizon: int, rng: np.random.Generator) -> Pairs:
        """A pair for each episode; ``horizon`` rounds follow the base's. Half of the sources are at the same round."""
        rows = np.arange(n_episodes)
        at = rng.integers(n_rounds - horizon, size=n_episodes)
        other = np.where(rng.random(n_episodes) < 0.5, at, rng.integers(n_rounds, size=n_episodes))
        return cls(rows, at, (rows + rng.integers(1, n_episodes)) % n_episodes, other)


def masks(
    tie: Tie, n_pairs: int, rng: np.random.Generator
) -> Bool[NDArray[np.bool_], "pair element"]:
    """Which elements are interchanged: all of them in half of the pairs, a random set in the others."""
    return (rng.random((n_pairs, len(tie.elements))) < 0.5) | (rng.random(n_pairs) < 0.5)[:, None]


def counterfactual(
    algorithm: Algorithm,
    values: Values,
    pairs: Pairs,
    tie: Tie | None,
    chosen: NDArray[np.bool_],
    horizon: int,
) -> NDArray[np.float64]:
    """The algorithm's distributions ``[pair, 1 + horizon, outcome]`` from the base's round on, elements set.

    ``values`` hold the batch, ``[episode, round, ...]``; ``chosen`` says which elements of the tie are set to the
    source's, ``[pair, element]``. A variable that is set where the state is written leaves its own round's prediction.
    """
    do: dict[str, NDArray[Any]] = {}
    if tie is not None:
        mine, theirs = (
            values[tie.variable][pairs.base, pairs.at],
            values[tie.variable][pairs.source, pairs.source_at],
        )
        new = np.array(mine, dtype=np.result_type(mine, theirs))
        for k, element in enumerate(tie.elements):
            at: tuple[Any, ...] = (slice(None), *element)
            new[at] = np.where(chosen[:, k], theirs[at], mine[at])
        do = {tie.variable: new[:, None]}
    inputs = [variable.key for variable in algorithm.variables if variable.role == "input"]
    state = {key: values[key][pairs.base, pairs.at][:, None] for key in algorithm.state}
    distributions = []
    for step in range(horizon + 1):
        inputs_now = {key: values[key][pairs.base, pairs.at + step][:, None] for key in inputs}
        before, (state, after) = state, algorithm.step(state, inputs_now, do if step == 0 else None)
        if step == 0 and tie is not None and tie.outcome == "state":
            after = algorithm.step(before, inputs_now)[1]
        distributions.append(algorithm.distribution(after)[:, 0])
    return np.stack(distributions, 1)


@dataclass(frozen=True)
class Batch:
    """Episodes as a model reads them, with every variable of the algorithm, ``[episode, round, ...]``.

    ``latents``: before every round and after the last, ``[episode, round + 1, latent, d_model]``; None before a pass.
    """

    rounds: EncodedRounds
    layout: RoundLayout
    values: Values
    latents: Tensor | None = None


def forward(
    model: HookedLatentTransformer, rounds: EncodedRounds, layout: RoundLayout
) -> tuple[
    Float[Tensor, "episode round outcome"], Float[Tensor, "episode round_plus_1 latent d_model"]
]:
    """Logits of every round and the latents before each, with gradients."""
    latents = [model.initial(len(rounds.tokens), layout)]
    logits = []
    for t in range(rounds.tokens.shape[1]):
        now = rounds.tokens[:, t], latents[-1], rounds.values[:, t], rounds.slots[:, t]
        scores, after = one_round(model, layout, *now)
        logits.append(scores)
        latents.append(after)
    return torch.stack(logits, 1), torch.stack(latents, 1)


def watched(
    model: HookedLatentTransformer, batch: Batch, taught: Mapping[str, NDArray[np.float64]]
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """:func:`forward`, and how far attention is from what it is taught: site of a pattern -> ``[episode, round, key]``.

    The divergence in nats of heads that are a softmax, half the squared difference of others; the sum over sites.
    """
    seen: dict[str, list[Tensor]] = {text: [] for text in taught}
    sites = {text: Site.parse(text) for text in taught}
    n_positions = batch.rounds.tokens.shape[-1]

    def keep(pattern: Tensor, hook: Any, text: str) -> None:
        # Of the last block only the last positions are computed: queries are counted from the end.
        query = batch.layout.position(str(sites[text].position)) - n_positions
        seen[text].append(pattern[:, sites[text].head, query])

    with model.hooks(
        fwd_hooks=[(site.hook, partial(keep, text=text)) for text, site in sites.items()]
    ):
        done = forward(model, batch.rounds, batch.layout)
    missed = torch.zeros(())
    for text, patterns in seen.items():
        pattern, wanted = torch.stack(patterns, 1), torch.from_numpy(taught[text]).to(done[0])
        layer, head = sites[text].layer, sites[text].head
        if model.config.attention_rules[layer or 0][head or 0] == "softmax":
            said = wanted * (wanted.clamp_min(1e-9).log() - pattern.clamp_min(1e-9).log())
            missed = missed + said.sum(-1).mean()
        else:
            missed = missed + (pattern - wanted).square().sum(-1).mean() / 2
    return done, missed


def distribution(
    model: HookedLatentTransformer, scores: Float[Tensor, "*row outcome"]
) -> Float[Tensor, "*row outcome"]:
    """Probabilities of outcomes from what :func:`forward` gives: scores, or probabilities, then cut to [0, 1]."""
    return scores.softmax(-1) if model.config.output == "logits" else scores.clamp(0.0, 1.0)


def divergence(
    model: HookedLatentTransformer, scores: Tensor, wanted: NDArray[np.float64]
) -> Tensor:
    """Mean Kullback-Leibler divergence of predictions from ``wanted``, in nats: cross-entropy less its floor.

    Where the model gives probabilities, which may lie outside [0, 1], half of the chi-squared divergence: the same to
    second order. Its denominators are at least :data:`_LEAST`.
    """
    target = torch.from_numpy(wanted).to(scores)
    if model.config.output == "logits":
        return (
            (torch.special.xlogy(target, target) - target * scores.log_softmax(-1)).sum(-1).mean()
        )
    return ((scores - target).square() / (2 * target.clamp_min(_LEAST))).sum(-1).mean()


def one_round(
    model: HookedLatentTransformer,
    layout: RoundLayout,
    tokens: Tensor,
    latents: Tensor,
    values: Tensor,
    slots: Tensor,
) -> tuple[Tensor, Tensor]:
    """Logits of one round and the latents that it leaves; of the last layer only what is read is computed."""
    resid = model.run_from(model.embedded(tokens, latents, values), n_read=layout.n_read)
    read = model.ln_final(resid)
    logits = model.unembed(read[:, 0])[:, : layout.n_outputs]
    return logits, model.write(
        latents, model.update(read[:, -layout.n_after], tokens.shape[1]), slots
    )


def _rows(
    batch: Batch, rows: NDArray[Any], at: NDArray[Any]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    assert batch.latents is not None, "forward gives the latents"
    b, t = torch.from_numpy(rows), torch.from_numpy(at)
    return (
        batch.rounds.tokens[b, t],
        batch.latents[b, t],
        batch.rounds.values[b, t],
        batch.rounds.slots[b, t],
    )


def swapped(
    model: HookedLatentTransformer,
    batch: Batch,
    pairs: Pairs,
    projections: Mapping[str, Tensor | None],
    horizon: int,
) -> Float[Tensor, "pair step outcome"]:
    """Logits from the base's round on, with parts of activations set to what they are in the source's round.

    ``projections``: site -> what is taken from the source, a projection ``[d, d]`` or one a pair, ``[pair, d, d]``; the
    whole activation when None.
    """
    sites = [(Site.parse(site), projection) for site, projection in projections.items()]
    kept: dict[str, Tensor] = {}

    def keep(activation: Tensor, hook: Any, name: str) -> None:
        kept[name] = activation

    def put(activation: Tensor, hook: Any, name: str) -> Tensor:
        for site, projection in sites:
            if site.hook == name:
                own, theirs = (site.read(x, batch.layout) for x in (activation, kept[name]))
                moved = theirs - own
                if projection is not None:
                    moved = (projection @ moved.unsqueeze(-1)).squeeze(-1)
                activation = write(activation, site, batch.layout, own + moved)
        return activation

    names = list(dict.fromkeys(site.hook for site, _ in sites))
    with model.hooks(fwd_hooks=[(name, partial(keep, name=name)) for name in names]):
        model(*_rows(batch, pairs.source, pairs.source_at)[:3])
    tokens, latents, payloads, slots = _rows(batch, pairs.base, pairs.at)
    with model.hooks(fwd_hooks=[(name, partial(put, name=name)) for name in names]):
        out = model(tokens, latents, payloads)
    logits = [out.logits[:, batch.layout.predict_position, : batch.layout.n_outputs]]
    latents = model.write(out.latents, out.update, slots)
    for step in range(1, horizon + 1):
        tokens, _, payloads, slots = _rows(batch, pairs.base, pairs.at + step)
        scores, latents = one_round(model, batch.layout, tokens, latents, payloads, slots)
        logits.append(scores)
    return torch.stack(logits, 1)


def inside(tie: Tie, basis: Mapping[str, Tensor], chosen: NDArray[np.bool_]) -> dict[str, Tensor]:
    """Site -> the projection onto the directions of the chosen elements, ``[pair, d_model, d_model]``."""
    projections, start = {}, 0
    for site, elements in tie.holds.items():
        kept = torch.from_numpy(chosen[:, start : start + len(elements)]).to(basis[site])
        projections[site] = torch.einsum("dk,pk,ek->pde", basis[site], kept, basis[site])
        start += len(elements)
    return projections


def outside(tie: Tie, basis: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Site -> the projection onto all that is orthogonal to the tied directions."""
    return {site: torch.eye(len(basis[site])) - basis[site] @ basis[site].T for site in tie.holds}
