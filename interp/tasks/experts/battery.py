"""Episodes on which algorithms of expert advice predict differently: what tells them apart.

    uniform, wide   accuracies U[.3, .9] and U[0, 1]: the prior
    copied          some experts repeat the first one: a sum of log-odds counts them twice, a share of weight does not
    turncoat        one expert is always right for half of the rounds, then a coin: how long a record is held against
    graded          accuracies evenly spaced from .05 to .95: how much more a better record counts

Nothing here is what a model was trained on but "uniform" and "wide", where the shipped ones were.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from interp.checks import checked
from interp.tasks.experts.episodes import ExpertEpisodes, sample


@checked
def battery(n_episodes: int, n_rounds: int, *, n_experts: int, seed: int) -> dict[str, ExpertEpisodes]:
    """A batch of ``n_episodes`` by the name of each set; other seeds draw other episodes.

    >>> list(battery(2, 10, n_experts=4, seed=0))
    ['uniform', 'wide', 'copied', 'turncoat', 'graded']

    Raises:
        InputError: a size below 1, or a negative seed.
    """
    uniform = sample(n_episodes, n_rounds, n_experts, "uniform", seed)
    return {
        "uniform": uniform,
        "wide": sample(n_episodes, n_rounds, n_experts, "wide", seed),
        "copied": _copied(uniform),
        "turncoat": _drawn("turncoat", _turncoat(n_episodes, n_rounds, n_experts), seed),
        "graded": _drawn("graded", _graded(n_episodes, n_rounds, n_experts), seed),
    }


def _copied(episodes: ExpertEpisodes) -> ExpertEpisodes:
    """Every expert of the first half but the first repeats the first one."""
    n_experts = episodes.n_experts
    source = np.where(np.arange(n_experts) < (n_experts + 1) // 2, 0, np.arange(n_experts))
    return ExpertEpisodes(
        episodes.advice[..., source], episodes.labels, episodes.known_accuracies[..., source], "copied", episodes.seed
    )


def _turncoat(n_episodes: int, n_rounds: int, n_experts: int) -> NDArray[np.float64]:
    accuracies = np.full((n_episodes, n_rounds, n_experts), 0.5)
    accuracies[:, : n_rounds // 2, 0] = 1.0
    return accuracies


def _graded(n_episodes: int, n_rounds: int, n_experts: int) -> NDArray[np.float64]:
    return np.broadcast_to(np.linspace(0.05, 0.95, n_experts), (n_episodes, n_rounds, n_experts))


def _drawn(name: str, accuracies: NDArray[np.float64], seed: int) -> ExpertEpisodes:
    """Episodes of experts with these accuracies ``[episode, round, expert]``, each expert at a place of its own."""
    rng = np.random.default_rng([seed, len(name)])
    n_episodes, n_rounds, n_experts = accuracies.shape
    order = rng.permuted(np.tile(np.arange(n_experts), (n_episodes, 1)), axis=1)
    moved = np.take_along_axis(accuracies, np.repeat(order[:, None], n_rounds, 1), -1)
    labels = rng.integers(0, 2, (n_episodes, n_rounds))
    right = rng.random(moved.shape) < moved
    return ExpertEpisodes(np.where(right, labels[..., None], 1 - labels[..., None]), labels, moved, name, seed)
