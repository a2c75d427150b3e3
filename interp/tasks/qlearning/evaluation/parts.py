"""Every table of a model of Q-learning: what ``interp evaluate`` writes for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from interp.evaluation.attention import round_attention
from interp.evaluation.lookup import joined
from interp.evaluation.record import MODEL
from interp.model.rollout import rollout
from interp.model.transformer import HookedLatentTransformer
from interp.tasks.qlearning.evaluation import by_regime, playing
from interp.tasks.qlearning.evaluation import tables as rates
from interp.tasks.qlearning.evaluation.discount import followed_discount
from interp.tasks.qlearning.sampling import sample

_PLAYED, _DISCOUNT, _RATES, _CHAIN = "played: ", "followed discount", "effective rates", "attention in a chain"
"""Parts beside the regimes; the first begins the names of those that are played."""
_SUMMARISED = ("untied", "untied_gamma0", "random_ties", "random_ties_ceiling", "disputed", "disputed_gamma0")


def parts(model: HookedLatentTransformer) -> list[str]:
    """Regimes evaluated, the discount followed, effective rates, regimes played, attention in a chain."""
    played = [f"{_PLAYED}{regime}" for regime in playing.PLAYED]
    return [*by_regime.EVALUATED, _DISCOUNT, _RATES, *played, *([_CHAIN] if _serves_a_chain(model) else [])]


def measure(model: HookedLatentTransformer, part: str, n_episodes: int, seed: int) -> Any:
    """Scores of a regime, read or played, or a table."""
    if part.startswith(_PLAYED):
        regimes = [part.removeprefix(_PLAYED)]
        return playing.evaluate(model, regimes, n_episodes=n_episodes // 2, seed=seed + 2)
    if part == _DISCOUNT:
        batches = by_regime.sample(model, "grid", n_episodes, seed=seed)
        choices = [rollout(model, batch).choices.numpy(force=True) for batch in batches]
        followed = followed_discount(choices, batches, table=by_regime.reference_table(model), seed=seed)
        return followed.to_frame().assign(commit="own")
    if part == _RATES:
        return rates.evaluate(model, n_episodes=n_episodes, seed=seed + 1).to_frame()
    if part == _CHAIN:
        chain = sample(16, 50, 4, 2, regime="chain", seed=seed)
        return round_attention(model, chain, rounds=slice(10, None)).assign(commit="own")
    return by_regime.evaluate(model, [part], n_episodes=n_episodes, seed=seed)


def tables(model: HookedLatentTransformer, found: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """All tables of a model of Q-learning, by name."""
    scored = joined([found[regime] for regime in by_regime.EVALUATED], "results")
    played = joined([part for name, part in found.items() if name.startswith(_PLAYED)], "scores", "rates")
    agreement, returns = scored.to_frame(), played.to_frame()
    return {
        "summary": _overview(agreement, returns),
        "agreement": agreement,
        "followed_discount": found[_DISCOUNT],
        "effective_rates": found[_RATES],
        "returns": returns,
        "reward_rates": played.rates_frame(),
        **({"attention_chain": found[_CHAIN]} if _CHAIN in found else {}),
    }


def _serves_a_chain(model: HookedLatentTransformer) -> bool:
    (low_s, high_s), (low_a, high_a) = by_regime.bounds(model)
    return low_s <= 4 <= high_s and low_a <= 2 <= high_a


def _overview(agreement: pd.DataFrame, returns: pd.DataFrame) -> pd.DataFrame:
    """By regime: agreement with its controls, and the normalised return over the longest horizon by agent."""
    own = agreement[(agreement["key"] == MODEL) & (agreement["phase"] == "all")]
    table = own.pivot(index="regime", columns="quantity", values="estimate").loc[own["regime"].unique()]
    table = table[[*_SUMMARISED, "cross_entropy_excess"]]
    longest = returns[(returns["quantity"] == "score") & (returns["horizon"] == returns["horizon"].max())]
    for key in (MODEL, "greedy", playing.EXPLORING, "epsilon-greedy", "random-ties"):
        table[f"return, {key}"] = longest[longest["key"] == key].set_index("regime")["estimate"]
    return table.assign(commit="own").rename_axis(index="regime", columns=None).reset_index()
