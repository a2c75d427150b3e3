"""Measure how much a machine with a random initial state, such as recurrent depth, depends on it.

Every episode is run from several random initial states ("starts").

    share of the start, in round t = mean over episodes of the variance over starts
                                     / variance over all pairs of start and episode

The share is computed for the state and for the prediction, each with its variances summed over the
numbers that it consists of. It is 0 if the start is forgotten, and 1 if only the start matters. A
low share is NOT evidence that the start stays forgotten: its effect may return in a later round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy.typing import NDArray

from interp.core.algorithm import Episodes, refuse_missing
from interp.model.adapted import AdaptedMachine
from interp.model.carried import unpack
from interp.model.rollout import rollout
from interp.model.run import Rollout
from interp.results.measure import Result
from interp.support.checks import checked, checked_result, integer
from interp.support.errors import require
from interp.support.provenance import provenance

_SAME_STATE = 0.01
"""Two final states are one attractor if their distance is below this share of the distance between
episodes.
"""


@dataclass(frozen=True)
@checked_result
class Starts(Result):
    """Result of :func:`starts`: how much a machine's runs depend on its random initial state
    ("start").

    Attributes:
        name: name of the machine.
        table: one row per round, with four columns. ``round`` is the index of the round. ``state``
            is the start's share of the variance of the state: the variance over starts, averaged
            over episodes, divided by the variance over all pairs of start and episode.
            ``prediction`` is the same share for the prediction. ``same_choice`` is the share of
            pairs of starts with which the model makes the same choice, averaged over episodes.
        attractors: which final state (after the last round) each start leads to, as an integer,
            ``[start, episode]``. In each episode, final states are numbered from 0 in order of
            first occurrence; final states that nearly coincide have the same number.
        settings: settings of the analysis, name and digest of the machine, versions of packages.
    """

    name: str
    table: pd.DataFrame
    attractors: Int[np.ndarray, "start episode"]
    settings: dict[str, Any] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """Return :attr:`table`, which has one row per round.

        The columns are:

        * round: its index;
        * state, prediction: share of the variance of the state, and of the prediction, that is due
          to the random initial state (the start), from 0 to 1;
        * same_choice: share of pairs of starts that lead to the same choice in the same episode.
        """
        return self.table

    @property
    def sentence(self) -> str:
        """One sentence about the last round: the share of the variance of state and prediction that
        is due to the start, how often two starts lead to the same choice, and the number of
        different final states per episode.
        """
        last = self.table.iloc[-1]
        n_attractors = self.attractors.max(0) + 1
        return (
            f"In the last round {last['state']:.0%} of the variance of the state of {self.name} and "
            f"{last['prediction']:.0%} of that of its prediction is the start's; two starts choose alike in "
            f"{last['same_choice']:.0%}, and lead to {n_attractors.mean():.1f} final states an episode."
        )

    def _draw(self, figures: Any) -> Any:
        """Draw the start's share of the variance of state and prediction over rounds.

        Args:
            figures: the module :mod:`interp.results.figures`, which draws.
        """
        lines = self.table.melt("round", ["state", "prediction"], "algorithm", "mean")
        return figures.curves(lines, ylabel="share of the start in the variance")


@checked
def starts(machine: AdaptedMachine, episodes: Episodes, *, n_starts: int = 8) -> Starts:
    """Run episodes from several random initial states of a machine, and measure how the runs depend
    on them.

    Args:
        machine: a machine with a random initial state. The state that is measured is its first
            channel (named part of the carried state).
        episodes: at least two episodes of its task, without missing rounds.
        n_starts: number of initial states, with seeds 0, 1, ...

    Returns:
        For each round, the share of the variance of the state, and of the variance of the
        prediction, that is due to the initial state. Also which final states each episode reaches.
        Two final states of an episode count as the same if their distance is at most 1 % of the
        mean distance between final states of different episodes.
    """
    refuse_missing("starts", episodes)
    n_episodes = len(episodes)
    require(
        n_episodes >= 2, f"the states of two episodes are compared, got {n_episodes}; give more"
    )
    runs = [
        rollout(machine.started(seed), episodes) for seed in range(integer("n_starts", n_starts, 2))
    ]
    layout = runs[0].layout
    # [start, episode, round, number] each; choices have no axis of numbers
    predictions = np.stack([layout.distribution(run.predictions).numpy(force=True) for run in runs])
    states = np.stack([_read_state(machine, run) for run in runs])
    choices = np.stack([run.choices.numpy(force=True) for run in runs])
    # Start s is compared with start s + shift, so every start with every other one:
    # [shift, start, episode, round].
    same_choice = [choices == np.roll(choices, shift, axis=0) for shift in range(1, n_starts)]
    table = pd.DataFrame(
        {
            "round": np.arange(states.shape[2]),
            "state": _share_of_start(states),
            "prediction": _share_of_start(predictions),
            "same_choice": np.mean(same_choice, axis=(0, 1, 2)),
        }
    )
    return Starts(
        name=machine.name,
        table=table,
        attractors=_number_attractors(states[:, :, -1]),
        settings=provenance(machine, n_starts=n_starts),
    )


def _read_state(machine: AdaptedMachine, run: Rollout) -> NDArray[Any]:
    """Return the values of a machine's first channel after each round of a run,
    ``[episode, round, number]``.
    """
    state = unpack(machine.channels, run.latents[:, 1:])[machine.channels[0].name]
    return state.flatten(2).numpy(force=True)


def _share_of_start(values: Float[NDArray[Any], "start episode round number"]) -> NDArray[Any]:
    """Return the start's share of the variance in each round, ``[round]``: the variance over
    starts, averaged over episodes, divided by the variance over all runs.

    Args:
        values: numbers, such as predictions, of every run, ``[start, episode, round, number]``.
    """
    start_variance = values.var(0)  # [episode, round, number]
    due_to_start = start_variance.mean(0).sum(-1)  # [round]
    total_variance = values.var((0, 1)).sum(-1)
    # Where all runs are equal, both are 0, and so is the share.
    return due_to_start / np.where(total_variance > 0, total_variance, 1)


def _number_attractors(states: Float[NDArray[Any], "start episode number"]) -> NDArray[np.int_]:
    """Sort the final states of each episode into groups of states that nearly coincide. Return the
    index of each state's group, ``[start, episode]``.
    """
    # States are near relative to the mean distance between final states of different episodes:
    # here of each episode and the one before it, with the same start.
    mean_distance = np.linalg.norm(states - np.roll(states, 1, axis=1), axis=-1).mean()
    groups = np.zeros(states.shape[:2], dtype=int)
    for episode in range(states.shape[1]):
        first_starts: list[int] = []  # the first start of each group
        for start in range(len(states)):
            distances = np.linalg.norm(
                states[first_starts, episode] - states[start, episode], axis=-1
            )
            # Numbers of the groups whose first state is near this one.
            near_groups = np.flatnonzero(distances <= _SAME_STATE * mean_distance)
            if len(near_groups):
                groups[start, episode] = near_groups[0]
            else:
                groups[start, episode] = len(first_starts)
                first_starts.append(start)
    return groups
