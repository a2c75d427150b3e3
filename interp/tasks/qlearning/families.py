"""The families of learners that could explain a policy, and where a fit looks for their parameters.

Each is asked with every way to act by its table (``rivals.acting``): a model that was taught a distribution over tied
actions says something smooth, and should be blamed for what it learned, not for that. Q-learning's discount starts at
.2, since one of 0 is a family of its own. The guess that is even over actions is the one without a memory.

What a round makes of a decoded table is asked of fewer, without a way to act (:func:`updates`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from interp.algorithm import Algorithm, Family, Searched
from interp.tasks.qlearning import algorithms, rivals

ALPHAS, GAMMAS = (0.03, 0.1, 0.3, 1.0), (0.2, 0.5, 0.7, 0.9, 0.97)
TEMPERATURES = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)
SOFTNESS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Temperatures of the soft maximum, in units of reward."""
COUNTS = (0.0, 0.3, 1.0, 3.0, 10.0)
_CHOICES = (0.0, 1.0)


def _acts(temperatures: tuple[float, ...] = TEMPERATURES) -> tuple[Searched, ...]:
    return (
        Searched("after", _CHOICES, kind="choice", enters=("acting_values",)),
        Searched("shared_ties", _CHOICES, kind="choice", enters=("policy",)),
        Searched("temperature", temperatures, enters=("policy",)),
    )


def _acting(learner: Callable[..., Algorithm], temperature: float, shared_ties: float, after: float,
            **parameters: float) -> Algorithm:  # fmt: skip
    return rivals.acting(learner(**parameters), temperature, bool(shared_ties), bool(after))


def _family(key: str, name: str, learner: Callable[..., Algorithm], *searched: Searched,
            temperatures: tuple[float, ...] = TEMPERATURES) -> Family:  # fmt: skip
    return Family(key, name, partial(_acting, learner), (*searched, *_acts(temperatures)))


def families() -> tuple[Family, ...]:
    """What a model of Q-learning is compared with."""
    alpha, gamma = Searched("alpha", ALPHAS), Searched("gamma", GAMMAS)
    return (
        _family("q_learning", "tabular Q-learning", algorithms.q_learning, alpha, gamma),
        _family("no_bootstrap", "Q-learning without bootstrapping", algorithms.no_bootstrap, alpha),
        _family(
            "mean_bootstrap", "Q-learning with the mean in place of the maximum", rivals.mean_bootstrap, alpha, gamma
        ),
        _family("sarsa", "SARSA, on-policy", rivals.sarsa, alpha, gamma),
        _family("mean_reward", "mean reward of every pair", rivals.mean_reward),
        _family(
            "visit_counts",
            "counts of visits",
            rivals.visit_counts,
            Searched("sign", (-1.0, 1.0), kind="choice"),
            temperatures=COUNTS,
        ),
    )


def updates() -> tuple[Family, ...]:
    """What a round could make of a table: which rate and discount, and the maximum, a soft one or the mean."""
    alpha, gamma = Searched("alpha", ALPHAS), Searched("gamma", (0.0, *GAMMAS, 0.995))
    soft = Searched("temperature", SOFTNESS)
    return (
        Family("q_learning", "the maximum", algorithms.q_learning, (alpha, gamma)),
        Family("soft_bootstrap", "a soft maximum", rivals.soft_bootstrap, (alpha, gamma, soft)),
        Family("mean_bootstrap", "the mean", rivals.mean_bootstrap, (alpha, gamma)),
        Family("no_bootstrap", "no next value", algorithms.no_bootstrap, (alpha,)),
    )
