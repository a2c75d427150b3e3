"""Is an agent that others' code trained Q-learning, and at what rate and discount? The answer may be "none of these".

RecurrentPPO of ``sb3-contrib`` (``pip install sb3-contrib``; only training needs it) learns to earn in MDPs of 4 states
and 2 actions, a new one every 25 rounds, so that what it must learn is to learn. The file that it saves is read as a
machine, played, and asked which algorithm explains its choices. The rate and the discount are those of the Q-learning
that comes closest, fitted to five disjoint samples. Two controls pass through the same instruments: Q-learning that
chooses as softly, whose rate and discount must be found again, and the untrained agent, of which nothing may be said.
Run it with ``python examples/agent.py [OUT [STEPS]]``; where OUT/agent.zip is, it goes straight to the questions.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import interp
from circuits import compare
from interp import machines
from interp.choices.fitting import fit, predictor
from interp.core.machine import Machine
from interp.evaluation.qlearning.returns import normalised_score
from interp.model.transformer import untrained
from interp.support.files import write_csv
from interp.tasks import qlearning
from interp.tasks.qlearning.algorithms import q_learning
from interp.tasks.qlearning.families import acting
from interp.tasks.qlearning.sampling import sample, sample_mdps

N_STATES, N_ACTIONS, N_ROUNDS, REGIME = 4, 2, 25, "coin"
N_SEEN = 2 * N_STATES + N_ACTIONS + 1
KNOWN = {"alpha": 0.3, "gamma": 0.7}
"""The rate and the discount of the control."""
LAYOUT = qlearning.TASK.layout(n_states=N_STATES, n_actions=N_ACTIONS)


def worlds(n: int, seed: int) -> Any:
    """``n`` MDPs at once, as sb3 wants them; after 25 rounds all are drawn anew.

    An observation is the last round (state, action, reward, state reached), and zeros before the first one.
    """
    from gymnasium import spaces
    from stable_baselines3.common.vec_env import VecEnv

    class Worlds(VecEnv):
        def __init__(self) -> None:
            super().__init__(
                n, spaces.Box(0.0, 1.0, (N_SEEN,), np.float32), spaces.Discrete(N_ACTIONS)
            )
            self.rng, self.drawn = np.random.default_rng(seed), 0

        def reset(self) -> np.ndarray:
            self.mdps = sample_mdps(
                n, N_STATES, N_ACTIONS, seed=10_000 * (seed + 1) + self.drawn, regime=REGIME
            )
            self.drawn, self.t, self.state = self.drawn + 1, 0, self.rng.integers(0, N_STATES, n)
            return np.zeros((n, N_SEEN), np.float32)

        def step_async(self, actions: np.ndarray) -> None:
            self.chosen = actions

        def step_wait(self) -> Any:
            at = np.arange(n), self.state, self.chosen
            reward, ends = self.mdps.rewards[at], self.mdps.transitions[at].cumsum(-1)
            after = (self.rng.random((n, 1)) > ends[:, :-1]).sum(-1)
            said = [
                np.eye(size)[of]
                for size, of in ((N_STATES, at[1]), (N_ACTIONS, at[2]), (N_STATES, after))
            ]
            seen = np.concatenate([*said, reward[:, None]], 1).astype(np.float32)
            self.state, self.t = after, self.t + 1
            over = self.t == N_ROUNDS
            infos = [{"terminal_observation": row} if over else {} for row in seen]
            return (
                self.reset() if over else seen,
                reward.astype(np.float32),
                np.full(n, over),
                infos,
            )

        def close(self) -> None: ...

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * n

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None: ...

        def env_method(
            self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any
        ) -> list[Any]:
            return [None] * n

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * n

    return Worlds()


def train(path: Path, steps: int, seed: int = 0, n: int = 128) -> None:
    """Train the agent, and save it as sb3 does."""
    from sb3_contrib import RecurrentPPO

    torch.set_num_threads(1)
    how: dict[str, Any] = {
        "n_steps": N_ROUNDS,
        "batch_size": n * N_ROUNDS // 4,
        "n_epochs": 4,
        "gamma": 0.8,
    }
    how |= {"learning_rate": 2e-3, "ent_coef": 0.01, "device": "cpu", "seed": seed}
    how["policy_kwargs"] = {"lstm_hidden_size": 32, "net_arch": {"pi": [32], "vf": [32]}}
    RecurrentPPO("MlpLstmPolicy", worlds(n, seed), **how).learn(steps).save(path)


def machine(path: Path) -> Machine:
    """The agent in that file, in the rounds of Q-learning."""
    at = {label: LAYOUT.position(label) for label in ("s", "a", "r", "s'")}

    def observed(actor: nn.Module, fed: Any) -> Tensor:
        said = [
            nn.functional.one_hot(fed.tokens[:, at[label]] - LAYOUT.token_ids[first], size).to(
                fed.values
            )
            for label, first, size in (
                ("s", "s_1", N_STATES),
                ("a", "a_1", N_ACTIONS),
                ("s'", "s_1", N_STATES),
            )
        ]
        return torch.cat([*said, fed.values[:, [at["r"]]]], 1)

    def blank(actor: nn.Module) -> Tensor:
        return next(actor.parameters()).new_zeros(1, N_SEEN)

    return machines.agent(machines.read_agent(path), LAYOUT, hear=observed, first=blank, name="ppo")


def episodes(n: int, seed: int) -> Any:
    """Recorded episodes of the MDPs that it was trained in, of policies from greedy to random."""
    return sample(n, N_ROUNDS, N_STATES, N_ACTIONS, seed=seed, regime=REGIME)


def asked(name: str, subject: Any, n: int) -> dict[str, Any]:
    """Which algorithm explains a subject's choices; and which Q-learning comes closest, over five samples."""
    task = qlearning.TASK
    part = compare.explain(subject, task, {REGIME: (episodes(n, 1), episodes(2 * n, 2))}, seed=0)
    family, predict = task.rivals()["q_learning"], predictor(subject)
    found = [
        fit(family, [batch], [predict(batch)])[1]
        for batch in (episodes(n, 10 + i) for i in range(5))
    ]
    row = {"subject": name, "answer": part.family or "none of these", "closest": part.closest}
    row |= (
        part.explained.columns("explained")
        | part.ratio.columns("left_of_runner_up")
        | {"runner_up": part.runner_up}
    )
    row["parameters"] = ", ".join(
        f"{key} {float(value):.3g}" for key, value in part.parameters.items()
    )
    for key in ("alpha", "gamma", "temperature"):
        values = [each[key] for each in found]
        row |= {
            f"q_{key}": np.median(values),
            f"q_{key}_low": min(values),
            f"q_{key}_high": max(values),
        }
    nats = {
        key: part.scores[key].divergences[REGIME].mean() for key in ("q_learning", part.baseline)
    }
    row["q_explained"] = 1 - nats["q_learning"] / nats[part.baseline]
    return row


def earned(subject: Machine, n: int) -> str:
    """Where what it earns lies between a random policy (0) and an optimal one that knows the MDP (1)."""
    mdps = sample_mdps(n, N_STATES, N_ACTIONS, seed=77, regime=REGIME)
    return str(
        normalised_score(interp.play(subject, mdps, n_rounds=N_ROUNDS, seed=5)[0]).get("score")
    )


def main(out: Path, steps: int = 256_000, n: int = 32) -> pd.DataFrame:
    """Train where there is no agent yet; ask the agent and the controls, and write ``agent.csv``."""
    path = out / "agent.zip"
    if not path.is_file():
        out.mkdir(parents=True, exist_ok=True)
        train(path, steps)
    agent = machine(path)
    rows = [{**asked("the agent", agent, n), "earned": earned(agent, 4 * n)}]
    soft = acting(q_learning(**KNOWN), temperature=max(rows[0]["q_temperature"], 0.03))
    rows.append(asked(f"Q-learning, alpha {KNOWN['alpha']}, gamma {KNOWN['gamma']}", soft, n))
    blank = untrained(agent, 1)
    rows.append({**asked("the agent, untrained", blank, n), "earned": earned(blank, 4 * n)})
    table = pd.DataFrame(rows)
    write_csv(out / "agent.csv", table)
    return table


if __name__ == "__main__":
    given = sys.argv[1:]
    print(main(Path(*given[:1] or ["output/agent"]), *map(int, given[1:2])).T.to_string())
