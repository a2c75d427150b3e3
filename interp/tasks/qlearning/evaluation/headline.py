"""The few numbers that say what a model of Q-learning is worth: the rows of its card."""

from __future__ import annotations

import numpy as np

from interp.decoder import N_FOLDS
from interp.evaluation.record import MODEL, Row, row
from interp.model.rollout import rollout
from interp.model.transformer import HookedLatentTransformer
from interp.tasks.qlearning.evaluation import by_regime, playing, tables
from interp.tasks.qlearning.evaluation.discount import followed_discount

PLAYED = ("grid", "ladder", "chain")


def rows(model: HookedLatentTransformer, n_episodes: int, seed: int) -> list[Row]:
    """The claims about a model of Q-learning; see :func:`interp.evaluation.suite.headline`."""
    scored = by_regime.evaluate(model, ["grid"], n_episodes=n_episodes, seed=seed)
    own, chance = scored.get("grid"), scored.get("grid", "chance")

    def value(quantity: str) -> float:
        return own.intervals[quantity, "all"].estimate

    gamma0 = f"gamma = 0 table {value('untied_gamma0'):.4f}"
    ties = f"perfect learner {value('random_ties_ceiling'):.4f}, gamma = 0 table {value('random_ties_gamma0'):.4f}"
    disputed = (
        f"follows the gamma = 0 table in {value('disputed_gamma0'):.3f}; a uniform choice "
        f"{chance.intervals['disputed', 'all'].estimate:.3f}; {own.n_steps['disputed', 'all']} steps"
    )
    claims = [
        row("grid: agreement, untied steps", own.intervals["untied", "all"], gamma0),
        row("grid: agreement, all steps, random ties", own.intervals["random_ties", "all"], ties),
        row("grid: agreement where the tables disagree", own.intervals["disputed", "all"], disputed),
        row(
            "grid: cross-entropy above its floor (nats)",
            own.intervals["cross_entropy_excess", "all"],
            f"floor {value('cross_entropy_floor'):.4f}",
        ),
    ]
    batches = by_regime.sample(model, "grid", n_episodes, seed=seed)
    choices = [np.asarray(rollout(model, batch).choices.numpy(force=True)) for batch in batches]
    followed = followed_discount(choices, batches, table=by_regime.reference_table(model), seed=seed)
    claims.append(row("grid: discount that its choices follow best", followed.best, "the data's is .9"))
    read = tables.evaluate(model, n_episodes=max(3 * N_FOLDS, n_episodes // 2), seed=seed)
    blank = read.rates.get("untrained model")
    for rate in ("alpha", "gamma"):
        estimate = getattr(read.rates["model"], rate)
        beside = "exact read-out" if blank is None else f"untrained model {getattr(blank, rate).estimate:.3f}"
        claims.append(row(f"effective {rate} of the table in its latents", estimate, beside))
    beside = f"untrained model {read.r2['untrained model'].estimate:.3f}" if blank is not None else "exact read-out"
    claims.append(row("R2 of the Q-table decoded from its latents", read.r2["model"], beside))
    few, horizons = max(6, n_episodes // 8), playing.HORIZONS
    played = playing.evaluate(model, PLAYED, n_episodes=few, horizons=horizons, seed=seed)
    for regime in PLAYED:
        for horizon in horizons:
            score = {key: played.get(regime, horizon, key).score for key in playing.PLAYERS}
            what = f"{regime}: normalised return over {horizon} rounds"
            text = f"greedy {score['greedy'].estimate:.3f}, random {score['random'].estimate:.3f}"
            claims.append(row(what, score[MODEL], text))
            tied = f"breaking ties at random {score['random-ties'].estimate:.3f}"
            text = f"epsilon-greedy {score['epsilon-greedy'].estimate:.3f}, {tied}"
            claims.append(row(f"{what}, exploring", score[playing.EXPLORING], text))
    return claims
