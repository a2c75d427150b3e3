"""The training goal of a task: the distribution to learn, sizes of batches, progress numbers, and
presets.

A task's record names its goal (field ``training``); only ``targets`` is required::

    TrainingGoal(targets=lambda episodes: np.eye(2)[episodes.rewards])        # [episode, round, outcome]

    >>> from interp import tasks
    >>> goal = goal_of(tasks.get("experts"))
    >>> sorted(goal.presets), goal.floor
    (['laptop', 'laptop-replaced', 'laptop-wide', 'paper'], 'the Bayes predictor')

The loss is the mean cross-entropy from the targets, and its lowest value is their entropy. If no
model can reach this value, because labels cannot be known, a goal defines ``evaluate``; it measures
the ``excess`` over the lowest loss that can be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from numpy.typing import NDArray

from interp.core.catalog import list_tasks
from interp.core.task import Task
from interp.support.checks import checked_fields
from interp.support.errors import InputError, require_known

if TYPE_CHECKING:
    from interp.model.transformer import HookedLatentTransformer
    from interp.training.config import TrainingConfig

_Bounds = Mapping[str, tuple[int, int]]  # name of a size -> its smallest and largest value


@dataclass(frozen=True)
@checked_fields
class TrainingGoal:
    """What models of a task learn to predict, how their progress in training is measured, and the
    presets of training runs.

    Attributes:
        targets: function from episodes to the distribution to learn, Float[episode, round,
            outcome]; if the task predicts a real number, to this number, Float[episode, round, 1].
        other_targets: name -> function of the same kind, for other targets that a run may learn
            instead (a run's setting ``targets``). Progress is measured in the same way, so that
            learning curves can be compared.
        presets: name -> settings of a training run.
        drawn: names of the sizes in the order in which they are drawn for a batch; empty for the
            order in the task's record.
        held_out: function that defines the batches on which progress is measured. It maps {size:
            (smallest, largest) value in the run} to a tuple with {size: value} for each batch, such
            as ``({"n_actions": 2}, {"n_actions": 3})``; sizes that are not named are drawn. By
            default there is one batch with the largest sizes.
        evaluate: function ``(predictions, episodes)`` -> {name: number that shows progress}. The
            predictions are those of a rollout, as an array ``[episode, round, ...]``. ``excess``,
            the loss above the lowest that can be reached, must be one of the numbers. Without a
            function, the numbers are ``cross_entropy`` and ``excess``, its excess over the entropy
            of the targets. For tasks that predict a real number, they are ``loss`` and ``excess``,
            both equal to the loss that the token layout defines.
        starts: name -> function that changes the weights of a new transformer in place, before the
            first batch; a run names one in its setting ``start``.
        floor: the loss above which ``excess`` is measured, in words, such as "the Bayes predictor".
        learns: what models learn, in words, for their description ("trained on ...").
        limits: sentences for model cards on what a trained model cannot do.
    """

    targets: Callable[[Any], NDArray[Any]]
    other_targets: Mapping[str, Callable[[Any], NDArray[Any]]] = field(default_factory=dict)
    presets: Mapping[str, TrainingConfig] = field(default_factory=dict)
    drawn: tuple[str, ...] = ()
    held_out: Callable[[_Bounds], tuple[Mapping[str, int], ...]] | None = None
    evaluate: (
        Callable[[Float[NDArray[Any], "episode round *outcome"], Any], Mapping[str, float]] | None
    ) = None
    starts: Mapping[str, Callable[[HookedLatentTransformer], None]] = field(default_factory=dict)
    floor: str = "its floor"
    learns: str = ""
    limits: tuple[str, ...] = ()

    def targets_of(self, name: str) -> Callable[[Any], NDArray[Any]]:
        """Return the function that computes targets from episodes: one of ``other_targets``, or
        ``targets`` if ``name`` is empty.
        """
        if not name:
            return self.targets
        require_known("targets", name, self.other_targets)
        return self.other_targets[name]


def goal_of(task: Task) -> TrainingGoal:
    """Return the training goal of a task: its targets, presets and measures of progress.

    Raises:
        InputError: the task cannot be trained, because its record names no goal.
    """
    if task.training is None:
        raise InputError(
            f"task {task.key!r} cannot be trained: its record names no goal; give it training=..."
        )
    return task.training()


def _list_goals() -> dict[str, TrainingGoal]:
    """Return the goals of all tasks that can be trained, by key of the task."""
    return {task.key: goal_of(task) for task in list_tasks() if task.training is not None}


def preset(task: str, name: str) -> TrainingConfig:
    """Return the settings of a task's preset, such as ``preset("experts", "laptop")``."""
    goals = _list_goals()
    require_known("task to train", task, goals)
    known_presets = goals[task].presets
    require_known(f"preset of {task!r}", name, known_presets)
    return known_presets[name]


def presets() -> str:
    """Return a text that lists the tasks that can be trained, one per line, with the names of their
    presets.
    """
    lines = []
    for task, goal in _list_goals().items():
        names = ", ".join(sorted(goal.presets)) or "none"
        lines.append(f"{task}: {names}")
    return "\n".join(lines)
