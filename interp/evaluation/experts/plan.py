"""The evaluation of models of expert advice: all tables of ``interp evaluate``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from interp.core.machine import Machine
from interp.evaluation.experts import by_regime
from interp.evaluation.experts.latent import attention_to_experts, latent_control
from interp.evaluation.plan import (
    MODEL,
    EvaluationPlan,
    lacks_attention,
    table_or_note,
)
from interp.model.rollout import rollout
from interp.model.run import limit_rounds
from interp.tasks.experts.episodes import sample


def plan() -> EvaluationPlan:
    """Return the evaluation plan for models of expert advice: which parts are measured, and how
    tables are made from them. The parts are the scores in each regime (distribution of episodes);
    the scores in long episodes; and, on one batch, whether the latent is needed and what heads
    attend to.
    """
    return EvaluationPlan(
        lambda model: [*by_regime.fitting_regimes(model), _LONG_PART, _BATCH_PART],
        _measure_part,
        _make_tables,
        min_episodes=30,
        explained=_EXPLAINED,
    )


_EXPLAINED = (
    "Each row is a regime. Numbers are regrets: mistakes in an episode beyond those of its best expert. "
    "Fewer are better. "
    "The first column is the model, the next ones are baselines that play the same episodes. "
    "The last column is the share of rounds in which the model is right."
)
_LONG_PART, _BATCH_PART = "long episodes", "one batch"  # names of the parts that are not regimes
_N_ATTENDED = 64  # most episodes that attention is averaged over


def _measure_part(model: Machine, part: str, n_episodes: int, seed: int) -> Any:
    """Compute one part of the evaluation: the scores of a regime, those of long episodes, or the
    tables about the latent and attention.

    Args:
        model: the model.
        part: name of a regime, :data:`_LONG` or :data:`_BATCH`.
        n_episodes: number of episodes per regime; long episodes use half of it.
        seed: seed of the episodes.

    Returns:
        A table, or several tables by name.
    """
    if part == _LONG_PART:
        few = max(2, n_episodes // 2)
        lack = describe_lacking_room(model, by_regime.LONGEST)
        return table_or_note(
            lack, lambda: by_regime.over_lengths(model, n_episodes=few, seed=seed + 1).to_frame()
        )
    if part == _BATCH_PART:
        return _measure_batch(model, n_episodes, seed)
    scores = by_regime.evaluate(model, [part], n_episodes=n_episodes, seed=seed)
    return {**scores, "regimes": scores["regimes"].to_frame()}


def describe_lacking_room(model: Machine, n_rounds: int) -> str:
    """Return a sentence that says that a model cannot run for ``n_rounds`` rounds, and for how many
    rounds its state has room. Return "" if the model can run for ``n_rounds`` rounds.
    """
    n_possible = limit_rounds(model, n_rounds)
    return (
        ""
        if n_possible >= n_rounds
        else f"not applicable: {model.name} has room for {n_possible} rounds, not for {n_rounds:,}"
    )


def _measure_batch(model: Machine, n_episodes: int, seed: int) -> dict[str, pd.DataFrame]:
    """Measure what the latent is needed for, and how much attention goes to each expert, on one
    batch of episodes.

    Args:
        model: the model.
        n_episodes: number of episodes.
        seed: seed of the episodes.

    Returns:
        The tables "latent_control" and "attention".
    """
    episodes = sample(n_episodes, 100, by_regime.n_experts_of(model), seed=seed + 2)
    run = rollout(model, episodes)
    few = episodes.select(slice(_N_ATTENDED))
    known = run if len(few) == len(episodes) else None
    control = latent_control(model, episodes, seed, run)
    attention = table_or_note(
        lacks_attention(model),
        lambda: attention_to_experts(model, few, seed=seed, run=known).to_frame(),
    )
    return {
        "latent_control": control.to_frame(),
        "attention": attention,
    }


def _make_tables(model: Machine, parts: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Return all tables of a model, by name; "summary" has the regrets and the accuracy in each
    regime.

    Args:
        model: the model; not used.
        parts: name of a part -> what :func:`_measure` returned.
    """
    by_name = [part for name, part in parts.items() if name not in (_LONG_PART, _BATCH_PART)]
    frame = pd.concat([part["regimes"] for part in by_name], ignore_index=True)
    # Final regret of every predictor by regime, and the model's accuracy.
    regret = frame[frame["metric"] == "regret"].pivot(
        index="regime", columns="key", values="estimate"
    )
    is_own = (frame["metric"] == "accuracy") & (frame["key"] == MODEL)
    accuracy = frame[is_own].set_index("regime")["estimate"]
    order = [MODEL, *(key for key in by_regime.BASELINES if key in regret)]
    table = regret.loc[frame["regime"].unique(), order].assign(accuracy=accuracy)
    curves = [part["regret_curves"] for part in by_name]
    summary = table.rename_axis(index="regime", columns=None)
    return {
        "summary": summary.reset_index(),
        "regimes": frame,
        "regret_curves": pd.concat(curves, ignore_index=True),
        "lengths": parts[_LONG_PART],
        **parts[_BATCH_PART],
    }
