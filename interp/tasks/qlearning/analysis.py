"""Probes and interventions for this task: hypotheses about sites, controls, corruptions, steering.

Every model is compared with tabular Q-learning. For a handwired model, it has the learning rate and
discount that the model was built with.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp.core import task
from interp.core.algorithm import Algorithm
from interp.core.machine import Machine
from interp.core.task import Corruption, RoundInputs, Steering, corrupt_one_round
from interp.tasks.places import Model, Place, mark_first_of_last_axis
from interp.tasks.qlearning.algorithms import q_learning
from interp.tasks.qlearning.episodes import MDPEpisodes


def losses(predictions: Tensor, episodes: MDPEpisodes, rounds: slice) -> Tensor:
    """Return how much value a model loses by acting according to its predicted policy.

    In the next state s', the loss of the policy pi is ``max_a Q(s', a) - sum_a pi(a) Q(s', a)``,
    where Q is the Q-table before the round's update.

    Args:
        predictions: the policy pi, a probability for each action,
            ``[*batch, episode, round, action]``.
        episodes: the episodes, which have the Q-tables.
        rounds: slice of the episodes' rounds to which the predictions belong.

    Returns:
        The losses, ``[*batch, episode, round]``.
    """
    values = torch.from_numpy(episodes.next_values_before[:, rounds]).to(predictions)
    expected = (predictions * values).sum(-1)
    return values.amax(-1) - expected


def hypothesis(model: Machine) -> Algorithm:
    """Return the algorithm with which a model is compared: tabular Q-learning. A handwired model's
    learning rate and discount are those that it was built with; for other models they are .1 and
    .9.
    """
    return q_learning(**rates(model), noise=bool(model.layout.draws))


def rates(model: Machine) -> dict[str, float]:
    """Return a model's learning rate and discount, such as ``{"alpha": 0.1, "gamma": 0.9}``.

    For a handwired model they are those that it was built with. For every other model they are .1
    and .9, as in the training data of the shipped models.
    """
    arguments = model.origin.get("arguments", {}) if model.is_handwired else {}
    return {"alpha": arguments.get("alpha", 0.1), "gamma": arguments.get("gamma", 0.9)}


def round_inputs(episodes: MDPEpisodes) -> RoundInputs:
    """Return what a model reads in each round, for two controls of probes. A probe decodes a
    target, such as a variable of the algorithm, from latents.

    The control without memory decodes the target from the inputs of the round alone, by the same
    method as the probe, such as ridge regression. If this control succeeds, the probe's success is
    no evidence of memory. Since some methods cannot combine inputs, the control tries two encodings
    and uses the better one: (1) one-hot codes of state, action and next state, and the reward; (2)
    all of these, a one-hot code of the state-action pair, and this code times the reward.

    The other control, the control task, replaces the target by random values that are equal in
    rounds with equal inputs (``kinds``).

    Args:
        episodes: the episodes, with S states and A actions.

    Returns:
        ``features``: the two encodings, ``[episode, round, 2 S + A + 1]`` and
        ``[episode, round, 2 S + A + 1 + 2 S A]``. ``kinds``: state, action and next state as
        integers, ``[episode, round, 3]``.
    """
    n_states, n_actions = episodes.n_states, episodes.n_actions
    states, actions, next_states = episodes.states, episodes.actions, episodes.next_states
    state_indicators, action_indicators = np.eye(n_states), np.eye(n_actions)
    rewards = episodes.rewards[..., None]
    # One-hot codes, [episode, round, state] or [episode, round, action].
    tokens = [state_indicators[states], action_indicators[actions], state_indicators[next_states]]
    tokens_and_reward = np.concatenate([*tokens, rewards], axis=-1)
    pair_index = states * n_actions + actions  # a number for each state-action pair
    pairs = np.eye(n_states * n_actions)[pair_index]
    with_products = np.concatenate([tokens_and_reward, pairs, pairs * rewards], axis=-1)
    # Without the rewards: most are real numbers that differ between MDPs, so that no kind would occur
    # in two episodes.
    kinds = np.stack([states, actions, next_states], axis=-1)
    return RoundInputs(features=(tokens_and_reward, with_products), kinds=kinds)


def claims(machine: Machine) -> tuple[Place, ...]:
    """Return the hypotheses that interchange interventions test on a model, with controls.

    Each hypothesis is a :class:`~interp.tasks.places.Place`. It says that activation sites of the
    model, such as the embedding at position ``r``, hold a variable of the algorithm, such as the
    reward. Exchanging the activations should change the round's prediction or, with
    ``outcome="state"``, the state after the round. A control is a hypothesis about sites that
    cannot hold the variable.

    Args:
        machine: the model. If it has no layers, the hypotheses are about its whole state.
    """
    model = Model(machine)
    if not model.has_layers:
        return Place("table"), Place("table", outcome="state")
    # Positions: s, a, r and s' have the transition, s'_i and a_i the next state and each action. At
    # Select the model chooses, and at Update it writes the latent. n is a random draw.
    next_state = model.list_sites("embed", "s'")
    last_at_update = model.name_last_residual("Update")
    places = [Place("table", ("latent",))]
    for layer in model.layers_before_last:
        places.append(Place("next_values", model.list_sites(f"resid_post[{layer}]", "a_")))
    places += [
        Place("next_values", ("embed@<BOS>",), control=True),
        Place("next_state", next_state),
    ]
    if machine.layout.draws:
        places.append(Place("noise", ("embed@n",)))
    places += [
        Place("choice", (model.name_last_residual("Select"),)),
        Place("table", ("latent",), outcome="state"),
        Place("state", ("embed@s",), outcome="state"),
        Place("reward", ("embed@r",), outcome="state"),
        Place("next_state", next_state, outcome="state"),
    ]
    if model.replaces_latents:
        places.append(Place("action", ("embed@a",), outcome="state"))
    places += [
        Place("reward", ("embed@<BOS>",), outcome="state", control=True),
        Place("change", (last_at_update,), outcome="state"),
    ]
    if model.replaces_latents:  # otherwise an update writes only the change
        places.append(Place("next_column", (last_at_update,), outcome="state"))
    return tuple(places)


def aligned(machine: Machine) -> tuple[tuple[str, str], ...]:
    """Return pairs (variable of the algorithm, activation site) such as ``("choice",
    "resid_post[3]@Select")``, for distributed alignment search. The search fits the subspace of the site's
    activations that holds the variable. This example's site is the residual stream after block 3,
    at position ``Select`` of the round.

    The last pair is a control: its site cannot hold its variable.

    Args:
        machine: the model.
    """
    model = Model(machine)
    if not model.has_layers:
        return ("table", "latent"), ("next_state", "latent")
    return (
        ("next_values", model.name_residual_before_last("Select")),
        ("choice", model.name_last_residual("Select")),
        ("choice", "embed@<BOS>"),
    )


def steering() -> Steering:
    """Return the default steering, which changes the state in a model's latents and measures the
    effect on predictions. It adds .2 times a dose to the first action's values in all states of the
    Q-table, and measures the predicted probability of this action.

    Doses are from 0 to 4. There are no negative doses, since rewards and therefore values are not
    negative either.
    """
    return Steering(
        # The last axis of the state is that of actions: .2 for the first action, 0 for the others.
        change=lambda shape: 0.2 * mark_first_of_last_axis(shape),
        doses=(0, 0.5, 1, 2, 4),
        outcome=lambda episodes, t: 0,  # the first action, in every episode and round
        what="first action's values + 0.2",
        shows="P(first action)",
    )


# Corruptions.


def _replace_transitions(episodes: MDPEpisodes, **transitions: Any) -> MDPEpisodes:
    return episodes.relearn(transitions=transitions)


exchange_history = partial(task.exchange_history, make_copy=_replace_transitions)


def _change_reward(
    episodes: MDPEpisodes, round: int, reward: float | None = None
) -> tuple[Any, Any]:
    """Make a pair (clean, corrupted) of episodes that differ in the reward of one round.

    Args:
        episodes: the episodes.
        round: index of the round; a negative index counts from the end.
        reward: the new reward; when None, ``r -> (r + 1/2) mod 1``, which always changes it.

    Returns:
        The episodes, and a copy with the changed reward and the Q-tables that follow from it.
    """

    def edit(episodes: MDPEpisodes, t: int) -> Any:
        """Return the new rewards of round t: one number for all episodes, or ``[episode]``."""
        if reward is not None:
            return reward
        return (episodes.rewards[:, t] + 0.5) % 1.0

    # The Q-tables of the copy are computed again from its transitions.
    make_pair = corrupt_one_round("rewards", edit, make_copy=_replace_transitions)
    return make_pair(episodes, round)


def corruptions() -> tuple[Corruption, ...]:
    """Return the corruptions with which activation patching makes pairs (clean, corrupted) of
    episodes.

    "change-reward" changes the reward of one round. It changes predictions only from the next round
    on, because values are updated after the choice. "exchange-history" replaces all rounds before
    one round by those of the next episode. In both, the corrupted episodes have the Q-tables that
    follow from their transitions.
    """
    # delay: number of rounds from the named round to the first prediction that can differ.
    return (
        Corruption(
            "exchange-history",
            "take another episode's history",
            delay=0,
            build=exchange_history,
            changes_history=True,
        ),
        Corruption("change-reward", "change the reward", delay=1, build=_change_reward),
    )
