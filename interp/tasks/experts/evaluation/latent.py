"""What the latent is needed for: accuracy when it is cut, or taken from another episode.

Each round is run with its latents intact; *cut*, replaced by the initial latents; and *swapped*, replaced by those that
another episode holds at the same round (as usual as the right ones, but of other experts). If the latent is the only
channel between rounds, a cut model knows nothing of the past, and can be no better than the best predictor without
memory: for experts whose accuracies are exchangeable with mean above 1/2, a majority vote. Its accuracy stands beside.

Differences are paired by episode. NOT evidence of what the latent says, only that the prediction depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from interp.checks import checked
from interp.errors import require
from interp.evaluation.plan import cut, swap
from interp.model.rollout import rollout
from interp.model.run import Rollout
from interp.model.transformer import HookedLatentTransformer
from interp.provenance import provenance
from interp.statistics import Interval, mean_interval
from interp.tasks.experts import regret
from interp.tasks.experts.episodes import ExpertEpisodes
from interp.tasks.experts.predictors import bayes, majority_vote


@dataclass(frozen=True)
class LatentControl:
    """Accuracy with latents intact, cut and swapped, beside two references.

    Attributes:
        accuracy: "intact", "cut", "swapped", "majority_vote" and "bayes" -> share of rounds right.
        lost: "cut" and "swapped" -> intact minus it, paired by episode.
        above_memoryless: accuracy of the cut model minus the majority vote's, paired by episode.
        settings: model, regime, sizes, seed, versions.
    """

    accuracy: dict[str, Interval]
    lost: dict[str, Interval]
    above_memoryless: Interval
    settings: dict[str, Any] = field(repr=False)

    def to_frame(self) -> pd.DataFrame:
        """One row per quantity."""
        rows = [{"quantity": f"accuracy, {name}", **vars(value)} for name, value in self.accuracy.items()]
        rows += [{"quantity": f"lost when {name}", **vars(value)} for name, value in self.lost.items()]
        rows.append({"quantity": "cut minus majority vote", **vars(self.above_memoryless)})
        return pd.DataFrame(rows)


@checked
def latent_control(
    model: HookedLatentTransformer, episodes: ExpertEpisodes, seed: int = 0, run: Rollout | None = None
) -> LatentControl:
    """Run ``model`` over ``episodes`` with its latents intact, cut and swapped.

    Args:
        run: the rollout of ``episodes`` with latents intact, where it is known.

    Raises:
        InputError: episodes that the model cannot read, or a single one (nothing to swap with).
    """
    require(len(episodes) >= 2, "swapping latents needs at least 2 episodes, got 1")
    clean = rollout(model, episodes) if run is None else run
    runs = {"intact": clean} | {
        name: rollout(model, episodes, fwd_hooks=[hook], propagate=False, clean=clean)
        for name, hook in (("cut", cut(model)), ("swapped", swap()))
    }
    predictions = {name: run.predictions.double().numpy(force=True) for name, run in runs.items()}
    predictions |= {"majority_vote": majority_vote(episodes).predictions, "bayes": bayes(episodes).predictions}
    right = {name: 1 - regret.mistakes(p, episodes).mean(axis=1) for name, p in predictions.items()}
    settings = provenance(
        model=model.config.name, digest=model.digest(), regime=episodes.regime, n_episodes=len(episodes),
        n_rounds=episodes.n_rounds, n_experts=episodes.n_experts, seed=episodes.seed, bootstrap_seed=seed,
    )  # fmt: skip
    return LatentControl(
        accuracy={name: mean_interval(values, seed=seed) for name, values in right.items()},
        lost={name: mean_interval(right["intact"] - right[name], seed=seed) for name in ("cut", "swapped")},
        above_memoryless=mean_interval(right["cut"] - right["majority_vote"], seed=seed),
        settings=settings,
    )
