r"""What a model of prediction with expert advice is worth: a table of regimes by predictors, and its curves.

Beside the model stand predictors that need no training and the Bayes predictors, which are the limits. Excess log-loss
is over the one of the regime's own prior, in nats a round; its expectation, where that predictor is exact, is the KL
divergence from it (paper, appendix B), given for the model with far less noise. Which they are, and why long episodes
are scored in windows (:func:`over_lengths`): docs/method/regret.md.

NOT evidence of how a model does it: Bayes-like predictions need no log-weights inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
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
_ETAS = tuple(float(eta) for eta in np.geomspace(0.02, 5.0, 24))
BASELINES = (
    *(
        "weighted_majority_best",
        "weighted_majority_horizon",
        "follow_the_leader",
        "follow_previous_winners",
    ),
    *("majority_vote", "random", "bayes", "bayes_training", "oracle"),
)
"""Keys of the predictors beside the model; two of them depend on the episodes or on the model's training."""
_BATCH = 512  # episodes per rollout: bounds memory, and is fastest on a CPU


def training_prior(model: Machine) -> list[str]:
    """The regimes that a model was trained on, without those that switch among others; "uniform" if handwired."""
    trained = list(dict.fromkeys(model.origin.get("training", {}).get("regimes") or ["uniform"]))
    return [
        name for name in trained if name not in REGIMES or REGIMES[name].switch_every is None
    ] or trained[:1]


def _best_eta(episodes: ExpertEpisodes) -> float:
    """The learning rate with which weighted majority makes the fewest mistakes on these very episodes."""
    made = [
        np.nansum(regret.mistakes(weighted_majority(episodes, eta=eta).predictions, episodes))
        for eta in _ETAS
    ]
    return _ETAS[int(np.argmin(made))]


def predict(model: Machine, episodes: ExpertEpisodes) -> _PerRound:
    """P(y = 1) of every round, batch by batch."""
    batches = [
        episodes.select(slice(start, start + _BATCH)) for start in range(0, len(episodes), _BATCH)
    ]
    return np.concatenate([predictions_of(rollout(model, batch)) for batch in batches])


def divergence(reference: _PerRound, predictions: _PerRound) -> _PerRound:
    """KL divergence of ``predictions`` from ``reference`` in nats, both P(y = 1) in (0, 1)."""
    p, q = reference, predictions
    return special.rel_entr(p, q) + special.rel_entr(1 - p, 1 - q)


def fitting_regimes(model: Machine) -> list[str]:
    """The regimes that have a meaning for the model's number of experts."""
    return [name for name, regime in REGIMES.items() if regime.min_experts <= n_experts_of(model)]


def n_experts_of(model: Machine) -> int:
    """The number of experts to evaluate a model with: 4, as the paper, or the nearest that it serves."""
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
    """Score a model and every baseline on fresh episodes of each regime, and their regret round by round.

    "regimes" are by regime, predictor and metric, the metrics of :func:`regret.score` and the model's "divergence" from
    the Bayes predictor, in nats a round. "regret_curves" have a row a regime, predictor and round.

    Args:
        regimes: names or records; every regime with a meaning for this number of experts when None.
        n_experts: 4, or the nearest that the model serves, when None.
        seed: of the episodes and the bootstrap; training used other streams.
    """
    n_experts = n_experts_of(model) if n_experts is None else n_experts
    records = [
        get_regime(regime) for regime in (fitting_regimes(model) if regimes is None else regimes)
    ]
    require(len(records) > 0, "no regime to evaluate on; give at least one")
    prior = training_prior(model)
    trained = " or ".join(map(repr, prior))
    numbers: dict[tuple[Any, ...], Interval] = {}
    beside: dict[tuple[Any, ...], dict[str, Any]] = {}
    curves = []
    for record in records:
        episodes = experts.sample(n_episodes, n_rounds, n_experts, regime=record, seed=seed)
        eta = _best_eta(episodes)
        own = {
            "weighted_majority_best": (
                f"weighted majority, best eta {eta:.2g}",
                partial(weighted_majority, eta=eta),
            ),
            "bayes_training": (f"Bayes predictor, prior of {trained}", partial(bayes, prior=prior)),
        }
        known = {
            key: own.get(key) or (PREDICTORS[key].name, PREDICTORS[key].run) for key in BASELINES
        }
        runs = {MODEL: (model.name, ExpertRun(predict(model, episodes)))}
        runs |= {key: (name, run(episodes)) for key, (name, run) in known.items()}
        bound = runs["bayes"][1]
        named = ", ignoring ".join(filter(None, ("bayes", bound.approximation)))
        beyond: dict[str, Any] = {
            "reference": bound.predictions,
            "reference_name": named,
            "seed": seed,
        }
        for key, (name, run) in runs.items():
            scored = regret.score(
                run.predictions, episodes, name=name, decision=run.decision, **beyond
            )
            numbers |= {
                (record.name, key, *metric): value for metric, value in scored.numbers.items()
            }
            beside |= {
                (record.name, key, *metric): values for metric, values in scored.beside.items()
            }
            over = regret.regret(run.predictions, episodes, run.decision)
            columns = dict(
                zip(("regret", "low", "high"), bootstrap_mean(over, seed=seed), strict=True)
            )
            curve = pd.DataFrame(
                {"name": name, "round": np.arange(1, n_rounds + 1), **columns, "std": over.std(0)}
            )
            curves.append(curve.assign(regime=record.name, key=key))
        apart = divergence(bound.predictions, runs[MODEL][1].predictions).mean(1)
        if np.isfinite(apart).all():
            at = (record.name, MODEL, "divergence")
            numbers[at], beside[at] = (
                mean_interval(apart, seed=seed),
                beside[record.name, MODEL, "excess_log_loss"],
            )
    sizes = {"n_episodes": n_episodes, "n_rounds": n_rounds, "n_experts": n_experts}
    rate = horizon_eta(n_experts, n_rounds) if n_experts > 1 else 0.0
    settings = provenance(model, training_prior=prior, **sizes, horizon_eta=rate, seed=seed)
    scores = Scores(("regime", "key", "metric"), numbers, settings, beside)
    return {"regimes": scores, "regret_curves": pd.concat(curves, ignore_index=True)}


# Episodes longer than training's.

_WINDOWS = tuple(pairwise((0, 10, 20, 50, 100, 200, 300, 400, 500, 750, 1000)))
"""Rounds [start, stop) of a long episode."""
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
    """Score a model, weighted majority (eta sqrt(ln n / T)) and the Bayes predictor in windows of long episodes.

    Episodes are of the uniform regime. "accuracy", "excess_log_loss" and "divergence" are over the rounds start to
    stop, "regret" is of the first ``stop`` rounds; a predictor that was certain and wrong has no log-loss. A model that
    was trained on another prior than the regime's has that prior's Bayes predictor beside it, too. Windows (start,
    stop) beyond ``n_rounds`` are cut or left out.
    """
    n_experts, regime = n_experts_of(model), "uniform"
    kept = [(start, min(stop, n_rounds)) for start, stop in windows if start < min(stop, n_rounds)]
    require(
        len(kept) > 0,
        f"no window of rounds lies in episodes of {n_rounds} rounds; give windows (start, stop)",
    )
    episodes = experts.sample(n_episodes, n_rounds, n_experts, regime=regime, seed=seed)
    best = bayes(episodes).predictions
    predictions = {
        MODEL: predict(model, episodes),
        "bayes": best,
        "weighted_majority_horizon": weighted_majority(
            episodes, eta=horizon_eta(n_experts, n_rounds)
        ).predictions,
    }
    if (prior := training_prior(model)) != [regime]:
        predictions["bayes_training"] = bayes(episodes, prior).predictions
    intervals: dict[tuple[Any, ...], Interval] = {}
    for key, p in predictions.items():
        right, behind = 1 - regret.mistakes(p, episodes), regret.regret(p, episodes)
        excess = regret.excess_log_loss(p, best, episodes)
        for start, stop in kept:
            here = slice(start, stop)
            intervals[key, "accuracy", start, stop] = mean_interval(
                right[:, here].mean(1), seed=seed
            )
            for metric, values in {
                "excess_log_loss": excess,
                "divergence": divergence(best, p),
            }.items():
                if np.isfinite(values).all():
                    intervals[key, metric, start, stop] = mean_interval(
                        values[:, here].mean(1), seed=seed
                    )
            intervals[key, "regret", start, stop] = mean_interval(behind[:, stop - 1], seed=seed)
    settings = provenance(
        model,
        regime=regime,
        n_episodes=n_episodes,
        n_rounds=n_rounds,
        n_experts=n_experts,
        seed=seed,
    )
    return Scores(("key", "metric", "start", "stop"), intervals, settings)
