"""The paper's appendix B checked by simulation, and on a model's own predictions."""

from __future__ import annotations

import numpy as np
import pandas as pd

from interp.model.transformer import HookedLatentTransformer
from interp.provenance import provenance
from interp.tasks.experts import regret, theory
from interp.tasks.experts.episodes import sample
from interp.tasks.experts.evaluation import by_regime
from interp.tasks.experts.predictors import bayes


def checks(model: HookedLatentTransformer, n_episodes: int = 128, seed: int = 0) -> pd.DataFrame:
    """The paper's appendix B, one row per statement: posterior update, gradient, excess log-loss = summed KL.

    The first three are about the algorithm, on simulated episodes. For a learned model the last is also
    measured on its own predictions: summed log-loss above the Bayes predictor against the summed KL from it.
    """
    made = theory.check(seed=seed)
    if not model.is_handwired:
        made.append(excess_is_divergence(model, n_episodes, seed))
    return pd.concat([check.to_frame() for check in made], ignore_index=True)


def excess_is_divergence(model: HookedLatentTransformer, n_episodes: int = 128, seed: int = 0) -> theory.TheoryCheck:
    """A model's summed excess log-loss over the Bayes predictor, which is the true conditional, against the summed KL.

    Equal in expectation; the means may differ by four standard errors.
    """
    episodes = sample(n_episodes, 100, by_regime.n_experts_of(model), seed=seed + 3)
    predictions, best = by_regime.predict(model, episodes), bayes(episodes).predictions
    excess = regret.excess_log_loss(predictions, best, episodes).sum(1)
    divergence = by_regime.divergence(best, predictions).sum(1)
    difference = excess - divergence
    return theory.TheoryCheck(
        f"excess log-loss of {model.config.name} over Bayes = summed KL",
        float(abs(difference.mean())),
        float(4 * difference.std(ddof=1) / np.sqrt(len(difference))),
        float(excess.mean()),
        float(divergence.mean()),
        provenance(model=model.config.name, digest=model.digest(), n_episodes=n_episodes, seed=seed),
    )
