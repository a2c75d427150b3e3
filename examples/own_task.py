"""A task of your own, a two-armed bandit, from its record to a report, without an edit to the package.

Each round an arm is pulled; the model predicts whether it pays, is told, and writes what it learned into one latent:
``<w> <z> arm win? | reward w?``. Run it with ``python examples/own_task.py [FOLDER]``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

import interp.tasks
import probes
from interp.core.algorithm import Algorithm, AlgorithmRecord, Values, Variable, numbered
from interp.interventions.interchange import interchange
from interp.interventions.patching import sweep
from interp.model.layout import EncodedRounds, RoundLayout
from interp.tasks import (
    Algorithms,
    Analysis,
    Corruption,
    Data,
    RoundInputs,
    Task,
    corrupted_round,
    exchanged,
)
from interp.training.config import Stage, TrainingConfig
from interp.training.goal import TrainingGoal
from interp.training.trainer import train
from reports.build import write


@dataclass(frozen=True, eq=False)
class PullEpisodes:
    """Pulls and what they paid, Int[episode, round] each."""

    arms: np.ndarray
    rewards: np.ndarray
    regime: str = "uniform"
    seed: int | None = None
    task: ClassVar[str] = "pulls"

    @property
    def n_rounds(self) -> int:
        return self.arms.shape[1]

    def __len__(self) -> int:
        return len(self.arms)

    def select(self, rows: Any) -> PullEpisodes:
        return replace(self, arms=self.arms[rows], rewards=self.rewards[rows])


def sample(
    n_episodes: int, n_rounds: int, *, regime: str = "uniform", seed: int = 0
) -> PullEpisodes:
    """Arms pulled at random; in every episode each pays with a probability of its own, drawn from U[0, 1]."""
    rng = np.random.default_rng(seed)
    chances, arms = rng.random((n_episodes, 2)), rng.integers(2, size=(n_episodes, n_rounds))
    rewards = (rng.random(arms.shape) < np.take_along_axis(chances, arms, 1)).astype(np.int64)
    return PullEpisodes(arms, rewards, regime, seed)


@dataclass(frozen=True)
class PullRound(RoundLayout):
    """Which tokens a round has, and what is predicted."""

    task: ClassVar[str] = "pulls"
    predict_label: ClassVar[str] = "win?"
    labels = ("<w>", "<z>", "arm", "win?", "reward", "w?")
    vocabulary = ("<w>", "win?", "w?", "lose", "win", "arm_1", "arm_2")
    outcomes = ("lose", "win")
    n_latents = 1

    def fit(self, episodes: PullEpisodes) -> PullRound:
        return self

    def encode(self, episodes: PullEpisodes) -> EncodedRounds:
        ids = self.token_ids
        tokens = torch.tensor([0, 0, 0, ids["win?"], 0, ids["w?"]]).repeat(*episodes.arms.shape, 1)
        tokens[..., 2] = torch.from_numpy(episodes.arms) + ids["arm_1"]
        tokens[..., 4] = torch.from_numpy(episodes.rewards) + ids["lose"]
        return EncodedRounds(
            tokens, torch.zeros(tokens.shape), torch.zeros(tokens.shape[:2], dtype=torch.long)
        )


def laplace() -> Algorithm:
    """Laplace's rule for each arm: P(win) = (wins + 1) / (pulls + 2)."""

    def pulled(v: Values) -> np.ndarray:
        return np.eye(2)[v["arm"]]

    def count(key: str, what: str, **made: Any) -> Variable:
        return Variable(key, key[0], what, "rounds", outputs=numbered("arm_#"), **made)

    variables = (
        Variable("arm", "a", "the arm pulled", "class", "input", kind="class", n_classes=lambda v: 2),
        Variable("reward", "r", "whether it paid", "class", "input", kind="class", n_classes=lambda v: 2),
        count("wins", "how often each arm paid", role="state"),
        count("pulls", "how often each arm was pulled", role="state"),
        Variable("chances", "P", "chance that each arm pays", "probability", parents=("wins", "pulls"),
                 equation=lambda v: (v["wins"] + 1) / (v["pulls"] + 2), outputs=numbered("arm_#")),
        Variable("prediction", "P(win)", "chance that this arm pays", "probability", parents=("chances", "arm"),
                 equation=lambda v: (v["chances"] * pulled(v)).sum(-1)),
        count("next_wins", "wins after the round", parents=("wins", "pulls", "arm", "reward"),
              equation=lambda v: v["wins"] + pulled(v) * v["reward"][..., None]),
        count("next_pulls", "pulls after it", parents=("pulls", "arm"), equation=lambda v: v["pulls"] + pulled(v)),
    )  # fmt: skip
    return Algorithm(
        key="laplace", name="Laplace's rule", task="pulls", parameters={}, variables=variables,
        inputs=lambda episodes: {"arm": episodes.arms, "reward": episodes.rewards},
        initial=lambda episodes: {key: np.zeros((len(episodes), 2)) for key in ("wins", "pulls")},
        distribution=lambda v: np.stack([1 - v["prediction"], v["prediction"]], -1),
        memory="chances", written="next_chances",
    )  # fmt: skip


def exchange_history(episodes: PullEpisodes, round: int) -> tuple[PullEpisodes, PullEpisodes]:
    t = corrupted_round(episodes, round, history=True)
    return episodes, replace(
        episodes, arms=exchanged(episodes.arms, t), rewards=exchanged(episodes.rewards, t)
    )


def losses(predictions: torch.Tensor, episodes: PullEpisodes, rounds: slice) -> torch.Tensor:
    return PullRound().loss(predictions, torch.from_numpy(episodes.rewards[:, rounds]))


def said(seen: PullEpisodes) -> RoundInputs:
    return RoundInputs(
        (np.eye(4)[2 * seen.arms + seen.rewards],), np.stack([seen.arms, seen.rewards], -1)
    )


PULLS = Task(
    key="pulls", name="pulls of an arm", what="predict whether the arm that was pulled pays",
    data=Data(layout=PullRound, sample=sample, losses=losses),
    algorithms=Algorithms(lambda: (AlgorithmRecord("laplace", "Laplace's rule", "Laplace", laplace),)),
    analysis=Analysis(
        round_inputs=said, probed=("wins", "chances"), default_corruption="exchange-history",
        corruptions=lambda: (Corruption("exchange-history", "take another history", 0, exchange_history),)),
    training=lambda: TrainingGoal(targets=lambda episodes: np.eye(2)[episodes.rewards]),
)  # fmt: skip


def main(folder: Path, steps: int = 20, n_episodes: int = 32) -> Path:
    interp.tasks.register(PULLS)
    stages = (Stage(n_rounds=20, steps=steps),)
    config = TrainingConfig(
        task="pulls", stages=stages, d_model=32, n_layers=2, lr=3e-3, eval_episodes=32
    )
    model = interp.load(str(train(config, folder / "run", name="pulls-learned")))
    base, source = (sample(n_episodes, 12, seed=seed) for seed in (0, 1))
    print(interp.rollout(model, base).predictions.shape)  # [episode, round, outcome]
    print(*probes.probe(model, base, ["wins", "chances"]), sep="\n")
    swept = sweep(model, *exchange_history(base, 5), 5)
    print(swept.to_frame().head())
    print(interchange(model, base, source, laplace(), "chances", "latent@<z>").to_frame())
    return write(
        str(folder / "run" / "model"), out=folder, n_episodes=n_episodes, n_rounds=12, quick=True
    ).path


if __name__ == "__main__":
    print(main(Path(*sys.argv[1:2] or ["output/own-task"])))
