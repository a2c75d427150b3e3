"""Train a model of Q-learning to be Q-learning: its table as a declared read-out, its update asked of single rounds.

    python -m circuits.benchmark.taught_training FOLDER 600 [START]      # steps; goes on with what FOLDER holds

It starts from ``qlearning-learned``, or the model named, and learns three things at once, by linear read-outs of its
latents that are fitted anew at every step:

* predictions: the Boltzmann policy of the handwired circuit with ``beta=10``, in every round;
* table: what is read after every round is the Q-table;
* update: latents from anywhere in the batch, some of them moved, meet a round from anywhere else, with two next states;
  what is then read must be what Q-learning makes of what was read before, and the prediction that of the table there.

So the table is supervised and the update, too: what comes out is no evidence that imitation alone ends there.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from circuits.benchmark import tying
from circuits.benchmark.tying import Batch
from interp import library, tasks
from interp.decoder import RIDGE, Decoder
from interp.model.checkpoints import save_checkpoint
from interp.model.layout import EncodedRounds
from interp.training.muon import Muon, is_stack
from interp.training.runs import Progression, read_state, write_state

_ALPHA, _GAMMA, _BETA = 0.1, 0.9, 10.0
_REGIMES = ("grid", "grid", "deterministic", "ladder")
_USUAL, _SMALLEST, _LARGEST = (4, 3), (2, 2), (8, 4)
"""States and actions: the size at which comparisons are made, of half of the batches; the range of the others."""
_SCALE = 0.1
"""A value that counts as far off: misses of the table and of an update are in units of it, and of its rate times it."""
_TRAINING = {"recipe": "circuits.benchmark.taught_training", "regimes": list(dict.fromkeys(_REGIMES))}
_EPISODES, _KEPT = 16, 16
"""Episodes of a batch, and the batches that maps of latents are fitted to."""
_WEIGHTS = {"predictions": 3.0, "table": 1.0, "update": 0.5, "next state": 2.0, "read": 3.0}
"""What the losses count."""
_UNTAUGHT = "qlearning-learned"
_SOFTER = 0.1
"""By what logits are multiplied before training: an imitation of greedy choices is sharper than the policy here."""


class Taught(nn.Module):
    """A model and two maps from its latents to its table, fitted anew to the last batches at every step.

    One reads the column of an action from the latent of this action, at every size; the other reads all latents
    together, at the usual size, as a comparison does. Both stay as they are while the model learns from them: a map
    that is learned with it is served where natural tables hardly vary, and a comparison does not look there.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.read = nn.Linear(model.config.d_model, _LARGEST[0]).requires_grad_(False)
        self.seen: deque[tuple[Tensor, Tensor]] = deque(maxlen=_KEPT)
        self.usual: deque[tuple[Tensor, Tensor]] = deque(maxlen=_KEPT)
        self.together: Decoder | None = None

    @torch.no_grad()
    def refit(self, latents: Tensor, tables: Tensor) -> None:
        """Fit both maps once more, with latents ``[round, latent, d_model]`` and their tables ``[round, S, A]``."""
        x = nn.functional.pad(latents, (0, 1), value=1.0).flatten(0, 1).double()
        y = tables.transpose(-1, -2).flatten(0, 1).double()
        self.seen.append((x.T @ x, x.T @ y))
        for state in range(self.read.out_features):
            several = [(square, product[:, state]) for square, product in self.seen if product.shape[1] > state]
            if several:
                square, product = (sum(both) for both in zip(*several, strict=True))
                solved = torch.linalg.solve(square + 1e-2 * torch.eye(len(square)), product).float()
                self.read.weight[state], self.read.bias[state] = solved[:-1], solved[-1]
        if tables.shape[1:] == _USUAL:
            self.usual.append((latents, tables))
            self.together = Decoder.fit(*map(torch.cat, zip(*self.usual, strict=True)), ridge=RIDGE)

    def tables(self, latents: Tensor, n_states: int) -> Tensor:
        """``[..., latent, d_model] -> [..., S, A]``."""
        if self.together is not None and (n_states, latents.shape[-2]) == _USUAL:
            return self.together(latents).float()
        return self.read(latents)[..., :n_states].transpose(-1, -2)

    def moved(self, latents: Tensor, change: Tensor) -> Tensor:
        """Latents ``[round, latent, d_model]`` of which a table is read that differs by ``change [round, S, A]``.

        They are moved as latents that differ in their tables differ on average.
        """
        if self.together is not None and change.shape[1:] == _USUAL:
            return self.together.move(latents, change)
        read = self.read.weight[: change.shape[-2]]
        spread = torch.cov(latents.flatten(0, 1).T) + 1e-4 * torch.eye(latents.shape[-1])
        writes = spread @ read.T @ torch.linalg.inv(read @ spread @ read.T)
        return latents + change.transpose(-1, -2) @ writes.T


@dataclass(frozen=True)
class _Round:
    """What rounds say, one each: state, action, reward and next state."""

    state: Tensor
    action: Tensor
    reward: Tensor
    next_state: Tensor

    def learned(self, tables: Tensor) -> Tensor:
        """Tables ``[round, S, A]`` after each round."""
        rows = torch.arange(len(tables))
        best = tables[rows, self.next_state].amax(-1)
        error = self.reward + _GAMMA * best - tables[rows, self.state, self.action]
        after = tables.clone()
        after[rows, self.state, self.action] += _ALPHA * error
        return after

    def policy(self, tables: Tensor) -> Tensor:
        """What the handwired circuit chooses by tables before each round."""
        return (_BETA * tables[torch.arange(len(tables)), self.next_state]).softmax(-1)


def _batch_of(model: Any, n_episodes: int, n_rounds: int, seed: int) -> tuple[Batch, Any]:
    """Encoded episodes; where rounds hold the model's own choice, a random one stands there."""
    rng = np.random.default_rng(seed)
    size = [int(rng.integers(low, high + 1)) for low, high in zip(_SMALLEST, _LARGEST, strict=True)]
    n_states, n_actions = _USUAL if rng.random() < 0.5 else size
    regime = _REGIMES[rng.integers(len(_REGIMES))]
    task = tasks.get("qlearning")
    episodes = task.sample(n_episodes, n_rounds, seed=seed, n_states=n_states, n_actions=n_actions, regime=regime)
    layout = model.layout.fit(episodes)
    rounds = layout.encode(episodes)
    drawn = torch.from_numpy(rng.integers(layout.n_outputs, size=episodes.states.shape))
    tokens = layout.commit(rounds.tokens, drawn)
    return Batch(EncodedRounds(tokens, rounds.values.float(), rounds.slots), layout, {}), episodes


def _seen(taught: Taught, n_episodes: int, n_rounds: int, seed: int) -> tuple[Batch, Any, Tensor, Tensor, Tensor]:
    """A batch, its episodes and tables, the logits and the latents of it, to which the maps have been fitted."""
    batch, episodes = _batch_of(taught.model, n_episodes, n_rounds, seed)
    logits, latents = tying.forward(taught.model, batch.rounds, batch.layout)
    tables = torch.from_numpy(episodes.q_tables).float()
    taught.refit(latents[:, 1:].detach().flatten(0, 1), tables[:, 1:].flatten(0, 1))
    return batch, episodes, tables, logits, latents


def _losses(taught: Taught, n_episodes: int, n_rounds: int, seed: int) -> dict[str, Tensor]:
    """Divergence of predictions, misses of the table, of single steps, and of predictions in these."""
    batch, episodes, tables, logits, latents = _seen(taught, n_episodes, n_rounds, seed)
    told = ("states", "actions", "rewards", "next_states")
    flat = [torch.from_numpy(getattr(episodes, name)).flatten() for name in told]
    seen = _Round(flat[0].long(), flat[1].long(), flat[2].float(), flat[3].long())
    wanted = seen.policy(tables[:, :-1].flatten(0, 1)).numpy()
    missed = (taught.tables(latents[:, 1:], episodes.n_states) - tables[:, 1:]) / _SCALE
    found = {
        "predictions": tying.divergence(taught.model, logits.flatten(0, 1), wanted),
        "table": nn.functional.smooth_l1_loss(missed, torch.zeros_like(missed)),
    }
    return found | _steps(taught, batch, latents.detach(), seen, episodes.n_states, seed)


def _steps(taught: Taught, batch: Batch, latents: Tensor, seen: _Round, n_states: int, seed: int) -> dict[str, Tensor]:
    """Single rounds from latents of anywhere, each with two next states: what is read after them, and predicted.

    ``next state`` is the difference that the next state makes to what is read, which is a small part of the update.
    """
    rng = np.random.default_rng([seed, 1])
    layout, pool, n_rounds = batch.layout, latents[:, :-1].flatten(0, 1), len(seen.state)
    n_pairs = min(n_rounds, 400)
    at, other, third = (torch.from_numpy(rng.integers(n_rounds, size=n_pairs)) for _ in range(3))
    other[: n_pairs // 2] = at[: n_pairs // 2]
    start, rows = pool[at], torch.arange(2 * n_pairs)
    drawn = torch.from_numpy(rng.standard_normal((n_pairs, n_states, start.shape[1]))).float()
    drawn *= torch.from_numpy(rng.choice([0.0, 0.0, 0.0, 0.1], (n_pairs, 1, 1))).float()
    column = torch.from_numpy(rng.integers(start.shape[1], size=n_pairs))
    one = torch.from_numpy(rng.uniform(-0.6, 0.6, n_pairs) * (rng.random(n_pairs) < 0.25)).float()
    drawn[rows[:n_pairs], seen.next_state[other], column] += one
    with torch.no_grad():
        start = taught.moved(start, drawn)
        before = taught.tables(start, n_states).repeat(2, 1, 1)
    every, slots = batch.rounds.tokens.flatten(0, 1), batch.rounds.slots.flatten()[other].repeat(2)
    arrived = [i for i, label in enumerate(layout.labels) if label.startswith("s'")]
    tokens = every[other].repeat(2, 1)
    tokens[n_pairs:, arrived] = every[third][:, arrived]
    values = batch.rounds.values.flatten(0, 1)[other].repeat(2, 1)
    scores, after = tying.one_round(taught.model, layout, tokens, start.repeat(2, 1, 1), values, slots)
    following = torch.cat([seen.next_state[other], seen.next_state[third]])
    state, action, reward = (x[other].repeat(2) for x in (seen.state, seen.action, seen.reward))
    met = _Round(state, action, reward, following)
    wanted = met.learned(before) - before
    columns = (taught.tables(after, n_states) - before - wanted)[rows, :, slots] / (_ALPHA * _SCALE)
    first, second = columns[rows, met.state].chunk(2)
    return {
        "update": nn.functional.smooth_l1_loss(columns, torch.zeros_like(columns)),
        "next state": nn.functional.smooth_l1_loss(2 * first, 2 * second, beta=4.0),
        "read": tying.divergence(taught.model, scores, met.policy(before).numpy()),
    }


class Run:
    """One training run, which its folder remembers."""

    def __init__(self, folder: Path, n_steps: int, start: str, seed: int = 0, lr: float = 1e-4) -> None:
        torch.manual_seed(seed)
        self.folder, self.n_steps, self.seed, self.lr = folder, n_steps, seed, lr
        model: Any = library.load(start)
        self.taught = Taught(model.train())
        parameters = {key: p for key, p in self.taught.named_parameters() if p.requires_grad}
        stacks = [p for key, p in parameters.items() if is_stack(key.removeprefix("model."), p)]
        ids = {id(p) for p in stacks}
        rest = [p for p in parameters.values() if id(p) not in ids]
        adam = torch.optim.AdamW(rest, lr, (0.9, 0.95), weight_decay=0.0)
        self.optimizers: list[Any] = [adam, Muon(stacks, 2 * lr, 0.0)]
        self.step, self.seconds = 0, 0.0
        state = read_state(folder)
        if state is not None:
            self.step, self.seconds = state.progress.step, state.progress.seconds
            state.weights(self.taught)
            state.moments(self.taught, self.optimizers)
        elif model.config.origin.get("training", {}).get("recipe") != _TRAINING["recipe"]:
            for parameter in (model.W_U, model.b_U):
                parameter.data.mul_(_SOFTER)
        with torch.no_grad():  # maps of what it is before the first step
            for i in range(2 * _KEPT):
                _seen(self.taught, _EPISODES, 25, 10**6 + self.step + i)

    def advance(self) -> dict[str, float]:
        """One optimizer step; the rate falls to 0 linearly."""
        found = _losses(self.taught, _EPISODES, 25 if self.step % 4 else 50, 10**4 * (self.seed + 1) + self.step)
        total = torch.stack([weight * found[key] for key, weight in _WEIGHTS.items()]).sum()
        total.backward()
        nn.utils.clip_grad_norm_(self.taught.parameters(), 1.0)
        share = min((self.step + 1) / 20, 1 - self.step / self.n_steps)
        for optimizer, rate in zip(self.optimizers, (self.lr, 2 * self.lr), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * share
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        return {key: float(loss.detach()) for key, loss in found.items()}


def train(folder: Path, n_steps: int, start: str = _UNTAUGHT, *, every: int = 25) -> Path:
    """Train from the model called ``start``, or go on training, in ``folder``; the folder of the model."""
    run = Run(folder, n_steps, start)
    seen: list[dict[str, float]] = []
    while run.step < n_steps:
        started = time.process_time()
        seen.append(run.advance())
        run.seconds += time.process_time() - started
        if run.step % every == 0 or run.step == n_steps:
            write_state(folder, Progression(step=run.step, seconds=run.seconds), {}, run.taught, run.optimizers)
            means = {key: float(np.mean([one[key] for one in seen])) for key in seen[0]}
            with open(folder / "losses.jsonl", "a", encoding="utf-8") as stream:
                stream.write(json.dumps({"step": run.step, "cpu_s": round(run.seconds, 1), **means}) + "\n")
            seen = []
    model = run.taught.model.eval()
    about = f"taught tabular Q-learning's table, single rounds and policy at beta {_BETA:g}, from {start}"
    origin = {"description": f"{about}; latents added to", "training": {**_TRAINING, "steps": n_steps, "seed": 0}}
    model.config = replace(model.config, name="qlearning-taught", origin=origin)
    save_checkpoint(model, folder / "model")
    return folder / "model"


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
