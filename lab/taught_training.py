"""Teach a transformer Q-learning from random weights, one round at a time, by a code of its table.

    python -m lab.taught_training FOLDER SEED              # goes on with what FOLDER holds
    python -m lab.taught_training FOLDER SEED imitating    # the control: choices in episodes, no more

The latent of action a is given as ``init_a + sum_s Q(s, a) code_s``: one direction a state, drawn from the seed. A
round starts from a random table in this code, belongs to no episode, and asks for two things: the update that moves
the latent of the action as Q-learning changes its column, and the Boltzmann policy of the handwired circuit with
``beta=10``. Tables have values up to 3 in nine steps of eleven, and grow to 10 in the others. Episodes are never
played, and nothing is said of what heads and layers do.

So the table and its update are supervised in a code that was given: what comes out is no evidence of where imitation
ends. It is a learned machine whose algorithm is known, for methods to be tested on. The control is the same model, from
the same weights and by the same optimizer, which is asked for the same policy in whole episodes and has to find a state
of its own.
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
from interp.training.muon import Muon, is_stack
from interp.training.runs import Progression, read_state, write_state

_ALPHA, _GAMMA, _BETA = 0.1, 0.9, 10.0
_SMALLEST_TARGET = 0.02  # of a probability that errors are divided by
_USUAL, _SMALLEST, _LARGEST = (4, 3), (2, 2), (8, 4)
"""States and actions: the size at which comparisons are made, of half of the batches; the range of the others."""
_D_MODEL, _N_LAYERS, _HEADS = 64, 4, ("linear", "linear", "softmax", "softmax")
_LR, _STEPS = 3e-3, 4400
_VALUES = (3.0, 10.0)
"""The largest value of a table: in the first steps, and the bound 1 / (1 - gamma), to which it grows in the others."""
_FEWER_STATES = ((200, 2), (400, 3))
"""Before these steps rounds have no more states than this: looking one of a few rows up is learned sooner."""
_BATCHES = ((0.5, 128), (0.8, 256), (1.0, 512))
"""Rounds of a batch before these shares of the first steps, and 512 in the others."""
_REGIMES, _ROUNDS = ("grid", "grid", "deterministic", "ladder"), 25
"""Of the episodes of a run that imitates, and their length, after growing from 2 over a third of the first steps."""
_WEIGHTS = {"policy": 3.0, "update": 2.0, "distance": 0.5}
"""What the losses count; the last two are of the same misses, squared and not, in units of the TD error."""
_RECIPE = "lab.taught_training"


def code(seed: int) -> Float[Tensor, "state d_model"]:
    """Return the directions that stand for the states' values: orthonormal, drawn from the seed."""
    most_states, _ = _LARGEST
    rng = np.random.default_rng([seed, 1])
    columns, _ = np.linalg.qr(rng.standard_normal((_D_MODEL, most_states)))
    return torch.tensor(columns.T).float()


def untaught(seed: int) -> HookedLatentTransformer:
    """Return the model before the first step."""
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
    """Return rounds from random tables, each an episode of its own.

    Tables are of many sizes, some with few entries above 0, as early in an episode, a third with small values anywhere;
    rewards are in [0, 1], two of five 0.

    Args:
        n_rounds: how many.
        n_states: states of each.
        n_actions: actions of each.
        rng: draws them.
        largest: up to which values tables grow.
    """
    shape = (n_rounds, n_states, n_actions)
    a_round = (n_rounds, 1, 1)
    scale = np.exp(rng.uniform(np.log(0.05), np.log(largest), a_round))
    values = scale * rng.random(shape)
    is_filled = rng.random(shape) < rng.random(a_round)
    noise = 0.03 * rng.standard_normal(shape)
    is_noisy = rng.random(a_round) < 1 / 3
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
    """Return episodes as the model reads them, a random choice where it would read its own."""
    layout = model.layout.fit(episodes)
    encoded = layout.encode(episodes)
    choices = torch.from_numpy(rng.integers(layout.n_outputs, size=episodes.states.shape))
    tokens = layout.commit(encoded.tokens, choices)
    return layout, EncodedRounds(tokens, encoded.values.float(), encoded.slots)


def divergence(model: HookedLatentTransformer, scores: Tensor, wanted: np.ndarray) -> Tensor:
    """Return the mean Kullback-Leibler divergence of predictions from ``wanted``, in nats.

    Where the model gives probabilities, which may lie outside [0, 1], it is half of the chi-squared
    divergence: the same to second order.
    """
    target = torch.from_numpy(wanted).to(scores)
    if model.config.output == "logits":
        negative_entropy = torch.special.xlogy(target, target)
        cross_entropy = -target * scores.log_softmax(-1)
        terms = negative_entropy + cross_entropy
    else:
        terms = (scores - target).square() / (2 * target.clamp_min(_SMALLEST_TARGET))
    return terms.sum(-1).mean()


def boltzmann(values: np.ndarray) -> np.ndarray:
    """Return the policy of the handwired circuit."""
    return special.softmax(_BETA * values, -1)


def run_round(
    model: HookedLatentTransformer,
    layout: RoundLayout,
    tokens: Tensor,
    latents: Tensor,
    values: Tensor,
    slots: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return logits of one round and the latents that it leaves; of the last layer only what is read is computed."""
    resid = model.run_from(model.embedded(tokens, latents, values), n_read=layout.n_read)
    read = model.ln_final(resid)
    logits = model.unembed(read[:, 0])[:, : layout.n_outputs]
    update = model.update(read[:, -layout.n_after], tokens.shape[1])
    return logits, model.write(latents, update, slots)


def run_rounds(
    model: HookedLatentTransformer, rounds: EncodedRounds, layout: RoundLayout
) -> Float[Tensor, "episode round outcome"]:
    """Return the logits of every round, with gradients."""
    latents = model.initial(len(rounds.tokens), layout)
    logits = []
    for t in range(rounds.tokens.shape[1]):
        tokens, values, slots = rounds.tokens[:, t], rounds.values[:, t], rounds.slots[:, t]
        scores, latents = run_round(model, layout, tokens, latents, values, slots)
        logits.append(scores)
    return torch.stack(logits, 1)


def losses(
    model: HookedLatentTransformer,
    directions: Tensor,
    rounds: MDPEpisodes,
    rng: np.random.Generator,
) -> dict[str, Tensor]:
    """Return how far policies and updates of single rounds are from Q-learning's.

    Squared misses count in proportion to the table where it is larger than any of the first steps, noise included.

    Args:
        model: the model.
        directions: the code of the table.
        rounds: episodes of one round.
        rng: draws the choices that the model reads.
    """
    layout, encoded = _encode(model, rounds, rng)
    directions = directions[: rounds.n_states]
    tables = torch.from_numpy(rounds.q_tables).float()
    before = tables[:, 0]
    after = tables[:, 1]
    latents = model.initial(len(rounds), layout) + before.mT @ directions
    tokens, values, slots = encoded.tokens[:, 0], encoded.values[:, 0], encoded.slots[:, 0]
    scores, next_latents = run_round(model, layout, tokens, latents, values, slots)
    wanted_move = (after - before).mT @ directions
    missed = next_latents - latents - wanted_move
    missed = missed[torch.arange(len(rounds)), slots] / _ALPHA
    squared = missed.square().sum(-1)
    largest = before.abs().amax((1, 2))
    unit = (largest / (1.1 * _VALUES[0])).clamp_min(1.0)
    policy = boltzmann(rounds.next_values_before[:, 0])
    return {
        "policy": divergence(model, scores, policy),
        "update": (squared / unit**2).mean(),
        "distance": (squared + 1e-12).sqrt().mean(),
    }


class Run:
    """One training run, which its folder remembers."""

    def __init__(self, folder: Path, seed: int, n_steps: int, imitating: bool = False) -> None:
        self.folder = folder
        self.seed = seed
        self.n_steps = n_steps
        self.imitating = imitating
        self.settings = {"seed": seed, "steps": n_steps, "imitating": imitating}
        self.model = untaught(seed)
        self.code = code(seed)
        self.optimizers = _optimizers(self.model)
        self.step = 0
        self.seconds = 0.0
        self.first = max(1, 9 * n_steps // 11)
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
    def share_of_rest(self) -> float:
        """How much is done of the steps in which tables grow; below 0 before them."""
        return (self.step - self.first) / max(1, self.n_steps - self.first)

    def draw_sizes(self, rng: np.random.Generator) -> tuple[int, int]:
        """Return states and actions of a batch: in half of them the usual ones."""
        n_states, n_actions = (
            int(rng.integers(low, high + 1)) for low, high in zip(_SMALLEST, _LARGEST, strict=True)
        )
        if rng.random() < 0.5:
            n_states, n_actions = _USUAL
        for end, most_states in _FEWER_STATES:
            if self.step < end:
                return min(n_states, most_states), n_actions
        return n_states, n_actions

    def count_rounds(self) -> int:
        """Return how many rounds a batch has."""
        for share, n_rounds in _BATCHES:
            if self.step < share * self.first:
                return n_rounds
        return _BATCHES[-1][1]

    def losses(self, rng: np.random.Generator) -> dict[str, Tensor]:
        """Return the losses of a step's batch: of single rounds, or of episodes where the run imitates."""
        n_states, n_actions = self.draw_sizes(rng)
        n_rounds = self.count_rounds()
        if self.imitating:
            return self.imitation_losses(n_rounds, n_states, n_actions, rng)
        low, high = _VALUES
        growth = min(1.0, max(0.0, 2 * self.share_of_rest))
        largest = low * (high / low) ** growth
        rounds = single_rounds(n_rounds, n_states, n_actions, rng, largest)
        return losses(self.model, self.code, rounds, rng)

    def imitation_losses(
        self, n_rounds: int, n_states: int, n_actions: int, rng: np.random.Generator
    ) -> dict[str, Tensor]:
        """Return the loss of the policy in whole episodes, which grow longer.

        Args:
            n_rounds: rounds of all episodes together.
            n_states: states of an episode.
            n_actions: actions of an episode.
            rng: draws the batch.
        """
        regime = _REGIMES[rng.integers(len(_REGIMES))]
        growth = min(1.0, 3 * self.step / self.first)
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
        """Return the rate: warm-up, constant, falling to 0 in the second half; and once more, at a third."""
        if self.share_of_rest >= 0:
            warm_up = min(1.0, (self.step - self.first + 1) / 30)
            return _LR / 3 * warm_up * (1 - self.share_of_rest)
        warm_up = (self.step + 1) / 30
        decay = 2 * (1 - self.step / self.first)
        return _LR * min(1.0, warm_up, decay)

    def advance(self) -> dict[str, float]:
        """Take one optimizer step; return its losses."""
        rng = np.random.default_rng([self.seed, 2, self.step])
        step_losses = self.losses(rng)
        weighted = [_WEIGHTS[key] * loss for key, loss in step_losses.items()]
        torch.stack(weighted).sum().backward()
        size = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        rate = self.learning_rate()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            if size.isfinite():  # a state that is not normalised may overflow in an episode
                optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        return {key: loss.item() for key, loss in step_losses.items()}

    def save(self, recent_losses: list[dict[str, float]]) -> None:
        """Write the state, and add a line of mean losses."""
        progress = Progression(step=self.step, seconds=self.seconds)
        write_state(self.folder, progress, self.settings, self.model, self.optimizers)
        line = {"step": self.step, "cpu_s": round(self.seconds, 1)}
        for key in recent_losses[0]:
            line[key] = float(np.mean([step_losses[key] for step_losses in recent_losses]))
        with open(self.folder / "losses.jsonl", "a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


def _optimizers(model: HookedLatentTransformer) -> list[Any]:
    """Return Muon for stacks of matrices, and AdamW for the rest."""
    stacks = []
    rest = []
    for key, parameter in model.named_parameters():
        if is_stack(key, parameter):
            stacks.append(parameter)
        else:
            rest.append(parameter)
    return [torch.optim.AdamW(rest, _LR, (0.9, 0.95), weight_decay=0.0), Muon(stacks, _LR, 0.0)]


def train(
    folder: Path, seed: int, n_steps: int = _STEPS, *, imitating: bool = False, every: int = 100
) -> Path:
    """Train, or go on training, in ``folder``; return the folder of the model.

    Args:
        folder: of the run.
        seed: of weights, code and batches.
        n_steps: of the training.
        imitating: whether it is the control.
        every: steps between two saved states.
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
