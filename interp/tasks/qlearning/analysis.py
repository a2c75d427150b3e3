"""What interventions and probes ask of a model of Q-learning: its algorithm, where its variables could be, controls,
and corruptions of episodes, pairs (clean, corrupted) that differ in one thing at one round.

Every model is held against tabular Q-learning, a handwired one at its own learning rate and discount. A claim is a
question to the model, never evidence about it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp import task
from interp.algorithm import Algorithm
from interp.display import lacks
from interp.machine import Machine
from interp.task import Corruption, RoundInputs, Steering, corrupted_round
from interp.tasks.qlearning.algorithms import q_learning
from interp.tasks.qlearning.episodes import MDPEpisodes

_Pair = tuple[MDPEpisodes, MDPEpisodes]


def losses(predictions: Tensor, episodes: MDPEpisodes, rounds: slice) -> Tensor:
    """``max_a Q(s', a) - sum_a pi(a) Q(s', a)`` by the table before each round, ``[*batch, episode, round]``."""
    tables = torch.from_numpy(episodes.q_tables[:, :-1][:, rounds]).to(predictions)
    states = torch.from_numpy(episodes.next_states[:, rounds]).to(predictions.device)
    index = states[..., None, None].expand(*states.shape, 1, tables.shape[-1])
    values = tables.gather(2, index).squeeze(2)
    return values.amax(-1) - (predictions * values).sum(-1)


def hypothesis(model: Machine) -> Algorithm:
    """The algorithm that a model is held against."""
    return q_learning(**rates(model), noise=bool(model.layout.draws))


def rates(model: Machine) -> dict[str, float]:
    """The learning rate and discount of a handwired model, and those that the learned ones were trained on."""
    arguments = model.origin.get("arguments", {}) if model.is_handwired else {}
    return {"alpha": arguments.get("alpha", 0.1), "gamma": arguments.get("gamma", 0.9)}


def round_inputs(episodes: MDPEpisodes) -> RoundInputs:
    """States, action and reward of each round, then also the pair and its reward: what one round says by itself."""
    n_states, n_actions = episodes.n_states, episodes.n_actions
    pair = np.eye(n_states * n_actions)[episodes.states * n_actions + episodes.actions]
    rewards, states = episodes.rewards[..., None], np.eye(n_states)
    tokens = (states[episodes.states], np.eye(n_actions)[episodes.actions], states[episodes.next_states])
    plain = np.concatenate([*tokens, rewards], axis=-1)
    products = np.concatenate([plain, pair, pair * rewards], axis=-1)
    kinds = np.stack([episodes.states, episodes.actions, episodes.next_states], axis=-1)
    return RoundInputs((plain, products), kinds)


def aligned(model: Machine) -> tuple[tuple[str, str], ...]:
    """Subspaces to learn, (variable, site): the values and the choice; then a place that cannot hold it."""
    if lacks(model, "embed", "resid_post"):
        return (("table", "latent"), ("next_state", "latent"))
    last = model.points["resid_post"].n_layers - 1
    return (
        ("next_values", f"resid_post[{max(last - 1, 0)}]@Select"),
        ("choice", f"resid_post[{last}]@Select"),
        ("choice", "embed@<BOS>"),
    )


def claims(model: Machine) -> tuple[tuple[Any, ...], ...]:
    """Where a model could hold the algorithm's variables, by whole activations, and where it cannot."""
    if lacks(model, "embed", "resid_post"):
        return (("table", None), ("table", None, "state"))
    last = model.points["resid_post"].n_layers - 1
    # An update that is added to its slot holds what changes, one that replaces it the new column as well. So only the
    # latter can write the column of another action into this one's slot.
    added = getattr(getattr(model, "config", None), "latent_update", "replace") == "add"
    written = ("change",) if added else ("change", hypothesis(model).written)
    candidates = list(model.layout.outcomes)
    arrived = [f"embed@{label}" for label in model.layout.labels if label.startswith("s'")]
    inputs = {"state": ["embed@s"], "reward": ["embed@r"], "next_state": arrived}
    if not added:
        inputs["action"] = ["embed@a"]
    return (
        ("table", ["latent"]),
        *(("next_values", [f"resid_post[{layer}]@{a}" for a in candidates]) for layer in range(last)),
        ("next_values", ["embed@<BOS>"], "prediction", True),
        ("next_state", arrived),
        *([("noise", ["embed@n"])] if model.layout.draws else []),
        ("choice", [f"resid_post[{last}]@Select"]),
        ("table", ["latent"], "state"),
        *((key, sites, "state") for key, sites in inputs.items()),
        ("reward", ["embed@<BOS>"], "state", True),
        *((key, [f"resid_post[{last}]@Update"], "state") for key in written),
    )


def steering() -> Steering:
    """Higher values of the first action, read in its probability; values of non-negative rewards are never negative."""
    return Steering(
        change=lambda shape: 0.2 * np.broadcast_to(np.eye(shape[-1])[0], shape),
        doses=(0, 0.5, 1, 2, 4),
        outcome=lambda episodes, t: 0,
        what="first action's values + 0.2",
        shows="P(first action)",
    )


# Corruptions.


def exchange_history(episodes: MDPEpisodes, round: int) -> _Pair:
    """Give each episode the history of the next one: all rounds before ``round``, and so its latents."""
    return task.exchange_history(episodes, round, lambda of, **transitions: of.relearned(transitions=transitions))


def _change_reward(episodes: MDPEpisodes, round: int, reward: float | None = None) -> _Pair:
    """Set the reward of one round; by default move it by a half: ``r -> (r + 1/2) mod 1``, never the same."""
    t = corrupted_round(episodes, round)
    rewards = episodes.rewards.copy()
    rewards[:, t] = (rewards[:, t] + 0.5) % 1.0 if reward is None else reward
    return episodes, episodes.relearned(transitions={"rewards": rewards})


def corruptions() -> tuple[Corruption, ...]:
    """The corruptions of this task: a corrupted episode gets the Q-tables that its own transitions produce.

    A reward is read after the round's choice, so its corruption shows from the next round on.
    """
    return (
        Corruption("exchange-history", "take another episode's history", 0, exchange_history, changes_history=True),
        Corruption("change-reward", "change the reward", 1, _change_reward),
    )
