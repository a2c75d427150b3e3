"""A task of your own, a two-armed bandit, from its definition to a report, without a change to the
package.

Each round an arm is pulled. The model predicts whether it pays, is shown the result, and writes
what it learned into one latent: ``<w> <z> arm win? | reward w?``. Run it with ``python
examples/own_task.py [FOLDER]``.
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
from interp.core.algorithm import Algorithm, AlgorithmRecord, Values, Variable, number_elements
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
    shift_by_one_episode,
)
from interp.training.config import Stage, TrainingConfig
from interp.training.goal import TrainingGoal
from interp.training.trainer import train
from reports.build import write


@dataclass(frozen=True, eq=False)
class PullEpisodes:
    """Which arm was pulled and whether it paid, integers ``[episode, round]`` each."""

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
    """Sample random pulls; in each episode each arm pays with a probability drawn from U[0, 1]."""
    rng = np.random.default_rng(seed)
    chances = rng.random((n_episodes, 2))
    arms = rng.integers(2, size=(n_episodes, n_rounds))
    chance_of_arm = np.take_along_axis(chances, arms, 1)
    rewards = (rng.random(arms.shape) < chance_of_arm).astype(np.int64)
    return PullEpisodes(arms, rewards, regime, seed)


@dataclass(frozen=True)
class PullRound(RoundLayout):
    """The tokens of a round, and what is predicted."""

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
        round_tokens = torch.tensor([0, 0, 0, ids["win?"], 0, ids["w?"]])
        tokens = round_tokens.repeat(*episodes.arms.shape, 1)
        tokens[..., 2] = torch.from_numpy(episodes.arms) + ids["arm_1"]
        tokens[..., 4] = torch.from_numpy(episodes.rewards) + ids["lose"]
        values = torch.zeros(tokens.shape)
        slots = torch.zeros(tokens.shape[:2], dtype=torch.long)
        return EncodedRounds(tokens, values, slots)


def laplace() -> Algorithm:
    """Return Laplace's rule for each arm: P(win) = (wins + 1) / (pulls + 2)."""
    arms = number_elements("arm_#")

    def pulled(v: Values) -> np.ndarray:
        return np.eye(2)[v["arm"]]

    def next_wins(v: Values) -> np.ndarray:
        return v["wins"] + pulled(v) * v["reward"][..., None]

    arm = Variable(
        "arm", "a", "the arm pulled", "class", "input", kind="class", n_classes=lambda v: 2
    )
    reward = Variable(
        "reward", "r", "whether it paid", "class", "input", kind="class", n_classes=lambda v: 2
    )
    wins = Variable("wins", "w", "how often each arm paid", "rounds", "state", outputs=arms)
    pulls = Variable("pulls", "p", "how often each arm was pulled", "rounds", "state", outputs=arms)
    chances = Variable(
        "chances",
        "P",
        "chance that each arm pays",
        "probability",
        parents=("wins", "pulls"),
        equation=lambda v: (v["wins"] + 1) / (v["pulls"] + 2),
        outputs=arms,
    )
    prediction = Variable(
        "prediction",
        "P(win)",
        "chance that this arm pays",
        "probability",
        parents=("chances", "arm"),
        equation=lambda v: (v["chances"] * pulled(v)).sum(-1),
    )
    wins_after = Variable(
        "next_wins",
        "n",
        "wins after the round",
        "rounds",
        parents=("wins", "pulls", "arm", "reward"),
        equation=next_wins,
        outputs=arms,
    )
    pulls_after = Variable(
        "next_pulls",
        "n",
        "pulls after it",
        "rounds",
        parents=("pulls", "arm"),
        equation=lambda v: v["pulls"] + pulled(v),
        outputs=arms,
    )
    return Algorithm(
        key="laplace",
        name="Laplace's rule",
        task="pulls",
        parameters={},
        variables=(arm, reward, wins, pulls, chances, prediction, wins_after, pulls_after),
        inputs=lambda episodes: {"arm": episodes.arms, "reward": episodes.rewards},
        initial=count_nothing,
        distribution=lambda v: np.stack([1 - v["prediction"], v["prediction"]], -1),
        memory="chances",
        written="next_chances",
    )


def count_nothing(episodes: PullEpisodes) -> Values:
    return {"wins": np.zeros((len(episodes), 2)), "pulls": np.zeros((len(episodes), 2))}


def exchange_history(episodes: PullEpisodes, round: int) -> tuple[PullEpisodes, PullEpisodes]:
    """Return clean episodes, and episodes whose rounds before ``round`` are those of another
    episode.
    """
    t = corrupted_round(episodes, round, history=True)
    arms = shift_by_one_episode(episodes.arms, t)
    rewards = shift_by_one_episode(episodes.rewards, t)
    return episodes, replace(episodes, arms=arms, rewards=rewards)


def losses(predictions: torch.Tensor, episodes: PullEpisodes, rounds: slice) -> torch.Tensor:
    return PullRound().loss(predictions, torch.from_numpy(episodes.rewards[:, rounds]))


def round_inputs(episodes: PullEpisodes) -> RoundInputs:
    """Return the inputs of each round as features for the control probe, and which rounds have
    equal inputs.
    """
    outcome = np.eye(4)[2 * episodes.arms + episodes.rewards]
    return RoundInputs((outcome,), np.stack([episodes.arms, episodes.rewards], -1))


LAPLACE = AlgorithmRecord("laplace", "Laplace's rule", "Laplace", laplace)
HISTORY = Corruption("exchange-history", "take another history", 0, exchange_history)
PULLS = Task(
    key="pulls",
    name="pulls of an arm",
    what="predict whether the arm that was pulled pays",
    data=Data(layout=PullRound, sample=sample, losses=losses),
    algorithms=Algorithms(lambda: (LAPLACE,)),
    analysis=Analysis(
        round_inputs=round_inputs,
        probed=("wins", "chances"),
        default_corruption="exchange-history",
        corruptions=lambda: (HISTORY,),
    ),
    training=lambda: TrainingGoal(targets=lambda episodes: np.eye(2)[episodes.rewards]),
)


def main(folder: Path, steps: int = 20, n_episodes: int = 32) -> Path:
    """Train, probe, patch, interchange and report; return the path of the report.

    Args:
        folder: folder of the run and the report.
        steps: number of training steps.
        n_episodes: number of episodes of every measurement.
    """
    interp.tasks.register(PULLS)
    config = TrainingConfig(
        task="pulls",
        stages=(Stage(n_rounds=20, steps=steps),),
        d_model=32,
        n_layers=2,
        lr=3e-3,
        eval_episodes=32,
    )
    model_folder = train(config, folder / "run", name="pulls-learned")
    model = interp.load(str(model_folder))
    base = sample(n_episodes, 12, seed=0)
    source = sample(n_episodes, 12, seed=1)
    print(interp.rollout(model, base).predictions.shape)  # [episode, round, outcome]
    print(*probes.probe(model, base, ["wins", "chances"]), sep="\n")
    clean, corrupted = exchange_history(base, 5)
    print(sweep(model, clean, corrupted, 5).to_frame().head())
    print(interchange(model, base, source, laplace(), "chances", "latent@<z>").to_frame())
    page = write(
        str(folder / "run" / "model"), out=folder, n_episodes=n_episodes, n_rounds=12, quick=True
    )
    return page.path


if __name__ == "__main__":
    print(main(Path(sys.argv[1] if len(sys.argv) > 1 else "output/own-task")))
