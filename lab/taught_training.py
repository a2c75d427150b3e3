"""Train a transformer from random weights on Q-learning, with a supervised code of its Q-table.

    python -m lab.taught_training FOLDER SEED              # continues the run in FOLDER
    python -m lab.taught_training FOLDER SEED imitating    # the control: only imitates choices

The latent of action a is prescribed as ``init_a + sum_s Q(s, a) code_s``, with one random direction
per state, drawn from the seed. A training round starts from a random table in this code and belongs
to no episode. Two things are supervised: the update, which moves the latent of the chosen action as
Q-learning changes its column; and the softmax policy of the handwired circuit with ``beta=10``.
Tables have values up to 3 in nine of eleven steps, and up to 10 in the others. No episodes are
played, and nothing prescribes what heads and layers do.

The result is a learned machine whose algorithm is known, for testing methods. It is no evidence of
what imitation alone would learn, since table and update are supervised. The control is the same
model, with the same initial weights and optimizer, that is trained on the same policy in whole
episodes and must find its own state.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy import special
from torch import Tensor, nn

from interp import tasks
from interp.model.checkpoints import save_checkpoint
from interp.model.config import LatentTransformerConfig
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.transformer import HookedLatentTransformer
from interp.support.errors import require
from interp.tasks.qlearning.episodes import MDPEpisodes
from interp.training.batches import RoundsLoss
from interp.training.muon import Muon, split_parameters
from interp.training.runs import Progression, read_state, write_state

_ALPHA, _GAMMA, _BETA = 0.1, 0.9, 10.0
_SMALLEST_TARGET = 0.02  # of a probability that errors are divided by
_USUAL, _SMALLEST, _LARGEST = (4, 3), (2, 2), (8, 4)
"""Numbers of states and actions: the usual size, for half of the batches; the smallest and the
largest size of the others.
"""
_D_MODEL, _N_LAYERS, _HEADS = 64, 4, ("linear", "linear", "softmax", "softmax")
_LR, _STEPS = 3e-3, 4400
_VALUES = (3.0, 10.0)
"""Largest value in a table: during the first steps, and the bound 1 / (1 - gamma) to which it grows
later.
"""
_FEWER_STATES = ((200, 2), (400, 3))
"""(step, states): before this step rounds have at most so many states, since few rows are easier to
look up.
"""
_BATCHES = ((0.5, 128), (0.8, 256), (1.0, 512))
"""(share, rounds): rounds per batch before this share of the first steps; 512 after them."""
_REGIMES, _ROUNDS = ("grid", "grid", "deterministic", "ladder"), 25
"""Regimes of the control's episodes; their final length, reached from 2 after a third of the first
steps.
"""
_WEIGHTS = {"policy": 3.0, "update": 2.0, "distance": 0.5}
"""Weights of the losses. "update" and "distance" are the squared and the absolute error of the
update, in TD errors.
"""
_RECIPE = "lab.taught_training"


def code(seed: int) -> Float[Tensor, "state d_model"]:
    """Return the directions that encode the states' values: orthonormal, drawn from the seed."""
    most_states, _ = _LARGEST
    rng = np.random.default_rng([seed, 1])
    columns, _ = np.linalg.qr(rng.standard_normal((_D_MODEL, most_states)))
    return torch.tensor(columns.T).float()


def untaught(seed: int) -> HookedLatentTransformer:
    """Return the model before training."""
    least_states, least_actions = _SMALLEST
    most_states, most_actions = _LARGEST
    layout = tasks.get("qlearning").layout(
        n_states=most_states,
        n_actions=most_actions,
        n_states_range=(least_states, most_states),
        n_actions_range=(least_actions, most_actions),
    )
    config = LatentTransformerConfig(
        layout,
        d_model=_D_MODEL,
        n_layers=_N_LAYERS,
        n_heads=len(_HEADS),
        d_head=_D_MODEL // len(_HEADS),
        d_mlp=4 * _D_MODEL,
        normalization_type=None,
        attention_rules=(_HEADS,) * _N_LAYERS,
        write_map=True,
        position_codes="label",
        name=f"qlearning-taught-{seed}" if seed else "qlearning-taught",
    )
    torch.manual_seed(seed)
    return HookedLatentTransformer(config)


def single_rounds(
    n_rounds: int,
    n_states: int,
    n_actions: int,
    rng: np.random.Generator,
    largest: float = _VALUES[0],
) -> MDPEpisodes:
    """Sample single rounds with random Q-tables, each as an episode of one round.

    Tables vary in scale. Some have few entries above 0, as early in an episode, and a third have
    small noise everywhere. Rewards are in [0, 1], and two of five are 0.

    Args:
        n_rounds: number of rounds.
        n_states, n_actions: sizes of the tables.
        rng: draws the rounds.
        largest: largest scale of a table's values.
    """
    shape = (n_rounds, n_states, n_actions)
    per_round = (n_rounds, 1, 1)  # one number per table
    scale = np.exp(rng.uniform(np.log(0.05), np.log(largest), per_round))
    values = scale * rng.random(shape)
    is_filled = rng.random(shape) < rng.random(per_round)  # another share of each table
    noise = 0.03 * rng.standard_normal(shape)
    is_noisy = rng.random(per_round) < 1 / 3
    tables = values * is_filled + noise * is_noisy
    states, next_states = rng.integers(n_states, size=(2, n_rounds, 1))
    actions = rng.integers(n_actions, size=(n_rounds, 1))
    rewards = rng.random((n_rounds, 1))
    rewards *= rng.random((n_rounds, 1)) < 0.6
    return MDPEpisodes.from_transitions(
        None,
        states,
        actions,
        rewards,
        next_states,
        alpha=_ALPHA,
        gamma=_GAMMA,
        n_states=n_states,
        n_actions=n_actions,
        initial=tables,
    )


def _encode(
    model: HookedLatentTransformer, episodes: MDPEpisodes, rng: np.random.Generator
) -> tuple[RoundLayout, EncodedRounds]:
    """Return the layout and the encoding of episodes, with a random choice where the model would
    read its own.
    """
    layout = model.layout.fit(episodes)
    encoded = layout.encode(episodes)
    # Random choices, so that the update does not come to depend on them.
    choices = torch.from_numpy(rng.integers(layout.n_outputs, size=episodes.states.shape))
    tokens = layout.put_choice(encoded.tokens, choices)
    return layout, EncodedRounds(tokens, encoded.values.float(), encoded.slots)


def divergence(model: HookedLatentTransformer, scores: Tensor, wanted: np.ndarray) -> Tensor:
    """Return the mean Kullback-Leibler divergence of predictions from ``wanted``, in nats.

    If the model gives probabilities, which may lie outside [0, 1], half of the chi-squared
    divergence replaces it; they agree to second order.

    Args:
        model: the model.
        scores: its predictions, ``[..., outcome]``: logits or probabilities, by its configuration.
        wanted: the target distributions, ``[..., outcome]``.
    """
    target = torch.from_numpy(wanted).to(scores)
    if model.config.output == "logits":
        terms = nn.functional.kl_div(scores.log_softmax(-1), target, reduction="none")
    else:
        terms = (scores - target).square() / (2 * target.clamp_min(_SMALLEST_TARGET))
    return terms.sum(-1).mean()


def boltzmann(values: np.ndarray) -> np.ndarray:
    """Return the softmax policy of the handwired circuit for these values."""
    return special.softmax(_BETA * values, -1)


def run_round(
    model: HookedLatentTransformer, layout: RoundLayout, fed: EncodedRounds, latents: Tensor
) -> tuple[Tensor, Tensor]:
    """Run one round; return its logits and the next latents.

    Args:
        model: the model.
        layout: layout of the round.
        fed: the encoded round, ``[batch, pos]``.
        latents: the state before the round.
    """
    forward_round = RoundsLoss(model, commit="target").forward_round
    logits, update = forward_round(fed.tokens, fed.values, latents, layout)
    return logits, model.write(latents, update, fed.slots)


def run_rounds(
    model: HookedLatentTransformer, rounds: EncodedRounds, layout: RoundLayout
) -> Float[Tensor, "episode round outcome"]:
    """Run whole episodes; return the logits of every round, with gradients."""
    n_episodes, n_rounds, _ = rounds.tokens.shape
    latents = model.initial(n_episodes, layout)
    logits = []
    for t in range(n_rounds):
        logits_of_round, latents = run_round(model, layout, rounds.take_round(t), latents)
        logits.append(logits_of_round)
    return torch.stack(logits, 1)


def losses(
    model: HookedLatentTransformer,
    directions: Tensor,
    rounds: MDPEpisodes,
    rng: np.random.Generator,
) -> dict[str, Tensor]:
    """Return the losses of policy and update in single rounds, against Q-learning.

    The squared error of an update is divided by the square of the table's scale if that exceeds the
    scales of the first steps. Otherwise large tables, which come later, would outweigh the others.

    Args:
        model: the model.
        directions: directions that encode the values of the states in a latent, ``[state,
            d_model]``.
        rounds: episodes of one round.
        rng: draws the choices that the model reads.
    """
    layout, encoded = _encode(model, rounds, rng)
    fed = encoded.take_round(0)
    directions = directions[: rounds.n_states]
    tables = torch.from_numpy(rounds.q_tables).float()
    before = tables[:, 0]  # [episode, state, action]
    after = tables[:, 1]
    # The latent of an action is the sum of its values in all states, each times the state's direction.
    latents = model.initial(len(rounds), layout) + before.mT @ directions
    scores, next_latents = run_round(model, layout, fed, latents)
    wanted_move = (after - before).mT @ directions
    errors = next_latents - latents - wanted_move
    # Of the chosen action's latent. Divided by alpha, it is in units of a TD error.
    error = errors[torch.arange(len(rounds)), fed.slots] / _ALPHA
    squared_error = error.square().sum(-1)
    largest = before.abs().amax((1, 2))
    # 1 for all tables of the first steps, whose values may exceed _VALUES[0] by noise.
    scale = (largest / (1.1 * _VALUES[0])).clamp_min(1.0)
    policy = boltzmann(rounds.next_values_before[:, 0])
    return {
        "policy": divergence(model, scores, policy),
        "update": (squared_error / scale**2).mean(),
        "distance": (squared_error + 1e-12).sqrt().mean(),  # the slope of sqrt at 0 is infinite
    }


class Run:
    """A training run, whose state is stored in its folder.

    Args:
        folder: the folder; a stored run with the same settings is continued.
        seed: seed of weights, code and batches.
        n_steps: number of training steps.
        imitating: True for the control.
    """

    def __init__(self, folder: Path, seed: int, n_steps: int, imitating: bool = False) -> None:
        self.folder = folder
        self.seed = seed
        self.n_steps = n_steps
        self.imitating = imitating
        self.settings = {"seed": seed, "steps": n_steps, "imitating": imitating}
        self.model = untaught(seed)
        self.code = code(seed)
        self.optimizers = _make_optimizers(self.model)
        self.step = 0
        self.seconds = 0.0
        self.n_first = max(1, 9 * n_steps // 11)  # steps of the first phase
        state = read_state(folder)
        if state is not None:
            require(
                state.config == self.settings,
                f"{str(folder)!r} holds a run of {state.config}, this one is {self.settings}; train in another folder",
            )
            self.step = state.progress.step
            self.seconds = state.progress.seconds
            state.load_weights(self.model)
            state.load_moments(self.model, self.optimizers)

    @property
    def share_of_second_phase(self) -> float:
        """Share of the second phase, in which tables grow, that is done; negative before it."""
        return (self.step - self.n_first) / max(1, self.n_steps - self.n_first)

    def draw_sizes(self, rng: np.random.Generator) -> tuple[int, int]:
        """Return the numbers of states and actions of a batch; half of the batches have the usual
        size.
        """
        least_states, least_actions = _SMALLEST
        most_states, most_actions = _LARGEST
        n_states = int(rng.integers(least_states, most_states + 1))
        n_actions = int(rng.integers(least_actions, most_actions + 1))
        if rng.random() < 0.5:
            n_states, n_actions = _USUAL
        for end, limit in _FEWER_STATES:  # the first steps have fewer states
            if self.step < end:
                return min(n_states, limit), n_actions
        return n_states, n_actions

    def count_rounds(self) -> int:
        """Return the number of rounds in the next batch."""
        for share, n_rounds in _BATCHES:
            if self.step < share * self.n_first:
                return n_rounds
        return _BATCHES[-1][1]

    def losses(self, rng: np.random.Generator) -> dict[str, Tensor]:
        """Return the losses on the step's batch: of single rounds, or of episodes for the control."""
        n_states, n_actions = self.draw_sizes(rng)
        n_rounds = self.count_rounds()
        if self.imitating:
            return self.imitation_losses(n_rounds, n_states, n_actions, rng)
        low, high = _VALUES
        # The largest value grows geometrically in the first half of the second phase.
        growth = min(1.0, max(0.0, 2 * self.share_of_second_phase))
        largest = low * (high / low) ** growth
        rounds = single_rounds(n_rounds, n_states, n_actions, rng, largest)
        return losses(self.model, self.code, rounds, rng)

    def imitation_losses(
        self, n_rounds: int, n_states: int, n_actions: int, rng: np.random.Generator
    ) -> dict[str, Tensor]:
        """Return the loss of the policy in whole episodes, whose length grows during training.

        Args:
            n_rounds: number of rounds of all episodes together.
            n_states, n_actions: sizes of the MDPs.
            rng: draws the batch.
        """
        regime = _REGIMES[rng.integers(len(_REGIMES))]
        growth = min(1.0, 3 * self.step / self.n_first)  # 1 from a third of the first phase on
        length = 2 + int((_ROUNDS - 2) * growth)
        episodes = tasks.get("qlearning").sample(
            n_rounds // length,
            length,
            seed=int(rng.integers(2**31)),
            regime=regime,
            n_states=n_states,
            n_actions=n_actions,
        )
        layout, encoded = _encode(self.model, episodes, rng)
        logits = run_rounds(self.model, encoded, layout)
        policy = boltzmann(episodes.next_values_before)
        return {"policy": divergence(self.model, logits, policy)}

    def learning_rate(self) -> float:
        """Return the learning rate of the step.

        It warms up, stays constant, and falls to 0 in the second half of the first phase. The
        second phase starts again at a third of it.
        """
        if self.share_of_second_phase >= 0:  # in the second phase
            warm_up = min(1.0, (self.step - self.n_first + 1) / 30)
            return _LR / 3 * warm_up * (1 - self.share_of_second_phase)
        warm_up = (self.step + 1) / 30
        decay = 2 * (1 - self.step / self.n_first)
        return _LR * min(1.0, warm_up, decay)

    def advance(self) -> dict[str, float]:
        """Take one optimizer step; return its losses."""
        rng = np.random.default_rng([self.seed, 2, self.step])
        step_losses = self.losses(rng)
        weighted = [_WEIGHTS[key] * loss for key, loss in step_losses.items()]
        torch.stack(weighted).sum().backward()
        gradient_norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        rate = self.learning_rate()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            # A state that is not normalised may overflow in an episode; then no step is taken.
            if gradient_norm.isfinite():
                optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        return {key: loss.item() for key, loss in step_losses.items()}

    def save(self, recent_losses: list[dict[str, float]]) -> None:
        """Write the run's state, and append the mean of the recent losses to ``losses.jsonl``."""
        progress = Progression(step=self.step, seconds=self.seconds)
        write_state(self.folder, progress, self.settings, self.model, self.optimizers)
        line = {"step": self.step, "cpu_s": round(self.seconds, 1)}
        for key in recent_losses[0]:
            line[key] = float(np.mean([step_losses[key] for step_losses in recent_losses]))
        with open(self.folder / "losses.jsonl", "a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


def _make_optimizers(model: HookedLatentTransformer) -> list[Any]:
    """Return AdamW for most parameters, and Muon for stacks of matrices."""
    stacks, others = split_parameters(model)
    adam = torch.optim.AdamW(others, _LR, betas=(0.9, 0.95), weight_decay=0.0)
    return [adam, Muon(stacks, _LR, weight_decay=0.0)]


def train(
    folder: Path, seed: int, n_steps: int = _STEPS, *, imitating: bool = False, every: int = 100
) -> Path:
    """Train, or continue training, in ``folder``; return the folder of the model.

    Args:
        folder: folder of the run.
        seed: seed of weights, code and batches.
        n_steps: number of training steps.
        imitating: True for the control.
        every: number of steps between saved states.
    """
    run = Run(folder, seed, n_steps, imitating)
    recent_losses: list[dict[str, float]] = []
    while run.step < n_steps:
        start = time.process_time()
        recent_losses.append(run.advance())
        run.seconds += time.process_time() - start
        if run.step % every == 0 or run.step == n_steps:
            run.save(recent_losses)
            recent_losses = []
    lesson = "the policy and updates of single rounds, in a given code"
    if imitating:
        lesson = "the policy in episodes"
    description = f"taught tabular Q-learning at beta {_BETA:g} from random weights: {lesson}; latents added to"
    origin = {"description": description, "training": {"recipe": _RECIPE, **run.settings}}
    run.model.config = replace(run.model.config, origin=origin)
    save_checkpoint(run.model.eval(), folder / "model")
    return folder / "model"


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(Path(sys.argv[1]), int(sys.argv[2]), imitating="imitating" in sys.argv[3:])
