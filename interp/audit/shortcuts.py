"""Does the model follow the algorithm or a heuristic on episodes where the two disagree?

A heuristic is an algorithm of the task that carries no state. On most episodes it may give the same
answer as the algorithm, so accuracy does not distinguish them. Here episodes of every regime are
sampled until enough of them are *adversarial*: the heuristic is wrong in the last round and the
algorithm is right. On these, the model's loss is closer to one of the two losses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from interp.audit.trial import THRESHOLDS, Array, Trial
from interp.core.algorithm import Algorithm, participants_of
from interp.core.machine import Machine
from interp.model.layout import EncodedRounds
from interp.model.rollout import sequential
from interp.results.measure import Measure
from interp.stats.intervals import Interval, mean_interval
from interp.support.checks import checked_result
from interp.support.session import cached_in_session

_MAX_FOUND = 48  # adversarial episodes to find, but at most the audit's number of episodes
_MAX_REGIMES = 7  # most regimes to sample from
_MAX_DRAWS = 6  # most batches to sample from each regime
_MIN_FOUND = 8  # fewest adversarial episodes for a check
_SEED_OFFSET = 1000  # added to the seed, so that other episodes than the audit's are sampled
_MIN_EXCESS_SHARE = 0.6
"""A heuristic is wrong if its loss exceeds the algorithm's by this share of the largest excess.

The share is above one half, so that a tied prediction does not count as wrong."""
_TIE = 1e-6  # losses that differ by less are equal


@dataclass(frozen=True)
@checked_result
class Adversarial:
    """Episodes on which a heuristic is wrong in the last round and the algorithm is right.

    A heuristic is an algorithm that carries no state. The excess is the heuristic's loss minus the
    algorithm's loss, in the last round. An episode is selected if its excess is more than .6 of the
    largest excess in a first sample of episodes.

    Attributes:
        name: name of the heuristic.
        trials: the model with the selected episodes, one trial for each sampled batch that has any.
        drawn: number of episodes that were sampled to find the selected ones.
        algorithm_losses: the algorithm's loss in the last round, ``[episode]``.
        heuristic_losses: the heuristic's loss in the last round, ``[episode]``.
    """

    name: str
    trials: tuple[Trial, ...]
    drawn: int
    algorithm_losses: Float[np.ndarray, " episode"]
    heuristic_losses: Float[np.ndarray, " episode"]

    def side(self, model: Machine | None = None) -> Interval:
        """Return the share of the episodes in which a model sides with the algorithm: its loss in
        the last round is closer to the algorithm's than to the heuristic's. A tie counts as one
        half.

        Args:
            model: the model to run on these episodes; by default the model of :attr:`trials`.
        """
        losses = self._compute_losses(model or self.trials[0].model)  # in the last round
        distance_to_heuristic = np.abs(losses - self.heuristic_losses)
        distance_to_algorithm = np.abs(losses - self.algorithm_losses)
        # Positive if the model is closer to the algorithm; 0 is a tie.
        lead = distance_to_heuristic - distance_to_algorithm
        sides = np.where(np.abs(lead) < _TIE, 0.5, lead > 0)
        participants = participants_of(*(trial.episodes for trial in self.trials))
        return mean_interval(sides, participants=participants)

    def _compute_losses(self, model: Machine) -> Float[np.ndarray, " episode"]:
        """Compute a model's losses in the last round, ``[episode]``. The episodes of all trials run
        as one batch.
        """
        layout = self.trials[0].layout
        parts = [model.prepare(trial.layout.encode(trial.episodes)) for trial in self.trials]
        joined = EncodedRounds.join(parts)
        predictions = sequential(model, joined, layout, commit="own").predictions
        sizes = [len(trial.episodes) for trial in self.trials]
        parts_of_trials = zip(self.trials, predictions.split(sizes), strict=True)
        return np.concatenate([trial.losses(part)[:, -1] for trial, part in parts_of_trials])


def last_losses(trial: Trial, algorithm: Algorithm) -> Float[np.ndarray, " episode"]:
    """Return the losses of an algorithm's predictions in the last round, ``[episode]``.

    Args:
        trial: the model with its episodes; the algorithm predicts these episodes.
        algorithm: the algorithm.
    """
    distribution = torch.from_numpy(trial.predicted_by(algorithm))
    return trial.losses(trial.layout.prediction(distribution))[:, -1]


def find_adversarial(trial: Trial, heuristic: Algorithm) -> Adversarial | None:
    """Sample episodes from several regimes (distributions of episodes) of the task, and select
    those on which the heuristic is wrong in the last round and the algorithm is right.

    Args:
        trial: the model, and the algorithm that it is compared with. Sampled episodes have as many
            rounds as the trial's.
        heuristic: an algorithm that carries no state.

    Returns:
        The selected episodes; None if there are fewer than 8.
    """
    algorithm = trial.algorithm
    assert algorithm is not None

    def measure_excess(batch: Trial) -> Float[np.ndarray, " episode"]:
        """Return the heuristic's loss in the last round minus the algorithm's, for the episodes of
        ``batch``, ``[episode]``.
        """
        return last_losses(batch, heuristic) - last_losses(batch, algorithm)

    regimes = ["", *trial.regimes][:_MAX_REGIMES]  # "" is the task's default one
    largest_excesses = [measure_excess(_sample_batch(trial, name, 0)).max() for name in regimes]
    # The heuristic counts as wrong in an episode if its excess is above .6 of the largest.
    min_excess = _MIN_EXCESS_SHARE * max(largest_excesses)
    if min_excess < _TIE:  # the heuristic is never worse than the algorithm
        return None
    n_wanted = min(_MAX_FOUND, trial.budget.episodes)
    chosen_trials: list[Trial] = []
    n_chosen = n_drawn = 0
    n_draws = 1 if trial.task.data.halves else _MAX_DRAWS  # recorded episodes are drawn once
    for regime in regimes:
        for i in range(n_draws):
            is_hopeless = i >= 2 and n_chosen == 0  # two batches without a single one
            if n_chosen >= n_wanted or is_hopeless:
                break
            batch = _sample_batch(trial, regime, i)
            n_drawn += len(batch.episodes)
            is_adversarial = measure_excess(batch) > min_excess
            rows = np.flatnonzero(is_adversarial)[: n_wanted - n_chosen]
            if len(rows):
                chosen_trials.append(Trial(trial.model, batch.episodes.select(rows), trial.budget))
                n_chosen += len(rows)
    if n_chosen < _MIN_FOUND:
        return None
    return Adversarial(
        name=heuristic.name,
        trials=tuple(chosen_trials),
        drawn=n_drawn,
        algorithm_losses=np.concatenate([last_losses(part, algorithm) for part in chosen_trials]),
        heuristic_losses=np.concatenate([last_losses(part, heuristic) for part in chosen_trials]),
    )


@cached_in_session
def _sample_batch(trial: Trial, regime: str, i: int) -> Trial:
    """Sample a further batch of episodes from a regime. The batch is cached, so that all heuristics
    share it.

    Args:
        trial: determines the model, the budget and the number of rounds.
        regime: the regime to sample from.
        i: index of the batch.
    """
    return Trial.of(trial.model, trial.budget, regime, _SEED_OFFSET + i, trial.shape[1])


@cached_in_session
def adversarial_by_heuristic(trial: Trial) -> dict[str, Adversarial | None]:
    """Find, for every heuristic of the task, episodes on which the heuristic is wrong in the last
    round and the algorithm is right. A heuristic is an algorithm that carries no state.

    Args:
        trial: the model with its episodes.

    Returns:
        Key of a heuristic -> its episodes, or None if fewer than 8 were found. The mapping is empty
        if the trial has no algorithm.
    """
    if trial.algorithm is None:
        return {}
    return {key: find_adversarial(trial, rule) for key, rule in trial.heuristics.items()}


def table(trial: Trial) -> pd.DataFrame:
    """Compare the model with every heuristic of the task (an algorithm that carries no state), and
    with the algorithm that should explain it.

    Args:
        trial: the model with its episodes.

    Returns:
        A table with one row per heuristic. Its columns are:

        * heuristic (its name);
        * its_loss and algorithm_loss: loss in the last round of the heuristic and of the algorithm,
          averaged over the trial's episodes;
        * explains_more: share of the variance of the model's predictions that the heuristic
          explains beyond the algorithm. One linear map predicts the model's predictions from the
          algorithm's, another from the algorithm's and the heuristic's. The number is the share
          that the second map explains, minus the share that the first explains, in episodes that
          they were not fitted to;
        * n: number of episodes on which the heuristic is wrong and the algorithm right; drawn:
          number of episodes that were sampled to find them;
        * side: share of these n episodes in which the model's loss is closer to the algorithm's
          than to the heuristic's; side_low and side_high: the ends of its interval.
    """
    algorithm = trial.algorithm
    rows = []
    for key, adversarial in adversarial_by_heuristic(trial).items():
        assert algorithm is not None  # without an algorithm, the mapping is empty
        heuristic = trial.heuristics[key]
        heuristic_loss = last_losses(trial, heuristic).mean()
        algorithm_loss = last_losses(trial, algorithm).mean()
        row = {
            "heuristic": heuristic.name,
            "its_loss": float(heuristic_loss),
            "algorithm_loss": float(algorithm_loss),
            "explains_more": _measure_further_share(trial, algorithm, heuristic),
        }
        if adversarial is not None:
            row |= adversarial.side().columns("side")
            row |= {"n": len(adversarial.algorithm_losses), "drawn": adversarial.drawn}
        rows.append(row)
    return pd.DataFrame(rows)


def _measure_further_share(trial: Trial, algorithm: Algorithm, heuristic: Algorithm) -> float:
    """Return the share of the variance of the model's predictions that a heuristic's predictions
    explain in addition to the algorithm's.

    A linear map is fitted on one half of the participants and scored on the other half, in both
    directions.

    Args:
        trial: the model with its episodes.
        algorithm: the algorithm that the model is compared with.
        heuristic: an algorithm that carries no state.
    """
    of_model = _subtract_mean(trial.unchanged_distributions)
    of_algorithm = _subtract_mean(trial.predicted_by(algorithm))
    of_heuristic = _subtract_mean(trial.predicted_by(heuristic))
    # A share is 1 - error / variation, so that the difference of two shares is that of two errors.
    variation = max(float((of_model**2).sum()), 1e-12)  # not 0, if all predictions are equal
    error = _compute_error(trial, of_model, [of_algorithm])
    error_with_heuristic = _compute_error(trial, of_model, [of_algorithm, of_heuristic])
    return (error - error_with_heuristic) / variation


def _subtract_mean(distributions: Float[np.ndarray, "episode round outcome"]) -> Array:
    return distributions - distributions.mean((0, 1))


def _compute_error(trial: Trial, predictions: Array, features: list[Array]) -> float:
    """Return the summed squared error of a linear map from features to the model's predictions.

    The map is fitted on one half of the participants and scored on the other half, in both
    directions.

    Args:
        trial: the model with its episodes and their participants.
        predictions: the model's predictions minus their mean, ``[episode, round, outcome]``.
        features: the same for each algorithm.
    """
    x = np.stack(features, -1)  # [episode, round, outcome, feature]
    error = 0.0
    for fitted_on in (trial.first_half, ~trial.first_half):
        fitted_rows = x[fitted_on].reshape(-1, len(features))
        slopes, *_ = np.linalg.lstsq(fitted_rows, predictions[fitted_on].ravel(), rcond=None)
        residuals = predictions[~fitted_on] - x[~fitted_on] @ slopes
        error += float((residuals**2).sum())
    return error


def check_side(trial: Trial) -> Measure:
    """Check whether the model follows the algorithm on episodes where a heuristic (an algorithm
    that carries no state) is wrong.

    Args:
        trial: the model with its episodes.

    Returns:
        A measure, with controls and verdict. For each heuristic there is a share: the share of its
        episodes in which the model's loss is closer to the algorithm's than to the heuristic's. The
        measure's number is the smallest share of all heuristics.
    """
    claim = "It takes the algorithm's side where a heuristic disagrees"
    threshold = THRESHOLDS["side"].value
    by_heuristic = adversarial_by_heuristic(trial).values()
    adversarials = [adversarial for adversarial in by_heuristic if adversarial is not None]
    if not adversarials:
        lacking = "no heuristic of its task whose answers differ from the algorithm's"
        return Measure(key="side", claim=claim, lacking=lacking)
    shares = [adversarial.side() for adversarial in adversarials]
    i_worst = int(np.argmin([share.estimate for share in shares]))
    # The measure is about the heuristic with the smallest share; its note lists the others.
    number = shares.pop(i_worst)
    worst = adversarials.pop(i_worst)
    n_adversarial = len(worst.algorithm_losses)
    note = f"The heuristic is {worst.name}, on {n_adversarial} of {worst.drawn} episodes drawn."
    others = [
        f"{adversarial.name} {share}"
        for adversarial, share in zip(adversarials, shares, strict=True)
    ]
    if others:
        note += f" Others: {'; '.join(others)}."
    controls = trial.score_copies(lambda copy: worst.side(copy.model))
    return Measure(
        key="side",
        claim=claim,
        number=number,
        threshold=threshold,
        no_threshold=1 - threshold,  # on the heuristic's side as often as "yes" needs
        unit="share of episodes on the algorithm's side, in the last round",
        controls=controls,
        yes="sides with the algorithm where heuristics fail",
        no=f"answers like {worst.name}",
        rests_on=("shortcuts",),
        note=note,
    )
