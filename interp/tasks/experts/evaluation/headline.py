"""The few numbers that say what a model of expert advice is worth: the rows of its card."""

from __future__ import annotations

from interp.evaluation.plan import MODEL, Row, row
from interp.model.transformer import HookedLatentTransformer
from interp.tasks.experts.episodes import sample
from interp.tasks.experts.evaluation import by_regime, lengths
from interp.tasks.experts.evaluation.latent import latent_control

WINDOWS = ((50, 100), (400, 500), (900, 1000))
"""Rounds of long episodes: the late ones are set beside the early ones."""
_SHIFTED = ("stratified", "flat", "anti-signal")


def rows(model: HookedLatentTransformer, n_episodes: int, seed: int) -> list[Row]:
    """The claims about a model of expert advice; see :func:`interp.evaluation.suite.headline`."""
    main = list(dict.fromkeys(("uniform", *by_regime.training_prior(model))))
    scored = by_regime.evaluate(model, [*main, *_SHIFTED], n_episodes=n_episodes, seed=seed)
    claims = []
    for regime in main:
        own, bayes, trained, wm = (
            scored.get(regime, key) for key in ("model", "bayes", "bayes_training", "weighted_majority_best")
        )
        if own.excess is not None:
            text = f"Bayes predictor {bayes.log_loss.estimate:.4f} nats"
            if len(main) > 1 and trained.excess is not None:
                text += f", that of the training prior {trained.excess.estimate:.4f} above it"
            claims.append(row(f"{regime}: log-loss above Bayes (nats a round)", own.excess, text))
        if regime in scored.divergences:
            text = "expected excess, by the KL divergence from the Bayes predictor"
            claims.append(row(f"{regime}: KL from Bayes (nats a round)", scored.divergences[regime], text))
        text = f"Bayes {bayes.accuracy.estimate:.4f}, weighted majority at its best eta {wm.accuracy.estimate:.4f}"
        claims.append(row(f"{regime}: accuracy", own.accuracy, text))
    for regime in (*main, *_SHIFTED):
        beside = {
            "Bayes, training prior": scored.get(regime, "bayes_training"),
            "Bayes, own prior": scored.get(regime, "bayes"),
            "weighted majority, best eta": scored.get(regime, "weighted_majority_best"),
        }
        text = ", ".join(f"{name} {score.regret.estimate:.2f}" for name, score in beside.items())
        claims.append(row(f"{regime}: regret after 100 rounds", scored.get(regime).regret, text))
    few = max(2, n_episodes // 8)
    (first, *late), n_rounds = WINDOWS, WINDOWS[-1][1]
    long = lengths.evaluate(model, n_episodes=few, n_rounds=n_rounds, windows=WINDOWS, seed=seed)
    for metric, name in (("excess_log_loss", "log-loss above Bayes"), ("divergence", "KL from Bayes")):
        if (MODEL, metric, *first) not in long.intervals:
            continue
        text = f"{long.get(metric, *first).estimate:.4f} in rounds {first[0]}-{first[1]} of the same episodes"
        for start, stop in late:
            what = f"uniform: {name}, rounds {start}-{stop} of {n_rounds:,} (nats a round)"
            claims.append(row(what, long.get(metric, start, stop), text))
    n_experts = by_regime.n_experts_of(model)
    episodes = sample(max(2, n_episodes // 4), 100, n_experts, seed=seed + 1)
    control = latent_control(model, episodes, seed=seed)
    vote, swapped = control.accuracy["majority_vote"].estimate, control.accuracy["swapped"].estimate
    text = f"majority vote {vote:.4f}; latents of another episode {swapped:.4f}"
    claims.append(row("uniform: accuracy with the latent cut", control.accuracy["cut"], text))
    return claims
