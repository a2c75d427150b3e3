"""Prediction with expert advice: the episodes and their sampler.

Each round, label ``y_t ~ Bernoulli(1/2)``; expert i is right with probability ``q_i`` (or
``q_{t,i}`` where accuracies move), independently of the other experts conditional on the label, and
its advice is the label it believes (paper, section 3.1 and the appendix on LLM experiments).
Experts are permuted in every episode, so that an expert's index carries no information.

An episode of one regime is evidence about that regime only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from interp.core.task import BaseEpisodes, episode_array, freeze, length_of
from interp.support.checks import checked, integer, refuse_beyond_machine
from interp.support.errors import InputError, require
from interp.tasks.experts.regimes import ExpertRegime, get_regime

if TYPE_CHECKING:
    import pandas as pd

    from interp.tasks.trials import TrialTable

# One random stream per stage: what one stage draws never moves another.
_LABELS, _ACCURACIES, _CORRECT, _PERMUTATION, _MOTION, _SHARED = range(6)
_PEAK_BYTES = 30.0
"""The most that is held at once for each round and expert while episodes are drawn, as measured."""


@dataclass(frozen=True, eq=False, repr=False)
class ExpertEpisodes(BaseEpisodes):
    """A batch of episodes of prediction with expert advice.

    Arrays of any kind with valid values are accepted; they are stored as int64 and float64.

    Attributes:
        advice: each expert's prediction, 0 or 1, ``[episode, round, expert]``.
        labels: the truth, 0 or 1, ``[episode, round]``.
        accuracies: probability of being right, ``[episode, expert]``, or ``[episode, round,
            expert]`` where it moves. None where they are not known, as in recorded data; only what
            compares with them needs them.
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
        n_episodes, n_rounds, n_experts = advice.shape
        wanted = (n_episodes, n_rounds)
        require(
            labels.shape == wanted,
            f"labels have shape {labels.shape} but advice {advice.shape} needs labels [episode, round] = {wanted}",
        )
        accuracies = self.accuracies
        if accuracies is not None:
            moves = np.ndim(accuracies) == 3
            axes = "episode, round, expert" if moves else "episode, expert"
            accuracies = episode_array("accuracies", accuracies, axes, 0, 1)
            fitting = advice.shape if moves else (n_episodes, n_experts)
            require(
                accuracies.shape == fitting,
                f"accuracies have shape {accuracies.shape} but advice {advice.shape} needs "
                f"[episode, expert] = {(n_episodes, n_experts)} or [episode, round, expert] = {advice.shape}",
            )
        freeze(self, advice=advice, labels=labels, accuracies=accuracies)
        super().__post_init__()

    n_rounds = length_of("advice", 1, "Rounds of the longest episode.")
    n_experts = length_of("advice", 2, "How many experts give advice.")

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whether the advice was right, Bool[episode, round, expert]."""
        return self.advice == self.labels[..., None]

    @property
    def accuracies_by_round(self) -> NDArray[np.float64]:
        """Float[episode, round, expert], constant over rounds where accuracies do not move."""
        known = self.known_accuracies
        by_round = known if known.ndim == 3 else known[:, None]
        return np.broadcast_to(by_round, self.advice.shape)

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

    Args:
        n_episodes, n_rounds, n_experts: sizes.
        regime: how accuracies are drawn: a key of ``REGIMES``, or a record.
        seed: of all draws.

    >>> episodes = sample(n_episodes=2, n_rounds=3, n_experts=4, seed=0)
    >>> episodes.advice.shape, episodes.labels.shape, episodes.accuracies.shape
    ((2, 3, 4), (2, 3), (2, 4))
    """
    integer("n_episodes", n_episodes, 1)
    integer("n_rounds", n_rounds, 1)
    integer("n_experts", n_experts, 1)
    shape = (n_episodes, n_rounds, n_experts)
    refuse_beyond_machine(
        f"{n_episodes} episodes of {n_rounds} rounds with {n_experts} experts",
        _PEAK_BYTES * math.prod(shape),
    )
    record = get_regime(regime)
    labels = _stream(seed, _LABELS).integers(0, 2, size=(n_episodes, n_rounds))
    accuracies = _draw_accuracies(record, shape, seed)
    by_round = accuracies if accuracies.ndim == 3 else accuracies[:, None]
    is_right = _stream(seed, _CORRECT).random(shape) < by_round
    if record.correlation:
        drawn, luck = _stream(seed, _SHARED).random((2, n_episodes, n_rounds))
        are_right = luck < by_round.mean(axis=-1)
        is_shared = drawn < record.correlation
        is_right = np.where(is_shared[..., None], are_right[..., None], is_right)
    advice = _advise(labels, is_right)
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
    rounds = code_rounds(table)
    return ExpertEpisodes.of(
        advice=table.by_session(rounds.sessions, rounds.advice),
        labels=table.by_session(rounds.sessions, rounds.truth),
        participants=[who for who, _ in rounds.sessions],
        regime="recorded",
        reading=table.said(rounds.sessions, rounds.counted),
    )


class CodedRounds(NamedTuple):
    """The rounds of a table, with 0 and 1 for its two labels.

    Attributes:
        advice: a column for each expert.
        truth: the outcomes.
        labels: what 0 and 1 stand for.
        counted: whether each row has all advice and an outcome.
        sessions: the player and the rows of each session.
    """

    advice: pd.DataFrame
    truth: pd.Series
    labels: Sequence[str]
    counted: pd.Series
    sessions: Sequence[tuple[str, pd.Index]]


def code_rounds(table: TrialTable) -> CodedRounds:
    """Return the rounds of a table whose advice and outcomes have two labels together."""
    frames = [table.texts("advice"), table.texts("outcome")]
    (advice, outcome), labels = table.code("label", frames)
    require(
        len(labels) == 2,
        f"advice and outcome in {table.table.file} must have two labels together, got {', '.join(labels)}; "
        "name their columns with advice= and outcome=",
    )
    truth = outcome.iloc[:, 0]
    counted = advice.notna().all(axis=1) & truth.notna()
    sessions = table.played(table.sessions(), counted, "advice and outcome")
    return CodedRounds(advice, truth, labels, counted=counted, sessions=sessions)


def _stream(seed: int, stage: int) -> np.random.Generator:
    return np.random.default_rng([seed, stage])


def _advise(labels: NDArray[np.int64], is_right: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return what experts say who are right or wrong about the labels."""
    truth = labels[..., None]
    return np.where(is_right, truth, 1 - truth)


def _draw_accuracies(
    record: ExpertRegime, shape: tuple[int, int, int], seed: int
) -> NDArray[np.float64]:
    """Draw the accuracies of a regime, ``[episode, expert]``, or ``[episode, round, expert]`` where
    they move.

    Args:
        record: the regime.
        shape: numbers of episodes, rounds and experts.
        seed: seed of the draws.
    """
    n_episodes, n_rounds, n_experts = shape
    low, high = np.array(record.slots(n_experts)).T
    in_slots = low + (high - low) * _stream(seed, _ACCURACIES).random((n_episodes, n_experts))
    start = _stream(seed, _PERMUTATION).permuted(in_slots, axis=-1)
    motion = _stream(seed, _MOTION)
    if record.drift_std is not None:
        path = [start]
        for step in motion.normal(0, record.drift_std, size=(n_rounds - 1, *start.shape)):
            accuracies = path[-1] + step
            path.append(np.clip(accuracies, *record.drift_bounds))
        return np.stack(path, axis=1)
    if record.switch_every is None:
        return start
    # Every so many rounds accuracies rotate by a random non-zero shift: the best expert always changes.
    segment = np.arange(n_rounds) // record.switch_every
    shifts = motion.integers(1, n_experts, size=(n_episodes, segment[-1] + 1))
    shifts[:, 0] = 0
    total_shift = shifts.cumsum(axis=1)[:, segment]
    source = (np.arange(n_experts) - total_shift[..., None]) % n_experts
    return np.take_along_axis(np.broadcast_to(start[:, None], shape), source, axis=-1)


def battery(
    n_episodes: int, n_rounds: int, *, n_experts: int, seed: int
) -> dict[str, ExpertEpisodes]:
    """Sample episodes on which algorithms predict differently, by the name of each set.

        uniform, wide   accuracies U[.3, .9] and U[0, 1]: the prior
        copied          some experts repeat the first one: log-odds count them twice
        turncoat        one expert is right for half of the rounds, then random: how long it counts
        graded          accuracies evenly from .05 to .95: how much more a better record counts

    Of these sets the shipped models were trained only on "uniform" and "wide".

    Args:
        n_episodes: of each set.
        n_rounds, n_experts: sizes.
        seed: seed of the draws.
    """
    uniform = sample(n_episodes, n_rounds, n_experts, "uniform", seed)
    turncoat = np.full((n_episodes, n_rounds, n_experts), 0.5)
    turncoat[:, : n_rounds // 2, 0] = 1.0
    graded = np.broadcast_to(np.linspace(0.05, 0.95, n_experts), turncoat.shape)
    numbers = np.arange(n_experts)
    source = np.where(numbers < (n_experts + 1) // 2, 0, numbers)
    copied = ExpertEpisodes(
        uniform.advice[..., source],
        uniform.labels,
        uniform.known_accuracies[..., source],
        "copied",
        uniform.seed,
    )
    return {
        "uniform": uniform,
        "wide": sample(n_episodes, n_rounds, n_experts, "wide", seed),
        "copied": copied,
        "turncoat": _draw_with("turncoat", turncoat, seed),
        "graded": _draw_with("graded", graded, seed),
    }


def _draw_with(name: str, accuracies: NDArray[np.float64], seed: int) -> ExpertEpisodes:
    """Draw episodes of experts with known accuracies, in random order.

    Args:
        name: of the regime.
        accuracies: ``[episode, round, expert]``.
        seed: seed of the draws.
    """
    rng = np.random.default_rng([seed, len(name)])
    n_episodes, n_rounds, n_experts = accuracies.shape
    order = rng.permuted(np.tile(np.arange(n_experts), (n_episodes, 1)), axis=1)
    in_order = np.take_along_axis(accuracies, order[:, None], -1)
    labels = rng.integers(0, 2, (n_episodes, n_rounds))
    is_right = rng.random(accuracies.shape) < in_order
    return ExpertEpisodes(_advise(labels, is_right), labels, in_order, name, seed)
