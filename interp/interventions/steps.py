"""Is a decoded state closed under an algorithm's update? One round and several, on states that occur and on others.

A decoder D reads a statistic from the latents (counts and the round, say), and the algorithm says what a round makes of
this statistic: ``F(state, inputs)``. If the model carries the statistic and updates it as the algorithm does, then
decoding what a round leaves is the update of what was decoded before it:

    step R2 = 1 - sum |D(f(m, x)) - F(D(m), x)|^2 / sum |step - mean step of the round|^2

summed over the carried variables, each in units of its own root mean squared step. The denominator is what the round's
inputs decide about the step; 1 is the algorithm's update and 0 is no better than the round's mean step. How well a
state can be *decoded* says little beside this: untrained networks whose latents add up their updates hold what they
were fed.

Off the manifold: latents are first moved so that they decode as another state (:meth:`Decoder.move`), one that no
episode reached, and then run on for some rounds, the model by itself and the algorithm from the decoded state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from interp.algorithm import Algorithm, Episodes, Values
from interp.checks import checked
from interp.display import Tabled
from interp.errors import require
from interp.interventions.experiment import Edit, Experiment, batches
from interp.interventions.moves import Writer
from interp.interventions.pairs import run_of
from interp.interventions.results import curves
from interp.interventions.sites import write
from interp.machine import Machine
from interp.model.run import Rollout, select_rounds
from interp.provenance import provenance
from interp.statistics import Interval, ratio_interval


@dataclass(frozen=True)
class StepResult(Tabled):
    """Closure of a decoded state under an algorithm's update.

    The carried variables ``keys`` were decoded, ``horizon`` rounds on. ``missed`` is the squared distance between the
    decoded state and the algorithm's, in units of each variable's step; ``varied`` is the squares of the algorithm's
    steps about the round's mean, times n / (n - 1) for n episodes, as about the mean of very many.
    """

    keys: tuple[str, ...]
    horizon: int
    missed: Float[np.ndarray, "episode start"]
    varied: Float[np.ndarray, "episode start"]
    settings: dict[str, Any] = field(default_factory=dict)

    def r2(self, seed: int = 0) -> Interval:
        """The step R2 with its 95 % interval over episodes."""
        return ratio_interval(self.missed.sum(1), self.varied.sum(1), seed=seed).complement

    @property
    def finding(self) -> str:
        """How much of the algorithm's step the model makes."""
        on = "one round" if self.horizon == 1 else f"{self.horizon} rounds"
        return f"Decoded {' + '.join(self.keys)}: {on} on, the model makes the algorithm's step with R2 {self.r2()}."

    def plot(self) -> Any:
        """The step R2 by the round started from."""
        lines = {"step R2": 1 - self.missed.sum(0) / self.varied.sum(0)}
        starts = self.settings.get("starts", range(self.missed.shape[1]))
        return curves(starts, lines, xlabel="round started from", ylabel="R2", title=" + ".join(self.keys))

    def to_frame(self) -> pd.DataFrame:
        """One row: what was decoded, the horizon, the step R2 with its interval."""
        r2 = self.r2()
        row = {"state": " + ".join(self.keys), "horizon": self.horizon, "r2": r2.estimate}
        return pd.DataFrame([{**row, "low": r2.low, "high": r2.high}])


@dataclass(frozen=True, eq=False)
class Transition:
    """What a model makes of its decoded state in some rounds; any algorithm can be asked whether it would do the same.

    The variables of these ``shapes`` were decoded ``before`` and ``after``, ``{key: [episode, start, ...]}``.
    """

    episodes: Episodes
    starts: tuple[int, ...]
    horizon: int
    shapes: Mapping[str, tuple[int, ...]]
    before: Values
    after: Values
    settings: dict[str, Any] = field(default_factory=dict)

    def goal(self, algorithm: Algorithm) -> Values:
        """What the algorithm makes of the state before, and of its own values of variables that were not decoded."""
        carried = ", ".join(sorted(algorithm.state)) or "nothing"
        require(
            set(self.shapes) <= set(algorithm.state),
            f"{algorithm.name} carries {carried} from round to round; the writer reads {', '.join(self.shapes)}",
        )
        values = algorithm.run(self.episodes)
        state = {**{key: values[key][:, list(self.starts)] for key in algorithm.state}, **self.before}
        for i in range(self.horizon):
            _, inputs = algorithm.at(values, [t + i for t in self.starts])
            state, _ = algorithm.step(state, inputs)
        return {key: state[key] for key in self.shapes}

    def under(self, algorithm: Algorithm) -> StepResult:
        """How much of the algorithm's step the model makes, each variable in units of its own steps."""
        goal, missed, varied = self.goal(algorithm), np.zeros(()), np.zeros(())
        for key in self.shapes:
            steps = np.asarray(goal[key] - self.before[key], dtype=np.float64)
            unit = float(np.sqrt((steps**2).mean())) or 1.0
            missed = missed + _squares((self.after[key] - goal[key]) / unit)
            about_mean = _squares((steps - steps.mean(0)) / unit)
            varied = varied + about_mean * len(steps) / max(len(steps) - 1, 1)
        settings = {**self.settings, "algorithm": algorithm.key, "parameters": dict(algorithm.parameters)}
        return StepResult(tuple(self.shapes), self.horizon, missed, varied, settings)

    def left(self, algorithm: Algorithm) -> float:
        """Share of the model's own steps that the algorithm does not say; it can exceed 1."""
        goal, missed, made = self.goal(algorithm), 0.0, 0.0
        for key in self.shapes:
            steps = np.asarray(self.after[key] - self.before[key], dtype=np.float64)
            unit = float((steps**2).mean()) or 1.0
            missed += float(((self.after[key] - goal[key]) ** 2).mean() / unit)
            made += float((steps**2).mean() / unit)
        return missed / made if made else float("nan")


@checked
def transition(
    model: Machine,
    episodes: Episodes | Rollout,
    writer: Writer,
    *,
    starts: Sequence[int],
    horizon: int = 1,
    by: Mapping[str, NDArray[np.float64]] | None = None,
) -> Transition:
    """What the model makes of the variables that ``writer`` reads, from the rounds ``starts`` on.

    Args:
        writer: fitted on other episodes, at "latent" or at some channels of what is carried ("latent@h"); the others
            stay as they are.
        horizon: rounds to run on before decoding again.
        by: what the decoded state is first moved by, ``{key: [episode, start, ...]}``; nothing when None.

    Example:
        >>> import interp
        >>> from interp.tasks import experts
        >>> model = interp.load("wma-handwired", n_experts=4).double()
        >>> algorithm = experts.TASK.algorithm("weighted_majority", gain=0.5)
        >>> known, episodes = (experts.sample(16, 12, 4, seed=seed) for seed in (0, 1))
        >>> writer = Writer.fit(model, interp.rollout(model, known), algorithm.run(known), ("log_weights",))
        >>> transition(model, episodes, writer, starts=[3, 6], horizon=5).under(algorithm).r2().estimate > 0.999999
        True
    """
    site = writer.site
    require(site.kind.axes == "latent", f"a carried state is decoded at 'latent', not at {str(site)!r}")
    base = run_of(model, episodes)
    require(
        bool(starts) and horizon >= 1 and min(starts) >= 0 and max(starts) + horizon <= base.n_rounds,
        f"starts {list(starts)} with horizon {horizon} must lie within the {base.n_rounds} rounds; the last start is "
        f"{base.n_rounds - horizon}",
    )
    shape, latents = (base.n_episodes, len(starts)), base.latents[:, list(starts)].double()

    def rows(carried: Tensor) -> Tensor:
        return site.read(carried.flatten(0, 1), base.layout).reshape(*shape, *writer.size)

    if by is not None:
        moved = rows(latents) + writer.step(by, shape).to(latents)
        flat = latents.flatten(0, 1)
        latents = write(flat, site, base.layout, moved.reshape(site.read(flat, base.layout).shape)).unflatten(0, shape)
    before = writer.read(rows(latents))
    if by is None:  # the rollout has run on from there
        left = base.latents[:, [t + horizon for t in starts]]
    else:
        left = run_on(model, base, starts, horizon, latents)[1]
    after = writer.read(rows(left))
    settings = provenance(model, starts=list(starts), moved=sorted(by or ()))
    return Transition(base.episodes, tuple(starts), horizon, dict(writer.shapes), before, after, settings)


def _squares(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray((x**2).reshape(*x.shape[:2], -1).sum(-1))


def run_on(
    model: Machine, run: Rollout, starts: Sequence[int], horizon: int, latents: Tensor
) -> tuple[Tensor, Float[Tensor, "episode start row width"]]:
    """Put ``latents`` in at each of the rounds ``starts`` and let the model run on by itself for ``horizon`` rounds.

    What is put in is all that is carried, ``[episode, start, row, width]``. It gives predictions ``[episode, start,
    horizon, ...]``, and what the last round leaves.
    """
    select_rounds([t + horizon - 1 for t in starts], run.n_rounds)
    edits = {"state": [Edit.of("latent", latents, model)]}
    (ran,) = batches(Experiment(model, run, edits, starts, horizon - 1))
    return ran.predictions[0], ran.carried[0, :, :, 0]
