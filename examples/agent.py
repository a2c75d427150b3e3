"""Which algorithm explains an agent that other code trained: Q-learning, and with which rate and
discount?

RecurrentPPO of ``sb3-contrib`` (``pip install sb3-contrib``; only training needs it) learns to earn
reward in MDPs of 4 states and 2 actions. It gets a new MDP every 25 rounds, so that it must learn
to learn. The file that it saves is loaded as a machine, and its choices are explained. The answer
may also be "none of these". The rate and the discount are those of the closest Q-learning, fitted
to five disjoint samples. Two controls are analysed in the same way: Q-learning with known rate and
discount that chooses as softly, and the untrained agent, which no algorithm explains. Run it with
``python examples/agent.py [OUT [STEPS]]``; training is skipped if OUT/agent.zip exists.
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

N_STATES = 4
N_ACTIONS = 2
N_ROUNDS = 25
REGIME = "coin"
N_SEEN = 2 * N_STATES + N_ACTIONS + 1
"""Size of an observation: one-hot state, action and next state, and the reward."""
KNOWN = {"alpha": 0.3, "gamma": 0.7}
"""Learning rate and discount of the control."""
N_SAMPLES = 5
LAYOUT = qlearning.TASK.layout(n_states=N_STATES, n_actions=N_ACTIONS)


def make_worlds(n: int, seed: int) -> Any:
    """Return ``n`` MDPs as one vectorised environment of Stable-Baselines3; new MDPs are drawn
    every 25 rounds.

    An observation is the last round (state, action, next state, reward), or zeros before the first
    one.
    """
    from gymnasium import spaces
    from stable_baselines3.common.vec_env import VecEnv

    class Worlds(VecEnv):
        def __init__(self) -> None:
            observations = spaces.Box(0.0, 1.0, (N_SEEN,), np.float32)
            super().__init__(n, observations, spaces.Discrete(N_ACTIONS))
            self.rng = np.random.default_rng(seed)
            self.n_draws = 0

        def reset(self) -> np.ndarray:
            mdp_seed = 10_000 * (seed + 1) + self.n_draws
            self.mdps = sample_mdps(n, N_STATES, N_ACTIONS, seed=mdp_seed, regime=REGIME)
            self.n_draws += 1
            self.t = 0
            self.state = self.rng.integers(0, N_STATES, n)
            return np.zeros((n, N_SEEN), np.float32)

        def step_async(self, actions: np.ndarray) -> None:
            self.actions = actions

        def step_wait(self) -> Any:
            """Return observations, rewards, whether the episodes are over, and information, as
            Stable-Baselines3 expects them.
            """
            taken = (np.arange(n), self.state, self.actions)
            reward = self.mdps.rewards[taken]
            # The next state is drawn by inverting the cumulative distribution.
            cumulative = self.mdps.transitions[taken].cumsum(-1)
            draws = self.rng.random((n, 1))
            next_state = (draws > cumulative[:, :-1]).sum(-1)
            one_hot_states, one_hot_actions = np.eye(N_STATES), np.eye(N_ACTIONS)
            parts = [
                one_hot_states[self.state],
                one_hot_actions[self.actions],
                one_hot_states[next_state],
                reward[:, None],
            ]
            observation = np.concatenate(parts, 1).astype(np.float32)
            self.state = next_state
            self.t += 1
            is_over = self.t == N_ROUNDS  # all worlds end together, and then begin anew
            infos: list[dict[str, Any]] = [{} for _ in range(n)]
            if is_over:
                infos = [{"terminal_observation": row} for row in observation]
                observation = self.reset()
            return observation, reward.astype(np.float32), np.full(n, is_over), infos

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
    """Train the agent in ``n`` worlds at once, and save it in the format of Stable-Baselines3.

    Args:
        path: path of the file.
        steps: number of environment steps.
        seed: seed of weights and worlds.
        n: number of worlds.
    """
    from sb3_contrib import RecurrentPPO

    torch.set_num_threads(1)
    agent = RecurrentPPO(
        "MlpLstmPolicy",
        make_worlds(n, seed),
        n_steps=N_ROUNDS,
        batch_size=n * N_ROUNDS // 4,
        n_epochs=4,
        gamma=0.8,
        learning_rate=2e-3,
        ent_coef=0.01,
        device="cpu",
        seed=seed,
        policy_kwargs={"lstm_hidden_size": 32, "net_arch": {"pi": [32], "vf": [32]}},
    )
    agent.learn(steps)
    agent.save(path)


def read_machine(path: Path) -> Machine:
    """Load a saved agent as a machine that plays rounds of Q-learning."""

    def one_hot(fed: Any, label: str, first_token: str, size: int) -> Tensor:
        """Return which of ``size`` tokens stands at the position ``label``, one-hot, ``[batch,
        size]``.
        """
        tokens = fed.tokens[:, LAYOUT.position(label)]
        classes = tokens - LAYOUT.token_ids[first_token]
        return nn.functional.one_hot(classes, size).to(fed.values)

    def observe(actor: nn.Module, fed: Any) -> Tensor:
        """Return the agent's observation of a round, as in training, ``[batch, number]``."""
        state = one_hot(fed, "s", "s_1", N_STATES)
        action = one_hot(fed, "a", "a_1", N_ACTIONS)
        next_state = one_hot(fed, "s'", "s_1", N_STATES)
        reward = fed.values[:, [LAYOUT.position("r")]]
        return torch.cat([state, action, next_state, reward], 1)

    def observe_nothing(actor: nn.Module) -> Tensor:
        """Return the observation before the first round: zeros."""
        return next(actor.parameters()).new_zeros(1, N_SEEN)

    actor = machines.read_agent(path)
    return machines.agent(actor, LAYOUT, encode=observe, first_input=observe_nothing, name="ppo")


def sample_episodes(n: int, seed: int) -> Any:
    """Sample episodes in MDPs like those of training, played by policies from greedy to random."""
    return sample(n, N_ROUNDS, N_STATES, N_ACTIONS, seed=seed, regime=REGIME)


def fit_q_learning(subject: Any, n: int) -> pd.DataFrame:
    """Return the parameters of the closest Q-learning, one row per sample of ``n`` episodes."""
    family = qlearning.TASK.rivals()["q_learning"]
    predict = predictor(subject)
    rows = []
    for i in range(N_SAMPLES):
        episodes = sample_episodes(n, 10 + i)
        _, parameters = fit(family, [episodes], [predict(episodes)])
        rows.append(parameters)
    return pd.DataFrame(rows)


def explain_choices(name: str, subject: Any, n: int) -> dict[str, Any]:
    """Return a table row: the algorithm that explains a subject's choices, and the closest
    Q-learning.

    Args:
        name: name of the subject.
        subject: a machine or an algorithm.
        n: episodes per sample.
    """
    sets = {REGIME: (sample_episodes(n, 1), sample_episodes(2 * n, 2))}
    explanation = compare.explain(subject, qlearning.TASK, sets, seed=0)
    parameters = []
    for key, value in explanation.parameters.items():
        parameters.append(f"{key} {float(value):.3g}")
    row = {
        "subject": name,
        "answer": explanation.family or "none of these",
        "closest": explanation.closest,
        **explanation.explained.columns("explained"),
        **explanation.ratio.columns("left_of_runner_up"),
        "runner_up": explanation.runner_up,
        "parameters": ", ".join(parameters),
    }
    fitted = fit_q_learning(subject, n)
    for key in ("alpha", "gamma", "temperature"):
        row[f"q_{key}"] = fitted[key].median()
        row[f"q_{key}_low"] = fitted[key].min()
        row[f"q_{key}_high"] = fitted[key].max()
    # Share of the baseline's divergence that the closest Q-learning explains.
    q_nats = explanation.scores["q_learning"].divergences[REGIME].mean()
    baseline_nats = explanation.scores[explanation.baseline].divergences[REGIME].mean()
    row["q_explained"] = 1 - q_nats / baseline_nats
    return row


def score_earnings(subject: Machine, n: int) -> str:
    """Return the agent's reward, scaled from a random policy (0) to an optimal one that knows the
    MDP (1).
    """
    mdps = sample_mdps(n, N_STATES, N_ACTIONS, seed=77, regime=REGIME)
    episodes = interp.play(subject, mdps, n_rounds=N_ROUNDS, seed=5)[0]
    return str(normalised_score(episodes).get("score"))


def main(out: Path, steps: int = 256_000, n: int = 32) -> pd.DataFrame:
    """Explain the agent and the controls, and write ``agent.csv``; train the agent first if there
    is none.

    Args:
        out: folder of the agent and the table.
        steps: number of training steps.
        n: episodes per sample.
    """
    path = out / "agent.zip"
    if not path.is_file():
        out.mkdir(parents=True, exist_ok=True)
        train(path, steps)
    agent = read_machine(path)
    agent_row = explain_choices("the agent", agent, n)
    agent_row["earned"] = score_earnings(agent, 4 * n)

    temperature = max(agent_row["q_temperature"], 0.03)
    learner = acting(q_learning(**KNOWN), temperature=temperature)
    name = f"Q-learning, alpha {KNOWN['alpha']}, gamma {KNOWN['gamma']}"
    learner_row = explain_choices(name, learner, n)

    untrained_agent = untrained(agent, 1)
    untrained_row = explain_choices("the agent, untrained", untrained_agent, n)
    untrained_row["earned"] = score_earnings(untrained_agent, 4 * n)

    table = pd.DataFrame([agent_row, learner_row, untrained_row])
    write_csv(out / "agent.csv", table)
    return table


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "output/agent")
    steps_given = [int(argument) for argument in sys.argv[2:3]]
    print(main(folder, *steps_given).T.to_string())
