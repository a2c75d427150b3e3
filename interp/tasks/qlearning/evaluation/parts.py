"""Every table of a model of Q-learning: what ``interp evaluate`` writes for it."""

from __future__ import annotations

import pandas as pd

from interp.evaluation.attention import round_attention
from interp.evaluation.record import MODEL, Done
from interp.model.rollout import rollout
from interp.model.transformer import HookedLatentTransformer
from interp.tasks.qlearning.evaluation import by_regime, playing, tables
from interp.tasks.qlearning.evaluation.discount import followed_discount
from interp.tasks.qlearning.sampling import sample

_SUMMARISED = ("untied", "untied_gamma0", "random_ties", "random_ties_ceiling", "disputed", "disputed_gamma0")


def n_steps(model: HookedLatentTransformer) -> int:
    """A step for each regime that is evaluated or played, and three more."""
    return len(by_regime.EVALUATED) + len(playing.PLAYED) + 3


def evaluate(model: HookedLatentTransformer, n_episodes: int, seed: int, done: Done) -> dict[str, pd.DataFrame]:
    """All tables of a model of Q-learning, by name."""
    scored = by_regime.evaluate(model, n_episodes=n_episodes, seed=seed, done=done)
    batches = by_regime.sample(model, "grid", n_episodes, seed=seed)
    choices = [rollout(model, batch).choices.numpy(force=True) for batch in batches]
    followed = followed_discount(choices, batches, table=by_regime.reference_table(model), seed=seed)
    done(1)
    rates = tables.evaluate(model, n_episodes=n_episodes, seed=seed + 1)
    done(1)
    played = playing.evaluate(model, n_episodes=n_episodes // 2, seed=seed + 2, done=done)
    agreement, returns = scored.to_frame(), played.to_frame()
    found = {
        "summary": _overview(agreement, returns),
        "agreement": agreement,
        "followed_discount": followed.to_frame().assign(commit="own"),
        "effective_rates": rates.to_frame(),
        "returns": returns,
        "reward_rates": played.rates_frame(),
    }
    (low_s, high_s), (low_a, high_a) = by_regime.bounds(model)
    if low_s <= 4 <= high_s and low_a <= 2 <= high_a:
        chain = sample(16, 50, 4, 2, regime="chain", seed=seed)
        found["attention_chain"] = round_attention(model, chain, rounds=slice(10, None)).assign(commit="own")
    done(1)
    return found


def _overview(agreement: pd.DataFrame, returns: pd.DataFrame) -> pd.DataFrame:
    """By regime: agreement with its controls, and the normalised return over the longest horizon by agent."""
    own = agreement[(agreement["key"] == MODEL) & (agreement["phase"] == "all")]
    table = own.pivot(index="regime", columns="quantity", values="estimate").loc[own["regime"].unique()]
    table = table[[*_SUMMARISED, "cross_entropy_excess"]]
    longest = returns[(returns["quantity"] == "score") & (returns["horizon"] == returns["horizon"].max())]
    for key in (MODEL, "greedy", playing.EXPLORING, "epsilon-greedy", "random-ties"):
        table[f"return, {key}"] = longest[longest["key"] == key].set_index("regime")["estimate"]
    return table.assign(commit="own").rename_axis(index="regime", columns=None).reset_index()
