"""A clean and a corrupted run, prepared for intervening at one round and reading at the same or a later one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from interp import catalog
from interp.algorithm import Episodes
from interp.checks import checked
from interp.errors import require
from interp.machine import Machine
from interp.model.layout import RoundLayout
from interp.model.rollout import rollout
from interp.model.run import Rollout, select_rounds
from interp.task import Corruption


@dataclass(frozen=True)
class Readout:
    """Predictions ``[*cell, episode, round, ...]`` from the intervened round to the one that is read, and the latents
    ``[*cell, episode, latent, d_model]`` after it.
    """

    predictions: Tensor
    latents: Tensor


@dataclass(frozen=True)
class Pair:
    """Clean and corrupted rollouts of one model, row by row, with the round to change and the round to read.

    Attributes:
        clean, corrupted: rollouts without hooks, up to the round that is read.
        clean_episodes: the truth that losses are counted by.
        round: where interventions act.
        read: where predictions, and the latents after it, are read; ``read >= round``.
    """

    model: Machine
    clean: Rollout
    corrupted: Rollout
    clean_episodes: Episodes
    round: int
    read: int

    @property
    def layout(self) -> RoundLayout:
        """The layout of the rounds."""
        return self.clean.layout

    @property
    def n_episodes(self) -> int:
        """How many episodes are paired."""
        return self.clean.n_episodes

    @cached_property
    def clean_readout(self) -> Readout:
        """What the clean run gives where the pair is read."""
        return self.readout(self.clean)

    @cached_property
    def corrupted_readout(self) -> Readout:
        """What the corrupted run gives where the pair is read."""
        return self.readout(self.corrupted)

    @checked
    def readout(self, run: Rollout) -> Readout:
        """What ``run`` gives from :attr:`round` to :attr:`read`."""
        return Readout(run.predictions[:, self.round : self.read + 1], run.latents[:, self.read + 1])

    @checked
    def read_state(self, latents: Float[Tensor, "*batch latent d_model"]) -> Tensor:
        """The state: exact for a handwired model, the raw latents for a learned one."""
        return self.model.read_state(latents) if self.model.is_handwired else latents

    @checked
    def losses(self, predictions: Float[Tensor, "*axes"]) -> Float[Tensor, "*batch episode round"]:
        """The task's loss of each prediction from :attr:`round` to :attr:`read`, by the truth of the clean episodes."""
        wanted = self.clean.predictions[:, self.round : self.read + 1].shape
        require(
            predictions.shape[-len(wanted) :] == wanted,
            f"predictions of shape {tuple(predictions.shape)} do not fit; their last axes must be {tuple(wanted)}",
        )
        return catalog.of(self.layout).data.losses(predictions, self.clean_episodes, slice(self.round, self.read + 1))


@checked
def corruption(model: Machine, key: str = "") -> Corruption:
    """A corruption of the model's task; the one that the task names as its default when no key is given."""
    task = catalog.of(model)
    require(
        bool(key or task.analysis.default_corruption),
        f"task {task.key!r} has no default corruption; give its record "
        "analysis=Analysis(corruptions=..., default_corruption=...)",
    )
    return task.corruption(key or task.analysis.default_corruption)


@checked
def prepare(
    model: Machine,
    clean: Episodes,
    corrupted: Episodes,
    round: int,
    read: int | None = None,
    commit: str = "own",
) -> Pair:
    """Run both sides of a pair, up to the round that is read: what comes after it changes nothing before it.

    Interventions act at ``round`` and are read at ``read``, or there, too; negative numbers count from the end.
    """
    model.eval()
    sides = clean, corrupted
    shapes = [(len(side), side.n_rounds, model.layout.fit(side).n_positions) for side in sides]
    require(
        shapes[0] == shapes[1],
        f"clean and corrupted must pair up, got [episode, round, position] {shapes[0]} and {shapes[1]}; "
        "build the corrupted episodes from the clean ones, as the task's corruptions do",
    )
    (at,) = select_rounds(round, clean.n_rounds)
    (until,) = select_rounds(at if read is None else read, clean.n_rounds)
    require(until >= at, f"read must not come before round, got round {at} and read {until}")
    runs = [rollout(model, side, n_rounds=until + 1, commit=commit) for side in sides]
    return Pair(model, runs[0], runs[1], clean, at, until)


def paired_runs(
    model: Machine,
    base: Episodes,
    source: Episodes,
    *,
    commit: str = "own",
    runs: tuple[Rollout, Rollout] | None = None,
) -> tuple[Rollout, Rollout]:
    """Rollouts of episodes that pair up row by row; ``runs`` where they are known."""
    model.eval()
    runs = runs or (rollout(model, base, commit=commit), rollout(model, source, commit=commit))
    shapes = [tuple(run.tokens.shape) for run in runs]
    require(shapes[0] == shapes[1], f"base and source must pair up, got {shapes[0]} and {shapes[1]}")
    return runs
