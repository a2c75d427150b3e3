"""Posterior-predictive check: do a player's choices look like those of simulated players of a
fitted family?

A simulated player sees the recorded rounds and samples each choice from the family's prediction.
The mean and standard deviation of a statistic over simulated players are computed in closed form
(:func:`expected_mean`), so no player has to be simulated. There are four statistics: how often

* the likeliest outcome is chosen ("agreement");
* a long run of equal choices goes on ("long run goes on");
* a choice is repeated after a success ("win-stay");
* a choice is changed after a failure ("lose-shift").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from interp.choices.fitting import Array
from interp.choices.link import TIE_TOLERANCE, take_likeliest
from interp.results.measure import Result, join_words
from interp.support.checks import checked_result

_FAILURE_PROBABILITY = 0.01
"""Probability that a true player of the family fails the check in any statistic (Bonferroni)."""
_LONG_RUN = 3
"""Fewest equal choices in a row that make a long run."""
Mask = NDArray[np.bool_]


class Statistic(NamedTuple):
    """A statistic of the player's choices, compared with its distribution over simulated players.

    Attributes:
        observed: the player's value.
        expected: mean over simulated players.
        spread: standard deviation over simulated players, or the standard error of the player's
            value over participants if this is larger.
        n_choices: number of choices that the statistic averages over.
    """

    observed: float
    expected: float
    spread: float
    n_choices: int

    @property
    def z(self) -> float:
        """``(observed - expected) / spread``: the difference between the player's value and the
        mean of simulated players, in standard deviations.
        """
        difference = self.observed - self.expected
        if abs(difference) < TIE_TOLERANCE:
            return 0.0
        if self.spread == 0:
            return float(np.copysign(np.inf, difference))
        return difference / self.spread


@dataclass(frozen=True, repr=False)
@checked_result
class PredictiveCheck(Result):
    """Result of a posterior-predictive check: statistics of a player's choices, compared with those
    of simulated players.

    Attributes:
        statistics: name of a statistic -> the player's value, and its mean and standard deviation
            over simulated players.
    """

    statistics: Mapping[str, Statistic]

    @property
    def most(self) -> float:
        """The threshold of the check: a statistic fails if its absolute z-score is larger.

        The probability that a simulated player fails in at least one statistic is at most .01.
        """
        n_statistics = max(len(self.statistics), 1)
        by_tail = _FAILURE_PROBABILITY / 2 / n_statistics  # two tails of each statistic
        return -float(special.ndtri(by_tail))

    @property
    def failures(self) -> tuple[str, ...]:
        """The names of the statistics in which the player differs from simulated players by more
        than chance explains: those with an absolute z-score above :attr:`most`.
        """
        threshold = self.most
        scores = {name: abs(statistic.z) for name, statistic in self.statistics.items()}
        return tuple(name for name, score in scores.items() if score > threshold)

    @property
    def passes(self) -> bool:
        """True if no statistic of the player differs from that of simulated players by more than
        chance explains (:attr:`failures` is empty).
        """
        return not self.failures

    @property
    def sentence(self) -> str:
        """A sentence that names the statistics in which the player differs from simulated players."""
        failures = join_words(self.failures) or "no statistic"
        return f"The choices differ from those of simulated players in {failures}."

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per statistic.

        The columns are:

        * statistic: its name;
        * observed: the player's value;
        * expected and spread: mean and standard deviation over simulated players;
        * n_choices: number of choices that it averages over;
        * z: observed minus expected, in units of spread.
        """
        rows = [
            {"statistic": name, **statistic._asdict(), "z": statistic.z}
            for name, statistic in self.statistics.items()
        ]
        return pd.DataFrame(rows)


def check_predictions(
    q: Array,
    choices: NDArray[np.int64],
    known: Mask,
    successes: NDArray[Any] | None,
    participants: NDArray[np.int64] | None = None,
    offers: NDArray[np.int64] | None = None,
) -> PredictiveCheck:
    """Compare statistics of a player's choices with those of simulated players, who choose by the
    probabilities ``q``.

    Args:
        q: the fitted family's probability of each choice, ``[episode, round, outcome]``. With
            ``offers``, of each option that the round offered, ``[episode, round, slot]``.
        choices: index of the chosen outcome, or of its slot with ``offers``, ``[episode, round]``.
        known: True where a choice was made, ``[episode, round]``.
        successes: 1 where the choice was a success and 0 where it was a failure, NaN where its
            reward is unknown, ``[episode, round]``; None if all are unknown.
        participants: index of each episode's participant, to account for differences between
            participants; None for a single player.
        offers: index of the option in each slot (position in the list of offered options),
            ``[episode, round, slot]``; negative in empty slots. None if all options are offered.

    Returns:
        Up to four statistics, each a share of choices:

        * "agreement": choices of the likeliest outcome;
        * "long run goes on": repetitions, after at least three equal choices in a row;
        * "win-stay": repetitions, after a success;
        * "lose-shift": changes, after a failure.

        The last two need ``successes``. A statistic is left out if no choice counts for it.
    """
    all_options = np.arange(q.shape[-1]) if offers is None else offers
    options = np.broadcast_to(all_options, q.shape)  # option in each slot, [episode, round, slot]
    outcomes = np.take_along_axis(options, choices[..., None], -1)[..., 0]  # [episode, round]
    # 1 for the choice that would repeat the last one; 0 in the first round, which repeats nothing.
    repeats = np.zeros_like(q)
    repeats[:, 1:] = options[:, 1:] == outcomes[:, :-1, None]
    follows_choice = np.zeros_like(known)
    follows_choice[:, 1:] = known[:, 1:] & known[:, :-1]
    in_long_run = np.zeros_like(known)
    in_long_run[:, 1:] = run_lengths(outcomes, known)[:, :-1] >= _LONG_RUN
    # Name of a statistic -> a value for every possible choice, and the rounds over which the value
    # of the choice is averaged.
    averaged = {
        "agreement": (take_likeliest(q), known),
        "long run goes on": (repeats, follows_choice & in_long_run),
    }
    if successes is not None:
        last_success = np.full(known.shape, np.nan)
        last_success[:, 1:] = successes[:, :-1]
        averaged["win-stay"] = (repeats, follows_choice & (last_success == 1))
        averaged["lose-shift"] = (1 - repeats, follows_choice & (last_success == 0))
    statistics = {}
    for name, (values, use) in averaged.items():
        if use.any():
            statistics[name] = expected_mean(q, values, choices, use, participants)
    return PredictiveCheck(statistics)


def expected_mean(
    q: Array,
    values: Array,
    choices: NDArray[np.int64],
    use: Mask,
    participants: NDArray[np.int64] | None = None,
) -> Statistic:
    """Compare the mean of a quantity over a player's choices with its mean over simulated players,
    who choose by the probabilities ``q``.

    For example, let the quantity be 1 for the choice that repeats the last one, and 0 for any other
    choice. Its mean is the share of repetitions.

    Args:
        q: probability of each choice, ``[episode, round, outcome]``.
        values: the value of the quantity for each possible choice, in the same shape.
        choices: index of the choice made, ``[episode, round]``.
        use: True where a choice counts, ``[episode, round]``; at least one.
        participants: index of each episode's participant, ``[episode]``. The standard deviation is
            then at least the standard error of the player's mean over participants. None for a
            single player.

    Returns:
        The player's mean, and the mean and standard deviation over simulated players.
    """
    observed_values = np.take_along_axis(values, choices[..., None], -1)[..., 0]
    # Moments over simulated players in each round, [episode, round].
    means = (q * values).sum(-1)
    mean_squares = (q * np.square(values)).sum(-1)
    variances = np.maximum(mean_squares - np.square(means), 0)  # rounding may be below 0
    n_choices = int(use.sum())
    # Simulated choices are independent, since each sees the recorded rounds: variances add up.
    spread = float(np.sqrt(variances[use].sum())) / n_choices
    if participants is not None:
        differences = ((observed_values - means) * use).sum(1)  # [episode]
        by_participant = np.bincount(participants, differences)
        n_participants = len(by_participant)
        # Standard error of a sum of n independent terms: sqrt(n) times their standard deviation.
        error_of_total = by_participant.std(ddof=1) * np.sqrt(n_participants)
        spread = max(spread, float(error_of_total) / n_choices)
    observed = float(observed_values[use].mean())
    expected = float(means[use].mean())
    return Statistic(observed=observed, expected=expected, spread=spread, n_choices=n_choices)


def run_lengths(choices: NDArray[np.int64], known: Mask) -> NDArray[np.int64]:
    """Return the length of the run of equal choices that ends in each round, ``[episode, round]``;
    0 where no choice was made. A round without a choice ends a run.

    >>> run_lengths(np.array([[0, 0, 1, 1, 1]]), np.array([[True, True, True, True, False]]))
    array([[1, 2, 1, 2, 0]])

    Args:
        choices: index of the chosen outcome, ``[episode, round]``.
        known: True where a choice was made, ``[episode, round]``.
    """
    repeats_last = choices[:, 1:] == choices[:, :-1]
    goes_on = np.zeros_like(known)  # no run goes on in the first round
    goes_on[:, 1:] = known[:, 1:] & known[:, :-1] & repeats_last
    lengths = known.astype(np.int64)  # a choice that begins a run makes one of length 1
    for t in range(1, choices.shape[1]):
        lengths[:, t] += goes_on[:, t] * lengths[:, t - 1]
    return lengths


def successes_of(episodes: Any, choices: NDArray[np.int64], first_asked: int) -> Array | None:
    """Return whether each choice was a success, 1 or 0, or NaN where the reward is unknown,
    ``[episode, scored round]``; None if the episodes have neither rewards nor labels.

    With rewards, a choice is a success if its reward is above 0. If all rewards are above 0, its
    reward must be above their mean instead. Without rewards, a choice is a success if it equals the
    label.

    Args:
        episodes: the episodes.
        choices: index of the chosen outcome, ``[episode, scored round]``.
        first_asked: index of the first scored round; earlier rounds have no choice.
    """
    rewards = getattr(episodes, "rewards", None)
    if rewards is not None:
        counted = rewards[episodes.counted]
        # If every reward is above 0, every choice would be a success, so the mean is the threshold.
        threshold = 0.0 if counted.min() <= 0 else float(counted.mean())
        successes: Array = np.where(episodes.counted, rewards > threshold, np.nan)
        return successes[:, first_asked:]
    labels = getattr(episodes, "labels", None)
    if labels is not None:
        return np.asarray(labels[:, first_asked:] == choices, np.float64)
    return None
