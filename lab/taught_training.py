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
    """The directions that stand for the states' values: orthonormal, drawn from the seed."""
    columns, _ = np.linalg.qr(
        np.random.default_rng([seed, 1]).standard_normal((_D_MODEL, _LARGEST[0]))
    )
    return torch.from_numpy(columns.T.copy()).float()


def untaught(seed: int) -> HookedLatentTransformer:
    """The model before the first step."""
    (few_s, few_a), (n_states, n_actions) = _SMALLEST, _LARGEST
    layout = tasks.get("qlearning").layout(
        n_states=n_states,
        n_actions=n_actions,
        n_states_range=(few_s, n_states),
        n_actions_range=(few_a, n_actions),
    )
    sizes = _D_MODEL, _N_LAYERS, len(_HEADS), _D_MODEL // len(_HEADS), 4 * _D_MODEL
    config = LatentTransformerConfig(
        layout,
        *sizes,
        normalization_type=None,
        attention_rules=(_HEADS,) * _N_LAYERS,
        write_map=True,
        position_codes="label",
        name=f"qlearning-taught{f'-{seed}' if seed else ''}",
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
    """Rounds from random tables, each an episode of its own.

    Tables are of many sizes up to ``largest``, some with few entries above 0, as early in an episode, a third with
    small values anywhere; rewards are in [0, 1], two of five 0.
    """
    shape = (n_rounds, n_states, n_actions)
    size = np.exp(rng.uniform(np.log(0.05), np.log(largest), (n_rounds, 1, 1)))
    tables = size * rng.random(shape) * (rng.random(shape) < rng.random((n_rounds, 1, 1)))
    tables += 0.03 * rng.standard_normal(shape) * (rng.random((n_rounds, 1, 1)) < 1 / 3)
    state, following = rng.integers(n_states, size=(2, n_rounds, 1))
    action, reward = rng.integers(n_actions, size=(n_rounds, 1)), rng.random((n_rounds, 1))
    reward *= rng.random((n_rounds, 1)) < 0.6
    sizes: dict[str, Any] = {"n_states": n_states, "n_actions": n_actions, "initial": tables}
    return MDPEpisodes.from_transitions(
        None, state, action, reward, following, alpha=_ALPHA, gamma=_GAMMA, **sizes
    )


def _encoded(
    model: HookedLatentTransformer, episodes: MDPEpisodes, rng: np.random.Generator
) -> tuple[RoundLayout, EncodedRounds]:
    """Episodes as the model reads them, a random choice where it would read its own."""
    layout = model.layout.fit(episodes)
    encoded = layout.encode(episodes)
    drawn = torch.from_numpy(rng.integers(layout.n_outputs, size=episodes.states.shape))
    return layout, EncodedRounds(
        layout.commit(encoded.tokens, drawn), encoded.values.float(), encoded.slots
    )


def divergence(model: HookedLatentTransformer, scores: Tensor, wanted: np.ndarray) -> Tensor:
    """Return the mean Kullback-Leibler divergence of predictions from ``wanted``, in nats.

    Where the model gives probabilities, which may lie outside [0, 1], it is half of the chi-squared
    divergence: the same to second order.
    """
    target = torch.from_numpy(wanted).to(scores)
    if model.config.output != "logits":
        squared = (scores - target).square()
        return (squared / (2 * target.clamp_min(_SMALLEST_TARGET))).sum(-1).mean()
    negative_entropy = torch.special.xlogy(target, target)
    return (negative_entropy - target * scores.log_softmax(-1)).sum(-1).mean()


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
    """How far policies and updates of single rounds are from Q-learning's.

    Squared misses count in proportion to the table where it is larger than any of the first steps, noise included.
    """
    layout, encoded = _encoded(model, rounds, rng)
    directions = directions[: rounds.n_states]
    before, after = (torch.from_numpy(rounds.q_tables[:, t]).float() for t in (0, 1))
    latents = model.initial(len(rounds), layout) + before.mT @ directions
    tokens, values, slots = encoded.tokens[:, 0], encoded.values[:, 0], encoded.slots[:, 0]
    scores, left = run_round(model, layout, tokens, latents, values, slots)
    rows = torch.arange(len(rounds))
    missed = (left - latents - (after - before).mT @ directions)[rows, slots] / _ALPHA
    squared = missed.square().sum(-1)
    unit = (before.abs().amax((1, 2)) / (1.1 * _VALUES[0])).clamp_min(1.0)
    return {
        "policy": divergence(
            model, scores, special.softmax(_BETA * rounds.next_values_before[:, 0], -1)
        ),
        "update": (squared / unit**2).mean(),
        "distance": (squared + 1e-12).sqrt().mean(),
    }


class Run:
    """One training run, which its folder remembers."""

    def __init__(self, folder: Path, seed: int, n_steps: int, imitating: bool = False) -> None:
        self.folder, self.seed, self.n_steps, self.imitating = folder, seed, n_steps, imitating
        self.settings = {"seed": seed, "steps": n_steps, "imitating": imitating}
        self.model, self.code = untaught(seed), code(seed)
        parameters = dict(self.model.named_parameters())
        stacks = [p for key, p in parameters.items() if is_stack(key, p)]
        rest = [p for key, p in parameters.items() if not is_stack(key, p)]
        adam = torch.optim.AdamW(rest, _LR, (0.9, 0.95), weight_decay=0.0)
        self.optimizers: list[Any] = [adam, Muon(stacks, _LR, 0.0)]
        self.step, self.seconds, self.first = 0, 0.0, max(1, 9 * n_steps // 11)
        state = read_state(folder)
        if state is not None:
            require(
                state.config == self.settings,
                f"{str(folder)!r} holds a run of {state.config}, this one is {self.settings}; train in another folder",
            )
            self.step, self.seconds = state.progress.step, state.progress.seconds
            state.load_weights(self.model)
            state.load_moments(self.model, self.optimizers)

    @property
    def share_of_rest(self) -> float:
        """How much is done of the steps in which tables grow; below 0 before them."""
        return (self.step - self.first) / max(1, self.n_steps - self.first)

    def losses(self, rng: np.random.Generator) -> dict[str, Tensor]:
        """Those of a step's batch: of single rounds, or of episodes of as many rounds where the run imitates."""
        size = [
            int(rng.integers(low, high + 1)) for low, high in zip(_SMALLEST, _LARGEST, strict=True)
        ]
        n_states, n_actions = _USUAL if rng.random() < 0.5 else size
        most = next((most for before, most in _FEWER_STATES if self.step < before), n_states)
        n_rounds = next(
            (n for share, n in _BATCHES if self.step < share * self.first), _BATCHES[-1][1]
        )
        n_states = min(n_states, most)
        if not self.imitating:
            low, high = _VALUES
            largest = low * (high / low) ** min(1.0, max(0.0, 2 * self.share_of_rest))
            return losses(
                self.model,
                self.code,
                single_rounds(n_rounds, n_states, n_actions, rng, largest),
                rng,
            )
        regime = _REGIMES[rng.integers(len(_REGIMES))]
        long = 2 + int((_ROUNDS - 2) * min(1.0, 3 * self.step / self.first))
        sizes, drawn = {"n_states": n_states, "n_actions": n_actions}, int(rng.integers(2**31))
        episodes = tasks.get("qlearning").sample(
            n_rounds // long, long, seed=drawn, regime=regime, **sizes
        )
        layout, encoded = _encoded(self.model, episodes, rng)
        logits = run_rounds(self.model, encoded, layout)
        return {
            "policy": divergence(
                self.model, logits, special.softmax(_BETA * episodes.next_values_before, -1)
            )
        }

    def advance(self) -> dict[str, float]:
        """One optimizer step: warm-up, a constant rate, falling to 0 in the second half; and once more, at a third."""
        rng = np.random.default_rng([self.seed, 2, self.step])
        found = self.losses(rng)
        torch.stack([_WEIGHTS[key] * loss for key, loss in found.items()]).sum().backward()
        size = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        rate = _LR * min(1.0, (self.step + 1) / 30, 2 * (1 - self.step / self.first))
        if self.share_of_rest >= 0:
            rate = _LR / 3 * min(1.0, (self.step - self.first + 1) / 30) * (1 - self.share_of_rest)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            if size.isfinite():  # a state that is not normalised may overflow in an episode
                optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        return {key: float(loss.detach()) for key, loss in found.items()}


def train(
    folder: Path, seed: int, n_steps: int = _STEPS, *, imitating: bool = False, every: int = 100
) -> Path:
    """Train, or go on training, in ``folder``; the folder of the model."""
    run = Run(folder, seed, n_steps, imitating)
    seen: list[dict[str, float]] = []
    while run.step < n_steps:
        started = time.process_time()
        seen.append(run.advance())
        run.seconds += time.process_time() - started
        if run.step % every == 0 or run.step == n_steps:
            progress = Progression(step=run.step, seconds=run.seconds)
            write_state(folder, progress, run.settings, run.model, run.optimizers)
            means = {key: float(np.mean([one[key] for one in seen])) for key in seen[0]}
            with open(folder / "losses.jsonl", "a", encoding="utf-8") as stream:
                stream.write(
                    json.dumps({"step": run.step, "cpu_s": round(run.seconds, 1), **means}) + "\n"
                )
            seen = []
    taught = (
        "the policy in episodes"
        if imitating
        else "the policy and updates of single rounds, in a given code"
    )
    about = f"taught tabular Q-learning at beta {_BETA:g} from random weights: {taught}; latents added to"
    origin = {"description": about, "training": {"recipe": _RECIPE, **run.settings}}
    run.model.config = replace(run.model.config, origin=origin)
    save_checkpoint(run.model.eval(), folder / "model")
    return folder / "model"


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(Path(sys.argv[1]), int(sys.argv[2]), imitating="imitating" in sys.argv[3:])
