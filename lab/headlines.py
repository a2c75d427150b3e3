"""The few numbers of a model card: one row a claim, with its 95 % interval and what a reader compares it with."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pandas as pd

from interp.core.machine import Machine
from interp.evaluation import reachability
from interp.evaluation.experts import by_regime
from interp.evaluation.experts.latent import latent_control
from interp.evaluation.experts.plan import describe_lacking_room
from interp.evaluation.plan import MODEL
from interp.evaluation.qlearning import plan as qlearning
from interp.evaluation.qlearning import returns
from interp.results.measure import Scores
from interp.stats.intervals import NO_NUMBER, Interval
from interp.support.checks import checked
from interp.support.errors import require_known
from interp.tasks.experts.episodes import sample

Row = dict[str, Any]
WINDOWS = ((50, 100), (400, 500), (900, 1000))
"""Rounds of long episodes of expert advice: the late ones are set beside the early ones."""
_SHIFTED = ("stratified", "flat", "anti-signal")
_PLAYED = ("grid", "ladder", "chain")
_BASELINES = {
    "Bayes, training prior": "bayes_training",
    "Bayes, own prior": "bayes",
    "weighted majority, best eta": "weighted_majority_best",
}
_LATE = {"excess_log_loss": "log-loss above Bayes", "divergence": "KL from Bayes"}


@checked
def headline(model: Machine, *, n_episodes: int = 1000, seed: int = 11) -> pd.DataFrame:
    """Compute the rows of a model's card.

    Args:
        model: of a task that has cards.
        n_episodes: of the main rows; slower ones use a fraction of them.
        seed: seed of the episodes.
    """
    task = model.layout.task
    require_known("task with model cards", task, _BY_TASK)
    return pd.DataFrame(_BY_TASK[task](model, n_episodes, seed))


def _make_row(what: str, value: Interval, beside: str) -> Row:
    """Make a row of a card.

    Args:
        what: the claim.
        value: its number with the interval.
        beside: the limit, the baseline or the control with which a reader compares it, in words.
    """
    return {"what": what, **vars(value), "beside": beside}


def _measure_experts(model: Machine, n_episodes: int, seed: int) -> list[Row]:
    """Return the rows of a model of expert advice.

    Args:
        model: the model.
        n_episodes: number of episodes of each regime. Slower measurements use a fraction of them.
        seed: seed of the episodes.
    """
    # The regimes that the model was trained on, each once, with "uniform" first.
    main = list(dict.fromkeys(("uniform", *by_regime.training_prior(model))))
    regimes = list(dict.fromkeys([*main, *_SHIFTED]))  # a model may be trained on a shifted one
    scored = by_regime.evaluate(model, regimes, n_episodes=n_episodes, seed=seed)["regimes"]
    rows = []
    for regime in main:
        rows += _list_losses(scored, regime, has_prior=len(main) > 1)
    for regime in regimes:
        baselines = []
        for name, key in _BASELINES.items():
            baseline_regret = scored.get(regime, key, "regret").estimate
            baselines.append(f"{name} {baseline_regret:.2f}")
        regret = scored.get(regime, MODEL, "regret")
        rows.append(_make_row(f"{regime}: regret after 100 rounds", regret, ", ".join(baselines)))
    rows += _list_late_losses(model, max(2, n_episodes // 8), seed)
    episodes = sample(max(2, n_episodes // 4), 100, by_regime.n_experts_of(model), seed=seed + 1)
    control = latent_control(model, episodes, seed=seed)
    vote = control.get("accuracy, majority_vote").estimate
    swapped = control.get("accuracy, swapped").estimate
    beside = f"majority vote {vote:.4f}; latents of another episode {swapped:.4f}"
    accuracy = control.get("accuracy, cut")
    return [*rows, _make_row("uniform: accuracy with the latent cut", accuracy, beside)]


def _list_losses(scored: Scores, regime: str, has_prior: bool) -> list[Row]:
    """Return the rows on losses and accuracy in one regime.

    Args:
        scored: every number, by regime, predictor and metric.
        regime: name of the regime.
        has_prior: whether the model was trained on other regimes, too. The Bayes predictor that
            knows only the prior of all these regimes is then reported, too.
    """

    def value(key: str, metric: str) -> float:
        return scored.get(regime, key, metric).estimate

    beside = f"Bayes predictor {value('bayes', 'log_loss'):.4f} nats"
    if has_prior:
        excess = value("bayes_training", "excess_log_loss")
        beside += f", that of the training prior {excess:.4f} above it"
    what = f"{regime}: log-loss above Bayes (nats a round)"
    rows = [_make_row(what, scored.get(regime, MODEL, "excess_log_loss"), beside)]
    if (regime, MODEL, "divergence") in scored.numbers:
        what = f"{regime}: KL from Bayes (nats a round)"
        beside = "expected excess, by the KL divergence from the Bayes predictor"
        rows.append(_make_row(what, scored.get(regime, MODEL, "divergence"), beside))
    bayes = value("bayes", "accuracy")
    majority = value("weighted_majority_best", "accuracy")
    beside = f"Bayes {bayes:.4f}, weighted majority at its best eta {majority:.4f}"
    accuracy = scored.get(regime, MODEL, "accuracy")
    return [*rows, _make_row(f"{regime}: accuracy", accuracy, beside)]


def _list_late_losses(model: Machine, n_episodes: int, seed: int) -> list[Row]:
    """Return the rows on late rounds of long episodes, or one that says that the model has no room for them.

    Args:
        model: the model.
        n_episodes: number of episodes.
        seed: seed of the episodes.
    """
    first, *late = WINDOWS  # the early window, with which the late ones are compared
    _, n_rounds = WINDOWS[-1]
    lack = describe_lacking_room(model, n_rounds)
    if lack:
        return [_make_row(f"uniform: episodes of {n_rounds:,} rounds", NO_NUMBER, lack)]
    long = by_regime.over_lengths(
        model, n_episodes=n_episodes, n_rounds=n_rounds, windows=WINDOWS, seed=seed
    )
    rows = []
    for metric, name in _LATE.items():
        if (MODEL, metric, *first) not in long.numbers:
            continue
        early = long.get(MODEL, metric, *first).estimate
        beside = f"{early:.4f} in rounds {first[0]}-{first[1]} of the same episodes"
        for start, stop in late:
            what = f"uniform: {name}, rounds {start}-{stop} of {n_rounds:,} (nats a round)"
            rows.append(_make_row(what, long.get(MODEL, metric, start, stop), beside))
    return rows


def _measure_qlearning(model: Machine, n_episodes: int, seed: int) -> list[Row]:
    """Return the rows of a model of Q-learning: agreement, the discount that is followed, returns.

    Args:
        model: the model.
        n_episodes: of the main rows; slower ones use fewer.
        seed: seed of the episodes.
    """
    agreed = _list_agreement(model, n_episodes, seed)
    return [*agreed, *_list_returns(model, n_episodes, seed)]


def _list_agreement(model: Machine, n_episodes: int, seed: int) -> list[Row]:
    """Return the rows on agreement in the grid, and on the discount that choices follow.

    Args:
        model, n_episodes, seed: as in :func:`_measure_qlearning`.
    """
    scored = qlearning.evaluate(model, ["grid"], n_episodes=n_episodes, seed=seed)

    def number(quantity: str, key: str = MODEL) -> Interval:
        """Return a number of the model, or of the predictor ``key``, over all steps."""
        return scored.get("grid", key, quantity, "all")

    def value(quantity: str, key: str = MODEL) -> float:
        return number(quantity, key).estimate

    ceiling = value("random_ties_ceiling")
    n_disputed = scored.beside["grid", MODEL, "disputed", "all"]["n_steps"]
    best, *_ = qlearning.find_discount(model, n_episodes, seed).beside.values()
    followed = Interval(best["best"], best["best_low"], best["best_high"])
    beside_untied = f"gamma = 0 table {value('untied_gamma0'):.4f}"
    beside_ties = (
        f"perfect learner {ceiling:.4f}, gamma = 0 table {value('random_ties_gamma0'):.4f}"
    )
    beside_disputed = (
        f"follows the gamma = 0 table in {value('disputed_gamma0'):.3f}; a uniform choice "
        f"{value('disputed', 'chance'):.3f}; {n_disputed} steps"
    )
    beside_entropy = f"floor {value('cross_entropy_floor'):.4f}"
    described = {  # quantity -> what the row says, and with what it is compared
        "untied": ("grid: agreement, untied steps", beside_untied),
        "random_ties": ("grid: agreement, all steps, random ties", beside_ties),
        "disputed": ("grid: agreement where the tables disagree", beside_disputed),
        "cross_entropy_excess": ("grid: cross-entropy above its floor (nats)", beside_entropy),
    }
    rows = [_make_row(what, number(key), beside) for key, (what, beside) in described.items()]
    what = "grid: discount that its choices follow best"
    return [*rows, _make_row(what, followed, "the data's is .9")]


def _list_returns(model: Machine, n_episodes: int, seed: int) -> list[Row]:
    """Return the rows on what it earns, by its choices alone and exploring.

    Args:
        model, n_episodes, seed: as in :func:`_measure_qlearning`.
    """
    horizons = returns.HORIZONS
    n_played = max(6, n_episodes // 8)
    played = returns.evaluate(model, _PLAYED, n_episodes=n_played, horizons=horizons, seed=seed)
    scores = played["returns"]
    rows = []
    for regime, horizon in product(_PLAYED, horizons):
        score = {key: scores.get(regime, key, horizon, "score") for key in returns.PLAYERS}
        earned = {key: f"{value.estimate:.3f}" for key, value in score.items()}
        what = f"{regime}: normalised return over {horizon} rounds"
        beside = f"greedy {earned['greedy']}, random {earned['random']}"
        rows.append(_make_row(what, score[MODEL], beside))
        beside = (
            f"epsilon-greedy {earned['epsilon-greedy']}, "
            f"breaking ties at random {earned['random-ties']}"
        )
        rows.append(_make_row(f"{what}, exploring", score[returns.EXPLORING], beside))
    return rows


def _measure_reachability(model: Machine, n_episodes: int, seed: int) -> list[Row]:
    """Return accuracy at every depth on matched graphs, also a round too early, and the effect of a
    parent moved into the set.

    Args:
        model: the model.
        n_episodes: to sample.
        seed: seed of the episodes.
    """
    read, write = reachability.make_reader_and_writer(model, seed)
    episodes = reachability.episodes_for(model, "matched", n_episodes, seed)
    frame = reachability.answers(model, episodes, read, write, seed)
    rows: list[Row] = []
    for depth in sorted(frame["depth"].unique()):
        by_key = frame[frame["depth"] == depth].set_index(["key", "round"])
        when = {f"round {depth}": depth, "a round too early": depth - 1}
        for words, t in when.items():
            others = []
            for key in ("breadth_first", "more_ancestors", "cut"):
                others.append(f"{key} {by_key.loc[(key, t), 'estimate']:.2f}")
            accuracy = reachability.read_interval(by_key.loc[(MODEL, t)])
            what = f"accuracy, depth {depth}, {words}"
            rows.append(_make_row(what, accuracy, ", ".join(others)))
    after = reachability.measure_moved_sets(model, episodes, read, write, seed)
    for move in (reachability.PARENT, reachability.OTHER):
        is_later = (after["move"] == move) & (after["later"] == 1)  # one round after the move
        (row,) = after[is_later].to_dict("records")
        number = reachability.read_interval(row, "model")
        beside = f"search {row['search']:.2f}"
        rows.append(_make_row(f"P(target), {move}, a round later", number, beside))
    return rows


_BY_TASK: dict[str, Callable[[Machine, int, int], list[Row]]] = {
    "experts": _measure_experts,
    "qlearning": _measure_qlearning,
    "reachability": _measure_reachability,
}
