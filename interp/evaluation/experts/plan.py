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
        parts=lambda model: [*by_regime.fitting_regimes(model), _LONG_PART, _BATCH_PART],
        measure=_measure_part,
        tables=_make_tables,
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
        part: name of a regime, :data:`_LONG_PART` or :data:`_BATCH_PART`.
        n_episodes: number of episodes per regime; long episodes use half of it.
        seed: seed of the episodes.

    Returns:
        A table, or several tables by name.
    """
    if part == _LONG_PART:
        n_long = max(2, n_episodes // 2)
        return table_or_note(
            describe_lacking_room(model, by_regime.LONGEST),
            lambda: by_regime.over_lengths(model, n_episodes=n_long, seed=seed + 1).to_frame(),
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
    if n_possible >= n_rounds:
        return ""
    return f"not applicable: {model.name} has room for {n_possible} rounds, not for {n_rounds:,}"


def _measure_batch(model: Machine, n_episodes: int, seed: int) -> dict[str, pd.DataFrame]:
    """Measure the accuracy that the model loses if its latents are cut or swapped, and how much
    attention goes to each expert, on one batch of episodes.

    Args:
        model: the model.
        n_episodes: number of episodes.
        seed: seed of the episodes.

    Returns:
        The tables "latent_control" and "attention".
    """
    # Seeds `seed` and `seed + 1` sample the episodes of the other parts.
    episodes = sample(n_episodes, 100, by_regime.n_experts_of(model), seed=seed + 2)
    run = rollout(model, episodes)
    # Attention is measured on a few episodes. If these are not all, they are run again (None).
    first_episodes = episodes.select(slice(_N_ATTENDED))
    run_of_first = run if len(first_episodes) == len(episodes) else None
    attention = table_or_note(
        lacks_attention(model),
        lambda: attention_to_experts(model, first_episodes, seed=seed, run=run_of_first).to_frame(),
    )
    control = latent_control(model, episodes, seed, run)
    return {"latent_control": control.to_frame(), "attention": attention}


def _make_tables(model: Machine, parts: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Return all tables of a model, by name; "summary" has the regrets and the accuracy in each
    regime.

    Args:
        model: the model; not used.
        parts: name of a part of the evaluation, such as a regime -> its result, from
            :func:`_measure_part`.
    """
    # All parts but two are regimes.
    of_regimes = [part for name, part in parts.items() if name not in (_LONG_PART, _BATCH_PART)]
    scores = pd.concat([part["regimes"] for part in of_regimes], ignore_index=True)
    curves = pd.concat([part["regret_curves"] for part in of_regimes], ignore_index=True)
    # The summary: final regret of every predictor by regime, and the model's accuracy.
    is_regret = scores["metric"] == "regret"
    regret = scores[is_regret].pivot(index="regime", columns="key", values="estimate")
    is_model_accuracy = (scores["metric"] == "accuracy") & (scores["key"] == MODEL)
    accuracy = scores[is_model_accuracy].set_index("regime")["estimate"]
    # In the order in which regimes were measured; pivot sorts by name.
    in_order = regret.loc[scores["regime"].unique(), [MODEL, *by_regime.BASELINES]]
    summary = in_order.assign(accuracy=accuracy).rename_axis(index="regime", columns=None)
    return {
        "summary": summary.reset_index(),
        "regimes": scores,
        "regret_curves": curves,
        "lengths": parts[_LONG_PART],
        **parts[_BATCH_PART],
    }
