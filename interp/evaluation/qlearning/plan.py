r"""What models of Q-learning are worth: agreement with the table, effective rates, returns when they act.

Agreement with ``argmax_a Q(s_{t+1}, a)`` (:mod:`interp.evaluation.qlearning.agreement`) is measured over all sizes that
the model serves, with lengths spread evenly over 10 to 50 rounds. Controls are *repeat last* (the action just taken),
*chance* (a uniform draw), and the model with its latents *cut*. Where a round holds the model's own choice, ``commit``
says whose was fed: "target", the table's, leaks the answer into the state. NOT evidence of how the choice is made.
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
    Row,
    cut,
    lacks_attention,
    predictions_of,
    round_attention,
    row,
    unless,
)
from interp.evaluation.qlearning import rates, returns
from interp.evaluation.qlearning.agreement import agreement, followed_discount
from interp.model.rollout import rollout
from interp.results.measure import Scores
from interp.stats.decoder import N_FOLDS
from interp.stats.intervals import Interval
from interp.support.checks import checked
from interp.support.errors import require
from interp.support.provenance import provenance
from interp.tasks.qlearning import sampling
from interp.tasks.qlearning.episodes import MDPEpisodes
from interp.tasks.qlearning.layout import served, serves
from interp.tasks.qlearning.mdps import EVALUATION, SHIFTS

_EVALUATED = tuple(dict.fromkeys(("grid", *EVALUATION, *SHIFTS, "chain", "ladder")))
_CONTROLS = {
    "cut": "latents cut",
    "repeat_last": "repeat the last action",
    "chance": "uniform choice",
}


def _sizes(model: Machine) -> list[tuple[int, int]]:
    """Every (n_states, n_actions) that a model serves and that holds a choice."""
    (low_s, high_s), (low_a, high_a) = served(model)
    return [
        (s, a)
        for s, a in product(range(low_s, high_s + 1), range(low_a, high_a + 1))
        if s > 1 and a > 1
    ]


@checked
def sample(
    model: Machine,
    regime: str = "grid",
    n_episodes: int = 256,
    n_rounds: tuple[int, int] = (10, 50),
    seed: int = 1,
) -> list[MDPEpisodes]:
    """Fresh episodes over all sizes that a model serves, one batch per size, lengths spread evenly over a range.

    A model that reads each round's draw is told to choose greedily.
    """
    low, high = n_rounds
    require(
        1 <= low <= high,
        f"n_rounds must be a range (low, high) with 1 <= low <= high, got {n_rounds}",
    )
    sizes = _sizes(model)
    rng = np.random.default_rng([seed, 0])
    lengths = rng.permutation(np.linspace(low, high, len(sizes)).round().astype(int))
    batches = [
        sampling.sample(
            -(-n_episodes // len(sizes)), int(length), s, a, regime=regime, seed=int(stream)
        )
        for (s, a), length, stream in zip(
            sizes, lengths, rng.integers(2**31, size=len(sizes)), strict=True
        )
    ]
    return [replace(batch, noise=np.zeros_like(batch.states)) for batch in batches]


def reference_table(model: Machine) -> Literal["after", "before"]:
    """The table to compare with: a handwired model chooses before it updates; a learned one was taught "after"."""
    return "before" if model.is_handwired else "after"


@checked
def evaluate(
    model: Machine,
    regimes: Sequence[str] = _EVALUATED,
    *,
    n_episodes: int = 256,
    n_rounds: tuple[int, int] = (10, 50),
    commit: str = "own",
    seed: int = 1,
) -> Scores:
    """Agreement of a model and of three controls with tabular Q-learning, regime by regime.

    ``n_episodes`` are per regime, over all sizes; ``commit`` says whose a* is fed, "own" or "target".
    """
    require(len(regimes) > 0, "no regime to evaluate on; give at least one")
    numbers: dict[tuple[Any, ...], Interval] = {}
    beside: dict[tuple[Any, ...], dict[str, Any]] = {}
    table = reference_table(model)
    for regime in regimes:
        batches = sample(model, regime, n_episodes, n_rounds, seed)
        runs, rng = (
            [rollout(model, batch, commit=commit) for batch in batches],
            np.random.default_rng([seed, 1]),
        )
        forgetful = [
            rollout(model, batch, commit=commit, fwd_hooks=[cut(model)], propagate=False, clean=run)
            for batch, run in zip(batches, runs, strict=True)
        ]
        predictions: dict[str, list[np.ndarray]] = {
            MODEL: [predictions_of(run) for run in runs],
            "cut": [predictions_of(run) for run in forgetful],
            "repeat_last": [batch.actions for batch in batches],
            "chance": [
                rng.integers(batch.n_actions, size=batch.actions.shape) for batch in batches
            ],
        }
        for key, choices in predictions.items():
            found = agreement(choices, batches, table=table, seed=seed)
            own = {
                "predictor": _CONTROLS.get(key, model.name),
                "commit": commit if key in (MODEL, "cut") else "",
            }
            numbers |= {(regime, key, *at): value for at, value in found.numbers.items()}
            beside |= {(regime, key, *at): {**values, **own} for at, values in found.beside.items()}
    how = {"commit": commit, "table": table, "n_episodes": n_episodes, "n_rounds": list(n_rounds)}
    settings = provenance(model, **how, sizes=_sizes(model), seed=seed)
    return Scores(("regime", "key", "quantity", "phase"), numbers, settings, beside)


# Every table of a model: what ``interp evaluate`` writes.

_PLAYED, _DISCOUNT, _RATES, _CHAIN = (
    "played: ",
    "followed discount",
    "effective rates",
    "attention in a chain",
)
"""Parts beside the regimes; the first begins the names of those that are played."""
_SUMMARISED = (
    "untied",
    "untied_gamma0",
    "random_ties",
    "random_ties_ceiling",
    "disputed",
    "disputed_gamma0",
)


def _measure(model: Machine, part: str, n_episodes: int, seed: int) -> Any:
    """Scores of a regime, read or played, or a table."""
    if part.startswith(_PLAYED):
        return returns.evaluate(
            model, [part.removeprefix(_PLAYED)], n_episodes=n_episodes // 2, seed=seed + 2
        )
    if part == _DISCOUNT:
        return _followed(model, n_episodes, seed).to_frame().assign(commit="own")
    if part == _RATES:
        return rates.evaluate(model, n_episodes=n_episodes, seed=seed + 1).to_frame()
    if part == _CHAIN:
        chain = sampling.sample(16, 50, 4, 2, regime="chain", seed=seed)
        return unless(
            lacks_attention(model), lambda: round_attention(model, chain).assign(commit="own")
        )
    return evaluate(model, [part], n_episodes=n_episodes, seed=seed)


def _followed(model: Machine, n_episodes: int, seed: int) -> Scores:
    """The discount that a model's choices on the training grid follow."""
    batches = sample(model, "grid", n_episodes, seed=seed)
    choices = [np.asarray(rollout(model, batch).choices.numpy(force=True)) for batch in batches]
    return followed_discount(choices, batches, table=reference_table(model), seed=seed)


def _tables(model: Machine, measured: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """All tables of a model of Q-learning, by name."""
    agreed = pd.concat([measured[regime].to_frame() for regime in _EVALUATED], ignore_index=True)
    played = [part for name, part in measured.items() if name.startswith(_PLAYED)]
    tables = {
        k: pd.concat([part[k].to_frame() for part in played], ignore_index=True) for k in played[0]
    }
    # By regime: agreement with its controls, and the normalised return over the longest horizon by agent.
    of_model, earned = (
        agreed[(agreed["key"] == MODEL) & (agreed["phase"] == "all")],
        tables["returns"],
    )
    table = of_model.pivot(index="regime", columns="quantity", values="estimate").loc[
        of_model["regime"].unique()
    ]
    table = table[[*_SUMMARISED, "cross_entropy_excess"]]
    longest = earned[
        (earned["quantity"] == "score") & (earned["horizon"] == earned["horizon"].max())
    ]
    for key in (MODEL, "greedy", returns.EXPLORING, "epsilon-greedy", "random-ties"):
        table[f"return, {key}"] = longest[longest["key"] == key].set_index("regime")["estimate"]
    return {
        "summary": table.assign(commit="own")
        .rename_axis(index="regime", columns=None)
        .reset_index(),
        "agreement": agreed,
        "followed_discount": measured[_DISCOUNT],
        "effective_rates": measured[_RATES],
        **tables,
        **({"attention_chain": measured[_CHAIN]} if _CHAIN in measured else {}),
    }


# The few numbers that say what a model is worth: the rows of its card.

_HEADLINE_PLAYED = ("grid", "ladder", "chain")


def _headline(model: Machine, n_episodes: int, seed: int) -> list[Row]:
    scored = evaluate(model, ["grid"], n_episodes=n_episodes, seed=seed)
    whole = {
        at[2]: found for at, found in scored.numbers.items() if at[1] == MODEL and at[3] == "all"
    }
    value = {quantity: found.estimate for quantity, found in whole.items()}
    ties = f"perfect learner {value['random_ties_ceiling']:.4f}, gamma = 0 table {value['random_ties_gamma0']:.4f}"
    disputed = (
        f"follows the gamma = 0 table in {value['disputed_gamma0']:.3f}; a uniform choice "
        f"{scored.get('grid', 'chance', 'disputed', 'all').estimate:.3f}; "
        f"{scored.beside['grid', MODEL, 'disputed', 'all']['n_steps']} steps"
    )
    floor = f"floor {value['cross_entropy_floor']:.4f}"
    claims = [
        row(
            "grid: agreement, untied steps",
            whole["untied"],
            f"gamma = 0 table {value['untied_gamma0']:.4f}",
        ),
        row("grid: agreement, all steps, random ties", whole["random_ties"], ties),
        row("grid: agreement where the tables disagree", whole["disputed"], disputed),
        row("grid: cross-entropy above its floor (nats)", whole["cross_entropy_excess"], floor),
    ]
    best, *_ = _followed(model, n_episodes, seed).beside.values()
    claims.append(
        row(
            "grid: discount that its choices follow best",
            Interval(*best.values()),
            "the data's is .9",
        )
    )
    read = rates.evaluate(model, n_episodes=max(3 * N_FOLDS, n_episodes // 2), seed=seed)
    alone = "exact read-out" if model.is_handwired else "an untrained model overflows"
    read_out = {
        f"effective {rate} of the table in its latents": (rate, "instruments")
        for rate in ("alpha", "gamma")
    }
    for what, key in {**read_out, "R2 of the Q-table decoded from its latents": rates.R2}.items():
        blank = read.numbers.get(("untrained model", *key))
        beside = alone if blank is None else f"untrained model {blank.estimate:.3f}"
        claims.append(row(what, read.get(MODEL, *key), beside))
    few, horizons = max(6, n_episodes // 8), returns.HORIZONS
    played = returns.evaluate(
        model, _HEADLINE_PLAYED, n_episodes=few, horizons=horizons, seed=seed
    )["returns"]
    for regime, horizon in product(_HEADLINE_PLAYED, horizons):
        score = {key: played.get(regime, key, horizon, "score") for key in returns.PLAYERS}
        what = f"{regime}: normalised return over {horizon} rounds"
        beside = f"greedy {score['greedy'].estimate:.3f}, random {score['random'].estimate:.3f}"
        claims.append(row(what, score[MODEL], beside))
        tied = f"breaking ties at random {score['random-ties'].estimate:.3f}"
        beside = f"epsilon-greedy {score['epsilon-greedy'].estimate:.3f}, {tied}"
        claims.append(row(f"{what}, exploring", score[returns.EXPLORING], beside))
    return claims


def plan() -> EvaluationPlan:
    """What ``interp evaluate`` measures of a model of Q-learning; tables are decoded by five folds of three sizes."""
    always = [*_EVALUATED, _DISCOUNT, _RATES, *(f"{_PLAYED}{regime}" for regime in returns.PLAYED)]
    return EvaluationPlan(
        lambda model: [*always, *([_CHAIN] if serves(model, 4, 2) else [])],
        _measure,
        _tables,
        _headline,
        min_episodes=30,
    )
