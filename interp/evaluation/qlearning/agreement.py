"""Does a policy agree with tabular Q-learning, and is that evidence that it bootstraps?

The target of a round is a greedy action by the table after the update; a policy that selects before it updates is
scored with ``table="before"``. Agreement is given on untied steps, and over all steps under random ties. Beside it
stands that of a table which never bootstraps (gamma = 0), and the *disputed* steps: there, and only there, agreement
shows bootstrapping. :func:`followed_discount` asks which discount the choices follow, from behaviour alone. NOT
evidence of how the policy computes its choice.

The traps, how large they are, and how a discount is estimated: docs/method/playing.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from interp.core.algorithm import participants_of
from interp.core.task import episode_array
from interp.results.measure import Scores
from interp.stats.intervals import Interval, percentile_bounds, ratio_interval, resample_weights
from interp.support.checks import checked, shown
from interp.support.errors import require
from interp.support.files import read_tables
from interp.support.provenance import provenance
from interp.tasks.qlearning import bellman
from interp.tasks.qlearning.episodes import Batches, MDPEpisodes, drawn_from, one_each

QUANTITIES: dict[str, str] = read_tables(Path(__file__).with_suffix(".toml"))
_PHASES = ("all", "early", "middle", "late")
_MINIMUM_PROBABILITY = 1e-12
"""Probabilities are clipped here before the logarithm, so that a one-hot policy has a finite cross-entropy."""


@checked
def agreement(
    predictions: Any,
    episodes: Batches,
    *,
    table: Literal["after", "before"] = "after",
    n_resamples: int = 1000,
    seed: int = 0,
) -> Scores:
    """Compare a policy with the greedy actions of the episodes' tables: by quantity and phase of the episodes.

    The phases are "all" rounds and the "early", "middle" and "late" thirds. ``n_steps`` beside a number says how many
    steps it rests on; it is NaN where there was none.

    Args:
        predictions: probabilities ``[episode, round, action]`` (the choice is the largest, lowest index on ties) or
            choices ``[episode, round]``; one array per batch when ``episodes`` holds several batches.
        table: "after" scores ``argmax Q_{t+1}(s_{t+1}, .)``, the data's target; "before" ``argmax Q_t(s_{t+1}, .)``,
            that of a machine which chooses before it updates. They differ only where ``s_{t+1} = s_t``.
    """
    pairs = one_each("predictions", predictions, episodes)
    batches, counted = [b for _, b in pairs], [_count(_policy(p, b), b, table) for p, b in pairs]
    numbers: dict[tuple[Any, ...], Interval] = {}
    beside: dict[tuple[Any, ...], dict[str, Any]] = {}
    weights = resample_weights(
        sum(map(len, batches)), n_resamples, seed, participants=participants_of(*batches)
    )
    for quantity in (q for q in QUANTITIES if all(q in counts for counts in counted)):
        for phase in _PHASES:
            sums: tuple[list[NDArray[np.float64]], ...] = ([], [])
            for counts in counted:
                for column, found in zip(sums, counts[quantity], strict=True):
                    third = 3 * np.arange(found.shape[1]) // found.shape[1]
                    here = phase == "all" or third == _PHASES.index(phase) - 1
                    column.append(found[:, np.broadcast_to(here, third.shape)].sum(1))
            hits, steps = map(np.concatenate, sums)
            numbers[quantity, phase] = ratio_interval(hits, steps, weights=weights)
            beside[quantity, phase] = {"name": QUANTITIES[quantity], "n_steps": int(steps.sum())}
    made = drawn_from(batches, n_episodes=sum(map(len, batches)), table=table, bootstrap_seed=seed)
    return Scores(("quantity", "phase"), numbers, made, beside)


def agreement_by_round(
    predictions: Any,
    episodes: MDPEpisodes,
    *,
    table: Literal["after", "before"] = "after",
    seed: int = 0,
) -> pd.DataFrame:
    """Agreement on untied steps round by round, of a policy and of the table that never bootstraps.

    Columns ``key`` ("model", "no-bootstrap"), ``round`` (from 1), ``estimate``, ``low``, ``high``, ``n_steps``; no row
    for a round in which every step is tied.
    """
    counts = _count(_policy(predictions, episodes), episodes, table)
    weights, rows = (
        resample_weights(len(episodes), seed=seed, participants=participants_of(episodes)),
        [],
    )
    for key, quantity in (("model", "untied"), ("no-bootstrap", "untied_gamma0")):
        hits, steps = counts[quantity]
        for t in np.flatnonzero(steps.sum(0)):
            value = ratio_interval(hits[:, t], steps[:, t], weights=weights)
            rows.append(
                {"key": key, "round": int(t) + 1, **vars(value), "n_steps": int(steps[:, t].sum())}
            )
    return pd.DataFrame(rows)


_Policy = tuple[NDArray[np.float64], NDArray[np.float64] | None]
"""Choices and, where they are known, probabilities: each ``[episode, round, action]``."""


def _policy(predictions: Any, batch: MDPEpisodes) -> _Policy:
    array = np.asarray(predictions)
    shape, n_actions = batch.states.shape, batch.n_actions
    if array.shape == shape and array.dtype.kind in "iu":
        return np.eye(n_actions)[
            episode_array("choices", array, "episode, round", 0, n_actions - 1, whole=True)
        ], None
    require(
        array.shape == (*shape, n_actions) and array.dtype.kind == "f",
        f"predictions must be probabilities [episode, round, action] = {(*shape, n_actions)} or integer choices "
        f"{shape}, got {array.dtype} of shape {array.shape}",
    )
    array = np.where(
        batch.counted[..., None], array.astype(np.float64), 1 / n_actions
    )  # the others may be anything
    valid = bool((array >= -1e-6).all() and (np.abs(array.sum(-1) - 1) < 1e-3).all())
    require(
        valid,
        "predictions must be probabilities that sum to 1 over actions; apply a softmax to logits first",
    )
    return np.eye(n_actions)[array.argmax(-1)], array


_Counts = dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]


def _count(policy: _Policy, batch: MDPEpisodes, table: str) -> _Counts:
    """Hits and steps, each ``[episode, round]``, of every quantity."""
    choices, probabilities = policy
    sets = [_greedy(each, table) for each in (batch, batch.relearned(gamma=0.0))]
    target, of_gamma0 = (
        tied / tied.sum(-1, keepdims=True) for tied in sets
    )  # uniform over the greedy actions
    every = np.ones(batch.states.shape)
    n_greedy = (target > 0).sum(-1)
    untied: NDArray[np.float64] = np.asarray(n_greedy == 1, np.float64)
    disputed: NDArray[np.float64] = np.asarray(
        ~((target > 0) & (of_gamma0 > 0)).any(-1), np.float64
    )
    chosen, gamma0 = (choices * target).sum(-1), (of_gamma0 * target).sum(-1)
    counts: _Counts = {
        "untied": (chosen * untied, untied),
        "untied_gamma0": (gamma0 * untied, untied),
        "untied_gain": ((chosen - gamma0) * untied, untied),
        "random_ties": (chosen, every),
        "random_ties_ceiling": ((target * target).sum(-1), every),
        "random_ties_gamma0": (gamma0, every),
        "disputed": ((choices * (target > 0)).sum(-1) * disputed, disputed),
        "disputed_gamma0": ((choices * (of_gamma0 > 0)).sum(-1) * disputed, disputed),
        "cross_entropy_floor": (np.log(n_greedy), every),
        "share_tied": (1 - untied, every),
        "share_disputed": (disputed, every),
    }
    if probabilities is not None:
        paid = -(target * np.log(np.maximum(probabilities, _MINIMUM_PROBABILITY))).sum(-1)
        counts["cross_entropy"] = (paid, every)
        counts["cross_entropy_excess"] = (paid - np.log(n_greedy), every)
    return {
        key: (hits * batch.counted, steps * batch.counted) for key, (hits, steps) in counts.items()
    }


def _greedy(batch: MDPEpisodes, table: str) -> NDArray[np.bool_]:
    """The greedy actions at the state reached, ``[episode, round, action]``."""
    return bellman.greedy_sets(
        batch.next_values_after if table == "after" else batch.next_values_before
    )


# Which discount do the choices follow?

_GAMMAS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)


@checked
def followed_discount(
    choices: Sequence[np.ndarray],
    batches: Sequence[MDPEpisodes],
    *,
    table: Literal["after", "before"] = "after",
    seed: int = 0,
) -> Scores:
    """Agreement of choices ``[episode, round]``, one array per batch, with the tables of each discount.

    ``best`` beside every number is the discount that choices follow best: the middle of those that tie, with an
    interval over all of them.
    """
    for c, b in one_each("choices", choices, batches):
        require(
            _policy(c, b)[1] is None,
            f"choices must be whole numbers [episode, round], got {shown(c)}",
        )
    columns = []  # per episode, the expected number of rounds where a greedy action of its tables is the one chosen
    for gamma in _GAMMAS:
        sets = [_greedy(batch.relearned(gamma=gamma), table) for batch in batches]
        shares = [
            bellman.entries_at(tied, c) / tied.sum(-1)
            for c, tied in zip(choices, sets, strict=True)
        ]
        columns.append(
            np.concatenate(
                [(share * b.counted).sum(1) for share, b in zip(shares, batches, strict=True)]
            )
        )
    hits = np.stack(columns, 1)
    rounds = np.concatenate([b.counted.sum(1, dtype=np.float64) for b in batches])
    weights = resample_weights(len(hits), seed=seed, participants=participants_of(*batches))
    curve, samples = hits.sum(0) / rounds.sum(), (weights @ hits) / (weights @ rounds)[:, None]
    low, high = percentile_bounds(samples)
    ranked = np.array(_GAMMAS)

    def followed(curves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The smallest and the largest of the discounts that each row of ``curves`` agrees with best."""
        tied = bellman.greedy_sets(curves)
        return ranked[tied.argmax(1)], ranked[::-1][tied[:, ::-1].argmax(1)]

    lowest, highest = followed(samples)
    first, last = followed(curve[None])
    bounds = percentile_bounds(lowest)[0], percentile_bounds(highest)[1]
    best = dict(
        zip(
            ("best", "best_low", "best_high"),
            map(float, ((first[0] + last[0]) / 2, *bounds)),
            strict=True,
        )
    )
    numbers = {
        (g,): Interval(*map(float, row))
        for g, row in zip(_GAMMAS, zip(curve, low, high, strict=True), strict=True)
    }
    settings = provenance(table=table, n_episodes=len(hits), bootstrap_seed=seed)
    return Scores(("gamma",), numbers, settings, dict.fromkeys(numbers, best))
