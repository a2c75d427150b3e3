r"""Measure how well a model of prediction with expert advice performs in each regime, compared with
baselines.

Baselines are predictors without training, and Bayes predictors, which are the limit. Excess
log-loss is the log-loss above that of the Bayes predictor with the regime's prior, in nats per
round. If that predictor is exact, the expected excess is the KL divergence of the model's
predictions from it (paper, appendix B). The divergence has far less noise, so it is reported, too.
docs/method/regret.md lists the predictors, and says why long episodes are scored in windows
(:func:`over_lengths`).

NOT evidence of how a model works inside: predictions close to Bayes need no log-weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import special

from interp.core.machine import Machine
from interp.evaluation.experts import regret
from interp.evaluation.plan import MODEL, predictions_of
from interp.model.rollout import rollout
from interp.results.measure import Scores
from interp.stats.intervals import Interval, bootstrap_mean, mean_interval
from interp.support.checks import checked
from interp.support.errors import InputError, require
from interp.support.provenance import provenance
from interp.tasks import experts
from interp.tasks.experts import REGIMES, ExpertEpisodes, ExpertRegime, get_regime
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.experts.predictors import (
    PREDICTORS,
    ExpertRun,
    bayes,
    horizon_eta,
    weighted_majority,
)

_PerRound = Float[np.ndarray, "episode round"]
_ETAS: list[float] = np.geomspace(0.02, 5.0, 24).tolist()
BASELINES = (
    "weighted_majority_best",
    "weighted_majority_horizon",
    "follow_the_leader",
    "follow_previous_winners",
    "majority_vote",
    "random",
    "bayes",
    "bayes_training",
    "oracle",
)
"""Keys of the baselines; two of them depend on the episodes or on the model's training."""
_BATCH = 512  # episodes per rollout: bounds memory, and is fastest on a CPU


def training_prior(model: Machine) -> list[str]:
    """Return the names of the regimes (distributions of episodes) that a model was trained on. These
    regimes serve as the prior of a Bayes predictor with which the model is compared.

    Regimes in which the best expert changes within an episode are left out; if there are no others,
    the first regime is returned. A model without a record of its regimes, such as a handwired one,
    counts as trained on "uniform".
    """
    training = model.origin.get("training", {})
    regimes = list(dict.fromkeys(training.get("regimes") or ["uniform"]))  # each once
    # The Bayes predictor assumes that accuracies stay the same within an episode.
    steady = [name for name in regimes if name not in REGIMES or not REGIMES[name].switch_every]
    return steady or regimes[:1]  # a prior needs at least one regime


def best_eta(episodes: ExpertEpisodes) -> float:
    """Return the learning rate (eta) of weighted majority that is best in hindsight: the value of a
    grid with which weighted majority makes the fewest mistakes on these episodes.
    """
    mistakes = []
    for eta in _ETAS:
        predictions = weighted_majority(episodes, eta=eta).predictions
        mistakes.append(np.nansum(regret.mistakes(predictions, episodes)))
    return _ETAS[int(np.argmin(mistakes))]


def predict(model: Machine, episodes: ExpertEpisodes) -> _PerRound:
    """Return the probability of label 1 that a model predicts in every round, ``[episode, round]``.
    The model runs in batches, to bound memory.
    """
    predictions = []
    for start in range(0, len(episodes), _BATCH):
        batch = episodes.select(slice(start, start + _BATCH))
        predictions.append(predictions_of(rollout(model, batch)))
    return np.concatenate(predictions)


def divergence(reference: _PerRound, predictions: _PerRound) -> _PerRound:
    """Return the KL divergence of predictions from a reference in each round,
    ``KL(reference || predictions)`` in nats, ``[episode, round]``.

    Args:
        reference: probability of label 1 that the reference predicts, ``[episode, round]``.
        predictions: the predicted probability of label 1, ``[episode, round]``.
    """
    label_1 = special.rel_entr(reference, predictions)  # p log(p / q)
    label_0 = special.rel_entr(1 - reference, 1 - predictions)
    return label_1 + label_0


def fitting_regimes(model: Machine) -> list[str]:
    """Return the names of the regimes (distributions of episodes) that can be sampled with the
    number of experts with which a model is evaluated (:func:`n_experts_of`).
    """
    return [name for name, regime in REGIMES.items() if regime.min_experts <= n_experts_of(model)]


def n_experts_of(model: Machine) -> int:
    """Return the number of experts to evaluate a model with: 4, as in the paper, or the nearest
    number that the model supports.
    """
    layout = model.layout
    if not isinstance(layout, ExpertRound):
        raise InputError(f"{model.name!r} is a model of {layout.task!r}, not of expert advice")
    ((low, high),) = layout.served
    return min(max(4, low), high)


@checked
def evaluate(
    model: Machine,
    regimes: Sequence[str | ExpertRegime] | None = None,
    *,
    n_episodes: int = 256,
    n_rounds: int = 100,
    n_experts: int | None = None,
    seed: int = 1,
) -> dict[str, Any]:
    """Score a model and every baseline on new episodes of each regime (distribution of episodes),
    and compute the regret after every round.

    Regret is the number of mistakes minus that of the expert with the fewest mistakes in the same
    rounds.

    Args:
        model: the model.
        regimes: names or records of regimes; None takes every regime that can be sampled with the
            number of experts with which the model is evaluated by default.
        n_episodes: number of episodes per regime.
        n_rounds: number of rounds per episode.
        n_experts: number of experts; by default 4, or the nearest number that the model supports.
        seed: seed of the episodes and the bootstrap; training used other random streams.

    Returns:
        A dictionary with two entries.

        * "regimes" has the scores by regime, predictor ("model", or the key of a baseline) and
          metric: "accuracy", "log_loss", "excess_log_loss" and "regret"
          (:func:`interp.evaluation.experts.regret.score`). The model has one more metric,
          "divergence": its KL divergence from the Bayes predictor, in nats per round. It is left
          out if it is infinite.
        * "regret_curves" is a table with one row per ``regime``, predictor (``key`` and ``name``)
          and ``round`` (counted from 1). ``regret`` is the mean regret after the round, with the
          ends ``low`` and ``high`` of its interval, and ``std`` its standard deviation over
          episodes.
    """
    n_experts = n_experts_of(model) if n_experts is None else n_experts
    chosen = fitting_regimes(model) if regimes is None else regimes
    records = [get_regime(regime) for regime in chosen]
    require(records, "no regime to evaluate on; give at least one")
    prior = training_prior(model)
    # Key (regime, predictor, metric) -> the score, and further cells of its row of the table.
    numbers: dict[tuple[Any, ...], Interval] = {}
    beside: dict[tuple[Any, ...], dict[str, Any]] = {}
    curves = []
    for record in records:
        episodes = experts.sample(n_episodes, n_rounds, n_experts, regime=record, seed=seed)
        of_model = ExpertRun(predict(model, episodes))
        runs = {MODEL: (model.name, of_model), **_run_baselines(episodes, prior)}
        _, reference = runs["bayes"]  # the limit, from which excess and divergence are measured
        reference_name = "bayes"
        if reference.approximation:
            reference_name += f", ignoring {reference.approximation}"
        for key, (name, run) in runs.items():
            scored = regret.score(
                run.predictions,
                episodes,
                name=name,
                decision=run.decision,
                reference=reference.predictions,
                reference_name=reference_name,
                seed=seed,
            )
            for (metric,), number in scored.numbers.items():
                numbers[record.name, key, metric] = number
                beside[record.name, key, metric] = scored.beside[metric,]
            curve = _compute_regret_curve(run, episodes, seed)
            curves.append(curve.assign(regime=record.name, key=key, name=name))
        divergences = divergence(reference.predictions, of_model.predictions).mean(axis=1)
        if np.isfinite(divergences).all():
            numbers[record.name, MODEL, "divergence"] = mean_interval(divergences, seed=seed)
            excess_cells = beside[record.name, MODEL, "excess_log_loss"]
            beside[record.name, MODEL, "divergence"] = excess_cells
    settings = provenance(
        model,
        training_prior=prior,
        n_episodes=n_episodes,
        n_rounds=n_rounds,
        n_experts=n_experts,
        horizon_eta=horizon_eta(n_experts, n_rounds),
        seed=seed,
    )
    scores = Scores(("regime", "key", "metric"), numbers, settings, beside)
    table = pd.concat(curves, ignore_index=True)
    return {"regimes": scores, "regret_curves": table[_CURVE_COLUMNS]}


_CURVE_COLUMNS = ["name", "round", "regret", "low", "high", "std", "regime", "key"]


def _run_baselines(episodes: ExpertEpisodes, prior: list[str]) -> dict[str, tuple[str, ExpertRun]]:
    """Run every baseline over the episodes: key of a baseline -> (name, predictions).

    Two baselines need more than the episodes: weighted majority with the best learning rate (eta)
    in hindsight, and the Bayes predictor whose prior is the model's training data.

    Args:
        episodes: the episodes.
        prior: names of the regimes (distributions of episodes) that form this prior.
    """
    runs: dict[str, tuple[str, ExpertRun]] = {}
    for key in BASELINES:
        if key == "weighted_majority_best":
            eta = best_eta(episodes)
            name = f"weighted majority, best eta {eta:.2g}"
            runs[key] = name, weighted_majority(episodes, eta=eta)
        elif key == "bayes_training":
            trained = " or ".join(map(repr, prior))
            runs[key] = f"Bayes predictor, prior of {trained}", bayes(episodes, prior=prior)
        else:
            runs[key] = PREDICTORS[key].name, PREDICTORS[key].run(episodes)
    return runs


def _compute_regret_curve(run: ExpertRun, episodes: ExpertEpisodes, seed: int) -> pd.DataFrame:
    """Return a table with one row per round: the mean regret after the round, the ends of its
    interval, and its standard deviation over episodes.

    Args:
        run: predictions with their decision rule.
        episodes: the predicted episodes.
        seed: seed of the bootstrap.
    """
    regret_by_round = regret.regret(run.predictions, episodes, run.decision)  # [episode, round]
    mean, low, high = bootstrap_mean(regret_by_round, seed=seed)
    n_rounds = regret_by_round.shape[1]
    columns = {"round": np.arange(1, n_rounds + 1), "regret": mean, "low": low, "high": high}
    return pd.DataFrame({**columns, "std": regret_by_round.std(axis=0)})


# Episodes longer than those of training.

_WINDOWS = tuple(pairwise((0, 10, 20, 50, 100, 200, 300, 400, 500, 750, 1000)))
"""Windows of rounds, [start, stop), in a long episode."""
LONGEST = _WINDOWS[-1][1]


@checked
def over_lengths(
    model: Machine,
    *,
    n_episodes: int = 128,
    n_rounds: int = LONGEST,
    windows: Sequence[tuple[int, int]] = _WINDOWS,
    seed: int = 2,
) -> Scores:
    """Score a model, weighted majority and the Bayes predictor in windows of long episodes: do
    predictions stay good in rounds beyond those of training?

    Episodes are of the regime "uniform". Weighted majority has the learning rate sqrt(ln n / T) for
    n experts and T rounds. If a model was trained on other regimes, the Bayes predictor with these
    regimes as its prior is scored, too.

    Args:
        model: the model.
        n_episodes: number of episodes.
        n_rounds: number of rounds per episode.
        windows: windows of rounds as (start, stop); a window is cut off at ``n_rounds``.
        seed: seed of the episodes and the bootstrap.

    Returns:
        Scores by predictor, metric and window. A window contains the rounds from ``start`` to
        ``stop - 1``. Three metrics are means over the window: "accuracy", "excess_log_loss"
        (log-loss minus that of the Bayes predictor, in nats per round) and "divergence" (KL
        divergence from the Bayes predictor, in nats per round). "regret" is the number of mistakes
        in the first ``stop`` rounds, minus that of the best expert in these rounds. A metric is
        left out if it is infinite in any round, since the predictor was certain and wrong.
    """
    n_experts = n_experts_of(model)
    regime = "uniform"
    cut_windows = [(start, min(stop, n_rounds)) for start, stop in windows]
    kept_windows = [(start, stop) for start, stop in cut_windows if start < stop]
    require(
        kept_windows,
        f"no window of rounds lies in episodes of {n_rounds} rounds; give windows (start, stop)",
    )
    episodes = experts.sample(n_episodes, n_rounds, n_experts, regime=regime, seed=seed)
    optimal = bayes(episodes).predictions  # no other predictor has a lower expected loss
    eta = horizon_eta(n_experts, n_rounds)
    predictions = {
        MODEL: predict(model, episodes),
        "bayes": optimal,
        "weighted_majority_horizon": weighted_majority(episodes, eta=eta).predictions,
    }
    prior = training_prior(model)
    if prior != [regime]:
        predictions["bayes_training"] = bayes(episodes, prior).predictions
    numbers: dict[tuple[Any, ...], Interval] = {}
    for key, predicted in predictions.items():
        regret_by_round = regret.regret(predicted, episodes)
        per_round = {
            "accuracy": 1 - regret.mistakes(predicted, episodes),
            "excess_log_loss": regret.excess_log_loss(predicted, optimal, episodes),
            "divergence": divergence(optimal, predicted),
        }
        # A certain prediction that is wrong has an infinite loss, and no mean.
        finite = {name: values for name, values in per_round.items() if np.isfinite(values).all()}
        for start, stop in kept_windows:
            for metric, values in finite.items():
                in_window = values[:, start:stop].mean(axis=1)  # [episode]
                numbers[key, metric, start, stop] = mean_interval(in_window, seed=seed)
            numbers[key, "regret", start, stop] = mean_interval(
                regret_by_round[:, stop - 1], seed=seed
            )
    settings = provenance(
        model,
        regime=regime,
        n_episodes=n_episodes,
        n_rounds=n_rounds,
        n_experts=n_experts,
        seed=seed,
    )
    return Scores(("key", "metric", "start", "stop"), numbers, settings)
