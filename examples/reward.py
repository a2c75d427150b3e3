"""What does the latent transformer become that is trained on reward alone: model-free, model-based, something else?

It acts in MDPs of 4 states and 2 actions with rewards of 0 or 1, a new MDP every 25 rounds, and is trained by policy
gradient (REINFORCE; the baseline is the value that an optimal policy would have from where it stands, and the mean of
the other episodes of its MDP). No target ever says which action is right. Then it is asked which learner explains its
choices: Q-learning, its rivals, or the model-based one of ``examples/planner.py``. Two controls pass through the same
instruments: Q-learning and the planner, each choosing softly, whose names must be found again; of an untrained copy
nothing may be said.

Run it with ``python examples/reward.py [OUT [BATCHES [SEED ...]]]``; trained models in OUT are not trained again.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from planner import family, planner

import interp
from circuits import compare
from interp.evaluation.qlearning.returns import normalised_score
from interp.model.checkpoints import load_checkpoint, save_checkpoint
from interp.model.config import LatentTransformerConfig
from interp.model.transformer import HookedLatentTransformer, untrained
from interp.support.files import write_csv
from interp.tasks import qlearning
from interp.tasks.qlearning.algorithms import q_learning
from interp.tasks.qlearning.families import acting
from interp.tasks.qlearning.sampling import Interaction, sample, sample_mdps

N_STATES, N_ACTIONS, N_ROUNDS, REGIME = 4, 2, 25, "coin"
LAYOUT = qlearning.TASK.layout(n_states=N_STATES, n_actions=N_ACTIONS)
DISCOUNT = 0.9
"""Of rewards to come, in training."""
SAME_MDP = 4
"""Episodes of one MDP in a batch: the mean of the others is part of an episode's baseline."""


def optimal(mdps: Any) -> np.ndarray:
    """Discounted optimal values with 0, 1, ... rounds to go, ``[rounds to go, episode, state]``."""
    values = [np.zeros((len(mdps), N_STATES))]
    for _ in range(N_ROUNDS):
        values.append(
            (mdps.rewards + DISCOUNT * np.einsum("esan,en->esa", mdps.transitions, values[-1])).max(
                -1
            )
        )
    return np.stack(values)


def loss(
    model: HookedLatentTransformer, mdps: Any, rng: np.random.Generator, entropy: float
) -> torch.Tensor:
    """Policy gradient's surrogate over one episode in each MDP, less an ``entropy`` bonus."""
    world, carried, choice = (
        Interaction(mdps, N_ROUNDS, int(rng.integers(2**31))),
        model.initial(len(mdps)),
        None,
    )
    said, spread, rewards, states = [], [], [], []
    while not world.done:
        seen = world.step(choice)
        fed = model.prepare(LAYOUT.encode(seen)).at(0)
        # The token of its own choice is drawn at random in training, so that nothing is learned from it.
        anything = torch.from_numpy(rng.integers(N_ACTIONS, size=len(mdps)))
        done = model.step(carried, replace(fed, tokens=LAYOUT.commit(fed.tokens, anything)))
        carried, logs = done.carried, done.prediction.clamp_min(1e-9).log()
        choice = (rng.random(len(mdps)) > done.prediction[:, 0].detach().numpy()).astype(np.int64)
        said.append(logs[torch.arange(len(mdps)), torch.from_numpy(choice)])
        spread.append(-(logs * done.prediction).sum(-1))
        rewards.append(seen.rewards[:, 0])
        states.append(seen.next_states[:, 0])
    gains, values, ahead = [], optimal(mdps), np.zeros(len(mdps))
    for t in reversed(range(1, N_ROUNDS)):  # what the choice of round t - 1 brought
        ahead = rewards[t] + DISCOUNT * ahead
        gains.insert(0, ahead - values[N_ROUNDS - t][np.arange(len(mdps)), states[t - 1]])
    gain = np.stack(gains, 1).reshape(-1, SAME_MDP, N_ROUNDS - 1)
    gain = (gain - gain.mean(1, keepdims=True)).reshape(len(mdps), -1)
    weights = torch.from_numpy(gain / gain.std()).float()
    return -(weights * torch.stack(said[:-1], 1)).mean() - entropy * torch.stack(spread[:-1]).mean()


def train(
    folder: Path, batches: int, seed: int, n_mdps: int = 24, lr: float = 1.5e-3
) -> HookedLatentTransformer:
    """A transformer trained on reward, from a random start; it is read from ``folder`` where it stands already."""
    if (folder / "config.json").is_file():
        return load_checkpoint(folder)  # type: ignore[return-value]
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"d_model": 48, "n_layers": 2, "n_heads": 4, "d_head": 12, "d_mlp": 96}
    about = {"trained": "on reward, by examples/reward.py", "seed": seed, "batches": batches}
    name = f"reward-{seed}"
    model = HookedLatentTransformer(
        LatentTransformerConfig(LAYOUT, write_map=True, **sizes, name=name, origin=about)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr, (0.9, 0.99), weight_decay=0.0)
    for step in range(batches):
        mdps = sample_mdps(
            n_mdps, N_STATES, N_ACTIONS, seed=(seed + 1) * 10**6 + step, regime=REGIME
        )
        mdps, left = mdps.select(np.repeat(np.arange(n_mdps), SAME_MDP)), 1 - step / batches
        optimizer.param_groups[0]["lr"] = lr * min(1.0, (step + 1) / 20, 2 * left)
        optimizer.zero_grad()
        loss(model, mdps, np.random.default_rng([seed, step]), 0.02 * left).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"seed {seed}, batch {step + 1}: earned {earned(model, 64)}", flush=True)
    save_checkpoint(model.eval(), folder)
    return model


def earned(model: Any, n: int) -> str:
    """What it earns by its likeliest actions: 0 as a random policy, 1 as an optimal one that knows the MDP."""
    mdps = sample_mdps(n, N_STATES, N_ACTIONS, seed=77, regime=REGIME)
    return str(
        normalised_score(interp.play(model, mdps, n_rounds=N_ROUNDS, seed=5)[0]).get("score")
    )


def main(
    out: Path, batches: int = 400, seeds: tuple[int, ...] = (0, 1), n: int = 48
) -> pd.DataFrame:
    """Train where nothing is trained yet, ask every subject on the same episodes, and write ``reward.csv``."""
    models = [train(out / f"reward-{seed}", batches, seed) for seed in seeds]
    # Episodes of policies from greedy to random, and such as the first one makes where a fifth of actions is random.
    mdps = [sample_mdps(n, N_STATES, N_ACTIONS, seed=9 + i, regime=REGIME) for i in range(2)]
    own = tuple(
        interp.play(models[0], each, N_ROUNDS, seed=i, epsilon=0.2)[0]
        for i, each in enumerate(mdps)
    )
    drawn = tuple(
        sample(n, N_ROUNDS, N_STATES, N_ACTIONS, seed=1 + i, regime=REGIME) for i in range(2)
    )
    subjects = {model.name: model for model in models}
    subjects["untrained"] = untrained(models[0], 1)
    subjects["Q-learning, .3, .7"] = acting(q_learning(alpha=0.3, gamma=0.7), temperature=0.1)
    subjects["planner, .8, .5"] = planner()
    rows, asked = [], [*qlearning.TASK.rivals().values(), family()]
    for name, subject in subjects.items():
        found = compare.explain(
            subject, qlearning.TASK, {"drawn": drawn, "own": own}, seed=0, families=asked
        )
        row = {"subject": name, "answer": found.family or "none of these", "closest": found.closest}
        row |= found.explained.columns("explained") | found.ratio.columns("left_of_runner_up")
        row["parameters"] = ", ".join(
            f"{key} {float(value):.3g}" for key, value in found.parameters.items()
        )
        nats = {
            key: np.mean([values.mean() for values in s.divergences.values()])
            for key, s in found.scores.items()
        }
        row |= {
            f"{key} explains": 1 - nats[key] / nats[found.baseline]
            for key in nats
            if key != found.baseline
        }
        row["earned"] = (
            earned(subject, 4 * n) if name in ("untrained", *(m.name for m in models)) else ""
        )
        rows.append(row)
    table = pd.DataFrame(rows)
    write_csv(out / "reward.csv", table)
    return table


if __name__ == "__main__":
    given = sys.argv[1:]
    torch.set_num_threads(1)
    seeds = tuple(map(int, given[2:])) or (0, 1)
    print(
        main(
            Path(*given[:1] or ["output/reward"]), *map(int, given[1:2]), seeds=seeds
        ).T.to_string()
    )
