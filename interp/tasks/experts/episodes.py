"""Prediction with expert advice: the episodes and their sampler.

Each round, label ``y_t ~ Bernoulli(1/2)``; expert i is right with probability ``q_i`` (or ``q_{t,i}`` where
accuracies move), independently of the other experts given the label, and its advice is the label it believes
(paper, section 3.1 and the appendix on LLM experiments). Which expert is which is permuted in every episode, so
that an expert's index says nothing.

An episode of one regime is evidence about that regime only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from interp.core.task import BaseEpisodes, episode_array, freeze, length_of
from interp.support.checks import checked, integer, refuse_beyond_machine
from interp.support.errors import InputError, require
from interp.tasks.experts.regimes import ExpertRegime, get_regime

# One random stream per stage: what one stage draws never moves another.
_LABELS, _ACCURACIES, _CORRECT, _PERMUTATION, _MOTION, _SHARED = range(6)


@dataclass(frozen=True, eq=False, repr=False)
class ExpertEpisodes(BaseEpisodes):
    """A batch of episodes of prediction with expert advice.

    Arrays of any kind that hold valid values are taken; they are kept as int64 and float64.

    Attributes:
        advice: each expert's prediction, 0 or 1, ``[episode, round, expert]``.
        labels: the truth, 0 or 1, ``[episode, round]``.
        accuracies: probability of being right, ``[episode, expert]``, or ``[episode, round, expert]`` where it moves.
            None where they are not known, as in recorded data; only what compares with them needs them.
        regime: its name; "custom", without a seed and parameters, when made by hand.
        params: the regime's parameters, JSON values.
    """

    task: ClassVar[str] = "experts"
    round_arrays: ClassVar[tuple[str, ...]] = ("advice", "labels")

    advice: NDArray[Any]
    labels: NDArray[Any]
    accuracies: NDArray[Any] | None = None
    regime: str = "custom"
    seed: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        advice = episode_array("advice", self.advice, "episode, round, expert", 0, 1, whole=True)
        labels = episode_array("labels", self.labels, "episode, round", 0, 1, whole=True)
        require(advice.size > 0, f"advice must be a non-empty array, got shape {advice.shape}")
        accuracies, (b, t, n) = self.accuracies, advice.shape
        if accuracies is not None:
            axes = "episode, round, expert" if np.ndim(accuracies) == 3 else "episode, expert"
            accuracies = episode_array("accuracies", accuracies, axes, 0, 1)
        require(
            labels.shape == (b, t),
            f"labels have shape {labels.shape} but advice {advice.shape} needs labels [episode, round] = {(b, t)}",
        )
        shape = None if accuracies is None else accuracies.shape
        require(
            shape in (None, (b, n), (b, t, n)),
            f"accuracies have shape {shape} but advice {advice.shape} needs "
            f"[episode, expert] = {(b, n)} or [episode, round, expert] = {(b, t, n)}",
        )
        freeze(self, advice=advice, labels=labels, accuracies=accuracies)
        super().__post_init__()

    n_rounds = length_of("advice", 1, "Rounds of the longest episode.")
    n_experts = length_of("advice", 2, "How many experts give advice.")

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Bool[episode, round, expert]: was the advice right?"""
        return self.advice == self.labels[..., None]

    @property
    def accuracies_by_round(self) -> NDArray[np.float64]:
        """Float[episode, round, expert], constant over rounds where accuracies do not move."""
        known = self.known_accuracies
        return known if known.ndim == 3 else np.broadcast_to(known[:, None], self.advice.shape)

    @property
    def known_accuracies(self) -> NDArray[np.float64]:
        """:attr:`accuracies`, for what cannot do without them."""
        if self.accuracies is None:
            raise InputError(
                "the accuracies of these experts are not known, and this compares with them; give "
                "ExpertEpisodes(advice, labels, accuracies)"
            )
        return self.accuracies


@checked
def sample(
    n_episodes: int,
    n_rounds: int,
    n_experts: int,
    regime: str | ExpertRegime = "uniform",
    seed: int = 0,
) -> ExpertEpisodes:
    """Draw episodes; the same arguments always give the same bytes.

    Labels, accuracies and luck come from separate streams of ``seed``: two regimes with one seed have the same labels.

    >>> episodes = sample(n_episodes=2, n_rounds=3, n_experts=4, seed=0)
    >>> episodes.advice.shape, episodes.labels.shape, episodes.accuracies.shape
    ((2, 3, 4), (2, 3), (2, 4))
    """
    for name, size in (
        ("n_episodes", n_episodes),
        ("n_rounds", n_rounds),
        ("n_experts", n_experts),
    ):
        integer(name, size, 1)
    refuse_beyond_machine(
        f"{n_episodes} episodes of {n_rounds} rounds with {n_experts} experts",
        24.0 * n_episodes * n_rounds * n_experts,
    )
    record = get_regime(regime)
    labels = _stream(seed, _LABELS).integers(0, 2, size=(n_episodes, n_rounds))
    accuracies = _accuracies(record, (n_episodes, n_rounds, n_experts), seed)
    by_round = accuracies if accuracies.ndim == 3 else accuracies[:, None]
    correct = _stream(seed, _CORRECT).random((n_episodes, n_rounds, n_experts)) < by_round
    if record.correlation:
        shared, shared_luck = _stream(seed, _SHARED).random((2, n_episodes, n_rounds))
        together = shared_luck < by_round.mean(axis=-1)
        correct = np.where((shared < record.correlation)[..., None], together[..., None], correct)
    advice = np.where(correct, labels[..., None], 1 - labels[..., None])
    return ExpertEpisodes(advice, labels, accuracies, record.name, seed, record.params)


@checked
def read(path: str | Path, **columns: Any) -> ExpertEpisodes:
    """Read recorded rounds from a table with a row a round, as :func:`interp.tasks.bandit.read` does.

    Columns are named by ``participant``, ``session``, ``order``, ``outcome`` (the truth) and ``advice``, a list of
    those of each expert, which by default are called advice_1, expert_1, ... The two labels that advice and outcome
    have together become 0 and 1, in sorted order. ``missed``, ``lookalikes``, ``encoding`` and
    ``decimal`` are as there.
    """
    from interp.tasks.trials import open_trials, split_options

    named, options = split_options(columns)
    table = open_trials(path, ("advice", "outcome"), named, options, lists=("advice", "session"))
    frames = [table.texts("advice"), table.texts("outcome")]
    (advice, outcome), labels = table.code("label", frames)
    require(
        len(labels) == 2,
        f"advice and outcome in {str(path)!r} have two labels together, got {', '.join(labels)}; "
        "name their columns with advice= and outcome=",
    )
    truth = outcome.iloc[:, 0]
    counted = advice.notna().all(axis=1) & truth.notna()
    sessions = table.played(table.sessions(), counted, "advice and outcome")
    return ExpertEpisodes.of(
        advice=table.by_session(sessions, advice),
        labels=table.by_session(sessions, truth),
        participants=[who for who, _ in sessions],
        regime="recorded",
        reading=table.said(sessions, counted),
    )


def _stream(seed: int, stage: int) -> np.random.Generator:
    return np.random.default_rng([seed, stage])


def _accuracies(
    record: ExpertRegime, shape: tuple[int, int, int], seed: int
) -> NDArray[np.float64]:
    n_episodes, n_rounds, n_experts = shape
    low, high = np.array(record.slots(n_experts)).T
    in_slots = low + (high - low) * _stream(seed, _ACCURACIES).random((n_episodes, n_experts))
    start = _stream(seed, _PERMUTATION).permuted(in_slots, axis=-1)
    if record.drift_std is not None:
        path = [start]
        for step in _stream(seed, _MOTION).normal(
            0, record.drift_std, size=(n_rounds - 1, *start.shape)
        ):
            path.append(np.clip(path[-1] + step, *record.drift_bounds))
        return np.stack(path, axis=1)
    if record.switch_every is None:
        return start
    # Every so many rounds accuracies rotate by a random non-zero shift: the best expert always changes.
    segment = np.arange(n_rounds) // record.switch_every
    steps = _stream(seed, _MOTION).integers(1, n_experts, size=(n_episodes, segment[-1] + 1))
    steps[:, 0] = 0
    source = (np.arange(n_experts) - steps.cumsum(axis=1)[:, segment][..., None]) % n_experts
    return np.take_along_axis(np.broadcast_to(start[:, None], source.shape), source, axis=-1)


def battery(
    n_episodes: int, n_rounds: int, *, n_experts: int, seed: int
) -> dict[str, ExpertEpisodes]:
    """Episodes on which algorithms predict differently, by the name of each set: what tells them apart.

        uniform, wide   accuracies U[.3, .9] and U[0, 1]: the prior
        copied          some experts repeat the first one: log-odds count them twice, a share of weight does not
        turncoat        one expert is always right for half of the rounds, then a coin: how long a record counts
        graded          accuracies evenly spaced from .05 to .95: how much more a better record counts

    Nothing here is what a model was trained on but "uniform" and "wide", where the shipped ones were.
    """
    uniform = sample(n_episodes, n_rounds, n_experts, "uniform", seed)
    turncoat = np.full((n_episodes, n_rounds, n_experts), 0.5)
    turncoat[:, : n_rounds // 2, 0] = 1.0
    graded = np.broadcast_to(np.linspace(0.05, 0.95, n_experts), turncoat.shape)
    whose = np.where(np.arange(n_experts) < (n_experts + 1) // 2, 0, np.arange(n_experts))
    copied = uniform.advice[..., whose], uniform.labels, uniform.known_accuracies[..., whose]
    return {
        "uniform": uniform,
        "wide": sample(n_episodes, n_rounds, n_experts, "wide", seed),
        "copied": ExpertEpisodes(*copied, "copied", uniform.seed),
        "turncoat": _drawn("turncoat", turncoat, seed),
        "graded": _drawn("graded", graded, seed),
    }


def _drawn(name: str, accuracies: NDArray[np.float64], seed: int) -> ExpertEpisodes:
    """Episodes of experts with these accuracies ``[episode, round, expert]``, each expert at a place of its own."""
    rng = np.random.default_rng([seed, len(name)])
    n_episodes, n_rounds, n_experts = accuracies.shape
    order = rng.permuted(np.tile(np.arange(n_experts), (n_episodes, 1)), axis=1)
    moved = np.take_along_axis(accuracies, np.repeat(order[:, None], n_rounds, 1), -1)
    labels = rng.integers(0, 2, (n_episodes, n_rounds))
    right = rng.random(moved.shape) < moved
    return ExpertEpisodes(
        np.where(right, labels[..., None], 1 - labels[..., None]), labels, moved, name, seed
    )
