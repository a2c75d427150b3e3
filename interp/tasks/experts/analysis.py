"""Probes and interventions for this task: hypotheses about sites, controls, corruptions, steering.

A handwired model is compared with Weighted Majority at its gain, and a learned one with the Bayes
predictor of the uniform regime.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from interp.core.algorithm import Algorithm
from interp.core.machine import Machine
from interp.core.task import (
    Corruption,
    RoundInputs,
    Steering,
    corrupt_one_round,
    corrupted_round,
    exchange_history,
)
from interp.support.checks import checked
from interp.support.errors import require
from interp.tasks.experts.algorithms import bayes, weighted_majority
from interp.tasks.experts.episodes import ExpertEpisodes
from interp.tasks.places import Model, Place, mark_first_of_last_axis
from interp.tasks.sized_round import number_names

_Pair = tuple[ExpertEpisodes, ExpertEpisodes]


def losses(predictions: Tensor, episodes: ExpertEpisodes, rounds: slice) -> Tensor:
    """Return the expected loss of predictions, ``[*batch, episode, round]``: the probability
    ``|P(y = 1) - y|`` of a mistake if the label is sampled from the prediction.

    Args:
        predictions: predicted probability that the label y is 1, in these rounds only, ``[*batch,
            episode, round]``.
        episodes: the episodes, with the labels of all their rounds.
        rounds: slice of the episodes' rounds to which the predictions belong.
    """
    labels = torch.from_numpy(episodes.labels[:, rounds]).to(predictions)
    return (predictions - labels).abs()


def hypothesis(model: Machine) -> Algorithm:
    """Return the algorithm with which a model is compared. For a handwired model it is Weighted
    Majority, with the gain (by which a right expert's log-weight grows) that the model was built
    with. For other models it is the Bayes predictor of the regime "uniform".
    """
    arguments = model.origin.get("arguments", {}) if model.is_handwired else {}
    return weighted_majority(arguments["log_gamma"]) if "log_gamma" in arguments else bayes()


def round_inputs(episodes: ExpertEpisodes) -> RoundInputs:
    """Return what a model reads in each round, for two controls of probes. A probe decodes a
    target, such as a variable of the algorithm, from latents.

    The control without memory decodes the target from the inputs of the round alone, by the same
    method as the probe, such as ridge regression. If this control succeeds, the probe's success is
    no evidence of memory. Since some methods cannot combine inputs, the control tries two encodings
    and uses the better one: (1) advice and label; (2) both, and which experts were right.

    The other control, the control task, replaces the target by random values that are equal in
    rounds with equal inputs (``kinds``).

    Args:
        episodes: the episodes, with n experts.

    Returns:
        ``features``: the two encodings, ``[episode, round, n + 1]`` and
        ``[episode, round, 2 n + 1]``. ``kinds``: advice and label as integers,
        ``[episode, round, n + 1]``.
    """
    kinds = np.concatenate([episodes.advice, episodes.labels[..., None]], axis=-1)
    advice_and_label = kinds.astype(float)
    with_correct = np.concatenate([advice_and_label, episodes.correct], axis=-1)
    return RoundInputs(features=(advice_and_label, with_correct), kinds=kinds)


def claims(machine: Machine) -> tuple[Place, ...]:
    """Return the hypotheses that interchange interventions test on a model, with controls.

    Each hypothesis is a :class:`~interp.tasks.places.Place`. It says that activation sites of the
    model, such as the residual stream after layer 1 at position ``p?``, hold a variable of the
    algorithm, such as the votes. Exchanging the activations should change the round's prediction
    or, with ``outcome="state"``, the state after the round. A control is a hypothesis about sites
    that cannot hold the variable.

    Args:
        machine: the model. If it has no layers, the hypotheses are about its whole state.
    """
    model = Model(machine)
    memory = model.memory
    # Some algorithms carry counts of hits from which they compute their memory, such as log-odds.
    counts = model.pick_state("counts", memory)
    if not model.has_layers:
        return Place(memory), Place(counts, outcome="state")
    # Positions: <w> is an attention sink, <z> the latent, p_i the vote of expert i, p? where the
    # model predicts, y the label, and w? where it writes the new latent.
    last_at_update = model.name_last_residual("w?")
    prediction_places = [
        Place(memory, ("latent@<z>",)),
        *model.list_places_before_last(memory, "p?"),
        Place(memory, ("embed@<w>",), control=True),
        Place("votes", model.list_sites("embed", "p_")),
        Place("prediction", (model.name_last_residual("p?"),)),
    ]
    state_places = [
        Place(counts, ("latent@<z>",), outcome="state"),
        Place("label", ("embed@y",), outcome="state"),
        *model.list_places_before_last("label", "w?", outcome="state"),
        Place("label", ("embed@p?",), outcome="state", control=True),
        Place("match", (last_at_update,), outcome="state"),
    ]
    if model.replaces_latents:  # otherwise an update writes only the change
        state_places.append(Place(model.written, (last_at_update,), outcome="state"))
    return (*prediction_places, *state_places)


def aligned(machine: Machine) -> tuple[tuple[str, str], ...]:
    """Return pairs (variable of the algorithm, activation site) such as ``("prediction",
    "resid_post[2]@p?")``, for distributed alignment search. The search fits the subspace of the site's
    activations that holds the variable. This example's site is the residual stream after block 2,
    at position ``p?`` of the round.

    The last pair is a control: its site cannot hold its variable.

    Args:
        machine: the model.
    """
    model = Model(machine)
    memory = model.memory
    if not model.has_layers:
        return (memory, "latent"), ("votes", "latent")
    return (
        (memory, "embed@<z>"),
        (memory, model.name_residual_before_last("p?")),
        ("prediction", model.name_last_residual("p?")),
        (memory, "embed@<w>"),
    )


def steering() -> Steering:
    """Return the default steering, which changes the state in a model's latents and measures the
    effect on predictions. It adds the dose to the first expert's entry of the state (a log-weight
    or log-odds), and measures the predicted probability of the label that this expert advises.
    Doses are from -4 to 4.
    """
    return Steering(
        change=mark_first_of_last_axis,  # an array like the state, 1 for the first expert and 0 elsewhere
        doses=(-4, -2, -1, 0, 1, 2, 4),
        outcome=lambda episodes, t: episodes.advice[:, t, 0],  # the first expert's vote
        what="first expert's weight + 1",
        shows="P(its vote)",
    )


# Corruptions.


@checked
def flip_vote(episodes: ExpertEpisodes, round: int, expert: int | str = "p_1") -> _Pair:
    """Flip one expert's vote in one round.

    Args:
        episodes: the episodes.
        round: index of the round; a negative index counts from the end.
        expert: label of the expert's vote, such as "p_1" for the first expert. An index is refused.

    Returns:
        A pair: the episodes, and a copy of them with the flipped vote in every episode.
    """
    t = corrupted_round(episodes, round)
    index = _find_expert(episodes, expert)
    advice = episodes.advice.copy()
    advice[:, t, index] ^= 1  # 0 becomes 1, and 1 becomes 0
    return episodes, replace(episodes, advice=advice)


flip_label = corrupt_one_round("labels", lambda episodes, t: 1 - episodes.labels[:, t])


def _swap_histories(episodes: ExpertEpisodes, round: int) -> _Pair:
    """Return the episodes, and a copy in which the votes of the first two experts are swapped in
    all rounds before ``round``.
    """
    t = corrupted_round(episodes, round, history=True)
    second = _find_expert(episodes, "p_2")
    advice = episodes.advice.copy()
    advice[:, :t, [0, second]] = advice[:, :t, [second, 0]]
    return episodes, replace(episodes, advice=advice)


def corruptions() -> tuple[Corruption, ...]:
    """Return the corruptions with which activation patching makes pairs (clean, corrupted) of
    episodes.

    In one round, "flip-vote" changes the advice of one expert, and "flip-label" changes the label.
    A label is read after the round's prediction, so it affects predictions from the next round on.
    "swap-histories" exchanges the advice of the first two experts in all rounds before one round.
    "exchange-history" replaces all rounds before one round by those of the next episode.
    """
    # delay: number of rounds from the named round to the first prediction that can differ.
    # each: the experts whose votes can be flipped one at a time, with the options of flip_vote.
    return (
        Corruption(
            "flip-vote",
            "flip one expert's vote",
            delay=0,
            build=flip_vote,
            each=lambda episodes: {
                label: {"expert": label} for label in number_names("p", episodes.n_experts)
            },
        ),
        Corruption("flip-label", "flip the label", delay=1, build=flip_label),
        Corruption(
            "swap-histories",
            "swap two experts' histories",
            delay=0,
            build=_swap_histories,
            changes_history=True,
        ),
        Corruption(
            "exchange-history",
            "take another episode's history",
            delay=0,
            build=exchange_history,
            changes_history=True,
        ),
    )


def _find_expert(episodes: ExpertEpisodes, expert: int | str) -> int:
    """Return the index of an expert: 0 for "p_1", 1 for "p_2", ...

    Args:
        episodes: the episodes, whose number of experts bounds the index.
        expert: label of the position with the expert's vote, such as "p_1".

    Raises:
        InputError: ``expert`` is an int or an unknown label.
    """
    labels = number_names("p", episodes.n_experts)
    require(
        isinstance(expert, str),
        f"expert {expert} is a number; name an expert by the label of its vote, p_1 to {labels[-1]}",
    )
    require(
        expert in labels,
        f"expert {expert!r} does not exist: the episodes have experts p_1 to {labels[-1]}",
    )
    return labels.index(str(expert))
