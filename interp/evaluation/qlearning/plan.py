r"""The evaluation of models of Q-learning: agreement with the Q-table, and returns when they act.

Agreement with ``argmax_a Q(s_{t+1}, a)`` (:mod:`interp.evaluation.qlearning.agreement`) is measured
over all sizes of MDPs that the model supports, in episodes of 10 to 50 rounds. Controls are *repeat
last* (the action just taken), *chance* (a random action), and the model with *cut* latents, reset
in every round. Some models read back the action that they chose in the same round (the token
``a*``). ``commit`` says which action they read: "own" is the model's, "target" the Q-table's, which
leaks the answer into the state. NOT evidence of how the choice is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd

from interp.core.machine import Machine
from interp.evaluation.plan import (
    MODEL,
    EvaluationPlan,
    cut,
    predictions_of,
)
from interp.evaluation.qlearning import returns
from interp.evaluation.qlearning.agreement import agreement, followed_discount
from interp.model.rollout import rollout
from interp.results.measure import Scores
from interp.stats.intervals import Interval
from interp.support.checks import checked
from interp.support.errors import require
from interp.support.provenance import provenance
from interp.tasks.qlearning import sampling
from interp.tasks.qlearning.episodes import MDPEpisodes
from interp.tasks.qlearning.layout import get_size_ranges
from interp.tasks.qlearning.mdps import EVALUATION, SHIFTS

_EVALUATED_REGIMES = tuple(dict.fromkeys(("grid", *EVALUATION, *SHIFTS, "chain", "ladder")))
_CONTROLS = {
    "cut": "latents cut",
    "repeat_last": "repeat the last action",
    "chance": "uniform choice",
}


def _list_sizes(model: Machine) -> list[tuple[int, int]]:
    """Return a list of all pairs (n_states, n_actions) that a model supports, with at least two
    states and two actions.
    """
    (least_states, most_states), (least_actions, most_actions) = get_size_ranges(model)
    states = range(max(least_states, 2), most_states + 1)
    actions = range(max(least_actions, 2), most_actions + 1)
    return list(product(states, actions))


@checked
def sample(
    model: Machine,
    regime: str = "grid",
    n_episodes: int = 256,
    n_rounds: tuple[int, int] = (10, 50),
    seed: int = 1,
) -> list[MDPEpisodes]:
    """Sample new episodes of all sizes of MDPs that a model supports, one batch per size.

    Batches have different numbers of rounds, evenly spaced over a range. The episodes' field
    ``noise``, a random draw per round that some models read to explore, is 0, so that these models
    choose greedily.

    Args:
        model: the model.
        regime: name of the distribution from which the MDPs are sampled.
        n_episodes: number of episodes over all sizes; rounded up to the same number for each size.
        n_rounds: lowest and highest number of rounds.
        seed: seed of the episodes.
    """
    low, high = n_rounds
    require(
        1 <= low <= high,
        f"n_rounds must be a range (low, high) with 1 <= low <= high, got {n_rounds}",
    )
    sizes = _list_sizes(model)
    rng = np.random.default_rng([seed, 0])
    evenly_spaced = np.linspace(low, high, len(sizes)).round()
    lengths = rng.permutation(evenly_spaced.astype(int))
    seeds = rng.integers(2**31, size=len(sizes))
    per_size = -(-n_episodes // len(sizes))  # rounded up
    batches = []
    for i, (n_states, n_actions) in enumerate(sizes):
        batch = sampling.sample(
            per_size, int(lengths[i]), n_states, n_actions, regime=regime, seed=int(seeds[i])
        )
        batches.append(replace(batch, noise=np.zeros_like(batch.states)))
    return batches


def reference_table(model: Machine) -> Literal["after", "before"]:
    """Return which Q-table a model's choices are compared with: "before" or "after" the round's
    update. It is "before" for a handwired model, which chooses before it updates. It is "after" for
    other models, since the targets in training come from this table.
    """
    return "before" if model.is_handwired else "after"


@checked
def evaluate(
    model: Machine,
    regimes: Sequence[str] = _EVALUATED_REGIMES,
    *,
    n_episodes: int = 256,
    n_rounds: tuple[int, int] = (10, 50),
    commit: str = "own",
    seed: int = 1,
) -> Scores:
    """Measure in each regime (distribution of MDPs) how often a model, and three controls, choose
    as tabular Q-learning does.

    The controls are the model with its latents reset in every round ("cut"), the action just taken
    ("repeat_last") and a random action ("chance").

    Args:
        model: the model.
        regimes: names of the regimes, at least one.
        n_episodes: number of episodes per regime, over all sizes of MDPs.
        n_rounds: lowest and highest number of rounds.
        commit: which action the model reads as its last choice (token ``a*``): "own" (the model's)
            or "target" (that of the Q-table).
        seed: seed of the episodes.

    Returns:
        Scores by regime, predictor ("model", "cut", "repeat_last" or "chance"), quantity and phase
        (:func:`interp.evaluation.qlearning.agreement.agreement` explains the last two). "untied"
        over "all" rounds, for example, is the share of rounds with a single greedy action in the
        Q-table in which the predictor chooses this action.
    """
    require(regimes, "no regime to evaluate on; give at least one")
    table = reference_table(model)
    # Key (regime, predictor, quantity, phase) -> the score, and further cells of its row.
    numbers: dict[tuple[Any, ...], Interval] = {}
    beside: dict[tuple[Any, ...], dict[str, Any]] = {}
    for regime in regimes:
        batches = sample(model, regime, n_episodes, n_rounds, seed)
        for key, choices in _compute_predictions(model, batches, commit, seed).items():
            scores = agreement(choices, batches, table=table, seed=seed)
            is_model = key in (MODEL, "cut")
            labels = {
                "predictor": _CONTROLS.get(key, model.name),
                "commit": commit if is_model else "",
            }
            for name, number in scores.numbers.items():
                numbers[regime, key, *name] = number
                beside[regime, key, *name] = {**scores.beside[name], **labels}
    settings = provenance(
        model,
        commit=commit,
        table=table,
        n_episodes=sum(map(len, batches)),
        n_rounds=list(n_rounds),
        sizes=_list_sizes(model),
        seed=seed,
    )
    return Scores(("regime", "key", "quantity", "phase"), numbers, settings, beside)


def _compute_predictions(
    model: Machine, batches: Sequence[MDPEpisodes], commit: str, seed: int
) -> dict[str, list[np.ndarray]]:
    """Return the predictions of the model and of its controls: key of a predictor -> one array per
    batch, of choices ``[episode, round]`` or of probabilities ``[episode, round, action]``.

    The controls are the model with its latents reset in every round ("cut"), the last action
    ("repeat_last") and a random action ("chance").

    Args:
        model: the model.
        batches: the episodes.
        commit: which action the model reads back as its choice: "own" (the model's) or "target"
            (the Q-table's).
        seed: seed of random choices.
    """
    rng = np.random.default_rng([seed, 1])  # another stream than that of the sampled episodes
    predictions: dict[str, list[np.ndarray]] = {
        key: [] for key in (MODEL, "cut", "repeat_last", "chance")
    }
    for batch in batches:
        run = rollout(model, batch, commit=commit)
        # Every round's latents are reset, so that nothing is left to propagate.
        without_latents = rollout(
            model, batch, commit=commit, fwd_hooks=[cut(model)], propagate=False, clean=run
        )
        predictions[MODEL].append(predictions_of(run))
        predictions["cut"].append(predictions_of(without_latents))
        predictions["repeat_last"].append(batch.actions)
        predictions["chance"].append(rng.integers(batch.n_actions, size=batch.actions.shape))
    return predictions


# Every table of a model: what ``interp evaluate`` writes.

_PLAYED, _DISCOUNT = "played: ", "followed discount"
"""Prefix of the names of parts in which the model plays; name of the part for the discount."""
_EXPLAINED = (
    "Each row is a regime. 'untied' is how often the model chooses as Q-learning's table where the table has no tie. "
    "'random ties' is the same over all rounds, with ties broken at random; its ceiling is a perfect learner's. "
    "'disputed' is the same where a table that never looks ahead (gamma0) chooses otherwise. "
    "'cross entropy excess' is in nats above a perfect learner. "
    "'return' is what a player earns: 0 is a random policy, 1 the optimal one."
)
_SUMMARISED_QUANTITIES = (
    "untied",
    "untied_gamma0",
    "random_ties",
    "random_ties_ceiling",
    "disputed",
    "disputed_gamma0",
)


def _measure_part(model: Machine, part: str, n_episodes: int, seed: int) -> Any:
    """Compute one part of the evaluation: in a regime, the agreement with Q-learning or the rewards
    that the model earns when it plays; or the discount that its choices follow.

    Args:
        model: the model.
        part: name of the part, one of :func:`_list_parts`.
        n_episodes: number of episodes per regime; play uses half of it.
        seed: seed of the episodes.

    Returns:
        A table, or for play several tables by name.
    """
    if part.startswith(_PLAYED):
        regime = part.removeprefix(_PLAYED)
        scores = returns.evaluate(model, [regime], n_episodes=n_episodes // 2, seed=seed + 2)
        return {name: result.to_frame() for name, result in scores.items()}
    if part == _DISCOUNT:
        return find_discount(model, n_episodes, seed).to_frame().assign(commit="own")
    return evaluate(model, [part], n_episodes=n_episodes, seed=seed).to_frame()


def find_discount(model: Machine, n_episodes: int, seed: int) -> Scores:
    """Estimate the discount factor that a model's choices follow in MDPs of the regime "grid". For
    each of several discounts, learn a Q-table with this discount, and measure the share of choices
    that are greedy in the table.

    Args:
        model: the model.
        n_episodes: number of episodes over all sizes of MDPs.
        seed: seed of the episodes.

    Returns:
        Scores by discount, with the discount of the highest share in the column ``best``
        (:func:`interp.evaluation.qlearning.agreement.followed_discount`).
    """
    batches = sample(model, "grid", n_episodes, seed=seed)
    choices = [np.asarray(rollout(model, batch).choices.numpy(force=True)) for batch in batches]
    return followed_discount(choices, batches, table=reference_table(model), seed=seed)


def _make_tables(model: Machine, measured: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Return all tables of a model, by name; "summary" has one row per regime.

    Args:
        model: the model; not used.
        measured: name of a part of the evaluation, such as a regime -> its result, from
            :func:`_measure_part`.
    """
    agreed = pd.concat([measured[regime] for regime in _EVALUATED_REGIMES], ignore_index=True)
    played = [part for name, part in measured.items() if name.startswith(_PLAYED)]
    earned = pd.concat([part["returns"] for part in played], ignore_index=True)
    rates = pd.concat([part["reward_rates"] for part in played], ignore_index=True)
    return {
        "summary": _summarise(agreed, earned),
        "agreement": agreed,
        "followed_discount": measured[_DISCOUNT],
        "returns": earned,
        "reward_rates": rates,
    }


def _summarise(agreed: pd.DataFrame, earned: pd.DataFrame) -> pd.DataFrame:
    """Return a table with one row per regime: the model's agreement with the Q-table, and
    normalised returns of the model and of other agents over the longest horizon.

    Args:
        agreed: scores of agreement.
        earned: returns of the model and of other agents.
    """
    of_model = agreed[(agreed["key"] == MODEL) & (agreed["phase"] == "all")]
    regimes = of_model["regime"].unique()
    by_quantity = of_model.pivot(index="regime", columns="quantity", values="estimate")
    # In the order in which regimes were measured; pivot sorts by name.
    table = by_quantity.loc[regimes, [*_SUMMARISED_QUANTITIES, "cross_entropy_excess"]]
    is_longest = earned["horizon"] == earned["horizon"].max()
    longest = earned[is_longest & (earned["quantity"] == "score")]
    for key in (MODEL, "greedy", returns.EXPLORING, "epsilon-greedy", "random-ties"):
        of_player = longest[longest["key"] == key]
        table[f"return, {key}"] = of_player.set_index("regime")["estimate"]
    table["commit"] = "own"  # what the model reads back as its choice
    return table.rename_axis(index="regime", columns=None).reset_index()


def plan() -> EvaluationPlan:
    """Return the evaluation plan for models of Q-learning: which parts are measured (agreement with
    the Q-table in each regime, the discount that choices follow, and returns when the model acts),
    and how tables are made from them.
    """
    return EvaluationPlan(
        parts=_list_parts,
        measure=_measure_part,
        tables=_make_tables,
        min_episodes=30,
        explained=_EXPLAINED,
    )


def _list_parts(model: Machine) -> list[str]:
    """Return the names of the parts of the evaluation: first the regimes in which agreement is
    measured, then "followed discount", then "played: REGIME" for each regime that the model plays.

    Args:
        model: the model; not used.
    """
    played = [f"{_PLAYED}{regime}" for regime in returns.PLAYED]
    return [*_EVALUATED_REGIMES, _DISCOUNT, *played]
