"""Score predictions with expert advice: mistakes, regret, accuracy, log-loss and its excess over a
reference.

Regret is the number of mistakes beyond those of the expert that is best over the same rounds. It is
negative for a learner that beats every expert. A tie or a random choice counts as its expected
number of mistakes. Log-loss is in nats, and infinite for a certain prediction that is wrong. Excess
log-loss is a divergence only if the reference is the exact Bayes predictor.

docs/method/regret.md defines each quantity, and says what it is evidence of.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from interp.core.algorithm import participants_of
from interp.results.measure import Scores
from interp.stats.intervals import Interval, mean_interval
from interp.support.checks import checked
from interp.support.errors import InputError, require, require_known
from interp.support.provenance import provenance
from interp.tasks.experts import ExpertEpisodes
from interp.tasks.experts.predictors import Decision

_PerRound = Float[np.ndarray, "episode round"]

_TIE = 1e-12  # a prediction within this distance of one half is a tie: half a mistake
# A probability may lie outside [0, 1] by this rounding error of float32; it is clipped.
_ROUNDING = 1e-6


def _check_predictions(predictions: ArrayLike, episodes: ExpertEpisodes) -> _PerRound:
    """Check that predictions are probabilities ``[episode, round]``, and return them as float64.

    Args:
        predictions: P(y=1), ``[episode, round]``; numbers outside [0, 1] by a rounding error are
            clipped.
        episodes: the predicted episodes; their missing rounds get the prediction 0.5.
    """
    p = np.asarray(predictions, dtype=np.float64)
    wanted = f"the episodes need P(y=1) [episode, round] = {episodes.labels.shape}"
    require(p.shape == episodes.labels.shape, f"predictions have shape {p.shape} but {wanted}")
    p = np.where(episodes.counted, p, 0.5)  # predictions in missing rounds are not checked
    wrong = ~((p >= -_ROUNDING) & (p <= 1 + _ROUNDING))  # NaN is wrong, too
    if wrong.any():
        where = ", ".join(map(str, np.argwhere(wrong)[0]))
        raise InputError(
            f"predictions must be probabilities in [0, 1], got {p[wrong][0]} at [{where}]"
        )
    return np.clip(p, 0.0, 1.0)


def mistakes(
    predictions: ArrayLike, episodes: ExpertEpisodes, decision: Decision = "threshold"
) -> _PerRound:
    """Return the probability of a mistake in each round, ``[episode, round]``; NaN in missing
    rounds. A prediction of 1/2 counts as half a mistake.

    Args:
        predictions: predicted probability of label 1, ``[episode, round]``.
        episodes: the predicted episodes.
        decision: "threshold" (choose the likelier label) or "sample" (sample a label from the
            prediction).
    """
    p = _check_predictions(predictions, episodes)
    require_known("decision", decision, ("threshold", "sample"))
    if decision == "threshold":
        is_tied = np.abs(p - 0.5) <= _TIE
        likelier_label = (p > 0.5).astype(np.float64)
        p = np.where(is_tied, 0.5, likelier_label)  # the probability of choosing label 1
    distances = np.abs(p - episodes.labels)  # from a label of 0 or 1: a probability of a mistake
    return np.where(episodes.counted, distances, np.nan)


@checked
def regret(
    predictions: ArrayLike, episodes: ExpertEpisodes, decision: Decision = "threshold"
) -> _PerRound:
    """Return the regret after each round, ``[episode, round]``: the number of mistakes so far,
    minus that of the expert with the fewest mistakes so far.

    Args:
        predictions: predicted probability of label 1, ``[episode, round]``.
        episodes: the predicted episodes.
        decision: "threshold" (choose the likelier label) or "sample" (sample a label from the
            prediction).
    """
    wrong = ~episodes.correct & episodes.counted[..., None]
    of_best = wrong.cumsum(axis=1).min(axis=-1)  # of the best expert so far, [episode, round]
    return np.nancumsum(mistakes(predictions, episodes, decision), axis=1) - of_best


def log_loss(predictions: ArrayLike, episodes: ExpertEpisodes) -> _PerRound:
    """Return the log-loss of each round, ``-log P(y_t)`` for the true label y_t, in nats,
    ``[episode, round]``. It is infinite if a certain prediction is wrong, and NaN in missing
    rounds.

    Args:
        predictions: predicted probability of label 1, ``[episode, round]``.
        episodes: the predicted episodes.
    """
    p = _check_predictions(predictions, episodes)
    with np.errstate(divide="ignore"):
        is_one = episodes.labels == 1
        losses = -np.where(is_one, np.log(p), np.log1p(-p))
    return np.where(episodes.counted, losses, np.nan)


def excess_log_loss(
    predictions: ArrayLike, reference: ArrayLike, episodes: ExpertEpisodes
) -> _PerRound:
    """Return the log-loss of predictions minus the log-loss of a reference predictor in each round,
    in nats, ``[episode, round]``.

    Args:
        predictions: P(y=1), ``[episode, round]``.
        reference: P(y=1) of the reference, ``[episode, round]``; its log-loss must be finite.
        episodes: the predicted episodes.
    """
    bound = log_loss(reference, episodes)
    require(
        not np.isinf(bound).any(),
        "the reference was certain and wrong; excess over infinity does not exist",
    )
    return log_loss(predictions, episodes) - bound


@checked
def score(
    predictions: ArrayLike,
    episodes: ExpertEpisodes,
    *,
    name: str = "model",
    decision: Decision = "threshold",
    reference: ArrayLike | None = None,
    reference_name: str = "reference",
    seed: int = 0,
) -> Scores:
    """Score predictions by accuracy, log-loss and regret.

    Args:
        predictions: P(y=1), ``[episode, round]``.
        episodes: the predicted episodes.
        name: name of the predictor, for the table.
        decision: "threshold" (choose the likelier label) or "sample" (sample a label from the
            prediction).
        reference: P(y=1) of a reference, usually the Bayes predictor, ``[episode, round]``.
        reference_name: name of the reference for the table; if the reference ignores a property of
            the regime, the name should say so.
        seed: seed of the bootstrap.

    Returns:
        Scores by metric, each with its interval over episodes. "accuracy" is the share of rounds
        with a right prediction. "log_loss" is in nats per round, and infinite if a certain
        prediction is wrong. "regret" is the number of mistakes in the whole episode, minus that of
        the expert with the fewest. If there is a ``reference``, "excess_log_loss" is the log-loss
        minus that of the reference.
    """
    final_regret = regret(predictions, episodes, decision)[:, -1]
    wrong = mistakes(predictions, episodes, decision)
    measured = {
        "accuracy": 1 - np.nanmean(wrong, axis=1),
        "regret": final_regret,
        "log_loss": np.nanmean(log_loss(predictions, episodes), axis=1),
    }
    if reference is not None:
        measured["excess_log_loss"] = np.nanmean(
            excess_log_loss(predictions, reference, episodes), axis=1
        )
    drawn = {key: getattr(episodes, key) for key in ("regime", "n_rounds", "n_experts", "seed")}
    described = {"name": name, "decision": decision, "n_episodes": len(episodes), **drawn}
    if episodes.missing is not None:
        described["n_counted"] = int(episodes.counted.sum())
    # Key (metric,) -> the score, and further cells of its row of the table.
    numbers: dict[tuple[Any, ...], Interval] = {}
    beside: dict[tuple[Any, ...], dict[str, Any]] = {}
    for metric, values in measured.items():
        # One prediction that is certain and wrong makes the mean log-loss infinite.
        number = Interval(np.inf, np.inf, np.inf)
        if np.isfinite(values).all():
            number = mean_interval(values, seed=seed, participants=participants_of(episodes))
        numbers[metric,] = number
        std = float(final_regret.std()) if metric == "regret" else np.nan
        beside[metric,] = {
            "std": std,
            "reference": reference_name if metric == "excess_log_loss" else "",
            **described,
        }
    settings = provenance(**drawn, n_episodes=len(episodes), params=dict(episodes.params))
    return Scores(("metric",), numbers, settings, beside)
