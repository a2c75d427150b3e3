r"""Does a model of Q-learning agree with the table, and does it bootstrap?

Agreement with ``argmax_a Q(s_{t+1}, a)`` is measured on several regimes by ``interp.tasks.qlearning.agreement``. It
sets beside every number the table that never bootstraps (gamma = 0), and separates the steps where the tables disagree.
Three more predictors are controls here: *repeat last* (the action just taken), *chance* (a uniform draw), and the model
itself with its latents *cut* (the initial ones in every round): what it knows without memory.

Where a round holds the model's own choice (a*), ``commit`` says whose was fed, and every row carries it: "own" is what
the model does alone; "target" feeds the table's choice, which leaks the answer into the state.

Regimes are evaluated over all sizes that the model serves, in equal shares, with lengths spread evenly over 10 to 50
rounds (paper: uniform in these ranges). NOT evidence of: how the choice is made (``interp.interventions``), or what the
state holds (:mod:`interp.tasks.qlearning.evaluation.tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd

from interp.checks import checked
from interp.display import Tabled
from interp.errors import InputError, require
from interp.evaluation.controls import cut
from interp.evaluation.lookup import lookup
from interp.evaluation.record import MODEL
from interp.model.rollout import rollout
from interp.model.run import Rollout
from interp.model.transformer import HookedLatentTransformer
from interp.provenance import provenance
from interp.tasks.qlearning import sampling
from interp.tasks.qlearning.agreement import AgreementResult, agreement
from interp.tasks.qlearning.layout import QLearningRound
from interp.tasks.qlearning.sampling import EVALUATION, SHIFTS, MDPEpisodes

EVALUATED = tuple(dict.fromkeys(("grid", *EVALUATION, *SHIFTS, "chain", "ladder")))
CONTROLS = ("cut", "repeat_last", "chance")
NAMES = {"cut": "latents cut", "repeat_last": "repeat the last action", "chance": "uniform choice"}


@dataclass(frozen=True, eq=False)
class QLearningScores(Tabled):
    """Agreement of a model and of its controls with tabular Q-learning.

    Attributes:
        results: (regime, predictor key) -> :class:`~interp.tasks.qlearning.agreement.AgreementResult`.
        settings: model, digest, commit, table, sizes, seed, versions.
    """

    results: dict[tuple[str, str], AgreementResult]
    settings: dict[str, Any]

    def get(self, regime: str, key: str = MODEL) -> AgreementResult:
        """One result.

        Raises:
            InputError: no such regime or predictor here.
        """
        return lookup(self.results, regime, key)

    def to_frame(self) -> pd.DataFrame:
        """One row per regime, predictor, quantity and phase, with the commit mode."""
        frames = [
            result.to_frame().assign(
                regime=regime,
                key=key,
                predictor=self.settings["model"] if key == MODEL else NAMES[key],
                commit=self.settings["commit"] if key in (MODEL, "cut") else "",
            )
            for (regime, key), result in self.results.items()
        ]
        return pd.concat(frames, ignore_index=True)


def bounds(model: HookedLatentTransformer) -> tuple[tuple[int, int], tuple[int, int]]:
    """Smallest and largest number of states, and of actions, that a model serves.

    Raises:
        InputError: a model of another task.
    """
    layout = model.layout
    if not isinstance(layout, QLearningRound):
        raise InputError(f"{model.config.name!r} is a model of {layout.task!r}, not of Q-learning")
    states = layout.n_states_range or (layout.n_states, layout.n_states)
    actions = layout.n_actions_range or (layout.n_actions, layout.n_actions)
    return states, actions


def sizes(model: HookedLatentTransformer) -> list[tuple[int, int]]:
    """Every (n_states, n_actions) that a model serves and that holds a choice."""
    (low_s, high_s), (low_a, high_a) = bounds(model)
    return [(s, a) for s, a in product(range(low_s, high_s + 1), range(low_a, high_a + 1)) if s > 1 and a > 1]


@checked
def sample(
    model: HookedLatentTransformer,
    regime: str = "grid",
    n_episodes: int = 256,
    n_rounds: tuple[int, int] = (10, 50),
    seed: int = 1,
) -> list[MDPEpisodes]:
    """Fresh episodes over all sizes that a model serves, one batch per size, lengths spread evenly over a range.

    Raises:
        InputError: a model of another task, an unknown regime, an empty range.
    """
    low, high = n_rounds
    require(1 <= low <= high, f"n_rounds must be a range (low, high) with 1 <= low <= high, got {n_rounds}")
    chosen = sizes(model)
    rng = np.random.default_rng([seed, 0])
    lengths = rng.permutation(np.linspace(low, high, len(chosen)).round().astype(int))
    seeds = rng.integers(2**31, size=len(chosen))
    each = -(-n_episodes // len(chosen))
    return [
        sampling.sample(each, int(length), s, a, regime=regime, seed=int(stream))
        for (s, a), length, stream in zip(chosen, lengths, seeds, strict=True)
    ]


def reference_table(model: HookedLatentTransformer) -> Literal["after", "before"]:
    """The table to compare with: a handwired model chooses before it updates; a learned one was taught "after"."""
    return "before" if len(model.state_map) else "after"


@checked
def evaluate(
    model: HookedLatentTransformer,
    regimes: Sequence[str] = EVALUATED,
    *,
    n_episodes: int = 256,
    n_rounds: tuple[int, int] = (10, 50),
    commit: str = "own",
    seed: int = 1,
    done: Callable[[int], None] = lambda steps: None,
) -> QLearningScores:
    """Agreement of a model and of three controls with tabular Q-learning, regime by regime.

    Args:
        regimes: keys of ``interp.tasks.mdp.REGIMES``.
        n_episodes: per regime, over all sizes.
        commit: whose a* is fed, "own" or "target".
        done: called with 1 after each regime.

    Raises:
        InputError: a model of another task, an unknown regime or commit mode.
    """
    require(len(regimes) > 0, "no regime to evaluate on; give at least one")
    results, table = {}, reference_table(model)
    for regime in regimes:
        batches = sample(model, regime, n_episodes, n_rounds, seed)
        for key, choices in _predictions(model, batches, commit, seed).items():
            results[regime, key] = agreement(choices, batches, table=table, seed=seed)
        done(1)
    settings = provenance(
        model=model.config.name, digest=model.digest(), commit=commit, table=table, n_episodes=n_episodes,
        n_rounds=list(n_rounds), sizes=sizes(model), seed=seed,
    )  # fmt: skip
    return QLearningScores(results, settings)


def _predictions(
    model: HookedLatentTransformer, batches: list[MDPEpisodes], commit: str, seed: int
) -> dict[str, list[np.ndarray]]:
    rng = np.random.default_rng([seed, 1])
    runs = [rollout(model, batch, commit=commit) for batch in batches]
    forgetful = [
        rollout(model, batch, commit=commit, fwd_hooks=[cut(model)], propagate=False, clean=run)
        for batch, run in zip(batches, runs, strict=True)
    ]
    return {
        MODEL: [policy(run) for run in runs],
        "cut": [policy(run) for run in forgetful],
        "repeat_last": [batch.actions for batch in batches],
        "chance": [rng.integers(batch.n_actions, size=batch.actions.shape) for batch in batches],
    }


def policy(run: Rollout) -> np.ndarray:
    """A rollout's action probabilities, ``[episode, round, action]``, in float64."""
    return run.predictions.double().numpy(force=True)
