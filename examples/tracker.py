"""A task whose outcome is a real number: track a hidden walk by noisy readings. Run it: ``python examples/tracker.py``.

In ``<w> <z> sensor p? | y w?`` a sensor is named, sharp or blurred; what it will read is predicted, and told. The best
tracker is the Kalman filter: an algorithm, and by hand a machine. A GRU learns to predict; probes look for the filter.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

import interp.tasks
import probes
from interp.core.algorithm import Algorithm, AlgorithmRecord, Values, Variable
from interp.interventions.interchange import interchange
from interp.model.layout import EncodedRounds, RoundLayout
from interp.tasks import Algorithms, Analysis, Data, RoundInputs, Task

START, WALK, NOISE = 1.0, 0.25, np.array([0.1, 10.0])
"""Variances: of where the walk starts, of each of its steps, and of a reading of each of the two sensors."""


@dataclass(frozen=True, eq=False)
class TrackerEpisodes:
    sensors: np.ndarray  # which one reads, Int[episode, round]
    readings: np.ndarray  # Float[episode, round]
    regime: str = "even"
    seed: int | None = None
    task: ClassVar[str] = "tracker"
    n_rounds = property(lambda self: self.sensors.shape[1])

    def __len__(self) -> int:
        return len(self.sensors)

    def select(self, rows: Any) -> Any:
        return replace(self, sensors=self.sensors[rows], readings=self.readings[rows])


def sample(
    n_episodes: int, n_rounds: int, *, regime: str = "even", seed: int = 0
) -> TrackerEpisodes:
    rng = np.random.default_rng(seed)
    sensors, steps, noise = (
        rng.integers(2, size=(n_episodes, n_rounds)),
        *rng.normal(size=(2, n_episodes, n_rounds)),
    )
    walk = (steps * np.r_[START, np.full(n_rounds - 1, WALK)] ** 0.5).cumsum(1)
    return TrackerEpisodes(sensors, walk + NOISE[sensors] ** 0.5 * noise, regime, seed)


@dataclass(frozen=True)
class TrackerRound(RoundLayout):
    task: ClassVar[str] = "tracker"
    kind: ClassVar[Any] = "normal"  # a prediction is a mean and a log variance
    payload: ClassVar[str | None] = "readings"  # told with the token y
    labels = ("<w>", "<z>", "sensor", "p?", "y", "w?")
    vocabulary = ("<w>", "p?", "y", "w?", "sharp", "blurred")
    n_latents = 1

    def fit(self, episodes: TrackerEpisodes) -> RoundLayout:
        return self

    def encode(self, episodes: TrackerEpisodes) -> EncodedRounds:
        tokens = torch.tensor([0, 0, 4, 1, 2, 3]).repeat(*episodes.sensors.shape, 1)
        values = torch.zeros(tokens.shape, dtype=torch.float64)
        tokens[..., 2] += torch.from_numpy(episodes.sensors)
        values[..., 4] = torch.from_numpy(episodes.readings)
        return EncodedRounds(tokens, values, torch.zeros(tokens.shape[:2], dtype=torch.long))


def kalman() -> Algorithm:
    def updated(v: Values) -> np.ndarray:
        mean = v["mean"] + v["gain"] * (v["reading"] - v["mean"])
        return np.stack([mean, (1 - v["gain"]) * v["variance"] + WALK], -1)

    variables = (
        Variable("sensor", "s", "which sensor reads", "class", "input", kind="class", n_classes=lambda v: 2),
        Variable("reading", "y", "what it reads", "length", "input"),
        Variable("belief", "b", "mean and variance", "both", "state", outputs=lambda values: ("mean", "variance")),
        Variable("mean", "m", "where the walk is", "length", "round", ("belief",), lambda v: v["belief"][..., 0]),
        Variable("variance", "P", "doubt about it", "squared", "round", ("belief",), lambda v: v["belief"][..., 1]),
        Variable("noise", "R", "of its readings", "squared", "round", ("sensor",), lambda v: NOISE[v["sensor"]]),
        Variable("spread", "S", "sum", "squared", "round", ("variance", "noise"), lambda v: v["variance"] + v["noise"]),
        Variable("gain", "K", "gain", "share", "round", ("variance", "spread"), lambda v: v["variance"] / v["spread"]),
        Variable("next_belief", "b'", "after it", "both", "round", ("mean", "variance", "gain", "reading"), updated),
    )  # fmt: skip
    return Algorithm(
        key="kalman", name="the Kalman filter", task="tracker", parameters={}, variables=variables,
        inputs=lambda episodes: {"sensor": episodes.sensors, "reading": episodes.readings},
        initial=lambda episodes: {"belief": np.tile([0.0, START], (len(episodes), 1))},
        distribution=lambda v: np.stack([v["mean"], np.log(v["spread"])], -1), memory="mean", written="next_belief",
    )  # fmt: skip


def losses(
    predictions: torch.Tensor, episodes: TrackerEpisodes, rounds: slice = slice(None)
) -> torch.Tensor:
    return TrackerRound().loss(predictions, torch.from_numpy(episodes.readings[:, rounds]))


TRACKER = Task(
    key="tracker", name="a tracker", what="predict readings of a hidden walk", data=Data(TrackerRound, sample, losses),
    algorithms=Algorithms(lambda: (AlgorithmRecord("kalman", "the Kalman filter", "Kalman", kalman),)),
    analysis=Analysis(lambda e: RoundInputs((np.stack([e.sensors, e.readings], -1),), e.sensors[..., None])),
)  # fmt: skip


def handwired() -> Any:
    def step(m: Any, carried: Any, fed: EncodedRounds) -> Any:
        mean, variance, y = carried["mean"], carried["variance"], fed.values[:, 4:5]
        spread = variance + m(fed.tokens[:, 2] - 4)
        after = {
            "mean": mean + variance / spread * (y - mean),
            "variance": (1 - variance / spread) * variance + WALK,
        }
        return torch.cat([mean, spread.log()], 1), after

    return interp.adapt(
        nn.Embedding.from_pretrained(torch.tensor(NOISE)[:, None]), TRACKER, step=step, name="kalman",
        channels=[interp.Channel("mean", (1,)), interp.Channel("variance", (1,))],
        initial=lambda m: {"variance": torch.tensor([START])}, read=lambda c: torch.cat([c["mean"], c["variance"]], -1),
    )  # fmt: skip


def learned(steps: int = 120, width: int = 8) -> Any:
    def step(m: Any, carried: Any, fed: EncodedRounds) -> Any:
        h = carried["h"]
        sensor = 2 * fed.tokens[:, 2:3] - 9
        y = fed.values[:, 4:5] / 2
        return m["read"](torch.cat([h, sensor], 1)), {
            "h": m["cell"](torch.cat([sensor, y], 1).to(h), h)
        }

    torch.manual_seed(0)
    module = nn.ModuleDict({"cell": nn.GRUCell(2, width), "read": nn.Linear(width + 1, 2)})
    gru = interp.adapt(
        module, TRACKER, step=step, name="gru", channels=[interp.Channel("h", (width,))]
    )
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-2)
    for seed in range(steps):
        episodes, carried, said = sample(64, 20, seed=1000 + seed), gru.initial(64), []
        for fed in map(gru.prepare(gru.layout.encode(episodes)).at, range(20)):
            prediction, carried = gru.step(carried, fed)
            said.append(prediction)
        optimizer.zero_grad()
        losses(torch.stack(said, 1), episodes).mean().backward()
        optimizer.step()
    return gru


def main(steps: int = 120) -> dict[str, Any]:
    interp.tasks.register(TRACKER)
    machine, gru, base, source = (
        handwired(),
        learned(steps),
        sample(64, 20, seed=0),
        sample(64, 20, seed=1),
    )
    state = machine.read_state(interp.rollout(machine, base).latents[:, 1:]).numpy()
    return {
        "state error": np.abs(state - kalman().run(base)["next_belief"]).max(),
        "nats": [
            losses(interp.rollout(m, base).predictions, base).mean().item()
            for m in (machine, gru, gru.untrained())
        ],
        "interchange": interchange(machine, base, source, kalman(), "mean", "latent@mean").score(),
        "probes": probes.probe(gru, base, ["mean", "variance"]),
    }


if __name__ == "__main__":
    print(*main().items(), sep="\n")
