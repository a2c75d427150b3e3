"""Measure whether a policy agrees with tabular Q-learning, and whether the agreement is evidence
that it bootstraps.

The target of a round is a greedy action of the Q-table after the round's update. A policy that
selects its action before it updates is scored with ``table="before"``. Agreement is measured on
steps without ties, and over all steps with ties broken at random. The baseline is a Q-table with
gamma = 0, which never bootstraps. *Disputed* steps are those where the two tables share no greedy
action: agreement is evidence of bootstrapping only there. :func:`followed_discount` estimates the
discount that choices follow, from behaviour alone. NOT evidence of how the policy computes its
choice.

docs/method/playing.md describes the pitfalls, how large they are, and how a discount is estimated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from interp.core.algorithm import participants_of
from interp.core.task import episode_array
from interp.results.measure import Scores
from interp.stats.intervals import (
    Interval,
    percentile_bounds,
    ratio_interval,
    resample_weights,
    share_interval,
)
from interp.support.checks import checked, format_value
from interp.support.errors import require
from interp.support.provenance import provenance
from interp.tasks.qlearning import bellman
from interp.tasks.qlearning.episodes import Batches, MDPEpisodes, describe_draw, pair_with_batches

QUANTITIES: dict[str, str] = {
    "untied": "agreement, untied steps",
    "untied_gamma0": "... of the gamma = 0 table",
    "untied_gain": "... gain over the gamma = 0 table",
    "random_ties": "agreement, all steps, random ties",
    "random_ties_ceiling": "... of a perfect learner",
    "random_ties_gamma0": "... of the gamma = 0 table",
    "disputed": "disputed steps: follows Q-learning",
    "disputed_gamma0": "disputed steps: follows the gamma = 0 table",
    "cross_entropy": "cross-entropy, random ties (nats)",
    "cross_entropy_floor": "... of a perfect learner",
    "cross_entropy_excess": "... above that floor",
    "share_tied": "share of tied steps",
    "share_disputed": "share of disputed steps",
}
"""Key of a quantity -> its name in words."""
_SHARES = {
    "untied",
    "untied_gamma0",
    "disputed",
    "disputed_gamma0",
    "share_tied",
    "share_disputed",
}
"""Quantities that are shares of steps, which may be 0 or 1."""
_PHASES = ("all", "early", "middle", "late")
_ROUNDING_OF_SHARES = 1e-6
_ROUNDING_OF_SUMS = 1e-3
"""Allowed rounding errors of a float32 model: of probabilities below 0, and of their sum."""
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
    """Measure how often a policy chooses the greedy actions of the episodes' Q-tables.

    A step is one round of an episode. An action is greedy if no other action has a higher Q-value
    at the next state. A step is *tied* if several actions are greedy in the episode's table. A step
    is *disputed* if no action that is greedy in the episode's table is greedy in a second table,
    learned from the same transitions with a discount of 0.

    Args:
        predictions: choices ``[episode, round]``, indices of actions; or probabilities ``[episode,
            round, action]``, where the choice is the most probable action (the first if tied). One
            array per batch if ``episodes`` is a list of batches.
        episodes: one batch of episodes, or several.
        table: which table counts: "after" the round's update, with the greedy actions ``argmax
            Q_{t+1}(s_{t+1}, .)``, which are the targets in the data; or "before" it, with ``argmax
            Q_t(s_{t+1}, .)``, for a model that chooses before it updates. The two differ only if
            ``s_{t+1} = s_t``.
        n_resamples: number of bootstrap samples.
        seed: seed of the bootstrap.

    Returns:
        Scores by quantity and phase. Phases are "all" rounds, or the "early", "middle" or "late"
        third of each episode. :data:`QUANTITIES` says what each quantity is. For example, "untied" is the
        share of steps with one greedy action in which the policy chooses this action. "disputed" is
        the share of disputed steps in which the policy chooses a greedy action. The column
        ``n_steps`` is the number of steps averaged over; if it is 0, the score is NaN.
    """
    pairs = pair_with_batches("predictions", predictions, episodes)  # (predictions, batch) each
    batches = [batch for _, batch in pairs]
    counts = [
        _count_by_quantity(_read_policy(prediction, batch), batch, table)
        for prediction, batch in pairs
    ]
    n_episodes = sum(len(batch) for batch in batches)
    participants = participants_of(*batches)
    weights = resample_weights(n_episodes, n_resamples, seed, participants=participants)
    phases = [_mark_phases(batch) for batch in batches]
    # Key (quantity, phase) -> the score, and further cells of its row of the table.
    numbers: dict[tuple[Any, ...], Interval] = {}
    beside: dict[tuple[Any, ...], dict[str, Any]] = {}
    for quantity, name in QUANTITIES.items():
        if not all(quantity in of_batch for of_batch in counts):
            continue  # cross-entropies need probabilities
        for phase in _PHASES:
            sums = [
                of_batch[quantity].sums_in(rounds[phase])
                for of_batch, rounds in zip(counts, phases, strict=True)
            ]
            hits, steps = np.concatenate(sums, axis=1)  # [2, episode], of all batches
            compute_interval = share_interval if quantity in _SHARES else ratio_interval
            numbers[quantity, phase] = compute_interval(
                hits, steps, weights=weights, participants=participants
            )
            beside[quantity, phase] = {"name": name, "n_steps": int(steps.sum())}
    settings = describe_draw(batches, n_episodes=n_episodes, table=table, bootstrap_seed=seed)
    return Scores(("quantity", "phase"), numbers, settings, beside)


@dataclass(frozen=True)
class _Policy:
    """A policy's choices in a batch of episodes.

    Attributes:
        choices: the chosen actions, one-hot, ``[episode, round, action]``.
        probabilities: probability of each action, in the same shape; None if only choices are
            known.
    """

    choices: NDArray[np.float64]
    probabilities: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class _Count:
    """Numerator and denominator of one quantity in each step, such as agreement on untied steps.
    The quantity is the sum of ``hits`` over the sum of ``steps``.

    Attributes:
        hits: value of the quantity in each step that counts, such as 1 for an agreeing choice; 0 in
            other steps, ``[episode, round]``.
        steps: 1 in each step that counts, else 0, ``[episode, round]``.
    """

    hits: Any
    steps: Any

    def sums_in(self, rounds: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return two sums over the rounds of a phase, ``[episode]`` each: of the hits, and of the
        steps that count.

        Args:
            rounds: True for the rounds of the phase, ``[episode, round]``.
        """
        return (self.hits * rounds).sum(axis=1), (self.steps * rounds).sum(axis=1)


def _mark_phases(batch: MDPEpisodes) -> dict[str, NDArray[np.bool_]]:
    """Return which rounds belong to each phase of :data:`_PHASES`, ``[episode, round]``: all rounds,
    or the first, middle or last third of the episode, without the padding after its end.
    """
    lengths = batch.lengths[:, None]
    third = 3 * np.arange(batch.n_rounds) // lengths  # 0, 1 or 2; more after the end
    by_third = {phase: third == i for i, phase in enumerate(_PHASES[1:])}
    return {"all": third >= 0, **by_third}


def _read_policy(predictions: Any, batch: MDPEpisodes) -> _Policy:
    """Check predictions for a batch of episodes, and return them as a policy: the chosen actions
    as one-hot codes and, if they are known, the probabilities of all actions, ``[episode, round,
    action]`` each. The choice is the most probable action, the first if several are.

    Args:
        predictions: probabilities ``[episode, round, action]``, or integer choices ``[episode,
            round]``.
        batch: the episodes. Predictions in their missing rounds may be anything.
    """
    array = np.asarray(predictions)
    shape = batch.states.shape
    n_actions = batch.n_actions
    if array.shape == shape and array.dtype.kind in "iu":
        actions = episode_array(
            "choices", array, "episode, round", low=0, high=n_actions - 1, whole=True
        )
        return _Policy(np.eye(n_actions)[actions])
    wanted = (*shape, n_actions)
    has_probabilities = array.shape == wanted and array.dtype.kind == "f"
    require(
        has_probabilities,
        f"predictions must be probabilities [episode, round, action] = {wanted} or integer choices "
        f"{shape}, got {array.dtype} of shape {array.shape}",
    )
    counted = batch.counted[..., None]
    array = np.where(counted, array.astype(np.float64), 1 / n_actions)
    # Up to the rounding errors of a float32 model.
    are_at_least_0 = (array >= -_ROUNDING_OF_SHARES).all()
    gaps = np.abs(array.sum(axis=-1) - 1)
    require(
        are_at_least_0 and (gaps < _ROUNDING_OF_SUMS).all(),
        "predictions must be probabilities that sum to 1 over actions; apply a softmax to logits first",
    )
    choices = np.eye(n_actions)[array.argmax(axis=-1)]
    return _Policy(choices, array)


def _count_by_quantity(policy: _Policy, batch: MDPEpisodes, table: str) -> Mapping[str, _Count]:
    """Compute every quantity of :data:`QUANTITIES` in every step: key of the quantity -> its values
    and the steps that count.

    A step is one round of an episode. A step is untied if one action is greedy in the Q-table, and
    disputed if no greedy action is also greedy in the Q-table that is learned with gamma = 0.

    Args:
        policy: choices, and probabilities if they are known.
        batch: the episodes with their Q-tables.
        table: the Q-table to compare with, "after" or "before" the round's update.
    """
    greedy = _find_greedy(batch, table)
    greedy_gamma0 = _find_greedy(batch.relearn(gamma=0.0), table)
    n_greedy = greedy.sum(axis=-1)
    target = greedy / n_greedy[..., None]  # uniform over the greedy actions
    target_gamma0 = greedy_gamma0 / greedy_gamma0.sum(axis=-1, keepdims=True)
    every_step = np.ones(batch.states.shape)
    untied = (n_greedy == 1).astype(np.float64)
    share_an_action = (greedy & greedy_gamma0).any(axis=-1)
    disputed = (~share_an_action).astype(np.float64)
    # The probability that two choices are equal, if ties are broken at random.
    agreement_with_target = (policy.choices * target).sum(axis=-1)
    agreement_of_gamma0 = (target_gamma0 * target).sum(axis=-1)
    is_greedy = (policy.choices * greedy).sum(axis=-1)
    is_greedy_gamma0 = (policy.choices * greedy_gamma0).sum(axis=-1)
    floor = np.log(n_greedy)  # the entropy of the target
    ceiling = (target * target).sum(axis=-1)  # a learner that breaks ties at random, too
    # A quantity is the sum of its first array divided by the sum of the second, the counted steps.
    counts = {
        "untied": _Count(agreement_with_target * untied, untied),
        "untied_gamma0": _Count(agreement_of_gamma0 * untied, untied),
        "random_ties": _Count(agreement_with_target, every_step),
        "random_ties_ceiling": _Count(ceiling, every_step),
        "random_ties_gamma0": _Count(agreement_of_gamma0, every_step),
    }
    counts |= {
        "untied_gain": _Count((agreement_with_target - agreement_of_gamma0) * untied, untied),
        "disputed": _Count(is_greedy * disputed, disputed),
        "disputed_gamma0": _Count(is_greedy_gamma0 * disputed, disputed),
        "cross_entropy_floor": _Count(floor, every_step),
        "share_tied": _Count(1 - untied, every_step),
        "share_disputed": _Count(disputed, every_step),
    }
    if policy.probabilities is not None:
        logs = np.log(np.maximum(policy.probabilities, _MINIMUM_PROBABILITY))
        cross_entropy = -(target * logs).sum(axis=-1)
        counts["cross_entropy"] = _Count(cross_entropy, every_step)
        counts["cross_entropy_excess"] = _Count(cross_entropy - floor, every_step)
    counted = batch.counted
    return {
        quantity: _Count(count.hits * counted, count.steps * counted)
        for quantity, count in counts.items()
    }


def _find_greedy(batch: MDPEpisodes, table: str) -> NDArray[np.bool_]:
    """Return which actions are greedy at the next state, ``[episode, round, action]``.

    Args:
        batch: the episodes with their Q-tables.
        table: the Q-table to use, "after" or "before" the round's update.
    """
    values = batch.next_values_after if table == "after" else batch.next_values_before
    return bellman.greedy_sets(values)


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
    """Estimate which discount factor choices follow. For each of several discounts, a Q-table is
    learned from the episodes' transitions, and the share of choices that are greedy in the table is
    measured.

    Args:
        choices: actions ``[episode, round]``, one array per batch.
        batches: the episodes.
        table: the Q-table to compare with, "after" or "before" the round's update.
        seed: seed of the bootstrap.

    Returns:
        Scores by discount (``gamma``): the share of rounds in which the choice is greedy. A choice
        among n greedy actions counts 1/n. The column ``best``, the same in all rows, is the
        discount with the highest share, and ``best_low`` and ``best_high`` are the ends of its
        interval. If several discounts share the highest share, ``best`` is the middle between the
        smallest and the largest of them, and the interval covers them all.
    """
    for chosen, batch in pair_with_batches("choices", choices, batches):
        require(
            _read_policy(chosen, batch).probabilities is None,
            f"choices must be whole numbers [episode, round], got {format_value(chosen)}",
        )
    # Number of greedy choices, [episode, discount], and number of rounds, [episode].
    hits = np.stack(
        [_count_greedy_rounds(choices, batches, gamma, table) for gamma in _GAMMAS], axis=1
    )
    rounds = np.concatenate([batch.counted.sum(axis=1, dtype=np.float64) for batch in batches])
    weights = resample_weights(len(hits), seed=seed, participants=participants_of(*batches))
    curve = hits.sum(axis=0) / rounds.sum()  # [discount]
    samples = (weights @ hits) / (weights @ rounds)[:, None]  # [resample, discount]
    low, high = percentile_bounds(samples)

    # Several discounts may have the highest share. The interval begins at the lower bound of the
    # smallest of them, and ends at the upper bound of the largest.
    smallest, largest = _find_best_discounts(curve[None])
    smallest_samples, largest_samples = _find_best_discounts(samples)
    lower_end, _ = percentile_bounds(smallest_samples)
    _, upper_end = percentile_bounds(largest_samples)
    best = {
        "best": float((smallest[0] + largest[0]) / 2),
        "best_low": float(lower_end),
        "best_high": float(upper_end),
    }
    numbers: dict[tuple[Any, ...], Interval] = {}
    for i, gamma in enumerate(_GAMMAS):
        numbers[gamma,] = Interval(float(curve[i]), float(low[i]), float(high[i]))
    settings = provenance(table=table, n_episodes=len(hits), bootstrap_seed=seed)
    return Scores(("gamma",), numbers, settings, dict.fromkeys(numbers, best))


def _count_greedy_rounds(
    choices: Sequence[np.ndarray], batches: Sequence[MDPEpisodes], gamma: float, table: str
) -> NDArray[np.float64]:
    """Return the number of rounds in each episode in which the choice is greedy for Q-tables that
    are learned with a discount, ``[episode]``. Ties are broken at random, so it is an expected
    number.

    Args:
        choices: actions ``[episode, round]``, one array per batch.
        batches: the episodes.
        gamma: the discount.
        table: the Q-table to use, "after" or "before" the round's update.
    """
    per_batch = []
    for chosen, batch in zip(choices, batches, strict=True):
        greedy = _find_greedy(batch.relearn(gamma=gamma), table)  # [episode, round, action]
        # A choice among n greedy actions counts 1 / n.
        shares = bellman.take_entries(greedy, chosen) / greedy.sum(axis=-1)
        per_batch.append((shares * batch.counted).sum(axis=1))
    return np.concatenate(per_batch)


def _find_best_discounts(curves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and the largest of the discounts with the highest agreement, each
    ``[curve]``; they differ if discounts tie.

    Args:
        curves: agreement for each discount, ``[curve, discount]``.
    """
    discounts = np.array(_GAMMAS)  # in ascending order
    is_best = bellman.greedy_sets(curves)  # True at all maxima of a curve
    # argmax finds the first True; in the reversed order, this is the last.
    smallest = discounts[is_best.argmax(axis=1)]
    largest = discounts[::-1][is_best[:, ::-1].argmax(axis=1)]
    return smallest, largest
