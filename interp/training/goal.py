"""What a task defines for training: the distribution to learn, the sizes of batches, the numbers to
watch, the presets.

A task's record names it (``training``); only ``targets`` is needed::

    TrainingGoal(targets=lambda episodes: np.eye(2)[episodes.rewards])        # [episode, round, outcome]

    >>> from interp import tasks
    >>> goal = goal_of(tasks.get("experts"))
    >>> sorted(goal.presets), goal.floor
    (['laptop', 'laptop-replaced', 'laptop-wide', 'paper'], 'the Bayes predictor')

The loss is the mean cross-entropy from the targets. Its floor is their entropy where no better one
is known. A task with a higher optimum (labels cannot be known) gives ``evaluate``, which measures
``excess`` from that optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from numpy.typing import NDArray

from interp.core.catalog import every
from interp.core.task import Task
from interp.support.checks import checked_fields
from interp.support.errors import InputError, require_known

if TYPE_CHECKING:
    from interp.model.transformer import HookedLatentTransformer
    from interp.training.config import TrainingConfig

_Bounds = Mapping[str, tuple[int, int]]  # smallest and largest of each size, by its name


@dataclass(frozen=True)
@checked_fields
class TrainingGoal:
    """What models of a task are trained on.

    Attributes:
        targets: episodes to the distribution to learn, Float[episode, round, outcome]; to the
            number itself, Float[episode, round, 1], where the layout predicts a real one.
        other_targets: further distributions that a run may learn instead, by name (a run's
            ``targets``): what is watched stays the same, so that learning curves can be compared.
        presets: training runs by name.
        drawn: names of the sizes in the order in which they are drawn for a batch; the record's
            order when empty.
        held_out: bounds to the sizes that each evaluation batch fixes, the rest being drawn; when
            None, one batch of the largest sizes.
        evaluate: (predictions, episodes) to the numbers that training watches, ``excess`` among
            them; cross-entropy and its excess over the targets' entropy when None (of a real number
            the layout's loss, as both).
        starts: ways to set the weights before the first step, by name; a run names one (``start``).
        floor: what ``excess`` is measured from, for sentences.
        learns: what was learned, for a model's description ("trained on ...").
        limits: what a trained model cannot do, a sentence each, for its card.
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
        """Return the targets that a run names; ``targets`` where it names none."""
        if not name:
            return self.targets
        require_known("targets", name, self.other_targets)
        return self.other_targets[name]


def goal_of(task: Task) -> TrainingGoal:
    """Return the training goal of a task; refuse a task that names none."""
    if task.training is None:
        raise InputError(
            f"task {task.key!r} cannot be trained: its record names no goal; give it training=..."
        )
    return task.training()


def preset(task: str, name: str) -> TrainingConfig:
    """Return the preset ``name`` of a task, such as ("experts", "laptop")."""
    trained = {known.key: goal_of(known) for known in every() if known.training is not None}
    require_known("task to train", task, trained)
    require_known(f"preset of {task!r}", name, trained[task].presets)
    return trained[task].presets[name]


def presets() -> str:
    """List every task that can be trained with the names of its presets, a line each."""
    trained = [task for task in every() if task.training is not None]
    return "\n".join(
        f"{task.key}: {', '.join(sorted(goal_of(task).presets)) or 'none'}" for task in trained
    )
