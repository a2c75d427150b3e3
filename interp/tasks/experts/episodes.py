"""Episodes of prediction with expert advice, and their sampler.

In each round t the label is ``y_t ~ Bernoulli(1/2)``. Expert i advises the right label with
probability ``q_i``, independently of the label and of the other experts; the probability is
``q_{t,i}`` if accuracies change over rounds (paper, section 3.1 and the appendix on LLM
experiments). Experts are permuted in every episode, so that an expert's index has no meaning.

Results on episodes of one regime are evidence about that regime only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from interp.core.task import BaseEpisodes, episode_array, length_of, set_frozen_fields
from interp.support.checks import array_of, checked, integer, refuse_beyond_machine
from interp.support.errors import InputError, require
from interp.tasks.draws import draw_rotations, draw_walk
from interp.tasks.experts.regimes import ExpertRegime, get_regime

if TYPE_CHECKING:
    import pandas as pd

    from interp.tasks.trials import TrialTable

# Each stage has its own random stream, so that changes in one stage do not affect the others.
_LABELS, _ACCURACIES, _CORRECT, _PERMUTATION, _MOTION, _SHARED = range(6)
_PEAK_BYTES = 30.0
"""Measured peak memory while sampling, in bytes per round and expert."""


@dataclass(frozen=True, eq=False, repr=False)
class ExpertEpisodes(BaseEpisodes):
    """A batch of episodes of prediction with expert advice.

    Arrays of any numeric dtype are accepted, and stored as int64 (advice and labels) and float64
    (accuracies).

    Attributes:
        advice: the label that each expert advises, 0 or 1, ``[episode, round, expert]``.
        labels: the true label, 0 or 1, ``[episode, round]``.
        accuracies: each expert's probability of being right, ``[episode, expert]``, or
            ``[episode, round, expert]`` if accuracies change over rounds. None if unknown, as in
            recorded data.
        regime: name of the regime; "custom" for episodes that the user made.
        seed: seed of the sampler; None for episodes that were not sampled.
        params: the regime's parameters by name, as values for JSON.
        numbers: number of each episode, ``[episode]``, by which random choices of predictors are
            drawn. By default 0, 1, ...; selected episodes keep theirs, and so the same choices.
    """

    task: ClassVar[str] = "experts"
    round_arrays: ClassVar[tuple[str, ...]] = ("advice", "labels")

    advice: NDArray[Any]
    labels: NDArray[Any]
    accuracies: NDArray[Any] | None = None
    regime: str = "custom"
    seed: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    numbers: Any = None

    def __post_init__(self) -> None:
        """Check the fields, and store advice, labels and accuracies as arrays."""
        advice = episode_array(
            "advice", self.advice, "episode, round, expert", low=0, high=1, whole=True
        )
        labels = episode_array("labels", self.labels, "episode, round", low=0, high=1, whole=True)
        advice_shape = advice.shape
        require(advice.size > 0, f"advice must be a non-empty array, got shape {advice_shape}")
        n_episodes, n_rounds, n_experts = advice_shape
        expected = (n_episodes, n_rounds)
        require(
            labels.shape == expected,
            f"labels have shape {labels.shape} but advice {advice_shape} needs labels [episode, round] = {expected}",
        )
        accuracies = self.accuracies
        if accuracies is not None:
            change_over_rounds = array_of("accuracies", accuracies).ndim == 3
            axes = "episode, round, expert" if change_over_rounds else "episode, expert"
            accuracies = episode_array("accuracies", accuracies, axes, low=0, high=1)
            fitting_shape = advice_shape if change_over_rounds else (n_episodes, n_experts)
            require(
                accuracies.shape == fitting_shape,
                f"accuracies have shape {accuracies.shape} but advice {advice_shape} needs "
                f"[episode, expert] = {(n_episodes, n_experts)} or [episode, round, expert] = {advice_shape}",
            )
        numbers = np.arange(n_episodes) if self.numbers is None else self.numbers
        numbers = episode_array("numbers", numbers, "episode", low=0, whole=True)
        require(
            len(numbers) == n_episodes,
            f"numbers must be one for each of {n_episodes} episodes, got {len(numbers)}",
        )
        set_frozen_fields(
            self, advice=advice, labels=labels, accuracies=accuracies, numbers=numbers
        )
        super().__post_init__()

    @property
    def arrays_by_round(self) -> tuple[str, ...]:
        """Names of the arrays ``[episode, round, ...]``; of accuracies only if they change over
        rounds.
        """
        change_over_rounds = np.ndim(self.accuracies) == 3  # type: ignore[arg-type]  # None has 0 axes
        return (*self.round_arrays, "accuracies") if change_over_rounds else self.round_arrays

    n_rounds = length_of("advice", 1, "Rounds of the longest episode.")
    n_experts = length_of("advice", 2, "How many experts give advice.")

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Bool[episode, round, expert], True where the advice was right."""
        return self.advice == self.labels[..., None]

    @property
    def accuracies_by_round(self) -> NDArray[np.float64]:
        """Accuracies of the experts in every round, Float[episode, round, expert]; the same in all
        rounds if they do not change.
        """
        known = self.known_accuracies
        by_round = known if known.ndim == 3 else known[:, None]
        return np.broadcast_to(by_round, self.advice.shape)

    @property
    def known_accuracies(self) -> NDArray[np.float64]:
        """The experts' accuracies (:attr:`accuracies`), for analyses that need them. Reading this
        property raises InputError if the accuracies are unknown.
        """
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
    """Sample episodes with random labels and experts. The same arguments always give the same
    arrays.

    Labels and accuracies have separate random streams, so episodes of two regimes with the same
    seed have the same labels.

    With another number of rounds, the first rounds differ, too. To compare the same episodes at
    several lengths, sample the longest, and shorten them with ``episodes.first(n_rounds)``.

    Args:
        n_episodes, n_rounds, n_experts: numbers of episodes, of rounds per episode, and of experts.
        regime: how accuracies are drawn: the name of a regime in ``REGIMES``, or an
            :class:`ExpertRegime`.
        seed: seed of all random draws.

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
    labels = _make_stream(seed, _LABELS).integers(0, 2, size=(n_episodes, n_rounds))
    accuracies = _draw_accuracies(record, shape, seed)
    by_round = accuracies if accuracies.ndim == 3 else accuracies[:, None]
    is_right = _make_stream(seed, _CORRECT).random(shape) < by_round  # [episode, round, expert]
    if record.correlation:
        # In some rounds all experts are right or wrong together; all arrays are [episode, round].
        sharing_draws, right_draws = _make_stream(seed, _SHARED).random((2, n_episodes, n_rounds))
        all_right = right_draws < by_round.mean(axis=-1)
        is_shared = sharing_draws < record.correlation
        is_right = np.where(is_shared[..., None], all_right[..., None], is_right)
    advice = _advise_by_truth(labels, is_right)
    return ExpertEpisodes(
        advice, labels, accuracies, regime=record.name, seed=seed, params=record.params
    )


@checked
def read(path: str | Path, **columns: Any) -> ExpertEpisodes:
    """Read recorded rounds of expert advice from a table with one row per round, and return them as
    episodes.

    The two labels that occur in advice and outcome become 0 and 1, in sorted order. Each session of
    a participant becomes one episode.

    Args:
        path: the file: CSV, or JSON lines; plain or compressed.
        columns: names of columns by role: ``participant``, ``session`` (a column, or a list of
            those that name a session together), ``order``, ``outcome`` (the true label), and
            ``advice``, a list with each expert's column (by default those called advice_1,
            expert_1, ...). Further options are ``missed``, ``lookalikes``, ``encoding`` and
            ``decimal``, as in :func:`interp.tasks.bandit.read`. For example,
            ``read("rounds.csv", outcome="weather", advice=["ann", "bob"])``.
    """
    from interp.tasks.trials import open_trials, split_options  # which needs pandas

    named, options = split_options(columns)
    table = open_trials(path, ("advice", "outcome"), named, options, lists=("advice", "session"))
    rounds = code_rounds(table)
    sessions = rounds.sessions  # pairs of a participant and the index of the session's rows
    return ExpertEpisodes.of(
        advice=table.split_by_session(sessions, rounds.advice),
        labels=table.split_by_session(sessions, rounds.truth),
        participants=[who for who, _ in sessions],
        regime="recorded",
        reading=table.make_report(sessions, rounds.counted),
    )


class CodedRounds(NamedTuple):
    """The rounds of a table with one row per round. The numbers 0 and 1 stand for the two labels in
    the table.

    Attributes:
        advice: data frame with one row per round and one column per expert: the label that the
            expert advises, 0 or 1; NaN if unknown.
        truth: the true label of each row, 0 or 1; NaN if unknown.
        labels: the two labels in the table, first the one that became 0.
        counted: one boolean per row, True if the true label and the advice of all experts are
            known.
        sessions: for each session, a pair: the participant, and the index of the session's rows in
            the data frame.
    """

    advice: pd.DataFrame
    truth: pd.Series
    labels: Sequence[str]
    counted: pd.Series
    sessions: Sequence[tuple[str, pd.Index]]


def code_rounds(table: TrialTable) -> CodedRounds:
    """Encode the labels in a table of rounds as 0 and 1, and return the rounds.

    Sessions without any complete row (true label and all advice known) are left out, with a
    warning.

    Args:
        table: table with the roles "advice" and "outcome" (the true label).

    Raises:
        InputError: the columns of both roles together do not have exactly two labels.
    """
    frames = [table.read_labels("advice"), table.read_labels("outcome")]
    (advice, outcome), labels = table.number_labels("label", frames)
    require(
        len(labels) == 2,
        f"advice and outcome in {table.file} must have two labels together, got {', '.join(labels)}; "
        "name their columns with advice= and outcome=",
    )
    truth = outcome.iloc[:, 0]
    counted = advice.notna().all(axis=1) & truth.notna()
    sessions = table.select_sessions(table.find_sessions(), counted, "advice and outcome")
    return CodedRounds(advice, truth, labels, counted=counted, sessions=sessions)


def _make_stream(seed: int, stage: int) -> np.random.Generator:
    return np.random.default_rng([seed, stage])


def _advise_by_truth(labels: NDArray[np.int64], is_right: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return what experts advise, ``[episode, round, expert]``: the true label or its opposite.

    Args:
        labels: the true labels, 0 or 1, ``[episode, round]``.
        is_right: True where an expert is right, ``[episode, round, expert]``.
    """
    truth = labels[..., None]
    return np.where(is_right, truth, 1 - truth)


def _draw_accuracies(
    record: ExpertRegime, shape: tuple[int, int, int], seed: int
) -> NDArray[np.float64]:
    """Sample the experts' accuracies in a regime, ``[episode, expert]``, or
    ``[episode, round, expert]`` if accuracies change over rounds.

    Args:
        record: the regime.
        shape: numbers of episodes, rounds and experts.
        seed: seed of the random draws.
    """
    n_episodes, n_rounds, n_experts = shape
    low, high = np.array(record.list_intervals(n_experts)).T  # of each interval
    uniforms = _make_stream(seed, _ACCURACIES).random((n_episodes, n_experts))
    by_interval = low + (high - low) * uniforms
    # Which expert has which interval is random.
    start = _make_stream(seed, _PERMUTATION).permuted(by_interval, axis=-1)
    motion = _make_stream(seed, _MOTION)
    if record.drift_std is not None:
        return draw_walk(motion, start, n_rounds, step=record.drift_std, bounds=record.drift_bounds)
    if record.switch_every is None:
        return start
    # Accuracies rotate among the experts, so that the best expert changes.
    rotated_by = draw_rotations(motion, n_episodes, n_rounds, n_experts, record.switch_every)
    # The expert that had each expert's accuracy at first, [episode, round, expert].
    source = (np.arange(n_experts) - rotated_by[..., None]) % n_experts
    return np.take_along_axis(np.broadcast_to(start[:, None], shape), source, axis=-1)


def battery(
    n_episodes: int, n_rounds: int, *, n_experts: int, seed: int
) -> dict[str, ExpertEpisodes]:
    """Sample five sets of episodes. On these, different algorithms predict differently.

    - "uniform" and "wide": accuracies from U[.3, .9] and from U[0, 1]. They show the prior that an
      algorithm assumes.
    - "copied": half of the experts give the same advice. The set shows whether an algorithm counts
      this advice several times.
    - "turncoat": one expert is always right in the first half of the rounds and guesses in the
      second half; the others always guess. The set shows whether an algorithm forgets.
    - "graded": accuracies evenly spaced from .05 to .95. The set shows how much weight an algorithm
      gives to experts who were right more often.

    Of these, the shipped models were trained only on "uniform" and "wide".

    Args:
        n_episodes: number of episodes of each set.
        n_rounds, n_experts: numbers of rounds and of experts of each episode.
        seed: seed of the random draws.

    Returns:
        A mapping {name of the set: episodes}.
    """
    uniform = sample(n_episodes, n_rounds, n_experts, "uniform", seed)
    # Accuracies of the sets "turncoat" and "graded", [episode, round, expert].
    turncoat = np.full((n_episodes, n_rounds, n_experts), 0.5)
    turncoat[:, : n_rounds // 2, 0] = 1.0
    graded = np.broadcast_to(np.linspace(0.05, 0.95, n_experts), turncoat.shape)
    experts = np.arange(n_experts)
    # The expert whose advice each expert gives: the first half copies expert 0.
    source = np.where(experts < (n_experts + 1) // 2, 0, experts)
    copied = ExpertEpisodes(
        uniform.advice[..., source],
        uniform.labels,
        uniform.known_accuracies[..., source],
        regime="copied",
        seed=uniform.seed,
    )
    return {
        "uniform": uniform,
        "wide": sample(n_episodes, n_rounds, n_experts, "wide", seed),
        "copied": copied,
        "turncoat": _draw_permuted("turncoat", turncoat, seed),
        "graded": _draw_permuted("graded", graded, seed),
    }


def _draw_permuted(name: str, accuracies: NDArray[np.float64], seed: int) -> ExpertEpisodes:
    """Sample episodes of experts with known accuracies, and permute the experts of each episode.

    Args:
        name: name of the regime.
        accuracies: probability that an expert is right, ``[episode, round, expert]``.
        seed: seed of the random draws.
    """
    # The names of the battery's two sets have different lengths, so that their draws differ.
    rng = np.random.default_rng([seed, len(name)])
    n_episodes, n_rounds, n_experts = accuracies.shape
    order = rng.permuted(np.tile(np.arange(n_experts), (n_episodes, 1)), axis=1)
    permuted = np.take_along_axis(accuracies, order[:, None], -1)
    labels = rng.integers(0, 2, (n_episodes, n_rounds))
    is_right = rng.random(accuracies.shape) < permuted
    advice = _advise_by_truth(labels, is_right)
    return ExpertEpisodes(advice, labels, permuted, regime=name, seed=seed)
