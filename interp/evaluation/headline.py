"""The few numbers that say what a model is worth: what a model card states and what a table in a shell shows.

One row per claim, with its 95 % interval over episodes and, beside it, what a reader needs to judge it: the limit, the
baseline, the control. The full tables are in the other modules of this room.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from interp.tasks.experts.evaluation import by_regime as experts, lengths
from interp.tasks.qlearning.evaluation import playing as play, by_regime as qlearning, tables
from interp.evaluation.controls import latent_control
from interp.tasks.qlearning.evaluation.discount import followed_discount
from interp.model.rollout import rollout
from interp.model.transformer import HookedLatentTransformer
from interp.statistics import Interval
from interp.tasks import experts as expert_tasks

WINDOWS = ((50, 100), (400, 500), (900, 1000))
"""Rounds of long episodes: the late ones are set beside the early ones."""
SHIFTED = ("stratified", "flat", "anti-signal")
PLAYED = ("grid", "ladder", "chain")
Row = dict[str, object]


def headline(model: HookedLatentTransformer, *, n_episodes: int = 1000, seed: int = 11) -> pd.DataFrame:
    """The headline numbers of a model of either task.

    Args:
        n_episodes: of the main table; the slower ones use a fraction of it.
        seed: of the episodes and the bootstrap.

    Returns:
        Columns ``what``, ``estimate``, ``low``, ``high``, ``beside``.
    """
    rows = _experts if model.layout.task == "experts" else _qlearning
    return pd.DataFrame(rows(model, n_episodes, seed))


def _row(what: str, value: Interval, beside: str) -> Row:
    return {"what": what, **vars(value), "beside": beside}


def _experts(model: HookedLatentTransformer, n_episodes: int, seed: int) -> list[Row]:
    main = list(dict.fromkeys(("uniform", experts.training_prior(model))))
    scored = experts.evaluate(model, [*main, *SHIFTED], n_episodes=n_episodes, seed=seed)
    rows = []
    for regime in main:
        own, bayes, wm = (scored.get(regime, key) for key in ("model", "bayes", "weighted_majority_best"))
        if own.excess is not None:
            text = f"Bayes predictor {bayes.log_loss.estimate:.4f} nats"
            rows.append(_row(f"{regime}: log-loss above Bayes (nats a round)", own.excess, text))
        if regime in scored.divergences:
            text = "expected excess, by the KL divergence from the Bayes predictor"
            rows.append(_row(f"{regime}: KL from Bayes (nats a round)", scored.divergences[regime], text))
        text = f"Bayes {bayes.accuracy.estimate:.4f}, weighted majority at its best eta {wm.accuracy.estimate:.4f}"
        rows.append(_row(f"{regime}: accuracy", own.accuracy, text))
    for regime in (*main, *SHIFTED):
        beside = {
            "Bayes, training prior": scored.get(regime, "bayes_training"),
            "Bayes, own prior": scored.get(regime, "bayes"),
            "weighted majority, best eta": scored.get(regime, "weighted_majority_best"),
        }
        text = ", ".join(f"{name} {score.regret.estimate:.2f}" for name, score in beside.items())
        rows.append(_row(f"{regime}: regret after 100 rounds", scored.get(regime).regret, text))
    few = max(2, n_episodes // 8)
    (first, *late), n_rounds = WINDOWS, WINDOWS[-1][1]
    long = lengths.evaluate(model, n_episodes=few, n_rounds=n_rounds, windows=WINDOWS, seed=seed)
    for metric, name in (("excess_log_loss", "log-loss above Bayes"), ("divergence", "KL from Bayes")):
        if (experts.MODEL, metric, *first) not in long.intervals:
            continue
        text = f"{long.get(metric, *first).estimate:.4f} in rounds {first[0]}-{first[1]} of the same episodes"
        for start, stop in late:
            what = f"uniform: {name}, rounds {start}-{stop} of {n_rounds:,} (nats a round)"
            rows.append(_row(what, long.get(metric, start, stop), text))
    n_experts = experts.n_experts_of(model)
    episodes = expert_tasks.sample(max(2, n_episodes // 4), 100, n_experts, seed=seed + 1)
    control = latent_control(model, episodes, seed=seed)
    vote, swapped = control.accuracy["majority_vote"].estimate, control.accuracy["swapped"].estimate
    text = f"majority vote {vote:.4f}; latents of another episode {swapped:.4f}"
    rows.append(_row("uniform: accuracy with the latent cut", control.accuracy["cut"], text))
    return rows


def _qlearning(model: HookedLatentTransformer, n_episodes: int, seed: int) -> list[Row]:
    scored = qlearning.evaluate(model, ["grid"], n_episodes=n_episodes, seed=seed)
    own, chance = scored.get("grid"), scored.get("grid", "chance")

    def value(quantity: str) -> float:
        return own.intervals[quantity, "all"].estimate

    gamma0 = f"gamma = 0 table {value('untied_gamma0'):.4f}"
    ties = f"perfect learner {value('random_ties_ceiling'):.4f}, gamma = 0 table {value('random_ties_gamma0'):.4f}"
    disputed = (
        f"follows the gamma = 0 table in {value('disputed_gamma0'):.3f}; a uniform choice "
        f"{chance.intervals['disputed', 'all'].estimate:.3f}; {own.n_steps['disputed', 'all']} steps"
    )
    rows = [
        _row("grid: agreement, untied steps", own.intervals["untied", "all"], gamma0),
        _row("grid: agreement, all steps, random ties", own.intervals["random_ties", "all"], ties),
        _row("grid: agreement where the tables disagree", own.intervals["disputed", "all"], disputed),
        _row(
            "grid: cross-entropy above its floor (nats)",
            own.intervals["cross_entropy_excess", "all"],
            f"floor {value('cross_entropy_floor'):.4f}",
        ),
    ]
    batches = qlearning.sample(model, "grid", n_episodes, seed=seed)
    choices = [np.asarray(rollout(model, batch).choices.numpy(force=True)) for batch in batches]
    followed = followed_discount(choices, batches, table=qlearning.reference_table(model), seed=seed)
    rows.append(_row("grid: discount that its choices follow best", followed.best, "the data's is .9"))
    read = tables.evaluate(model, n_episodes=max(tables.N_FOLDS * 3, n_episodes // 2), seed=seed)
    blank = read.rates.get("untrained model")
    for rate in ("alpha", "gamma"):
        estimate = getattr(read.rates["model"], rate)
        beside = "exact read-out" if blank is None else f"untrained model {getattr(blank, rate).estimate:.3f}"
        rows.append(_row(f"effective {rate} of the table in its latents", estimate, beside))
    beside = f"untrained model {read.r2['untrained model'].estimate:.3f}" if blank is not None else "exact read-out"
    rows.append(_row("R2 of the Q-table decoded from its latents", read.r2["model"], beside))
    few, horizons = max(6, n_episodes // 8), play.HORIZONS
    played = play.evaluate(model, PLAYED, n_episodes=few, horizons=horizons, seed=seed)
    for regime in PLAYED:
        for horizon in horizons:
            score = {key: played.get(regime, horizon, key).score for key in play.PLAYERS}
            what = f"{regime}: normalised return over {horizon} rounds"
            text = f"greedy {score['greedy'].estimate:.3f}, random {score['random'].estimate:.3f}"
            rows.append(_row(what, score[experts.MODEL], text))
            tied = f"breaking ties at random {score['random-ties'].estimate:.3f}"
            text = f"epsilon-greedy {score['epsilon-greedy'].estimate:.3f}, {tied}"
            rows.append(_row(f"{what}, exploring", score[play.EXPLORING], text))
    return rows
