"""Measure what a model of expert advice needs its latent for, and which experts it attends to.

Accuracy is compared when the latent is *cut* (reset to its initial value in every round) or
*swapped* (taken from another episode). docs/method/regret.md says what each control shows. This is
NOT evidence of what the latent contains, only that the prediction depends on it. Attention shows
where a head looks, not what it moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from interp.core.algorithm import participants_of, refuse_missing
from interp.core.machine import Machine
from interp.evaluation.experts import regret
from interp.evaluation.plan import SWAP, cut, patterns, predictions_of
from interp.model.rollout import replay, require_own, rollout
from interp.model.run import Rollout, Rounds, select_rounds
from interp.results.measure import Scores
from interp.stats.intervals import Interval, bootstrap_mean, mean_interval
from interp.support.checks import checked
from interp.support.errors import require
from interp.support.provenance import provenance
from interp.tasks.experts.episodes import ExpertEpisodes
from interp.tasks.experts.predictors import PREDICTORS, bayes


@checked
def latent_control(
    model: Machine, episodes: ExpertEpisodes, seed: int = 0, run: Rollout | None = None
) -> Scores:
    """Measure a model's accuracy in three cases: with its latents intact, cut (every round reads
    the initial latents) and swapped (every round reads another episode's latents).

    A majority vote and the Bayes predictor are scored on the same episodes for comparison.

    Args:
        model: the model.
        episodes: at least 2 episodes.
        seed: seed of the bootstrap.
        run: the model's rollout of ``episodes``; by default it is computed.

    Returns:
        Scores by quantity, with intervals over episodes. "accuracy, NAME" is the share of rounds
        with a right prediction, with NAME one of "intact", "cut", "swapped", "majority_vote" and
        "bayes". Three quantities are differences of accuracies in the same episodes: "lost when
        cut" (intact minus cut), "lost when swapped" (intact minus swapped) and "cut minus majority
        vote".
    """
    require(len(episodes) >= 2, "swapping latents needs at least 2 episodes, got 1")
    clean = rollout(model, episodes) if run is None else require_own(run, model, episodes)
    predictions = {"intact": predictions_of(clean)}
    # Without propagation, every round reads the latents of the intact run, cut or swapped, and not
    # what a changed earlier round has written.
    for name, hook in (("cut", cut(model)), ("swapped", SWAP)):
        changed = rollout(model, episodes, fwd_hooks=[hook], propagate=False, clean=clean)
        predictions[name] = predictions_of(changed)
    predictions["majority_vote"] = PREDICTORS["majority_vote"].run(episodes).predictions
    predictions["bayes"] = bayes(episodes).predictions
    accuracies = {  # [episode] each
        name: 1 - np.nanmean(regret.mistakes(predicted, episodes), axis=1)
        for name, predicted in predictions.items()
    }
    measured = {f"accuracy, {name}": accuracy for name, accuracy in accuracies.items()}
    for name in ("cut", "swapped"):
        measured[f"lost when {name}"] = accuracies["intact"] - accuracies[name]
    measured["cut minus majority vote"] = accuracies["cut"] - accuracies["majority_vote"]
    participants = participants_of(episodes)
    numbers: dict[tuple[Any, ...], Interval] = {}
    for name, values in measured.items():
        # A key has one part per column of the table, here only "quantity".
        numbers[name,] = mean_interval(values, seed=seed, participants=participants)
    drawn = {name: getattr(episodes, name) for name in ("regime", "n_rounds", "n_experts", "seed")}
    settings = provenance(model, n_episodes=len(episodes), **drawn, bootstrap_seed=seed)
    return Scores(("quantity",), numbers, settings)


_READERS = ("p?", "w?")  # labels of the query positions: the prediction and the update


@checked
def attention_to_experts(
    model: Machine,
    episodes: ExpertEpisodes,
    *,
    rounds: Rounds = slice(20, None, 10),
    seed: int = 0,
    run: Rollout | None = None,
) -> Scores:
    """Measure how much of its attention every head pays to each expert and to the latent. Attention
    is measured at two query positions: ``p?``, where the model predicts, and ``w?``, whose
    activation determines the new latent.

    Args:
        model: a model with attention between the positions of a round.
        episodes: episodes without missing rounds.
        rounds: rounds to average over.
        seed: seed of the bootstrap.
        run: the model's rollout of ``episodes``; by default it is computed.

    Returns:
        Scores by layer, head, reader and target: the share of the head's attention that goes from
        the reader (query position "p?" or "w?") to the target. Targets are the "latent", "expert 1"
        (the most accurate expert in the round), "expert 2" and so on, and "other" (all other
        positions). The head "mean" is the mean over the heads of a layer. The column
        ``without_history`` has the same share if every round reads the initial latent.
    """
    refuse_missing("attention to experts", episodes)
    names = patterns(model)
    run = rollout(model, episodes) if run is None else require_own(run, model, episodes)
    chosen = select_rounds(rounds, run.n_rounds)
    positions = {reader: run.layout.position(reader) for reader in _READERS}
    # Key (layer, head, reader, target) -> the share, and a further cell of its row of the table.
    shares: dict[tuple[Any, ...], Interval] = {}
    beside: dict[tuple[Any, ...], dict[str, Any]] = {}
    _, _, patterns_by_name = replay(model, run, rounds=chosen, names_filter=names)
    _, _, cut_patterns_by_name = replay(
        model, run, rounds=chosen, names_filter=names, fwd_hooks=[cut(model)], chunk=1024
    )

    def sum_by_target(weights: Tensor) -> np.ndarray:
        """Return the share of each head's attention in one layer that goes from each reader to each
        target, averaged over rounds, ``[episode, head, reader, target]``.

        Args:
            weights: attention patterns of the layer, ``[episode, round, head, query, key]``.
        """
        attention = weights.double().numpy(force=True)
        return _sum_by_target(attention, episodes, positions, chosen)

    targets = ["latent", *(f"expert {rank + 1}" for rank in range(episodes.n_experts)), "other"]
    for layer, name in enumerate(names):
        with_history = sum_by_target(patterns_by_name[name])
        without_history = sum_by_target(cut_patterns_by_name[name]).mean(0)
        mean, low, high = bootstrap_mean(
            with_history, seed=seed, participants=participants_of(episodes)
        )
        heads = [*map(str, range(len(mean) - 1)), "mean"]
        for index in np.ndindex(mean.shape):
            head, reader, target = index  # the axes of mean, the last head being their mean
            key = (layer, heads[head], _READERS[reader], targets[target])
            shares[key] = Interval(float(mean[index]), float(low[index]), float(high[index]))
            beside[key] = {"without_history": float(without_history[index])}
    drawn = {name: getattr(episodes, name) for name in ("regime", "n_rounds", "seed")}
    settings = provenance(
        model, n_episodes=len(episodes), **drawn, rounds=chosen, bootstrap_seed=seed
    )
    return Scores(("layer", "head", "reader", "target"), shares, settings, beside)


def _sum_by_target(
    patterns: np.ndarray, episodes: ExpertEpisodes, positions: dict[str, int], rounds: Sequence[int]
) -> np.ndarray:
    """Sum attention over the key positions of each target, and average it over rounds.

    Targets are the latent, each expert (the most accurate first) and all other positions. Readers
    are the query positions that are measured.

    Args:
        patterns: attention patterns, ``[episode, round, head, query, key]``.
        episodes: the episodes, which determine the experts' accuracies.
        positions: name of a reader -> its position.
        rounds: indices of the rounds of ``patterns``.

    Returns:
        Shares of attention, ``[episode, head, reader, target]``. The axis of heads has one further
        entry, the last: the mean of all heads.
    """
    n_experts = episodes.n_experts
    attention = patterns[:, :, :, list(positions.values())]  # [episode, round, head, reader, key]
    # A round begins with <w> and the latent <z>; then each expert has two positions, e_i and p_i.
    to_experts = attention[..., 2 : 2 + 2 * n_experts]
    by_position = to_experts.reshape(*to_experts.shape[:-1], n_experts, 2)
    by_expert = by_position.sum(-1)
    # The experts of each episode and round, the most accurate first: [episode, round, expert].
    order = np.argsort(-episodes.accuracies_by_round[:, list(rounds)], axis=-1, kind="stable")
    ranked = np.take_along_axis(by_expert, order[:, :, None, None], axis=-1)
    latent = attention[..., 1:2]  # the position <z>
    total = attention.sum(-1, keepdims=True)
    elsewhere = total - latent - ranked.sum(-1, keepdims=True)
    shares = np.concatenate([latent, ranked, elsewhere], axis=-1).mean(1)  # over rounds
    mean_of_heads = shares.mean(1, keepdims=True)
    return np.concatenate([shares, mean_of_heads], axis=1)
