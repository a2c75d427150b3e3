"""What of the state is used, and can the algorithm's memory be read from it?

How few directions carry the effect, whether these turn, and how the effect grows.

A direction is one of the principal ones of the states that a round reads. The part of another episode's state that lies
in the first k of them is put in the own state's place; the share of the whole effect that this has, beside that of k
directions drawn at random.

What can be read need not be used: :func:`decoded` fits a ridge map from everything that is carried to the algorithm's
memory on some episodes and scores it on others. Its controls are the memory of other episodes and untrained copies,
read alike from as many episodes as these need (:data:`interp.stats.refit.PLATEAU`). Few episodes
fit a poor map: a memory is
called unread only where twice as many episodes, by what they gain over half as many, would not read it either.

NOT evidence that these directions mean anything: they are those in which states vary most.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.audit.trial import THRESHOLDS, Array, Trial, claimed
from interp.audit.used import CONTENT, Change, donors, limited, replaced, worth
from interp.interventions.moves import flat
from interp.results.measure import FEW, Control, Measure, Verdict
from interp.stats.decoder import N_FOLDS, RIDGE, cross_fitted
from interp.stats.intervals import Interval, mean_interval, ratio_interval, resample_weights
from interp.stats.refit import PLATEAU
from interp.support.session import remembered

_DOSES = (0.25, 0.5, 0.75, 1.0, 1.5)
_RANKS = (
    1,
    2,
    4,
    8,
    16,
    32,
    64,
    10**9,
)  # numbers of directions; the last stands for all that there are
_RANK = 1e-8  # directions that vary less than this share of the widest one do not vary
_RESAMPLES = 40
_MORE_SEED = 40
_FEW = 4  # so many directions are few, or as many as the memory of the algorithm has numbers


def _directions(state: Float[Tensor, "episode row width"]) -> Float[Tensor, "direction number"]:
    """The principal directions in which states of episodes vary, widest first."""
    _, spread, axes = torch.linalg.svd(
        (state - state.mean(0)).flatten(1).double(), full_matrices=False
    )
    return axes[spread > _RANK * spread[:1].clamp_min(torch.finfo(torch.float64).tiny)]


def _effects(
    trial: Trial, round: int, parts: list[Float[Tensor, "episode row width"]]
) -> Float[np.ndarray, "part episode"]:
    """How far the prediction of a round moves where each of several states is read."""
    said = trial.continued(torch.stack(parts), [round] * len(parts), horizon=1)
    return trial.distance(trial.distribution(said)[:, :, round], trial.plain[:, round])


@remembered
def _by_rank(trial: Trial, round: int) -> tuple[list[int], Array, Array, Array]:
    """Ranks; the effects ``[rank, episode]`` of that many principal and random directions; and the whole effect."""
    own = trial.read([round])[0]
    gap = (limited(trial, [round], Change.DONOR)[0] - own).flatten(1).double()
    axes = _directions(own)
    ranks = sorted({min(k, len(axes)) for k in _RANKS})
    drawn = torch.randn(
        gap.shape[1], max(ranks), generator=torch.Generator().manual_seed(trial.effort.seed)
    ).double()
    random = torch.linalg.qr(drawn).Q.T.to(gap)
    chosen = [axes[:k] for k in ranks] + [random[:k] for k in ranks]
    parts = [own + (gap @ of.T @ of).to(own).unflatten(1, own.shape[1:]) for of in chosen]
    effects = _effects(trial, round, [*parts, own + gap.to(own).unflatten(1, own.shape[1:])])
    return ranks, effects[: len(ranks)], effects[len(ranks) : -1], effects[-1]


def table(trial: Trial) -> pd.DataFrame:
    """The share of the effect by round and number of directions, principal and random."""
    rows = []
    for t in sorted({trial.writes[len(trial.writes) // 2], trial.writes[-1]}):
        ranks, effects, random, whole = _by_rank(trial, t)
        for k, part, control in zip(ranks, effects, random, strict=True):
            share, other = (
                ratio_interval(of, whole, participants=trial.whose) for of in (part, control)
            )
            rows.append(
                {"round": t, "directions": k, **share.columns("share"), "random": other.estimate}
            )
    return pd.DataFrame(rows)


def doses(trial: Trial) -> pd.DataFrame:
    """The effect of a part of the way to another episode's state, as a share of the effect of the whole way."""
    t = trial.writes[-1]
    own, other = trial.read([t])[0], limited(trial, [t], Change.DONOR)[0]
    effects = _effects(trial, t, [own + dose * (other - own) for dose in _DOSES])
    whole = effects[_DOSES.index(1.0)]
    return pd.DataFrame(
        {
            "round": t,
            "dose": dose,
            **ratio_interval(part, whole, participants=trial.whose).columns("share"),
        }
        for dose, part in zip(_DOSES, effects, strict=True)
    )


def repeated(trial: Trial) -> pd.DataFrame:
    """A write once beside a write in every round, of all directions and of the first few: the effect some rounds on.

    Written is another episode's state, or its part in the ``directions`` that carry nine tenths of the effect in the
    last round, of the round in which it is written; "in every round" writes on, over what the rounds before left.
    """
    first = trial.writes[0]
    ranks, effects, _, whole = _by_rank(trial, trial.writes[-1])
    shares = [float(part.mean() / whole.mean()) if whole.any() else 0.0 for part in effects]
    enough = next(
        (k for k, share in zip(ranks, shares, strict=True) if share > THRESHOLDS["kept"].value),
        ranks[-1],
    )
    few = _directions(trial.read([trial.writes[-1]])[0])[:enough]

    rows = []
    for n, axes in [(ranks[-1], None), (enough, few)][: 1 + (enough < ranks[-1])]:
        for again in (False, True):
            said = replaced(trial, Change.DONOR, axes=axes, again=again)
            effect = trial.distance(trial.distribution(said), trial.plain)
            for t in range(first, trial.shape[1]):
                row = {
                    "directions": n,
                    "written": "in every round" if again else "once",
                    "from_round": first,
                }
                moved = mean_interval(effect[:, t], participants=trial.whose)
                rows.append({**row, "round": t, **moved.columns("effect")})
    return pd.DataFrame(rows)


def _overlap(one: Float[Tensor, "k number"], other: Float[Tensor, "k number"]) -> float:
    """The mean squared cosine of the principal angles between two spaces: 1 where they are one, 0 where orthogonal."""
    return float((one @ other.T).square().sum() / min(len(one), len(other)))


def turning(trial: Trial, k: int = 4) -> pd.DataFrame:
    """Do the first directions turn from round to round? Overlap of two rounds' spaces, with interval and controls.

    ``same`` is that of two halves of the episodes in one round, which is as much as sampling leaves; ``null`` that of
    two rounds whose states are shuffled among them.
    """
    seed = trial.effort.seed
    rows, rng = [], np.random.default_rng(seed)
    for t, later in zip(trial.writes, trial.writes[1:], strict=False):
        one, other = trial.read([t, later])
        if min(len(_directions(one)), len(_directions(other))) < k:
            continue
        samples = []
        for weights in resample_weights(len(one), _RESAMPLES, seed, participants=trial.whose):
            rows_drawn = torch.from_numpy(rng.choice(len(one), len(one), p=weights))
            samples.append(
                _overlap(_directions(one[rows_drawn])[:k], _directions(other[rows_drawn])[:k])
            )
        found = _overlap(_directions(one)[:k], _directions(other)[:k])
        half = torch.from_numpy(rng.permutation(len(one)))
        cut = len(half) // 2
        same = _overlap(_directions(one[half[:cut]])[:k], _directions(one[half[cut:]])[:k])
        swapped = torch.from_numpy(rng.random(len(one)) < 0.5)[:, None, None]
        mixed = torch.where(swapped, other, one), torch.where(swapped, one, other)
        null = _overlap(*(_directions(part)[:k] for part in mixed))
        number = Interval.of_samples(np.array(samples), found).columns("overlap")
        rows.append(
            {"round": t, "and": later, "directions": k, **number, "same": same, "null": null}
        )
    return pd.DataFrame(rows)


def few(trial: Trial, is_used: bool) -> Measure:
    """Do as few directions carry what counts as the memory of the algorithm has numbers?

    All of the state but these directions is another episode's, in the round that is read: what of the worth is left?
    """
    n, algorithm = _FEW, trial.algorithm
    if not is_used:
        return claimed(
            "directions", lacking="no use of what its state says, as far as this audit shows"
        )
    if algorithm is not None and algorithm.memory:
        n = int(np.prod(np.shape(algorithm.run(trial.episodes)[algorithm.memory])[2:]))
    own, other, kept, random = _with_few(trial, n)
    return claimed(
        "directions",
        ratio_interval(other - kept, other - own, participants=trial.whose),
        unit=f"share of the worth of a state that {n} of its directions have",
        controls={
            **trial.untrained(lambda copy: _kept(copy, n)),
            f"a random choice of {n}": Control(float((other - random).sum() / (other - own).sum())),
        },
    )


def _with_few(trial: Trial, n: int) -> tuple[Array, ...]:
    """Losses ``[episode]`` where the state read is the own one, another's, or another's but for the first directions.

    The last is another's but for as many random directions.
    """
    rounds = list(range(1, trial.shape[1]))
    own, other = (
        trial.read(rounds).flatten(2).double(),
        limited(trial, rounds, Change.DONOR).flatten(2).double(),
    )
    drawn = torch.randn(
        own.shape[2], n, generator=torch.Generator().manual_seed(trial.effort.seed)
    ).double()
    random = torch.linalg.qr(drawn).Q.T.to(own)
    losses = [trial.losses(trial.run.predictions)[:, 1:].sum(1)]
    for axes in (
        None,
        [_directions(part)[:n] for part in trial.read(rounds)],
        [random] * len(rounds),
    ):
        state = other
        if axes is not None:
            state = other + torch.stack(
                [(x - y) @ of.T @ of for x, y, of in zip(own, other, axes, strict=True)]
            )
        said = trial.continued(
            state.to(trial.run.latents).unflatten(2, trial.run.latents.shape[2:]), rounds, horizon=1
        )
        losses.append(sum(trial.losses(said[i])[:, t] for i, t in enumerate(rounds)))
    return tuple(losses)


def _kept(copy: Trial, n: int) -> Interval | None:
    """The same of an untrained copy; None where no use of its state shows."""
    if worth(copy, CONTENT)[0].estimate < THRESHOLDS["worth"].value:
        return None
    own, other, kept, _ = _with_few(copy, n)
    return ratio_interval(other - kept, other - own, participants=copy.whose)


def decoded(trial: Trial) -> Measure:
    """R2 of the algorithm's memory, decoded from the state of every round but the first."""
    algorithm = trial.algorithm
    if algorithm is None or not algorithm.memory:
        return claimed("decoded", lacking="no algorithm with a memory to look for")
    if not trial.run.latents[:, 1:].std(0).any():
        return claimed("decoded", lacking="no state that differs between episodes")
    n, people, n_rounds = len(trial.whose), int(trial.whose.max()) + 1, trial.shape[1]
    if people < N_FOLDS:
        return claimed(
            "decoded",
            lacking=f"no {N_FOLDS} participants, of whom one part after the other is read",
        )
    wide = trial
    if n < PLATEAU:
        wide = Trial.of(
            trial.model, replace(trial.effort, episodes=PLATEAU), seed=_MORE_SEED, n_rounds=n_rounds
        )
    memory, more = (
        flat(algorithm.run(of.episodes)[algorithm.memory])[:, 1:] for of in (trial, wide)
    )
    number = _r2(trial, memory)
    half = _r2(trial, memory, trial.first_half).estimate if people >= 2 * N_FOLDS else np.nan
    unless: dict[Verdict, str] = {}
    if not 2 * number.estimate - half <= THRESHOLDS["decoded"].value:
        unless = {"no": f"{FEW}: from half of them R2 is {half:.2f}; more of them might read it"}
    return claimed(
        "decoded",
        number,
        unit=f"R2 of {algorithm.memory}",
        controls={
            **wide.untrained(
                lambda copy: _r2(copy, more) if copy.run.latents[:, 1:].std(0).any() else None
            ),
            "the memory of other episodes": Control(
                _r2(trial, memory[donors(n, trial.effort.seed)]).estimate
            ),
        },
        unless=unless,
    )


def _r2(
    trial: Trial, memory: Float[np.ndarray, "episode round k"], rows: Array | slice = slice(None)
) -> Interval:
    features, memory = trial.run.latents[rows, 1:-1].flatten(2).unsqueeze(2), memory[rows]
    whose, seed = trial.whose[rows], trial.effort.seed
    read = cross_fitted(features, memory, ridge=RIDGE, seed=seed, participants=whose).numpy(
        force=True
    )
    missed, varied = (((of - memory) ** 2).sum((1, 2)) for of in (read, memory.mean(0)))
    return ratio_interval(missed, varied, participants=whose).complement
