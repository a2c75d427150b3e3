"""Every table of a model of expert advice: what ``interp evaluate`` writes for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from interp.evaluation.plan import MODEL, joined
from interp.model.rollout import rollout
from interp.model.transformer import HookedLatentTransformer
from interp.tasks.experts.calibration import calibration
from interp.tasks.experts.episodes import sample
from interp.tasks.experts.evaluation import by_regime, lengths
from interp.tasks.experts.evaluation.attention import attention_to_experts
from interp.tasks.experts.evaluation.latent import latent_control
from interp.tasks.experts.predictors import bayes

LONG, BATCH = "long episodes", "one batch"
"""The parts beside the regimes."""
N_ATTENDED = 64
"""Episodes that attention is averaged over, at most."""


def parts(model: HookedLatentTransformer) -> list[str]:
    """The regimes that fit the model, episodes longer than training's, and what is read from one batch of episodes."""
    return [*by_regime.fitting_regimes(model), LONG, BATCH]


def measure(model: HookedLatentTransformer, part: str, n_episodes: int, seed: int) -> Any:
    """Scores of a regime or of long episodes, or the tables that are read from one batch."""
    if part == LONG:
        return lengths.evaluate(model, n_episodes=max(2, n_episodes // 2), seed=seed + 1)
    if part == BATCH:
        return _of_batch(model, n_episodes, seed)
    return by_regime.evaluate(model, [part], n_episodes=n_episodes, seed=seed)


def _of_batch(model: HookedLatentTransformer, n_episodes: int, seed: int) -> dict[str, pd.DataFrame]:
    """What the latent is needed for, calibration, and attention to experts, by the table's name."""
    episodes = sample(n_episodes, 100, by_regime.n_experts_of(model), seed=seed + 2)
    run = rollout(model, episodes)
    control = latent_control(model, episodes, seed, run)
    reliability = [
        calibration(predictions, episodes, seed=seed)
        for predictions in (run.predictions.double().numpy(force=True), bayes(episodes).predictions)
    ]
    calibrated = [
        result.to_frame().assign(key=key, error=result.error, error_by_chance=result.chance.estimate)
        for key, result in zip((MODEL, "bayes"), reliability, strict=True)
    ]
    few = episodes.select(slice(N_ATTENDED))
    attended = attention_to_experts(model, few, seed=seed, run=run if len(few) == len(episodes) else None)
    return {
        "latent_control": control.to_frame(),
        "calibration": pd.concat(calibrated, ignore_index=True),
        "attention": attended.to_frame(),
    }


def tables(model: HookedLatentTransformer, found: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """All tables of a model of expert advice, by name."""
    by_name = [part for name, part in found.items() if name not in (LONG, BATCH)]
    scored = joined(by_name, "scores", "divergences", "best_etas")
    frame = scored.to_frame()
    return {
        "summary": _wide(frame[frame["metric"].isin(("regret", "accuracy"))]),
        "regimes": frame,
        "regret_curves": scored.curves(),
        "lengths": found[LONG].to_frame(),
        **found[BATCH],
    }


def _wide(frame: pd.DataFrame) -> pd.DataFrame:
    """Final regret of every predictor by regime, and the model's accuracy."""
    regret = frame[frame["metric"] == "regret"].pivot(index="regime", columns="key", values="estimate")
    own = frame[(frame["metric"] == "accuracy") & (frame["key"] == MODEL)].set_index("regime")["estimate"]
    order = [MODEL, *(key for key in by_regime.BASELINES if key in regret)]
    table = regret.loc[frame["regime"].unique(), order].assign(accuracy=own)
    return table.rename_axis(index="regime", columns=None).reset_index()
