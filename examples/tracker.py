"""A task whose outcome is a real number: track a hidden random walk by noisy readings.

In each round ``<w> <z> sensor p? | y w?`` a sensor is named, sharp or blurred. The model predicts
its reading, then sees it. The best tracker is the Kalman filter, which is here an algorithm and a
handwired machine. A GRU learns to predict, and probes look for the filter in it. Run it: ``python
examples/tracker.py``.
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

START = 1.0
"""Variance of the walk's first position."""
WALK = 0.25
"""Variance of a step of the walk."""
NOISE = np.array([0.1, 10.0])
"""Variance of a reading of each of the two sensors."""


@dataclass(frozen=True, eq=False)
class TrackerEpisodes:
    """Which sensor reads in each round, and its readings."""

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
    """Sample random walks, and noisy readings of them by random sensors."""
    rng = np.random.default_rng(seed)
    sensors = rng.integers(2, size=(n_episodes, n_rounds))
    steps, noise = rng.normal(size=(2, n_episodes, n_rounds))
    variances = np.full(n_rounds, WALK)
    variances[0] = START
    walk = (steps * variances**0.5).cumsum(1)
    readings = walk + NOISE[sensors] ** 0.5 * noise
    return TrackerEpisodes(sensors, readings, regime, seed)


@dataclass(frozen=True)
class TrackerRound(RoundLayout):
    """The tokens of a round, and what is predicted."""

    task: ClassVar[str] = "tracker"
    kind: ClassVar[Any] = "normal"  # a prediction is a mean and a log variance
    payload: ClassVar[str | None] = "readings"  # told with the token y
    labels = ("<w>", "<z>", "sensor", "p?", "y", "w?")
    vocabulary = ("<w>", "p?", "y", "w?", "sharp", "blurred")
    n_latents = 1

    def fit(self, episodes: TrackerEpisodes) -> RoundLayout:
        return self

    def encode(self, episodes: TrackerEpisodes) -> EncodedRounds:
        round_tokens = torch.tensor([0, 0, 4, 1, 2, 3])  # indices in the vocabulary; 4 is "sharp"
        tokens = round_tokens.repeat(*episodes.sensors.shape, 1)
        values = torch.zeros(tokens.shape, dtype=torch.float64)
        tokens[..., 2] += torch.from_numpy(episodes.sensors)  # 5, "blurred", for sensor 1
        values[..., 4] = torch.from_numpy(episodes.readings)
        return EncodedRounds(tokens, values, torch.zeros(tokens.shape[:2], dtype=torch.long))


def kalman() -> Algorithm:
    """Return the Kalman filter, the best tracker, as an algorithm."""

    def update(v: Values) -> np.ndarray:
        """Return mean and variance of the walk's next position, given the reading."""
        mean = v["mean"] + v["gain"] * (v["reading"] - v["mean"])
        variance = (1 - v["gain"]) * v["variance"] + WALK
        return np.stack([mean, variance], -1)

    def first_belief(episodes: TrackerEpisodes) -> Values:
        return {"belief": np.tile([0.0, START], (len(episodes), 1))}

    def predict(v: Values) -> np.ndarray:
        """Return mean and log variance of the reading, before it is seen."""
        return np.stack([v["mean"], np.log(v["spread"])], -1)

    sensor = Variable(
        "sensor", "s", "which sensor reads", "class", "input", kind="class", n_classes=lambda v: 2
    )
    reading = Variable("reading", "y", "what it reads", "length", "input")
    belief = Variable(
        "belief", "b", "mean and variance", "both", "state", outputs=lambda v: ("mean", "variance")
    )
    mean = Variable(
        "mean",
        "m",
        "where the walk is",
        "length",
        parents=("belief",),
        equation=lambda v: v["belief"][..., 0],
    )
    variance = Variable(
        "variance",
        "P",
        "doubt about it",
        "squared",
        parents=("belief",),
        equation=lambda v: v["belief"][..., 1],
    )
    noise = Variable(
        "noise",
        "R",
        "of its readings",
        "squared",
        parents=("sensor",),
        equation=lambda v: NOISE[v["sensor"]],
    )
    spread = Variable(
        "spread",
        "S",
        "sum",
        "squared",
        parents=("variance", "noise"),
        equation=lambda v: v["variance"] + v["noise"],
    )
    gain = Variable(
        "gain",
        "K",
        "gain",
        "share",
        parents=("variance", "spread"),
        equation=lambda v: v["variance"] / v["spread"],
    )
    next_belief = Variable(
        "next_belief",
        "b'",
        "after it",
        "both",
        parents=("mean", "variance", "gain", "reading"),
        equation=update,
    )
    variables = (sensor, reading, belief, mean, variance, noise, spread, gain, next_belief)
    return Algorithm(
        key="kalman",
        name="the Kalman filter",
        task="tracker",
        parameters={},
        variables=variables,
        inputs=lambda episodes: {"sensor": episodes.sensors, "reading": episodes.readings},
        initial=first_belief,
        distribution=predict,
        memory="mean",
        written="next_belief",
    )


def losses(
    predictions: torch.Tensor, episodes: TrackerEpisodes, rounds: slice = slice(None)
) -> torch.Tensor:
    return TrackerRound().loss(predictions, torch.from_numpy(episodes.readings[:, rounds]))


def round_inputs(episodes: TrackerEpisodes) -> RoundInputs:
    both = np.stack([episodes.sensors, episodes.readings], -1)
    return RoundInputs((both,), episodes.sensors[..., None])


KALMAN = AlgorithmRecord("kalman", "the Kalman filter", "Kalman", kalman)
TRACKER = Task(
    key="tracker",
    name="a tracker",
    what="predict readings of a hidden walk",
    data=Data(TrackerRound, sample, losses),
    algorithms=Algorithms(lambda: (KALMAN,)),
    analysis=Analysis(round_inputs),
)


def make_handwired() -> Any:
    """Return a machine that computes the Kalman filter."""

    def step(noise_of: Any, carried: Any, fed: EncodedRounds) -> Any:
        """Run one round of the Kalman filter; ``noise_of`` maps a sensor to its variance."""
        mean = carried["mean"]
        variance = carried["variance"]
        reading = fed.values[:, 4:5]
        spread = variance + noise_of(fed.tokens[:, 2] - 4)
        gain = variance / spread
        next_mean = mean + gain * (reading - mean)
        next_variance = (1 - gain) * variance + WALK
        prediction = torch.cat([mean, spread.log()], 1)
        return prediction, {"mean": next_mean, "variance": next_variance}

    def read(carried: Any) -> torch.Tensor:
        return torch.cat([carried["mean"], carried["variance"]], -1)

    channels = [interp.Channel("mean", (1,)), interp.Channel("variance", (1,))]
    noise_of = nn.Embedding.from_pretrained(torch.tensor(NOISE)[:, None])
    return interp.adapt(
        noise_of,
        TRACKER,
        step=step,
        name="kalman",
        channels=channels,
        initial=lambda module: {"variance": torch.tensor([START])},
        read=read,
    )


def make_gru(width: int = 8) -> Any:
    """Return an untrained GRU as a machine."""

    def step(module: Any, carried: Any, fed: EncodedRounds) -> Any:
        h = carried["h"]
        sensor = 2 * fed.tokens[:, 2:3] - 9  # tokens 4 and 5 become -1 and 1
        reading = fed.values[:, 4:5] / 2  # so that its size is about 1
        prediction = module["read"](torch.cat([h, sensor], 1))
        heard = torch.cat([sensor, reading], 1).to(h)
        return prediction, {"h": module["cell"](heard, h)}

    torch.manual_seed(0)
    module = nn.ModuleDict({"cell": nn.GRUCell(2, width), "read": nn.Linear(width + 1, 2)})
    channels = [interp.Channel("h", (width,))]
    return interp.adapt(module, TRACKER, step=step, name="gru", channels=channels)


def train_gru(steps: int = 120) -> Any:
    """Return a GRU trained to predict the readings."""
    gru = make_gru()
    optimizer = torch.optim.Adam(gru.module.parameters(), lr=3e-2)
    for seed in range(steps):
        episodes = sample(64, 20, seed=1000 + seed)
        rounds = gru.prepare(gru.layout.encode(episodes))
        carried = gru.initial(64)
        predictions = []
        for t in range(20):
            prediction, carried = gru.step(carried, rounds.take_round(t))
            predictions.append(prediction)
        optimizer.zero_grad()
        losses(torch.stack(predictions, 1), episodes).mean().backward()
        optimizer.step()
    return gru


def main(steps: int = 120) -> dict[str, Any]:
    """Measure the handwired filter and the GRU; return the results by name."""
    interp.tasks.register(TRACKER)
    by_hand = make_handwired()
    gru = train_gru(steps)
    base = sample(64, 20, seed=0)
    source = sample(64, 20, seed=1)
    latents = interp.rollout(by_hand, base).latents[:, 1:]
    states = by_hand.read_state(latents).numpy()
    beliefs = kalman().run(base)["next_belief"]
    nats = []
    for machine in (by_hand, gru, gru.untrained()):
        predictions = interp.rollout(machine, base).predictions
        nats.append(losses(predictions, base).mean().item())
    means = interchange(by_hand, base, source, kalman(), "mean", "latent@mean")
    return {
        "state error": np.abs(states - beliefs).max(),
        "nats": nats,
        "interchange": means.score(),
        "probes": probes.probe(gru, base, ["mean", "variance"]),
    }


if __name__ == "__main__":
    print(*main().items(), sep="\n")
