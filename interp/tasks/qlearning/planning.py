r"""Optimal policies of known MDPs, and what policies earn in expectation.

Discounted, by policy iteration (evaluate by a linear solve, improve, stop when no action is strictly better):

    V(s) = max_a r(s, a) + gamma sum_s' P(s' | s, a) V(s')

A fixed number of rounds, by backward induction, V_0 = 0:

    V_k(s) = max_a r(s, a) + sum_s' P(s' | s, a) V_{k-1}(s')        (k rounds to go, no discount)

Bernoulli rewards enter by their mean. Ties go to the lowest index. These are what a learner is compared with; none of
them is reachable by one who must first find out what the MDP is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from interp.checks import checked
from interp.errors import require
from interp.tasks.qlearning.bellman import TIE_TOLERANCE, check_rates, greedy, greedy_sets
from interp.tasks.qlearning.episodes import MDPs


@dataclass(frozen=True)
class DiscountedPlan:
    """The optimum of the discounted problem.

    Attributes:
        values: V, ``[mdp, state]``.
        action_values: Q, ``[mdp, state, action]``.
        policy: an optimal action per state, ``[mdp, state]``.
    """

    values: Float[np.ndarray, "mdp state"]
    action_values: Float[np.ndarray, "mdp state action"]
    policy: Int[np.ndarray, "mdp state"]


@dataclass(frozen=True)
class FinitePlan:
    """The optimum over a fixed number of rounds.

    Attributes:
        values: expected sum of rewards still to come, ``[mdp, round + 1, state]``; the last is 0.
        policy: an optimal action per round and state, ``[mdp, round, state]``.
    """

    values: Float[np.ndarray, "mdp steps state"]
    policy: Int[np.ndarray, "mdp round state"]


@checked
def discounted(mdps: MDPs, gamma: float = 0.9) -> DiscountedPlan:
    """Policy iteration on every MDP of the batch.

    Raises:
        InputError: gamma outside [0, 1).
    """
    check_rates(1.0, gamma)
    rows, at = np.arange(len(mdps))[:, None], np.arange(mdps.n_states)[None]
    policy = greedy(mdps.rewards)
    while True:
        dynamics, earned = mdps.transitions[rows, at, policy], mdps.rewards[rows, at, policy]
        values = np.linalg.solve(np.eye(mdps.n_states) - gamma * dynamics, earned[..., None])[..., 0]
        action_values = _lookahead(mdps, values, gamma)
        tolerance = TIE_TOLERANCE * (1 + np.abs(action_values).max(initial=0)) / (1 - gamma)
        kept = np.take_along_axis(action_values, policy[..., None], -1)[..., 0]
        better = action_values.max(-1) > kept + tolerance
        if not better.any():
            return DiscountedPlan(values, action_values, greedy_sets(action_values, tolerance).argmax(-1))
        policy = np.where(better, greedy(action_values), policy)


@checked
def finite_horizon(mdps: MDPs, n_rounds: int) -> FinitePlan:
    """Backward induction on every MDP of the batch.

    Raises:
        InputError: fewer than one round.
    """
    _check_rounds(n_rounds)
    values = np.zeros((len(mdps), n_rounds + 1, mdps.n_states))
    policy = np.zeros((len(mdps), n_rounds, mdps.n_states), np.int64)
    for t in reversed(range(n_rounds)):
        action_values = _lookahead(mdps, values[:, t + 1], 1.0)
        values[:, t] = action_values.max(-1)
        policy[:, t] = greedy_sets(action_values).argmax(-1)
    return FinitePlan(values, policy)


@checked
def random_values(mdps: MDPs, n_rounds: int) -> Float[np.ndarray, "mdp steps state"]:
    """Expected sum of rewards still to come under uniform actions, ``[mdp, round + 1, state]``.

    Raises:
        InputError: fewer than one round.
    """
    _check_rounds(n_rounds)
    values = np.zeros((len(mdps), n_rounds + 1, mdps.n_states))
    for t in reversed(range(n_rounds)):
        values[:, t] = _lookahead(mdps, values[:, t + 1], 1.0).mean(-1)
    return values


def _lookahead(
    mdps: MDPs, values: Float[np.ndarray, "mdp state"], gamma: float
) -> Float[np.ndarray, "mdp state action"]:
    return mdps.rewards + gamma * np.einsum("bsan,bn->bsa", mdps.transitions, values)


def _check_rounds(n_rounds: int) -> None:
    require(n_rounds >= 1, f"n_rounds must be at least 1, got {n_rounds}")
